/* Puts the messages of a conversation into the form that its chat template takes. Pure functions of
 * JSON values; all texts stay the client's, whatever message they end up in. */
#include "engine/text/chat.h"
#include "engine/text/jinja/ast.h"

#include <string.h>

/* ---- messages as values ---------------------------------------------------------------------- */

static bool is(const json_t *v, const char *text)
{
    size_t n = strlen(text);
    return json_string_length(v) == n && json_is_string(v) &&
           !memcmp(json_string_value(v), text, n);
}

bool eng_message_is(const json_t *message, const char *role)
{
    return is(json_object_get(message, "role"), role);
}

bool eng_message_is_result(const json_t *message)
{
    return eng_message_is(message, "tool") || eng_message_is(message, "function");
}

void eng_message_text(const json_t *message, struct cn_buf *out)
{
    const json_t *content = json_object_get(message, "content"), *part;
    size_t i, start = out->len;

    if (json_is_string(content))
        cn_buf_append(out, json_string_value(content), json_string_length(content));
    json_array_foreach(content, i, part)
    {
        const json_t *text = json_object_get(part, "text");
        if (!json_string_length(text)) continue;
        if (out->len > start) cn_buf_putc(out, '\n');
        cn_buf_append(out, json_string_value(text), json_string_length(text));
    }
}

static json_t *string_of(const struct cn_buf *text)
{
    return text->failed ? NULL : json_stringn(text->len ? text->data : "", text->len);
}

int eng_message_set(json_t *message, const struct cn_buf *text)
{
    return json_object_set_new(message, "content", string_of(text)) ? CN_ENOMEM : 0;
}

json_t *eng_message_new(const char *role, const struct cn_buf *text)
{
    return json_pack("{s:s, s:o}", "role", role, "content", string_of(text));
}

int eng_message_put(json_t *messages, size_t *n, json_t *message)
{
    return json_array_set_new(messages, (*n)++, message) ? CN_ENOMEM : 0;
}

void eng_messages_cut(json_t *messages, size_t n)
{
    while (json_array_size(messages) > n)
        json_array_remove(messages, json_array_size(messages) - 1);
}

void eng_json_put(struct cn_buf *out, const json_t *v)
{
    char number[40];
    const char *key;
    json_t *member;
    size_t i;

    switch (json_typeof(v)) {
    case JSON_OBJECT:
        cn_buf_putc(out, '{');
        for (void *it = json_object_iter((json_t *)v); it;
             it = json_object_iter_next((json_t *)v, it)) {
            if (it != json_object_iter((json_t *)v)) cn_buf_puts(out, ", ");
            key = json_object_iter_key(it);
            cn_buf_json_str(out, key, json_object_iter_key_len(it));
            cn_buf_puts(out, ": ");
            eng_json_put(out, json_object_iter_value(it));
        }
        cn_buf_putc(out, '}');
        break;
    case JSON_ARRAY:
        cn_buf_putc(out, '[');
        json_array_foreach(v, i, member)
        {
            if (i) cn_buf_puts(out, ", ");
            eng_json_put(out, member);
        }
        cn_buf_putc(out, ']');
        break;
    case JSON_STRING:
        cn_buf_json_str(out, json_string_value(v), json_string_length(v));
        break;
    case JSON_INTEGER:
        cn_buf_printf(out, "%lld", (long long)json_integer_value(v));
        break;
    case JSON_REAL:
        eng_j_float_repr(json_real_value(v), number);
        cn_buf_puts(out, number);
        break;
    default:
        cn_buf_puts(out, json_is_null(v) ? "null" : json_is_true(v) ? "true" : "false");
    }
}

/* ---- system messages ------------------------------------------------------------------------- */

static bool is_system(const json_t *m)
{
    return eng_message_is(m, "system") || eng_message_is(m, "developer");
}

/* Appends the message's text; a blank line goes before it unless either side is empty. */
static void add_paragraph(struct cn_buf *b, const json_t *message)
{
    size_t had = b->len;

    if (had) cn_buf_puts(b, "\n\n");
    size_t start = b->len;
    eng_message_text(message, b);
    if (b->len == start) b->len = had;
}

/* Puts the text, which is not empty, where the template takes it: at the end of the user's message
 * before it, else at the beginning of the one after it, so that user and assistant still alternate;
 * else into a user's message of its own, or, where none may follow a result, at the end of the
 * result. next may be NULL. */
static int put_late(const struct eng_template *t, json_t *messages, size_t *n, json_t *next,
                    struct cn_buf *late)
{
    json_t *last = *n ? json_array_get(messages, *n - 1) : NULL;
    struct cn_buf text;
    int rc;

    cn_buf_init(&text, 0);
    if (eng_message_is(last, "user") || (eng_message_is_result(last) && !t->user_after_result)) {
        eng_message_text(last, &text);
        if (text.len) cn_buf_puts(&text, "\n\n");
        cn_buf_append(&text, late->data, late->len);
        rc = eng_message_set(last, &text);
    } else if (eng_message_is(next, "user")) {
        add_paragraph(late, next);
        rc = eng_message_set(next, late);
    } else {
        rc = eng_message_put(messages, n, eng_message_new("user", late));
    }
    cn_buf_fini(&text);
    return rc;
}

/* For a template that takes one system message at most: those at the beginning become one; later
 * ones, or all if the template takes none, become text of the user, where they are. They are not
 * moved between a call and its results. */
static int place_systems(const struct eng_template *t, json_t *messages, struct cn_buf *text)
{
    size_t size = json_array_size(messages), n = 0, r = 0;
    int rc = 0;

    while (t->system && r < size && is_system(json_array_get(messages, r)))
        add_paragraph(text, json_array_get(messages, r++));
    if (r > 1) rc = eng_message_set(json_array_get(messages, 0), text);
    n = CN_MIN(r, (size_t)1);
    cn_buf_reset(text);
    for (; !rc && r < size; r++) {
        json_t *m = json_array_get(messages, r);
        if (is_system(m)) {
            add_paragraph(text, m);
            continue;
        }
        json_incref(m); /* its place may be taken */
        if (text->len && !eng_message_is_result(m)) {
            rc = put_late(t, messages, &n, m, text);
            cn_buf_reset(text);
        }
        if (!rc)
            rc = eng_message_put(messages, &n, m);
        else
            json_decref(m);
    }
    if (!rc && text->len) rc = put_late(t, messages, &n, NULL, text);
    eng_messages_cut(messages, n);
    return rc;
}

/* ---- contents and arguments ------------------------------------------------------------------ */

static enum eng_role role_of(const json_t *m)
{
    if (is_system(m)) return ENG_SYSTEM;
    if (eng_message_is(m, "assistant")) return ENG_ASSISTANT;
    return eng_message_is_result(m) ? ENG_TOOL : ENG_USER;
}

static int write_arguments(json_t *message, struct cn_buf *b)
{
    json_t *call;
    size_t i;

    json_array_foreach(json_object_get(message, "tool_calls"), i, call)
    {
        json_t *function = json_object_get(call, "function");
        const json_t *arguments = json_object_get(function, "arguments");
        if (!json_is_object(arguments)) continue;
        cn_buf_reset(b);
        eng_json_put(b, arguments);
        if (json_object_set_new(function, "arguments", string_of(b))) return CN_ENOMEM;
    }
    return 0;
}

static int fit(const struct eng_template *t, json_t *messages, struct cn_buf *b)
{
    json_t *m;
    size_t i;
    int rc = 0;

    json_array_foreach(messages, i, m)
    {
        if (!t->developer && eng_message_is(m, "developer") &&
            json_object_set_new(m, "role", json_string("system")))
            return CN_ENOMEM;
    }
    if (!t->systems) rc = place_systems(t, messages, b);
    json_array_foreach(messages, i, m)
    {
        if (!rc && t->text_arguments) rc = write_arguments(m, b);
        if (rc) return rc;
        if (t->parts[role_of(m)] || !json_is_array(json_object_get(m, "content"))) continue;
        cn_buf_reset(b);
        eng_message_text(m, b);
        rc = eng_message_set(m, b);
    }
    return rc;
}

int eng_template_fit(const struct eng_template *t, json_t *messages, struct cn_error *err)
{
    struct cn_buf b;

    cn_buf_init(&b, 0);
    int rc = fit(t, messages, &b);
    cn_buf_fini(&b);
    return rc ? cn_fail(err, rc, "out of memory") : 0;
}

static int fit_function(json_t *f, bool description, bool parameters)
{
    json_t *given = json_object_get(f, "parameters");

    if (description && !json_object_get(f, "description") &&
        json_object_set_new(f, "description", json_string("")))
        return CN_ENOMEM;
    if (!parameters || (given && !json_is_null(given))) return 0;
    given = json_pack("{s:s, s:{}}", "type", "object", "properties");
    return json_object_set_new(f, "parameters", given) ? CN_ENOMEM : 0;
}

int eng_template_fit_tools(const struct eng_template *t, json_t *tools)
{
    struct eng_str source = eng_template_source(t);
    bool description = source.n && memmem(source.p, source.n, "description", 11);
    bool parameters = source.n && memmem(source.p, source.n, "parameters", 10);
    json_t *tool;
    size_t i;
    int rc = 0;

    json_array_foreach(tools, i, tool)
    {
        json_t *f = json_object_get(tool, "function");
        if (!rc && json_is_object(f)) rc = fit_function(f, description, parameters);
    }
    return rc;
}
