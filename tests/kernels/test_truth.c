/* truth: a step against a plain interpreter of the plan in double precision, and what a step does
 * with numbers that are not numbers, with few or no logits, with copied blocks and bad batches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/plan.h"
#include "tests/kernels/tiny.h"

enum { N = 150 };

/* clang-format off */
static const struct tiny_shape shapes[] = {
    { .n_layers = 2, .width = 64, .heads = 6, .kv_heads = 2, .head_dim = 20, .ffn = 96,
      .vocab = 50, .weights = KR_F32, .head = KR_F16, .window = 40, .qk_norm = true, .neox = true },
    { .n_layers = 2, .width = 64, .heads = 4, .kv_heads = 1, .head_dim = 72, .ffn = 96,
      .vocab = 50, .weights = KR_BF16, .head = KR_F32, .bias = true, .softcap = 5.0f },
    { .n_layers = 2, .width = 96, .heads = 3, .kv_heads = 3, .head_dim = 32, .ffn = 160,
      .vocab = 67, .weights = KR_Q4_1, .head = KR_Q8_0, .window = 17 },
    { .n_layers = 1, .width = 64, .heads = 2, .kv_heads = 2, .head_dim = 32, .ffn = 96,
      .vocab = 40, .weights = KR_MXFP4, .head = KR_IQ4_NL },
    { .n_layers = 1, .width = 256, .heads = 4, .kv_heads = 2, .head_dim = 64, .ffn = 256,
      .vocab = 40, .weights = KR_IQ4_XS, .head = KR_IQ4_XS },
    { .n_layers = 1, .width = 256, .heads = 4, .kv_heads = 2, .head_dim = 64, .ffn = 256,
      .vocab = 40, .weights = KR_Q2_K, .head = KR_TQ1_0 },
    { .n_layers = 1, .width = 256, .heads = 4, .kv_heads = 2, .head_dim = 64, .ffn = 256,
      .vocab = 40, .weights = KR_Q3_K, .head = KR_TQ2_0 },
    { .n_layers = 1, .width = 256, .heads = 4, .kv_heads = 2, .head_dim = 64, .ffn = 256,
      .vocab = 40, .weights = KR_IQ3_S, .head = KR_IQ3_S },
};
/* clang-format on */

/* ---- the interpreter: every value for all N rows, [N][width] doubles ------------------------- */

struct truth {
    const struct kr_plan *p;
    const uint32_t *tokens;
    enum kr_type kv;
    double **v;
};

static float *dequantized(const struct kr_tensor *t)
{
    uint64_t rows = t->n_dims > 1 ? t->ne[1] : 1, cols = t->ne[0];
    float *w = malloc(rows * cols * sizeof *w);
    assert_non_null(w);
    kr_dequantize_row(t->type, t->data, w, rows * cols);
    return w;
}

/* Quantised weights meet activations rounded to int8 by 32. */
static double *activations(const double *x, uint32_t width, enum kr_type type)
{
    double *y = malloc((size_t)N * width * sizeof *y);
    assert_non_null(y);
    memcpy(y, x, (size_t)N * width * sizeof *y);
    if (kr_type_info((uint32_t)type)->block_elems == 1) return y;
    for (uint32_t at = 0; at < N * width; at += 32) {
        double max = 0;
        for (uint32_t i = at; i < at + 32; i++)
            max = fmax(max, fabs(x[i]));
        for (uint32_t i = at; i < at + 32; i++)
            y[i] = max > 0 ? rint(x[i] * 127 / max) * max / 127 : 0;
    }
    return y;
}

static void matmul(const struct kr_plan_op *op, const double *given, uint32_t in, double *y,
                   uint32_t out)
{
    float *w = dequantized(&op->w);
    double *x = activations(given, in, op->w.type);
    const float *bias = op->bias.data;
    for (uint32_t r = 0; r < N; r++)
        for (uint32_t o = 0; o < out; o++) {
            double s = bias ? bias[o] : 0;
            for (uint32_t i = 0; i < in; i++)
                s += (double)w[(size_t)o * in + i] * x[(size_t)r * in + i];
            y[(size_t)r * out + o] = s;
        }
    free(x);
    free(w);
}

static void norm(const struct kr_plan_op *op, const double *x, double *y, uint32_t width)
{
    const float *w = op->w.data;
    uint32_t n = width / op->heads;
    for (uint32_t part = 0; part < N * op->heads; part++) {
        double sum = 0;
        for (uint32_t i = 0; i < n; i++)
            sum += x[part * n + i] * x[part * n + i];
        for (uint32_t i = 0; i < n; i++)
            y[part * n + i] = x[part * n + i] / sqrt(sum / n + (double)op->f) * (w ? w[i] : 1);
    }
}

static void rope(const struct truth *t, const struct kr_plan_op *op, const double *x, double *y,
                 uint32_t width)
{
    const struct kr_plan_rope *r = &t->p->ropes[op->rope];
    for (uint32_t at = 0; at < N * width; at += r->head_dim) {
        double pos = at / width;
        memcpy(y + at, x + at, r->head_dim * sizeof *y);
        for (uint32_t i = 0; i < r->n_rot / 2; i++) {
            uint32_t a = at + (r->kind == KR_ROPE_NORM ? 2 * i : i);
            uint32_t b = r->kind == KR_ROPE_NORM ? a + 1 : a + r->n_rot / 2;
            double c = cos(pos * r->inv_freq[i]), s = sin(pos * r->inv_freq[i]);
            y[a] = (x[a] * c - x[b] * s) * r->amplitude;
            y[b] = (x[a] * s + x[b] * c) * r->amplitude;
        }
    }
}

static double half(double x)
{
    return kr_f16_f32(kr_f32_f16((float)x));
}

/* What the pool keeps of K or V: heads of dim values, f16 or int8 by 32 with an f16 scale. */
static double *kept(const double *x, uint32_t heads, uint32_t dim, enum kr_type kv)
{
    double *y = malloc((size_t)N * heads * dim * sizeof *y);
    assert_non_null(y);
    for (uint32_t h = 0; h < N * heads; h++)
        for (uint32_t d = 0; d < dim; d++) {
            const double *block = x + (size_t)h * dim + d / 32 * 32;
            double max = 0;
            for (uint32_t i = 0; i < CN_MIN(32u, dim - d / 32 * 32); i++)
                max = fmax(max, fabs(block[i]));
            double v = x[(size_t)h * dim + d];
            y[(size_t)h * dim + d] = kv == KR_F16 ? half(v)
                                     : max > 0    ? half(max / 127) * rint(v * 127 / max)
                                                  : 0;
        }
    return y;
}

/* A query of dim values times the softmax's scale; q8_0 keys meet it rounded to 16 bits by 32. */
static void scaled_query(double *to, const double *q, uint32_t dim, double scale, enum kr_type kv)
{
    for (uint32_t d = 0; d < dim; d++) {
        double max = 0;
        for (uint32_t i = d / 32 * 32; i < CN_MIN(d / 32 * 32 + 32, dim); i++)
            max = fmax(max, fabs(q[i] * scale));
        to[d] = q[d] * scale;
        if (kv == KR_Q8_0) to[d] = max > 0 ? rint(to[d] * 32767 / max) * max / 32767 : 0;
    }
}

static void attention(const struct truth *t, const struct kr_plan_op *op, const double *q,
                      double *y)
{
    const struct kr_plan_layer *l = &t->p->layers[op->kv_layer];
    const struct kr_plan_op *w = NULL;
    for (size_t i = 0; i < t->p->n_ops; i++)
        if (t->p->ops[i].kind == KR_OP_KV_WRITE && t->p->ops[i].kv_layer == op->kv_layer)
            w = &t->p->ops[i];
    assert_non_null(w);
    double *k = kept(t->v[w->in[0]], l->n_kv_heads, l->k_dim, t->kv);
    double *v = kept(t->v[w->in[1]], l->n_kv_heads, l->v_dim, t->kv);
    uint32_t window = t->p->groups[l->group].window_tokens, per = op->heads / l->n_kv_heads;
    for (uint32_t r = 0; r < N; r++)
        for (uint32_t h = 0; h < op->heads; h++) {
            double p[N], scaled[128], max = -INFINITY, sum = 0;
            uint32_t from = window && r + 1 > window ? r + 1 - window : 0, kh = h / per;
            double *out = y + ((size_t)r * op->heads + h) * l->v_dim;
            assert_true(l->k_dim <= CN_ARRAY_LEN(scaled));
            scaled_query(scaled, q + ((size_t)r * op->heads + h) * l->k_dim, l->k_dim,
                         (double)op->f, t->kv);
            for (uint32_t j = from; j <= r; j++) {
                double s = 0;
                for (uint32_t d = 0; d < l->k_dim; d++)
                    s += scaled[d] * k[((size_t)j * l->n_kv_heads + kh) * l->k_dim + d];
                if (op->softcap > 0) s = op->softcap * tanh(s / (double)op->softcap);
                p[j] = s;
                max = fmax(max, s);
            }
            for (uint32_t j = from; j <= r; j++)
                sum += p[j] = exp(p[j] - max);
            for (uint32_t d = 0; d < l->v_dim; d++) {
                out[d] = 0;
                for (uint32_t j = from; j <= r; j++)
                    out[d] += p[j] / sum * v[((size_t)j * l->n_kv_heads + kh) * l->v_dim + d];
            }
        }
    free(k);
    free(v);
}

static double act(enum kr_act a, double g)
{
    if (a == KR_ACT_SILU) return g / (1 + exp(-g));
    return 0.5 * g * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
}

static void interpret(struct truth *t, const struct kr_plan_op *op)
{
    if (op->out < 0) return;
    uint32_t width = t->p->values[op->out].width;
    const double *a = op->in[0] >= 0 ? t->v[op->in[0]] : NULL;
    const double *b = op->in[1] >= 0 ? t->v[op->in[1]] : NULL;
    double *y = t->v[op->out] = malloc((size_t)N * width * sizeof *y);
    assert_non_null(y);
    if (op->kind == KR_OP_MATMUL) {
        matmul(op, a, t->p->values[op->in[0]].width, y, width);
    } else if (op->kind == KR_OP_RMS_NORM) {
        norm(op, a, y, width);
    } else if (op->kind == KR_OP_ROPE) {
        rope(t, op, a, y, width);
    } else if (op->kind == KR_OP_ATTENTION) {
        attention(t, op, a, y);
    } else if (op->kind == KR_OP_EMBED) {
        float *w = dequantized(&op->w);
        for (uint32_t i = 0; i < N * width; i++)
            y[i] = (double)op->f * w[t->tokens[i / width] * width + i % width];
        free(w);
    } else {
        for (uint32_t i = 0; i < N * width; i++)
            y[i] = op->kind == KR_OP_GLU       ? act(op->act, a[i]) * b[i]
                   : op->kind == KR_OP_ADD     ? a[i] + b[i]
                   : op->kind == KR_OP_SCALE   ? (double)op->f * a[i]
                   : op->kind == KR_OP_SOFTCAP ? op->f * tanh(a[i] / (double)op->f)
                                               : a[i]; /* take_logits: all rows want them */
    }
}

static void free_truth(struct truth *t)
{
    for (size_t i = 0; i < t->p->n_values; i++)
        free(t->v[i]);
    free(t->v);
}

static void some_tokens(uint32_t *tokens, uint32_t vocab)
{
    uint64_t seed = 8;
    for (uint32_t i = 0; i < N; i++)
        tokens[i] = tiny_rand(&seed) % vocab;
}

static const enum kr_isa isas[] = {KR_ISAS};
static const struct tiny_run_opts usual = {.threads = 2,
                                           .block_tokens = 16,
                                           .max_rows = N,
                                           .max_context = 256,
                                           .n_blocks = 40,
                                           .kv_type = KR_F16};

static void check_truth(const struct tiny *t, enum kr_isa isa, enum kr_type kv, const double *want,
                        const uint32_t *tokens)
{
    struct tiny_run r;
    struct tiny_run_opts o = usual;
    struct tiny_seq s, *list[1] = {&s};
    uint32_t n = N, vocab = t->shape.vocab;
    o.isa = isa;
    o.kv_type = kv;
    if (!tiny_run_open(&r, t, &o)) return;
    tiny_seq_open(&r, &s, tokens, N, vocab, true);
    tiny_step(&r, list, &n, 1, vocab);
    double sum = 0, sum2 = 0, err2 = 0, worst = 0, count = (double)N * vocab;
    for (uint32_t i = 0; i < N * vocab; i++) {
        double e = fabs(s.logits[i] - want[i]);
        sum += want[i];
        sum2 += want[i] * want[i];
        err2 += e * e;
        worst = fmax(worst, e);
    }
    double sigma = sqrt(sum2 / count - sum / count * sum / count);
    /* float32 sums, and what rounds to its other neighbour now and then. */
    double rms = sqrt(err2 / count) / sigma;
    worst /= sigma;
    bool int8 = kr_type_info(t->shape.weights)->block_elems > 1 ||
                kv == KR_Q8_0; /* whose steps are large */
    double rms_most = int8 ? 0.01 : 3e-4, worst_most = int8 ? 0.15 : 3e-3;
    if (!(rms <= rms_most && worst <= worst_most)) /* so that NaN fails, too */
        fail_msg("isa %d, KV type %d: rms %.2g, worst %.2g", (int)isa, (int)kv, rms, worst);
    tiny_seq_close(&s);
    tiny_run_close(&r);
}

static void test_against_double(void **state)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(shapes); i++) {
        struct tiny *t = tiny_new(&shapes[i], 31 + i);
        uint32_t tokens[N];
        some_tokens(tokens, shapes[i].vocab);
        for (int q8 = 0; q8 < 2; q8++) {
            struct truth want = {.p = t->plan,
                                 .tokens = tokens,
                                 .kv = q8 ? KR_Q8_0 : KR_F16,
                                 .v = calloc(t->plan->n_values, sizeof(double *))};
            assert_non_null(want.v);
            for (size_t k = 0; k < t->plan->n_ops; k++)
                interpret(&want, &t->plan->ops[k]);
            for (size_t k = 0; k < CN_ARRAY_LEN(isas); k++)
                check_truth(t, isas[k], want.kv, want.v[t->plan->output], tokens);
            free_truth(&want);
        }
        tiny_free(t);
    }
}

/* ---- what else a step may meet --------------------------------------------------------------- */

/* A NaN in one sequence's embedding: its logits are NaN, its neighbour's are what they were. */
static void test_nan(void **state)
{
    for (size_t k = 0; k < CN_ARRAY_LEN(isas); k++) {
        struct tiny *t = tiny_new(&shapes[k], 5);
        uint32_t tokens[N], bad[3], vocab = shapes[k].vocab, n[2] = {3, 3};
        some_tokens(tokens, vocab);
        for (int i = 0; i < 3; i++) {
            tokens[i] %= vocab - 1;
            bad[i] = i == 1 ? vocab - 1 : tokens[i];
        }
        const struct kr_tensor *table = &t->plan->ops[0].w;
        uint8_t *row = (uint8_t *)(uintptr_t)table->data + (vocab - 1) * (table->bytes / vocab);
        memset(row, 0xff, table->bytes / vocab); /* a NaN in every float type and scale */
        for (size_t i = 0; i < CN_ARRAY_LEN(isas); i++) {
            struct tiny_run r;
            struct tiny_run_opts o = usual;
            struct tiny_seq a, b, alone, *list[2] = {&a, &b}, *one[1] = {&alone};
            o.isa = isas[i];
            if (!tiny_run_open(&r, t, &o)) continue;
            tiny_seq_open(&r, &a, bad, 3, vocab, true);
            tiny_seq_open(&r, &b, tokens, 3, vocab, true);
            tiny_seq_open(&r, &alone, tokens, 3, vocab, true);
            tiny_step(&r, list, n, 2, vocab);
            tiny_step(&r, one, n, 1, vocab);
            for (uint32_t j = 0; j + 1 < vocab; j++) { /* the last column is NaN by its weights */
                assert_true(isfinite(a.logits[j]));
                assert_true(isnan(a.logits[vocab + j]) && isnan(a.logits[2 * vocab + j]));
                for (int p = 0; p < 3; p++)
                    assert_true(b.logits[p * vocab + j] == alone.logits[p * vocab + j]);
            }
            tiny_seq_close(&a);
            tiny_seq_close(&b);
            tiny_seq_close(&alone);
            tiny_run_close(&r);
        }
        tiny_free(t);
    }
}

/* Logits of some rows only, or none, and a partial block copied for another sequence to go on. */
static void test_few_logits_and_copy(void **state)
{
    for (size_t i = 0; i < 2 * CN_ARRAY_LEN(isas); i++) {
        struct tiny *t = tiny_new(&shapes[0], 6);
        uint32_t tokens[N], other[N], vocab = shapes[0].vocab, n = N;
        some_tokens(tokens, vocab);
        memcpy(other, tokens, sizeof other);
        for (int j = 137; j < N; j++)
            other[j] = (tokens[j] + 1) % vocab;
        struct tiny_run r;
        struct tiny_run_opts o = usual;
        struct tiny_seq want, want_other, got, copy, *list[1];
        o.isa = isas[i / 2];
        o.kv_type = i % 2 ? KR_Q8_0 : KR_F16;
        if (tiny_run_open(&r, t, &o)) {
            tiny_seq_open(&r, &want, tokens, N, vocab, true);
            tiny_step(&r, (list[0] = &want, list), &n, 1, vocab);
            tiny_seq_open(&r, &want_other, other, N, vocab, true);
            tiny_step(&r, (list[0] = &want_other, list), &n, 1, vocab);
            tiny_seq_open(&r, &got, tokens, N, vocab, false);
            tiny_step(&r, (list[0] = &got, list), (n = 70, &n), 1, vocab); /* no logits at all */
            tiny_step(&r, list, (n = 67, &n), 1, vocab);
            /* The other one shares full blocks and gets 9 tokens of the one at 128. */
            tiny_seq_open(&r, &copy, other, N, vocab, true);
            for (uint32_t g = 0; g < r.n_groups; g++) {
                memcpy(copy.tables[g], got.tables[g], 8 * sizeof(uint32_t));
                assert_int_equal(
                    kr_kv_copy(r.exec, r.mem, g, copy.tables[g][8], got.tables[g][8], 137 % 16), 0);
            }
            copy.done = 137;
            tiny_step(&r, (list[0] = &copy, list), (n = N - 137, &n), 1, vocab);
            got.logits = calloc((size_t)N * vocab, sizeof(float));
            assert_non_null(got.logits);
            tiny_step(&r, (list[0] = &got, list), &n, 1, vocab);
            size_t at = 137 * (size_t)vocab, bytes = (N - 137) * (size_t)vocab * sizeof(float);
            assert_memory_equal(got.logits + at, want.logits + at, bytes);
            assert_memory_equal(copy.logits + at, want_other.logits + at, bytes);
            n = N;
            assert_int_equal(kr_kv_copy(r.exec, r.mem, 9, 0, 0, 1), CN_EINVAL);
            assert_int_equal(kr_kv_copy(r.exec, r.mem, 0, 0, 0, 17), CN_EINVAL);
            assert_int_equal(kr_kv_copy(r.exec, r.mem, 0, UINT32_MAX, 0, 1), CN_ERANGE);
            assert_int_equal(kr_kv_copy(r.exec, r.mem, 0, 0, 1, 1), CN_ERANGE);
            tiny_seq_close(&want);
            tiny_seq_close(&want_other);
            tiny_seq_close(&got);
            tiny_seq_close(&copy);
            tiny_run_close(&r);
        }
        tiny_free(t);
    }
}

/* A row given as an embedding equals the same row given as its token. */
static void test_embedding_rows(void **state)
{
    struct tiny *t = tiny_new(&shapes[0], 7);
    struct tiny_run r;
    struct tiny_seq s;
    float vec[64], *logits, first[50];
    uint32_t token = 9;
    assert_true(tiny_run_open(&r, t, &usual));
    tiny_seq_open(&r, &s, &token, 1, shapes[0].vocab, false);
    const struct kr_tensor *table = &t->plan->ops[0].w;
    kr_dequantize_row(table->type, (const uint8_t *)table->data + token * (table->bytes / 50), vec,
                      64);
    for (int i = 0; i < 2; i++) {
        struct kr_row row = {.logits = true, .src = i ? KR_ROW_EMBED : KR_ROW_TOKEN};
        if (i)
            row.embed = vec;
        else
            row.token = token;
        struct kr_seq seq = {.tables = s.table_ptrs};
        struct kr_batch b = {.n_rows = 1, .n_seqs = 1, .rows = &row, .seqs = &seq};
        uint64_t ticket;
        assert_int_equal(kr_launch(r.exec, r.mem, &b, &ticket, NULL), 0);
        assert_int_equal(kr_collect(r.exec, ticket, &logits, NULL), 0);
        assert_int_equal(kr_collect(r.exec, ticket + 1, &logits, NULL), CN_EINVAL);
        if (i)
            assert_memory_equal(first, logits, sizeof first);
        else
            memcpy(first, logits, sizeof first);
    }
    tiny_seq_close(&s);
    tiny_run_close(&r);
    tiny_free(t);
}

static void test_bad_batches(void **state)
{
    struct tiny *t = tiny_new(&shapes[0], 8);
    struct tiny_run r;
    struct tiny_run_opts o = usual;
    struct kr_device_info info;
    o.max_rows = 4;
    assert_true(tiny_run_open(&r, t, &o));
    kr_device_info(r.dev, &info);
    for (int i = 0; i < 20; i++) {
        uint32_t table[16] = {0}, bad_table[16] = {0, UINT32_MAX};
        const uint32_t *tables[2] = {table, i == 9 ? bad_table : table};
        const uint32_t *missing[2] = {table, NULL};
        struct kr_row rows[5];
        struct kr_seq seqs[2] = {{tables}, {tables}};
        struct kr_batch b = {.n_rows = 3, .n_seqs = 2, .rows = rows, .seqs = seqs};
        for (uint32_t k = 0; k < 5; k++)
            rows[k] = (struct kr_row){.seq = k == 2, .pos = 20 + k % 2, .token = 1};
        int want = CN_EINVAL;
        uint64_t ticket;
        struct cn_error err = {0};
        switch (i) {
            /* clang-format off */
        case 0: b.n_rows = 0; break;
        case 1: b.n_rows = 5; want = CN_ELIMIT; break;
        case 2: rows[1].seq = 2; want = CN_ERANGE; break;
        case 3: rows[1].pos = 256; want = CN_ERANGE; break;
        case 4: rows[1].pos = 22; break;
        case 5: rows[1].pos = 20; break;
        case 6: b.n_rows = 4; break; /* sequence 0 again after sequence 1 */
        case 7: rows[2].token = 50; want = CN_ERANGE; break;
        case 8: rows[2].token = UINT32_MAX; want = CN_ERANGE; break;
        case 9: want = CN_ERANGE; break;
        case 10: seqs[1].tables = missing; break;
        case 11: seqs[0].tables = NULL; break;
        case 12: rows[0].src = KR_ROW_TICKET; want = info.max_depth > 1 ? CN_EINVAL : CN_EUNSUPP; break;
        case 13: rows[0].src = 77; break;
        case 14: rows[0].src = KR_ROW_EMBED; rows[0].embed = NULL; break;
        case 15: rows[0].adapter = 1; want = CN_EUNSUPP; break;
        case 16: b.n_seqs = 0; break;
        case 17: rows[2].turns = table; want = CN_EUNSUPP; break;
        case 18: rows[0].both_until = 22; want = CN_EUNSUPP; break;
        case 19: seqs[1].n_more = 1; want = CN_EUNSUPP; break;
            /* clang-format on */
        }
        assert_int_equal(kr_launch(r.exec, r.mem, &b, &ticket, &err), want);
        assert_true(err.message[0] != 0);
        if (i == 0) assert_int_equal(kr_launch(r.exec, NULL, &b, &ticket, &err), CN_EINVAL);
    }
    tiny_run_close(&r);
    tiny_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_double),      cmocka_unit_test(test_nan),
        cmocka_unit_test(test_few_logits_and_copy), cmocka_unit_test(test_embedding_rows),
        cmocka_unit_test(test_bad_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
