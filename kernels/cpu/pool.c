/* pool: persistent threads that work through stages of jobs together.
 *
 * A stage is over when its work is done, not when every thread has come by: a preempted thread
 * holds up the others only if it was inside a chunk, and joins the current stage when it runs
 * again. The thread that finishes a stage's last chunk publishes the next one, after running any
 * single-chunk stages in between itself: the others never see those.
 * Threads without work spin briefly and then sleep on a futex.
 *
 * Each thread's share of a stage is one word: the stage's number above, chunks left below. Taking a
 * chunk is a compare-and-swap on it; from then until the chunk is reported done the stage cannot
 * end, so that the stage's tables may be read. Before that nothing but atomics is read: a late
 * thread may be looking at any moment, even between runs. */
#include "kernels/cpu/pool.h"

#include <stdlib.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#define SPIN_NS        30000u
#define CACHE_LINE     64
#define PAUSES_A_CHECK 16
#define LEFT_BITS      28
#define LEFT_MASK      ((1ull << LEFT_BITS) - 1)

struct share {
    _Alignas(CACHE_LINE) _Atomic uint64_t word;
    uint32_t chunks; /* in all; set with the stage */
};

struct kr_pool {
    _Alignas(CACHE_LINE) atomic_uint news; /* changes with every new stage */
    atomic_uint sleepers;
    atomic_uint finished; /* the last run that is done */
    atomic_bool stop;
    _Alignas(CACHE_LINE) atomic_uint done; /* chunks of this stage */
    /* Written by the thread that sets up a stage, read by threads that hold a chunk of it. */
    _Alignas(CACHE_LINE) uint64_t stage_number; /* of stages[stage] */
    uint32_t stage, n_stages, n_chunks, run;
    uint64_t n_shared;
    const struct kr_stage *stages;
    const struct kr_job *jobs;
    void *arg;
    uint64_t *ends; /* NULL: not noted */
    /* Constant. */
    uint32_t n_threads, n_started;
    uint64_t spin_ns;
    struct share *shares;
    struct worker *workers;
#if !defined(__linux__)
    pthread_mutex_t lock;
    pthread_cond_t cond;
#endif
};
struct worker {
    _Alignas(CACHE_LINE) struct kr_pool *pool;
    pthread_t thread;
    uint32_t index;
    const uint8_t *ahead, *ahead_end; /* the thread's own: fetched while it waits */
};

/* ---- sleeping -------------------------------------------------------------------------------- */

#if defined(__linux__)
static void sleep_while(struct kr_pool *p, unsigned seen)
{
    while (atomic_load(&p->news) == seen)
        syscall(SYS_futex, &p->news, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void wake_all(struct kr_pool *p)
{
    syscall(SYS_futex, &p->news, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}
#else
static void sleep_while(struct kr_pool *p, unsigned seen)
{
    pthread_mutex_lock(&p->lock);
    while (atomic_load(&p->news) == seen)
        pthread_cond_wait(&p->cond, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

static void wake_all(struct kr_pool *p)
{
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->cond);
    pthread_mutex_unlock(&p->lock);
}
#endif

static void cpu_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* yield is over at once on most */
#endif
}

/* A few lines of what the thread reads next; false when all were asked for. */
static bool fetch_ahead(struct worker *w)
{
    if (w->ahead >= w->ahead_end) return false;
    for (int i = 0; i < 4; i++, w->ahead += CACHE_LINE)
        __builtin_prefetch(w->ahead, 0, 2);
    return true;
}

static void wait_news(struct kr_pool *p, uint32_t thread, unsigned seen)
{
    uint64_t end = 0;
    for (;;) {
        for (int i = 0; i < PAUSES_A_CHECK; i++) {
            if (atomic_load_explicit(&p->news, memory_order_acquire) != seen) return;
            if (!fetch_ahead(&p->workers[thread])) cpu_pause();
        }
        uint64_t now = cn_now_ns();
        if (!end) end = now + p->spin_ns;
        if (now >= end) break;
    }
    atomic_fetch_add(&p->sleepers, 1);
    sleep_while(p, seen);
    atomic_fetch_sub(&p->sleepers, 1);
}

/* Sequentially consistent like the sleeper's side: either the sleeper is counted here, or it sees
 * the new value before it sleeps. */
static void tell(struct kr_pool *p)
{
    atomic_fetch_add(&p->news, 1);
    if (atomic_load(&p->sleepers)) wake_all(p);
}

/* ---- shares ---------------------------------------------------------------------------------- */

/* Thread t's units of a job: [first, first + count). */
static uint32_t job_share(const struct kr_job *j, uint32_t threads, uint32_t t, uint32_t *first)
{
    *first = kr_pool_share(j->n, threads, t);
    return kr_pool_share(j->n, threads, t + 1) - *first;
}

static uint32_t share_chunks(const struct kr_pool *p, const struct kr_stage *s, uint32_t t)
{
    uint32_t sum = 0, first;
    for (uint32_t i = 0; i < s->n_jobs; i++) {
        const struct kr_job *j = &p->jobs[s->first_job + i];
        sum += (job_share(j, p->n_threads, t, &first) + j->chunk - 1) / j->chunk;
    }
    return sum;
}

static void run_chunk(struct kr_pool *p, uint32_t thread, uint32_t owner, uint32_t left)
{
    const struct kr_stage *s = &p->stages[p->stage];
    uint32_t at = p->shares[owner].chunks - left;
    for (uint32_t i = 0; i < s->n_jobs; i++) {
        const struct kr_job *j = &p->jobs[s->first_job + i];
        uint32_t first, count = job_share(j, p->n_threads, owner, &first);
        uint32_t chunks = (count + j->chunk - 1) / j->chunk;
        if (at < chunks) {
            uint32_t lo = at * j->chunk, hi = CN_MIN(count, lo + j->chunk);
            j->fn(p->arg, j->index, thread, first + lo, first + hi);
            return;
        }
        at -= chunks;
    }
}

static void run_single(struct kr_pool *p, uint32_t thread)
{
    uint32_t owner = 0;
    while (!p->shares[owner].chunks)
        owner++;
    run_chunk(p, thread, owner, 1);
}

static void note_end(struct kr_pool *p)
{
    if (p->ends) p->ends[p->stage] = cn_now_ns();
}

/* Publishes the next stage of more than one chunk; false if none is left. Single-chunk stages run
 * here at once: no thread holds a chunk. Empty shares are written first: as soon as the last
 * non-empty one is visible, others may finish this stage and publish the next, so only a harmless
 * tell() may follow it. */
static bool next_stage(struct kr_pool *p, uint32_t thread)
{
    for (; p->stage < p->n_stages; p->stage++) {
        const struct kr_stage *s = &p->stages[p->stage];
        uint32_t n = 0, threads = p->n_threads;
        for (uint32_t t = 0; t < threads; t++)
            n += p->shares[t].chunks = share_chunks(p, s, t);
        if (n == 1) {
            run_single(p, thread);
            note_end(p);
        }
        if (n <= 1) continue;
        p->n_shared++;
        uint64_t tag = ++p->stage_number << LEFT_BITS;
        p->n_chunks = n;
        atomic_store_explicit(&p->done, 0, memory_order_relaxed);
        for (uint32_t t = 0; t < threads; t++)
            if (!p->shares[t].chunks)
                atomic_store_explicit(&p->shares[t].word, tag, memory_order_release);
        for (uint32_t t = 0; t < threads && n; t++) {
            uint32_t left = p->shares[t].chunks;
            n -= left; /* before the store: afterwards the stage may be another one */
            if (left) atomic_store_explicit(&p->shares[t].word, tag | left, memory_order_release);
        }
        return true;
    }
    return false;
}

static void finish_chunks(struct kr_pool *p, uint32_t thread, uint32_t n)
{
    uint32_t all = p->n_chunks, run = p->run; /* read while our chunks still count */
    if (atomic_fetch_add_explicit(&p->done, n, memory_order_acq_rel) + n < all) return;
    note_end(p);
    p->stage++;
    if (!next_stage(p, thread)) atomic_store_explicit(&p->finished, run, memory_order_release);
    tell(p);
}

/* Does what chunks there are: of the thread's own share, then of the next ones. They are reported
 * together, once: all threads write the counter. False when there were none. */
static bool work(struct kr_pool *p, uint32_t thread)
{
    uint32_t n = 0;
    for (uint32_t i = 0, owner = thread; i < p->n_threads; i++) {
        _Atomic uint64_t *word = &p->shares[owner].word;
        uint64_t w = atomic_load_explicit(word, memory_order_relaxed);
        while (w & LEFT_MASK) {
            if (!atomic_compare_exchange_weak_explicit(word, &w, w - 1, memory_order_acquire,
                                                       memory_order_relaxed))
                continue;
            run_chunk(p, thread, owner, (uint32_t)(w & LEFT_MASK));
            n++;
            w = atomic_load_explicit(word, memory_order_relaxed);
        }
        owner = owner + 1 == p->n_threads ? 0 : owner + 1;
    }
    if (n) finish_chunks(p, thread, n);
    return n;
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct kr_pool *p = w->pool;
    for (;;) {
        unsigned seen = atomic_load(&p->news);
        if (atomic_load_explicit(&p->stop, memory_order_acquire)) return NULL;
        if (!work(p, w->index)) wait_news(p, w->index, seen);
    }
}

void kr_pool_run(struct kr_pool *p, const struct kr_stage *stages, uint32_t n_stages,
                 const struct kr_job *jobs, void *arg)
{
    uint32_t run = atomic_load_explicit(&p->finished, memory_order_acquire) + 1;
    p->run = run;
    p->stages = stages;
    p->n_stages = n_stages;
    p->stage = 0;
    p->jobs = jobs;
    p->arg = arg;
    if (!next_stage(p, 0)) return;
    tell(p);
    for (;;) {
        unsigned seen = atomic_load(&p->news);
        if (atomic_load_explicit(&p->finished, memory_order_acquire) == run) return;
        if (!work(p, 0)) wait_news(p, 0, seen);
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

void kr_pool_ahead(struct kr_pool *p, uint32_t thread, const void *at, size_t bytes)
{
    struct worker *w = &p->workers[thread];
    w->ahead = at;
    w->ahead_end = w->ahead + bytes;
}

void kr_pool_note_ends(struct kr_pool *p, uint64_t *ends)
{
    p->ends = ends;
}

uint32_t kr_pool_threads(const struct kr_pool *p)
{
    return p->n_threads;
}

uint64_t kr_pool_shared(const struct kr_pool *p)
{
    return p->n_shared;
}

static void start_workers(struct kr_pool *p)
{
    static const int faults[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL};
    sigset_t all, old;
    sigfillset(&all);
    /* A fault must reach its handler (a mapped file that was cut short), not end the process. */
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals belong to the daemon's own threads */
    for (uint32_t i = 1; i < p->n_threads; i++) {
        struct worker *w = &p->workers[i];
        *w = (struct worker){.pool = p, .index = i};
        if (pthread_create(&w->thread, NULL, worker_main, w)) break;
        p->n_started++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

struct kr_pool *kr_pool_new(uint32_t n_threads)
{
    if (!n_threads || n_threads > 4096) return NULL;
    struct kr_pool *p = aligned_alloc(CACHE_LINE, sizeof *p);
    if (!p) return NULL;
    *p = (struct kr_pool){.n_threads = n_threads};
#if !defined(__linux__)
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->cond, NULL);
#endif
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    /* With more threads than processors the one waited for needs the processor spun on. */
    p->spin_ns = cpus > 0 && n_threads <= (unsigned long)cpus ? SPIN_NS : 0;
    p->workers = aligned_alloc(CACHE_LINE, n_threads * sizeof *p->workers);
    p->shares = aligned_alloc(CACHE_LINE, n_threads * sizeof *p->shares);
    if (p->workers && p->shares) {
        memset(p->workers, 0, n_threads * sizeof *p->workers);
        for (uint32_t i = 0; i < n_threads; i++)
            atomic_init(&p->shares[i].word, 0);
        start_workers(p);
        if (p->n_started + 1 == n_threads) return p;
    }
    kr_pool_free(p);
    return NULL;
}

void kr_pool_free(struct kr_pool *p)
{
    if (!p) return;
    atomic_store(&p->stop, true);
    tell(p);
    for (uint32_t i = 1; i <= p->n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
#if !defined(__linux__)
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->cond);
#endif
    free(p->shares);
    free(p->workers);
    free(p);
}
