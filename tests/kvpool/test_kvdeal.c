/* A pool that lends at load only: slabs are dealt when a space comes or goes, and no group gets one
 * in between. test_kvrandom.c does the combinations. */
#include "kvpool/kvpool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { BT = 4, SLABS = 32, LONGEST = 200, CHUNK = 8 };

static uint32_t prompt[4096];
static const struct kv_group plain[1] = {{.block_bytes = 64}};
static const struct kv_group windowed[2] = {{.block_bytes = 64}, {KV_SPAN_WINDOW, 6, 64}};
static const struct kv_group hybrid[2] = {{.block_bytes = 64}, {KV_SPAN_STATE, BT, 128}};

static struct kv_pool *pool_new(void)
{
    struct kv_pool_opts o = {.slab_bytes = 256, .n_slabs = SLABS, .lend_at_load = true};
    struct kv_pool *p;

    assert_int_equal(kv_pool_new(&o, &p, NULL), 0);
    for (uint32_t i = 0; i < CN_ARRAY_LEN(prompt); i++)
        prompt[i] = i;
    return p;
}

static struct kv_space *add(struct kv_pool *p, const char *id, const struct kv_group *groups,
                            uint32_t n, uint64_t longest)
{
    struct kv_space_opts o = {.id = id,
                              .id_len = 1,
                              .block_tokens = BT,
                              .n_groups = n,
                              .groups = groups,
                              .longest = longest,
                              .chunk_tokens = CHUNK};
    struct kv_space *s;

    assert_int_equal(kv_space_add(p, &o, &s, NULL), 0);
    return s;
}

static void sound(struct kv_pool *p)
{
    struct cn_error err = {0};

    if (kv_check(p, &err)) fail_msg("%s", err.message);
}

static struct kv_seq *seq(struct kv_space *s, uint32_t tenant, uint64_t max_tokens)
{
    struct kv_seq_opts o = {.tenant = tenant, .max_tokens = max_tokens};
    struct kv_seq *q;

    assert_int_equal(kv_seq_open(s, &o, &q), 0);
    return q;
}

/* In steps of CHUNK rows; the length that it reached. */
static uint64_t grow(struct kv_seq *q, const uint32_t *ids, uint64_t to)
{
    const struct kv_copy *c;

    kv_seq_match(q, ids, to, NULL);
    while (kv_seq_planned(q) < to) {
        const uint32_t *at = ids + kv_seq_planned(q);
        uint32_t n = (uint32_t)CN_MIN(to - kv_seq_planned(q), (uint64_t)CHUNK);

        if (kv_seq_extend(q, n, at)) break;
        kv_seq_copies(q, &c);
        kv_seq_commit(q, at, n);
    }
    return kv_seq_length(q);
}

static uint64_t free_slabs(struct kv_pool *p)
{
    struct kv_stats st;

    sound(p);
    kv_pool_stats(p, &st);
    return st.n_slabs_free;
}

/* All slabs are dealt, to groups of whatever kind, and the longest sequence fits to the token. */
static void test_the_longest_fits(void **state)
{
    static const struct {
        const struct kv_group *groups;
        uint32_t n;
    } kinds[] = {{plain, 1}, {windowed, 2}, {hybrid, 2}};
    struct kv_pool *p = pool_new();

    for (size_t i = 0; i < CN_ARRAY_LEN(kinds); i++) {
        assert_int_equal(free_slabs(p), SLABS);
        struct kv_space *s = add(p, "m", kinds[i].groups, kinds[i].n, LONGEST);
        uint64_t most = kv_space_max_tokens(s, 0, CHUNK);

        assert_int_equal(free_slabs(p), 0);
        assert_true(most >= LONGEST && most < SLABS * 4 * BT + 1);
        struct kv_seq *q = seq(s, 0, 2048);
        assert_int_equal(grow(q, prompt, most), most);
        sound(p);
        kv_seq_close(q);
        assert_int_equal(kv_space_drop(s), 0);
    }
    kv_pool_free(p);
}

/* The window's group runs out of blocks while most slabs of the other one are empty: none of them
 * is lent. */
static void test_no_slab_is_lent_while_serving(void **state)
{
    struct kv_pool *p = pool_new();
    struct kv_space *s = add(p, "m", windowed, 2, LONGEST);
    struct kv_seq *q[SLABS];
    uint32_t n = 0;
    struct kv_stats st;

    for (int round = 0; round < 2;
         round++) { /* of another tenant, who evicts what the first left */
        do
            q[n] = seq(s, round, 64);
        while (grow(q[n], prompt + 64 * n, 8) == 8 && ++n < SLABS - 1);
        assert_in_range(n, 3, 8);
        kv_pool_stats(p, &st);
        assert_true(st.bytes[KV_FREE] >= SLABS * 256 * 3 / 4);
        assert_int_equal(kv_seq_extend(q[n], 8, NULL), CN_ENOMEM);
        sound(p);
        for (uint32_t i = 0; i <= n; i++)
            kv_seq_close(q[i]);
        n = 0;
    }
    assert_int_equal(free_slabs(p), 0);
    kv_pool_free(p);
}

/* A second model gets half of the slabs: the first one's cache makes way, its sequences and what a
 * reserve keeps do not. */
static void test_a_model_comes_and_goes(void **state)
{
    struct kv_pool *p = pool_new();
    struct kv_space *a = add(p, "a", plain, 1, LONGEST), *b;
    uint64_t all = kv_space_max_tokens(a, 0, CHUNK);
    struct kv_seq *kept, *q;
    struct kv_tenant_stats t;
    uint32_t blocks[10];

    assert_int_equal(all, SLABS * 4 * BT);
    assert_int_equal(kv_pool_reserve(p, 1, 256 * 4), 0);
    q = seq(a, 1, 100); /* ten blocks in the cache, and kept there */
    assert_int_equal(grow(q, prompt, 40), 40);
    kv_seq_close(q);
    kept = seq(a, 0, 100);
    assert_int_equal(grow(kept, prompt + 500, 40), 40);
    for (int i = 0; i < 10; i++)
        blocks[i] = kv_seq_tables(kept)[0][i];
    q = seq(a, 0, 2048);
    assert_true(grow(q, prompt + 1000, 400) == 400); /* most of the rest */
    kv_seq_close(q);
    b = add(p, "b", windowed, 2, LONGEST);
    assert_int_equal(free_slabs(p), 0);
    assert_int_equal(kv_space_max_tokens(a, 1, CHUNK), all / 2);
    assert_in_range(kv_space_max_tokens(b, 1, CHUNK), 150, all / 2);
    kv_tenant_stats(p, 1, &t);
    assert_int_equal(t.cached_bytes, 10 * 64);
    for (int i = 0; i < 10; i++)
        assert_int_equal(kv_seq_tables(kept)[0][i], blocks[i]);
    assert_int_equal(grow(kept, prompt + 500, 100), 100);
    q = seq(b, 0, 2048);
    assert_true(grow(q, prompt, 150) == 150);
    kv_seq_close(q);
    sound(p);
    assert_int_equal(kv_space_drop(b), 0);
    assert_int_equal(kv_space_max_tokens(a, 1, CHUNK), all);
    kv_seq_close(kept);
    assert_int_equal(free_slabs(p), 0);
    kv_pool_free(p);
}

/* What an open sequence may come to need is not dealt to others, though it is empty. */
static void test_sequences_keep_what_they_need(void **state)
{
    struct kv_pool *p = pool_new();
    struct kv_space *a = add(p, "a", plain, 1, LONGEST), *b;
    uint64_t want = (SLABS - 3) * 4 * BT;
    struct kv_seq *q = seq(a, 0, want);

    assert_int_equal(grow(q, prompt, BT), BT);
    b = add(p, "b", plain, 1, LONGEST);
    assert_int_equal(kv_space_max_tokens(b, 0, CHUNK), 3 * 4 * BT);
    assert_int_equal(grow(q, prompt, want), want);
    kv_seq_close(q);
    sound(p);
    assert_int_equal(kv_space_drop(b), 0);
    b = add(p, "b", plain, 1, LONGEST);
    assert_int_equal(kv_space_max_tokens(b, 0, CHUNK), SLABS / 2 * 4 * BT);
    kv_pool_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_longest_fits),
        cmocka_unit_test(test_no_slab_is_lent_while_serving),
        cmocka_unit_test(test_a_model_comes_and_goes),
        cmocka_unit_test(test_sequences_keep_what_they_need),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
