/* simd: one vector of floats, for AVX2 and NEON (8 lanes) and AVX-512 (16), so that the ops are
 * written once. Included only by files compiled for one of them; what it is follows from the
 * compiler's flags. Parts of a vector are read and written under a mask: nothing past the n-th lane
 * is touched. */
#ifndef KERNELS_CPU_SIMD_H
#define KERNELS_CPU_SIMD_H

#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#if defined(__aarch64__)

#include "kernels/cpu/neon/simd_neon.h"

#else

#include <immintrin.h>
#include <stdint.h>

#define V_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)

#define VL 16u
typedef __m512 vf;

V_INLINE vf v_load(const float *p) { return _mm512_loadu_ps(p); }
V_INLINE void v_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
V_INLINE vf v_set(float f) { return _mm512_set1_ps(f); }
V_INLINE vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
V_INLINE vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
V_INLINE vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
V_INLINE vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
V_INLINE vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
V_INLINE vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); } /* b when either is NaN */
V_INLINE vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }
V_INLINE vf v_round(vf a) { return _mm512_roundscale_ps(a, 0); }
V_INLINE vf v_scale2(vf a, vf n) { return _mm512_scalef_ps(a, n); }
V_INLINE vf v_zero_below(vf x, vf limit, vf a)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), a);
}
V_INLINE __mmask16 v_mask(uint32_t n) { return (__mmask16)((1u << n) - 1); }
V_INLINE vf v_load_n(const float *p, uint32_t n)
{
    return n >= VL ? v_load(p) : _mm512_maskz_loadu_ps(v_mask(n), p);
}
V_INLINE void v_store_n(float *p, vf a, uint32_t n)
{
    if (n >= VL) v_store(p, a);
    else _mm512_mask_storeu_ps(p, v_mask(n), a);
}
/* Lanes [k0, k1) of a, `other` elsewhere; both at most VL. */
V_INLINE vf v_keep(vf a, uint32_t k0, uint32_t k1, vf other)
{
    return _mm512_mask_mov_ps(other, (__mmask16)(((1u << k1) - 1) & ~((1u << k0) - 1)), a);
}
/* |a| with the sign of s */
V_INLINE vf v_sign_of(vf a, vf s)
{
    __m512i sign = _mm512_set1_epi32((int)0x80000000u);
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(sign, _mm512_castps_si512(s),
                                                         _mm512_castps_si512(a), 0xca));
}
V_INLINE float v_sum(vf a) { return _mm512_reduce_add_ps(a); }
V_INLINE float v_hmax(vf a) { return _mm512_reduce_max_ps(a); }
/* Of floats without a sign: NaN is more than all others. */
V_INLINE vf v_max_bits(vf a, vf b)
{
    return _mm512_castsi512_ps(_mm512_max_epu32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}
V_INLINE float v_hmax_bits(vf a)
{
    return _mm_cvtss_f32(_mm_castsi128_ps(
        _mm_cvtsi32_si128((int)_mm512_reduce_max_epu32(_mm512_castps_si512(a)))));
}
V_INLINE vf v_half(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
V_INLINE vf v_half_all(uint16_t h) { return _mm512_set1_ps(_cvtsh_ss(h)); }
V_INLINE vf v_bfloat(const void *p) /* the upper half of a float32 */
{
    __m512i h = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(h, 16));
}
V_INLINE void v_to_half(void *p, vf a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
V_INLINE vf v_int8(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

/* Products of integers: vw is VL pairs of words, made of as many pairs of bytes; vq one pair for
 * all of them; vi sums, VL of them. */
typedef __m512i vi, vw, vq;
V_INLINE vi v_none(void) { return _mm512_setzero_si512(); }
V_INLINE vw v_words(const void *p)
{
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
}
V_INLINE vq v_words_all(const int16_t *p)
{
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
}
/* gcc copies every sum before and after the intrinsic of this. */
V_INLINE vi v_dot(vi sum, vw a, vq b)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}
V_INLINE vf v_float(vi a) { return _mm512_cvtepi32_ps(a); }
V_INLINE void v_to_words(int16_t *p, vf a) /* rounded to nearest even */
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(a)));
}
/* The first and the second of VL pairs of bytes. */
V_INLINE void v_int8_pair(const void *p, vf *first, vf *second)
{
    __m512i w = v_words(p);
    *first = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(w, 16), 16));
    *second = _mm512_cvtepi32_ps(_mm512_srai_epi32(w, 16));
}
/* The first or the second of VL pairs of bytes, in units of V_BYTE_UNIT: a byte at a number's top
 * has its sign. */
#define V_BYTE_UNIT 0x1p-16f
V_INLINE vf v_byte(const void *p, uint32_t second)
{
    __m512i w = v_words(p), top = _mm512_set1_epi32((int)0xffff0000u);
    return _mm512_cvtepi32_ps(second ? _mm512_and_si512(w, top) : _mm512_slli_epi32(w, 16));
}

/* 16 values of 4 bits, two a byte, each less 8. */
V_INLINE vf v_int4(const void *p)
{
    __m128i b = _mm_loadl_epi64((const __m128i *)p), low = _mm_set1_epi8(15);
    b = _mm_unpacklo_epi8(_mm_and_si128(b, low), _mm_and_si128(_mm_srli_epi16(b, 4), low));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_sub_epi8(b, _mm_set1_epi8(8))));
}
/* The halves of 16 bytes, each less 8. */
V_INLINE void v_int4_pair(const void *p, vf *low, vf *high)
{
    __m512i b = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    __m512i eight = _mm512_set1_epi32(8);
    *low = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_and_si512(b, _mm512_set1_epi32(15)), eight));
    *high = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_srli_epi32(b, 4), eight));
}
/* 16 rows of 16 become columns. */
V_INLINE void v_transpose(vf m[16])
{
    vf a[16];
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_ps(m[i], m[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps(m[i], m[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            __m512d lo = _mm512_castps_pd(a[i + j]), hi = _mm512_castps_pd(a[i + j + 2]);
            m[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(lo, hi));
            m[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(lo, hi));
        }
    for (int i = 0; i < 4; i++) { /* m[i + 4k]: lanes i, i + 4, .. of rows 4k to 4k + 3 */
        vf p = _mm512_shuffle_f32x4(m[i], m[i + 4], 0x88);
        vf q = _mm512_shuffle_f32x4(m[i + 8], m[i + 12], 0x88);
        vf r = _mm512_shuffle_f32x4(m[i], m[i + 4], 0xdd);
        vf s = _mm512_shuffle_f32x4(m[i + 8], m[i + 12], 0xdd);
        a[i] = _mm512_shuffle_f32x4(p, q, 0x88);
        a[i + 8] = _mm512_shuffle_f32x4(p, q, 0xdd);
        a[i + 4] = _mm512_shuffle_f32x4(r, s, 0x88);
        a[i + 12] = _mm512_shuffle_f32x4(r, s, 0xdd);
    }
    for (int i = 0; i < 16; i++)
        m[i] = a[i];
}

#else

#define VL 8u
typedef __m256 vf;

V_INLINE vf v_load(const float *p) { return _mm256_loadu_ps(p); }
V_INLINE void v_store(float *p, vf a) { _mm256_storeu_ps(p, a); }
V_INLINE vf v_set(float f) { return _mm256_set1_ps(f); }
V_INLINE vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
V_INLINE vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
V_INLINE vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
V_INLINE vf v_div(vf a, vf b) { return _mm256_div_ps(a, b); }
V_INLINE vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
V_INLINE vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); } /* b when either is NaN */
V_INLINE vf v_min(vf a, vf b) { return _mm256_min_ps(a, b); }
V_INLINE vf v_round(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT); }
V_INLINE vf v_scale2(vf a, vf n) /* n in [-126, 127] */
{
    __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(e, 23)));
}
V_INLINE vf v_zero_below(vf x, vf limit, vf a)
{
    return _mm256_and_ps(_mm256_cmp_ps(x, limit, _CMP_NLT_UQ), a);
}
V_INLINE __m256i v_below(uint32_t n) /* lanes with an index below n */
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
/* A store under a mask is dozens of instructions on some processors, and its bytes reach no load
 * before they are in the cache: whole vectors go without. */
V_INLINE vf v_load_n(const float *p, uint32_t n)
{
    return n >= VL ? v_load(p) : _mm256_maskload_ps(p, v_below(n));
}
V_INLINE void v_store_n(float *p, vf a, uint32_t n)
{
    if (n >= VL) v_store(p, a);
    else _mm256_maskstore_ps(p, v_below(n), a);
}
V_INLINE vf v_keep(vf a, uint32_t k0, uint32_t k1, vf other)
{
    __m256i m = _mm256_andnot_si256(v_below(k0), v_below(k1));
    return _mm256_blendv_ps(other, a, _mm256_castsi256_ps(m));
}
V_INLINE vf v_sign_of(vf a, vf s)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_and_ps(sign, s), _mm256_andnot_ps(sign, a));
}
V_INLINE float v_sum(vf a)
{
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}
V_INLINE float v_hmax(vf a)
{
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}
V_INLINE vf v_max_bits(vf a, vf b)
{
    return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
}
V_INLINE float v_hmax_bits(vf a)
{
    __m256i w = _mm256_castps_si256(a);
    __m128i h = _mm_max_epu32(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
    h = _mm_max_epu32(h, _mm_shuffle_epi32(h, 0x4e));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epu32(h, _mm_shuffle_epi32(h, 0xb1))));
}
V_INLINE vf v_half(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
V_INLINE vf v_half_all(uint16_t h) { return _mm256_set1_ps(_cvtsh_ss(h)); }
V_INLINE vf v_bfloat(const void *p)
{
    __m256i h = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(h, 16));
}
V_INLINE void v_to_half(void *p, vf a)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
V_INLINE vf v_int8(const void *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
typedef __m256i vi, vw, vq;
V_INLINE vi v_none(void) { return _mm256_setzero_si256(); }
V_INLINE vw v_words(const void *p)
{
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
}
V_INLINE vq v_words_all(const int16_t *p)
{
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return _mm256_set1_epi32(pair);
}
V_INLINE vi v_dot(vi sum, vw a, vq b)
{
    __asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(_mm256_madd_epi16(a, b)));
    return sum;
}
V_INLINE vf v_float(vi a) { return _mm256_cvtepi32_ps(a); }
V_INLINE void v_to_words(int16_t *p, vf a)
{
    __m256i w = _mm256_cvtps_epi32(a);
    _mm_storeu_si128((__m128i *)p, _mm_packs_epi32(_mm256_castsi256_si128(w),
                                                   _mm256_extracti128_si256(w, 1)));
}
V_INLINE void v_int8_pair(const void *p, vf *first, vf *second)
{
    __m256i w = v_words(p);
    *first = _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(w, 16), 16));
    *second = _mm256_cvtepi32_ps(_mm256_srai_epi32(w, 16));
}
#define V_BYTE_UNIT 0x1p-24f
V_INLINE vf v_byte(const void *p, uint32_t second)
{
    __m256i b = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
    __m256i at = _mm256_setr_epi32(0x00808080, 0x02808080, 0x04808080, 0x06808080,
                                   0x08808080, 0x0a808080, 0x0c808080, 0x0e808080);
    if (second) at = _mm256_add_epi32(at, _mm256_set1_epi32(0x01000000));
    return _mm256_cvtepi32_ps(_mm256_shuffle_epi8(b, at));
}
V_INLINE vf v_int4(const void *p)
{
    int32_t word;
    __builtin_memcpy(&word, p, sizeof word);
    __m128i b = _mm_cvtsi32_si128(word), low = _mm_set1_epi8(15);
    b = _mm_unpacklo_epi8(_mm_and_si128(b, low), _mm_and_si128(_mm_srli_epi16(b, 4), low));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_sub_epi8(b, _mm_set1_epi8(8))));
}
V_INLINE void v_int4_pair(const void *p, vf *low, vf *high)
{
    __m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    __m256i eight = _mm256_set1_epi32(8);
    *low = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_and_si256(b, _mm256_set1_epi32(15)), eight));
    *high = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(b, 4), eight));
}
V_INLINE void v_transpose(vf m[8])
{
    vf a[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(m[i], m[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(m[i], m[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            m[i + 2 * j] = _mm256_shuffle_ps(a[i + j], a[i + j + 2], 0x44);
            m[i + 2 * j + 1] = _mm256_shuffle_ps(a[i + j], a[i + j + 2], 0xee);
        }
    for (int i = 0; i < 4; i++) {
        a[i] = _mm256_permute2f128_ps(m[i], m[i + 4], 0x20);
        a[i + 4] = _mm256_permute2f128_ps(m[i], m[i + 4], 0x31);
    }
    for (int i = 0; i < 8; i++)
        m[i] = a[i];
}

#endif
#endif

#define V_EXPS 4u /* exponentials at once, at most */

/* x[i] = e^x[i] = 2^n e^r, r in +-ln2/2, by its series to r^7; 0 below -87, held at e^88, NaN stays
 * NaN. Step by step for all of them: one after another they would fill the queues of what waits. */
V_INLINE void v_exp_all(const uint32_t many, vf x[])
{
    const float series[] = { 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f };
    vf n[V_EXPS], r[V_EXPS], p[V_EXPS];
    UNROLL for (uint32_t i = 0; i < many; i++) {
        r[i] = v_min(v_set(88.0f), x[i]); /* x when it is NaN */
        n[i] = v_round(v_mul(r[i], v_set(0x1.715476p0f)));
    }
    UNROLL for (uint32_t i = 0; i < many; i++)
        r[i] = v_fma(n[i], v_set(-0x1.62e4p-1f), r[i]);
    UNROLL for (uint32_t i = 0; i < many; i++) {
        r[i] = v_fma(n[i], v_set(-0x1.7f7d1cp-20f), r[i]);
        p[i] = v_set(1.0f / 5040);
    }
    UNROLL for (uint32_t j = 0; j < sizeof series / sizeof *series; j++)
        UNROLL for (uint32_t i = 0; i < many; i++)
            p[i] = v_fma(p[i], r[i], v_set(series[j]));
    UNROLL for (uint32_t i = 0; i < many; i++)
        x[i] = v_zero_below(x[i], v_set(-87.0f), v_scale2(p[i], n[i]));
}
V_INLINE vf v_exp(vf x)
{
    v_exp_all(1, &x);
    return x;
}
V_INLINE float v_exp1(float x)
{
    float out[VL];
    v_store(out, v_exp(v_set(x)));
    return out[0];
}
/* 1 - 2 / (e^2u + 1): absolute error below 2e-7 */
V_INLINE vf v_tanh(vf u)
{
    vf e = v_exp(v_add(u, u));
    return v_sub(v_set(1.0f), v_div(v_set(2.0f), v_add(e, v_set(1.0f))));
}

#endif
