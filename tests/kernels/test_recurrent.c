/* recurrent: convolution, scan and delta rule in steps. Truth: the formulas of kernels.h in double
 * precision on random rows; and bit equality between every way of cutting the same rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "tests/kernels/tiny.h"

enum { ROWS = 50 };
static const enum kr_isa isas[] = {KR_ISAS};

/* Tails of every kind: lanes, states, heads that are no multiples of a vector. */
struct shape {
    enum kr_op_kind kind;
    /* conv: dim channels, n taps; delta: dim = dv, n = dk, groups = key heads */
    uint32_t heads, dim, groups, n;
    bool flag; /* conv: silu; scan: one decay per n; delta: tiled */
    bool bias;
};
static const struct shape shapes[] = {
    {KR_OP_CONV, 1, 1, 1, 2, true, true},       {KR_OP_CONV, 1, 5, 1, 3, false, false},
    {KR_OP_CONV, 1, 64, 1, 4, true, true},      {KR_OP_CONV, 1, 77, 1, 4, true, false},
    {KR_OP_CONV, 1, 130, 1, 3, false, false},   {KR_OP_CONV, 1, 201, 1, 5, false, true},
    {KR_OP_CONV, 1, 33, 1, 64, true, true},     {KR_OP_CONV, 1, 3000, 1, 4, true, true},
    {KR_OP_SCAN, 1, 1, 1, 1, true, true},       {KR_OP_SCAN, 37, 1, 1, 16, true, true},
    {KR_OP_SCAN, 64, 1, 1, 16, true, false},    {KR_OP_SCAN, 101, 1, 1, 7, true, true},
    {KR_OP_SCAN, 30, 1, 3, 5, true, true},      {KR_OP_SCAN, 24, 1, 1, 71, true, true},
    {KR_OP_SCAN, 4, 64, 2, 128, false, true},   {KR_OP_SCAN, 3, 24, 1, 20, false, true},
    {KR_OP_SCAN, 2, 5, 1, 3, false, false},     {KR_OP_SCAN, 6, 16, 3, 17, false, true},
    {KR_OP_SCAN, 5, 1, 5, 4, false, true},      {KR_OP_DELTA, 1, 1, 1, 1, false, true},
    {KR_OP_DELTA, 4, 128, 2, 128, false, true}, {KR_OP_DELTA, 2, 33, 1, 20, false, true},
    {KR_OP_DELTA, 4, 5, 2, 7, true, true},      {KR_OP_DELTA, 6, 40, 2, 65, true, true},
    {KR_OP_DELTA, 3, 63, 3, 34, false, true},
};

/* A plan of one op whose inputs are slices of its rows' embeddings. */
struct model {
    const struct shape *s;
    struct tiny *t;
    struct kr_tensor table, w, bias, d;
    uint32_t width, n_in, in_width[5], at[5];
    float scale[5];
};

static void set_inputs(struct model *m)
{
    const struct shape *s = m->s;
    uint32_t lanes = s->heads * s->dim, shared = s->groups * s->n;
    uint32_t scan[] = {lanes, s->heads, shared, shared};
    uint32_t delta[] = {shared, shared, lanes, s->heads, s->heads};
    m->n_in = s->kind == KR_OP_CONV ? 1 : s->kind == KR_OP_SCAN ? 4 : 5;
    for (uint32_t i = 0; i < m->n_in; i++) {
        m->in_width[i] = s->kind == KR_OP_CONV ? lanes : s->kind == KR_OP_SCAN ? scan[i] : delta[i];
        m->scale[i] = 0.25f; /* of rows in +-4 */
        m->at[i] = m->width;
        m->width += m->in_width[i];
    }
    if (s->kind == KR_OP_SCAN) m->scale[KR_SCAN_DT] = 6.0f; /* on both sides of softplus's bends */
    if (s->kind == KR_OP_DELTA) {
        m->scale[KR_DELTA_A] = 6.0f;
        m->scale[KR_DELTA_Q] = m->scale[KR_DELTA_K] = sqrtf(3.0f / 16 / (float)s->n); /* length 1 */
    }
}

static int record(struct model *m, const int *in)
{
    const struct shape *s = m->s;
    struct kr_plan *p = m->t->plan;
    uint32_t lanes = s->heads * s->dim;
    if (s->kind == KR_OP_CONV) {
        int state = kr_plan_state(p, lanes * (s->n - 1));
        m->w = tiny_matrix(m->t, "w", KR_F32, lanes, s->n, 1.0f);
        m->bias = tiny_vector(m->t, "b", lanes, 0, 1);
        return kr_op_conv(p, in[0], state, &m->w, s->bias ? &m->bias : NULL,
                          s->flag ? KR_ACT_SILU : KR_ACT_NONE);
    }
    m->w = tiny_vector(m->t, "a", s->kind == KR_OP_SCAN && s->flag ? lanes * s->n : s->heads, -1.5f,
                       1.4f);
    m->bias = tiny_vector(m->t, "dt", s->heads, 0, 1);
    m->d = tiny_vector(m->t, "d", s->heads, 0, 1);
    int state = kr_plan_state(p, lanes * s->n);
    if (s->kind == KR_OP_SCAN)
        return kr_op_scan(p, &(struct kr_scan){.state = state,
                                               .x = in[0],
                                               .dt = in[1],
                                               .b = in[2],
                                               .c = in[3],
                                               .a = &m->w,
                                               .d = &m->d,
                                               .dt_bias = s->bias ? &m->bias : NULL,
                                               .n_heads = s->heads,
                                               .n_groups = s->groups,
                                               .n_state = s->n});
    return kr_op_delta(p, &(struct kr_delta){.state = state,
                                             .q = in[0],
                                             .k = in[1],
                                             .v = in[2],
                                             .a = in[3],
                                             .b = in[4],
                                             .decay = &m->w,
                                             .dt_bias = &m->bias,
                                             .n_k_heads = s->groups,
                                             .n_v_heads = s->heads,
                                             .tiled = s->flag});
}

static struct tiny *new_tiny(uint64_t seed)
{
    struct tiny *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->seed = seed;
    t->plan = kr_plan_new();
    assert_non_null(t->plan);
    return t;
}

static void finish(struct tiny *t, int y)
{
    struct cn_error err = {0};
    kr_plan_output(t->plan, kr_op_take_logits(t->plan, y));
    if (kr_plan_finish(t->plan, &err)) fail_msg("%s", err.message);
}

static struct model new_model(const struct shape *s, uint64_t seed)
{
    struct model m = {.s = s, .t = new_tiny(seed)};
    int in[5];
    set_inputs(&m);
    m.table = tiny_matrix(m.t, "rows", KR_F32, 3 * ROWS, m.width, 2 * sqrtf((float)m.width));
    int x = kr_op_embed(m.t->plan, &m.table, 1);
    for (uint32_t i = 0; i < m.n_in; i++)
        in[i] = kr_op_scale(m.t->plan, kr_op_slice(m.t->plan, x, 1, m.at[i], m.in_width[i]),
                            m.scale[i]);
    int y = record(&m, in);
    m.t->shape.vocab = s->heads * s->dim;
    finish(m.t, y);
    return m;
}

/* ---- truth ----------------------------------------------------------------------------------- */

/* Input i of a row, as the op is given it. */
static double in_at(const struct model *m, uint32_t row, uint32_t i, uint32_t j)
{
    const float *rows = m->table.data;
    return rows[(size_t)row * m->width + m->at[i] + j] * m->scale[i];
}

static double softplus(double x)
{
    return x > 20 ? x : log1p(exp(x));
}

static double vector_at(const struct kr_tensor *t, size_t i)
{
    return ((const float *)t->data)[i];
}

static double conv_at(const struct model *m, uint32_t first, uint32_t r, uint32_t c)
{
    const struct shape *s = m->s;
    double y = s->bias ? vector_at(&m->bias, c) : 0;
    for (uint32_t j = 0; j < s->n; j++)
        if (r + j + 1 >= s->n)
            y += vector_at(&m->w, (size_t)c * s->n + j) * in_at(m, first + r + j + 1 - s->n, 0, c);
    return s->flag ? y / (1 + exp(-y)) : y;
}

static double scan_at(const struct model *m, double *state, uint32_t row, uint32_t h, uint32_t i)
{
    const struct shape *s = m->s;
    uint32_t lane = h * s->dim + i, shared = h / (s->heads / s->groups) * s->n;
    double x = in_at(m, row, KR_SCAN_X, lane), y = vector_at(&m->d, h) * x;
    double d = softplus(in_at(m, row, KR_SCAN_DT, h) + (s->bias ? vector_at(&m->bias, h) : 0));
    for (uint32_t n = 0; n < s->n; n++) {
        double a = vector_at(&m->w, s->flag ? (size_t)lane * s->n + n : h);
        double *e = &state[(size_t)lane * s->n + n];
        *e = exp(d * a) * *e + d * x * in_at(m, row, KR_SCAN_B, shared + n);
        y += *e * in_at(m, row, KR_SCAN_C, shared + n);
    }
    return y;
}

static double delta_at(const struct model *m, double *state, uint32_t row, uint32_t h, uint32_t i)
{
    const struct shape *s = m->s;
    uint32_t lane = h * s->dim + i, r = s->heads / s->groups;
    uint32_t key = (s->flag ? h % s->groups : h / r) * s->n;
    double *e = state + (size_t)lane * s->n, kept = 0, y = 0;
    double a = in_at(m, row, KR_DELTA_A, h) + vector_at(&m->bias, h);
    double g = exp(vector_at(&m->w, h) * softplus(a));
    double beta = 1 / (1 + exp(-in_at(m, row, KR_DELTA_B, h)));
    for (uint32_t n = 0; n < s->n; n++) {
        e[n] *= g;
        kept += e[n] * in_at(m, row, KR_DELTA_K, key + n);
    }
    double d = beta * (in_at(m, row, KR_DELTA_V, lane) - kept);
    for (uint32_t n = 0; n < s->n; n++) {
        e[n] += d * in_at(m, row, KR_DELTA_K, key + n);
        y += e[n] * in_at(m, row, KR_DELTA_Q, key + n);
    }
    return y;
}

/* Rows [first, first + ROWS) of the table from position 0. */
static double *truth(const struct model *m, uint32_t first)
{
    const struct shape *s = m->s;
    uint32_t lanes = s->heads * s->dim;
    double *y = calloc((size_t)ROWS * lanes, sizeof *y);
    double *state = calloc((size_t)lanes * s->n, sizeof *state);
    assert_non_null(y);
    assert_non_null(state);
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t h = 0; h < s->heads; h++)
            for (uint32_t i = 0; i < s->dim; i++) {
                double v = s->kind == KR_OP_CONV   ? conv_at(m, first, r, i)
                           : s->kind == KR_OP_SCAN ? scan_at(m, state, first + r, h, i)
                                                   : delta_at(m, state, first + r, h, i);
                y[(size_t)r * lanes + h * s->dim + i] = v;
            }
    free(state);
    return y;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static const uint32_t *tokens_from(uint32_t first)
{
    static uint32_t tokens[3 * ROWS];
    for (uint32_t i = 0; i < 3 * ROWS; i++)
        tokens[i] = i;
    return tokens + first;
}

static struct tiny_run_opts options(enum kr_isa isa, uint32_t threads, uint32_t order)
{
    return (struct tiny_run_opts){.isa = isa,
                                  .threads = threads,
                                  .block_tokens = 16,
                                  .max_rows = 3 * ROWS,
                                  .max_context = 256,
                                  .n_blocks = 23,
                                  .kv_type = KR_F16,
                                  .order = order};
}

/* To the end in chunks; rows below `silent` are run without logits. */
static void run_on(struct tiny_run *r, struct tiny_seq *s, uint32_t chunk, uint32_t silent,
                   uint32_t vocab)
{
    struct tiny_seq *list[1] = {s};
    float *logits = s->logits;
    while (s->done < s->n_tokens) {
        uint32_t end = s->done < silent ? silent : s->n_tokens, n = CN_MIN(chunk, end - s->done);
        s->logits = s->done < silent ? NULL : logits;
        tiny_step(r, list, &n, 1, vocab);
    }
    s->logits = logits;
}

static float *run_alone(const struct tiny *t, const struct tiny_run_opts *o, uint32_t first,
                        uint32_t chunk, uint32_t silent)
{
    struct tiny_run r;
    struct tiny_seq s;
    if (!tiny_run_open(&r, t, o)) return NULL;
    tiny_seq_open(&r, &s, tokens_from(first), ROWS, t->shape.vocab, true);
    run_on(&r, &s, chunk, silent, t->shape.vocab);
    float *out = s.logits;
    s.logits = NULL;
    tiny_seq_close(&s);
    tiny_run_close(&r);
    return out;
}

static void same_bytes(const float *a, const float *b, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a))
            fail_msg("%s: value %zu of %zu is %.9g, not %.9g", what, i, n, (double)b[i],
                     (double)a[i]);
}

static void name_of(char *name, size_t size, const struct shape *s, const char *isa)
{
    snprintf(name, size, "%s %ux%u, %u groups, n %u, flag %d (%s)",
             s->kind == KR_OP_CONV   ? "conv"
             : s->kind == KR_OP_SCAN ? "scan"
                                     : "delta",
             s->heads, s->dim, s->groups, s->n, s->flag, isa);
}

/* Errors are those of float32 sums of s->n terms and of ROWS steps, against the size of a row. */
static void check_truth(const struct model *m, const float *got, uint32_t first, const char *name)
{
    uint32_t lanes = m->s->heads * m->s->dim;
    double *want = truth(m, first);
    for (uint32_t r = 0; r < ROWS; r++) {
        double size = 0;
        for (uint32_t i = 0; i < lanes; i++)
            size = fmax(size, fabs(want[(size_t)r * lanes + i]));
        for (uint32_t i = 0; i < lanes; i++) {
            double w = want[(size_t)r * lanes + i], g = got[(size_t)r * lanes + i];
            if (!(fabs(g - w) <= 4e-6 * size + 1e-6 * fabs(w) + 1e-6))
                fail_msg("%s: row %u, lane %u is %.9g, not %.9g", name, r, i, g, w);
        }
    }
    free(want);
}

static void check_cuts(const struct model *m, enum kr_isa isa, const char *name)
{
    static const struct {
        uint32_t threads, chunk, silent, order;
    } ways[] = {{1, 1, 0, 0},  {2, 7, 0, 1},  {1, 16, 0, 2},
                {2, 1, 30, 3}, {2, 50, 0, 0}, {3, 23, 23, 0}};
    struct tiny_run_opts o = options(isa, 1, 0);
    float *want = run_alone(m->t, &o, 0, ROWS, 0);
    size_t lanes = m->t->shape.vocab;
    if (!want) return;
    check_truth(m, want, 0, name);
    for (size_t i = 0; i < CN_ARRAY_LEN(ways); i++) {
        char what[200];
        snprintf(what, sizeof what, "%s, chunks of %u, %u threads, %u silent", name, ways[i].chunk,
                 ways[i].threads, ways[i].silent);
        o = options(isa, ways[i].threads, ways[i].order);
        float *got = run_alone(m->t, &o, 0, ways[i].chunk, ways[i].silent);
        size_t from = ways[i].silent * lanes;
        same_bytes(want + from, got + from, ROWS * lanes - from, what);
        free(got);
    }
    free(want);
}

static void test_truth_and_cuts(void **state)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(shapes); i++) {
        struct model m = new_model(&shapes[i], 5 + i);
        for (size_t k = 0; k < CN_ARRAY_LEN(isas); k++) {
            char name[120];
            name_of(name, sizeof name, &shapes[i], kr_isa_name(isas[k]));
            check_cuts(&m, isas[k], name);
        }
        tiny_free(m.t);
    }
}

/* Three sequences advance together in random steps, then again in the same blocks; one of them is
 * copied on its way and both go on. */
static void check_batch(const struct model *m, enum kr_isa isa, const char *name)
{
    uint32_t vocab = m->t->shape.vocab;
    struct tiny_run_opts o = options(isa, 2, 3);
    struct tiny_run r;
    struct tiny_seq seqs[3], copy, *list[3];
    uint64_t seed = 7;
    if (!tiny_run_open(&r, m->t, &o)) return;
    for (uint32_t i = 0; i < 3; i++)
        tiny_seq_open(&r, &seqs[i], tokens_from(i * ROWS), ROWS, vocab, true);
    tiny_seq_open(&r, &copy, tokens_from(0), ROWS, vocab, true);
    for (int again = 0; again < 2; again++) {
        bool copied = false;
        seqs[0].done = seqs[1].done = seqs[2].done = 0;
        while (seqs[0].done + seqs[1].done + seqs[2].done < 3 * ROWS) {
            uint32_t n[3], k = 0;
            for (uint32_t i = 0; i < 3; i++) {
                uint32_t c = tiny_rand(&seed) % 9;
                c = CN_MIN(c, ROWS - seqs[i].done);
                if (!c) continue;
                list[k] = &seqs[i];
                n[k++] = c;
            }
            if (k) tiny_step(&r, list, n, k, vocab);
            if (copied || seqs[0].done < 17) continue;
            assert_int_equal(
                kr_kv_copy(r.exec, r.mem, 0, copy.tables[0][0], seqs[0].tables[0][0], seqs[0].done),
                0);
            copy.done = seqs[0].done;
            memcpy(copy.logits, seqs[0].logits, (size_t)copy.done * vocab * sizeof(float));
            copied = true;
        }
        run_on(&r, &copy, 5, 0, vocab);
        for (uint32_t i = 0; i < 3; i++) {
            struct tiny_run_opts one = options(isa, 1, 0);
            float *want = run_alone(m->t, &one, i * ROWS, ROWS, 0);
            same_bytes(want, seqs[i].logits, (size_t)ROWS * vocab, name);
            if (!i) same_bytes(want, copy.logits, (size_t)ROWS * vocab, name);
            free(want);
        }
    }
    for (int i = 0; i < 3; i++)
        tiny_seq_close(&seqs[i]);
    tiny_seq_close(&copy);
    tiny_run_close(&r);
}

static void test_batch_and_copy(void **state)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(shapes); i++) {
        struct model m = new_model(&shapes[i], 50 + i);
        for (size_t k = 0; k < CN_ARRAY_LEN(isas); k++) {
            char name[120];
            name_of(name, sizeof name, &shapes[i], kr_isa_name(isas[k]));
            check_batch(&m, isas[k], name);
        }
        tiny_free(m.t);
    }
}

/* ---- with attention -------------------------------------------------------------------------- */

static int add_attention(struct tiny *t, int x, int group)
{
    int kv = kr_plan_kv_layer(t->plan, group, 2, 16, 16);
    kr_op_kv_write(t->plan, kv, x, x);
    struct kr_attn attn = {.kv_layer = kv, .n_heads = 2, .scale = 0.25f};
    return kr_op_add(t->plan, x, kr_op_attention(t->plan, x, &attn));
}

static int add_conv(struct tiny *t, int x)
{
    struct kr_tensor w = tiny_matrix(t, "w", KR_F32, 32, 4, 1.0f);
    struct kr_tensor m = tiny_matrix(t, "m", KR_F32, 32, 32, 1.0f);
    int y = kr_op_conv(t->plan, x, kr_plan_state(t->plan, 32 * 3), &w, NULL, KR_ACT_SILU);
    return kr_op_add(t->plan, x, kr_op_matmul(t->plan, y, &m, NULL));
}

/* Two states and a KV layer, in either order; a last state whose op nothing uses. */
static struct tiny *new_hybrid(bool attention_last)
{
    struct tiny *t = new_tiny(3);
    struct kr_tensor table = tiny_matrix(t, "rows", KR_F32, 3 * ROWS, 32, 6.0f);
    int x = kr_op_embed(t->plan, &table, 1), group = -1;
    if (!attention_last) group = kr_plan_kv_group(t->plan, KR_SPAN_ALL, 0);
    if (!attention_last) x = add_attention(t, x, group);
    x = add_conv(t, x);
    if (attention_last) group = kr_plan_kv_group(t->plan, KR_SPAN_WINDOW, 20);
    x = add_conv(t, x);
    if (attention_last) x = add_attention(t, x, group);
    if (!attention_last) add_conv(t, x);
    t->shape.vocab = 32;
    finish(t, x);
    return t;
}

static void test_hybrid(void **state)
{
    for (int last = 0; last < 2; last++) {
        struct tiny *t = new_hybrid(last);
        float *reference = NULL;
        for (size_t k = 0; k < CN_ARRAY_LEN(isas); k++) {
            struct tiny_run_opts o = options(isas[k], 2, 3);
            float *want = run_alone(t, &o, 0, ROWS, 0);
            if (!want) continue;
            for (uint32_t chunk = 1; chunk < 20; chunk += 6) {
                float *got = run_alone(t, &o, 0, chunk, 40);
                same_bytes(want + 40 * 32, got + 40 * 32, 10 * 32, kr_isa_name(isas[k]));
                free(got);
            }
            if (!reference) reference = want;
            for (int i = 0; i < ROWS * 32; i++)
                assert_true(fabs((double)want[i] - reference[i]) <=
                            2e-5 * (1 + fabs((double)reference[i])));
            if (want != reference) free(want);
        }
        free(reference);
        tiny_free(t);
    }
}

/* ---- the state group ------------------------------------------------------------------------- */

static void test_group(void **state)
{
    DEV_CPU_ONLY("reads the CPU's blocks");
    struct tiny *t = new_hybrid(false);
    struct tiny_run_opts o = options(KR_ISA_AUTO, 1, 0);
    struct tiny_run r;
    struct tiny_seq s;
    assert_true(tiny_run_open(&r, t, &o));
    const struct kr_exec_info *info = kr_exec_info(r.exec);
    assert_int_equal(info->n_groups, 2);
    assert_int_equal(info->groups[1].span, KR_SPAN_STATE);
    assert_int_equal(info->groups[1].n_layers, 3);
    assert_int_equal(info->groups[1].block_bytes, 3 * 96 * sizeof(float));
    tiny_seq_open(&r, &s, tokens_from(0), ROWS, 32, true);
    /* Whatever the block held, and nothing but the block. */
    struct kr_cpu_mem *mem = CN_CONTAINER(r.mem, struct kr_cpu_mem, base);
    const struct kr_cpu_exec *x = CN_CONTAINER(r.exec, struct kr_cpu_exec, base);
    memset(mem->data, 0xff, mem->bytes);
    const uint8_t *block = kr_cpu_block(x, mem, 1, s.tables[1][0]);
    uint8_t *before = malloc(mem->bytes);
    assert_non_null(before);
    memcpy(before, mem->data, mem->bytes);
    run_on(&r, &s, 7, 0, 32);
    for (size_t i = 0; i < (size_t)ROWS * 32; i++)
        assert_true(isfinite(s.logits[i]));
    for (uint64_t i = 0; i < 3 * 96; i++)
        assert_true(isfinite(((const float *)(const void *)block)[i]));
    uint64_t at = (uint64_t)(block - mem->data),
             slab = at / mem->base.slab_bytes * mem->base.slab_bytes;
    assert_memory_equal(before + slab, mem->data + slab, at - slab);
    assert_memory_equal(before + at + 3 * 96 * 4, mem->data + at + 3 * 96 * 4,
                        mem->base.slab_bytes - (at - slab) - 3 * 96 * 4);
    free(before);
    /* A block that is not there. */
    struct kr_row row = {.src = KR_ROW_TOKEN};
    struct kr_seq seq = {.tables = s.table_ptrs};
    struct kr_batch b = {.n_rows = 1, .n_seqs = 1, .rows = &row, .seqs = &seq};
    struct cn_error err;
    uint64_t ticket;
    s.tables[1][0] = UINT32_MAX;
    assert_int_equal(kr_launch(r.exec, r.mem, &b, &ticket, &err), CN_ERANGE);
    assert_int_equal(kr_kv_copy(r.exec, r.mem, 1, 0, UINT32_MAX, 0), CN_ERANGE);
    s.table_ptrs[1] = NULL;
    assert_int_equal(kr_launch(r.exec, r.mem, &b, &ticket, &err), CN_EINVAL);
    struct cn_buf out;
    cn_buf_init(&out, 0);
    assert_int_equal(kr_exec_describe(r.exec, &out), 0);
    assert_non_null(strstr(cn_buf_cstr(&out), "state 2 of 96 floats"));
    cn_buf_fini(&out);
    tiny_seq_close(&s);
    tiny_run_close(&r);
    tiny_free(t);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_truth_and_cuts),
        cmocka_unit_test(test_batch_and_copy),
        cmocka_unit_test(test_hybrid),
        cmocka_unit_test(test_group),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
