/* The parts of a chat answer: reasoning, content and calls of tools, as OpenAI's clients read them.
 * Loop thread only; works on one choice. Whole and streamed answers are written from the same
 * buffers.
 *
 * Reasoning goes out under both names that clients know, reasoning_content and reasoning. */
#include "server/custom.h"
#include "server/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An id of ours, where the format has none: Mistral's templates accept nine letters and digits.
 * Kimi's are counted over the conversation, whatever number the model writes: it may begin anew. */
static void make_id(const struct srv_choice *c, const char *name, size_t n,
                    struct srv_tool_call *call)
{
    bool nine = c->call_ids == ENG_IDS_NINE;
    uint8_t r[12];

    if (c->call_ids == ENG_IDS_KIMI && n < sizeof call->id - 32) {
        snprintf(call->id, sizeof call->id, "functions.%.*s:%zu", (int)n, name,
                 c->past_calls + c->n_calls - 1);
        return;
    }
    cn_random(r, sizeof r);
    memcpy(call->id, "call_", 5);
    cn_hex(r, sizeof r, nine ? call->id : call->id + 5);
    if (nine) call->id[9] = 0;
}

static struct srv_tool_call *new_call(struct srv_choice *c, const char *name, size_t n)
{
    if (cn_buf_reserve(&c->text, sizeof *c->calls)) return NULL; /* what it counts for */
    if (cn_grow(&c->calls, &c->cap_calls, c->n_calls + 1, sizeof *c->calls)) return NULL;
    struct srv_tool_call *call = &c->calls[c->n_calls++];
    make_id(c, name, n, call);
    cn_buf_init_for(&call->name, 0, c->text.account);
    cn_buf_init_for(&call->arguments, 0, c->text.account);
    cn_buf_init_for(&call->raw, 0, c->text.account);
    call->begun = false;
    call->custom = srv_custom_is(c->customs, name, n);
    eng_extract_init(&call->input, SRV_CUSTOM_INPUT);
    return call;
}

/* The format's own id, which the conversation will refer to; ids of ours that were not sent yet
 * make way for it. A model may give one id twice. */
static void set_id(struct srv_choice *c, const char *s, size_t n)
{
    struct srv_tool_call *call = c->n_calls ? &c->calls[c->n_calls - 1] : NULL;

    if (!call || call->begun || n >= sizeof call->id || c->call_ids == ENG_IDS_KIMI) return;
    for (size_t i = 0; i + 1 < c->n_calls; i++)
        if (strlen(c->calls[i].id) == n && !memcmp(c->calls[i].id, s, n)) return;
    memcpy(call->id, s, n);
    call->id[n] = 0;
}

/* The client gets the input alone; other arguments are kept for want of one. */
static int take_arguments(struct srv_tool_call *call, const char *s, size_t n)
{
    if (!call->custom) return cn_buf_append(&call->arguments, s, n);
    int rc = eng_extract_push(&call->input, s, n, &call->arguments);
    if (!rc && !call->input.found) rc = cn_buf_append(&call->raw, s, n);
    if (call->input.found) cn_buf_reset(&call->raw);
    return rc;
}

/* The call is whole. Of a custom tool without an input, the arguments as written are the input. */
static int end_call(struct srv_choice *c)
{
    struct srv_tool_call *call = c->n_calls ? &c->calls[c->n_calls - 1] : NULL;

    if (!call || !call->raw.len || c->cut) return 0;
    c->fresh = true;
    int rc = cn_buf_append(&call->arguments, call->raw.data, call->raw.len);
    cn_buf_reset(&call->raw);
    return rc;
}

static int take_run(struct srv_choice *c, enum eng_part part, const char *s, size_t n)
{
    struct srv_tool_call *call = c->n_calls ? &c->calls[c->n_calls - 1] : NULL;
    int rc;

    /* a token that ends the first call may begin another one */
    if (part == ENG_PART_CALL && c->one_call && call) c->skips = true;
    if (c->skips && part != ENG_PART_CONTENT && part != ENG_PART_REASONING) return 0;
    switch (part) {
    case ENG_PART_CONTENT:
        return cn_buf_append(&c->text, s, n);
    case ENG_PART_REASONING:
        return cn_buf_append(&c->reasoning, s, n);
    case ENG_PART_CALL:
        if ((rc = end_call(c))) return rc;
        call = new_call(c, s, n);
        return call             ? cn_buf_append(&call->name, s, n)
               : c->text.failed ? cn_buf_code(&c->text)
                                : CN_ENOMEM;
    case ENG_PART_CALL_ID:
        set_id(c, s, n);
        return 0;
    case ENG_PART_ARGUMENTS:
        return call ? take_arguments(call, s, n) : 0;
    }
    return 0;
}

int srv_parts_take(struct srv_choice *c, const struct rt_event *e)
{
    size_t at = 0;
    int rc = e->n_runs ? 0 : cn_buf_append(&c->text, e->text, e->text_len);

    for (size_t i = 0; i < e->n_runs && !rc; i++) {
        rc = take_run(c, e->runs[i].part, e->text + at, e->runs[i].end - at);
        at = e->runs[i].end;
    }
    return rc;
}

bool srv_parts_fresh(const struct srv_choice *c)
{
    const struct srv_tool_call *call = c->n_calls ? &c->calls[c->n_calls - 1] : NULL;

    return c->text.len || c->reasoning.len || (call && (!call->begun || call->arguments.len));
}

int srv_parts_end(struct srv_choice *c)
{
    return end_call(c);
}

void srv_parts_sent(struct srv_choice *c)
{
    cn_buf_reset(&c->text);
    cn_buf_reset(&c->reasoning);
    for (size_t i = 0; i < c->n_calls; i++) {
        cn_buf_reset(&c->calls[i].arguments);
        c->calls[i].begun = true;
    }
}

void srv_parts_free(struct srv_choice *c)
{
    cn_buf_fini(&c->text);
    cn_buf_fini(&c->reasoning);
    for (size_t i = 0; i < c->n_calls; i++) {
        cn_buf_fini(&c->calls[i].name);
        cn_buf_fini(&c->calls[i].arguments);
        cn_buf_fini(&c->calls[i].raw);
    }
    free(c->calls);
}

static void put_str(struct cn_buf *b, const struct cn_buf *from)
{
    if (from->failed) b->failed = true;
    cn_buf_json_str(b, from->data ? from->data : "", from->len);
}

static void put_reasoning(struct cn_buf *b, const struct srv_choice *c)
{
    if (c->reasoning.failed) b->failed = true;
    if (!c->reasoning.len) return;
    cn_buf_puts(b, ",\"reasoning_content\":");
    put_str(b, &c->reasoning);
    cn_buf_puts(b, ",\"reasoning\":");
    put_str(b, &c->reasoning);
}

/* A call, or in a stream what is new of it. */
static void put_call(struct cn_buf *b, const struct srv_tool_call *call, size_t index, bool delta)
{
    const char *type = call->custom ? "custom" : "function";

    cn_buf_putc(b, '{');
    if (delta) cn_buf_printf(b, "\"index\":%zu,", index);
    if (!call->begun) {
        cn_buf_puts(b, "\"id\":");
        cn_buf_json_str(b, call->id, strlen(call->id));
        cn_buf_printf(b, ",\"type\":\"%s\",\"%s\":{\"name\":", type, type);
        put_str(b, &call->name);
        cn_buf_putc(b, ',');
    } else {
        cn_buf_printf(b, "\"%s\":{", type);
    }
    cn_buf_puts(b, call->custom ? "\"input\":" : "\"arguments\":");
    put_str(b, &call->arguments);
    cn_buf_puts(b, "}}");
}

/* A call as older clients read it. */
static void put_function_call(struct cn_buf *b, const struct srv_tool_call *call, bool delta)
{
    if (call->arguments.failed) b->failed = true;
    if (delta && call->begun && !call->arguments.len) return;
    cn_buf_puts(b, ",\"function_call\":{");
    if (!call->begun) {
        cn_buf_puts(b, "\"name\":");
        put_str(b, &call->name);
        cn_buf_putc(b, ',');
    }
    cn_buf_puts(b, "\"arguments\":");
    put_str(b, &call->arguments);
    cn_buf_putc(b, '}');
}

static void put_calls(struct cn_buf *b, const struct srv_req *q, const struct srv_choice *c,
                      bool delta)
{
    bool first = true;

    if (q->call->legacy) {
        if (c->n_calls) put_function_call(b, &c->calls[0], delta);
        return;
    }

    for (size_t i = 0; i < c->n_calls; i++) {
        const struct srv_tool_call *call = &c->calls[i];
        if (call->arguments.failed) b->failed = true;
        if (delta && call->begun && !call->arguments.len) continue;
        cn_buf_puts(b, first ? ",\"tool_calls\":[" : ",");
        first = false;
        put_call(b, call, i, delta);
    }
    if (!first) cn_buf_putc(b, ']');
}

void srv_parts_message(struct cn_buf *b, const struct srv_req *q, const struct srv_choice *c)
{
    cn_buf_puts(b, "\"message\":{\"role\":\"assistant\",\"content\":");
    if (!c->text.len && c->n_calls && !c->text.failed)
        cn_buf_puts(b, "null");
    else
        put_str(b, &c->text);
    put_reasoning(b, c);
    put_calls(b, q, c, false);
    cn_buf_puts(b, ",\"refusal\":null}");
}

void srv_parts_delta(struct cn_buf *b, const struct srv_req *q, const struct srv_choice *c)
{
    struct cn_buf rest;

    cn_buf_init(&rest, 0);
    put_reasoning(&rest, c);
    put_calls(&rest, q, c, true);
    if (rest.failed) b->failed = true;
    cn_buf_puts(b, "\"delta\":{");
    if (c->text.len || c->text.failed || !rest.len) {
        cn_buf_puts(b, "\"content\":");
        put_str(b, &c->text);
        cn_buf_append(b, rest.data, rest.len);
    } else {
        cn_buf_append(b, rest.data + 1, rest.len - 1); /* without the comma */
    }
    cn_buf_putc(b, '}');
    cn_buf_fini(&rest);
}
