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
        memset(block, 0, sizeof(*block));
        kr_q8_starts(block, 0, 0);
        block->scale = block->scaled_sum = amax_bits >= 0x7f800000 ? NAN : 0;
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
    block->unused = 0;
}

static void quantize(struct kr_q8 *q, const float *x, size_t x_stride, uint32_t r0, uint32_t r1)
{
    const uint32_t blocks = (q->cols + KR_SUB - 1) / KR_SUB;
    for (uint32_t r = r0; r < r1; r++)
        for (uint32_t b = 0; b < blocks; b++)
            quantize_block(x + r * x_stride + b * KR_SUB, q->cols - b * KR_SUB,
                           q->blocks + (size_t)r * q->stride + b);
}

static void matmul(const struct kr_packed *w, uint32_t g0, uint32_t g1, const struct kr_q8 *q,
                   const float *x, size_t x_stride, uint32_t r0, uint32_t r1, const float *bias,
                   float *out, size_t out_stride)
{
    if (kr_type_wants_q8(w->type))
        kr_avx512_quants(w, g0, g1, q, r0, r1, bias, out, out_stride);
    else
        kr_avx512_floats(w, g0, g1, x, x_stride, r0, r1, bias, out, out_stride);
}

void kr_matmul_avx512(struct kr_matmul_kernels *k)
{
    k->name = "avx512";
    k->quantize = quantize;
    k->matmul = matmul;
}
