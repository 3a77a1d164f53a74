/* OpenAI's shapes: chat.completion and text_completion, whole and in chunks. Loop thread only;
 * works on one request's choices. Whole and streamed answers are written from the same buffers by
 * the same functions, so that their texts are equal. */
#include "server/request.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_chat(const struct srv_req *q)
{
    return q->call->op == SRV_OP_CHAT;
}

/* ---- begin -------------------------------------------------------------------------------------
 */

int srv_out_begin(struct srv_req *q)
{
    uint8_t r[12];
    const char *model = q->call->env->model_id;
    struct cn_buf *b = &q->prefix;

    cn_random(r, sizeof r);
    char hex[2 * sizeof r + 1];
    cn_hex(r, sizeof r, hex);
    snprintf(q->id, sizeof q->id, "%s-%s", is_chat(q) ? "chatcmpl" : "cmpl", hex);
    q->created = cn_wall_s();
    cn_buf_init(b, 0);
    cn_buf_printf(b, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", q->id,
                  !is_chat(q) ? "text_completion"
                  : q->stream ? "chat.completion.chunk"
                              : "chat.completion",
                  (long long)q->created);
    cn_buf_json_str(b, model, strlen(model));
    cn_buf_printf(b, ",\"system_fingerprint\":\"%s\",\"choices\":[", q->call->env->fingerprint);
    return b->failed ? CN_ENOMEM : 0;
}

int srv_out_choices(struct srv_req *q)
{
    size_t n = q->n_subs * q->call->best_of;

    q->choices = cn_calloc(n, sizeof *q->choices);
    if (!q->choices) return CN_ENOMEM;
    q->n_choices = n;
    for (size_t i = 0; i < n; i++) {
        q->choices[i].index = (uint32_t)i;
        eng_detok_init(&q->choices[i].detok, q->call->env->vocab, false, false);
    }
    return 0;
}

void srv_out_choices_free(struct srv_req *q)
{
    for (size_t i = 0; i < q->n_choices; i++) {
        struct srv_choice *c = &q->choices[i];
        free(c->stop_text);
        srv_parts_free(c);
        cn_buf_fini(&c->ids);
        cn_buf_fini(&c->content);
        cn_buf_fini(&c->lp_tokens);
        cn_buf_fini(&c->lp_values);
        cn_buf_fini(&c->lp_top);
        cn_buf_fini(&c->lp_offsets);
        cn_buf_fini(&c->shown);
    }
    free(q->choices);
    cn_buf_fini(&q->prefix);
}

void srv_choice_reset(struct srv_choice *c)
{
    srv_parts_sent(c);
    cn_buf_reset(&c->ids);
    cn_buf_reset(&c->content);
    cn_buf_reset(&c->lp_tokens);
    cn_buf_reset(&c->lp_values);
    cn_buf_reset(&c->lp_top);
    cn_buf_reset(&c->lp_offsets);
    c->dirty = false;
}

/* ---- tokens ------------------------------------------------------------------------------------
 */

static void comma(struct cn_buf *b)
{
    if (b->len) cn_buf_putc(b, ',');
}

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

static void chat_logprob(struct srv_req *q, struct srv_choice *c, const struct rt_token *t,
                         const struct eng_logprob *top)
{
    struct cn_buf *b = &c->content;

    comma(b);
    chat_token(b, q, t->id, t->logprob);
    cn_buf_puts(b, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < t->n_top; i++) {
        if (i) cn_buf_putc(b, ',');
        chat_token(b, q, top[t->top_at + i].id, top[t->top_at + i].logprob);
        cn_buf_putc(b, '}');
    }
    cn_buf_puts(b, "]}");
}

static uint64_t code_points(const char *s, size_t n)
{
    uint64_t count = 0;

    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)s[i] & 0xC0) != 0x80;
    return count;
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
                             const struct eng_logprob *top)
{
    bool listed = false;

    if (t->n_top) top += t->top_at;
    for (uint32_t i = 0; i < t->n_top; i++) {
        bool again = false;
        for (uint32_t k = 0; k < i && !again; k++)
            again = same_text(q, top[k].id, top[i].id);
        if (again) continue;
        put_alternative(q, b, top[i].id, top[i].logprob, i == 0);
        listed |= same_text(q, top[i].id, t->id);
    }
    if (!listed) put_alternative(q, b, t->id, t->logprob, t->n_top == 0);
}

static void text_logprob(struct srv_req *q, struct srv_choice *c, const struct rt_token *t,
                         const struct eng_logprob *top)
{
    comma(&c->lp_tokens);
    put_token(q, &c->lp_tokens, t->id);
    comma(&c->lp_values);
    put_logprob(&c->lp_values, t->logprob);
    comma(&c->lp_offsets);
    cn_buf_printf(&c->lp_offsets, "%llu", (unsigned long long)c->offset);
    comma(&c->lp_top);
    if (isnan(t->logprob)) {
        cn_buf_puts(&c->lp_top, "null");
    } else {
        cn_buf_putc(&c->lp_top, '{');
        put_alternatives(q, &c->lp_top, t, top);
        cn_buf_putc(&c->lp_top, '}');
    }
    cn_buf_reset(&c->shown);
    eng_detok_push(&c->detok, t->id, &c->shown);
    c->offset += code_points(c->shown.data ? c->shown.data : "", c->shown.len);
}

void srv_out_tokens(struct srv_req *q, struct srv_choice *c, const struct rt_event *e)
{
    bool prompt = e->kind == RT_EV_PROMPT;

    if (e->text_len) {
        srv_parts_take(c, e);
        c->dirty = true;
    }
    for (size_t i = 0; i < e->n_tokens; i++) {
        const struct rt_token *t = &e->tokens[i];
        if (!prompt) {
            c->n_tokens++;
            c->logprob_sum += t->logprob;
        }
        if (q->call->p.return_ids && !prompt) {
            comma(&c->ids);
            cn_buf_printf(&c->ids, "%u", t->id);
            c->dirty = true;
        }
        if (!q->call->want_logprobs) continue;
        if (is_chat(q))
            chat_logprob(q, c, t, e->top);
        else
            text_logprob(q, c, t, e->top);
        c->dirty = true;
    }
}

void srv_out_echo(struct srv_req *q, struct srv_choice *c, const struct srv_prompt *p)
{
    if (!p->text_len) return;
    cn_buf_append(&c->text, p->text, p->text_len);
    c->dirty = true;
}

/* ---- choices -----------------------------------------------------------------------------------
 */

static void put_buf(struct cn_buf *b, const struct cn_buf *from)
{
    if (from->failed) b->failed = true;
    if (from->len) cn_buf_append(b, from->data, from->len);
}

static void put_str(struct cn_buf *b, const struct cn_buf *from)
{
    if (from->failed) b->failed = true;
    cn_buf_json_str(b, from->data ? from->data : "", from->len);
}

static void put_list(struct cn_buf *b, const char *name, const struct cn_buf *from)
{
    cn_buf_printf(b, "\"%s\":[", name);
    put_buf(b, from);
    cn_buf_putc(b, ']');
}

static void put_logprobs(struct cn_buf *b, const struct srv_req *q, const struct srv_choice *c)
{
    cn_buf_puts(b, ",\"logprobs\":");
    if (!q->call->want_logprobs || (q->stream && !c->content.len && !c->lp_tokens.len)) {
        cn_buf_puts(b, "null");
    } else if (is_chat(q)) {
        cn_buf_putc(b, '{');
        put_list(b, "content", &c->content);
        cn_buf_puts(b, ",\"refusal\":null}");
    } else {
        cn_buf_putc(b, '{');
        put_list(b, "tokens", &c->lp_tokens);
        cn_buf_putc(b, ',');
        put_list(b, "token_logprobs", &c->lp_values);
        cn_buf_putc(b, ',');
        put_list(b, "top_logprobs", &c->lp_top);
        cn_buf_putc(b, ',');
        put_list(b, "text_offset", &c->lp_offsets);
        cn_buf_putc(b, '}');
    }
}

static void put_ids(struct cn_buf *b, const struct srv_req *q, const struct srv_choice *c)
{
    if (!q->call->p.return_ids) return;
    cn_buf_putc(b, ',');
    put_list(b, "token_ids", &c->ids);
}

static void put_prompt_ids(struct cn_buf *b, const struct srv_prompt *p)
{
    cn_buf_puts(b, "\"prompt_token_ids\":[");
    for (size_t i = 0; i < p->n; i++)
        cn_buf_printf(b, i ? ",%u" : "%u", p->ids[i]);
    cn_buf_putc(b, ']');
}

static const struct srv_prompt *prompt_of(const struct srv_req *q, const struct srv_choice *c)
{
    return &q->call->prompts[(size_t)(c - q->choices) / q->call->best_of];
}

static void put_finish(struct cn_buf *b, const struct srv_req *q, const struct srv_choice *c)
{
    const char *reason = c->finish != RT_FINISH_STOP ? "length"
                         : c->n_calls                 ? "tool_calls"
                                                      : "stop";

    cn_buf_printf(b, ",\"finish_reason\":\"%s\",\"stop_reason\":", reason);
    if (c->stop_text)
        cn_buf_json_str(b, c->stop_text, strlen(c->stop_text));
    else
        cn_buf_puts(b, "null");
}

void srv_out_choice(struct cn_buf *b, struct srv_req *q, struct srv_choice *c, uint32_t index)
{
    cn_buf_printf(b, "{\"index\":%u,", index);
    if (is_chat(q)) {
        srv_parts_message(b, c);
    } else {
        cn_buf_puts(b, "\"text\":");
        put_str(b, &c->text);
    }
    put_logprobs(b, q, c);
    put_finish(b, q, c);
    put_ids(b, q, c);
    if (q->call->p.return_ids && !is_chat(q)) {
        cn_buf_putc(b, ',');
        put_prompt_ids(b, prompt_of(q, c));
    }
    cn_buf_putc(b, '}');
}

void srv_out_role(struct cn_buf *b, struct srv_req *q, struct srv_choice *c)
{
    if (is_chat(q))
        cn_buf_printf(b, "{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}",
                      c->index);
    else
        cn_buf_printf(b, "{\"index\":%u,\"text\":\"\"", c->index);
    cn_buf_puts(b, ",\"logprobs\":null,\"finish_reason\":null");
    if (q->call->p.return_ids) {
        cn_buf_putc(b, ',');
        put_prompt_ids(b, prompt_of(q, c));
    }
    cn_buf_putc(b, '}');
}

void srv_out_delta(struct cn_buf *b, struct srv_req *q, struct srv_choice *c)
{
    cn_buf_printf(b, is_chat(q) ? "{\"index\":%u," : "{\"index\":%u,\"text\":", c->index);
    if (is_chat(q))
        srv_parts_delta(b, c);
    else
        put_str(b, &c->text);
    put_logprobs(b, q, c);
    cn_buf_puts(b, ",\"finish_reason\":null");
    put_ids(b, q, c);
    cn_buf_putc(b, '}');
}

void srv_out_end(struct cn_buf *b, struct srv_req *q, struct srv_choice *c)
{
    cn_buf_printf(b, is_chat(q) ? "{\"index\":%u,\"delta\":{}" : "{\"index\":%u,\"text\":\"\"",
                  c->index);
    cn_buf_puts(b, ",\"logprobs\":null");
    put_finish(b, q, c);
    cn_buf_putc(b, '}');
}

void srv_out_usage(struct cn_buf *b, const struct srv_req *q)
{
    const struct rt_usage *u = &q->usage;

    cn_buf_printf(b,
                  "\"usage\":{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,"
                  "\"total_tokens\":%llu,\"prompt_tokens_details\":{\"cached_tokens\":%llu}",
                  (unsigned long long)u->prompt_tokens, (unsigned long long)u->completion_tokens,
                  (unsigned long long)(u->prompt_tokens + u->completion_tokens),
                  (unsigned long long)u->cached_tokens);
    if (q->call->parted)
        cn_buf_printf(b, ",\"completion_tokens_details\":{\"reasoning_tokens\":%llu}",
                      (unsigned long long)u->reasoning_tokens);
    cn_buf_putc(b, '}');
}

/* ---- whole answers
 * ------------------------------------------------------------------------------- */

static double mean_logprob(const struct srv_choice *c)
{
    return c->n_tokens ? c->logprob_sum / (double)c->n_tokens : -INFINITY;
}

/* The n best of one prompt's choices, likeliest first; in their order when all are wanted. */
static void put_best(struct cn_buf *b, struct srv_req *q, size_t sub)
{
    const struct srv_call *call = q->call;
    struct srv_choice *all = &q->choices[sub * call->best_of];
    uint64_t taken[1024 / 64] = {0};

    for (uint32_t k = 0; k < call->n; k++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t i = 0; i < call->best_of; i++) {
            if (taken[i / 64] >> (i % 64) & 1) continue;
            if (best == UINT32_MAX)
                best = i;
            else if (call->best_of > call->n && mean_logprob(&all[i]) > mean_logprob(&all[best]))
                best = i;
        }
        taken[best / 64] |= 1ull << (best % 64);
        uint32_t index = (uint32_t)(sub * call->n + k);
        if (index) cn_buf_putc(b, ',');
        srv_out_choice(b, q, &all[best], index);
    }
}

void srv_out_answer(struct cn_buf *b, struct srv_req *q)
{
    put_buf(b, &q->prefix);
    for (size_t i = 0; i < q->n_subs; i++)
        put_best(b, q, i);
    cn_buf_puts(b, "],");
    if (q->call->p.return_ids && is_chat(q)) {
        put_prompt_ids(b, &q->call->prompts[0]);
        cn_buf_putc(b, ',');
    }
    srv_out_usage(b, q);
    cn_buf_putc(b, '}');
}
