/* One register tile of a quantised product on AVX-512 VNNI: G groups of 16 output rows times R
 * input rows, over a run of blocks. Private to kernels/cpu/avx512. Pure but for the outputs.
 *
 * tile_run is a template: callers give bits, header, G and R as constants. A lane is an output
 * row; four columns of it meet four columns of an input row, broadcast, in one vpdpbusd.
 * The order of the sums is the one in generic/matmul_generic.c, for every G and R.
 *
 * A panel is a run of blocks of two groups, already unpacked: per block and group 8 vectors of
 * bytes, 16 float scales, 16 floats more (mins, or the scales of the second halves); K2: then 16
 * floats and 16 pairs of mins. The first of several tiles makes it of the packed weights that it
 * meets: what that takes hides behind its products. */
#ifndef KERNELS_CPU_AVX512_TILE_H
#define KERNELS_CPU_AVX512_TILE_H

#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/pack.h"
#include "kernels/cpu/template.h"

#define TILE_MAX_GROUPS 2
/* Instrumented for a sanitizer the largest tiles take minutes to compile and check nothing more */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TILE_MAX_ROWS 2
#else
#define TILE_MAX_ROWS 7
#endif

/* A tile of packed weights, one that makes a panel of them besides, or one that meets a panel. */
enum tile_kind { TILE_DIRECT, TILE_MAKES, TILE_PANEL };

/* Headers of a panel, beside enum kr_header's. */
enum { PANEL_D = 16, PANEL_DM, PANEL_K6, PANEL_K2 };
#define PANEL_MAX_BYTES 768
/* Of a block of a group in a panel. */
ALWAYS_INLINE uint32_t panel_bytes(const int header)
{
    return header == PANEL_K2 || header == KR_HDR_K2 ? 768 : 640;
}

/* How far ahead of what is multiplied weights come to the first-level cache. */
#define TILE_NEAR_BYTES   2048
#define TILE_NEAR_HEADERS 512

struct tile {
    const uint8_t *headers[TILE_MAX_GROUPS]; /* at the first block, a multiple of 8 */
    const uint8_t *quants[TILE_MAX_GROUPS];  /* at the first block, packed or in a panel */
    uint8_t *panel;                          /* to be made */
    uint32_t blocks;
    uint32_t start_at;           /* byte offset in kr_q8_block of the offset's sum */
    const struct kr_q8_block *x; /* first input row, first block */
    size_t x_stride;             /* blocks from row to row */
    float *out;                  /* first input row, first output row */
    size_t out_stride;
    __mmask16 lanes[TILE_MAX_GROUPS]; /* output rows that exist */
    bool resume;                      /* out holds the sums so far */
    const float *bias;                /* for the first output row; NULL: none, or not yet */
    /* Prefetched for later: per block ahead_bytes here, and as many ahead_other bytes further
     * on. Two pages are prefetched at once, because the processor's own prefetcher starts over
     * at each page. */
    const uint8_t *ahead;
    size_t ahead_other;
    uint32_t ahead_bytes;
    size_t near_other; /* from a group's end to where the next one's quants begin */
};
/* What is fetched for later: all before `due`, of which the lines before `next` were asked for, to
 * the second-level cache. From there the quants at `near` come to the first: a tile that meets them
 * in the second waits, and while it waits it asks memory for nothing. */
struct tile_ahead {
    const uint8_t *next, *due;
    size_t other;
    const uint8_t *near[TILE_MAX_GROUPS];
};

typedef void tile_fn(const struct tile *t);

ALWAYS_INLINE __m512i nibbles_of(__m512i v)
{
    return _mm512_and_si512(v, _mm512_set1_epi32(15));
}

/* Scales of 16 rows of a block: s1 is the second half's (K6, K2) or the min (DM, K). */
ALWAYS_INLINE void tile_scales(const uint8_t *headers, const int header, uint32_t block, __m512 *s0,
                               __m512 *s1)
{
    if (header == KR_HDR_D) {
        *s0 = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(headers + 32 * block)));
    } else if (header == KR_HDR_DM) {
        const __m256i *h = (const __m256i *)(headers + 64 * block);
        *s0 = _mm512_cvtph_ps(_mm256_load_si256(h));
        *s1 = _mm512_cvtph_ps(_mm256_load_si256(h + 1));
    } else if (header == KR_HDR_K) {
        const uint8_t *h = headers + 320 * (block / 8), *sub = h + 64 + 32 * (block % 8);
        __m512 d = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)h));
        __m512 dmin = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)h + 1));
        __m512i sc = _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)sub));
        __m512i mn = _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)sub + 1));
        *s0 = _mm512_mul_ps(d, _mm512_cvtepi32_ps(sc));
        *s1 = _mm512_xor_ps(_mm512_mul_ps(dmin, _mm512_cvtepi32_ps(mn)), _mm512_set1_ps(-0.0f));
    } else if (header == KR_HDR_KX) {
        const uint8_t *h = headers + 160 * (block / 8), *sub = h + 32 + 16 * (block % 8);
        __m512 d = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)h));
        __m512i sc = _mm512_cvtepi8_epi32(_mm_load_si128((const __m128i *)sub));
        *s0 = _mm512_mul_ps(d, _mm512_cvtepi32_ps(sc));
    } else if (header == KR_HDR_T) {
        const __m256i *h = (const __m256i *)(headers + 32 * (block / 8));
        *s0 = _mm512_mul_ps(_mm512_cvtph_ps(_mm256_load_si256(h)), _mm512_set1_ps(KR_EIGHTH));
    } else if (header == KR_HDR_K2) {
        const uint8_t *h = headers + 320 * (block / 8), *sub = h + 64 + 32 * (block % 8);
        __m512 d = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)h));
        __m512i both = _mm512_cvtepu8_epi16(_mm256_load_si256((const __m256i *)sub));
        d = _mm512_mul_ps(d, _mm512_set1_ps(KR_EIGHTH));
        *s0 = _mm512_mul_ps(d, _mm512_cvtepi32_ps(nibbles_of(both)));
        *s1 = _mm512_mul_ps(d, _mm512_cvtepi32_ps(nibbles_of(_mm512_srli_epi32(both, 16))));
    } else if (header == KR_HDR_E) {
        __m512i e = _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)(headers + 16 * block)));
        *s0 = _mm512_castsi512_ps(_mm512_slli_epi32(e, 23));
    } else {
        const uint8_t *h = headers + 320 * (block / 8), *sub = h + 64 + 32 * (block % 8);
        __m512 d = _mm512_load_ps(h);
        __m512i a = _mm512_cvtepi8_epi32(_mm_load_si128((const __m128i *)sub));
        __m512i b = _mm512_cvtepi8_epi32(_mm_load_si128((const __m128i *)sub + 1));
        *s0 = _mm512_mul_ps(d, _mm512_cvtepi32_ps(a));
        *s1 = _mm512_mul_ps(d, _mm512_cvtepi32_ps(b));
    }
}

/* K2: the halves' mins side by side, and what they are multiplied with. */
ALWAYS_INLINE void tile_half_mins(const uint8_t *headers, uint32_t block, __m512i *mins, __m512 *s)
{
    const uint8_t *h = headers + 320 * (block / 8), *sub = h + 64 + 32 * (block % 8);
    __m512i both = _mm512_cvtepu8_epi16(_mm256_load_si256((const __m256i *)sub));
    __m512 dmin = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)h + 1));
    *mins = _mm512_srli_epi16(both, 4);
    *s = _mm512_xor_ps(dmin, _mm512_set1_ps(-0.0f));
}

ALWAYS_INLINE __m512i shifted_right(__m512i v, const int n)
{
    return n < 0 ? _mm512_slli_epi32(v, -n < 0 ? 0 : -n) : _mm512_srli_epi32(v, n < 0 ? 0 : n);
}

/* The bits above a nibble, or above two bits, for word i (0..7) of a block, in place. */
ALWAYS_INLINE __m512i tile_high_bits(const uint8_t *block, const int bits, const int i)
{
    const __m512i v = _mm512_load_si512(block + (bits == 6 ? 64 * (i / 4) : 0));
    return shifted_right(v, bits == 6 ? 2 * (i % 4) - 4 : bits == 5 ? i - 4 : i - 5);
}

/* Eight times word i of a block of 2 or 3 bits. */
ALWAYS_INLINE __m512i tile_eightfold(const uint8_t *block, const int bits, const int i)
{
    __m512i v = _mm512_load_si512(block + (bits == 3 ? 64 : 0) + 64 * (i / 4));
    v = _mm512_and_si512(shifted_right(v, 2 * (i % 4) - 3), _mm512_set1_epi8(0x18));
    if (bits == 2) return v;
    return _mm512_ternarylogic_epi32(v, tile_high_bits(block, bits, i), _mm512_set1_epi8(0x20),
                                     0xf8);
}

/* The numbers that nibbles stand for, offset included. */
ALWAYS_INLINE __m512i tile_table(const int bits)
{
    static const int8_t iq4[16] = {KR_IQ4_VALUES}, odd[16] = {KR_ODD_VALUES};
    static const int8_t fp4[16] = {KR_FP4_VALUES};
    const int8_t *values = bits == KR_BITS_IQ4 ? iq4 : bits == KR_BITS_ODD ? odd : fp4;
    __m128i t = _mm_loadu_si128((const __m128i *)values);
    t = _mm_add_epi8(t, _mm_set1_epi8(bits == KR_BITS_IQ4 ? -128 : 16));
    return _mm512_broadcast_i32x4(t);
}

/* Words k and k + 4 of a block of at most 6 bits, or of nibbles that stand for 8. */
ALWAYS_INLINE void tile_words(const uint8_t *block, const int bits, const int k, __m512i *low,
                              __m512i *high)
{
    if (bits <= 3) {
        *low = tile_eightfold(block, bits, k);
        *high = tile_eightfold(block, bits, k + 4);
        return;
    }
    const __m512i nibble = _mm512_set1_epi8(15);
    const __m512i above = _mm512_set1_epi8(bits == 5 ? 0x10 : 0x30);
    const int skip = bits == 5 ? 64 : bits == 6 ? 128 : 0;
    const __m512i v = _mm512_load_si512(block + skip + 64 * k);
    *low = _mm512_and_si512(v, nibble);
    *high = _mm512_and_si512(_mm512_srli_epi32(v, 4), nibble);
    if (bits > 16) {
        *low = _mm512_shuffle_epi8(tile_table(bits), *low);
        *high = _mm512_shuffle_epi8(tile_table(bits), *high);
        return;
    }
    if (bits == 4) return;
    /* 0xf8: a | (b & c) */
    *low = _mm512_ternarylogic_epi32(*low, tile_high_bits(block, bits, k), above, 0xf8);
    *high = _mm512_ternarylogic_epi32(*high, tile_high_bits(block, bits, k + 4), above, 0xf8);
}

ALWAYS_INLINE __m512i tile_x(const int8_t *q)
{
    int32_t word;
    memcpy(&word, q, 4);
    return _mm512_set1_epi32(word);
}

/* Quarter `part` of a block's fetches. Of a line at most, one is asked for without a branch: the
 * first of several tiles and the others fetch a part each. */
ALWAYS_INLINE void tile_fetch(struct tile_ahead *a, uint32_t bytes, const int bits, const int kind,
                              const int G, const int part)
{
    if (kind != TILE_DIRECT) {
        _mm_prefetch(a->next, _MM_HINT_T1); /* the first level is full of what is in use */
        _mm_prefetch(a->next + a->other, _MM_HINT_T1);
        a->next += bytes;
        return;
    }
    const int lines = bits % 16;
    UNROLL for (int i = part * lines / 4; i < (part + 1) * lines / 4; i++) {
        UNROLL for (int g = 0; g < G; g++)
            _mm_prefetch(a->near[g] + 64 * i, _MM_HINT_T0);
    }
    a->due += bytes;
    for (; a->next < a->due; a->next += 64) {
        _mm_prefetch(a->next, _MM_HINT_T1);
        _mm_prefetch(a->next + a->other, _MM_HINT_T1);
    }
}

/* sums[g][r] += words [from, to) of the block. Fetches bytes for later, four times a block. */
ALWAYS_INLINE void tile_dot(const uint8_t *const *blocks, const int bits, const int kind,
                            uint8_t *const *panel, const int G, const int R, const int from,
                            const int to, const struct kr_q8_block *x, size_t x_stride,
                            __m512i sums[TILE_MAX_GROUPS][TILE_MAX_ROWS], struct tile_ahead *ahead,
                            uint32_t bytes)
{
    if (bits == 8) {
        UNROLL for (int i = from; i < to; i++) {
            __m512i w[TILE_MAX_GROUPS];
            if (i % 2 == 0) tile_fetch(ahead, bytes, bits, kind, G, i / 2);
            UNROLL for (int g = 0; g < G; g++)
                w[g] = _mm512_load_si512(blocks[g] + 64 * i);
            UNROLL for (int r = 0; r < R; r++) {
                __m512i xr = tile_x(x[r * x_stride].q + 4 * i);
                UNROLL for (int g = 0; g < G; g++)
                    sums[g][r] = _mm512_dpbusd_epi32(sums[g][r], w[g], xr);
            }
        }
        return;
    }
    const bool low_half = from < 4, high_half = to > 4;
    UNROLL for (int k = 0; k < 4; k++) {
        __m512i low[TILE_MAX_GROUPS], high[TILE_MAX_GROUPS];
        if (to - from == 8)
            tile_fetch(ahead, bytes, bits, kind, G, k);
        else if (k % 2 == 0)
            tile_fetch(ahead, bytes, bits, kind, G, (from + k) / 2);
        UNROLL for (int g = 0; g < G; g++) {
            tile_words(blocks[g], bits, k, &low[g], &high[g]);
            if (kind != TILE_MAKES) continue;
            if (low_half) _mm512_store_si512(panel[g] + 64 * k, low[g]);
            if (high_half) _mm512_store_si512(panel[g] + 64 * (k + 4), high[g]);
        }
        UNROLL for (int r = 0; r < R; r++) {
            __m512i xl = tile_x(x[r * x_stride].q + 4 * k);
            __m512i xh = tile_x(x[r * x_stride].q + 4 * k + 16);
            UNROLL for (int g = 0; g < G; g++) {
                if (low_half) sums[g][r] = _mm512_dpbusd_epi32(sums[g][r], low[g], xl);
                if (high_half) sums[g][r] = _mm512_dpbusd_epi32(sums[g][r], high[g], xh);
            }
        }
    }
}
/* of[g][r] = product(sums[g][r], scale of the group); of halves after the first: that added to it,
 * the bias taken off by the units of additions, which have less to do than those of products. */
ALWAYS_INLINE void tile_product(const int G, const int R, const bool first,
                                __m512i sums[TILE_MAX_GROUPS][TILE_MAX_ROWS], const __m512 *w_scale,
                                __m512 of[TILE_MAX_GROUPS][TILE_MAX_ROWS])
{
    const __m512 bias = _mm512_set1_ps(0x1.8p23f);
    UNROLL for (int g = 0; g < G; g++) {
        const __m512 unbias = _mm512_mul_ps(w_scale[g], _mm512_set1_ps(-0x1.8p23f));
        UNROLL for (int r = 0; r < R; r++) {
            const __m512 sum = _mm512_castsi512_ps(sums[g][r]);
            of[g][r] = first ? _mm512_fmadd_ps(sum, w_scale[g], unbias)
                             : _mm512_fmadd_ps(_mm512_sub_ps(sum, bias), w_scale[g], of[g][r]);
        }
    }
}

/* acc[g][r] += of[g][r] * scale of the input row */
ALWAYS_INLINE void tile_add(const int G, const int R, __m512 of[TILE_MAX_GROUPS][TILE_MAX_ROWS],
                            const struct kr_q8_block *x, size_t stride,
                            __m512 acc[TILE_MAX_GROUPS][TILE_MAX_ROWS])
{
    UNROLL for (int r = 0; r < R; r++) {
        const __m512 x_scale = _mm512_set1_ps(x[r * stride].scale);
        UNROLL for (int g = 0; g < G; g++) {
            acc[g][r] = _mm512_fmadd_ps(of[g][r], x_scale, acc[g][r]);
        }
    }
}

/* acc[g][r] += product(sums[g][r], scale of the group) * scale of the input row */
ALWAYS_INLINE void tile_scale(const int G, const int R,
                              __m512i sums[TILE_MAX_GROUPS][TILE_MAX_ROWS], const __m512 *w_scale,
                              const struct kr_q8_block *x, size_t stride,
                              __m512 acc[TILE_MAX_GROUPS][TILE_MAX_ROWS])
{
    __m512 unbias[TILE_MAX_GROUPS];
    UNROLL for (int g = 0; g < G; g++)
        unbias[g] = _mm512_mul_ps(w_scale[g], _mm512_set1_ps(-0x1.8p23f));
    UNROLL for (int r = 0; r < R; r++) {
        const __m512 x_scale = _mm512_set1_ps(x[r * stride].scale);
        UNROLL for (int g = 0; g < G; g++) {
            __m512 p = _mm512_fmadd_ps(_mm512_castsi512_ps(sums[g][r]), w_scale[g], unbias[g]);
            acc[g][r] = _mm512_fmadd_ps(p, x_scale, acc[g][r]);
        }
    }
}

ALWAYS_INLINE void tile_start(const int G, const int R, const struct kr_q8_block *x, size_t stride,
                              const uint32_t at, __m512i sums[TILE_MAX_GROUPS][TILE_MAX_ROWS])
{
    UNROLL for (int r = 0; r < R; r++) {
        int32_t start = KR_SUM_BIAS;
        if (at != 0) memcpy(&start, (const char *)(x + r * stride) + at, sizeof(start));
        UNROLL for (int g = 0; g < G; g++)
            sums[g][r] = _mm512_set1_epi32(start);
    }
}

/* K2: of[g][r] += the halves' mins times the input's sums, times -dmin */
ALWAYS_INLINE void tile_mins(const uint8_t *const *quants, const uint8_t *const *headers,
                             const int header, const int G, const int R, uint32_t block,
                             const struct kr_q8_block *x, size_t stride,
                             __m512 of[TILE_MAX_GROUPS][TILE_MAX_ROWS])
{
    __m512i sums[TILE_MAX_GROUPS][TILE_MAX_ROWS], mins[TILE_MAX_GROUPS];
    __m512 s[TILE_MAX_GROUPS];
    UNROLL for (int g = 0; g < G; g++) {
        if (header == PANEL_K2) {
            s[g] = _mm512_load_ps(quants[g] + 640);
            mins[g] = _mm512_load_si512(quants[g] + 704);
        } else {
            tile_half_mins(headers[g], block, &mins[g], &s[g]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) {
        const __m512i xr = tile_x((const int8_t *)x[r * stride].half_sum);
        UNROLL for (int g = 0; g < G; g++)
            sums[g][r] = _mm512_dpwssd_epi32(_mm512_set1_epi32(KR_SUM_BIAS), mins[g], xr);
    }
    tile_product(G, R, false, sums, s, of);
}

/* Leaves the scales of a block of a group in its place in a panel. */
ALWAYS_INLINE void tile_keep_scales(const uint8_t *headers, const int header, uint32_t block,
                                    __m512 s0, __m512 s1, uint8_t *panel)
{
    const bool has_s1 =
        header == KR_HDR_DM || header == KR_HDR_K || header == KR_HDR_K6 || header == KR_HDR_K2;
    _mm512_store_ps(panel + 512, s0);
    if (has_s1) _mm512_store_ps(panel + 576, s1);
    if (header == KR_HDR_K2) {
        __m512i mins;
        __m512 s;
        tile_half_mins(headers, block, &mins, &s);
        _mm512_store_ps(panel + 640, s);
        _mm512_store_si512(panel + 704, mins);
    }
}

/* Of a block, on the average. */
ALWAYS_INLINE uint32_t tile_header_bytes(const int header)
{
    return header == KR_HDR_D    ? 32
           : header == KR_HDR_DM ? 64
           : header == KR_HDR_KX ? 20
           : header == KR_HDR_T  ? 4
           : header == KR_HDR_E  ? 16
                                 : 40;
}

/* Adds one block of every group to the sums. */
ALWAYS_INLINE void tile_block(const uint8_t *const *quants, const uint8_t *const *headers,
                              const int bits, const int header, const int kind,
                              uint8_t *const *panel, const int G, const int R, uint32_t block,
                              const struct tile *t, const struct kr_q8_block *x,
                              __m512 acc[TILE_MAX_GROUPS][TILE_MAX_ROWS], struct tile_ahead *ahead)
{
    const uint32_t fetch = t->ahead_bytes / 4;
    const bool has_min = header == KR_HDR_DM || header == KR_HDR_K || header == PANEL_DM;
    const size_t stride = t->x_stride;
    __m512i sums[TILE_MAX_GROUPS][TILE_MAX_ROWS];
    __m512 s0[TILE_MAX_GROUPS], s1[TILE_MAX_GROUPS];

    UNROLL for (int g = 0; g < G; g++) {
        if (header >= PANEL_D) {
            s0[g] = _mm512_load_ps(quants[g] + 512);
            s1[g] = _mm512_load_ps(quants[g] + 576);
        } else {
            tile_scales(headers[g], header, block, &s0[g], &s1[g]);
        }
        if (kind == TILE_MAKES) tile_keep_scales(headers[g], header, block, s0[g], s1[g], panel[g]);
    }
    if (header == KR_HDR_K6 || header == PANEL_K6 || header == KR_HDR_K2 || header == PANEL_K2) {
        const bool k2 = header == KR_HDR_K2 || header == PANEL_K2;
        const uint32_t at = k2 ? 0 : offsetof(struct kr_q8_block, half_start);
        __m512 of[TILE_MAX_GROUPS][TILE_MAX_ROWS];
        tile_start(G, R, x, stride, at, sums);
        tile_dot(quants, bits, kind, panel, G, R, 0, 4, x, stride, sums, ahead, fetch);
        tile_product(G, R, true, sums, s0, of);
        tile_start(G, R, x, stride, k2 ? 0 : at + 4, sums);
        tile_dot(quants, bits, kind, panel, G, R, 4, 8, x, stride, sums, ahead, fetch);
        tile_product(G, R, false, sums, s1, of);
        if (k2) tile_mins(quants, headers, header, G, R, block, x, stride, of);
        tile_add(G, R, of, x, stride, acc);
        return;
    }
    tile_start(G, R, x, stride, has_min ? 0 : t->start_at, sums);
    tile_dot(quants, bits, kind, panel, G, R, 0, 8, x, stride, sums, ahead, fetch);
    tile_scale(G, R, sums, s0, x, stride, acc);
    if (!has_min) return;
    UNROLL for (int r = 0; r < R; r++) {
        const __m512 scaled_sum = _mm512_set1_ps(x[r * stride].scaled_sum);
        UNROLL for (int g = 0; g < G; g++)
            acc[g][r] = _mm512_fmadd_ps(s1[g], scaled_sum, acc[g][r]);
    }
}

/* Whose quants a block fetches to the first-level cache: those of one further on in the group, or
 * of the next pair's at its end. Headers are fetched here. */
ALWAYS_INLINE void tile_near(const struct tile *t, const uint8_t *const *quants, const int bits,
                             const int header, const int G, uint32_t block, struct tile_ahead *a)
{
    const size_t quant_bytes = bits % 16 * 64u;
    const uint32_t blocks = (uint32_t)(TILE_NEAR_BYTES / quant_bytes);
    const uint32_t header_bytes = tile_header_bytes(header);
    size_t far = blocks * quant_bytes;
    if (block + blocks >= t->blocks) far += t->near_other;
    UNROLL for (int g = 0; g < G; g++) {
        a->near[g] = quants[g] + far;
        _mm_prefetch(t->headers[g] + block * header_bytes + TILE_NEAR_HEADERS, _MM_HINT_T0);
    }
}

/* A store under a mask is slow, and its bytes reach no load that follows it closely. */
ALWAYS_INLINE void store_lanes(float *p, __mmask16 lanes, __m512 v)
{
    if (lanes == 0xffff)
        _mm512_storeu_ps(p, v);
    else
        _mm512_mask_storeu_ps(p, lanes, v);
}

ALWAYS_INLINE void tile_run(const struct tile *t, const int bits, const int header, const int kind,
                            const int G, const int R)
{
    uint8_t *panel[TILE_MAX_GROUPS] = {NULL, NULL};
    const uint8_t *quants[TILE_MAX_GROUPS] = {t->quants[0], t->quants[1]};
    const size_t quant_bytes =
        kind == TILE_PANEL ? TILE_MAX_GROUPS * panel_bytes(header) : bits % 16 * 64u;
    const struct kr_q8_block *x = t->x;
    struct tile_ahead ahead = {t->ahead, t->ahead, t->ahead_other};
    __m512 acc[TILE_MAX_GROUPS][TILE_MAX_ROWS];

    UNROLL for (int g = 0; g < G; g++) {
        UNROLL for (int r = 0; r < R; r++) {
            const float *out = t->out + r * t->out_stride + g * KR_PACK_ROWS;
            acc[g][r] = t->resume ? _mm512_maskz_loadu_ps(t->lanes[g], out) : _mm512_setzero_ps();
        }
    }
    UNROLL for (int g = 0; g < G; g++)
        if (kind == TILE_MAKES) panel[g] = t->panel + g * panel_bytes(header);
    for (uint32_t b = 0; b < t->blocks; b++, x++) {
        if (kind == TILE_PANEL) { /* the next tile's input rows, while this one computes */
            UNROLL for (int r = 0; r < R; r++)
                _mm_prefetch(x + (R + r) * t->x_stride, _MM_HINT_T0);
        }
        if (kind == TILE_DIRECT) tile_near(t, quants, bits, header, G, b, &ahead);
        tile_block(quants, t->headers, bits, header, kind, panel, G, R, b, t, x, acc, &ahead);
        UNROLL for (int g = 0; g < G; g++) {
            quants[g] += quant_bytes;
            if (kind == TILE_MAKES) panel[g] += TILE_MAX_GROUPS * panel_bytes(header);
        }
    }
    UNROLL for (int g = 0; g < G; g++) {
        __m512 bias = _mm512_setzero_ps();
        if (t->bias) bias = _mm512_maskz_loadu_ps(t->lanes[g], t->bias + g * KR_PACK_ROWS);
        UNROLL for (int r = 0; r < R; r++) {
            float *out = t->out + r * t->out_stride + g * KR_PACK_ROWS;
            if (t->bias) acc[g][r] = _mm512_add_ps(acc[g][r], bias);
            store_lanes(out, t->lanes[g], acc[g][r]);
        }
    }
}

#endif
