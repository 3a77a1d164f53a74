/* check: everything a batch could be wrong in, before a step touches memory with it. Engine thread.
 * Cost grows with the rows and with the blocks that attention will read, nothing else. */
#include "kernels/cpu/cpu.h"

static int check_row(const struct kr_cpu_exec *x, const struct kr_batch *b, uint32_t i,
                     struct cn_error *err)
{
    const struct kr_row *r = &b->rows[i];
    if (r->seq >= b->n_seqs)
        return cn_fail(err, CN_ERANGE, "row %u is of sequence %u of %u", i, r->seq, b->n_seqs);
    if (r->pos[0] >= x->opts.max_context)
        return cn_fail(err, CN_ERANGE, "row %u is at position %u, positions end at %llu", i,
                       r->pos[0], (unsigned long long)x->opts.max_context);
    if (r->adapter) return cn_fail(err, CN_EUNSUPP, "row %u wants an adapter", i);
    if (r->src == KR_ROW_TICKET)
        return cn_fail(err, CN_EUNSUPP, "row %u wants an id of an earlier step", i);
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
static int check_blocks(const struct kr_cpu_exec *x, const struct kr_cpu_mem *m,
                        const struct kr_batch *b, uint32_t seq, uint32_t p0, uint32_t p1,
                        struct cn_error *err)
{
    uint32_t bt = x->opts.block_tokens;
    for (uint32_t g = 0; g < x->base.info.n_groups; g++) {
        struct kr_sight sight = kr_cpu_sight(x, g, p1 + 1);
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
            if (!kr_cpu_block(x, m, g, table[i]))
                return cn_fail(err, CN_ERANGE,
                               "sequence %u, group %u: block %u at %llu is outside the KV memory",
                               seq, g, table[i], (unsigned long long)i);
    }
    return 0;
}

static int check_sequence(struct kr_cpu_exec *x, const struct kr_cpu_mem *m,
                          const struct kr_batch *b, uint32_t row, uint32_t *next,
                          struct cn_error *err)
{
    uint32_t seq = b->rows[row].seq, r = row;
    if (x->seq_seen[seq] == x->check)
        return cn_fail(err, CN_EINVAL, "the rows of sequence %u do not stand together", seq);
    x->seq_seen[seq] = x->check;
    for (r++; r < b->n_rows && b->rows[r].seq == seq; r++) {
        int rc = check_row(x, b, r, err);
        if (rc) return rc;
        if (b->rows[r].pos[0] != b->rows[r - 1].pos[0] + 1)
            return cn_fail(err, CN_EINVAL, "sequence %u: position %u after %u", seq,
                           b->rows[r].pos[0], b->rows[r - 1].pos[0]);
    }
    *next = r;
    return check_blocks(x, m, b, seq, b->rows[row].pos[0], b->rows[r - 1].pos[0], err);
}

int kr_cpu_check_batch(struct kr_cpu_exec *x, const struct kr_cpu_mem *m, const struct kr_batch *b,
                       uint32_t *n_logits, struct cn_error *err)
{
    if (!b->n_rows || !b->rows) return cn_fail(err, CN_EINVAL, "the batch has no rows");
    if (b->n_rows > x->opts.max_rows)
        return cn_fail(err, CN_ELIMIT, "the batch has %u rows, at most %u are possible", b->n_rows,
                       x->opts.max_rows);
    if (!b->n_seqs || !b->seqs || b->n_seqs > x->opts.max_rows)
        return cn_fail(err, CN_EINVAL, "the batch has %u sequences for %u rows", b->n_seqs,
                       b->n_rows);
    if (x->base.info.n_groups && !m) return cn_fail(err, CN_EINVAL, "the step has no KV memory");
    if (++x->check == 0) {
        for (uint32_t i = 0; i < x->opts.max_rows; i++)
            x->seq_seen[i] = 0;
        x->check = 1;
    }
    for (uint32_t r = 0; r < b->n_rows;) {
        int rc = check_row(x, b, r, err);
        if (!rc) rc = check_sequence(x, m, b, r, &r, err);
        if (rc) return rc;
    }
    uint32_t n = 0;
    for (uint32_t r = 0; r < b->n_rows; r++) {
        if (!b->rows[r].logits) continue;
        if (n == x->opts.max_logit_rows && !b->drawn)
            return cn_fail(err, CN_ELIMIT, "more than %u rows want logits", n);
        x->logit_rows[n++] = r;
    }
    *n_logits = n;
    return 0;
}
