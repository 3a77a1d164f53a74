/* custom: see custom.h. */
#include "server/custom.h"

#include "server/call.h"

#include <stdio.h>
#include <string.h>

static const char INPUT[] = SRV_CUSTOM_INPUT;

/* What the values take that a tool or a call becomes, beside its texts. */
enum { TOOL_BYTES = 64 * SRV_JSON_UNIT, CALL_BYTES = 24 * SRV_JSON_UNIT };

/* Whether an expression's groups are its own: it is put into one. */
static bool is_balanced(const char *s, size_t n)
{
    size_t depth = 0;
    bool class = false;

    for (size_t i = 0; i < n; i++) {
        if (s[i] == '\\')
            i++;
        else if (class || s[i] == '[')
            class = s[i] != ']';
        else if (s[i] == '(')
            depth++;
        else if (s[i] == ')' && !depth--)
            return false;
    }
    return !depth;
}

struct format {
    struct srv_call *c;
    size_t tool;
    const json_t *regex; /* out: the input must match it */
    json_t *lark;        /* out: the input must be of this grammar. Both NULL: any input will do */
};

static int wrong(const struct format *f, int code, const char *field, const char *what)
{
    char at[96];

    snprintf(at, sizeof at, "tools[%zu].custom.format%s", f->tool, field);
    return cn_fail_param(&f->c->err, code, at, "%s %s", at, what);
}

static int read_grammar(struct format *f, const json_t *g)
{
    const json_t *syntax = json_object_get(g, "syntax"), *text = json_object_get(g, "definition");

    if (!json_is_object(g))
        return wrong(f, CN_ETYPE, ".grammar", "must be an object with syntax and definition");
    bool lark = srv_json_is(syntax, "lark");

    if (!lark && !srv_json_is(syntax, "regex"))
        return wrong(f, CN_EINVAL, ".grammar.syntax", "must be lark or regex");
    if (!json_is_string(text))
        return wrong(f, CN_ETYPE, ".grammar.definition", "must be a grammar in a string");
    if (lark) {
        f->lark = (json_t *)text;
        return 0;
    }
    if (strlen(json_string_value(text)) != json_string_length(text))
        return wrong(f, CN_EINVAL, ".grammar.definition", "must not hold U+0000");
    if (!is_balanced(json_string_value(text), json_string_length(text)))
        return wrong(f, CN_EINVAL, ".grammar.definition", "has a parenthesis without its partner");
    f->regex = text;
    return 0;
}

static int read_format(struct format *f, const json_t *v)
{
    const json_t *type = json_object_get(v, "type");

    if (!v || json_is_null(v)) return 0;
    if (!json_is_object(v)) return wrong(f, CN_ETYPE, "", "must be an object with a type");
    if (srv_json_is(type, "text")) return 0;
    if (srv_json_is(type, "grammar")) return read_grammar(f, json_object_get(v, "grammar"));
    return wrong(f, CN_EUNSUPP, ".type", "must be text or grammar");
}

/* Kept with the body, as long as it is read. */
static int keep_lark(struct srv_call *c, json_t *name, json_t *lark)
{
    static const char key[] = "grammars of custom tools";
    json_t *larks = (json_t *)c->larks;

    /* in the place of what a client may have there */
    if (!larks && json_object_set_new(c->root, key, larks = json_object())) return CN_ENOMEM;
    c->larks = larks;
    return json_object_setn(larks, json_string_value(name), json_string_length(name), lark)
               ? CN_ENOMEM
               : 0;
}

/* The function's parameters: an object with the input. NULL: out of memory. */
static json_t *parameters(const json_t *regex)
{
    json_t *input = json_pack("{s:s}", "type", "string");

    if (input && regex &&
        json_object_set_new(input, "pattern", json_sprintf("^(?:%s)$", json_string_value(regex)))) {
        json_decref(input);
        return NULL;
    }
    return json_pack("{s:s, s:{s:o}, s:[s], s:b}", "type", "object", "properties", INPUT, input,
                     "required", INPUT, "additionalProperties", 0);
}

int srv_custom_offer(struct srv_call *c, size_t i, json_t *tool)
{
    json_t *custom = json_object_get(tool, "custom"), *f;
    json_t *name = json_object_get(custom, "name"), *told = json_object_get(custom, "description");
    struct format format = {.c = c, .tool = i};
    int rc = read_format(&format, json_object_get(custom, "format"));

    if (rc) return rc;
    if (told && !json_is_null(told) && !json_is_string(told))
        return cn_fail_param(&c->err, CN_ETYPE, "tools",
                             "tools[%zu].custom.description must be a string", i);
    uint64_t bytes = TOOL_BYTES + json_string_length(format.regex);
    if ((rc = srv_call_take(c, bytes))) return rc;
    c->json.taken += bytes; /* given back with the body */
    if (!c->customs.len) cn_buf_init_for(&c->customs, 0, c->hold.account);
    if ((rc = cn_buf_append(&c->customs, json_string_value(name), json_string_length(name) + 1)))
        return cn_fail(&c->err, rc, "%s", cn_err_info(rc)->text);
    if (format.lark && keep_lark(c, name, format.lark))
        return cn_fail(&c->err, CN_ENOMEM, "out of memory");
    f = json_pack("{s:O, s:o}", "name", name, "parameters", parameters(format.regex));
    if (!f || (json_is_string(told) && json_object_set(f, "description", told))) {
        json_decref(f);
        return cn_fail(&c->err, CN_ENOMEM, "out of memory");
    }
    if (json_object_set_new(tool, "function", f) ||
        json_object_set_new(tool, "type", json_string("function")))
        return cn_fail(&c->err, CN_ENOMEM, "out of memory");
    json_object_del(tool, "custom");
    return 0;
}

bool srv_custom_is(const struct cn_buf *customs, const char *name, size_t n)
{
    for (size_t at = 0; at < customs->len; at += strlen(customs->data + at) + 1)
        if (strlen(customs->data + at) == n && !memcmp(customs->data + at, name, n)) return true;
    return false;
}

bool srv_custom_tool(const struct srv_call *c, const json_t *tool)
{
    const json_t *name = json_object_get(json_object_get(tool, "function"), "name");

    return srv_custom_is(&c->customs, json_string_value(name), json_string_length(name));
}

/* Its name comes last: it is looked for among all custom tools. */
bool srv_custom_held(const struct srv_call *c, const json_t *tool)
{
    const json_t *parameters = json_object_get(json_object_get(tool, "function"), "parameters");
    const json_t *input = json_object_get(json_object_get(parameters, "properties"), INPUT);
    const json_t *name = json_object_get(json_object_get(tool, "function"), "name");

    if (json_object_getn(c->larks, json_string_value(name), json_string_length(name))) return true;
    return json_object_get(input, "pattern") && srv_custom_tool(c, tool);
}

int srv_custom_call(json_t *call, struct srv_json_room *room)
{
    json_t *custom = json_object_get(call, "custom"), *input = json_object_get(custom, "input");
    json_t *name = json_object_get(custom, "name");

    if (!json_is_object(custom) || json_object_get(call, "function")) return 0;
    if (!json_is_string(name) || !json_is_string(input)) return CN_ETYPE;
    int rc = cn_hold_take(room->hold, CALL_BYTES);
    if (rc) return rc;
    room->taken += CALL_BYTES;
    json_t *f = json_pack("{s:O, s:{s:O}}", "name", name, "arguments", INPUT, input);
    if (json_object_set_new(call, "function", f) ||
        json_object_set_new(call, "type", json_string("function")))
        return CN_ENOMEM;
    json_object_del(call, "custom");
    return 0;
}
