/* Shared prefixes over the simulated device: what is computed once, who may find it, and what keeps
 * it in the pool. With one and with two steps in flight. */
#include "tests/scheduler/simcase.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* common: ids that they share with a request that has ended. */
static void burst(uint32_t depth, uint32_t max_rows, uint32_t common)
{
    struct sim_opts o = simcase_opts(depth);
    struct sim m;
    struct sim_req *before, *first;
    struct sch_stats st;

    o.max_rows = o.max_logit_rows = max_rows;
    o.n_slabs = 128;
    sim_init(&m, &o);
    before = sim_req_new(&m, 0, 40, 1);
    assert_int_equal(sim_submit(&m, before), 0);
    sim_run(&m);
    first = sim_req_new(&m, 0, 320 + 5, 8);
    memcpy(first->prompt, before->prompt, common * sizeof(*first->prompt));
    assert_int_equal(sim_submit(&m, first), 0);
    for (uint32_t i = 1; i < 16; i++) {
        struct sim_req *r = sim_req_new(&m, 0, 320 + 5, 8);

        memcpy(r->prompt, first->prompt, 320 * sizeof(*r->prompt));
        assert_int_equal(sim_submit(&m, r), 0);
    }
    sim_run(&m);
    simcase_sound(&m);
    assert_in_range(m.prompt_rows, 40 + 320 - common + 16 * 5, 40 + 320 + 16 * 5);
    sch_stats(m.sch, &st);
    assert_int_equal(st.prompt_computed, m.prompt_rows);
    assert_in_range(st.prompt_cached, 15 * 320, 15 * 320 + common);
    simcase_finish(&m);
}

static void test_burst_computes_a_prefix_once(void **state)
{
    for (uint32_t common = 0; common <= 3; common += 3) { /* 3: some of a block */
        burst(1, 64, common);
        burst(2, 64, common);
        burst(1, 32, common);
        burst(2, 17, common);
    }
}

static void test_cancelled_filler_is_followed(void **state)
{
    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct sim_opts o = simcase_opts(depth);
        struct sim m;
        struct sim_req *a, *b, *c;

        sim_init(&m, &o);
        a = sim_req_new(&m, 0, 330, 4);
        b = sim_req_new(&m, 0, 330, 4);
        c = sim_req_new(&m, 0, 330, 4);
        memcpy(b->prompt, a->prompt, sizeof(a->prompt));
        memcpy(c->prompt, a->prompt, sizeof(a->prompt));
        sim_submit(&m, a);
        sim_submit(&m, b);
        sim_submit(&m, c);
        sim_iterate(&m);
        sim_iterate(&m);
        sch_cancel(m.sch, a->id);
        sim_iterate(&m);
        assert_int_equal(a->ends, 1);
        assert_int_equal(a->reason, SCH_END_CANCELLED);
        sim_run(&m);
        simcase_sound(&m);
        assert_int_equal(b->reason, SCH_END_LENGTH);
        /* what a had finished is not computed again, but for the steps in flight */
        assert_true(m.prompt_rows <= 330 + 64 * depth + 2 * SIMCASE_BLOCK_TOKENS);
        simcase_finish(&m);
    }
}

static void test_other_tenant_finds_nothing(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;
    struct sim_req *a, *b, *c, *d;

    sim_init(&m, &o);
    a = sim_req_new(&m, 0, 200, 4);
    b = sim_req_new(&m, 1, 200, 4);
    c = sim_req_new(&m, 0, 200, 4);
    d = sim_req_new(&m, 0, 200, 4);
    memcpy(b->prompt, a->prompt, sizeof(a->prompt));
    memcpy(c->prompt, a->prompt, sizeof(a->prompt));
    memcpy(d->prompt, a->prompt, sizeof(a->prompt));
    d->spec.flags = SCH_NO_CACHE_READ;
    sim_submit(&m, a);
    sim_run(&m);
    sim_submit(&m, b);
    sim_submit(&m, c);
    sim_submit(&m, d);
    sim_run(&m);
    assert_int_equal(a->usage.cached_tokens, 0);
    assert_int_equal(b->usage.cached_tokens, 0);
    assert_int_equal(b->usage.computed_tokens, 203);
    assert_int_equal(c->usage.cached_tokens, 192); /* whole blocks */
    assert_int_equal(d->usage.cached_tokens, 0);
    simcase_finish(&m);
}

/* Two at once, so that one could wait for the other; then what each finds, with and without state:
 * its own adapter's, and nothing else. */
static void adapters(uint32_t depth, bool states)
{
    struct sim_opts o = simcase_opts(depth);
    struct sim m;
    struct sim_req *r[4];

    if (states) {
        o.groups[1] = (struct kv_group){KV_SPAN_STATE, 0, SIMCASE_BLOCK_BYTES};
        o.n_groups = 2;
    }
    o.n_slabs = 128;
    sim_init(&m, &o);
    for (uint32_t i = 0; i < 4; i++) {
        r[i] = sim_req_new(&m, 0, 200, 4);
        memcpy(r[i]->prompt, r[0]->prompt, sizeof(r[0]->prompt));
        r[i]->spec.adapter = i % 2;
    }
    sim_submit(&m, r[0]);
    sim_submit(&m, r[1]);
    sim_run(&m);
    assert_int_equal(m.prompt_rows, 400);
    sim_submit(&m, r[2]);
    sim_submit(&m, r[3]);
    sim_run(&m);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(r[i]->usage.cached_tokens, i < 2 ? 0 : 192);
    assert_int_equal(m.prompt_rows, 416);
    simcase_finish(&m);
}

static void test_other_adapter_finds_nothing(void **state)
{
    for (uint32_t depth = 1; depth <= 2; depth++) {
        adapters(depth, false);
        adapters(depth, true);
    }
}

/* Of a tenant's waiting prompts the one with the longest cached prefix goes first: what another
 * adapter has cached does not count. */
static void test_queue_order_is_by_the_own_adapter(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;
    struct sim_req *warm, *busy, *other, *same;

    o.sch.max_running = 1;
    sim_init(&m, &o);
    warm = sim_req_new(&m, 0, 200, 2);
    sim_submit(&m, warm);
    sim_run(&m);
    busy = sim_req_new(&m, 0, 40, 8);
    other = sim_req_new(&m, 0, 200, 2);
    same = sim_req_new(&m, 0, 200, 2);
    memcpy(other->prompt, warm->prompt, sizeof(warm->prompt));
    memcpy(same->prompt, warm->prompt, sizeof(warm->prompt));
    other->spec.adapter = 1;
    sim_submit(&m, busy);
    sim_iterate(&m);
    sim_submit(&m, other);
    sim_submit(&m, same);
    sim_run(&m);
    assert_true(same->usage.first_step_ns < other->usage.first_step_ns);
    simcase_finish(&m);
}

static void test_choices_share_the_prompt(void **state)
{
    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct sim_opts o = simcase_opts(depth);
        struct sim m;
        struct sim_req *r;
        bool together = false;

        sim_init(&m, &o);
        r = sim_req_new(&m, 0, 205, 30);
        r->spec.n_choices = 4;
        sim_submit(&m, r);
        while (!r->ends && sim_iterate(&m))
            together = together || (r->n_out[0] && r->n_out[3] && !r->choice_ends[0]);
        assert_true(together);
        assert_int_equal(m.prompt_rows, 205 + 3); /* each its own last row */
        simcase_finish(&m);
    }
}

static void test_reserve_survives_a_flood(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sch_tenant_opts keep = {.kv_reserve_bytes = 14 * SIMCASE_BLOCK_BYTES};
    struct sim m;
    struct sim_req *warm, *again;

    o.n_slabs = 4;
    sim_init(&m, &o);
    sch_tenant_set(m.sch, 0, &keep);
    warm = sim_req_new(&m, 0, 200, 2);
    sim_submit(&m, warm);
    sim_run(&m);
    for (uint32_t i = 0; i < 20; i++) { /* each of them most of the pool */
        sim_submit(&m, sim_req_new(&m, 1, 270, 1));
        sim_run(&m);
    }
    again = sim_req_new(&m, 0, 200, 2);
    memcpy(again->prompt, warm->prompt, sizeof(warm->prompt));
    sim_submit(&m, again);
    sim_run(&m);
    assert_true(again->usage.cached_tokens >= 192);
    simcase_finish(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_burst_computes_a_prefix_once),
        cmocka_unit_test(test_cancelled_filler_is_followed),
        cmocka_unit_test(test_other_tenant_finds_nothing),
        cmocka_unit_test(test_other_adapter_finds_nothing),
        cmocka_unit_test(test_queue_order_is_by_the_own_adapter),
        cmocka_unit_test(test_choices_share_the_prompt),
        cmocka_unit_test(test_reserve_survives_a_flood),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
