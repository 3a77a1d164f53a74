/* tools: the tools that a chat offers, and which of them are to be called. Worker threads; works on
 * one call, whose parsed body it may change. */
#include "server/call.h"
#include "server/custom.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int no_memory(struct srv_call *c)
{
    return cn_fail(&c->err, CN_ENOMEM, "out of memory");
}

/* More than the model could be told of, or names that no call could have, are refused before they
 * cost anything. */
enum { MOST_TOOLS = 4096, MOST_NAME = 256 };

static int check_count(struct srv_call *c, const json_t *list, const char *field)
{
    if (json_array_size(list) <= MOST_TOOLS) return 0;
    return cn_fail_param(&c->err, CN_ELIMIT, field, "%s holds %zu functions, at most %d are taken",
                         field, json_array_size(list), MOST_TOOLS);
}

/* ---- the older fields ------------------------------------------------------------------------ */

/* functions and function_call say what tools and tool_choice say today. */
static int translate(struct srv_call *c)
{
    json_t *tools = json_array(), *f;
    const json_t *call = c->p.function_call;
    size_t i;

    if (!tools || json_object_set_new(c->root, "tools", tools)) return no_memory(c);
    json_array_foreach(c->p.functions, i, f)
    {
        json_t *tool = json_pack("{s:s, s:O}", "type", "function", "function", f);
        if (!tool || json_array_append_new(tools, tool)) return no_memory(c);
    }
    c->p.tools = tools;
    c->legacy = true;
    if (!call) return 0;
    json_t *choice = json_is_object(call)
                         ? json_pack("{s:s, s:O}", "type", "function", "function", call)
                         : json_incref((json_t *)call);
    if (!choice || json_object_set_new(c->root, "tool_choice", choice)) return no_memory(c);
    c->p.tool_choice = choice;
    return 0;
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* A place of the body, by the name of the field that the client used. */
struct place { char text[64]; };

static struct place place_of(const struct srv_call *c, size_t i, const char *field)
{
    const json_t *type = json_object_get(json_array_get(c->p.tools, i), "type");
    const char *within = c->legacy ? "" : srv_json_is(type, "custom") ? ".custom" : ".function";
    struct place at;
    snprintf(at.text, sizeof at.text, "%s[%zu]%s%s%s", c->legacy ? "functions" : "tools", i, within,
             field[0] ? "." : "", field);
    return at;
}

static int wrong(struct srv_call *c, int code, struct place at, const char *what)
{
    return cn_fail_param(&c->err, code, at.text, "%s %s", at.text, what);
}

static bool has_word(const json_t *list, const char *word)
{
    const json_t *one;
    size_t i;

    json_array_foreach(list, i, one) if (srv_json_is(one, word)) return true;
    return false;
}

/* Arguments are an object, whatever a schema says besides. */
static int check_parameters(struct srv_call *c, size_t i, const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");

    if (!schema || json_is_null(schema)) return 0;
    if (!json_is_object(schema))
        return wrong(c, CN_ETYPE, place_of(c, i, "parameters"), "must be a JSON schema");
    if (type && !srv_json_is(type, "object") && !has_word(type, "object"))
        return wrong(c, CN_EINVAL, place_of(c, i, "parameters"), "must be the schema of an object");
    return 0;
}

/* Marks of calls, blanks and quotes end a name where a model writes it. */
static bool is_name(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] <= ' ' || s[i] == 127 || strchr("\"'`\\<>[]{}()=,;|", s[i]))
            return false;
    return n <= MOST_NAME;
}

/* One way to offer tools at a time: nothing that was asked for is dropped. */
static int check_fields(struct srv_call *c)
{
    bool both = json_array_size(c->p.functions) && json_array_size(c->p.tools);

    if (both)
        return cn_fail_param(&c->err, CN_EINVAL, "functions",
                             "functions is the older name of tools: give one of them");
    if (c->p.function_call && (json_array_size(c->p.tools) || c->p.tool_choice))
        return cn_fail_param(&c->err, CN_EINVAL, "function_call",
                             "function_call goes with functions: beside tools it is tool_choice");
    return 0;
}

/* names: of the tools before it. */
static int check_function(struct srv_call *c, size_t i, json_t *f, json_t *names)
{
    json_t *name = json_object_get(f, "name");
    const json_t *strict = json_object_get(f, "strict");
    struct place at = place_of(c, i, "name");

    if (!json_is_object(f)) return wrong(c, CN_ETYPE, place_of(c, i, ""), "must be an object");
    if (!name) return wrong(c, CN_EMISSING, at, "is missing");
    if (!json_is_string(name) || !json_string_length(name))
        return wrong(c, CN_ETYPE, at, "must be the function's name");
    if (!is_name(json_string_value(name), json_string_length(name)))
        return wrong(c, CN_EINVAL, at,
                     "must be letters, digits, _ - . : / and the like, at most 256 bytes");
    if (json_object_getn(names, json_string_value(name), json_string_length(name)))
        return cn_fail_param(&c->err, CN_EINVAL, at.text, "%s: %.64s is offered twice", at.text,
                             json_string_value(name));
    if (json_object_setn(names, json_string_value(name), json_string_length(name), name))
        return no_memory(c);
    if (strict && !json_is_null(strict) && !json_is_boolean(strict))
        return wrong(c, CN_ETYPE, place_of(c, i, "strict"), "must be true or false");
    return check_parameters(c, i, json_object_get(f, "parameters"));
}

static int check_tool(struct srv_call *c, size_t i, json_t *tool, json_t *names)
{
    const json_t *type = json_object_get(tool, "type");
    char param[64];

    if (!json_is_object(tool) || !json_is_string(type))
        return cn_fail_param(&c->err, CN_ETYPE, "tools", "tools[%zu] must be an object with a type",
                             i);
    snprintf(param, sizeof param, "tools[%zu].type", i);
    if (srv_json_is(type, "custom")) {
        int rc = check_function(c, i, json_object_get(tool, "custom"), names);
        return rc ? rc : srv_custom_offer(c, i, tool);
    }
    if (!srv_json_is(type, "function"))
        return cn_fail_param(&c->err, CN_EUNSUPP, param, "%s must be function or custom", param);
    return check_function(c, i, json_object_get(tool, "function"), names);
}

static int check_tools(struct srv_call *c)
{
    json_t *tool, *names = json_object();
    size_t i;
    int rc = names ? 0 : no_memory(c);

    json_array_foreach(c->p.tools, i, tool) if (!rc) rc = check_tool(c, i, tool, names);
    json_decref(names);
    if (!rc && c->env->tools == RT_TOOLS_NATIVE &&
        eng_template_fit_tools(c->env->chat_template, c->p.tools))
        rc = no_memory(c);
    return rc;
}

/* Whether the model would see the tools. */
static int check_place(struct srv_call *c)
{
    if (!json_array_size(c->p.tools) || c->env->tools != RT_TOOLS_NONE) return 0;
    return cn_fail_param(&c->err, CN_EUNSUPP, c->legacy ? "functions" : "tools",
                         "this model's chat template has no place for tools: it would not see "
                         "them; leave them out, set tool_choice to none, or start the server "
                         "with tools_fallback");
}

/* The offered tool of that name and type, or NULL. */
static json_t *find_tool(const struct srv_call *c, const json_t *name, bool custom)
{
    json_t *tool;
    size_t i;

    json_array_foreach(c->p.tools, i, tool)
    {
        const json_t *f = json_object_get(tool, "function");
        if (json_is_string(name) && json_equal(json_object_get(f, "name"), name))
            return srv_custom_tool(c, tool) == custom ? tool : NULL;
    }
    return NULL;
}

/* ---- the choice ------------------------------------------------------------------------------ */

struct choice {
    bool none, required;
    json_t *allowed; /* owned: tools that may be called; NULL: all */
};

static bool is_in(const json_t *list, const json_t *v)
{
    const json_t *one;
    size_t i;

    json_array_foreach(list, i, one) if (one == v) return true;
    return false;
}

static int allow(struct srv_call *c, struct choice *ch, const json_t *named, const char *param)
{
    static const char *const types[] = {"function", "custom", NULL};
    int type = srv_json_one_of(json_object_get(named, "type"), types);
    const json_t *f = type < 0 ? NULL : json_object_get(named, types[type]);
    json_t *tool;

    if (type < 0)
        return cn_fail_param(&c->err, CN_EUNSUPP, param, "%s: its type must be function or custom",
                             param);
    if (!json_is_string(json_object_get(f, "name")))
        return cn_fail_param(&c->err, CN_EMISSING, param,
                             "%s.%s.name is missing: a tool is named by {\"type\": \"%s\", "
                             "\"%s\": {\"name\": \"...\"}}",
                             param, types[type], types[type], types[type]);
    tool = find_tool(c, json_object_get(f, "name"), type == 1);
    if (!tool)
        return cn_fail_param(&c->err, CN_EINVAL, param,
                             "%s must name one of the tools that the request offers, with its type",
                             param);
    if (!ch->allowed) ch->allowed = json_array();
    if (!ch->allowed) return no_memory(c);
    if (is_in(ch->allowed, tool)) return 0;
    return json_array_append(ch->allowed, tool) ? no_memory(c) : 0;
}

static int read_allowed(struct srv_call *c, struct choice *ch, const json_t *v)
{
    static const char *const modes[] = {"auto", "required", NULL};
    const json_t *list = json_object_get(v, "tools"), *named;
    int mode = srv_json_one_of(json_object_get(v, "mode"), modes), rc;
    size_t i;

    if (mode < 0)
        return cn_fail_param(&c->err, CN_EINVAL, "tool_choice.allowed_tools.mode",
                             "tool_choice.allowed_tools.mode must be auto or required");
    if (!json_array_size(list))
        return cn_fail_param(&c->err, CN_ETYPE, "tool_choice.allowed_tools.tools",
                             "tool_choice.allowed_tools.tools must be a list of tools");
    ch->required = mode == 1;
    json_array_foreach(
        list, i,
        named) if ((rc = allow(c, ch, named, "tool_choice.allowed_tools.tools"))) return rc;
    return 0;
}

static int read_choice(struct srv_call *c, struct choice *ch)
{
    const json_t *v = c->p.tool_choice;
    const char *name = c->legacy ? "function_call" : "tool_choice";

    if (!v || srv_json_is(v, "auto")) return 0;
    if (srv_json_is(v, "none")) {
        ch->none = true;
        return 0;
    }
    if (c->legacy && !json_is_object(v))
        return cn_fail_param(&c->err, CN_EINVAL, name,
                             "function_call must be none, auto, or an object that names a "
                             "function");
    if (!json_is_object(v) && !srv_json_is(v, "required"))
        return cn_fail_param(&c->err, CN_EINVAL, name,
                             "tool_choice must be none, auto, required, or an object that names a "
                             "function or allowed_tools");
    if (!json_array_size(c->p.tools))
        return cn_fail_param(&c->err, CN_EINVAL, name,
                             "tool_choice asks for a call, but the request offers no tools");
    if (json_is_object(v) && srv_json_is(json_object_get(v, "type"), "allowed_tools"))
        return read_allowed(c, ch, json_object_get(v, "allowed_tools"));
    ch->required = true;
    return json_is_object(v) ? allow(c, ch, v, name) : 0;
}

/* ---- what follows from them ------------------------------------------------------------------ */

/* Names and types of the tools, which the answer is read with. */
static int keep_tools(struct srv_call *c, const json_t *allowed)
{
    uint64_t paid = 2 * c->json.taken + 4096; /* at least what it takes, which is linear in it */
    int rc = srv_call_take(c, paid);

    if (rc) return rc;
    rc = eng_tools_new(allowed, &c->tools, &c->err);
    if (rc) return c->err.code ? rc : cn_fail(&c->err, rc, "%s", cn_err_info(rc)->text);
    cn_hold_give(&c->hold, paid - CN_MIN(paid, (uint64_t)eng_tools_bytes(c->tools)));
    return 0;
}

/* A call is required: the answer's form is a call, whatever else was asked for. */
static void require_calls(struct srv_call *c, const json_t *allowed)
{
    c->form = (struct srv_form){.name = c->legacy ? "function_call" : "tool_choice",
                                .kind = ENG_GRAMMAR_CALLS,
                                .value = allowed,
                                .many = c->p.parallel_tool_calls && !c->legacy};
}

static bool is_strict(const json_t *tool)
{
    return json_is_true(json_object_get(json_object_get(tool, "function"), "strict"));
}

/* Whether a tool asks for arguments that satisfy its schema, whoever chooses to call it. */
static bool any_strict(const json_t *tools)
{
    const json_t *tool;
    size_t i;

    json_array_foreach(tools, i, tool) if (is_strict(tool)) return true;
    return false;
}

/* The tool whose input has to match an expression, or NULL. */
static const json_t *any_held(const struct srv_call *c, const json_t *tools)
{
    const json_t *tool;
    size_t i;

    json_array_foreach(tools, i, tool) if (srv_custom_held(c, tool)) return tool;
    return NULL;
}

/* Without a mark a call is known for one only when its arguments have begun. */
static int refuse_format(struct srv_call *c, const json_t *held)
{
    char at[64];
    size_t i = 0;

    while (json_array_get(c->p.tools, i) != held)
        i++;
    snprintf(at, sizeof at, "tools[%zu].custom.format", i);
    return cn_fail_param(&c->err, CN_EUNSUPP, at,
                         "%s: calls in this model's form (%s) begin without a mark, so that an "
                         "input can be held to a grammar only where a call is required: set "
                         "tool_choice, or leave the format out",
                         at, c->env->reply ? eng_reply_form(c->env->reply) : "none");
}

/* What the answer must be, with these tools. Clients often ask for strict tools by default: where
 * calls have no mark such tools stay free, or agents could not use these models at all. */
static int form_of(struct srv_call *c, const json_t *allowed, bool required)
{
    const json_t *held = any_held(c, allowed);
    bool may = c->env->reply && eng_grammar_may_wait(c->env->reply);
    bool strict = !required && !c->form.name && (held || (may && any_strict(allowed)));

    if (strict && !may) return refuse_format(c, held);
    if (required || strict)
        require_calls(c, allowed);
    else if (c->form.name)
        c->form.calls = allowed; /* or the answer has the form that was asked for */
    if (!strict) return 0;
    c->form.name = c->legacy ? "functions" : "tools";
    c->form.free = true;
    return 0;
}

int srv_tools_read(struct srv_call *c)
{
    struct choice ch = {0};
    int rc = check_count(c, c->p.functions, "functions");

    if (!rc) rc = check_count(c, c->p.tools, "tools");
    if (!rc) rc = check_fields(c);
    if (!rc && json_array_size(c->p.functions)) rc = translate(c);
    if (!rc) rc = check_tools(c);
    if (!rc) rc = read_choice(c, &ch);
    if (!rc && ch.none) c->p.tools = NULL;
    if (!rc) rc = check_place(c);
    if (!rc && json_array_size(c->p.tools)) {
        const json_t *allowed = ch.allowed ? ch.allowed : c->p.tools;
        /* kept with the body, as long as it is read */
        if (ch.allowed && json_object_set(c->root, "allowed tools", ch.allowed)) rc = no_memory(c);
        if (!rc) rc = keep_tools(c, allowed);
        if (!rc) rc = form_of(c, allowed, ch.required);
    }
    json_decref(ch.allowed);
    return rc;
}
