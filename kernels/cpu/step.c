/* step: runs a prepared plan on a batch.
 *
 * Launch checks the batch, cuts it for attention and wakes the pool once; every thread then walks
 * the levels by itself. Engine thread outside, all threads inside; `now` does not change inside. */
#include "kernels/cpu/cpu.h"

static void multiply(const struct kr_cpu_exec *x, uint32_t thread, uint32_t job,
                     const struct kr_step *s)
{
    const struct kr_plan_op *op = &x->plan->ops[s->op];
    const struct kr_packed *w = &x->packed[s->weight];
    uint32_t in = (uint32_t)op->in[0], out = (uint32_t)op->out, lo, hi;
    uint32_t rows = s->domain == KR_DOM_ROWS ? x->now.n_rows : x->now.n_logits;
    uint32_t groups = (w->rows + KR_PACK_ROWS - 1) / KR_PACK_ROWS;
    struct kr_pool *pool = x->dev->pool;
    struct kr_q8 q = { 0 };
    if (!rows) return;
    if (s->slot) q = kr_slot_q8(x, thread, s->slot, w->cols);
    const float *a = kr_slot_mem(x, thread, in);
    float *y = kr_slot_mem(x, thread, out);
    struct kr_cursor c = kr_cursor_start(pool, job, thread, (groups + 1) / 2, s->chunk);
    while (kr_cursor_next(pool, &c, &lo, &hi))
        x->dev->mm.matmul(w, 2 * lo, CN_MIN(2 * hi, groups), &q, a, x->slots[in].stride, 0, rows,
                          s->vec, y, x->slots[out].stride);
}

/* Rows as wide as a vocabulary: a piece is some columns of a row. */
static void wide_elementwise(const struct kr_cpu_exec *x, uint32_t thread, uint32_t job,
                             const struct kr_step *s)
{
    const struct kr_plan_op *op = &x->plan->ops[s->op];
    uint32_t width = x->plan->values[op->out].width, lo, hi;
    uint32_t parts = (width + KR_WIDE_PART - 1) / KR_WIDE_PART;
    uint32_t rows = s->domain == KR_DOM_ROWS ? x->now.n_rows : x->now.n_logits;
    struct kr_cursor c = kr_cursor_start(x->dev->pool, job, thread, rows * parts, 1);
    while (kr_cursor_next(x->dev->pool, &c, &lo, &hi)) {
        uint32_t c0 = lo % parts * KR_WIDE_PART;
        kr_cpu_elementwise(x, thread, op, lo / parts, c0, CN_MIN(c0 + KR_WIDE_PART, width));
    }
}

static void heavy_work(struct kr_cpu_exec *x, uint32_t thread, const struct kr_level *l)
{
    for (uint32_t i = l->heavy_begin; i < l->heavy_end; i++) {
        const struct kr_step *s = &x->heavy_steps[i];
        enum kr_op_kind kind = x->plan->ops[s->op].kind;
        uint32_t job = i - l->heavy_begin;
        if (kind == KR_OP_ATTENTION)
            kr_cpu_attention(x, thread, job, s);
        else if (kind == KR_OP_MATMUL)
            multiply(x, thread, job, s);
        else
            wide_elementwise(x, thread, job, s);
    }
}

/* Rows are given out a few at a time; a row's ops of one level stay with one thread. */
static void shared_row_work(struct kr_cpu_exec *x, uint32_t thread, const struct kr_level *l)
{
    struct kr_pool *pool = x->dev->pool;
    uint32_t threads = kr_pool_threads(pool), n = x->now.n_rows, lo, hi;
    struct kr_cursor c = kr_cursor_start(pool, 0, thread, n, CN_MIN(n / (4 * threads) + 1, 8u));
    while (kr_cursor_next(pool, &c, &lo, &hi)) {
        if (!l->logits_only) kr_cpu_row_work(x, thread, l, KR_DOM_ROWS, lo, hi);
        if (lo < x->now.n_logits)
            kr_cpu_row_work(x, thread, l, KR_DOM_LOGITS, lo, CN_MIN(hi, x->now.n_logits));
    }
    kr_pool_barrier(pool, 1);
}

static void own_row_work(struct kr_cpu_exec *x, uint32_t thread, const struct kr_level *l)
{
    kr_cpu_row_work(x, thread, l, KR_DOM_ROWS, 0, x->now.n_rows);
    kr_cpu_row_work(x, thread, l, KR_DOM_LOGITS, 0, x->now.n_logits);
    if (l->lone_write) kr_pool_barrier(x->dev->pool, 0);
}

static void run_levels(void *arg, uint32_t thread)
{
    struct kr_cpu_exec *x = arg;
    uint32_t end = x->n_levels;
    /* Without logits only what the pool keeps is of use. */
    if (!x->now.n_logits) end = CN_MIN(end, x->last_kv_level + 1);
    for (uint32_t i = 0; i < end; i++) {
        const struct kr_level *l = &x->levels[i];
        bool last = !x->now.n_logits && i + 1 == end;
        if (l->logits_only && !x->now.n_logits) continue;
        if (l->row_begin < l->row_end) {
            if (x->now.few)
                own_row_work(x, thread, l);
            else
                shared_row_work(x, thread, l);
        }
        if (l->heavy_begin == l->heavy_end || (last && !x->now.few)) continue;
        heavy_work(x, thread, l);
        if (i + 1 < end) kr_pool_barrier(x->dev->pool, l->heavy_end - l->heavy_begin);
    }
}

int kr_cpu_launch(struct kr_exec *base, struct kr_kv_mem *m, const struct kr_batch *b,
                  uint64_t *ticket, struct cn_error *err)
{
    struct kr_cpu_exec *x = CN_CONTAINER(base, struct kr_cpu_exec, base);
    struct kr_cpu_mem *mem = m ? CN_CONTAINER(m, struct kr_cpu_mem, base) : NULL;
    uint32_t n_logits;
    int rc = kr_cpu_check_batch(x, mem, b, &n_logits, err);
    if (rc) return rc;
    x->now = (struct kr_bound){ .batch = b, .mem = mem, .n_rows = b->n_rows, .n_logits = n_logits,
                                .few = x->dev->fuse && b->n_rows <= KR_FEW_ROWS };
    kr_cpu_cut_batch(x);
    if (kr_pool_run(x->dev->pool, x->n_jobs, run_levels, x))
        return cn_fail(err, CN_ENOMEM, "out of memory");
    x->now.batch = NULL;
    *ticket = ++x->ticket;
    return 0;
}

int kr_cpu_collect(struct kr_exec *base, uint64_t ticket, float **logits, struct cn_error *err)
{
    struct kr_cpu_exec *x = CN_CONTAINER(base, struct kr_cpu_exec, base);
    if (!ticket || ticket != x->ticket)
        return cn_fail(err, CN_EINVAL, "there is no step %llu to collect",
                       (unsigned long long)ticket);
    *logits = x->shared[KR_DOM_LOGITS] + x->slots[x->plan->output].at * x->now.n_logits;
    return 0;
}
