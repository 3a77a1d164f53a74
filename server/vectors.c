/* A request for embeddings: how many of its inputs the runtime has at once, and what it gives back.
 * Loop thread only; works on one request. */
#include "server/request.h"

#include <stdlib.h>
#include <string.h>

#define MOST_AT_ONCE 64 /* so that a request with thousands of inputs does not fill the queue */

/* Within what the tenant may have at once: a request that is alone is never too much for it. */
size_t srv_vec_at_once(const struct srv_req *q)
{
    const struct cfg *cfg = q->srv->cfg;
    int64_t n = MOST_AT_ONCE, queue = cfg->scheduler.queue_requests;

    if (queue) n = CN_MIN(n, CN_MAX(queue / 4, (int64_t)1));
    const struct cfg_tenant *t = srv_req_tenant(q);
    int64_t own = t->max_concurrency ? t->max_concurrency : t->max_queued;
    if (own) n = CN_MIN(n, own);
    return (size_t)n;
}

int srv_vec_take(struct srv_req *q, uint32_t sub, const struct rt_event *e)
{
    struct srv_prompt *p = &q->call->prompts[sub];

    if (!q->first_ns) q->first_ns = cn_now_ns();
    if (p->vector || e->n_vector != q->call->env->embedding_size) return CN_EINTERNAL;
    p->vector = cn_malloc_array(e->n_vector, sizeof *p->vector);
    if (!p->vector) return CN_ENOMEM;
    memcpy(p->vector, e->vector, e->n_vector * sizeof *p->vector);
    return 0;
}
