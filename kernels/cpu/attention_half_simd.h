/* attention_half_simd: f16 keys and values read in place, with few registers (AVX2). Included once
 * by the ISA's file, through attention_simd.h.
 *
 * The terms of a score are the dims of a key; those of a weighted value are tokens. Both
 * multiply a pair's floats, one after another, by vectors of halves a fixed step apart, so one
 * template sums both. It takes two terms per prefetch, because the rest of a term's work (its
 * address, the test for the last one, the prefetch) cost as much as its products. Values of many
 * pairs gain nothing: their tile reads half a cache line per token and waits for memory. */
#ifndef KERNELS_CPU_ATTENTION_HALF_SIMD_H
#define KERNELS_CPU_ATTENTION_HALF_SIMD_H

#include "kernels/cpu/attention_tile_simd.h"

#if V_HALVES

/* sum + a * b, where the sum is: when all registers are in use gcc takes the instruction's other
 * forms too, and copies sums, or keeps them in memory. */
V_INLINE vf v_add_product(vf sum, vf a, vf b)
{
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    return sum;
}

/* A term of n pairs' sums, by `cols` vectors of halves, `at` bytes behind from[]. Whichever are
 * fewer stay in registers, pairs' floats or halves, while the others pass. */
V_INLINE void add_term(const uint32_t n, const uint32_t cols, const float *x, const size_t pitch,
                       const uint8_t *const *from, size_t at, vf sum[][V_WIDE])
{
    vf kept[V_WIDE];
    if (n < cols) {
        for (uint32_t i = 0; i < n; i++)
            kept[i] = v_set(x[i * pitch]);
        for (uint32_t c = 0; c < cols; c++) {
            vf half = v_half(from[c] + at);
            for (uint32_t i = 0; i < n; i++)
                sum[i][c] = v_add_product(sum[i][c], kept[i], half);
        }
        return;
    }
    for (uint32_t c = 0; c < cols; c++)
        kept[c] = v_half(from[c] + at);
    for (uint32_t i = 0; i < n; i++) {
        vf one = v_set(x[i * pitch]);
        for (uint32_t c = 0; c < cols; c++)
            sum[i][c] = v_add_product(sum[i][c], one, kept[c]);
    }
}

/* The terms of floats [x, end), of which there are some; halves of neighbours lie `step` apart. */
V_INLINE void add_terms(const uint32_t n, const uint32_t cols, const float *x, const float *end,
                        const size_t pitch, const uint8_t *const *from, size_t step,
                        struct kr_attn_ahead *f, vf sum[][V_WIDE])
{
    size_t at = 0;
    do {
        fetch_lines(f, 2);
        add_term(n, cols, x, pitch, from, at, sum);
        at += step;
        if (__builtin_expect(++x == end, 0)) break;
        add_term(n, cols, x, pitch, from, at, sum);
        at += step;
    } while (++x < end);
}

V_INLINE void half_scores_tile(const uint32_t n, const uint32_t cols, const struct kr_attn_tile *t,
                               uint32_t pair, uint32_t v, const struct key_source *k)
{
    struct kr_attn_ahead f = *t->ahead; /* in registers, as all that follows */
    const uint8_t *from[V_WIDE] = {k->at[0], k->at[1], k->at[2], k->at[3]};
    const float *q = t->q + (size_t)pair * Q_PITCH;
    float *p = t->p + (size_t)pair * KR_RANGE_KEYS + v * VL;
    vf sum[V_PAIRS][V_WIDE];
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t c = 0; c < cols; c++)
            sum[i][c] = v_set(0);
    add_terms(n, cols, q, q + t->k_dim, Q_PITCH, from, k->step, &f, sum);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t c = 0; c < cols; c++)
            v_store(p + (size_t)i * KR_RANGE_KEYS + c * VL, sum[i][c]);
    *t->ahead = f;
}

/* The tiles that there are: pairs and columns. */
/* clang-format off */
#define HALF_EACH(f)                                                                               \
    f(1, 1) f(2, 1) f(3, 1) f(4, 1) f(5, 1) f(6, 1) f(1, 2) f(2, 2) f(3, 2) f(4, 2) f(5, 2)        \
    f(6, 2) f(1, 3) f(2, 3) f(3, 3) f(4, 3) f(1, 4) f(2, 4) f(3, 4)
/* clang-format on */
#define HALF_SCORES(n, cols)                                                                       \
    static void half_scores_##n##_##cols(const struct kr_attn_tile *t, uint32_t pair, uint32_t v,  \
                                         const struct key_source *k)                               \
    {                                                                                              \
        half_scores_tile(n, cols, t, pair, v, k);                                                  \
    }
HALF_EACH(HALF_SCORES)
#define HALF_SCORES_ENTRY(n, cols) [n - 1][cols - 1] = half_scores_##n##_##cols,

/* All pairs by vectors of keys from `first` to `last`. */
static void half_scores(const struct kr_attn_tile *t, uint32_t first, uint32_t last,
                        const uint8_t *const *blocks)
{
    static void (*const tiles[V_PAIRS][V_WIDE])(const struct kr_attn_tile *, uint32_t, uint32_t,
                                                const struct key_source *) = {
        HALF_EACH(HALF_SCORES_ENTRY)};
    uint32_t pairs = t->n_rows * t->heads, some = CN_MIN(pairs_at_once(pairs), pairs), cols;
    for (uint32_t v = first; v <= last; v += cols) {
        struct key_source k = find_keys(t, blocks, v, first, last);
        cols = half_cols(some, last + 1 - v);
        for (uint32_t i = 0; i < pairs; i += some)
            tiles[CN_MIN(some, pairs - i) - 1][cols - 1](t, i, v, &k);
    }
}

#endif
#endif
