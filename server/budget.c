/* The process budget for what is held for clients: an account for each tenant, and one for connections
 * that have shown no key. Loop thread only; the accounts are any thread's. */
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

int srv_budget_open(struct srv *s)
{
    size_t n = CN_MAX(s->cfg->n_tenants, (size_t)1);
    struct cn_share *shares = cn_calloc(n + 1, sizeof *shares);
    double all = 0;

    if (!shares) return CN_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        double weight = i < s->cfg->n_tenants ? s->cfg->tenants[i].weight : 1;
        shares[i] = (struct cn_share){weight, true};
        all += weight;
    }
    double part = cfg_has_keys(s->cfg) ? strangers_part(s->cfg) : 0;
    shares[n].weight = all * part / (1 - part); /* and borrow nothing */
    int rc = cn_budget_new((uint64_t)s->cfg->server.memory_bytes, shares, n + 1, &s->budget);
    free(shares);
    s->http.budget = s->budget;
    s->http.strangers = cfg_has_keys(s->cfg) ? n : 0; /* without keys nobody is a stranger */
    return rc;
}

void srv_budget_tell(struct srv *s)
{
    cn_metric_set(s->metrics, CN_M_request_bytes_held, (double)cn_budget_held(s->budget));
    cn_metric_set(s->metrics, CN_M_request_bytes_most, (double)cn_budget_bytes(s->budget));
    for (size_t i = 0; i < s->cfg->n_tenants; i++)
        cn_tenant_set(s->metrics, i, CN_TM_request_bytes,
                      cn_account_held(cn_budget_account(s->budget, i)));
}
