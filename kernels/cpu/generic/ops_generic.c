/* ops, generic: plain C, the reference of the other ISAs. Pure functions, any thread.
 * Sums over a row are kept in double; one element at a time, in ascending order. */
#include "kernels/cpu/ops.h"
#include "kernels/cpu/generic/exp.h"
#include "kernels/cpu/kv_read.h"
#include "kernels/half.h"

#include <math.h>
#include <string.h>

/* tanh u = 1 - 2 / (e^2u + 1): absolute error below 2e-7, which is what its users need. */
static float tanh_f32(float u)
{
    return 1.0f - 2.0f / (exp_f32(2.0f * u) + 1.0f);
}

static void rms_norm(float *y, const float *x, const float *w, float eps, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    float s = (float)(1.0 / sqrt(sum / n + eps));
    for (uint32_t i = 0; i < n; i++)
        y[i] = w ? x[i] * s * w[i] : x[i] * s;
}

static void add(float *y, const float *a, const float *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

static void scale(float *y, const float *x, float s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * s;
}

static void sum_rows(float *y, const float *const *x, const float *w, uint32_t k, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        float sum = w ? x[0][i] * w[0] : x[0][i];
        for (uint32_t j = 1; j < k; j++)
            sum += w ? x[j][i] * w[j] : x[j][i];
        y[i] = sum;
    }
}

static void softcap(float *y, const float *x, float cap, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = cap * tanh_f32(x[i] / cap);
}

/* erf by Abramowitz and Stegun 7.1.26: absolute error below 2e-7. */
static float erf_f32(float x)
{
    float a = fabsf(x), t = 1.0f / (1.0f + 0.3275911f * a);
    float p = 1.061405429f;
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    float y = 1.0f - p * t * exp_f32(-a * a);
    return x < 0 ? -y : y;
}

static float sigmoid_f32(float x)
{
    return 1.0f / (1.0f + exp_f32(-x));
}

static float act_f32(float g, enum kr_act act)
{
    switch (act) {
    case KR_ACT_SILU:
        return g / (1.0f + exp_f32(-g));
    case KR_ACT_GELU_TANH: /* 0.5 g (1 + tanh u) = g / (1 + e^-2u), u = sqrt(2/pi) (g + 0.044715
                              g^3) */
        return g / (1.0f + exp_f32(-2.0f * 0.7978845608f * g * (1.0f + 0.044715f * g * g)));
    case KR_ACT_GELU:
        return 0.5f * g * (1.0f + erf_f32(g * 0.7071067812f));
    case KR_ACT_SIGMOID:
        return sigmoid_f32(g);
    case KR_ACT_RELU2:
        return g > 0 ? g * g : g != g ? g : 0.0f;
    case KR_ACT_NONE:
    case KR_ACT_SWIGLU_OAI:
        break;
    }
    return g;
}

/* Comparisons are false for NaN, which therefore stays. */
static float swiglu_oai(float g, float u)
{
    g = g > 7.0f ? 7.0f : g;
    u = u > 7.0f ? 7.0f : u < -7.0f ? -7.0f : u;
    return g * sigmoid_f32(1.702f * g) * (u + 1.0f);
}

static void glu(float *y, const float *gate, const float *up, enum kr_act act, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (act == KR_ACT_SWIGLU_OAI)
            y[i] = swiglu_oai(gate[i], up[i]);
        else
            y[i] = up ? act_f32(gate[i], act) * up[i] : act_f32(gate[i], act);
    }
}

static void layer_norm(float *y, const float *x, const float *w, const float *b, float eps,
                       uint32_t n)
{
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i];
    float mean = (float)(sum / n);
    for (uint32_t i = 0; i < n; i++)
        squares += (double)(x[i] - mean) * (x[i] - mean);
    float s = (float)(1.0 / sqrt(squares / n + eps));
    for (uint32_t i = 0; i < n; i++) {
        float v = (x[i] - mean) * s;
        if (w) v *= w[i];
        y[i] = b ? v + b[i] : v;
    }
}

static void rope(float *y, const float *x, const float *cs, enum kr_rope_kind kind,
                 uint32_t head_dim, uint32_t n_rot)
{
    uint32_t half = n_rot / 2;
    for (uint32_t i = 0; i < half; i++) {
        uint32_t a = kind == KR_ROPE_NORM ? 2 * i : i;
        uint32_t b = kind == KR_ROPE_NORM ? 2 * i + 1 : i + half;
        float c = cs[i], s = cs[half + i], xa = x[a], xb = x[b];
        y[a] = xa * c - xb * s;
        y[b] = xa * s + xb * c;
    }
    memcpy(y + n_rot, x + n_rot, (head_dim - n_rot) * sizeof *y);
}

static void to_f16(uint16_t *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = kr_f32_f16(x[i]);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Keys [k0, k1) of the range to t->keys and t->values. */
static void load_range(const struct kr_attn_tile *t, uint32_t k0, uint32_t k1,
                       const uint8_t *const *blocks)
{
    enum kr_type type = t->kv_type;
    uint32_t bt = t->block_tokens;
    for (uint32_t k = k0; k < k1; k++) {
        uint32_t key = t->list ? t->list[k] : k, tok = key % bt;
        const uint8_t *b = blocks[key / bt];
        const uint8_t *keys = b + t->at.k, *k_scales = b + t->at.k_scale;
        const uint8_t *latent = keys + kr_kv_bytes(type, t->k_dim) * tok;
        const uint8_t *l_scales = k_scales + kr_kv_scale_bytes(type, t->k_dim) * tok;
        for (uint32_t d = 0; d < t->k_dim; d++)
            t->keys[(size_t)d * KR_RANGE_KEYS + k] =
                t->latent ? kr_kv_value(type, latent, l_scales, d)
                          : kr_kv_key(type, keys, k_scales, bt, tok, d);
        for (uint32_t d = 0; d < t->v_dim; d++)
            t->values[(size_t)k * t->acc_stride + d] =
                t->latent ? kr_kv_value(type, latent, l_scales, d)
                          : kr_kv_v(type, b + t->at.v, b + t->at.v_scale, bt, t->v_dim, tok, d);
    }
}

/* 32 dims of a query as words; gives what 1 is worth, NaN when one was not finite. */
static float round_query(int16_t *words, const float *q, uint32_t n)
{
    uint32_t most_bits = 0; /* magnitudes as integers: NaN comes last */
    for (uint32_t d = 0; d < n; d++)
        most_bits = CN_MAX(most_bits, kr_f32_bits(q[d]) & 0x7fffffffu);
    float most;
    memcpy(&most, &most_bits, sizeof most);
    bool some = most > KR_WORD_LEAST && most < INFINITY;
    float inv = some ? KR_WORD_MAX / most : 0;
    for (uint32_t d = 0; d < n; d++)
        words[d] = some ? (int16_t)rintf(q[d] * inv) : 0;
    return (some ? most / KR_WORD_MAX : 0) + (most - most);
}

/* t->q to t->words: [pair][dim rounded up to 32]. */
static void attn_queries(const struct kr_attn_tile *t)
{
    uint32_t n = (t->k_dim + KR_KV_DIMS - 1) / KR_KV_DIMS;
    for (uint32_t i = 0; i < t->n_rows * t->heads; i++)
        for (uint32_t b = 0; b < n; b++)
            t->worth[i * n + b] = round_query(t->words + (size_t)(i * n + b) * KR_KV_DIMS,
                                              t->q + (size_t)i * t->k_dim + b * KR_KV_DIMS,
                                              CN_MIN(KR_KV_DIMS, t->k_dim - b * KR_KV_DIMS));
}

/* Dim d of a pair's query. */
static float query_at(const struct kr_attn_tile *t, uint32_t pair, uint32_t d)
{
    size_t block = (size_t)pair * ((t->k_dim + KR_KV_DIMS - 1) / KR_KV_DIMS) + d / KR_KV_DIMS;
    if (!t->words) return t->q[(size_t)pair * t->k_dim + d];
    return (float)t->words[block * KR_KV_DIMS + d % KR_KV_DIMS] * t->worth[block];
}

/* One pair: scores, softmax and weighted values over the visible keys [k0, k1) of the range. */
static void pair_range(const struct kr_attn_tile *t, uint32_t i, uint32_t k0, uint32_t k1,
                       struct kr_attn_state s)
{
    float *p = t->p + (size_t)i * KR_RANGE_KEYS, *acc = s.acc + (size_t)i * t->acc_stride;
    float max = -INFINITY, sum = 0;
    for (uint32_t k = k0; k < k1; k++)
        p[k] = 0;
    for (uint32_t d = 0; d < t->k_dim; d++) {
        float q = query_at(t, i, d);
        for (uint32_t k = k0; k < k1; k++)
            p[k] += q * t->keys[(size_t)d * KR_RANGE_KEYS + k];
    }
    for (uint32_t k = k0; k < k1; k++) {
        if (t->softcap > 0) p[k] = t->softcap * tanh_f32(p[k] / t->softcap);
        if (!(p[k] <= max)) max = p[k];
    }
    for (uint32_t d = 0; d < t->v_dim; d++)
        acc[d] = 0;
    for (uint32_t k = k0; k < k1; k++) {
        const float *v = t->values + (size_t)k * t->acc_stride;
        float e = exp_f32(p[k] - max);
        sum += e;
        for (uint32_t d = 0; d < t->v_dim; d++)
            acc[d] += e * v[d];
    }
    s.max[i] = max;
    s.sum[i] = sum;
}

static void attn_range(const struct kr_attn_tile *t, uint32_t base, const uint8_t *const *blocks,
                       struct kr_attn_state s)
{
    uint32_t k0, k1, unused;
    kr_attn_visible(t, 0, base, &k0, &unused);
    kr_attn_visible(t, t->n_rows - 1, base, &unused, &k1);
    if (k0 < k1) load_range(t, k0, k1, blocks);
    for (uint32_t r = 0; r < t->n_rows; r++) {
        kr_attn_visible(t, r, base, &k0, &k1);
        for (uint32_t i = r * t->heads; i < (r + 1) * t->heads; i++) {
            if (k0 < k1)
                pair_range(t, i, k0, k1, s);
            else
                s.sum[i] = 0;
        }
    }
}

static void select_range(const struct kr_attn_tile *t, uint32_t base, const uint8_t *const *blocks,
                         const float *w, float *scores)
{
    uint32_t k0, k1, bt = t->block_tokens;
    kr_attn_visible(t, 0, base, &k0, &k1);
    for (uint32_t k = k0; k < k1; k++) {
        const uint8_t *b = blocks[k / bt];
        float sum = 0;
        for (uint32_t d = 0; d < t->k_dim; d++)
            t->keys[d] = kr_kv_key(t->kv_type, b + t->at.k, b + t->at.k_scale, bt, k % bt, d);
        for (uint32_t h = 0; h < t->heads; h++) {
            float s = 0;
            for (uint32_t d = 0; d < t->k_dim; d++)
                s += t->q[(size_t)h * t->k_dim + d] * t->keys[d];
            sum += w[h] * (s < 0 ? 0 : s); /* NaN stays */
        }
        scores[k] = sum;
    }
}

static void attn_merge(struct kr_attn_state dst, struct kr_attn_state src, uint32_t n,
                       uint32_t v_dim, uint32_t acc_stride)
{
    for (uint32_t i = 0; i < n; i++) {
        float *da = dst.acc + (size_t)i * acc_stride;
        const float *sa = src.acc + (size_t)i * acc_stride;
        if (src.sum[i] == 0) continue;
        if (dst.sum[i] == 0) {
            dst.max[i] = src.max[i];
            dst.sum[i] = src.sum[i];
            memcpy(da, sa, v_dim * sizeof *da);
            continue;
        }
        float max = dst.max[i] >= src.max[i] ? dst.max[i] : src.max[i];
        float a = exp_f32(dst.max[i] - max), b = exp_f32(src.max[i] - max);
        dst.max[i] = max;
        dst.sum[i] = dst.sum[i] * a + src.sum[i] * b;
        for (uint32_t d = 0; d < v_dim; d++)
            da[d] = da[d] * a + sa[d] * b;
    }
}

static void attn_finish(float *y, const float *acc, float max, float sum, const float *sink,
                        uint32_t v_dim)
{
    float r = 1.0f / (sink ? sum + exp_f32(*sink - max) : sum);
    for (uint32_t d = 0; d < v_dim; d++)
        y[d] = acc[d] * r;
}

void kr_ops_generic(struct kr_cpu_ops *o)
{
    *o = KR_OPS_HERE("generic");
}
