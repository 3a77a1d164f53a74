/* Recurrent state: live states, positions where a snapshot is wanted, snapshots on their way into
 * the tree and out of it, and sequences that wait for another's snapshot.
 *
 * A wanted position is a block boundary the sequence has yet to pass. When the rows after it are
 * reserved, a copy of the live state is planned to run before them; once they are computed, the
 * copy is complete and goes to the node that ends there. So at most one copy is new at a time, and
 * at most one per step in flight is pending. */
#include "kvpool/internal.h"

#include <string.h>

#define FOLLOW_LAUNCHES 8  /* steps of the pool that a leader may let pass */
#define ROLL            16 /* rolling snapshots: how many times further apart than others must be */

/* ---- live states ----------------------------------------------------------------------------- */

int kv_live_alloc(struct kv_seq *q, bool *fresh)
{
    *fresh = q->space->state && *kv_live(q) == KV_NO_BLOCK;
    if (*fresh) kv_mark(q, q->space->state->index, 0);
    return *fresh ? kv_block_alloc(q->space->state, q->tenant, kv_live(q)) : 0;
}

void kv_live_drop(struct kv_seq *q)
{
    uint32_t b = q->space->state ? *kv_live(q) : KV_NO_BLOCK;

    if (b == KV_NO_BLOCK) return;
    *kv_live(q) = KV_NO_BLOCK;
    kv_block_put(q->space->pool, b);
}

/* ---- wanted positions ------------------------------------------------------------------------ */

/* Whether a snapshot at pos could enter the tree, and saves enough beside the one before it. */
static bool is_worth(const struct kv_seq *q, uint64_t pos)
{
    return q->space->state && !(q->flags & KV_SEQ_NO_WRITE) && !q->detached &&
           pos <= q->share_tokens && pos >= q->snap_pos + q->space->state->tokens;
}

static uint32_t wants_before(const struct kv_seq *q, uint64_t pos)
{
    uint32_t i = 0;

    while (i < q->n_wants && q->wants[i] < pos)
        i++;
    return i;
}

bool kv_want(struct kv_seq *q, uint64_t pos)
{
    uint32_t i;

    pos -= pos % q->space->block_tokens;
    if (pos < q->planned || !is_worth(q, pos) || !kv_may_end(q, pos)) return false;
    i = wants_before(q, pos);
    if (i < q->n_wants && q->wants[i] == pos) return true;
    if (q->n_wants == q->cap_wants) return false;
    memmove(&q->wants[i + 1], &q->wants[i], (q->n_wants - i) * sizeof(*q->wants));
    q->wants[i] = pos;
    q->n_wants++;
    return true;
}

/* The last end of a block at or before pos where the sequence could end. */
static uint64_t end_before(const struct kv_seq *q, uint64_t pos)
{
    uint32_t bt = q->space->block_tokens;

    pos -= pos % bt;
    while (!kv_may_end(q, pos)) {
        pos = kv_range_cut(q->joined, q->n_joined, pos)->first;
        pos -= pos % bt;
    }
    return pos;
}

/* The end of a message: only if no other wanted position is near. */
static void want_mark(struct kv_seq *q, uint64_t pos)
{
    uint32_t i;

    pos = end_before(q, pos);
    i = wants_before(q, pos);
    if (i < q->n_wants && q->wants[i] - pos < q->space->state->tokens) return;
    if (i > 0 && pos - q->wants[i - 1] < q->space->state->tokens) return;
    kv_want(q, pos);
}

void kv_want_prompt(struct kv_seq *q, const uint32_t *ids, uint64_t n)
{
    q->ids = ids;
    q->n_ids = n;
    kv_want(q, end_before(q, n - 1));
    for (uint32_t k = q->n_marks; k > 0; k--) {
        if (q->marks[k - 1] <= n) want_mark(q, q->marks[k - 1]);
    }
}

static void pop_want(struct kv_seq *q)
{
    q->n_wants--;
    memmove(q->wants, q->wants + 1, q->n_wants * sizeof(*q->wants));
}

uint64_t kv_seq_room(const struct kv_seq *q)
{
    for (uint32_t i = 0; i < q->n_wants; i++) {
        if (q->wants[i] > q->planned) return q->wants[i] - q->planned;
    }
    return UINT64_MAX;
}

/* ---- taking snapshots ------------------------------------------------------------------------ */

static struct kv_ent *ent_at(const struct kv_seq *q, uint64_t pos)
{
    uint64_t i = pos / q->space->block_tokens;

    return i && i <= q->n_chain ? &q->nodes[i - 1]->ent[q->space->state->index] : NULL;
}

/* The block becomes the snapshot of the tree at pos, if there is none: then true. */
static bool install(struct kv_seq *q, uint64_t pos, uint32_t block)
{
    struct kv_ent *e = ent_at(q, pos);

    if (!e || kv_ent_node(e)->dead || e->block != KV_NO_BLOCK) return false;
    e->block = block;
    e->writer = q->serial;
    kv_blk_of(q->space->pool, block)->node = kv_ent_node(e);
    kv_node_settle(kv_ent_node(e));
    q->space->pool->snapshots_taken++;
    return true;
}

static bool plan(struct kv_seq *q, uint64_t pos, bool rolling)
{
    struct kv_grp *g = q->space->state;
    const struct kv_ent *e = ent_at(q, pos);
    uint32_t b;

    if (q->detached || q->n_snaps == KV_MAX_SNAPS || (e && e->block != KV_NO_BLOCK)) return false;
    if (kv_block_alloc_snapshot(g, q->tenant, pos - q->snap_pos, &b)) return false;
    kv_block_state(q->space->pool, b, KV_COPYING);
    q->snaps[q->n_snaps++] = (struct kv_snap){pos, b, rolling};
    q->copies[q->n_copies] = (struct kv_copy){g->index, b, *kv_live(q), q->space->block_tokens};
    q->snap_new = true;
    q->snap_pos = pos;
    return true;
}

void kv_wants_pass(struct kv_seq *q, uint64_t pos)
{
    bool missed = q->n_wants && q->wants[0] < pos;

    while (q->n_wants && q->wants[0] < pos)
        pop_want(q);
    if (missed) kv_wake(&q->followers);
}

/* While tokens are put out one snapshot goes with the sequence: for who continues the answer, and
 * for itself when it is preempted. */
static bool is_rolling(const struct kv_seq *q, uint64_t pos)
{
    const struct kv_space *s = q->space;

    return s->state && pos >= q->n_ids && pos % s->block_tokens == 0 && is_worth(q, pos) &&
           pos >= q->snap_pos + (uint64_t)ROLL * s->state->tokens;
}

/* The one before it is not needed any more. */
static void roll(struct kv_seq *q, uint64_t pos)
{
    struct kv_ent *old = q->rolled ? ent_at(q, q->rolled) : NULL;

    if (old && old->linked && old->writer == q->serial) kv_ent_forget(old);
    q->rolled = pos;
}

void kv_snaps_extend(struct kv_seq *q, uint64_t from, uint64_t to)
{
    kv_wants_pass(q, from);
    if (q->n_wants && q->wants[0] == from) {
        if (plan(q, from, false)) pop_want(q);
    } else if (is_rolling(q, from)) {
        plan(q, from, true);
    }
    kv_wants_pass(q, to);
}

void kv_snaps_commit(struct kv_seq *q)
{
    uint32_t done = 0;

    cn_assert(!q->snap_new || q->snaps[q->n_snaps - 1].pos >= q->len);
    while (done < q->n_snaps && q->snaps[done].pos < q->len) {
        const struct kv_snap *s = &q->snaps[done++];

        if (!install(q, s->pos, s->block))
            kv_block_put(q->space->pool, s->block);
        else if (s->rolling)
            roll(q, s->pos);
    }
    if (!done) return;
    q->n_snaps -= done;
    memmove(q->snaps, q->snaps + done, q->n_snaps * sizeof(*q->snaps));
    kv_wake(&q->followers);
}

void kv_snaps_drop(struct kv_seq *q)
{
    while (q->n_snaps)
        kv_block_put(q->space->pool, q->snaps[--q->n_snaps].block);
    q->snap_new = false;
}

void kv_snap_keep(struct kv_seq *q)
{
    if (!q->space->state || *kv_live(q) == KV_NO_BLOCK || (q->flags & KV_SEQ_NO_WRITE)) return;
    if (q->planned != q->len || q->n_copies || q->len % q->space->block_tokens) return;
    if (install(q, q->len, *kv_live(q))) *kv_live(q) = KV_NO_BLOCK;
}

/* ---- going back to one ----------------------------------------------------------------------- */

struct kv_node *kv_snap_node(const struct kv_seq *q, uint64_t pos)
{
    const struct kv_ent *e = pos % q->space->block_tokens ? NULL : ent_at(q, pos);

    return e && e->block != KV_NO_BLOCK ? kv_ent_node(e) : NULL;
}

void kv_snap_restore(struct kv_seq *q, struct kv_node *n)
{
    struct kv_grp *g = q->space->state;
    struct kv_ent *e = &n->ent[g->index];

    kv_node_pin(n);
    kv_ent_ref(e);
    kv_seq_drop_copies(q);
    q->copies[0] = (struct kv_copy){g->index, *kv_live(q), e->block, q->space->block_tokens};
    kv_block_state(q->space->pool, *kv_live(q), KV_COPYING);
    q->n_copies = 1;
    q->copies_taken = false;
    q->copy_src = n;
    q->snap_pos = q->len;
    q->space->pool->snapshots_used++;
}

/* ---- following another sequence -------------------------------------------------------------- */

void kv_wake(struct kv_seq **waiters)
{
    while (*waiters)
        kv_seq_unwait(*waiters);
}

static void wait_on(struct kv_seq *q, struct kv_seq **waiters)
{
    q->wait = waiters;
    q->wait_prev = NULL;
    q->wait_next = *waiters;
    if (*waiters) (*waiters)->wait_prev = q;
    *waiters = q;
}

void kv_wait_node(struct kv_seq *q, struct kv_node *n)
{
    wait_on(q, &n->waiters);
}

void kv_follow(struct kv_seq *q, struct kv_seq *leader)
{
    q->leader = leader;
    wait_on(q, &leader->followers);
}

/* It has not gone on for a long time: paused, say, or of a model whose turn does not come. */
static bool is_stuck(const struct kv_seq *a)
{
    return a->space->pool->launched - a->active_at > FOLLOW_LAUNCHES;
}

bool kv_seq_waits(struct kv_seq *q)
{
    if (q->wait && q->leader && is_stuck(q->leader)) kv_seq_unwait(q);
    return q->wait != NULL;
}

void kv_seq_in_line(struct kv_seq *q)
{
    q->active_at = q->space->pool->launched;
}

void kv_seq_no_wait(struct kv_seq *q)
{
    kv_seq_unwait(q);
    q->no_wait = true;
}

/* The last position, at most d, where a snapshot of a is still to come; 0 = none. */
static uint64_t coming(const struct kv_seq *a, uint64_t d)
{
    uint64_t pos = 0;

    for (uint32_t i = 0; i < a->n_snaps; i++) {
        if (a->snaps[i].pos <= d) pos = a->snaps[i].pos;
    }
    for (uint32_t i = 0; i < a->n_wants && a->wants[i] <= d; i++)
        pos = a->wants[i];
    return pos;
}

static bool may_lead(const struct kv_seq *a, const struct kv_seq *q)
{
    if (a == q || a->root != q->root || a->closed || a->wait || !a->ids) return false;
    if (a->detached || (a->flags & (KV_SEQ_NO_WRITE | KV_SEQ_NO_LEAD))) return false;
    if (a->planned < q->planned) return false;
    return (a->n_wants || a->n_snaps || a->planned < a->n_ids) && !is_stuck(a);
}

struct kv_seq *kv_leader(struct kv_seq *q, const uint32_t *ids, uint64_t limit, uint64_t from)
{
    uint64_t least = from + q->space->state->tokens, best_pos = 0;
    struct kv_seq *best = NULL;

    if (least > limit) return NULL;
    for (struct kv_seq *a = q->space->pool->seqs; a; a = a->all_next) {
        uint64_t d, pos;

        if (!may_lead(a, q)) continue;
        d = kv_common(a->ids, ids, CN_MIN(limit, a->n_ids));
        d -= d % q->space->block_tokens;
        if (d < least) continue;
        pos = coming(a, d);
        if (d >= pos + q->space->state->tokens && kv_want(a, d)) pos = d;
        if (pos < least || pos <= best_pos) continue;
        best = a;
        best_pos = pos;
    }
    return best;
}
