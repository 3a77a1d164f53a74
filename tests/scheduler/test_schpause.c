/* Paused requests give up their places, keep their blocks while there is room, and come back with
 * the same tokens. */
#include "tests/scheduler/simcase.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static struct sim_req *submit(struct sim *m, uint32_t tenant, uint64_t prompt, uint64_t out)
{
    struct sim_req *r = sim_req_new(m, tenant, prompt, out);

    assert_int_equal(sim_submit(m, r), 0);
    return r;
}

static void iterate(struct sim *m, uint32_t n)
{
    while (n--) {
        sim_iterate(m);
        simcase_sound(m);
    }
}

/* Two tenants whose clients all stopped reading fill no place: a third starts in the next step. */
static void places_are_free(uint32_t depth)
{
    struct sim_opts o = simcase_opts(depth);
    struct sim_req *r[24], *third;
    struct sch_tenant_stats ts;
    struct sim m;
    uint32_t n = 0;

    o.sch.max_running = 8;
    sim_init(&m, &o);
    for (uint32_t i = 0; i < 24; i++)
        r[n++] = submit(&m, i % 2, 20, 40);
    for (uint32_t k = 0; k < 6; k++) {
        iterate(&m, 8);
        for (uint32_t i = 0; i < n; i++)
            if (r[i]->n_out[0]) sch_pause(m.sch, r[i]->id, true);
    }
    for (uint32_t i = 0; i < n; i++) {
        assert_true(r[i]->n_out[0] > 0 && !r[i]->ends); /* all had a place, none is done */
    }
    iterate(&m, 2);
    sch_tenant_stats(m.sch, 0, &ts);
    assert_int_equal(ts.running, 0);
    third = submit(&m, 2, 20, 4);
    iterate(&m, 2 * depth);
    assert_true(third->n_out[0] > 0);
    while (!third->ends)
        iterate(&m, 1);
    for (uint32_t i = 0; i < n; i++)
        sch_pause(m.sch, r[i]->id, false);
    iterate(&m, 1);
    sch_tenant_stats(m.sch, 0, &ts);
    assert_int_equal(ts.running, 4); /* half of them, and no computing again */
    sim_run(&m);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(r[i]->n_out[0], 40);
        assert_int_equal(r[i]->usage.recomputed_tokens, 0);
    }
    simcase_finish(&m);
}

static void test_places_are_free(void **state)
{
    places_are_free(1);
    places_are_free(2);
}

/* Where blocks are short the paused one gives its own, and has the same answer in the end. */
static void test_paused_give_their_blocks(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim_req *a, *b;
    struct sim m;

    o.n_slabs = 4; /* 512 tokens */
    sim_init(&m, &o);
    a = submit(&m, 0, 300, 100);
    while (a->n_out[0] < 20)
        iterate(&m, 1);
    sch_pause(m.sch, a->id, true);
    iterate(&m, 1);
    assert_true(simcase_in_use(&m) > 0);
    b = submit(&m, 1, 300, 100);
    while (!b->ends)
        iterate(&m, 1);
    assert_int_equal(b->reason, SCH_END_LENGTH);
    assert_int_equal(b->usage.preemptions, 0);
    assert_int_equal(a->usage.preemptions + a->ends, 0); /* its usage is told at its end */
    sch_pause(m.sch, a->id, false);
    sim_run(&m);
    assert_int_equal(a->usage.preemptions, 1);
    simcase_finish(&m);
}

/* Resumed while all places are taken it is the next of its tenant's. */
static void test_resumed_go_first(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim_req *a, *b, *c;
    struct sim m;

    o.sch.max_running = 1;
    sim_init(&m, &o);
    a = submit(&m, 0, 20, 30);
    b = submit(&m, 0, 20, 30);
    c = submit(&m, 0, 20, 30);
    iterate(&m, 5);
    sch_pause(m.sch, a->id, true);
    iterate(&m, 2);
    assert_true(b->n_out[0] > 0 && !a->ends);
    sch_pause(m.sch, a->id, false);
    while (!b->ends)
        iterate(&m, 1);
    assert_false(a->ends || c->had_rows);
    while (!a->ends)
        iterate(&m, 1);
    assert_int_equal(c->n_out[0], 0);
    simcase_finish(&m);
}

/* A tenant cannot pile up streams that nobody reads: then nothing more of its starts. */
static void test_paused_ones_are_bounded(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim_req *r[40], *other;
    struct sim m;
    uint32_t had = 0;

    o.sch.max_running = 4;
    o.n_slabs = 256;
    sim_init(&m, &o);
    for (uint32_t i = 0; i < 40; i++)
        r[i] = submit(&m, 0, 10, 30);
    other = submit(&m, 1, 10, 30);
    for (uint32_t k = 0; k < 100; k++) {
        iterate(&m, 1);
        for (uint32_t i = 0; i < 40; i++)
            if (r[i]->n_out[0]) sch_pause(m.sch, r[i]->id, true);
    }
    for (uint32_t i = 0; i < 40; i++)
        had += r[i]->had_rows;
    assert_in_range(had, 16, 20);
    assert_int_equal(other->ends, 1);
    for (uint32_t i = 0; i < 40; i++)
        sch_pause(m.sch, r[i]->id, false);
    simcase_finish(&m);
}

/* Cancelled, or past its deadline, its blocks are free after the next iteration. */
static void test_ends_while_paused(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim_req *a, *b;
    struct sim m;

    sim_init(&m, &o);
    a = submit(&m, 0, 50, 100);
    b = sim_req_new(&m, 0, 60, 100);
    b->spec.n_choices = 2;
    b->spec.deadline_ns = m.clock + 1000000000;
    assert_int_equal(sim_submit(&m, b), 0);
    iterate(&m, 10);
    sch_pause(m.sch, a->id, true);
    sch_pause(m.sch, b->id, true);
    iterate(&m, 1);
    sch_cancel(m.sch, a->id);
    iterate(&m, 1);
    assert_int_equal(a->reason, SCH_END_CANCELLED);
    assert_int_equal(a->ends, 1);
    assert_true(simcase_in_use(&m) > 0);
    m.clock = b->spec.deadline_ns;
    iterate(&m, 1);
    assert_int_equal(b->reason, SCH_END_DEADLINE);
    assert_int_equal(simcase_in_use(&m), 0);
    simcase_finish(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places_are_free),   cmocka_unit_test(test_paused_give_their_blocks),
        cmocka_unit_test(test_resumed_go_first),  cmocka_unit_test(test_paused_ones_are_bounded),
        cmocka_unit_test(test_ends_while_paused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
