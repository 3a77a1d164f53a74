/* OpenAI's shapes: chat.completion and text_completion, in chunks; what whole answers (answer.c)
 * have in common with them. Loop thread; works on one request's choices. Whole and streamed answers
 * are written from the same buffers, so that their texts are equal. */
#include "server/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of one chunk. */
#define FRAME_TEXT 16384
#define FRAME_IDS  4096 /* of a prompt, likewise */
#define FRAME_WORK 512  /* as srv_tokens_some counts it: some 200 us */

static bool is_chat(const struct srv_req *q)
{
    return q->call->op == SRV_OP_CHAT;
}

/* ---- begin ----------------------------------------------------------------------------------- */

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

/* What ids of calls look like: what the template takes, or the family's own. */
static enum eng_call_ids ids_of(const struct srv_call *c)
{
    if (!c->tools) return ENG_IDS_ANY;
    if (!strncmp(eng_reply_form(c->env->reply), "mistral", 7)) return ENG_IDS_NINE;
    return c->env->history ? c->env->history->ids : ENG_IDS_ANY;
}

int srv_out_choices(struct srv_req *q)
{
    size_t n = q->n_subs * q->call->best_of;
    struct cn_account *account = q->call->hold.account;
    int rc = cn_hold_take(&q->call->hold, n * sizeof *q->choices);

    if (rc) return rc;
    q->choices = cn_calloc(n, sizeof *q->choices);
    if (!q->choices) return CN_ENOMEM;
    q->n_choices = n;
    enum eng_call_ids ids = ids_of(q->call);
    for (size_t i = 0; i < n; i++) {
        struct srv_choice *c = &q->choices[i];
        c->index = (uint32_t)i;
        c->one_call = q->call->tools && (!q->call->p.parallel_tool_calls || q->call->legacy);
        c->call_ids = ids;
        c->past_calls = q->call->past_calls;
        c->customs = &q->call->customs;
        cn_buf_init_for(&c->text, 0, account);
        cn_buf_init_for(&c->reasoning, 0, account);
        cn_buf_init_for(&c->tokens, 0, account);
        cn_buf_init_for(&c->top, 0, account);
        eng_detok_init(&c->detok, q->call->env->vocab, false, false);
    }
    return 0;
}

void srv_out_choices_free(struct srv_req *q)
{
    for (size_t i = 0; i < q->n_choices; i++) {
        struct srv_choice *c = &q->choices[i];
        srv_parts_free(c);
        cn_buf_fini(&c->tokens);
        cn_buf_fini(&c->top);
        cn_buf_fini(&c->shown);
    }
    for (size_t i = 0; i < q->n_subs; i++)
        rt_event_free(q->subs[i].prompt);
    free(q->choices);
    cn_buf_fini(&q->prefix);
}

/* About how long the event is when it is written. */
static uint64_t written_bytes(const struct srv_req *q, const struct rt_event *e)
{
    uint64_t n = e->text_len;

    for (size_t i = 0; i < e->n_tokens && q->call->want_logprobs; i++)
        n += 64 + 32 * e->tokens[i].n_top;
    return n;
}

int srv_out_tokens(struct srv_req *q, struct srv_choice *c, const struct rt_event *e)
{
    int rc = e->text_len ? srv_parts_take(c, e) : 0;

    c->fresh |= srv_parts_fresh(c);
    for (size_t i = 0; i < e->n_tokens; i++) {
        c->n_tokens++;
        c->logprob_sum += e->tokens[i].logprob;
    }
    if (!rc && (q->call->want_logprobs || q->call->p.return_ids)) rc = srv_tokens_keep(c, e);
    q->kept += written_bytes(q, e);
    return rc;
}

/* ---- choices --------------------------------------------------------------------------------- */

static void put_list(struct cn_buf *b, struct srv_req *q, struct srv_choice *c, const char *name,
                     enum srv_token_list list, size_t to)
{
    cn_buf_printf(b, "\"%s\":[", name);
    srv_tokens_put(b, q, c, list, c->n_sent, to, SIZE_MAX);
    cn_buf_putc(b, ']');
}

/* Of the tokens up to `to` that are not sent. */
static void put_logprobs(struct cn_buf *b, struct srv_req *q, struct srv_choice *c, size_t to)
{
    cn_buf_puts(b, ",\"logprobs\":");
    if (!q->call->want_logprobs || to == c->n_sent) {
        cn_buf_puts(b, "null");
        return;
    }
    cn_buf_putc(b, '{');
    if (is_chat(q)) {
        put_list(b, q, c, "content", SRV_LIST_CONTENT, to);
        cn_buf_puts(b, ",\"refusal\":null");
    } else {
        put_list(b, q, c, "tokens", SRV_LIST_TOKENS, to);
        cn_buf_putc(b, ',');
        put_list(b, q, c, "token_logprobs", SRV_LIST_LOGPROBS, to);
        cn_buf_putc(b, ',');
        put_list(b, q, c, "top_logprobs", SRV_LIST_TOP, to);
        cn_buf_putc(b, ',');
        put_list(b, q, c, "text_offset", SRV_LIST_OFFSETS, to);
    }
    cn_buf_putc(b, '}');
}

void srv_out_prompt_ids(struct cn_buf *b, const uint32_t *ids, size_t n)
{
    struct srv_cursor all = {0};

    cn_buf_puts(b, "\"prompt_token_ids\":[");
    srv_put_ids(b, &all, ids, n, SIZE_MAX);
    cn_buf_putc(b, ']');
}

const struct srv_prompt *srv_out_prompt(const struct srv_req *q, const struct srv_choice *c)
{
    return &q->call->prompts[(size_t)(c - q->choices) / q->call->best_of];
}

void srv_out_finish(struct cn_buf *b, const struct srv_req *q, const struct srv_choice *c)
{
    const char *reason = c->finish != RT_FINISH_STOP || c->cut ? "length"
                         : !c->n_calls                         ? "stop"
                         : q->call->legacy                     ? "function_call"
                                                               : "tool_calls";

    cn_buf_printf(b, ",\"finish_reason\":\"%s\",\"stop_reason\":", reason);
    if (c->stop_text)
        cn_buf_json_str(b, c->stop_text, strlen(c->stop_text));
    else
        cn_buf_puts(b, "null");
    if (c->hurried && !c->cut) cn_buf_puts(b, ",\"closed_early\":true");
}

void srv_out_role(struct cn_buf *b, struct srv_req *q, struct srv_choice *c)
{
    const struct srv_prompt *p = srv_out_prompt(q, c);

    if (!is_chat(q))
        cn_buf_printf(b, "{\"index\":%u,\"text\":\"\"", c->index);
    else if (c->ids_sent)
        cn_buf_printf(b, "{\"index\":%u,\"delta\":{}", c->index);
    else
        cn_buf_printf(b, "{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}",
                      c->index);
    cn_buf_puts(b, ",\"logprobs\":null,\"finish_reason\":null");
    if (q->call->p.return_ids) {
        size_t n = CN_MIN(p->n - c->ids_sent, (size_t)FRAME_IDS);
        cn_buf_putc(b, ',');
        srv_out_prompt_ids(b, p->ids + c->ids_sent, n);
        c->ids_sent += n;
    }
    cn_buf_putc(b, '}');
    c->started = !q->call->p.return_ids || c->ids_sent == p->n;
}

/* The text of a prompt that is echoed and not sent yet. */
static const char *echo_left(const struct srv_req *q, const struct srv_choice *c, size_t *n)
{
    const struct srv_prompt *p = srv_out_prompt(q, c);

    *n = c->echoed && p->text ? p->text_len - c->text_sent : 0;
    return *n ? p->text + c->text_sent : "";
}

bool srv_out_more(const struct srv_req *q, const struct srv_choice *c)
{
    size_t echo;

    echo_left(q, c, &echo);
    return echo || c->fresh || c->n_sent < srv_tokens_n(c);
}

/* An echoed prompt's text goes first, in pieces. */
static void put_text(struct cn_buf *b, struct srv_req *q, struct srv_choice *c)
{
    size_t n;
    const char *echo = echo_left(q, c, &n);

    cn_buf_puts(b, "\"text\":");
    if (n) {
        n = srv_text_piece(echo, n, FRAME_TEXT);
        c->text_sent += n;
        cn_buf_json_str(b, echo, n);
    } else {
        cn_buf_json_str(b, c->text.data ? c->text.data : "", c->text.len);
        srv_parts_sent(c);
        c->fresh = false;
    }
}

void srv_out_delta(struct cn_buf *b, struct srv_req *q, struct srv_choice *c)
{
    size_t to = srv_tokens_some(c, c->n_sent, FRAME_WORK);

    cn_buf_printf(b, "{\"index\":%u,", c->index);
    if (is_chat(q)) {
        srv_parts_delta(b, q, c);
        srv_parts_sent(c);
        c->fresh = false;
    } else {
        put_text(b, q, c);
    }
    put_logprobs(b, q, c, to);
    cn_buf_puts(b, ",\"finish_reason\":null");
    if (q->call->p.return_ids) {
        cn_buf_putc(b, ',');
        put_list(b, q, c, "token_ids", SRV_LIST_IDS, to);
    }
    cn_buf_putc(b, '}');
    srv_tokens_sent(c, to);
}

void srv_out_end(struct cn_buf *b, struct srv_req *q, struct srv_choice *c)
{
    cn_buf_printf(b, is_chat(q) ? "{\"index\":%u,\"delta\":{}" : "{\"index\":%u,\"text\":\"\"",
                  c->index);
    cn_buf_puts(b, ",\"logprobs\":null");
    srv_out_finish(b, q, c);
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
