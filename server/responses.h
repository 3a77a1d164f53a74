/* Answers counted by route and status. Routes are those of routes.def and "other", statuses those
 * that errors.def and a success have: what a client sends makes no series. Loop thread only. */
#ifndef SERVER_RESPONSES_H
#define SERVER_RESPONSES_H

#include "base/base.h"

/* Routes have the numbers of their lines. */
enum {
    SRV_ROUTE_other = 0
#define ROUTE(method, path, handler, auth) +1
#include "server/routes.def"
#undef ROUTE
    ,
    SRV_N_ROUTES
};
enum {
    SRV_STATUS_OK,
#define ERR(name, number, status, type, code, text) SRV_STATUS_##name,
#include "base/errors.def"
#undef ERR
    SRV_N_STATUSES /* those that are alike share the first's place */
};

struct srv_responses { uint64_t n[SRV_N_ROUTES][SRV_N_STATUSES]; };

/* route: its line, or SRV_ROUTE_other. */
void srv_responses_count(struct srv_responses *r, size_t route, int status);
/* Appends conifer_http_responses_total: the pairs that there were. */
void srv_responses_render(const struct srv_responses *r, struct cn_buf *out);

#endif
