/* GBNF: what llama.cpp's guide says of it, grammars of the kinds that are published with it,
 * errors, limits, and which grammars become one lexeme. */
#include "tests/text/grammar_cases.h"

/* ---- grammars of the kinds that llama.cpp publishes -------------------------------------------
 */

static const struct grammar_case whole[] = {
    /* arithmetic */
    {"root  ::= (expr \"=\" ws term \"\\n\")+\n"
     "expr  ::= term ([-+*/] term)*\n"
     "term  ::= ident | num | \"(\" ws expr \")\" ws\n"
     "ident ::= [a-z] [a-z0-9_]* ws\n"
     "num   ::= [0-9]+ ws\n"
     "ws    ::= [ \\t\\n]*\n",
     {"1=1\n", "x +y = 3\n", "(1 +(2)*x_1)= a\n", "1=1\n2=2\n", "a=b\n\n\nc=d\n"},
     {"", "1=1", "1+=2\n", "(1=1\n", "1 + 2=3\n=", "X=1\n", "1=1\n+"}},
    /* JSON, with white space by recursion */
    {"root   ::= object\n"
     "value  ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"
     "object ::= \"{\" ws ( string \":\" ws value (\",\" ws string \":\" ws value)* )? \"}\" ws\n"
     "array  ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n"
     "string ::= \"\\\"\" ( [^\"\\\\\\x7F\\x00-\\x1F] |\n"
     "             \"\\\\\" ([\"\\\\/bfnrt] | \"u\" [0-9a-fA-F]{4}) )* \"\\\"\" ws\n"
     "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9]{1,15})? "
     "ws\n"
     "ws ::= ([ \\t\\n] ws)?\n",
     {"{}", "{ \"a\" : 1 }",
      "{\"a\":[1,-2.5e+3,true,null,{\"b\":[]}],\"c\":\"\\u00e9\\n\xc3\xa9\"}\n",
      "{\"a\":[[[[[[]]]]]]}"},
     {"[]", "{\"a\"}", "{\"a\":01}", "{\"a\":1,}", "{\"a\":\"\x01\"}", "{\"a\":\"\\x\"}", "{",
      "{}}", "{\"a\":12345678901234567}"}},
    /* a list */
    {"root ::= item+\n"
     "# Excludes various line break characters\n"
     "item ::= \"- \" [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ \"\\n\"\n",
     {"- a\n", "- one thing\n- \xe2\x80\xa7 another\n"},
     {"", "- \n", "- a", "a\n", "- a\xe2\x80\xa8 b\n", "- a\xc2\x85\n"}},
    /* chess moves */
    {"root ::= (\n"
     "    # the first move of each\n"
     "    \"1. \" move \" \" move \"\\n\"\n"
     "    # and all others\n"
     "    ([1-9] [0-9]? \". \" move \" \" move \"\\n\")+\n"
     ")\n"
     "move ::= (pawn | nonpawn | castle) [+#]?\n"
     "nonpawn ::= [NBKQR] [a-h]? [1-8]? \"x\"? [a-h] [1-8]\n"
     "pawn ::= ([a-h] \"x\")? [a-h] [1-8] (\"=\" [NBKQR])?\n"
     "castle ::= \"O-O\" \"-O\"?\n",
     {"1. e4 e5\n2. Nf3 Nc6\n", "1. d4 d5\n2. O-O O-O-O\n10. exd8=Q+ Rfxe1#\n"},
     {"1. e4 e5\n", "1. e4 e9\n2. Nf3 Nc6\n", "1. e4 e5\n2. Nf3 Nc6", "0. e4 e5\n2. a3 a6\n"}},
    /* a piece of C */
    {"root ::= (declaration)*\n"
     "declaration ::= type identifier \"(\" parameter? \")\" \"{\" statement* \"}\"\n"
     "type ::= \"int\" ws | \"float\" ws | \"char\" ws\n"
     "identifier ::= [a-zA-Z_] [a-zA-Z_0-9]*\n"
     "parameter ::= type identifier\n"
     "statement ::=\n"
     "    ( type identifier ws \"=\" ws expression \";\" ) |\n"
     "    ( identifier ws \"=\" ws expression \";\" ) |\n"
     "    ( \"return\" ws expression \";\" ) |\n"
     "    ( \"while\" \"(\" condition \")\" \"{\" statement* \"}\" ) |\n"
     "    ( \"if\" \"(\" condition \")\" \"{\" statement* \"}\" (\"else\" \"{\" statement* \"}\")? "
     ")\n"
     "condition ::= expression relation expression\n"
     "relation ::= (\"<=\" | \"<\" | \"==\" | \"!=\" | \">=\" | \">\")\n"
     "expression ::= term ((\"+\" | \"-\") term)*\n"
     "term ::= factor ((\"*\" | \"/\") factor)*\n"
     "factor ::= identifier | number | \"-\" factor | identifier \"(\" (expression (\",\" ws "
     "expression)*)? \")\" | \"(\" expression \")\"\n"
     "number ::= [0-9]+\n"
     "ws ::= ([ \\t\\n]+)\n",
     {"", "int f(){}", "int f(int x){return x*(2+-y);}int g(){int a = f(1, 2);a = a-1;}",
      "char c(){while(a<=b){if(a==1){return 1;}else{return f();}}}"},
     {"int f(", "int f(){x}", "int f(){return;}", "double f(){}", "int f(){if(a){}}"}},
};

/* ---- the language ---------------------------------------------------------------------------- */

static const struct grammar_case parts[] = {
    {"root ::= \"a\"", {"a"}, {"", "b", "aa"}},
    {"root::=\"\"", {""}, {"a"}},
    {"root ::=", {""}, {"a"}},
    {"root ::= | \"a\" |", {"", "a"}, {"aa"}},
    {"root ::= \"\\n\\t\\r\\\\\\\"\\x41\\u00e9\\U0001F600\\[\\]\"",
     {"\n\t\r\\\"A\xc3\xa9\xf0\x9f\x98\x80[]"},
     {"\n\t\r\\\"A\xe9\xf0\x9f\x98\x80[]"}},
    {"root ::= \"\\xe9\" \"\\ud83d\\ude00\"",
     {"\xc3\xa9\xf0\x9f\x98\x80"},
     {"\xe9\xf0\x9f\x98\x80"}},
    {"root ::= [a-cx\\-\\]]+", {"abcx", "-]"}, {"", "d", "[", "\\"}},
    {"root ::= [+-] [a-]", {"+a", "--"}, {"+b", ",a"}},
    {"root ::= [^a-c\\n]",
     {"d", "\xc3\xa9", "\xf0\x9f\x98\x80", " "},
     {"a", "\n", "", "\xe9", "\xff"}},
    {"root ::= [^]", {"a", "\n", "\xf4\x8f\xbf\xbf"}, {"", "\xed\xa0\x80", "\xc0\x80", "ab"}},
    {"root ::= .", {"a", "\n", "\xe2\x82\xac"}, {"", "ab", "\x80", "\xff"}},
    {"root ::= [\xc3\xa9-\xc3\xab\xe3\x81\x81-\xe3\x82\x9f]",
     {"\xc3\xaa", "\xe3\x81\x82"},
     {"\xc3\xac", "e"}},
    {"root ::= [\\d\\-] [\\w] [\\S] [^\\s\\D]", {"1_x1", "-aa0"}, {"a_x1", "1- 1", "1_ 1", "1_x "}},
    {"root ::= \"a\"* \"b\"+ \"c\"?", {"b", "aab", "bbc"}, {"", "a", "bcc"}},
    {"root ::= \"a\"{2} \"b\"{1,} \"c\"{0,2} \"d\"{ 1 , 2 }",
     {"aabd", "aabbccdd"},
     {"abd", "aad", "aabcccd", "aabddd"}},
    {"root ::= \"ab\"{2}", {"abab"}, {"abb", "ab"}},
    {"root ::= \"a\"{0} \"b\"{0,0}", {""}, {"a", "b"}},
    {"root ::= (\"a\" | \"b\" \"c\")? (\"d\")", {"d", "ad", "bcd"}, {"acd", "bd"}},
    {"root ::= \"a\"+? \"b\"{2}{2}", {"bbbb", "aabbbb"}, {"bb"}},
    {"# first\n\n\nroot ::= a # the rest\n# more\na ::= \"#\" # x\n#end", {"#"}, {""}},
    {"root ::= (\"a\" # within\n  \"b\"\n | # or\n\n \"c\"\n)\n", {"ab", "c"}, {"a", "abc"}},
    {"root ::= \"a\" |\n  \"b\" |\n\n# x\n \"c\"", {"a", "b", "c"}, {"ab"}},
    {"root ::=\n  \"a\"\r\nx ::= \"b\"\r\n", {"a"}, {"b"}},
    {"root ::= check-mate dataType_1 A 1\ncheck-mate ::= \"a\"\ndataType_1 ::= \"b\"\nA ::= "
     "\"c\"\n1 ::= \"d\"",
     {"abcd"},
     {"abc"}},
    /* XGrammar: a sequence may continue on the next line */
    {"root ::= \"a\"\n  \"b\"\n  | x\nx ::= \"c\"\n\n \"d\"\n", {"ab", "cd"}, {"a", "abcd"}},
    {"root ::= \"a\"\n  *", {"", "aaa"}, {"b"}},
    /* recursion at one end is no recursion */
    {"root ::= \"a\" root | \"b\"", {"b", "aab"}, {"", "a", "ba"}},
    {"root ::= root \"a\" | \"b\" | root", {"b", "baa"}, {"", "ab"}},
    {"root ::= \"a\" x | \"\"\nx ::= \"b\" root | \"c\" x",
     {"", "ab", "accbab"},
     {"a", "b", "abb"}},
    {"root ::= (\"a\" (root \"b\")?)", {"a", "aab", "aaabb"}, {"", "ab", "aabb"}},
    {"root ::= \"(\" root \")\" | root root | \"\"", {"", "()", "(())()"}, {"(", ")(", "())"}},
    {"root ::= a\na ::= b\nb ::= a | \"x\" a \"y\" | \"z\"", {"z", "xzy", "xxzyy"}, {"xz", ""}},
    {"root ::= e\ne ::= ws e ws \"+\" ws t | t\nt ::= t \"*\" f | f\nf ::= \"(\" e \")\" | "
     "[0-9]+\nws ::= \" \"*",
     {"1", "1+2*3", "  1 + 2*(3 +4)+5"},
     {"1+", "1*+2", "1 2"}},
    {"root ::= (\"a\" root \"b\"){0,3} | \"x\"",
     {"", "x", "ab", "ababab", "aababb", "axb"},
     {"abababab", "xx"}},
    {"root ::= (\"a\" root \"b\"){2,} | \"x\"", {"x", "axbaxb", "axbaxbaxb"}, {"", "axb"}},
    {"root ::= (\"a\" root? \"b\"){2,3}", {"abab", "ababab", "aababbab"}, {"", "ab", "abababab"}},
    {"root ::= (root | \"(\" root \")\")* \".\"?", {"", ".", "((.).).", "()()"}, {")", "(."}},
    {"root ::= x y\nx ::= \"a\" x \"b\" |\ny ::= \"c\" y \"d\" |",
     {"", "ab", "cd", "aabbccdd"},
     {"aab", "cdab"}},
    /* the same several times over */
    {"root ::= \"a\"? \"a\"? \"a\"? \"b\" \"b\" (\"c\"{1,2} \"c\"{1,2})",
     {"bbcc", "aaabbcccc"},
     {"aaaabbcc", "bbc", "bcc", "bbccccc"}},
    {"root ::= \"a\"* \"a\"* \"a\"+ \"a\"+ root? \"b\" \"b\"",
     {"aabb", "aaaaabbbb"},
     {"abb", "aab", "aabbbb", "aaaabbb"}},
    /* tokens by their id */
    {"root ::= \"a\" <[16843010]> \"b\"",
     {"a\xff\x01\x01\x01\x02"
      "b"},
     {"ab", "a\xff\x01\x01\x01\x03"
            "b"}},
    {"root ::= !<[16843010]>+ <[16843010]>", {"a\xff\x01\x01\x01\x02"}, {"ab"}},
    {"unused ::= \"x\" unused \"y\"\nroot ::= \"a\"", {"a"}, {"x"}},
};

static void test_language(void **state)
{
    (void)state;
    for (size_t i = 0; i < CN_ARRAY_LEN(whole); i++)
        check_case(ENG_GRAMMAR_GBNF, &whole[i], NULL);
    for (size_t i = 0; i < CN_ARRAY_LEN(parts); i++)
        check_case(ENG_GRAMMAR_GBNF, &parts[i], NULL);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static struct eng_vocab *small_vocab(void)
{
    static const struct eng_str tokens[] = {{"a", 1},       {"b", 1},        {"c", 1},
                                            {"<think>", 7}, {"</think>", 8}, {"<mark>", 6},
                                            {"<other>", 7}};
    static const int32_t types[] = {ENG_TOKEN_NORMAL,  ENG_TOKEN_NORMAL,  ENG_TOKEN_NORMAL,
                                    ENG_TOKEN_CONTROL, ENG_TOKEN_CONTROL, ENG_TOKEN_USER,
                                    ENG_TOKEN_CONTROL};
    struct eng_vocab_spec s = {.model = "gpt2",
                               .pre = "default",
                               .n_tokens = CN_ARRAY_LEN(tokens),
                               .tokens = tokens,
                               .types = types,
                               .bos = -1,
                               .eos = -1,
                               .eot = -1,
                               .eom = -1,
                               .unk = -1,
                               .sep = -1,
                               .pad = -1,
                               .fim_pre = -1,
                               .fim_suf = -1,
                               .fim_mid = -1,
                               .fim_pad = -1,
                               .fim_rep = -1,
                               .fim_sep = -1,
                               .add_bos = -1,
                               .add_eos = -1,
                               .add_space_prefix = -1,
                               .lowercase = -1};
    struct eng_vocab *v = NULL;
    struct cn_error err = {0};
    if (eng_vocab_new(&s, &v, &err)) fail_msg("%s", err.message);
    return v;
}

/* A text, @3 and so on for the control token of that id. */
static bool has(const struct eng_grammar *g, const char *text)
{
    struct cn_buf b;
    bool is;
    cn_buf_init(&b, 0);
    for (const char *p = text; *p; p++) {
        if (*p == '@') {
            const char mark[5] = {(char)0xFF, 0, 0, 0, (char)(*++p - '0')};
            assert_int_equal(cn_buf_append(&b, mark, sizeof mark), 0);
        } else {
            assert_int_equal(cn_buf_putc(&b, *p), 0);
        }
    }
    taken(g, b.data ? b.data : "", b.len, &is);
    cn_buf_fini(&b);
    return is;
}

static void test_tokens(void **state)
{
    (void)state;
    static const struct grammar_case cases[] = {
        {"root ::= <think> [a-z]+ </think>", {"@3ab@4"}, {"<think>ab</think>", "ab@4", "@3ab@3"}},
        {"root ::= <[3]> \"a\"", {"@3a"}, {"a", "@4a"}},
        {"root ::= <[0]> <mark>", {"a<mark>"}, {"@0<mark>", "a@5"}}, /* ordinary ones: their text */
        {"root ::= !</think>* </think> \"a\"",
         {"@4a", "bc@4a", "b@3\xc3\xa9@6@4a", "</think>@4a"},
         {"@4@4a", "@4"}},
        {"root ::= !<think>+ \"b\"",
         {"ab", "@4b", "bb"},
         {"b", "@3b",
          "\x80"
          "b"}},
        {"root ::= <think>+ (!</think>)* </think> (<[6]> (!<[6]>)+ <[6]>)*",
         {"@3@4", "@3@3ab@4@6a@6@6@3@6"},
         {"@3@4@6@6", "@4", "@3ab@6"}},
        {"root ::= !<mark>* <mark>",
         {"<mark>", "<mar<mark>", "@3a<mark>"},
         {"<mark><mark>", "<mark>a"}},
        {"root ::= ((!<[3]>)* <[3]>){2}", {"@3@3", "a@4@3b@3"}, {"@3", "@3@3@3"}},
    };
    struct eng_vocab *v = small_vocab();
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++) {
        const struct grammar_case *c = &cases[i];
        struct eng_grammar *g = compiled(ENG_GRAMMAR_GBNF, c->grammar, strlen(c->grammar), v);
        for (size_t k = 0; c->in[k]; k++)
            if (!has(g, c->in[k])) fail_msg("%s\ndoes not have %s", c->grammar, c->in[k]);
        for (size_t k = 0; c->out[k]; k++)
            if (has(g, c->out[k])) fail_msg("%s\nhas %s", c->grammar, c->out[k]);
        eng_grammar_unref(g);
    }
    struct eng_grammar_in in = {.kind = ENG_GRAMMAR_GBNF, .vocab = v};
    struct eng_grammar *g = NULL;
    struct cn_error err = {0};
    in.text = "root ::= <none>";
    in.n = strlen(in.text);
    assert_int_equal(eng_grammar_compile(&in, &g, &err), CN_EINVAL);
    assert_non_null(strstr(err.message, "line 1, column 10: the vocabulary has no token <none>"));
    in.text = "root ::= <[7]>";
    in.n = strlen(in.text);
    assert_int_equal(eng_grammar_compile(&in, &g, &err), CN_EINVAL);
    assert_non_null(strstr(err.message, "there is no token 7"));
    eng_vocab_free(v);
}

/* ---- what becomes one lexeme ----------------------------------------------------------------- */

static void test_shapes(void **state)
{
    (void)state;
    static const char *const regular[] = {
        "root ::= \"a\" x* (y | [0-9]{3,9})\nx ::= y | \"b\" y+\ny ::= [a-z] | \"-\"",
        "root ::= ws \"a\" ws\nws ::= ([ \\t] ws)?",
        "root ::= list\nlist ::= item | list \",\" item\nitem ::= [a-z] item | [a-z]",
        "root ::= \"a\" x | \"b\"\nx ::= \"c\" root | \"d\" y\ny ::= x | \"e\" root | \"f\"",
        "root ::= root \"a\" | x \"b\" |\nx ::= root \"c\" | x \"d\"",
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(regular); i++) {
        struct eng_grammar *g = compiled(ENG_GRAMMAR_GBNF, regular[i], strlen(regular[i]), NULL);
        if (g->ir.root.kind != ENG_SYM_LEXEME) fail_msg("not one lexeme:\n%s", regular[i]);
        assert_int_equal(g->ir.n_rules, 0);
        eng_grammar_unref(g);
    }
    /* tails of a bounded repetition are shared: rules in proportion to the bound, not more */
    const char *bounded = "root ::= (\"(\" root \")\"){0,1000} {0,1000}";
    struct eng_grammar *g = compiled(ENG_GRAMMAR_GBNF, bounded, strlen(bounded), NULL);
    assert_in_range(g->ir.n_rules, 2, 2100);
    eng_grammar_unref(g);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static const struct bad_case bad[] = {
    {"", CN_EINVAL, "there is no rule root"},
    {"a ::= \"x\"", CN_EINVAL, "there is no rule root"},
    {"root ::= a", CN_EINVAL, "line 1, column 10: a is not defined"},
    {"root ::= \"\xc3\xa9\xc3\xa9\" a", CN_EINVAL, "line 1, column 15: a is not defined"},
    {"root ::= \"a\"\n\nroot ::= \"b\"", CN_EINVAL,
     "line 3, column 1: the rule root is defined twice"},
    {"root = \"a\"", CN_EINVAL, "line 1, column 6: expected `::=`"},
    {"root ::= \"a", CN_EINVAL, "line 1, column 10: a literal without its closing"},
    {"root ::= [a", CN_EINVAL, "line 1, column 10: a class without its closing"},
    {"root ::= []", CN_EINVAL, "line 1, column 10: a class without any character"},
    {"root ::= [z-a]", CN_EINVAL, "line 1, column 11: a range that runs backwards"},
    {"root ::= (\"a\"", CN_EINVAL, "line 1, column 14: expected `)`"},
    {"root ::= \"a\")", CN_EINVAL, "line 1, column 13: expected the name of a rule"},
    {"root ::= *", CN_EINVAL, "line 1, column 10: expected the name of a rule"},
    {"root ::= \"a\"{", CN_EINVAL, "line 1, column 14: expected a number"},
    {"root ::= \"a\"{,2}", CN_EINVAL, "line 1, column 14: expected a number"},
    {"root ::= \"a\"{2", CN_EINVAL, "line 1, column 15: expected `}`"},
    {"root ::= \"a\"{3,2}", CN_EINVAL, "at least 3 and at most 2"},
    {"root ::= \"a\"{99999999999}", CN_ELIMIT, "line 1, column 14: the number is too large"},
    {"root ::= \"\\q\"", CN_EINVAL, "line 1, column 11: unknown escape"},
    {"root ::= \"\\x4\"", CN_EINVAL, "line 1, column 14: expected 2 hexadecimal digits"},
    {"root ::= \"\\ud800\"", CN_EINVAL, "line 1, column 11: not a character"},
    {"root ::= \"\\ud800\\u0041\"", CN_EINVAL, "line 1, column 11: half of a surrogate pair"},
    {"root ::= \"\\U00110000\"", CN_EINVAL, "line 1, column 11: not a character"},
    {"root ::= \"\\", CN_EINVAL, "unknown escape"},
    {"root ::= $", CN_EINVAL, "line 1, column 10: expected"},
    {"root ::= \"\xff\"", CN_EINVAL, "line 1, column 11: not valid UTF-8"},
    {"root ::= <think>", CN_EUNSUPP, "line 1, column 10: the token <think> by its text"},
    {"root ::= <[1>", CN_EINVAL, "line 1, column 13: expected `]>`"},
    {"root ::= <a b>", CN_EINVAL, "line 1, column 10: expected a token"},
    {"root ::= !<[1]>", CN_EUNSUPP, "line 1, column 10: any one token but some"},
    {"root ::= (\"a\" | !<[1]>)*", CN_EUNSUPP, "line 1, column 17: any one token but some"},
    {"root ::= !<[1]>{3}", CN_EUNSUPP, "line 1, column 10: any one token but some"},
    {"root ::= \"a\" (= \"b\")", CN_EUNSUPP, "line 1, column 14: look-ahead"},
    {"root ::= TagDispatch(\"a\")", CN_EUNSUPP,
     "line 1, column 10: functions, such as TagDispatch()"},
    {"root ::= \"a\" root", CN_EINVAL, "nothing satisfies it"},
    {"root ::= \"a\" x \"b\"\nx ::= \"(\" x \")\"", CN_EINVAL, "nothing satisfies it"},
    {"root ::= (\"(\" root \")\" | \"a\"){10001}", CN_ELIMIT, "more than 10000 repetitions"},
};

static void test_errors(void **state)
{
    (void)state;
    for (size_t i = 0; i < CN_ARRAY_LEN(bad); i++)
        check_bad(ENG_GRAMMAR_GBNF, bad[i].grammar, strlen(bad[i].grammar), bad[i].code,
                  bad[i].message);
    check_bad(ENG_GRAMMAR_GBNF, "root ::= \"a\" \0", 14, CN_EINVAL, "line 1, column 14: expected");
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void repeat(struct cn_buf *b, const char *s, size_t n)
{
    while (n--)
        cn_buf_puts(b, s);
}

static bool never(void *arg)
{
    ++*(unsigned *)arg;
    return false;
}

static void test_limits(void **state)
{
    (void)state;
    struct cn_buf b;
    cn_buf_init(&b, 0);
    cn_buf_puts(&b, "root ::= ");
    repeat(&b, "\"a\" ", (1 << 20) / 4);
    check_bad(ENG_GRAMMAR_GBNF, b.data, b.len, CN_ELIMIT, "bytes (at most 1048576)");
    cn_buf_reset(&b);
    cn_buf_puts(&b, "root ::= ");
    repeat(&b, "(", 201);
    check_bad(ENG_GRAMMAR_GBNF, b.data, b.len, CN_ELIMIT,
              "line 1, column 210: more than 200 parentheses");
    cn_buf_reset(&b);
    cn_buf_puts(&b, "root ::= \"a\"");
    repeat(&b, "*", 500000);
    check_bad(ENG_GRAMMAR_GBNF, b.data, b.len, CN_ELIMIT, "more than 200 parentheses");
    cn_buf_reset(&b);
    for (unsigned i = 0; i < 10001; i++)
        cn_buf_printf(&b, "r%u ::= \"a\"\n", i);
    check_bad(ENG_GRAMMAR_GBNF, b.data, b.len, CN_ELIMIT,
              "line 10001, column 1: more than 10000 rules");
    cn_buf_reset(&b); /* llama.cpp's guide warns of this one */
    cn_buf_puts(&b, "root ::= ");
    repeat(&b, "[a-z]? ", 20000);
    struct eng_grammar *g = compiled(ENG_GRAMMAR_GBNF, b.data, b.len, NULL);
    assert_in_range(g->ir.rx.n_nodes, 1, 20);
    eng_grammar_unref(g);
    cn_buf_reset(&b); /* rules that double each other: no expression of 2^26 letters */
    cn_buf_puts(&b, "root ::= r26\nr0 ::= \"a\"\n");
    for (unsigned i = 1; i <= 26; i++)
        cn_buf_printf(&b, "r%u ::= r%u \"b\" r%u\n", i, i - 1, i - 1);
    g = compiled(ENG_GRAMMAR_GBNF, b.data, b.len, NULL);
    bool all;
    assert_int_equal(taken(g, "ababb", 5, &all), 4);
    eng_grammar_unref(g);
    cn_buf_reset(&b); /* each text has 2^40 letters at least */
    cn_buf_puts(&b, "root ::= r40\nr0 ::= \"a\"\n");
    for (unsigned i = 1; i <= 40; i++)
        cn_buf_printf(&b, "r%u ::= r%u r%u\n", i, i - 1, i - 1);
    check_bad(ENG_GRAMMAR_GBNF, b.data, b.len, CN_EINVAL, "nothing satisfies it");
    cn_buf_reset(&b); /* a chain of references as long as it can be */
    cn_buf_puts(&b, "root ::= r0 | \"[\" root \"]\"\n");
    for (unsigned i = 0; i < 9998; i++)
        cn_buf_printf(&b, "r%u ::= \"a\" r%u \"c\" | \"b\"\n", i, i + 1);
    cn_buf_puts(&b, "r9998 ::= \"x\"\n");
    g = compiled(ENG_GRAMMAR_GBNF, b.data, b.len, NULL);
    assert_int_equal(taken(g, "[aaabccc]]", 10, &all), 9);
    eng_grammar_unref(g);
    unsigned asked = 0;
    struct eng_grammar_in in = {
        .kind = ENG_GRAMMAR_GBNF, .text = b.data, .n = b.len, .keep_going = never, .arg = &asked};
    struct cn_error err = {0};
    assert_int_equal(eng_grammar_compile(&in, &g, &err), CN_ECANCELLED);
    assert_int_equal(asked, 1);
    cn_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_language), cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_shapes),   cmocka_unit_test(test_errors),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
