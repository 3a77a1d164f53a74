/* The text workers' queue: start-time fair queueing. Each tenant has a virtual time that grows by
 * cost over weight as its jobs start; the tenant with the lowest goes first; one that comes back
 * from idle starts at the time of the job served last. Everything under one lock. */
#include "server/text_pool.h"

#include <stdio.h>
#include <stdlib.h>

struct lane {
    struct srv_job *head, **tail;
    double weight, vtime;
    size_t at; /* in busy[], while it has jobs */
};

struct srv_text_pool {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    struct cn_mailbox *done;
    struct lane *lanes;
    size_t n_lanes;
    struct lane **busy; /* lanes with jobs, a heap by vtime */
    size_t n_busy;
    double now;
    bool stop;
    pthread_t *threads;
    unsigned n_threads;
};

static void put(struct srv_text_pool *p, size_t i, struct lane *l)
{
    p->busy[i] = l;
    l->at = i;
}

static void sift_up(struct srv_text_pool *p, size_t i)
{
    struct lane *l = p->busy[i];

    for (; i > 0 && p->busy[(i - 1) / 2]->vtime > l->vtime; i = (i - 1) / 2)
        put(p, i, p->busy[(i - 1) / 2]);
    put(p, i, l);
}

static void sift_down(struct srv_text_pool *p, size_t i)
{
    struct lane *l = p->busy[i];

    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= p->n_busy) break;
        if (child + 1 < p->n_busy && p->busy[child + 1]->vtime < p->busy[child]->vtime) child++;
        if (p->busy[child]->vtime >= l->vtime) break;
        put(p, i, p->busy[child]);
        i = child;
    }
    put(p, i, l);
}

void srv_text_push(struct srv_text_pool *p, struct srv_job *job)
{
    struct lane *l = &p->lanes[job->tenant < p->n_lanes ? job->tenant : 0];

    job->next = NULL;
    pthread_mutex_lock(&p->lock);
    *l->tail = job;
    l->tail = &job->next;
    if (l->head == job) {
        if (l->vtime < p->now) l->vtime = p->now;
        p->busy[p->n_busy] = l;
        sift_up(p, p->n_busy++);
    }
    pthread_cond_signal(&p->cond);
    pthread_mutex_unlock(&p->lock);
}

/* The next job, or NULL. Under the lock. */
static struct srv_job *take(struct srv_text_pool *p)
{
    if (!p->n_busy) return NULL;
    struct lane *l = p->busy[0];
    struct srv_job *job = l->head;
    bool cancelled = atomic_load(&job->cancelled);

    p->now = l->vtime;
    if (!cancelled) l->vtime += (double)job->cost / l->weight;
    l->head = job->next;
    if (!l->head) {
        l->tail = &l->head;
        p->n_busy--;
        if (p->n_busy) put(p, 0, p->busy[p->n_busy]);
    }
    if (p->n_busy) sift_down(p, 0);
    return job;
}

static void *work(void *arg)
{
    struct srv_text_pool *p = arg;

    pthread_mutex_lock(&p->lock);
    for (;;) {
        struct srv_job *job = take(p);
        if (!job) {
            if (p->stop) break;
            pthread_cond_wait(&p->cond, &p->lock);
            continue;
        }
        bool skip = p->stop;
        pthread_mutex_unlock(&p->lock);
        if (!skip && !atomic_load(&job->cancelled)) job->work(job);
        cn_mailbox_post(p->done, &job->msg);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static int start_threads(struct srv_text_pool *p, unsigned n, struct cn_error *err)
{
    for (unsigned i = 0; i < n; i++) {
        if (pthread_create(&p->threads[i], NULL, work, p))
            return cn_fail(err, CN_ENOMEM, "a text worker cannot be started");
        p->n_threads++;
#ifdef __linux__
        pthread_setname_np(p->threads[i], "text");
#endif
    }
    return 0;
}

int srv_text_pool_new(unsigned threads, const double *weights, size_t n_tenants,
                      struct cn_mailbox *done, struct srv_text_pool **out, struct cn_error *err)
{
    struct srv_text_pool *p = cn_calloc(1, sizeof *p);

    if (!p) return cn_fail(err, CN_ENOMEM, "out of memory");
    p->done = done;
    p->n_lanes = n_tenants ? n_tenants : 1;
    if (pthread_mutex_init(&p->lock, NULL)) {
        free(p);
        return cn_fail(err, CN_ENOMEM, "out of memory");
    }
    if (pthread_cond_init(&p->cond, NULL)) {
        pthread_mutex_destroy(&p->lock);
        free(p);
        return cn_fail(err, CN_ENOMEM, "out of memory");
    }
    p->lanes = cn_calloc(p->n_lanes, sizeof *p->lanes);
    p->busy = cn_calloc(p->n_lanes, sizeof *p->busy);
    p->threads = cn_calloc(threads, sizeof *p->threads);
    int rc = p->lanes && p->busy && p->threads ? 0 : cn_fail(err, CN_ENOMEM, "out of memory");
    for (size_t i = 0; !rc && i < p->n_lanes; i++) {
        p->lanes[i].tail = &p->lanes[i].head;
        p->lanes[i].weight = i < n_tenants && weights[i] > 0 ? weights[i] : 1;
    }
    if (!rc) rc = start_threads(p, threads, err);
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
    p->stop = true;
    pthread_cond_broadcast(&p->cond);
    pthread_mutex_unlock(&p->lock);
    for (unsigned i = 0; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->cond);
    pthread_mutex_destroy(&p->lock);
    free(p->lanes);
    free(p->busy);
    free(p->threads);
    free(p);
}
