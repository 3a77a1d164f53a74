/* Progress of the engine thread: see watch.h. */
#include "runtime/watch.h"

#define LEAST_NS     2000000000u
#define SLACK        10 /* a step may take so much longer than was predicted */
#define RECENT_SLACK 2  /* and so much longer than the slowest of late */
/* Until a step was measured, a slow machine is assumed: weights read from a disk at 100 MB/s, then
 * 2 GB of them multiplied a second for each row. */
#define FIRST_READ_NS_PER_BYTE 10.0
#define FIRST_ROW_NS_PER_BYTE  0.5

void rt_watch_init(struct rt_watch *w, uint64_t weight_bytes, uint64_t now)
{
    *w = (struct rt_watch){.weight_bytes = weight_bytes};
    atomic_store(&w->since_ns, now);
    atomic_store(&w->limit_ns, LEAST_NS);
}

/* The longest time that what is in flight may take. */
static void set_limit(struct rt_watch *w)
{
    double limit = LEAST_NS, flight = 0;
    uint64_t slowest = 0;
    for (unsigned i = 0; i < w->n_flights; i++)
        flight += w->allowed[i];
    for (unsigned i = 0; i < RT_WATCH_RECENT; i++)
        slowest = CN_MAX(slowest, w->recent[i]);
    if (w->n_flights) limit = CN_MAX(limit, (double)slowest * RECENT_SLACK);
    limit = CN_MAX(limit, flight);
    atomic_store(&w->limit_ns, limit < 1e18 ? (uint64_t)limit : (uint64_t)1e18);
}

void rt_watch_begin(struct rt_watch *w, uint64_t now)
{
    atomic_store(&w->since_ns, now);
    set_limit(w);
    atomic_store(&w->busy, true);
}

void rt_watch_idle(struct rt_watch *w)
{
    atomic_store(&w->busy, false);
}

void rt_watch_launch(struct rt_watch *w, uint64_t now, uint32_t rows, double base_ns, double row_ns)
{
    double measured = (base_ns + row_ns * rows) * SLACK, bytes = (double)w->weight_bytes;
    double first = bytes * (FIRST_READ_NS_PER_BYTE + FIRST_ROW_NS_PER_BYTE * rows);
    cn_assert(w->n_flights < RT_WATCH_DEPTH);
    w->allowed[w->n_flights] = measured > 0 ? measured : first;
    w->launched_ns[w->n_flights++] = now;
    set_limit(w);
    atomic_store(&w->since_ns, now);
}

void rt_watch_failed(struct rt_watch *w)
{
    cn_assert(w->n_flights > 0);
    w->n_flights--;
    set_limit(w);
}

void rt_watch_done(struct rt_watch *w, uint64_t now)
{
    cn_assert(w->n_flights > 0);
    uint64_t began = CN_MAX(w->launched_ns[0], w->done_ns);
    w->recent[w->n_done++ % RT_WATCH_RECENT] = now > began ? now - began : 0;
    w->done_ns = now;
    for (unsigned i = 1; i < w->n_flights; i++) {
        w->allowed[i - 1] = w->allowed[i];
        w->launched_ns[i - 1] = w->launched_ns[i];
    }
    w->n_flights--;
    /* The new time first: for a moment the limit is too long, never too short. */
    atomic_store(&w->since_ns, now);
    set_limit(w);
}

void rt_watch_read(struct rt_watch *w, uint64_t now, struct rt_health *out)
{
    uint64_t limit = atomic_load(&w->limit_ns), since = atomic_load(&w->since_ns);
    out->pending = atomic_load(&w->busy);
    out->since_progress_ns = out->pending && now > since ? now - since : 0;
    out->stuck_after_ns = limit;
    out->stuck = out->since_progress_ns > limit;
}
