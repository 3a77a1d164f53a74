/* Drafts: what followed an earlier occurrence of a choice's last ids in its own prompt and output.
 *
 * Hash tables map each 3-gram and 2-gram to the position after its last occurrence; later entries
 * overwrite earlier ones. Matches are checked against the ids, so a collision costs a draft and no
 * time. While predictions hold, the position just advances and no table is consulted. When the ids
 * outgrow the tables, another table as large as all before takes the new entries, and lookups try
 * the newest one first. So an id takes at most 16 bytes, nothing is moved, and an id costs at most
 * two lookups per table.
 *
 * The chance of a draft depends on how many ids before it agree. It is counted on every output
 * token for which there was a prediction, whether that was drafted or not. */
#include "scheduler/draft.h"

#include "kvpool/kvpool.h"

#include <stdlib.h>
#include <string.h>

#define LONGEST    3
#define SHORTEST   2
#define MAX_LEN    32
#define LEAST_BITS 6     /* of the first table */
#define MEMORY     64.0f /* predictions of a class after which its counts are halved */
#define PRIOR      4.0   /* what `prior` weighs, in guesses */

/* Fewest agreeing ids of each class, and how often the next id then agrees in ordinary text. */
static const uint32_t class_from[SCH_DRAFT_CLASSES] = {0, 3, 4, 5, 7, 10, 16, MAX_LEN};
static const double prior[SCH_DRAFT_CLASSES] = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 0.85};

struct sch_draft *sch_draft_new(void)
{
    return cn_calloc(1, sizeof(struct sch_draft));
}

void sch_draft_free(struct sch_draft *d)
{
    if (!d) return;
    for (uint32_t k = 0; k < d->n_tables; k++)
        free(d->table[k].slot);
    free(d);
}

/* Hash of the n-gram that ends before position n. */
static uint64_t hash_of(const uint32_t *ids, uint64_t n, uint32_t order)
{
    uint64_t h = order;

    for (uint32_t i = order; i > 0; i--)
        h = (h ^ ids[n - i]) * 0x9e3779b97f4a7c15ull;
    return h;
}

static uint32_t *slot_of(const struct sch_draft_table *t, uint64_t hash, uint32_t order)
{
    return &t->slot[((uint64_t)(order - SHORTEST) << t->bits) + (hash >> (64 - t->bits))];
}

static void insert(const struct sch_draft *d, const uint32_t *ids, uint64_t n)
{
    const struct sch_draft_table *last = &d->table[d->n_tables - 1];

    for (uint32_t order = LONGEST; order >= SHORTEST; order--) {
        if (n >= order) *slot_of(last, hash_of(ids, n, order), order) = (uint32_t)n;
    }
}

/* Makes room for n ids by adding a table, of at least half the room before, so that there are few
 * tables; the room is then less than 2 n. */
static int grow(struct sch_draft *d, uint64_t n)
{
    uint32_t bits = LEAST_BITS;
    struct sch_draft_table *t = &d->table[d->n_tables];

    if (n <= d->room) return 0;
    while (d->room >> (bits + 1) || d->room + ((uint64_t)1 << bits) < n)
        bits++;
    if (bits > 31 || d->n_tables == SCH_DRAFT_TABLES) return CN_ENOMEM;
    t->slot = cn_calloc((size_t)(LONGEST - SHORTEST + 1) << bits, sizeof(*t->slot));
    if (!t->slot) return CN_ENOMEM;
    t->bits = bits;
    d->n_tables++;
    d->room += (uint64_t)1 << bits;
    return 0;
}

/* Number of ids that agree before positions a and b, at most MAX_LEN. */
static uint32_t agreeing(const uint32_t *ids, uint64_t a, uint64_t b)
{
    uint32_t k = 0;

    while (k < MAX_LEN && k < a && ids[a - 1 - k] == ids[b - 1 - k])
        k++;
    return k;
}

/* Finds an earlier occurrence of the last ids before n, which the tables do not hold yet. */
static void look_up(struct sch_draft *d, const uint32_t *ids, uint64_t n)
{
    for (uint32_t order = LONGEST; order >= SHORTEST && !d->at; order--) {
        uint64_t hash = n >= order ? hash_of(ids, n, order) : 0;

        for (uint32_t k = n >= order ? d->n_tables : 0; k > 0 && !d->at; k--) {
            uint64_t at = *slot_of(&d->table[k - 1], hash, order);
            uint32_t len = at ? agreeing(ids, at, n) : 0;

            if (len < order) continue;
            d->at = at;
            d->len = len;
        }
    }
}

static uint32_t class_of(uint32_t len)
{
    uint32_t k = SCH_DRAFT_CLASSES - 1;

    while (class_from[k] > len)
        k--;
    return k;
}

static void note(struct sch_draft *d, bool right)
{
    uint32_t k = class_of(d->len);

    d->tried[k] += 1;
    d->right[k] += right;
    if (d->tried[k] < MEMORY) return;
    d->tried[k] /= 2;
    d->right[k] /= 2;
}

int sch_draft_update(struct sch_draft *d, const uint32_t *ids, uint64_t n, uint64_t own)
{
    int rc = grow(d, n);

    if (rc) return rc;
    for (n = CN_MIN(n, d->n + SCH_DRAFT_BURST); d->n < n; d->n++) {
        if (d->at) {
            bool right = ids[d->at] == ids[d->n];

            if (d->n >= own) note(d, right);
            d->at = right ? d->at + 1 : 0;
            d->len = CN_MIN(d->len + 1, (uint32_t)MAX_LEN);
        }
        if (!d->at && d->n + 1 >= own) look_up(d, ids, d->n + 1);
        insert(d, ids, d->n + 1);
    }
    return 0;
}

/* The prediction may reach the drafts themselves: then it repeats them. It ends before an item of
 * media, which cannot be drawn. */
uint32_t sch_draft_read(const struct sch_draft *d, const uint32_t *ids, uint32_t most,
                        uint32_t *out)
{
    if (!d->at) return 0;
    for (uint32_t i = 0; i < most; i++) {
        out[i] = d->at + i < d->n ? ids[d->at + i] : out[d->at + i - d->n];
        if (out[i] & KV_MEDIA) return i;
    }
    return most;
}

double sch_draft_chance(const struct sch_draft *d, uint32_t i)
{
    uint32_t k = class_of(CN_MIN(d->len + i, (uint32_t)MAX_LEN));

    if (!d->at) return 0;
    return (d->right[k] + PRIOR * prior[k]) / (d->tried[k] + PRIOR);
}
