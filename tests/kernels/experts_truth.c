#include "tests/kernels/experts_truth.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void need(bool memory)
{
    if (memory) return;
    fprintf(stderr, "experts_truth: out of memory\n");
    abort();
}

static uint32_t choices(const struct truth *t, int v)
{
    return t->p->values[v].domain == KR_DOM_ROUTED ? t->p->n_used : 1;
}

/* Quantised weights meet activations rounded to int8 by 32. */
static double *activations(const double *x, size_t n, enum kr_type type)
{
    double *y = malloc(n * sizeof *y);
    need(y);
    memcpy(y, x, n * sizeof *y);
    if (kr_type_info((uint32_t)type)->block_elems == 1) return y;
    for (size_t at = 0; at < n; at += 32) {
        double max = 0;
        for (size_t i = at; i < at + 32; i++)
            max = fmax(max, fabs(x[i]));
        for (size_t i = at; i < at + 32 && max > 0; i++)
            y[i] = rint(x[i] * 127 / max) * max / 127;
    }
    return y;
}

static float *dequantized(const struct kr_tensor *t)
{
    size_t n = t->ne[0] * kr_tensor_dim(t, 1) * kr_tensor_dim(t, 2);
    float *w = malloc(n * sizeof *w);
    need(w);
    kr_dequantize_row(t->type, t->data, w, n);
    return w;
}

static double dot(const float *w, const double *x, uint32_t n)
{
    double s = 0;
    for (uint32_t i = 0; i < n; i++)
        s += (double)w[i] * x[i];
    return s;
}

/* All three kinds: row i of the input meets matrix m[i] (experts), or its part h matrix h. */
static void product(const struct truth *t, const struct kr_plan_op *op)
{
    bool routed = op->kind == KR_OP_EXPERT_MATMUL, heads = op->kind == KR_OP_HEAD_MATMUL;
    uint32_t cols = (uint32_t)op->w.ne[0], all = (uint32_t)kr_tensor_dim(&op->w, 1);
    uint32_t n = routed ? op->len : all, parts = heads ? op->heads : 1;
    size_t rows = (size_t)t->rows * choices(t, op->in[0]);
    double *x = activations(t->v[op->in[0]], rows * parts * cols, op->w.type);
    double *y = t->v[op->out];
    float *w = dequantized(&op->w);
    const float *bias = op->bias.data;
    for (size_t i = 0; i < rows; i++)
        for (uint32_t h = 0; h < parts; h++)
            for (uint32_t o = 0; o < n; o++) {
                size_t matrix = routed ? t->experts[op->in[1]][i] : h;
                size_t line = matrix * all + op->from + o;
                y[(i * parts + h) * n + o] =
                    dot(w + line * cols, x + (i * parts + h) * cols, cols) +
                    (bias ? bias[routed ? line : o] : 0);
            }
    free(x);
    free(w);
}

static double gate_of(enum kr_gating g, const double *r, uint32_t n, uint32_t e)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp(r[i] - r[e]);
    if (g == KR_GATE_SOFTMAX) return 1 / sum;
    if (g == KR_GATE_SIGMOID) return 1 / (1 + exp(-r[e]));
    return g == KR_GATE_SOFTMAX_TOP ? r[e] : sqrt(log(1 + exp(r[e])));
}

/* Without ties; groups by their two best. */
static void route_row(const struct kr_plan_op *op, uint32_t n, const double *r, uint32_t *ids,
                      double *w)
{
    const struct kr_router *rt = &op->router;
    const float *bias = op->bias.data, *scale = op->extra.data;
    double p[64], q[64], sum = 0;
    for (uint32_t e = 0; e < n; e++) {
        p[e] = gate_of(rt->gating, r, n, e);
        q[e] = p[e] + (bias ? (double)bias[e] : 0);
    }
    uint32_t size = rt->n_groups ? n / rt->n_groups : n;
    for (uint32_t closed = rt->n_groups_used; closed < rt->n_groups; closed++) {
        uint32_t worst = 0;
        double least = INFINITY;
        for (uint32_t g = 0; g < rt->n_groups; g++) {
            double a = -INFINITY, b = -INFINITY;
            for (uint32_t e = g * size; e < (g + 1) * size; e++) {
                b = fmax(b, fmin(a, q[e]));
                a = fmax(a, q[e]);
            }
            if (a == -INFINITY || (rt->one_best ? a : a + b) > least) continue;
            least = rt->one_best ? a : a + b;
            worst = g;
        }
        for (uint32_t e = worst * size; e < (worst + 1) * size; e++)
            q[e] = -INFINITY;
    }
    for (uint32_t i = 0; i < rt->n_used; i++) {
        uint32_t best = 0;
        for (uint32_t e = 0; e < n; e++)
            if (q[e] > q[best]) best = e;
        ids[i] = best;
        q[best] = -INFINITY;
        w[i] = rt->gating == KR_GATE_SOFTMAX_TOP ? exp(p[best]) : p[best];
        sum += w[i];
    }
    for (uint32_t i = 0; i < rt->n_used; i++) {
        if (rt->norm || rt->gating == KR_GATE_SOFTMAX_TOP) w[i] /= sum;
        w[i] *= (double)rt->scale * (scale ? scale[ids[i]] : 1);
    }
}

static void interpret(struct truth *t, const struct kr_plan_op *op)
{
    uint32_t width = t->p->values[op->out].width, k = t->p->n_used;
    size_t n = (size_t)t->rows * choices(t, op->out);
    const double *a = op->in[0] >= 0 ? t->v[op->in[0]] : NULL;
    const double *b = op->in[1] >= 0 ? t->v[op->in[1]] : NULL;
    double *y = t->v[op->out] = calloc(n * width, sizeof *y);
    need(y);
    if (op->kind == KR_OP_MATMUL || op->kind == KR_OP_HEAD_MATMUL ||
        op->kind == KR_OP_EXPERT_MATMUL) {
        product(t, op);
    } else if (op->kind == KR_OP_ROUTE) {
        uint32_t e = t->p->values[op->in[0]].width;
        uint32_t *ids = t->experts[op->out] = calloc((size_t)t->rows * k, sizeof *ids);
        for (uint32_t r = 0; r < t->rows; r++)
            route_row(op, e, a + (size_t)r * e, ids + (size_t)r * k, y + (size_t)r * 2 * k);
    } else if (op->kind == KR_OP_DISPATCH) {
        for (size_t i = 0; i < n * width; i++) {
            size_t row = i / width / k, choice = i / width % k;
            y[i] = a[row * width + i % width] * (op->flag ? b[row * 2 * k + choice] : 1);
        }
    } else if (op->kind == KR_OP_COMBINE) {
        for (size_t i = 0; i < n * k * width; i++) {
            size_t row = i / width / k, choice = i / width % k;
            y[row * width + i % width] += a[i] * (op->flag ? b[row * 2 * k + choice] : 1);
        }
    } else {
        for (size_t i = 0; i < n * width; i++) {
            double silu = a ? a[i] / (1 + exp(-a[i])) : 0;
            y[i] = op->kind == KR_OP_EMBED   ? (double)t->embd[i]
                   : op->kind == KR_OP_GLU   ? silu * b[i]
                   : op->kind == KR_OP_ACT   ? silu
                   : op->kind == KR_OP_ADD   ? a[i] + b[i]
                   : op->kind == KR_OP_SCALE ? (double)op->f * a[i]
                                             : a[i];
        }
    }
}

void truth_new(struct truth *t, const struct kr_plan *p, const float *embd, uint32_t rows)
{
    *t = (struct truth){.p = p,
                        .rows = rows,
                        .embd = embd,
                        .v = calloc(p->n_values, sizeof *t->v),
                        .experts = calloc(p->n_values, sizeof *t->experts)};
    need(t->v && t->experts);
    for (size_t i = 0; i < p->n_ops; i++)
        interpret(t, &p->ops[i]);
}

void truth_free(struct truth *t)
{
    for (size_t i = 0; i < t->p->n_values; i++) {
        free(t->v[i]);
        free(t->experts[i]);
    }
    free(t->v);
    free(t->experts);
}
