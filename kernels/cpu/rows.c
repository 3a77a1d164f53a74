/* rows: the ops that need one row at a time, a level's in turn on a few rows while they are in
 * cache. Every thread; it writes only to the rows it was given. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

/* Rows that pass through all of a level's ops together. */
#define ROWS_AT_ONCE 4u

static void embed(const struct kr_cpu_exec *x, const struct kr_plan_op *op, uint32_t row, float *y)
{
    const struct kr_row *r = &x->now.batch->rows[row];
    uint32_t width = (uint32_t)op->w.ne[0];
    if (r->src == KR_ROW_EMBED) {
        memcpy(y, r->embed, width * sizeof *y);
        return;
    }
    const struct kr_type_info *ti = kr_type_info((uint32_t)op->w.type);
    uint64_t row_bytes = (uint64_t)(width / ti->block_elems) * ti->block_bytes;
    kr_dequantize_row(op->w.type, (const uint8_t *)op->w.data + r->token * row_bytes, y, width);
    if (op->f != 1.0f) x->dev->ops.scale(y, y, op->f, width);
}

/* Angles in double: exact enough for positions in the millions. */
static void angles(const struct kr_cpu_exec *x, const struct kr_plan_rope *rope, uint32_t row,
                   float *cs)
{
    double pos = x->now.batch->rows[row].pos[0], amp = rope->amplitude;
    uint32_t half = rope->n_rot / 2;
    for (uint32_t i = 0; i < half; i++) {
        double angle = pos * (double)rope->inv_freq[i];
        cs[i] = (float)(cos(angle) * amp);
        cs[half + i] = (float)(sin(angle) * amp);
    }
}

static void rope(const struct kr_cpu_exec *x, const struct kr_step *s, const float *in,
                 const float *cs, float *y)
{
    const struct kr_plan_op *op = &x->plan->ops[s->op];
    const struct kr_plan_rope *r = &x->plan->ropes[op->rope];
    for (uint32_t h = 0; h < op->heads; h++)
        x->dev->ops.rope(y + (size_t)h * r->head_dim, in + (size_t)h * r->head_dim, cs, r->kind,
                         r->head_dim, r->n_rot);
}

static void rms_norm(const struct kr_cpu_exec *x, const struct kr_step *s, const float *in,
                     float *y)
{
    const struct kr_plan_op *op = &x->plan->ops[s->op];
    uint32_t n = x->plan->values[op->out].width / op->heads;
    for (uint32_t h = 0; h < op->heads; h++)
        x->dev->ops.rms_norm(y + (size_t)h * n, in + (size_t)h * n, s->vec, op->f, n);
}

/* The row's cosines and sines; a logit row's are those of the row it was. */
static const float *row_angles(const struct kr_cpu_exec *x, const struct kr_step *s,
                               uint32_t row)
{
    uint32_t at = s->domain == KR_DOM_LOGITS ? x->logit_rows[row] : row;
    return kr_value_row(x, s->slot, at);
}

static void kv_write(const struct kr_cpu_exec *x, const struct kr_step *s,
                     uint32_t row, const float *k, const float *v)
{
    const struct kr_plan_op *op = &x->plan->ops[s->op];
    kr_cpu_kv_store(x, (uint32_t)op->kv_layer, row, k, v);
}

void kr_cpu_elementwise(const struct kr_cpu_exec *x, const struct kr_plan_op *op,
                        uint32_t row, uint32_t c0, uint32_t c1)
{
    const struct kr_cpu_ops *o = &x->dev->ops;
    const float *a = kr_value_row(x, (uint32_t)op->in[0], row) + c0, *b = NULL;
    if (op->in[1] >= 0) b = kr_value_row(x, (uint32_t)op->in[1], row) + c0;
    float *y = kr_value_row(x, (uint32_t)op->out, row) + c0;
    uint32_t n = c1 - c0;
    if (op->kind == KR_OP_ADD)
        o->add(y, a, b, n);
    else if (op->kind == KR_OP_GLU)
        o->glu(y, a, b, op->act, n);
    else if (op->kind == KR_OP_SCALE)
        o->scale(y, a, op->f, n);
    else
        o->softcap(y, a, op->f, n);
}

static void one_op(const struct kr_cpu_exec *x, const struct kr_step *s,
                   uint32_t row)
{
    const struct kr_plan_op *op = &x->plan->ops[s->op];
    const float *a = NULL, *b = NULL;
    float *y = NULL;
    if (op->in[0] >= 0 && op->kind != KR_OP_TAKE_LOGITS)
        a = kr_value_row(x, (uint32_t)op->in[0], row);
    if (op->in[1] >= 0) b = kr_value_row(x, (uint32_t)op->in[1], row);
    if (op->out >= 0) y = kr_value_row(x, (uint32_t)op->out, row);
    switch (op->kind) {
    case KR_OP_EMBED:
        embed(x, op, row, y);
        break;
    case KR_OP_RMS_NORM:
        rms_norm(x, s, a, y);
        break;
    case KR_OP_ROPE:
        rope(x, s, a, row_angles(x, s, row), y);
        break;
    case KR_OP_KV_WRITE:
        kv_write(x, s, row, a, b);
        break;
    case KR_OP_GLU:
    case KR_OP_ADD:
    case KR_OP_SCALE:
    case KR_OP_SOFTCAP:
        kr_cpu_elementwise(x, op, row, 0, x->plan->values[op->out].width);
        break;
    case KR_OP_TAKE_LOGITS:
        memcpy(y, kr_value_row(x, (uint32_t)op->in[0], x->logit_rows[row]),
               x->plan->values[op->out].width * sizeof *y);
        break;
    case KR_OP_MATMUL:
    case KR_OP_ATTENTION:
    case KR_OP_COUNT:
        cn_assert(!"heavy work among row work");
    }
}

static void one_step(const struct kr_cpu_exec *x, const struct kr_step *s,
                     uint32_t r0, uint32_t r1)
{
    if (s->kind == KR_STEP_QUANTIZE) {
        struct kr_q8 q = kr_slot_q8(x, s->slot, x->plan->values[s->op].width);
        x->dev->mm.quantize(&q, kr_slot_mem(x, s->op), x->slots[s->op].stride, r0, r1);
        return;
    }
    for (uint32_t r = r0; r < r1; r++) {
        if (s->kind == KR_STEP_ANGLES)
            angles(x, &x->plan->ropes[s->op], r, kr_value_row(x, s->slot, r));
        else
            one_op(x, s, r);
    }
}

void kr_cpu_row_work(const struct kr_cpu_exec *x, const struct kr_level *l,
                     enum kr_domain domain, uint32_t r0, uint32_t r1)
{
    for (uint32_t r = r0; r < r1; r += ROWS_AT_ONCE)
        for (uint32_t i = l->row_begin; i < l->row_end; i++)
            if (x->row_steps[i].domain == domain)
                one_step(x, &x->row_steps[i], r, CN_MIN(r + ROWS_AT_ONCE, r1));
}
