/* The text workers: who runs, who is parked, and whose turn it is (text_lanes.c). Everything under
 * one lock; a thread that has no job, or a parked one, waits for its own condition. */
#include "server/text_pool.h"
#include "server/text_lanes.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define STACK_BYTES (1u << 20) /* a template may nest deeply */
#define START_NS    20000      /* what a slice costs besides its CPU time: it is charged for it */

struct srv_text_worker {
    struct srv_text_pool *pool;
    pthread_t thread;
    pthread_cond_t cond;
    struct srv_job *job;   /* begun and not done; NULL: idle */
    struct srv_lane *lane; /* its tenant's */
    bool is_long;
    bool go;                      /* has a slot: set by dispatch, taken by the thread */
    struct srv_text_worker *next; /* idle, or parked in its lane */
    uint64_t cpu_ns;              /* the thread's CPU time when its slice began */
    uint64_t check_ns;            /* the slice is not over before */
};

struct srv_text_pool {
    pthread_mutex_t lock;
    pthread_cond_t drained;
    struct cn_mailbox *done;
    struct srv_lanes lanes;
    unsigned slots, n_running;
    unsigned n_begun, n_long, n_short; /* jobs begun and not done */
    atomic_bool stop;
    bool quit;
    struct srv_text_worker *idle;
    struct srv_text_worker **workers;
    size_t n_workers, max_workers;
};

static _Thread_local struct srv_text_worker *here;

static uint64_t thread_cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- under the lock -------------------------------------------------------------------------- */

static void *work(void *arg);

static struct srv_text_worker *new_worker(struct srv_text_pool *p)
{
    struct srv_text_worker *w;
    pthread_attr_t attr;

    if (p->n_workers == p->max_workers || !(w = cn_calloc(1, sizeof *w))) return NULL;
    w->pool = p;
    if (pthread_cond_init(&w->cond, NULL)) goto no_cond;
    if (pthread_attr_init(&attr)) goto no_thread;
    int rc = pthread_attr_setstacksize(&attr, STACK_BYTES);
    if (!rc) rc = pthread_create(&w->thread, &attr, work, w);
    pthread_attr_destroy(&attr);
    if (rc) goto no_thread;
#ifdef __linux__
    pthread_setname_np(w->thread, "text");
#endif
    p->workers[p->n_workers++] = w;
    return w;
no_thread:
    pthread_cond_destroy(&w->cond);
no_cond:
    free(w);
    return NULL;
}

/* A thread for a job that begins; NULL: it waits until another one has ended. */
static struct srv_text_worker *worker_for(struct srv_text_pool *p, struct srv_lane *lane,
                                          struct srv_job *job)
{
    bool is_long = job->cost >= SRV_TEXT_SHORT;
    struct srv_text_worker *w = p->idle;

    if (is_long ? p->n_long >= SRV_TEXT_MAX_LONG : p->n_short >= SRV_TEXT_MAX_SHORT) return NULL;
    if (w)
        p->idle = w->next;
    else if (!(w = new_worker(p)))
        return NULL;
    w->job = job;
    w->lane = lane;
    w->is_long = is_long;
    p->n_begun++;
    if (is_long)
        p->n_long++;
    else
        p->n_short++;
    return w;
}

static struct srv_job *pop_job(struct srv_lane *lane)
{
    struct srv_job *job = lane->head;

    lane->head = job->next;
    if (!lane->head) lane->tail = &lane->head;
    return job;
}

/* What the lane runs next, with its thread; NULL: nothing. */
static struct srv_text_worker *next_of(struct srv_text_pool *p, struct srv_lane *lane)
{
    struct srv_text_worker *w = lane->parked;

    if (w) {
        lane->parked = w->next;
        if (!lane->parked) lane->last = &lane->parked;
        return w;
    }
    struct srv_job *job = lane->head;
    if (!job->detached && (atomic_load(&p->stop) || atomic_load(&job->cancelled))) {
        cn_mailbox_post(p->done, &pop_job(lane)->msg);
        srv_lanes_changed(&p->lanes, lane);
        return NULL;
    }
    if ((w = worker_for(p, lane, job)))
        pop_job(lane)->worker = w;
    else
        srv_lanes_block(&p->lanes, lane);
    return w;
}

/* Gives free slots to those who are due. A slice is charged in advance, so that one lane does not
 * take every slot at the same virtual time. */
static void dispatch(struct srv_text_pool *p)
{
    struct srv_lane *lane;

    while (p->n_running < p->slots && (lane = srv_lanes_first(&p->lanes))) {
        struct srv_text_worker *w = next_of(p, lane);
        if (!w) continue;
        srv_lanes_serve(&p->lanes, lane, lane->vtime);
        lane->vtime += SRV_TEXT_SLICE_NS / lane->weight;
        srv_lanes_changed(&p->lanes, lane);
        p->n_running++;
        w->go = true;
        pthread_cond_signal(&w->cond);
    }
}

/* Charges what the thread ran since its slice began. */
static void charge(struct srv_text_worker *w)
{
    uint64_t ran = thread_cpu_ns() - w->cpu_ns + START_NS;

    w->lane->vtime += (double)ran / w->lane->weight;
    srv_lanes_changed(&w->pool->lanes, w->lane);
}

/* The slot is given back, and with it what was charged in advance. */
static void leave_slot(struct srv_text_worker *w)
{
    w->lane->vtime -= SRV_TEXT_SLICE_NS / w->lane->weight;
    srv_lanes_changed(&w->pool->lanes, w->lane);
    w->pool->n_running--;
}

static void begin_slice(struct srv_text_worker *w)
{
    w->cpu_ns = thread_cpu_ns();
    w->check_ns = cn_now_ns() + SRV_TEXT_SLICE_NS;
}

static void park(struct srv_text_worker *w)
{
    w->next = NULL;
    *w->lane->last = w;
    w->lane->last = &w->next;
    leave_slot(w);
    dispatch(w->pool);
    while (!w->go)
        pthread_cond_wait(&w->cond, &w->pool->lock);
    w->go = false;
}

/* ---- threads --------------------------------------------------------------------------------- */

static void end_slice(struct srv_text_worker *w, uint64_t now)
{
    struct srv_text_pool *p = w->pool;
    uint64_t ran = thread_cpu_ns() - w->cpu_ns;

    if (ran < SRV_TEXT_SLICE_NS) { /* the processor was another's meanwhile */
        w->check_ns = now + SRV_TEXT_SLICE_NS - ran;
        return;
    }
    pthread_mutex_lock(&p->lock);
    charge(w);
    const struct srv_lane *first = srv_lanes_first(&p->lanes);
    double start = w->lane->vtime - SRV_TEXT_SLICE_NS / w->lane->weight;
    if (first && first != w->lane && first->vtime < start)
        park(w);
    else
        srv_lanes_serve(&p->lanes, w->lane, start);
    pthread_mutex_unlock(&p->lock);
    begin_slice(w);
}

bool srv_text_yield(struct srv_job *job)
{
    struct srv_text_worker *w = job->worker;

    if (w) {
        uint64_t now = cn_now_ns();
        if (now >= w->check_ns) end_slice(w, now);
        if (atomic_load_explicit(&w->pool->stop, memory_order_relaxed)) return false;
    }
    return !atomic_load_explicit(&job->cancelled, memory_order_relaxed);
}

bool srv_text_keep_going(void *arg)
{
    return srv_text_yield(arg);
}

struct srv_job *srv_text_job(void)
{
    return here ? here->job : NULL;
}

/* With a slot; without the lock. */
static void run_job(struct srv_text_worker *w)
{
    struct srv_job *job = w->job;
    bool detached = job->detached;

    begin_slice(w);
    here = w;
    if (detached || !atomic_load(&job->cancelled)) job->work(job);
    here = NULL;
    if (detached) return;
    job->worker = NULL;
    cn_mailbox_post(w->pool->done, &job->msg);
}

static void end_job(struct srv_text_worker *w)
{
    struct srv_text_pool *p = w->pool;

    charge(w);
    leave_slot(w);
    p->n_begun--;
    if (w->is_long)
        p->n_long--;
    else
        p->n_short--;
    w->job = NULL;
    w->next = p->idle;
    p->idle = w;
    srv_lanes_unblock(&p->lanes);
    dispatch(p);
    if (!p->n_begun) pthread_cond_signal(&p->drained);
}

static void *work(void *arg)
{
    struct srv_text_worker *w = arg;
    struct srv_text_pool *p = w->pool;

    cn_signals_take(false); /* they are the loop's */
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!w->go && !p->quit)
            pthread_cond_wait(&w->cond, &p->lock);
        if (!w->go) break;
        w->go = false;
        pthread_mutex_unlock(&p->lock);
        run_job(w);
        pthread_mutex_lock(&p->lock);
        end_job(w);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---- the pool -------------------------------------------------------------------------------- */

void srv_text_push(struct srv_text_pool *p, struct srv_job *job)
{
    job->next = NULL;
    pthread_mutex_lock(&p->lock);
    cn_assert(job->lane < p->lanes.n);
    struct srv_lane *lane = p->lanes.all[job->lane];
    if (!lane->head && !lane->parked) srv_lanes_wake(&p->lanes, lane);
    *lane->tail = job;
    lane->tail = &job->next;
    srv_lanes_changed(&p->lanes, lane);
    dispatch(p);
    pthread_mutex_unlock(&p->lock);
}

struct drop {
    struct srv_job job;
    struct cn_buf buf;
};

static void drop_work(struct srv_job *job)
{
    struct drop *d = CN_CONTAINER(job, struct drop, job);

    cn_buf_fini(&d->buf);
    free(d);
}

void srv_text_drop(struct srv_text_pool *p, uint32_t lane, struct cn_buf *b)
{
    struct drop *d = p && b->cap >= SRV_TEXT_DROP ? cn_calloc(1, sizeof *d) : NULL;

    if (!d) {
        cn_buf_fini(b);
        return;
    }
    d->job = (struct srv_job){.lane = lane, .work = drop_work, .detached = true};
    d->buf = *b; /* moved, with what it is charged */
    cn_buf_init_for(b, b->max, b->account);
    srv_text_push(p, &d->job);
}

static int start_threads(struct srv_text_pool *p, struct cn_error *err)
{
    int rc = 0;

    pthread_mutex_lock(&p->lock);
    for (unsigned i = 0; i < p->slots && !rc; i++) {
        struct srv_text_worker *w = new_worker(p);
        if (!w) {
            rc = cn_fail(err, CN_ENOMEM, "a text worker cannot be started");
            break;
        }
        w->next = p->idle;
        p->idle = w;
    }
    pthread_mutex_unlock(&p->lock);
    return rc;
}

int srv_text_grow(struct srv_text_pool *p, size_t n)
{
    pthread_mutex_lock(&p->lock);
    int rc = srv_lanes_grow(&p->lanes, n);
    pthread_mutex_unlock(&p->lock);
    return rc;
}

void srv_text_weigh(struct srv_text_pool *p, size_t from, const double *weights, size_t n)
{
    pthread_mutex_lock(&p->lock);
    srv_lanes_weigh(&p->lanes, from, weights, n);
    pthread_mutex_unlock(&p->lock);
}

int srv_text_pool_new(unsigned slots, const double *weights, size_t n_lanes,
                      struct cn_mailbox *done, struct srv_text_pool **out, struct cn_error *err)
{
    struct srv_text_pool *p = cn_calloc(1, sizeof *p);

    if (!p) return cn_fail(err, CN_ENOMEM, "out of memory");
    p->done = done;
    p->slots = slots;
    p->max_workers = (size_t)slots + SRV_TEXT_MAX_LONG + SRV_TEXT_MAX_SHORT;
    if (pthread_mutex_init(&p->lock, NULL)) {
        free(p);
        return cn_fail(err, CN_ENOMEM, "out of memory");
    }
    if (pthread_cond_init(&p->drained, NULL)) {
        pthread_mutex_destroy(&p->lock);
        free(p);
        return cn_fail(err, CN_ENOMEM, "out of memory");
    }
    p->workers = cn_calloc(p->max_workers, sizeof *p->workers);
    int rc = srv_lanes_init(&p->lanes, weights, n_lanes);
    if (rc || !p->workers)
        rc = cn_fail(err, CN_ENOMEM, "out of memory");
    else
        rc = start_threads(p, err);
    if (rc) {
        srv_text_pool_free(p);
        return rc;
    }
    *out = p;
    return 0;
}

void srv_text_pool_free(struct srv_text_pool *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stop, true);
    srv_lanes_unblock(&p->lanes);
    dispatch(p);
    while (p->n_begun)
        pthread_cond_wait(&p->drained, &p->lock);
    p->quit = true;
    for (size_t i = 0; i < p->n_workers; i++)
        pthread_cond_signal(&p->workers[i]->cond);
    pthread_mutex_unlock(&p->lock);
    for (size_t i = 0; i < p->n_workers; i++) {
        pthread_join(p->workers[i]->thread, NULL);
        pthread_cond_destroy(&p->workers[i]->cond);
        free(p->workers[i]);
    }
    pthread_cond_destroy(&p->drained);
    pthread_mutex_destroy(&p->lock);
    srv_lanes_fini(&p->lanes);
    free(p->workers);
    free(p);
}
