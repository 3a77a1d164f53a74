/* Finding and sharing what is there already: match, peek, fork, truncate, copies of partial
 * blocks. */
#include "kvpool/internal.h"

#include <string.h>

#define MAX_SIBLINGS 16 /* looked at for one that agrees in part */

/* ---- whole blocks ---------------------------------------------------------------------------- */

struct walk {
    uint64_t best;           /* logical blocks that can be used in all groups */
    uint64_t inside;         /* above best: as many could, but they end inside a joined range */
    uint64_t matched;        /* logical blocks that are in the tree */
    struct kv_node *blocked; /* the next node is being filled by another sequence */
    bool more;               /* the tree continues past best: blocks or a snapshot are missing */
};

static uint64_t first_block(const struct kv_grp *g, uint64_t n_blocks)
{
    return kv_first_seen(g, n_blocks * g->space->block_tokens) / g->space->block_tokens;
}

/* How many of the last blocks of its chain the sequence itself holds in group g. */
static uint64_t run_before(const struct kv_seq *q, uint32_t g)
{
    return q->n_chain - CN_MIN(q->first[g], q->n_chain);
}

/* Whether a row behind node n, the i-th of its path, finds what it sees in every group; run counts
 * the blocks in a row up to here. */
static bool serves(const struct kv_node *n, uint64_t i, uint64_t *run)
{
    const struct kv_space *s = n->space;
    bool ok = true;

    for (uint32_t g = 0; g < s->n_groups; g++) {
        uint64_t seen = i + 1 - first_block(&s->grp[g], i + 1);

        run[g] = n->ent[g].block == KV_NO_BLOCK ? 0 : run[g] + 1;
        ok = ok && run[g] >= (&s->grp[g] == s->state ? 1 : seen);
    }
    return ok;
}

/* Walks the tree below the sequence's chain; nodes found are left in q->nodes, not pinned. */
static struct walk walk_tree(struct kv_seq *q, const uint32_t *ids, uint64_t limit)
{
    struct kv_space *s = q->space;
    uint64_t run[64], i;
    struct kv_node *parent = q->n_chain ? q->nodes[q->n_chain - 1] : q->root;
    struct walk w = {.best = q->n_chain};

    for (uint32_t g = 0; g < s->n_groups; g++)
        run[g] = run_before(q, g);
    limit = CN_MIN(limit, q->max_tokens);
    for (i = q->n_chain; (i + 1) * s->block_tokens <= limit; i++) {
        struct kv_node *n = parent->dead ? NULL : kv_node_find(parent, ids + i * s->block_tokens);

        if (!n) break;
        if (n->state != NODE_READY) { /* what comes before is of no use yet: a part of a range */
            if (i == w.best || !kv_may_end(q, i * s->block_tokens)) w.blocked = n;
            break;
        }
        q->nodes[i] = n;
        if (serves(n, i, run)) {
            w.inside = i + 1;
            if (kv_may_end(q, (i + 1) * s->block_tokens)) w.best = i + 1;
        }
        parent = n;
    }
    w.matched = i;
    w.more = i > w.best;
    if (w.more && q->nodes[w.best]->filler) w.blocked = q->nodes[w.best];
    if (s->state || w.inside < w.matched) w.inside = w.best;
    for (uint64_t k = CN_MAX(w.best, w.inside); k < i; k++)
        q->nodes[k] = NULL;
    return w;
}

static void take_nodes(struct kv_seq *q, uint64_t best)
{
    struct kv_space *s = q->space;

    for (uint64_t i = q->n_chain; i < best; i++)
        kv_node_pin(q->nodes[i]);
    for (uint32_t g = 0; g < s->n_groups; g++) {
        uint64_t first = first_block(&s->grp[g], best);

        if (&s->grp[g] == s->state) continue;
        kv_mark(q, g, CN_MAX(q->n_chain, first));
        for (uint64_t i = q->n_chain; i < best; i++) {
            struct kv_ent *e = &q->nodes[i]->ent[g];

            q->tables[g][i] = i < first ? KV_NO_BLOCK : e->block;
            if (i >= first && s->grp[g].loose) kv_ent_ref(e);
        }
    }
    q->n_chain = q->n_named = q->n_blocks = best;
    q->len = q->planned = best * s->block_tokens;
    kv_seq_leave_windows(q);
}

/* ---- a part of a block ----------------------------------------------------------------------- */

uint64_t kv_common(const uint32_t *a, const uint32_t *b, uint64_t n)
{
    uint64_t i = 0;

    while (i < n && a[i] == b[i])
        i++;
    return i;
}

static bool complete_everywhere(const struct kv_node *n)
{
    for (uint32_t g = 0; g < n->space->n_groups; g++) {
        if (n->ent[g].block == KV_NO_BLOCK) return false;
    }
    return n->state == NODE_READY && !n->dead;
}

/* Reserves the next block and plans the copy into it of n tokens from src (a node's blocks, or
 * those of another sequence's tables at the same place). */
static int plan_copy(struct kv_seq *q, struct kv_node *src, const struct kv_seq *from, uint32_t n)
{
    struct kv_space *s = q->space;
    uint64_t i = q->n_blocks;
    int rc;

    if (src) {
        kv_node_pin(src);
        for (uint32_t g = 0; g < s->n_groups; g++) {
            if (s->grp[g].loose) kv_ent_ref(&src->ent[g]);
        }
    }
    rc = (i + 1) * s->block_tokens > q->cap_blocks * s->block_tokens ? CN_ERANGE
                                                                     : kv_seq_alloc(q, i, i + 1);
    for (uint32_t g = 0; g < s->n_groups; g++) {
        uint32_t b = src ? src->ent[g].block : from->tables[g][i];

        q->copies[g] = (struct kv_copy){g, rc ? KV_NO_BLOCK : q->tables[g][i], b, n};
        if (rc) {
            if (src && s->grp[g].loose) kv_ent_unref(&src->ent[g]);
            continue;
        }
        kv_block_state(s->pool, q->tables[g][i], KV_COPYING);
        if (!src) kv_blk_of(s->pool, b)->refs++;
    }
    if (rc) {
        if (src) kv_node_unpin(src);
        return rc;
    }
    q->n_copies = s->n_groups;
    q->copies_taken = false;
    q->copy_block = i;
    q->copy_src = src;
    q->n_blocks = i + 1;
    return 0;
}

/* The node below parent that agrees longest with what follows position `at`; *most items. */
static struct kv_node *find_part(const struct kv_seq *q, const struct kv_node *parent,
                                 const uint32_t *ids, uint64_t at, uint64_t limit, uint32_t *most)
{
    uint32_t n = (uint32_t)CN_MIN((uint64_t)q->space->block_tokens, limit - at), seen = 0;
    struct kv_node *best = NULL;

    *most = 0;
    for (struct kv_node *c = parent->child; c && seen < MAX_SIBLINGS; c = c->sib_next, seen++) {
        uint32_t k = complete_everywhere(c) ? (uint32_t)kv_common(kv_node_ids(c), ids + at, n) : 0;

        if (k > *most) {
            *most = k;
            best = c;
        }
    }
    return best;
}

static int take_part(struct kv_seq *q, struct kv_node *src, uint32_t n)
{
    int rc = plan_copy(q, src, NULL, n);

    if (rc) return rc;
    memcpy(q->tail, kv_node_ids(src), n * sizeof(*q->tail));
    q->len += n;
    q->planned = q->len;
    kv_seq_leave_windows(q);
    return 0;
}

static void adopt_part(struct kv_seq *q, const uint32_t *ids, uint64_t limit)
{
    struct kv_node *parent = q->n_chain ? q->nodes[q->n_chain - 1] : q->root;
    uint32_t most;
    struct kv_node *best = find_part(q, parent, ids, q->len, limit, &most);

    if (!kv_may_end(q, q->len + most)) {
        uint64_t first = kv_range_cut(q->joined, q->n_joined, q->len + most)->first;

        most = first > q->len ? (uint32_t)(first - q->len) : 0;
    }
    if (most && most < q->space->block_tokens) take_part(q, best, most);
}

/* Whole blocks that end inside a joined range, and a part of the next one that goes past its end.
 * False: there is no such part. Where it had no room nothing is adopted at all. */
static bool adopt_past(struct kv_seq *q, const uint32_t *ids, uint64_t limit, bool partial,
                       const struct walk *w)
{
    uint64_t at = w->inside * q->space->block_tokens;
    struct kv_node *src = NULL;
    uint32_t most = 0;

    if (w->inside == w->best) return false;
    if (partial && !q->n_chain && !w->blocked && at < limit)
        src = find_part(q, q->nodes[w->inside - 1], ids, at, limit, &most);
    if (!src || most == q->space->block_tokens || !kv_may_end(q, at + most)) {
        for (uint64_t k = w->best; k < w->inside; k++)
            q->nodes[k] = NULL;
        return false;
    }
    take_nodes(q, w->inside);
    if (take_part(q, src, most) == 0) return true;
    kv_seq_drop_blocks(q, 0);
    q->len = q->planned = 0;
    return true;
}

/* ---- match ----------------------------------------------------------------------------------- */

/* With state: the snapshot after `best` blocks, if it is further than what is there; or waits for a
 * better one. */
static enum kv_match adopt_state(struct kv_seq *q, const uint32_t *ids, uint64_t limit,
                                 struct walk w)
{
    struct kv_seq *leader = NULL;
    uint64_t had = q->n_chain, bt = q->space->block_tokens;
    bool fresh;

    if (!q->no_wait) leader = kv_leader(q, ids, CN_MIN(limit, q->max_tokens), w.best * bt);
    if (leader) {
        for (uint64_t i = had; i < w.best; i++)
            q->nodes[i] = NULL;
        kv_follow(q, leader);
        return KV_WAIT;
    }
    if (w.best > had) {
        struct kv_ent *snap = &q->nodes[w.best - 1]->ent[q->space->state->index];
        int rc;

        take_nodes(q, w.best); /* before anything can be evicted */
        kv_ent_ref(snap);
        rc = kv_live_alloc(q, &fresh);
        if (!rc) kv_snap_restore(q, kv_ent_node(snap));
        kv_ent_unref(snap);
        if (rc) {
            kv_seq_drop_blocks(q, had); /* had is 0: what has rows has a live state */
            q->len = q->planned = had * bt;
            return KV_GO;
        }
        kv_wants_pass(q, q->len);
    }
    if (w.more) kv_want(q, w.matched * bt);
    return KV_GO;
}

enum kv_match kv_seq_adopt(struct kv_seq *q, const uint32_t *ids, uint64_t limit, bool partial)
{
    struct walk w;

    if (q->planned != q->len || (q->flags & KV_SEQ_NO_READ) || q->detached) return KV_GO;
    if (q->len % q->space->block_tokens || q->len >= limit) return KV_GO;
    w = walk_tree(q, ids, limit);
    if (q->space->state) return adopt_state(q, ids, limit, w);
    if (adopt_past(q, ids, CN_MIN(limit, q->max_tokens), partial, &w)) return KV_GO;
    if (w.best > q->n_chain) take_nodes(q, w.best);
    if (w.blocked) {
        kv_wait_node(q, w.blocked);
        return KV_WAIT;
    }
    if (partial && !w.more && q->len < limit) adopt_part(q, ids, CN_MIN(limit, q->max_tokens));
    return KV_GO;
}

enum kv_match kv_seq_match(struct kv_seq *q, const uint32_t *ids, uint64_t n, uint64_t *adopted)
{
    uint64_t before = q->len;
    enum kv_match m = KV_GO;

    if (kv_seq_waits(q)) {
        m = KV_WAIT;
    } else if (n && q->planned == q->len) {
        m = kv_seq_adopt(q, ids, n - 1, true);
        if (m == KV_GO && q->space->state) kv_want_prompt(q, ids, n);
    }
    if (m == KV_GO) q->active_at = q->space->pool->launched;
    if (adopted) *adopted = q->len - before;
    return m;
}

uint64_t kv_space_peek(const struct kv_space *s, const struct kv_seq_opts *as, const uint32_t *ids,
                       uint64_t n, uint64_t *in_use)
{
    const struct kv_node *node = kv_root_find(s, as);
    uint64_t i = 0, used = 0, best = 0;

    while (node && (i + 1) * s->block_tokens < n) {
        node = kv_node_find(node, ids + i * s->block_tokens);
        if (!node || node->state != NODE_READY) break;
        i++;
        if (node->pins) used = i;
        if (as->n_joined && kv_range_cut(as->joined, as->n_joined, i * s->block_tokens)) continue;
        if (!s->state || node->ent[s->state->index].block != KV_NO_BLOCK) best = i;
    }
    if (in_use) *in_use = CN_MIN(used, best) * s->block_tokens;
    return best * s->block_tokens;
}

/* ---- fork ------------------------------------------------------------------------------------ */

/* Whether block i is there in all groups and not (yet) a complete node's. */
static bool holds_alone(const struct kv_seq *q, uint64_t i)
{
    if (i >= q->n_blocks || (q->nodes[i] && q->nodes[i]->state == NODE_READY)) return false;
    if (q->n_copies) return false; /* its own copy is not done: nothing to copy from yet */
    for (uint32_t g = 0; g < q->space->n_groups; g++) {
        if (i < q->first[g] || q->tables[g][i] == KV_NO_BLOCK) return false;
    }
    return true;
}

int kv_seq_fork(struct kv_seq *q, const uint32_t *ids, uint64_t n_tokens, uint64_t max_tokens,
                struct kv_seq **out)
{
    struct kv_seq_opts o = {.tenant = q->tenant,
                            .salt = q->root->salt,
                            .adapter = q->root->adapter,
                            .flags = q->flags & ~(uint32_t)KV_SEQ_NO_READ,
                            .max_tokens = max_tokens,
                            .share_tokens = q->share_tokens,
                            .joined = q->joined,
                            .n_joined = q->n_joined};
    uint32_t bt = q->space->block_tokens;
    struct kv_seq *child;
    uint64_t i, take;
    int rc = kv_seq_open(q->space, &o, &child);

    if (rc) return rc;
    cn_assert(n_tokens <= q->len);
    *out = child;
    n_tokens = CN_MIN(n_tokens, max_tokens);
    child->no_wait = true;
    kv_seq_adopt(child, ids, n_tokens, false);
    kv_seq_unwait(child);
    child->no_wait = false;
    i = child->len / bt;
    take = n_tokens - child->len;
    if (take == 0 || q->space->state) return 0; /* a part of a block is of no use without a state */
    if (take < bt && holds_alone(q, i)) {
        if (plan_copy(child, NULL, q, (uint32_t)take)) return 0;
        memcpy(child->tail, ids + child->len, take * sizeof(*ids));
        child->len += take;
        child->planned = child->len;
        kv_seq_leave_windows(child);
    } else {
        kv_seq_adopt(child, ids, n_tokens, true);
        kv_seq_unwait(child);
    }
    return 0;
}

/* ---- truncate -------------------------------------------------------------------------------- */

static bool windows_gone(const struct kv_seq *q, uint64_t n)
{
    for (uint32_t g = 0; g < q->space->n_groups; g++) {
        uint64_t first = kv_first_seen(&q->space->grp[g], n) / q->space->block_tokens;

        if (first < q->first[g]) return true;
    }
    return false;
}

/* Whether others may read block i: it is a node's, or a copy from it is planned. */
static bool is_shared(const struct kv_seq *q, uint64_t i)
{
    if (q->nodes[i]) return true;
    for (uint32_t g = 0; g < q->space->n_groups; g++) {
        if (kv_blk_of(q->space->pool, q->tables[g][i])->refs > 1) return true;
    }
    return false;
}

/* Block i is shared, and its first n tokens are to stay: a copy of its own takes its place. What
 * follows it is given up. */
static int own_copy(struct kv_seq *q, uint64_t i, uint32_t n)
{
    struct kv_space *s = q->space;
    struct kv_node *node = q->nodes[i];
    uint32_t fresh[64];

    for (uint32_t g = 0; g < s->n_groups; g++) {
        if (kv_block_alloc(&s->grp[g], q->tenant, &fresh[g]) == 0) continue;
        while (g > 0)
            kv_block_put(s->pool, fresh[--g]);
        return CN_ENOMEM;
    }
    kv_seq_drop_copies(q);
    kv_seq_drop_blocks(q, i + 1);
    for (uint32_t g = 0; g < s->n_groups; g++) {
        uint32_t old = q->tables[g][i];

        q->tables[g][i] = fresh[g];
        kv_mark(q, g, i);
        q->copies[g] = (struct kv_copy){g, fresh[g], old, n};
        kv_block_state(s->pool, fresh[g], KV_COPYING);
        /* a reference of its own keeps the source; what it held alone becomes that */
        if (!node || node->ent[g].block != old) continue;
        kv_blk_of(s->pool, old)->refs++;
        if (s->grp[g].loose) kv_ent_unref(&node->ent[g]);
    }
    if (node) {
        memcpy(q->tail, kv_node_ids(node), n * sizeof(*q->tail));
        q->nodes[i] = NULL;
        kv_node_unpin(node);
    }
    q->n_chain = q->n_named = CN_MIN(i, q->n_chain);
    q->n_copies = s->n_groups;
    q->copies_taken = false;
    q->copy_block = i;
    q->copy_src = NULL;
    return 0;
}

/* A copy that was planned for block `at` or a later one, when only n tokens stay. */
static void cut_copies(struct kv_seq *q, uint64_t n)
{
    uint32_t bt = q->space->block_tokens;
    uint64_t at = n / bt;

    if (!q->n_copies || q->copy_block < at) return;
    if (q->copy_block > at || n % bt == 0) {
        kv_seq_drop_copies(q);
        return;
    }
    for (uint32_t g = 0; g < q->n_copies; g++)
        q->copies[g].n_tokens = CN_MIN(q->copies[g].n_tokens, (uint32_t)(n % bt));
}

/* A state cannot be rewound: what was launched stays in it, unless there is a snapshot at n, or n
 * is 0. */
static int rewind_state(struct kv_seq *q, uint64_t n)
{
    bool intact = n >= q->len && (n == q->planned || q->extended_at == q->space->pool->launched);
    struct kv_node *snap = kv_snap_node(q, n);

    if (!intact && n && !snap) return CN_ENOENT;
    kv_snaps_drop(q);
    if (n < q->len) {
        kv_seq_drop_copies(q);
        q->detached = false;
        q->len = n;
    }
    q->planned = n;
    if (!intact && n)
        kv_snap_restore(q, snap);
    else
        q->copies_taken = false; /* handed out, perhaps, but not done */
    kv_seq_drop_blocks(q, kv_div_up(n, q->space->block_tokens));
    q->snap_pos = CN_MIN(q->snap_pos, n);
    if (q->rolled > n) q->rolled = 0;
    q->ids = NULL;
    kv_wake(&q->followers);
    return 0;
}

int kv_seq_truncate(struct kv_seq *q, uint64_t n)
{
    uint32_t bt = q->space->block_tokens;
    uint64_t at = n / bt;

    cn_assert(n <= q->planned);
    if (n < q->len && windows_gone(q, n)) return CN_ENOENT;
    if (q->space->state) return rewind_state(q, n);
    if (n < q->planned)
        kv_seq_retract(q, at); /* others must not wait for a block that may never be filled */
    if (n < q->len) {
        bool in_chain = n <= q->n_chain * bt;

        if (n % bt && is_shared(q, at)) {
            int rc = own_copy(q, at, (uint32_t)(n % bt));
            if (rc) return rc;
        } else {
            cut_copies(q, n);
        }
        if (in_chain) q->detached = false;
        q->len = n;
    }
    q->planned = n;
    kv_seq_drop_blocks(q, kv_div_up(n, bt));
    return 0;
}
