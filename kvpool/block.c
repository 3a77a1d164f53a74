/* Slabs and blocks: lending slabs to groups, O(1) alloc and free, counts by state.
 * A slab with a free block is in its group's partial list; an empty one goes back, unless slabs are
 * lent at load only. */
#include "kvpool/internal.h"

#include <stdlib.h>
#include <string.h>

void kv_slab_list_init(struct kv_slab_list *l)
{
    l->head = l->tail = KV_NONE;
}

static struct kv_slab_list *list_of(struct kv_pool *p, struct kv_slab *s)
{
    return s->list == SLAB_FREE ? &p->free_slabs : &s->grp->partial;
}

void kv_slab_push(struct kv_pool *p, uint32_t slab, uint8_t list)
{
    struct kv_slab *s = &p->slabs[slab];
    struct kv_slab_list *l;

    cn_assert(s->list == SLAB_NOWHERE);
    s->list = list;
    l = list_of(p, s);
    s->prev = l->tail;
    s->next = KV_NONE;
    if (l->tail != KV_NONE)
        p->slabs[l->tail].next = slab;
    else
        l->head = slab;
    l->tail = slab;
}

static void slab_remove(struct kv_pool *p, uint32_t slab)
{
    struct kv_slab *s = &p->slabs[slab];
    struct kv_slab_list *l = list_of(p, s);

    if (s->prev != KV_NONE)
        p->slabs[s->prev].next = s->next;
    else
        l->head = s->next;
    if (s->next != KV_NONE)
        p->slabs[s->next].prev = s->prev;
    else
        l->tail = s->prev;
    s->list = SLAB_NOWHERE;
}

int kv_slab_lend(struct kv_pool *p, struct kv_grp *g)
{
    uint32_t slab = p->free_slabs.head;
    struct kv_slab *s = &p->slabs[slab];
    struct kv_blk *blks = cn_calloc(g->slab_blocks, sizeof(*blks));

    if (!blks) return CN_ENOMEM;
    slab_remove(p, slab);
    for (uint32_t i = 0; i < g->slab_blocks; i++)
        blks[i].next_free = i + 1 < g->slab_blocks ? i + 1 : KV_NONE;
    s->blks = blks;
    s->grp = g;
    s->free_head = 0;
    s->n_used = s->n_cached = 0;
    p->n_slabs_free--;
    g->n_slabs++;
    kv_slab_push(p, slab, SLAB_PARTIAL);
    return 0;
}

void kv_slab_return(struct kv_pool *p, uint32_t slab)
{
    struct kv_slab *s = &p->slabs[slab];

    slab_remove(p, slab);
    s->grp->n_slabs--;
    s->grp = NULL;
    free(s->blks);
    s->blks = NULL;
    p->n_slabs_free++;
    kv_slab_push(p, slab, SLAB_FREE);
}

static void take(struct kv_grp *g, uint32_t tenant, uint32_t *out)
{
    struct kv_pool *p = g->space->pool;
    uint32_t slab = g->partial.head;
    struct kv_slab *s = &p->slabs[slab];
    uint32_t index = s->free_head;
    struct kv_blk *b = &s->blks[index];

    s->free_head = b->next_free;
    s->n_used++;
    if (s->free_head == KV_NONE) slab_remove(p, slab);
    b->tenant = tenant;
    b->refs = 1;
    b->node = NULL;
    b->state = KV_FILLING;
    p->blocks[KV_FILLING]++;
    p->bytes[KV_FILLING] += g->block_bytes;
    kv_tenant_hold(p, tenant, (int64_t)g->block_bytes);
    *out = slab << KV_BLOCK_INDEX_BITS | index;
}

static bool may_lend(const struct kv_pool *p)
{
    return p->free_slabs.head != KV_NONE && !p->lend_at_load;
}

int kv_block_alloc(struct kv_grp *g, uint32_t tenant, uint32_t *out)
{
    struct kv_pool *p = g->space->pool;

    while (g->partial.head == KV_NONE) {
        if (may_lend(p)) {
            if (kv_slab_lend(p, g)) return CN_ENOMEM;
        } else if (!kv_evict_one(g, tenant, false) && !kv_steal_slab(p, tenant, NULL)) {
            return CN_ENOMEM;
        }
    }
    take(g, tenant, out);
    return 0;
}

int kv_block_alloc_snapshot(struct kv_grp *g, uint32_t tenant, uint64_t gap, uint32_t *out)
{
    struct kv_pool *p = g->space->pool;

    while (g->partial.head == KV_NONE) {
        if (may_lend(p)) {
            if (kv_slab_lend(p, g)) return CN_ENOMEM;
        } else if (!kv_evict_cheaper(g, tenant, gap)) {
            return CN_ENOMEM;
        }
    }
    take(g, tenant, out);
    return 0;
}

void kv_block_state(struct kv_pool *p, uint32_t block, enum kv_state state)
{
    struct kv_slab *s = &p->slabs[block >> KV_BLOCK_INDEX_BITS];
    struct kv_blk *b = kv_blk_of(p, block);
    uint64_t bytes = s->grp->block_bytes;

    if (b->state == state) return;
    p->blocks[b->state]--;
    p->bytes[b->state] -= bytes;
    p->blocks[state]++;
    p->bytes[state] += bytes;
    if (b->state == KV_CACHED) {
        s->n_cached--;
        p->tenants[b->tenant].cached_bytes -= bytes;
    }
    if (state == KV_CACHED) {
        s->n_cached++;
        p->tenants[b->tenant].cached_bytes += bytes;
    }
    b->state = (uint8_t)state;
}

void kv_block_put(struct kv_pool *p, uint32_t block)
{
    uint32_t slab = block >> KV_BLOCK_INDEX_BITS, index = block & (KV_MAX_SLAB_BLOCKS - 1);
    struct kv_slab *s = &p->slabs[slab];
    struct kv_blk *b = &s->blks[index];
    struct kv_grp *g = s->grp;

    cn_assert(b->refs > 0 && b->state != KV_FREE);
    if (--b->refs) {
        /* its holder has gone, a copy still reads it */
        b->node = NULL;
        kv_block_state(p, block, KV_READY);
        return;
    }
    kv_block_state(p, block, KV_READY); /* leaves the counts of cached blocks */
    p->blocks[KV_READY]--;
    p->bytes[KV_READY] -= g->block_bytes;
    kv_tenant_hold(p, b->tenant, -(int64_t)g->block_bytes);
    b->state = KV_FREE;
    b->node = NULL;
    if (s->free_head == KV_NONE) kv_slab_push(p, slab, SLAB_PARTIAL);
    b->next_free = s->free_head;
    s->free_head = index;
    if (--s->n_used == 0 && !p->lend_at_load) kv_slab_return(p, slab);
}

void kv_block_unhold(struct kv_pool *p, uint32_t block)
{
    struct kv_blk *b = kv_blk_of(p, block);

    if (b->refs > 1)
        b->refs--;
    else
        kv_block_put(p, block);
}

int kv_stale_room(struct kv_pool *p, uint32_t n)
{
    if (p->launched <= p->retired) return 0;
    if (p->stale_head && p->stale_head + p->stale_len + n > p->stale_cap) {
        memmove(p->stale, p->stale + p->stale_head, p->stale_len * sizeof(*p->stale));
        p->stale_head = 0;
    }
    return cn_grow(&p->stale, &p->stale_cap, p->stale_head + p->stale_len + n, sizeof(*p->stale));
}

void kv_block_put_later(struct kv_pool *p, uint32_t block)
{
    if (p->launched <= p->retired) {
        kv_block_put(p, block);
        return;
    }
    p->stale[p->stale_head + p->stale_len++] = (struct kv_stale){p->launched, block};
}
