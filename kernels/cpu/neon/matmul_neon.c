/* NEON matrix products: the table, and the quantisation of activations.
 * Pure but for the memory given; bit-equal to generic/matmul_generic.c. */
#include "kernels/cpu/neon/matmul_neon.h"

#include <arm_neon.h>
#include <math.h>
#include <string.h>

/* Eight values, rounded to nearest even, as 16 bits. */
static int16x8_t rounded(const float *x, float inverse)
{
    const int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x), inverse));
    const int32x4_t b = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4), inverse));
    return vcombine_s16(vmovn_s32(a), vmovn_s32(b));
}

/* 32 values. */
static void quantize_block(const float *x, struct kr_q8_block *block)
{
    uint32x4_t max[2] = {vdupq_n_u32(0), vdupq_n_u32(0)};
    for (int i = 0; i < 8; i++) {
        uint32x4_t bits = vreinterpretq_u32_f32(vld1q_f32(x + 4 * i));
        max[i % 2] = vmaxq_u32(max[i % 2], vandq_u32(bits, vdupq_n_u32(0x7fffffff)));
    }
    /* As integers, magnitudes are in order, infinity and NaN above all numbers. */
    const uint32_t amax_bits = vmaxvq_u32(vmaxq_u32(max[0], max[1]));
    float amax;
    memcpy(&amax, &amax_bits, sizeof(amax));

    if (amax_bits >= 0x7f800000 || amax < 1e-36f) {
        kr_q8_flat(block, amax_bits >= 0x7f800000);
        return;
    }
    const float inverse = 127.0f / amax;
    const int8x16_t low =
        vcombine_s8(vmovn_s16(rounded(x, inverse)), vmovn_s16(rounded(x + 8, inverse)));
    const int8x16_t high =
        vcombine_s8(vmovn_s16(rounded(x + 16, inverse)), vmovn_s16(rounded(x + 24, inverse)));
    const int32_t half0 = vaddlvq_s8(low), half1 = vaddlvq_s8(high);
    vst1q_s8(block->q, low);
    vst1q_s8(block->q + 16, high);
    block->scale = amax / 127.0f;
    block->scaled_sum = block->scale * (float)(half0 + half1);
    kr_q8_starts(block, half0, half1);
}

void kr_neon_quantize(struct kr_q8 *q, const float *x, size_t x_stride, uint32_t r0, uint32_t r1)
{
    kr_q8_rows(q, x, x_stride, r0, r1, quantize_block);
}

static void quants(const struct kr_packed *w, uint32_t g0, uint32_t g1, const struct kr_q8 *q,
                   uint32_t r0, uint32_t r1, const float *bias, float *out, size_t out_stride)
{
    kr_neon_quants(kr_neon_kind(w->type), w, g0, g1, q, r0, r1, bias, out, out_stride);
}

void kr_matmul_neon(struct kr_matmul_kernels *k)
{
    *k = (struct kr_matmul_kernels){"neon", kr_neon_quantize, quants, kr_neon_floats};
}
