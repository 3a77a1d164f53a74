/* What the probes of NEON and of I8MM share. Private to kernels/cpu/neon. */
#ifndef KERNELS_CPU_NEON_PROBE_NEON_H
#define KERNELS_CPU_NEON_PROBE_NEON_H

#include "kernels/cpu/probe.h"

#include <arm_neon.h>

enum { CHAINS = 16, STEPS = 8 };

/* Keeps what was computed. */
#define KEEP(v) __asm__ volatile("" : : "w"(v))

/* int8_products by an instruction that adds so many products of bytes to a register. */
#define INT8_PRODUCTS(add, products)                                                               \
    static uint64_t int8_products(uint32_t rounds)                                                 \
    {                                                                                              \
        int32x4_t sum[CHAINS];                                                                     \
        int8x16_t a = vdupq_n_s8(3), b = vdupq_n_s8(5);                                            \
        for (int c = 0; c < CHAINS; c++)                                                           \
            sum[c] = vdupq_n_s32(0);                                                               \
        for (uint32_t r = 0; r < rounds; r++)                                                      \
            for (int s = 0; s < STEPS; s++) {                                                      \
                __asm__("" : "+w"(a)); /* another value, for all the compiler knows */             \
                for (int c = 0; c < CHAINS; c++)                                                   \
                    sum[c] = add(sum[c], a, b);                                                    \
            }                                                                                      \
        for (int c = 0; c < CHAINS; c++)                                                           \
            KEEP(sum[c]);                                                                          \
        return (uint64_t)rounds * STEPS * CHAINS * (products) * 2;                                 \
    }

#endif
