/* Each way a request can end, over the simulated device: cancelled in every phase, too late, failed
 * by the numbers or the device, left over when the scheduler goes. */
#include "tests/scheduler/simcase.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void cancel_after(uint32_t depth, uint32_t iterations, bool two)
{
    struct sim_opts o = simcase_opts(depth);
    struct sim m;
    struct sim_req *r, *other = NULL;

    o.max_rows = o.max_logit_rows = 32;
    sim_init(&m, &o);
    r = sim_req_new(&m, 0, 200, 100);
    if (two) { /* r waits for a block that the other one fills */
        other = sim_req_new(&m, 0, 200, 3);
        memcpy(r->prompt, other->prompt, sizeof(r->prompt));
        sim_submit(&m, other);
    }
    sim_submit(&m, r);
    for (uint32_t i = 0; i < iterations; i++)
        sim_iterate(&m);
    assert_int_equal(r->ends, 0);
    sch_cancel(m.sch, r->id);
    sim_iterate(&m);
    assert_int_equal(r->ends, 1);
    assert_int_equal(r->reason, SCH_END_CANCELLED);
    assert_int_equal(r->code, CN_ECANCELLED);
    if (!two) assert_int_equal(simcase_in_use(&m), 0);
    sch_cancel(m.sch, r->id); /* stale now */
    sch_pause(m.sch, r->id, true);
    sim_run(&m);
    if (two) assert_int_equal(other->reason, SCH_END_LENGTH);
    simcase_finish(&m);
}

static void test_cancel_in_every_phase(void **state)
{
    for (uint32_t depth = 1; depth <= 2; depth++) {
        for (uint32_t i = 0; i < 40; i++) {
            cancel_after(depth, i, false);
            cancel_after(depth, i, true);
        }
    }
}

static void test_deadlines(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;
    struct sim_req *a, *b, *c;

    o.sch.max_running = 1;
    sim_init(&m, &o);
    a = sim_req_new(&m, 0, 100, 300);
    b = sim_req_new(&m, 0, 100, 5);
    c = sim_req_new(&m, 0, 100, 5);
    a->spec.deadline_ns = m.clock + 100000000;
    b->spec.queue_deadline_ns = m.clock + 20000000;
    sim_submit(&m, a);
    sim_submit(&m, b);
    sim_submit(&m, c);
    sim_run(&m);
    assert_int_equal(a->reason, SCH_END_DEADLINE);
    assert_int_equal(a->code, CN_EDEADLINE);
    assert_true(a->n_out[0] > 10);
    assert_true(a->usage.ended_ns <= a->spec.deadline_ns + 20000000);
    assert_int_equal(b->reason, SCH_END_DEADLINE);
    assert_int_equal(b->n_out[0], 0);
    assert_int_equal(c->reason, SCH_END_LENGTH);
    simcase_finish(&m);
}

static void test_deadline_of_a_paused_request_wakes(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;
    struct sim_req *a;
    uint32_t before;

    sim_init(&m, &o);
    a = sim_req_new(&m, 0, 20, 300);
    a->spec.deadline_ns = m.clock + 1000000000;
    sim_submit(&m, a);
    for (int i = 0; i < 5; i++)
        sim_iterate(&m);
    sch_pause(m.sch, a->id, true);
    before = a->n_out[0];
    assert_false(sim_iterate(&m));
    assert_int_equal(a->n_out[0], before);
    assert_int_equal(sch_next_wake(m.sch), a->spec.deadline_ns);
    m.clock = a->spec.deadline_ns;
    sim_iterate(&m);
    assert_int_equal(a->reason, SCH_END_DEADLINE);
    assert_int_equal(sch_next_wake(m.sch), UINT64_MAX);
    simcase_finish(&m);
}

static void test_numeric_error_fails_one_and_is_not_cached(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;
    struct sim_req *r;

    o.fail_row = 1;
    sim_init(&m, &o);
    r = sim_req_new(&m, 0, 100, 5);
    sim_submit(&m, r);
    sim_run(&m);
    assert_int_equal(r->reason, SCH_END_ERROR);
    assert_int_equal(r->code, CN_ENUMERIC);
    assert_int_equal(kv_space_peek(m.space[0], &(struct kv_seq_opts){0}, r->prompt, 100, NULL), 0);
    simcase_finish(&m);
}

static void test_device_errors_end_the_step_only(void **state)
{
    for (int which = 0; which < 2; which++) {
        struct sim_opts o = simcase_opts(1);
        struct sim m;
        struct sim_req *a, *b;

        sim_init(&m, &o);
        a = sim_req_new(&m, 0, 10, 5);
        sim_submit(&m, a);
        if (which)
            m.o.fail_launch = 1;
        else
            m.o.fail_collect = 1;
        sim_run(&m);
        assert_int_equal(a->reason, SCH_END_ERROR);
        assert_int_equal(a->code, CN_EIO);
        m.o.fail_launch = m.o.fail_collect = 0;
        b = sim_req_new(&m, 0, 10, 5);
        sim_submit(&m, b);
        sim_run(&m);
        assert_int_equal(b->reason, SCH_END_LENGTH);
        simcase_finish(&m);
    }
}

static void test_free_ends_what_is_left(void **state)
{
    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct sim_opts o = simcase_opts(depth);
        struct sim m;
        struct sim_req *a, *b;

        o.sch.max_running = 1;
        sim_init(&m, &o);
        a = sim_req_new(&m, 0, 100, 50);
        b = sim_req_new(&m, 0, 100, 50);
        sim_submit(&m, a);
        sim_submit(&m, b);
        for (int i = 0; i < 6; i++)
            sim_iterate(&m);
        sch_free(m.sch);
        m.sch = NULL;
        assert_int_equal(a->ends, 1);
        assert_int_equal(b->ends, 1);
        assert_int_equal(simcase_in_use(&m), 0);
        simcase_sound(&m);
        sim_fini(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cancel_in_every_phase),
        cmocka_unit_test(test_deadlines),
        cmocka_unit_test(test_deadline_of_a_paused_request_wakes),
        cmocka_unit_test(test_numeric_error_fails_one_and_is_not_cached),
        cmocka_unit_test(test_device_errors_end_the_step_only),
        cmocka_unit_test(test_free_ends_what_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
