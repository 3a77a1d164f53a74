/* Pool, spaces, tenants, tickets, statistics. */
#include "kvpool/internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TENANTS    (1u << 20)
#define MAX_THIN_NODES (1u << 18)

/* ---- pool ------------------------------------------------------------------------------------ */

static int grow_buckets(struct kv_pool *p, uint64_t want)
{
    struct kv_node **old = p->buckets, **grown;
    uint64_t n = 64, old_n = p->n_buckets;

    while (n < want && n < (1ull << 40))
        n *= 2;
    if (n <= old_n) return 0;
    grown = cn_calloc(n, sizeof(struct kv_node *));
    if (!grown) return CN_ENOMEM;
    p->buckets = grown;
    p->n_buckets = n;
    for (uint64_t i = 0; i < old_n; i++) {
        while (old[i]) {
            struct kv_node *node = old[i], **at = &grown[node->key[0] & (n - 1)];
            old[i] = node->hnext;
            node->hnext = *at;
            *at = node;
        }
    }
    free(old);
    return 0;
}

int kv_pool_new(const struct kv_pool_opts *opts, struct kv_pool **out, struct cn_error *err)
{
    struct kv_pool *p;

    if (opts->slab_bytes == 0 || opts->n_slabs == 0 || opts->n_slabs >= KV_MAX_SLABS)
        return cn_fail(err, CN_ERANGE, "a KV pool has 1 to %u slabs", KV_MAX_SLABS - 1);
    p = cn_calloc(1, sizeof(*p));
    if (!p) return cn_fail(err, CN_ENOMEM, "no memory for the KV pool's tables");
    p->slab_bytes = opts->slab_bytes;
    p->n_slabs = p->n_slabs_free = opts->n_slabs;
    p->hash_mask =
        opts->hash_bits && opts->hash_bits < 64 ? (1ull << opts->hash_bits) - 1 : UINT64_MAX;
    if (opts->key)
        memcpy(p->key, opts->key, 16);
    else
        cn_random(p->key, 16);
    p->lend_at_load = opts->lend_at_load;
    p->max_thin = opts->max_thin_nodes ? opts->max_thin_nodes : MAX_THIN_NODES;
    p->zombies_tail = &p->zombies;
    kv_slab_list_init(&p->free_slabs);
    p->slabs = cn_calloc(opts->n_slabs, sizeof(*p->slabs));
    if (!p->slabs || grow_buckets(p, 64)) {
        kv_pool_free(p);
        return cn_fail(err, CN_ENOMEM, "no memory for the KV pool's tables");
    }
    for (uint32_t i = 0; i < p->n_slabs; i++)
        kv_slab_push(p, i, SLAB_FREE);
    *out = p;
    return 0;
}

void kv_pool_free(struct kv_pool *p)
{
    if (!p) return;
    p->retired = UINT64_MAX;
    kv_pool_retired(p, UINT64_MAX);
    while (p->spaces)
        cn_assert(kv_space_drop(p->spaces) == 0);
    for (uint32_t t = 0; t < p->n_tenants; t++)
        free(p->tenants[t].lanes);
    free(p->tenants);
    free(p->grps);
    free(p->stale);
    free(p->buckets);
    free(p->slabs);
    free(p);
}

void kv_pool_launched(struct kv_pool *p, uint64_t ticket)
{
    cn_assert(ticket > p->launched);
    p->launched = ticket;
}

void kv_pool_retired(struct kv_pool *p, uint64_t ticket)
{
    p->retired = CN_MAX(p->retired, ticket);
    while (p->stale_len && p->stale[p->stale_head].ticket <= ticket) {
        kv_block_put(p, p->stale[p->stale_head++].block);
        if (--p->stale_len == 0) p->stale_head = 0;
    }
    while (p->zombies && p->zombies->tag <= ticket) {
        struct kv_seq *q = p->zombies;
        p->zombies = q->zombie_next;
        if (!p->zombies) p->zombies_tail = &p->zombies;
        kv_seq_release(q);
    }
}

/* ---- tenants --------------------------------------------------------------------------------- */

static int tenants_ensure(struct kv_pool *p, uint32_t tenant)
{
    if (tenant >= MAX_TENANTS) return CN_ERANGE;
    if (cn_grow(&p->tenants, &p->tenants_cap, (size_t)tenant + 1, sizeof(*p->tenants)))
        return CN_ENOMEM;
    for (; p->n_tenants <= tenant; p->n_tenants++)
        p->tenants[p->n_tenants] = (struct kv_tenant){.exposed = true};
    return 0;
}

int kv_pool_reserve(struct kv_pool *p, uint32_t tenant, uint64_t reserve_bytes)
{
    uint64_t total;
    int rc = tenants_ensure(p, tenant);

    if (rc) return rc;
    if (!cn_add_u64(p->reserve_total - p->tenants[tenant].reserve_bytes, reserve_bytes, &total) ||
        total > p->slab_bytes * p->n_slabs)
        return CN_ERANGE;
    p->reserve_total = total;
    p->tenants[tenant].reserve_bytes = reserve_bytes;
    kv_tenant_expose(p, tenant);
    return 0;
}

static bool has_seqs(const struct kv_pool *p, uint32_t tenant)
{
    for (const struct kv_seq *q = p->seqs; q; q = q->all_next)
        if (q->tenant == tenant) return true;
    return false;
}

int kv_pool_tenant_end(struct kv_pool *p, uint32_t tenant)
{
    if (tenant >= p->n_tenants) return 0;
    struct kv_tenant *t = &p->tenants[tenant];

    /* blocks that wait for a ticket have no sequence any more, and are not cached */
    if (t->held_bytes != t->cached_bytes || has_seqs(p, tenant)) return CN_EBUSY;
    kv_pool_drop_cache(p, tenant);
    cn_assert(t->held_bytes == 0);
    kv_lanes_free(p, tenant);
    p->reserve_total -= t->reserve_bytes;
    *t = (struct kv_tenant){.exposed = true, .generation = t->generation + 1};
    return 0;
}

void kv_tenant_stats(const struct kv_pool *p, uint32_t tenant, struct kv_tenant_stats *out)
{
    const struct kv_tenant *t = tenant < p->n_tenants ? &p->tenants[tenant] : NULL;

    *out = (struct kv_tenant_stats){0};
    if (!t) return;
    out->held_bytes = t->held_bytes;
    out->cached_bytes = t->cached_bytes;
    out->reserve_bytes = t->reserve_bytes;
    out->evictions = t->evictions;
}

/* ---- spaces ---------------------------------------------------------------------------------- */

static int grp_id(struct kv_pool *p, struct kv_grp *g)
{
    uint32_t id = 0;

    while (id < p->n_grps && p->grps[id])
        id++;
    if (cn_grow(&p->grps, &p->grps_cap, (size_t)id + 1, sizeof(*p->grps))) return CN_ENOMEM;
    if (id == p->n_grps) p->n_grps++;
    p->grps[id] = g;
    g->id = id;
    return 0;
}

static int space_check(const struct kv_pool *p, const struct kv_space_opts *o, struct cn_error *err)
{
    uint32_t states = 0;

    if (o->n_groups == 0 || o->n_groups > 64 || o->block_tokens == 0 || o->block_tokens > 65536)
        return cn_fail(err, CN_ERANGE,
                       "a KV space has 1 to 64 groups and 1 to 65536 tokens per block");
    for (uint32_t i = 0; i < o->n_groups; i++) {
        const struct kv_group *g = &o->groups[i];

        if (g->block_bytes == 0 || g->block_bytes > p->slab_bytes)
            return cn_fail(err, CN_ERANGE,
                           "a KV block of %" PRIu64 " bytes does not fit a slab of %" PRIu64,
                           g->block_bytes, p->slab_bytes);
        if ((g->span == KV_SPAN_WINDOW || g->span == KV_SPAN_CHUNK) && !g->tokens)
            return cn_fail(err, CN_ERANGE, "a window or chunk of no tokens");
        states += g->span == KV_SPAN_STATE;
    }
    if (states > 1)
        return cn_fail(err, CN_ERANGE, "a KV space has at most one group of recurrent state");
    return 0;
}

static void grp_init(struct kv_space *s, uint32_t i, const struct kv_group *src)
{
    struct kv_grp *g = &s->grp[i];

    g->space = s;
    g->index = i;
    g->id = KV_NONE;
    g->span = src->span;
    g->tokens = src->tokens;
    g->loose = src->span != KV_SPAN_ALL;
    g->block_bytes = src->block_bytes;
    g->slab_blocks =
        (uint32_t)CN_MIN(s->pool->slab_bytes / src->block_bytes, (uint64_t)KV_MAX_SLAB_BLOCKS);
    kv_slab_list_init(&g->partial);
    if (!g->loose && !s->primary) s->primary = g;
    if (g->span == KV_SPAN_STATE) s->state = g;
    if (g->span == KV_SPAN_STATE && !g->tokens) g->tokens = 2 * s->block_tokens;
    g->lane_grp = g->loose ? g : s->primary;
}

int kv_space_add(struct kv_pool *p, const struct kv_space_opts *o, struct kv_space **out,
                 struct cn_error *err)
{
    struct kv_space *s;
    uint64_t most = 0;
    int rc = space_check(p, o, err);

    if (rc) return rc;
    s = cn_calloc(1, sizeof(*s) + o->n_groups * sizeof(s->grp[0]));
    if (!s) return cn_fail(err, CN_ENOMEM, "no memory for a KV space");
    s->pool = p;
    s->block_tokens = o->block_tokens;
    s->n_groups = o->n_groups;
    s->longest = o->longest;
    s->chunk_tokens = CN_MAX(o->chunk_tokens, 1u);
    cn_siphash24_128(p->key, o->id, o->id_len, s->id_key);
    for (uint32_t i = 0; i < o->n_groups; i++) {
        grp_init(s, i, &o->groups[i]);
        most = CN_MAX(most, (uint64_t)s->grp[i].slab_blocks * p->n_slabs);
    }
    for (uint32_t i = 0; i < o->n_groups && !rc; i++)
        rc = grp_id(p, &s->grp[i]);
    if (!s->primary) most = CN_MAX(most, CN_MIN(p->max_thin, (uint64_t)MAX_THIN_NODES) / 4);
    /* as many buckets as there can be blocks: no rehashing while serving */
    if (!rc) rc = grow_buckets(p, most);
    if (rc) {
        for (uint32_t i = 0; i < o->n_groups; i++) {
            if (s->grp[i].id != KV_NONE) p->grps[s->grp[i].id] = NULL;
        }
        free(s);
        return cn_fail(err, rc, "no memory for the KV pool's tables");
    }
    s->next = p->spaces;
    p->spaces = s;
    if (p->lend_at_load && (rc = kv_deal(p))) {
        kv_space_drop(s);
        return cn_fail(err, rc, "no memory for the KV pool's tables");
    }
    *out = s;
    return 0;
}

static void space_evict_all(struct kv_space *s)
{
    while (s->roots) {
        struct kv_node *r = s->roots;

        cn_assert(r->pins == 0);
        kv_node_evict(r);
    }
}

int kv_space_drop(struct kv_space *s)
{
    struct kv_pool *p = s->pool;
    struct kv_space **at = &p->spaces;

    if (s->n_seqs) return CN_EBUSY;
    space_evict_all(s);
    if (p->lend_at_load) kv_deal_leave(s);
    for (uint32_t i = 0; i < s->n_groups; i++) {
        struct kv_grp *g = &s->grp[i];

        cn_assert(g->n_slabs == 0);
        for (uint32_t t = 0; t < p->n_tenants; t++) {
            if (g->id >= p->tenants[t].lanes_cap) continue;
            free(p->tenants[t].lanes[g->id]);
            p->tenants[t].lanes[g->id] = NULL;
        }
        free(g->heap);
        p->grps[g->id] = NULL;
    }
    kv_node_pool_free(s);
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    free(s);
    if (p->lend_at_load) kv_deal(p); /* what there is no memory for waits for the next deal */
    return 0;
}

uint32_t kv_space_block_tokens(const struct kv_space *s)
{
    return s->block_tokens;
}

uint32_t kv_space_n_groups(const struct kv_space *s)
{
    return s->n_groups;
}

/* ---- arithmetic of fitting ------------------------------------------------------------------- */

uint64_t kv_blocks_for(const struct kv_grp *g, uint64_t n_tokens, uint32_t chunk_tokens)
{
    uint32_t bt = g->space->block_tokens;
    uint64_t blocks = kv_div_up(n_tokens, bt), span;

    if (g->span == KV_SPAN_STATE) return CN_MIN(n_tokens, 1u);
    if (!g->loose) return blocks;
    /* what the step's first row sees, and the step's rows; the end need not be aligned, nor the
     * beginning unless chunks are of whole blocks */
    span = kv_div_up((uint64_t)g->tokens - 1 + chunk_tokens, bt);
    if (g->span == KV_SPAN_WINDOW || g->tokens % bt) span++;
    return CN_MIN(blocks, span);
}

static uint64_t slabs_for(const struct kv_space *s, uint64_t n_tokens, uint32_t chunk_tokens)
{
    uint64_t slabs = 0;

    for (uint32_t i = 0; i < s->n_groups; i++)
        slabs +=
            kv_div_up(kv_blocks_for(&s->grp[i], n_tokens, chunk_tokens), s->grp[i].slab_blocks);
    return slabs;
}

uint64_t kv_space_bytes(const struct kv_space *s, uint64_t n_tokens, uint32_t chunk_tokens)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < s->n_groups; i++)
        bytes += kv_blocks_for(&s->grp[i], n_tokens, chunk_tokens) * s->grp[i].block_bytes;
    return bytes;
}

uint64_t kv_space_state_bytes(const struct kv_space *s)
{
    return s->state ? s->state->block_bytes : 0;
}

uint64_t kv_space_block_bytes(const struct kv_space *s)
{
    uint64_t bytes = kv_space_bytes(s, 1, 1) - kv_space_state_bytes(s);

    return bytes ? bytes : kv_space_state_bytes(s);
}

/* Whether n_tokens fit into `have` slabs of the pool's; into those that the groups were dealt, if
 * that is how slabs are lent. */
static bool fits(const struct kv_space *s, uint64_t have, uint64_t n_tokens, uint32_t chunk_tokens)
{
    const struct kv_pool *p = s->pool;

    for (uint32_t i = 0; p->lend_at_load && i < s->n_groups; i++) {
        const struct kv_grp *g = &s->grp[i];
        uint64_t dealt = (uint64_t)g->n_slabs * have / p->n_slabs * g->slab_blocks;

        if (kv_blocks_for(g, n_tokens, chunk_tokens) > dealt) return false;
    }
    return slabs_for(s, n_tokens, chunk_tokens) <= have;
}

static uint64_t slabs_had(const struct kv_space *s, uint32_t tenant)
{
    const struct kv_pool *p = s->pool;
    uint64_t own = tenant < p->n_tenants ? p->tenants[tenant].reserve_bytes : 0;
    uint64_t others = kv_div_up(p->reserve_total - own, p->slab_bytes);

    return p->n_slabs > others ? p->n_slabs - others : 0;
}

void kv_space_need(const struct kv_space *s, uint32_t tenant, uint64_t n_tokens,
                   uint32_t chunk_tokens, uint64_t *need_slabs, uint64_t *have_slabs)
{
    *need_slabs = slabs_for(s, n_tokens, chunk_tokens);
    *have_slabs = slabs_had(s, tenant);
}

uint64_t kv_space_max_tokens(const struct kv_space *s, uint32_t tenant, uint32_t chunk_tokens)
{
    uint64_t have = slabs_had(s, tenant), lo = 0, hi = 1ull << 40;

    while (lo < hi) { /* slabs_for grows with n_tokens */
        uint64_t mid = lo + (hi - lo + 1) / 2;
        if (fits(s, have, mid, chunk_tokens))
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

/* ---- statistics ------------------------------------------------------------------------------ */

void kv_pool_stats(const struct kv_pool *p, struct kv_stats *out)
{
    const struct kv_space *last = p->spaces;
    uint64_t held = 0;

    *out = (struct kv_stats){0};
    for (int i = 0; i < KV_N_STATES; i++) {
        out->blocks[i] = p->blocks[i];
        out->bytes[i] = p->bytes[i];
        held += p->bytes[i];
    }
    out->bytes[KV_FREE] = p->slab_bytes * p->n_slabs - held;
    while (last && last->next) /* the first that was added */
        last = last->next;
    out->blocks[KV_FREE] = last ? (uint64_t)p->n_slabs_free * last->grp[0].slab_blocks : 0;
    for (const struct kv_space *s = p->spaces; s; s = s->next) {
        for (uint32_t i = 0; i < s->n_groups; i++)
            out->blocks[KV_FREE] += (uint64_t)s->grp[i].n_slabs * s->grp[i].slab_blocks;
    }
    for (int i = KV_FREE + 1; i < KV_N_STATES; i++)
        out->blocks[KV_FREE] -= p->blocks[i];
    out->n_slabs = p->n_slabs;
    out->n_slabs_free = p->n_slabs_free;
    out->slab_bytes = p->slab_bytes;
    out->n_nodes = p->n_nodes;
    out->n_seqs = p->n_seqs;
    out->evictions = p->evictions;
    out->snapshots_taken = p->snapshots_taken;
    out->snapshots_used = p->snapshots_used;
}

int kv_pool_admit(struct kv_space *s, uint32_t tenant)
{
    int rc = tenants_ensure(s->pool, tenant);

    return rc ? rc : kv_lanes_ensure(s->pool, tenant, s);
}
