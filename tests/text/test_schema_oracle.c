/* JSON Schema against the oracle's 300 schemas with instances, and against the official suite of
 * draft 2020-12 where CONIFER_SCHEMA_SUITE names it (the JSON lines of the oracle's
 * schemas/extract_suite.py, which are not kept here; ./check makes them). Each instance is judged
 * twice: by the matcher over its bytes, and as a value by schema_walk.c. A schema is right when all
 * its instances are, refused when the message names a keyword of it. */
#include "engine/text/grammar/match.h"
#include "tests/text/schema_walk.h"
#include "tests/text/vocab_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <cmocka.h>

struct counts {
    unsigned right, wrong, refused, instances;
    json_t *by_keyword;
    double worst_ms, all_ms;
};

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* Whether the matcher takes the text; -1: it failed. */
static int takes(const struct eng_ir *ir, const char *text, size_t n)
{
    struct eng_match m;
    int out = -1;
    if (eng_match_init(&m, ir, 64u << 20, ENG_RX_EMPTY)) return -1;
    size_t taken = eng_match_bytes_in(&m, text, n);
    if (!m.code) out = taken == n && eng_match_accepts(&m, &m.now);
    if (m.code) out = -1;
    eng_match_fini(&m);
    return out;
}

static bool judged_right(struct eng_ir *ir, const char *name, const json_t *v, bool valid)
{
    struct cn_buf b;
    cn_buf_init(&b, 0);
    walk_text(v, &b);
    bool as_value = walk_has(ir, v);
    int as_text = takes(ir, b.data, b.len);
    if (as_value != valid || as_text != valid)
        printf("  WRONG %s: %.*s is %s; as a value %d, as a text %d\n", name,
               (int)CN_MIN(b.len, 300u), b.data, valid ? "valid" : "invalid", as_value, as_text);
    cn_buf_fini(&b);
    return as_value == valid && as_text == valid;
}

/* Whether the message begins with, or names, one of the keywords. */
static void count_refusal(struct counts *c, const struct cn_error *err)
{
    char word[40];
    size_t n = strcspn(err->message, " :");
    snprintf(word, sizeof word, "%.*s", (int)CN_MIN(n, sizeof word - 1), err->message);
    json_int_t before = json_integer_value(json_object_get(c->by_keyword, word));
    json_object_set_new(c->by_keyword, word, json_integer(before + 1));
    c->refused++;
}

static void report(const char *what, const struct counts *c)
{
    char *text = json_dumps(c->by_keyword, 0);
    printf(
        "%s: %u right, %u wrong, %u refused %s; %u instances; compiled in %.1f ms, at most %.1f\n",
        what, c->right, c->wrong, c->refused, text, c->instances, c->all_ms, c->worst_ms);
    free(text);
    json_decref(c->by_keyword);
}

static bool compiles(struct eng_ir *ir, json_t *schema, const struct eng_schema_opts *opts,
                     enum eng_spelling spelling, struct counts *c, struct cn_error *err)
{
    double t = now_ms();
    int rc = walk_compile(ir, schema, opts, spelling, err);
    t = now_ms() - t;
    c->all_ms += t;
    c->worst_ms = CN_MAX(c->worst_ms, t);
    if (rc == CN_EINVAL && spelling == ENG_SPELL_JSON_ANY) return false;
    return !rc;
}

static void the_300(void **state)
{
    static const struct eng_schema_opts opts = {0};
    struct counts c = {0};
    char path[512];
    const char *set = getenv("CONIFER_ORACLE");
    snprintf(path, sizeof path, "%s/schemas/schemas.json",
             set ? set : CONIFER_SOURCE_ROOT "/../shared/oracle");
    if (!vocab_here()) skip();
    c.by_keyword = json_object();
    json_t *doc = json_load_file(path, JSON_ALLOW_NUL, NULL),
           *list = json_object_get(doc, "schemas");
    assert_int_equal(json_array_size(list), 300);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *one = json_array_get(list, i), *valid = json_object_get(one, "valid");
        json_t *invalid = json_object_get(one, "invalid");
        const char *name = json_string_value(json_object_get(one, "name"));
        struct cn_error err = {0};
        struct eng_ir ir;
        bool right = true;
        if (!compiles(&ir, json_object_get(one, "schema"), &opts, ENG_SPELL_JSON, &c, &err)) {
            printf("  refused %s: %s: %s\n", name, err.param, err.message);
            count_refusal(&c, &err);
            continue;
        }
        for (size_t j = 0; j < json_array_size(valid); j++, c.instances++)
            right &= judged_right(&ir, name, json_array_get(valid, j), true);
        for (size_t j = 0; j < json_array_size(invalid); j++, c.instances++)
            right &= judged_right(&ir, name,
                                  json_object_get(json_array_get(invalid, j), "instance"), false);
        *(right ? &c.right : &c.wrong) += 1;
        eng_ir_fini(&ir);
    }
    json_decref(doc);
    report("300 schemas", &c);
    assert_int_equal(c.wrong, 0);
    assert_true(c.refused <= 30);
}

/* One group of the official suite. */
static void judge_group(json_t *group, struct counts *c)
{
    const char *file = json_string_value(json_object_get(group, "file"));
    struct eng_schema_opts opts = {.any_order = true,
                                   .plain_formats = strncmp(file, "optional/format/", 16) != 0};
    json_t *tests = json_object_get(group, "tests");
    struct cn_error err = {0};
    struct eng_ir ir;
    char name[300];
    bool right = true, impossible = false;
    snprintf(name, sizeof name, "%s: %s", file, json_string_value(json_object_get(group, "group")));
    if (!compiles(&ir, json_object_get(group, "schema"), &opts, ENG_SPELL_JSON_ANY, c, &err)) {
        impossible = err.code == CN_EINVAL && strstr(err.message, "no value satisfies");
        if (!impossible) {
            printf("  refused %s: %s: %s\n", name, err.param, err.message);
            count_refusal(c, &err);
            return;
        }
    }
    for (size_t j = 0; j < json_array_size(tests); j++, c->instances++) {
        json_t *test = json_array_get(tests, j);
        bool valid = json_is_true(json_object_get(test, "valid"));
        if (impossible && valid) printf("  WRONG %s: nothing is said to satisfy it\n", name);
        right &=
            impossible ? !valid : judged_right(&ir, name, json_object_get(test, "data"), valid);
    }
    *(right ? &c->right : &c->wrong) += 1;
    if (!impossible) eng_ir_fini(&ir);
}

static void official_suite(void **state)
{
    struct counts c = {0};
    const char *path = getenv("CONIFER_SCHEMA_SUITE");
    char *line = NULL;
    size_t cap = 0, n_groups = 0;
    FILE *f = path ? fopen(path, "r") : NULL;
    if (path) assert_non_null(f);
    if (!f) skip();
    c.by_keyword = json_object();
    while (getline(&line, &cap, f) > 0) {
        json_t *group = json_loads(line, JSON_ALLOW_NUL, NULL);
        if (!group) /* whole numbers beyond 64 bits, which the server reads as reals, too */
            group = json_loads(line, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
        assert_non_null(group);
        judge_group(group, &c);
        json_decref(group);
        n_groups++;
    }
    free(line);
    fclose(f);
    report("official suite", &c);
    assert_true(n_groups >= 300); /* 368 in the package of 2025; an empty file is no pass */
    assert_int_equal(c.wrong, 0);
    assert_true(c.refused * 4 <= n_groups);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_300), cmocka_unit_test(official_suite)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
