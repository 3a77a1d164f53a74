/* Calls that the oracle has no replies for: forms whose templates are not in it, marks that are
 * partly tokens, what models get wrong, and what is not a call. Each case is fed whole, byte by
 * byte and cut in every place. */
#include "reply_rows.h"

static void check(const char *source, const char *form, const char *tokens, const struct row *rows,
                  size_t n)
{
    struct eng_vocab *v = make_vocab(tokens);
    struct eng_tools *tools = make_tools(tools_json);
    struct setting s = {.v = v,
                        .format = eng_reply_format(v, (struct eng_str){source, strlen(source)}),
                        .tools = tools};
    assert_string_equal(eng_reply_form(&s.format), form);
    check_in(&s, rows, n);
    eng_tools_free(tools);
    eng_vocab_free(v);
}
#define CHECK(source, form, tokens, rows) check(source, form, tokens, rows, CN_ARRAY_LEN(rows))

/* ---- forms without a template in the oracle -------------------------------------------------- */

static void test_dsml_token(void **state)
{
    /* Only ｜DSML｜ is a token; the rest of a mark is text. */
    static const struct row rows[] = {
        {"Hm.\n\n<{｜DSML｜}tool_calls>\n<{｜DSML｜}invoke name=\"f\">\n<{｜DSML｜}parameter "
         "name=\"s\" string=\"true\">a </｜DSML｜parameter> 2>&1</{｜DSML｜}parameter>\n"
         "<{｜DSML｜}parameter name=\"n\" string=\"false\">2</{｜DSML｜}parameter>\n"
         "</{｜DSML｜}invoke>\n</{｜DSML｜}tool_calls>",
         "C[Hm.]T[f]A[{\"s\": \"a </｜DSML｜parameter> 2>&1\", \"n\": 2}]"},
        {"<｜DSML｜tool_calls>", "C[<｜DSML｜tool_calls>]"}, /* its text is text */
        {"a < b <{｜DSML｜}x", "C[a < b <｜DSML｜x]"},
    };
    CHECK("｜DSML｜", "dsml4", "｜DSML｜", rows);
    static const struct row old[] = {
        {"<｜DSML｜function_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"n\" "
         "string=\"false\">[1, 'a']</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>",
         "T[f]A[{\"n\": [1, \"a\"]}]"},
    };
    CHECK("｜DSML｜ function_calls", "dsml32", "", old);
}

static void test_kimi_k3(void **state)
{
    static const struct row rows[] = {
        {"{<|open|>}think{<|sep|>}Hm.{<|close|>}think{<|sep|>}{<|open|>}response{<|sep|>}Look."
         "{<|close|>}response{<|sep|>}{<|open|>}tools{<|sep|>}{<|open|>}call tool=\"f\" "
         "index=\"1\"{<|sep|>}{<|open|>}argument key=\"s\" type=\"string\"{<|sep|>}<b>"
         "{<|close|>}argument{<|sep|>}{<|open|>}argument key=\"a&amp;b\" type=\"number\"{<|sep|>}2"
         "{<|close|>}argument{<|sep|>}{<|close|>}call{<|sep|>}{<|open|>}call tool=\"g\" index=\"2\""
         "{<|sep|>}{<|close|>}call{<|sep|>}{<|close|>}tools{<|sep|>}{<|close|>}message{<|sep|>}",
         "R[Hm.]C[Look.]T[f]A[{\"s\": \"<b>\", \"a&b\": 2}]T[g]A[{}]"},
    };
    CHECK("<|end_of_msg|>", "kimi-k3", "<|open|> <|close|> <|sep|> <|end_of_msg|>", rows);
}

/* GigaChat 3: the newlines may be of the tokens. The mark is also the one that ends a turn. */
static void test_gigachat(void **state)
{
    static const struct row rows[] = {
        {"Look.{<|message_sep|>}\n\nfunction call{<|role_sep|>}\n{\"name\": \"f\", \"arguments\": "
         "{\"n\":1}}{<|message_sep|>}\n\n",
         "C[Look.]T[f]A[{\"n\":1}]"},
        {"function call{<|role_sep|>}\n{\"name\": \"f\", \"arguments\": {}}", "T[f]A[{}]"},
        {"Hi.{<|message_sep|>}\n\n", "C[Hi.]"},
        {"A function call: none", "C[A function call: none]"},
    };
    static const struct row merged[] = {
        {"Look.{<|message_sep|>\n\n}function call{<|role_sep|>\n}{\"name\": \"f\", \"arguments\": "
         "{\"n\":1}}{<|message_sep|>\n\n}",
         "C[Look.]T[f]A[{\"n\":1}]"},
        {"Hi.{<|message_sep|>\n\n}", "C[Hi.]"},
    };
    CHECK("<|message_sep|> function call", "gigachat3", "<|message_sep|> <|role_sep|>", rows);
    CHECK("<|message_sep|> function call", "gigachat3", "<|message_sep|>\n\n <|role_sep|>\n",
          merged);
}

static void test_json_forms(void **state)
{
    static const char call[] = "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"n\":1}}]";
    char both[256];
    snprintf(both, sizeof both, "%s<|/tool_call|>", call);
    const struct row phi[] = {{both, "T[f]A[{\"n\":1}]"},
                              {"functools[{\"name\": \"f\", \"arguments\": {}}]", "T[f]A[{}]"},
                              {"import functools\nx", "C[import functools\nx]"}};
    CHECK("<|tool_call|><|/tool_call|>", "phi4", "", phi);
    static const struct row intern[] = {
        {"Ok\n{<|action_start|>} {<|plugin|>}\n{\"name\": \"f\", \"parameters\": "
         "{}}\n{<|action_end|>}",
         "C[Ok]T[f]A[{}]"},
        {"{<|action_start|>}{<|plugin|>}{\"name\": \"f\", \"parameters\": {}}", "T[f]A[{}]"},
    };
    CHECK("<|action_start|>", "internlm2", "<|action_start|> <|plugin|> <|action_end|>", intern);
    static const struct row granite[] = {
        {"<function_call>{\"name\": \"f\", \"arguments\": {}}", "T[f]A[{}]"}};
    CHECK("<function_call>", "granite-20b", "", granite);
    static const struct row cohere[] = {
        {"Action: ```json\n[\n    {\n        \"tool_name\": \"f\",\n        \"parameters\": {}\n   "
         " "
         "}\n]```",
         "T[f]A[{}]"},
        {"Action: ```json\n[{\"tool_name\": \"directly-answer\", \"parameters\": {}}]```\nYes.",
         "C[Yes.]"},
    };
    CHECK("directly_answer Action: ```json", "cohere-action", "", cohere);
    static const struct row generic[] = {
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>", "T[f]A[{}]"}};
    CHECK("{{ messages }}", "generic", "", generic);
}

static void test_tagged_forms(void **state)
{
    static const struct row minimax[] = {
        {"A\n<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">x\n</parameter>\n"
         "<parameter name=\"b\">true</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n"
         "</minimax:tool_call>",
         "C[A]T[f]A[{\"s\": \"x\\n\", \"b\": true}]T[g]A[{}]"},
    };
    CHECK("<minimax:tool_call>", "minimax-m2", "", minimax);
    static const struct row step[] = {
        {"<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke "
         "name=\"f\">\n<steptml:parameter name=\"n\">1</steptml:parameter>\n</steptml:invoke>"
         "<｜tool_call_end｜>\n<｜tool_calls_end｜>",
         "T[f]A[{\"n\": 1}]"},
    };
    CHECK("<steptml:invoke", "step3", "", step);
    static const struct row gemma[] = {
        {"<start_function_call>call:f{s:<escape>a, {b}<escape>,l:[<escape>x<escape>]}"
         "<end_function_call>",
         "T[f]A[{\"s\":\"a, {b}\",\"l\":[\"x\"]}]"},
    };
    CHECK("<start_function_call>", "functiongemma", "", gemma);
}

/* MiniMax M3: a tag in a text that may be a string or null is text of it. */
static void test_element_forms(void **state)
{
#define NS "{]<]minimax[>[}"
    static const struct row rows[] = {
        {NS "<tool_call>\n" NS "<invoke name=\"f\">" NS "<u>text " NS "<b>x" NS "</u>" NS
            "</invoke>\n" NS "</tool_call>",
         "T[f]A[{\"u\": \"text ]<]minimax[>[<b>x\"}]"},
        {NS "<tool_call>\n" NS "<invoke name=\"f\">" NS "<o>" NS "<k>1" NS "</k>" NS "<l>" NS
            "<item>a" NS "</item>" NS "</l>" NS "</o>" NS "</invoke>",
         "T[f]A[{\"o\": {\"k\": 1, \"l\": [\"a\"]}}]"},
        {NS "<tool_call>\n" NS "<invoke name=\"h\">" NS "<s>x" NS "</s>" NS "</invoke>",
         "C[]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke "
         "name=\"h\">]<]minimax[>[<s>x]<]minimax[>[</s>]<]minimax[>[</invoke>]"},
    };
    CHECK("]<]minimax[>[", "minimax-m3", "]<]minimax[>[", rows);
}

static void test_python_forms(void **state)
{
    static const struct row llama[] = {
        {"[f(s=\"x\", n=1), g()]", "T[f]A[{\"s\": \"x\", \"n\": 1}]T[g]A[{}]"},
        {"<|python_start|>[f(l=['a', \"b\"], o={'k': (1, None)})]<|python_end|>",
         "T[f]A[{\"l\": [\"a\", \"b\"], \"o\": {\"k\": [1, null]}}]"},
        {"[f('x', 2)]", "T[f]A[{\"s\": \"x\", \"n\": 2}]"}, /* by position */
        {"[f(b=False, s='it\\'s')]", "T[f]A[{\"b\": false, \"s\": \"it's\"}]"},
        {"[1, 2, 3]", "C[[1, 2, 3]]"},
        {"[note] that", "C[[note] that]"},
        {"[f(s=)]", "C[[f(s=)]]"},
        {"[h(s=1)] and", "C[[h(s=1)] and]"}, /* not offered */
        {"see [f(n=1)]", "C[see [f(n=1)]]"}, /* in the middle of a text */
    };
    CHECK("[func_name1(", "llama4", "", llama);
    static const struct row olmo[] = {
        {"<function_calls>\nf(n=1)\ng()\n</function_calls>", "T[f]A[{\"n\": 1}]T[g]A[{}]"}};
    CHECK("<function_calls>", "olmo3", "", olmo);
    static const struct row lfm[] = {
        {"<|tool_call_start|>[{\"name\": \"f\", \"arguments\": {\"n\":1}}]<|tool_call_end|>Done.",
         "T[f]A[{\"n\":1}]C[Done.]"},
        {"<|tool_call_start|>[f(s='''a 'b' c''')]<|tool_call_end|>", "T[f]A[{\"s\": \"a 'b' c\"}]"},
    };
    CHECK("<|tool_call_start|>", "lfm2", "", lfm);
    static const struct row built_in[] = {
        {"<|python_tag|>f.call(s=\"x\")", "T[f]A[{\"s\": \"x\"}]"},
        {"<|python_tag|>print(1)", "C[<|python_tag|>print(1)]"},
        {"{\"name\": \"f\"}", "C[{\"name\": \"f\"}]"}, /* without a mark arguments are needed */
        {"[{\"name\": \"f\", \"parameters\": {}}]", "T[f]A[{}]"},
    };
    CHECK("<|eom_id|>", "llama3", "", built_in);
}

/* ---- what models get wrong ------------------------------------------------------------------- */

static void test_json_repairs(void **state)
{
    static const struct row rows[] = {
        {HERMES("{\"name\": \"f\", \"arguments\": {\"s\": \"a\tb\nc\"}}"),
         "T[f]A[{\"s\": \"a\\tb\\nc\"}]"},
        {HERMES("{\"name\": \"f\", \"arguments\": {\"s\": \"\\d+ \\'x\\'\"}}"),
         "T[f]A[{\"s\": \"\\\\d+ 'x'\"}]"},
        {HERMES("{\"name\": \"f\", \"arguments\": {\"b\": True, \"u\": None,}}"),
         "T[f]A[{\"b\": true, \"u\": null}]"},
        {HERMES("{'name': 'f', 'arguments': {}}"),
         "C[" HERMES("{'name': 'f', 'arguments': {}}") "]"},
        {HERMES("{\"name\": \"f\", \"arguments\": {'s': 'say \"hi\"'}}"),
         "T[f]A[{\"s\": \"say \\\"hi\\\"\"}]"},
        {HERMES("{\"name\": \"f\", \"arguments\": {\"s\": \"print(\"x\")\"}}"),
         "T[f]A[{\"s\": \"print(\\\"x\\\")\"}]"},
        {HERMES("{\"name\": \"f\", \"arguments\": {\"n\": .5, \"m\": +3}}"),
         "T[f]A[{\"n\": 0.5, \"m\": 3}]"},
        {HERMES("{\"name\": \"f\", \"arguments\": null}"), "T[f]A[{}]"},
        {HERMES("{\"name\": \"f\"}"), "T[f]A[{}]"},
        {HERMES("{\"name\": \"f\", \"arguments\": \"\"}"), "T[f]A[{}]"},
        {HERMES("{\"name\": \"f\", \"arguments\": \"{\\\"s\\\": \\\"\\\\u00e9\\\\n\\\"}\"}"),
         "T[f]A[{\"s\": \"\\u00e9\\n\"}]"},
        {HERMES("{\"type\": \"function\", \"id\": 7, \"name\": \"f\", \"arguments\": {}, \"x\": "
                "[1]}"),
         "T[f]A[{}]"},
        /* bytes go out as they are: order, spaces, escapes, numbers */
        {HERMES(
             "{\"name\":\"f\",\"arguments\":{ \"b\" :[ ], \"a\":1.50E+2 ,\"\\u0061\":\"\\/\" }}"),
         "T[f]A[{ \"b\" :[ ], \"a\":1.50E+2 ,\"\\u0061\":\"\\/\" }]"},
    };
    CHECK("<tool_call>", "hermes", "", rows);
}

static void test_not_calls(void **state)
{
    static const struct row rows[] = {
        {"a <tool_call> b", "C[a <tool_call> b]"},
        {"x\n\n" HERMES("{\"name\": \"h\", \"arguments\": {\"s\": \"<tool_call>\"}}") " y",
         "C[x\n\n" HERMES("{\"name\": \"h\", \"arguments\": {\"s\": \"<tool_call>\"}}") " y]"},
        {HERMES("{\"name\": \"f\", \"arguments\": [1]}"),
         "C[" HERMES("{\"name\": \"f\", \"arguments\": [1]}") "]"},
        {HERMES("{\"name\": \"f\", \"arguments\": \"none\"}"),
         "C[" HERMES("{\"name\": \"f\", \"arguments\": \"none\"}") "]"},
        {"<tool_call>\n{\"name\": \"f\"", "C[<tool_call>\n{\"name\": \"f\"]"},
        {"<tool_call>", "C[<tool_call>]"},
        {"a \n ", "C[a \n ]"},
        /* after a call that was none, one that is */
        {HERMES("{\"name\": \"h\", \"arguments\": {}}") "\n" HERMES(
             "{\"name\": \"g\", \"arguments\": {}}"),
         "C[" HERMES("{\"name\": \"h\", \"arguments\": {}}") "]T[g]A[{}]"},
        /* nor is what looks like a call inside it */
        {HERMES("{\"name\": \"h\", \"arguments\": {\"s\": \"x <tool_call>{'name': 'g'}\"}}"),
         "C[" HERMES(
             "{\"name\": \"h\", \"arguments\": {\"s\": \"x <tool_call>{'name': 'g'}\"}}") "]"},
        /* the arguments break off: what went out is all there is */
        {HERMES("{\"name\": \"f\", \"arguments\": {\"n\": 1 2}}"),
         "T[f]A[{\"n\": 1 ]C[2}}\n</tool_call>]"},
        {"a\n" HERMES("{\"name\": \"g\", \"arguments\": {}}") "\nb", "C[a]T[g]A[{}]C[\nb]"},
    };
    CHECK("<tool_call>", "hermes", "", rows);
    static const struct row tagged[] = {
        {"<tool_call>\n<function=h>\n<parameter=s>\n<tool_call><function=g></function>\n"
         "</parameter>\n</function>\n</tool_call> y",
         "C[<tool_call>\n<function=h>\n<parameter=s>\n<tool_call><function=g></function>\n"
         "</parameter>\n</function>\n</tool_call> y]"},
        {"use <function=f", "C[use <function=f]"},
    };
    CHECK("<function= <parameter=", "xml-coder", "", tagged);
    static const struct row prompted[] = {
        {">>> x", "C[>>> x]"},
        {">>>f\n{}", "T[f]A[{}]"},
        {">>>all\nHi>>>f\n{\"n\":1}", "C[Hi]T[f]A[{\"n\":1}]"},
    };
    CHECK(">>>", "functionary32", "", prompted);
}

static void test_typed_values(void **state)
{
#define P(k, v) "<parameter=" k ">\n" v "\n</parameter>\n"
#define F(p)    "<tool_call>\n<function=f>\n" p "</function>\n</tool_call>"
    static const struct row rows[] = {
        {F(P("s", "123") P("n", "123") P("b", "True")),
         "T[f]A[{\"s\": \"123\", \"n\": 123, \"b\": true}]"},
        {F(P("u", "null") P("s", "null")), "T[f]A[{\"u\": null, \"s\": \"null\"}]"},
        {F(P("u", "nullx")), "T[f]A[{\"u\": \"nullx\"}]"},
        {F(P("m", "5") P("m", "five") P("m", "\"5\"")),
         "T[f]A[{\"m\": 5, \"m\": \"five\", \"m\": \"\\\"5\\\"\"}]"},
        {F(P("r", "1") P("e", "2")), "T[f]A[{\"r\": \"1\", \"e\": \"2\"}]"},
        {F(P("n", "many")), "T[f]A[{\"n\": \"many\"}]"},
        {F(P("l", "['a', \"b\"]") P("o", "{\"k\": 1}")),
         "T[f]A[{\"l\": [\"a\", \"b\"], \"o\": {\"k\": 1}}]"},
        {F(P("other", "[1]") P("more", "text")), "T[f]A[{\"other\": [1], \"more\": \"text\"}]"},
        {F(P("s", "\n\na\n")), "T[f]A[{\"s\": \"\\n\\na\\n\"}]"},
        {F(P("s", "")), "T[f]A[{\"s\": \"\"}]"},
        {F(P("s", "2>&1</para </parameter")), "T[f]A[{\"s\": \"2>&1</para </parameter\"}]"},
        /* a forgotten end of the function; text between parameters; another call at once */
        {"<tool_call>\n<function=f>\n" P("n", "1") "</tool_call>", "T[f]A[{\"n\": 1}]"},
        {F(P("n", "1") "so so\n" P("b", "false")), "T[f]A[{\"n\": 1]C[so so\n]A[, \"b\": false}]"},
        {"<function=f>\n" P("n", "1") "<function=g>\n</function>", "T[f]A[{\"n\": 1}]T[g]A[{}]"},
    };
    CHECK("<function= <parameter=", "xml-coder", "", rows);
}

/* Marks that are tokens also end what the model forgot to end. */
static void test_tokens_end(void **state)
{
    static const struct row glm[] = {
        {"{<tool_call>}f{<arg_key>}s{</arg_key>}{<arg_value>}x{</tool_call>}",
         "T[f]A[{\"s\": \"x\"}]"},
        {"{<tool_call>}f{<arg_key>}s{</arg_key>}{<arg_value>}x{<arg_key>}n{</arg_key>}"
         "{<arg_value>}1{</arg_value>}{</tool_call>}",
         "T[f]A[{\"s\": \"x\", \"n\": 1}]"},
        {"{<tool_call>}g{</tool_call>}{<tool_call>}f{<arg_key>}n{</arg_key>}{<arg_value>}1"
         "{</arg_value>}{</tool_call>}",
         "T[g]A[{}]T[f]A[{\"n\": 1}]"},
        /* a call's token ends reasoning, its text does not */
        {"{<think>}Hm. {<tool_call>}g{</tool_call>}", "R[Hm.]T[g]A[{}]"},
        {"{<think>}Hm. <tool_call>g</tool_call>{</think>}Yes",
         "R[Hm. <tool_call>g</tool_call>]C[Yes]"},
        {"{<think>}Hm. {<tool_call>}h{</tool_call>} so{</think>}Yes",
         "R[Hm. <tool_call>h</tool_call> so]C[Yes]"},
        {"<tool_call>g</tool_call>", "C[<tool_call>g</tool_call>]"},
    };
    CHECK("<arg_key> </think>", "glm",
          "<tool_call> </tool_call> <arg_key> </arg_key> <arg_value> </arg_value> <think> </think>",
          glm);
    static const struct row hermes[] = {
        {"{<tool_call>}\n{\"name\": \"f\", \"arguments\": {}{</tool_call>}", "T[f]A[{}]"},
        {"{<tool_call>}\n{\"name\": \"f\", \"arguments\": {\"n\": 1{</tool_call>}x",
         "T[f]A[{\"n\": ]C[x]"},
    };
    CHECK("<tool_call>", "hermes", "<tool_call> </tool_call>", hermes);
}

static void test_gemma(void **state)
{
#define Q "{<|\"|>}"
    static const struct row rows[] = {
        {"{<|tool_call>}call:f{s:" Q "<a href=\"x\">'</a>" Q "}{<tool_call|>}",
         "T[f]A[{\"s\":\"<a href=\\\"x\\\">'</a>\"}]"},
        {"{<|tool_call>}call:f{l:[\"x\", 'y'],s:12,n:12,u:null,o:{k:a b}}{<tool_call|>}",
         "T[f]A[{\"l\":[\"x\", \"y\"],\"s\":\"12\",\"n\":12,\"u\":null,\"o\":{\"k\":\"a b\"}}]"},
        {"{<|tool_call>}call:f(s){<tool_call|>}ok", "C[<|tool_call>call:f(s)<tool_call|>ok]"},
        {"{<|tool_call>}:f{n:1}{<tool_call|>}ok", "C[<|tool_call>:f{n:1}ok]"},
        {"{<|tool_call>}call:f{\"n\": 1, b: true}{<tool_call|>}", "T[f]A[{\"n\": 1,\"b\": true}]"},
        {"{<|tool_call>}call:f{}{<tool_call|>}{<|tool_call>}call:g{}{<tool_call|>}Done.",
         "T[f]A[{}]T[g]A[{}]C[Done.]"},
    };
    CHECK("<|\"|>", "gemma4", "<|tool_call> <tool_call|> <|\"|>", rows);
}

/* Numbers that are longer than any word. What is no number is not taken for one. */
static void test_long_numbers(void **state)
{
#define TENS(d)     d d d d d d d d d d
#define HUNDREDS(d) TENS(TENS(d))
    static const struct row gemma[] = {
        {"{<|tool_call>}call:f{n:-1" HUNDREDS("203") "." HUNDREDS("9") "e-" HUNDREDS(
             "7") ",s:{<|\"|>}x{<|\"|>}}{<tool_call|>}",
         "T[f]A[{\"n\":-1" HUNDREDS("203") "." HUNDREDS("9") "e-" HUNDREDS("7") ",\"s\":\"x\"}]"},
    };
    CHECK("<|\"|>", "gemma4", "<|tool_call> <tool_call|> <|\"|>", gemma);
    static const struct row hermes[] = {
        {"<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 0." HUNDREDS("000") "}}</tool_call>",
         "T[f]A[{\"n\": 0." HUNDREDS("000") "}]"},
    };
    CHECK("<tool_call>", "hermes", "", hermes);
#undef HUNDREDS
#undef TENS
}

static void test_kimi_names(void **state)
{
#define K(head)                                                                                    \
    "{<|tool_calls_section_begin|>}{<|tool_call_begin|>}" head                                     \
    "{<|tool_call_argument_begin|>}{}{<|tool_call_end|>}{<|tool_calls_section_end|>}"
    static const struct row rows[] = {
        {K("functions.f:3"), "T[f]I[functions.f:3]A[{}]"},
        {K("functionsf5"), "T[f]A[{}]"},
        {K("functions_f_1"), "T[f]A[{}]"},
        {K("f:0"), "T[f]A[{}]"},
        {K("f"), "T[f]A[{}]"},
        {K("functions.web-browsing:12"), "T[web-browsing]I[functions.web-browsing:12]A[{}]"},
    };
    CHECK("<|tool_calls_section_begin|>", "kimi-k2",
          "<|tool_calls_section_begin|> <|tool_call_begin|> <|tool_call_argument_begin|> "
          "<|tool_call_end|> <|tool_calls_section_end|>",
          rows);
}

static void test_harmony_calls(void **state)
{
    static const struct row rows[] = {
        {"{<|channel|>}commentary to=functions.web-browsing {<|constrain|>}json{<|message|>}{}",
         "T[web-browsing]A[{}]"},
        {" to=functions.f{<|channel|>}commentary{<|message|>}{\"s\": \"{<|x|>}\"}{<|end|>}"
         "{<|start|>}assistant{<|channel|>}final{<|message|>}ok",
         "T[f]A[{\"s\": \"{<|x|>}\"}]C[ok]"},
        {"{<|channel|>}commentary to=functions.h json{<|message|>}{}", "C[{}]"}, /* not offered */
        {"{<|channel|>}commentary to=functions.f{<|message|>}no JSON", "C[no JSON]"},
        {"{<|channel|>}{<|channel|>}commentary? to=functions.f a b{<|message|>}{}", "T[f]A[{}]"},
        {"{<|channel|>}analysis to=browser.open{<|message|>}x", "R[x]"},
    };
    CHECK("<|channel|><|message|>", "harmony",
          "<|channel|> <|message|> <|start|> <|end|> <|constrain|>", rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dsml_token),    cmocka_unit_test(test_kimi_k3),
        cmocka_unit_test(test_gigachat),      cmocka_unit_test(test_json_forms),
        cmocka_unit_test(test_tagged_forms),  cmocka_unit_test(test_element_forms),
        cmocka_unit_test(test_python_forms),  cmocka_unit_test(test_json_repairs),
        cmocka_unit_test(test_not_calls),     cmocka_unit_test(test_typed_values),
        cmocka_unit_test(test_tokens_end),    cmocka_unit_test(test_gemma),
        cmocka_unit_test(test_long_numbers),  cmocka_unit_test(test_kimi_names),
        cmocka_unit_test(test_harmony_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
