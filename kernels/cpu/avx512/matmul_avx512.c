/* AVX-512 VNNI matrix products: the table, and the quantisation of activations.
 * Pure but for the memory given; bit-equal to generic/matmul_generic.c. */
#include "kernels/cpu/avx512/matmul_avx512.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/pack.h"

/* 32 values, the ones past n zero. */
static void quantize_block(const float *x, uint32_t n, struct kr_q8_block *block)
{
    const __mmask16 m0 = n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1);
    const __mmask16 m1 = n >= 32 ? 0xffff : n > 16 ? (__mmask16)((1u << (n - 16)) - 1) : 0;
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512 v0 = _mm512_maskz_loadu_ps(m0, x), v1 = _mm512_setzero_ps();
    if (m1) v1 = _mm512_maskz_loadu_ps(m1, x + 16);
    __m512i a0 = _mm512_and_si512(_mm512_castps_si512(v0), magnitude);
    __m512i a1 = _mm512_and_si512(_mm512_castps_si512(v1), magnitude);
    /* As integers, magnitudes are in order, infinity and NaN above all numbers. */
    int32_t amax_bits = _mm512_reduce_max_epi32(_mm512_max_epi32(a0, a1));
    float amax;
    memcpy(&amax, &amax_bits, sizeof(amax));

    if (amax_bits >= 0x7f800000 || amax < 1e-36f) {
        kr_q8_flat(block, amax_bits >= 0x7f800000);
        return;
    }
    __m512 inverse = _mm512_set1_ps(127.0f / amax);
    __m512i q0 = _mm512_cvt_roundps_epi32(_mm512_mul_ps(v0, inverse),
                                          _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512i q1 = _mm512_cvt_roundps_epi32(_mm512_mul_ps(v1, inverse),
                                          _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    int32_t half0 = _mm512_reduce_add_epi32(q0), half1 = _mm512_reduce_add_epi32(q1);
    int32_t sum = half0 + half1;
    _mm_store_si128((__m128i *)block->q, _mm512_cvtepi32_epi8(q0));
    _mm_store_si128((__m128i *)block->q + 1, _mm512_cvtepi32_epi8(q1));
    block->scale = amax / 127.0f;
    block->scaled_sum = block->scale * (float)sum;
    kr_q8_starts(block, half0, half1);
}

/* ---- eight blocks at once: what is one number a block is a lane of a vector ------------------ */

/* The largest magnitude of each block, as bits. */
static __m256i largest(const float *x)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i m[8], u[2];
    for (int i = 0; i < 8; i++)
        m[i] = _mm512_max_epi32(_mm512_and_si512(_mm512_loadu_si512(x + 32 * i), magnitude),
                                _mm512_and_si512(_mm512_loadu_si512(x + 32 * i + 16), magnitude));
    for (int i = 0; i < 4; i++) /* 8 lanes of block i, then of block i + 4 */
        m[i] = _mm512_max_epi32(_mm512_shuffle_i64x2(m[i], m[i + 4], 0x44),
                                _mm512_shuffle_i64x2(m[i], m[i + 4], 0xee));
    for (int i = 0; i < 2; i++) /* 4 lanes each of blocks i, i + 4, i + 2, i + 6 */
        u[i] = _mm512_max_epi32(_mm512_shuffle_i32x4(m[i], m[i + 2], 0x88),
                                _mm512_shuffle_i32x4(m[i], m[i + 2], 0xdd));
    __m512i v =
        _mm512_max_epi32(_mm512_unpacklo_epi32(u[0], u[1]), _mm512_unpackhi_epi32(u[0], u[1]));
    v = _mm512_max_epi32(v, _mm512_shuffle_epi32(v, _MM_PERM_BADC));
    const __m512i order = _mm512_setr_epi32(0, 1, 8, 9, 4, 5, 12, 13, 0, 0, 0, 0, 0, 0, 0, 0);
    return _mm512_castsi512_si256(_mm512_permutexvar_epi32(order, v));
}

/* The sum of each vector's four words, by half: [half][vector] */
static __m256i add_words(const __m256i *v)
{
    __m256i a =
        _mm256_add_epi32(_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]));
    __m256i b =
        _mm256_add_epi32(_mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3]));
    return _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}

/* Lane i of row k goes to word k of block i's second half. */
static void store_rest(const __m256i row[8], struct kr_q8_block *block)
{
    __m256i a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm256_unpacklo_epi32(row[2 * i], row[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_epi32(row[2 * i], row[2 * i + 1]);
    }
    for (int i = 0; i < 8; i += 4) /* four words of block j in each half: of blocks j and j + 4 */
        for (int j = 0; j < 2; j++) {
            b[i + 2 * j] = _mm256_unpacklo_epi64(a[i + j], a[i + j + 2]);
            b[i + 2 * j + 1] = _mm256_unpackhi_epi64(a[i + j], a[i + j + 2]);
        }
    for (int j = 0; j < 4; j++) {
        _mm256_store_si256((__m256i *)&block[j].scale,
                           _mm256_permute2x128_si256(b[j], b[j + 4], 0x20));
        _mm256_store_si256((__m256i *)&block[j + 4].scale,
                           _mm256_permute2x128_si256(b[j], b[j + 4], 0x31));
    }
}

/* False, and nothing done, when a block is not all ordinary numbers. */
static bool quantize_eight(const float *x, struct kr_q8_block *block)
{
    _Static_assert(offsetof(struct kr_q8_block, scale) == 32, "the second half");
    const __m256i bits = largest(x), bias = _mm256_set1_epi32(KR_SUM_BIAS);
    const __m256 amax = _mm256_castsi256_ps(bits);
    const __m256i ones = _mm256_set1_epi8(1);
    float inverse[8];
    __m256i words[8];
    if (_mm256_cmpge_epi32_mask(bits, _mm256_set1_epi32(0x7f800000)) ||
        _mm256_cmp_ps_mask(amax, _mm256_set1_ps(1e-36f), _CMP_LT_OQ))
        return false;
    _mm256_storeu_ps(inverse, _mm256_div_ps(_mm256_set1_ps(127.0f), amax));
    for (int i = 0; i < 8; i++) {
        const __m512 by = _mm512_set1_ps(inverse[i]);
        __m512i q0 = _mm512_cvt_roundps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 32 * i), by),
                                              _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        __m512i q1 = _mm512_cvt_roundps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 32 * i + 16), by),
                                              _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        __m256i q = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(q0)),
                                            _mm512_cvtepi32_epi8(q1), 1);
        _mm256_store_si256((__m256i *)block[i].q, q);
        words[i] = _mm256_dpbusd_epi32(_mm256_setzero_si256(), ones, q);
    }
    __m256i low = add_words(words), high = add_words(words + 4);
    __m256i half0 = _mm256_permute2x128_si256(low, high, 0x20);
    __m256i half1 = _mm256_permute2x128_si256(low, high, 0x31);
    __m256i sum = _mm256_add_epi32(half0, half1);
    __m256 scale = _mm256_div_ps(amax, _mm256_set1_ps(127.0f));
    const __m256i rest[8] = {
        _mm256_castps_si256(scale),
        _mm256_castps_si256(_mm256_mul_ps(scale, _mm256_cvtepi32_ps(sum))),
        _mm256_sub_epi32(bias, _mm256_slli_epi32(sum, 3)),
        _mm256_sub_epi32(bias, _mm256_slli_epi32(sum, 4)),
        _mm256_sub_epi32(bias, _mm256_slli_epi32(sum, 7)),
        _mm256_sub_epi32(bias, _mm256_slli_epi32(half0, 5)),
        _mm256_sub_epi32(bias, _mm256_slli_epi32(half1, 5)),
        _mm256_blend_epi16(half0, _mm256_slli_epi32(half1, 16), 0xaa),
    };
    store_rest(rest, block);
    return true;
}

static void quantize_row(const float *x, uint32_t cols, struct kr_q8_block *block)
{
    for (uint32_t c = 0; c < cols;) {
        uint32_t end = cols - c >= 8 * KR_SUB ? c + 8 * KR_SUB : cols;
        if (end - c == 8 * KR_SUB && quantize_eight(x + c, block + c / KR_SUB)) c = end;
        for (; c < end; c += KR_SUB)
            quantize_block(x + c, cols - c, block + c / KR_SUB);
    }
}

static void quantize(struct kr_q8 *q, const float *x, size_t x_stride, uint32_t r0, uint32_t r1)
{
    for (uint32_t r = r0; r < r1; r++)
        quantize_row(x + r * x_stride, q->cols, q->blocks + (size_t)r * q->stride);
}

void kr_matmul_avx512(struct kr_matmul_kernels *k)
{
    *k = (struct kr_matmul_kernels){"avx512", quantize, kr_avx512_quants, kr_avx512_floats};
}
