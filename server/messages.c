/* Messages of a chat body: checked, and put into the form that the model's template takes. Worker
 * threads; works on one call, whose parsed body it changes. */
#include "server/call.h"
#include "server/custom.h"

#include <stdio.h>
#include <string.h>

enum { ID_BYTES = 128 }; /* what an object takes for a member, beside its name */

struct at {
    size_t message;
    json_t *calls;       /* of the last answer that has any */
    size_t n_results;    /* of them, so far */
    json_t *ids;         /* of all calls so far, as members */
    uint64_t ids_bytes;  /* what they take of the call's hold */
    bool null_content;   /* as eng_template_null_content */
    bool text_arguments; /* arguments of calls stay text */
    struct srv_json_room *json;
    char *odd; /* srv_call.odd */
    struct cn_error *err;
};

static int bad(const struct at *at, int code, const char *field, const char *why)
{
    char param[96];

    snprintf(param, sizeof param, "messages[%zu]%s%s", at->message, field[0] ? "." : "", field);
    return cn_fail_param(at->err, code, param, "%s %s", param, why);
}

/* The type is named if it could be a name. */
static int bad_type(const struct at *at, const char *field, const json_t *type)
{
    char why[128];
    const char *s = json_string_value(type);
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyz_-0123456789");

    if (!n || n > 32 || n != json_string_length(type))
        return bad(at, CN_EUNSUPP, field, "is not supported: this model reads text");
    snprintf(why, sizeof why, "is %s, which is not supported: this model reads text", s);
    return bad(at, CN_EUNSUPP, field, why);
}

/* Media beside the content, as some clients send them. */
static int check_beside(const json_t *message, const struct at *at)
{
    static const char *const names[] = {"images", "audio", "video", "videos", "files"};

    for (size_t i = 0; i < CN_ARRAY_LEN(names); i++) {
        const json_t *v = json_object_get(message, names[i]);
        if (!v || json_is_null(v) || (json_is_array(v) && !json_array_size(v))) continue;
        return bad(at, CN_EUNSUPP, names[i], "is not supported: this server reads text");
    }
    return 0;
}

/* A part of text has that type in the end, whatever name a client gives it; so has a refusal, which
 * is text of the assistant. Further members stay. */
static int check_part(json_t *part, size_t i, const struct at *at)
{
    static const char *const types[] = {"text", "input_text", "output_text", "refusal", NULL};
    json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
    char field[64];

    snprintf(field, sizeof field, "content[%zu]", i);
    if (!json_is_object(part)) return bad(at, CN_ETYPE, field, "must be an object");
    snprintf(field, sizeof field, "content[%zu].type", i);
    if (!type) return bad(at, CN_EMISSING, field, "is missing");
    if (!json_is_string(type)) return bad(at, CN_ETYPE, field, "must be a string");
    int is = srv_json_one_of(type, types);
    if (is < 0) return bad_type(at, field, type);
    if (is == 3) text = json_object_get(part, "refusal");
    snprintf(field, sizeof field, "content[%zu].%s", i, is == 3 ? "refusal" : "text");
    if (!text) return bad(at, CN_EMISSING, field, "is missing");
    if (!json_is_string(text)) return bad(at, CN_ETYPE, field, "must be a string");
    if ((is && json_object_set_new(part, "type", json_string("text"))) ||
        (is == 3 && json_object_set(part, "text", text)))
        return cn_fail(at->err, CN_ENOMEM, "out of memory");
    return 0;
}

static int check_parts(json_t *parts, const struct at *at)
{
    json_t *part;
    size_t i;
    int rc;

    json_array_foreach(parts, i, part) if ((rc = check_part(part, i, at))) return rc;
    return 0;
}

static int too_many(const struct at *at)
{
    char text[128];

    snprintf(text, sizeof text, "make the body hold too many values: " SRV_JSON_MOST,
             SRV_JSON_WEIGHT);
    return bad(at, CN_ELIMIT, "tool_calls", text);
}

/* Arguments come as text that holds JSON; most templates want the object. Other text stays, and is
 * noted in case the template fails with it. Some clients send nothing for a call without arguments.
 */
static int open_arguments(json_t *call, size_t i, const struct at *at)
{
    json_t *function = json_object_get(call, "function");
    json_t *text = json_object_get(function, "arguments"), *value;

    if (!json_is_object(function)) return bad(at, CN_ETYPE, "tool_calls", "must hold functions");
    if (!json_is_string(json_object_get(function, "name")))
        return bad(at, CN_ETYPE, "tool_calls", "must hold functions with a name");
    if (!text || json_is_null(text) || (json_is_string(text) && !json_string_length(text))) {
        value = at->text_arguments ? json_string("{}") : json_object();
        if (json_object_set_new(function, "arguments", value))
            return cn_fail(at->err, CN_ENOMEM, "out of memory");
        return 0;
    }
    if (!json_is_string(text) || at->text_arguments) return 0;
    int rc =
        srv_json_parse(json_string_value(text), json_string_length(text), at->json, &value, NULL);
    if (rc == CN_ELIMIT) return too_many(at);
    if (rc == CN_ENOMEM || rc == CN_ETOOLARGE || rc == CN_EHELD || rc == CN_EFULL)
        return cn_fail(at->err, rc, "%s", cn_err_info(rc)->text);
    if (rc && !at->odd[0])
        snprintf(at->odd, SRV_PARAM, "messages[%zu].tool_calls[%zu].function.arguments",
                 at->message, i);
    if (rc) return 0;
    if (json_object_set_new(function, "arguments", value))
        return cn_fail(at->err, CN_ENOMEM, "out of memory");
    return 0;
}

/* Older clients have one call, without an id, and its result with the role function. */
static int translate_call(json_t *m, const struct at *at)
{
    json_t *call = json_object_get(m, "function_call"), *calls;
    char id[32];

    calls = json_object_get(m, "tool_calls"); /* some clients send both, one of them empty */
    bool empty = !calls || json_is_null(calls) || (json_is_array(calls) && !json_array_size(calls));
    if (!call || json_is_null(call) || !empty) return 0;
    if (!json_is_object(call)) return bad(at, CN_ETYPE, "function_call", "must be an object");
    snprintf(id, sizeof id, "call_%024zu", at->message);
    calls = json_pack("[{s:s, s:s, s:O}]", "id", id, "type", "function", "function", call);
    if (json_object_set_new(m, "tool_calls", calls))
        return cn_fail(at->err, CN_ENOMEM, "out of memory");
    return 0;
}

/* A result that does not say whose it is belongs to the call that is next in order. One that does
 * must name a call before it; where there is none, the conversation's beginning was cut off. */
static int name_result(json_t *m, struct at *at)
{
    json_t *id = json_object_get(json_array_get(at->calls, at->n_results++), "id");
    json_t *given = json_object_get(m, "tool_call_id");

    if (srv_json_is(json_object_get(m, "role"), "function") &&
        json_object_set_new(m, "role", json_string("tool")))
        return cn_fail(at->err, CN_ENOMEM, "out of memory");
    if (given && !json_is_null(given)) {
        if (!json_is_string(given)) return bad(at, CN_ETYPE, "tool_call_id", "must be a string");
        if (!json_object_size(at->ids) ||
            json_object_getn(at->ids, json_string_value(given), json_string_length(given)))
            return 0;
        return bad(at, CN_EINVAL, "tool_call_id",
                   "names no call of the messages before it: give the id of one of their "
                   "tool_calls");
    }
    if (!json_is_string(id)) return 0;
    if (json_object_set(m, "tool_call_id", id)) return cn_fail(at->err, CN_ENOMEM, "out of memory");
    return 0;
}

static int note_calls(const json_t *calls, struct at *at)
{
    const json_t *call;
    size_t i;

    json_array_foreach(calls, i, call)
    {
        json_t *id = json_object_get(call, "id");
        size_t n = json_string_length(id), bytes = ID_BYTES + n;
        if (!json_is_string(id)) continue;
        int rc = cn_hold_take(at->json->hold, bytes);
        if (rc) return cn_fail(at->err, rc, "%s", cn_err_info(rc)->text);
        at->ids_bytes += bytes;
        if (json_object_setn(at->ids, json_string_value(id), n, id))
            return cn_fail(at->err, CN_ENOMEM, "out of memory");
    }
    return 0;
}

static int check_tool_calls(json_t *message, const struct at *at)
{
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    size_t i;

    if (!calls) return 0;
    if (json_is_null(calls) || (json_is_array(calls) && !json_array_size(calls))) {
        json_object_del(message, "tool_calls"); /* a template may take it for a turn of calls */
        return 0;
    }
    if (!json_is_array(calls)) return bad(at, CN_ETYPE, "tool_calls", "must be an array");
    json_array_foreach(calls, i, call)
    {
        if (!json_is_object(call)) return bad(at, CN_ETYPE, "tool_calls", "must hold objects");
        int rc = srv_custom_call(call, at->json);
        if (rc == CN_ETYPE)
            return bad(at, rc, "tool_calls", "must hold custom calls with a name and an input");
        if (rc) return cn_fail(at->err, rc, "%s", cn_err_info(rc)->text);
        rc = open_arguments(call, i, at);
        if (rc) return rc;
    }
    return 0;
}

/* Clients send an earlier answer's reasoning back under one of several names; templates read it
 * under their own. Some templates refuse a message that has reasoning, content and calls: then
 * the content stays, because it is part of the conversation. */
static int name_reasoning(json_t *m, const struct at *at)
{
    static const char *const names[] = {"reasoning_content", "reasoning", "thinking"};
    json_t *text = NULL, *content = json_object_get(m, "content");

    for (size_t i = 0; i < CN_ARRAY_LEN(names); i++) {
        json_t *v = json_object_get(m, names[i]);
        if (!v) continue;
        if (json_is_null(v)) {
            json_object_del(m, names[i]);
        } else if (!json_is_string(v)) {
            return bad(at, CN_ETYPE, names[i], "must be a string");
        } else if (!text) {
            text = v;
        }
    }
    if (!text) return 0;
    bool calls = json_object_get(m, "tool_calls") &&
                 (json_string_length(content) || json_array_size(content));
    for (size_t i = 0; i < CN_ARRAY_LEN(names); i++) {
        if (json_object_get(m, names[i]) || (calls && !strcmp(names[i], "thinking"))) continue;
        if (json_object_set(m, names[i], text)) return cn_fail(at->err, CN_ENOMEM, "out of memory");
    }
    return 0;
}

static int check_message(json_t *m, struct at *at)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant",
                                        "tool",   "function",  NULL};
    if (!json_is_object(m)) return bad(at, CN_ETYPE, "", "must be an object");
    json_t *role = json_object_get(m, "role"), *content = json_object_get(m, "content");

    if (!role) return bad(at, CN_EMISSING, "role", "is missing");
    if (!json_is_string(role)) return bad(at, CN_ETYPE, "role", "must be a string");
    if (srv_json_one_of(role, roles) < 0)
        return bad(at, CN_EINVAL, "role",
                   "must be one of system, developer, user, assistant, tool, function");
    bool assistant = srv_json_is(role, "assistant");
    bool result = srv_json_is(role, "tool") || srv_json_is(role, "function");
    int rc = assistant ? translate_call(m, at) : result ? name_result(m, at) : 0;
    if (!rc) rc = check_tool_calls(m, at);
    if (!rc) rc = check_beside(m, at);
    if (rc) return rc;
    if (assistant && json_object_get(m, "tool_calls")) {
        at->calls = json_object_get(m, "tool_calls");
        at->n_results = 0;
        if ((rc = note_calls(at->calls, at))) return rc;
    }
    if ((rc = check_parts(content, at))) return rc;
    if (assistant && (rc = name_reasoning(m, at))) return rc;
    if (json_is_string(content) || json_is_array(content)) return 0;
    if (content && !json_is_null(content))
        return bad(at, CN_ETYPE, "content", "must be a string or an array of parts");
    if (!assistant && !(result && content)) /* null: of a function that gives nothing */
        return bad(at, CN_EMISSING, "content", "is missing");
    bool null = at->null_content && json_array_size(json_object_get(m, "tool_calls"));
    if (json_object_set_new(m, "content", null ? json_null() : json_string("")))
        return cn_fail(at->err, CN_ENOMEM, "out of memory");
    return 0;
}

int srv_messages_check(struct srv_call *c)
{
    const struct eng_template *t = c->env->chat_template;
    struct at at = {.null_content = eng_template_null_content(t),
                    .text_arguments =
                        eng_template_text_arguments(t) || c->env->tools == RT_TOOLS_FALLBACK,
                    .json = &c->json,
                    .odd = c->odd,
                    .ids = json_object(),
                    .err = &c->err};
    json_t *m;
    int rc = at.ids ? 0 : cn_fail(&c->err, CN_ENOMEM, "out of memory");

    if (!rc && !c->p.messages)
        rc = cn_fail_param(&c->err, CN_EMISSING, "messages", "messages is missing");
    json_array_foreach(c->p.messages, at.message, m) if (!rc) rc = check_message(m, &at);
    json_decref(at.ids);
    cn_hold_give(&c->hold, at.ids_bytes);
    return rc;
}

/* The description of the tools is a copy of them. */
static int take_copy(struct srv_call *c)
{
    uint64_t bytes = json_array_size(c->p.tools) ? c->json.taken : 0;
    int rc = srv_call_take(c, bytes);

    if (!rc) c->json.taken += bytes; /* given back with the body */
    return rc;
}

int srv_messages_fit(struct srv_call *c)
{
    const struct eng_template *t = c->env->chat_template;
    int rc = 0;

    if (c->env->tools == RT_TOOLS_FALLBACK) {
        rc = take_copy(c);
        if (!rc) rc = eng_template_fall_back(t, c->p.messages, c->p.tools, &c->err);
    }
    if (!rc) rc = eng_template_fit(t, c->p.messages, &c->err);
    if (!rc && c->env->tools != RT_TOOLS_FALLBACK && c->env->history)
        rc = eng_history_prepare(c->env->history, c->p.messages, &c->err);
    if (!rc) c->past_calls = eng_history_calls(c->p.messages);
    return rc;
}
