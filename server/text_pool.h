/* Threads for templates, tokenising and large bodies, fed by a fair queue: between tenants by bytes
 * over weight, within a tenant in order. A job belongs to the pool from srv_text_push until it
 * comes back on the mailbox; only `cancelled` may be touched in between. */
#ifndef SERVER_TEXT_POOL_H
#define SERVER_TEXT_POOL_H

#include "base/base.h"

struct srv_job {
    struct cn_msg msg; /* first member; on the mailbox when done */
    struct srv_job *next;
    uint32_t tenant;
    uint64_t cost;                     /* bytes of text */
    atomic_bool cancelled;             /* set by the loop: it is not worked on any more */
    void (*work)(struct srv_job *job); /* on a worker's thread */
};

struct srv_text_pool;
/* weights: one per tenant (n_tenants of them, copied). Done jobs go to `done`. */
int srv_text_pool_new(unsigned threads, const double *weights, size_t n_tenants,
                      struct cn_mailbox *done, struct srv_text_pool **out, struct cn_error *err);
/* Waits for jobs at work; those that wait come back unworked. Takes NULL. */
void srv_text_pool_free(struct srv_text_pool *p);
void srv_text_push(struct srv_text_pool *p, struct srv_job *job);

#endif
