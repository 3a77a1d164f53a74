/* What a request's tools decide about a reply: without them nothing is a call; what is held back
 * has a limit; nothing is added at a limit's end; and how they are read and refused. */
#include "reply_rows.h"

/* ---- without tools, and at the end ----------------------------------------------------------- */

static void test_no_tools(void **state)
{
    static const struct row rows[] = {
        {HERMES("{\"name\": \"f\", \"arguments\": {}}") " \n",
         "C[" HERMES("{\"name\": \"f\", \"arguments\": {}}") " \n]"},
        {"{\"name\": \"f\", \"parameters\": {}}", "C[{\"name\": \"f\", \"parameters\": {}}]"},
    };
    static const char source[] = "<tool_call> </think>";
    struct eng_vocab *v = make_vocab("<tool_call>");
    struct eng_tools *none = make_tools("[]"), *some = make_tools(tools_json);
    struct setting s = {.v = v, .format = eng_reply_format(v, (struct eng_str){source, 20})};
    check_in(&s, rows, CN_ARRAY_LEN(rows));
    s.tools = none;
    check_in(&s, rows, CN_ARRAY_LEN(rows));
    assert_true(eng_reply_needed(&s.format, NULL)); /* for reasoning */
    struct eng_reply_format plain = eng_reply_format(v, (struct eng_str){"", 0});
    assert_int_equal(plain.kind, ENG_REPLY_PLAIN);
    assert_false(eng_reply_needed(&plain, NULL));
    assert_false(eng_reply_needed(&plain, none));
    assert_true(eng_reply_needed(&plain, some));
    assert_false(eng_reply_form_known(&plain));
    eng_tools_free(none);
    eng_tools_free(some);
    eng_vocab_free(v);
}

/* A limit's end: the beginning of a call is dropped, and nothing is added to one that is out. */
static void test_cut_off(void **state)
{
    static const struct row rows[] = {
        {"Hi <tool_call>\n{\"name\": \"f\", \"argu", "C[Hi]"},
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"a", "T[f]A[{\"s\": \"a]"},
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": {}", "T[f]A[{}]"},
        {"Hi <tool_c", "C[Hi <tool_c]"},
        {"a \n", "C[a \n]"},
    };
    struct eng_vocab *v = make_vocab("");
    struct eng_tools *tools = make_tools(tools_json);
    struct setting s = {.v = v,
                        .format = eng_reply_format(v, (struct eng_str){"<tool_call>", 11}),
                        .tools = tools,
                        .cut = true};
    check_in(&s, rows, CN_ARRAY_LEN(rows));
    eng_tools_free(tools);
    eng_vocab_free(v);
}

/* What is held back has a limit: then it is text, or goes out without what was waited for. */
static void check_limit(const char *source, const char *head, const char *tail, enum eng_part first,
                        size_t n_calls)
{
    struct eng_tools *tools = make_tools(tools_json);
    struct eng_reply_format f = eng_reply_format(NULL, (struct eng_str){source, strlen(source)});
    struct eng_reply r;
    struct eng_parts p;
    static char filler[1024];
    size_t calls = 0, fed = strlen(head) + strlen(tail);

    memset(filler, 'x', sizeof filler);
    eng_parts_init(&p);
    eng_reply_init(&r, &f, tools, ENG_REPLY_ANEW);
    assert_int_equal(eng_reply_text(&r, head, strlen(head), &p), 0);
    for (size_t i = 0; i < 2 * ENG_REPLY_HELD / sizeof filler; i++, fed += sizeof filler)
        assert_int_equal(eng_reply_text(&r, filler, sizeof filler, &p), 0);
    assert_true(p.text.len > ENG_REPLY_HELD / 2); /* it did not wait for the end */
    assert_int_equal(eng_reply_text(&r, tail, strlen(tail), &p), 0);
    assert_int_equal(eng_reply_finish(&r, false, &p), 0);
    for (size_t i = 0; i < p.n_runs; i++)
        calls += p.runs[i].part == ENG_PART_CALL;
    assert_int_equal(p.runs[0].part, first);
    assert_int_equal(calls, n_calls);
    assert_int_equal(eng_reply_calls(&r), n_calls ? ENG_CALLS_WHOLE : ENG_CALLS_NONE);
    if (!n_calls) assert_int_equal(p.text.len, fed);
    eng_reply_fini(&r);
    eng_parts_fini(&p);
    eng_tools_free(tools);
}

static void test_limits(void **state)
{
    check_limit("<tool_call>", "<tool_call>{\"arguments\": {\"s\": \"", "\"}, \"name\": \"f\"}",
                ENG_PART_CONTENT, 0);
    check_limit("<tool_call>", "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"", "\"}}",
                ENG_PART_CALL, 1);
    check_limit("[TOOL_CALLS]", "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"s\": \"",
                "\"}, \"id\": \"abcdefghi\"}]", ENG_PART_CALL, 1);
    check_limit("[TOOL_CALLS][ARGS]", "[TOOL_CALLS]", "{}", ENG_PART_CONTENT, 0);
    check_limit("<arg_key>", "<tool_call>f<arg_key>n</arg_key><arg_value>",
                "</arg_value></tool_call>", ENG_PART_CALL, 1);
    check_limit("<|tool_call_start|>", "<|tool_call_start|>[f(s=\"", "\")]", ENG_PART_CALL, 1);
    check_limit("<|eom_id|>", "{\"name\": \"f\", \"x\": \"", "\"}", ENG_PART_CONTENT, 0);
}

/* ---- tools ----------------------------------------------------------------------------------- */

static void refused(const char *text, int code, const char *param)
{
    struct eng_tools *t = (void *)1;
    struct cn_error err = {0};
    json_t *j = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(j);
    assert_int_equal(eng_tools_new(j, &t, &err), code);
    assert_string_equal(err.param, param);
    assert_ptr_equal(t, (void *)1);
    json_decref(j);
}

static void test_tools(void **state)
{
    refused("{}", CN_ETYPE, "tools");
    refused("[1]", CN_ETYPE, "tools[0]");
    refused("[{\"function\": {}}]", CN_ETYPE, "tools[0].function.name");
    refused("[{\"name\": \"\"}]", CN_ETYPE, "tools[0].name");
    refused("[{\"name\": \"a\"}, {\"function\": {\"name\": \"a\"}}]", CN_EINVAL,
            "tools[1].function.name");

    /* Schemas that refer to themselves, and in many ways to many. */
    struct eng_tools *t = make_tools(
        "[{\"name\": \"f\", \"parameters\": {\"$ref\": \"#/$defs/a\", \"$defs\": {"
        "\"a\": {\"anyOf\": [{\"$ref\": \"#/$defs/b\"}, {\"$ref\": \"#/$defs/b\"}]},"
        "\"b\": {\"anyOf\": [{\"$ref\": \"#/$defs/a\"}, {\"$ref\": \"#\"}, {\"$ref\": \"#/x\"}]}"
        "}}}]");
    assert_int_equal(eng_tools_count(t), 1);
    assert_true(eng_tools_bytes(t) > 0);
    struct eng_vocab *v = make_vocab("");
    static const struct row rows[] = {
        {"<function=f><parameter=k>1</parameter></function>", "T[f]A[{\"k\": 1}]"}};
    struct setting s = {.v = v,
                        .format =
                            eng_reply_format(v, (struct eng_str){"<function= <parameter=", 22}),
                        .tools = t};
    check_in(&s, rows, 1);
    eng_tools_free(t);
    eng_vocab_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_tools),
        cmocka_unit_test(test_cut_off),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_tools),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
