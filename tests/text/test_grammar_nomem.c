/* Compiling grammars with the k-th allocation failing, for every k: CN_ENOMEM, nothing leaked (the
 * sanitizer build sees that), and a grammar once memory is there again. jansson's own allocations
 * are in a shared library and not reached. */
#include "tests/text/grammar_cases.h"

static long countdown = -1; /* allocations until one fails; -1 = never */

static bool alloc_fails(void)
{
    return countdown >= 0 && countdown-- == 0;
}

#include "tests/wrap_alloc.h"

/* Compiles with ever more memory, until there is enough. */
static struct eng_grammar *enough(const struct eng_grammar_in *in)
{
    struct eng_grammar *g = NULL;
    int rc = CN_ENOMEM;
    long k = 0;
    for (; rc; k++) {
        struct cn_error err = {0};
        countdown = k;
        rc = eng_grammar_compile(in, &g, &err);
        countdown = -1;
        if (!rc) break;
        assert_int_equal(rc, CN_ENOMEM);
        assert_int_equal(err.code, CN_ENOMEM);
        assert_null(g);
    }
    assert_true(k > 10);
    return g;
}

static void sweep(enum eng_grammar_kind kind, const char *text)
{
    const struct eng_grammar_in in = {.kind = kind, .text = text, .n = strlen(text)};
    struct eng_grammar *g = enough(&in);
    assert_true(belongs(g, "(a,a)"));
    assert_false(belongs(g, "(a,"));
    eng_grammar_unref(g);
}

static void test_gbnf(void **state)
{
    (void)state;
    sweep(ENG_GRAMMAR_GBNF, "root ::= \"(\" list \")\" | <[7]> !<[7]>*\n"
                            "list ::= item | list \",\" item | root{2,4}\n"
                            "item ::= ws [a-z\\u00e9] item? # once\nws ::= (\" \" ws)?\n");
}

static void test_lark(void **state)
{
    (void)state;
    sweep(ENG_GRAMMAR_LARK, "start: \"(\" item (\",\" item)* \")\" | start~2..4 -> x\n"
                            "item[capture=\"x\"]: A | \"b\"i | \"c\"..\"d\" | start\n"
                            "A: /[a-z]/ & ~B\nB: \"z\"\n"
                            "%import common (INT, WS)\n%import common.CNAME -> NAME\n%ignore WS\n");
}

static void test_others(void **state)
{
    (void)state;
    sweep(ENG_GRAMMAR_REGEX, "\\(a(,a)*\\)");
    sweep(ENG_GRAMMAR_CHOICE, "[\"(a,a)\", \"(b)\", \"\", \"(a,a)\"]");
}

/* Calls in the form of a template: a text of them belongs to the grammar. */
static void sweep_calls(const char *source, bool free, const char *call)
{
    static const char tools[] =
        "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": "
        "\"object\", \"properties\": {\"s\": {\"type\": [\"string\", \"null\"]}, \"l\": {\"type\": "
        "\"array\", \"items\": {\"type\": \"boolean\"}, \"maxItems\": 2}, \"o\": {\"type\": "
        "\"object\", \"properties\": {\"k\": {\"type\": \"number\"}}}}, \"required\": [\"s\"]}}}]";
    struct eng_reply_format f = eng_reply_format(NULL, (struct eng_str){source, strlen(source)});
    const struct eng_grammar_in in = {.kind = ENG_GRAMMAR_CALLS,
                                      .text = tools,
                                      .n = sizeof tools - 1,
                                      .many = true,
                                      .free = free,
                                      .reply = &f};
    struct eng_grammar *g = enough(&in);
    assert_true(belongs(g, call));
    eng_grammar_unref(g);
}

static void test_calls(void **state)
{
    (void)state;
    sweep_calls("<|\"|>", false, "<|tool_call>call:f{l:[true],s:<|\"|>a\"b<|\"|>}<tool_call|>");
    sweep_calls("[func_name1(", false, "[f(s=\"a\", o={\"k\": 1}), f(s=None)]");
    sweep_calls("<function= <parameter=", true,
                "<function=f>\n<parameter=s>\na\n</parameter>\n</function>\n</tool_call>");
    sweep_calls("tool_sep HYTK = ':x'", false,
                "<tool_calls:x>\n<tool_call:x>f<tool_sep:x>\n<arg_key:x>s</arg_key:x>\n"
                "<arg_value:x>a</arg_value:x>\n</tool_call:x>\n</tool_calls:x>");
    sweep_calls(
        "]<]minimax[>[", false,
        "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<s>a]<]minimax[>"
        "[</s>]<]minimax[>[<o>]<]minimax[>[<k>1]<]minimax[>[</k>]<]minimax[>[</o>]<]minimax[>["
        "</invoke>\n]<]minimax[>[</tool_call>");
    sweep_calls(">>>", true, "all\nHm.>>>f\n{\"s\": \"a\"}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gbnf),
        cmocka_unit_test(test_lark),
        cmocka_unit_test(test_others),
        cmocka_unit_test(test_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
