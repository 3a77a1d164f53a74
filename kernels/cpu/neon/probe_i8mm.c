/* probe for I8MM: NEON's, with products of matrices of bytes. Pure; any thread. */
#include "kernels/cpu/probe.h"

#include <arm_neon.h>

enum { CHAINS = 16, STEPS = 8 };

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
                sum[c] = vmmlaq_s32(sum[c], a, b);
        }
    for (int c = 0; c < CHAINS; c++)
        __asm__ volatile("" : : "w"(sum[c]));
    return (uint64_t)rounds * STEPS * CHAINS * 32 * 2;
}

void kr_probe_i8mm(struct kr_probe_ops *o)
{
    kr_probe_neon(o);
    o->int8 = int8_products;
}
