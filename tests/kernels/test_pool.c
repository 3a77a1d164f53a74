/* pool: every unit once, stages in order, sleeping and waking, a processor taken away. Run under
 * ThreadSanitizer too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/cpu/pool.h"
#include "tests/devices.h"

enum { MAX_UNITS = 5000, MAX_STAGES = 40 };

struct record {
    uint32_t *seen;        /* [stage][unit]: plain memory, so that a race shows */
    const uint32_t *units; /* by stage */
    atomic_uint early;     /* units that ran before the stage before them was complete */
    uint32_t max_thread;
};

static void note(void *arg, uint32_t index, uint32_t thread, uint32_t lo, uint32_t hi)
{
    struct record *r = arg;
    for (uint32_t i = lo; i < hi; i++)
        r->seen[index * MAX_UNITS + i]++;
    if (thread >= r->max_thread) atomic_fetch_add(&r->early, 1);
    /* What the stage before wrote must be there, whoever wrote it. */
    if (index == 0) return;
    uint32_t n = r->units[index - 1], at = lo % CN_MAX(n, 1u);
    if (n && r->seen[(index - 1) * MAX_UNITS + at] != 1) atomic_fetch_add(&r->early, 1);
}

/* Every unit is in one share, in the order of the threads. */
static void test_shares(void **state)
{
    for (uint32_t n = 0; n <= 20; n++)
        for (uint32_t threads = 1; threads <= 9; threads++) {
            assert_int_equal(kr_pool_share(n, threads, 0), 0);
            assert_int_equal(kr_pool_share(n, threads, threads), n);
            for (uint32_t t = 0; t < threads; t++) {
                uint32_t begin = kr_pool_share(n, threads, t),
                         end = kr_pool_share(n, threads, t + 1);
                assert_true(begin <= end);
                for (uint32_t unit = begin; unit < end; unit++)
                    assert_int_equal(kr_pool_share_end(n, threads, unit), end);
            }
        }
}

struct ahead {
    struct kr_pool *pool;
    const void *at;
    atomic_uint units;
};

static void tell_ahead(void *arg, uint32_t index, uint32_t thread, uint32_t lo, uint32_t hi)
{
    struct ahead *a = arg;
    kr_pool_ahead(a->pool, thread, a->at, index ? 1u << 20 : 0);
    atomic_fetch_add(&a->units, hi - lo);
}

/* A hint may point to memory that is gone: nothing is read of it. */
static void test_hints_do_no_harm(void **state)
{
    const void *nowhere = (const void *)(uintptr_t)4096;
    static const uint32_t threads[] = {1, 2, 5};
    struct kr_stage stages[4];
    struct kr_job jobs[4];
    for (uint32_t i = 0; i < 4; i++) {
        stages[i] = (struct kr_stage){i, 1};
        jobs[i] = (struct kr_job){.fn = tell_ahead, .index = i, .n = 50, .chunk = 1};
    }
    for (size_t t = 0; t < CN_ARRAY_LEN(threads); t++) {
        struct ahead a = {.pool = kr_pool_new(threads[t]), .at = nowhere};
        assert_non_null(a.pool);
        for (int k = 0; k < 20; k++)
            kr_pool_run(a.pool, stages, 4, jobs, &a);
        assert_int_equal(atomic_load(&a.units), 20 * 4 * 50);
        kr_pool_free(a.pool);
    }
}

static void run_stages(struct kr_pool *p, uint32_t n_stages, const uint32_t *units,
                       const uint32_t *chunks)
{
    struct record r = {.seen = calloc((size_t)MAX_STAGES * MAX_UNITS, sizeof(uint32_t)),
                       .units = units,
                       .max_thread = kr_pool_threads(p)};
    struct kr_stage stages[MAX_STAGES];
    struct kr_job jobs[MAX_STAGES];
    assert_non_null(r.seen);
    for (uint32_t i = 0; i < n_stages; i++) {
        stages[i] = (struct kr_stage){i, 1};
        jobs[i] = (struct kr_job){.fn = note, .index = i, .n = units[i], .chunk = chunks[i]};
    }
    kr_pool_run(p, stages, n_stages, jobs, &r);
    for (uint32_t i = 0; i < n_stages; i++)
        for (uint32_t u = 0; u < MAX_UNITS; u++)
            assert_int_equal(r.seen[i * MAX_UNITS + u], u < units[i]);
    assert_int_equal(atomic_load(&r.early), 0);
    free(r.seen);
}

static void test_every_unit_once(void **state)
{
    static const uint32_t threads[] = {1, 2, 3, 8};
    static const uint32_t sizes[] = {0, 1, 2, 3, 7, 64, 999, MAX_UNITS};
    uint32_t units[MAX_STAGES], chunks[MAX_STAGES], seed = 1;
    for (size_t t = 0; t < CN_ARRAY_LEN(threads); t++) {
        struct kr_pool *p = kr_pool_new(threads[t]);
        assert_non_null(p);
        assert_int_equal(kr_pool_threads(p), threads[t]);
        for (int round = 0; round < 30; round++) {
            for (int i = 0; i < MAX_STAGES; i++) {
                seed = seed * 1664525 + 1013904223;
                units[i] = sizes[seed >> 29];
                chunks[i] = 1 + (seed >> 10) % 50;
            }
            run_stages(p, (uint32_t)round, units, chunks);
            if (round % 10 == 9) usleep(2000); /* asleep when the next run comes */
        }
        kr_pool_free(p);
    }
}

/* Several jobs of one stage, and jobs without units among them. */
static void test_jobs_of_a_stage(void **state)
{
    uint32_t units[4] = {0, 17, 1, 230};
    struct record r = {.seen = calloc((size_t)4 * MAX_UNITS, sizeof(uint32_t)),
                       .units = (const uint32_t[4]){0},
                       .max_thread = 3};
    struct kr_pool *p = kr_pool_new(3);
    struct kr_job jobs[4];
    struct kr_stage stages[2] = {{0, 4}, {0, 0}};
    assert_true(p && r.seen);
    for (uint32_t i = 0; i < 4; i++)
        jobs[i] = (struct kr_job){.fn = note, .index = i, .n = units[i], .chunk = 5};
    kr_pool_run(p, stages, 2, jobs, &r);
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t u = 0; u < MAX_UNITS; u++)
            assert_int_equal(r.seen[i * MAX_UNITS + u], u < units[i]);
    kr_pool_free(p);
    free(r.seen);
}

static atomic_bool busy_stop;
static void *busy(void *arg)
{
    while (!atomic_load_explicit(&busy_stop, memory_order_relaxed))
        ;
    return NULL;
}

static void spin_work(void *arg, uint32_t index, uint32_t thread, uint32_t lo, uint32_t hi)
{
    for (uint32_t i = 0; i < 2000 * (hi - lo); i++)
        atomic_signal_fence(memory_order_seq_cst); /* a loop that stays */
}

static double time_runs(struct kr_pool *p, int runs)
{
    enum { STAGES = 100 };
    struct kr_stage stages[STAGES];
    struct kr_job job = {.fn = spin_work, .n = 16, .chunk = 1};
    for (int i = 0; i < STAGES; i++)
        stages[i] = (struct kr_stage){0, 1};
    uint64_t start = cn_now_ns();
    for (int i = 0; i < runs; i++)
        kr_pool_run(p, stages, STAGES, &job, NULL);
    return (double)(cn_now_ns() - start) * 1e-9;
}

/* Where threads are instrumented or emulated, meeting at the end of a stage costs more than the
 * stage. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SLOW_STAGES true
#else
#define SLOW_STAGES (getenv("CONIFER_SHORT") != NULL)
#endif

/* Beside a busy loop on each of two processors, two threads must not be slower than one. A pool
 * whose threads all have to come by at each stage loses a time slice (some ms) at each of the 1,000
 * stages that take 16 ms here. The best of TRIES counts, because other load comes and goes: on two
 * quiet processors two threads take 0.63 to 0.76 of one thread's time; beside eight other programs
 * 0.24 to 3.5, in 25 of 40 tries at most 1. */
static void test_stolen_processor(void **state)
{
    enum { BUSY = 2, TRIES = 20 };
    pthread_t t[BUSY];
    struct kr_pool *one = kr_pool_new(1), *two = kr_pool_new(2);
    assert_true(one && two);
    atomic_store(&busy_stop, false);
    for (int i = 0; i < BUSY; i++)
        assert_int_equal(pthread_create(&t[i], NULL, busy, NULL), 0);
    const double most = SLOW_STAGES ? 4 : 1;
    double alone = 0, both = INFINITY;
    for (int i = 0; i < TRIES && both > most * alone; i++) {
        alone = time_runs(one, 10);
        both = time_runs(two, 10);
    }
    atomic_store(&busy_stop, true);
    for (int i = 0; i < BUSY; i++)
        pthread_join(t[i], NULL);
    print_message("one thread %.1f ms, two %.1f ms, beside %d busy loops\n", alone * 1e3,
                  both * 1e3, BUSY);
    assert_true(both <= most * alone);
    kr_pool_free(one);
    kr_pool_free(two);
}

static void test_limits(void **state)
{
    assert_null(kr_pool_new(0));
    assert_null(kr_pool_new(5000));
    kr_pool_free(NULL);
    struct kr_pool *p = kr_pool_new(4); /* ends without ever having run */
    assert_non_null(p);
    kr_pool_run(p, NULL, 0, NULL, NULL);
    kr_pool_free(p);
}

int main(void)
{
    if (dev_skip_program("the CPU's threads")) return DEV_SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),           cmocka_unit_test(test_hints_do_no_harm),
        cmocka_unit_test(test_every_unit_once),  cmocka_unit_test(test_jobs_of_a_stage),
        cmocka_unit_test(test_stolen_processor), cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
