/* route: a row's experts and weights against a naive reading of the formulas, with ties, biases,
 * groups and numbers that are not numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "tests/kernels/tiny.h"

enum { MAX_E = 48 };

struct inputs { float logits[MAX_E], bias[MAX_E], scale[MAX_E]; };

static double gate_of(enum kr_gating g, const float *r, uint32_t n, uint32_t e)
{
    double sum = 0;
    switch (g) {
    case KR_GATE_SOFTMAX:
        for (uint32_t i = 0; i < n; i++)
            sum += exp((double)r[i]);
        return exp((double)r[e]) / sum;
    case KR_GATE_SIGMOID:
        return exp((double)r[e]) / (exp((double)r[e]) + 1);
    case KR_GATE_SOFTMAX_TOP:
        return r[e];
    case KR_GATE_SQRT_SOFTPLUS:
        return sqrt(log(1 + exp((double)r[e])));
    }
    return 0;
}

/* Index of the first largest score that is not taken; -1 without one. */
static int first_largest(const double *score, const bool *taken, uint32_t n)
{
    int at = -1;
    for (uint32_t i = 0; i < n; i++)
        if (!taken[i] && (at < 0 || score[i] > score[at])) at = (int)i;
    return at;
}

static void close_groups(const struct kr_router *r, uint32_t n, const double *score, bool *closed)
{
    uint32_t size = n / r->n_groups;
    double sums[MAX_E];
    bool chosen[MAX_E] = {false};
    for (uint32_t g = 0; g < r->n_groups; g++) {
        bool used[MAX_E] = {false};
        int a = first_largest(score + g * size, used, size);
        used[a] = true;
        int b = first_largest(score + g * size, used, size);
        sums[g] = score[g * size + (uint32_t)a];
        if (!r->one_best && b >= 0) sums[g] += score[g * size + (uint32_t)b];
    }
    for (uint32_t i = 0; i < r->n_groups_used; i++)
        chosen[first_largest(sums, chosen, r->n_groups)] = true;
    for (uint32_t e = 0; e < n; e++)
        closed[e] = !chosen[e / size];
}

static void naive(const struct kr_router *r, uint32_t n, const struct inputs *in, uint32_t *ids,
                  double *w)
{
    double p[MAX_E], score[MAX_E], sum = 0;
    bool taken[MAX_E] = {false};
    for (uint32_t e = 0; e < n; e++) {
        p[e] = gate_of(r->gating, in->logits, n, e);
        score[e] = p[e] + (r->bias ? (double)in->bias[e] : 0);
    }
    if (r->n_groups > 1) close_groups(r, n, score, taken);
    for (uint32_t i = 0; i < r->n_used; i++) {
        ids[i] = (uint32_t)first_largest(score, taken, n);
        taken[ids[i]] = true;
        w[i] = r->gating == KR_GATE_SOFTMAX_TOP ? exp(p[ids[i]]) : p[ids[i]];
        sum += w[i];
    }
    for (uint32_t i = 0; i < r->n_used; i++) {
        if (r->gating == KR_GATE_SOFTMAX_TOP)
            w[i] /= sum;
        else if (r->norm)
            w[i] /= sum > 0x1p-14 ? sum : 0x1p-14;
        w[i] *= (double)r->scale * (r->expert_scale ? (double)in->scale[ids[i]] : 1);
    }
}

static void check(const struct kr_router *r, uint32_t n, const struct inputs *in)
{
    double scores[MAX_E], w[MAX_E];
    uint32_t ids[MAX_E], got[MAX_E];
    float out[2 * MAX_E + 1];
    out[2 * r->n_used] = -7;
    naive(r, n, in, ids, w);
    kr_cpu_route(r, n, in->logits, r->bias ? in->bias : NULL, r->expert_scale ? in->scale : NULL,
                 scores, out);
    assert_true(out[2 * r->n_used] == -7);
    memcpy(got, out, r->n_used * sizeof *got);
    for (uint32_t i = 0; i < r->n_used; i++) {
        if (got[i] != ids[i])
            fail_msg("gating %d, %u of %u, groups %u: choice %u is %u, not %u", (int)r->gating,
                     r->n_used, n, r->n_groups, i, got[i], ids[i]);
        assert_true(fabs(out[r->n_used + i] - w[i]) <= 2e-7 * fabs(w[i]));
    }
}

static const uint32_t group_shapes[][2] = {{0, 0}, {1, 1}, {4, 1},  {4, 2},
                                           {4, 3}, {8, 5}, {24, 7}, {48, 48}};

/* Logits of few values, so that ties are the rule; then of many. */
static void test_formulas(void **state)
{
    static const struct kr_tensor some = {.name = "some"};
    uint64_t seed = 4;
    for (uint32_t round = 0; round < 3000; round++) {
        static const uint32_t sizes[] = {1, 2, 5, 8, 24, 48};
        uint32_t n = sizes[tiny_rand(&seed) % 6], g = tiny_rand(&seed) % 8;
        uint32_t bits = tiny_rand(&seed);
        struct inputs in;
        struct kr_router r = {.gating = (enum kr_gating)(round % 4),
                              .norm = bits & 1,
                              .scale = bits & 2 ? 2.5f : 1,
                              .one_best = bits & 4,
                              .bias = bits & 8 ? &some : NULL,
                              .expert_scale = bits & 16 ? &some : NULL};
        if (n % CN_MAX(group_shapes[g][0], 1u) == 0) {
            r.n_groups = group_shapes[g][0];
            r.n_groups_used = group_shapes[g][1];
        }
        for (uint32_t e = 0; e < n; e++) {
            float x = 6 * tiny_uniform(&seed);
            in.logits[e] = bits & 32 ? rintf(x) : x;
            in.bias[e] = bits & 64 ? 0 : tiny_uniform(&seed);
            in.scale[e] = 1 + tiny_uniform(&seed);
        }
        uint32_t open = r.n_groups ? n / r.n_groups * r.n_groups_used : n;
        for (r.n_used = 1; r.n_used <= open; r.n_used++)
            check(&r, n, &in);
    }
}

/* Weights that all but vanish are divided by 2^-14, not by themselves. */
static void test_small_sum(void **state)
{
    struct inputs in;
    struct kr_router r = {.n_used = 3, .gating = KR_GATE_SIGMOID, .norm = true, .scale = 1};
    for (uint32_t e = 0; e < 8; e++)
        in.logits[e] = -30 - (float)e;
    check(&r, 8, &in);
}

static void check_odd(const struct kr_router *r, const float *logits, bool want_nan)
{
    double scores[8];
    float out[16];
    uint32_t ids[8], seen = 0;
    kr_cpu_route(r, 8, logits, NULL, NULL, scores, out);
    memcpy(ids, out, r->n_used * sizeof *ids);
    for (uint32_t i = 0; i < r->n_used; i++) {
        assert_true(ids[i] < 8 && !(seen & 1u << ids[i]));
        seen |= 1u << ids[i];
        if (want_nan) assert_true(isnan(out[r->n_used + i]));
    }
}

/* Every pattern of numbers, NaN and infinities: different experts, and NaN where a NaN was. */
static void test_odd_logits(void **state)
{
    static const float odd[] = {0.5f, NAN, INFINITY, -INFINITY};
    for (uint32_t pattern = 0; pattern < 1u << 16; pattern += 7) {
        float logits[8];
        bool nan = false;
        for (int e = 0; e < 8; e++) {
            logits[e] = odd[pattern >> 2 * e & 3];
            nan = nan || isnan(logits[e]);
        }
        struct kr_router r = {.n_used = pattern % 4 + 1,
                              .gating = (enum kr_gating)(pattern / 4 % 4),
                              .norm = true,
                              .scale = 1};
        check_odd(&r, logits, nan);
        r.n_groups = 4;
        r.n_groups_used = 2;
        check_odd(&r, logits, nan);
    }
}

int main(void)
{
    if (dev_skip_program("the CPU's routing")) return DEV_SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_small_sum),
        cmocka_unit_test(test_odd_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
