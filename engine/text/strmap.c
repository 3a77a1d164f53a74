/* engine/text: numbered strings in one blob, and a hash table over them.
 * Used while a vocabulary is built (one thread), read-only afterwards. The table never holds more
 * than half its slots, so that a failing look-up ends soon. */
#include "engine/text/vocab_impl.h"

#include <stdlib.h>

int eng_keys_init(struct eng_keys *k, size_t n_hint, size_t bytes_hint)
{
    *k = (struct eng_keys){0};
    int rc = cn_grow(&k->off, &k->cap, n_hint + 1, sizeof *k->off);
    if (rc == 0) rc = cn_grow(&k->blob, &k->blob_cap, bytes_hint + 1, 1);
    if (rc) {
        eng_keys_fini(k);
        return rc;
    }
    k->off[0] = 0;
    return 0;
}

void eng_keys_fini(struct eng_keys *k)
{
    free(k->blob);
    free(k->off);
    *k = (struct eng_keys){0};
}

int eng_keys_add(struct eng_keys *k, const char *p, size_t n)
{
    if (n > UINT32_MAX - k->blob_n || k->n >= ENG_NO_ID - 1) return CN_ELIMIT;
    if (k->n + 2 > k->cap) {
        int rc = cn_grow(&k->off, &k->cap, k->n + 2, sizeof *k->off);
        if (rc) return rc;
    }
    if (k->blob_n + n > k->blob_cap) {
        int rc = cn_grow(&k->blob, &k->blob_cap, k->blob_n + n, 1);
        if (rc) return rc;
    }
    if (n) memcpy(k->blob + k->blob_n, p, n);
    k->blob_n += n;
    k->off[++k->n] = (uint32_t)k->blob_n;
    return 0;
}

static inline uint64_t fold(uint64_t a, uint64_t b)
{
    unsigned __int128 m = (unsigned __int128)a * b;
    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

/* Multiply-and-fold over 16 bytes at a time, the last ones overlapping. */
static uint32_t hash(const char *p, size_t n, uint64_t seed)
{
    const uint64_t k0 = 0x9e3779b97f4a7c15u, k1 = 0xd6e8feb86659fd93u;
    uint64_t h = seed ^ (n * k0), a = 0, b = 0;
    for (; n > 16; p += 16, n -= 16)
        h = fold(cn_load64(p) ^ k1 ^ seed, cn_load64(p + 8) ^ h);
    if (n >= 8) {
        a = cn_load64(p);
        b = cn_load64(p + n - 8);
    } else if (n >= 4) {
        a = cn_load32(p);
        b = cn_load32(p + n - 4);
    } else if (n > 0) {
        a = (uint64_t)(uint8_t)p[0] << 16 | (uint64_t)(uint8_t)p[n / 2] << 8 | (uint8_t)p[n - 1];
    }
    h = fold(a ^ k1 ^ seed, b ^ h);
    return (uint32_t)(fold(h ^ k0, seed | 1) >> 16);
}

int eng_strmap_init(struct eng_strmap *m, size_t n_hint)
{
    size_t cap = 64;
    while (cap < 2 * n_hint)
        cap *= 2;
    *m = (struct eng_strmap){.mask = cap - 1};
    m->slot = cn_malloc_array(cap, sizeof *m->slot);
    if (!m->slot) return CN_ENOMEM;
    memset(m->slot, 0xff, cap * sizeof *m->slot);
    cn_random(&m->seed, sizeof m->seed);
    return 0;
}

void eng_strmap_fini(struct eng_strmap *m)
{
    free(m->slot);
    *m = (struct eng_strmap){0};
}

static int double_slots(struct eng_strmap *m)
{
    size_t cap = 2 * (m->mask + 1);
    struct eng_strmap_slot *slot = cn_malloc_array(cap, sizeof *slot);
    if (!slot) return CN_ENOMEM;
    memset(slot, 0xff, cap * sizeof *slot);
    for (size_t i = 0; i <= m->mask; i++) {
        if (m->slot[i].id == ENG_NO_ID) continue;
        size_t at = m->slot[i].hash & (cap - 1);
        while (slot[at].id != ENG_NO_ID)
            at = (at + 1) & (cap - 1);
        slot[at] = m->slot[i];
    }
    free(m->slot);
    m->slot = slot;
    m->mask = cap - 1;
    return 0;
}

int eng_strmap_put(struct eng_strmap *m, const struct eng_keys *k, uint32_t id, bool *was_new)
{
    if (2 * (m->used + 1) > m->mask + 1) {
        int rc = double_slots(m);
        if (rc) return rc;
    }
    struct eng_str s = eng_key(k, id);
    uint32_t h = hash(s.p, s.n, m->seed);
    size_t at = h & m->mask;
    for (; m->slot[at].id != ENG_NO_ID; at = (at + 1) & m->mask) {
        if (m->slot[at].hash != h) continue;
        struct eng_str o = eng_key(k, m->slot[at].id);
        if (o.n == s.n && memcmp(o.p, s.p, s.n) == 0) {
            if (was_new) *was_new = false;
            return 0;
        }
    }
    m->slot[at] = (struct eng_strmap_slot){h, id};
    m->used++;
    if (was_new) *was_new = true;
    return 0;
}

uint32_t eng_strmap_get(const struct eng_strmap *m, const struct eng_keys *k, const char *p,
                        size_t n)
{
    uint32_t h = hash(p, n, m->seed);
    for (size_t at = h & m->mask; m->slot[at].id != ENG_NO_ID; at = (at + 1) & m->mask) {
        if (m->slot[at].hash != h) continue;
        struct eng_str o = eng_key(k, m->slot[at].id);
        if (o.n == n && memcmp(o.p, p, n) == 0) return m->slot[at].id;
    }
    return ENG_NO_ID;
}
