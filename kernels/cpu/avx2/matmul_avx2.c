/* AVX2 and AVX-VNNI matrix products: the table, and the quantisation of activations.
 * Pure but for the memory given; bit-equal to generic/matmul_generic.c. */
#include "kernels/cpu/avx2/matmul_avx2.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/pack.h"

static int32_t reduce_max(__m256i v)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtsi128_si32(m);
}

static int32_t reduce_add(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

/* 32 values. */
static void quantize_block(const float *x, struct kr_q8_block *block)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256 v[4];
    __m256i q[4], max = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_loadu_ps(x + 8 * i);
        max = _mm256_max_epi32(max, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
    }
    /* As integers, magnitudes are in order, infinity and NaN above all numbers. */
    int32_t amax_bits = reduce_max(max);
    float amax;
    memcpy(&amax, &amax_bits, sizeof(amax));

    if (amax_bits >= 0x7f800000 || amax < 1e-36f) {
        kr_q8_flat(block, amax_bits >= 0x7f800000);
        return;
    }
    __m256 inverse = _mm256_set1_ps(127.0f / amax);
    for (int i = 0; i < 4; i++)
        q[i] = _mm256_cvtps_epi32(_mm256_round_ps(_mm256_mul_ps(v[i], inverse),
                                                  _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    int32_t half0 = reduce_add(_mm256_add_epi32(q[0], q[1]));
    int32_t half1 = reduce_add(_mm256_add_epi32(q[2], q[3]));
    /* Packing works within 128-bit lanes: the permutation puts words of four back in order. */
    __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_store_si256((__m256i *)block->q, bytes);
    block->scale = amax / 127.0f;
    block->scaled_sum = block->scale * (float)(half0 + half1);
    kr_q8_starts(block, half0, half1);
}

static void quantize(struct kr_q8 *q, const float *x, size_t x_stride, uint32_t r0, uint32_t r1)
{
    kr_q8_rows(q, x, x_stride, r0, r1, quantize_block);
}

void kr_matmul_avx2(struct kr_matmul_kernels *k)
{
    *k = (struct kr_matmul_kernels){KR_AVX2_NAME, quantize, kr_avx2_quants, kr_avx2_floats};
}
