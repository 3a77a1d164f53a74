/* pool: the CPU device's threads. Private to kernels/cpu. */
#ifndef KERNELS_CPU_POOL_H
#define KERNELS_CPU_POOL_H

#include "base/base.h"

struct kr_pool;
/* n_threads counts the caller. NULL when out of memory or threads. */
struct kr_pool *kr_pool_new(uint32_t n_threads);
void kr_pool_free(struct kr_pool *p);
uint32_t kr_pool_threads(const struct kr_pool *p);
/* Stages so far whose work was shared: as often all threads waited for the last. Between runs. */
uint64_t kr_pool_shared(const struct kr_pool *p);

/* Units 0..n-1 of one kind of work. Each thread has its own share of them (the same one for the
 * same n, so that what it touches stays in its caches and on its memory node), and helps with the
 * others' when done. fn does units [lo, hi), at most `chunk` of them. */
struct kr_job {
    void (*fn)(void *arg, uint32_t index, uint32_t thread, uint32_t lo, uint32_t hi);
    uint32_t index; /* for fn */
    uint32_t n, chunk;
};
/* The first unit of thread t's share of n; of one thread more than there are: n. */
static inline uint32_t kr_pool_share(uint32_t n, uint32_t threads, uint32_t t)
{
    return t * (n / threads) + CN_MIN(t, n % threads);
}
/* The end of the share of n that the unit is in. */
static inline uint32_t kr_pool_share_end(uint32_t n, uint32_t threads, uint32_t unit)
{
    uint32_t each = n / threads, more = n % threads, t;
    t = unit < more * (each + 1) ? unit / (each + 1) : more + (unit - more * (each + 1)) / each;
    return kr_pool_share(n, threads, t + 1);
}
/* Jobs that may run at the same time; a stage begins when all of the one before is done. */
struct kr_stage { uint32_t first_job, n_jobs; };
/* Runs the stages on all threads, the caller being thread 0, and returns when the last is done.
 * Not to be nested. */
void kr_pool_run(struct kr_pool *p, const struct kr_stage *stages, uint32_t n_stages,
                 const struct kr_job *jobs, void *arg);

/* A hint by thread `thread` in a job: what it will read next, to be fetched while it waits. */
void kr_pool_ahead(struct kr_pool *p, uint32_t thread, const void *at, size_t bytes);

/* From the next run on the end of each stage is noted (cn_now_ns) in ends[stage]; stages without
 * work are left out. NULL: no longer. */
void kr_pool_note_ends(struct kr_pool *p, uint64_t *ends);

#endif
