/* Messages in the form that a chat template takes: what is learnt of a template, and what becomes
 * of parts, system messages, arguments, and of tools that it has no place for. */
#include "engine/text/text.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

/* ---- templates ------------------------------------------------------------------------------- */

#define EACH  "{% for m in messages %}<|{{ m.role }}|>"
#define PLAIN EACH "{{ m.content }}{% endfor %}"
/* Takes parts, and says whose they are. */
#define LISTS                                                                                      \
    EACH "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"           \
         "{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
/* Takes parts of the user and of results alone. */
#define SOME                                                                                       \
    EACH "{% if m.role in ['user', 'tool'] and m.content is not string %}"                         \
         "{{ m.content | map(attribute='text') | join(' ') }}{% else %}{{ m.content }}{% endif %}" \
         "{% endfor %}"
/* One system message, at the beginning. */
#define FIRST                                                                                      \
    "{% if messages[0].role == 'system' %}<s>{{ messages[0].content }}{% endif %}"                 \
    "{% for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>{{ m.content }}"              \
    "{% elif loop.index0 %}{{ raise_exception('system is not first') }}{% endif %}{% endfor %}"
/* None; user and assistant alternate. */
#define NEVER                                                                                      \
    "{% for m in messages %}{% if m.role != ['user', 'assistant'][loop.index0 % 2] %}"             \
    "{{ raise_exception('they must alternate') }}{% endif %}<{{ m.role }}>{{ m.content }}"         \
    "{% endfor %}"
/* Alternating too, with results, behind which the user may not speak. */
#define AGENT                                                                                      \
    "{% for m in messages %}{% if m.role == 'system' %}"                                           \
    "{% if loop.index0 %}{{ raise_exception('system is not first') }}{% endif %}"                  \
    "{% elif m.role == 'user' and loop.index0 and messages[loop.index0 - 1].role == 'tool' %}"     \
    "{{ raise_exception('after a result') }}{% endif %}<{{ m.role }}>{{ m.content }}"              \
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
#define DEVELOPER                                                                                  \
    "{% for m in messages %}{% if m.role == 'developer' %}<s>{% else %}<{{ m.role }}>{% endif %}"  \
    "{{ m.content }}{% endfor %}"
#define VERBATIM                                                                                   \
    EACH "{{ m.content }}{% for c in m.tool_calls or [] %}{{ '(' + c.function.arguments + ')' }}"  \
         "{% endfor %}{% endfor %}"
#define EITHER                                                                                     \
    EACH "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments if "             \
         "c.function.arguments is string else c.function.arguments | tojson }}"                    \
         "{% endfor %}{% endfor %}"

static struct eng_template *compile(const char *src)
{
    struct eng_template *t = NULL;
    struct cn_error err = {0};
    if (eng_template_new(src, strlen(src), &t, &err)) fail_msg("%s: %s", src, err.message);
    return t;
}

static json_t *read_json(const char *text)
{
    json_error_t e;
    json_t *v = json_loads(text, JSON_DECODE_ANY, &e);
    if (!v) fail_msg("%s: %s", e.text, text);
    return v;
}

static char *shown(const json_t *v)
{
    return json_dumps(v, JSON_ENCODE_ANY);
}

static void lists_are_seen(void **state)
{
    static const struct {
        const char *src;
        bool parts[ENG_N_ROLES]; /* system, user, assistant, tool */
    } rows[] = {
        {PLAIN, {false, false, false, false}}, /* prints the list in Python's form */
        {LISTS, {true, true, true, true}},
        {SOME, {false, true, false, true}},
        {EACH "{{ m.content | tojson }}{% endfor %}", {false}},
        {EACH "{{ m.content + '' }}{% endfor %}", {false}},    /* fails with a list */
        {EACH "{{ m.content[0].text }}{% endfor %}", {false}}, /* drops the second text */
        {EACH "{% for p in m.content | reverse %}{{ p.text }}{% endfor %}{% endfor %}", {false}},
        {EACH "{% for p in m.content %}{{ p }}{% endfor %}{% endfor %}", {false}},
        {EACH "{{ m.content | map(attribute='text') | list }}{% endfor %}", {false}},
        /* Quotes that a string has as well. */
        {EACH "{% if m.content is string %}{\"c\": {{ m.content | tojson }}}{% else %}"
              "{% for p in m.content %}{\"c\": {{ p.text | tojson }}}{% endfor %}{% endif %}"
              "{% endfor %}",
         {true, true, true, true}},
        {EACH "{% for p in m.content %}{% if p.type == 'text' %}\n{{ p.text | trim }}{% endif %}"
              "{% endfor %}{% endfor %}",
         {true, true, true, true}},
        /* One for nothing but tools. */
        {"{% for x in tools %}{{ x.function.name }}{% endfor %}" LISTS, {true, true, true, true}},
        {"{{ raise_exception('no') }}", {false}},
        {"nothing", {false}},
        {"{% for i in range(1000000) %}{% for k in range(1000000) %}{% endfor %}{% endfor %}" LISTS,
         {false}},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++) {
        struct eng_template *t = compile(rows[i].src);
        for (int role = 0; role < ENG_N_ROLES; role++)
            if (eng_template_takes_parts(t, (enum eng_role)role) != rows[i].parts[role])
                fail_msg("role %d of %s", role, rows[i].src);
        eng_template_free(t);
    }
}

static void arguments_are_seen(void **state)
{
    static const struct {
        const char *src;
        bool text;
    } rows[] = {
        {PLAIN, false}, /* shows no calls */
        {AGENT, false},
        {VERBATIM, true},
        {EITHER, true},
        {EACH "{% for c in m.tool_calls or [] %}{{ c.function.arguments }}{% endfor %}"
              "{{ m.content }}{% endfor %}",
         true}, /* would print an object in Python's form */
        {EACH "{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}"
              "{{ k }}={{ v }}{% endfor %}{% endfor %}{{ m.content }}{% endfor %}",
         false},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++) {
        struct eng_template *t = compile(rows[i].src);
        if (eng_template_text_arguments(t) != rows[i].text) fail_msg("%s", rows[i].src);
        eng_template_free(t);
    }
}

/* ---- fitting --------------------------------------------------------------------------------- */

#define S(text) "{\"role\": \"system\", \"content\": " text "}"
#define D(text) "{\"role\": \"developer\", \"content\": " text "}"
#define U(text) "{\"role\": \"user\", \"content\": " text "}"
#define A(text) "{\"role\": \"assistant\", \"content\": " text "}"
#define T(text) "{\"role\": \"tool\", \"content\": " text "}"
#define P(a, b) "[{\"type\": \"text\", \"text\": " a "}, {\"type\": \"text\", \"text\": " b "}]"
#define CALL(arguments)                                                                            \
    "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"c\", \"type\": "     \
    "\"function\", \"function\": {\"name\": \"f\", \"arguments\": " arguments "}}]}"

static void check(const char *src, const char *tools, bool falls_back, const char *messages,
                  const char *want)
{
    struct eng_template *t = compile(src);
    json_t *have = read_json(messages), *wanted = read_json(want);
    json_t *list = tools ? read_json(tools) : NULL, *kept = json_deep_copy(list);
    struct cn_error err = {0};

    if (falls_back) assert_int_equal(eng_template_fall_back(t, have, list, &err), 0);
    assert_int_equal(eng_template_fit(t, have, &err), 0);
    char *a = shown(have), *b = shown(wanted);
    if (!json_equal(have, wanted)) fail_msg("%s\nbecomes %s\nwanted  %s", messages, a, b);
    assert_true(!list || json_equal(list, kept));
    free(a);
    free(b);
    json_decref(list);
    json_decref(kept);
    json_decref(have);
    json_decref(wanted);
    eng_template_free(t);
}

static void fitted(void **state)
{
    static const struct {
        const char *src, *messages, *want;
    } rows[] = {
        {PLAIN, "[]", "[]"},
        {PLAIN, "[" U(P("\"a\"", "\"b\"")) "]", "[" U("\"a\\nb\"") "]"},
        {PLAIN, "[" U(P("\"\"", "\"b\"")) "]", "[" U("\"b\"") "]"},
        {PLAIN, "[" U("[]") "]", "[" U("\"\"") "]"},
        {PLAIN, "[" U("\"[]\"") ", " A("null") "]", "[" U("\"[]\"") ", " A("null") "]"},
        {LISTS, "[" S(P("\"a\"", "\"b\"")) ", " U(P("\"c\"", "\"\"")) "]",
         "[" S(P("\"a\"", "\"b\"")) ", " U(P("\"c\"", "\"\"")) "]"},
        {LISTS, "[" U("[{\"type\": \"text\", \"text\": \"a\", \"cache_control\": {\"x\": 1}}]") "]",
         "[" U("[{\"type\": \"text\", \"text\": \"a\", \"cache_control\": {\"x\": 1}}]") "]"},
        {SOME,
         "[" S(P("\"a\"", "\"b\"")) ", " U(P("\"c\"", "\"d\"")) ", " A(P("\"e\"", "\"f\"")) "]",
         "[" S("\"a\\nb\"") ", " U(P("\"c\"", "\"d\"")) ", " A("\"e\\nf\"") "]"},
        /* the role developer */
        {PLAIN, "[" D("\"a\"") ", " U("\"b\"") "]", "[" S("\"a\"") ", " U("\"b\"") "]"},
        {DEVELOPER, "[" D("\"a\"") ", " U("\"b\"") "]", "[" D("\"a\"") ", " U("\"b\"") "]"},
        /* several system messages */
        {PLAIN, "[" S("\"a\"") ", " S("\"b\"") ", " U("\"c\"") ", " S("\"d\"") "]",
         "[" S("\"a\"") ", " S("\"b\"") ", " U("\"c\"") ", " S("\"d\"") "]"},
        {FIRST, "[" S("\"a\"") ", " U("\"c\"") "]", "[" S("\"a\"") ", " U("\"c\"") "]"},
        {FIRST, "[" S("\"a\"") ", " D(P("\"b\"", "\"c\"")) ", " S("\"\"") ", " U("\"d\"") "]",
         "[" S("\"a\\n\\nb\\nc\"") ", " U("\"d\"") "]"},
        {FIRST, "[" U("\"a\"") ", " S("\"b\"") ", " S("\"c\"") "]",
         "[" U("\"a\\n\\nb\\n\\nc\"") "]"},
        {FIRST, "[" U("\"a\"") ", " A("\"b\"") ", " S("\"c\"") ", " U(P("\"d\"", "\"e\"")) "]",
         "[" U("\"a\"") ", " A("\"b\"") ", " U("\"c\\n\\nd\\ne\"") "]"},
        {FIRST, "[" U("\"a\"") ", " A("\"b\"") ", " S("\"c\"") ", " A("\"d\"") "]",
         "[" U("\"a\"") ", " A("\"b\"") ", " U("\"c\"") ", " A("\"d\"") "]"},
        {FIRST, "[" U("\"a\"") ", " A("\"b\"") ", " S("\"c\"") "]",
         "[" U("\"a\"") ", " A("\"b\"") ", " U("\"c\"") "]"},
        {FIRST, "[" U("\"a\"") ", " S("\"\"") ", " A("\"b\"") "]",
         "[" U("\"a\"") ", " A("\"b\"") "]"},
        {FIRST, "[" U("\"a\"") ", " CALL("{}") ", " S("\"b\"") ", " T("\"c\"") ", " A("\"d\"") "]",
         "[" U("\"a\"") ", " CALL("{}") ", " T("\"c\"") ", " U("\"b\"") ", " A("\"d\"") "]"},
        {AGENT, "[" U("\"a\"") ", " CALL("{}") ", " S("\"b\"") ", " T("\"c\"") ", " A("\"d\"") "]",
         "[" U("\"a\"") ", " CALL("{}") ", " T("\"c\\n\\nb\"") ", " A("\"d\"") "]"},
        {NEVER, "[" S("\"a\"") ", " S("\"b\"") ", " U("\"c\"") ", " A("\"d\"") "]",
         "[" U("\"a\\n\\nb\\n\\nc\"") ", " A("\"d\"") "]"},
        {NEVER, "[" S("\"a\"") "]", "[" U("\"a\"") "]"},
        {NEVER, "[" S("\"\"") "]", "[]"},
        /* arguments */
        {VERBATIM, "[" CALL("{\"a\": [1, 0.1, true, null, \"\\u00fc\\\"\"]}") "]",
         "[" CALL("\"{\\\"a\\\": [1, 0.1, true, null, \\\"\\u00fc\\\\\\\"\\\"]}\"") "]"},
        {VERBATIM, "[" CALL("\"{ }\"") "]", "[" CALL("\"{ }\"") "]"},
        {AGENT, "[" CALL("{\"a\": 1}") "]", "[" CALL("{\"a\": 1}") "]"},
        {PLAIN, "[" CALL("\"{\"") "]", "[" CALL("\"{\"") "]"},
        /* one that renders nothing usual: as they came */
        {"{{ raise_exception('no') }}", "[" U("\"a\"") ", " S("\"b\"") ", " D("\"c\"") "]",
         "[" U("\"a\"") ", " S("\"b\"") ", " D("\"c\"") "]"},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++)
        check(rows[i].src, NULL, false, rows[i].messages, rows[i].want);
}

/* ---- tools without a place ------------------------------------------------------------------- */

#define TOOL                                                                                       \
    "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"minimum\": "      \
    "0.1}}}"
#define BLOCK                                                                                      \
    "# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n"         \
    "You are provided with function signatures within <tools></tools> XML tags:\\n<tools>\\n"      \
    "{\\\"type\\\": \\\"function\\\", \\\"function\\\": {\\\"name\\\": \\\"f\\\", "                \
    "\\\"parameters\\\": {\\\"minimum\\\": 0.1}}}\\n</tools>\\n\\nFor each function call, return " \
    "a json object with function name and arguments within <tool_call></tool_call> XML tags:\\n"   \
    "<tool_call>\\n{\\\"name\\\": <function-name>, \\\"arguments\\\": <args-json-object>}\\n"      \
    "</tool_call>"
#define WRITTEN(arguments)                                                                         \
    "<tool_call>\\n{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": " arguments "}\\n</tool_call>"
#define RESULT(text) "<tool_response>\\n" text "\\n</tool_response>"
#define CALLS                                                                                      \
    "{\"role\": \"assistant\", \"content\": \"both\", \"reasoning\": \"r\", \"tool_calls\": ["     \
    "{\"id\": \"1\", \"function\": {\"name\": \"f\", \"arguments\": \"{ \\\"a\\\":1}\"}}, "        \
    "{\"id\": \"2\", \"function\": {\"name\": \"f\", \"arguments\": \"\"}}, "                      \
    "{\"id\": \"3\", \"function\": {\"name\": \"f\", \"arguments\": {\"b\": [\"x\", 1.5]}}}]}"
#define CALLS_WRITTEN                                                                              \
    "{\"role\": \"assistant\", \"reasoning\": \"r\", \"content\": \"both\\n" WRITTEN(              \
        "{ \\\"a\\\":1}") "\\n" WRITTEN("{}") "\\n" WRITTEN("{\\\"b\\\": [\\\"x\\\", 1.5]}") "\"}"
#define R(id, text) "{\"role\": \"tool\", \"tool_call_id\": \"" id "\", \"content\": \"" text "\"}"

static void fallen_back(void **state)
{
    static const struct {
        const char *src, *tools, *messages, *want;
    } rows[] = {
        {PLAIN, "[" TOOL "]", "[" U("\"a\"") "]", "[" S("\"" BLOCK "\"") ", " U("\"a\"") "]"},
        {PLAIN, "[" TOOL "]", "[" S("\"s\"") ", " U("\"a\"") "]",
         "[" S("\"s\\n\\n" BLOCK "\"") ", " U("\"a\"") "]"},
        {LISTS, "[" TOOL "]", "[" D(P("\"s\"", "\"t\"")) ", " U("\"a\"") "]",
         "[" S("\"s\\nt\\n\\n" BLOCK "\"") ", " U("\"a\"") "]"},
        {NEVER, "[" TOOL "]", "[" U("\"a\"") "]", "[" U("\"" BLOCK "\\n\\na\"") "]"},
        {PLAIN, "[" TOOL "]", "[]", "[" S("\"" BLOCK "\"") "]"},
        {PLAIN, "[]", "[" U("\"a\"") "]", "[" U("\"a\"") "]"},
        /* calls and results, in the order of the calls, and what the user says then */
        {PLAIN, NULL,
         "[" U("\"a\"") ", " CALLS ", " R("2", "two") ", " R("9", "nine") ", " R("1", "one") ", " U(
             "\"b\"") ", " U("\"c\"") "]",
         "[" U("\"a\"") ", " CALLS_WRITTEN ", " U("\"" RESULT("one") "\\n" RESULT(
             "two") "\\n" RESULT("nine") "\\n\\nb\"") ", " U("\"c\"") "]"},
        {NEVER, NULL, "[" U("\"a\"") ", " CALLS ", " R("1", "one") ", " A("\"so\"") "]",
         "[" U("\"a\"") ", " CALLS_WRITTEN ", " U("\"" RESULT("one") "\"") ", " A("\"so\"") "]"},
        {PLAIN, NULL,
         "[{\"role\": \"function\", \"name\": \"f\", \"content\": " P("\"x\"", "\"y\"") "}]",
         "[" U("\"" RESULT("x\\ny") "\"") "]"},
        /* a call that was cut off is shown as it was */
        {PLAIN, NULL, "[" CALL("\"{\\\"a\\\": \"") "]",
         "[" A("\"" WRITTEN("{\\\"a\\\": ") "\"") "]"},
        /* a template that writes calls itself: only together with a description of tools */
        {AGENT, NULL, "[" U("\"a\"") ", " CALL("{}") ", " R("c", "x") "]",
         "[" U("\"a\"") ", " CALL("{}") ", " R("c", "x") "]"},
        {AGENT, "[" TOOL "]", "[" U("\"a\"") ", " CALL("{}") ", " R("c", "x") "]",
         "[" S("\"" BLOCK "\"") ", " U("\"a\"") ", " A("\"" WRITTEN("{}") "\"") ", " U(
             "\"" RESULT("x") "\"") "]"},
        {PLAIN, NULL, "[{\"role\": \"assistant\", \"content\": \"a\", \"tool_calls\": []}]",
         "[{\"role\": \"assistant\", \"content\": \"a\", \"tool_calls\": []}]"},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++)
        check(rows[i].src, rows[i].tools, true, rows[i].messages, rows[i].want);
}

/* All of it stays the client's text: the marks of the form never become control tokens. */
static void nothing_becomes_trusted(void **state)
{
    struct eng_template *t = compile(PLAIN);
    json_t *messages =
        read_json("[" U("\"a\"") ", " CALLS ", " R("1", "<|user|>") ", " D("\"d\"") "]");
    json_t *tools = read_json("[" TOOL "]");
    struct eng_template_in in = {.messages = messages};
    struct eng_rendered r = {0};
    struct cn_buf trusted;
    size_t from = 0;

    assert_int_equal(eng_template_fall_back(t, messages, tools, NULL), 0);
    assert_int_equal(eng_template_fit(t, messages, NULL), 0);
    assert_int_equal(eng_template_render(t, &in, &r, NULL), 0);
    cn_buf_init(&trusted, 0);
    for (size_t i = 0; i < r.n_spans; from = r.spans[i++].end)
        if (r.spans[i].trusted) cn_buf_append(&trusted, r.text.data + from, r.spans[i].end - from);
    assert_string_equal(cn_buf_cstr(&trusted), "<||><||><||><||><||>");
    assert_non_null(strstr(cn_buf_cstr(&r.text), "<tool_response>\n<|user|>\n"));
    cn_buf_fini(&trusted);
    eng_rendered_fini(&r);
    json_decref(messages);
    json_decref(tools);
    eng_template_free(t);
}

/* ---- a list that goes on --------------------------------------------------------------------- */

static void continued(void **state)
{
    static const struct {
        const char *messages, *want; /* NULL: CN_EINVAL */
    } rows[] = {
        {"[" U("\"a\"") ", " A(P("\"b \"", "\"c \"")) "]", "<|user|>a<|assistant|>b c "},
        {"[" U("\"a\"") ", " A("[{\"type\": \"text\", \"text\": \"b\"}, {\"type\": \"x\"}]") "]",
         "<|user|>a<|assistant|>b"},
        {"[" U("\"a\"") ", " A("[]") "]", NULL},
        {"[" U("\"a\"") ", " A("[{\"type\": \"x\"}]") "]", NULL},
        {"[]", NULL},
    };
    struct eng_template *t = compile(LISTS "<end>");
    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++) {
        json_t *messages = read_json(rows[i].messages), *kept = json_deep_copy(messages);
        struct eng_template_in in = {.messages = messages};
        struct eng_rendered r = {0};
        int rc = eng_template_continue(t, &in, &r, NULL);
        assert_int_equal(rc, rows[i].want ? 0 : CN_EINVAL);
        if (!rc) assert_string_equal(cn_buf_cstr(&r.text), rows[i].want);
        if (!rc) eng_rendered_fini(&r);
        assert_true(json_equal(messages, kept));
        json_decref(messages);
        json_decref(kept);
    }
    eng_template_free(t);
}

/* ---- bounds ---------------------------------------------------------------------------------- */

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* A hundred thousand messages take a tenth of a second; in quadratic time, far more than the bound.
 */
static void linear_time(void **state)
{
    static const struct {
        const char *src, *a, *b;
        bool falls_back;
    } rows[] = {
        {FIRST, S("\"a\""), S("\"b\""), false},  {FIRST, A("\"a\""), S("\"b\""), false},
        {FIRST, U("\"a\""), S("\"b\""), false},  {AGENT, S("\"a\""), T("\"b\""), false},
        {NEVER, S("\"a\""), S("\"b\""), false},  {PLAIN, CALLS, R("2", "x"), true},
        {PLAIN, R("1", "x"), R("2", "y"), true}, {PLAIN, R("1", "x"), U("\"b\""), true},
    };
    json_t *tools = read_json("[" TOOL "]");
    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++) {
        struct eng_template *t = compile(rows[i].src);
        json_t *a = read_json(rows[i].a), *b = read_json(rows[i].b), *messages = json_array();
        for (size_t k = 0; k < 50000; k++) {
            json_array_append_new(messages, json_deep_copy(a));
            json_array_append_new(messages, json_deep_copy(b));
        }
        double start = cpu_s();
        if (rows[i].falls_back)
            assert_int_equal(eng_template_fall_back(t, messages, tools, NULL), 0);
        assert_int_equal(eng_template_fit(t, messages, NULL), 0);
        double took = cpu_s() - start;
        if (took > 3) fail_msg("row %zu: %.1f s", i, took);
        json_decref(messages);
        json_decref(a);
        json_decref(b);
        eng_template_free(t);
    }
    json_decref(tools);
}

/* Each of these is slow for one of the looks that are taken at a template, or for all of them. */
static void hostile_templates(void **state)
{
#define SLOW "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
#define HEAVY                                                                                      \
    "{% set s = 'a' * 1000000 %}{% for i in range(400) %}{% set x = s.count('ab') %}{% endfor %}"
    static const char *const sources[] = {
        SLOW,
        "{% if messages[0].content is not string %}" SLOW "{% endif %}" PLAIN,
        "{% if messages[0].content is not string %}" HEAVY "{% endif %}" PLAIN,
        "{% if messages[1].tool_calls %}" HEAVY "{% endif %}" PLAIN,
        "{{ 'a' * 1000000 }}" PLAIN,
        "{{ 'a' * 10000000 }}" PLAIN,
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(sources); i++) {
        double start = cpu_s();
        eng_template_free(compile(sources[i]));
        double took = cpu_s() - start;
        if (took > 2) fail_msg("%s: %.1f s", sources[i], took);
    }
}

static int fail_at(int64_t k, const struct eng_template *t, const json_t *tools, bool falls_back)
{
    json_t *messages =
        read_json("[" S("\"a\"") ", " S(P("\"b\"", "\"c\"")) ", " U("\"d\"") ", " CALLS ", " D(
            "\"e\"") ", " R("1", "x") ", " CALL("{\"a\": 1}") ", " U(P("\"f\"", "\"g\"")) "]");
    failed = false;
    left = k;
    int rc = falls_back ? eng_template_fall_back(t, messages, tools, NULL) : 0;
    if (!rc) rc = eng_template_fit(t, messages, NULL);
    left = -1;
    assert_int_equal(rc, failed ? CN_ENOMEM : 0);
    json_decref(messages);
    return rc;
}

static void failing_allocations(void **state)
{
    static const char *const sources[] = {LISTS, NEVER, VERBATIM, FIRST};
    json_t *tools = read_json("[" TOOL "]");
    json_set_alloc_funcs(own_malloc, free); /* this program's, which fails */
    for (size_t i = 0; i < 2 * CN_ARRAY_LEN(sources); i++) {
        struct eng_template *t = compile(sources[i / 2]);
        int64_t k = 0;
        while (fail_at(k, t, tools, i % 2))
            k++;
        assert_true(k > 0);
        eng_template_free(t);
    }
    json_decref(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_seen),
        cmocka_unit_test(arguments_are_seen),
        cmocka_unit_test(fitted),
        cmocka_unit_test(fallen_back),
        cmocka_unit_test(nothing_becomes_trusted),
        cmocka_unit_test(continued),
        cmocka_unit_test(linear_time),
        cmocka_unit_test(hostile_templates),
        cmocka_unit_test(failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
