/* How templates switch reasoning, and the members of tools that some of them write without asking.
 * What the oracle's templates take was read in their sources; skipped where the oracle is absent.
 */
#include "tests/text/vocab_file.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Allocations that succeed before one fails, jansson's included; -1: all succeed. */
static int64_t left = -1;
static bool failed; /* one did */

static bool alloc_fails(void)
{
    if (left < 0) return false;
    if (left == 0) return failed = true;
    left--;
    return false;
}

#include "tests/wrap_alloc.h"

static void *own_malloc(size_t n)
{
    return malloc(n);
}

static struct eng_template *compile(const char *source)
{
    struct eng_template *t = NULL;
    assert_int_equal(eng_template_new(source, strlen(source), &t, NULL), 0);
    return t;
}

/* The variables as JSON; "-" if there is no switch. */
static void check(const struct eng_template *t, bool on, const char *want)
{
    json_t *all = NULL;
    assert_int_equal(eng_template_thinking(t, on, &all), 0);
    char *text = all ? json_dumps(all, JSON_COMPACT) : strdup("-");
    assert_string_equal(text, want);
    free(text);
    json_decref(all);
}

static void of_the_oracle(void **state)
{
    static const struct {
        const char *name, *on, *off;
    } rows[] = {
        {"Qwen3.5-4B", "{\"enable_thinking\":true}", "{\"enable_thinking\":false}"},
        {"GLM-4.6", "{\"enable_thinking\":true}", "{\"enable_thinking\":false}"},
        {"deepseek-ai-DeepSeek-V3.1", "{\"enable_thinking\":true}", "{\"enable_thinking\":false}"},
        {"ibm-granite-granite-3.3-2B-Instruct", "{\"thinking\":true}", "{\"thinking\":false}"},
        {"MiniMax-M3", "{\"thinking_mode\":\"enabled\"}", "{\"thinking_mode\":\"disabled\"}"},
        {"ByteDance-Seed-OSS", "{}", "{\"thinking_budget\":0}"},
        {"Cohere2MoE", "{}", "{\"reasoning_effort\":\"none\"}"},
        {"tencent-Hy3", "{\"reasoning_effort\":\"high\"}", "{\"reasoning_effort\":\"no_think\"}"},
        {"upstage-Solar-Open-100B", "{\"reasoning_effort\":\"high\"}",
         "{\"reasoning_effort\":\"minimal\"}"},
        {"openai-gpt-oss-120b", "{}", "{\"reasoning_effort\":\"low\"}"},
        {"Qwen-Qwen2.5-7B-Instruct", "-", "-"},
        {"Kimi-K2-Thinking", "-", "-"},                         /* it always thinks */
        {"mistralai-Ministral-3-14B-Reasoning-2512", "-", "-"}, /* parts of type thinking */
    };
    const char *env = getenv("CONIFER_ORACLE");
    if (!vocab_here()) skip();
    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++) {
        char path[4224];
        struct eng_template *t = NULL;
        size_t n;
        snprintf(path, sizeof path, "%s/templates/%s.jinja",
                 env ? env : CONIFER_SOURCE_ROOT "/../shared/oracle", rows[i].name);
        char *text = read_file(path, &n);
        assert_non_null(text);
        assert_int_equal(eng_template_new(text, n, &t, NULL), 0);
        check(t, true, rows[i].on);
        check(t, false, rows[i].off);
        eng_template_free(t);
        free(text);
    }
}

#define SWITCH "{% if thinking %}<think>{% endif %}"

static void what_counts(void **state)
{
    static const struct {
        const char *source, *off;
    } rows[] = {
        {SWITCH, "{\"thinking\":false}"},
        {"x", "-"},
        {"", "-"},
        {"{{ messages[0].enable_thinking }}", "-"},       /* not a variable */
        {"{# enable_thinking, reasoning_effort #}", "-"}, /* no effect */
        {"{% set thinking = true %}" SWITCH, "-"},        /* its own */
        {"{% if enable_thinking %}{{ raise_exception('no') }}{% endif %}" SWITCH,
         "{\"thinking\":false}"}, /* one that is refused; the next is not */
        {"{% for i in range(100000000) %}{{ enable_thinking }}{% endfor %}", "-"}, /* never ends */
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++) {
        struct eng_template *t = compile(rows[i].source);
        check(t, false, rows[i].off);
        eng_template_free(t);
    }
}

#define TOOLS                                                                                      \
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}},{\"type\":\"function\",\"function\":{" \
    "\"name\":\"g\",\"description\":\"d\",\"parameters\":{\"type\":\"object\"}}},7]"

static void members_of_tools(void **state)
{
    static const struct {
        const char *source, *first;
    } rows[] = {
        {"{{ tools }}", "{\"name\":\"f\"}"},
        {"{{ tools[0].function.description }}", "{\"name\":\"f\",\"description\":\"\"}"},
        {"{{ tools[0].function.parameters }}",
         "{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}"},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++) {
        struct eng_template *t = compile(rows[i].source);
        json_t *tools = json_loads(TOOLS, 0, NULL), *before = json_deep_copy(tools);
        assert_int_equal(eng_template_fit_tools(t, tools), 0);
        char *text =
            json_dumps(json_object_get(json_array_get(tools, 0), "function"), JSON_COMPACT);
        assert_string_equal(text, rows[i].first);
        assert_true(json_equal(json_array_get(tools, 1), json_array_get(before, 1)));
        assert_true(json_equal(json_array_get(tools, 2), json_array_get(before, 2)));
        free(text);
        json_decref(tools);
        json_decref(before);
        eng_template_free(t);
    }
}

/* Whether one of the allocations failed. */
static bool fails_at(int64_t k, const struct eng_template *t)
{
    json_t *all = NULL, *tools = json_loads(TOOLS, 0, NULL);
    failed = false;
    left = k;
    int rc = eng_template_thinking(t, true, &all);
    if (!rc) rc = eng_template_fit_tools(t, tools);
    left = -1;
    assert_int_equal(rc, failed ? CN_ENOMEM : 0);
    json_decref(all);
    json_decref(tools);
    return failed;
}

static void failing_allocations(void **state)
{
    struct eng_template *t = compile(SWITCH "{{ tools[0].description, tools[0].parameters }}");
    int64_t k = 0;
    json_set_alloc_funcs(own_malloc, free); /* this program's, which fails */
    while (fails_at(k, t))
        k++;
    assert_true(k > 10);
    eng_template_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_the_oracle),
        cmocka_unit_test(what_counts),
        cmocka_unit_test(members_of_tools),
        cmocka_unit_test(failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
