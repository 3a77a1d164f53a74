/* Busy loops beside the measurements of `conifer bench --busy`: processors that a shared host takes
 * away. Started and stopped by the main thread; each loop is a thread kept on one processor. */
#include "cli/bench.h"

#include <sched.h>
#include <stdlib.h>

struct bench_busy {
    atomic_bool stop;
    pthread_t *threads;
    uint32_t n;
};

static void *spin(void *arg)
{
    struct bench_busy *b = arg;
    while (!atomic_load_explicit(&b->stop, memory_order_relaxed))
        for (volatile int i = 0; i < 10000; i++) {
        }
    return NULL;
}

/* The thread stays on the k-th processor from the end of those that may be used. */
static void keep_on(pthread_t thread, uint32_t k)
{
#if defined(__linux__)
    cpu_set_t may, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof may, &may)) return;
    k %= (uint32_t)CN_MAX(CPU_COUNT(&may), 1);
    for (int cpu = CPU_SETSIZE - 1; cpu >= 0; cpu--) {
        if (!CPU_ISSET(cpu, &may) || k--) continue;
        CPU_SET(cpu, &one);
        pthread_setaffinity_np(thread, sizeof one, &one);
        return;
    }
#endif
}

int cli_bench_busy_start(uint32_t n, struct bench_busy **out, struct cn_error *err)
{
    struct bench_busy *b = cn_calloc(1, sizeof *b);
    if (b) b->threads = cn_calloc(n, sizeof *b->threads);
    *out = b;
    if (!b || !b->threads) return cn_fail(err, CN_ENOMEM, "out of memory");
    for (; b->n < n; b->n++) {
        if (pthread_create(&b->threads[b->n], NULL, spin, b))
            return cn_fail(err, CN_ENOMEM, "%u busy threads could not be started", n);
        keep_on(b->threads[b->n], b->n);
    }
    return 0;
}

void cli_bench_busy_stop(struct bench_busy *b)
{
    if (!b) return;
    atomic_store(&b->stop, true);
    for (uint32_t i = 0; i < b->n; i++)
        pthread_join(b->threads[i], NULL);
    free(b->threads);
    free(b);
}
