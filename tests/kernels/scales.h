/* scales: where a block keeps its scale and min, so that tests can fill the rest with any bytes. */
#ifndef TESTS_KERNELS_SCALES_H
#define TESTS_KERNELS_SCALES_H

#include "kernels/half.h"
#include "kernels/kernels.h"

/* The offset of the f16 scale; of MXFP4's exponent. */
static inline uint32_t scale_at(enum kr_type type)
{
    switch (type) {
    case KR_Q2_K:
        return 80;
    case KR_Q3_K:
        return 108;
    case KR_Q6_K:
        return 208;
    case KR_TQ1_0:
        return 52;
    case KR_TQ2_0:
        return 64;
    default:
        return 0;
    }
}
/* The offset of the f16 min, -1 for a type without. */
static inline int min_at(enum kr_type type)
{
    switch (type) {
    case KR_Q2_K:
        return 82;
    case KR_Q4_1:
    case KR_Q5_1:
    case KR_Q4_K:
    case KR_Q5_K:
        return 2;
    default:
        return -1;
    }
}
/* The largest power of two not above d, as an exponent byte. */
static inline uint8_t e8m0_half_of(float d)
{
    return (uint8_t)((kr_f32_bits(d) >> 23 & 255) + 1);
}

#endif
