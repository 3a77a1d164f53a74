/* Live states of sequences, and layers in chunks. */
#include "tests/kvpool/kvcase.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

/* Computes up to `to` in one step. */
static void step(struct kv_seq *q, const uint32_t *ids, uint64_t to)
{
    uint64_t from = kv_seq_planned(q);
    const struct kv_copy *c;

    assert_int_equal(kv_seq_extend(q, (uint32_t)(to - from), ids + from), 0);
    kv_seq_copies(q, &c);
    kv_seq_commit(q, ids + from, (uint32_t)(to - from));
}

static void test_one_live_state_for_each_sequence(void **state)
{
    struct fix f = fix_new(4, 2, hybrid);
    struct kv_seq *a = open_seq(&f), *b = open_seq(&f);
    uint32_t live;

    assert_int_equal(kv_seq_tables(a)[1][0], KV_NO_BLOCK);
    step(a, prompt, 3);
    live = kv_seq_tables(a)[1][0];
    assert_int_not_equal(live, KV_NO_BLOCK);
    assert_int_equal(kv_seq_n_blocks(a), 2);
    assert_int_equal(kv_seq_bytes(a), 64 + 128);
    step(a, prompt, 9);
    assert_int_equal(kv_seq_tables(a)[1][0], live);
    assert_int_equal(kv_seq_bytes(a), 3 * 64 + 128);
    step(b, prompt, 9);
    assert_int_not_equal(kv_seq_tables(b)[1][0], live);
    sound(&f);
    kv_seq_close(a);
    kv_seq_close(b);
    fix_end(&f);
}

static void test_no_room_for_a_state_changes_nothing(void **state)
{
    struct fix f = fix_new(2, 2, hybrid); /* one slab of 2 states, one of 4 blocks */
    struct kv_seq *q[3];
    struct kv_stats st;

    for (int i = 0; i < 3; i++)
        q[i] = open_seq(&f);
    step(q[0], prompt, 2);
    step(q[1], prompt, 2);
    assert_int_equal(kv_seq_extend(q[2], 2, prompt), CN_ENOMEM);
    assert_int_equal(kv_seq_n_blocks(q[2]), 0);
    sound(&f);
    step(q[1], prompt, 12);
    kv_seq_close(q[0]); /* a state is free and a block; that is too little */
    assert_int_equal(kv_seq_extend(q[2], 5, prompt), CN_ENOMEM);
    assert_int_equal(kv_seq_n_blocks(q[2]), 0);
    kv_pool_stats(f.p, &st);
    assert_int_equal(st.bytes[KV_FREE], 512 - 3 * 64 - 128);
    assert_int_equal(kv_seq_extend(q[2], 4, prompt), 0);
    kv_seq_close(q[1]);
    kv_seq_close(q[2]);
    fix_end(&f);
}

static void test_pure_state_needs_no_more_for_longer_prompts(void **state)
{
    struct fix f = fix_new(2, 1, pure);
    struct kv_seq *q = open_seq(&f);

    step(q, prompt, 1000);
    step(q, prompt, 1001);
    assert_int_equal(kv_seq_bytes(q), 128);
    assert_int_equal(kv_space_bytes(f.s, 1000, 64), 128);
    assert_int_equal(kv_space_block_bytes(f.s), 128);
    assert_true(kv_space_max_tokens(f.s, 0, 64) > 1u << 30);
    kv_seq_close(q);
    fix_end(&f);
}

static void test_chunks_are_given_up_and_found(void **state)
{
    static const struct kv_group g[1] = {{KV_SPAN_CHUNK, 10, 64}};
    struct fix f = fix_new(16, 1, g);
    struct kv_seq *q = open_seq(&f);

    step(q, prompt, 10); /* the next row is the first of its chunk: 8 to 11 stay for 10, 11 */
    assert_int_equal(kv_seq_n_blocks(q), 1);
    assert_int_equal(kv_seq_tables(q)[0][1], KV_NO_BLOCK);
    step(q, prompt, 19);
    assert_int_equal(kv_seq_n_blocks(q), 3);
    step(q, prompt, 20);
    assert_int_equal(kv_seq_n_blocks(q), 0);
    step(q, prompt, 22);
    sound(&f);
    kv_seq_close(q);
    q = open_seq(&f);
    assert_int_equal(kv_seq_match(q, prompt, 21, NULL), KV_GO);
    assert_int_equal(kv_seq_length(q), 20); /* a row at 20 sees nothing before itself */
    assert_int_equal(kv_seq_n_blocks(q), 0);
    kv_seq_close(q);
    q = open_seq(&f);
    assert_int_equal(kv_seq_match(q, prompt, 19, NULL), KV_GO);
    assert_int_equal(kv_seq_length(q), 18); /* the last two by copy */
    assert_int_equal(kv_seq_n_blocks(q), 3);
    kv_seq_close(q);
    /* 9 tokens of the chunk before the step's rows, and the step's */
    assert_int_equal(kv_space_bytes(f.s, 1000, 8), 64 * 6);
    fix_end(&f);
}

static void test_what_a_space_cannot_be(void **state)
{
    static const struct kv_group two[2] = {{KV_SPAN_STATE, 0, 64}, {KV_SPAN_STATE, 0, 64}};
    static const struct kv_group no_tokens[1] = {{KV_SPAN_CHUNK, 0, 64}};
    struct fix f = fix_new(2, 2, hybrid);
    struct kv_space_opts so = {
        .id = "n", .id_len = 1, .block_tokens = BT, .n_groups = 2, .groups = two};
    struct kv_space *s;
    struct cn_error err;

    assert_int_equal(kv_space_add(f.p, &so, &s, &err), CN_ERANGE);
    so.n_groups = 1;
    so.groups = no_tokens;
    assert_int_equal(kv_space_add(f.p, &so, &s, &err), CN_ERANGE);
    fix_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_live_state_for_each_sequence),
        cmocka_unit_test(test_no_room_for_a_state_changes_nothing),
        cmocka_unit_test(test_pure_state_needs_no_more_for_longer_prompts),
        cmocka_unit_test(test_chunks_are_given_up_and_found),
        cmocka_unit_test(test_what_a_space_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
