/* Sequences that wait for another's snapshot, and when they do not. */
#include "tests/kvpool/kvcase.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static void test_a_burst_follows_one(void **state)
{
    struct fix f = fix_new(32, 2, hybrid);
    struct kv_seq *a = open_seq(&f), *b = open_seq(&f), *c = open_seq(&f), *d = open_seq(&f);
    uint32_t other[30], early[30];

    memcpy(other, prompt, sizeof(other));
    other[18] = 999; /* parts from the others within the fifth block */
    memcpy(early, prompt, sizeof(early));
    early[3] = 999; /* shares no block */
    assert_int_equal(found(a, prompt, 30), 0);
    assert_int_equal(kv_seq_room(a), 28);
    assert_int_equal(kv_seq_match(b, other, 30, NULL), KV_WAIT);
    assert_int_equal(kv_seq_room(a), 16); /* asked for by b */
    assert_int_equal(kv_seq_match(c, prompt, 30, NULL), KV_WAIT);
    assert_int_equal(found(d, early, 30), 0);
    sound(&f);
    compute(a, prompt, 16);
    assert_int_equal(kv_seq_match(b, other, 30, NULL), KV_WAIT);
    by_ones(a, prompt, 17);
    assert_int_equal(found(b, other, 30), 16);
    assert_int_equal(kv_seq_match(c, prompt, 30, NULL), KV_WAIT); /* for the one at 28 */
    compute(a, prompt, 30);
    assert_int_equal(found(c, prompt, 30), 28);
    kv_seq_close(a);
    kv_seq_close(b);
    kv_seq_close(c);
    kv_seq_close(d);
    fix_end(&f);
}

static void test_a_leader_that_gives_up_is_followed(void **state)
{
    struct fix f = fix_new(32, 2, hybrid);
    struct kv_seq *a = open_seq(&f), *b = open_seq(&f), *c = open_seq(&f);

    found(a, prompt, 30);
    assert_int_equal(kv_seq_extend(a, 28, prompt), 0);
    kv_pool_launched(f.p, 1);
    assert_int_equal(kv_seq_match(b, prompt, 30, NULL), KV_WAIT);
    assert_int_equal(kv_seq_match(c, prompt, 30, NULL), KV_WAIT);
    kv_seq_close(a);
    kv_pool_retired(f.p, 1);
    assert_int_equal(found(c, prompt, 30), 0);
    assert_int_equal(kv_seq_match(b, prompt, 30, NULL), KV_WAIT);
    compute(c, prompt, 30);
    assert_int_equal(found(b, prompt, 30), 28);
    kv_seq_close(b);
    kv_seq_close(c);
    fix_end(&f);
}

static void test_no_headway_is_not_waited_for(void **state)
{
    struct fix f = fix_new(32, 2, hybrid);
    struct kv_seq *a = open_seq(&f), *b = open_seq(&f), *c = open_seq(&f);

    found(a, prompt, 30);
    assert_int_equal(kv_seq_match(b, prompt, 30, NULL), KV_WAIT);
    for (uint64_t t = 1; t <= 8; t++)
        kv_pool_launched(f.p, t);
    assert_int_equal(kv_seq_match(b, prompt, 30, NULL), KV_WAIT);
    kv_pool_launched(f.p, 9);
    kv_pool_retired(f.p, 9);
    assert_int_equal(found(b, prompt, 30), 0);
    assert_int_equal(kv_seq_match(c, prompt, 30, NULL), KV_WAIT); /* now for b */
    kv_seq_no_wait(c);
    assert_int_equal(found(c, prompt, 30), 0);
    kv_seq_close(a);
    kv_seq_close(b);
    kv_seq_close(c);

    a = open_as(&f, (struct kv_seq_opts){.flags = KV_SEQ_NO_LEAD});
    b = open_seq(&f);
    found(a, prompt, 30);
    assert_int_equal(found(b, prompt, 30), 0);
    kv_seq_close(a);
    kv_seq_close(b);
    fix_end(&f);
}

static void test_a_snapshot_that_fails_wakes_who_waits(void **state)
{
    struct fix f = fix_new(3, 2, hybrid);
    struct kv_seq *a = open_seq(&f), *b = open_seq(&f), *c = open_seq(&f);

    found(a, prompt, 10);
    assert_int_equal(kv_seq_match(b, prompt, 10, NULL), KV_WAIT);
    compute(a, prompt, 8);
    by_ones(c, prompt + 100, 1); /* the second state */
    by_ones(c, prompt + 100, 9); /* and a slab of blocks */
    assert_int_equal(kv_seq_match(b, prompt, 10, NULL), KV_WAIT);
    assert_int_equal(kv_seq_extend(a, 2, prompt + 8), 0);
    assert_int_equal(found(b, prompt, 10), 0);
    kv_seq_commit(a, prompt + 8, 2);
    kv_seq_close(a);
    kv_seq_close(b);
    kv_seq_close(c);
    fix_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_burst_follows_one),
        cmocka_unit_test(test_a_leader_that_gives_up_is_followed),
        cmocka_unit_test(test_no_headway_is_not_waited_for),
        cmocka_unit_test(test_a_snapshot_that_fails_wakes_who_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
