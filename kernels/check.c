/* check: everything that a batch, its draws or a copy could be wrong in, before a device touches
 * memory with them. The host's thread. Cost grows with the rows and with the blocks that attention
 * will read, nothing else. */
#include "kernels/device.h"
#include "kernels/plan.h"
#include "kernels/sight.h"

#include <stdlib.h>

int kr_exec_init(struct kr_exec *x, const struct kr_device *d, const struct kr_plan *p,
                 const struct kr_prepare_opts *opts, struct cn_error *err)
{
    x->ops = d->ops;
    x->opts = *opts;
    x->n_tables = kr_plan_tables(p, &x->n_tokens);
    kr_plan_count(p, &x->info);
    x->info.embeds = x->n_tables == 1;
    x->logit_rows = cn_calloc(opts->max_rows, sizeof *x->logit_rows);
    x->seen = cn_calloc(opts->max_rows, sizeof *x->seen);
    bool keeps = d->ops->draw_new && opts->max_seqs && !opts->measure;
    if (keeps) x->draws_at = cn_calloc(opts->max_seqs, sizeof *x->draws_at);
    return x->logit_rows && x->seen && (x->draws_at || !keeps)
               ? 0
               : cn_fail(err, CN_ENOMEM, "out of memory for a step's rows");
}

void kr_exec_fini(struct kr_exec *x)
{
    free(x->logit_rows);
    free(x->seen);
    free(x->draws_at);
}

bool kr_block_inside(const struct kr_kv_mem *m, uint64_t block_bytes, uint32_t block)
{
    uint64_t slab = block >> KR_BLOCK_INDEX_BITS;
    uint64_t index = block & ((1u << KR_BLOCK_INDEX_BITS) - 1);
    return slab < m->n_slabs && (index + 1) * block_bytes <= m->slab_bytes;
}

/* ---- batches --------------------------------------------------------------------------------- */

/* Rows may name ids of steps whose ids the device still keeps. */
static int check_ticket(const struct kr_exec *x, const struct kr_row *r, uint32_t i,
                        struct cn_error *err)
{
    uint64_t t = r->from.ticket;
    if (!x->ids_kept) return cn_fail(err, CN_EUNSUPP, "row %u wants an id of an earlier step", i);
    if (!t || t > x->ticket || t + x->ids_kept <= x->ticket + 1)
        return cn_fail(err, CN_EINVAL, "row %u wants an id of step %llu, the last one is %llu", i,
                       (unsigned long long)t, (unsigned long long)x->ticket);
    return 0;
}

static int check_row(const struct kr_exec *x, const struct kr_batch *b, uint32_t i,
                     struct cn_error *err)
{
    const struct kr_row *r = &b->rows[i];
    if (r->seq >= b->n_seqs)
        return cn_fail(err, CN_ERANGE, "row %u is of sequence %u of %u", i, r->seq, b->n_seqs);
    if (r->pos >= x->opts.max_context)
        return cn_fail(err, CN_ERANGE, "row %u is at position %u, positions end at %llu", i, r->pos,
                       (unsigned long long)x->opts.max_context);
    if (r->adapter > x->info.n_adapters)
        return cn_fail(err, CN_EUNSUPP, "row %u wants adapter %u, there are %u", i, r->adapter,
                       x->info.n_adapters);
    if (r->turns && !x->info.turns)
        return cn_fail(err, CN_EUNSUPP, "row %u has three positions, this model uses one", i);
    if (r->both_until && !x->info.both_ways)
        return cn_fail(err, CN_EUNSUPP, "row %u wants to see what is behind it", i);
    if (r->src == KR_ROW_TICKET) return check_ticket(x, r, i, err);
    if (r->src == KR_ROW_EMBED && x->n_tables != 1)
        return cn_fail(err, CN_EUNSUPP,
                       "row %u is an embedding, this model looks tokens up %u times", i,
                       x->n_tables);
    if (r->src == KR_ROW_TOKEN && r->token >= x->n_tokens)
        return cn_fail(err, CN_ERANGE, "row %u is token %u, tokens end at %u", i, r->token,
                       x->n_tokens);
    if (r->src > KR_ROW_TICKET || (r->src == KR_ROW_EMBED && !r->embed))
        return cn_fail(err, CN_EINVAL, "row %u has no token and no embedding", i);
    return 0;
}

/* All blocks that rows at positions [p0, p1] of a sequence read or write are in the memory. */
static int check_blocks(const struct kr_exec *x, const struct kr_kv_mem *m,
                        const struct kr_batch *b, uint32_t seq, uint32_t p0, uint32_t p1,
                        struct cn_error *err)
{
    uint32_t bt = x->opts.block_tokens;
    for (uint32_t g = 0; g < x->info.n_groups; g++) {
        const struct kr_kv_group *group = &x->info.groups[g];
        struct kr_sight sight = kr_sight_of(group, p1 + 1);
        uint64_t first, unused;
        if (sight.span == KR_SPAN_BOTH && p0)
            return cn_fail(err, CN_EINVAL,
                           "sequence %u begins at position %u: an encoder sees it whole", seq, p0);
        kr_sight_at(&sight, p0, &first, &unused);
        const uint32_t *table = b->seqs[seq].tables ? b->seqs[seq].tables[g] : NULL;
        if (!table) return cn_fail(err, CN_EINVAL, "sequence %u has no table of group %u", seq, g);
        uint64_t last = p1 / bt;
        if (sight.span == KR_SPAN_STATE) first = last = 0;
        for (uint64_t i = first / bt; i <= last; i++)
            if (!kr_block_inside(m, group->block_bytes, table[i]))
                return cn_fail(err, CN_ERANGE,
                               "sequence %u, group %u: block %u at %llu is outside the KV memory",
                               seq, g, table[i], (unsigned long long)i);
    }
    return 0;
}

static int check_slot(const struct kr_exec *x, const struct kr_batch *b, uint32_t seq,
                      struct cn_error *err)
{
    bool kept = x->ops->max_depth > 1 && x->opts.max_seqs;
    if (!kept || b->seqs[seq].slot < x->opts.max_seqs) return 0;
    return cn_fail(err, CN_ERANGE, "sequence %u has slot %u of %u", seq, b->seqs[seq].slot,
                   x->opts.max_seqs);
}

static int check_sequence(struct kr_exec *x, const struct kr_kv_mem *m, const struct kr_batch *b,
                          uint32_t row, uint32_t *next, struct cn_error *err)
{
    uint32_t seq = b->rows[row].seq, r = row;
    if (x->seen[seq] == x->round)
        return cn_fail(err, CN_EINVAL, "the rows of sequence %u do not stand together", seq);
    x->seen[seq] = x->round;
    for (r++; r < b->n_rows && b->rows[r].seq == seq; r++) {
        int rc = check_row(x, b, r, err);
        if (rc) return rc;
        if (b->rows[r].pos != b->rows[r - 1].pos + 1)
            return cn_fail(err, CN_EINVAL, "sequence %u: position %u after %u", seq, b->rows[r].pos,
                           b->rows[r - 1].pos);
    }
    *next = r;
    if (b->seqs[seq].n_more)
        return cn_fail(err, CN_EUNSUPP, "sequence %u reads the keys of %u others", seq,
                       b->seqs[seq].n_more);
    int rc = check_slot(x, b, seq, err);
    return rc ? rc : check_blocks(x, m, b, seq, b->rows[row].pos, b->rows[r - 1].pos, err);
}

/* Notes which rows want logits. */
static int find_logit_rows(struct kr_exec *x, const struct kr_batch *b, struct cn_error *err)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < b->n_rows; r++) {
        if (!b->rows[r].logits) continue;
        if (n == x->opts.max_logit_rows && !b->drawn)
            return cn_fail(err, CN_ELIMIT, "more than %u rows want logits", n);
        x->logit_rows[n++] = r;
    }
    x->n_wanted = n;
    return 0;
}

int kr_check_batch(struct kr_exec *x, const struct kr_kv_mem *m, const struct kr_batch *b,
                   struct cn_error *err)
{
    if (x->opts.measure) return cn_fail(err, CN_EINVAL, "the plan was measured, not made ready");
    if (!b->n_rows || !b->rows) return cn_fail(err, CN_EINVAL, "the batch has no rows");
    if (b->n_rows > x->opts.max_rows)
        return cn_fail(err, CN_ELIMIT, "the batch has %u rows, at most %u are possible", b->n_rows,
                       x->opts.max_rows);
    if (!b->n_seqs || !b->seqs || b->n_seqs > x->opts.max_rows)
        return cn_fail(err, CN_EINVAL, "the batch has %u sequences for %u rows", b->n_seqs,
                       b->n_rows);
    if (x->info.n_groups && !m) return cn_fail(err, CN_EINVAL, "the step has no KV memory");
    if (++x->round == 0) {
        for (uint32_t i = 0; i < x->opts.max_rows; i++)
            x->seen[i] = 0;
        x->round = 1;
    }
    for (uint32_t r = 0; r < b->n_rows;) {
        int rc = check_row(x, b, r, err);
        if (!rc) rc = check_sequence(x, m, b, r, &r, err);
        if (rc) return rc;
    }
    return find_logit_rows(x, b, err);
}

/* ---- draws and copies ------------------------------------------------------------------------ */

bool kr_draw_is_at(const struct kr_exec *x, struct kr_draw_at at)
{
    return x->draws_at && at.generation && at.slot < x->opts.max_seqs &&
           x->draws_at[at.slot] == at.generation;
}

int kr_check_draws(const struct kr_exec *x, const struct kr_draw *draws, uint32_t n,
                   struct cn_error *err)
{
    uint64_t next = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct kr_draw *d = &draws[i];
        if (d->row < next || d->n_guesses >= x->opts.max_logit_rows ||
            (uint64_t)d->row + d->n_guesses >= x->n_wanted)
            return cn_fail(err, CN_ERANGE, "draw %u is of row %u and %u more, of %u with logits", i,
                           d->row, d->n_guesses, x->n_wanted);
        next = (uint64_t)d->row + d->n_guesses + 1;
        if (d->state && x->ops->draw_new && !kr_draw_is_at(x, d->at))
            return cn_fail(err, CN_EINVAL, "draw %u: slot %u has no choice of generation %llu", i,
                           d->at.slot, (unsigned long long)d->at.generation);
    }
    return 0;
}

int kr_check_copy(const struct kr_exec *x, const struct kr_kv_mem *m, uint32_t group, uint32_t dst,
                  uint32_t src, uint32_t n_tokens)
{
    if (group >= x->info.n_groups) return CN_EINVAL;
    const struct kr_kv_group *g = &x->info.groups[group];
    if (n_tokens > x->opts.block_tokens && g->span != KR_SPAN_STATE) return CN_EINVAL;
    bool inside =
        kr_block_inside(m, g->block_bytes, dst) && kr_block_inside(m, g->block_bytes, src);
    return inside ? 0 : CN_ERANGE;
}

int kr_check_moves(const struct kr_exec *x, const struct kr_kv_mem *m, const struct kr_move *moves,
                   uint32_t n, struct cn_error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct kr_move *v = &moves[i];
        if (v->group >= x->info.n_groups ||
            !kr_block_inside(m, x->info.groups[v->group].block_bytes, v->block))
            return cn_fail(err, CN_ERANGE, "block %u of group %u is outside the KV memory",
                           v->block, v->group);
    }
    return 0;
}
