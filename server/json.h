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
#define SRV_JSON_UNIT   48
#define SRV_JSON_MOST   "more than %u, where a list counts 4 and an object 8" /* SRV_JSON_WEIGHT */

/* What one request may still parse, and who pays for what it has parsed. */
struct srv_json_room {
    size_t left;          /* of SRV_JSON_WEIGHT */
    struct cn_hold *hold; /* borrowed; NULL: not charged */
    uint64_t taken;       /* from hold */
};

/* Call once, before any thread uses jansson. From then on a failed allocation is not reported as
 * invalid text. */
void srv_json_setup(void);
/* An object, with duplicate keys, invalid UTF-8, more than SRV_JSON_DEPTH levels and anything after
 * the value refused (CN_EJSON, CN_ELIMIT; CN_ERANGE for a number that is too large for any field;
 * CN_ENOMEM where memory was short). Integers beyond 64 bits come as reals. Its weight is taken
 * from the room, and what it will take in memory from the room's hold before it is parsed (else the
 * error of cn_hold_take). *out is returned owned; who frees it gives the hold its bytes back. */
int srv_json_parse(const char *data, size_t n, struct srv_json_room *room, json_t **out,
                   struct cn_error *err);
/* Whether it is a string of exactly these bytes: a NUL within it ends nothing. */
bool srv_json_is(const json_t *v, const char *text);
/* Which of the words it is (the last is NULL); -1: none, or no string. */
int srv_json_one_of(const json_t *v, const char *const *words);
/* Reads a whole number, which may be written as 1.0 or 1e3. False: v is not one, or needs more
 * than 64 bits. */
bool srv_json_int(const json_t *v, int64_t *out);

#endif
