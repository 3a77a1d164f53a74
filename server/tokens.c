/* Tokens of a choice, kept as the runtime gave them until they are written, and the shapes in which
 * OpenAI's answers list them: chat's logprobs.content, the four lists of completions, token ids.
 * A kept token takes 16 bytes and 8 for each alternative; written it takes some hundreds. Works on
 * one choice; the loop's thread, or a worker's while it writes the answer. */
#include "server/request.h"

#include <math.h>
#include <string.h>

/* ---- kept ------------------------------------------------------------------------------------ */

int srv_tokens_keep(struct srv_choice *c, const struct rt_event *e)
{
    uint32_t had = (uint32_t)(c->top.len / sizeof *e->top);

    for (size_t i = 0; i < e->n_tokens; i++) {
        struct rt_token t = e->tokens[i];
        const struct cn_top *top = t.n_top ? &e->top[t.top_at] : NULL;
        t.top_at = had;
        had += t.n_top;
        if (cn_buf_append(&c->tokens, &t, sizeof t) ||
            (top && cn_buf_append(&c->top, top, t.n_top * sizeof *top)))
            return c->tokens.failed ? cn_buf_code(&c->tokens) : cn_buf_code(&c->top);
    }
    return 0;
}

static size_t n_echoed(const struct srv_choice *c)
{
    return c->prompt ? c->prompt->n_tokens : 0;
}

size_t srv_tokens_n(const struct srv_choice *c)
{
    return n_echoed(c) + c->tokens.len / sizeof(struct rt_token);
}

/* Token i, those of the prompt first. */
static const struct rt_token *token_at(const struct srv_choice *c, size_t i,
                                       const struct cn_top **top)
{
    const struct rt_token *t;

    if (i < n_echoed(c)) {
        t = &c->prompt->tokens[i];
        *top = t->n_top ? &c->prompt->top[t->top_at] : NULL;
        return t;
    }
    t = (const struct rt_token *)(const void *)c->tokens.data + (i - n_echoed(c));
    *top = t->n_top ? (const struct cn_top *)(const void *)c->top.data + t->top_at : NULL;
    return t;
}

size_t srv_tokens_some(const struct srv_choice *c, size_t from, size_t work)
{
    const struct cn_top *top;
    size_t n = srv_tokens_n(c), i = from;

    for (size_t done = 0; i < n && done < work; i++)
        done += 2 + token_at(c, i, &top)->n_top;
    return i;
}

void srv_tokens_sent(struct srv_choice *c, size_t n)
{
    c->n_sent = n;
    if (n < srv_tokens_n(c)) return;
    c->n_sent = n_echoed(c);
    cn_buf_reset(&c->tokens);
    cn_buf_reset(&c->top);
}

/* ---- written --------------------------------------------------------------------------------- */

static struct eng_str piece(const struct srv_req *q, uint32_t id)
{
    return eng_vocab_piece(q->call->env->vocab, id, true);
}

/* JSON has no infinity: what can never be chosen gets OpenAI's floor. */
static void put_logprob(struct cn_buf *b, double v)
{
    if (isnan(v))
        cn_buf_puts(b, "null");
    else
        cn_buf_printf(b, "%.9g", v < -9999.0 ? -9999.0 : v);
}

static void chat_token(struct cn_buf *b, const struct srv_req *q, uint32_t id, double logprob)
{
    struct eng_str s = piece(q, id);

    cn_buf_puts(b, "{\"token\":");
    cn_buf_json_str(b, s.p, s.n);
    cn_buf_puts(b, ",\"logprob\":");
    put_logprob(b, logprob);
    cn_buf_puts(b, ",\"bytes\":[");
    for (size_t i = 0; i < s.n; i++)
        cn_buf_printf(b, i ? ",%u" : "%u", (unsigned char)s.p[i]);
    cn_buf_putc(b, ']');
}

static void put_content(struct cn_buf *b, const struct srv_req *q, const struct rt_token *t,
                        const struct cn_top *top)
{
    chat_token(b, q, t->id, t->logprob);
    cn_buf_puts(b, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < t->n_top; i++) {
        if (i) cn_buf_putc(b, ',');
        chat_token(b, q, top[i].id, top[i].logprob);
        cn_buf_putc(b, '}');
    }
    cn_buf_puts(b, "]}");
}

/* A token as /v1/completions shows it; one that is no text by itself as OpenAI does: bytes:\xe2. */
static void put_token(const struct srv_req *q, struct cn_buf *b, uint32_t id)
{
    struct eng_str s = piece(q, id);

    if (cn_utf8_valid_len(s.p, s.n) == s.n) {
        cn_buf_json_str(b, s.p, s.n);
        return;
    }
    cn_buf_puts(b, "\"bytes:");
    for (size_t i = 0; i < s.n; i++)
        cn_buf_printf(b, "\\\\x%02x", (unsigned char)s.p[i]);
    cn_buf_putc(b, '"');
}

static bool same_text(const struct srv_req *q, uint32_t a, uint32_t b)
{
    struct eng_str x = piece(q, a), y = piece(q, b);
    return x.n == y.n && (x.n == 0 || !memcmp(x.p, y.p, x.n));
}

static void put_alternative(const struct srv_req *q, struct cn_buf *b, uint32_t id, double logprob,
                            bool first)
{
    if (!first) cn_buf_putc(b, ',');
    put_token(q, b, id);
    cn_buf_putc(b, ':');
    put_logprob(b, logprob);
}

/* The likeliest by text, each text once (the likelier of two tokens that read the same), and the
 * chosen token in any case, as in OpenAI's answers. */
static void put_alternatives(const struct srv_req *q, struct cn_buf *b, const struct rt_token *t,
                             const struct cn_top *top)
{
    bool listed = false;

    if (isnan(t->logprob)) {
        cn_buf_puts(b, "null");
        return;
    }
    cn_buf_putc(b, '{');
    for (uint32_t i = 0; i < t->n_top; i++) {
        bool again = false;
        for (uint32_t k = 0; k < i && !again; k++)
            again = same_text(q, top[k].id, top[i].id);
        if (again) continue;
        put_alternative(q, b, top[i].id, top[i].logprob, i == 0);
        listed |= same_text(q, top[i].id, t->id);
    }
    if (!listed) put_alternative(q, b, t->id, t->logprob, t->n_top == 0);
    cn_buf_putc(b, '}');
}

static uint64_t code_points(const char *s, size_t n)
{
    uint64_t count = 0;

    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)s[i] & 0xC0) != 0x80;
    return count;
}

/* Where the token's text begins in the choice's, in code points. Tokens come here in their
 * order. */
static void put_offset(struct srv_choice *c, struct cn_buf *b, uint32_t id)
{
    cn_buf_printf(b, "%llu", (unsigned long long)c->offset);
    cn_buf_reset(&c->shown);
    eng_detok_push(&c->detok, id, &c->shown);
    c->offset += code_points(c->shown.data ? c->shown.data : "", c->shown.len);
}

static void put_one(struct cn_buf *b, const struct srv_req *q, struct srv_choice *c,
                    enum srv_token_list list, const struct rt_token *t, const struct cn_top *top)
{
    switch (list) {
    case SRV_LIST_CONTENT:
        put_content(b, q, t, top);
        break;
    case SRV_LIST_TOKENS:
        put_token(q, b, t->id);
        break;
    case SRV_LIST_LOGPROBS:
        put_logprob(b, t->logprob);
        break;
    case SRV_LIST_TOP:
        put_alternatives(q, b, t, top);
        break;
    case SRV_LIST_OFFSETS:
        put_offset(c, b, t->id);
        break;
    case SRV_LIST_IDS:
        cn_buf_printf(b, "%u", t->id);
        break;
    }
}

/* Ids are those of the answer; the other lists begin with an echoed prompt's. */
size_t srv_tokens_first(const struct srv_choice *c, enum srv_token_list list)
{
    return list == SRV_LIST_IDS ? n_echoed(c) : 0;
}

size_t srv_tokens_put(struct cn_buf *b, const struct srv_req *q, struct srv_choice *c,
                      enum srv_token_list list, size_t from, size_t to, size_t most)
{
    const struct cn_top *top;
    bool first = true;
    size_t i = CN_MAX(from, srv_tokens_first(c, list));

    for (; i < to && b->len < most; i++) {
        if (!first) cn_buf_putc(b, ',');
        first = false;
        const struct rt_token *t = token_at(c, i, &top);
        put_one(b, q, c, list, t, top);
    }
    return i;
}
