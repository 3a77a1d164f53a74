/* probe for NEON: loads, dot products of bytes and fused multiply-adds of whole registers. Sixteen
 * chains hide the latency of four units. Pure; any thread. */
#include "kernels/cpu/probe.h"

#include <arm_neon.h>

enum { CHAINS = 16, STEPS = 8 };

/* Keeps what was computed. */
#define KEEP(v) __asm__ volatile("" : : "w"(v))

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

static uint64_t int8_products(uint32_t rounds)
{
    int32x4_t sum[CHAINS];
    int8x16_t a = vdupq_n_s8(3), b = vdupq_n_s8(5);
    for (int c = 0; c < CHAINS; c++)
        sum[c] = vdupq_n_s32(0);
    for (uint32_t r = 0; r < rounds; r++)
        for (int s = 0; s < STEPS; s++) {
            __asm__("" : "+w"(a)); /* another value, for all the compiler knows */
            for (int c = 0; c < CHAINS; c++)
                sum[c] = vdotq_s32(sum[c], a, b);
        }
    for (int c = 0; c < CHAINS; c++)
        KEEP(sum[c]);
    return (uint64_t)rounds * STEPS * CHAINS * 16 * 2;
}

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
