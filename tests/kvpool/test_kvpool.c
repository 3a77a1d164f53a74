/* What kvpool promises, case by case. test_kvrandom.c does the combinations. */
#include "kvpool/kvpool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#define BT 4u

struct fix {
    struct kv_pool *p;
    struct kv_space *s;
};

static uint32_t prompt[4096];

static struct fix fix_new(uint32_t n_slabs, uint32_t n_groups, const struct kv_group *groups)
{
    static const struct kv_group one = {.block_bytes = 64};
    struct kv_pool_opts po = {.slab_bytes = 256, .n_slabs = n_slabs};
    struct kv_space_opts so = {.id = "m",
                               .id_len = 1,
                               .block_tokens = BT,
                               .n_groups = n_groups,
                               .groups = groups ? groups : &one};
    struct fix f;

    assert_int_equal(kv_pool_new(&po, &f.p, NULL), 0);
    assert_int_equal(kv_space_add(f.p, &so, &f.s, NULL), 0);
    for (uint32_t i = 0; i < CN_ARRAY_LEN(prompt); i++)
        prompt[i] = i;
    return f;
}

static void sound(struct fix *f)
{
    struct cn_error err = {0};

    if (kv_check(f->p, &err)) fail_msg("%s", err.message);
}

static void fix_end(struct fix *f)
{
    struct kv_stats st;

    sound(f);
    kv_pool_stats(f->p, &st);
    assert_int_equal(st.n_seqs, 0);
    assert_int_equal(st.blocks[KV_FILLING] + st.blocks[KV_READY] + st.blocks[KV_COPYING], 0);
    kv_pool_free(f->p);
}

static uint64_t peek_as(const struct kv_space *s, uint32_t tenant, uint64_t salt,
                        const uint32_t *ids, uint64_t n)
{
    return kv_space_peek(s, &(struct kv_seq_opts){.tenant = tenant, .salt = salt}, ids, n, NULL);
}

static struct kv_seq *open_as(struct fix *f, uint32_t tenant, uint64_t salt, uint32_t flags)
{
    struct kv_seq_opts o = {.tenant = tenant, .salt = salt, .flags = flags, .max_tokens = 2048};
    struct kv_seq *q;

    assert_int_equal(kv_seq_open(f->s, &o, &q), 0);
    return q;
}

static uint64_t found(struct kv_seq *q, const uint32_t *ids, uint64_t n)
{
    uint64_t got;

    assert_int_equal(kv_seq_match(q, ids, n, &got), KV_GO);
    assert_int_equal(kv_seq_length(q), got);
    return got;
}

static void compute(struct kv_seq *q, const uint32_t *ids, uint64_t to)
{
    uint64_t from = kv_seq_planned(q);
    const struct kv_copy *c;

    assert_int_equal(kv_seq_extend(q, (uint32_t)(to - from), ids + from), 0);
    kv_seq_copies(q, &c);
    kv_seq_commit(q, ids + from, (uint32_t)(to - from));
}

/* Puts n tokens of ids into the cache. */
static void warm(struct fix *f, uint32_t tenant, const uint32_t *ids, uint64_t n)
{
    struct kv_seq *q = open_as(f, tenant, 0, 0);

    found(q, ids, n);
    compute(q, ids, n);
    kv_seq_close(q);
}

static void test_prefix_is_found_by_its_tenant_only(void **state)
{
    struct fix f = fix_new(16, 1, NULL);
    struct kv_seq *q;

    warm(&f, 0, prompt, 18);
    q = open_as(&f, 0, 0, 0);
    assert_int_equal(found(q, prompt, 18), 16);
    kv_seq_close(q);
    assert_int_equal(peek_as(f.s, 0, 0, prompt, 18), 16);
    assert_int_equal(peek_as(f.s, 1, 0, prompt, 18), 0);
    q = open_as(&f, 1, 0, 0); /* another tenant */
    assert_int_equal(found(q, prompt, 18), 0);
    kv_seq_close(q);
    q = open_as(&f, 0, 7, 0); /* another salt */
    assert_int_equal(found(q, prompt, 18), 0);
    kv_seq_close(q);
    q = open_as(&f, 0, 0, KV_SEQ_NO_READ);
    assert_int_equal(found(q, prompt, 18), 0);
    kv_seq_close(q);
    fix_end(&f);
}

static void test_other_space_does_not_find(void **state)
{
    struct fix f = fix_new(16, 1, NULL);
    struct kv_group g = {.block_bytes = 64};
    struct kv_space_opts so = {
        .id = "n", .id_len = 1, .block_tokens = BT, .n_groups = 1, .groups = &g};
    struct kv_space *other;

    assert_int_equal(kv_space_add(f.p, &so, &other, NULL), 0);
    warm(&f, 0, prompt, 18);
    assert_int_equal(peek_as(f.s, 0, 0, prompt, 18), 16);
    assert_int_equal(peek_as(other, 0, 0, prompt, 18), 0);
    assert_int_equal(kv_space_drop(other), 0);
    fix_end(&f);
}

static void test_one_token_is_left_and_parts_are_copied(void **state)
{
    struct fix f = fix_new(16, 1, NULL);
    uint32_t other[18];
    const struct kv_copy *c;
    struct kv_seq *q;

    warm(&f, 0, prompt, 16);
    q = open_as(&f, 0, 0, 0);
    assert_int_equal(found(q, prompt, 16), 15); /* three of the last block by copy */
    assert_int_equal(kv_seq_copies(q, &c), 1);
    assert_int_equal(c[0].n_tokens, 3);
    assert_int_equal(c[0].dst, kv_seq_tables(q)[0][3]);
    assert_int_not_equal(c[0].dst, c[0].src);
    assert_int_equal(kv_seq_copies(q, &c), 0);
    assert_int_equal(kv_seq_extend(q, 1, prompt + 15), 0);
    kv_seq_commit(q, prompt + 15, 1);
    kv_seq_close(q);

    memcpy(other, prompt, sizeof(other));
    other[10] = 999; /* diverges inside the third block */
    q = open_as(&f, 0, 0, 0);
    assert_int_equal(found(q, other, 18), 10);
    kv_seq_close(q); /* before the copy was done */
    fix_end(&f);
}

static void test_burst_waits_and_adopts(void **state)
{
    struct fix f = fix_new(16, 1, NULL);
    struct kv_seq *a = open_as(&f, 0, 0, 0), *b = open_as(&f, 0, 0, 0);
    uint64_t got;

    assert_int_equal(found(a, prompt, 20), 0);
    assert_int_equal(kv_seq_extend(a, 16, prompt), 0);
    assert_int_equal(kv_seq_match(b, prompt, 20, &got), KV_WAIT);
    assert_int_equal(kv_seq_match(b, prompt, 20, &got), KV_WAIT);
    sound(&f);
    kv_seq_commit(a, prompt, 16);
    assert_int_equal(kv_seq_match(b, prompt, 20, &got), KV_GO);
    assert_int_equal(got, 16);
    assert_int_equal(kv_seq_tables(a)[0][2], kv_seq_tables(b)[0][2]);
    kv_seq_close(a);
    kv_seq_close(b);
    fix_end(&f);
}

static void test_follower_takes_over(void **state)
{
    struct fix f = fix_new(16, 1, NULL);
    struct kv_seq *a = open_as(&f, 0, 0, 0), *b = open_as(&f, 0, 0, 0), *c = open_as(&f, 0, 0, 0);

    assert_int_equal(kv_seq_extend(a, 16, prompt), 0);
    assert_int_equal(kv_seq_match(b, prompt, 20, NULL), KV_WAIT);
    assert_int_equal(kv_seq_match(c, prompt, 20, NULL), KV_WAIT);
    kv_seq_close(a); /* gives up */
    assert_int_equal(kv_seq_match(c, prompt, 20, NULL), KV_GO);
    assert_int_equal(kv_seq_extend(c, 16, prompt), 0);
    assert_int_equal(kv_seq_match(b, prompt, 20, NULL), KV_WAIT);
    kv_seq_commit(c, prompt, 16);
    assert_int_equal(found(b, prompt, 20), 16);
    kv_seq_close(b);
    kv_seq_close(c);
    fix_end(&f);
}

static void test_collisions_are_no_hits(void **state)
{
    struct kv_pool_opts po = {.slab_bytes = 4096, .n_slabs = 64, .hash_bits = 1};
    struct kv_group g = {.block_bytes = 64};
    struct kv_space_opts so = {
        .id = "m", .id_len = 1, .block_tokens = BT, .n_groups = 1, .groups = &g};
    struct fix f;
    uint32_t ids[9];

    assert_int_equal(kv_pool_new(&po, &f.p, NULL), 0);
    assert_int_equal(kv_space_add(f.p, &so, &f.s, NULL), 0);
    for (uint32_t i = 0; i < 100; i++) {
        for (uint32_t k = 0; k < 9; k++)
            ids[k] = i * 16 + k;
        assert_int_equal(peek_as(f.s, 0, 0, ids, 9), 0);
        warm(&f, 0, ids, 9);
        assert_int_equal(peek_as(f.s, 0, 0, ids, 9), 8);
    }
    fix_end(&f);
}

static void test_windows_count_in_a_hit(void **state)
{
    struct kv_group g[2] = {{.block_bytes = 64}, {KV_SPAN_WINDOW, 6, 64}};
    struct fix f = fix_new(7, 2, g); /* 28 blocks */
    struct kv_seq *q;
    struct kv_stats st;

    warm(&f, 0, prompt, 33); /* 8 full, and of the window's what was not needed for others */
    kv_pool_stats(f.p, &st);
    assert_int_equal(st.blocks[KV_CACHED], 16);
    q = open_as(&f, 0, 0, 0);
    assert_int_equal(found(q, prompt, 33), 32);
    /* a row at 32 sees 27..32: of the window group only block 6 and 7 */
    assert_int_equal(kv_seq_tables(q)[1][5], KV_NO_BLOCK);
    assert_int_not_equal(kv_seq_tables(q)[1][6], KV_NO_BLOCK);
    assert_int_equal(kv_seq_n_blocks(q), 10);
    kv_seq_close(q);

    /* another sequence takes the window group's oldest blocks; the full ones stay */
    q = open_as(&f, 1, 0, KV_SEQ_NO_WRITE);
    assert_int_equal(kv_seq_extend(q, 4 * 9, NULL), 0);
    sound(&f);
    kv_seq_close(q);
    q = open_as(&f, 0, 0, 0);
    kv_seq_match(q, prompt, 33, NULL);
    for (uint64_t i = 0; i * BT < kv_seq_length(q); i++) {
        if ((i + 1) * BT + 5 > kv_seq_length(q))
            assert_int_not_equal(kv_seq_tables(q)[1][i], KV_NO_BLOCK);
    }
    kv_seq_close(q);
    fix_end(&f);
}

static void test_lost_window_blocks_are_refilled(void **state)
{
    struct kv_group g[2] = {{.block_bytes = 32}, {KV_SPAN_WINDOW, 6, 64}};
    struct fix f = fix_new(6, 2, g);
    struct kv_seq *a, *b;
    uint64_t got;

    warm(&f, 0, prompt, 33);
    a = open_as(&f, 1, 0, 0); /* pushes all window blocks of tenant 0 out */
    for (uint32_t i = 0; i < 64; i += 4) {
        if (kv_seq_extend(a, 4, prompt + 1000 + i)) break;
    }
    kv_seq_close(a);
    a = open_as(&f, 0, 0, 0);
    b = open_as(&f, 0, 0, 0);
    kv_seq_match(a, prompt, 33, &got);
    assert_true(got < 32);
    {
        uint64_t from = kv_seq_planned(a);

        assert_int_equal(kv_seq_extend(a, (uint32_t)(32 - from), prompt + from), 0);
        assert_int_equal(kv_seq_match(b, prompt, 33, NULL), KV_WAIT); /* computed once again too */
        sound(&f);
        kv_seq_commit(a, prompt + from, (uint32_t)(32 - from));
        sound(&f);
        assert_int_equal(kv_seq_match(b, prompt, 33, NULL), KV_GO);
        assert_int_equal(kv_seq_length(b), 32);
    }
    kv_seq_close(a);
    kv_seq_close(b);
    fix_end(&f);
}

static void test_eviction_is_lru_from_the_leaves(void **state)
{
    struct fix f = fix_new(4, 1, NULL); /* 16 blocks */
    struct kv_seq *q;

    warm(&f, 0, prompt, 24);       /* 6 blocks */
    warm(&f, 0, prompt + 100, 24); /* 6 */
    warm(&f, 0, prompt, 24);       /* used again: now the younger */
    q = open_as(&f, 0, 0, 0);
    assert_int_equal(kv_seq_extend(q, 7 * BT, prompt + 200), 0); /* 4 free, 3 evicted */
    assert_int_equal(peek_as(f.s, 0, 0, prompt, 25), 24);
    assert_int_equal(peek_as(f.s, 0, 0, prompt + 100, 25), 12);
    kv_seq_close(q);
    fix_end(&f);
}

static void test_reserve_is_kept(void **state)
{
    struct fix f = fix_new(4, 1, NULL); /* 16 blocks of 64 bytes */
    struct kv_seq *q;

    assert_int_equal(kv_pool_reserve(f.p, 0, 4 * 64), 0);
    warm(&f, 0, prompt, 33); /* 8 blocks cached: 4 of them borrowed */
    q = open_as(&f, 1, 0, 0);
    assert_int_equal(kv_seq_extend(q, 12 * BT, prompt + 500), 0);
    assert_int_equal(peek_as(f.s, 0, 0, prompt, 33), 16);
    assert_int_equal(kv_seq_extend(q, 1, prompt + 600), CN_ENOMEM);
    assert_int_equal(peek_as(f.s, 0, 0, prompt, 33), 16);
    sound(&f);
    kv_seq_close(q);
    q = open_as(&f, 0, 0, 0); /* its own it may evict */
    assert_int_equal(kv_seq_extend(q, 16 * BT, prompt + 700), 0);
    kv_seq_close(q);
    assert_int_equal(kv_pool_reserve(f.p, 1, 13 * 64), CN_ERANGE);
    fix_end(&f);
}

static void test_full_pool_changes_nothing(void **state)
{
    struct fix f = fix_new(2, 1, NULL); /* 8 blocks */
    struct kv_seq *q = open_as(&f, 0, 0, 0);

    assert_int_equal(kv_seq_extend(q, 5 * BT, prompt), 0);
    assert_int_equal(kv_seq_extend(q, 4 * BT, prompt + 20), CN_ENOMEM);
    assert_int_equal(kv_seq_planned(q), 20);
    sound(&f);
    assert_int_equal(kv_seq_extend(q, 3 * BT, prompt + 20), 0);
    assert_int_equal(kv_seq_extend(q, 2048, NULL), CN_ERANGE);
    kv_seq_close(q);
    fix_end(&f);
}

static void test_blocks_in_flight_stay(void **state)
{
    struct fix f = fix_new(2, 1, NULL);
    struct kv_seq *q = open_as(&f, 0, 0, 0);
    struct kv_stats st;

    assert_int_equal(kv_seq_extend(q, 8 * BT, prompt), 0);
    kv_pool_launched(f.p, 5);
    kv_seq_close(q);
    kv_pool_stats(f.p, &st);
    assert_int_equal(st.blocks[KV_FREE], 0);
    sound(&f);
    kv_pool_retired(f.p, 5);
    kv_pool_stats(f.p, &st);
    assert_int_equal(st.blocks[KV_FREE], 8);
    fix_end(&f);
}

static void test_failed_sequence_leaves_nothing(void **state)
{
    struct fix f = fix_new(16, 1, NULL);
    struct kv_seq *q, *r;

    warm(&f, 0, prompt, 9); /* two good blocks */
    q = open_as(&f, 0, 0, 0);
    assert_int_equal(found(q, prompt, 40), 8);
    compute(q, prompt, 40);
    r = open_as(&f, 0, 0, 0);
    assert_int_equal(found(r, prompt, 41), 40); /* uses what is bad */
    kv_seq_close_failed(q);
    sound(&f);
    assert_int_equal(peek_as(f.s, 0, 0, prompt, 41), 8);
    compute(r, prompt, 60);
    sound(&f);
    kv_seq_close(r);
    assert_int_equal(peek_as(f.s, 0, 0, prompt, 61), 8);
    fix_end(&f);
}

static void test_fork_shares_and_copies(void **state)
{
    struct fix f = fix_new(16, 1, NULL);
    struct kv_seq *q = open_as(&f, 0, 0, 0), *c;
    const struct kv_copy *copy;

    compute(q, prompt, 15);
    assert_int_equal(kv_seq_fork(q, prompt, 14, 2048, &c), 0);
    assert_int_equal(kv_seq_length(c), 14);
    assert_int_equal(kv_seq_tables(c)[0][2], kv_seq_tables(q)[0][2]);
    assert_int_not_equal(kv_seq_tables(c)[0][3], kv_seq_tables(q)[0][3]);
    assert_int_equal(kv_seq_copies(c, &copy), 1);
    assert_int_equal(copy->src, kv_seq_tables(q)[0][3]);
    assert_int_equal(copy->n_tokens, 2);
    kv_seq_close(q); /* the source stays */
    sound(&f);
    kv_seq_close(c);
    fix_end(&f);
}

static void test_truncate(void **state)
{
    struct fix f = fix_new(16, 1, NULL);
    struct kv_seq *q = open_as(&f, 0, 0, 0);
    uint32_t before, other[20];
    const struct kv_copy *copy;

    compute(q, prompt, 18);
    before = kv_seq_tables(q)[0][2];
    assert_int_equal(kv_seq_truncate(q, 10), 0); /* inside a block of the tree */
    assert_int_equal(kv_seq_length(q), 10);
    assert_int_not_equal(kv_seq_tables(q)[0][2], before);
    assert_int_equal(kv_seq_copies(q, &copy), 1);
    assert_int_equal(copy->src, before);
    assert_int_equal(copy->n_tokens, 2);
    sound(&f);
    memcpy(other, prompt, sizeof(other));
    other[10] = other[11] = 77;
    compute(q, other, 13);
    assert_int_equal(peek_as(f.s, 0, 0, prompt, 17), 16); /* it is still there */
    assert_int_equal(peek_as(f.s, 0, 0, other, 13), 12);
    kv_seq_close(q);
    fix_end(&f);
}

/* Rows that were to fill a block are forgotten: nobody waits for it any more. */
static void test_truncate_withdraws(void **state)
{
    struct fix f = fix_new(16, 1, NULL);
    struct kv_seq *q = open_as(&f, 0, 0, 0), *other = open_as(&f, 0, 0, 0);

    compute(q, prompt, 7);
    assert_int_equal(kv_seq_extend(q, 1, prompt + 7), 0); /* a whole block with it: announced */
    assert_int_equal(kv_seq_match(other, prompt, 12, NULL), KV_WAIT);
    assert_int_equal(kv_seq_truncate(q, 7), 0);
    assert_int_equal(kv_seq_match(other, prompt, 12, NULL), KV_GO);
    sound(&f);
    kv_seq_close(other);
    kv_seq_close(q);
    fix_end(&f);
}

static void test_share_bound(void **state)
{
    struct fix f = fix_new(16, 1, NULL);
    struct kv_seq_opts o = {.max_tokens = 100, .share_tokens = 9};
    struct kv_seq *q;

    assert_int_equal(kv_seq_open(f.s, &o, &q), 0);
    compute(q, prompt, 30);
    kv_seq_close(q);
    assert_int_equal(peek_as(f.s, 0, 0, prompt, 31), 8);
    fix_end(&f);
}

static void test_fitting(void **state)
{
    struct kv_group g[2] = {{.block_bytes = 64}, {KV_SPAN_WINDOW, 8, 128}};
    struct fix f = fix_new(10, 2, g);
    uint64_t need, have, most = kv_space_max_tokens(f.s, 0, 16);
    struct kv_seq *q = open_as(&f, 0, 0, 0);

    /* window: span 7 + 16 tokens = 6 blocks and one more = 7, two a slab = 4 slabs; 6 * 4 full */
    assert_int_equal(most, 96);
    kv_space_need(f.s, 0, 97, 16, &need, &have);
    assert_int_equal(need, 11);
    assert_int_equal(have, 10);
    for (uint64_t at = 0; at < most; at += 16) /* and it does fit */
        compute(q, prompt, at + 16);
    kv_seq_close(q);
    kv_pool_make_room(f.p, 0, true);
    assert_int_equal(kv_pool_reserve(f.p, 1, 256), 0);
    assert_int_equal(kv_space_max_tokens(f.s, 0, 16), 80);
    assert_int_equal(kv_space_max_tokens(f.s, 1, 16), 96);
    fix_end(&f);
}

/* Computes n of the prompt for a tenant, which then are cached. */
static void cache(struct fix *f, uint32_t tenant, uint64_t salt, uint64_t n)
{
    struct kv_seq *q = open_as(f, tenant, salt, 0);

    compute(q, prompt, n);
    kv_seq_close(q);
}

static uint64_t cached_bytes(const struct fix *f, uint32_t tenant)
{
    struct kv_tenant_stats st;

    kv_tenant_stats(f->p, tenant, &st);
    return st.cached_bytes;
}

static void test_drop_is_of_one_tenant(void **state)
{
    struct kv_group g[2] = {{.block_bytes = 64}, {KV_SPAN_WINDOW, 8, 64}};
    struct fix f = fix_new(64, 2, g);
    uint64_t others;

    for (uint32_t t = 0; t < 3; t++)
        cache(&f, t, t == 1 ? 7 : 0, 32);
    others = cached_bytes(&f, 0);
    assert_true(others > 0 && others == cached_bytes(&f, 2));
    struct kv_seq *q = open_as(&f, 1, 7, 0);
    uint64_t had = found(q, prompt, 33);
    assert_true(had > 0);
    kv_pool_drop_cache(f.p, 1); /* what q uses stays */
    sound(&f);
    assert_int_equal(peek_as(f.s, 1, 7, prompt, 33), had);
    kv_seq_close(q);
    kv_pool_drop_cache(f.p, 1);
    sound(&f);
    assert_int_equal(cached_bytes(&f, 1), 0);
    assert_int_equal(peek_as(f.s, 1, 7, prompt, 33), 0);
    for (uint32_t t = 0; t < 3; t += 2) {
        assert_int_equal(cached_bytes(&f, t), others);
        assert_true(peek_as(f.s, t, 0, prompt, 33) > 0);
    }
    kv_pool_drop_cache(f.p, 99); /* nobody */
    fix_end(&f);
}

/* The planted prompt: equal to what the tenant before had cached under the same number. */
static void test_number_is_used_again(void **state)
{
    struct fix f = fix_new(64, 1, NULL);
    struct kv_seq *q;

    assert_int_equal(kv_pool_reserve(f.p, 1, 1024), 0);
    cache(&f, 0, 0, 40);
    cache(&f, 1, 0, 40);
    cache(&f, 1, 5, 40);
    q = open_as(&f, 1, 0, 0);
    assert_int_equal(found(q, prompt, 41), 40);
    assert_int_equal(kv_pool_tenant_end(f.p, 1), CN_EBUSY);
    assert_int_equal(kv_seq_extend(q, 2, NULL), 0);
    kv_pool_launched(f.p, 1);
    kv_seq_close(q); /* its step is in flight */
    assert_int_equal(kv_pool_tenant_end(f.p, 1), CN_EBUSY);
    sound(&f);
    assert_int_equal(peek_as(f.s, 1, 0, prompt, 41), 40);
    kv_pool_retired(f.p, 1);
    assert_int_equal(kv_pool_tenant_end(f.p, 1), 0);
    sound(&f);
    assert_int_equal(peek_as(f.s, 1, 0, prompt, 41), 0);
    assert_int_equal(peek_as(f.s, 1, 5, prompt, 41), 0);
    assert_int_equal(peek_as(f.s, 0, 0, prompt, 41), 40);
    q = open_as(&f, 1, 0, 0); /* another tenant */
    assert_int_equal(found(q, prompt, 41), 0);
    compute(q, prompt, 40);
    kv_seq_close(q);
    assert_int_equal(peek_as(f.s, 1, 0, prompt, 41), 40);
    assert_int_equal(kv_pool_reserve(f.p, 2, 64 * 256), 0); /* the reserve was given back */
    assert_int_equal(kv_pool_tenant_end(f.p, 99), 0);
    fix_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefix_is_found_by_its_tenant_only),
        cmocka_unit_test(test_other_space_does_not_find),
        cmocka_unit_test(test_one_token_is_left_and_parts_are_copied),
        cmocka_unit_test(test_burst_waits_and_adopts),
        cmocka_unit_test(test_follower_takes_over),
        cmocka_unit_test(test_collisions_are_no_hits),
        cmocka_unit_test(test_windows_count_in_a_hit),
        cmocka_unit_test(test_lost_window_blocks_are_refilled),
        cmocka_unit_test(test_eviction_is_lru_from_the_leaves),
        cmocka_unit_test(test_reserve_is_kept),
        cmocka_unit_test(test_full_pool_changes_nothing),
        cmocka_unit_test(test_blocks_in_flight_stay),
        cmocka_unit_test(test_failed_sequence_leaves_nothing),
        cmocka_unit_test(test_fork_shares_and_copies),
        cmocka_unit_test(test_truncate),
        cmocka_unit_test(test_truncate_withdraws),
        cmocka_unit_test(test_share_bound),
        cmocka_unit_test(test_fitting),
        cmocka_unit_test(test_drop_is_of_one_tenant),
        cmocka_unit_test(test_number_is_used_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
