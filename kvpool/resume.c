/* Sequences that lost their blocks and get what those held back from elsewhere. */
#include "kvpool/internal.h"

/* The first logical block of a group that a row at position n sees. */
static uint64_t first_block(const struct kv_grp *g, uint64_t n)
{
    return kv_first_seen(g, n) / g->space->block_tokens;
}

uint32_t kv_seq_held(const struct kv_seq *q, uint64_t from, uint64_t to, struct kv_held *out)
{
    const struct kv_space *s = q->space;
    uint64_t end = kv_div_up(to, s->block_tokens);
    uint32_t n = 0;

    if (q->n_copies && !q->copies_taken) return 0;
    for (uint32_t g = 0; g < s->n_groups && from < to; g++) {
        if (&s->grp[g] == s->state) {
            if (out) out[n] = (struct kv_held){g, *kv_live(q), 0};
            n++;
            continue;
        }
        uint64_t i = CN_MAX(first_block(&s->grp[g], to), from / s->block_tokens);

        for (; i < end; i++, n++) {
            if (out) out[n] = (struct kv_held){g, q->tables[g][i], i};
        }
    }
    return n;
}

/* Blocks of a group from logical block `from` on, those that a row at n sees; all or nothing. */
static int take_group(struct kv_seq *q, struct kv_grp *g, uint64_t from, uint64_t n)
{
    uint64_t first = CN_MAX(from, first_block(g, n)), end = kv_div_up(n, q->space->block_tokens);

    for (uint64_t i = from; i < first; i++)
        q->tables[g->index][i] = KV_NO_BLOCK;
    for (uint64_t i = first; i < end; i++) {
        if (kv_block_alloc(g, q->tenant, &q->tables[g->index][i]) == 0) continue;
        while (i-- > first) {
            kv_block_put(q->space->pool, q->tables[g->index][i]);
            q->tables[g->index][i] = KV_NO_BLOCK;
        }
        return CN_ENOMEM;
    }
    if (from < end) kv_mark(q, g->index, from);
    return 0;
}

static void give_group(struct kv_seq *q, const struct kv_grp *g, uint64_t from, uint64_t n)
{
    uint64_t i = CN_MAX(from, first_block(g, n)), end = kv_div_up(n, q->space->block_tokens);

    for (; i < end; i++) {
        kv_block_put(q->space->pool, q->tables[g->index][i]);
        q->tables[g->index][i] = KV_NO_BLOCK;
    }
}

static int take_all(struct kv_seq *q, uint64_t n)
{
    struct kv_space *s = q->space;
    uint64_t from = q->n_blocks;

    for (uint32_t g = 0; g < s->n_groups; g++) {
        if (&s->grp[g] == s->state || take_group(q, &s->grp[g], from, n) == 0) continue;
        while (g-- > 0) {
            if (&s->grp[g] != s->state) give_group(q, &s->grp[g], from, n);
        }
        return CN_ENOMEM;
    }
    return 0;
}

int kv_seq_resume(struct kv_seq *q, const uint32_t *ids, uint64_t n_tokens)
{
    struct kv_space *s = q->space;
    bool fresh;
    int rc;

    cn_assert(q->planned == 0 && n_tokens <= q->max_tokens);
    if (!s->state) kv_seq_adopt(q, ids, n_tokens, false);
    kv_seq_unwait(q); /* for a block that another one fills: it has its own */
    if (q->len >= n_tokens) return 0;
    rc = kv_live_alloc(q, &fresh);
    if (rc) return rc;
    rc = take_all(q, n_tokens);
    if (rc) {
        if (fresh) kv_live_drop(q);
        return rc;
    }
    for (uint32_t g = 0; g < s->n_groups; g++) {
        if (&s->grp[g] != s->state && s->grp[g].loose) q->detached = true; /* some are not there */
    }
    q->n_blocks = kv_div_up(n_tokens, s->block_tokens);
    q->planned = n_tokens;
    q->active_at = q->extended_at = s->pool->launched;
    if (s->state) kv_wants_pass(q, n_tokens);
    return 0;
}
