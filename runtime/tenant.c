/* Tenants on the engine thread: who is there, and their series: from the scheduler's accounts to
 * the metrics. A tenant that is removed leaves: its requests end, then its cache is dropped, then
 * its slot may be given to another one. */
#include "runtime/rt.h"

#include <stdlib.h>

#define IN_TURN 4  /* tenants reported per iteration that had no event */
#define LOOK    64 /* slots looked at per iteration for those who leave */

void rt_tenants_fini(struct rt_tenants *t)
{
    cfg_tenants_unref(t->now);
    cfg_tenants_unref(t->next_up);
    free(t->v);
    free(t->changed);
    *t = (struct rt_tenants){0};
}

/* ---- coming and changing --------------------------------------------------------------------- */

static int set(struct rt_group *g, uint32_t slot, const struct cfg_tenant *c,
               uint64_t reserve_bytes)
{
    struct sch_tenant_opts o = {.weight = c->weight,
                                .max_concurrent = (uint32_t)c->max_concurrency,
                                .max_queued = (uint32_t)c->max_queued,
                                .ceiling = (enum sch_class)c->priority,
                                .kv_reserve_bytes = reserve_bytes};
    return sch_tenant_set(g->sch, slot, &o);
}

static uint64_t reserve_of(const struct rt_group *g, const struct cfg_tenant *c)
{
    return (uint64_t)(c->kv_share * (double)g->tenants.kv_bytes);
}

/* Those who were to come, before others took their place in the plan. */
static void forget_plan(struct rt_group *g, const struct cfg_tenants *now)
{
    struct rt_tenants *t = &g->tenants;
    struct cfg_tenants *old = t->next_up;
    t->next_up = NULL;
    for (uint32_t i = 0; old && i < old->n_slots; i++) {
        uint64_t id = old->seats[i].id;
        bool came = i < t->n && t->v[i].used && t->v[i].id == id;
        if (old->seats[i].tenant && !came && !cfg_tenants_find(now, id))
            cfg_roll_left(old->roll, id, t->party);
    }
    cfg_tenants_unref(old);
}

static int grow(struct rt_tenants *t, uint32_t n)
{
    if (n <= t->n) return 0;
    if (cn_grow(&t->v, &t->v_cap, n, sizeof *t->v) ||
        cn_grow(&t->changed, &t->changed_cap, n, sizeof *t->changed))
        return CN_ENOMEM;
    for (; t->n < n; t->n++)
        t->v[t->n] = (struct rt_tenant){0};
    return 0;
}

static void begin_leaving(struct rt_group *g, const struct cfg_tenants *now)
{
    struct rt_tenants *t = &g->tenants;
    bool some = false;
    for (uint32_t i = 0; i < t->n; i++) {
        struct rt_tenant *v = &t->v[i];
        if (!v->used || v->leaving || cfg_tenants_find(now, v->id)) continue;
        v->leaving = some = true;
        t->n_leaving++;
        const struct cfg_tenant *was = cfg_tenants_find(t->now, v->id);
        if (was) set(g, i, was, 0); /* known: it only gives back */
    }
    t->to_look = t->n;
    if (some) rt_cancel_those(g, UINT64_MAX, 0, CN_EREVOKED);
}

/* First what gives reserves back, so that others can have them. */
static int set_all(struct rt_group *g, const struct cfg_tenants *now)
{
    struct rt_tenants *t = &g->tenants;
    int rc = 0;
    for (uint32_t i = 0; i < now->n_slots; i++) {
        const struct cfg_tenant *c = now->seats[i].tenant;
        if (!c) continue;
        struct rt_tenant *v = &t->v[i];
        cn_assert(!v->leaving);
        const struct cfg_tenant *was = v->used ? cfg_tenants_find(t->now, now->seats[i].id) : NULL;
        v->stale |= !was || cfg_tenants_change(t->now, now, i) != CFG_SAME;
        if (v->stale && was && !rc) rc = set(g, i, c, CN_MIN(reserve_of(g, was), reserve_of(g, c)));
    }
    for (uint32_t i = 0; !rc && i < now->n_slots; i++) {
        const struct cfg_tenant *c = now->seats[i].tenant;
        struct rt_tenant *v = &t->v[i];
        if (!c || !v->stale || (rc = set(g, i, c, reserve_of(g, c)))) continue;
        if (!v->used) *v = (struct rt_tenant){.changed = v->changed};
        v->id = now->seats[i].id;
        v->used = true;
        v->stale = false;
    }
    return rc;
}

int rt_tenants_apply(struct rt_group *g, struct cfg_tenants *now)
{
    struct rt_tenants *t = &g->tenants;
    if (now != t->next_up) forget_plan(g, now);
    t->next_up = now;
    int rc = grow(t, now->n_slots);
    if (!rc) rc = rt_heard_grow(&g->heard, t->n);
    if (rc) return rc;
    begin_leaving(g, now);
    rc = set_all(g, now);
    if (rc) return rc;
    cfg_tenants_unref(t->now);
    t->now = now;
    t->next_up = NULL;
    return 0;
}

int rt_tenants_check(const struct rt_group *g, uint64_t id, struct cn_error *err)
{
    const struct rt_tenants *t = &g->tenants;
    uint32_t slot = cfg_slot(id);
    if (slot < t->n && t->v[slot].used && !t->v[slot].leaving && t->v[slot].id == id) return 0;
    if (t->next_up) return cn_fail(err, CN_ENOMEM, "out of memory for a tenant");
    cn_assert(slot < t->n && id >> 32 <= t->v[slot].id >> 32); /* it was there once */
    return cn_fail(err, CN_EREVOKED, "%s", cn_err_info(CN_EREVOKED)->text);
}

/* ---- from other threads ---------------------------------------------------------------------- */

int rt_tenants_set(struct rt *r, struct cfg_tenants *now)
{
    int rc = rt_stay_set(r, now);
    if (rc) return rc;
    return rt_send_all(r, (struct rt_cmd){.kind = RT_CMD_TENANTS, .tenants = now});
}

int rt_cancel_of(struct rt *r, uint64_t tenant, uint64_t key, int code)
{
    return rt_send_all(
        r, (struct rt_cmd){.kind = RT_CMD_CANCEL_OF, .tenant = tenant, .key = key, .code = code});
}

int rt_drop_cache(struct rt *r, uint64_t tenant)
{
    return rt_send_all(r, (struct rt_cmd){.kind = RT_CMD_DROP_CACHE, .tenant = tenant});
}

int rt_lease(struct rt *r, uint32_t group, uint64_t tenant, uint64_t tokens)
{
    struct rt_cmd c = {.kind = RT_CMD_LEASE, .tenant = tenant, .tokens = tokens};
    return rt_send(&r->groups[group], c);
}

/* ---- series ---------------------------------------------------------------------------------- */

void rt_tenant_changed(struct rt_group *g, uint32_t tenant)
{
    struct rt_tenants *t = &g->tenants;
    cn_assert(tenant < t->n);
    if (t->v[tenant].changed) return;
    t->v[tenant].changed = true;
    t->changed[t->n_changed++] = tenant;
}

void rt_tenant_embedded(struct rt_group *g, uint32_t tenant)
{
    g->embedded++;
    rt_tenant_changed(g, tenant);
    g->tenants.v[tenant].embedded++;
}

_Static_assert(CN_TM_error == CN_TM_ok + 1 && CN_TM_cancelled == CN_TM_ok + 2, "rt_tenant.ended");

void rt_tenant_ended(struct rt_group *g, uint32_t tenant, int code)
{
    int how = !code ? CN_TM_ok : code == CN_ECANCELLED ? CN_TM_cancelled : CN_TM_error;
    rt_tenant_changed(g, tenant);
    g->tenants.v[tenant].ended[how - CN_TM_ok]++;
}

static void tell(struct rt_group *g, uint32_t i)
{
    struct rt_tenant *last = &g->tenants.v[i];
    struct cn_metrics *m = g->rt->metrics;
    struct sch_tenant_stats s;
    sch_tenant_stats(g->sch, i, &s);
    s.generated -= last->embedded;
    cn_tenant_add(m, i, CN_TM_prompt_computed, s.prompt_computed - last->computed);
    cn_tenant_add(m, i, CN_TM_prompt_cached, s.cached - last->cached);
    cn_tenant_add(m, i, CN_TM_generated, s.generated - last->generated);
    /* Last, as in update_gauges. */
    for (int k = 0; k < 3; k++)
        cn_tenant_add(m, i, (enum cn_tenant_metric)(CN_TM_ok + k), last->ended[k]);
    s.waiting -= CN_MIN(s.paused, s.waiting);
    cn_tenant_shift(m, i, CN_TM_running, last->running, s.running);
    cn_tenant_shift(m, i, CN_TM_waiting, last->waiting, s.waiting);
    last->running = s.running;
    last->waiting = s.waiting;
    last->computed = s.prompt_computed;
    last->cached = s.cached;
    last->generated = s.generated;
    last->changed = false;
    for (int k = 0; k < 3; k++)
        last->ended[k] = 0;
}

void rt_tenants_tell(struct rt_group *g)
{
    struct rt_tenants *t = &g->tenants;
    for (uint32_t i = 0; i < t->n_changed; i++)
        tell(g, t->changed[i]);
    t->n_changed = 0;
    for (uint32_t i = 0; i < IN_TURN && i < t->n; i++) {
        t->next = t->next + 1 < t->n ? t->next + 1 : 0;
        if (t->v[t->next].used) tell(g, t->next);
    }
}

/* ---- leaving --------------------------------------------------------------------------------- */

static void end_one(struct rt_group *g, uint32_t slot)
{
    struct rt_tenants *t = &g->tenants;
    struct rt_tenant *v = &t->v[slot];
    tell(g, slot);
    if (sch_tenant_end(g->sch, slot)) return;
    t->n_leaving--;
    *v = (struct rt_tenant){.id = v->id};
    cfg_roll_left(t->now ? t->now->roll : t->next_up->roll, v->id, t->party);
}

bool rt_tenants_leave(struct rt_group *g, bool ran)
{
    struct rt_tenants *t = &g->tenants;
    if (!t->n_leaving) return false;
    if (ran) t->to_look = t->n;
    for (uint32_t i = 0; i < LOOK && t->to_look; i++, t->to_look--) {
        t->leave_at = t->leave_at + 1 < t->n ? t->leave_at + 1 : 0;
        /* after rt_tenants_tell: it is in no list of those that changed */
        if (t->v[t->leave_at].leaving) end_one(g, t->leave_at);
    }
    return t->to_look > 0;
}
