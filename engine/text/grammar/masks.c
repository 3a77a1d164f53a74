/* masks: masks that were made, for all choices of a grammar. See mask.h.
 *
 * A mask is kept as the tokens in which it differs from a whole one, a model, that many are like:
 * from nothing, or from what may come within a string. So most take some hundred bytes. */
#include "engine/text/grammar/mask.h"

#include <stdlib.h>

enum { MOST_MODELS = 12, FEW = 256, FIRST_HEADS = 64 }; /* FEW: tokens that need no model */

struct entry {
    uint64_t key[2];
    struct entry *chain, *newer;
    struct eng_mask_facts facts;
    uint32_t model;
    uint32_t n; /* tokens in which it differs */
    uint32_t ids[];
};
struct eng_masks {
    pthread_mutex_t lock;
    struct entry **heads;
    size_t n_heads, n;
    struct entry *oldest, *newest;
    uint32_t *models[MOST_MODELS + 1]; /* 0: none of the tokens, not kept */
    uint32_t n_models, n_words;
    uint32_t *ids; /* scratch: tokens in which a mask differs */
    size_t bytes, max_bytes;
};

int eng_masks_new(size_t max_bytes, struct eng_masks **out)
{
    struct eng_masks *k = cn_calloc(1, sizeof *k);
    if (!k) return CN_ENOMEM;
    k->max_bytes = max_bytes;
    k->n_models = 1;
    pthread_mutex_init(&k->lock, NULL);
    *out = k;
    return 0;
}

void eng_masks_free(struct eng_masks *k)
{
    if (!k) return;
    for (struct entry *e = k->oldest, *next; e; e = next) {
        next = e->newer;
        free(e);
    }
    for (uint32_t i = 1; i < k->n_models; i++)
        free(k->models[i]);
    free(k->heads);
    free(k->ids);
    pthread_mutex_destroy(&k->lock);
    free(k);
}

/* ---- finding --------------------------------------------------------------------------------- */

static struct entry **head_of(struct eng_masks *k, const uint64_t key[2])
{
    return &k->heads[key[0] & (k->n_heads - 1)];
}

static struct entry *find(struct eng_masks *k, const uint64_t key[2], uint64_t left)
{
    for (struct entry *e = k->n_heads ? *head_of(k, key) : NULL; e; e = e->chain)
        if (!memcmp(e->key, key, sizeof e->key) && e->facts.from <= left && left <= e->facts.to)
            return e;
    return NULL;
}

bool eng_masks_find(struct eng_masks *k, const uint64_t key[2], uint64_t left, uint32_t *mask,
                    struct eng_mask_facts *facts)
{
    pthread_mutex_lock(&k->lock);
    const struct entry *e = find(k, key, left);
    if (e) {
        if (e->model) memcpy(mask, k->models[e->model], k->n_words * sizeof *mask);
        for (uint32_t i = 0; i < e->n; i++)
            mask[e->ids[i] >> 5] ^= 1u << (e->ids[i] & 31);
        *facts = e->facts;
    }
    pthread_mutex_unlock(&k->lock);
    return e != NULL;
}

bool eng_masks_open(struct eng_masks *k, const uint64_t key[2])
{
    bool open = false;
    pthread_mutex_lock(&k->lock);
    for (const struct entry *e = k->n_heads ? *head_of(k, key) : NULL; e && !open; e = e->chain)
        open = e->facts.open && !memcmp(e->key, key, sizeof e->key);
    pthread_mutex_unlock(&k->lock);
    return open;
}

/* ---- keeping --------------------------------------------------------------------------------- */

/* Lists the tokens in which a mask differs from a model, at most `most`; how many they are, or more
 * than that. */
static uint32_t differences(struct eng_masks *k, const uint32_t *mask, uint32_t model,
                            uint32_t most)
{
    const uint32_t *of = k->models[model];
    uint32_t n = 0;
    for (uint32_t i = 0; i < k->n_words; i++) {
        uint32_t bits = of ? mask[i] ^ of[i] : mask[i];
        for (; bits && n < most; bits &= bits - 1)
            k->ids[n++] = 32 * i + (uint32_t)__builtin_ctz(bits);
        if (bits) return most + 1;
    }
    return n;
}

/* The model that it is most like, as some of its words tell. */
static uint32_t nearest_model(const struct eng_masks *k, const uint32_t *mask)
{
    uint32_t best = 0, least = UINT32_MAX;
    for (uint32_t m = 0; m < k->n_models; m++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < k->n_words; i += 16)
            n += mask[i] != (m ? k->models[m][i] : 0);
        if (n < least) best = m, least = n;
    }
    return best;
}

/* A mask that is like none becomes a model, as long as they take no more than a quarter of the
 * memory. False: it cannot be kept. */
static bool choose_model(struct eng_masks *k, const uint32_t *mask, uint32_t *model, uint32_t *n)
{
    size_t bytes = k->n_words * sizeof *mask;
    *model = 0;
    *n = differences(k, mask, 0, FEW);
    if (*n <= FEW) return true;
    *model = nearest_model(k, mask);
    *n = differences(k, mask, *model, k->n_words);
    bool room = k->n_models <= MOST_MODELS && k->n_models * bytes <= k->max_bytes / 4;
    if (*n <= FEW || !room) return *n <= k->n_words;
    k->models[k->n_models] = cn_malloc_array(k->n_words, sizeof *mask);
    if (!k->models[k->n_models]) return *n <= k->n_words;
    memcpy(k->models[k->n_models], mask, bytes);
    k->bytes += bytes;
    *n = 0;
    *model = k->n_models++;
    return true;
}

static size_t size_of(uint32_t n)
{
    return sizeof(struct entry) + n * sizeof(uint32_t);
}

static void drop_oldest(struct eng_masks *k)
{
    struct entry *e = k->oldest, **at = head_of(k, e->key);
    while (*at != e)
        at = &(*at)->chain;
    *at = e->chain;
    k->oldest = e->newer;
    if (!k->oldest) k->newest = NULL;
    k->bytes -= size_of(e->n);
    k->n--;
    free(e);
}

static bool grow_heads(struct eng_masks *k)
{
    size_t n = k->n_heads ? 2 * k->n_heads : FIRST_HEADS;
    struct entry **heads = cn_calloc(n, sizeof(struct entry *));
    if (!heads) return k->n_heads > 0;
    free(k->heads);
    k->bytes += (n - k->n_heads) * sizeof(struct entry *);
    k->heads = heads;
    k->n_heads = n;
    for (struct entry *e = k->oldest; e; e = e->newer) {
        e->chain = *head_of(k, e->key);
        *head_of(k, e->key) = e;
    }
    return true;
}

static void add(struct eng_masks *k, const uint64_t key[2], struct eng_mask_facts facts,
                const uint32_t *mask)
{
    uint32_t n, model;
    if (!choose_model(k, mask, &model, &n)) return;
    while (k->oldest && k->bytes + size_of(n) > k->max_bytes)
        drop_oldest(k);
    if (k->bytes + size_of(n) > k->max_bytes) return;
    struct entry *e = malloc(size_of(n));
    if (!e) return;
    *e = (struct entry){.key = {key[0], key[1]}, .facts = facts, .model = model, .n = n};
    if (n) memcpy(e->ids, k->ids, n * sizeof *e->ids);
    e->chain = *head_of(k, key);
    *head_of(k, key) = e;
    if (k->newest)
        k->newest->newer = e;
    else
        k->oldest = e;
    k->newest = e;
    k->bytes += size_of(n);
    k->n++;
}

static bool begin(struct eng_masks *k, uint32_t n_words)
{
    if (k->ids) return true;
    k->ids = cn_malloc_array(CN_MAX(n_words, (uint32_t)FEW), sizeof *k->ids);
    if (!k->ids) return false;
    k->n_words = n_words;
    k->bytes += CN_MAX(n_words, (uint32_t)FEW) * sizeof *k->ids;
    return true;
}

void eng_masks_keep(struct eng_masks *k, const uint64_t key[2], struct eng_mask_facts facts,
                    uint32_t n_words, const uint32_t *mask)
{
    pthread_mutex_lock(&k->lock);
    bool room = begin(k, n_words) && (k->n < k->n_heads || grow_heads(k));
    const struct entry *e = room ? find(k, key, facts.from) : NULL;
    bool kept = e && e->facts.to >= facts.to;
    if (room && k->n_words == n_words && !kept) add(k, key, facts, mask);
    pthread_mutex_unlock(&k->lock);
}
