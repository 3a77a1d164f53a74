/* attention_q8_simd: q8_0 keys and values where they lie, never written as float32. Included once
 * by each ISA's file, through attention_simd.h.
 *
 * Scores are products of 16-bit integers with exact sums: the queries' blocks of 32 dims are
 * rounded to 16 bits (kv_read.h). No sum overflows, so that their order does not matter; blocks of
 * dims add up in ascending order. Probabilities are not rounded, as a few of them may be all that
 * counts: times their values' scales they meet values in float32, over keys in ascending order,
 * one fused multiply-add each. A pair's numbers come from the keys it sees, whatever else is in
 * the tile. Latent layers and chosen keys take the way by float32. */
#ifndef KERNELS_CPU_ATTENTION_Q8_SIMD_H
#define KERNELS_CPU_ATTENTION_Q8_SIMD_H

#include "kernels/cpu/attention_tile_simd.h"

/* f(n) for each number of pairs: functions of their own, whose registers compilers find easier. */
#define Q8_EACH(f) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8)

/* The largest of n floats (a multiple of VL) without their signs; NaN and infinity are larger. */
V_INLINE float most_of(const float *x, uint32_t n)
{
    vf top = v_set(0);
    for (uint32_t i = 0; i < n; i += VL)
        top = v_max_bits(top, v_sign_of(v_load(x + i), v_set(0)));
    return v_hmax_bits(top);
}

/* n floats as integers, the largest of which is `most`; gives what 1 is worth: NaN when one was not
 * finite. What is too small to divide by is 0. */
V_INLINE float to_words(int16_t *to, const float *x, uint32_t n, float most)
{
    bool some = most > KR_WORD_LEAST;
    vf inv = v_set(some ? KR_WORD_MAX / most : 0);
    for (uint32_t i = 0; i < n; i += VL)
        v_to_words(to + i, v_mul(v_load(x + i), inv));
    return (some ? most / KR_WORD_MAX : 0) + (most - most);
}

/* t->q to t->words: [pair / V_MANY][dim / 2][V_MANY][2], zero past k_dim. */
static void attn_queries(const struct kr_attn_tile *t)
{
    uint32_t n = (t->k_dim + KR_KV_DIMS - 1) / KR_KV_DIMS;
    for (uint32_t i = 0; i < t->n_rows * t->heads; i++) {
        size_t first = (size_t)(i / V_MANY) * n, at = i % V_MANY;
        const float *q = t->q + (size_t)i * t->k_dim;
        for (uint32_t b = 0; b < n; b++) {
            float x[KR_KV_DIMS] = {0};
            int16_t w[KR_KV_DIMS], *to = t->words + (first + b) * KR_KV_DIMS * V_MANY + 2 * at;
            memcpy(x, q + b * KR_KV_DIMS,
                   CN_MIN(KR_KV_DIMS, t->k_dim - b * KR_KV_DIMS) * sizeof *x);
            float most = most_of(x, KR_KV_DIMS);
            t->worth[(first + b) * V_MANY + at] = to_words(w, x, KR_KV_DIMS, most);
            for (uint32_t d = 0; d < KR_KV_DIMS; d += 2)
                memcpy(to + d * V_MANY, w + d, 2 * sizeof *w);
        }
    }
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* n pairs by `cols` vectors of keys. */
V_INLINE void q8_scores_tile(const uint32_t n, const uint32_t cols, const struct kr_attn_tile *t,
                             uint32_t pair, uint32_t v, const struct key_source *k)
{
    struct kr_attn_ahead f = *t->ahead; /* in registers */
    size_t first = (size_t)(pair / V_MANY) * ((t->k_dim + KR_KV_DIMS - 1) / KR_KV_DIMS);
    const int16_t *q = t->words + first * KR_KV_DIMS * V_MANY;
    const float *worth = t->worth + first * V_MANY;
    float *p = t->p + (size_t)pair * KR_RANGE_KEYS + v * VL;
    size_t at = 0;
    for (uint32_t d = 0; d < t->k_dim; d += KR_KV_DIMS, worth += V_MANY) {
        vi acc[V_MANY][V_COLS];
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t c = 0; c < cols; c++)
                acc[i][c] = v_none();
        for (uint32_t j = d, end = CN_MIN(d + KR_KV_DIMS, t->k_dim); j < end; j += 2) {
            fetch_some(&f);
            vw key[V_COLS];
            for (uint32_t c = 0; c < cols; c++)
                key[c] = v_words(k->at[c] + at);
            for (uint32_t i = 0; i < n; i++) {
                vq x = v_words_all(q + 2 * i);
                for (uint32_t c = 0; c < cols; c++)
                    acc[i][c] = v_dot(acc[i][c], key[c], x);
            }
            at += k->step;
            q += 2 * V_MANY;
        }
        for (uint32_t c = 0; c < cols; c++) {
            vf scale = v_half(k->scales[c] + 2ull * (d / KR_KV_DIMS) * t->block_tokens);
            for (uint32_t i = 0; i < n; i++) {
                float *to = p + (size_t)i * KR_RANGE_KEYS + c * VL;
                vf s = v_float(acc[i][c]), one = v_mul(v_set(worth[i]), scale);
                v_store(to, d ? v_fma(s, one, v_load(to)) : v_mul(s, one));
            }
        }
    }
    *t->ahead = f;
}

#define Q8_SCORES(n)                                                                               \
    static void q8_scores_##n(const struct kr_attn_tile *t, uint32_t pair, uint32_t v,             \
                              const struct key_source *k)                                          \
    {                                                                                              \
        q8_scores_tile(n, n > V_PAIRS ? V_COLS / 2 : V_COLS, t, pair, v, k);                       \
    }                                                                                              \
    static void q8_half_##n(const struct kr_attn_tile *t, uint32_t pair, uint32_t v,               \
                            const struct key_source *k)                                            \
    {                                                                                              \
        q8_scores_tile(n, V_COLS / 2, t, pair, v, k);                                              \
    }
Q8_EACH(Q8_SCORES)
#define Q8_SCORES_ENTRY(n) {q8_scores_##n, q8_half_##n},

/* All pairs by the vectors that hold keys [k0, k1). */
static void q8_scores(const struct kr_attn_tile *t, uint32_t k0, uint32_t k1,
                      const uint8_t *const *blocks)
{
    static void (*const tiles[V_MANY][2])(const struct kr_attn_tile *, uint32_t, uint32_t,
                                          const struct key_source *) = {Q8_EACH(Q8_SCORES_ENTRY)};
    const uint32_t half = V_COLS / 2, first = k0 / VL, last = (k1 - 1) / VL;
    uint32_t pairs = t->n_rows * t->heads, cols;
    for (uint32_t i = 0; i < pairs; i += V_MANY) {
        uint32_t n = CN_MIN(V_MANY, pairs - i);
        for (uint32_t v = first / half * half; v <= last; v += cols) {
            struct key_source k = find_keys(t, blocks, v, first, last);
            cols = n > V_PAIRS || v % V_COLS || last - v < half ? half : V_COLS;
            tiles[n - 1][cols == half](t, i, v, &k);
        }
    }
}

/* ---- weighted values ------------------------------------------------------------------------- */

/* Pairs that are taken at once, by two vectors: what the registers hold. */
#define Q8_PAIRS (VL == 16u ? V_MANY : V_PAIRS)

/* What the values of a block of dims are multiplied by, for n pairs: p times the values' scales,
 * in whole vectors of keys that hold [k0, k1), 0 for keys that are not seen. */
static void weigh(const struct kr_attn_tile *t, const uint8_t *const *blocks, uint32_t pair,
                  uint32_t n, uint32_t base, uint32_t block, uint32_t k0, uint32_t k1,
                  float w[][KR_RANGE_KEYS])
{
    uint32_t begin = k0 / VL * VL, from, to;
    float scales[KR_RANGE_KEYS];
    for (uint32_t k = begin; k < k1; k += VL) {
        const uint8_t *b = blocks[block_of(t, k)];
        const uint8_t *at = b + t->at.v_scale + 2ull * (block * t->block_tokens + token_of(t, k));
        v_store(scales + k, v_mul(v_set(V_BYTE_UNIT), v_half(at)));
    }
    for (uint32_t i = 0; i < n; i++) {
        const float *p = t->p + (size_t)(pair + i) * KR_RANGE_KEYS;
        kr_attn_visible(t, (pair + i) / t->heads, base, &from, &to);
        for (uint32_t k = begin; k < k1; k += VL) {
            vf a = v_mul(v_load(p + k), v_load(scales + k));
            if (k < from || k + VL > to)
                a = v_keep(a, from > k ? CN_MIN(from - k, VL) : 0, to > k ? CN_MIN(to - k, VL) : 0,
                           v_set(0));
            v_store(w[i] + k, a);
        }
    }
}

/* acc of n pairs, `cols` vectors from column c. */
V_INLINE void q8_values_tile(const uint32_t n, const uint32_t cols, const struct kr_attn_tile *t,
                             const uint8_t *const *blocks, const float w[][KR_RANGE_KEYS],
                             float *acc, uint32_t c, uint32_t k0, uint32_t k1)
{
    struct kr_attn_ahead f = *t->ahead; /* in registers */
    size_t step = 2ull * t->v_dim;
    vf a[Q8_PAIRS][2];
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < cols; j++)
            a[i][j] = v_set(0);
    for (uint32_t k = k0 / 2 * 2; k < k1;) {
        const uint8_t *v =
            blocks[block_of(t, k)] + t->at.v + step * (token_of(t, k) / 2) + 2ull * c;
        const float *x = w[0] + k;
        k = CN_MIN(k1, next_block(t, k));
        for (const float *end = w[0] + k; x < end; x += 2, v += step) {
            fetch_some(&f);
            for (uint32_t second = 0; second < 2; second++) {
                vf value[2];
                V_LOAD_LATE(); /* not the values of both tokens at once */
                for (uint32_t j = 0; j < cols; j++)
                    value[j] = v_byte(v + j * 2 * VL, second);
                for (uint32_t i = 0; i < n; i++) {
                    vf p = v_set(x[i * KR_RANGE_KEYS + second]);
                    for (uint32_t j = 0; j < cols; j++)
                        a[i][j] = v_fma(p, value[j], a[i][j]);
                }
            }
        }
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < cols; j++)
            v_store(acc + (size_t)i * t->acc_stride + c + j * VL, a[i][j]);
    *t->ahead = f;
}

/* Columns [c, end) of a block of dims. */
#define Q8_VALUES(n)                                                                               \
    static void q8_values_##n(const struct kr_attn_tile *t, const uint8_t *const *blocks,          \
                              const float w[][KR_RANGE_KEYS], float *acc, uint32_t c,              \
                              uint32_t end, uint32_t k0, uint32_t k1)                              \
    {                                                                                              \
        for (; c + 2 * VL <= end; c += 2 * VL)                                                     \
            q8_values_tile(n, 2, t, blocks, w, acc, c, k0, k1);                                    \
        for (; c < end; c += VL)                                                                   \
            q8_values_tile(n, 1, t, blocks, w, acc, c, k0, k1);                                    \
    }
#define Q8_VALUES_ENTRY(n) q8_values_##n,
#if defined(__AVX512F__)
#define Q8_EACH_VALUES(f) Q8_EACH(f)
#else
#define Q8_EACH_VALUES(f) f(1) f(2) f(3) f(4) f(5) f(6)
#endif
Q8_EACH_VALUES(Q8_VALUES)

/* acc of all pairs; rows of the tile see keys [k0, k1) between them. Columns past v_dim are
 * never read; they get whatever follows a token's values. */
static void q8_values(const struct kr_attn_tile *t, const uint8_t *const *blocks, float *acc,
                      uint32_t base, uint32_t k0, uint32_t k1)
{
    static void (*const tiles[Q8_PAIRS])(const struct kr_attn_tile *, const uint8_t *const *,
                                         const float[][KR_RANGE_KEYS], float *, uint32_t, uint32_t,
                                         uint32_t, uint32_t) = {Q8_EACH_VALUES(Q8_VALUES_ENTRY)};
    float w[Q8_PAIRS][KR_RANGE_KEYS];
    uint32_t pairs = t->n_rows * t->heads;
    uint32_t some = CN_MIN(pairs > V_MANY ? Q8_PAIRS : pairs_at_once(pairs), Q8_PAIRS);
    for (uint32_t i = 0; i < pairs; i += some) {
        uint32_t n = CN_MIN(some, pairs - i);
        float *to = acc + (size_t)i * t->acc_stride;
        for (uint32_t c = 0; c < t->acc_stride; c += KR_KV_DIMS) {
            uint32_t end = CN_MIN(c + KR_KV_DIMS, t->acc_stride);
            weigh(t, blocks, i, n, base, c / KR_KV_DIMS, k0, k1, w);
            tiles[n - 1](t, blocks, w, to, c, end, k0, k1);
        }
    }
}

#endif
