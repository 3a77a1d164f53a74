/* I8MM: quantised products of many input rows by smmla, which multiplies two rows by two rows of
 * eight columns. Pure but for the outputs. Few input rows, and all else, go as on NEON.
 *
 * A lane of the sums is an output row and one of a pair of input rows: [r a, r b, r+1 a, r+1 b],
 * and so it stays until the end. Each lane is summed in the order of generic/matmul_generic.c.
 *
 * A panel: per block and vector v, for columns 8i..8i+7 rows 4v, 4v+1 and then 4v+2, 4v+3 (i =
 * 0..3); then scales, each twice: 32 floats, and 32 more (mins, or the scales of the second
 * halves); K2: then 32 floats, and the two halves' mins as 32 integers each. */
#include "kernels/cpu/neon/matmul_neon.h"

#include <math.h>

#include "kernels/cpu/neon/unpack.h"

/* Unpacking costs what five rows gain. */
#define PANEL_MIN_ROWS 6
#define MAX_PAIRS      (TILE_MAX_ROWS / 2)

ALWAYS_INLINE uint32_t panel_bytes(const int header)
{
    return header == KR_HDR_K2 ? 1152 : 768;
}

/* ---- panels ---------------------------------------------------------------------------------- */

ALWAYS_INLINE void store_twice(uint8_t *panel, const int v, float32x4_t s)
{
    float *to = (float *)(void *)panel + 8 * v;
    vst1q_f32(to, vzip1q_f32(s, s));
    vst1q_f32(to + 4, vzip2q_f32(s, s));
}

ALWAYS_INLINE void store_mins(uint8_t *panel, const int v, int16x8_t mins)
{
    const int32x4_t both = vreinterpretq_s32_s16(mins);
    const int32x4_t low = vandq_s32(both, vdupq_n_s32(15)), high = vshrq_n_s32(both, 16);
    store_twice(panel, v, vreinterpretq_f32_s32(low));
    store_twice(panel + 128, v, vreinterpretq_f32_s32(high));
}

ALWAYS_INLINE void unpack_blocks(const uint8_t *headers, const uint8_t *quants, uint32_t blocks,
                                 const int bits, const int header, uint8_t *panel)
{
    for (uint32_t b = 0; b < blocks; b++, quants += bits % 16 * 64, panel += panel_bytes(header)) {
        UNROLL for (int v = 0; v < 4; v++) {
            float32x4_t s0, s1 = vdupq_n_f32(0);
            tile_scales(headers, header, b, v, &s0, &s1);
            store_twice(panel + 512, v, s0);
            store_twice(panel + 640, v, s1);
            if (header == KR_HDR_K2) {
                store_mins(panel + 896, v, tile_half_mins(headers, b, v, &s0));
                store_twice(panel + 768, v, s0);
            }
            int32_t *to = (int32_t *)(void *)panel + 32 * v;
            UNROLL for (int i = 0; i < 4; i++, to += 8) {
                const int8x16_t a = panel_word(quants, bits, header, 2 * i, v);
                const int8x16_t c = panel_word(quants, bits, header, 2 * i + 1, v);
                const int32x4_t left = vreinterpretq_s32_s8(a), right = vreinterpretq_s32_s8(c);
                vst1q_s32(to, vzip1q_s32(left, right));
                vst1q_s32(to + 4, vzip2q_s32(left, right));
            }
        }
    }
}

UNPACK(unpack4_d, 4, KR_HDR_D)
UNPACK(unpack4_dm, 4, KR_HDR_DM)
UNPACK_MOST
UNPACK(unpack8_d, 8, KR_HDR_D)
UNPACK(unpack_iq4_d, KR_BITS_IQ4, KR_HDR_D)
UNPACK(unpack_fp4, KR_BITS_FP4, KR_HDR_E)

/* ---- tiles ----------------------------------------------------------------------------------- */

/* A block of two input rows: columns 8i..8i+7 of both in one register. */
struct pair { int8x16_t q[4]; };
ALWAYS_INLINE struct pair load_pair(const struct kr_q8_block *a, const struct kr_q8_block *b)
{
    struct pair p;
    UNROLL for (int h = 0; h < 2; h++) {
        const int64x2_t left = vreinterpretq_s64_s8(vld1q_s8(a->q + 16 * h));
        const int64x2_t right = vreinterpretq_s64_s8(vld1q_s8(b->q + 16 * h));
        p.q[2 * h] = vreinterpretq_s8_s64(vzip1q_s64(left, right));
        p.q[2 * h + 1] = vreinterpretq_s8_s64(vzip2q_s64(left, right));
    }
    return p;
}
/* [a, b, a, b] */
ALWAYS_INLINE float32x4_t by_turns(float a, float b)
{
    const float32x2_t two = vset_lane_f32(b, vdup_n_f32(a), 1);
    return vcombine_f32(two, two);
}

/* isum * scale, rounded once; see tile.h. */
ALWAYS_INLINE float32x4_t product(int32x4_t sum, float32x4_t scale, const int header)
{
    const float32x4_t bias = vdupq_n_f32(0x1.8p23f);
    if (header != KR_HDR_E) return vmulq_f32(vcvtq_f32_s32(sum), scale);
    sum = vaddq_s32(sum, vdupq_n_s32(KR_SUM_BIAS));
    return vfmaq_f32(vmulq_f32(scale, vnegq_f32(bias)), vreinterpretq_f32_s32(sum), scale);
}

/* Columns [8 from, 8 to) of vector v's two pairs of rows times the pairs of input rows. */
ALWAYS_INLINE void pair_dot(const uint8_t *panel, const int v, const int P, const int from,
                            const int to, const struct pair *x, int32x4_t sums[2][MAX_PAIRS])
{
    UNROLL for (int j = 0; j < 2; j++) {
        UNROLL for (int p = 0; p < P; p++)
            sums[j][p] = vdupq_n_s32(0);
    }
    UNROLL for (int i = from; i < to; i++) {
        UNROLL for (int j = 0; j < 2; j++) {
            const int8x16_t w = vld1q_s8((const int8_t *)panel + 128 * v + 32 * i + 16 * j);
            UNROLL for (int p = 0; p < P; p++)
                sums[j][p] = vmmlaq_s32(sums[j][p], w, x[p].q[i]);
        }
    }
}

/* acc += product(sums, scales at s) * scale of the input rows */
ALWAYS_INLINE void pair_scale(const uint8_t *s, const int header, const int v, const int P,
                              int32x4_t sums[2][MAX_PAIRS], const float32x4_t *x_scale,
                              float32x4_t acc[2][MAX_PAIRS])
{
    UNROLL for (int j = 0; j < 2; j++) {
        const float32x4_t scale = vld1q_f32((const float *)(const void *)s + 8 * v + 4 * j);
        UNROLL for (int p = 0; p < P; p++)
            acc[j][p] = vfmaq_f32(acc[j][p], product(sums[j][p], scale, header), x_scale[p]);
    }
}

/* of = product(sums, scales at s); of halves after the first: that added to it */
ALWAYS_INLINE void pair_product(const uint8_t *s, const bool first, const int v, const int P,
                                int32x4_t sums[2][MAX_PAIRS], float32x4_t of[2][MAX_PAIRS])
{
    UNROLL for (int j = 0; j < 2; j++) {
        const float32x4_t scale = vld1q_f32((const float *)(const void *)s + 8 * v + 4 * j);
        UNROLL for (int p = 0; p < P; p++) {
            const float32x4_t sum = vcvtq_f32_s32(sums[j][p]);
            of[j][p] = first ? vmulq_f32(sum, scale) : vfmaq_f32(of[j][p], sum, scale);
        }
    }
}

/* What the rows' mins are multiplied with: DM. */
ALWAYS_INLINE void pair_mins(const uint8_t *panel, const int v, const int P, const int R,
                             const struct kr_q8_block *x, size_t stride,
                             float32x4_t acc[2][MAX_PAIRS])
{
    UNROLL for (int p = 0; p < P; p++) {
        const struct kr_q8_block *a = x + 2 * p * stride, *b = 2 * p + 1 < R ? a + stride : a;
        const float32x4_t sums = by_turns(a->scaled_sum, b->scaled_sum);
        UNROLL for (int j = 0; j < 2; j++) {
            const float *mins = (const float *)(const void *)(panel + 640) + 8 * v + 4 * j;
            acc[j][p] = vfmaq_f32(acc[j][p], vld1q_f32(mins), sums);
        }
    }
}

/* K2: the halves' mins times the input's sums. */
ALWAYS_INLINE void pair_half_mins(const uint8_t *panel, const int v, const int P, const int R,
                                  const struct kr_q8_block *x, size_t stride,
                                  int32x4_t sums[2][MAX_PAIRS])
{
    UNROLL for (int p = 0; p < P; p++) {
        const struct kr_q8_block *a = x + 2 * p * stride, *b = 2 * p + 1 < R ? a + stride : a;
        UNROLL for (int j = 0; j < 2; j++) {
            sums[j][p] = vdupq_n_s32(0);
            UNROLL for (int h = 0; h < 2; h++) {
                const uint8_t *mins = panel + 896 + 128 * h + 32 * v + 16 * j;
                const int32x2_t two = vset_lane_s32(b->half_sum[h], vdup_n_s32(a->half_sum[h]), 1);
                sums[j][p] = vmlaq_s32(sums[j][p], vld1q_s32((const int32_t *)(const void *)mins),
                                       vcombine_s32(two, two));
            }
        }
    }
}

/* K6 and K2: the block's first half, whose sums are given, and all that follows. */
ALWAYS_INLINE void pair_halves(const uint8_t *panel, const int header, const int v, const int R,
                               const struct kr_q8_block *x, size_t stride, const struct pair *q,
                               const float32x4_t *x_scale, int32x4_t sums[2][MAX_PAIRS],
                               float32x4_t acc[2][MAX_PAIRS])
{
    const int P = (R + 1) / 2;
    float32x4_t of[2][MAX_PAIRS];
    pair_product(panel + 512, true, v, P, sums, of);
    pair_dot(panel, v, P, 2, 4, q, sums);
    pair_product(panel + 640, false, v, P, sums, of);
    if (header == KR_HDR_K2) {
        pair_half_mins(panel, v, P, R, x, stride, sums);
        pair_product(panel + 768, false, v, P, sums, of);
    }
    UNROLL for (int j = 0; j < 2; j++) {
        UNROLL for (int p = 0; p < P; p++)
            acc[j][p] = vfmaq_f32(acc[j][p], of[j][p], x_scale[p]);
    }
}

ALWAYS_INLINE void pair_block(const uint8_t *panel, const int header, const int R,
                              const struct kr_q8_block *x, size_t stride,
                              float32x4_t acc[4][2][MAX_PAIRS])
{
    const bool halves = header == KR_HDR_K6 || header == KR_HDR_K2;
    const int P = (R + 1) / 2;
    struct pair q[MAX_PAIRS];
    float32x4_t x_scale[MAX_PAIRS];
    int32x4_t sums[2][MAX_PAIRS];
    UNROLL for (int p = 0; p < P; p++) {
        const struct kr_q8_block *a = x + 2 * p * stride, *b = 2 * p + 1 < R ? a + stride : a;
        q[p] = load_pair(a, b);
        x_scale[p] = by_turns(a->scale, b->scale);
    }
    UNROLL for (int v = 0; v < 4; v++) {
        pair_dot(panel, v, P, 0, halves ? 2 : 4, q, sums);
        if (halves) {
            pair_halves(panel, header, v, R, x, stride, q, x_scale, sums, acc[v]);
            continue;
        }
        pair_scale(panel + 512, header, v, P, sums, x_scale, acc[v]);
        if (header == KR_HDR_DM) pair_mins(panel, v, P, R, x, stride, acc[v]);
    }
}

ALWAYS_INLINE void pair_load(const struct tile *t, const int R, float32x4_t acc[4][2][MAX_PAIRS])
{
    UNROLL for (int v = 0; v < 4; v++) {
        UNROLL for (int p = 0; p < (R + 1) / 2; p++) {
            float32x4_t a = vdupq_n_f32(0), b = a;
            if (t->resume) {
                const float *out = t->out + 2 * p * t->out_stride + 4 * v;
                a = load_lanes(out, lanes_of(t->lanes, v));
                if (2 * p + 1 < R) b = load_lanes(out + t->out_stride, lanes_of(t->lanes, v));
            }
            acc[v][0][p] = vzip1q_f32(a, b);
            acc[v][1][p] = vzip2q_f32(a, b);
        }
    }
}

ALWAYS_INLINE void pair_store(const struct tile *t, const int R, float32x4_t acc[4][2][MAX_PAIRS])
{
    UNROLL for (int v = 0; v < 4; v++) {
        float32x4_t bias = vdupq_n_f32(0);
        if (t->bias) bias = load_lanes(t->bias + 4 * v, lanes_of(t->lanes, v));
        UNROLL for (int r = 0; r < R; r++) {
            const float32x4_t low = acc[v][0][r / 2], high = acc[v][1][r / 2];
            float32x4_t row = r % 2 ? vuzp2q_f32(low, high) : vuzp1q_f32(low, high);
            if (t->bias) row = vaddq_f32(row, bias);
            store_lanes(t->out + r * t->out_stride + 4 * v, lanes_of(t->lanes, v), row);
        }
    }
}

ALWAYS_INLINE void pair_run(const struct tile *t, const int header, const int R)
{
    const struct kr_q8_block *x = t->x;
    const uint8_t *panel = t->quants;
    float32x4_t acc[4][2][MAX_PAIRS];
    pair_load(t, R, acc);
    for (uint32_t b = 0; b < t->blocks; b++, x++, panel += panel_bytes(header))
        pair_block(panel, header, R, x, t->x_stride, acc);
    pair_store(t, R, acc);
}

#define TILE(name, header, R)                                                                      \
    static void name##_##R(const struct tile *t)                                                   \
    {                                                                                              \
        pair_run(t, header, R);                                                                    \
    }
/* clang-format off */
#define TILES(name, header)                                                                        \
    TILE(name, header, 1) TILE(name, header, 2) TILE(name, header, 3) TILE(name, header, 4)        \
    static const struct tile_set name = {{name##_1, name##_2, name##_3, name##_4}};
/* clang-format on */

TILES(pairs_d, KR_HDR_D)
TILES(pairs_dm, KR_HDR_DM)
TILES(pairs_k6, KR_HDR_K6)
TILES(pairs_k2, KR_HDR_K2)
TILES(pairs_e, KR_HDR_E)

/* ---- the table ------------------------------------------------------------------------------- */

static unpack_fn *unpack_of(enum kr_type type)
{
    static unpack_fn *const fns[] = {
        [KR_Q4_0] = unpack4_d,       [KR_Q4_1] = unpack4_dm,     [KR_Q5_0] = unpack5_d,
        [KR_Q5_1] = unpack5_dm,      [KR_Q8_0] = unpack8_d,      [KR_Q2_K] = unpack2_k,
        [KR_Q3_K] = unpack3_k,       [KR_Q4_K] = unpack4_k,      [KR_Q5_K] = unpack5_k,
        [KR_Q6_K] = unpack6_k,       [KR_IQ4_NL] = unpack_iq4_d, [KR_IQ3_S] = unpack_odd,
        [KR_IQ4_XS] = unpack_iq4_kx, [KR_TQ1_0] = unpack_tq,     [KR_TQ2_0] = unpack_tq,
        [KR_MXFP4] = unpack_fp4,
    };
    return fns[type];
}

static const struct tile_set *pairs_of(enum kr_type type)
{
    switch (kr_layout(type)->header) {
    case KR_HDR_DM:
    case KR_HDR_K:
        return &pairs_dm;
    case KR_HDR_K6:
        return &pairs_k6;
    case KR_HDR_K2:
        return &pairs_k2;
    case KR_HDR_E:
        return &pairs_e;
    default:
        return &pairs_d;
    }
}

static void quants(const struct kr_packed *w, uint32_t g0, uint32_t g1, const struct kr_q8 *q,
                   uint32_t r0, uint32_t r1, const float *bias, float *out, size_t out_stride)
{
    const struct kind k = {kr_neon_kind(w->type).direct, pairs_of(w->type), unpack_of(w->type),
                           PANEL_MIN_ROWS, true};
    kr_neon_quants(k, w, g0, g1, q, r0, r1, bias, out, out_stride);
}

void kr_matmul_i8mm(struct kr_matmul_kernels *k)
{
    *k = (struct kr_matmul_kernels){"i8mm", kr_neon_quantize, quants, kr_neon_floats};
}
