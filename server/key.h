/* Keys -> tenants. A key is looked up by its SHA-256; the table is filled once, for a snapshot of
 * the tenants. Any thread may read. */
#ifndef SERVER_KEY_H
#define SERVER_KEY_H

#include "base/base.h"
#include "config/config.h"

struct srv_key_entry {
    uint8_t hash[32];
    uint64_t tenant; /* id */
    bool used;
};

struct srv_keys {
    struct srv_key_entry *table; /* open addressing, size a power of two */
    size_t mask, count;
    uint8_t seed[16]; /* of the place in the table: not for a client to choose */
};

int srv_keys_init(struct srv_keys *k, const struct cfg_tenants *t, struct cn_error *err);
void srv_keys_fini(struct srv_keys *k);
/* The entry of a key, or NULL. Time does not depend on how much of a hash agrees. */
const struct srv_key_entry *srv_keys_find(const struct srv_keys *k, const char *key, size_t n);

#endif
