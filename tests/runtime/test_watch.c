/* When the engine thread counts as stuck: a made-up clock, made-up steps. */
#include "runtime/watch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define MS 1000000ull
#define S  1000000000ull

static struct rt_health at(struct rt_watch *w, uint64_t now)
{
    struct rt_health h = {0};
    rt_watch_read(w, now, &h);
    return h;
}

/* One iteration with a step of so many rows that takes so long; returns when it is over. */
static uint64_t step(struct rt_watch *w, uint64_t now, uint32_t rows, uint64_t takes, double base,
                     double row)
{
    rt_watch_begin(w, now);
    rt_watch_launch(w, now, rows, base, row);
    rt_watch_done(w, now + takes);
    rt_watch_idle(w);
    return now + takes;
}

static void waiting_for_work_is_not_stuck(void **state)
{
    struct rt_watch w;
    rt_watch_init(&w, 100 << 20, 5 * S);
    assert_false(at(&w, 500 * S).stuck);
    uint64_t t = step(&w, 600 * S, 16, 10 * MS, 1e6, 1e6);
    assert_false(at(&w, t + 500 * S).stuck);
    assert_false(at(&w, t + 500 * S).pending);
    rt_watch_begin(&w, t + 600 * S); /* the silence before is not counted */
    assert_false(at(&w, t + 600 * S + 1).stuck);
    assert_int_equal(at(&w, t + 601 * S).since_progress_ns, S);
}

static void short_steps_are_missed_soon(void **state)
{
    struct rt_watch w;
    uint64_t t = S;
    rt_watch_init(&w, 100 << 20, t);
    for (int i = 0; i < 100; i++)
        t = step(&w, t, 1, 10 * MS, 10e6, 1e6);
    rt_watch_begin(&w, t);
    rt_watch_launch(&w, t, 1, 10e6, 1e6);
    assert_false(at(&w, t + 1900 * MS).stuck);
    assert_true(at(&w, t + 2100 * MS).stuck);
    assert_int_equal(at(&w, t + 2100 * MS).stuck_after_ns, 2 * S);
    rt_watch_done(&w, t + 3 * S);
    assert_false(at(&w, t + 3 * S + MS).stuck);
}

/* A large model: decode steps of 0.4 s, prefill steps of 6 s. */
static void long_steps_have_their_time(void **state)
{
    struct rt_watch w;
    uint64_t t = S;
    double base = 0.4e9, row = 5.6e9 / 512;
    rt_watch_init(&w, 8ull << 30, t);
    for (int i = 0; i < 50; i++)
        t = step(&w, t, 1, 400 * MS, base, row);
    rt_watch_begin(&w, t);
    rt_watch_launch(&w, t, 512, base, row);
    assert_false(at(&w, t + 30 * S).stuck); /* five times its prediction */
    assert_true(at(&w, t + 61 * S).stuck);
    rt_watch_done(&w, t + 6 * S);
    t += 6 * S;
    assert_false(at(&w, t + 1900 * MS).stuck); /* between two steps nothing takes long */
    assert_true(at(&w, t + 2100 * MS).stuck);
    rt_watch_begin(&w,
                   t); /* a decode step after it: told by its own rows and the slowest of late */
    rt_watch_launch(&w, t, 1, base, row);
    assert_false(at(&w, t + 11 * S).stuck);
    assert_true(at(&w, t + 13 * S).stuck);
    rt_watch_done(&w, t + 400 * MS);
    for (int i = 0; i < RT_WATCH_RECENT; i++)
        t = step(&w, t, 1, 400 * MS, base, row);
    rt_watch_begin(&w, t); /* and once that is long ago, by its rows alone */
    rt_watch_launch(&w, t, 1, base, row);
    assert_false(at(&w, t + 4 * S).stuck);
    assert_true(at(&w, t + 4200 * MS).stuck);
}

/* A machine that pauses now and then is not stuck at every pause. */
static void slow_steps_of_late_count(void **state)
{
    struct rt_watch w;
    uint64_t t = S;
    rt_watch_init(&w, 100 << 20, t);
    for (int i = 0; i < 40; i++)
        t = step(&w, t, 1, i % 10 ? 10 * MS : 4 * S, 10e6, 1e6);
    rt_watch_begin(&w, t);
    rt_watch_launch(&w, t, 1, 10e6, 1e6);
    assert_false(at(&w, t + 7 * S).stuck);
    assert_true(at(&w, t + 9 * S).stuck);
}

/* Nothing measured yet: the first step's time follows from the weights and its rows. */
static void first_step_of_a_model(void **state)
{
    struct rt_watch w;
    uint64_t t = S;
    rt_watch_init(&w, 5ull * 1000 * 1000 * 1000, t); /* 8 B parameters at 4 bits */
    rt_watch_begin(&w, t);
    rt_watch_launch(&w, t, 64, 0, 0);
    assert_false(at(&w, t + 50 * S).stuck); /* read from a slow disk */
    assert_true(at(&w, t + 300 * S).stuck);
    rt_watch_init(&w, 100 * 1000 * 1000, t);
    rt_watch_begin(&w, t);
    rt_watch_launch(&w, t, 64, 0, 0);
    assert_false(at(&w, t + 2 * S).stuck);
    assert_true(at(&w, t + 6 * S).stuck);
}

static void two_steps_in_flight(void **state)
{
    struct rt_watch w;
    uint64_t t = S;
    rt_watch_init(&w, 100 << 20, t);
    rt_watch_begin(&w, t);
    rt_watch_launch(&w, t, 500, 0, 10e6); /* 5 s */
    rt_watch_launch(&w, t, 1, 0, 10e6);   /* behind it */
    assert_false(at(&w, t + 20 * S).stuck);
    assert_true(at(&w, t + 51 * S).stuck);
    rt_watch_done(&w, t + 5 * S);
    rt_watch_begin(&w, t + 5 * S);
    assert_false(at(&w, t + 14 * S).stuck); /* twice the slowest of late */
    assert_true(at(&w, t + 16 * S).stuck);
    rt_watch_done(&w, t + 6 * S);
    rt_watch_begin(&w, t + 6 * S);
    assert_true(at(&w, t + 9 * S).stuck);
}

static void absurd_costs_do_not_overflow(void **state)
{
    struct rt_watch w;
    rt_watch_init(&w, UINT64_MAX, S);
    rt_watch_begin(&w, S);
    rt_watch_launch(&w, S, UINT32_MAX, 1e300, 1e300);
    assert_false(at(&w, 1000 * S).stuck);
    rt_watch_done(&w, S - 1); /* a clock that went back */
    rt_watch_begin(&w, S);
    assert_true(at(&w, 4 * S).stuck);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waiting_for_work_is_not_stuck),
        cmocka_unit_test(short_steps_are_missed_soon),
        cmocka_unit_test(long_steps_have_their_time),
        cmocka_unit_test(slow_steps_of_late_count),
        cmocka_unit_test(first_step_of_a_model),
        cmocka_unit_test(two_steps_in_flight),
        cmocka_unit_test(absurd_costs_do_not_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
