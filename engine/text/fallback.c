/* Tools for templates that have no place for them: they are described in the system message, and
 * calls and results of the conversation become texts of the same form. The form is that of the
 * Hermes and Qwen models, which more models know than any other. Pure functions of JSON values; all
 * texts stay the client's, so that the marks never become control tokens. */
#include "engine/text/chat.h"
#include "engine/text/jinja/ast.h"

#include <stdlib.h>
#include <string.h>

/* ---- calls ----------------------------------------------------------------------------------- */

/* Arguments that are text are written as they are: the model wrote them so. */
static void put_call(struct cn_buf *b, const json_t *call)
{
    const json_t *function = json_object_get(call, "function");
    const json_t *name = json_object_get(function, "name");
    const json_t *arguments = json_object_get(function, "arguments");

    if (b->len) cn_buf_putc(b, '\n');
    cn_buf_puts(b, "<tool_call>\n{\"name\": ");
    cn_buf_json_str(b, json_is_string(name) ? json_string_value(name) : "",
                    json_string_length(name));
    cn_buf_puts(b, ", \"arguments\": ");
    if (json_string_length(arguments))
        cn_buf_append(b, json_string_value(arguments), json_string_length(arguments));
    else if (json_is_object(arguments))
        eng_json_put(b, arguments);
    else
        cn_buf_puts(b, "{}");
    cn_buf_puts(b, "}\n</tool_call>");
}

static int write_calls(json_t *message, struct cn_buf *b)
{
    const json_t *calls = json_object_get(message, "tool_calls"), *call;
    size_t i;

    cn_buf_reset(b);
    eng_message_text(message, b);
    json_array_foreach(calls, i, call) put_call(b, call);
    int rc = eng_message_set(message, b);
    json_object_del(message, "tool_calls");
    return rc;
}

/* ---- results --------------------------------------------------------------------------------- */

struct result {
    const json_t *message;
    size_t call, place; /* index of its call, and its own */
};

static int by_call(const void *a, const void *b)
{
    const struct result *x = a, *y = b;

    if (x->call != y->call) return x->call < y->call ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

/* Sets *order to the indexes of the calls by their ids, returned owned. */
static int note_calls(const json_t *calls, json_t **order)
{
    const json_t *call;
    size_t i;

    json_decref(*order);
    if (!(*order = json_object())) return CN_ENOMEM;
    json_array_foreach(calls, i, call)
    {
        const json_t *id = json_object_get(call, "id");
        if (json_is_string(id) &&
            json_object_setn_new(*order, json_string_value(id), json_string_length(id),
                                 json_integer((json_int_t)i)))
            return CN_ENOMEM;
    }
    return 0;
}

/* The text has no ids: only its place says which call a result belongs to. Results of unknown calls
 * keep their order after the others. */
static int put_results(const json_t *messages, size_t from, size_t to, const json_t *order,
                       struct cn_buf *b)
{
    struct result *all = cn_calloc(to - from, sizeof *all);

    if (!all) return CN_ENOMEM;
    for (size_t i = from; i < to; i++) {
        const json_t *m = json_array_get(messages, i), *id = json_object_get(m, "tool_call_id");
        const json_t *call = json_is_string(id) ? json_object_getn(order, json_string_value(id),
                                                                   json_string_length(id))
                                                : NULL;
        all[i - from] = (struct result){m, call ? (size_t)json_integer_value(call) : SIZE_MAX, i};
    }
    qsort(all, to - from, sizeof *all, by_call);
    for (size_t i = 0; i < to - from; i++) {
        cn_buf_puts(b, i ? "\n<tool_response>\n" : "<tool_response>\n");
        eng_message_text(all[i].message, b);
        cn_buf_puts(b, "\n</tool_response>");
    }
    free(all);
    return 0;
}

/* Consecutive results become one message of the user, together with what the user says after them:
 * some templates insist that user and assistant alternate. */
static int write_history(json_t *messages, json_t **order, struct cn_buf *b)
{
    size_t size = json_array_size(messages), n = 0, r = 0;
    int rc = 0;

    while (!rc && r < size) {
        json_t *m = json_array_get(messages, r);
        size_t end = r;
        if (json_array_size(json_object_get(m, "tool_calls"))) {
            rc = note_calls(json_object_get(m, "tool_calls"), order);
            if (!rc) rc = write_calls(m, b);
        }
        while (end < size && eng_message_is_result(json_array_get(messages, end)))
            end++;
        if (end == r) {
            if (!rc) rc = eng_message_put(messages, &n, json_incref(m));
            r++;
            continue;
        }
        cn_buf_reset(b);
        rc = put_results(messages, r, end, *order, b);
        if (!rc && eng_message_is(json_array_get(messages, end), "user")) {
            cn_buf_puts(b, "\n\n");
            eng_message_text(json_array_get(messages, end++), b);
        }
        if (!rc) rc = eng_message_put(messages, &n, eng_message_new("user", b));
        r = end;
    }
    eng_messages_cut(messages, n);
    return rc;
}

/* ---- tools ----------------------------------------------------------------------------------- */

static void put_tools(struct cn_buf *b, const json_t *tools)
{
    const json_t *tool;
    size_t i;

    cn_buf_puts(b,
                "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
                "You are provided with function signatures within <tools></tools> XML tags:\n"
                "<tools>");
    json_array_foreach(tools, i, tool)
    {
        cn_buf_putc(b, '\n');
        eng_json_put(b, tool);
    }
    cn_buf_puts(b, "\n</tools>\n\n"
                   "For each function call, return a json object with function name and arguments "
                   "within <tool_call></tool_call> XML tags:\n"
                   "<tool_call>\n"
                   "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n"
                   "</tool_call>");
}

/* At the end of the system message, which is the first one or a new one. */
static int describe_tools(json_t *messages, const json_t *tools, struct cn_buf *b)
{
    json_t *first = json_array_get(messages, 0);
    bool has = eng_message_is(first, "system") || eng_message_is(first, "developer");

    cn_buf_reset(b);
    if (has) eng_message_text(first, b);
    if (b->len) cn_buf_puts(b, "\n\n");
    put_tools(b, tools);
    if (has) return eng_message_set(first, b);
    return json_array_insert_new(messages, 0, eng_message_new("system", b)) ? CN_ENOMEM : 0;
}

int eng_template_fall_back(const struct eng_template *t, json_t *messages, const json_t *tools,
                           struct cn_error *err)
{
    json_t *order = NULL;
    struct cn_buf b;
    int rc = 0;

    cn_buf_init(&b, 0);
    if (json_array_size(tools) || !t->calls) rc = write_history(messages, &order, &b);
    if (!rc && json_array_size(tools)) rc = describe_tools(messages, tools, &b);
    json_decref(order);
    cn_buf_fini(&b);
    return rc ? cn_fail(err, rc, "out of memory") : 0;
}
