/* experts: a step's rows grouped by expert, and products with many matrices.
 *
 * A (row, choice) pair is a slot; slots stand expert after expert, within one by row and choice.
 * One unit of work makes the grouping and says how many units the products that wait for it
 * have, so that experts that no row chose cost nothing. A unit of a product is some row groups
 * of one matrix with all of its rows; units go part by part and matrix by matrix in it, so that
 * a thread meets the same part of every matrix. All threads; a product's result does not depend
 * on the cut. */
#include "kernels/cpu/cpu.h"

#include <string.h>

/* ---- grouping -------------------------------------------------------------------------------- */

static uint64_t padded(uint64_t n)
{
    return (n + 15) & ~15ull;
}

/* 32-bit numbers: active, first, source, slot. */
static uint64_t grouping_words(const struct kr_cpu_exec *x)
{
    uint64_t slots = (uint64_t)x->base.opts.max_rows * x->plan->n_used, experts = 0;
    for (uint32_t i = 0; i < x->n_groupings; i++)
        experts = CN_MAX(experts, x->groupings[i].n_experts);
    return padded(experts) + padded(experts + 1) + 2 * padded(slots);
}

uint64_t kr_cpu_grouping_bytes(const struct kr_cpu_exec *x)
{
    return x->n_grouping_places * grouping_words(x) * sizeof(uint32_t);
}

void kr_cpu_place_groupings(struct kr_cpu_exec *x)
{
    uint64_t slots = padded((uint64_t)x->base.opts.max_rows * x->plan->n_used);
    for (uint32_t i = 0; i < x->n_groupings; i++) {
        struct kr_grouping *g = &x->groupings[i];
        g->source = (uint32_t *)x->grouping_mem + g->place * grouping_words(x);
        g->slot = g->source + slots;
        g->active = g->slot + slots;
        g->first = g->active + padded(g->n_experts);
    }
}

/* Groupings take the first place that is free while they are in use. */
static void choose_places(struct kr_cpu_exec *x)
{
    for (uint32_t i = 0; i < x->n_groupings; i++) {
        struct kr_grouping *g = &x->groupings[i];
        uint32_t last = x->slots[g->value].last;
        for (uint32_t j = 0; j < i; j++) {
            const struct kr_grouping *o = &x->groupings[j];
            if (o->place != g->place || o->first_level > last ||
                x->slots[o->value].last < g->first_level)
                continue;
            g->place++;
            j = UINT32_MAX; /* from the start */
        }
        x->n_grouping_places = CN_MAX(x->n_grouping_places, g->place + 1);
    }
}

static uint64_t expert_bytes(const struct kr_plan_op *op)
{
    uint64_t bias = op->bias.data ? op->len * sizeof(float) : 0;
    return kr_packed_bytes(op->w.type, op->len, (uint32_t)op->w.ne[0]) + bias;
}

int kr_cpu_plan_experts(struct kr_cpu_exec *x, struct cn_error *err)
{
    struct kr_exec_info *info = &x->base.info;
    choose_places(x);
    for (uint32_t i = 0; i < x->n_heavy_steps; i++) {
        const struct kr_plan_op *op = &x->plan->ops[x->heavy_steps[i].op];
        if (op->kind == KR_OP_EXPERT_MATMUL) info->expert_bytes += expert_bytes(op);
    }
    if (kr_cpu_grouping_bytes(x) > UINT64_MAX >> 16)
        return cn_fail(err, CN_ENOMEM, "the plan's routes are too large");
    return 0;
}

/* The expert of a (row, choice) pair. */
static uint32_t expert_at(const struct kr_cpu_exec *x, const struct kr_grouping *g, uint32_t pair)
{
    uint32_t k = x->plan->n_used, e;
    memcpy(&e, kr_value_row(x, g->value, pair / k) + pair % k, sizeof e);
    return e;
}

/* A counting sort: first[e] counts e's slots, then is where the next one goes, then where they
 * begin. */
static void group_rows(const struct kr_cpu_exec *x, struct kr_grouping *g)
{
    uint32_t n = x->now.n_routed, at = 0;
    memset(g->first, 0, (g->n_experts + 1) * sizeof *g->first);
    for (uint32_t i = 0; i < n; i++)
        g->first[expert_at(x, g, i)]++;
    g->n_active = 0;
    for (uint32_t e = 0; e < g->n_experts; e++) {
        uint32_t count = g->first[e];
        if (count) g->active[g->n_active++] = e;
        g->first[e] = at;
        at += count;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = g->first[expert_at(x, g, i)]++;
        g->source[slot] = i;
        g->slot[i] = slot;
    }
    for (uint32_t e = g->n_experts; e > 0; e--)
        g->first[e] = g->first[e - 1];
    g->first[0] = 0;
}

/* The waiting products are in later stages, which no thread reads before this stage is over. */
static void group_job(void *arg, uint32_t index, uint32_t thread, uint32_t lo, uint32_t hi)
{
    struct kr_cpu_exec *x = arg;
    struct kr_grouping *g = &x->groupings[x->heavy_steps[index].grouping];
    group_rows(x, g);
    for (uint32_t i = g->dependents; i != KR_NONE; i = x->heavy_steps[i].next)
        x->jobs[x->heavy_steps[i].job].n = g->n_active * x->heavy_steps[i].parts;
}

/* ---- products -------------------------------------------------------------------------------- */

/* Some row groups of one matrix of a step's weight, with rows [r0, r1) of its input from value
 * `x_at` and quantised block `q_at` on, to column y_at of its output. */
struct unit {
    const struct kr_step *s;
    uint32_t matrix, part;
    uint32_t r0, r1;
    uint32_t x_at, y_at;
    const float *bias;
};

static void do_unit(struct kr_cpu_exec *x, uint32_t thread, const struct unit *u, uint64_t *touched)
{
    const struct kr_step *s = u->s;
    const struct kr_plan_op *op = &x->plan->ops[s->op];
    struct kr_packed w = x->packed[s->weight];
    uint32_t in = (uint32_t)op->in[0], out = (uint32_t)op->out;
    uint32_t groups = (w.rows + KR_PACK_ROWS - 1) / KR_PACK_ROWS;
    uint32_t g0 = 2 * u->part * s->chunk, g1 = CN_MIN(g0 + 2 * s->chunk, groups);
    struct kr_q8 q = {0};
    w.data = (uint8_t *)w.data + u->matrix * kr_packed_bytes(w.type, w.rows, w.cols);
    if (s->slot) {
        q = kr_slot_q8(x, s->slot, x->plan->values[in].width);
        q.blocks += u->x_at / 32;
    }
    kr_matmul(&x->dev->mm, &w, g0, g1, &q, kr_slot_mem(x, in) + u->x_at, x->slots[in].stride, u->r0,
              u->r1, u->bias, kr_slot_mem(x, out) + u->y_at, x->slots[out].stride);
    *touched += kr_group_range_bytes(&w, g0, g1);
    if (u->bias)
        *touched += (CN_MIN(g1 * KR_PACK_ROWS, w.rows) - g0 * KR_PACK_ROWS) * sizeof(float);
}

static void expert_job(void *arg, uint32_t index, uint32_t thread, uint32_t lo, uint32_t hi)
{
    struct kr_cpu_exec *x = arg;
    const struct kr_step *s = &x->heavy_steps[index];
    const struct kr_plan_op *op = &x->plan->ops[s->op];
    const struct kr_grouping *g = &x->groupings[s->grouping];
    for (uint32_t i = lo; i < hi; i++) {
        uint32_t e = g->active[i % g->n_active];
        struct unit u = {
            .s = s, .matrix = e, .part = i / g->n_active, .r0 = g->first[e], .r1 = g->first[e + 1]};
        if (s->bias) u.bias = s->bias + e * kr_tensor_dim(&op->w, 1) + op->from;
        do_unit(x, thread, &u, &x->touched[thread].experts);
    }
}

static void head_job(void *arg, uint32_t index, uint32_t thread, uint32_t lo, uint32_t hi)
{
    struct kr_cpu_exec *x = arg;
    const struct kr_step *s = &x->heavy_steps[index];
    const struct kr_packed *w = &x->packed[s->weight];
    uint32_t heads = kr_matrices(&x->plan->ops[s->op]);
    for (uint32_t i = lo; i < hi; i++) {
        uint32_t h = i % heads;
        struct unit u = {.s = s,
                         .matrix = h,
                         .part = i / heads,
                         .r1 = kr_domain_rows(x, s->domain),
                         .x_at = h * w->cols,
                         .y_at = h * w->rows};
        do_unit(x, thread, &u, &x->touched[thread].dense);
    }
}

void kr_cpu_add_expert_job(struct kr_cpu_exec *x, struct kr_job *j, uint32_t index)
{
    struct kr_step *s = &x->heavy_steps[index];
    const struct kr_plan_op *op = &x->plan->ops[s->op];
    struct kr_grouping *g = &x->groupings[s->grouping];
    if (s->kind == KR_STEP_GROUP) {
        g->dependents = KR_NONE;
        j->fn = group_job;
        j->n = 1;
    } else if (op->kind == KR_OP_EXPERT_MATMUL) {
        s->job = (uint32_t)(j - x->jobs);
        s->next = g->dependents;
        g->dependents = index;
        j->fn = expert_job;
    } else {
        j->fn = head_job;
        j->n = kr_matrices(op) * s->parts;
    }
}

/* ---- row work -------------------------------------------------------------------------------- */

static void dispatch(const struct kr_cpu_exec *x, const struct kr_plan_op *op,
                     const struct kr_grouping *g, uint32_t slot)
{
    uint32_t pair = g->source[slot], k = x->plan->n_used, row = pair / k;
    const float *from = kr_value_row(x, (uint32_t)op->in[0], row);
    float *y = kr_value_row(x, (uint32_t)op->out, slot);
    uint32_t width = x->plan->values[op->out].width;
    if (op->flag)
        x->dev->ops.scale(y, from, kr_value_row(x, g->value, row)[k + pair % k], width);
    else
        memcpy(y, from, width * sizeof *y);
}

/* A dispatch of which only the quantised copy is wanted: the row was quantised once. */
void kr_cpu_gather(const struct kr_cpu_exec *x, const struct kr_step *s, uint32_t slot)
{
    const struct kr_grouping *g = &x->groupings[s->grouping];
    uint32_t width = x->plan->values[x->plan->ops[s->op].out].width;
    struct kr_q8 from = kr_slot_q8(x, s->from, width), to = kr_slot_q8(x, s->slot, width);
    uint32_t row = g->source[slot] / x->plan->n_used;
    memcpy(to.blocks + (size_t)slot * to.stride, from.blocks + (size_t)row * from.stride,
           (width + 31) / 32 * sizeof *to.blocks);
}

static void combine(const struct kr_cpu_exec *x, const struct kr_plan_op *op,
                    const struct kr_grouping *g, uint32_t row)
{
    const float *from[KR_MAX_CHOICES];
    uint32_t k = x->plan->n_used;
    for (uint32_t i = 0; i < k; i++)
        from[i] = kr_value_row(x, (uint32_t)op->in[0], g->slot[row * k + i]);
    x->dev->ops.sum_rows(kr_value_row(x, (uint32_t)op->out, row), from,
                         op->flag ? kr_value_row(x, g->value, row) + k : NULL, k,
                         x->plan->values[op->out].width);
}

void kr_cpu_expert_row(const struct kr_cpu_exec *x, const struct kr_step *s, uint32_t row)
{
    const struct kr_plan_op *op = &x->plan->ops[s->op];
    const struct kr_grouping *g = &x->groupings[s->grouping];
    if (op->kind == KR_OP_DISPATCH)
        dispatch(x, op, g, row);
    else if (op->kind == KR_OP_COMBINE)
        combine(x, op, g, row);
    else
        kr_cpu_route(&op->router, x->plan->values[op->in[0]].width,
                     kr_value_row(x, (uint32_t)op->in[0], row), s->bias, s->extra,
                     (double *)kr_value_row(x, s->slot, row),
                     kr_value_row(x, (uint32_t)op->out, row));
}

void kr_cpu_counters(const struct kr_exec *base, struct kr_counters *out)
{
    const struct kr_cpu_exec *x = CN_CONTAINER(base, struct kr_cpu_exec, base);
    *out = (struct kr_counters){
        .steps = x->steps, .rows = x->rows, .barriers = kr_pool_shared(x->dev->pool)};
    for (uint32_t t = 0; t < kr_pool_threads(x->dev->pool); t++) {
        out->weight_bytes += x->touched[t].dense;
        out->expert_bytes += x->touched[t].experts;
        out->kv_bytes += x->touched[t].kv;
    }
}
