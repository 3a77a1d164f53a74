/* Lark: the language as Lark and llguidance document it, whole grammars, errors, limits. */
#include "tests/text/grammar_cases.h"

/* ---- whole grammars -------------------------------------------------------------------------- */

static const struct grammar_case whole[] = {
    /* a calculator, left recursive */
    {"?start: sum\n"
     "      | NAME \"=\" sum    -> assign_var\n"
     "?sum: product\n"
     "    | sum \"+\" product   -> add\n"
     "    | sum \"-\" product   -> sub\n"
     "?product: atom\n"
     "    | product \"*\" atom  -> mul\n"
     "    | product \"/\" atom  -> div\n"
     "?atom: NUMBER           -> number\n"
     "     | \"-\" atom         -> neg\n"
     "     | NAME             -> var\n"
     "     | \"(\" sum \")\"\n"
     "%import common.CNAME -> NAME\n"
     "%import common.NUMBER\n"
     "%import common.WS_INLINE\n"
     "%ignore WS_INLINE\n",
     {"1", "a = 1 + 2*-(b - 3.5e1) / c", "  x*y", "-\t-1", "a=b"},
     {"", "1 +", "a = b = c", "(1", "1 2", "1 ", "a\n=1"}},
    /* JSON */
    {"start: value\n"
     "?value: object | array | string\n"
     "      | SIGNED_NUMBER -> number\n"
     "      | \"true\" -> true | \"false\" -> false | \"null\" -> null\n"
     "array  : \"[\" [value (\",\" value)*] \"]\"\n"
     "object : \"{\" [pair (\",\" pair)*] \"}\"\n"
     "pair   : string \":\" value\n"
     "string : ESCAPED_STRING\n"
     "%import common.ESCAPED_STRING\n"
     "%import common.SIGNED_NUMBER\n"
     "%import common.WS\n"
     "%ignore WS\n",
     {"{\"a\" : [1, -2.5,\n true, {}, []], \"b\\\"\": null}", "[]", "\"x\""},
     {"", "{", "{a:1}", "[1,]", "tru", "tr ue", "\"a\nb\""}},
    /* statements, comments ignored */
    {"start: stmt+\n"
     "stmt: \"let\" NAME \"=\" expr \";\" | \"if\" \"(\" expr \")\" block [\"else\" block] | NAME "
     "\"(\" args? \")\" \";\"\n"
     "block: \"{\" stmt* \"}\"\n"
     "args: expr (\",\" expr)*\n"
     "expr: expr OP expr | NAME | INT | \"(\" expr \")\"\n"
     "OP: \"+\" | \"-\" | \"*\" | \"==\"\n"
     "NAME: /[a-z_]\\w*/\n"
     "%import common (INT, WS, C_COMMENT, CPP_COMMENT)\n"
     "%ignore WS\n%ignore C_COMMENT\n%ignore CPP_COMMENT\n",
     {"let a = 1 + b * 2;", "if(a == 1){f(1, g);}else{}", "/* x * / **/ f();// rest\n g();"},
     {"", "let a 1;", "if(a){f()}", "f(,);", "/* x */ f();// rest"}},
};

/* ---- the language ---------------------------------------------------------------------------- */

static const struct grammar_case parts[] = {
    {"start: \"a\"", {"a"}, {"", "A", "aa"}},
    {"start: \"aB1\"i", {"aB1", "AB1", "ab1"}, {"aB2", ""}},
    {"start: \"a.(\\\\ \xc3\xa9\"i", {"A.(\\ \xc3\x89", "a.(\\ \xc3\xa9"}, {"ab(\\ \xc3\xa9"}},
    {"start: \"\\n\\t\\\"\\\\\\x41\\u00e9\\ud83d\\ude00\"",
     {"\n\t\"\\A\xc3\xa9\xf0\x9f\x98\x80"},
     {"n"}},
    {"start: /a+b?/ /[c-e]/", {"abc", "aae"}, {"bc", "a", "abf"}},
    {"start: /a\\/b/", {"a/b"}, {"a\\/b"}},
    {"start: /ab./i \"x\"", {"aBcx", "AB.x"}, {"ab\nx"}},
    {"start: /a.b/s", {"a\nb"}, {"ab"}},
    {"start: /a.b/isu", {"A\nB"}, {"ab"}},
    {"start: \"a\"..\"c\" \"\\u03b1\"..\"\\u03c9\"",
     {"b\xce\xb2", "c\xcf\x89"},
     {"d\xce\xb2", "ab"}},
    {"start: \"a\" [\"b\" \"c\"] (\"d\" | \"e\")?", {"a", "abc", "abcd", "ae"}, {"ab", "bcd"}},
    {"start: \"a\"* \"b\"+ \"c\"~2 \"d\"~1..2", {"bccd", "aabbccdd"}, {"accd", "bcd", "bccddd"}},
    {"start: \"a\"{2} \"b\"{1,} \"c\"{,2} \"d\" ~ 1 .. 2", {"aabd", "aabbccdd"}, {"abd", "aad"}},
    {"start: A~2\nA: \"a\"", {"aa"}, {"a"}},
    {"start: | \"a\"\n", {"", "a"}, {"b"}},
    {"start:\n  | \"a\"\n  | \"b\"\n", {"", "a", "b"}, {"c"}},
    {"start: \"a\" # rest\n  | \"b\" // rest\n# line\n  | \"c\"\n\n\nx: \"d\"",
     {"a", "b", "c"},
     {"d"}},
    {"start: (\"a\"\n | \"b\"\n  \"c\")\n", {"a", "bc"}, {"b"}},
    {"start: x-y\nx-y: \"a\"->z\n", {"a"}, {"b"}},
    {"!start.2: a_1 _b\n?a_1: \"a\"\n_b.-1: B_1\nB_1.10: \"b\"", {"ab"}, {"a"}},
    {"start[capture]: a\na[capture=\"x\"]: \"a\"\n%llguidance {}\n", {"a"}, {"b"}},
    {"start: A B?\nA: B | \"a\" B\nB: \"b\"+", {"b", "abb", "bb"}, {"a", ""}},
    /* sets of texts within terminals; what binds tighter than what */
    {"start: A\nA: /[a-z]+/ & ~/.*b.*/", {"a", "aca"}, {"", "b", "abc", "A"}},
    {"start: A\nA: \"a\" | /[a-z]+/ & /.../", {"a", "xyz"}, {"xy", "aa"}},
    {"start: A\nA: ~\"a\"+ \"b\"", {"b", "aab", "xb", "xab"}, {"a", "", "ab"}},
    {"start: A\nA: ~(\"a\" | \"b\")", {"", "c", "ab", "\xc3\xa9"}, {"a", "b", "\xff", "\xc3"}},
    /* ignored texts: in front of any terminal, not within one and not at the end */
    {"start: A \"c\" A\nA: \"a\" \"b\"\n%ignore \" \"",
     {"abcab", "  ab c  ab"},
     {"a bcab", "abcab "}},
    {"start: (\"a\" | /b/)*\n%ignore \" \"\n%ignore /#.*\\n/",
     {"", "ab", " a #x\nb a", "#\n#\na"},
     {" ", "a ", "#a"}},
    {"start: x*\nx: \"(\" start \")\"\n%ignore \" \"", {"", "()", "( ( ) () )"}, {"(", ") "}},
    {"start: \"a\"..\"b\" x\nx: \"c\"?\n%ignore \"-\"+", {"a", "--a", "b--c"}, {"-", "a-"}},
    {"%import common.INT\n%import common.WORD -> W\nstart: INT W\n%ignore WS\nWS: \" \"",
     {"1a", "12 ab"},
     {"1", "1 2"}},
    {"start: <[16843010]> \"a\" <[16843009-16843011,16843013]>\n",
     {"\xff\x01\x01\x01\x02"
      "a\xff\x01\x01\x01\x03",
      "\xff\x01\x01\x01\x02"
      "a\xff\x01\x01\x01\x05"},
     {"\xff\x01\x01\x01\x02"
      "a\xff\x01\x01\x01\x04",
      "\xff\x01\x01\x01\x01"
      "a\xff\x01\x01\x01\x01"}},
    {"start: <[^16843010]>* <[16843010]>", {"ab\xff\x01\x01\x01\x03\xff\x01\x01\x01\x02"}, {"ab"}},
};

static const struct grammar_case commons[] = {
    {"DIGIT", {"0", "9"}, {"", "10", "a"}},
    {"HEXDIGIT", {"f", "A", "0"}, {"g", "0a"}},
    {"INT", {"0", "0123"}, {"-1", ""}},
    {"SIGNED_INT", {"-1", "+01", "2"}, {"1.", "-"}},
    {"DECIMAL", {"1.", ".5", "1.5"}, {"1", "."}},
    {"_EXP", {"e1", "E-10"}, {"e", "1e1"}},
    {"FLOAT", {"1e5", "1.5e-3", ".5", "1."}, {"1", "e5", "-1.5"}},
    {"SIGNED_FLOAT", {"-1e5", "+.5"}, {"-1", "--1.0"}},
    {"NUMBER", {"1", "1.", ".5", "1e5", "1.5E+3"}, {"-1", ".", "1e"}},
    {"SIGNED_NUMBER", {"-1", "+1.5e3", "7"}, {"", "- 1"}},
    {"ESCAPED_STRING", {"\"\"", "\"a\\\"b\"", "\"\\\\\""}, {"\"", "\"a\"b\"", "\"\\\"", "\"\n\""}},
    {"LCASE_LETTER", {"a"}, {"A", "\xc3\xa9"}},
    {"UCASE_LETTER", {"A"}, {"a"}},
    {"LETTER", {"a", "Z"}, {"1", "ab"}},
    {"WORD", {"aB"}, {"", "a1"}},
    {"CNAME", {"_", "a1", "A_b"}, {"1a", ""}},
    {"WS_INLINE", {" ", "\t "}, {"", "\n"}},
    {"WS", {" \t\f\r\n"}, {"", "\v"}},
    {"CR", {"\r"}, {"\n"}},
    {"LF", {"\n"}, {"\r"}},
    {"NEWLINE", {"\n", "\r\n\n"}, {"\r", ""}},
    {"SH_COMMENT", {"#", "# a"}, {"#\n", "a"}},
    {"CPP_COMMENT", {"// a"}, {"/ a", "//\n"}},
    {"C_COMMENT", {"/**/", "/* * / \n **/"}, {"/*/", "/* */ */", "/*"}},
    {"SQL_COMMENT", {"--", "-- a"}, {"-", "--\n"}},
};

static void test_language(void **state)
{
    (void)state;
    for (size_t i = 0; i < CN_ARRAY_LEN(whole); i++)
        check_case(ENG_GRAMMAR_LARK, &whole[i], NULL);
    for (size_t i = 0; i < CN_ARRAY_LEN(parts); i++)
        check_case(ENG_GRAMMAR_LARK, &parts[i], NULL);
    for (size_t i = 0; i < CN_ARRAY_LEN(commons); i++) {
        char text[100];
        struct grammar_case c = commons[i];
        snprintf(text, sizeof text, "%%import common.%s\nstart: %s", c.grammar, c.grammar);
        c.grammar = text;
        check_case(ENG_GRAMMAR_LARK, &c, NULL);
    }
}

static void test_json(void **state)
{
    (void)state;
    static const struct grammar_case cases[] = {
        {"start: text | call\n"
         "text: /[^{](.|\\n)*/\n"
         "call: %json {\n"
         "  \"type\": \"object\", \"properties\": {\"name\": {\"const\": \"f\"}},\n"
         "  \"required\": [\"name\"], \"additionalProperties\": false\n"
         "}\n",
         {"There is {no} call", "{\"name\":\"f\"}"},
         {"", "{\"name\":\"g\"}", "{\"name\":\"f\"} and more", "{}"}},
        {"start: \"f(\" %json {\"type\": \"integer\"} (\",\" %json {\"type\": \"boolean\"})* "
         "\")\"\n",
         {"f(1)", "f(-20,true,false)"},
         {"f()", "f(1,2)", "f(1.5)"}},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++)
        check_case(ENG_GRAMMAR_LARK, &cases[i], NULL);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static const struct bad_case bad[] = {
    {"", CN_EINVAL, "there is no rule start"},
    {"START: \"a\"", CN_EINVAL, "there is no rule start"},
    {"start: a", CN_EINVAL, "line 1, column 8: a is not defined"},
    {"start: A\n\nA: B", CN_EINVAL, "line 3, column 4: B is not defined"},
    {"start: \"a\"\nstart: \"b\"", CN_EINVAL, "line 2, column 1: the rule start is defined twice"},
    {"%import common.INT\nINT: \"a\"\nstart: INT", CN_EINVAL,
     "line 2, column 1: the rule INT is defined twice"},
    {"start \"a\"", CN_EINVAL, "line 1, column 7: expected `:`"},
    {"start: \"a", CN_EINVAL, "line 1, column 8: a literal without its closing"},
    {"start: /a", CN_EINVAL, "line 1, column 8: a regular expression without its closing"},
    {"start: /a/x", CN_EUNSUPP, "line 1, column 11: the flag x"},
    {"start: /(a)\\1/", CN_EUNSUPP, "line 1, column 8: "},
    {"start: /a(/", CN_EINVAL, "line 1, column 8: "},
    {"start: (\"a\"", CN_EINVAL, "line 1, column 12: expected `)`"},
    {"start: [\"a\")", CN_EINVAL, "line 1, column 12: expected `]`"},
    {"start: \"a\")", CN_EINVAL, "line 1, column 11: expected the end of the line"},
    {"start: \"a\" ->", CN_EINVAL, "expected a name after `->`"},
    {"start: \"ab\"..\"c\"", CN_EINVAL, "line 1, column 8: a range is"},
    {"start: \"c\"..\"a\"", CN_EINVAL, "line 1, column 8: a range is"},
    {"start: \"a\"..b", CN_EINVAL, "expected a character in quotes"},
    {"start: \"a\"~3..2", CN_EINVAL, "at least 3 and at most 2"},
    {"start: \"a\"{2", CN_EINVAL, "expected `}`"},
    {"start: Abc", CN_EINVAL, "line 1, column 8: a name in both cases"},
    {"start: A\nA: \"a\" A | \"b\"", CN_EINVAL,
     "line 2, column 1: the terminal A refers to itself"},
    {"start: A\nA: B | \"a\"\nB: A", CN_EINVAL, "refers to itself"},
    {"start: A\nA: x\nx: \"a\"", CN_EINVAL, "line 2, column 4: the rule x within a terminal"},
    {"start: \"a\" & \"b\"", CN_EUNSUPP, "`&` outside of a terminal"},
    {"start: ~\"a\"", CN_EUNSUPP, "`~` outside of a terminal"},
    {"start: x{\"a\"}\nx{y}: y", CN_EUNSUPP, "line 1, column 8: templates, such as x{..}"},
    {"x{y}: y\nstart: \"a\"", CN_EUNSUPP, "line 1, column 1: templates"},
    {"start: x::incr(1)", CN_EUNSUPP, "line 1, column 8: rules with a parameter"},
    {"start[lazy]: \"a\"", CN_EUNSUPP, "line 1, column 7: the attribute lazy"},
    {"start[suffix=\"b\"]: \"a\"", CN_EUNSUPP, "the attribute suffix"},
    {"start[capture, stop=\"b\"]: \"a\"", CN_EUNSUPP, "line 1, column 16: the attribute stop"},
    {"start[max_tokens=3]: \"a\"", CN_EUNSUPP, "the attribute max_tokens"},
    {"start[other]: \"a\"", CN_EINVAL, "expected an attribute"},
    {"%declare A\nstart: A", CN_EUNSUPP, "line 1, column 1: %declare"},
    {"%override start: \"a\"", CN_EUNSUPP, "%override"},
    {"%extend start: \"a\"", CN_EUNSUPP, "%extend"},
    {"%other", CN_EINVAL, "line 1, column 1: expected %ignore, %import"},
    {"%import python.NAME", CN_EUNSUPP, "line 1, column 9: only %import common"},
    {"%import common.OTHER", CN_EINVAL, "common has no terminal OTHER"},
    {"%import common", CN_EINVAL, "expected `.NAME`"},
    {"%llguidance {\"ignore_once\": true}\nstart: \"a\"", CN_EUNSUPP, "the option ignore_once"},
    {"start: %regex {\"substring_chars\": \"a\"}", CN_EUNSUPP, "%regex"},
    {"start: %lark { start: \"a\" }", CN_EUNSUPP, "%lark"},
    {"start: @other", CN_EUNSUPP, "references to other grammars"},
    {"start: %json {\"type\":}", CN_EINVAL,
     "line 1, column 23: the schema of %json is not valid JSON"},
    {"start: %json {\"type\":\"strin\"}", CN_EINVAL, "line 1, column 8: the schema of %json"},
    {"start: A\nA: %json {}", CN_EUNSUPP, "%json within a terminal"},
    {"start: <think>", CN_EUNSUPP, "the token <think> by its text"},
    {"start: <[*]>", CN_EUNSUPP, "any one token"},
    {"start: <[^1,2]>", CN_EUNSUPP, "any one token but some"},
    {"start: <[3-1]>", CN_EINVAL, "runs backwards"},
    {"start: \"a\" start", CN_EINVAL, "nothing satisfies it"},
    {"start: A\nA: \"a\" & \"b\"", CN_EINVAL, "nothing satisfies it"},
};

static void test_errors(void **state)
{
    (void)state;
    for (size_t i = 0; i < CN_ARRAY_LEN(bad); i++)
        check_bad(ENG_GRAMMAR_LARK, bad[i].grammar, strlen(bad[i].grammar), bad[i].code,
                  bad[i].message);
}

static void repeat(struct cn_buf *b, const char *s, size_t n)
{
    while (n--)
        cn_buf_puts(b, s);
}

static void test_limits(void **state)
{
    (void)state;
    struct cn_buf b;
    cn_buf_init(&b, 0);
    cn_buf_puts(&b, "start: ");
    repeat(&b, "\"a\" ", (1 << 20) / 4);
    check_bad(ENG_GRAMMAR_LARK, b.data, b.len, CN_ELIMIT, "bytes (at most 1048576)");
    cn_buf_reset(&b);
    cn_buf_puts(&b, "start: ");
    repeat(&b, "[", 201);
    check_bad(ENG_GRAMMAR_LARK, b.data, b.len, CN_ELIMIT, "line 1, column 208: more than 200");
    cn_buf_reset(&b);
    for (unsigned i = 0; i < 10001; i++)
        cn_buf_printf(&b, "R%u: \"a\"\n", i);
    check_bad(ENG_GRAMMAR_LARK, b.data, b.len, CN_ELIMIT, "more than 10000 rules");
    cn_buf_reset(&b); /* terminals must be expressions: one of 2^60 letters would be too long */
    cn_buf_puts(&b, "start: R60\nR0: \"a\"\n");
    for (unsigned i = 1; i <= 60; i++)
        cn_buf_printf(&b, "R%u: R%u \"b\" R%u\n", i, i - 1, i - 1);
    check_bad(ENG_GRAMMAR_LARK, b.data, b.len, CN_ELIMIT, "too large or too complex");
    cn_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_language),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
