/* Calls of tools, as they are shown: see message.h. */
#include "cli/message.h"

#include <ctype.h>
#include <string.h>

/* ---- arguments ------------------------------------------------------------------------------- */

void cli_arguments_begin(struct cli_arguments *a, bool person)
{
    *a = (struct cli_arguments){.person = person};
    cn_buf_init(&a->name, 0);
}

void cli_arguments_fini(struct cli_arguments *a)
{
    cn_buf_fini(&a->name);
}

/* A key needs no quotes if it could be the name of a parameter. */
static void put_name(struct cli_arguments *a, struct cn_buf *out)
{
    bool plain = a->name.len && !isdigit((unsigned char)a->name.data[0]);

    for (size_t i = 0; i < a->name.len && plain; i++)
        plain = isalnum((unsigned char)a->name.data[i]) || a->name.data[i] == '_';
    if (!plain) cn_buf_putc(out, '"');
    cn_buf_append(out, a->name.data, a->name.len);
    if (!plain) cn_buf_putc(out, '"');
    cn_buf_reset(&a->name);
}

/* A byte of a string, or the quotes that end it. */
static void put_inside(struct cli_arguments *a, char c, struct cn_buf *out)
{
    bool ends = c == '"' && !a->escaped;

    a->escaped = c == '\\' && !a->escaped;
    if (!a->key)
        cn_buf_putc(out, c);
    else if (!ends)
        cn_buf_putc(&a->name, c);
    else
        put_name(a, out);
    if (!ends) return;
    a->string = a->key = false;
}

static void put_byte(struct cli_arguments *a, char c, struct cn_buf *out)
{
    bool bare = a->person && a->depth == 1; /* a member of the arguments themselves */

    switch (c) {
    case ' ':
    case '\t':
    case '\r':
    case '\n':
        break;
    case '"':
        a->string = true;
        if (!a->key) cn_buf_putc(out, c);
        break;
    case '{':
    case '[':
        if (!a->person || a->depth) cn_buf_putc(out, c);
        a->key = a->person && !a->depth;
        a->depth++;
        break;
    case '}':
    case ']':
        a->key = false;
        if (a->depth) a->depth--;
        if (!a->person || a->depth) cn_buf_putc(out, c);
        break;
    case ':':
        cn_buf_puts(out, bare ? "=" : a->person ? ": " : ":");
        break;
    case ',':
        a->key = bare;
        cn_buf_puts(out, a->person ? ", " : ",");
        break;
    default:
        cn_buf_putc(out, c);
    }
}

void cli_arguments_put(struct cli_arguments *a, const char *s, size_t n, struct cn_buf *out)
{
    for (size_t i = 0; i < n; i++) {
        if (a->string)
            put_inside(a, s[i], out);
        else
            put_byte(a, s[i], out);
    }
    if (a->name.failed) out->failed = true;
}

/* ---- whole calls ----------------------------------------------------------------------------- */

const char *cli_call_name(const json_t *call)
{
    const char *name =
        json_string_value(json_object_get(json_object_get(call, "function"), "name"));
    return name ? name : "";
}

bool cli_call_is_whole(const json_t *call)
{
    const json_t *text = json_object_get(json_object_get(call, "function"), "arguments");
    const char *s = json_string_value(text);
    size_t flags = JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL;
    json_t *v = s ? json_loadb(s, json_string_length(text), flags, NULL) : NULL;
    bool is = json_is_object(v);
    json_decref(v);
    return is;
}

static void put_call(const json_t *call, bool person, struct cn_buf *out)
{
    const json_t *function = json_object_get(call, "function");
    const json_t *name = json_object_get(function, "name");
    const json_t *text = json_object_get(function, "arguments");
    const char *s = json_string_value(text);
    size_t n = json_string_length(text);
    struct cli_arguments a;

    cli_arguments_begin(&a, person);
    if (person) {
        cn_buf_append(out, json_string_value(name), json_string_length(name));
        cn_buf_putc(out, '(');
        cli_arguments_put(&a, s, n, out);
        cn_buf_puts(out, ")\n");
    } else {
        cn_buf_puts(out, "{\"name\": ");
        cn_buf_json_str(out, json_string_value(name), json_string_length(name));
        cn_buf_puts(out, ", \"arguments\": ");
        if (cli_call_is_whole(call))
            cli_arguments_put(&a, s, n, out);
        else
            cn_buf_json_str(out, s, n);
        cn_buf_puts(out, "}\n");
    }
    cli_arguments_fini(&a);
}

void cli_put_calls(const json_t *message, bool person, struct cn_buf *out)
{
    const json_t *call;
    size_t i;

    json_array_foreach(json_object_get(message, "tool_calls"), i, call) put_call(call, person, out);
}
