/* Sequences: reserving blocks, naming them in the tree, committing what was computed, closing.
 *
 * Of a sequence's logical blocks the first n_chain are complete nodes of the tree; those up to
 * n_named are announced there as being filled; the rest it holds alone. Table entries that differ
 * from their node's block are held alone too. */
#include "kvpool/internal.h"

#include <stdlib.h>
#include <string.h>

#define SPARE_WANTS 8

/* ---- open ------------------------------------------------------------------------------------ */

static void seq_free(struct kv_seq *q)
{
    if (!q) return;
    for (uint32_t g = 0; q->tables && g < q->space->n_groups; g++)
        free(q->tables[g]);
    free(q->tables);
    free(q->first);
    free(q->changed);
    free(q->nodes);
    free(q->tail);
    free(q->copies);
    free(q->marks);
    free(q->wants);
    free(q);
}

static struct kv_seq *seq_new(struct kv_space *s, uint64_t cap_blocks)
{
    struct kv_seq *q = cn_calloc(1, sizeof(*q));

    if (!q) return NULL;
    q->space = s;
    q->cap_blocks = cap_blocks;
    q->tables = cn_calloc(s->n_groups, sizeof(*q->tables));
    q->first = cn_calloc(s->n_groups, sizeof(*q->first));
    q->changed = cn_malloc_array(s->n_groups, sizeof(*q->changed));
    q->nodes = cn_calloc(cap_blocks, sizeof(*q->nodes));
    q->tail = cn_malloc_array(s->block_tokens, sizeof(*q->tail));
    q->copies = cn_malloc_array((size_t)s->n_groups + 1, sizeof(*q->copies));
    if (!q->tables || !q->first || !q->changed || !q->nodes || !q->tail || !q->copies) goto fail;
    for (uint32_t g = 0; g < s->n_groups; g++) {
        bool state = &s->grp[g] == s->state;

        q->changed[g] = UINT32_MAX;
        q->tables[g] = cn_calloc(state ? 1 : cap_blocks, sizeof(**q->tables));
        if (!q->tables[g]) goto fail;
    }
    if (s->state) *kv_live(q) = KV_NO_BLOCK;
    return q;
fail:
    seq_free(q);
    return NULL;
}

/* Room for the positions where the sequence may want a snapshot: the marks, the end of the prompt,
 * and some that others ask for. */
static int keep_marks(struct kv_seq *q, const struct kv_seq_opts *o)
{
    if (!q->space->state) return 0;
    q->cap_wants = o->n_marks + SPARE_WANTS;
    q->wants = cn_malloc_array(q->cap_wants, sizeof(*q->wants));
    q->marks = cn_malloc_array(o->n_marks, sizeof(*q->marks));
    if (!q->wants || !q->marks) return CN_ENOMEM;
    q->n_marks = o->n_marks;
    if (o->n_marks) memcpy(q->marks, o->marks, o->n_marks * sizeof(*q->marks));
    return 0;
}

int kv_seq_open(struct kv_space *s, const struct kv_seq_opts *o, struct kv_seq **out)
{
    struct kv_pool *p = s->pool;
    struct kv_seq *q;
    int rc = kv_pool_admit(s, o->tenant);

    if (rc) return rc;
    q = seq_new(s, kv_div_up(o->max_tokens, s->block_tokens));
    if (!q) return CN_ENOMEM;
    if (keep_marks(q, o) == 0) q->root = kv_root_get(s, o);
    if (!q->root) {
        seq_free(q);
        return CN_ENOMEM;
    }
    kv_node_pin(q->root);
    q->serial = ++p->serial;
    q->tenant = o->tenant;
    q->flags = o->flags;
    q->max_tokens = o->max_tokens;
    q->joined = o->joined;
    q->n_joined = o->n_joined;
    q->share_tokens = o->share_tokens ? o->share_tokens : UINT64_MAX;
    q->active_at = p->launched;
    q->all_next = p->seqs;
    if (p->seqs) p->seqs->all_prev = q;
    p->seqs = q;
    p->n_seqs++;
    s->n_seqs++;
    *out = q;
    return 0;
}

/* ---- giving up ------------------------------------------------------------------------------- */

void kv_seq_unwait(struct kv_seq *q)
{
    if (!q->wait) return;
    if (q->wait_prev)
        q->wait_prev->wait_next = q->wait_next;
    else
        *q->wait = q->wait_next;
    if (q->wait_next) q->wait_next->wait_prev = q->wait_prev;
    q->wait_prev = q->wait_next = NULL;
    q->wait = NULL;
    q->leader = NULL;
}

void kv_seq_drop_copies(struct kv_seq *q)
{
    struct kv_pool *p = q->space->pool;

    for (uint32_t i = 0; i < q->n_copies; i++) {
        kv_block_state(p, q->copies[i].dst, KV_FILLING);
        if (!q->copy_src) kv_block_unhold(p, q->copies[i].src);
    }
    for (uint32_t i = 0; q->copy_src && i < q->n_copies; i++) {
        uint32_t g = q->copies[i].group;

        if (q->space->grp[g].loose) kv_ent_unref(&q->copy_src->ent[g]);
    }
    if (q->copy_src) kv_node_unpin(q->copy_src);
    q->copy_src = NULL;
    q->n_copies = 0;
}

static void entry_drop(struct kv_seq *q, uint32_t g, uint64_t i)
{
    uint32_t b = q->tables[g][i];
    struct kv_node *n = q->nodes[i];

    q->tables[g][i] = KV_NO_BLOCK;
    if (b == KV_NO_BLOCK) return;
    if (!n || n->ent[g].block != b)
        kv_block_put(q->space->pool, b);
    else if (q->space->grp[g].loose)
        kv_ent_unref(&n->ent[g]);
}

void kv_seq_retract(struct kv_seq *q, uint64_t keep)
{
    while (q->n_named > CN_MAX(keep, q->n_chain)) {
        uint64_t i = --q->n_named;
        struct kv_node *n = q->nodes[i];

        q->nodes[i] = NULL;
        if (n->state == NODE_FILLING) {
            kv_node_withdraw(n);
        } else {
            kv_node_unfill(n);
            kv_node_unpin(n);
        }
    }
}

void kv_seq_drop_blocks(struct kv_seq *q, uint64_t keep)
{
    kv_seq_retract(q, keep);
    while (q->n_blocks > keep) {
        uint64_t i = --q->n_blocks;

        for (uint32_t g = 0; g < q->space->n_groups; g++) {
            if (&q->space->grp[g] != q->space->state && i >= q->first[g]) entry_drop(q, g, i);
        }
        if (q->nodes[i]) kv_node_unpin(q->nodes[i]);
        q->nodes[i] = NULL;
    }
    q->n_chain = CN_MIN(q->n_chain, keep);
    q->n_named = CN_MIN(q->n_named, keep);
    for (uint32_t g = 0; g < q->space->n_groups; g++)
        q->first[g] = CN_MIN(q->first[g], keep);
}

void kv_seq_leave_windows(struct kv_seq *q)
{
    for (uint32_t g = 0; g < q->space->n_groups; g++) {
        uint64_t first = kv_first_seen(&q->space->grp[g], q->len) / q->space->block_tokens;

        while (q->first[g] < first)
            entry_drop(q, g, q->first[g]++);
    }
}

void kv_seq_release(struct kv_seq *q)
{
    struct kv_pool *p = q->space->pool;

    kv_seq_unwait(q);
    kv_seq_drop_copies(q);
    kv_snaps_drop(q);
    kv_seq_drop_blocks(q, 0);
    kv_live_drop(q);
    kv_node_unpin(q->root);
    if (q->all_prev)
        q->all_prev->all_next = q->all_next;
    else
        p->seqs = q->all_next;
    if (q->all_next) q->all_next->all_prev = q->all_prev;
    p->n_seqs--;
    q->space->n_seqs--;
    seq_free(q);
}

static void seq_close(struct kv_seq *q)
{
    struct kv_pool *p = q->space->pool;

    cn_assert(!q->closed);
    q->closed = true;
    q->ids = NULL;
    kv_seq_unwait(q);
    kv_wake(&q->followers);
    kv_seq_retract(q, 0);
    if (q->planned == q->len || p->launched <= p->retired) {
        kv_seq_release(q);
        return;
    }
    q->tag = p->launched;
    *p->zombies_tail = q;
    p->zombies_tail = &q->zombie_next;
}

void kv_seq_close(struct kv_seq *q)
{
    if (!q) return;
    kv_snap_keep(q);
    seq_close(q);
}

/* It has taken a snapshot here, evicted since or not: others may have gone on from it. */
static bool wrote_snapshot(const struct kv_seq *q, const struct kv_node *n)
{
    return q->space->state && n->ent[q->space->state->index].writer == q->serial;
}

void kv_seq_close_failed(struct kv_seq *q)
{
    if (!q) return;
    for (uint64_t i = 0; i < q->n_chain; i++) {
        if (q->nodes[i]->writer != q->serial && !wrote_snapshot(q, q->nodes[i])) continue;
        kv_node_kill(q->nodes[i]);
        break;
    }
    seq_close(q);
}

/* ---- extend ---------------------------------------------------------------------------------- */

int kv_seq_alloc(struct kv_seq *q, uint64_t from, uint64_t to)
{
    struct kv_space *s = q->space;
    uint64_t i;
    uint32_t g;

    for (i = from; i < to; i++) {
        for (g = 0; g < s->n_groups; g++) {
            if (&s->grp[g] == s->state) continue;
            if (kv_block_alloc(&s->grp[g], q->tenant, &q->tables[g][i])) goto undo;
        }
    }
    for (g = 0; g < s->n_groups && from < to; g++) {
        if (&s->grp[g] != s->state) kv_mark(q, g, from);
    }
    return 0;
undo:
    for (;;) {
        while (g > 0) {
            g--;
            if (&s->grp[g] == s->state) continue;
            kv_block_put(s->pool, q->tables[g][i]);
            q->tables[g][i] = KV_NO_BLOCK;
        }
        if (i == from) return CN_ENOMEM;
        i--;
        g = s->n_groups;
    }
}

static bool lacks_blocks(const struct kv_node *n)
{
    for (uint32_t g = 0; g < n->space->n_groups; g++) {
        if (&n->space->grp[g] != n->space->state && n->ent[g].block == KV_NO_BLOCK) return true;
    }
    return false;
}

/* The sequence's blocks become those of a node that it has inserted. */
static void give_blocks(struct kv_seq *q, uint64_t i, struct kv_node *n)
{
    for (uint32_t g = 0; g < q->space->n_groups; g++) {
        if (&q->space->grp[g] == q->space->state) continue;
        n->ent[g].block = q->tables[g][i];
        n->ent[g].refs = q->space->grp[g].loose ? 1 : 0;
        kv_blk_of(q->space->pool, n->ent[g].block)->node = n;
    }
    n->writer = q->serial;
}

static struct kv_node *parent_of(const struct kv_seq *q, uint64_t i)
{
    return i ? q->nodes[i - 1] : q->root;
}

/* Names one planned block in the tree; false when that is not to be. */
static bool announce_block(struct kv_seq *q, uint64_t i, const uint32_t *ids)
{
    struct kv_node *parent = parent_of(q, i), *n;

    if (parent->dead) return false;
    n = kv_node_find(parent, ids);
    if (!n) {
        n = kv_node_insert(parent, ids);
        if (!n) return false;
        give_blocks(q, i, n);
    } else {
        if (n->state != NODE_READY || n->filler || !lacks_blocks(n)) return false;
        kv_node_pin(n);
    }
    kv_node_fill(n, q);
    q->nodes[i] = n;
    q->n_named = i + 1;
    return true;
}

static void announce(struct kv_seq *q, const uint32_t *ids, uint64_t from, uint64_t to)
{
    uint32_t bt = q->space->block_tokens;

    if (q->detached || (q->flags & KV_SEQ_NO_WRITE) || q->n_named < from / bt) return;
    if (q->space->state) return; /* there others wait for snapshots, not for blocks */
    for (uint64_t i = q->n_named; (i + 1) * bt <= CN_MIN(to, q->share_tokens); i++) {
        const uint32_t *block = i * bt >= from ? ids + (i * bt - from) : q->tail;

        if (i * bt < from) { /* begun before: its first ids are in the tail */
            if (from != q->len) return;
            memcpy(q->tail + from % bt, ids, (bt - from % bt) * sizeof(*ids));
        }
        if (!announce_block(q, i, block)) return;
    }
}

int kv_seq_extend(struct kv_seq *q, uint32_t n, const uint32_t *ids)
{
    uint32_t bt = q->space->block_tokens;
    uint64_t from = q->planned, to = from + n, blocks = kv_div_up(to, bt);
    bool fresh;
    int rc;

    if (to > q->max_tokens) return CN_ERANGE;
    rc = kv_live_alloc(q, &fresh);
    if (rc) return rc;
    rc = kv_seq_alloc(q, q->n_blocks, blocks);
    if (rc) {
        if (fresh) kv_live_drop(q);
        return rc;
    }
    q->n_blocks = blocks;
    q->planned = to;
    q->active_at = q->space->pool->launched;
    if (from == q->len) q->extended_at = q->active_at;
    q->no_wait = false;
    kv_snaps_extend(q, from, to);
    if (ids) announce(q, ids, from, to);
    return 0;
}

/* ---- commit ---------------------------------------------------------------------------------- */

/* Block i is complete and stays out of the tree. After kv_seq_resume windows lack some. */
static void keep_own(struct kv_seq *q, uint64_t i)
{
    for (uint32_t g = 0; g < q->space->n_groups; g++) {
        if (&q->space->grp[g] == q->space->state || q->tables[g][i] == KV_NO_BLOCK) continue;
        kv_block_state(q->space->pool, q->tables[g][i], KV_READY);
    }
}

/* The sequence's block i and node n hold the same: it uses the node's blocks, and leaves its own
 * where the node has lost them. */
static void swap_in(struct kv_seq *q, uint64_t i, struct kv_node *n)
{
    struct kv_pool *p = q->space->pool;

    if (n->dead || kv_stale_room(p, q->space->n_groups)) { /* keeps its own */
        keep_own(q, i);
        return;
    }
    for (uint32_t g = 0; g < q->space->n_groups; g++) {
        struct kv_ent *e = &n->ent[g];
        uint32_t b;

        if (&q->space->grp[g] == q->space->state) continue;
        b = q->tables[g][i];
        if (e->block == KV_NO_BLOCK) {
            e->block = b;
            kv_blk_of(p, b)->node = n;
            n->writer = q->serial;
        } else {
            q->tables[g][i] = e->block;
            kv_mark(q, g, i);
            kv_block_put_later(p, b);
        }
        if (q->space->grp[g].loose) e->refs++;
    }
    kv_node_settle(n);
}

/* Block i is complete and has no name yet. */
static struct kv_node *name_complete(struct kv_seq *q, uint64_t i, const uint32_t *ids)
{
    struct kv_node *parent, *n;

    if (q->detached || (q->flags & KV_SEQ_NO_WRITE) || q->n_named != i ||
        (i + 1) * q->space->block_tokens > q->share_tokens)
        return NULL;
    parent = parent_of(q, i);
    if (parent->dead) return NULL;
    n = kv_node_find(parent, ids);
    if (!n) {
        n = kv_node_insert(parent, ids);
        if (!n) return NULL;
        give_blocks(q, i, n);
        kv_node_ready(n);
        return n;
    }
    if (n->state != NODE_READY) return NULL;
    kv_node_pin(n);
    swap_in(q, i, n);
    return n;
}

static void complete(struct kv_seq *q, uint64_t i, const uint32_t *ids)
{
    struct kv_node *n = q->nodes[i];

    if (n && n->state == NODE_FILLING) {
        kv_node_ready(n);
    } else if (n) {
        kv_node_unfill(n);
        swap_in(q, i, n);
    } else {
        n = name_complete(q, i, ids);
        if (!n) {
            q->detached = true;
            keep_own(q, i);
            return;
        }
        q->nodes[i] = n;
        q->n_named = i + 1;
    }
    q->n_chain = i + 1;
}

void kv_seq_commit(struct kv_seq *q, const uint32_t *ids, uint32_t n)
{
    uint32_t bt = q->space->block_tokens;

    cn_assert(q->len + n <= q->planned && !q->closed && (!q->n_copies || q->copies_taken));
    kv_seq_drop_copies(q);
    while (n) {
        uint64_t i = q->len / bt;
        uint32_t off = (uint32_t)(q->len % bt), take = CN_MIN(bt - off, n);
        const uint32_t *block = ids;

        if (take < bt) {
            memcpy(q->tail + off, ids, take * sizeof(*ids));
            block = q->tail;
        }
        if (off + take == bt) complete(q, i, block);
        q->len += take;
        ids += take;
        n -= take;
    }
    kv_snaps_commit(q);
    kv_seq_leave_windows(q);
}

/* ---- reading --------------------------------------------------------------------------------- */

uint64_t kv_seq_length(const struct kv_seq *q)
{
    return q->len;
}

uint64_t kv_seq_planned(const struct kv_seq *q)
{
    return q->planned;
}

uint64_t kv_seq_cached(const struct kv_seq *q)
{
    return q->n_chain * q->space->block_tokens;
}

const uint32_t *const *kv_seq_tables(const struct kv_seq *q)
{
    return (const uint32_t *const *)q->tables;
}

uint32_t kv_seq_changed(struct kv_seq *q, uint32_t group)
{
    uint32_t from = q->changed[group];

    q->changed[group] = UINT32_MAX;
    return from;
}

static uint64_t blocks_of(const struct kv_seq *q, uint32_t g)
{
    if (&q->space->grp[g] == q->space->state) return *kv_live(q) != KV_NO_BLOCK;
    return q->n_blocks - q->first[g];
}

uint64_t kv_seq_n_blocks(const struct kv_seq *q)
{
    uint64_t n = 0;

    for (uint32_t g = 0; g < q->space->n_groups; g++)
        n += blocks_of(q, g);
    return n;
}

uint64_t kv_seq_bytes(const struct kv_seq *q)
{
    uint64_t bytes = 0;

    for (uint32_t g = 0; g < q->space->n_groups; g++)
        bytes += blocks_of(q, g) * q->space->grp[g].block_bytes;
    return bytes;
}

uint32_t kv_seq_copies(struct kv_seq *q, const struct kv_copy **out)
{
    uint32_t from = q->copies_taken ? q->n_copies : 0, to = q->n_copies + q->snap_new;

    q->copies_taken = true;
    q->snap_new = false;
    *out = q->copies + from;
    return to - from;
}
