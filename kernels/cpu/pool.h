/* pool: the CPU device's threads. Private to kernels/cpu. */
#ifndef KERNELS_CPU_POOL_H
#define KERNELS_CPU_POOL_H

#include "base/base.h"

struct kr_pool;
/* n_threads counts the caller. NULL when out of memory or threads. */
struct kr_pool *kr_pool_new(uint32_t n_threads);
void kr_pool_free(struct kr_pool *p);
uint32_t kr_pool_threads(const struct kr_pool *p);

/* Runs fn(arg, thread) once on every thread, the caller being thread 0, and waits for all.
 * Work counters 0..n_jobs-1 start at zero. Not to be nested. CN_ENOMEM: nothing was run. */
int kr_pool_run(struct kr_pool *p, uint32_t n_jobs, void (*fn)(void *arg, uint32_t thread),
                void *arg);

/* Inside a run, called by every thread: waits for all, then zeroes counters 0..n_jobs-1. */
void kr_pool_barrier(struct kr_pool *p, uint32_t n_jobs);

/* A thread's way through the items 0..n-1 of a counter: first its own share (the same one for the
 * same n, so that what it touches stays in its caches and on its memory node), then what is left of
 * the others'. */
struct kr_cursor {
    uint32_t job, n, chunk, part, tried;
};
struct kr_cursor kr_cursor_start(const struct kr_pool *p, uint32_t job, uint32_t thread, uint32_t n,
                                 uint32_t chunk);
/* The next items [*lo, *hi), or false when none are left. */
bool kr_cursor_next(struct kr_pool *p, struct kr_cursor *c, uint32_t *lo, uint32_t *hi);

#endif
