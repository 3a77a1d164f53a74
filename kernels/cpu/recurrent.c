/* recurrent: convolution, scan, delta rule and place in a text, for a step, over the state that a
 * sequence's block keeps between steps.
 *
 * A unit of work is (the rows of one sequence, some lane blocks of the op): blocks do not touch
 * each other, so how many a unit has follows the load and changes no byte. Every thread; a unit
 * writes its part of the state and of the output alone. A row at position 0 starts from zeros. */
#include "kernels/cpu/cpu.h"

#include <string.h>

/* State floats times rows that are worth a unit of their own. */
#define UNIT_WORK      16384u
#define UNITS_A_THREAD 8u
#define MAX_UNITS      (1u << 26)
/* A convolution's block: so many columns that walking rows stays within cache lines and pages. */
#define CONV_LANES 64u
/* Rows that pass through a unit's scan or delta blocks together: their inputs stay in the cache
 * from block to block, and the unit's states from one lot of rows to the next. */
#define ROWS_AT_ONCE 32u

/* How an op's lanes are cut: spans (heads or groups) of so many, each into blocks. */
struct cut { uint32_t spans, span_lanes, block_lanes, span_blocks, n_state; };
struct block { uint32_t span, first, lanes; /* first: of the op's lanes */ };

static struct cut cut_of(const struct kr_plan *p, const struct kr_plan_op *op)
{
    uint32_t width = p->values[op->out].width;
    struct cut c = {.spans = 1, .block_lanes = CONV_LANES, .n_state = op->len - 1};
    if (op->kind == KR_OP_FOLLOW) {
        c.n_state = 1;
    } else if (op->kind == KR_OP_SCAN) {
        c.spans = op->flag ? op->n_groups : op->heads;
        c.block_lanes = KR_SCAN_LANES;
        c.n_state = op->n_state;
    } else if (op->kind == KR_OP_DELTA) {
        c.spans = op->heads;
        c.block_lanes = KR_DELTA_LANES;
        c.n_state = p->values[op->in[KR_DELTA_K]].width / op->n_groups;
    }
    c.span_lanes = width / c.spans;
    c.span_blocks = (c.span_lanes + c.block_lanes - 1) / c.block_lanes;
    return c;
}

static struct block block_of(const struct cut *c, uint32_t i)
{
    uint32_t in_span = i % c->span_blocks * c->block_lanes;
    return (struct block){.span = i / c->span_blocks,
                          .first = i / c->span_blocks * c->span_lanes + in_span,
                          .lanes = CN_MIN(c->block_lanes, c->span_lanes - in_span)};
}

/* ---- prepare --------------------------------------------------------------------------------- */

void kr_cpu_recurrent_weight(const struct kr_plan *p, const struct kr_plan_op *op, float *dst)
{
    const float *src = op->w.data; /* [lanes][n], n = taps or states */
    struct cut c = cut_of(p, op);
    uint32_t n = op->kind == KR_OP_CONV ? op->len : c.n_state;
    if (op->kind == KR_OP_CONV) c.block_lanes = c.span_lanes; /* taps are whole rows */
    c.span_blocks = (c.span_lanes + c.block_lanes - 1) / c.block_lanes;
    for (uint32_t i = 0; i < c.spans * c.span_blocks; i++) {
        struct block b = block_of(&c, i);
        for (uint32_t lane = 0; lane < b.lanes; lane++)
            for (uint32_t j = 0; j < n; j++)
                dst[(size_t)b.first * n + (size_t)j * b.lanes + lane] =
                    src[(size_t)(b.first + lane) * n + j];
    }
}

/* ---- launch ---------------------------------------------------------------------------------- */

void kr_cpu_cut_runs(struct kr_cpu_exec *x)
{
    const struct kr_row *rows = x->now.batch->rows;
    x->n_runs = x->longest_run = 0;
    if (!x->runs) return;
    for (uint32_t r = 0; r < x->now.n_rows;) {
        struct kr_run *run = &x->runs[x->n_runs++];
        *run = (struct kr_run){.row = r, .seq = rows[r].seq};
        for (; r < x->now.n_rows && rows[r].seq == run->seq; r++)
            run->n_rows++;
        x->longest_run = CN_MAX(x->longest_run, run->n_rows);
    }
}

/* Pieces that the op's blocks are cut into for each sequence: enough for all threads, none without
 * work worth a unit. */
static uint32_t parts_of(const struct kr_cpu_exec *x, const struct cut *c)
{
    uint64_t blocks = (uint64_t)c->spans * c->span_blocks;
    uint64_t work = (uint64_t)c->spans * c->span_lanes * (c->n_state + 1) * x->longest_run;
    uint64_t parts = CN_MIN(blocks, UNITS_A_THREAD * (uint64_t)kr_pool_threads(x->dev->pool));
    parts = CN_MIN(parts, work / UNIT_WORK + 1);
    return (uint32_t)CN_MAX(CN_MIN(parts, MAX_UNITS / x->n_runs), 1u);
}

uint32_t kr_cpu_recurrent_units(const struct kr_cpu_exec *x, const struct kr_step *s)
{
    struct cut c = cut_of(x->plan, &x->plan->ops[s->op]);
    return x->n_runs * parts_of(x, &c);
}

/* ---- a unit ---------------------------------------------------------------------------------- */

struct unit {
    const struct kr_cpu_exec *x;
    const struct kr_step *s;
    const struct kr_plan_op *op;
    struct cut cut;
    uint32_t row, n_rows; /* of the step */
    float *state;         /* the op's, whole */
    bool fresh;           /* the first is at position 0 */
};

/* The first row of an input, and the floats from row to row. */
static const float *input(const struct unit *u, uint32_t i, size_t *stride)
{
    uint32_t v = (uint32_t)u->op->in[i];
    *stride = u->x->slots[v].stride;
    return kr_value_row(u->x, v, u->row);
}

/* Row t of the unit, or of the state when t is negative: -1 is the last row before. */
static const float *conv_row(const struct unit *u, int64_t t, const float *in, size_t stride)
{
    if (t >= 0) return in + (size_t)t * stride;
    return u->state + (size_t)(t + u->cut.n_state) * u->cut.span_lanes;
}

/* Columns [c0, c1). The state is the last rows' columns, oldest first. */
static void do_conv(const struct unit *u, uint32_t c0, uint32_t c1)
{
    size_t stride, width = u->cut.span_lanes;
    const float *in = input(u, 0, &stride), *from[64];
    uint32_t taps = u->op->len, out = (uint32_t)u->op->out, n = c1 - c0;
    if (u->fresh)
        for (uint32_t j = 0; j + 1 < taps; j++)
            memset(u->state + j * width + c0, 0, n * sizeof *u->state);
    for (uint32_t r = 0; r < u->n_rows; r++) {
        for (uint32_t j = 0; j < taps; j++)
            from[j] = conv_row(u, (int64_t)r + j + 1 - taps, in, stride) + c0;
        u->x->dev->ops.recurrent.conv(kr_value_row(u->x, out, u->row + r) + c0, from, u->s->w + c0,
                                      width, u->s->bias ? u->s->bias + c0 : NULL, taps,
                                      u->op->act == KR_ACT_SILU, n);
    }
    for (uint32_t j = 0; j + 1 < taps; j++) /* ascending: a row is read before it is written */
        memcpy(u->state + j * width + c0,
               conv_row(u, (int64_t)u->n_rows + j + 1 - taps, in, stride) + c0,
               n * sizeof *u->state);
}

static void do_scan(const struct unit *u, uint32_t index)
{
    const struct kr_plan_op *op = u->op;
    struct block b = block_of(&u->cut, index);
    uint32_t n = op->n_state, head = op->flag ? b.first : b.span;
    uint32_t group = op->flag ? b.span : b.span / (op->heads / op->n_groups);
    struct kr_scan_part p = {.n_rows = u->n_rows,
                             .n_state = n,
                             .lanes = b.lanes,
                             .each = op->flag,
                             .state = u->state + (size_t)b.first * n,
                             .a = op->flag ? u->s->w + (size_t)b.first * n : u->s->w + head,
                             .d = u->s->extra + head,
                             .dt_bias = u->s->bias ? u->s->bias + head : NULL};
    p.x = input(u, KR_SCAN_X, &p.x_stride) + b.first;
    p.dt = input(u, KR_SCAN_DT, &p.dt_stride) + head;
    p.b = input(u, KR_SCAN_B, &p.b_stride) + (size_t)group * n;
    p.c = input(u, KR_SCAN_C, &p.c_stride) + (size_t)group * n;
    p.y = kr_value_row(u->x, (uint32_t)op->out, u->row) + b.first;
    p.y_stride = u->x->slots[op->out].stride;
    if (u->fresh) memset(p.state, 0, (size_t)b.lanes * n * sizeof *p.state);
    u->x->dev->ops.recurrent.scan(&p);
}

static void do_delta(const struct unit *u, uint32_t index)
{
    const struct kr_plan_op *op = u->op;
    struct block b = block_of(&u->cut, index);
    uint32_t n = u->cut.n_state, head = b.span;
    uint32_t key = op->flag ? head % op->n_groups : head / (op->heads / op->n_groups);
    struct kr_delta_part p = {.n_rows = u->n_rows,
                              .n_state = n,
                              .lanes = b.lanes,
                              .state = u->state + (size_t)b.first * n,
                              .decay = u->s->w[head],
                              .dt_bias = u->s->bias[head]};
    p.q = input(u, KR_DELTA_Q, &p.q_stride) + (size_t)key * n;
    p.k = input(u, KR_DELTA_K, &p.k_stride) + (size_t)key * n;
    p.v = input(u, KR_DELTA_V, &p.v_stride) + b.first;
    p.a = input(u, KR_DELTA_A, &p.a_stride) + head;
    p.b = input(u, KR_DELTA_B, &p.b_stride) + head;
    p.y = kr_value_row(u->x, (uint32_t)op->out, u->row) + b.first;
    p.y_stride = u->x->slots[op->out].stride;
    if (u->fresh) memset(p.state, 0, (size_t)b.lanes * n * sizeof *p.state);
    u->x->dev->ops.recurrent.delta(&p);
}

/* The state is a single value, so a sequence is one unit. */
static void do_follow(const struct unit *u)
{
    size_t stride;
    const float *in = input(u, 0, &stride);
    if (u->fresh) *u->state = 0;
    for (uint32_t r = 0; r < u->n_rows; r++) {
        kr_cpu_follow(u->s->w, u->op->len, in + (size_t)r * stride,
                      u->x->plan->values[u->op->in[0]].width, u->state);
        *kr_value_row(u->x, (uint32_t)u->op->out, u->row + r) = *u->state;
    }
}

/* Blocks [first, last) of a scan or a delta rule, some rows at a time. */
static void do_blocks(struct unit *u, uint32_t first, uint32_t last)
{
    uint32_t end = u->row + u->n_rows;
    for (; u->row < end; u->row += ROWS_AT_ONCE, u->fresh = false) {
        u->n_rows = CN_MIN(ROWS_AT_ONCE, end - u->row);
        for (uint32_t i = first; i < last; i++) {
            if (u->op->kind == KR_OP_SCAN)
                do_scan(u, i);
            else
                do_delta(u, i);
        }
    }
}

void kr_cpu_recurrent(const struct kr_cpu_exec *x, const struct kr_step *s, uint32_t unit)
{
    struct unit u = {.x = x, .s = s, .op = &x->plan->ops[s->op]};
    u.cut = cut_of(x->plan, u.op);
    uint32_t parts = parts_of(x, &u.cut), part = unit % parts;
    const struct kr_run *run = &x->runs[unit / parts];
    uint32_t group = (uint32_t)x->plan->state_group;
    uint32_t slot = x->now.batch->seqs[run->seq].tables[group][0];
    u.state =
        (float *)(void *)kr_cpu_block(x, x->now.mem, group, slot) + x->plan->states[u.op->state].at;
    u.row = run->row;
    u.n_rows = run->n_rows;
    u.fresh = x->now.batch->rows[run->row].pos == 0;
    uint64_t blocks = (uint64_t)u.cut.spans * u.cut.span_blocks;
    uint32_t first = (uint32_t)(blocks * part / parts);
    uint32_t last = (uint32_t)(blocks * (part + 1) / parts);
    if (u.op->kind == KR_OP_FOLLOW)
        do_follow(&u);
    else if (u.op->kind == KR_OP_CONV)
        do_conv(&u, first * CONV_LANES, CN_MIN(last * CONV_LANES, u.cut.span_lanes));
    else
        do_blocks(&u, first, last);
}
