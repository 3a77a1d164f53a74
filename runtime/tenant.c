/* The series of each tenant: from the scheduler's accounts to the metrics. Engine thread. */
#include "runtime/rt.h"

#include <stdlib.h>

#define IN_TURN 4 /* tenants told of per iteration that had no event */

int rt_tenants_init(struct rt_tenants *t, uint32_t n)
{
    t->v = cn_calloc(n, sizeof *t->v);
    t->changed = cn_calloc(n, sizeof *t->changed);
    if (!t->v || !t->changed) return CN_ENOMEM;
    t->n = n;
    return 0;
}

void rt_tenants_fini(struct rt_tenants *t)
{
    free(t->v);
    free(t->changed);
    *t = (struct rt_tenants){0};
}

void rt_tenant_changed(struct rt *r, uint32_t tenant)
{
    struct rt_tenants *t = &r->tenants;
    if (tenant >= t->n || t->v[tenant].changed) return;
    t->v[tenant].changed = true;
    t->changed[t->n_changed++] = tenant;
}

void rt_tenant_embedded(struct rt *r, uint32_t tenant)
{
    r->embedded++;
    if (tenant < r->tenants.n) r->tenants.v[tenant].embedded++;
    rt_tenant_changed(r, tenant);
}

_Static_assert(CN_TM_error == CN_TM_ok + 1 && CN_TM_cancelled == CN_TM_ok + 2, "rt_tenant.ended");

void rt_tenant_ended(struct rt *r, uint32_t tenant, int code)
{
    if (tenant >= r->tenants.n) return;
    int how = !code ? CN_TM_ok : code == CN_ECANCELLED ? CN_TM_cancelled : CN_TM_error;
    r->tenants.v[tenant].ended[how - CN_TM_ok]++;
    rt_tenant_changed(r, tenant);
}

static void tell(struct rt *r, uint32_t i)
{
    struct rt_tenant *last = &r->tenants.v[i];
    struct cn_metrics *m = r->metrics;
    struct sch_tenant_stats s;
    sch_tenant_stats(r->sch, i, &s);
    s.generated -= last->embedded;
    cn_tenant_add(m, i, CN_TM_prompt_computed, s.prompt_computed - last->computed);
    cn_tenant_add(m, i, CN_TM_prompt_cached, s.cached - last->cached);
    cn_tenant_add(m, i, CN_TM_generated, s.generated - last->generated);
    /* Last, as in update_gauges. */
    for (int k = 0; k < 3; k++)
        cn_tenant_add(m, i, (enum cn_tenant_metric)(CN_TM_ok + k), last->ended[k]);
    cn_tenant_set(m, i, CN_TM_running, s.running);
    cn_tenant_set(m, i, CN_TM_waiting, s.waiting - CN_MIN(s.paused, s.waiting));
    *last = (struct rt_tenant){.embedded = last->embedded,
                               .computed = s.prompt_computed,
                               .cached = s.cached,
                               .generated = s.generated};
}

void rt_tenants_tell(struct rt *r)
{
    struct rt_tenants *t = &r->tenants;
    for (uint32_t i = 0; i < t->n_changed; i++)
        tell(r, t->changed[i]);
    t->n_changed = 0;
    for (uint32_t i = 0; i < IN_TURN && i < t->n; i++) {
        t->next = t->next + 1 < t->n ? t->next + 1 : 0;
        tell(r, t->next);
    }
}
