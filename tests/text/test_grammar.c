/* Grammars of the simple kinds: regular expressions and choices; limits, references, threads. */
#include "tests/text/grammar_cases.h"

static void test_regex(void **state)
{
    (void)state;
    static const struct grammar_case cases[] = {
        {"[a-c]+\\d{2}", {"a12", "cab00"}, {"", "12", "a1", "a123", " a12"}},
        {"a|bc", {"a", "bc"}, {"ac", "abc"}},
        {"^\\w+@\\w+\\.com$", {"ann@example.com"}, {"ann@example.org", "x ann@example.com"}},
        {"", {""}, {"a"}},
        {"(?i)caf\xc3\xa9.", {"CAF\xc3\x89!", "caf\xc3\xa9\xe2\x82\xac"}, {"caf\xc3\xa9", "cafe!"}},
        {"\"\\{\\}\n", {"\"{}\n"}, {"\"{}"}},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++)
        check_case(ENG_GRAMMAR_REGEX, &cases[i], NULL);
    check_bad(ENG_GRAMMAR_REGEX, "a(", 2, CN_EINVAL, "");
    check_bad(ENG_GRAMMAR_REGEX, "(a)\\1", 5, CN_EUNSUPP, "");
    check_bad(ENG_GRAMMAR_REGEX, "a$b", 3, CN_EINVAL, "nothing satisfies it");
}

static void test_choice(void **state)
{
    (void)state;
    static const struct grammar_case cases[] = {
        {"[\"yes\", \"no\", \"none\"]", {"yes", "no", "none"}, {"", "non", "yesno", "n"}},
        {"[\"\", \"a\"]", {"", "a"}, {"aa"}},
        {"[\"\\u00e9\\n\\\"\", \"x\", \"x\"]", {"\xc3\xa9\n\"", "x"}, {"\xc3\xa9"}},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++)
        check_case(ENG_GRAMMAR_CHOICE, &cases[i], NULL);
    check_bad(ENG_GRAMMAR_CHOICE, "[]", 2, CN_EINVAL, "at least one text");
    check_bad(ENG_GRAMMAR_CHOICE, "\"a\"", 3, CN_EINVAL, "expected a list");
    check_bad(ENG_GRAMMAR_CHOICE, "[\"a\", 1]", 8, CN_ETYPE, "number 2 of the texts");
    check_bad(ENG_GRAMMAR_CHOICE, "[\"a\",\n]", 7, CN_EINVAL, "line 2, column 1: not valid JSON");
}

/* Ten thousand texts are one lexeme that shares their beginnings. */
static void test_many_choices(void **state)
{
    (void)state;
    json_t *list = json_array();
    char text[32];
    for (int i = 0; i < 10000; i++) {
        snprintf(text, sizeof text, "choice %x", (unsigned)i * 2654435761u);
        json_array_append_new(list, json_string(text));
    }
    struct eng_grammar_in in = {.kind = ENG_GRAMMAR_CHOICE, .json = list};
    struct eng_grammar *g = NULL;
    assert_int_equal(eng_grammar_compile(&in, &g, NULL), 0);
    assert_in_range(eng_grammar_bytes(g), 1, 8 << 20);
    for (int i = 0; i < 10000; i += 997) {
        snprintf(text, sizeof text, "choice %x", (unsigned)i * 2654435761u);
        assert_true(belongs(g, text));
    }
    assert_false(belongs(g, "choice "));
    eng_grammar_unref(g);
    in.max_bytes = 20000;
    struct cn_error err = {0};
    assert_int_equal(eng_grammar_compile(&in, &g, &err), CN_ELIMIT);
    json_decref(list);
}

static void test_references(void **state)
{
    (void)state;
    struct eng_grammar *g = compiled(ENG_GRAMMAR_REGEX, "a", 1, NULL);
    assert_ptr_equal(eng_grammar_ref(g), g);
    eng_grammar_unref(g);
    assert_true(belongs(g, "a"));
    eng_grammar_unref(g);
    eng_grammar_unref(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_regex),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_many_choices),
        cmocka_unit_test(test_references),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
