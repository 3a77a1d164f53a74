/* config under failing memory: every allocation of reading a file, of options and of a model's name
 * is refused in turn. Each gives CN_ENOMEM or succeeds, and nothing leaks (run under ASan). */
#include "config/config.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static long fail_after = -1; /* allocations until one is refused; -1 = none */

static bool alloc_fails(void)
{
    return fail_after >= 0 && fail_after-- == 0;
}

#include "tests/wrap_alloc.h"

char *__real_strdup(const char *s);
char *__real_strndup(const char *s, size_t n);
char *__wrap_strdup(const char *s);
char *__wrap_strndup(const char *s, size_t n);
char *__wrap_strdup(const char *s)
{
    return alloc_fails() ? NULL : __real_strdup(s);
}
char *__wrap_strndup(const char *s, size_t n)
{
    return alloc_fails() ? NULL : __real_strndup(s, n);
}

static const char text[] = "server: {host: '::1', allowed_hosts: [a, b, c], unix_socket: /x}\n"
                           "model: {path: /m.gguf}\n"
                           "tenants:\n"
                           "- {name: one, keys: [sha256:"
                           "0000000000000000000000000000000000000000000000000000000000000001]}\n"
                           "- {name: two, kv_share: 0.5, keys: [sha256:"
                           "0000000000000000000000000000000000000000000000000000000000000002]}\n";

static const char faulty[] = "server: {host: [a], port: x, allowed_hosts: [[b]]}\nfoo: {a: b}\n"
                             "tenants: [{name: a, keys: [x]}, 5]\nmodels: 7\n";

/* A file with errors: they are told, or that memory is short. */
static int many_errors(void)
{
    struct cfg c;
    struct cn_error e = {0};
    int rc = cfg_init(&c, &e);

    if (rc == 0) rc = cfg_load_text(&c, "t", faulty, sizeof faulty - 1, &e);
    assert_int_equal(e.code, rc);
    if (rc != CN_ENOMEM) {
        assert_int_equal(rc, CN_ETYPE);
        assert_int_equal(c.faults.count, 7);
        rc = 0;
    }
    cfg_fini(&c);
    return rc;
}

/* Models and the groups that they are in. */
static int two_groups(void)
{
    static const char lists[] = "models: [{name: a, group: g}, {name: b, group: h}]\n"
                                "groups: [{name: g, threads: 1}, {name: h, memory_bytes: 1MiB}]\n";
    struct cfg c;
    struct cn_error e = {0};
    int rc = cfg_init(&c, &e);

    if (rc == 0) rc = cfg_load_text(&c, "t", lists, sizeof lists - 1, &e);
    if (rc == 0) rc = cfg_check(&c, &e);
    if (rc == 0) assert_int_equal(cfg_group_of(&c, &c.models[1]), 1);
    assert_int_equal(e.code, rc);
    cfg_fini(&c);
    return rc;
}

/* One pass over everything; 0 or the first error. */
static int all_of_it(void)
{
    struct cfg c;
    struct cn_error e = {0};
    char *path = NULL, *name = NULL;
    char *argv[] = {"x", "--set", "server.allowed_hosts=p,q", "--model", "/n.gguf", NULL};
    int argc = 5;
    int rc = cfg_init(&c, &e);

    if (rc == 0) rc = cfg_load_text(&c, "t", text, sizeof text - 1, &e);
    if (rc == 0) rc = cfg_from_args(&c, &argc, argv, &e);
    if (rc == 0) rc = cfg_check(&c, &e);
    if (rc == 0) rc = cfg_model_file(&c, &path, &name, &e);
    if (rc == 0) {
        assert_string_equal(path, "/n.gguf");
        assert_int_equal(c.n_tenants, 2);
        assert_int_equal(c.server.allowed_hosts.count, 2);
    } else {
        assert_int_equal(e.code, rc);
        assert_true(e.message[0] != '\0');
        assert_null(path);
        assert_null(name);
    }
    free(path);
    free(name);
    cfg_fini(&c);
    return rc;
}

static void refuse_each(int (*pass)(void), long least)
{
    long n = 0;

    for (;; n++) {
        int rc;
        bool reached;

        fail_after = n;
        rc = pass();
        reached = fail_after < 0;
        fail_after = -1;
        assert_int_equal(rc, reached ? CN_ENOMEM : 0);
        if (!reached) break;
    }
    assert_in_range(n, least, 100000); /* it did go through many of them */
}

static void every_allocation_refused_once(void **state)
{
    refuse_each(all_of_it, 50);
    refuse_each(many_errors, 50);
    refuse_each(two_groups, 30);
}

static void the_models_folder(void **state)
{
    setenv("CONIFER_HOME", "/nonexistent", 1);
    for (long n = 0;; n++) {
        char *path = NULL;
        struct cn_error e = {0};
        int rc = CN_ENOMEM;
        bool reached;

        fail_after = n;
        char *dir = cfg_models_dir();
        if (dir) rc = cfg_find_model(dir, "smollm2-135m", &path, &e);
        reached = fail_after < 0;
        fail_after = -1;
        free(dir);
        assert_null(path);
        assert_int_equal(rc, reached ? CN_ENOMEM : CN_EMODEL);
        if (!reached) break;
    }
}

/* A change of tenants, which is given up whole. */
static int change_of_tenants(void)
{
    static struct cfg_tenants *old; /* made when nothing is refused */
    struct cfg_tenants *next = NULL;
    struct cfg c;
    struct cn_error e = {0};
    long left = fail_after;

    fail_after = -1;
    assert_int_equal(cfg_init(&c, NULL) || cfg_load_text(&c, "t", text, sizeof text - 1, NULL), 0);
    if (!old) assert_int_equal(cfg_tenants_of(&c, &old, NULL), 0);
    fail_after = left;
    struct cfg_tenants *again = NULL;
    int rc = cfg_tenants_of(&c, &again, &e);
    cfg_tenants_unref(again);
    if (!rc) {
        struct cfg_tenant *list = cn_calloc(2, sizeof *list);
        rc = list ? cfg_tenant_new(&list[0], "new", &e) : CN_ENOMEM;
        if (!rc) rc = cfg_tenant_new(&list[1], "newer", &e);
        if (!rc) {
            rc = cfg_tenants_next(old, list, 2, &next, &e);
        } else if (list) {
            struct cfg_draft d = {.tenants = list, .n = 2};
            cfg_draft_fini(&d);
        }
    }
    if (next) {
        assert_true(next->first >> 32 || cfg_slot(next->first) >= 2);
        cfg_tenants_discard(old, next);
    }
    left = fail_after;
    fail_after = -1;
    cfg_fini(&c);
    fail_after = left;
    return rc;
}

static void tenants_change_or_do_not(void **state)
{
    refuse_each(change_of_tenants, 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_refused_once),
        cmocka_unit_test(the_models_folder),
        cmocka_unit_test(tenants_change_or_do_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
