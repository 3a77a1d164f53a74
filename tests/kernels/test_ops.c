/* ops: every ISA's ops against double precision, at every length up to 100 and some longer, with
 * guards around what is written and inputs at odd addresses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/ops.h"
#include "kernels/half.h"
#include "tests/kernels/tiny.h"

enum { MAX_N = 1200, GUARD = 32 };
static const float guard_value = -12345.0f;

static float out_mem[MAX_N + 2 * GUARD], a_mem[MAX_N + 1], b_mem[MAX_N + 1], c_mem[MAX_N + 1];

static float *fresh_out(void)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(out_mem); i++)
        out_mem[i] = guard_value;
    return out_mem + GUARD;
}

static void check_guards(uint32_t n)
{
    for (uint32_t i = 0; i < GUARD; i++) {
        assert_true(out_mem[i] == guard_value);
        assert_true(out_mem[GUARD + n + i] == guard_value);
    }
}

/* |got - want| <= rel * |want| + abs */
static void near(const char *op, const char *isa, uint32_t i, double got, double want, double rel,
                 double abs)
{
    if (fabs(got - want) <= rel * fabs(want) + abs) return;
    fail_msg("%s (%s) at %u: %.9g, not %.9g", op, isa, i, got, want);
}

static uint32_t next_n(uint32_t n)
{
    return n < 100 ? n + 1 : n * 2 + 37;
}

static void check_rows(const struct kr_cpu_ops *o, uint32_t n, uint64_t *seed)
{
    float *a = a_mem + n % 2, *b = b_mem + n % 2, *w = c_mem + n % 2, *y;
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        a[i] = 8 * tiny_uniform(seed);
        b[i] = 4 * tiny_uniform(seed);
        w[i] = 1 + tiny_uniform(seed);
        sum += (double)a[i] * a[i];
    }
    for (int with = 0; with < 2; with++) {
        o->rms_norm(y = fresh_out(), a, with ? w : NULL, 1e-5f, n);
        check_guards(n);
        for (uint32_t i = 0; i < n; i++)
            near("rms_norm", o->name, i, y[i],
                 a[i] / sqrt(sum / n + (double)1e-5f) * (with ? w[i] : 1), 2e-6, 0);
    }
    o->add(y = fresh_out(), a, b, n);
    check_guards(n);
    for (uint32_t i = 0; i < n; i++)
        assert_true(y[i] == a[i] + b[i]);
    o->scale(y = fresh_out(), a, 1.7f, n);
    check_guards(n);
    for (uint32_t i = 0; i < n; i++)
        assert_true(y[i] == a[i] * 1.7f);
    const float *three[] = {a, b, w};
    static const float weights[] = {0.7f, -1.3f, 0.4f};
    for (uint32_t k = 1; k <= 3; k++)
        for (int with = 0; with < 2; with++) {
            o->sum_rows(y = fresh_out(), three, with ? weights : NULL, k, n);
            check_guards(n);
            for (uint32_t i = 0; i < n; i++) {
                double want = 0;
                for (uint32_t j = 0; j < k; j++)
                    want += (double)three[j][i] * (with ? weights[j] : 1);
                near("sum_rows", o->name, i, y[i], want, 0, 3e-6);
            }
        }
    o->softcap(y = fresh_out(), a, 3, n);
    check_guards(n);
    for (uint32_t i = 0; i < n; i++)
        near("softcap", o->name, i, y[i], 3 * tanh((double)a[i] / 3), 1e-6, 1e-6);
    o->glu(y = fresh_out(), a, b, KR_ACT_SILU, n);
    check_guards(n);
    for (uint32_t i = 0; i < n; i++)
        near("silu", o->name, i, y[i], a[i] / (1 + exp(-(double)a[i])) * b[i], 1e-6, 1e-30);
    o->glu(y = fresh_out(), a, b, KR_ACT_GELU_TANH, n);
    check_guards(n);
    for (uint32_t i = 0; i < n; i++) {
        double g = a[i], u = sqrt(2 / M_PI) * (g + 0.044715 * g * g * g);
        near("gelu", o->name, i, y[i], 0.5 * g * (1 + tanh(u)) * b[i], 4e-6, 4e-6);
    }
}

static void check_rope(const struct kr_cpu_ops *o, uint32_t n, uint64_t *seed)
{
    float *x = a_mem + 1, *cs = b_mem;
    for (uint32_t rot = 2; rot <= n; rot = rot * 2 + 2) {
        for (uint32_t i = 0; i < n; i++)
            x[i] = tiny_uniform(seed);
        for (uint32_t i = 0; i < rot; i++)
            cs[i] = tiny_uniform(seed);
        for (int kind = 0; kind < 2; kind++) {
            float *y = fresh_out();
            o->rope(y, x, cs, (enum kr_rope_kind)kind, n, rot);
            check_guards(n);
            for (uint32_t i = 0; i < rot / 2; i++) {
                uint32_t p = kind == KR_ROPE_NORM ? 2 * i : i;
                uint32_t q = kind == KR_ROPE_NORM ? 2 * i + 1 : i + rot / 2;
                double c = cs[i], s = cs[rot / 2 + i];
                near("rope", o->name, p, y[p], x[p] * c - x[q] * s, 0, 3e-7);
                near("rope", o->name, q, y[q], x[p] * s + x[q] * c, 0, 3e-7);
            }
            assert_memory_equal(y + rot, x + rot, (n - rot) * sizeof *y);
        }
    }
}

static void each_isa(void (*fn)(const struct kr_cpu_ops *o))
{
    static const enum kr_isa isas[] = {KR_ISAS};
    struct kr_cpu_ops o;
    for (size_t i = 0; i < CN_ARRAY_LEN(isas); i++)
        if (kr_ops_fill(isas[i], &o)) fn(&o);
}

static void rows_of(const struct kr_cpu_ops *o)
{
    uint64_t seed = 4;
    for (uint32_t n = 1; n <= MAX_N; n = next_n(n)) {
        check_rows(o, n, &seed);
        check_rope(o, n, &seed);
    }
}
static void test_rows(void **state)
{
    each_isa(rows_of);
}

/* Through silu(-x) with a huge weight: e^x over its whole range, and what is not a number. */
static void exp_of(const struct kr_cpu_ops *o)
{
    static float y[1], one[1] = {1};
    for (double x = -86.9; x < 87.9; x += 0.0371) {
        float g = (float)-x;
        o->glu(y, &g, one, KR_ACT_SILU, 1);
        near("exp", o->name, 0, y[0], g / (1 + exp((double)-g)), 6e-7, 1e-44);
    }
    static const float odd[] = {200, -200, 88.5f, -88.5f, 0, -0.0f, 1e-40f, 3e38f, -3e38f};
    for (size_t i = 0; i < CN_ARRAY_LEN(odd); i++) {
        o->glu(y, &odd[i], one, KR_ACT_SILU, 1);
        near("silu", o->name, (uint32_t)i, y[0], odd[i] / (1 + exp(-(double)odd[i])), 1e-6, 3.0);
        assert_true(isfinite(y[0]));
    }
    float nan = NAN;
    o->glu(y, &nan, one, KR_ACT_SILU, 1);
    assert_true(isnan(y[0]));
    o->softcap(y, &nan, 5, 1);
    assert_true(isnan(y[0]));
    float inf = INFINITY;
    o->softcap(y, &inf, 5, 1);
    assert_true(fabsf(y[0] - 5) < 1e-5f);
    inf = -inf;
    o->softcap(y, &inf, 5, 1);
    assert_true(fabsf(y[0] + 5) < 1e-5f);
}
static void test_exp(void **state)
{
    each_isa(exp_of);
}

/* Every half to float and back is itself; floats between two halves go to the nearer, ties to
 * even. */
static void halves_of(const struct kr_cpu_ops *o)
{
    float x[19];
    uint16_t y[21];
    for (uint32_t h = 0; h < 0x7c00; h++) {
        float f = kr_f16_f32((uint16_t)h),
              next = h + 1 < 0x7c00 ? kr_f16_f32((uint16_t)(h + 1)) : 65536.0f;
        float mid = (f + next) / 2; /* exact */
        for (int i = 0; i < 19; i += 4) {
            x[i] = f;
            x[i + 1] = -f;
            x[i + 2] = mid;
            if (i + 3 < 19) x[i + 3] = nextafterf(mid, INFINITY);
        }
        y[19] = y[20] = 0xabcd;
        o->to_f16(y, x, 19);
        for (int i = 0; i < 19; i += 4) {
            assert_int_equal(y[i], h);
            assert_int_equal(y[i + 1], h | 0x8000);
            assert_int_equal(y[i + 2], h + (h & 1));
            if (i + 3 < 19) assert_int_equal(y[i + 3], h + 1);
        }
        assert_int_equal(y[19], 0xabcd);
    }
    x[0] = NAN;
    x[1] = INFINITY;
    x[2] = -1e30f;
    o->to_f16(y, x, 3);
    assert_true((y[0] & 0x7fff) > 0x7c00);
    assert_int_equal(y[1], 0x7c00);
    assert_int_equal(y[2], 0xfc00);
}
static void test_halves(void **state)
{
    each_isa(halves_of);
}

int main(void)
{
    if (dev_skip_program("the CPU's loops of each ISA")) return DEV_SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_halves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
