/* Each engine group reports to the others what it serves to tenants, so that fairness holds
 * across groups (scheduler.h, share.c). A group reports after an iteration and reads reports
 * before one. Unread reports are summed by slot, so that an idle group keeps no more than its
 * table. Invariant: unread reports are under the reading group's heard.lock; a slot's entry
 * belongs to one tenant id. */
#include "runtime/rt.h"

#include <stdlib.h>

#define AT_ONCE 64 /* tenants reported per hold of the other group's lock */

int rt_heard_init(struct rt_heard *h)
{
    h->ready = !pthread_mutex_init(&h->lock, NULL);
    return h->ready ? 0 : CN_ENOMEM;
}

void rt_heard_fini(struct rt_heard *h)
{
    if (h->ready) pthread_mutex_destroy(&h->lock);
    free(h->v);
    free(h->changed);
    *h = (struct rt_heard){0};
}

int rt_heard_grow(struct rt_heard *h, uint32_t n)
{
    pthread_mutex_lock(&h->lock);
    int rc = cn_grow(&h->v, &h->v_cap, n, sizeof *h->v);
    if (!rc) rc = cn_grow(&h->changed, &h->changed_cap, n, sizeof *h->changed);
    for (; !rc && h->n < n; h->n++)
        h->v[h->n] = (struct rt_owed){0};
    pthread_mutex_unlock(&h->lock);
    return rc;
}

/* With the lock. A slot that this group has no room for yet is a tenant's that it does not know. */
static void add(struct rt_heard *h, uint32_t slot, uint64_t id, double seconds)
{
    if (slot >= h->n) return;
    struct rt_owed *v = &h->v[slot];
    if (!v->listed) h->changed[h->n_changed++] = slot;
    if (v->id != id) *v = (struct rt_owed){.id = id};
    v->listed = true;
    v->seconds += seconds;
}

void rt_exchange_tell(struct rt_group *g)
{
    struct sch_served v[AT_ONCE];
    struct rt *r = g->rt;
    uint32_t n;
    while (r->n_groups > 1 && (n = sch_served_take(g->sch, v, AT_ONCE))) {
        double burst_s = sch_burst_s(g->sch);
        for (uint32_t k = 0; k < r->n_groups; k++) {
            struct rt_heard *h = &r->groups[k].heard;
            if (k == g->index) continue;
            pthread_mutex_lock(&h->lock);
            h->burst_s[g->index] = burst_s;
            for (uint32_t i = 0; i < n; i++)
                add(h, v[i].tenant, g->tenants.v[v[i].tenant].id, v[i].seconds);
            pthread_mutex_unlock(&h->lock);
        }
    }
}

void rt_exchange_listen(struct rt_group *g)
{
    struct rt_heard *h = &g->heard;
    double burst_s = 0;
    if (g->rt->n_groups < 2) return;
    pthread_mutex_lock(&h->lock);
    for (uint32_t k = 0; k < g->rt->n_groups; k++)
        burst_s = CN_MAX(burst_s, h->burst_s[k]);
    for (uint32_t i = 0; i < h->n_changed; i++) {
        uint32_t slot = h->changed[i];
        struct rt_owed *v = &h->v[slot];
        const struct rt_tenant *t = &g->tenants.v[slot];
        if (slot < g->tenants.n && t->used && t->id == v->id)
            sch_served_elsewhere(g->sch, &(struct sch_served){slot, v->seconds}, burst_s);
        *v = (struct rt_owed){0};
    }
    h->n_changed = 0;
    pthread_mutex_unlock(&h->lock);
}
