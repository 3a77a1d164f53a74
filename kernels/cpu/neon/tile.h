/* Register tiles of quantised products on NEON with dot products: a group of 16 output rows (four
 * vectors) times R input rows, over a run of blocks. Private to kernels/cpu/neon. Pure but for the
 * outputs.
 *
 * Templates: callers give bits, header, panel and R as constants. A lane is an output row; four
 * columns of it meet four columns of an input row, which are a lane of its 16 bytes, in one sdot:
 * all words are below 128 or signed. Vectors go one after another, so that their eight words, which
 * the input rows share, and all the sums of float32 are in registers. The order of the sums is the
 * one in generic/matmul_generic.c, for every R.
 *
 * A panel: per block, vector after vector, its 8 words; then 16 float scales, 16 floats more (mins,
 * or the scales of the second halves); K2: then 16 floats and 16 pairs of mins. */
#ifndef KERNELS_CPU_NEON_TILE_H
#define KERNELS_CPU_NEON_TILE_H

#include <stddef.h>

#include "kernels/cpu/neon/unpack.h"

/* How far ahead of the quants in use the direct kernels fetch. */
#define PREFETCH_BYTES 2048

/* Of a block in a panel. */
ALWAYS_INLINE uint32_t panel_bytes(const int header)
{
    return header == KR_HDR_K2 ? 768 : 640;
}

/* Four words times 16 columns of an input row. */
ALWAYS_INLINE int32x4_t dot_half(int32x4_t sum, const int8x16_t *w, int8x16_t x)
{
    sum = vdotq_laneq_s32(sum, w[0], x, 0);
    sum = vdotq_laneq_s32(sum, w[1], x, 1);
    sum = vdotq_laneq_s32(sum, w[2], x, 2);
    return vdotq_laneq_s32(sum, w[3], x, 3);
}

/* What the sum of a half of 16 columns, or of all 32, starts from. */
ALWAYS_INLINE int32x4_t dot_start(const struct kr_q8_block *x, const int offset, const int header,
                                  const int half)
{
    if (!offset) return vdupq_n_s32(KR_SUM_BIAS);
    if (header == KR_HDR_K6) return vdupq_n_s32(x->half_start[half]);
    return vdupq_n_s32(x->start[offset == 16]);
}

/* isum * scale, rounded once: the bias goes off without rounding. A scale that overflows with it
 * (FP4) must do so here too, as the definition has it. */
ALWAYS_INLINE float32x4_t product(int32x4_t biased, float32x4_t scale, const int header)
{
    const float32x4_t sum = vreinterpretq_f32_s32(biased), bias = vdupq_n_f32(0x1.8p23f);
    if (header == KR_HDR_E) return vfmaq_f32(vmulq_f32(scale, vnegq_f32(bias)), sum, scale);
    return vmulq_f32(vsubq_f32(sum, bias), scale);
}

/* K2: sum + the halves' mins times the input's sums, times s. */
ALWAYS_INLINE float32x4_t add_mins(float32x4_t sum, int16x8_t mins, float32x4_t s,
                                   const struct kr_q8_block *x)
{
    int32_t pair;
    memcpy(&pair, x->half_sum, sizeof(pair));
    const int16x8_t sums = vreinterpretq_s16_s32(vdupq_n_s32(pair));
    const int32x4_t low = vmull_s16(vget_low_s16(mins), vget_low_s16(sums));
    return vfmaq_f32(sum, vcvtq_f32_s32(vpaddq_s32(low, vmull_high_s16(mins, sums))), s);
}

/* Words, scales and mins of vector v of a block. */
struct vector {
    int8x16_t w[8];
    float32x4_t s0, s1, min_scale;
    int16x8_t mins;
};

ALWAYS_INLINE struct vector tile_vector(const struct tile *t, const uint8_t *quants, uint32_t block,
                                        const int bits, const int header, const bool panel,
                                        const int v)
{
    struct vector p;
    p.s1 = p.min_scale = vdupq_n_f32(0);
    p.mins = vdupq_n_s16(0);
    if (panel) {
        const float *scales = (const float *)(const void *)(quants + 512) + 4 * v;
        UNROLL for (int i = 0; i < 8; i++)
            p.w[i] = vld1q_s8((const int8_t *)quants + 128 * v + 16 * i);
        p.s0 = vld1q_f32(scales);
        if (header != KR_HDR_D) p.s1 = vld1q_f32(scales + 16);
        if (header != KR_HDR_K2) return p;
        p.min_scale = vld1q_f32(scales + 32);
        p.mins = vreinterpretq_s16_u8(vld1q_u8(quants + 704 + 16 * v));
        return p;
    }
    UNROLL for (int i = 0; i < 8; i++)
        p.w[i] = tile_word(quants, bits, i, v);
    tile_scales(t->headers, header, block, v, &p.s0, &p.s1);
    if (header == KR_HDR_K2) p.mins = tile_half_mins(t->headers, block, v, &p.min_scale);
    return p;
}

/* Adds vector v of a block to an input row's sums. */
ALWAYS_INLINE float32x4_t tile_add(const struct vector *p, const struct kr_q8_block *x,
                                   const int offset, const int header, float32x4_t acc)
{
    const int8x16_t low = vld1q_s8(x->q), high = vld1q_s8(x->q + 16);
    int32x4_t sum = dot_half(dot_start(x, offset, header, 0), p->w, low);
    if (header == KR_HDR_K6 || header == KR_HDR_K2) {
        int32x4_t second = dot_half(dot_start(x, offset, header, 1), p->w + 4, high);
        const float32x4_t second_sum =
            vsubq_f32(vreinterpretq_f32_s32(second), vdupq_n_f32(0x1.8p23f));
        float32x4_t of = vfmaq_f32(product(sum, p->s0, header), second_sum, p->s1);
        if (header == KR_HDR_K2) of = add_mins(of, p->mins, p->min_scale, x);
        return vfmaq_n_f32(acc, of, x->scale);
    }
    sum = dot_half(sum, p->w + 4, high);
    acc = vfmaq_n_f32(acc, product(sum, p->s0, header), x->scale);
    if (header == KR_HDR_DM || header == KR_HDR_K) acc = vfmaq_n_f32(acc, p->s1, x->scaled_sum);
    return acc;
}

ALWAYS_INLINE void tile_run(const struct tile *t, const int bits, const int header,
                            const bool panel, const int R)
{
    const size_t quant_bytes = panel ? panel_bytes(header) : bits % 16 * 64u;
    const int offset = panel ? 0 : tile_offset(bits, header);
    const struct kr_q8_block *x = t->x;
    const uint8_t *quants = t->quants;
    float32x4_t acc[4][TILE_MAX_ROWS];

    UNROLL for (int v = 0; v < 4; v++) {
        UNROLL for (int r = 0; r < R; r++) {
            const float *out = t->out + r * t->out_stride + 4 * v;
            acc[v][r] = vdupq_n_f32(0);
            if (t->resume) acc[v][r] = load_lanes(out, lanes_of(t->lanes, v));
        }
    }
    for (uint32_t b = 0; b < t->blocks; b++, x++, quants += quant_bytes) {
        if (!panel && !t->ahead_bytes) __builtin_prefetch(quants + PREFETCH_BYTES);
        for (uint32_t at = 0; !panel && at < t->ahead_bytes; at += 64)
            __builtin_prefetch(t->ahead + b * t->ahead_bytes + at);
        UNROLL for (int v = 0; v < 4; v++) {
            const struct vector p = tile_vector(t, quants, b, bits, header, panel, v);
            const struct kr_q8_block *row = x;
            /* Not kept from one vector to the next: there are no registers for it. */
            if (R > 1) __asm__("" : "+r"(row));
            UNROLL for (int r = 0; r < R; r++)
                acc[v][r] = tile_add(&p, row + r * t->x_stride, offset, header, acc[v][r]);
        }
    }
    UNROLL for (int v = 0; v < 4; v++) {
        float32x4_t bias = vdupq_n_f32(0);
        if (t->bias) bias = load_lanes(t->bias + 4 * v, lanes_of(t->lanes, v));
        UNROLL for (int r = 0; r < R; r++) {
            if (t->bias) acc[v][r] = vaddq_f32(acc[v][r], bias);
            store_lanes(t->out + r * t->out_stride + 4 * v, lanes_of(t->lanes, v), acc[v][r]);
        }
    }
}

#endif
