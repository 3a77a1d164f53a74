/* JSON from clients: looked over for depth and size before jansson sees it, then parsed strictly.
 * Any thread. */
#ifndef SERVER_JSON_H
#define SERVER_JSON_H

#include "base/base.h"

#include <jansson.h>

#define SRV_JSON_DEPTH 64

/* An object, with duplicate keys, invalid UTF-8, more than SRV_JSON_DEPTH levels and anything after
 * the value refused (CN_EJSON, CN_ELIMIT). *out is returned owned. */
int srv_json_parse(const char *data, size_t n, json_t **out, struct cn_error *err);
/* Depth and number of values only: what the parser may cost is known before it runs. */
int srv_json_scan(const char *data, size_t n, struct cn_error *err);

#endif
