/* Endpoints that are answered at once from what the loop knows: models, health, metrics,
 * version. */
#ifndef SERVER_PAGES_H
#define SERVER_PAGES_H

#include "server/internal.h"

void srv_page_models(struct srv *s, struct srv_conn *c);
void srv_page_model(struct srv *s, struct srv_conn *c);
/* Fails with CN_EMODEL; name NULL: the one of a path. */
int srv_no_model(const struct srv *s, const json_t *name, struct cn_error *err);
void srv_page_live(struct srv *s, struct srv_conn *c);
void srv_page_ready(struct srv *s, struct srv_conn *c);
void srv_page_metrics(struct srv *s, struct srv_conn *c);
void srv_page_version(struct srv *s, struct srv_conn *c);

/* Why no work can be done now, or NULL: draining, failed, or work that does not move for 2 s. */
const char *srv_not_ready(struct srv *s);

#endif
