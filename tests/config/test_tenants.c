/* Snapshots of tenants: ids that last, slots that are used again only when all have left. */
#include "config/tenants.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "config/internal.h"

static struct cfg_tenant *list_of(size_t n, const char *const *names, double weight)
{
    struct cfg_tenant *list = cn_calloc(n, sizeof *list);

    assert_non_null(list);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(cfg_tenant_init(&list[i], NULL), 0);
        list[i].name = strdup(names[i]);
        list[i].weight = weight;
    }
    return list;
}

static struct cfg_tenants *next(const struct cfg_tenants *old, size_t n, const char *const *names,
                                double weight)
{
    struct cfg_tenants *t = NULL;

    assert_int_equal(cfg_tenants_next(old, list_of(n, names, weight), n, &t, NULL), 0);
    return t;
}

static struct cfg_tenants *first(size_t n, const char *const *names)
{
    struct cfg c = {.tenants = n ? list_of(n, names, 1) : NULL, .n_tenants = n};
    struct cfg_tenants *t = NULL;

    assert_int_equal(cfg_tenants_of(&c, &t, NULL), 0);
    for (size_t i = 0; i < n; i++)
        cfg_tenant_fini(&c.tenants[i]);
    free(c.tenants);
    return t;
}

static uint64_t id_of(const struct cfg_tenants *t, const char *name)
{
    for (uint32_t i = 0; i < t->n_slots; i++)
        if (t->seats[i].tenant && !strcmp(t->seats[i].tenant->name, name)) return t->seats[i].id;
    return UINT64_MAX;
}

static void ids_last(void **state)
{
    struct cfg_tenants *a = first(2, (const char *[]){"x", "y"}), *b, *c, *d;
    uint32_t one = cfg_roll_join(a->roll), two = cfg_roll_join(a->roll);
    uint64_t y = id_of(a, "y");

    assert_int_equal(id_of(a, "x"), 0); /* in the order of the config */
    assert_int_equal(y, 1);
    b = next(a, 2, (const char *[]){"z", "x"}, 1);
    assert_int_equal(id_of(b, "x"), 0);
    assert_int_equal(id_of(b, "z"), 2);
    assert_null(cfg_tenants_find(b, y));
    assert_int_equal(cfg_tenants_change(a, b, 0), CFG_SAME);
    assert_int_equal(cfg_tenants_change(a, b, 1), CFG_REMOVED);
    assert_int_equal(cfg_tenants_change(a, b, 2), CFG_ADDED);
    cfg_tenants_commit(a, b);
    c = next(b, 3, (const char *[]){"z", "x", "y"}, 2); /* a new y: the old one is not gone yet */
    assert_int_equal(id_of(c, "y"), 3);
    assert_int_equal(cfg_tenants_change(b, c, 0), CFG_CHANGED);
    cfg_tenants_discard(b, c);
    cfg_roll_left(a->roll, y, one);
    c = next(b, 3, (const char *[]){"z", "x", "y"}, 2);
    assert_true(cfg_slot(id_of(c, "y")) != cfg_slot(y));
    cfg_tenants_discard(b, c);
    cfg_roll_left(a->roll, y, two);
    c = next(b, 5, (const char *[]){"p", "q", "r", "x", "z"}, 1);
    uint64_t again = 0;
    for (uint32_t i = 0; i < c->n_slots; i++)
        if (i == cfg_slot(y)) again = c->seats[i].id;
    assert_true(again == (y | 1ull << 32)); /* its slot, with the next generation */
    assert_null(cfg_tenants_find(c, y));
    cfg_tenants_commit(b, c);
    assert_int_equal(cfg_tenants_next(c, NULL, 0, &d, NULL), 0);
    assert_true(d->unnamed && d->n_all == 1 && cfg_tenants_find(d, d->first));
    cfg_tenants_commit(c, d);
    cfg_tenants_ref(d);
    cfg_tenants_unref(d);
    cfg_tenants_unref(a);
    cfg_tenants_unref(b);
    cfg_tenants_unref(c);
    cfg_tenants_unref(d);
    cfg_tenants_unref(NULL);
}

static void nobody_is_one(void **state)
{
    struct cfg_tenants *a = first(0, NULL), *b;

    assert_true(a->unnamed && !a->has_keys && a->n_slots == 1 && a->first == 0);
    assert_int_equal(cfg_tenants_next(a, NULL, 0, &b, NULL), 0);
    assert_int_equal(b->first, 0);
    assert_int_equal(cfg_tenants_change(a, b, 0), CFG_SAME);
    cfg_tenants_commit(a, b);
    cfg_tenants_unref(a);
    cfg_tenants_unref(b);
}

#define KEY_A "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define KEY_B "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

static char path[64];

static void write_file(const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void a_file_is_read_again(void **state)
{
    char *argv[] = {"conifer-server", "--config", path, "--port", "0"};
    struct cfg_source *s;
    struct cfg_draft d;
    struct cn_error err = {0};

    snprintf(path, sizeof path, "/tmp/test_tenants.%d.yaml", (int)getpid());
    write_file("tenants:\n  - {name: a, keys: [\"" KEY_A "\"]}\n");
    assert_int_equal(cfg_source_args(5, argv, &s, &err), 0);
    assert_int_equal(s->load(s, &d, &err), 0);
    assert_int_equal(d.n, 1);
    assert_string_equal(d.others, "");
    cfg_draft_fini(&d);
    write_file("server: {max_connections: 77, port: 9}\nmodels:\n  - {name: m}\n"
               "groups: [{name: g}]\n"
               "tenants:\n  - {name: a, keys: [\"" KEY_A "\"]}\n"
               "  - {name: b, weight: 3, keys: [\"" KEY_B "\"]}\n");
    assert_int_equal(s->load(s, &d, &err), 0);
    assert_int_equal(d.n, 2);
    assert_string_equal(d.others,
                        "server.max_connections, models, groups"); /* the port is an option's */
    assert_true(cfg_tenant_has_key(&d.tenants[1], cfg_key_id(&d.tenants[1].key_hashes[0])));
    assert_false(cfg_tenant_has_key(&d.tenants[0], cfg_key_id(&d.tenants[1].key_hashes[0])));
    cfg_draft_fini(&d);
    write_file("tenants:\n  - {name: a, keys: [\"" KEY_A "\"]}\n  - {name: a}\n");
    assert_int_equal(s->load(s, &d, &err), CN_EINVAL);
    assert_true(!d.tenants && strstr(err.message, ":3:"));
    err = (struct cn_error){0};
    write_file("tenants:\n  - {name: a}\n");
    assert_int_equal(s->load(s, &d, &err), CN_EINVAL);
    assert_non_null(strstr(err.message, "restart"));
    err = (struct cn_error){0};
    unlink(path);
    assert_int_equal(s->load(s, &d, &err), CN_EIO);
    cfg_source_free(s);
    cfg_source_free(NULL);
}

/* Keys in any order: each is found, and what lies between two of them is not. */
static void a_tenant_has_its_keys(void **state)
{
    enum { N = 1000 };
    struct cfg_key_hash hash[2 * N];
    struct cfg_tenants *t;
    char hex[80];

    for (size_t n = 0; n <= N; n = n * 3 + 1) {
        struct cfg_tenant *list = list_of(1, (const char *[]){"x"}, 1);
        list->key_hashes = cn_calloc(CN_MAX(n, (size_t)1), sizeof *list->key_hashes);
        list->keys.items = cn_calloc(CN_MAX(n, (size_t)1), sizeof *list->keys.items);
        list->keys.count = n;
        cn_random(hash, sizeof hash);
        for (size_t i = 0; i < n; i++) {
            memcpy(hex, "sha256:", 7);
            cn_hex(hash[i].sha256, sizeof hash[i].sha256, hex + 7);
            list->keys.items[i] = strdup(hex);
            list->key_hashes[i] = hash[i];
        }
        struct cfg c = {.tenants = list, .n_tenants = 1};
        assert_int_equal(cfg_tenants_of(&c, &t, NULL), 0);
        for (size_t i = 0; i < 2 * n; i++)
            assert_int_equal(cfg_tenant_has_key(&t->all[0], cfg_key_id(&hash[i])), i < n);
        cfg_tenants_unref(t);
        cfg_tenant_fini(list);
        free(list);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_last),
        cmocka_unit_test(nobody_is_one),
        cmocka_unit_test(a_file_is_read_again),
        cmocka_unit_test(a_tenant_has_its_keys),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
