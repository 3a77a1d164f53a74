/* Answers that are not streamed. The results that a worker or a choice kept become JSON in
 * pieces, each made when the reader has taken the one before; a short answer is one piece, with
 * its length in the head. The loop's thread hands a call to a worker and gets it back; only the
 * one that has the call writes to it. */
#include "server/request.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define INLINE_WORK 2048 /* as srv_tokens_some counts it: more is a worker's */

/* ---- completions ----------------------------------------------------------------------------- */

/* Where the writer stands in one choice. */
struct writer {
    struct srv_req *q;
    struct srv_choice *c;
    struct cn_buf *b;
    struct srv_cursor *at;
};

/* A step of a choice's JSON: appends until the piece is full; true when the step is done. */
typedef bool step_fn(struct writer *w);

static bool put_list(struct writer *w, enum srv_token_list list)
{
    size_t n = srv_tokens_n(w->c), first = srv_tokens_first(w->c, list);
    size_t from = CN_MAX(w->at->at, first);

    if (from > first && from < n) cn_buf_putc(w->b, ',');
    w->at->at = srv_tokens_put(w->b, w->q, w->c, list, from, n, SRV_PIECE);
    return w->at->at == n;
}

static bool put_index(struct writer *w)
{
    cn_buf_printf(w->b, w->at->item ? ",{\"index\":%zu," : "{\"index\":%zu,", w->at->item);
    return true;
}

static bool put_message(struct writer *w)
{
    srv_parts_message(w->b, w->q, w->c);
    return true;
}

static bool put_echo(struct writer *w)
{
    const struct srv_prompt *p = srv_out_prompt(w->q, w->c);
    const char *s = p->text ? p->text + w->at->at : "";

    if (!w->at->at) cn_buf_puts(w->b, "\"text\":\"");
    if (!w->c->echoed || !p->text) return true;
    size_t n = srv_text_piece(s, p->text_len - w->at->at, SRV_PIECE / 2);
    cn_buf_json_text(w->b, s, n);
    w->at->at += n;
    return w->at->at == p->text_len;
}

static bool put_text(struct writer *w)
{
    const char *s = w->c->text.data ? w->c->text.data + w->at->at : "";
    size_t n = srv_text_piece(s, w->c->text.len - w->at->at, SRV_PIECE / 2);

    cn_buf_json_text(w->b, s, n);
    w->at->at += n;
    if (w->at->at < w->c->text.len) return false;
    cn_buf_putc(w->b, '"');
    return true;
}

static bool put_logprobs(struct writer *w)
{
    cn_buf_puts(w->b, ",\"logprobs\":");
    cn_buf_puts(w->b, !w->q->call->want_logprobs      ? "null"
                      : w->q->call->op == SRV_OP_CHAT ? "{\"content\":["
                                                      : "{\"tokens\":[");
    return true;
}

static bool put_some(struct writer *w, enum srv_token_list list, const char *after)
{
    if (!w->q->call->want_logprobs) return true;
    if (!put_list(w, list)) return false;
    cn_buf_puts(w->b, after);
    return true;
}

static bool put_content(struct writer *w)
{
    return put_some(w, SRV_LIST_CONTENT, "],\"refusal\":null}");
}

static bool put_tokens(struct writer *w)
{
    return put_some(w, SRV_LIST_TOKENS, "],\"token_logprobs\":[");
}

static bool put_values(struct writer *w)
{
    return put_some(w, SRV_LIST_LOGPROBS, "],\"top_logprobs\":[");
}

static bool put_top(struct writer *w)
{
    return put_some(w, SRV_LIST_TOP, "],\"text_offset\":[");
}

static bool put_offsets(struct writer *w)
{
    return put_some(w, SRV_LIST_OFFSETS, "]}");
}

static bool put_finish(struct writer *w)
{
    srv_out_finish(w->b, w->q, w->c);
    if (w->q->call->p.return_ids) cn_buf_puts(w->b, ",\"token_ids\":[");
    return true;
}

static bool put_ids(struct writer *w)
{
    if (!w->q->call->p.return_ids) return true;
    if (!put_list(w, SRV_LIST_IDS)) return false;
    cn_buf_putc(w->b, ']');
    return true;
}

static bool put_prompt_ids(struct writer *w)
{
    const struct srv_prompt *p = srv_out_prompt(w->q, w->c);

    if (!w->q->call->p.return_ids) return true;
    if (!w->at->at) cn_buf_puts(w->b, ",\"prompt_token_ids\":[");
    if (!srv_put_ids(w->b, w->at, p->ids, p->n, SRV_PIECE)) return false;
    cn_buf_putc(w->b, ']');
    return true;
}

static bool put_close(struct writer *w)
{
    cn_buf_putc(w->b, '}');
    return true;
}

static step_fn *const chat_steps[] = {put_index,  put_message, put_logprobs, put_content,
                                      put_finish, put_ids,     put_close,    NULL};
static step_fn *const text_steps[] = {
    put_index,   put_echo,   put_text, put_logprobs,   put_tokens, put_values, put_top,
    put_offsets, put_finish, put_ids,  put_prompt_ids, put_close,  NULL};

/* What stands behind the choices. */
static bool put_end(struct srv_req *q, struct cn_buf *b, struct srv_cursor *at)
{
    const struct srv_prompt *p = &q->call->prompts[0];
    bool ids = q->call->p.return_ids && q->call->op == SRV_OP_CHAT;

    if (!at->at) cn_buf_puts(b, ids ? "],\"prompt_token_ids\":[" : "],");
    if (ids && !srv_put_ids(b, at, p->ids, p->n, SRV_PIECE)) return false;
    if (ids) cn_buf_puts(b, "],");
    srv_out_usage(b, q);
    cn_buf_putc(b, '}');
    return true;
}

/* Choices in the order of the answer: of each prompt's the n best. */
static bool write_choices(struct srv_call *call, struct cn_buf *b)
{
    struct srv_req *q = call->record;
    struct srv_cursor *at = &call->at;
    step_fn *const *steps = call->op == SRV_OP_CHAT ? chat_steps : text_steps;

    if (!at->item && !at->part && !at->at) cn_buf_append(b, q->prefix.data, q->prefix.len);
    for (; at->item < q->n_subs * call->n; at->item++, at->part = 0) {
        size_t rank = at->item / call->n * call->best_of + at->item % call->n;
        struct writer w = {q, &q->choices[q->order[rank]], b, at};
        for (; steps[at->part]; at->part++, at->at = 0) {
            if (b->len >= SRV_PIECE || b->failed || !steps[at->part](&w)) return b->failed;
        }
    }
    return put_end(q, b, at) || b->failed;
}

static double mean_logprob(const struct srv_choice *c)
{
    return c->n_tokens ? c->logprob_sum / (double)c->n_tokens : -INFINITY;
}

/* Likeliest first, and of equals the first. */
static int by_mean(const void *x, const void *y)
{
    const struct srv_choice *a = *(const struct srv_choice *const *)x;
    const struct srv_choice *b = *(const struct srv_choice *const *)y;
    double p = mean_logprob(a), r = mean_logprob(b);

    return p != r ? (p < r ? 1 : -1) : a->index < b->index ? -1 : 1;
}

/* The choices of each prompt, the likeliest first where fewer are wanted than were generated. */
static int put_in_order(struct srv_req *q)
{
    const struct srv_call *call = q->call;
    struct srv_choice **some = cn_calloc(call->best_of, sizeof(void *));

    q->order = cn_malloc_array(q->n_choices, sizeof *q->order);
    for (size_t sub = 0; some && q->order && sub < q->n_subs; sub++) {
        size_t at = sub * call->best_of;
        for (size_t i = 0; i < call->best_of; i++)
            some[i] = &q->choices[at + i];
        if (call->best_of > call->n) qsort(some, call->best_of, sizeof(void *), by_mean);
        for (size_t i = 0; i < call->best_of; i++)
            q->order[at + i] = some[i]->index;
    }
    int rc = some && q->order ? 0 : CN_ENOMEM;
    free(some);
    return rc;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* About how much there is to write, or more than is counted for. */
static size_t work_to_do(const struct srv_req *q)
{
    size_t work = 0;

    if (q->call->op == SRV_OP_EMBED) return q->call->n_prompts * q->call->env->embedding_size;

    for (size_t i = 0; i < q->n_choices && work <= INLINE_WORK; i++) {
        const struct srv_choice *c = &q->choices[i];
        size_t text = c->text.len + c->reasoning.len;
        for (size_t k = 0; k < c->n_calls; k++)
            text += c->calls[k].arguments.len;
        work += 16 + text / 16 + c->top.len / sizeof(struct cn_top);
        if (c->echoed) work += srv_out_prompt(q, c)->text_len / 16;
        if (q->call->p.return_ids) work += srv_out_prompt(q, c)->n;
        if (c->prompt || c->tokens.len) work += 2 * srv_tokens_n(c);
        if (c->prompt && q->call->want_logprobs) work += 20 * c->prompt->n_tokens;
    }
    return work;
}

void srv_answer_begin(struct srv_req *q)
{
    struct srv_call *call = q->call;

    bool vectors = call->op == SRV_OP_EMBED;
    int rc;

    if (!q->conn) return;
    rc = vectors ? 0 : put_in_order(q);
    call->write = vectors ? srv_embed_write : write_choices;
    call->record = q;
    if (!rc && work_to_do(q) > INLINE_WORK) {
        rc = srv_req_write(q);
    } else if (!rc) {
        srv_write_work(&call->job);
        rc = call->err.code;
        if (!rc) srv_answer_piece(q);
    }
    if (rc) srv_req_fail(q, &(struct cn_error){.code = rc});
}

void srv_answer_piece(struct srv_req *q)
{
    struct srv_conn *c = q->conn;
    struct srv_call *call = q->call;
    struct cn_buf *b = &call->answer;

    if (call->written) {
        q->conn = NULL;
        c->user = NULL;
    }
    if (call->written && !q->sent) {
        srv_conn_answer(c, 200, "application/json", b->data, b->len, NULL);
        return;
    }
    if (!q->sent) srv_conn_stream_begin(c, "application/json", NULL);
    q->sent = SRV_SENT_PIECES;
    srv_conn_stream_data(c, b->data, b->len);
    if (call->written)
        srv_conn_stream_end(c, false);
    else if (srv_conn_unsent(c) <= SRV_PIECE)
        srv_answer_sent(q);
}

void srv_answer_sent(struct srv_req *q)
{
    if (q->work || q->call->written) return;
    int rc = srv_req_write(q);
    if (rc) srv_req_fail(q, &(struct cn_error){.code = rc});
}
