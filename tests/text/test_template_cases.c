/* The semantics of the template interpreter, case by case, against what Jinja itself rendered
 * (template_cases.json, written by make_template_cases.py, or another file of its form given as the
 * argument: "make_template_cases.py --random N SEED" writes one). */
#include "engine/text/text.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static json_t *doc;

static bool run_case(json_t *test, json_t *vars)
{
    const char *src = json_string_value(json_object_get(test, "template"));
    size_t n_src = json_string_length(json_object_get(test, "template"));
    json_t *want = json_object_get(test, "output");
    struct eng_template_in in = {.messages = json_object_get(doc, "messages"),
                                 .kwargs = vars,
                                 .now_s = json_integer_value(json_object_get(doc, "now")),
                                 .limits = {.max_ns = 60000000000}};
    struct eng_template *t = NULL;
    struct eng_rendered r = {0};
    struct cn_error err = {0};
    int rc = eng_template_new(src, n_src, &t, &err);
    if (!rc) rc = eng_template_render(t, &in, &r, &err);
    bool ok =
        want ? !rc && r.text.len == json_string_length(want) &&
                   memcmp(r.text.data ? r.text.data : "", json_string_value(want), r.text.len) == 0
             : rc == CN_ETEMPLATE && err.code == rc && err.message[0];
    if (!ok)
        print_error("%s\n   want %s\n   have %.*s\n", src,
                    json_string_value(want ? want : json_object_get(test, "error")),
                    rc ? 511 : (int)r.text.len,
                    rc            ? err.message
                    : r.text.data ? r.text.data
                                  : "");
    if (!rc) eng_rendered_fini(&r);
    eng_template_free(t);
    return ok;
}

static void same_as_jinja(void **state)
{
    json_t *vars = json_copy(json_object_get(doc, "variables")),
           *tests = json_object_get(doc, "cases");
    json_object_set(doc, "messages", json_object_get(vars, "messages"));
    json_object_del(vars, "messages");
    size_t good = 0, n = json_array_size(tests);
    for (size_t i = 0; i < n; i++)
        good += run_case(json_array_get(tests, i), vars);
    print_message("%zu of %zu cases as Jinja %s\n", good, n,
                  json_string_value(json_object_get(doc, "jinja")));
    json_decref(vars);
    assert_true(n > 500);
    assert_int_equal(good, n);
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : CONIFER_SOURCE_ROOT "/tests/text/template_cases.json";
    json_error_t e;
    doc = json_load_file(path, JSON_ALLOW_NUL, &e);
    if (!doc) {
        fprintf(stderr, "%s: %s\n", path, e.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_as_jinja)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    json_decref(doc);
    return rc;
}
