/* The process's memory budget for clients: one account per tenant, and one for connections whose
 * tenant is not known yet, so that a tenant's memory cannot block /health. Loop thread only; the
 * accounts may be used by any thread. */
#include "server/grammars.h"
#include "server/internal.h"

#include <stdlib.h>

/* Of what is reserved, the strangers': room for all connections, but within these bounds. */
#define STRANGERS_LEAST 0.11
#define STRANGERS_MOST  0.5

static double strangers_part(const struct cfg *cfg)
{
    double want = (double)cfg->server.max_connections * SRV_CONN_BYTES;
    double part = want / ((double)cfg->server.memory_bytes / 2);

    return part < STRANGERS_LEAST ? STRANGERS_LEAST : CN_MIN(part, STRANGERS_MOST);
}

static bool was_there(const struct srv *s, uint32_t slot)
{
    return slot < s->tenants->n_slots && s->tenants->seats[slot].tenant;
}

struct cn_share *srv_budget_shares(const struct srv *s, const struct cfg_tenants *t)
{
    struct cn_share *shares = cn_calloc((size_t)t->n_slots + 1, sizeof *shares);
    double all = 0;

    if (!shares) return NULL;
    for (uint32_t i = 0; i < t->n_slots; i++) {
        const struct cfg_tenant *c = t->seats[i].tenant;
        if (!c) { /* a removed tenant: its last errors may need memory, which it borrows */
            shares[srv_lane_of(i)].borrows =
                i < s->n_seats && (was_there(s, i) || s->seats[i].leaving);
            continue;
        }
        shares[srv_lane_of(i)] = (struct cn_share){c->weight, true};
        all += c->weight;
    }
    double part = strangers_part(s->cfg);
    shares[0].weight = all * part / (1 - part); /* and borrow nothing */
    return shares;
}

int srv_budget_open(struct srv *s)
{
    struct cn_share *shares = srv_budget_shares(s, s->tenants);

    if (!shares) return CN_ENOMEM;
    int rc = cn_budget_new((uint64_t)s->cfg->server.memory_bytes, shares,
                           (size_t)s->tenants->n_slots + 1, &s->budget);
    free(shares);
    s->http.budget = s->budget;
    return rc;
}

void srv_budget_tell(struct srv *s)
{
    cn_metric_set(s->metrics, CN_M_request_bytes_held, (double)cn_budget_held(s->budget));
    cn_metric_set(s->metrics, CN_M_request_bytes_kept, (double)srv_grammars_bytes(s->grammars));
    cn_metric_set(s->metrics, CN_M_request_bytes_most, (double)cn_budget_bytes(s->budget));
    for (uint32_t i = 0; i < s->tenants->n_slots; i++)
        cn_tenant_set(s->metrics, i, CN_TM_request_bytes,
                      cn_account_held(cn_budget_account(s->budget, srv_lane_of(i))));
}
