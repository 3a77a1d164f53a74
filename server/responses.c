#include "server/responses.h"

#include <inttypes.h>

static const char *const paths[SRV_N_ROUTES] = {
#define ROUTE(method, path, handler, auth) path,
#include "server/routes.def"
#undef ROUTE
    "other",
};
static const int statuses[SRV_N_STATUSES] = {
    200,
#define ERR(name, number, status, type, code, text) status,
#include "base/errors.def"
#undef ERR
};

void srv_responses_count(struct srv_responses *r, size_t route, int status)
{
    for (size_t i = 0; route < SRV_N_ROUTES && i < SRV_N_STATUSES; i++) {
        if (statuses[i] != status) continue;
        r->n[route][i]++;
        return;
    }
}

void srv_responses_render(const struct srv_responses *r, struct cn_buf *out)
{
    cn_buf_puts(out,
                "# HELP conifer_http_responses_total HTTP answers begun, by route and status.\n"
                "# TYPE conifer_http_responses_total counter\n");
    for (size_t route = 0; route < SRV_N_ROUTES; route++)
        for (size_t i = 0; i < SRV_N_STATUSES; i++)
            if (r->n[route][i])
                cn_buf_printf(
                    out, "conifer_http_responses_total{route=\"%s\",code=\"%d\"} %" PRIu64 "\n",
                    paths[route], statuses[i], r->n[route][i]);
}
