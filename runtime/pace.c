/* What guides take, paid by the tenants whose requests have them. See rt.h.
 *
 * A step waits a little for a costly guide (guide.c), and a mask that is made aside takes a
 * processor that others share. What a tenant's guides take beyond a usual mask is its debt, which
 * time pays off. While the debt is large, the tenant's guided requests are paused: its guides work
 * during a small part of the time, however many requests it sends. */
#include "runtime/rt.h"

#include <stdlib.h>

#define USUAL_NS  2000000u   /* of all of a tenant's masks in a step: free */
#define MOST_NS   250000000u /* of debt, behind which guided requests are paused */
#define RESUME_NS 50000000u  /* of debt, with which they go on */
#define PAY       8          /* one part in so many of the time pays debts: those of all together */

static struct rt_debtor *find(struct rt_pace *p, uint64_t tenant)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->v[i].tenant == tenant) return &p->v[i];
    return NULL;
}

void rt_pace_charge(struct rt_pace *p, uint64_t tenant, uint64_t ns)
{
    struct rt_debtor *d;
    if (ns <= USUAL_NS) return;
    d = find(p, tenant);
    if (!d) {
        if (cn_grow(&p->v, &p->cap, p->n + 1, sizeof *p->v)) return; /* this one is free */
        if (!p->n) p->paid_ns = cn_now_ns();
        d = &p->v[p->n++];
        *d = (struct rt_debtor){.tenant = tenant};
    }
    d->ns += ns - USUAL_NS;
}

bool rt_pace_waits(struct rt_pace *p, uint64_t tenant)
{
    const struct rt_debtor *d = find(p, tenant);
    return d && d->waits;
}

static void pause_all(struct rt_group *g, uint64_t tenant, bool paused)
{
    for (size_t i = 0; i < g->table_size; i++)
        for (struct rt_req *req = g->table[i]; req; req = req->next)
            if (req->q.tenant == tenant && req->q.guide) rt_req_pause(req, RT_PAUSE_PACE, paused);
}

uint64_t rt_pace(struct rt_group *g, uint64_t now)
{
    struct rt_pace *p = &g->pace;
    uint64_t paid, least = UINT64_MAX;
    uint32_t n = 0;
    if (!p->n || now < p->paid_ns + PAY * p->n) return p->n ? now + RESUME_NS : UINT64_MAX;
    paid = (now - p->paid_ns) / (PAY * p->n);
    p->paid_ns = now;
    for (uint32_t i = 0; i < p->n; i++) {
        struct rt_debtor d = p->v[i];
        bool waits;
        d.ns -= CN_MIN(d.ns, paid);
        waits = d.waits ? d.ns > RESUME_NS : d.ns > MOST_NS;
        if (waits != d.waits) pause_all(g, d.tenant, waits);
        d.waits = waits;
        if (d.waits) least = CN_MIN(least, d.ns - RESUME_NS);
        if (d.ns) p->v[n++] = d;
    }
    p->n = n;
    return least == UINT64_MAX ? UINT64_MAX : now + (least + 1) * PAY * n;
}

void rt_pace_fini(struct rt_pace *p)
{
    free(p->v);
    *p = (struct rt_pace){0};
}
