/* Pauses of the whole process, as against stalls of our own making. */
#include "server/pause.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>
#include <cmocka.h>

#define MS 1000000ull
#define S  1000000000ull

static void only_a_time_in_which_nobody_ran_is_a_pause(void **state)
{
    struct srv_pause p = {0};
    uint64_t t = 5000 * S;

    srv_pause_alive(&p, t);      /* the first look is no pause since the clock's zero */
    for (int i = 0; i < 40; i++) /* the loop stands for 10 s, the witness runs */
        srv_pause_alive(&p, t += 250 * MS);
    assert_int_equal(p.paused_ns, 0);
    for (int i = 0; i < 10; i++) /* the witness is late; the loop runs */
        srv_pause_alive(&p, t += 1400 * MS);
    assert_int_equal(p.paused_ns, 0);
    srv_pause_alive(&p, t += 3 * S);
    assert_int_equal(p.paused_ns, 3 * S);
    srv_pause_alive(&p, t);         /* the other one, right after */
    srv_pause_alive(&p, t - 2 * S); /* a clock that was read before a lock was had */
    srv_pause_alive(&p, t + 250 * MS);
    assert_int_equal(p.paused_ns, 3 * S);
}

static void pauses_are_taken_out_of_the_time_without_progress(void **state)
{
    struct srv_progress g = {0};
    uint64_t t = 5000 * S;

    assert_int_equal(srv_progress_look(&g, t, 0, 0), 0);
    assert_int_equal(srv_progress_look(&g, t + S, S / 2, 0), S / 2);
    assert_int_equal(srv_progress_look(&g, t + 2 * S, 3 * S / 2, 0), 3 * S / 2);
    assert_int_equal(srv_progress_look(&g, t + 12 * S, 23 * S / 2, 10 * S), 3 * S / 2);
    /* A second pause takes out itself alone: pauses cannot put the end off for ever. */
    assert_int_equal(srv_progress_look(&g, t + 20 * S, 39 * S / 2, 15 * S), 9 * S / 2);
    assert_int_equal(srv_progress_look(&g, t + 21 * S, 41 * S / 2, 15 * S), 11 * S / 2);
    /* Progress: what was before it no longer counts. */
    assert_int_equal(srv_progress_look(&g, t + 22 * S, S / 4, 15 * S), S / 4);
    assert_int_equal(srv_progress_look(&g, t + 24 * S, 9 * S / 4, 15 * S), 9 * S / 4);
    /* Progress and a pause since the last look, in whichever order. */
    assert_int_equal(srv_progress_look(&g, t + 34 * S, 9 * S, 24 * S), 0);
    assert_int_equal(srv_progress_look(&g, t + 36 * S, 11 * S, 24 * S), 2 * S);
}

/* A thread that stands still for longer than SRV_PAUSE_NS, as a loop would that waits for a
 * lock. */
static void a_stall_of_one_thread_is_no_pause(void **state)
{
    struct srv_witness w;

    for (int turn = 0; turn < 5; turn++) { /* a machine that stands still itself says nothing */
        assert_int_equal(srv_witness_start(&w, NULL), 0);
        srv_witness_look(&w, cn_now_ns());
        usleep(1700000);
        uint64_t paused = srv_witness_look(&w, cn_now_ns());
        srv_witness_stop(&w);
        if (!paused) return;
    }
    fail();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_a_time_in_which_nobody_ran_is_a_pause),
        cmocka_unit_test(pauses_are_taken_out_of_the_time_without_progress),
        cmocka_unit_test(a_stall_of_one_thread_is_no_pause),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
