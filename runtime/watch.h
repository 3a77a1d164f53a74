/* How long the engine thread has been at what it does now, and how long that may take: a step as
 * long as its rows predict from the measured ones, with slack; anything else two seconds.
 *
 * The engine thread writes, any thread reads (rt_watch_read). Clocks are the caller's. */
#ifndef RUNTIME_WATCH_H
#define RUNTIME_WATCH_H

#include "runtime/runtime.h"

#define RT_WATCH_RECENT 16
#define RT_WATCH_DEPTH  2 /* steps in flight */

struct rt_watch {
    /* engine thread */
    uint64_t weight_bytes;
    uint64_t recent[RT_WATCH_RECENT]; /* how long the last steps took */
    uint64_t n_done, done_ns;
    double allowed[RT_WATCH_DEPTH]; /* per step in flight, oldest first */
    uint64_t launched_ns[RT_WATCH_DEPTH];
    unsigned n_flights;
    /* shared */
    _Atomic bool busy;
    _Atomic uint64_t since_ns, limit_ns;
};

/* weight_bytes: what a step reads of the weights; from them the first step's time is guessed. */
void rt_watch_init(struct rt_watch *w, uint64_t weight_bytes, uint64_t now);
/* An iteration begins; the thread waits for messages. */
void rt_watch_begin(struct rt_watch *w, uint64_t now);
void rt_watch_idle(struct rt_watch *w);
/* A step of so many rows is about to be launched; the measured cost of steps is base + rows x row
 * (both 0: none was measured yet). */
void rt_watch_launch(struct rt_watch *w, uint64_t now, uint32_t rows, double base_ns,
                     double row_ns);
/* That step could not be launched. */
void rt_watch_failed(struct rt_watch *w);
/* The oldest step in flight was collected. */
void rt_watch_done(struct rt_watch *w, uint64_t now);
/* Fills pending, stuck, since_progress_ns and stuck_after_ns. */
void rt_watch_read(struct rt_watch *w, uint64_t now, struct rt_health *out);

#endif
