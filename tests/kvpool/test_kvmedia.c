/* Items that are no tokens, adapters, and ranges that count only as a whole. */
#include "tests/kvpool/kvcase.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static const struct kv_group all[1] = {{.block_bytes = 64}};

/* Computes the first n items with these options and leaves them in the cache. */
static void keep(struct fix *f, struct kv_seq_opts o, const uint32_t *ids, uint64_t n)
{
    struct kv_seq *q = open_as(f, o);

    found(q, ids, n + 1);
    compute(q, ids, n);
    kv_seq_close(q);
}

/* What a sequence with these options finds of the first n items, and that the look before promises
 * no more. */
static uint64_t finds(struct fix *f, struct kv_seq_opts o, const uint32_t *ids, uint64_t n)
{
    uint64_t ahead = kv_space_peek(f->s, &o, ids, n, NULL), got;
    struct kv_seq *q = open_as(f, o);

    got = found(q, ids, n);
    assert_true(ahead <= got);
    kv_seq_close(q);
    sound(f);
    return got;
}

/* ---- adapters -------------------------------------------------------------------------------- */

/* Equal ids under two adapters: neither finds the other's blocks, waits for them, or counts on
 * them; a fork stays with its adapter. */
static void test_adapters_share_nothing(void **state)
{
    struct fix f = fix_new(32, 1, all);
    struct kv_seq_opts one = {.adapter = 1}, two = {.adapter = 2};
    struct kv_seq *a, *b, *fork;
    uint64_t in_use;

    keep(&f, (struct kv_seq_opts){0}, prompt, 17);
    a = open_as(&f, one);
    b = open_as(&f, two);
    assert_int_equal(found(a, prompt, 18), 0);
    assert_int_equal(kv_seq_extend(a, 17, prompt), 0);
    assert_int_equal(found(b, prompt, 18), 0); /* and no KV_WAIT: a fills other blocks */
    kv_seq_commit(a, prompt, 17);
    assert_int_equal(found(b, prompt, 18), 0);
    assert_int_equal(kv_space_peek(f.s, &one, prompt, 18, &in_use), 16);
    assert_int_equal(in_use, 16);
    assert_int_equal(kv_space_peek(f.s, &two, prompt, 18, NULL), 0);
    assert_int_equal(kv_seq_fork(a, prompt, 17, 64, &fork), 0);
    assert_int_equal(kv_seq_length(fork), 17);
    sound(&f);
    kv_seq_close(fork);
    kv_seq_close(a);
    kv_seq_close(b);
    assert_int_equal(peek(&f, prompt, 18), 16);
    kv_pool_drop_cache(f.p, 0); /* of the tenant: all adapters */
    assert_int_equal(kv_space_peek(f.s, &one, prompt, 18, NULL), 0);
    fix_end(&f);
}

/* Of two sequences with state one leads the other only under the same adapter. */
static void test_adapters_do_not_follow(void **state)
{
    struct fix f = fix_new(64, 2, hybrid);
    struct kv_seq *a = open_as(&f, (struct kv_seq_opts){.adapter = 1});
    struct kv_seq *b = open_as(&f, (struct kv_seq_opts){.adapter = 2});
    struct kv_seq *c = open_as(&f, (struct kv_seq_opts){.adapter = 1});

    found(a, prompt, 41);
    assert_int_equal(kv_seq_match(b, prompt, 41, NULL), KV_GO);
    assert_int_equal(kv_seq_match(c, prompt, 41, NULL), KV_WAIT);
    kv_seq_close(a);
    kv_seq_close(b);
    kv_seq_close(c);
    fix_end(&f);
}

/* ---- media ----------------------------------------------------------------------------------- */

static void test_media_are_known_by_their_digest(void **state)
{
    struct fix f = fix_new(64, 1, all);
    uint8_t digest[3][KV_DIGEST_BYTES] = {{0}};
    uint32_t ids[3][44];

    digest[1][31] = 1; /* the last word is another */
    memcpy(digest[2], digest[0], sizeof(digest[0]));
    for (uint32_t k = 0; k < 3; k++) {
        memcpy(ids[k], prompt, sizeof(ids[k]));
        kv_media_ids(digest[k], 20, ids[k] + 6);
        for (uint32_t i = 6; i < 26; i++)
            assert_true(ids[k][i] & KV_MEDIA);
    }
    keep(&f, (struct kv_seq_opts){0}, ids[0], 40);
    assert_int_equal(finds(&f, (struct kv_seq_opts){0}, ids[2], 40), 39);
    /* words 0 to 6 of the two agree: positions 6 to 12 */
    assert_int_equal(finds(&f, (struct kv_seq_opts){0}, ids[1], 40), 13);
    /* a token of the same number is another item */
    memcpy(ids[1], ids[0], sizeof(ids[0]));
    for (uint32_t i = 6; i < 26; i++)
        ids[1][i] &= ~KV_MEDIA;
    assert_int_equal(finds(&f, (struct kv_seq_opts){0}, ids[1], 40), 6);
    fix_end(&f);
}

/* ---- joined ranges --------------------------------------------------------------------------- */

static void test_range_of_a_cut(void **state)
{
    static const struct kv_range v[] = {{2, 3}, {5, 1}, {6, 4}, {20, 2}};
    static const int at[] = {-1, -1, -1, 0, 0, -1, -1, 2, 2, 2, -1, -1};

    for (uint64_t pos = 0; pos < CN_ARRAY_LEN(at); pos++)
        assert_ptr_equal(kv_range_cut(v, 4, pos), at[pos] < 0 ? NULL : &v[at[pos]]);
    assert_ptr_equal(kv_range_cut(v, 4, 21), &v[3]);
    assert_null(kv_range_cut(v, 4, 22));
    assert_null(kv_range_cut(NULL, 0, 5));
}

/* Positions 6 to 18 are joined: what is cached up to any place inside counts up to 6, and by blocks
 * of four up to 4 and a part of one. */
static void test_hits_end_outside(void **state)
{
    static const struct kv_range range = {6, 13};
    struct kv_seq_opts whole = {.joined = &range, .n_joined = 1};
    uint32_t other[64];

    for (uint64_t n = 1; n < 30; n++) {
        struct fix f = fix_new(64, 1, all);
        uint64_t got;

        memcpy(other, prompt, sizeof(other));
        for (uint32_t i = (uint32_t)n; i < 64; i++)
            other[i] += 1000;
        keep(&f, (struct kv_seq_opts){0}, other, 40);
        got = finds(&f, whole, prompt, 40);
        if (n <= 6)
            assert_int_equal(got, n);
        else if (n < 19) /* of the range's first block nothing is taken where more of it is known */
            assert_in_range(got, 4, 6);
        else
            assert_int_equal(got, n);
        assert_int_equal(finds(&f, (struct kv_seq_opts){0}, prompt, 40), n);
        fix_end(&f);
    }
}

/* With state: no snapshot is wanted inside, so chunks need not end there. */
static void test_no_snapshot_inside(void **state)
{
    static const struct kv_range range = {6, 30};
    struct kv_seq_opts o = {.joined = &range, .n_joined = 1};
    struct fix f = fix_new(64, 2, hybrid);
    struct kv_seq *q = open_as(&f, o);

    found(q, prompt, 38); /* the last block's end is 36, which is the range's */
    assert_int_equal(kv_seq_room(q), 36);
    kv_seq_close(q);
    q = open_as(&f, o);
    found(q, prompt, 36); /* 32 is inside: 4 is the last before */
    assert_int_equal(kv_seq_room(q), 4);
    kv_seq_close(q);
    fix_end(&f);
}

/* While a block behind a range is being filled, the range is not computed again. */
static void test_waits_for_what_ends_a_range(void **state)
{
    static const struct kv_range range = {2, 12};
    struct kv_seq_opts o = {.joined = &range, .n_joined = 1};
    struct fix f = fix_new(64, 1, all);
    struct kv_seq *a = open_as(&f, o), *b = open_as(&f, o);

    found(a, prompt, 30);
    assert_int_equal(kv_seq_extend(a, 14, prompt), 0);
    assert_int_equal(kv_seq_match(b, prompt, 30, NULL), KV_WAIT);
    kv_seq_commit(a, prompt, 14);
    assert_int_equal(kv_seq_extend(a, 6, prompt + 14), 0);
    assert_int_equal(kv_seq_match(b, prompt, 30, NULL), KV_WAIT); /* for block 3, that ends it */
    kv_seq_commit(a, prompt + 14, 6);
    assert_int_equal(found(b, prompt, 30), 20);
    kv_seq_close(a);
    kv_seq_close(b);
    fix_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adapters_share_nothing),
        cmocka_unit_test(test_adapters_do_not_follow),
        cmocka_unit_test(test_media_are_known_by_their_digest),
        cmocka_unit_test(test_range_of_a_cut),
        cmocka_unit_test(test_hits_end_outside),
        cmocka_unit_test(test_no_snapshot_inside),
        cmocka_unit_test(test_waits_for_what_ends_a_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
