/* Who may have a model unloaded, and who comes first: a load is charged to those who asked for it,
 * and what was loaded stays a while where others use it. All under models_lock. */
#include "runtime/rt.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FORGET_S 300.0 /* in which half of what was charged is forgotten */

int rt_stay_set(struct rt *r, const struct cfg_tenants *t)
{
    int rc = 0;
    pthread_mutex_lock(&r->models_lock);
    if (t->n_slots > r->n_payers) {
        struct rt_payer *grown = cn_realloc_array(r->payers, t->n_slots, sizeof *grown);
        if (grown) {
            memset(grown + r->n_payers, 0, (t->n_slots - r->n_payers) * sizeof *grown);
            r->payers = grown;
            r->n_payers = t->n_slots;
        } else {
            rc = CN_ENOMEM;
        }
    }
    for (uint32_t i = 0; !rc && i < t->n_slots; i++) {
        struct rt_payer *p = &r->payers[i];
        if (!t->seats[i].tenant) continue;
        if (p->id != t->seats[i].id) *p = (struct rt_payer){.id = t->seats[i].id};
        p->weight = t->seats[i].tenant->weight;
    }
    pthread_mutex_unlock(&r->models_lock);
    return rc;
}

static uint64_t stay_ns(const struct rt *r)
{
    return (uint64_t)(r->cfg->engine.min_stay_s * 1e9);
}

/* Seconds of loads over its weight, old ones fading. */
static double paid(const struct rt *r, uint32_t tenant, uint64_t now)
{
    cn_assert(tenant < r->n_payers);
    const struct rt_payer *p = &r->payers[tenant];
    return p->paid_s * exp2(-(double)(now - p->at_ns) / 1e9 / FORGET_S);
}

double rt_stay_due(const struct rt_model *m, uint64_t now)
{
    double least = INFINITY;
    for (const struct rt_wait *w = m->waits; w; w = w->next)
        least = fmin(least, paid(m->rt, w->tenant, now));
    return least;
}

/* The one tenant that waits for it, or RT_MANY. */
static uint32_t asker(const struct rt_model *m)
{
    for (const struct rt_wait *w = m->waits; w; w = w->next)
        if (w->tenant != m->waits->tenant) return RT_MANY;
    return m->waits ? m->waits->tenant : RT_NOBODY;
}

static bool is_others(const struct rt_model *m, uint32_t tenant)
{
    return m->only != RT_NOBODY && m->only != tenant;
}

/* Whether no other tenant uses a model of the group, used one recently, or waits for one. */
static bool is_alone(const struct rt_group *g, uint32_t tenant, uint64_t now)
{
    for (size_t i = 0; i < g->n_models; i++) {
        const struct rt_model *m = g->models[i];
        if (m->waits && asker(m) != tenant) return false;
        if (m->state == RT_LOADED && is_others(m, tenant) &&
            (m->uses || now - m->used_ns < stay_ns(g->rt)))
            return false;
    }
    return true;
}

uint64_t rt_stays_until(const struct rt_model *v, const struct rt_model *m, uint64_t now)
{
    const struct rt *r = v->rt;
    uint32_t who = asker(m);
    uint64_t until = v->loaded_ns + stay_ns(r);
    if (v->only == RT_NOBODY) return 0;
    if (who < r->n_payers && is_others(v, who) && r->payers[who].took_ns)
        until = CN_MAX(until, r->payers[who].took_ns + stay_ns(r));
    if (until <= now || (!is_others(v, who) && is_alone(v->group, who, now))) return 0;
    return until;
}

void rt_stay_used(struct rt_model *m, uint32_t tenant)
{
    if (m->only == RT_NOBODY)
        m->only = tenant;
    else if (m->only != tenant)
        m->only = RT_MANY;
}

void rt_stay_taken(const struct rt_model *v, const struct rt_model *m, uint64_t now)
{
    uint32_t who = asker(m);
    if (who < v->rt->n_payers && is_others(v, who)) v->rt->payers[who].took_ns = now;
}

void rt_stay_loaded(struct rt_model *m, double seconds)
{
    struct rt *r = m->rt;
    uint64_t now = cn_now_ns();
    m->loaded_ns = now;
    m->only = RT_NOBODY;
    for (const struct rt_wait *w = m->waits; w; w = w->next) {
        struct rt_payer *p = &r->payers[w->tenant];
        p->paid_s = paid(r, w->tenant, now) + seconds / (double)m->n_waits / p->weight;
        p->at_ns = now;
        if (w == m->waits) cn_tenant_add(r->metrics, w->tenant, CN_TM_model_loads, 1);
    }
}
