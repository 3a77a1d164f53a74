/* What wakes the loop: nothing that was sent is lost, and the loop never spins for a thread that
 * lost its processor while it sent. */
#include "server/wake.h"

#include "base/base.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <cmocka.h>

#define LOST 60 /* how often the sender is to lose its processor */

struct world {
    struct srv_wake wake;
    uv_loop_t loop;
    uv_prepare_t before_poll;
    atomic_size_t sent;
    atomic_bool sent_all;
    size_t turns;
    uint64_t turn_ns, most_ns; /* CPU time of this thread: when the turn began; the longest turn */
};

static void close_handle(uv_handle_t *h, void *arg)
{
    uv_close(h, NULL);
}

/* If the last wake were lost, the loop would never end. */
static void on_before_poll(uv_prepare_t *h)
{
    struct world *w = h->data;
    uint64_t now = cn_thread_ns();

    if (w->turns++) w->most_ns = CN_MAX(w->most_ns, now - w->turn_ns);
    w->turn_ns = now;
    if (atomic_load(&w->sent_all)) uv_walk(&w->loop, close_handle, NULL);
}

/* To one processor of those that the process may use: the first, or the second. */
static bool take_processor(int which)
{
    cpu_set_t all, one;

    if (sched_getaffinity(0, sizeof all, &all)) return false;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all) || which--) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        return pthread_setaffinity_np(pthread_self(), sizeof one, &one) == 0;
    }
    return false;
}

static void *work_beside(void *arg)
{
    struct world *w = arg;

    take_processor(0);
    while (!atomic_load(&w->sent_all)) {
    }
    return NULL;
}

static void *send_all(void *arg)
{
    struct world *w = arg;
    struct rusage u = {0};

    take_processor(0);
    while (u.ru_nivcsw < LOST) {
        atomic_fetch_add(&w->sent, 1);
        srv_wake_send(&w->wake);
        getrusage(RUSAGE_THREAD, &u);
    }
    atomic_store(&w->sent_all, true);
    srv_wake_send(&w->wake);
    return NULL;
}

static void the_loop_waits_for_no_sender(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    pthread_t sender, other;
    cpu_set_t all;

    assert_non_null(w);
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    if (!take_processor(1)) {
        free(w);
        skip(); /* a sender that lost the only processor is not met */
    }
    assert_int_equal(uv_loop_init(&w->loop), 0);
    assert_int_equal(srv_wake_open(&w->wake), 0);
    assert_int_equal(pthread_setaffinity_np(pthread_self(), sizeof all, &all),
                     0); /* theirs as well */
    assert_int_equal(pthread_create(&sender, NULL, send_all, w),
                     0); /* perhaps before the loop polls */
    assert_int_equal(pthread_create(&other, NULL, work_beside, w), 0);
    assert_true(take_processor(1));
    assert_int_equal(srv_wake_start(&w->wake, &w->loop), 0);
    assert_int_equal(uv_prepare_init(&w->loop, &w->before_poll), 0);
    w->before_poll.data = w;
    assert_int_equal(uv_prepare_start(&w->before_poll, on_before_poll), 0);
    uv_run(&w->loop, UV_RUN_DEFAULT);
    pthread_join(sender, NULL);
    pthread_join(other, NULL);
    print_message("sent %zu times, %zu turns, the longest %.3f ms\n", w->sent, w->turns,
                  (double)w->most_ns * 1e-6);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(w->most_ns < 1000000);
#endif
    assert_int_equal(uv_loop_close(&w->loop), 0);
    srv_wake_fini(&w->wake);
    free(w);
    assert_int_equal(pthread_setaffinity_np(pthread_self(), sizeof all, &all), 0);
}

/* However many are sent before one is looked at. */
static void sending_never_blocks(void **state)
{
    struct srv_wake w = {.opened = false};

    srv_wake_fini(&w); /* never opened */
    assert_int_equal(srv_wake_open(&w), 0);
    for (int i = 0; i < 100000; i++)
        srv_wake_send(&w);
    srv_wake_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_loop_waits_for_no_sender),
        cmocka_unit_test(sending_never_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
