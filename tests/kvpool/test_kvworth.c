/* Snapshots and memory: what is evicted for what, and what keeps the tree bounded. */
#include "tests/kvpool/kvcase.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static void test_the_cheapest_goes_first(void **state)
{
    static const uint64_t marks[] = {40, 44};
    struct fix f = fix_new(3, 1, pure); /* 6 states */
    struct kv_seq *q = open_as(&f, (struct kv_seq_opts){.marks = marks, .n_marks = 2});
    struct kv_seq *r[3];

    found(q, prompt, 102);
    compute(q, prompt, 102); /* at 40, 44, 100 */
    kv_seq_close(q);
    warm(&f, prompt + 1000, 13); /* at 12 */
    assert_int_equal(taken(&f), 4);
    for (int i = 0; i < 3; i++)
        r[i] = open_seq(&f);
    by_ones(r[0], prompt + 2000, 1);
    by_ones(r[1], prompt + 2000, 1);
    assert_int_equal(peek(&f, prompt, 50), 44);
    by_ones(r[2], prompt + 2000, 1); /* 44 saves 4 tokens */
    assert_int_equal(peek(&f, prompt, 50), 40);
    assert_int_equal(peek(&f, prompt + 1000, 20), 12);
    kv_seq_close(r[0]);
    r[0] = open_seq(&f);
    by_ones(r[0], prompt + 2000, 1);
    assert_int_equal(peek(&f, prompt + 1000, 20), 12); /* it had been free */
    q = open_seq(&f);
    by_ones(q, prompt + 2000, 1); /* then the one that saves 12 */
    assert_int_equal(peek(&f, prompt + 1000, 20), 0);
    assert_int_equal(peek(&f, prompt, 50), 40);
    assert_int_equal(peek(&f, prompt, 102), 100);
    kv_seq_close(q);
    for (int i = 0; i < 3; i++)
        kv_seq_close(r[i]);
    fix_end(&f);
}

static void test_what_is_used_lasts(void **state)
{
    struct fix f = fix_new(2, 1, pure); /* 4 states */
    struct kv_seq *q;

    warm(&f, prompt, 401); /* saves much, and is never used again */
    for (uint32_t i = 0; i < 60; i++) {
        uint32_t at = 500 + 40 * i;

        warm(&f, prompt + at, 22);
        assert_int_equal(peek(&f, prompt + at, 22), 20);
    }
    assert_int_equal(peek(&f, prompt, 401), 0); /* in the end it goes */
    warm(&f, prompt, 401);
    for (uint32_t i = 0; i < 60; i++) {
        q = open_seq(&f);
        assert_int_equal(found(q, prompt, 401), 400);
        kv_seq_close(q);
        warm(&f, prompt + 500 + 40 * i, 22);
    }
    fix_end(&f);
}

static void test_a_snapshot_being_read_stays(void **state)
{
    struct fix f = fix_new(2, 1, pure);
    struct kv_seq *q, *r[3];
    const struct kv_copy *c;

    warm(&f, prompt, 9);
    q = open_seq(&f);
    assert_int_equal(found(q, prompt, 9), 8);
    assert_int_equal(kv_seq_copies(q, &c), 1);
    for (int i = 0; i < 3; i++)
        r[i] = open_seq(&f);
    by_ones(r[0], prompt + 100, 1);
    by_ones(r[1], prompt + 100, 1);
    assert_int_equal(kv_seq_extend(r[2], 1, prompt + 100), CN_ENOMEM);
    by_ones(q, prompt, 9); /* the copy is done: now it may go */
    assert_int_equal(kv_seq_extend(r[2], 1, prompt + 100), 0);
    assert_int_equal(peek(&f, prompt, 9), 0);
    sound(&f);
    kv_seq_close(q);
    for (int i = 0; i < 3; i++)
        kv_seq_close(r[i]);
    fix_end(&f);
}

static void test_no_room_to_adopt(void **state)
{
    struct fix f = fix_new(1, 1, pure);
    struct kv_seq *q, *r = open_seq(&f);

    warm(&f, prompt, 8); /* one state cached */
    by_ones(r, prompt + 100, 1);
    q = open_seq(&f);
    assert_int_equal(found(q, prompt, 10), 0); /* no place for a state of its own */
    assert_int_equal(kv_seq_length(q), 0);
    sound(&f);
    assert_int_equal(peek(&f, prompt, 10), 8);
    kv_seq_close(r);
    assert_int_equal(found(q, prompt, 10), 8);
    kv_seq_close(q);
    fix_end(&f);
}

static void test_a_reserve_keeps_snapshots(void **state)
{
    struct fix f = fix_new(2, 1, pure);
    struct kv_seq *q[3];

    assert_int_equal(kv_pool_reserve(f.p, 0, 256), 0);
    warm(&f, prompt, 8);
    warm(&f, prompt + 100, 8);
    for (int i = 0; i < 3; i++)
        q[i] = open_as(&f, (struct kv_seq_opts){.tenant = 1});
    by_ones(q[0], prompt + 200, 1);
    by_ones(q[1], prompt + 200, 1);
    assert_int_equal(kv_seq_extend(q[2], 1, prompt + 200), CN_ENOMEM);
    assert_int_equal(peek(&f, prompt, 10), 8);
    for (int i = 0; i < 3; i++)
        kv_seq_close(q[i]);
    fix_end(&f);
}

static void test_states_and_blocks_lend_each_other(void **state)
{
    struct fix f = fix_new(4, 2, hybrid);
    struct kv_seq *q = open_seq(&f), *r = open_seq(&f), *s;
    struct kv_stats st;

    by_ones(q, prompt, 47); /* 12 blocks in three slabs, a state in the fourth */
    kv_seq_close(q);
    found(r, prompt + 100, 4 * 8 + 1);
    compute(r, prompt + 100, 33); /* 9 blocks: the older ones go, and a snapshot finds room */
    kv_pool_stats(f.p, &st);
    assert_int_equal(st.snapshots_taken, 1);
    kv_seq_close(r);
    r = open_seq(&f);
    q = open_seq(&f);
    by_ones(q, prompt + 300, 1);
    by_ones(r, prompt + 400, 1);
    sound(&f);
    assert_int_equal(peek(&f, prompt + 100, 33), 0); /* the snapshot was evicted for one */
    s = open_seq(&f);
    by_ones(s, prompt + 500, 1); /* and blocks for another */
    sound(&f);
    kv_seq_close(q);
    kv_seq_close(r);
    kv_seq_close(s);
    fix_end(&f);
}

static void test_a_tree_without_blocks_is_bounded(void **state)
{
    struct kv_pool_opts po = {.slab_bytes = 256, .n_slabs = 8, .max_thin_nodes = 100};
    struct kv_space_opts so = {
        .id = "m", .id_len = 1, .block_tokens = BT, .n_groups = 1, .groups = pure};
    struct fix f;
    struct kv_stats st;
    struct kv_seq *q;

    f = fix_new(8, 1, pure);
    q = open_seq(&f);
    by_ones(q, prompt, 62); /* no snapshot: nothing leads to it, nothing stays */
    kv_seq_close(q);
    kv_pool_stats(f.p, &st);
    assert_int_equal(st.n_nodes, 0);
    warm(&f, prompt, 102);
    kv_pool_stats(f.p, &st);
    assert_int_equal(st.n_nodes, 25);
    fix_end(&f);

    assert_int_equal(kv_pool_new(&po, &f.p, NULL), 0);
    assert_int_equal(kv_space_add(f.p, &so, &f.s, NULL), 0);
    for (uint32_t i = 0; i < 10; i++) { /* 40 nodes each */
        warm(&f, prompt + 200 * i, 162);
        kv_pool_stats(f.p, &st);
        assert_true(st.n_nodes <= 100);
        assert_int_equal(peek(&f, prompt + 200 * i, 162), 160);
        sound(&f);
    }
    q = open_seq(&f); /* longer than all that may be */
    by_ones(q, prompt, 500);
    kv_pool_stats(f.p, &st);
    assert_true(st.n_nodes <= 100);
    kv_seq_close(q);
    fix_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_cheapest_goes_first),
        cmocka_unit_test(test_what_is_used_lasts),
        cmocka_unit_test(test_a_snapshot_being_read_stays),
        cmocka_unit_test(test_no_room_to_adopt),
        cmocka_unit_test(test_a_reserve_keeps_snapshots),
        cmocka_unit_test(test_states_and_blocks_lend_each_other),
        cmocka_unit_test(test_a_tree_without_blocks_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
