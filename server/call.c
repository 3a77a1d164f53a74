/* A call's way over a worker: parse, validate, render, tokenise. Owns nothing but the call. */
#include "server/call.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#define BIG_TREE 4096 /* weight (json.h) of a body whose values the loop does not free itself */

void srv_call_free(struct srv_call *c)
{
    if (!c) return;
    cn_buf_fini(&c->body);
    cn_buf_fini(&c->answer);
    cn_buf_fini(&c->text);
    cn_buf_fini(&c->customs);
    free(c->shown_ids);
    json_decref(c->root);
    for (size_t i = 0; i < c->n_prompts; i++) {
        free(c->prompts[i].ids);
        free(c->prompts[i].text);
        free(c->prompts[i].vector);
    }
    free(c->prompts);
    for (size_t i = 0; i < c->n_stop; i++)
        free(c->stop[i]);
    free(c->stop);
    free(c->stop_ids);
    rt_shared_unref(c->shared);
    for (size_t i = 0; c->guides && i < c->n_prompts; i++)
        eng_guide_free(c->guides[i]);
    free(c->guides);
    free(c->rt_guides);
    eng_grammar_unref(c->grammar);
    eng_tools_free(c->tools);
    free(c->bias);
    free(c->ids);
    cn_hold_drop(&c->hold);
    free(c);
}

int srv_call_take(struct srv_call *c, uint64_t n)
{
    int rc = cn_hold_take(&c->hold, n);
    return rc ? cn_fail(&c->err, rc, "%s", cn_err_info(rc)->text) : 0;
}

static void free_work(struct srv_job *job)
{
    srv_call_free(CN_CONTAINER(job, struct srv_call, job));
}

static bool is_small(const struct srv_call *c)
{
    return (!c->root || SRV_JSON_WEIGHT - c->json.left < BIG_TREE) &&
           c->body.cap + c->text.cap + c->answer.cap + c->hold.bytes < SRV_TEXT_DROP;
}

void srv_call_drop(struct srv_call *c, struct srv_text_pool *pool)
{
    if (!pool || is_small(c)) {
        srv_call_free(c);
        return;
    }
    c->job.detached = true;
    c->job.work = free_work;
    srv_text_push(pool, &c->job);
}

static int parse(struct srv_call *c)
{
    if (c->root) return 0;
    c->json = (struct srv_json_room){.left = SRV_JSON_WEIGHT, .hold = &c->hold};
    int rc =
        srv_json_parse(c->body.data ? c->body.data : "", c->body.len, &c->json, &c->root, &c->err);
    if (!rc) cn_buf_fini(&c->body);
    return rc;
}

int srv_call_head(struct srv_call *c)
{
    static const enum srv_endpoint endpoint[] = {
        [SRV_OP_CHAT] = SRV_EP_CHAT,     [SRV_OP_TEXT] = SRV_EP_TEXT,
        [SRV_OP_TOKENIZE] = SRV_EP_TOK,  [SRV_OP_DETOKENIZE] = SRV_EP_DETOK,
        [SRV_OP_TEMPLATE] = SRV_EP_CHAT, [SRV_OP_EMBED] = SRV_EP_EMBED,
    };
    if (c->head) return 0;
    int rc = parse(c);
    if (!rc) rc = srv_params_read(&c->p, c->root, endpoint[c->op], &c->err);
    if (!rc && (c->op == SRV_OP_CHAT || c->op == SRV_OP_TEXT))
        rc = srv_form_read(&c->form, c->root, &c->err);
    if (rc) return rc;
    srv_deadline_read(c);
    if ((c->op == SRV_OP_CHAT || c->op == SRV_OP_TEXT) && (rc = srv_counts_read(c))) return rc;
    c->head = true;
    return 0;
}

/* The parsed body is not needed any more: its memory goes before the request waits its turn. */
static void drop_body(struct srv_call *c)
{
    cn_buf_fini(&c->body);
    json_decref(c->root);
    c->root = NULL;
    cn_hold_give(&c->hold, c->json.taken);
    c->json.taken = 0;
#define PARAM(ep, name, type, member, def, low, high, text) DROP_##type(member)
#define DROP_BOOL(m)
#define DROP_INT(m)
#define DROP_NUM(m)
#define DROP_STR(m) c->p.m = NULL;
#define DROP_ARR(m) c->p.m = NULL;
#define DROP_OBJ(m) c->p.m = NULL;
#define DROP_ANY(m) c->p.m = NULL;
#include "server/params.def"
#undef PARAM
}

static void set_error(struct srv_call *c, int rc)
{
    if (rc && !c->err.code) cn_fail(&c->err, rc, "%s", cn_err_info(rc)->text);
}

void srv_call_head_work(struct srv_job *job)
{
    struct srv_call *c = CN_CONTAINER(job, struct srv_call, job);
    set_error(c, srv_call_head(c));
    if (c->err.code || atomic_load(&job->cancelled)) drop_body(c);
}

bool srv_op_runs(enum srv_op op)
{
    return op == SRV_OP_CHAT || op == SRV_OP_TEXT || op == SRV_OP_EMBED;
}

/* A model has vectors or text, and the other one's endpoints say so. */
static int check_kind(struct srv_call *c)
{
    bool embeds = c->env->embedding_size > 0;

    if (!srv_op_runs(c->op) || embeds == (c->op == SRV_OP_EMBED)) return 0;
    if (embeds)
        return cn_fail_param(&c->err, CN_EUNSUPP, "model",
                             "%s is an embedding model, it generates no text: use /v1/embeddings",
                             c->env->model_id);
    return cn_fail_param(&c->err, CN_EUNSUPP, "model",
                         "%s generates text and has no embeddings: use /v1/chat/completions or "
                         "/v1/completions",
                         c->env->model_id);
}

/* {"prompt":"..."}: what c->text has. */
static bool write_text(struct srv_call *c, struct cn_buf *b)
{
    if (!c->at.at) cn_buf_puts(b, "{\"prompt\":");
    if (!srv_put_text(b, &c->at, c->text.data ? c->text.data : "", c->text.len, SRV_PIECE))
        return b->failed;
    cn_buf_putc(b, '}');
    return true;
}

int srv_text_answer(struct srv_call *c)
{
    if (c->text.failed)
        return cn_fail(&c->err, cn_buf_code(&c->text), "%s",
                       cn_err_info(cn_buf_code(&c->text))->text);
    c->write = write_text;
    return 0;
}

static int render_answer(struct srv_call *c)
{
    struct eng_rendered r = {0};
    int rc = srv_chat_render(c, &r);

    if (rc) return rc;
    c->text = r.text; /* moved */
    cn_buf_init(&r.text, 0);
    eng_rendered_fini(&r);
    if ((rc = cn_buf_rebill(&c->text, c->hold.account)))
        return cn_fail(&c->err, rc, "%s", cn_err_info(rc)->text);
    return srv_text_answer(c);
}

static void write_piece(struct srv_call *c)
{
    struct cn_buf *b = &c->answer;

    if (!b->account) cn_buf_init_for(b, 0, c->hold.account);
    cn_buf_reset(b);
    c->written = c->write(c, b);
    int rc = cn_buf_code(b);
    if (rc) cn_fail(&c->err, rc, "%s", cn_err_info(rc)->text);
}

void srv_write_work(struct srv_job *job)
{
    struct srv_call *c = CN_CONTAINER(job, struct srv_call, job);

    write_piece(c);
}

/* The grammar, and what is made once per vocabulary: both take too long for the loop. */
static int prepare_form(struct srv_call *c)
{
    int rc = srv_form_compile(c);

    if (rc || (!c->grammar && !srv_given(&c->p, SRV_P_thinking_budget))) return rc;
    rc = eng_guide_prepare(c->env->vocab);
    return rc ? cn_fail(&c->err, rc, "out of memory") : 0;
}

static int work(struct srv_call *c)
{
    int rc = srv_call_head(c);

    if (!rc) rc = check_kind(c);
    if (rc) return rc;
    switch (c->op) {
    case SRV_OP_CHAT:
        if ((rc = srv_sampling_read(c)) || (rc = srv_chat_prompt(c))) return rc;
        rc = srv_window_check(c);
        return rc ? rc : prepare_form(c);
    case SRV_OP_TEXT:
        if ((rc = srv_sampling_read(c)) || (rc = srv_text_prompts(c))) return rc;
        rc = srv_window_check(c);
        return rc ? rc : prepare_form(c);
    case SRV_OP_EMBED:
        rc = srv_embed_read(c);
        return rc ? rc : srv_text_prompts(c);
    case SRV_OP_TOKENIZE:
        return srv_tokenize_answer(c);
    case SRV_OP_DETOKENIZE:
        return srv_detokenize_answer(c);
    case SRV_OP_TEMPLATE:
        return render_answer(c);
    }
    return cn_fail(&c->err, CN_EINTERNAL, "unknown operation");
}

void srv_call_work(struct srv_job *job)
{
    struct srv_call *c = CN_CONTAINER(job, struct srv_call, job);

    set_error(c, work(c));
    drop_body(c);
    if (!c->err.code && c->write) write_piece(c);
}
