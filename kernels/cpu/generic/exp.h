/* exp: the generic ops' own e^x, so that bytes do not depend on the C library. Pure. */
#ifndef KERNELS_CPU_GENERIC_EXP_H
#define KERNELS_CPU_GENERIC_EXP_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* e^x = 2^n e^r, r in +-ln2/2, by its series to r^7 (rest below 6e-9). */
static inline float exp_f32(float x)
{
    if (x != x) return x;
    if (x < -87.0f) return 0.0f;
    if (x > 88.0f) x = 88.0f;
    float n = rintf(x * 0x1.715476p0f);
    float r = x - n * 0x1.62e4p-1f - n * 0x1.7f7d1cp-20f; /* the first product is exact */
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    float two_n;
    memcpy(&two_n, &bits, sizeof two_n);
    return p * two_n;
}

#endif
