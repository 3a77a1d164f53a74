/* kv_check: counts everything again from the sequences and the tree, and compares. For tests. */
#include "kvpool/internal.h"

#include <inttypes.h>

struct audit {
    struct kv_pool *p;
    struct cn_error *err;
    int rc;
};

static bool bad(struct audit *a, const char *what, uint64_t x, uint64_t y)
{
    if (!a->rc) a->rc = cn_fail(a->err, CN_EINTERNAL, "%s (%" PRIu64 ", %" PRIu64 ")", what, x, y);
    return false;
}

#define CHECK(cond, what, x, y)                                                                    \
    do {                                                                                           \
        if (!(cond)) return bad(a, what, (uint64_t)(x), (uint64_t)(y));                            \
    } while (0)

/* ---- the tree: every node of it in order, dead ones too -------------------------------------- */

static struct kv_node *node_next(struct kv_node *n, struct kv_node *top)
{
    if (n->child) return n->child;
    for (; n != top; n = n->parent) {
        if (n->sib_next) return n->sib_next;
    }
    return NULL;
}

static bool each_node(struct audit *a, bool (*fn)(struct audit *, struct kv_node *))
{
    for (struct kv_space *s = a->p->spaces; s; s = s->next) {
        for (struct kv_node *r = s->roots; r; r = r->sib_next) {
            for (struct kv_node *n = r; n; n = node_next(n, r)) {
                if (!fn(a, n)) return false;
            }
        }
    }
    return true;
}

static bool node_clear(struct audit *a, struct kv_node *n)
{
    n->seen = 0;
    for (uint32_t g = 0; g < n->space->n_groups; g++) {
        struct kv_ent *e = &n->ent[g];

        e->seen = 0;
        if (e->block == KV_NO_BLOCK) continue;
        CHECK(kv_blk_of(a->p, e->block)->node == n, "a node's block does not know it", e->block, g);
        kv_blk_of(a->p, e->block)->seen++;
    }
    return true;
}

static bool node_found(const struct kv_pool *p, const struct kv_node *n)
{
    for (const struct kv_node *h = p->buckets[n->key[0] & (p->n_buckets - 1)]; h; h = h->hnext) {
        if (h == n) return true;
    }
    return false;
}

static bool holds_some(const struct kv_node *n)
{
    for (uint32_t g = 0; g < n->space->n_groups; g++) {
        if (n->ent[g].block != KV_NO_BLOCK) return true;
    }
    return false;
}

static bool node_check(struct audit *a, struct kv_node *n)
{
    struct kv_space *s = n->space;

    CHECK(n->pins == n->seen, "pins of a node", n->pins, n->seen);
    CHECK(node_found(a->p, n) == !n->dead, "a node in the hash table", n->dead, n->pins);
    CHECK(!n->dead || n->pins, "a dead node that nobody pins", 0, 0);
    CHECK(!n->parent || n->parent->pins || !n->pins, "a pinned node below a free one", 0, 0);
    CHECK(n->pins || n->child || n->filler || holds_some(n), "a node that leads nowhere", 0, 0);
    CHECK(n->state == NODE_READY || (n->filler && n->pins == 1), "a filling node", n->pins, 0);
    CHECK(!n->filler || n->pins, "a filler that does not pin", 0, 0);
    CHECK(!n->waiters || n->filler, "waiting for nobody", 0, 0);
    CHECK(!n->child || n->child->sib_prev == NULL, "sibling list", 0, 0);
    for (uint32_t g = 0; g < s->n_groups; g++) {
        struct kv_ent *e = &n->ent[g];
        bool loose = s->grp[g].loose, ev;
        enum kv_state state;

        if (loose) CHECK(e->refs == e->seen, "users of a loose block", e->refs, e->seen);
        if (e->block == KV_NO_BLOCK) {
            CHECK(!e->linked && e->refs == 0, "a lost block in use", e->refs, g);
            CHECK(loose || !n->parent, "a node without a full group's block", g, n->pins);
            continue;
        }
        ev = n->state == NODE_READY && !n->dead && (loose ? e->refs == 0 : n->pins == 0);
        state = ev ? KV_CACHED : n->state == NODE_READY ? KV_READY : KV_FILLING;
        if (state == KV_FILLING && kv_blk_of(a->p, e->block)->state == KV_COPYING)
            state = KV_COPYING; /* begun with a copy that no step has done yet */
        CHECK(kv_blk_of(a->p, e->block)->state == state, "state of a node's block",
              kv_blk_of(a->p, e->block)->state, state);
        CHECK(e->linked == (ev && (loose || &s->grp[g] == s->primary)), "lane of a block",
              e->linked, ev);
        CHECK(kv_blk_of(a->p, e->block)->tenant == n->tenant, "tenant of a node's block", 0, 0);
    }
    return true;
}

/* ---- sequences ------------------------------------------------------------------------------- */

static bool seq_count(struct audit *a, struct kv_seq *q)
{
    struct kv_space *s = q->space;

    q->root->seen++;
    CHECK(q->len <= q->planned, "length past plan", q->len, q->planned);
    CHECK(q->n_chain <= q->n_named && q->n_named <= q->n_blocks, "chain", q->n_chain, q->n_named);
    CHECK(q->closed || kv_div_up(q->planned, s->block_tokens) == q->n_blocks, "logical blocks",
          q->n_blocks, q->planned);
    for (uint64_t i = 0; i < q->n_blocks; i++) {
        struct kv_node *n = q->nodes[i];

        CHECK((n != NULL) == (i < q->n_named), "a block's name", i, q->n_named);
        if (n) {
            n->seen++;
            CHECK(n->parent == (i ? q->nodes[i - 1] : q->root), "chain of nodes", i, 0);
            CHECK(i >= q->n_chain || n->state == NODE_READY, "incomplete chain", i, q->n_chain);
        }
        for (uint32_t g = 0; g < s->n_groups; g++) {
            uint32_t b;

            if (&s->grp[g] == s->state || i < q->first[g]) continue;
            b = q->tables[g][i];
            CHECK(b != KV_NO_BLOCK, "a hole in a table", i, g);
            if (n && n->ent[g].block == b)
                n->ent[g].seen++;
            else
                kv_blk_of(a->p, b)->seen++;
        }
    }
    if (s->state && *kv_live(q) != KV_NO_BLOCK) {
        struct kv_blk *b = kv_blk_of(a->p, *kv_live(q));

        CHECK(!b->node && (b->state == KV_FILLING || b->state == KV_COPYING), "a live state",
              b->state, 0);
        b->seen++;
    }
    for (uint32_t i = 0; i < q->n_snaps; i++) {
        struct kv_blk *b = kv_blk_of(a->p, q->snaps[i].block);

        CHECK(!b->node && b->state == KV_COPYING, "a snapshot on its way", b->state, i);
        CHECK(q->snaps[i].pos >= q->len && q->snaps[i].pos < q->planned, "place of a snapshot",
              q->snaps[i].pos, q->len);
        b->seen++;
    }
    for (uint32_t i = 0; i < q->n_wants; i++)
        CHECK(q->wants[i] >= q->len && (!i || q->wants[i] > q->wants[i - 1]), "a wanted position",
              q->wants[i], q->len);
    CHECK(!q->leader || (q->wait == &q->leader->followers && !q->leader->closed), "a leader", 0, 0);
    CHECK(!s->state || q->planned == 0 || *kv_live(q) != KV_NO_BLOCK, "no live state", q->len, 0);
    for (uint32_t i = 0; i < q->n_copies; i++) {
        CHECK(kv_blk_of(a->p, q->copies[i].dst)->state == KV_COPYING, "target of a copy", i, 0);
        if (q->copy_src)
            q->copy_src->ent[q->copies[i].group].seen++;
        else
            kv_blk_of(a->p, q->copies[i].src)->seen++;
    }
    if (q->n_copies && q->copy_src) q->copy_src->seen++;
    return true;
}

/* ---- slabs, lanes, sums ---------------------------------------------------------------------- */

struct sums { uint64_t blocks[KV_N_STATES], bytes[KV_N_STATES], free_slabs; };

static bool slab_check(struct audit *a, uint32_t i, struct sums *sum)
{
    struct kv_slab *s = &a->p->slabs[i];
    uint32_t used = 0, cached = 0, n_free = 0;

    if (!s->grp) {
        CHECK(s->list == SLAB_FREE && !s->blks, "a free slab", i, s->list);
        sum->free_slabs++;
        return true;
    }
    for (uint32_t k = 0; k < s->grp->slab_blocks; k++) {
        struct kv_blk *b = &s->blks[k];

        if (b->state == KV_FREE) {
            CHECK(b->seen == 0, "a free block in use", i, k);
            continue;
        }
        CHECK(b->refs == b->seen, "references of a block", b->refs, b->seen);
        CHECK(b->refs > 0, "a block that nobody holds", i, k);
        used++;
        cached += b->state == KV_CACHED;
        sum->blocks[b->state]++;
        sum->bytes[b->state] += s->grp->block_bytes;
    }
    for (uint32_t k = s->free_head; k != KV_NONE; k = s->blks[k].next_free)
        CHECK(s->blks[k].state == KV_FREE && ++n_free <= s->grp->slab_blocks, "free list", i, k);
    CHECK(used == s->n_used && cached == s->n_cached, "counts of a slab", s->n_used, used);
    CHECK(n_free + used == s->grp->slab_blocks, "free blocks of a slab", n_free, used);
    CHECK(used || a->p->lend_at_load, "a lent slab that is empty", i, 0);
    CHECK(s->list == (n_free ? SLAB_PARTIAL : SLAB_NOWHERE), "list of a slab", s->list, n_free);
    return true;
}

static bool lanes_check(struct audit *a, struct kv_grp *g)
{
    for (uint32_t t = 0; t < a->p->n_tenants; t++) {
        struct kv_tenant *ten = &a->p->tenants[t];
        struct kv_lane *l = g->id < ten->lanes_cap ? ten->lanes[g->id] : NULL;

        CHECK(ten->exposed == (!ten->reserve_bytes || ten->held_bytes > ten->reserve_bytes),
              "a tenant's standing", t, ten->held_bytes);
        if (!l) continue;
        for (struct kv_ent *e = l->head; e; e = e->next) {
            CHECK(e->linked && (!e->next || e->next->stamp > e->stamp), "order of a lane", t, 0);
            CHECK((e->next ? e->next->prev : l->tail) == e, "links of a lane", t, 0);
        }
        CHECK(!l->head || g->loose || !kv_ent_node(l->head)->child, "a lane's head is no leaf", t,
              g->id);
        CHECK((l->heap_pos != KV_NONE) == (l->head && ten->exposed), "a lane in the heap", t, 0);
        CHECK(l->heap_pos == KV_NONE || g->heap[l->heap_pos] == l, "heap position", t, 0);
    }
    for (uint32_t i = 1; i < g->heap_len; i++)
        CHECK(g->heap[(i - 1) / 2]->head->stamp <= g->heap[i]->head->stamp, "heap order", i, 0);
    return true;
}

static bool sums_check(struct audit *a)
{
    struct sums sum = {0};
    uint64_t held = 0, cached = 0;

    for (uint32_t i = 0; i < a->p->n_slabs; i++) {
        if (!slab_check(a, i, &sum)) return false;
    }
    CHECK(sum.free_slabs == a->p->n_slabs_free, "free slabs", sum.free_slabs, a->p->n_slabs_free);
    for (int i = KV_FREE + 1; i < KV_N_STATES; i++) {
        CHECK(sum.blocks[i] == a->p->blocks[i], "blocks in a state", sum.blocks[i], i);
        CHECK(sum.bytes[i] == a->p->bytes[i], "bytes in a state", sum.bytes[i], i);
    }
    for (uint32_t t = 0; t < a->p->n_tenants; t++) {
        held += a->p->tenants[t].held_bytes;
        cached += a->p->tenants[t].cached_bytes;
    }
    CHECK(cached == sum.bytes[KV_CACHED], "cached bytes of tenants", cached, sum.bytes[KV_CACHED]);
    for (int i = KV_FREE + 1; i < KV_N_STATES; i++)
        held -= sum.bytes[i];
    CHECK(held == 0, "held bytes of tenants", held, 0);
    return true;
}

int kv_check(struct kv_pool *p, struct cn_error *err)
{
    struct audit audit = {p, err, 0}, *a = &audit;

    for (uint32_t i = 0; i < p->n_slabs; i++) {
        for (uint32_t k = 0; p->slabs[i].grp && k < p->slabs[i].grp->slab_blocks; k++)
            p->slabs[i].blks[k].seen = 0;
    }
    if (!each_node(a, node_clear)) return a->rc;
    for (struct kv_seq *q = p->seqs; q; q = q->all_next) {
        if (!seq_count(a, q)) return a->rc;
    }
    for (size_t i = 0; i < p->stale_len; i++)
        kv_blk_of(p, p->stale[p->stale_head + i].block)->seen++;
    if (!each_node(a, node_check) || !sums_check(a)) return a->rc;
    for (uint32_t i = 0; i < p->n_grps; i++) {
        if (p->grps[i] && !lanes_check(a, p->grps[i])) return a->rc;
    }
    return a->rc;
}
