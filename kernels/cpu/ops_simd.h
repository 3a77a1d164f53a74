/* ops on rows for AVX2, AVX-512 and NEON: included once by each ISA's file after its flags are
 * known. Every element is computed by the same instructions wherever it stands in a vector. */
#ifndef KERNELS_CPU_OPS_SIMD_H
#define KERNELS_CPU_OPS_SIMD_H

#include "kernels/cpu/ops.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/simd.h"
#include "kernels/half.h"

/* for (i, n in steps of VL) with the number of lanes left in `lanes` */
#define V_FOR(i, n)                                                                                \
    for (uint32_t i = 0, lanes; i < (n) && (lanes = CN_MIN((n) - i, VL)) > 0; i += VL)

static void rms_norm(float *y, const float *x, const float *w, float eps, uint32_t n)
{
    vf s0 = v_set(0), s1 = s0, s2 = s0, s3 = s0;
    uint32_t i = 0;
    for (; i + 4 * VL <= n; i += 4 * VL) {
        vf a = v_load(x + i), b = v_load(x + i + VL);
        vf c = v_load(x + i + 2 * VL), d = v_load(x + i + 3 * VL);
        s0 = v_fma(a, a, s0);
        s1 = v_fma(b, b, s1);
        s2 = v_fma(c, c, s2);
        s3 = v_fma(d, d, s3);
    }
    for (; i < n; i += VL) {
        vf a = v_load_n(x + i, CN_MIN(n - i, VL));
        s0 = v_fma(a, a, s0);
    }
    double sum = v_sum(v_add(v_add(s0, s1), v_add(s2, s3)));
    vf s = v_set((float)(1.0 / sqrt(sum / n + (double)eps)));
    V_FOR(j, n)
    {
        vf a = v_mul(v_load_n(x + j, lanes), s);
        if (w) a = v_mul(a, v_load_n(w + j, lanes));
        v_store_n(y + j, a, lanes);
    }
}

static void add(float *y, const float *a, const float *b, uint32_t n)
{
    V_FOR(i, n)
    v_store_n(y + i, v_add(v_load_n(a + i, lanes), v_load_n(b + i, lanes)), lanes);
}

static void scale(float *y, const float *x, float s, uint32_t n)
{
    V_FOR(i, n)
    v_store_n(y + i, v_mul(v_load_n(x + i, lanes), v_set(s)), lanes);
}

static void sum_rows(float *y, const float *const *x, const float *w, uint32_t k, uint32_t n)
{
    V_FOR(i, n)
    {
        vf sum = v_load_n(x[0] + i, lanes);
        if (w) sum = v_mul(sum, v_set(w[0]));
        for (uint32_t j = 1; j < k; j++) {
            vf a = v_load_n(x[j] + i, lanes);
            sum = w ? v_fma(a, v_set(w[j]), sum) : v_add(a, sum);
        }
        v_store_n(y + i, sum, lanes);
    }
}

static void softcap(float *y, const float *x, float cap, uint32_t n)
{
    vf c = v_set(cap);
    V_FOR(i, n)
    v_store_n(y + i, v_mul(c, v_tanh(v_div(v_load_n(x + i, lanes), c))), lanes);
}

/* 1 / (1 + e^-x) times num */
V_INLINE vf over_logistic(vf num, vf minus_x)
{
    return v_div(num, v_add(v_set(1.0f), v_exp(minus_x)));
}

/* Abramowitz and Stegun 7.1.26: absolute error below 2e-7. */
V_INLINE vf v_erf(vf x)
{
    vf a = v_max(v_sub(v_set(0), x), x);
    vf t = v_div(v_set(1.0f), v_fma(v_set(0.3275911f), a, v_set(1.0f)));
    vf p = v_set(1.061405429f);
    p = v_fma(p, t, v_set(-1.453152027f));
    p = v_fma(p, t, v_set(1.421413741f));
    p = v_fma(p, t, v_set(-0.284496736f));
    p = v_fma(p, t, v_set(0.254829592f));
    vf y = v_sub(v_set(1.0f), v_mul(v_mul(p, t), v_exp(v_sub(v_set(0), v_mul(a, a)))));
    return v_sign_of(y, x);
}

/* act is a constant where this is used. */
V_INLINE vf v_act(vf g, enum kr_act act)
{
    if (act == KR_ACT_SILU) return over_logistic(g, v_sub(v_set(0), g));
    if (act == KR_ACT_SIGMOID) return over_logistic(v_set(1.0f), v_sub(v_set(0), g));
    /* gelu: 0.5 g (1 + tanh u) = g / (1 + e^-2u), u = sqrt(2/pi) (g + 0.044715 g^3) */
    if (act == KR_ACT_GELU_TANH)
        return over_logistic(g, v_mul(v_mul(v_set(-2.0f * 0.7978845608f), g),
                                      v_fma(v_mul(v_set(0.044715f), g), g, v_set(1.0f))));
    if (act == KR_ACT_GELU)
        return v_mul(v_mul(v_set(0.5f), g),
                     v_add(v_set(1.0f), v_erf(v_mul(g, v_set(0.7071067812f)))));
    if (act == KR_ACT_RELU2) {
        vf r = v_max(v_set(0), g); /* g when it is NaN */
        return v_mul(r, r);
    }
    return g;
}

V_INLINE void glu_loop(float *y, const float *gate, const float *up, enum kr_act act, uint32_t n)
{
    V_FOR(i, n)
    {
        vf a = v_act(v_load_n(gate + i, lanes), act);
        if (up) a = v_mul(a, v_load_n(up + i, lanes));
        v_store_n(y + i, a, lanes);
    }
}

static void swiglu_oai(float *y, const float *gate, const float *up, uint32_t n)
{
    V_FOR(i, n)
    {
        vf g = v_min(v_set(7.0f), v_load_n(gate + i, lanes)); /* NaN stays */
        vf u = v_max(v_set(-7.0f), v_min(v_set(7.0f), v_load_n(up + i, lanes)));
        vf s = over_logistic(g, v_mul(v_set(-1.702f), g));
        v_store_n(y + i, v_mul(s, v_add(u, v_set(1.0f))), lanes);
    }
}

static void glu(float *y, const float *gate, const float *up, enum kr_act act, uint32_t n)
{
    switch (act) {
    case KR_ACT_NONE:
        return glu_loop(y, gate, up, KR_ACT_NONE, n);
    case KR_ACT_SILU:
        return glu_loop(y, gate, up, KR_ACT_SILU, n);
    case KR_ACT_GELU_TANH:
        return glu_loop(y, gate, up, KR_ACT_GELU_TANH, n);
    case KR_ACT_GELU:
        return glu_loop(y, gate, up, KR_ACT_GELU, n);
    case KR_ACT_SIGMOID:
        return glu_loop(y, gate, up, KR_ACT_SIGMOID, n);
    case KR_ACT_RELU2:
        return glu_loop(y, gate, up, KR_ACT_RELU2, n);
    case KR_ACT_SWIGLU_OAI:
        return swiglu_oai(y, gate, up, n);
    }
}

static void layer_norm(float *y, const float *x, const float *w, const float *b, float eps,
                       uint32_t n)
{
    vf sum = v_set(0), squares = v_set(0);
    V_FOR(i, n)
    sum = v_add(sum, v_load_n(x + i, lanes));
    vf mean = v_set((float)((double)v_sum(sum) / n));
    V_FOR(j, n)
    {
        vf d = v_keep(v_sub(v_load_n(x + j, lanes), mean), 0, lanes, v_set(0));
        squares = v_fma(d, d, squares);
    }
    vf s = v_set((float)(1.0 / sqrt((double)v_sum(squares) / n + (double)eps)));
    V_FOR(k, n)
    {
        vf a = v_mul(v_sub(v_load_n(x + k, lanes), mean), s);
        if (w) a = v_mul(a, v_load_n(w + k, lanes));
        if (b) a = v_add(a, v_load_n(b + k, lanes));
        v_store_n(y + k, a, lanes);
    }
}

static void rope_halves(float *y, const float *x, const float *cs, uint32_t half)
{
    V_FOR(i, half)
    {
        vf c = v_load_n(cs + i, lanes), s = v_load_n(cs + half + i, lanes);
        vf a = v_load_n(x + i, lanes), b = v_load_n(x + half + i, lanes);
        v_store_n(y + i, v_sub(v_mul(a, c), v_mul(b, s)), lanes);
        v_store_n(y + half + i, v_add(v_mul(a, s), v_mul(b, c)), lanes);
    }
}

static void rope(float *y, const float *x, const float *cs, enum kr_rope_kind kind,
                 uint32_t head_dim, uint32_t n_rot)
{
    uint32_t half = n_rot / 2;
    if (kind == KR_ROPE_NEOX) {
        rope_halves(y, x, cs, half);
    } else {
        for (uint32_t i = 0; i < half; i++) {
            float c = cs[i], s = cs[half + i], a = x[2 * i], b = x[2 * i + 1];
            y[2 * i] = a * c - b * s;
            y[2 * i + 1] = a * s + b * c;
        }
    }
    memcpy(y + n_rot, x + n_rot, (head_dim - n_rot) * sizeof *y);
}

static void to_f16(uint16_t *y, const float *x, uint32_t n)
{
    uint32_t i = 0;
    for (; i + VL <= n; i += VL)
        v_to_half(y + i, v_load(x + i));
    for (; i < n; i++)
        y[i] = kr_f32_f16(x[i]);
}

#endif
