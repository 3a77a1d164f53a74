/* What the scheduler promises, case by case, over the simulated device: what it refuses, and the
 * order in which it runs the rest. test_schrandom.c does the combinations. */
#include "tests/scheduler/simcase.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* ---- at the door ----------------------------------------------------------------------------- */

static int refused(struct sim *m, struct sim_req *r)
{
    struct sch_stats a, b;
    int rc;

    sch_stats(m->sch, &a);
    rc = sim_submit(m, r);
    sch_stats(m->sch, &b);
    assert_int_equal(b.refused - a.refused, rc != 0);
    m->n_reqs--; /* its place is used again */
    return rc;
}

static void test_refusals(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sch_tenant_opts two = {.max_concurrent = 1, .max_queued = 1}, queue = {.max_queued = 1};
    struct sch_stats st;
    struct sim m;
    struct sim_req *r;

    o.n_slabs = 4; /* 32 blocks = 512 tokens */
    o.context = 1000;
    o.sch.max_queue = 4;
    o.sch.max_queue_tokens = 1200;
    sim_init(&m, &o);
    r = sim_req_new(&m, 0, 100, 901);
    assert_int_equal(refused(&m, r), CN_EWINDOW);
    r = sim_req_new(&m, 0, 100, 414);
    assert_int_equal(refused(&m, r), CN_ENEVERFIT);
    r = sim_req_new(&m, 0, 100, 5);
    r->spec.n_choices = 9;
    assert_int_equal(refused(&m, r), CN_ERANGE);
    r = sim_req_new(&m, 0, 100, 5);
    r->spec.n_choices = 0;
    assert_int_equal(refused(&m, r), CN_ERANGE);
    r = sim_req_new(&m, 0, 100, 5);
    r->spec.n_prompt = 0;
    assert_int_equal(refused(&m, r), CN_ERANGE);
    r = sim_req_new(&m, 0, 100, 5);
    r->spec.model = 3;
    assert_int_equal(refused(&m, r), CN_EMODEL);
    r = sim_req_new(&m, 0, 100, 5);
    r->spec.deadline_ns = 5;
    assert_int_equal(refused(&m, r), CN_EDEADLINE);

    sch_tenant_set(m.sch, 1, &two);
    assert_int_equal(sim_submit(&m, sim_req_new(&m, 1, 10, 5)), 0);
    assert_int_equal(sim_submit(&m, sim_req_new(&m, 1, 10, 5)), 0);
    assert_int_equal(refused(&m, sim_req_new(&m, 1, 10, 5)), CN_ERATE);
    sch_tenant_set(m.sch, 2, &queue);
    assert_int_equal(sim_submit(&m, sim_req_new(&m, 2, 10, 5)), 0);
    assert_int_equal(refused(&m, sim_req_new(&m, 2, 10, 5)), CN_ERATE);
    assert_int_equal(refused(&m, sim_req_new(&m, 3, 490, 5)), 0);
    m.n_reqs++;
    assert_int_equal(refused(&m, sim_req_new(&m, 3, 10, 5)), CN_EQUEUE); /* five would wait */
    do {
        sim_iterate(&m);
        sch_stats(m.sch, &st);
    } while (st.waiting > 2);
    assert_int_equal(sim_submit(&m, sim_req_new(&m, 3, 10, 5)), 0);
    assert_true(sch_retry_after_s(m.sch) >= 1);
    simcase_finish(&m);
}

static void test_queue_tokens(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;

    o.sch.max_queue_tokens = 100;
    sim_init(&m, &o);
    assert_int_equal(sim_submit(&m, sim_req_new(&m, 0, 150, 5)), 0); /* alone it may be longer */
    assert_int_equal(refused(&m, sim_req_new(&m, 0, 10, 5)), CN_EQUEUE);
    simcase_finish(&m);
}

static void test_open_ended_runs_to_what_fits(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;
    struct sim_req *r;

    o.n_slabs = 2; /* 256 tokens */
    sim_init(&m, &o);
    r = sim_req_new(&m, 0, 100, 0);
    assert_int_equal(sim_submit(&m, r), 0);
    sim_run(&m);
    simcase_sound(&m);
    assert_int_equal(r->reason, SCH_END_LENGTH);
    assert_int_equal(r->n_out[0], 157); /* 256 rows, and the last token has none */
    simcase_finish(&m);
}

/* ---- order ----------------------------------------------------------------------------------- */

static void test_decode_goes_on_beside_a_long_prompt(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;
    struct sim_req *a, *b;
    uint32_t steps = 0, before;

    o.sch.step_target_ns = 3000000; /* 20 rows */
    sim_init(&m, &o);
    a = sim_req_new(&m, 0, 10, 300);
    b = sim_req_new(&m, 1, 480, 3);
    sim_submit(&m, a);
    for (int i = 0; i < 60; i++)
        sim_iterate(&m);
    sim_submit(&m, b);
    before = a->n_out[0];
    while (!b->n_out[0] && sim_iterate(&m))
        steps++;
    assert_true(steps >= 480 / 32);                 /* in chunks that keep to the target */
    assert_true(a->n_out[0] - before >= steps - 1); /* and a got a token in each */
    simcase_finish(&m);
}

static void test_background_runs_when_idle(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;
    struct sim_req *bg, *fg;
    uint32_t had;

    sim_init(&m, &o);
    bg = sim_req_new(&m, 0, 50, 40);
    bg->spec.class = SCH_BACKGROUND;
    sim_submit(&m, bg);
    for (int i = 0; i < 5; i++)
        sim_iterate(&m);
    had = bg->n_out[0];
    assert_true(had > 0);
    fg = sim_req_new(&m, 1, 50, 40);
    sim_submit(&m, fg);
    sim_iterate(&m);
    had = bg->n_out[0];
    while (!fg->ends)
        sim_iterate(&m);
    assert_int_equal(bg->n_out[0], had);
    sim_run(&m);
    assert_int_equal(bg->reason, SCH_END_LENGTH);
    simcase_finish(&m);
}

/* All places are taken by background requests: others start within a step or two all the same, and
 * in all places; the background ones go on behind them. */
static void places(uint32_t depth, uint32_t most, uint32_t tenant)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;
    struct sim_req *bg[8], *fg[8];
    uint32_t had = 0, has = 0, begun = 0, kept = tenant ? most / 2 : most / 8;

    o.depth = depth;
    o.sch.max_running = most;
    sim_init(&m, &o);
    for (uint32_t i = 0; i < most; i++) {
        bg[i] = sim_req_new(&m, 0, 20, 60);
        bg[i]->spec.class = SCH_BACKGROUND;
        sim_submit(&m, bg[i]);
    }
    for (int i = 0; i < 8; i++)
        sim_iterate(&m);
    for (uint32_t i = 0; i < most; i++) {
        fg[i] = sim_req_new(&m, tenant, 20, 30);
        sim_submit(&m, fg[i]);
    }
    for (uint32_t i = 0; i < 4 * depth + most; i++) /* with a step in flight one a step */
        sim_iterate(&m);
    for (uint32_t i = 0; i < most; i++) {
        begun += fg[i]->n_out[0] > 0;
        had += bg[i]->n_out[0];
    }
    assert_int_equal(begun, most - kept);
    assert_true(had > 0);
    for (uint32_t i = 0; i < most; i++) {
        while (!fg[i]->ends)
            sim_iterate(&m);
    }
    for (uint32_t i = 0; i < most; i++)
        has += bg[i]->n_out[0];
    assert_int_equal(has, had);
    sim_run(&m);
    for (uint32_t i = 0; i < most; i++)
        assert_int_equal(bg[i]->reason, SCH_END_LENGTH);
    simcase_finish(&m);
}

static void test_background_gives_its_places(void **state)
{
    for (uint32_t depth = 1; depth <= 2; depth++) {
        places(depth, 1, 1);
        places(depth, 4, 1);
        places(depth, 8, 1);
        places(depth, 8, 0);
    }
}

/* A queue of six and four free places: of twelve that come at once ten are taken. */
static void test_a_burst_finds_the_free_places(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;

    o.sch.max_running = 4;
    o.sch.max_queue = 6;
    sim_init(&m, &o);
    for (uint32_t round = 0; round < 3; round++) {
        uint32_t taken = 0;

        for (uint32_t i = 0; i < 12; i++) {
            struct sim_req *r = sim_req_new(&m, 0, 20, 5);
            int rc = sim_submit(&m, r);

            if (rc == CN_EQUEUE && sch_let_in(m.sch)) rc = sim_submit(&m, r);
            if (rc) m.n_reqs--; /* its place is used again */
            taken += rc == 0;
        }
        assert_int_equal(taken, 10);
        assert_false(sch_let_in(m.sch));
        sim_run(&m);
    }
    simcase_finish(&m);
}

/* What is let in between two steps counts as one admission: tenants get places by turns. */
static void test_let_in_is_fair(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;
    struct sch_tenant_stats ts;

    o.sch.max_running = 6;
    sim_init(&m, &o);
    for (uint32_t i = 0; i < 12; i++) {
        sim_submit(&m, sim_req_new(&m, i / 6, 200, 5));
        if (i == 2) assert_true(sch_let_in(m.sch));
    }
    sim_iterate(&m);
    sch_tenant_stats(m.sch, 0, &ts);
    assert_int_equal(ts.running, 3);
    sim_run(&m);
    simcase_finish(&m);
}

/* One that is cancelled is not let in, and nobody gives his place for it. */
static void test_let_in_sees_cancels(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;
    struct sim_req *runner, *gone;
    struct sch_stats st;

    o.sch.max_running = 1;
    o.sch.max_queue = 1;
    sim_init(&m, &o);
    runner = sim_req_new(&m, 0, 20, 20);
    runner->spec.class = SCH_BACKGROUND;
    sim_submit(&m, runner);
    for (int i = 0; i < 3; i++)
        sim_iterate(&m);
    gone = sim_req_new(&m, 1, 20, 5);
    sim_submit(&m, gone);
    gone->cancelled = true;
    sch_cancel(m.sch, gone->id);
    assert_true(sch_let_in(m.sch));
    assert_int_equal(gone->ends, 1);
    sch_stats(m.sch, &st);
    assert_int_equal(st.preemptions, 0);
    assert_int_equal(sim_submit(&m, sim_req_new(&m, 1, 20, 5)), 0);
    sim_run(&m);
    simcase_finish(&m);
}

/* Losing a place again and again is no sign of too few blocks: all run again together. */
static void test_displaced_need_no_more_room(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;
    struct sim_req *bg[4];
    struct sch_tenant_stats ts;

    o.n_slabs = 8;
    o.sch.max_running = 4;
    sim_init(&m, &o);
    for (uint32_t i = 0; i < 4; i++) {
        bg[i] = sim_req_new(&m, 0, 20, 470);
        bg[i]->spec.class = SCH_BACKGROUND;
        sim_submit(&m, bg[i]);
    }
    for (uint32_t burst = 0; burst < 6; burst++) {
        struct sim_req *fg[4];

        for (int i = 0; i < 4; i++)
            sim_iterate(&m);
        for (uint32_t i = 0; i < 4; i++) {
            fg[i] = sim_req_new(&m, 1, 20, 5);
            sim_submit(&m, fg[i]);
        }
        for (uint32_t i = 0; i < 4; i++) {
            while (!fg[i]->ends)
                sim_iterate(&m);
        }
    }
    for (int i = 0; i < 4; i++)
        sim_iterate(&m);
    sch_tenant_stats(m.sch, 0, &ts);
    assert_int_equal(ts.running, 4);
    sim_run(&m);
    simcase_finish(&m);
}

static void test_ceiling(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sch_tenant_opts low = {.ceiling = SCH_BACKGROUND};
    struct sim m;
    struct sim_req *a, *b;

    sim_init(&m, &o);
    sch_tenant_set(m.sch, 0, &low);
    a = sim_req_new(&m, 0, 50, 5);
    a->spec.class = SCH_BACKGROUND; /* for the simulator's own check */
    b = sim_req_new(&m, 1, 50, 5);
    a->spec.class = SCH_INTERACTIVE;
    sim_submit(&m, a);
    a->spec.class = SCH_BACKGROUND;
    sim_submit(&m, b);
    while (!a->ends)
        sim_iterate(&m);
    assert_int_equal(b->ends, 1);
    simcase_finish(&m);
}

static void test_longest_prefix_first_but_not_for_ever(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;
    struct sim_req *warm, *cold, *hits[20];
    uint32_t first = 0;

    o.sch.max_running = 1;
    sim_init(&m, &o);
    warm = sim_req_new(&m, 0, 200, 1);
    sim_submit(&m, warm);
    sim_run(&m);
    cold = sim_req_new(&m, 0, 200, 1);
    sim_submit(&m, cold);
    for (uint32_t i = 0; i < 20; i++) {
        hits[i] = sim_req_new(&m, 0, 210, 1);
        memcpy(hits[i]->prompt, warm->prompt, 200 * sizeof(*warm->prompt));
        sim_submit(&m, hits[i]);
    }
    while (!cold->ends)
        sim_iterate(&m);
    for (uint32_t i = 0; i < 20; i++)
        first += hits[i]->ends;
    assert_true(first >= 4 && first <= 10);
    simcase_finish(&m);
}

static void test_preemption_keeps_bytes_and_bounds(void **state)
{
    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct sim_opts o = simcase_opts(depth);
        struct sim m;
        struct sch_stats st;

        o.n_slabs = 5; /* 40 blocks; eight that grow to 11 each */
        sim_init(&m, &o);
        for (uint32_t i = 0; i < 12; i++)
            sim_submit(&m, sim_req_new(&m, i % 3, 20, 150));
        sim_run(&m);
        sch_stats(m.sch, &st);
        assert_true(st.preemptions > 0);
        for (uint32_t i = 0; i < m.n_reqs; i++) {
            assert_int_equal(m.reqs[i].reason, SCH_END_LENGTH);
            assert_true(m.reqs[i].usage.preemptions <= 4);
        }
        simcase_finish(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_queue_tokens),
        cmocka_unit_test(test_open_ended_runs_to_what_fits),
        cmocka_unit_test(test_decode_goes_on_beside_a_long_prompt),
        cmocka_unit_test(test_background_runs_when_idle),
        cmocka_unit_test(test_background_gives_its_places),
        cmocka_unit_test(test_a_burst_finds_the_free_places),
        cmocka_unit_test(test_let_in_is_fair),
        cmocka_unit_test(test_let_in_sees_cancels),
        cmocka_unit_test(test_displaced_need_no_more_room),
        cmocka_unit_test(test_ceiling),
        cmocka_unit_test(test_longest_prefix_first_but_not_for_ever),
        cmocka_unit_test(test_preemption_keeps_bytes_and_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
