/* Chat bodies: tools and options are checked, the conversation rendered and tokenised. Worker
 * threads; works on one call, whose parsed body it may change. */
#include "server/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sets a variable of the template. CN_ENOMEM. Takes the value. */
static int set_kwarg(struct srv_call *c, json_t *kw, const char *name, json_t *value)
{
    return json_object_set_new(kw, name, value) ? cn_fail(&c->err, CN_ENOMEM, "out of memory") : 0;
}

/* Whether the request asks for no reasoning in other words than enable_thinking: few templates read
 * an effort, and none a budget. */
static bool wants_no_thoughts(const struct srv_call *c)
{
    return srv_json_is(c->p.reasoning_effort, "none") ||
           (srv_given(&c->p, SRV_P_thinking_budget) && !c->p.thinking_budget);
}

/* The template's own switch, whatever its name. What the client set itself stays, save an effort
 * where there is to be no reasoning. */
static int switch_thinking(struct srv_call *c, json_t *kw, bool on)
{
    json_t *vars, *v;
    const char *name;
    int rc = eng_template_thinking(c->env->chat_template, on, &vars);

    if (rc) return cn_fail(&c->err, rc, "out of memory");
    if (!vars && !on && !json_object_get(c->p.template_kwargs, "enable_thinking"))
        return set_kwarg(c, kw, "enable_thinking", json_false()); /* the usual name */
    json_object_foreach(vars, name, v)
    {
        bool own = json_object_get(c->p.template_kwargs, name) ||
                   (on && c->p.reasoning_effort && !strcmp(name, "reasoning_effort"));
        if (!own && !rc) rc = set_kwarg(c, kw, name, json_incref(v));
    }
    json_decref(vars);
    return rc;
}

/* Variables for the template: chat_template_kwargs, and what the fields of the request say. */
static int make_kwargs(struct srv_call *c, json_t **out)
{
    static const char *const reserved[] = {
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "bos_token",
        "eos_token",
        "pad_token",
        "unk_token",
        "chat_template",
        "tokenize",
        "strftime_now",
        "raise_exception",
    };
    *out = NULL;
    for (size_t i = 0; i < CN_ARRAY_LEN(reserved); i++)
        if (json_object_get(c->p.template_kwargs, reserved[i]))
            return cn_fail_param(&c->err, CN_EINVAL, "chat_template_kwargs",
                                 "chat_template_kwargs may not set %s", reserved[i]);
    bool thinking = srv_given(&c->p, SRV_P_enable_thinking);
    bool none = wants_no_thoughts(c);
    if (!c->p.template_kwargs && !thinking && !c->p.reasoning_effort && !none) return 0;
    json_t *kw = c->p.template_kwargs ? json_copy(c->p.template_kwargs) : json_object();
    int rc = kw ? 0 : cn_fail(&c->err, CN_ENOMEM, "out of memory");
    if (!rc && c->p.reasoning_effort)
        rc = set_kwarg(c, kw, "reasoning_effort", json_incref(c->p.reasoning_effort));
    if (!rc && thinking)
        rc = set_kwarg(c, kw, "enable_thinking", json_boolean(c->p.enable_thinking));
    if (!rc && (thinking || none)) rc = switch_thinking(c, kw, thinking && c->p.enable_thinking);
    if (rc) {
        json_decref(kw);
        return rc;
    }
    *out = kw;
    return 0;
}

/* Whether the answer is to be taken apart, and the words that say how much to think. */
static int check_reasoning(struct srv_call *c)
{
    static const char *const formats[] = {"auto", "deepseek", "none", NULL};
    static const char *const efforts[] = {"none", "minimal", "low", "medium",
                                          "high", "xhigh",   "max", NULL};
    const json_t *format = c->p.reasoning_format;

    if (format && srv_json_one_of(format, formats) < 0)
        return cn_fail_param(&c->err, CN_EINVAL, "reasoning_format",
                             "reasoning_format must be auto, deepseek or none");
    if (c->p.reasoning_effort && srv_json_one_of(c->p.reasoning_effort, efforts) < 0)
        return cn_fail_param(
            &c->err, CN_EINVAL, "reasoning_effort",
            "reasoning_effort must be none, minimal, low, medium, high, xhigh or max");
    bool whole = srv_json_is(format, "none");
    if (whole && c->tools && c->env->reply && c->env->reply->kind != ENG_REPLY_PLAIN)
        return cn_fail_param(&c->err, CN_EUNSUPP, "reasoning_format",
                             "reasoning_format: none leaves the answer as the model wrote it, and "
                             "calls of tools have to be taken out of it: leave out one of both, or "
                             "set tool_choice to none");
    c->parted = c->op == SRV_OP_CHAT && c->env->reply &&
                eng_reply_needed(c->env->reply, c->tools) && (c->tools || !whole);
    return 0;
}

/* What an interpreter may take: grows with what it has to render. */
#define TEMPLATE_LEAST (1u << 20)
#define TEMPLATE_TIMES 16u
#define TEMPLATE_MOST  ((uint64_t)64 << 20)

int srv_chat_render(struct srv_call *c, struct eng_rendered *out)
{
    const struct eng_vocab *v = c->env->vocab;
    json_t *kwargs;
    int rc;

    if (!c->env->chat_template)
        return cn_fail(&c->err, CN_EUNSUPP,
                       "this model has no chat template; use /v1/completions, or start the server "
                       "with --chat-template");
    if (c->p.chat_template)
        return cn_fail_param(&c->err, CN_EUNSUPP, "chat_template",
                             "chat_template: a request may not bring its own template");
    if (c->p.continue_final && c->p.add_generation_prompt &&
        srv_given(&c->p, SRV_P_add_generation_prompt))
        return cn_fail_param(&c->err, CN_EINVAL, "continue_final_message",
                             "continue_final_message and add_generation_prompt exclude each other");
    if ((rc = srv_messages_check(c)) || (rc = srv_tools_read(c)) || (rc = srv_messages_fit(c)) ||
        (rc = check_reasoning(c)) || (rc = make_kwargs(c, &kwargs)))
        return rc;
    struct eng_template_in in = {
        .messages = c->p.messages,
        .tools = json_array_size(c->p.tools) ? c->p.tools : NULL,
        .documents = c->p.documents,
        .kwargs = kwargs,
        .add_generation_prompt = c->p.add_generation_prompt && !c->p.continue_final,
        .bos_token = eng_vocab_bos_text(v),
        .eos_token = eng_vocab_eos_text(v),
        .now_s = cn_wall_s(),
        .limits = {.keep_going = srv_text_keep_going, .arg = &c->job},
    };
    uint64_t memory = CN_MIN(TEMPLATE_MOST, TEMPLATE_LEAST + TEMPLATE_TIMES * c->json.taken);
    in.limits.max_memory_bytes = memory;
    if ((rc = srv_call_take(c, memory))) {
        json_decref(kwargs);
        return rc;
    }
    rc = c->p.continue_final ? eng_template_continue(c->env->chat_template, &in, out, &c->err)
                             : eng_template_render(c->env->chat_template, &in, out, &c->err);
    if (rc && !c->err.code) cn_fail(&c->err, rc, "%s", cn_err_info(rc)->text);
    if (rc == CN_ETEMPLATE && c->odd[0]) {
        cn_error_wrap(&c->err, "%s is not a JSON object", c->odd);
        snprintf(c->err.param, sizeof c->err.param, "%s", c->odd);
    }
    if (rc && !c->err.param[0]) snprintf(c->err.param, sizeof c->err.param, "messages");
    json_decref(kwargs);
    /* what was rendered is paid for on, the interpreter's memory is gone */
    cn_hold_give(&c->hold, rc ? memory : memory - CN_MIN(memory, (uint64_t)out->text.cap));
    return rc;
}

int srv_chat_prompt(struct srv_call *c)
{
    struct eng_rendered text = {0};
    struct eng_ids ids = srv_ids_for(c, c->env->context);
    int rc = srv_chat_render(c, &text);

    if (rc) return rc;
    uint64_t paid = srv_ids_bytes(text.text.len, ids.max);
    if ((rc = srv_call_take(c, paid))) {
        eng_rendered_fini(&text);
        return rc;
    }
    if (c->parted) c->start = eng_reply_where(c->env->reply, &text, c->p.continue_final);
    bool bos = c->op == SRV_OP_CHAT ? c->p.chat_add_special : false;
    struct srv_text t = {text.text.data, text.text.len, text.spans, text.n_spans,
                         ENG_TOKENIZE_PARSE | (bos ? ENG_TOKENIZE_SPECIAL : 0u)};
    rc = eng_tokenize(c->env->vocab, t.data, t.len, t.spans, t.n_spans, t.flags, &ids, &c->err);
    if (rc == CN_EWINDOW) srv_too_long(c, "messages", &t);
    eng_rendered_fini(&text);
    c->prompts = rc ? NULL : cn_calloc(1, sizeof *c->prompts);
    if (!rc && !c->prompts) rc = cn_fail(&c->err, CN_ENOMEM, "out of memory");
    if (rc) {
        eng_ids_fini(&ids);
        return rc;
    }
    c->n_prompts = 1;
    c->prompts[0] = (struct srv_prompt){.ids = ids.v, .n = ids.n};
    cn_hold_give(&c->hold, paid - CN_MIN(paid, (uint64_t)(ids.cap * sizeof *ids.v)));
    if (!ids.n)
        return cn_fail_param(&c->err, CN_EINVAL, "messages", "the conversation renders to nothing");
    return 0;
}
