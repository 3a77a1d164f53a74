/* Speculation as the scheduler decides on it, over simulated steps that take a base and so much a
 * row: used where it pays, left where it does not, and at nobody else's price. Every answer is
 * compared with the request's alone, without drafts. */
#include "tests/scheduler/simcase.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

struct outcome { double ns, drafted, right, served[2]; };

struct world {
    uint32_t n;       /* choices that decode at once */
    uint32_t parrots; /* of them, those that repeat themselves; tenant 0's, others tenant 1's */
    uint32_t max_draft, depth; /* depth 0: 1 */
    uint64_t step_ns, row_ns;
    double others_ns; /* set: when the last that does not repeat itself had ended */
};

static struct outcome run(struct world *w)
{
    struct sim_opts o = simcase_opts(w->depth ? w->depth : 1);
    struct sim m;
    struct sch_stats st;
    struct outcome out = {0};

    o.max_draft = w->max_draft;
    o.step_ns = w->step_ns;
    o.row_ns = w->row_ns;
    o.sch.block_cost = 1e-12; /* time is not what is compared */
    sim_init(&m, &o);
    for (uint32_t i = 0; i < w->n; i++) {
        struct sim_req *r = sim_req_new(&m, i >= w->parrots, 20, 300);

        r->parrot = i < w->parrots;
        assert_int_equal(sim_submit(&m, r), 0);
    }
    sim_run(&m);
    for (uint32_t i = 0; i < w->n; i++) {
        if (!m.reqs[i].parrot)
            w->others_ns = CN_MAX(w->others_ns, (double)m.reqs[i].usage.ended_ns);
    }
    sch_stats(m.sch, &st);
    out = (struct outcome){(double)m.clock, (double)st.drafted, (double)st.drafts_right, {0}};
    for (uint32_t t = 0; t < 2; t++) {
        struct sch_tenant_stats ts;

        sch_tenant_stats(m.sch, t, &ts);
        out.served[t] = ts.served;
    }
    simcase_finish(&m);
    return out;
}

static void test_gains_where_rows_are_cheap(void **state)
{
    static const uint32_t ns[] = {1, 2, 5, 8};

    for (uint32_t i = 0; i < CN_ARRAY_LEN(ns); i++) {
        struct world w = {.n = ns[i], .parrots = ns[i], .step_ns = 10000000, .row_ns = 500000};
        struct outcome off = run(&w), on;

        assert_true(off.drafted == 0);
        w.max_draft = 16;
        on = run(&w);
        print_message("%u: %.2f times as fast, %.0f of %.0f right\n", ns[i], off.ns / on.ns,
                      on.right, on.drafted);
        assert_true(on.right > 0.9 * on.drafted);
        assert_true(off.ns / on.ns > (ns[i] == 1 ? 4 : 2));
        assert_true(on.served[0] > off.served[0] * 0.99 && on.served[0] < off.served[0] * 1.01);
    }
}

/* With two steps in flight a choice leaves one out to know what the drafts follow: of several each
 * has rows in every other step. */
static void test_gains_with_two_steps_in_flight(void **state)
{
    for (uint32_t n = 1; n <= 8; n += 7) {
        struct world w = {.n = n, .parrots = n, .depth = 2, .step_ns = 10000000, .row_ns = 500000};
        struct outcome off = run(&w), on;

        w.max_draft = 16;
        on = run(&w);
        print_message("%u: %.2f times as fast, %.0f of %.0f right\n", n, off.ns / on.ns, on.right,
                      on.drafted);
        assert_true(on.right > 0.9 * on.drafted);
        assert_true(off.ns / on.ns > (n == 1 ? 4 : 1.5));
    }
}

/* Where rows are dear, or nothing repeats, few steps are left out. */
static void test_no_loss_with_two_steps_in_flight(void **state)
{
    for (uint32_t i = 0; i < 6; i++) {
        struct world w = {.n = 1 + i % 3, .depth = 2, .step_ns = 10000000, .row_ns = 500000};
        struct outcome off, on;

        if (i >= 3) {
            w.parrots = w.n;
            w.step_ns = 100000;
            w.row_ns = 10000000;
        }
        off = run(&w);
        w.max_draft = 16;
        on = run(&w);
        print_message("%u: %.3f of the time, %.0f drafts\n", w.n, on.ns / off.ns, on.drafted);
        assert_true(on.ns < off.ns * 1.05);
    }
}

/* A row costs what a step does: after the first tries it is left. */
static void test_none_where_rows_are_dear(void **state)
{
    for (uint32_t n = 1; n <= 4; n++) {
        struct world w = {.n = n, .parrots = n, .step_ns = 100000, .row_ns = 10000000};
        struct outcome off = run(&w), on;

        w.max_draft = 16;
        on = run(&w);
        print_message("%u: %.3f of the time, %.0f drafts\n", n, on.ns / off.ns, on.drafted);
        assert_true(on.ns < off.ns * 1.03);
        assert_true(on.drafted < 0.1 * 300 * n);
    }
}

/* Texts that never repeat: nothing is guessed, nothing is lost. */
static void test_free_where_nothing_repeats(void **state)
{
    struct world w = {.n = 3, .step_ns = 10000000, .row_ns = 500000};
    struct outcome off = run(&w), on;

    w.max_draft = 16;
    on = run(&w);
    assert_true(on.ns <= off.ns * 1.005);
}

/* One repeats itself beside seven who do not: it gains, they wait at most a tenth longer; and what
 * was guessed wrong is paid by nobody. */
static void test_others_hardly_wait(void **state)
{
    struct world off = {.n = 8, .parrots = 1, .step_ns = 10000000, .row_ns = 200000};
    struct world on = off;
    struct outcome a = run(&off), b;

    on.max_draft = 16;
    b = run(&on);
    print_message("others: %.3f of the time, %.0f drafts, %.0f right\n",
                  on.others_ns / off.others_ns, b.drafted, b.right);
    assert_true(b.right > 100);
    assert_true(on.others_ns < off.others_ns * 1.11);
    for (uint32_t t = 0; t < 2; t++)
        assert_true(b.served[t] > a.served[t] * 0.99 && b.served[t] < a.served[t] * 1.01);
}

/* Wrong guesses, forced: every row is forgotten again, and nobody pays. */
static uint32_t wrong(void *arg, const struct sch_drafting *d, uint32_t most, uint32_t *out)
{
    for (uint32_t i = 0; i < most; i++)
        out[i] = 1000 + i; /* no token of the simulated model */
    return most;
}

static void test_wrong_ones_leave_nothing(void **state)
{
    struct sim_opts o = simcase_opts(1);
    struct sim m;
    struct sch_stats st;
    struct sch_tenant_stats ts;
    struct sim_req *r;

    o.sch.speculation = (struct sch_speculation){.max_draft = 5, .propose = wrong};
    o.max_draft = 5;
    o.guess = true;
    o.sch.block_cost = 1e-12;
    sim_init(&m, &o);
    r = sim_req_new(&m, 0, 20, 100);
    assert_int_equal(sim_submit(&m, r), 0);
    while (r->n_out[0] < 50) {
        sim_iterate(&m);
        simcase_sound(&m);
        /* the blocks of its rows, and none of the drafts */
        assert_int_equal(simcase_in_use(&m),
                         (20 + r->n_out[0] - 1 + SIMCASE_BLOCK_TOKENS - 1) / SIMCASE_BLOCK_TOKENS);
    }
    sim_run(&m);
    sch_stats(m.sch, &st);
    sch_tenant_stats(m.sch, 0, &ts);
    assert_int_equal(st.drafts_right, 0);
    assert_true(st.drafted > 300);
    assert_int_equal(r->usage.computed_tokens, 20 + 100 - 1);
    assert_true(ts.served > 20 + 2 * 99 - 1 && ts.served < 20 + 2 * 99 + 1);
    simcase_finish(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gains_where_rows_are_cheap),
                                       cmocka_unit_test(test_gains_with_two_steps_in_flight),
                                       cmocka_unit_test(test_no_loss_with_two_steps_in_flight),
                                       cmocka_unit_test(test_none_where_rows_are_dear),
                                       cmocka_unit_test(test_free_where_nothing_repeats),
                                       cmocka_unit_test(test_others_hardly_wait),
                                       cmocka_unit_test(test_wrong_ones_leave_nothing)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
