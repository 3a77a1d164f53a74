/* Threads for templates, tokenising and large bodies, fed by a fair queue: tenants take turns by
 * CPU time over weight, within a tenant jobs go in order. At most `slots` jobs run at once. Long
 * work calls srv_text_yield: where another tenant is due, the job's thread parks there until its
 * tenant's next turn, and the slot goes to the other one. A job belongs to the pool from
 * srv_text_push until it comes back on the mailbox; only `cancelled` may be touched in between. */
#ifndef SERVER_TEXT_POOL_H
#define SERVER_TEXT_POOL_H

#include "base/base.h"

#define SRV_TEXT_SLICE_NS  4000000u /* CPU time before a job is asked to make room */
#define SRV_TEXT_SHORT     65536    /* jobs of a lower cost always find a thread */
#define SRV_TEXT_DROP      262144   /* bytes of a buffer that a worker frees */
#define SRV_TEXT_MAX_LONG  64       /* other jobs that are begun and not done */
#define SRV_TEXT_MAX_SHORT 256      /* short ones, likewise */

struct srv_text_worker;

struct srv_job {
    struct cn_msg msg; /* first member; on the mailbox when done */
    struct srv_job *next;
    uint32_t lane;         /* whose turn it waits for: an account's number */
    uint64_t cost;         /* bytes of text, or what is like it: short or long */
    atomic_bool cancelled; /* set by the loop: not worked on, or no longer */
    bool detached;         /* always worked on, and freed by that; never on the mailbox */
    void (*work)(struct srv_job *job); /* on a worker's thread */
    struct srv_text_worker *worker;    /* the pool's: whose thread works on it */
};

struct srv_text_pool;
/* weights: one per lane (n_lanes of them, copied). Done jobs go to `done`. */
int srv_text_pool_new(unsigned slots, const double *weights, size_t n_lanes,
                      struct cn_mailbox *done, struct srv_text_pool **out, struct cn_error *err);
/* Makes lanes up to n, of weight 1 (CN_ENOMEM: fewer); the weights of n of them. Any thread. */
int srv_text_grow(struct srv_text_pool *p, size_t n);
void srv_text_weigh(struct srv_text_pool *p, size_t from, const double *weights, size_t n);
/* Cancels jobs at work and waits for them; those that wait come back unworked. Takes NULL. */
void srv_text_pool_free(struct srv_text_pool *p);
/* job->worker is NULL before the first push. */
void srv_text_push(struct srv_text_pool *p, struct srv_job *job);

/* Empties a buffer of who has that lane: a large one on a worker, for giving memory back to the
 * system takes its time. Pool NULL: here. */
void srv_text_drop(struct srv_text_pool *p, uint32_t lane, struct cn_buf *b);

/* A job's work calls this at least every millisecond; it lets other jobs run when they are due.
 * False if the job was cancelled: the work then ends with CN_ECANCELLED. On a thread outside the
 * pool it only checks for that. */
bool srv_text_yield(struct srv_job *job);
/* The same as a callback; arg is the job. */
bool srv_text_keep_going(void *arg);
/* The job that this thread works on; NULL on threads of others. */
struct srv_job *srv_text_job(void);

#endif
