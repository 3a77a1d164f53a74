/* Chat templates as a server uses them: a last message that the model goes on with, and what stands
 * for the text of a message that has calls alone. The oracle's templates are skipped where it is
 * absent. */
#include "tests/text/vocab_file.h"

#include <glob.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The conversation that ends with `content`, rendered; NULL and *rc where that is refused. Spans:
 * [ and ] around what is the client's. */
static char *render(const char *src, const char *content, bool go_on, bool spans, int *rc)
{
    struct eng_template *t = NULL;
    struct eng_rendered r = {0};
    struct cn_error err = {0};
    json_t *messages = json_pack("[{s:s,s:s},{s:s,s:s*}]", "role", "user", "content", "Q", "role",
                                 "assistant", "content", content);
    struct eng_template_in in = {.messages = messages,
                                 .bos_token = {"<s>", 3},
                                 .eos_token = {"</s>", 4},
                                 .now_s = 1767323045};
    struct cn_buf b;

    cn_buf_init(&b, 0);
    assert_int_equal(eng_template_new(src, strlen(src), &t, &err), 0);
    *rc = go_on ? eng_template_continue(t, &in, &r, &err) : eng_template_render(t, &in, &r, &err);
    if (*rc) assert_true(*rc == err.code && err.message[0]);
    for (size_t i = 0, from = 0; !*rc && i < r.n_spans; from = r.spans[i++].end) {
        bool mark = spans && !r.spans[i].trusted;
        cn_buf_printf(&b, "%s%.*s%s", mark ? "[" : "", (int)(r.spans[i].end - from),
                      r.text.data + from, mark ? "]" : "");
    }
    if (!*rc) assert_true(!r.n_spans || r.spans[r.n_spans - 1].end == r.text.len);
    char *text = *rc ? NULL : strdup(cn_buf_cstr(&b));
    cn_buf_fini(&b);
    if (!*rc) eng_rendered_fini(&r);
    eng_template_free(t);
    json_decref(messages);
    return text;
}

#define PLAIN "{% for m in messages %}<m>{{ m.content }}</s>{% endfor %}"
#define TRIMS "{% for m in messages %}<m>\n{{ m.content | trim }} </s>{% endfor %}"
#define DROPS "{% for m in messages %}<m>{{ m.content.split('|')[-1] }}</s>{% endfor %}"

static void small_templates(void **state)
{
    static const struct {
        const char *src, *content, *want;
    } rows[] = {
        {PLAIN, "so far", "<m>[Q]</s><m>[so far]"},
        {PLAIN, " so far \n", "<m>[Q]</s><m>[ so far \n]"},
        {PLAIN, "", "<m>[Q]</s><m>"},
        {PLAIN, "</s>", "<m>[Q]</s><m>[</s>]"},
        {"{{ messages[1].content | trim }}.", " so far\xc2\xa0\n", "[so far]"},
        {"{{ messages[1].content | trim }}.", "", ""},
        {"{{ messages[1].content | trim }}.", " \n", ""},
        {"<a>\n{{ messages[1].content | trim }}\n", " \n", "<a>\n"}, /* its own line stays */
        {"{{ messages[1].content }}, {{ messages[1].content }}!", "so", NULL},
        {"{{ messages[1].content.lstrip('\n') }}!", "\n\nso\n", "[so\n]"},
        {TRIMS, "so", "<m>\n[Q] </s><m>\n[so]"},
        {DROPS, "so", "<m>[Q]</s><m>[so]"},
        {DROPS, "a|so", NULL},
        {"{{ messages[0].content }}", "so", NULL},
        {"{{ messages[1].content | tojson }}", "so", "[\"so]"},
        {"{{ messages[1].content | tojson }}", "\"so\"", NULL},
        {"{{ messages[1].content | upper }}", "so", NULL},
        {"{{ messages[1].content[:10] }}", "so", NULL},
        {PLAIN, NULL, NULL},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++) {
        int rc;
        char *text = render(rows[i].src, rows[i].content, true, true, &rc);
        assert_int_equal(rc, rows[i].want ? 0 : CN_EINVAL);
        if (rows[i].want) assert_string_equal(text, rows[i].want);
        free(text);
    }
}

/* Each template's source in turn; false where the oracle is absent. */
static bool each_template(void (*visit)(const char *name, const char *src, size_t n, void *arg),
                          void *arg)
{
    const char *env = getenv("CONIFER_ORACLE");
    char pattern[4096];
    glob_t g;

    snprintf(pattern, sizeof pattern, "%s/templates/*.jinja",
             env ? env : CONIFER_SOURCE_ROOT "/../shared/oracle");
    if (glob(pattern, 0, NULL, &g) || !g.gl_pathc) return false;
    for (size_t i = 0; i < g.gl_pathc; i++) {
        size_t n;
        char *src = read_file(g.gl_pathv[i], &n);
        assert_non_null(src);
        visit(strrchr(g.gl_pathv[i], '/') + 1, src, n, arg);
        free(src);
    }
    globfree(&g);
    return true;
}

/* The whole conversation, cut behind the last place of its last text: what the model goes on
 * with. */
static void cut_whole(const char *name, const char *src, size_t n, void *arg)
{
    static const char said[] = "The answer is forty";
    int rc, rc_whole;
    char *whole = render(src, said, false, false, &rc_whole), *at = NULL;
    char *open = render(src, said, true, false, &rc);

    for (char *p = whole; p && (p = strstr(p, said)); p++)
        at = p + sizeof said - 1;
    if (rc_whole || !at) {
        assert_true(rc);
    } else {
        assert_int_equal(rc, 0);
        *at = '\0';
        if (strcmp(open, whole)) fail_msg("%s: \"%s\", wanted \"%s\"", name, open, whole);
        ++*(size_t *)arg;
    }
    free(whole);
    free(open);
}

static void templates_in_use(void **state)
{
    size_t done = 0;
    if (!each_template(cut_whole, &done)) skip();
    print_message("%zu templates go on\n", done);
    assert_true(done > 40);
}

static void wants_null(const char *name, const char *src, size_t n, void *arg)
{
    struct eng_template *t = NULL;
    assert_int_equal(eng_template_new(src, n, &t, NULL), 0);
    bool deepseek = !strcmp(name, "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja");
    if (eng_template_null_content(t) != deepseek) fail_msg("%s", name);
    eng_template_free(t);
}

static void a_place_for_tools(void **state)
{
    static const struct {
        const char *src;
        bool takes;
    } rows[] = {
        {"{% for m in messages %}{{ m.content }}{% endfor %}", false},
        {"{% for m in messages %}{{ m.tools }} tools{# tools #}{% endfor %}", false},
        {"{% if tools %}{{ tools | tojson }}{% endif %}", true},
        {"{% macro m(x) %}{{ tools }}{% endmacro %}{{ m(1) }}", true},
        {"{% if tools is defined and tools is not none %}x{% endif %}", true},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++) {
        struct eng_template *t = NULL;
        assert_int_equal(eng_template_new(rows[i].src, strlen(rows[i].src), &t, NULL), 0);
        assert_int_equal(eng_template_takes_tools(t), rows[i].takes);
        eng_template_free(t);
    }
}

static void null_or_empty(void **state)
{
    static const struct {
        const char *src;
        bool null;
    } rows[] = {
        {"{% for m in messages %}{% if m.content is not none %}<a>{{ m.content }}{% endif %}"
         "{% if m.tool_calls %}<c>{% endif %}{% endfor %}",
         true},
        {"{% for m in messages %}{{ m.content }}{% endfor %}", false},         /* writes None */
        {"{% for m in messages %}{{ '<a>' + m.content }}{% endfor %}", false}, /* fails */
        {"{% for m in messages %}{{ m.content if m.content }}{% endfor %}", false}, /* the same */
        {"{% if messages[1].content is not none %}{{ raise_exception('x') }}{% endif %}", true},
        {"{{ raise_exception('x') }}", false},
        {"{% for i in range(1000000) %}{% for k in range(1000000) %}{% endfor %}{% endfor %}",
         false},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++) {
        struct eng_template *t = NULL;
        assert_int_equal(eng_template_new(rows[i].src, strlen(rows[i].src), &t, NULL), 0);
        assert_int_equal(eng_template_null_content(t), rows[i].null);
        eng_template_free(t);
    }
}

static void null_in_use(void **state)
{
    if (!each_template(wants_null, NULL)) skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_templates),   cmocka_unit_test(templates_in_use),
        cmocka_unit_test(a_place_for_tools), cmocka_unit_test(null_or_empty),
        cmocka_unit_test(null_in_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
