/* pool: persistent threads that run one function together, with barriers and shared counters.
 *
 * Thread 0 is whoever calls kr_pool_run; the others live in here. Between runs and at barriers a
 * thread spins briefly and then sleeps on a futex, so that a core taken away by another process
 * costs one time slice and not a collapse. Invariant: counters change only between a barrier's
 * last arrival and the next one. */
#include "kernels/cpu/pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPIN_NS        30000u
#define CACHE_LINE     64
#define PAUSES_A_CHECK 16

/* A word that threads wait on until it changes. */
struct event {
    _Alignas(CACHE_LINE) atomic_uint value;
    atomic_uint sleepers;
};
struct counter {
    _Alignas(CACHE_LINE) atomic_uint next;
};

struct kr_pool {
    struct event start;   /* changes when a run begins (or the pool ends) */
    struct event barrier; /* changes when the last thread arrives */
    _Alignas(CACHE_LINE) atomic_uint arrived;
    uint32_t n_threads, n_started;
    uint64_t spin_ns;
    bool stop;
    void (*fn)(void *arg, uint32_t thread);
    void *arg;
    struct counter *counters; /* [n_jobs][n_threads] */
    size_t cap_jobs;
    struct worker *workers;
};
struct worker {
    struct kr_pool *pool;
    pthread_t thread;
    uint32_t index;
};

static void cpu_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void event_wait(struct event *e, unsigned seen, uint64_t spin_ns)
{
    uint64_t end = 0;
    do {
        for (int i = 0; i < PAUSES_A_CHECK; i++) {
            if (atomic_load_explicit(&e->value, memory_order_acquire) != seen) return;
            cpu_pause();
        }
        uint64_t now = cn_now_ns();
        if (!end) end = now + spin_ns;
        if (now >= end) break;
    } while (true);
    atomic_fetch_add(&e->sleepers, 1);
    while (atomic_load(&e->value) == seen)
        syscall(SYS_futex, &e->value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&e->sleepers, 1);
}

static void event_signal(struct event *e)
{
    /* Sequentially consistent on both sides: either the sleeper is counted here, or it sees the
     * new value before it sleeps (and the kernel checks once more). */
    atomic_fetch_add(&e->value, 1);
    if (atomic_load(&e->sleepers))
        syscall(SYS_futex, &e->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

void kr_pool_barrier(struct kr_pool *p, uint32_t n_jobs)
{
    unsigned seen = atomic_load_explicit(&p->barrier.value, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel) + 1 < p->n_threads) {
        event_wait(&p->barrier, seen, p->spin_ns);
        return;
    }
    for (size_t i = 0; i < (size_t)n_jobs * p->n_threads; i++)
        atomic_store_explicit(&p->counters[i].next, 0, memory_order_relaxed);
    atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
    event_signal(&p->barrier);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct kr_pool *p = w->pool;
    unsigned seen = 0;
    for (;;) {
        event_wait(&p->start, seen, p->spin_ns);
        seen++;
        if (p->stop) return NULL;
        p->fn(p->arg, w->index);
        kr_pool_barrier(p, 0);
    }
}

static int reserve_jobs(struct kr_pool *p, uint32_t n_jobs)
{
    if (n_jobs <= p->cap_jobs) return 0;
    size_t bytes;
    if (__builtin_mul_overflow((size_t)n_jobs * p->n_threads, sizeof(struct counter), &bytes))
        return CN_ENOMEM;
    struct counter *c = aligned_alloc(CACHE_LINE, bytes);
    if (!c) return CN_ENOMEM;
    free(p->counters);
    p->counters = c;
    p->cap_jobs = n_jobs;
    return 0;
}

int kr_pool_run(struct kr_pool *p, uint32_t n_jobs, void (*fn)(void *arg, uint32_t thread),
                void *arg)
{
    if (reserve_jobs(p, n_jobs)) return CN_ENOMEM;
    for (size_t i = 0; i < (size_t)n_jobs * p->n_threads; i++)
        atomic_store_explicit(&p->counters[i].next, 0, memory_order_relaxed);
    p->fn = fn;
    p->arg = arg;
    if (p->n_threads > 1) event_signal(&p->start);
    fn(arg, 0);
    kr_pool_barrier(p, 0);
    return 0;
}

uint32_t kr_pool_threads(const struct kr_pool *p)
{
    return p->n_threads;
}

struct kr_cursor kr_cursor_start(const struct kr_pool *p, uint32_t job, uint32_t thread, uint32_t n,
                                 uint32_t chunk)
{
    return (struct kr_cursor){ .job = job * p->n_threads, .n = n, .chunk = chunk ? chunk : 1,
                               .part = thread };
}

bool kr_cursor_next(struct kr_pool *p, struct kr_cursor *c, uint32_t *lo, uint32_t *hi)
{
    while (c->tried < p->n_threads) {
        uint32_t first = (uint32_t)((uint64_t)c->n * c->part / p->n_threads);
        uint32_t size = (uint32_t)((uint64_t)c->n * (c->part + 1) / p->n_threads) - first;
        atomic_uint *next = &p->counters[c->job + c->part].next;
        /* Looking first keeps an empty share's counter from growing without end. */
        if (atomic_load_explicit(next, memory_order_relaxed) < size) {
            uint32_t at = atomic_fetch_add_explicit(next, c->chunk, memory_order_relaxed);
            if (at < size) {
                *lo = first + at;
                *hi = first + (size - at < c->chunk ? size : at + c->chunk);
                return true;
            }
        }
        c->tried++;
        c->part = c->part + 1 == p->n_threads ? 0 : c->part + 1;
    }
    return false;
}

struct kr_pool *kr_pool_new(uint32_t n_threads)
{
    if (!n_threads || n_threads > 4096) return NULL;
    struct kr_pool *p = aligned_alloc(CACHE_LINE, sizeof *p);
    if (!p) return NULL;
    *p = (struct kr_pool){ .n_threads = n_threads };
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    /* With more threads than processors the one waited for needs the processor spun on. */
    p->spin_ns = cpus > 0 && n_threads <= (unsigned long)cpus ? SPIN_NS : 0;
    p->workers = cn_calloc(n_threads, sizeof *p->workers);
    if (!p->workers || reserve_jobs(p, 16)) {
        kr_pool_free(p);
        return NULL;
    }
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals belong to the daemon's own threads */
    for (uint32_t i = 1; i < n_threads; i++) {
        struct worker *w = &p->workers[i];
        *w = (struct worker){ .pool = p, .index = i };
        if (pthread_create(&w->thread, NULL, worker_main, w)) break;
        p->n_started++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (p->n_started + 1 == n_threads) return p;
    kr_pool_free(p);
    return NULL;
}

void kr_pool_free(struct kr_pool *p)
{
    if (!p) return;
    if (p->n_started) {
        p->stop = true;
        event_signal(&p->start);
        for (uint32_t i = 1; i <= p->n_started; i++)
            pthread_join(p->workers[i].thread, NULL);
    }
    free(p->workers);
    free(p->counters);
    free(p);
}
