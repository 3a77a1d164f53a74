/* tools: the tools that a chat offers, and which of them are to be called. Worker threads; works on
 * one call, whose parsed body it may change. */
#include "server/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int no_memory(struct srv_call *c)
{
    return cn_fail(&c->err, CN_ENOMEM, "out of memory");
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

static int check_tools(struct srv_call *c)
{
    char param[64];
    json_t *tool;
    size_t i;

    json_array_foreach(c->p.tools, i, tool)
    {
        const json_t *type = json_object_get(tool, "type");
        snprintf(param, sizeof param, "tools[%zu].type", i);
        if (!json_is_object(tool) || !json_is_string(type))
            return cn_fail_param(&c->err, CN_ETYPE, "tools",
                                 "tools[%zu] must be an object with a type", i);
        if (!srv_json_is(type, "function"))
            return cn_fail_param(&c->err, CN_EUNSUPP, param, "%s: only function is supported",
                                 param);
    }
    if (!json_array_size(c->p.tools) || c->env->tools != RT_TOOLS_NONE) return 0;
    return cn_fail_param(&c->err, CN_EUNSUPP, "tools",
                         "this model's chat template has no place for tools: it would not see "
                         "them; leave them out, set tool_choice to none, or start the server "
                         "with tools_fallback");
}

/* The offered tool of that name; NULL: there is none. */
static json_t *find_tool(const struct srv_call *c, const json_t *name)
{
    json_t *tool;
    size_t i;

    json_array_foreach(c->p.tools, i, tool)
    {
        const json_t *f = json_object_get(tool, "function");
        if (json_is_string(name) && json_equal(json_object_get(f, "name"), name)) return tool;
    }
    return NULL;
}

/* ---- the choice ------------------------------------------------------------------------------ */

struct choice {
    bool none, required;
    json_t *allowed; /* owned: tools that may be called; NULL: all */
};

static int allow(struct srv_call *c, struct choice *ch, const json_t *named, const char *param)
{
    const json_t *f = json_object_get(named, "function");
    json_t *tool;

    if (!srv_json_is(json_object_get(named, "type"), "function"))
        return cn_fail_param(&c->err, CN_EUNSUPP, param, "%s: only function is supported", param);
    tool = find_tool(c, json_object_get(f, "name"));
    if (!tool)
        return cn_fail_param(&c->err, CN_EINVAL, param,
                             "%s must name one of the tools that the request offers", param);
    if (!ch->allowed) ch->allowed = json_array();
    if (!ch->allowed || json_array_append(ch->allowed, tool)) return no_memory(c);
    return 0;
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

    if (!v || srv_json_is(v, "auto")) return 0;
    if (srv_json_is(v, "none")) {
        ch->none = true;
        return 0;
    }
    if (!json_is_object(v) && !srv_json_is(v, "required"))
        return cn_fail_param(&c->err, CN_EINVAL, "tool_choice",
                             "tool_choice must be none, auto, required, or an object that names a "
                             "function or allowed_tools");
    if (!json_array_size(c->p.tools))
        return cn_fail_param(&c->err, CN_EINVAL, "tool_choice",
                             "tool_choice asks for a call, but the request offers no tools");
    if (json_is_object(v) && srv_json_is(json_object_get(v, "type"), "allowed_tools"))
        return read_allowed(c, ch, json_object_get(v, "allowed_tools"));
    ch->required = true;
    return json_is_object(v) ? allow(c, ch, v, "tool_choice") : 0;
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
    c->form = (struct srv_form){.name = "tool_choice",
                                .kind = ENG_GRAMMAR_CALLS,
                                .value = allowed,
                                .many = c->p.parallel_tool_calls && !c->legacy};
}

int srv_tools_read(struct srv_call *c)
{
    struct choice ch = {0};
    int rc = 0;

    if (json_array_size(c->p.functions) && !json_array_size(c->p.tools)) rc = translate(c);
    if (!rc) rc = read_choice(c, &ch);
    if (!rc && ch.none) c->p.tools = NULL;
    if (!rc) rc = check_tools(c);
    if (!rc && json_array_size(c->p.tools)) {
        const json_t *allowed = ch.allowed ? ch.allowed : c->p.tools;
        /* kept with the body, as long as it is read */
        if (ch.allowed && json_object_set(c->root, "allowed tools", ch.allowed)) rc = no_memory(c);
        if (!rc) rc = keep_tools(c, allowed);
        if (!rc && ch.required)
            require_calls(c, allowed);
        else if (!rc && c->form.name)
            c->form.calls = allowed; /* or the answer has the form that was asked for */
    }
    json_decref(ch.allowed);
    return rc;
}
