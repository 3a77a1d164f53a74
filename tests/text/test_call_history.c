/* Ids and results of calls in a conversation's history: what templates want of them, and messages
 * that are made to fit. The templates are the oracle's; skipped where it is absent. */
#include "tests/text/vocab_file.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char dir[4096];

static struct eng_template *open_template(const char *name, struct eng_history *h)
{
    char path[4224];
    struct eng_template *t = NULL;
    size_t n;
    snprintf(path, sizeof path, "%s/templates/%s.jinja", dir, name);
    char *text = read_file(path, &n);
    assert_non_null(text);
    assert_int_equal(eng_template_new(text, n, &t, NULL), 0);
    struct eng_reply_format f = eng_reply_format(NULL, (struct eng_str){text, n});
    assert_int_equal(eng_history_learn(t, &f, h), 0);
    free(text);
    return t;
}

static json_t *parse(const char *text)
{
    json_error_t e;
    json_t *j = json_loads(text, 0, &e);
    if (!j) fail_msg("%s", e.text);
    return j;
}

static const char *at(const json_t *messages, size_t i, size_t call)
{
    const json_t *m = json_array_get(messages, i);
    const json_t *c = json_array_get(json_object_get(m, "tool_calls"), call);
    return json_string_value(c ? json_object_get(c, "id") : json_object_get(m, "tool_call_id"));
}

/* Two calls, whose results come in the other order, and one more with an id that was there. */
static const char conversation[] =
    "[{\"role\":\"user\",\"content\":\"x\"},"
    "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":["
    "{\"id\":\"call_aaaaaaaaaaaaaaaaaaaaaaaa\",\"type\":\"function\",\"function\":"
    "{\"name\":\"f\",\"arguments\":{}}},"
    "{\"id\":\"call_bbbbbbbbbbbbbbbbbbbbbbbb\",\"type\":\"function\",\"function\":"
    "{\"name\":\"g\",\"arguments\":{}}}]},"
    "{\"role\":\"tool\",\"tool_call_id\":\"call_bbbbbbbbbbbbbbbbbbbbbbbb\",\"name\":\"g\","
    "\"content\":\"of g\"},"
    "{\"role\":\"tool\",\"tool_call_id\":\"call_aaaaaaaaaaaaaaaaaaaaaaaa\",\"name\":\"f\","
    "\"content\":\"of f\"},"
    "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":["
    "{\"id\":\"call_aaaaaaaaaaaaaaaaaaaaaaaa\",\"type\":\"function\",\"function\":"
    "{\"name\":\"f\",\"arguments\":{}}},"
    "{\"id\":\"abcdefgh9\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":{}}}]},"
    "{\"role\":\"tool\",\"tool_call_id\":\"call_aaaaaaaaaaaaaaaaaaaaaaaa\",\"name\":\"f\","
    "\"content\":\"again\"}]";

static void test_what_templates_want(void **state)
{
    static const struct {
        const char *name;
        enum eng_call_ids ids;
        bool by_order;
    } rows[] = {
        {"mistralai-Mistral-Nemo-Instruct-2407", ENG_IDS_NINE, false},
        {"Mistral-Small-3.2-24B-Instruct-2506", ENG_IDS_NINE, false},
        {"mistralai-Ministral-3-14B-Reasoning-2512", ENG_IDS_ANY, true},
        {"Kimi-K2-Instruct", ENG_IDS_KIMI, true},
        {"Kimi-K2-Thinking", ENG_IDS_KIMI, true},
        {"upstage-Solar-Open-100B", ENG_IDS_ANY, false},
        {"Qwen-Qwen2.5-7B-Instruct", ENG_IDS_ANY, true},
        {"meetkai-functionary-medium-v3.2", ENG_IDS_ANY, true},
        {"GLM-4.6", ENG_IDS_ANY, true},
        {"openai-gpt-oss-120b", ENG_IDS_ANY, true},
        {"google-gemma-2-2b-it", ENG_IDS_ANY, false}, /* writes no calls */
    };
    if (!vocab_here()) skip();
    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++) {
        struct eng_history h;
        struct eng_template *t = open_template(rows[i].name, &h);
        if (h.ids != rows[i].ids || h.by_order != rows[i].by_order)
            fail_msg("%s: ids %d, by order %d", rows[i].name, h.ids, h.by_order);
        eng_template_free(t);
    }
}

static bool is_nine(const char *s)
{
    return strlen(s) == 9 && strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                       "0123456789") == 9;
}

static void test_mistral(void **state)
{
    struct eng_history h = {.ids = ENG_IDS_NINE};
    json_t *m = parse(conversation), *again = parse(conversation);

    assert_int_equal(eng_history_prepare(&h, m, NULL), 0);
    assert_int_equal(eng_history_prepare(&h, again, NULL), 0);
    assert_true(json_equal(m, again)); /* the same in every request */
    json_decref(again);
    for (size_t i = 1; i <= 4; i += 3)
        for (size_t k = 0; k < 2; k++)
            assert_true(is_nine(at(m, i, k)));
    assert_string_not_equal(at(m, 1, 0), at(m, 1, 1));
    assert_string_equal(at(m, 1, 0), at(m, 4, 0)); /* one id, one id */
    assert_string_equal(at(m, 4, 1), "abcdefgh9");
    assert_string_equal(at(m, 2, 0), at(m, 1, 1));
    assert_string_equal(at(m, 3, 0), at(m, 1, 0));
    assert_string_equal(at(m, 5, 0), at(m, 4, 0));
    json_decref(m);

    if (!vocab_here()) return;
    struct eng_template *t = open_template("mistralai-Mistral-Nemo-Instruct-2407", &h);
    m = parse(conversation);
    struct eng_template_in in = {.messages = m, .bos_token = {"", 0}, .eos_token = {"", 0}};
    struct eng_rendered r = {0};
    assert_int_equal(eng_template_render(t, &in, &r, NULL), CN_ETEMPLATE); /* ids of 29 letters */
    assert_int_equal(eng_history_prepare(&h, m, NULL), 0);
    assert_int_equal(eng_template_render(t, &in, &r, NULL), 0);
    eng_rendered_fini(&r);
    json_decref(m);
    eng_template_free(t);
}

/* Many ids, among them those that the first ones would get: all differ. */
static void test_no_two_ids_alike(void **state)
{
    struct eng_history h = {.ids = ENG_IDS_NINE};
    json_t *calls = json_array(), *seen = json_object();
    json_t *messages = json_pack("[{s:s, s:o}]", "role", "assistant", "tool_calls", calls);
    for (int round = 0; round < 2; round++) {
        size_t n = json_array_size(calls);
        for (size_t i = 0; i < 3000; i++) {
            char id[32];
            snprintf(id, sizeof id, "call-%zu", i);
            if (round) snprintf(id, sizeof id, "%s", at(messages, 0, i));
            json_array_append_new(calls, json_pack("{s:s, s:{s:s, s:{}}}", "id", id, "function",
                                                   "name", "f", "arguments"));
        }
        if (round) /* the ids of the first half again, under their first names */
            for (size_t i = 0; i < n; i++) {
                char id[32];
                snprintf(id, sizeof id, "call-%zu", i);
                json_object_set_new(json_array_get(calls, i), "id", json_string(id));
            }
        assert_int_equal(eng_history_prepare(&h, messages, NULL), 0);
    }
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const char *id = at(messages, 0, i);
        assert_true(is_nine(id));
        assert_null(json_object_get(seen, id));
        json_object_set_new(seen, id, json_true());
    }
    json_decref(seen);
    json_decref(messages);
}

static void test_kimi(void **state)
{
    struct eng_history h = {.ids = ENG_IDS_KIMI, .by_order = true};
    json_t *m = parse(conversation);
    assert_int_equal(eng_history_prepare(&h, m, NULL), 0);
    assert_string_equal(at(m, 1, 0), "functions.f:0");
    assert_string_equal(at(m, 1, 1), "functions.g:1");
    assert_string_equal(at(m, 2, 0), "functions.f:0"); /* the results are in the calls' order */
    assert_string_equal(at(m, 3, 0), "functions.g:1");
    assert_string_equal(at(m, 4, 0), "functions.f:2");
    assert_string_equal(at(m, 5, 0), "functions.f:2");
    json_decref(m);
}

static void test_order(void **state)
{
    static const char odd[] =
        "[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\"},{\"id\":\"b\"},{\"id\":\"c\"}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"c\"},{\"role\":\"tool\",\"tool_call_id\":\"a\"},"
        "{\"role\":\"user\",\"content\":\"\"},{\"role\":\"tool\",\"tool_call_id\":\"b\"},"
        "{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\"},{\"id\":\"b\"}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"b\"},{\"role\":\"tool\",\"tool_call_id\":\"b\"},"
        "{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\"},{\"id\":\"b\"}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"b\"},{\"role\":\"tool\"}]";
    struct eng_history h = {.by_order = true};
    json_t *m = parse(odd);
    assert_int_equal(eng_history_prepare(&h, m, NULL), 0);
    assert_string_equal(at(m, 1, 0), "a"); /* those that follow the calls */
    assert_string_equal(at(m, 2, 0), "c");
    assert_string_equal(at(m, 4, 0), "b");
    assert_string_equal(at(m, 6, 0), "b"); /* two of one call, or of none: as they came */
    assert_string_equal(at(m, 9, 0), "b");
    json_decref(m);
    h.by_order = false;
    m = parse(odd);
    assert_int_equal(eng_history_prepare(&h, m, NULL), 0);
    json_t *same = parse(odd);
    assert_true(json_equal(m, same));
    json_decref(same);
    json_decref(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_templates_want),
        cmocka_unit_test(test_mistral),
        cmocka_unit_test(test_no_two_ids_alike),
        cmocka_unit_test(test_kimi),
        cmocka_unit_test(test_order),
    };
    const char *env = getenv("CONIFER_ORACLE");
    snprintf(dir, sizeof dir, "%s", env ? env : CONIFER_SOURCE_ROOT "/../shared/oracle");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
