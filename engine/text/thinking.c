/* The variable by which a chat template switches reasoning on and off. Templates agree on no name,
 * so each known one is tried when the template is compiled: a small conversation is rendered both
 * ways. All renderings share one budget of steps and of time, as in probe.c. */
#include "engine/text/jinja/ast.h"

#include <stdio.h>
#include <string.h>

enum { STEPS = 100000 };

/* Values are JSON; NULL: the variable is left out. */
struct eng_thinking { const char *name, *on, *off; };
static const struct eng_thinking ways[] = {
    {"enable_thinking", "true", "false"},             /* Qwen, GLM, SmolLM3, Gemma 4 ... */
    {"thinking", "true", "false"},                    /* Granite, DeepSeek */
    {"thinking_mode", "\"enabled\"", "\"disabled\""}, /* MiniMax */
    {"thinking_option", "\"on\"", "\"off\""},         /* Ling */
    {"thinking_budget", NULL, "0"},                   /* Seed-OSS */
    {"reasoning_effort", "\"high\"", "\"no_think\""}, /* Hunyuan */
    {"reasoning_effort", NULL, "\"none\""},           /* Cohere */
    {"reasoning_effort", "\"high\"", "\"minimal\""},  /* Solar */
    {"reasoning_effort", NULL, "\"low\""},            /* gpt-oss: it cannot be switched off */
};

static bool has(struct eng_str source, const char *word)
{
    return source.n && memmem(source.p, source.n, word, strlen(word));
}

/* Whether the source has the text of a value, in either kind of quotes. */
static bool quotes(struct eng_str source, const char *value)
{
    char other[32];

    if (!value || *value != '"' || has(source, value)) return true;
    int n = snprintf(other, sizeof other, "'%s", value + 1);
    other[n - 1] = '\'';
    return has(source, other);
}

/* NULL when out of memory. */
static json_t *variables(const struct eng_thinking *w, bool on)
{
    const char *value = on ? w->on : w->off;
    json_t *all = json_object();

    if (!value) return all;
    json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);
    if (all && !json_object_set_new(all, w->name, v)) return all;
    json_decref(all);
    return NULL;
}

/* CN_ENOMEM, or another code of eng_template_render. */
static int render(const struct eng_template *t, const struct eng_thinking *w, bool on,
                  struct eng_jbudget *budget, struct eng_rendered *out)
{
    json_t *kwargs = variables(w, on);
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "x");
    struct eng_template_in in = {
        .messages = messages,
        .kwargs = kwargs,
        .add_generation_prompt = true,
        .bos_token = {"", 0},
        .eos_token = {"", 0},
        .limits = {.max_output_bytes = 1 << 20, .max_memory_bytes = 8 << 20, .max_ns = 500000000}};
    int rc = kwargs && messages ? eng_j_render(t, &in, budget, out, NULL) : CN_ENOMEM;

    json_decref(messages);
    json_decref(kwargs);
    return rc;
}

/* Whether the template renders both, and differently. CN_ENOMEM. */
static int differs(const struct eng_template *t, const struct eng_thinking *w,
                   struct eng_jbudget *budget, bool *out)
{
    struct eng_rendered on = {0}, off = {0};
    int rc = render(t, w, true, budget, &on);

    if (!rc) rc = render(t, w, false, budget, &off);
    size_t n = on.text.len;
    *out = !rc && (n != off.text.len || (n && memcmp(on.text.data, off.text.data, n) != 0));
    eng_rendered_fini(&on);
    eng_rendered_fini(&off);
    return rc == CN_ENOMEM ? rc : 0; /* any other failure: the template refuses the variable */
}

int eng_j_thinking(struct eng_template *t)
{
    struct eng_jbudget budget = {.steps = STEPS, .started_ns = cn_now_ns()};
    struct eng_str source = eng_template_source(t);

    for (size_t i = 0; i < CN_ARRAY_LEN(ways); i++) {
        const struct eng_thinking *w = &ways[i];
        bool last = i + 1 == CN_ARRAY_LEN(ways), found = false;
        if (!has(source, w->name)) continue;
        if (!last && !(quotes(source, w->on) && quotes(source, w->off))) continue;
        int rc = differs(t, w, &budget, &found);
        if (found) t->thinking = w;
        if (rc || found) return rc;
    }
    return 0;
}

int eng_template_thinking(const struct eng_template *t, bool on, json_t **out)
{
    *out = t->thinking ? variables(t->thinking, on) : NULL;
    return t->thinking && !*out ? CN_ENOMEM : 0;
}
