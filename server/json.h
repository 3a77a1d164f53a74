/* JSON from clients: looked over for depth and size before jansson sees it, then parsed strictly.
 * Any thread. */
#ifndef SERVER_JSON_H
#define SERVER_JSON_H

#include "base/base.h"

#include <jansson.h>

#define SRV_JSON_DEPTH 64
/* What the parsed JSON of one request may weigh, in units of about 40 bytes: a scalar 1, an array
 * 4, an object 8. */
#define SRV_JSON_WEIGHT (1u << 20)

/* Once, before any thread uses jansson: a failed allocation is told from a wrong text from then
 * on. */
void srv_json_setup(void);
/* An object, with duplicate keys, invalid UTF-8, more than SRV_JSON_DEPTH levels and anything after
 * the value refused (CN_EJSON, CN_ELIMIT; CN_ENOMEM where memory was short). Its weight is taken
 * from *left, which starts at SRV_JSON_WEIGHT and is shared by all that one request has parsed.
 * *out is returned owned. */
int srv_json_parse(const char *data, size_t n, size_t *left, json_t **out, struct cn_error *err);
/* Depth and weight only: what the parser may cost is known before it runs. */
int srv_json_scan(const char *data, size_t n, size_t *left, struct cn_error *err);

#endif
