/* API keys: making, hashing, and the table from hash to tenant. Keys are never stored or logged. */
#include "server/key.h"

#include "server/server.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_KEY 512

void srv_key_hash(const char *key, size_t n, uint8_t out[32])
{
    SHA256((const unsigned char *)key, n, out);
}

void srv_key_new(char key[SRV_KEY_LEN + 1], char line[72])
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    uint8_t bits[33] = {0}, hash[32];

    cn_random(bits, 32);
    memcpy(key, SRV_KEY_PREFIX, 4);
    for (int i = 0; i < SRV_KEY_LEN - 4; i++) {
        int at = i * 6;
        unsigned two = (unsigned)bits[at / 8] << 8 | bits[at / 8 + 1];
        key[4 + i] = digits[two >> (10 - at % 8) & 63];
    }
    key[SRV_KEY_LEN] = 0;
    OPENSSL_cleanse(bits, sizeof bits);
    srv_key_hash(key, SRV_KEY_LEN, hash);
    memcpy(line, "sha256:", 7);
    cn_hex(hash, sizeof hash, line + 7);
}

static size_t place(const struct srv_keys *k, const uint8_t hash[32])
{
    return (size_t)cn_siphash13(k->seed, hash, 32) & k->mask;
}

static void put(struct srv_keys *k, const uint8_t hash[32], uint64_t tenant)
{
    size_t at = place(k, hash);

    while (k->table[at].used)
        at = (at + 1) & k->mask;
    memcpy(k->table[at].hash, hash, 32);
    k->table[at].tenant = tenant;
    k->table[at].used = true;
}

int srv_keys_init(struct srv_keys *k, const struct cfg_tenants *t, struct cn_error *err)
{
    size_t n = 0, cap = 8;

    memset(k, 0, sizeof *k);
    for (size_t i = 0; i < t->n_all; i++)
        n += t->all[i].keys.count;
    while (cap < n * 2)
        cap *= 2;
    k->table = cn_calloc(cap, sizeof *k->table);
    if (!k->table) return cn_fail(err, CN_ENOMEM, "out of memory for %zu keys", n);
    k->mask = cap - 1;
    k->count = n;
    cn_random(k->seed, sizeof k->seed);
    for (uint32_t slot = 0; slot < t->n_slots; slot++) {
        const struct cfg_seat *seat = &t->seats[slot];
        for (size_t i = 0; seat->tenant && i < seat->tenant->keys.count; i++)
            put(k, seat->tenant->key_hashes[i].sha256, seat->id);
    }
    return 0;
}

void srv_keys_fini(struct srv_keys *k)
{
    free(k->table);
    memset(k, 0, sizeof *k);
}

const struct srv_key_entry *srv_keys_find(const struct srv_keys *k, const char *key, size_t n)
{
    const struct srv_key_entry *found = NULL;
    uint8_t hash[32];

    if (n == 0 || n > MAX_KEY) return NULL;
    srv_key_hash(key, n, hash);
    for (size_t at = place(k, hash); k->table[at].used; at = (at + 1) & k->mask)
        if (CRYPTO_memcmp(k->table[at].hash, hash, 32) == 0) found = &k->table[at];
    return found;
}
