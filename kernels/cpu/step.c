/* step: runs a prepared plan on a batch.
 *
 * Launch checks the batch, cuts it for attention, sets how much there is of each job and hands the
 * stages to the pool. Engine thread outside, all threads inside; `now` does not change inside. */
#include "kernels/cpu/cpu.h"

/* Of weights that a thread without work fetches: some of a second-level cache. */
#define AHEAD_BYTES (256u << 10)

/* ---- jobs ------------------------------------------------------------------------------------ */

static void row_job(void *arg, uint32_t index, uint32_t thread, uint32_t lo, uint32_t hi)
{
    const struct kr_cpu_exec *x = arg;
    kr_cpu_row_work(x, &x->levels[index / KR_N_DOMAINS], (enum kr_domain)(index % KR_N_DOMAINS), lo,
                    hi);
}

/* Units of a product: pairs of row groups. */
static uint32_t matmul_units(const struct kr_packed *w)
{
    return ((w->rows + KR_PACK_ROWS - 1) / KR_PACK_ROWS + 1) / 2;
}

/* The weights of pairs [.., hi); a thread that ends its share reads its share of another matrix
 * next. */
static struct kr_packed weights_to(const struct kr_cpu_exec *x, const struct kr_step *s,
                                   uint32_t thread, uint32_t hi)
{
    struct kr_packed w = x->packed[s->weight];
    const struct kr_packed *next = &x->packed[s->then];
    uint32_t n = matmul_units(&w), threads = kr_pool_threads(x->dev->pool);
    if (hi != n && hi != kr_pool_share(n, threads, thread + 1)) return w;
    uint32_t g = 2 * kr_pool_share(matmul_units(next), threads, thread);
    w.then = (const uint8_t *)next->data + kr_group_range_bytes(next, 0, g);
    w.then_other = kr_group_range_bytes(next, 0, 1);
    uint32_t end = 2 * kr_pool_share(matmul_units(next), threads, thread + 1);
    kr_pool_ahead(x->dev->pool, thread, w.then,
                  CN_MIN(kr_group_range_bytes(next, g, end), (uint64_t)AHEAD_BYTES));
    return w;
}

static void matmul_job(void *arg, uint32_t index, uint32_t thread, uint32_t lo, uint32_t hi)
{
    struct kr_cpu_exec *x = arg;
    const struct kr_step *s = &x->heavy_steps[index];
    const struct kr_plan_op *op = &x->plan->ops[s->op];
    const struct kr_packed w = weights_to(x, s, thread, hi);
    uint32_t in = (uint32_t)op->in[0], out = (uint32_t)op->out;
    uint32_t groups = (w.rows + KR_PACK_ROWS - 1) / KR_PACK_ROWS;
    struct kr_q8 q = {0};
    if (s->slot) q = kr_slot_q8(x, s->slot, w.cols);
    kr_matmul(&x->dev->mm, &w, 2 * lo, CN_MIN(2 * hi, groups), &q, kr_slot_mem(x, in),
              x->slots[in].stride, 0, kr_domain_rows(x, s->domain), s->bias, kr_slot_mem(x, out),
              x->slots[out].stride);
    x->touched[thread].dense += kr_group_range_bytes(&w, 2 * lo, CN_MIN(2 * hi, groups));
}

static void attention_job(void *arg, uint32_t index, uint32_t thread, uint32_t lo, uint32_t hi)
{
    struct kr_cpu_exec *x = arg;
    for (uint32_t i = lo; i < hi; i++)
        kr_cpu_attention(x, thread, &x->heavy_steps[index], i);
}

static void shared_job(void *arg, uint32_t index, uint32_t thread, uint32_t lo, uint32_t hi)
{
    struct kr_cpu_exec *x = arg;
    for (uint32_t i = lo; i < hi; i++)
        kr_cpu_attention_shared(x, thread, &x->heavy_steps[index], i);
}

static void recurrent_job(void *arg, uint32_t index, uint32_t thread, uint32_t lo, uint32_t hi)
{
    const struct kr_cpu_exec *x = arg;
    for (uint32_t i = lo; i < hi; i++)
        kr_cpu_recurrent(x, &x->heavy_steps[index], i);
}

static void select_job(void *arg, uint32_t index, uint32_t thread, uint32_t lo, uint32_t hi)
{
    struct kr_cpu_exec *x = arg;
    for (uint32_t i = lo; i < hi; i++)
        kr_cpu_select(x, thread, &x->heavy_steps[index], i);
}

static uint32_t wide_parts(const struct kr_cpu_exec *x, const struct kr_step *s)
{
    uint32_t width = x->plan->values[x->plan->ops[s->op].out].width;
    return (width + KR_WIDE_PART - 1) / KR_WIDE_PART;
}

/* Rows as wide as a vocabulary: a unit is some columns of a row. */
static void wide_job(void *arg, uint32_t index, uint32_t thread, uint32_t lo, uint32_t hi)
{
    const struct kr_cpu_exec *x = arg;
    const struct kr_step *s = &x->heavy_steps[index];
    const struct kr_plan_op *op = &x->plan->ops[s->op];
    uint32_t width = x->plan->values[op->out].width, parts = wide_parts(x, s);
    for (uint32_t i = lo; i < hi; i++) {
        uint32_t c0 = i % parts * KR_WIDE_PART;
        kr_cpu_elementwise(x, op, i / parts, c0, CN_MIN(c0 + KR_WIDE_PART, width));
    }
}

/* ---- stages ---------------------------------------------------------------------------------- */

static void add_rows(struct kr_cpu_exec *x, struct kr_stage *stage, uint32_t level,
                     enum kr_domain domain)
{
    uint32_t n = kr_domain_rows(x, domain), threads = kr_pool_threads(x->dev->pool);
    if (!x->levels[level].has_rows[domain] || !n) return;
    x->jobs[stage->first_job + stage->n_jobs++] =
        (struct kr_job){.fn = row_job,
                        .index = KR_N_DOMAINS * level + domain,
                        .n = n,
                        .chunk = CN_MIN(n / (4 * threads) + 1, 8u)};
}

static void add_heavy(struct kr_cpu_exec *x, struct kr_stage *stage, uint32_t index)
{
    const struct kr_step *s = &x->heavy_steps[index];
    const struct kr_plan_op *op = &x->plan->ops[s->op];
    uint32_t rows = kr_domain_rows(x, s->domain);
    if (!rows) return;
    struct kr_job *j = &x->jobs[stage->first_job + stage->n_jobs++];
    *j = (struct kr_job){.index = index, .chunk = 1};
    if (op->kind == KR_OP_ATTENTION || op->kind == KR_OP_SELECT) {
        j->fn = op->kind == KR_OP_SELECT ? select_job : attention_job;
        j->n = kr_cpu_attention_works(x, s, false);
        if (op->kind == KR_OP_ATTENTION) j->chunk = kr_cpu_attention_chunk(x, s, j->n);
    } else if (op->state >= 0) {
        j->fn = recurrent_job;
        j->n = kr_cpu_recurrent_units(x, s);
    } else if (op->kind == KR_OP_MATMUL) {
        j->fn = matmul_job;
        j->n = matmul_units(&x->packed[s->weight]);
        j->chunk = s->chunk;
    } else if (s->kind == KR_STEP_GROUP || kr_is_product(op)) {
        kr_cpu_add_expert_job(x, j, index);
    } else {
        j->fn = wide_job;
        j->n = rows * wide_parts(x, s);
    }
}

/* What comes before a level's heavy work: attention to keys that sequences share. */
static void add_shared(struct kr_cpu_exec *x, struct kr_stage *stage, uint32_t level)
{
    const struct kr_level *l = &x->levels[level];
    for (uint32_t i = l->heavy_begin; i < l->heavy_end; i++) {
        const struct kr_step *s = &x->heavy_steps[i];
        if (x->plan->ops[s->op].kind != KR_OP_ATTENTION || s->kind != KR_STEP_OP) continue;
        uint32_t n = kr_cpu_attention_works(x, s, true);
        if (!n) continue;
        x->jobs[stage->first_job + stage->n_jobs++] =
            (struct kr_job){.fn = shared_job, .index = i, .n = n, .chunk = 1};
    }
}

static void chain_job(void *arg, uint32_t index, uint32_t thread, uint32_t lo, uint32_t hi)
{
    for (uint32_t i = lo; i < hi; i++)
        kr_cpu_chain(arg, thread, index, i);
}

/* What of a level is its own stages' to do: a chain that begins there, or what no chain did. */
struct due { bool chain, rows, heavy; };

static void make_level(struct kr_cpu_exec *x, uint32_t level, struct due due,
                       struct kr_stage stages[KR_STAGES_A_LEVEL], uint32_t *n_jobs)
{
    const struct kr_level *l = &x->levels[level];
    const bool last = !x->base.n_wanted && level + 1 == x->now.n_levels;
    struct kr_stage *rows = &stages[KR_STAGE_ROWS], *shared = &stages[KR_STAGE_SHARED];
    struct kr_stage *heavy = &stages[KR_STAGE_HEAVY];
    *rows = (struct kr_stage){.first_job = *n_jobs};
    if (due.chain)
        x->jobs[*n_jobs + rows->n_jobs++] =
            (struct kr_job){.fn = chain_job, .index = level, .n = x->now.chain_parts, .chunk = 1};
    for (int d = 0; due.rows && d < KR_N_DOMAINS; d++)
        add_rows(x, rows, level, (enum kr_domain)d);
    *n_jobs += rows->n_jobs;
    *shared = (struct kr_stage){.first_job = *n_jobs};
    if (due.heavy && !last) add_shared(x, shared, level);
    *n_jobs += shared->n_jobs;
    *heavy = (struct kr_stage){.first_job = *n_jobs};
    for (uint32_t i = l->heavy_begin; due.heavy && i < l->heavy_end; i++)
        if (!last || x->plan->ops[x->heavy_steps[i].op].state >= 0) add_heavy(x, heavy, i);
    *n_jobs += heavy->n_jobs;
}

/* The step's stages: row work and heavy work of each level, or chains of it. Without logits only
 * what the pool keeps is of use, so that the last store of K and V or of a state is the end. */
static uint32_t make_stages(struct kr_cpu_exec *x)
{
    uint32_t n_jobs = 0, rows_from = 0, heavy_from = 0;
    x->now.n_levels = x->n_levels;
    if (!x->base.n_wanted) x->now.n_levels = CN_MIN(x->n_levels, x->last_kv_level + 1);
    x->now.chain_parts = kr_cpu_chain_parts(x);
    for (uint32_t l = 0; l < x->now.n_levels; l++) {
        const struct kr_level *v = &x->levels[l];
        struct due due = {.chain = x->now.chain_parts && l >= rows_from && v->chain_rows};
        if (due.chain) {
            rows_from = l + v->chain_rows;
            heavy_from = l + v->chain_heavy;
        }
        due.rows = l >= rows_from;
        due.heavy = l >= heavy_from;
        make_level(x, l, due, &x->stages[KR_STAGES_A_LEVEL * l], &n_jobs);
    }
    return KR_STAGES_A_LEVEL * x->now.n_levels;
}

/* The rest of a step again, for other rows of logits. */
static uint32_t make_logit_stages(struct kr_cpu_exec *x)
{
    uint32_t n_jobs = 0, n = 0;
    for (uint32_t l = x->first_logit_level; l < x->n_levels; l++) {
        const struct kr_level *v = &x->levels[l];
        struct kr_stage *rows = &x->stages[n++], *heavy = &x->stages[n++];
        *rows = (struct kr_stage){.first_job = n_jobs};
        add_rows(x, rows, l, KR_DOM_LOGITS);
        n_jobs += rows->n_jobs;
        *heavy = (struct kr_stage){.first_job = n_jobs};
        for (uint32_t i = v->heavy_begin; i < v->heavy_end; i++)
            if (x->heavy_steps[i].domain == KR_DOM_LOGITS) add_heavy(x, heavy, i);
        n_jobs += heavy->n_jobs;
    }
    return n;
}

static void run_stages(struct kr_cpu_exec *x, uint32_t n_stages)
{
    if (x->profile) kr_cpu_profile_begin(x, n_stages);
    kr_pool_run(x->dev->pool, x->stages, n_stages, x->jobs, x);
    if (x->profile) kr_cpu_profile_end(x, n_stages);
}

static void choose_logits(struct kr_cpu_exec *x, uint32_t first, uint32_t n)
{
    x->first_logit = first;
    x->now.logit_rows = x->base.logit_rows + first;
    x->now.n_logits = n;
}

void kr_cpu_make_logits(struct kr_cpu_exec *x, uint32_t first, uint32_t n)
{
    choose_logits(x, first, n);
    run_stages(x, make_logit_stages(x));
}

int kr_cpu_launch(struct kr_exec *base, struct kr_kv_mem *m, const struct kr_batch *b,
                  uint64_t *ticket, struct cn_error *err)
{
    struct kr_cpu_exec *x = CN_CONTAINER(base, struct kr_cpu_exec, base);
    struct kr_cpu_mem *mem = m ? CN_CONTAINER(m, struct kr_cpu_mem, base) : NULL;
    x->batch = *b;
    x->now = (struct kr_bound){.batch = &x->batch,
                               .mem = mem,
                               .n_rows = b->n_rows,
                               .n_routed = b->n_rows * x->plan->n_used};
    choose_logits(x, 0, CN_MIN(x->base.n_wanted, x->base.opts.max_logit_rows));
    kr_cpu_cut_batch(x);
    kr_cpu_cut_runs(x);
    run_stages(x, make_stages(x));
    x->steps++;
    x->rows += b->n_rows;
    x->draw_rc = CN_EINVAL;
    *ticket = ++x->base.ticket;
    return 0;
}

int kr_cpu_collect(struct kr_exec *base, uint64_t ticket, float **logits, struct cn_error *err)
{
    struct kr_cpu_exec *x = CN_CONTAINER(base, struct kr_cpu_exec, base);
    if (!ticket || ticket != x->base.ticket || x->base.n_wanted > x->base.opts.max_logit_rows)
        return cn_fail(err, CN_EINVAL, "there is no step %llu to collect",
                       (unsigned long long)ticket);
    *logits = kr_cpu_logits(x);
    return 0;
}
