/* Fairness over several schedulers with the same tenants: what a tenant is served in one counts in
 * the queues of the others. See scheduler.h. */
#include "scheduler/internal.h"

#define FORGET_S    600.0 /* of steps: then what a second was worth counts for half */
#define TURN_TOKENS 64    /* what who runs may put out before another one's turn comes */

void sch_share_charge(struct sch *s, struct sch_tenant *t, double cost)
{
    t->unsaid += cost;
    s->worth_cost += cost;
    if (t->unsaid_at) return;
    t->unsaid_next = s->unsaid;
    if (t->unsaid_next) t->unsaid_next->unsaid_at = &t->unsaid_next;
    t->unsaid_at = &s->unsaid;
    s->unsaid = t;
}

void sch_share_unlist(struct sch_tenant *t)
{
    if (!t->unsaid_at) return;
    *t->unsaid_at = t->unsaid_next;
    if (t->unsaid_next) t->unsaid_next->unsaid_at = t->unsaid_at;
    t->unsaid_at = NULL;
    t->unsaid = 0;
}

void sch_share_step(struct sch *s, uint64_t ns)
{
    s->worth_s += (double)ns / 1e9;
    if (s->worth_s < FORGET_S) return;
    s->worth_s /= 2;
    s->worth_cost /= 2;
}

/* Cost of a second of steps; 0: not known. */
static double worth(const struct sch *s)
{
    return s->worth_s > 0 ? s->worth_cost / s->worth_s : 0;
}

uint32_t sch_served_take(struct sch *s, struct sch_served *out, uint32_t most)
{
    double each = worth(s);
    uint32_t n = 0;

    while (s->unsaid && each > 0 && n < most) {
        struct sch_tenant *t = s->unsaid;

        out[n++] = (struct sch_served){.tenant = t->index, .seconds = t->unsaid / each};
        sch_share_unlist(t);
    }
    return n;
}

double sch_burst_s(const struct sch *s)
{
    double batch = s->o.decode_cost * TURN_TOKENS * s->o.max_running, each = worth(s);

    return each > 0 ? CN_MAX(s->longest, batch) / each : 0;
}

void sch_served_elsewhere(struct sch *s, const struct sch_served *v, double burst_s)
{
    struct sch_tenant *t = v->tenant < s->n_tenants ? s->tenants[v->tenant] : NULL;
    double each = worth(s);

    if (!t || each <= 0) return; /* no tenant was served here yet: all start equal */
    double most = s->vtime + CN_MAX(burst_s, sch_burst_s(s)) * each / t->opts.weight;
    double now = t->counter + v->seconds * each / t->opts.weight;
    sch_counter_set(s, t, CN_MAX(t->counter, CN_MIN(now, most)));
}
