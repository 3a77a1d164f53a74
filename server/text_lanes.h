/* The tenants of the text pool, by whose turn it is: start-time fair queueing. Each lane has a
 * virtual time, CPU time over weight; the lane with the lowest goes first, and a lane that comes
 * back from idle starts at the time of the lane served last. Plain data under the pool's lock. */
#ifndef SERVER_TEXT_LANES_H
#define SERVER_TEXT_LANES_H

#include "server/text_pool.h"

struct srv_lane {
    struct srv_job *head, **tail;           /* jobs not begun */
    struct srv_text_worker *parked, **last; /* jobs begun, by the time they were parked */
    double weight, vtime;
    size_t at; /* in the heap, while queued */
    bool queued;
    bool blocked; /* its first job finds no thread: it is in no heap until another job ends */
};

struct srv_lanes {
    struct srv_lane **all; /* each stays where it is */
    size_t n, cap, heap_cap;
    struct srv_lane **heap; /* lanes with jobs to run, by vtime */
    size_t n_heap, n_blocked;
    double now;
};

int srv_lanes_init(struct srv_lanes *l, const double *weights, size_t n);
void srv_lanes_fini(struct srv_lanes *l);
/* Makes lanes up to n, of weight 1. CN_ENOMEM: fewer. */
int srv_lanes_grow(struct srv_lanes *l, size_t n);
/* Of n lanes; no weight is 1. */
void srv_lanes_weigh(struct srv_lanes *l, size_t from, const double *weights, size_t n);
/* The lane whose turn it is; NULL: none has anything to run. */
struct srv_lane *srv_lanes_first(const struct srv_lanes *l);
/* The lane has got or lost jobs, or its vtime changed. */
void srv_lanes_changed(struct srv_lanes *l, struct srv_lane *lane);
/* The lane, idle until now, gets a job. */
void srv_lanes_wake(struct srv_lanes *l, struct srv_lane *lane);
/* A slice of it begins. */
void srv_lanes_serve(struct srv_lanes *l, const struct srv_lane *lane, double start);
void srv_lanes_block(struct srv_lanes *l, struct srv_lane *lane);
void srv_lanes_unblock(struct srv_lanes *l);

#endif
