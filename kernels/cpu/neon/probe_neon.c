/* probe for NEON: loads, dot products of bytes and fused multiply-adds of whole registers. Sixteen
 * chains hide the latency of four units. Pure; any thread. */
#include "kernels/cpu/neon/probe_neon.h"

static void read_bytes(const void *p, size_t n)
{
    uint8x16_t sum[4];
    for (int i = 0; i < 4; i++)
        sum[i] = vdupq_n_u8(0);
    for (const uint8_t *at = p, *end = at + n; at < end; at += 256)
        for (int i = 0; i < 16; i++)
            sum[i % 4] = vorrq_u8(sum[i % 4], vld1q_u8(at + i * 16));
    for (int i = 0; i < 4; i++)
        KEEP(sum[i]);
}

INT8_PRODUCTS(vdotq_s32, 16)

static uint64_t float_products(uint32_t rounds)
{
    float32x4_t sum[CHAINS], a = vdupq_n_f32(0.5f), b = vdupq_n_f32(1.0f);
    for (int c = 0; c < CHAINS; c++)
        sum[c] = vdupq_n_f32(0);
    for (uint32_t r = 0; r < rounds; r++)
        for (int s = 0; s < STEPS; s++) {
            __asm__("" : "+w"(a));
            for (int c = 0; c < CHAINS; c++)
                sum[c] = vfmaq_f32(sum[c], a, b);
        }
    for (int c = 0; c < CHAINS; c++)
        KEEP(sum[c]);
    return (uint64_t)rounds * STEPS * CHAINS * 4 * 2;
}

void kr_probe_neon(struct kr_probe_ops *o)
{
    *o = (struct kr_probe_ops){.read = read_bytes, .int8 = int8_products, .fma = float_products};
}
