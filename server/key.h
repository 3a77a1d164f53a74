/* Keys -> tenants. A key is looked up by its SHA-256; the table is filled once. Any thread may
 * read. */
#ifndef SERVER_KEY_H
#define SERVER_KEY_H

#include "base/base.h"
#include "config/config.h"

struct srv_key_entry {
    uint8_t hash[32];
    uint32_t tenant;
    bool used;
};

struct srv_keys {
    struct srv_key_entry *table; /* open addressing, size a power of two */
    size_t mask, count;
    uint8_t seed[16]; /* of the place in the table: not for a client to choose */
};

int srv_keys_init(struct srv_keys *k, const struct cfg *cfg, struct cn_error *err);
void srv_keys_fini(struct srv_keys *k);
/* The tenant of a key, or -1. Time does not depend on how much of a hash agrees. */
int64_t srv_keys_find(const struct srv_keys *k, const char *key, size_t n);

#endif
