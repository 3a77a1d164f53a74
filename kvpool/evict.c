/* What may be evicted, and in which order.
 *
 * Each tenant has a lane per group: its evictable blocks, oldest first. Each group has a heap of
 * the lanes that everybody may evict from (their tenants hold more than their reserve), the oldest
 * head on top; so the oldest block is found in O(1) and removed in O(log tenants). A tenant may
 * always evict from its own lane.
 *
 * Snapshots go by worth as well: of the oldest in the lane whose turn it is the one that saves the
 * fewest tokens, where those used later start from a higher mark (GreedyDual, Young 1994). All
 * snapshots of a lane have the same size. */
#include "kvpool/internal.h"

#include <stdlib.h>

#define LOOK             16   /* snapshots compared */
#define MAX_SAVED_BLOCKS 4096 /* counted: beyond that all are worth the same */

/* ---- heap of lanes --------------------------------------------------------------------------- */

static void heap_set(struct kv_grp *g, uint32_t i, struct kv_lane *l)
{
    g->heap[i] = l;
    l->heap_pos = i;
}

static void heap_up(struct kv_grp *g, uint32_t i)
{
    struct kv_lane *l = g->heap[i];

    while (i > 0 && g->heap[(i - 1) / 2]->head->stamp > l->head->stamp) {
        heap_set(g, i, g->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    heap_set(g, i, l);
}

static void heap_down(struct kv_grp *g, uint32_t i)
{
    struct kv_lane *l = g->heap[i];

    for (;;) {
        uint32_t c = 2 * i + 1;

        if (c >= g->heap_len) break;
        if (c + 1 < g->heap_len && g->heap[c + 1]->head->stamp < g->heap[c]->head->stamp) c++;
        if (g->heap[c]->head->stamp >= l->head->stamp) break;
        heap_set(g, i, g->heap[c]);
        i = c;
    }
    heap_set(g, i, l);
}

static void heap_remove(struct kv_grp *g, struct kv_lane *l)
{
    uint32_t i = l->heap_pos;
    struct kv_lane *last;

    if (i == KV_NONE) return;
    l->heap_pos = KV_NONE;
    last = g->heap[--g->heap_len];
    if (last == l) return;
    heap_set(g, i, last);
    heap_up(g, i);
    heap_down(g, last->heap_pos);
}

/* The lane's head or its tenant's standing has changed. The heap's order is broken only there, so
 * a lane whose head went is taken out before the change and put in after it. */
static void lane_put_in_heap(struct kv_pool *p, struct kv_grp *g, struct kv_lane *l)
{
    if (l->heap_pos != KV_NONE || !l->head || !p->tenants[l->tenant].exposed) return;
    heap_set(g, g->heap_len, l);
    heap_up(g, g->heap_len++);
}

/* ---- lanes ----------------------------------------------------------------------------------- */

int kv_lanes_ensure(struct kv_pool *p, uint32_t tenant, struct kv_space *s)
{
    struct kv_tenant *t = &p->tenants[tenant];
    size_t old = t->lanes_cap;

    if (cn_grow(&t->lanes, &t->lanes_cap, p->n_grps, sizeof(*t->lanes))) return CN_ENOMEM;
    for (size_t i = old; i < t->lanes_cap; i++)
        t->lanes[i] = NULL;
    for (uint32_t i = 0; i < s->n_groups; i++) {
        struct kv_grp *g = &s->grp[i];
        struct kv_lane *l;

        if (t->lanes[g->id]) continue;
        if (cn_grow(&g->heap, &g->heap_cap, (size_t)g->n_lanes + 1, sizeof(struct kv_lane *)))
            return CN_ENOMEM;
        l = cn_calloc(1, sizeof(*l));
        if (!l) return CN_ENOMEM;
        l->tenant = tenant;
        l->heap_pos = KV_NONE;
        t->lanes[g->id] = l;
        g->n_lanes++;
    }
    return 0;
}

static struct kv_grp *ent_grp(const struct kv_ent *e)
{
    return kv_ent_node(e)->space->grp[e->group].lane_grp;
}

static struct kv_lane *ent_lane(const struct kv_ent *e)
{
    return kv_ent_node(e)->space->pool->tenants[kv_ent_node(e)->tenant].lanes[ent_grp(e)->id];
}

void kv_lane_link(struct kv_ent *e)
{
    struct kv_pool *p = kv_ent_node(e)->space->pool;
    struct kv_lane *l = ent_lane(e);

    cn_assert(!e->linked);
    e->linked = true;
    e->stamp = ++p->stamp;
    e->credit = ent_grp(e)->age;
    e->next = NULL;
    e->prev = l->tail;
    if (l->tail)
        l->tail->next = e;
    else
        l->head = e;
    l->tail = e;
    lane_put_in_heap(p, ent_grp(e), l);
}

void kv_lane_unlink(struct kv_ent *e)
{
    struct kv_pool *p = kv_ent_node(e)->space->pool;
    struct kv_lane *l = ent_lane(e);
    bool was_head = l->head == e;

    cn_assert(e->linked);
    if (was_head) heap_remove(ent_grp(e), l);
    if (e->prev)
        e->prev->next = e->next;
    else
        l->head = e->next;
    if (e->next)
        e->next->prev = e->prev;
    else
        l->tail = e->prev;
    e->linked = false;
    e->prev = e->next = NULL;
    if (was_head) lane_put_in_heap(p, ent_grp(e), l);
}

/* ---- standing of tenants --------------------------------------------------------------------- */

void kv_tenant_expose(struct kv_pool *p, uint32_t tenant)
{
    struct kv_tenant *t = &p->tenants[tenant];
    bool exposed = t->reserve_bytes == 0 || t->held_bytes > t->reserve_bytes;

    if (exposed == t->exposed) return;
    t->exposed = exposed;
    for (size_t i = 0; i < t->lanes_cap; i++) {
        if (!t->lanes[i]) continue;
        if (exposed)
            lane_put_in_heap(p, p->grps[i], t->lanes[i]);
        else
            heap_remove(p->grps[i], t->lanes[i]);
    }
}

void kv_tenant_hold(struct kv_pool *p, uint32_t tenant, int64_t bytes)
{
    p->tenants[tenant].held_bytes += (uint64_t)bytes;
    kv_tenant_expose(p, tenant);
}

/* ---- evicting -------------------------------------------------------------------------------- */

static void evict_ent(struct kv_ent *e)
{
    if (kv_ent_node(e)->space->grp[e->group].loose)
        kv_ent_evict(e);
    else
        kv_node_evict(kv_ent_node(e));
}

/* What a hit on this snapshot would compute again without it. */
static uint64_t saved_tokens(const struct kv_ent *e)
{
    const struct kv_node *n = kv_ent_node(e);
    uint64_t blocks = 0;

    do {
        blocks++;
        n = n->parent;
    } while (n->parent && n->ent[e->group].block == KV_NO_BLOCK && blocks < MAX_SAVED_BLOCKS);
    return blocks * n->space->block_tokens;
}

static uint64_t worth(const struct kv_ent *e)
{
    return e->credit + saved_tokens(e);
}

/* Of a lane's oldest snapshots the one that is worth least. */
static struct kv_ent *cheapest(const struct kv_lane *l)
{
    struct kv_ent *best = l->head;
    uint64_t least = worth(best);
    uint32_t n = 1;

    for (struct kv_ent *e = best->next; e && n < LOOK; e = e->next, n++) {
        uint64_t w = worth(e);

        if (w >= least) continue;
        least = w;
        best = e;
    }
    return best;
}

/* The block to evict next of g's lanes, of those that tenant's requests may evict. */
static struct kv_ent *victim(const struct kv_grp *g, uint32_t tenant, bool all)
{
    struct kv_pool *p = g->space->pool;
    struct kv_grp *lg = g->lane_grp;
    struct kv_ent *e = lg->heap_len ? lg->heap[0]->head : NULL;
    struct kv_lane *own =
        lg->id < p->tenants[tenant].lanes_cap ? p->tenants[tenant].lanes[lg->id] : NULL;

    if (own && own->head && (!e || own->head->stamp < e->stamp)) e = own->head;
    for (uint32_t t = 0; all && !e && t < p->n_tenants; t++) {
        struct kv_lane *l = lg->id < p->tenants[t].lanes_cap ? p->tenants[t].lanes[lg->id] : NULL;
        if (l) e = l->head;
    }
    return e && g->span == KV_SPAN_STATE ? cheapest(ent_lane(e)) : e;
}

/* As the snapshots that go are worth more and more, what was used before counts less. */
static void age(struct kv_grp *g, uint64_t to)
{
    g->age = CN_MAX(g->age, to);
}

bool kv_evict_one(struct kv_grp *g, uint32_t tenant, bool all)
{
    struct kv_ent *e = victim(g, tenant, all);

    if (!e) return false;
    if (g->span == KV_SPAN_STATE) age(g, worth(e));
    evict_ent(e);
    return true;
}

bool kv_evict_cheaper(struct kv_grp *g, uint32_t tenant, uint64_t gap)
{
    const struct kv_space *s = g->space;
    struct kv_ent *e = victim(g, tenant, false);
    uint64_t mine = g->age + gap, block = kv_space_block_bytes(s);

    if (e && worth(e) <= mine) {
        age(g, worth(e));
        evict_ent(e);
        return true;
    }
    /* by bytes: cached blocks of tokens save what they hold, but older things count less */
    if (s->n_groups == 1 || 4 * gap * block >= g->block_bytes * s->block_tokens)
        if (kv_steal_slab(s->pool, tenant, g)) return true;
    age(g, mine); /* the next one stands a better chance */
    return false;
}

static bool may_evict(const struct kv_pool *p, uint32_t victim, uint32_t tenant)
{
    return victim == tenant || p->tenants[victim].exposed;
}

bool kv_slab_empty(struct kv_pool *p, uint32_t slab, uint32_t tenant)
{
    struct kv_slab *s = &p->slabs[slab];
    struct kv_grp *g = s->grp;

    for (uint32_t i = 0; i < g->slab_blocks; i++) {
        struct kv_blk *b = &s->blks[i];

        if (b->state != KV_FREE && (b->refs != 1 || !may_evict(p, b->tenant, tenant))) return false;
    }
    for (uint32_t i = 0; i < g->slab_blocks; i++) {
        struct kv_blk *b = &s->blks[i];

        if (b->state == KV_FREE) continue;
        /* evicting has moved its tenant: not below its reserve */
        if (!may_evict(p, b->tenant, tenant)) return false;
        cn_assert(b->state == KV_CACHED && b->node);
        evict_ent(&b->node->ent[g->index]);
        if (s->grp != g) return true; /* it went back with its last block */
    }
    return s->grp != g || s->n_used == 0;
}

/* Empties a slab that holds nothing but evictable blocks, so that another group can have it. */
bool kv_steal_slab(struct kv_pool *p, uint32_t tenant, const struct kv_grp *not)
{
    if (p->blocks[KV_CACHED] == 0 || p->lend_at_load) return false;
    for (uint32_t i = 0; i < p->n_slabs; i++) {
        uint32_t slab = (p->steal_at + i) % p->n_slabs;
        struct kv_slab *s = &p->slabs[slab];

        if (!s->grp || s->grp == not || s->n_used == 0 || s->n_cached != s->n_used) continue;
        if (kv_slab_empty(p, slab, tenant)) {
            p->steal_at = (slab + 1) % p->n_slabs;
            return true;
        }
    }
    return false;
}

void kv_pool_make_room(struct kv_pool *p, uint32_t tenant, bool all)
{
    if (tenant >= p->n_tenants) return;
    for (struct kv_space *s = p->spaces; s; s = s->next) {
        for (uint32_t i = 0; i < s->n_groups; i++) {
            while (kv_evict_one(&s->grp[i], tenant, all))
                ;
        }
    }
}

void kv_pool_drop_cache(struct kv_pool *p, uint32_t tenant)
{
    if (tenant >= p->n_tenants) return;
    const struct kv_tenant *t = &p->tenants[tenant];

    for (size_t i = 0; i < t->lanes_cap; i++) {
        while (t->lanes[i] && t->lanes[i]->head)
            evict_ent(t->lanes[i]->head);
    }
}

void kv_lanes_free(struct kv_pool *p, uint32_t tenant)
{
    struct kv_tenant *t = &p->tenants[tenant];

    for (size_t i = 0; i < t->lanes_cap; i++) {
        if (!t->lanes[i]) continue;
        cn_assert(!t->lanes[i]->head && t->lanes[i]->heap_pos == KV_NONE);
        p->grps[i]->n_lanes--;
        free(t->lanes[i]);
    }
    free(t->lanes);
    t->lanes = NULL;
    t->lanes_cap = 0;
}
