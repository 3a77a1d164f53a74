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
    double pos = x->now.batch->rows[row].pos, amp = rope->amplitude;
    uint32_t half = rope->n_rot / 2;
    for (uint32_t i = 0; i < half; i++) {
        double angle = pos * (double)rope->inv_freq[i];
        cs[i] = (float)(cos(angle) * amp);
        cs[half + i] = (float)(sin(angle) * amp);
    }
}

/* Another table than the tokens': positions. */
static void embed_pos(const struct kr_cpu_exec *x, const struct kr_plan_op *op, uint32_t row,
                      float *y)
{
    const struct kr_type_info *ti = kr_type_info((uint32_t)op->w.type);
    uint64_t row_bytes = op->w.ne[0] / ti->block_elems * ti->block_bytes;
    kr_dequantize_row(op->w.type,
                      (const uint8_t *)op->w.data + x->now.batch->rows[row].pos * row_bytes, y,
                      op->w.ne[0]);
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

/* Part h's values of a norm's vector: of its own, or those of all parts. */
static const float *norm_part(const float *v, const struct kr_tensor *t, uint32_t h, uint32_t n)
{
    return v && t->ne[0] > n ? v + (size_t)h * n : v;
}

static void norm(const struct kr_cpu_exec *x, const struct kr_step *s, const float *in, float *y)
{
    const struct kr_plan_op *op = &x->plan->ops[s->op];
    uint32_t n = x->plan->values[op->out].width / op->heads;
    for (uint32_t h = 0; h < op->heads; h++) {
        const float *from = in + (size_t)h * n, *w = norm_part(s->w, &op->w, h, n);
        float *to = y + (size_t)h * n;
        if (op->kind == KR_OP_RMS_NORM)
            x->dev->ops.rms_norm(to, from, w, op->f, n);
        else
            x->dev->ops.layer_norm(to, from, w, norm_part(s->bias, &op->bias, h, n), op->f, n);
    }
}

/* Each gate serves several values. */
static void narrow_glu(const struct kr_cpu_exec *x, const struct kr_plan_op *op, const float *gate,
                       const float *up, float *y)
{
    uint32_t gates = x->plan->values[op->in[0]].width, n = x->plan->values[op->in[1]].width / gates;
    float g[64];
    for (uint32_t i = 0; i < gates; i += CN_ARRAY_LEN(g)) {
        uint32_t some = CN_MIN(gates - i, (uint32_t)CN_ARRAY_LEN(g));
        x->dev->ops.glu(g, gate + i, NULL, op->act, some);
        for (uint32_t j = 0; j < some; j++)
            x->dev->ops.scale(y + (size_t)(i + j) * n, up + (size_t)(i + j) * n, g[j], n);
    }
}

static float pos_factor(const struct kr_cpu_exec *x, const struct kr_plan_op *op, uint32_t row)
{
    uint64_t at = ((uint64_t)x->now.batch->rows[row].pos + op->from) / op->len;
    return (float)(1 + (double)op->f * log(1 + (double)at));
}

static void slice(const struct kr_cpu_exec *x, const struct kr_plan_op *op, const float *in,
                  float *y)
{
    uint32_t n = x->plan->values[op->in[0]].width / op->heads;
    for (uint32_t h = 0; h < op->heads; h++)
        memcpy(y + (size_t)h * op->len, in + (size_t)h * n + op->from, op->len * sizeof *y);
}

static void concat(const struct kr_cpu_exec *x, const struct kr_plan_op *op, const float *a,
                   const float *b, float *y)
{
    uint32_t n = x->plan->values[op->in[0]].width / op->heads;
    uint32_t m = x->plan->values[op->in[1]].width / op->heads;
    for (uint32_t h = 0; h < op->heads; h++, y += n + m) {
        memcpy(y, a + (size_t)h * n, n * sizeof *y);
        memcpy(y + n, b + (size_t)h * m, m * sizeof *y);
    }
}

/* The row's cosines and sines; a logit row's are those of the row it was. */
static const float *row_angles(const struct kr_cpu_exec *x, const struct kr_step *s, uint32_t row)
{
    uint32_t at = s->domain == KR_DOM_LOGITS ? x->now.logit_rows[row] : row;
    return kr_value_row(x, s->slot, at);
}

/* A model without arithmetic: the next token is a hash of this one and its position, or the next
 * one of the text that the row follows. */
static void peak(const struct kr_cpu_exec *x, const struct kr_step *s, uint32_t row, const float *a,
                 float *y)
{
    const struct kr_plan_op *op = &x->plan->ops[s->op];
    const struct kr_row *r =
        &x->now.batch->rows[s->domain == KR_DOM_LOGITS ? x->now.logit_rows[row] : row];
    uint32_t width = x->plan->values[op->out].width, pos = r->pos, at = op->n_state;
    if (s->w && kr_cpu_peaks(s->w, (uint32_t)op->w.ne[0], *a, s->extra, y, width)) return;
    uint32_t h = (r->src == KR_ROW_TOKEN ? r->token : 0) * 0x9e3779b1u + pos * 0x85ebca77u;
    h = (h ^ h >> 15) * 0x2c1b3c6du;
    h ^= h >> 12;
    if (!op->len || (pos + 1) % op->len) at = op->from + h % (width - op->from);
    memset(y, 0, width * sizeof *y);
    y[at] = 32.0f;
}

static void kv_write(const struct kr_cpu_exec *x, const struct kr_step *s, uint32_t row,
                     const float *k, const float *v)
{
    const struct kr_plan_op *op = &x->plan->ops[s->op];
    kr_cpu_kv_store(x, (uint32_t)op->kv_layer, row, k, v);
}

void kr_cpu_elementwise(const struct kr_cpu_exec *x, const struct kr_plan_op *op, uint32_t row,
                        uint32_t c0, uint32_t c1)
{
    const struct kr_cpu_ops *o = &x->dev->ops;
    const float *a = kr_value_row(x, (uint32_t)op->in[0], row) + c0, *b = NULL;
    if (op->in[1] >= 0) b = kr_value_row(x, (uint32_t)op->in[1], row) + c0;
    float *y = kr_value_row(x, (uint32_t)op->out, row) + c0;
    uint32_t n = c1 - c0;
    if (op->kind == KR_OP_ADD)
        o->add(y, a, b, n);
    else if (op->kind == KR_OP_GLU || op->kind == KR_OP_ACT)
        o->glu(y, a, b, op->act, n);
    else if (op->kind == KR_OP_SCALE)
        o->scale(y, a, op->f, n);
    else
        o->softcap(y, a, op->f, n);
}

static void one_op(const struct kr_cpu_exec *x, const struct kr_step *s, uint32_t row)
{
    const struct kr_plan_op *op = &x->plan->ops[s->op];
    const float *a = NULL, *b = NULL;
    float *y = NULL;
    if (op->kind == KR_OP_ROUTE || op->kind == KR_OP_DISPATCH || op->kind == KR_OP_COMBINE) {
        kr_cpu_expert_row(x, s, row);
        return;
    }
    if (op->in[0] >= 0 && op->kind != KR_OP_TAKE_LOGITS)
        a = kr_value_row(x, (uint32_t)op->in[0], row);
    if (op->in[1] >= 0) b = kr_value_row(x, (uint32_t)op->in[1], row);
    if (op->out >= 0) y = kr_value_row(x, (uint32_t)op->out, row);
    switch (op->kind) {
    case KR_OP_EMBED:
        embed(x, op, row, y);
        break;
    case KR_OP_EMBED_POS:
        embed_pos(x, op, row, y);
        break;
    case KR_OP_RMS_NORM:
    case KR_OP_LAYER_NORM:
        norm(x, s, a, y);
        break;
    case KR_OP_ROPE:
        rope(x, s, a, row_angles(x, s, row), y);
        break;
    case KR_OP_KV_WRITE:
        kv_write(x, s, row, a, b);
        break;
    case KR_OP_GLU:
        if (x->plan->values[op->in[0]].width < x->plan->values[op->in[1]].width)
            narrow_glu(x, op, a, b, y);
        else
            kr_cpu_elementwise(x, op, row, 0, x->plan->values[op->out].width);
        break;
    case KR_OP_POS_SCALE:
        x->dev->ops.scale(y, a, pos_factor(x, op, row), x->plan->values[op->out].width);
        break;
    case KR_OP_SLICE:
        slice(x, op, a, y);
        break;
    case KR_OP_CONCAT:
        concat(x, op, a, b, y);
        break;
    case KR_OP_ACT:
    case KR_OP_ADD:
    case KR_OP_SCALE:
    case KR_OP_SOFTCAP:
        kr_cpu_elementwise(x, op, row, 0, x->plan->values[op->out].width);
        break;
    case KR_OP_PEAK:
        peak(x, s, row, a, y);
        break;
    case KR_OP_TAKE_LOGITS:
        memcpy(y, kr_value_row(x, (uint32_t)op->in[0], x->now.logit_rows[row]),
               x->plan->values[op->out].width * sizeof *y);
        break;
    case KR_OP_MATMUL:
    case KR_OP_HEAD_MATMUL:
    case KR_OP_ATTENTION:
    case KR_OP_SELECT:
    case KR_OP_ROUTE:
    case KR_OP_DISPATCH:
    case KR_OP_EXPERT_MATMUL:
    case KR_OP_COMBINE:
    case KR_OP_CONV:
    case KR_OP_SCAN:
    case KR_OP_DELTA:
    case KR_OP_FOLLOW:
    case KR_OP_COUNT:
        cn_assert(!"heavy work among row work");
    }
}

static void one_step(const struct kr_cpu_exec *x, const struct kr_step *s, uint32_t r0, uint32_t r1)
{
    if (s->kind == KR_STEP_QUANTIZE) {
        struct kr_q8 q = kr_slot_q8(x, s->slot, x->plan->values[s->op].width);
        x->dev->mm.quantize(&q, kr_slot_mem(x, s->op), x->slots[s->op].stride, r0, r1);
        return;
    }
    for (uint32_t r = r0; r < r1; r++) {
        if (s->kind == KR_STEP_ANGLES)
            angles(x, &x->plan->ropes[s->op], r, kr_value_row(x, s->slot, r));
        else if (s->kind == KR_STEP_GATHER)
            kr_cpu_gather(x, s, r);
        else
            one_op(x, s, r);
    }
}

void kr_cpu_row_work(const struct kr_cpu_exec *x, const struct kr_level *l, enum kr_domain domain,
                     uint32_t r0, uint32_t r1)
{
    for (uint32_t r = r0; r < r1; r += ROWS_AT_ONCE)
        for (uint32_t i = l->row_begin; i < l->row_end; i++)
            if (x->row_steps[i].domain == domain)
                one_step(x, &x->row_steps[i], r, CN_MIN(r + ROWS_AT_ONCE, r1));
}
