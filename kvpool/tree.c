/* The prefix tree: nodes keyed by a keyed hash of (parent's key, ids), compared on every find.
 * A node in the tree and its blocks live until evicted, killed, or withdrawn by their filler. */
#include "kvpool/internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- keys and the hash table ----------------------------------------------------------------- */

void kv_node_key(const struct kv_pool *p, const struct kv_node *parent, const uint32_t *ids,
                 uint32_t n, uint64_t key[2])
{
    uint8_t msg[16 + 4 * 256];
    uint8_t out[16];
    uint32_t at = 0;

    memcpy(out, parent->key, 16);
    do { /* long blocks in parts, chained as blocks are */
        uint32_t part = CN_MIN(n - at, 256u);

        memcpy(msg, out, 16);
        memcpy(msg + 16, ids + at, (size_t)part * 4);
        cn_siphash24_128(p->key, msg, 16 + (size_t)part * 4, out);
        at += part;
    } while (at < n);
    memcpy(key, out, 16);
    key[0] &= p->hash_mask;
    key[1] &= p->hash_mask;
}

/* Of the tenant that has this number now. */
static uint32_t generation_of(const struct kv_pool *p, uint32_t tenant)
{
    return tenant < p->n_tenants ? p->tenants[tenant].generation : 0;
}

static void root_key(const struct kv_space *s, const struct kv_seq_opts *as, uint64_t key[2])
{
    uint8_t msg[16 + 8 + 8 + 4], out[16];
    uint64_t t = (uint64_t)generation_of(s->pool, as->tenant) << 32 | as->tenant;

    memcpy(msg, s->id_key, 16);
    memcpy(msg + 16, &t, 8);
    memcpy(msg + 24, &as->salt, 8);
    memcpy(msg + 32, &as->adapter, 4);
    cn_siphash24_128(s->pool->key, msg, sizeof(msg), out);
    memcpy(key, out, 16);
    key[0] &= s->pool->hash_mask;
    key[1] &= s->pool->hash_mask;
}

static struct kv_node **bucket_of(const struct kv_pool *p, uint64_t k)
{
    return &p->buckets[k & (p->n_buckets - 1)];
}

static void unhash(struct kv_pool *p, struct kv_node *n)
{
    struct kv_node **at = bucket_of(p, n->key[0]);

    while (*at != n)
        at = &(*at)->hnext;
    *at = n->hnext;
    n->hnext = NULL;
}

/* As many nodes at a time as go into this: hardly a token costs an allocation, and no node has an
 * allocator's overhead. */
#define BATCH_BYTES 16384u

struct kv_node_batch {
    struct kv_node_batch *next;
    _Alignas(16) char nodes[];
};

static bool more_nodes(struct kv_space *s)
{
    size_t bytes =
        sizeof(struct kv_node) + s->n_groups * sizeof(struct kv_ent) + (size_t)s->block_tokens * 4;
    struct kv_node_batch *b;
    size_t n;

    bytes = (bytes + 7) & ~(size_t)7;
    n = CN_MAX((BATCH_BYTES - sizeof(*b)) / bytes, (size_t)1);
    b = malloc(sizeof(*b) + n * bytes);
    if (!b) return false;
    b->next = s->batches;
    s->batches = b;
    while (n-- > 0) {
        struct kv_node *node = (struct kv_node *)(b->nodes + n * bytes);
        node->hnext = s->node_pool;
        s->node_pool = node;
    }
    return true;
}

static struct kv_node *node_new(struct kv_space *s)
{
    struct kv_node *n;

    if (!s->node_pool && !more_nodes(s)) return NULL;
    n = s->node_pool;
    s->node_pool = n->hnext;
    memset(n, 0, sizeof(*n) + s->n_groups * sizeof(struct kv_ent));
    n->space = s;
    for (uint32_t g = 0; g < s->n_groups; g++)
        n->ent[g] = (struct kv_ent){.group = (uint8_t)g, .block = KV_NO_BLOCK};
    return n;
}

void kv_node_pool_free(struct kv_space *s)
{
    while (s->batches) {
        struct kv_node_batch *b = s->batches;
        s->batches = b->next;
        free(b);
    }
    s->node_pool = NULL;
}

/* ---- roots ----------------------------------------------------------------------------------- */

struct kv_node *kv_root_find(const struct kv_space *s, const struct kv_seq_opts *as)
{
    uint64_t key[2];
    struct kv_node *n;

    root_key(s, as, key);
    for (n = *bucket_of(s->pool, key[0]); n; n = n->hnext) {
        if (!n->parent && n->space == s && n->tenant == as->tenant && n->salt == as->salt &&
            n->adapter == as->adapter &&
            *kv_root_generation(n) == generation_of(s->pool, as->tenant))
            break;
    }
    return n;
}

struct kv_node *kv_root_get(struct kv_space *s, const struct kv_seq_opts *as)
{
    struct kv_node *n = kv_root_find(s, as), **at;

    if (n) return n;
    n = node_new(s);
    if (!n) return NULL;
    root_key(s, as, n->key);
    n->tenant = as->tenant;
    n->salt = as->salt;
    n->adapter = as->adapter;
    *kv_root_generation(n) = generation_of(s->pool, as->tenant);
    n->state = NODE_READY;
    at = bucket_of(s->pool, n->key[0]);
    n->hnext = *at;
    *at = n;
    n->sib_next = s->roots;
    if (s->roots) s->roots->sib_prev = n;
    s->roots = n;
    s->pool->n_roots++;
    return n;
}

/* ---- finding and inserting ------------------------------------------------------------------- */

struct kv_node *kv_node_find(const struct kv_node *parent, const uint32_t *ids)
{
    const struct kv_space *s = parent->space;
    uint64_t key[2];
    struct kv_node *n;

    if (!parent->child) return NULL;
    kv_node_key(s->pool, parent, ids, s->block_tokens, key);
    for (n = *bucket_of(s->pool, key[0]); n; n = n->hnext) {
        if (n->key[0] == key[0] && n->key[1] == key[1] && n->parent == parent &&
            memcmp(kv_node_ids(n), ids, (size_t)s->block_tokens * 4) == 0)
            break;
    }
    return n;
}

/* Blocks bound the nodes of a space only where each node holds one. In others what leads to the
 * blocks least needed is evicted; parent is pinned and stays. */
static bool make_way(struct kv_node *parent)
{
    struct kv_space *s = parent->space;
    struct kv_pool *p = s->pool;

    while (!s->primary && p->n_thin >= p->max_thin) {
        uint32_t g = 0;

        while (g < s->n_groups && !kv_evict_one(&s->grp[g], parent->tenant, false))
            g++;
        if (g == s->n_groups) return false;
    }
    return true;
}

/* In state FILLING, pinned once, without blocks. NULL when out of memory. */
struct kv_node *kv_node_insert(struct kv_node *parent, const uint32_t *ids)
{
    struct kv_space *s = parent->space;
    struct kv_node *n = make_way(parent) ? node_new(s) : NULL, **at;

    if (!n) return NULL;
    kv_node_key(s->pool, parent, ids, s->block_tokens, n->key);
    memcpy(kv_node_ids(n), ids, (size_t)s->block_tokens * 4);
    n->tenant = parent->tenant;
    n->state = NODE_FILLING;
    n->pins = 1;
    n->parent = parent;
    n->sib_next = parent->child;
    if (parent->child) parent->child->sib_prev = n;
    parent->child = n;
    at = bucket_of(s->pool, n->key[0]);
    n->hnext = *at;
    *at = n;
    s->pool->n_nodes++;
    if (!s->primary) s->pool->n_thin++;
    return n;
}

/* ---- leaving --------------------------------------------------------------------------------- */

static void node_free(struct kv_node *n)
{
    struct kv_space *s = n->space;

    cn_assert(!n->child && !n->filler && !n->waiters);
    if (!n->dead) unhash(s->pool, n);
    if (n->sib_prev)
        n->sib_prev->sib_next = n->sib_next;
    else if (n->parent)
        n->parent->child = n->sib_next;
    else
        s->roots = n->sib_next;
    if (n->sib_next) n->sib_next->sib_prev = n->sib_prev;
    if (n->parent)
        s->pool->n_nodes--;
    else
        s->pool->n_roots--;
    if (n->parent && !s->primary) s->pool->n_thin--;
    n->hnext = s->node_pool;
    s->node_pool = n;
}

static void ent_drop_block(struct kv_ent *e)
{
    struct kv_pool *p = kv_ent_node(e)->space->pool;
    uint32_t block = e->block;

    if (e->linked) kv_lane_unlink(e);
    e->block = KV_NO_BLOCK;
    if (block != KV_NO_BLOCK) kv_block_put(p, block);
}

static bool holds_nothing(const struct kv_node *n)
{
    for (uint32_t g = 0; g < n->space->n_groups; g++) {
        if (n->ent[g].block != KV_NO_BLOCK) return false;
    }
    return true;
}

/* Removes unpinned nodes that hold nothing and lead nowhere, upwards from n. */
static void prune(struct kv_node *n)
{
    while (n && n->pins == 0 && !n->child && !n->filler && !n->waiters && holds_nothing(n)) {
        struct kv_node *parent = n->parent;
        node_free(n);
        n = parent;
    }
}

static void count_eviction(struct kv_node *n)
{
    n->space->pool->evictions++;
    n->space->pool->tenants[n->tenant].evictions++;
}

void kv_ent_evict(struct kv_ent *e)
{
    count_eviction(kv_ent_node(e));
    ent_drop_block(e);
    prune(kv_ent_node(e));
}

void kv_ent_forget(struct kv_ent *e)
{
    cn_assert(e->refs == 0 && kv_ent_node(e)->pins);
    ent_drop_block(e);
}

void kv_node_evict(struct kv_node *top)
{
    struct kv_node *n = top;

    for (;;) { /* leaves first, without a stack */
        struct kv_node *parent = n->parent;
        bool last = n == top;

        if (n->child) {
            n = n->child;
            continue;
        }
        cn_assert(n->pins == 0);
        for (uint32_t g = 0; g < n->space->n_groups; g++) {
            if (n->ent[g].block != KV_NO_BLOCK) count_eviction(n);
            ent_drop_block(&n->ent[g]);
        }
        node_free(n);
        if (last) {
            prune(parent);
            return;
        }
        n = parent;
    }
}

void kv_node_fill(struct kv_node *n, struct kv_seq *q)
{
    n->filler = q;
    n->fill_prev = NULL;
    n->fill_next = q->fills;
    if (q->fills) q->fills->fill_prev = n;
    q->fills = n;
}

void kv_node_unfill(struct kv_node *n)
{
    if (!n->filler) return;
    if (n->fill_prev)
        n->fill_prev->fill_next = n->fill_next;
    else
        n->filler->fills = n->fill_next;
    if (n->fill_next) n->fill_next->fill_prev = n->fill_prev;
    n->fill_prev = n->fill_next = NULL;
    n->filler = NULL;
    kv_wake(&n->waiters);
}

void kv_node_withdraw(struct kv_node *n)
{
    struct kv_pool *p = n->space->pool;

    cn_assert(n->state == NODE_FILLING && n->pins == 1 && !n->child);
    kv_node_unfill(n);
    kv_wake(&n->waiters);
    for (uint32_t g = 0; g < n->space->n_groups; g++) {
        if (n->ent[g].block != KV_NO_BLOCK) kv_blk_of(p, n->ent[g].block)->node = NULL;
    }
    n->pins = 0;
    node_free(n);
}

/* Pre-order: the next node within top's subtree that is not below n. */
static struct kv_node *skip(struct kv_node *n, const struct kv_node *top)
{
    for (; n != top; n = n->parent) {
        if (n->sib_next) return n->sib_next;
    }
    return NULL;
}

void kv_node_kill(struct kv_node *top)
{
    struct kv_node *next;

    for (struct kv_node *n = top; n; n = next) {
        if (n->pins == 0) { /* then nothing below is pinned */
            next = skip(n, top);
            kv_node_evict(n);
            continue;
        }
        if (!n->dead) unhash(n->space->pool, n);
        n->dead = true;
        kv_wake(&n->waiters);
        /* otherwise blocks that no sequence sees any more would never be freed */
        for (uint32_t g = 0; g < n->space->n_groups; g++) {
            if (n->ent[g].linked) ent_drop_block(&n->ent[g]);
        }
        next = n->child ? n->child : skip(n, top);
    }
}

/* ---- pins ------------------------------------------------------------------------------------ */

/* A block can be evicted if and only if its node is READY and no sequence sees the block. */
static bool evictable(const struct kv_ent *e)
{
    const struct kv_node *n = kv_ent_node(e);

    if (e->block == KV_NO_BLOCK || n->state != NODE_READY || n->dead) return false;
    return n->space->grp[e->group].loose ? e->refs == 0 : n->pins == 0;
}

/* Brings state and lane of a block in line with who sees it. */
static void ent_settle(struct kv_ent *e)
{
    struct kv_node *n = kv_ent_node(e);
    struct kv_grp *g = &n->space->grp[e->group];
    bool ev = evictable(e), lane = ev && (g->loose || g == n->space->primary);

    if (lane && !e->linked) kv_lane_link(e);
    if (!lane && e->linked) kv_lane_unlink(e);
    if (e->block == KV_NO_BLOCK) return;
    kv_block_state(n->space->pool, e->block,
                   ev                       ? KV_CACHED
                   : n->state == NODE_READY ? KV_READY
                                            : KV_FILLING);
}

static void settle_full(struct kv_node *n)
{
    for (uint32_t g = 0; g < n->space->n_groups; g++) {
        if (!n->space->grp[g].loose) ent_settle(&n->ent[g]);
    }
}

void kv_node_settle(struct kv_node *n)
{
    for (uint32_t g = 0; g < n->space->n_groups; g++)
        ent_settle(&n->ent[g]);
}

void kv_node_ready(struct kv_node *n)
{
    n->state = NODE_READY;
    kv_node_unfill(n);
    kv_node_settle(n);
}

void kv_node_pin(struct kv_node *n)
{
    if (n->pins++ == 0) settle_full(n);
}

void kv_node_unpin(struct kv_node *n)
{
    cn_assert(n->pins > 0);
    if (--n->pins) return;
    if (n->dead) {
        for (uint32_t g = 0; g < n->space->n_groups; g++)
            ent_drop_block(&n->ent[g]);
        struct kv_node *parent = n->parent;
        node_free(n);
        prune(parent);
        return;
    }
    settle_full(n);
    prune(n);
}

void kv_ent_ref(struct kv_ent *e)
{
    e->refs++;
    ent_settle(e);
}

void kv_ent_unref(struct kv_ent *e)
{
    cn_assert(e->refs > 0);
    e->refs--;
    if (e->refs == 0 && kv_ent_node(e)->dead && kv_ent_node(e)->space->grp[e->group].loose)
        ent_drop_block(e);
    else
        ent_settle(e);
}
