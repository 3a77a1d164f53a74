/* Prompts that are no conversation: `prompt` of /v1/completions as a string, strings, ids or lists
 * of ids; /tokenize and /detokenize. Worker threads; works on one call. */
#include "server/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RUN (2u << 20) /* bytes of a word: merging it takes up to 180 times as much */
#define COUNT_BYTES                                                                                \
    (512u << 10) /* of a text that is too long: its tokens are counted all the same */

/* What the endpoint calls the text. */
static const char *field(const struct srv_call *c)
{
    return c->op == SRV_OP_EMBED ? "input" : "prompt";
}

static int take_work(void *arg, size_t bytes)
{
    return cn_hold_take(&CN_CONTAINER((struct srv_job *)arg, struct srv_call, job)->hold, bytes);
}

static void give_work(void *arg, size_t bytes)
{
    cn_hold_give(&CN_CONTAINER((struct srv_job *)arg, struct srv_call, job)->hold, bytes);
}

struct eng_ids srv_ids_for(struct srv_call *c, uint64_t max)
{
    return (struct eng_ids){.max = max,
                            .max_run = MAX_RUN,
                            .keep_going = srv_text_keep_going,
                            .take = take_work,
                            .give = give_work,
                            .arg = &c->job};
}

/* /tokenize: ids that are not for a model are bounded all the same. */
static int too_many(struct srv_call *c, const char *name)
{
    return cn_fail_param(&c->err, CN_ELIMIT, name,
                         "the text has more than %lld tokens (limits.max_tokenize_tokens)",
                         (long long)c->env->max_tokenize_tokens);
}

/* Whether the i-th of many values may be worked on. */
static bool go_on(struct srv_call *c, size_t i)
{
    if (i % 1024 || srv_text_yield(&c->job)) return true;
    cn_fail(&c->err, CN_ECANCELLED, "cancelled");
    return false;
}

int srv_too_long(struct srv_call *c, const char *name, const struct srv_text *t)
{
    unsigned long long n = c->env->context;
    struct eng_ids all = srv_ids_for(c, 0);
    uint64_t paid = srv_ids_bytes(t->len, 0);
    bool taken = t->len <= COUNT_BYTES && !srv_call_take(c, paid);
    bool counted = taken && !eng_tokenize(c->env->vocab, t->data, t->len, t->spans, t->n_spans,
                                          t->flags, &all, NULL);

    if (counted) n = all.n;
    eng_ids_fini(&all);
    if (taken) cn_hold_give(&c->hold, paid);
    return cn_fail_param(
        &c->err, CN_EWINDOW, name,
        "the prompt has %s%llu tokens; the context window of %llu tokens must hold "
        "it and at least one more",
        counted ? "" : "more than ", n, (unsigned long long)c->env->context);
}

static int tokenize_paid(struct srv_call *c, const char *text, size_t n, struct eng_ids *ids)
{
    unsigned flags = (c->p.parse_special ? ENG_TOKENIZE_PARSE : 0u) |
                     (c->p.add_special ? ENG_TOKENIZE_SPECIAL : 0u);
    int rc = eng_tokenize(c->env->vocab, text, n, NULL, 0, flags, ids, &c->err);
    if (rc != CN_EWINDOW) return rc;
    eng_ids_fini(ids);
    if (c->op == SRV_OP_TOKENIZE) return too_many(c, field(c));
    return srv_too_long(c, field(c), &(struct srv_text){.data = text, .len = n, .flags = flags});
}

/* The vector doubles as it grows. */
uint64_t srv_ids_bytes(size_t n, size_t max)
{
    uint64_t most = (uint64_t)n + 16;

    return (max ? CN_MIN(most, (uint64_t)max + 1) : most) * 2 * sizeof(uint32_t);
}

static int tokenize(struct srv_call *c, const char *text, size_t n, struct eng_ids *ids)
{
    uint64_t paid = srv_ids_bytes(n, ids->max);
    int rc = srv_call_take(c, paid);

    if (!rc) rc = tokenize_paid(c, text, n, ids);
    if (!rc) cn_hold_give(&c->hold, paid - CN_MIN(paid, (uint64_t)(ids->cap * sizeof *ids->v)));
    return rc;
}

static int text_prompt(struct srv_call *c, const json_t *s, struct srv_prompt *out)
{
    struct eng_ids ids = srv_ids_for(c, c->env->context);
    size_t n = json_string_length(s);
    int rc = tokenize(c, json_string_value(s), n, &ids);

    out->ids = ids.v;
    out->n = ids.n;
    if (rc) return rc;
    if (!ids.n) return cn_fail_param(&c->err, CN_EINVAL, field(c), "the prompt has no tokens");
    if (!c->p.echo) return 0;
    if ((rc = srv_call_take(c, n + 1))) return rc;
    out->text = cn_malloc_array(n + 1, 1);
    if (!out->text) return cn_fail(&c->err, CN_ENOMEM, "out of memory");
    memcpy(out->text, json_string_value(s), n + 1);
    out->text_len = n;
    return 0;
}

/* An id of the vocabulary from JSON. */
static int read_id(struct srv_call *c, const json_t *v, const char *name, size_t i, uint32_t *out)
{
    int64_t id;
    if (!srv_json_int(v, &id))
        return cn_fail_param(&c->err, CN_ETYPE, name, "%s[%zu] must be a token id", name, i);
    if (id < 0 || (uint64_t)id >= eng_vocab_size(c->env->vocab))
        return cn_fail_param(&c->err, CN_ERANGE, name,
                             "%s[%zu]: %lld is not an id of the vocabulary of %zu", name, i,
                             (long long)id, eng_vocab_size(c->env->vocab));
    *out = (uint32_t)id;
    return 0;
}

static int detokenize(struct srv_call *c, const uint32_t *ids, size_t n, bool special,
                      struct cn_buf *out)
{
    struct eng_detok d;

    eng_detok_init(&d, c->env->vocab, special, true);
    for (size_t i = 0; i < n; i++) {
        if (!go_on(c, i)) return CN_ECANCELLED;
        if (eng_detok_push(&d, ids[i], out)) break;
    }
    int rc = out->failed ? cn_buf_code(out) : eng_detok_flush(&d, out);
    return rc ? cn_fail(&c->err, rc, "%s", cn_err_info(rc)->text) : 0;
}

static int id_prompt(struct srv_call *c, const json_t *list, struct srv_prompt *out)
{
    size_t n = json_array_size(list), i;
    json_t *v;
    int rc;

    if (!n) return cn_fail_param(&c->err, CN_EINVAL, field(c), "the prompt has no tokens");
    if (n > c->env->context)
        return cn_fail_param(&c->err, CN_EWINDOW, field(c),
                             "the prompt has %zu tokens; the context window of %llu tokens must "
                             "hold it and at least one more",
                             n, (unsigned long long)c->env->context);
    if ((rc = srv_call_take(c, n * sizeof *out->ids))) return rc;
    out->ids = cn_malloc_array(n, sizeof *out->ids);
    if (!out->ids) return cn_fail(&c->err, CN_ENOMEM, "out of memory");
    out->n = n;
    json_array_foreach(list, i, v)
    {
        if (!go_on(c, i)) return CN_ECANCELLED;
        if ((rc = read_id(c, v, field(c), i, &out->ids[i]))) return rc;
    }
    if (!c->p.echo) return 0;
    struct cn_buf b;
    cn_buf_init_for(&b, 0, c->hold.account);
    rc = detokenize(c, out->ids, n, true, &b);
    out->text = b.data; /* moved, and who pays for it */
    out->text_len = b.len;
    c->hold.bytes += b.cap;
    return rc;
}

/* One of the prompts; of an embedding there is something to embed. */
static int read_prompt(struct srv_call *c, const json_t *one, size_t i)
{
    if (c->op == SRV_OP_EMBED && json_is_string(one) && !json_string_length(one))
        return cn_fail_param(&c->err, CN_EINVAL, "input", "input[%zu] is empty", i);
    if (json_is_string(one)) return text_prompt(c, one, &c->prompts[i]);
    if (json_is_array(one)) return id_prompt(c, one, &c->prompts[i]);
    return cn_fail_param(&c->err, CN_ETYPE, field(c),
                         "%s[%zu] must be a string or a list of token ids", field(c), i);
}

int srv_text_prompts(struct srv_call *c)
{
    const char *name = field(c);
    const json_t *p = c->op == SRV_OP_EMBED ? c->p.input : c->p.prompt;
    size_t n = 1, most = c->op == SRV_OP_EMBED ? SRV_MAX_INPUTS : SRV_MAX_PROMPTS;

    if (!p) return cn_fail_param(&c->err, CN_EMISSING, name, "%s is missing", name);
    if (c->p.suffix) return cn_fail_param(&c->err, CN_EUNSUPP, "suffix", "suffix is not supported");
    if (!json_is_string(p) && !json_is_array(p))
        return cn_fail_param(&c->err, CN_ETYPE, name, "%s must be a string or an array", name);
    const json_t *first = json_array_get(p, 0);
    bool many = json_is_array(p) && !json_is_number(first);
    if (many) n = json_array_size(p);
    if (n == 0) return cn_fail_param(&c->err, CN_EINVAL, name, "%s is empty", name);
    if (n > most)
        return cn_fail_param(&c->err, CN_ELIMIT, name, "there are more than %zu %ss", most, name);
    if (c->best_of > 1 && n * c->best_of > SRV_MAX_CHOICES)
        return cn_fail_param(&c->err, CN_ELIMIT, "n", "prompts times choices are more than %d",
                             SRV_MAX_CHOICES);
    int rc = srv_call_take(c, n * sizeof *c->prompts);
    if (rc) return rc;
    c->prompts = cn_calloc(n, sizeof *c->prompts);
    if (!c->prompts) return cn_fail(&c->err, CN_ENOMEM, "out of memory");
    for (; c->n_prompts < n;) {
        size_t i = c->n_prompts++;
        rc = read_prompt(c, many ? json_array_get(p, i) : p, i);
        if (rc) return rc;
        if (!srv_text_yield(&c->job)) return cn_fail(&c->err, CN_ECANCELLED, "cancelled");
    }
    return 0;
}

/* {"count":...,"tokens":[...],"token_strs":[...] or null}: c->shown_ids. */
static bool write_tokens(struct srv_call *c, struct cn_buf *b)
{
    const uint32_t *ids = c->shown_ids;
    size_t n = c->n_shown_ids;

    if (c->at.part == 0) {
        if (!c->at.at)
            cn_buf_printf(b, "{\"count\":%zu,\"max_model_len\":%llu,\"tokens\":[", n,
                          (unsigned long long)c->env->context);
        if (!srv_put_ids(b, &c->at, ids, n, SRV_PIECE)) return b->failed;
        cn_buf_puts(b, c->p.token_strs ? "],\"token_strs\":[" : "],\"token_strs\":null}");
        if (!c->p.token_strs) return true;
        c->at = (struct srv_cursor){.part = 1};
    }
    for (; c->at.at < n && b->len < SRV_PIECE; c->at.at++) {
        struct eng_str s = eng_vocab_piece(c->env->vocab, ids[c->at.at], true);
        if (c->at.at) cn_buf_putc(b, ',');
        cn_buf_json_str(b, s.p, s.n);
    }
    if (c->at.at < n) return b->failed;
    cn_buf_puts(b, "]}");
    return true;
}

int srv_tokenize_answer(struct srv_call *c)
{
    struct eng_ids ids = srv_ids_for(c, (uint64_t)c->env->max_tokenize_tokens);
    int rc;

    if (c->p.messages) {
        struct eng_rendered text = {0};
        rc = srv_chat_render(c, &text);
        if (rc) return rc;
        unsigned special =
            srv_given(&c->p, SRV_P_add_special) && c->p.add_special ? ENG_TOKENIZE_SPECIAL : 0;
        rc = srv_call_take(c, srv_ids_bytes(text.text.len, ids.max));
        if (!rc)
            rc = eng_tokenize(c->env->vocab, text.text.data, text.text.len, text.spans,
                              text.n_spans, ENG_TOKENIZE_PARSE | special, &ids, &c->err);
        if (rc == CN_EWINDOW) rc = too_many(c, "messages");
        eng_rendered_fini(&text);
    } else if (!c->p.prompt) {
        return cn_fail_param(&c->err, CN_EMISSING, "prompt", "prompt is missing");
    } else if (!json_is_string(c->p.prompt)) {
        return cn_fail_param(&c->err, CN_ETYPE, "prompt", "prompt must be a string");
    } else {
        rc = tokenize(c, json_string_value(c->p.prompt), json_string_length(c->p.prompt), &ids);
    }
    if (rc) {
        eng_ids_fini(&ids);
        return rc;
    }
    c->shown_ids = ids.v;
    c->n_shown_ids = ids.n;
    c->write = write_tokens;
    return rc;
}

int srv_detokenize_answer(struct srv_call *c)
{
    json_t *v;
    size_t i;
    int rc = 0;

    if (!c->p.tokens) return cn_fail_param(&c->err, CN_EMISSING, "tokens", "tokens is missing");
    size_t n = json_array_size(c->p.tokens);
    if ((rc = srv_call_take(c, n * sizeof(uint32_t)))) return rc;
    uint32_t *ids = cn_malloc_array(n, sizeof *ids);
    if (!ids) return cn_fail(&c->err, CN_ENOMEM, "out of memory");
    json_array_foreach(c->p.tokens, i, v)
    {
        rc = go_on(c, i) ? read_id(c, v, "tokens", i, &ids[i]) : CN_ECANCELLED;
        if (rc) break;
    }
    cn_buf_init_for(&c->text, 0, c->hold.account);
    if (!rc) rc = detokenize(c, ids, n, true, &c->text);
    free(ids);
    return rc ? rc : srv_text_answer(c);
}
