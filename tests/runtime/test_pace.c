/* Tenants pay for the time that their guides take: what is free, when they wait, and how long. */
#include "runtime/rt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MS 1000000u

/* When the tenant's requests go on; `from`: now. */
static uint64_t wait_for(struct rt_group *g, uint64_t tenant, uint64_t from)
{
    uint64_t now = from;
    for (int i = 0; i < 100000 && rt_pace_waits(&g->pace, tenant); i++) {
        uint64_t next = rt_pace(g, now);
        assert_true(next > now || !rt_pace_waits(&g->pace, tenant));
        if (rt_pace_waits(&g->pace, tenant)) now = next;
    }
    assert_false(rt_pace_waits(&g->pace, tenant));
    return now - from;
}

static void test_usual_masks_are_free(void **state)
{
    struct rt_group g = {.table_size = 0};
    for (int i = 0; i < 100000; i++)
        rt_pace_charge(&g.pace, 1, 2 * MS);
    assert_int_equal(rt_pace(&g, cn_now_ns()), UINT64_MAX);
    assert_false(rt_pace_waits(&g.pace, 1));
    rt_pace_fini(&g.pace);
}

/* After 250 ms it waits until all but 50 ms are paid, at one part in eight of the time. */
static void test_a_debt_is_waited_for(void **state)
{
    struct rt_group g = {.table_size = 0};
    uint64_t now, waited;
    rt_pace_charge(&g.pace, 1, 252 * MS);
    now = cn_now_ns() + 1000;
    rt_pace(&g, now);
    assert_false(rt_pace_waits(&g.pace, 1)); /* 250 ms are not more than 250 ms */
    rt_pace_charge(&g.pace, 1, 22 * MS);
    now += 1000;
    rt_pace(&g, now);
    assert_true(rt_pace_waits(&g.pace, 1));
    assert_false(rt_pace_waits(&g.pace, 2));
    waited = wait_for(&g, 1, now);
    assert_in_range(waited, 8 * 215 * (uint64_t)MS, 8 * 225 * (uint64_t)MS);
    rt_pace_fini(&g.pace);
}

/* Together they pay as much as one: more of them wait longer, not others. */
static void test_many_share_the_time(void **state)
{
    struct rt_group g = {.table_size = 0};
    uint64_t now;
    for (uint64_t t = 1; t <= 10; t++)
        rt_pace_charge(&g.pace, t, 302 * MS);
    now = cn_now_ns() + 1000;
    rt_pace(&g, now);
    for (uint64_t t = 1; t <= 10; t++)
        assert_true(rt_pace_waits(&g.pace, t));
    assert_in_range(wait_for(&g, 7, now), 10 * 8 * 245 * (uint64_t)MS, 10 * 8 * 255 * (uint64_t)MS);
    rt_pace_fini(&g.pace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_usual_masks_are_free),
        cmocka_unit_test(test_a_debt_is_waited_for),
        cmocka_unit_test(test_many_share_the_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
