/* masks: masks that were made, for all choices of a grammar. See mask.h. */
#include "engine/text/grammar/mask.h"

#include <stdlib.h>

struct entry {
    uint64_t key[2];
    uint32_t worst;
    uint32_t chain; /* 1 + index */
    size_t bytes;
    uint32_t *mask;
};
struct eng_masks {
    pthread_mutex_t lock;
    struct entry *entries; /* a ring: the oldest one is overwritten */
    uint32_t *heads;
    size_t n, most, next, max_bytes;
};

int eng_masks_new(size_t max_bytes, struct eng_masks **out)
{
    struct eng_masks *k = cn_calloc(1, sizeof *k);
    if (!k) return CN_ENOMEM;
    k->max_bytes = max_bytes;
    pthread_mutex_init(&k->lock, NULL);
    *out = k;
    return 0;
}

void eng_masks_free(struct eng_masks *k)
{
    if (!k) return;
    for (size_t i = 0; i < k->n; i++)
        free(k->entries[i].mask);
    free(k->entries);
    free(k->heads);
    pthread_mutex_destroy(&k->lock);
    free(k);
}

size_t eng_masks_bytes(const struct eng_masks *k)
{
    return k->max_bytes;
}

static uint32_t *head_of(struct eng_masks *k, const uint64_t key[2])
{
    return &k->heads[key[0] % k->most];
}

static struct entry *find(struct eng_masks *k, const uint64_t key[2])
{
    for (uint32_t i = k->n ? *head_of(k, key) : 0; i; i = k->entries[i - 1].chain)
        if (!memcmp(k->entries[i - 1].key, key, sizeof k->entries[i - 1].key))
            return &k->entries[i - 1];
    return NULL;
}

bool eng_masks_find(struct eng_masks *k, const uint64_t key[2], size_t bytes, uint32_t *mask,
                    uint32_t *worst)
{
    pthread_mutex_lock(&k->lock);
    const struct entry *e = find(k, key);
    bool found = e && e->bytes == bytes;
    if (found) {
        memcpy(mask, e->mask, bytes);
        *worst = e->worst;
    }
    pthread_mutex_unlock(&k->lock);
    return found;
}

/* The first mask tells how many there can be. */
static bool begin(struct eng_masks *k, size_t bytes)
{
    size_t most = k->max_bytes / (bytes + sizeof(struct entry) + sizeof(uint32_t));
    if (k->most) return true;
    if (!most) return false;
    k->entries = cn_calloc(most, sizeof *k->entries);
    k->heads = cn_calloc(most, sizeof *k->heads);
    if (k->entries && k->heads) k->most = most;
    return k->most > 0;
}

static void unlink_entry(struct eng_masks *k, size_t i)
{
    uint32_t *at = head_of(k, k->entries[i].key);
    while (*at != i + 1)
        at = &k->entries[*at - 1].chain;
    *at = k->entries[i].chain;
}

void eng_masks_keep(struct eng_masks *k, const uint64_t key[2], size_t bytes, const uint32_t *mask,
                    uint32_t worst)
{
    pthread_mutex_lock(&k->lock);
    uint32_t *copy = begin(k, bytes) && !find(k, key) ? cn_malloc_array(bytes, 1) : NULL;
    if (copy) {
        size_t i = k->next;
        if (i < k->n) {
            unlink_entry(k, i);
            free(k->entries[i].mask);
        }
        memcpy(copy, mask, bytes);
        k->entries[i] = (struct entry){.key = {key[0], key[1]},
                                       .worst = worst,
                                       .chain = *head_of(k, key),
                                       .bytes = bytes,
                                       .mask = copy};
        *head_of(k, key) = (uint32_t)i + 1;
        k->n = CN_MAX(k->n, i + 1);
        k->next = (i + 1) % k->most;
    }
    pthread_mutex_unlock(&k->lock);
}
