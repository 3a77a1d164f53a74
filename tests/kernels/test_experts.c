/* experts: plans with mixtures of experts and per-head products. Truth: experts_truth.c. And
 * bit equality of a row alone, in any batch, with any number of threads; and what is counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/plan.h"
#include "tests/kernels/experts_truth.h"
#include "tests/kernels/tiny.h"

enum { MAX_R = 64 };
static const enum kr_isa isas[] = {KR_ISAS};

/* ---- models ---------------------------------------------------------------------------------- */

struct shape {
    enum kr_type weights;
    uint32_t width, ffn, n_experts, n_used;
    struct kr_router router; /* n_used from above */
    bool router_bias, expert_scale;
    bool fused;                /* gate and up are rows of one tensor */
    bool biases, scaled_input; /* of experts; the weight on the way in */
    bool shared;               /* a dense expert beside them */
    bool two;                  /* another mixture of the same input, added */
    bool float_gate;           /* gates are F32, whatever the other weights are */
};

struct model {
    struct tiny *t;
    uint32_t width;
};

static struct kr_tensor stack(struct model *m, const char *name, enum kr_type type, uint32_t n,
                              uint32_t rows, uint32_t cols)
{
    struct kr_tensor w = tiny_matrix(m->t, name, type, n * rows, cols, 1.0f);
    w.n_dims = 3;
    w.ne[1] = rows;
    w.ne[2] = n;
    return w;
}

static struct kr_tensor expert_bias(struct model *m, uint32_t n, uint32_t rows)
{
    struct kr_tensor b = tiny_vector(m->t, "bias", n * rows, 0, 0.3f);
    b.n_dims = 2;
    b.ne[0] = rows;
    b.ne[1] = n;
    return b;
}

static int experts(struct model *m, const struct shape *s, int x, int route)
{
    struct kr_plan *p = m->t->plan;
    uint32_t n = s->n_experts, f = s->ffn, d = s->width;
    int in = kr_op_dispatch(p, x, route, s->scaled_input), gate, up;
    if (s->fused) { /* gates, three rows that nobody wants, ups */
        struct kr_tensor w = stack(m, "gate_up", s->weights, n, 2 * f + 3, d);
        struct kr_tensor b = expert_bias(m, n, 2 * f + 3);
        gate = kr_op_expert_matmul(p, in, route, &w, s->biases ? &b : NULL, 0, f);
        up = kr_op_expert_matmul(p, in, route, &w, s->biases ? &b : NULL, f + 3, f);
    } else {
        struct kr_tensor g = stack(m, "gate", s->float_gate ? KR_F32 : s->weights, n, f, d);
        struct kr_tensor u = stack(m, "up", s->weights, n, f, d);
        struct kr_tensor b = expert_bias(m, n, f);
        gate = kr_op_expert_matmul(p, in, route, &g, NULL, 0, f);
        up = kr_op_expert_matmul(p, in, route, &u, s->biases ? &b : NULL, 0, f);
    }
    struct kr_tensor w = stack(m, "down", s->weights, n, d, f);
    int h = kr_op_glu(p, gate, up, KR_ACT_SILU);
    int y = kr_op_expert_matmul(p, h, route, &w, NULL, 0, d);
    y = kr_op_scale(p, y, 0.5f); /* row work after them, right before combine */
    return kr_op_combine(p, y, route, !s->scaled_input);
}

static int shared_expert(struct model *m, const struct shape *s, int x)
{
    struct kr_tensor g = tiny_matrix(m->t, "g", s->weights, s->ffn, s->width, 1);
    struct kr_tensor d = tiny_matrix(m->t, "d", s->weights, s->width, s->ffn, 1);
    int h = kr_op_matmul(m->t->plan, x, &g, NULL);
    return kr_op_matmul(m->t->plan, kr_op_act(m->t->plan, h, KR_ACT_SILU), &d, NULL);
}

static int mixture(struct model *m, const struct shape *s, int x, uint32_t n_mixtures)
{
    struct kr_plan *p = m->t->plan;
    int routes[2], sum = x;
    for (uint32_t i = 0; i < n_mixtures; i++) { /* both routes before either is used */
        struct kr_tensor w = tiny_matrix(m->t, "router", KR_F32, s->n_experts, s->width, 3.0f);
        struct kr_tensor b = tiny_vector(m->t, "router_bias", s->n_experts, 0, 0.2f);
        struct kr_tensor c = tiny_vector(m->t, "scale", s->n_experts, 1, 0.5f);
        struct kr_router r = s->router;
        r.n_used = s->n_used;
        if (s->router_bias) r.bias = &b;
        if (s->expert_scale) r.expert_scale = &c;
        routes[i] = kr_op_route(p, kr_op_matmul(p, x, &w, NULL), &r);
    }
    if (s->shared) sum = kr_op_add(p, sum, shared_expert(m, s, x));
    for (uint32_t i = 0; i < n_mixtures; i++)
        sum = kr_op_add(p, sum, experts(m, s, x, routes[i]));
    return sum;
}

static struct model model_begin(uint32_t width, uint64_t seed, int *x)
{
    struct model m = {.t = calloc(1, sizeof *m.t), .width = width};
    assert_non_null(m.t);
    m.t->seed = seed;
    m.t->plan = kr_plan_new();
    assert_non_null(m.t->plan);
    struct kr_tensor table = tiny_matrix(m.t, "embd", KR_F32, 4, width, 1.0f);
    *x = kr_op_embed(m.t->plan, &table, 1);
    return m;
}

static void model_end(struct model *m, int x)
{
    struct cn_error err = {0};
    kr_plan_output(m->t->plan, kr_op_take_logits(m->t->plan, x));
    if (kr_plan_finish(m->t->plan, &err)) fail_msg("%s", err.message);
}

static struct model mixture_model(const struct shape *s, uint64_t seed, uint32_t layers)
{
    int x;
    struct model m = model_begin(s->width, seed, &x);
    for (uint32_t i = 0; i < layers; i++)
        x = mixture(&m, s, x, s->two ? 2 : 1);
    model_end(&m, x);
    return m;
}

/* ---- running --------------------------------------------------------------------------------- */

struct run {
    struct kr_device *dev;
    struct kr_exec *exec;
    uint32_t width;
};

/* False when the machine lacks the ISA. */
static bool run_open(struct run *r, const struct model *m, enum kr_isa isa, uint32_t threads)
{
    struct cn_error err = {0};
    struct kr_prepare_opts prep = {.kv_type = KR_F16,
                                   .block_tokens = 16,
                                   .max_rows = MAX_R,
                                   .max_logit_rows = MAX_R,
                                   .max_context = 64};
    int rc = dev_new(isa, threads, &r->dev, &err);
    if (rc == CN_EUNSUPP) return false;
    if (rc || kr_prepare(r->dev, m->t->plan, &prep, &r->exec, &err)) fail_msg("%s", err.message);
    r->width = m->width;
    return true;
}

static void run_close(struct run *r)
{
    kr_exec_free(r->exec);
    kr_device_free(r->dev);
}

/* Rows of n sequences of one row each; what comes out is copied to out (NULL: no logits). */
static void step(struct run *r, const float *embd, uint32_t n, float *out)
{
    struct kr_row rows[MAX_R];
    struct kr_seq seqs[MAX_R] = {0};
    struct kr_batch b = {.n_rows = n, .n_seqs = n, .rows = rows, .seqs = seqs};
    struct cn_error err = {0};
    uint64_t ticket;
    float *logits;
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct kr_row){.seq = i,
                                  .src = KR_ROW_EMBED,
                                  .logits = out != NULL,
                                  .embed = embd + (size_t)i * r->width};
    if (kr_launch(r->exec, NULL, &b, &ticket, &err) || kr_collect(r->exec, ticket, &logits, &err))
        fail_msg("%s", err.message);
    if (out) memcpy(out, logits, (size_t)n * kr_exec_info(r->exec)->n_vocab * sizeof *out);
}

static float *some_rows(uint32_t n, uint32_t width, uint64_t seed)
{
    float *x = malloc((size_t)n * width * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < (size_t)n * width; i++)
        x[i] = 2 * tiny_uniform(&seed);
    return x;
}

static void compare(const float *got, const double *want, size_t n, enum kr_type type,
                    const char *what)
{
    double sum2 = 0, err2 = 0, worst = 0;
    for (size_t i = 0; i < n; i++) {
        double e = fabs(got[i] - want[i]);
        sum2 += want[i] * want[i];
        err2 += e * e;
        worst = fmax(worst, e);
    }
    double sigma = sqrt(sum2 / (double)n), rms = sqrt(err2 / (double)n) / sigma;
    /* float32 sums; of quantised weights also an activation that rounds to its other neighbour. */
    bool floats = kr_type_info((uint32_t)type)->block_elems == 1;
    if (!(rms < (floats ? 1e-6 : 1e-3)) || !(worst / sigma < (floats ? 1e-5 : 0.03)))
        fail_msg("%s, type %d: rms %.3g, worst %.3g", what, (int)type, rms, worst / sigma);
}

static const uint32_t batches[] = {1, 2, 5, 16, 64};

/* Every batch size and ISA, one thread and two: near the truth, and all of an ISA the same
 * bytes. */
static void check_model(const struct model *m, enum kr_type type, uint64_t seed, bool truth)
{
    float *embd = some_rows(MAX_R, m->width, seed);
    struct truth want;
    if (truth) truth_new(&want, m->t->plan, embd, MAX_R);
    for (size_t k = 0; k < CN_ARRAY_LEN(isas); k++) {
        float *first = NULL;
        for (uint32_t threads = 1; threads <= 3; threads++) {
            struct run r;
            if (!run_open(&r, m, isas[k], threads)) break;
            uint32_t vocab = (uint32_t)kr_exec_info(r.exec)->n_vocab;
            float *out = malloc((size_t)MAX_R * vocab * sizeof *out);
            assert_non_null(out);
            for (size_t b = 0; b < CN_ARRAY_LEN(batches); b++) {
                for (uint32_t at = 0; at < MAX_R; at += batches[b]) {
                    uint32_t n = CN_MIN(batches[b], MAX_R - at);
                    step(&r, embd + (size_t)at * m->width, n, out + (size_t)at * vocab);
                }
                size_t n = (size_t)MAX_R * vocab;
                if (truth) compare(out, want.v[m->t->plan->output], n, type, "against double");
                if (!first) {
                    first = malloc(n * sizeof *first);
                    assert_non_null(first);
                    memcpy(first, out, n * sizeof *first);
                }
                assert_memory_equal(first, out, n * sizeof *first);
            }
            free(out);
            run_close(&r);
        }
        free(first);
    }
    if (truth) truth_free(&want);
    free(embd);
}

/* clang-format off */
static const struct shape shapes[] = {
    { .weights = KR_F32, .width = 48, .ffn = 40, .n_experts = 8, .n_used = 2, .biases = true,
      .router = { .norm = true, .scale = 1 } },
    { .weights = KR_F16, .width = 33, .ffn = 17, .n_experts = 4, .n_used = 4, .fused = true,
      .router = { .gating = KR_GATE_SOFTMAX_TOP, .scale = 1 }, .biases = true, .shared = true },
    { .weights = KR_Q8_0, .width = 64, .ffn = 96, .n_experts = 16, .n_used = 5, .shared = true,
      .router = { .gating = KR_GATE_SIGMOID, .norm = true, .scale = 2.5f, .n_groups = 4,
                  .n_groups_used = 2 }, .router_bias = true },
    { .weights = KR_Q4_K, .width = 256, .ffn = 256, .n_experts = 12, .n_used = 3, .fused = true,
      .router = { .gating = KR_GATE_SQRT_SOFTPLUS, .norm = true, .scale = 1.5f, .n_groups = 3,
                  .n_groups_used = 2, .one_best = true } },
    { .weights = KR_Q8_0, .width = 32, .ffn = 32, .n_experts = 16, .n_used = 1, .shared = true,
      .router = { .gating = KR_GATE_SIGMOID, .scale = 1 }, .scaled_input = true },
    { .weights = KR_F32, .width = 24, .ffn = 20, .n_experts = 64, .n_used = 8, .two = true,
      .router = { .scale = 16 }, .router_bias = true, .expert_scale = true },
    { .weights = KR_Q8_0, .width = 64, .ffn = 32, .n_experts = 24, .n_used = 6, .two = true,
      .router = { .norm = true, .scale = 1 }, .biases = true, .float_gate = true },
};
/* clang-format on */

static void test_truth(void **state)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(shapes); i++) {
        struct model m = mixture_model(&shapes[i], 100 + i, 1);
        check_model(&m, shapes[i].weights, 7 + i, true);
        tiny_free(m.t);
    }
}

/* Several layers, whose routes take the same memory in turn. */
static void test_same_bytes(void **state)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(shapes); i++) {
        struct model m = mixture_model(&shapes[i], 200 + i, 3);
        check_model(&m, shapes[i].weights, 17 + i, false);
        tiny_free(m.t);
    }
}

/* Every gating with every number of experts, up to all of them. */
static void test_used(void **state)
{
    for (uint32_t i = 0; i < 32; i++) {
        struct shape s = {.weights = i % 2 ? KR_Q8_0 : KR_F16,
                          .width = 32,
                          .ffn = 32,
                          .n_experts = 8,
                          .n_used = i % 8 + 1,
                          .router = {.gating = (enum kr_gating)(i / 8), .norm = i % 3, .scale = 1}};
        struct model m = mixture_model(&s, 300 + i, 1);
        check_model(&m, s.weights, 27 + i, true);
        tiny_free(m.t);
    }
}

/* ---- per-head products ----------------------------------------------------------------------- */

static void test_heads(void **state)
{
    static const struct {
        enum kr_type type;
        uint32_t heads, rows, cols;
    } cases[] = {{KR_F32, 3, 20, 7},    {KR_F16, 5, 16, 33},   {KR_Q8_0, 6, 40, 96},
                 {KR_Q4_K, 2, 35, 512}, {KR_Q8_0, 1, 300, 32}, {KR_Q4_0, 4, 512, 128}};
    for (size_t i = 0; i < 2 * CN_ARRAY_LEN(cases); i++) {
        size_t c = i / 2;
        int x;
        struct model m = model_begin(cases[c].heads * cases[c].cols, 50 + i, &x);
        struct kr_tensor w =
            stack(&m, "w", cases[c].type, cases[c].heads, cases[c].rows, cases[c].cols);
        if (i % 2) x = kr_op_take_logits(m.t->plan, x); /* of logit rows */
        x = kr_op_head_matmul(m.t->plan, x, &w);
        if (i % 2) {
            kr_plan_output(m.t->plan, x);
            assert_int_equal(kr_plan_finish(m.t->plan, NULL), 0);
        } else {
            model_end(&m, x);
        }
        check_model(&m, cases[c].type, 60 + i, true);
        tiny_free(m.t);
    }
}

/* ---- what is counted ------------------------------------------------------------------------- */

static uint32_t active_experts(const struct model *m, const float *embd, uint32_t rows)
{
    struct truth t;
    uint32_t n = 0;
    truth_new(&t, m->t->plan, embd, rows);
    for (size_t v = 0; v < t.p->n_values; v++) {
        bool seen[64] = {false};
        for (uint32_t i = 0; t.experts[v] && i < rows * t.p->n_used; i++)
            seen[t.experts[v][i]] = true;
        for (uint32_t e = 0; e < 64; e++)
            n += seen[e];
    }
    truth_free(&t);
    return n;
}

/* Bytes of experts' weights that a step touches are those of the active ones, exactly. */
static void test_counters(void **state)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(shapes); i++) {
        struct model m = mixture_model(&shapes[i], 400 + i, 1);
        uint32_t n_routes = shapes[i].two ? 2 : 1, e = shapes[i].n_experts;
        float *embd = some_rows(MAX_R, m.width, 37 + i);
        struct run r;
        assert_true(run_open(&r, &m, KR_ISA_AUTO, 2));
        const struct kr_exec_info *info = kr_exec_info(r.exec);
        uint64_t per_expert = info->expert_bytes / n_routes, biases = 0;
        const struct kr_plan *p = m.t->plan;
        for (size_t k = 0; k < p->n_ops; k++)
            if (p->ops[k].kind == KR_OP_EXPERT_MATMUL && p->ops[k].bias.data)
                biases += p->ops[k].len * sizeof(float);
        assert_int_equal(info->n_experts, e);
        assert_int_equal(info->n_experts_used, shapes[i].n_used);
        struct kr_counters was, now;
        uint64_t steps = 0, rows = 0, dense = 0;
        kr_exec_counters(r.exec, &was);
        assert_int_equal(was.expert_bytes + was.weight_bytes + was.steps + was.rows, 0);
        for (size_t b = 0; b < CN_ARRAY_LEN(batches); b++) {
            float out[MAX_R * 256];
            step(&r, embd, batches[b], out);
            kr_exec_counters(r.exec, &now);
            assert_int_equal(now.expert_bytes - was.expert_bytes,
                             active_experts(&m, embd, batches[b]) * per_expert);
            if (b) assert_int_equal(now.weight_bytes - was.weight_bytes, dense);
            dense = now.weight_bytes - was.weight_bytes;
            assert_int_equal(now.steps, ++steps);
            assert_int_equal(now.rows, rows += batches[b]);
            was = now;
        }
        /* All packed memory is dense weights and the experts'. */
        assert_int_equal(info->packed_bytes, dense + (info->expert_bytes - biases) * e);
        step(&r, embd, 5, NULL); /* nothing wanted: nothing read */
        kr_exec_counters(r.exec, &now);
        assert_int_equal(now.expert_bytes, was.expert_bytes);
        run_close(&r);
        free(embd);
        tiny_free(m.t);
    }
}

/* A NaN in one row: all of that row's outputs, and no other row's. */
static void test_nan(void **state)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(shapes); i++) {
        struct model m = mixture_model(&shapes[i], 500 + i, 2);
        float *embd = some_rows(5, m.width, 47 + i), good[5 * 256], out[5 * 256];
        for (size_t k = 0; k < CN_ARRAY_LEN(isas); k++) {
            struct run r;
            if (!run_open(&r, &m, isas[k], 2)) continue;
            float keep = embd[2 * m.width + 5];
            step(&r, embd, 5, good);
            embd[2 * m.width + 5] = NAN;
            step(&r, embd, 5, out);
            embd[2 * m.width + 5] = keep;
            for (uint32_t c = 0; c < 5 * m.width; c++)
                assert_true(c / m.width == 2 ? isnan(out[c]) : out[c] == good[c]);
            run_close(&r);
        }
        free(embd);
        tiny_free(m.t);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_truth),    cmocka_unit_test(test_same_bytes),
        cmocka_unit_test(test_used),     cmocka_unit_test(test_heads),
        cmocka_unit_test(test_counters), cmocka_unit_test(test_nan),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
