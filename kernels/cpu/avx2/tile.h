/* One register tile of a quantised product on AVX2: a group of 16 output rows (two vectors) times
 * R input rows, over a run of blocks. Private to kernels/cpu/avx2. Pure but for the outputs.
 * Compiled a second time for AVX-VNNI, where vpdpbusd adds four products to a sum at once.
 *
 * tile_run is a template: callers give bits, header, panel and R as constants. A lane is an output
 * row; four columns of it meet four columns of an input row, broadcast. Without AVX-VNNI vpmaddubsw
 * adds pairs of unsigned times signed bytes in 16 bits, where |2 * (2^bits - 1) * 127| leaves room
 * for 8, 4 or 2 of them at 4, 5 and 6 bits before they are widened; FP4's and eight times 2 bits
 * are below 2^5, eight times 3 bits below 2^6. At 8 bits and for IQ4 the signs move from the weight
 * to the input, so that 2 * 128 * 127 fits. Nothing saturates; integer sums are exact. The order of
 * the sums is the one in generic/matmul_generic.c, for every R.
 *
 * A panel is a run of blocks of a group, already unpacked: per block 8 words of 16 rows x 4 bytes,
 * 16 float scales, 16 floats more (mins, or the scales of the second halves); K2: then 16 floats
 * and 16 pairs of mins. */
#ifndef KERNELS_CPU_AVX2_TILE_H
#define KERNELS_CPU_AVX2_TILE_H

#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/pack.h"
#include "kernels/cpu/template.h"

#if defined(__AVXVNNI__)
#define TILE_VNNI true
#else
#define TILE_VNNI false
#endif
/* As in avx512/tile.h: large tiles take a sanitizer minutes to instrument. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TILE_MAX_ROWS 2
#elif defined(__AVXVNNI__)
#define TILE_MAX_ROWS 6
#else
#define TILE_MAX_ROWS 4
#endif
#define PANEL_BLOCKS    32 /* of a panel: 24 KiB of stack; a multiple of 8 */
#define PANEL_MAX_BYTES 768

/* Of a block in a panel. */
ALWAYS_INLINE uint32_t panel_bytes(const int header)
{
    return header == KR_HDR_K2 ? 768 : 640;
}

/* How far ahead of what is multiplied quants come to the first-level cache, from the second. */
#define TILE_NEAR_BYTES 2048

#include "kernels/cpu/kind.inc"

ALWAYS_INLINE __m256 load_halves(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

ALWAYS_INLINE __m256 load_bytes(const uint8_t *p, const bool is_signed)
{
    __m128i b = _mm_loadl_epi64((const __m128i *)p);
    return _mm256_cvtepi32_ps(is_signed ? _mm256_cvtepi8_epi32(b) : _mm256_cvtepu8_epi32(b));
}

/* Eight pairs of bytes, as 16 bits each. */
ALWAYS_INLINE __m256i load_pairs(const uint8_t *p)
{
    return _mm256_cvtepu8_epi16(_mm_load_si128((const __m128i *)p));
}

/* Scales of rows 8h..8h+7 of a block: s1 is the second half's (K6, K2) or the min (DM, K). */
ALWAYS_INLINE void tile_scales(const uint8_t *headers, const int header, uint32_t block,
                               const int h, __m256 *s0, __m256 *s1)
{
    if (header == KR_HDR_D) {
        *s0 = load_halves(headers + 32 * block + 16 * h);
    } else if (header == KR_HDR_DM) {
        *s0 = load_halves(headers + 64 * block + 16 * h);
        *s1 = load_halves(headers + 64 * block + 32 + 16 * h);
    } else if (header == KR_HDR_K) {
        const uint8_t *unit = headers + 320 * (block / 8), *sub = unit + 64 + 32 * (block % 8);
        __m256 m =
            _mm256_mul_ps(load_halves(unit + 32 + 16 * h), load_bytes(sub + 16 + 8 * h, false));
        *s0 = _mm256_mul_ps(load_halves(unit + 16 * h), load_bytes(sub + 8 * h, false));
        *s1 = _mm256_xor_ps(m, _mm256_set1_ps(-0.0f));
    } else if (header == KR_HDR_KX) {
        const uint8_t *unit = headers + 160 * (block / 8), *sub = unit + 32 + 16 * (block % 8);
        *s0 = _mm256_mul_ps(load_halves(unit + 16 * h), load_bytes(sub + 8 * h, true));
    } else if (header == KR_HDR_T) {
        *s0 = _mm256_mul_ps(load_halves(headers + 32 * (block / 8) + 16 * h),
                            _mm256_set1_ps(KR_EIGHTH));
    } else if (header == KR_HDR_K2) {
        const uint8_t *unit = headers + 320 * (block / 8);
        const __m256i both = load_pairs(unit + 64 + 32 * (block % 8) + 16 * h);
        const __m256i nibble = _mm256_set1_epi32(15);
        __m256 d = _mm256_mul_ps(load_halves(unit + 16 * h), _mm256_set1_ps(KR_EIGHTH));
        __m256i second = _mm256_and_si256(_mm256_srli_epi32(both, 16), nibble);
        *s0 = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_and_si256(both, nibble)));
        *s1 = _mm256_mul_ps(d, _mm256_cvtepi32_ps(second));
    } else if (header == KR_HDR_E) {
        __m128i e = _mm_loadl_epi64((const __m128i *)(headers + 16 * block + 8 * h));
        *s0 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(e), 23));
    } else {
        const uint8_t *unit = headers + 320 * (block / 8), *sub = unit + 64 + 32 * (block % 8);
        __m256 d = _mm256_load_ps((const float *)unit + 8 * h);
        *s0 = _mm256_mul_ps(d, load_bytes(sub + 8 * h, true));
        *s1 = _mm256_mul_ps(d, load_bytes(sub + 16 + 8 * h, true));
    }
}

/* K2: the halves' mins of rows 8h..8h+7 side by side, and what they are multiplied with. */
ALWAYS_INLINE void tile_half_mins(const uint8_t *headers, uint32_t block, const int h,
                                  __m256i *mins, __m256 *s)
{
    const uint8_t *unit = headers + 320 * (block / 8);
    *mins = _mm256_srli_epi16(load_pairs(unit + 64 + 32 * (block % 8) + 16 * h), 4);
    *s = _mm256_xor_ps(load_halves(unit + 32 + 16 * h), _mm256_set1_ps(-0.0f));
}

ALWAYS_INLINE __m256i load_word(const uint8_t *block, const int i, const int h)
{
    return _mm256_load_si256((const __m256i *)(block + 64 * i + 32 * h));
}

/* The numbers that nibbles stand for: IQ4's signed, the others' with the offset that ends signs
 * (with AVX-VNNI: all of them). */
ALWAYS_INLINE __m256i tile_table(const int bits)
{
    static const int8_t iq4[16] = {KR_IQ4_VALUES}, odd[16] = {KR_ODD_VALUES};
    static const int8_t fp4[16] = {KR_FP4_VALUES};
    const int8_t *values = bits == KR_BITS_IQ4 ? iq4 : bits == KR_BITS_ODD ? odd : fp4;
    __m128i t = _mm_loadu_si128((const __m128i *)values);
    if (bits != KR_BITS_IQ4)
        t = _mm_add_epi8(t, _mm_set1_epi8(16));
    else if (TILE_VNNI)
        t = _mm_add_epi8(t, _mm_set1_epi8(-128));
    return _mm256_broadcastsi128_si256(t);
}

ALWAYS_INLINE __m256i shifted_right(__m256i v, const int n)
{
    return n < 0 ? _mm256_slli_epi32(v, n < 0 ? -n : 0) : _mm256_srli_epi32(v, n < 0 ? 0 : n);
}

/* The bits above a nibble, or above two bits, for word i, in place. */
ALWAYS_INLINE __m256i tile_high_bits(const uint8_t *block, const int bits, const int i, const int h)
{
    const __m256i v = load_word(block, bits == 6 ? i / 4 : 0, h);
    const int right = bits == 6 ? 2 * (i % 4) - 4 : bits == 5 ? i - 4 : i - 5;
    const int8_t mask = bits == 6 ? 0x30 : bits == 5 ? 0x10 : 0x20;
    return _mm256_and_si256(shifted_right(v, right), _mm256_set1_epi8(mask));
}

/* Eight times word i of a block of 2 or 3 bits. */
ALWAYS_INLINE __m256i tile_eightfold(const uint8_t *block, const int bits, const int i, const int h)
{
    __m256i v = load_word(block, (bits == 3) + i / 4, h);
    v = _mm256_and_si256(shifted_right(v, 2 * (i % 4) - 3), _mm256_set1_epi8(0x18));
    return bits == 2 ? v : _mm256_or_si256(v, tile_high_bits(block, bits, i, h));
}

/* Whether words are signed bytes, so that their sums have no offset to take off. */
ALWAYS_INLINE bool signed_words(const int bits)
{
    return !TILE_VNNI && (bits == 8 || bits == KR_BITS_IQ4);
}

/* Word i (0..7) of rows 8h..8h+7. */
ALWAYS_INLINE __m256i tile_word(const uint8_t *block, const int bits, const bool panel, const int i,
                                const int h)
{
    if (bits == 8 && signed_words(bits) && !panel)
        return _mm256_xor_si256(load_word(block, i, h), _mm256_set1_epi8(-128));
    if (panel || bits == 8) return load_word(block, i, h);
    if (bits <= 3) return tile_eightfold(block, bits, i, h);
    const int skip = bits % 16 - 4; /* vectors of high bits before the nibbles */
    __m256i v = load_word(block, skip + i % 4, h);
    if (i >= 4) v = _mm256_srli_epi32(v, 4);
    v = _mm256_and_si256(v, _mm256_set1_epi8(15));
    if (bits > 16) return _mm256_shuffle_epi8(tile_table(bits), v);
    return bits == 4 ? v : _mm256_or_si256(v, tile_high_bits(block, bits, i, h));
}

ALWAYS_INLINE __m256i tile_x(const struct kr_q8_block *x, const int word)
{
    int32_t w;
    memcpy(&w, x->q + 4 * word, 4);
    return _mm256_set1_epi32(w);
}

/* Words of a block in the order to take them: k and k + 4 share a vector of nibbles. */
ALWAYS_INLINE int tile_order(const int n, const int from, const int to)
{
    return to - from == 8 ? n / 2 + 4 * (n % 2) : from + n;
}

/* The start value of a sum: KR_SUM_BIAS, or (own) the input block's own, at byte `at` of it. */
ALWAYS_INLINE __m256i tile_start(const struct kr_q8_block *x, const bool own, uint32_t at)
{
    int32_t start = KR_SUM_BIAS;
    if (own) memcpy(&start, (const char *)x + at, sizeof(start));
    return _mm256_set1_epi32(start);
}

#if defined(__AVXVNNI__)

/* sums[h][r] = a start and words [from, to) of the block. */
ALWAYS_INLINE void tile_dot(const uint8_t *block, const int bits, const bool panel, const int R,
                            const int from, const int to, const struct kr_q8_block *x,
                            size_t x_stride, const bool own, uint32_t start_at,
                            __m256i sums[2][TILE_MAX_ROWS])
{
    UNROLL for (int r = 0; r < R; r++)
        sums[0][r] = sums[1][r] = tile_start(x + r * x_stride, own, start_at);
    UNROLL for (int n = 0; n < to - from; n++) {
        const int i = tile_order(n, from, to);
        __m256i w[2];
        UNROLL for (int h = 0; h < 2; h++)
            w[h] = tile_word(block, bits, panel, i, h);
        UNROLL for (int r = 0; r < R; r++) {
            const __m256i xr = tile_x(x + r * x_stride, i);
            UNROLL for (int h = 0; h < 2; h++)
                sums[h][r] = _mm256_dpbusd_avx_epi32(sums[h][r], w[h], xr);
        }
    }
}

#else

/* Ends a sum: of a chain of them GCC would make a tree, and keep all the products of a block in
 * memory for it. */
#define KEEP_SUM(v) __asm__("" : "+x"(v))

/* Pairs of products of a word in 16 bits. */
ALWAYS_INLINE __m256i tile_pairs(const int bits, __m256i w, __m256i x)
{
    if (signed_words(bits)) return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    return _mm256_maddubs_epi16(w, x);
}

/* How many words' pairs may be added up in 16 bits. */
ALWAYS_INLINE int tile_widening(const int bits)
{
    if (signed_words(bits)) return 1;
    return bits == 6 || bits == 3 ? 2 : bits == 4 ? 8 : 4;
}

/* sums[h][r] = a start and words [from, to) of the block. The pairs of `run` words are added up in
 * 16 bits, `group` words of it for a row after another: short runs so end in the register that they
 * began in. The start is loaded where it is added: before, it would only be kept in memory. */
ALWAYS_INLINE void tile_dot(const uint8_t *block, const int bits, const bool panel, const int R,
                            const int from, const int to, const struct kr_q8_block *x,
                            size_t x_stride, const bool own, uint32_t start_at,
                            __m256i sums[2][TILE_MAX_ROWS])
{
    const int run = tile_widening(bits), group = run == 2 ? 2 : 1;
    __m256i pairs[2][TILE_MAX_ROWS], w[2][2];
    UNROLL for (int n = 0; n < to - from; n += group) {
        UNROLL for (int k = 0; k < group; k++) UNROLL
            for (int h = 0; h < 2; h++)
                w[k][h] = tile_word(block, bits, panel, tile_order(n + k, from, to), h);
        UNROLL for (int r = 0; r < R; r++) {
            const struct kr_q8_block *xr = x + r * x_stride;
            const bool ends = n % run + group == run, first = n + group == run;
            UNROLL for (int h = 0; h < 2; h++) {
                UNROLL for (int k = 0; k < group; k++) {
                    __m256i p = tile_pairs(bits, w[k][h], tile_x(xr, tile_order(n + k, from, to)));
                    pairs[h][r] = (n + k) % run == 0 ? p : _mm256_add_epi16(pairs[h][r], p);
                    KEEP_SUM(pairs[h][r]);
                }
                if (!ends) continue;
                const __m256i p = _mm256_madd_epi16(pairs[h][r], _mm256_set1_epi16(1));
                const __m256i sum = first ? tile_start(xr, own, start_at) : sums[h][r];
                sums[h][r] = _mm256_add_epi32(sum, p);
                KEEP_SUM(sums[h][r]);
            }
        }
    }
}

#endif

/* of[h][r] = product(sums[h][r], scale of the rows); of halves after the first: that added to
 * it. */
ALWAYS_INLINE void tile_product(const int R, const bool first, __m256i sums[2][TILE_MAX_ROWS],
                                const __m256 *w_scale, __m256 of[2][TILE_MAX_ROWS])
{
    const __m256 bias = _mm256_set1_ps(0x1.8p23f);
    UNROLL for (int h = 0; h < 2; h++) {
        const __m256 unbias = _mm256_mul_ps(w_scale[h], _mm256_set1_ps(-0x1.8p23f));
        UNROLL for (int r = 0; r < R; r++) {
            const __m256 sum = _mm256_castsi256_ps(sums[h][r]);
            of[h][r] = first ? _mm256_fmadd_ps(sum, w_scale[h], unbias)
                             : _mm256_fmadd_ps(_mm256_sub_ps(sum, bias), w_scale[h], of[h][r]);
        }
    }
}

/* acc[h][r] += of[h][r] * scale of the input row */
ALWAYS_INLINE void tile_add(const int R, __m256 of[2][TILE_MAX_ROWS], const struct kr_q8_block *x,
                            size_t stride, __m256 acc[2][TILE_MAX_ROWS])
{
    UNROLL for (int r = 0; r < R; r++) {
        const __m256 x_scale = _mm256_set1_ps(x[r * stride].scale);
        UNROLL for (int h = 0; h < 2; h++)
            acc[h][r] = _mm256_fmadd_ps(of[h][r], x_scale, acc[h][r]);
    }
}

/* acc[h][r] += product(sums[h][r], scale of the rows) * scale of the input row */
ALWAYS_INLINE void tile_scale(const int R, __m256i sums[2][TILE_MAX_ROWS], const __m256 *w_scale,
                              const struct kr_q8_block *x, size_t stride,
                              __m256 acc[2][TILE_MAX_ROWS])
{
    UNROLL for (int h = 0; h < 2; h++) {
        const __m256 unbias = _mm256_mul_ps(w_scale[h], _mm256_set1_ps(-0x1.8p23f));
        UNROLL for (int r = 0; r < R; r++) {
            const __m256 x_scale = _mm256_set1_ps(x[r * stride].scale);
            __m256 p = _mm256_fmadd_ps(_mm256_castsi256_ps(sums[h][r]), w_scale[h], unbias);
            acc[h][r] = _mm256_fmadd_ps(p, x_scale, acc[h][r]);
        }
    }
}

/* K2: of[h][r] += the halves' mins times the input's sums, times -dmin */
ALWAYS_INLINE void tile_mins(const uint8_t *quants, const uint8_t *headers, const bool panel,
                             const int R, uint32_t block, const struct kr_q8_block *x,
                             size_t stride, __m256 of[2][TILE_MAX_ROWS])
{
    __m256i sums[2][TILE_MAX_ROWS], mins[2];
    __m256 s[2];
    UNROLL for (int h = 0; h < 2; h++) {
        if (panel) {
            s[h] = _mm256_load_ps((const float *)(quants + 640) + 8 * h);
            mins[h] = _mm256_load_si256((const __m256i *)(quants + 704) + h);
        } else {
            tile_half_mins(headers, block, h, &mins[h], &s[h]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) {
        int32_t pair;
        memcpy(&pair, x[r * stride].half_sum, sizeof(pair));
        UNROLL for (int h = 0; h < 2; h++) {
            const __m256i m = _mm256_madd_epi16(mins[h], _mm256_set1_epi32(pair));
            sums[h][r] = _mm256_add_epi32(m, _mm256_set1_epi32(KR_SUM_BIAS));
        }
    }
    tile_product(R, false, sums, s, of);
}

/* Adds one block to the sums. */
ALWAYS_INLINE void tile_block(const struct tile *t, const uint8_t *quants, uint32_t block,
                              const struct kr_q8_block *x, const int bits, const int header,
                              const bool panel, const int R, __m256 acc[2][TILE_MAX_ROWS])
{
    const bool has_min = header == KR_HDR_DM || header == KR_HDR_K;
    const size_t stride = t->x_stride;
    __m256i sums[2][TILE_MAX_ROWS];
    __m256 s0[2], s1[2];

    UNROLL for (int h = 0; h < 2; h++) {
        if (panel) {
            s0[h] = _mm256_load_ps((const float *)(quants + 512) + 8 * h);
            s1[h] = _mm256_load_ps((const float *)(quants + 576) + 8 * h);
        } else {
            tile_scales(t->headers, header, block, h, &s0[h], &s1[h]);
        }
    }
    if (header == KR_HDR_K6 || header == KR_HDR_K2) {
        const bool k2 = header == KR_HDR_K2;
        const uint32_t at = offsetof(struct kr_q8_block, half_start);
        __m256 of[2][TILE_MAX_ROWS];
        tile_dot(quants, bits, panel, R, 0, 4, x, stride, !k2, at, sums);
        tile_product(R, true, sums, s0, of);
        tile_dot(quants, bits, panel, R, 4, 8, x, stride, !k2, at + 4, sums);
        tile_product(R, false, sums, s1, of);
        if (k2) tile_mins(quants, t->headers, panel, R, block, x, stride, of);
        tile_add(R, of, x, stride, acc);
        return;
    }
    const bool own_start = !has_min && !signed_words(bits);
    tile_dot(quants, bits, panel, R, 0, 8, x, stride, own_start, t->start_at, sums);
    tile_scale(R, sums, s0, x, stride, acc);
    if (!has_min) return;
    UNROLL for (int h = 0; h < 2; h++) {
        UNROLL for (int r = 0; r < R; r++) {
            const __m256 scaled_sum = _mm256_set1_ps(x[r * stride].scaled_sum);
            acc[h][r] = _mm256_fmadd_ps(s1[h], scaled_sum, acc[h][r]);
        }
    }
}

/* The first n (0..8) of eight floats; the others are zero, or not written. */
ALWAYS_INLINE __m256i lane_mask(uint32_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)n), lane);
}
ALWAYS_INLINE __m256 load_lanes(const float *p, uint32_t n)
{
    return n >= 8 ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, lane_mask(n));
}
ALWAYS_INLINE void store_lanes(float *p, uint32_t n, __m256 v)
{
    if (n >= 8)
        _mm256_storeu_ps(p, v);
    else
        _mm256_maskstore_ps(p, lane_mask(n), v);
}

ALWAYS_INLINE void tile_run(const struct tile *t, const int bits, const int header,
                            const bool panel, const int R)
{
    const size_t quant_bytes = panel ? panel_bytes(header) : bits % 16 * 64u;
    const uint32_t lanes[2] = {CN_MIN(t->lanes, 8u), t->lanes > 8 ? t->lanes - 8 : 0};
    const struct kr_q8_block *x = t->x;
    const uint8_t *quants = t->quants;
    __m256 acc[2][TILE_MAX_ROWS];

    UNROLL for (int h = 0; h < 2; h++) {
        UNROLL for (int r = 0; r < R; r++) {
            acc[h][r] = _mm256_setzero_ps();
            if (t->resume) acc[h][r] = load_lanes(t->out + r * t->out_stride + 8 * h, lanes[h]);
        }
    }
    for (uint32_t b = 0; b < t->blocks; b++, x++, quants += quant_bytes) {
        for (uint32_t at = 0; !panel && at < t->ahead_bytes; at += 64)
            _mm_prefetch((const char *)t->ahead + b * t->ahead_bytes + at, _MM_HINT_T1);
        for (size_t at = 0; !panel && at < quant_bytes; at += 64)
            _mm_prefetch((const char *)quants + TILE_NEAR_BYTES + at, _MM_HINT_T0);
        tile_block(t, quants, b, x, bits, header, panel, R, acc);
    }
    UNROLL for (int h = 0; h < 2; h++) {
        __m256 bias = _mm256_setzero_ps();
        if (t->bias) bias = load_lanes(t->bias + 8 * h, lanes[h]);
        UNROLL for (int r = 0; r < R; r++) {
            if (t->bias) acc[h][r] = _mm256_add_ps(acc[h][r], bias);
            store_lanes(t->out + r * t->out_stride + 8 * h, lanes[h], acc[h][r]);
        }
    }
}

#endif
