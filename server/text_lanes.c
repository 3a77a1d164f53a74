/* The heap of lanes. Under the pool's lock. */
#include "server/text_lanes.h"

#include <stdlib.h>

static void put(struct srv_lanes *l, size_t i, struct srv_lane *lane)
{
    l->heap[i] = lane;
    lane->at = i;
}

static void sift_up(struct srv_lanes *l, size_t i)
{
    struct srv_lane *lane = l->heap[i];

    for (; i > 0 && l->heap[(i - 1) / 2]->vtime > lane->vtime; i = (i - 1) / 2)
        put(l, i, l->heap[(i - 1) / 2]);
    put(l, i, lane);
}

static void sift_down(struct srv_lanes *l, size_t i)
{
    struct srv_lane *lane = l->heap[i];

    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= l->n_heap) break;
        if (child + 1 < l->n_heap && l->heap[child + 1]->vtime < l->heap[child]->vtime) child++;
        if (l->heap[child]->vtime >= lane->vtime) break;
        put(l, i, l->heap[child]);
        i = child;
    }
    put(l, i, lane);
}

static void resift(struct srv_lanes *l, size_t i)
{
    sift_up(l, i);
    sift_down(l, i);
}

static void take_out(struct srv_lanes *l, struct srv_lane *lane)
{
    size_t at = lane->at;

    lane->queued = false;
    if (at == --l->n_heap) return;
    put(l, at, l->heap[l->n_heap]);
    resift(l, at);
}

int srv_lanes_grow(struct srv_lanes *l, size_t n)
{
    if (n <= l->n) return 0;
    if (cn_grow(&l->all, &l->cap, n, sizeof *l->all) ||
        cn_grow(&l->heap, &l->heap_cap, n, sizeof *l->heap))
        return CN_ENOMEM;
    while (l->n < n) {
        struct srv_lane *lane = cn_calloc(1, sizeof *lane);
        if (!lane) return CN_ENOMEM;
        lane->tail = &lane->head;
        lane->last = &lane->parked;
        lane->weight = 1;
        l->all[l->n++] = lane;
    }
    return 0;
}

void srv_lanes_weigh(struct srv_lanes *l, size_t from, const double *weights, size_t n)
{
    for (size_t i = 0; i < n; i++)
        l->all[from + i]->weight = weights[i] > 0 ? weights[i] : 1;
}

int srv_lanes_init(struct srv_lanes *l, const double *weights, size_t n)
{
    int rc = srv_lanes_grow(l, n);

    if (!rc) srv_lanes_weigh(l, 0, weights, n);
    return rc;
}

void srv_lanes_fini(struct srv_lanes *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->all[i]);
    free(l->all);
    free(l->heap);
}

struct srv_lane *srv_lanes_first(const struct srv_lanes *l)
{
    return l->n_heap ? l->heap[0] : NULL;
}

void srv_lanes_changed(struct srv_lanes *l, struct srv_lane *lane)
{
    bool has = (lane->head || lane->parked) && !lane->blocked;

    if (has && !lane->queued) {
        lane->queued = true;
        l->heap[l->n_heap] = lane;
        sift_up(l, l->n_heap++);
    } else if (has) {
        resift(l, lane->at);
    } else if (lane->queued) {
        take_out(l, lane);
    }
}

void srv_lanes_wake(struct srv_lanes *l, struct srv_lane *lane)
{
    if (lane->vtime < l->now) lane->vtime = l->now;
}

void srv_lanes_serve(struct srv_lanes *l, const struct srv_lane *lane, double start)
{
    l->now = CN_MAX(l->now, start);
}

void srv_lanes_block(struct srv_lanes *l, struct srv_lane *lane)
{
    lane->blocked = true;
    l->n_blocked++;
    srv_lanes_changed(l, lane);
}

void srv_lanes_unblock(struct srv_lanes *l)
{
    for (size_t i = 0; l->n_blocked && i < l->n; i++) {
        if (!l->all[i]->blocked) continue;
        l->all[i]->blocked = false;
        l->n_blocked--;
        srv_lanes_changed(l, l->all[i]);
    }
}
