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

static void sweep(enum eng_grammar_kind kind, const char *text)
{
    struct eng_grammar_in in = {.kind = kind, .text = text, .n = strlen(text)};
    struct eng_grammar *g = NULL;
    int rc = CN_ENOMEM;
    long k = 0;
    for (; rc; k++) {
        struct cn_error err = {0};
        countdown = k;
        rc = eng_grammar_compile(&in, &g, &err);
        countdown = -1;
        if (!rc) break;
        assert_int_equal(rc, CN_ENOMEM);
        assert_int_equal(err.code, CN_ENOMEM);
        assert_null(g);
    }
    assert_true(k > 10);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gbnf),
        cmocka_unit_test(test_lark),
        cmocka_unit_test(test_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
