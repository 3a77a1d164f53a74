/* Chat templates against the reference renderer: every template of the oracle, all its cases.
 * Skipped where the oracle is absent. */
#include "tests/text/vocab_file.h"

#include <glob.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static char dir[4096];

static struct eng_str str_of(json_t *o, const char *key)
{
    json_t *j = json_object_get(o, key);
    if (!json_is_string(j)) return (struct eng_str){0};
    return (struct eng_str){json_string_value(j), json_string_length(j)};
}

static int64_t seconds(const char *iso)
{
    struct tm tm = {0};
    assert_non_null(strptime(iso, "%Y-%m-%dT%H:%M:%S", &tm));
    return timegm(&tm);
}

/* What the case's input gives the renderer; kwargs is returned owned in *rest. */
static struct eng_template_in make_in(json_t *doc, json_t *input, json_t **rest)
{
    json_t *vars = json_object_get(doc, "variables"), *kwargs = json_copy(input);
    struct eng_template_in in = {
        .messages = json_object_get(input, "messages"),
        .tools = json_object_get(input, "tools"),
        .add_generation_prompt = json_is_true(json_object_get(input, "add_generation_prompt")),
        .bos_token = str_of(vars, "bos_token"),
        .eos_token = str_of(vars, "eos_token"),
        .pad_token = str_of(vars, "pad_token"),
        .unk_token = str_of(vars, "unk_token"),
        .now_s = seconds(json_string_value(json_object_get(doc, "now"))),
        .limits = {.max_ns = 60000000000},
    };
    json_object_del(kwargs, "messages");
    json_object_del(kwargs, "tools");
    json_object_del(kwargs, "add_generation_prompt");
    in.kwargs = *rest = kwargs;
    return in;
}

/* Conversations that the reference's sandbox refuses, and that are rendered here all the same: Kimi
 * K2's templates change a list, one of DeepSeek R1 prints a generator. */
static bool is_refused_there(const char *error)
{
    return error && (!strcmp(error, "SecurityError: access to attribute 'append' of 'list' object "
                                    "is unsafe.") ||
                     !strcmp(error, "TypeError: Object of type generator is not JSON "
                                    "serializable"));
}

static bool spans_are_sound(const struct eng_rendered *r)
{
    size_t last = 0;
    for (size_t i = 0; i < r->n_spans; i++) {
        if (r->spans[i].end <= last || (i && r->spans[i].trusted == r->spans[i - 1].trusted))
            return false;
        last = r->spans[i].end;
    }
    return last == r->text.len;
}

static bool run_case(const struct eng_template *t, json_t *doc, json_t *test, const char *name)
{
    const char *label = json_string_value(json_object_get(test, "name"));
    json_t *want = json_object_get(test, "output"), *rest;
    struct eng_template_in in = make_in(doc, json_object_get(test, "input"), &rest);
    struct eng_rendered r = {0};
    struct cn_error err = {0};
    int rc = eng_template_render(t, &in, &r, &err);
    bool ok;
    if (!want && is_refused_there(json_string_value(json_object_get(test, "error")))) {
        ok = !rc && spans_are_sound(&r);
        if (!ok) print_error("%s/%s: %s\n", name, label, err.message);
    } else if (!want) {
        ok = rc == CN_ETEMPLATE;
        if (!ok)
            print_error("%s/%s: rendered, but must fail: %s\n", name, label,
                        json_string_value(json_object_get(test, "error")));
    } else if (rc) {
        ok = false;
        print_error("%s/%s: %s\n", name, label, err.message);
    } else {
        size_t n = json_string_length(want), i = 0;
        const char *w = json_string_value(want);
        while (i < n && i < r.text.len && r.text.data[i] == w[i])
            i++;
        ok = n == r.text.len && i == n && spans_are_sound(&r);
        if (!ok)
            print_error("%s/%s: differs at %zu of %zu: want \"%.60s\" have \"%.*s\"\n", name, label,
                        i, n, w + i, (int)CN_MIN(r.text.len - i, (size_t)60), r.text.data + i);
    }
    if (!rc) eng_rendered_fini(&r);
    json_decref(rest);
    return ok;
}

static void all_oracle_templates(void **state)
{
    char pattern[sizeof(dir) + 32];
    glob_t g;
    size_t files = 0, cases = 0, good = 0;
    snprintf(pattern, sizeof(pattern), "%s/templates/*.json", dir);
    if (glob(pattern, 0, NULL, &g) || !g.gl_pathc) {
        print_message("no oracle at %s: skipped\n", dir);
        skip();
    }
    for (size_t i = 0; i < g.gl_pathc; i++) {
        char path[sizeof(dir) + 512];
        size_t n = 0;
        json_t *doc = json_load_file(g.gl_pathv[i], JSON_ALLOW_NUL, NULL);
        assert_non_null(doc);
        snprintf(path, sizeof(path), "%.*s.jinja", (int)(strlen(g.gl_pathv[i]) - 5), g.gl_pathv[i]);
        char *src = read_file(path, &n);
        assert_non_null(src);
        const char *name = json_string_value(json_object_get(doc, "template"));
        struct eng_template *t = NULL;
        struct cn_error err = {0};
        json_t *tests = json_object_get(doc, "cases");
        if (eng_template_new(src, n, &t, &err)) print_error("%s: %s\n", name, err.message);
        for (size_t k = 0; k < json_array_size(tests); k++)
            good += t && run_case(t, doc, json_array_get(tests, k), name);
        cases += json_array_size(tests);
        files++;
        eng_template_free(t);
        free(src);
        json_decref(doc);
    }
    globfree(&g);
    print_message("%zu templates: %zu of %zu cases equal\n", files, good, cases);
    assert_int_equal(good, cases);
}

int main(void)
{
    const char *env = getenv("CONIFER_ORACLE");
    snprintf(dir, sizeof(dir), "%s", env ? env : CONIFER_SOURCE_ROOT "/../shared/oracle");
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_oracle_templates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
