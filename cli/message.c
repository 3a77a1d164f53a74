/* Messages of a conversation: see message.h. */
#include "cli/message.h"

#include <stdio.h>
#include <string.h>

enum { MAX_FILE = 16 << 20 };

/* ---- an answer ------------------------------------------------------------------------------- */

int cli_message_init(struct cli_message *m)
{
    memset(m, 0, sizeof *m);
    cn_buf_init(&m->content, 0);
    cn_buf_init(&m->reasoning, 0);
    cn_buf_init(&m->arguments, 0);
    m->calls = json_array();
    return m->calls ? 0 : CN_ENOMEM;
}

void cli_message_fini(struct cli_message *m)
{
    cn_buf_fini(&m->content);
    cn_buf_fini(&m->reasoning);
    cn_buf_fini(&m->arguments);
    json_decref(m->calls);
}

void cli_message_reset(struct cli_message *m)
{
    cn_buf_reset(&m->content);
    cn_buf_reset(&m->reasoning);
    cn_buf_reset(&m->arguments);
    json_array_clear(m->calls);
}

static json_t *text_json(const struct cn_buf *b)
{
    return b->failed ? NULL : json_stringn(b->data ? b->data : "", b->len);
}

static json_t *last_call(const struct cli_message *m)
{
    return json_array_get(m->calls, json_array_size(m->calls) - 1);
}

/* The last call is complete. */
static int close_call(struct cli_message *m)
{
    json_t *last = last_call(m);

    if (!last) return 0;
    int rc = json_object_set_new(json_object_get(last, "function"), "arguments",
                                 text_json(&m->arguments));
    cn_buf_reset(&m->arguments);
    return rc ? CN_ENOMEM : 0;
}

static int open_call(struct cli_message *m, const char *name, size_t n)
{
    int rc = close_call(m);
    json_t *call = json_pack("{s:s, s:s, s:{s:s%}}", "id", "", "type", "function", "function",
                             "name", name, n);

    if (rc) {
        json_decref(call);
        return rc;
    }
    return !call || json_array_append_new(m->calls, call) ? CN_ENOMEM : 0;
}

int cli_message_take(struct cli_message *m, enum eng_part part, const char *s, size_t n)
{
    json_t *last = last_call(m);

    switch (part) {
    case ENG_PART_CONTENT:
        return cn_buf_append(&m->content, s, n);
    case ENG_PART_REASONING:
        return cn_buf_append(&m->reasoning, s, n);
    case ENG_PART_CALL:
        return open_call(m, s, n);
    case ENG_PART_CALL_ID:
        return last && json_object_set_new(last, "id", json_stringn(s, n)) ? CN_ENOMEM : 0;
    case ENG_PART_ARGUMENTS:
        return cn_buf_append(&m->arguments, s, n);
    }
    return 0;
}

static int number_calls(struct cli_message *m, size_t first)
{
    json_t *call;
    size_t i;
    char id[32];

    json_array_foreach(m->calls, i, call)
    {
        if (json_string_length(json_object_get(call, "id"))) continue;
        snprintf(id, sizeof id, "call_%024zu", first + i);
        if (json_object_set_new(call, "id", json_string(id))) return CN_ENOMEM;
    }
    return 0;
}

json_t *cli_message_json(struct cli_message *m, size_t first_id)
{
    size_t n = json_array_size(m->calls);
    json_t *out = json_pack("{s:s}", "role", "assistant");

    if (close_call(m) || number_calls(m, first_id) ||
        json_object_set_new(out, "content",
                            n && !m->content.len ? json_null() : text_json(&m->content)) ||
        (m->reasoning.len &&
         json_object_set_new(out, "reasoning_content", text_json(&m->reasoning))) ||
        (n && json_object_set_new(out, "tool_calls", json_copy(m->calls)))) {
        json_decref(out);
        return NULL;
    }
    return out;
}

/* ---- files ----------------------------------------------------------------------------------- */

int cli_read_json(const char *path, json_type type, json_t **out, struct cn_error *err)
{
    const char *what = type == JSON_OBJECT ? "object" : "array";
    struct cn_buf text;
    json_t *v = NULL;
    json_error_t e = {0}; /* jansson may leave its code unset */

    cn_buf_init(&text, 0);
    int rc = cn_file_read(path, true, MAX_FILE, &text, err);
    if (!rc) {
        const char *s = text.data ? text.data : "";
        v = json_loadb(s, text.len, JSON_ALLOW_NUL, &e);
        if (!v && json_error_code(&e) == json_error_numeric_overflow)
            v = json_loadb(s, text.len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &e);
        if (!v)
            rc = cn_fail(err, CN_EJSON, "%s: not a JSON %s: line %d, column %d: %s", path, what,
                         e.line, e.column, e.text);
        else if (json_typeof(v) != type)
            rc = cn_fail(err, CN_EJSON, "%s: not a JSON %s: line 1, column 1: another value", path,
                         what);
    }
    cn_buf_fini(&text);
    if (rc)
        json_decref(v);
    else
        *out = v;
    return rc;
}

/* ---- a conversation -------------------------------------------------------------------------- */

/* Arguments come as text that holds JSON; templates want the object. Other text stays. */
static int open_arguments(json_t *message)
{
    json_t *call;
    size_t k;

    json_array_foreach(json_object_get(message, "tool_calls"), k, call)
    {
        json_t *function = json_object_get(call, "function");
        const json_t *text = json_object_get(function, "arguments");
        if (!json_is_string(text)) continue;
        json_t *value =
            json_loadb(json_string_value(text), json_string_length(text), JSON_ALLOW_NUL, NULL);
        if (value && json_object_set_new(function, "arguments", value)) return CN_ENOMEM;
    }
    return 0;
}

/* Beside calls without text, templates expect null or "". */
static int fit_content(const struct eng_template *t, json_t *message)
{
    const json_t *content = json_object_get(message, "content");
    const char *role = json_string_value(json_object_get(message, "role"));
    bool calls = json_array_size(json_object_get(message, "tool_calls"));

    if (!role || strcmp(role, "assistant") != 0) return 0;
    if (content && !json_is_null(content)) return 0;
    json_t *none = calls && eng_template_null_content(t) ? json_null() : json_string("");
    return json_object_set_new(message, "content", none) ? CN_ENOMEM : 0;
}

int cli_messages_fit(const struct eng_template *t, const struct eng_history *history,
                     json_t *messages, const json_t *tools, enum rt_tools way, struct cn_error *err)
{
    bool falls = way == RT_TOOLS_FALLBACK, text = falls || eng_template_text_arguments(t);
    json_t *m;
    size_t i;
    int rc = 0;

    json_array_foreach(messages, i, m)
    {
        if (!rc && !text) rc = open_arguments(m);
        if (!rc) rc = fit_content(t, m);
    }
    if (rc) return cn_fail(err, rc, "out of memory");
    if (falls) rc = eng_template_fall_back(t, messages, tools, err);
    if (!rc) rc = eng_template_fit(t, messages, err);
    if (!rc && !falls) rc = eng_history_prepare(history, messages, err);
    return rc;
}
