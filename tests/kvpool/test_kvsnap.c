/* Snapshots of recurrent state: where they are taken, who finds them, what becomes of them when a
 * sequence goes back, branches off or fails. What the copies bring is checked by
 * test_kvrandom.c. */
#include "tests/kvpool/kvcase.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

/* ---- where they are taken -------------------------------------------------------------------- */

static void test_the_last_place_of_a_prompt(void **state)
{
    struct fix f = fix_new(16, 2, hybrid);
    struct kv_seq *q = open_seq(&f);
    const struct kv_copy *c;
    uint32_t live;

    assert_int_equal(found(q, prompt, 18), 0);
    assert_int_equal(kv_seq_room(q), 16);
    assert_int_equal(kv_seq_extend(q, 16, prompt), 0);
    assert_int_equal(kv_seq_copies(q, &c), 0);
    kv_seq_commit(q, prompt, 16);
    assert_int_equal(peek(&f, prompt, 18), 0);
    assert_int_equal(kv_seq_extend(q, 2, prompt + 16), 0);
    assert_int_equal(kv_seq_copies(q, &c), 1); /* before the rows behind it */
    assert_int_equal(c->group, STATE);
    assert_int_equal(c->src, kv_seq_tables(q)[STATE][0]);
    assert_int_not_equal(c->dst, c->src);
    assert_int_equal(kv_seq_copies(q, &c), 0);
    sound(&f);
    assert_int_equal(peek(&f, prompt, 18), 0); /* not before it is done */
    kv_seq_commit(q, prompt + 16, 2);
    assert_int_equal(peek(&f, prompt, 18), 16);
    assert_int_equal(peek(&f, prompt, 16), 0); /* a token must be left */
    kv_seq_close(q);

    q = open_seq(&f);
    assert_int_equal(found(q, prompt, 18), 16);
    live = kv_seq_tables(q)[STATE][0];
    assert_int_equal(kv_seq_copies(q, &c), 1);
    assert_int_equal(c->group, STATE);
    assert_int_equal(c->dst, live);
    assert_int_equal(kv_seq_room(q), UINT64_MAX);
    kv_seq_close(q);
    fix_end(&f);
}

static void test_a_branch_on_its_second_visit(void **state)
{
    struct fix f = fix_new(16, 2, hybrid);
    uint32_t other[3][24];
    struct kv_seq *q;

    for (int i = 0; i < 3; i++) {
        memcpy(other[i], prompt, sizeof(other[i]));
        for (int k = 13; k < 24; k++)
            other[i][k] = 1000 + 100 * (uint32_t)i + (uint32_t)k;
    }
    warm(&f, prompt, 24);
    assert_int_equal(taken(&f), 2); /* at 20, and where it ended */
    q = open_seq(&f);
    assert_int_equal(found(q, other[0], 24), 0);
    assert_int_equal(kv_seq_room(q), 12);
    compute(q, other[0], 24);
    kv_seq_close(q);
    sound(&f);
    q = open_seq(&f);
    assert_int_equal(found(q, other[1], 24), 12);
    assert_int_equal(kv_seq_room(q), 8); /* its own end */
    kv_seq_close(q);
    fix_end(&f);
}

static void test_marks(void **state)
{
    static const struct kv_group sparse[2] = {{.block_bytes = 64}, {KV_SPAN_STATE, 8, 128}};
    static const uint64_t marks[] = {3, 9, 14, 26, 33, 90};
    struct kv_seq_opts o = {.marks = marks, .n_marks = 6};
    struct fix f = fix_new(32, 2, hybrid);
    struct kv_seq *q = open_as(&f, o);
    uint64_t at[] = {8, 12, 24, 32, 36};

    assert_int_equal(found(q, prompt, 38), 0); /* 3 is in the first block, 90 not yet there */
    for (uint32_t i = 0; i < CN_ARRAY_LEN(at); i++) {
        assert_int_equal(kv_seq_planned(q) + kv_seq_room(q), at[i]);
        compute(q, prompt, at[i]);
    }
    assert_int_equal(kv_seq_room(q), UINT64_MAX);
    compute(q, prompt, 38);
    kv_seq_close(q);
    for (uint32_t i = 0; i < CN_ARRAY_LEN(at); i++)
        assert_int_equal(peek(&f, prompt, at[i] + 1), at[i]);
    fix_end(&f);

    f = fix_new(32, 2, sparse); /* the prompt's end, then the last marks that are not near */
    q = open_as(&f, o);
    found(q, prompt, 38);
    assert_int_equal(kv_seq_room(q), 12);
    compute(q, prompt, 12);
    assert_int_equal(kv_seq_room(q), 12);
    compute(q, prompt, 24);
    assert_int_equal(kv_seq_room(q), 12);
    kv_seq_close(q);
    fix_end(&f);
}

static void test_short_prompts_are_not_worth_it(void **state)
{
    static const struct kv_group usual[2] = {{.block_bytes = 64}, {KV_SPAN_STATE, 0, 128}};
    struct fix f = fix_new(16, 2, usual);
    struct kv_seq *q = open_seq(&f);

    found(q, prompt, 8);
    assert_int_equal(kv_seq_room(q), UINT64_MAX);
    found(q, prompt, 9); /* two blocks */
    assert_int_equal(kv_seq_room(q), 8);
    kv_seq_close(q);
    warm(&f, prompt, 18);
    q = open_seq(&f);
    assert_int_equal(found(q, prompt, 23), 16);
    assert_int_equal(kv_seq_room(q), UINT64_MAX);
    kv_seq_close(q);
    fix_end(&f);
}

static void test_an_end_becomes_a_snapshot_without_a_copy(void **state)
{
    struct fix f = fix_new(16, 2, hybrid);
    struct kv_seq *q = open_seq(&f);
    struct kv_stats st;
    uint32_t live;

    by_ones(q, prompt, 12);
    live = kv_seq_tables(q)[STATE][0];
    kv_seq_close(q);
    kv_pool_stats(f.p, &st);
    assert_int_equal(st.blocks[KV_CACHED], 4);
    q = open_seq(&f);
    assert_int_equal(found(q, prompt, 14), 12);
    assert_int_not_equal(kv_seq_tables(q)[STATE][0], live);
    kv_seq_close(q);
    q = open_seq(&f); /* not at a block's end */
    by_ones(q, prompt + 100, 13);
    kv_seq_close(q);
    assert_int_equal(peek(&f, prompt + 100, 20), 0);
    q = open_seq(&f); /* with a row in flight the state is another */
    by_ones(q, prompt + 200, 12);
    assert_int_equal(kv_seq_extend(q, 1, prompt + 212), 0);
    kv_pool_launched(f.p, 1);
    kv_seq_close(q);
    kv_pool_retired(f.p, 1);
    assert_int_equal(peek(&f, prompt + 200, 20), 0);
    fix_end(&f);
}

static void test_one_rolls_along_with_the_output(void **state)
{
    struct fix f = fix_new(64, 2, hybrid);
    struct kv_seq *q = open_seq(&f);
    struct kv_stats st;

    found(q, prompt, 22);
    compute(q, prompt, 22);
    by_ones(q, prompt, 85); /* 20 and 16 times 4 */
    assert_int_equal(peek(&f, prompt, 85), 84);
    by_ones(q, prompt, 148);
    assert_int_equal(peek(&f, prompt, 200), 84);
    by_ones(q, prompt, 149);
    assert_int_equal(peek(&f, prompt, 200), 148);
    assert_int_equal(peek(&f, prompt, 100), 20); /* the one at 84 has gone */
    by_ones(q, prompt, 300);
    assert_int_equal(peek(&f, prompt, 400), 276);
    kv_pool_stats(f.p, &st);
    assert_int_equal(st.snapshots_taken, 5);
    assert_int_equal(st.evictions, 0);
    assert_int_equal(st.bytes[KV_CACHED], 2 * 128); /* the prompt's and this one */
    kv_seq_close(q);
    fix_end(&f);
}

static void test_what_is_not_shared_has_none(void **state)
{
    struct fix f = fix_new(32, 2, hybrid);
    struct kv_seq *q = open_as(&f, (struct kv_seq_opts){.flags = KV_SEQ_NO_WRITE});

    found(q, prompt, 18);
    assert_int_equal(kv_seq_room(q), UINT64_MAX);
    by_ones(q, prompt, 16);
    kv_seq_close(q);
    assert_int_equal(taken(&f), 0);
    q = open_as(&f, (struct kv_seq_opts){.share_tokens = 11});
    found(q, prompt, 18);
    assert_int_equal(kv_seq_room(q), UINT64_MAX);
    by_ones(q, prompt, 16);
    kv_seq_close(q);
    assert_int_equal(taken(&f), 0);
    q = open_as(&f, (struct kv_seq_opts){.flags = KV_SEQ_NO_READ}); /* reads not, but writes */
    found(q, prompt, 18);
    compute(q, prompt, 18);
    kv_seq_close(q);
    assert_int_equal(taken(&f), 1);
    q = open_as(&f, (struct kv_seq_opts){.flags = KV_SEQ_NO_READ});
    assert_int_equal(found(q, prompt, 18), 0);
    kv_seq_close(q);
    q = open_seq(&f); /* who does not stop there gets none */
    found(q, prompt + 100, 18);
    assert_int_equal(kv_seq_extend(q, 18, prompt + 100), 0);
    kv_seq_commit(q, prompt + 100, 18);
    kv_seq_close(q);
    assert_int_equal(peek(&f, prompt + 100, 18), 0);
    fix_end(&f);
}

static void test_no_room_is_no_failure(void **state)
{
    struct fix f = fix_new(3, 2, hybrid); /* 2 slabs of KV, one of two states */
    struct kv_seq *a = open_seq(&f), *b = open_seq(&f);
    const struct kv_copy *c;

    found(a, prompt, 18);
    compute(a, prompt, 16);
    by_ones(b, prompt + 100, 1);
    assert_int_equal(kv_seq_extend(a, 2, prompt + 16), 0);
    assert_int_equal(kv_seq_copies(a, &c), 0);
    kv_seq_commit(a, prompt + 16, 2);
    assert_int_equal(taken(&f), 0);
    kv_seq_close(a);
    kv_seq_close(b);
    fix_end(&f);
}

static void test_two_steps_in_flight(void **state)
{
    struct fix f = fix_new(16, 2, hybrid);
    struct kv_seq *a = open_seq(&f);
    const struct kv_copy *c;

    found(a, prompt, 18);
    assert_int_equal(kv_seq_extend(a, 16, prompt), 0);
    kv_pool_launched(f.p, 1);
    assert_int_equal(kv_seq_extend(a, 2, prompt + 16), 0);
    assert_int_equal(kv_seq_copies(a, &c), 1);
    kv_pool_launched(f.p, 2);
    kv_pool_retired(f.p, 1);
    kv_seq_commit(a, prompt, 16);
    sound(&f);
    assert_int_equal(peek(&f, prompt, 18), 0);
    kv_pool_retired(f.p, 2);
    kv_seq_commit(a, prompt + 16, 2);
    assert_int_equal(peek(&f, prompt, 18), 16);
    kv_seq_close(a);
    fix_end(&f);
}

/* ---- going back, branching off, failing ------------------------------------------------------ */

static void test_truncate_only_to_a_snapshot(void **state)
{
    struct fix f = fix_new(32, 2, hybrid);
    struct kv_seq *q = open_seq(&f);
    const struct kv_copy *c;
    uint32_t live;

    found(q, prompt, 18);
    compute(q, prompt, 22);
    live = kv_seq_tables(q)[STATE][0];
    assert_int_equal(kv_seq_truncate(q, 21), CN_ENOENT);
    assert_int_equal(kv_seq_truncate(q, 12), CN_ENOENT);
    assert_int_equal(kv_seq_length(q), 22);
    assert_int_equal(kv_seq_extend(q, 3, prompt + 22), 0);
    assert_int_equal(kv_seq_truncate(q, 23), 0); /* rows that were never launched */
    assert_int_equal(kv_seq_truncate(q, 22), 0);
    assert_int_equal(kv_seq_extend(q, 3, prompt + 22), 0);
    kv_pool_launched(f.p, 1);
    kv_pool_retired(f.p, 1);
    assert_int_equal(kv_seq_truncate(q, 22), CN_ENOENT); /* the state has gone on */
    assert_int_equal(kv_seq_truncate(q, 16), 0);
    assert_int_equal(kv_seq_length(q), 16);
    assert_int_equal(kv_seq_copies(q, &c), 1);
    assert_int_equal(c->dst, live);
    assert_int_equal(kv_seq_tables(q)[STATE][0], live);
    sound(&f);
    by_ones(q, prompt + 50, 18);
    assert_int_equal(kv_seq_truncate(q, 0), 0);
    assert_int_equal(kv_seq_copies(q, &c), 0);
    by_ones(q, prompt + 60, 2);
    kv_seq_close(q);
    fix_end(&f);
}

static void test_fork_shares_by_a_snapshot(void **state)
{
    struct fix f = fix_new(32, 2, hybrid);
    struct kv_seq *q = open_seq(&f), *c;
    const struct kv_copy *copy;

    found(q, prompt, 19);
    compute(q, prompt, 19);
    assert_int_equal(kv_seq_fork(q, prompt, 18, 2048, &c), 0);
    assert_int_equal(kv_seq_length(c), 16);
    assert_int_equal(kv_seq_tables(c)[KV][3], kv_seq_tables(q)[KV][3]);
    assert_int_not_equal(kv_seq_tables(c)[STATE][0], kv_seq_tables(q)[STATE][0]);
    assert_int_equal(kv_seq_copies(c, &copy), 1);
    kv_seq_close(q);
    sound(&f);
    by_ones(c, prompt, 20);
    kv_seq_close(c);
    fix_end(&f);
}

static void test_a_failed_sequence_leaves_no_snapshot(void **state)
{
    struct fix f = fix_new(32, 2, hybrid);
    struct kv_seq *q, *r;

    q = open_seq(&f); /* good blocks without a snapshot at 8 */
    by_ones(q, prompt, 10);
    kv_seq_close(q);
    q = open_seq(&f);
    assert_int_equal(found(q, prompt, 18), 0);
    compute(q, prompt, 17);
    r = open_seq(&f);
    assert_int_equal(found(r, prompt, 9), 8); /* taken by q, on a node that q did not write */
    by_ones(r, prompt + 100, 12);
    assert_int_equal(peek(&f, prompt, 17), 16);
    kv_seq_close_failed(q);
    sound(&f);
    assert_int_equal(peek(&f, prompt, 17), 0);
    by_ones(r, prompt + 100, 20);
    kv_seq_close(r);
    assert_int_equal(peek(&f, prompt, 9), 0);
    fix_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_last_place_of_a_prompt),
        cmocka_unit_test(test_a_branch_on_its_second_visit),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_short_prompts_are_not_worth_it),
        cmocka_unit_test(test_an_end_becomes_a_snapshot_without_a_copy),
        cmocka_unit_test(test_one_rolls_along_with_the_output),
        cmocka_unit_test(test_what_is_not_shared_has_none),
        cmocka_unit_test(test_no_room_is_no_failure),
        cmocka_unit_test(test_two_steps_in_flight),
        cmocka_unit_test(test_truncate_only_to_a_snapshot),
        cmocka_unit_test(test_fork_shares_by_a_snapshot),
        cmocka_unit_test(test_a_failed_sequence_leaves_no_snapshot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
