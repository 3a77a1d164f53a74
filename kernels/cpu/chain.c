/* chain: consecutive row work and matmuls, split by rows instead of by outputs.
 *
 * With many rows and small layers a thread takes some rows through all levels up to the next
 * attention: no barriers in between, and a row's values stay in one thread's cache, but every
 * thread reads all the weights. The sums are unchanged.
 *
 * Levels are found at prepare; threads may be at different ones of a chain, so that two slots that
 * are in use anywhere in it share no memory. */
#include "kernels/cpu/cpu.h"

/* Rows that a thread must have for it: all read the weights, and the more threads there are the
 * less memory has for each. A part of more rows than the most would leave the caches. */
#define PART_MIN_ROWS 16u
/* Of the products of a chain: more than the caches beside a processor hold come from memory again
 * for each thread, and cost more than the waits they save. */
#define CHAIN_MAX_BYTES   (8ull << 20)
#define ROWS_FOR_A_THREAD 4u
#define PART_MAX_ROWS     128u

/* ---- prepare --------------------------------------------------------------------------------- */

/* Row work that needs its own row and nothing else of the step. */
static bool rows_alone(const struct kr_cpu_exec *x, const struct kr_level *l)
{
    for (uint32_t i = l->row_begin; i < l->row_end; i++) {
        const struct kr_step *s = &x->row_steps[i];
        if (s->domain != KR_DOM_ROWS || s->kind == KR_STEP_GATHER) return false;
        if (s->kind != KR_STEP_OP) continue;
        enum kr_op_kind kind = x->plan->ops[s->op].kind;
        if (kind == KR_OP_ROUTE || kind == KR_OP_DISPATCH || kind == KR_OP_COMBINE) return false;
    }
    return true;
}

static bool only_products(const struct kr_cpu_exec *x, const struct kr_level *l)
{
    for (uint32_t i = l->heavy_begin; i < l->heavy_end; i++) {
        const struct kr_step *s = &x->heavy_steps[i];
        if (s->kind != KR_STEP_OP || s->domain != KR_DOM_ROWS) return false;
        if (x->plan->ops[s->op].kind != KR_OP_MATMUL) return false;
    }
    return true;
}

static uint64_t weight_bytes(const struct kr_cpu_exec *x, const struct kr_level *l)
{
    uint64_t bytes = 0;
    for (uint32_t i = l->heavy_begin; i < l->heavy_end; i++) {
        const struct kr_tensor *w = &x->plan->ops[x->heavy_steps[i].op].w;
        const struct kr_type_info *t = kr_type_info((uint32_t)w->type);
        bytes += w->ne[0] / t->block_elems * t->block_bytes * kr_tensor_dim(w, 1);
    }
    return bytes;
}

/* What is in use at a level of the chain is so at all of them. */
static void hold_slots(struct kr_cpu_exec *x, uint32_t begin, uint32_t end)
{
    for (uint32_t i = 0; i < x->n_slots; i++) {
        struct kr_slot *s = &x->slots[i];
        if (!s->row_floats || s->first >= end || s->last < begin) continue;
        s->first = CN_MIN(s->first, begin);
        s->last = CN_MAX(s->last, end - 1);
    }
}

void kr_cpu_find_chains(struct kr_cpu_exec *x)
{
    for (uint32_t begin = 0, end; begin < x->n_levels; begin = CN_MAX(end, begin + 1)) {
        struct kr_level *l = &x->levels[begin];
        uint64_t bytes = 0;
        for (end = begin; end < x->n_levels && rows_alone(x, &x->levels[end]); end++) {
            if (only_products(x, &x->levels[end])) {
                bytes += weight_bytes(x, &x->levels[end]);
                l->chain_heavy++;
                continue;
            }
            end++; /* its row work is the chain's last */
            break;
        }
        if (!x->dev->fuse || end - begin < 2 || bytes > CHAIN_MAX_BYTES) l->chain_heavy = 0;
        if (!l->chain_heavy) continue;
        l->chain_rows = end - begin;
        hold_slots(x, begin, end);
    }
}

/* ---- steps ----------------------------------------------------------------------------------- */

uint32_t kr_cpu_chain_parts(const struct kr_cpu_exec *x)
{
    uint32_t threads = kr_pool_threads(x->dev->pool), each = x->now.n_rows / threads;
    if (each < CN_MAX(PART_MIN_ROWS, ROWS_FOR_A_THREAD * threads)) return 0;
    uint32_t parts = threads * ((each + PART_MAX_ROWS - 1) / PART_MAX_ROWS);
    return parts > 1 ? parts : 0;
}

static void product(struct kr_cpu_exec *x, uint32_t thread, const struct kr_step *s, uint32_t r0,
                    uint32_t r1)
{
    const struct kr_plan_op *op = &x->plan->ops[s->op];
    const struct kr_packed *next = &x->packed[s->then];
    struct kr_packed w = x->packed[s->weight];
    uint32_t in = (uint32_t)op->in[0], out = (uint32_t)op->out;
    uint32_t groups = (w.rows + KR_PACK_ROWS - 1) / KR_PACK_ROWS;
    struct kr_q8 q = {0};
    if (s->slot) q = kr_slot_q8(x, s->slot, w.cols);
    w.then = next->data;
    w.then_other = kr_group_range_bytes(next, 0, 1);
    kr_matmul(&x->dev->mm, &w, 0, groups, &q, kr_slot_mem(x, in), x->slots[in].stride, r0, r1,
              s->bias, kr_slot_mem(x, out), x->slots[out].stride);
    if (!r0) x->touched[thread].dense += kr_group_range_bytes(&w, 0, groups);
}

/* Late rows first, like attention: who made a row's query is likely to need it there. */
void kr_cpu_chain(struct kr_cpu_exec *x, uint32_t thread, uint32_t level, uint32_t part)
{
    const struct kr_level *first = &x->levels[level];
    uint32_t parts = x->now.chain_parts, at = parts - 1 - part;
    uint32_t r0 = kr_pool_share(x->now.n_rows, parts, at);
    uint32_t r1 = kr_pool_share(x->now.n_rows, parts, at + 1), left = x->now.n_levels - level;
    for (uint32_t i = 0; i < CN_MIN(first->chain_rows, left); i++) {
        const struct kr_level *l = first + i;
        kr_cpu_row_work(x, l, KR_DOM_ROWS, r0, r1);
        if (i >= first->chain_heavy || (i + 1 == left && !x->base.n_wanted)) continue;
        for (uint32_t h = l->heavy_begin; h < l->heavy_end; h++)
            product(x, thread, &x->heavy_steps[h], r0, r1);
    }
}
