/* The loops over a vocabulary, and masses. Private to kernels/.
 *
 * Loops are compiled once per ISA (draw_loops_simd.h) and chosen with the device's. Element by
 * element the arithmetic is the same in all of them, so are the bytes. */
#ifndef KERNELS_DRAW_LOOPS_H
#define KERNELS_DRAW_LOOPS_H

#include "kernels/kernels.h"

#include <string.h>

/* The greatest value of each run of so many: what lets later passes look at few of them. */
enum { KR_DRAW_RUN = 512 };

struct kr_draw_loops {
    /* Greatest values of n_runs whole runs; false when a value is NaN. */
    bool (*tops)(const float *z, size_t n_runs, float *tops);
    /* The sum of the masses of z[0..n). */
    uint64_t (*mass)(const float *z, size_t n, float max, float inv_t);
    /* Whether any of the 64 values at z is above t. */
    bool (*any_above)(const float *z, float t);
    /* Makes the values whose bits are not set -INFINITY, 32 of them for each word; false when one
     * of all values was NaN or INFINITY. */
    bool (*bar)(float *z, size_t n_words, const uint32_t *mask);
};
/* Of an ISA that this machine has; NULL: it lacks it. */
const struct kr_draw_loops *kr_draw_loops(enum kr_isa isa);
/* Each in builds for its processor only. */
const struct kr_draw_loops *kr_draw_loops_generic(void);
const struct kr_draw_loops *kr_draw_loops_avx2(void);
const struct kr_draw_loops *kr_draw_loops_avx512(void);
const struct kr_draw_loops *kr_draw_loops_neon(void);

/* 2^40 e^x for x <= 0, relative error below 3e-7; 0 below -87. Branch-free so that loops vectorise.
 * Range reduction by ln 2 in two parts (Cody and Waite), then 1 + x and a polynomial of degree 5
 * whose other coefficients make the greatest relative error least. */
static inline float kr_draw_exp(float x)
{
    float c = x < -87.0f ? -87.0f : x;
    float k =
        c * 1.44269504f + 12583079.0f; /* to an integer, + 127 + 40 in the low mantissa bits */
    uint32_t bits;
    memcpy(&bits, &k, sizeof bits);
    k -= 12583079.0f;
    float r = (c - k * 0.693145752f) - k * 1.42860677e-6f;
    float p = 8.3125010e-3f;
    p = p * r + 4.1890331e-2f;
    p = p * r + 0.16667116f;
    p = p * r + 0.49999231f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    bits <<= 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return x < -87.0f ? 0.0f : p * scale;
}

/* rint(2^40 e^((z - max) inv_t)) + KR_MASS_BIAS: an integer in the low bits of a double, which
 * compilers make vectors of. Sums may wrap. */
#define KR_MASS_BIAS 0x4330000000000000u /* 2^52 */
static inline uint64_t kr_biased_mass(float z, float max, float inv_t)
{
    double w = (double)kr_draw_exp((z - max) * inv_t) + 0x1p52;
    uint64_t bits;
    memcpy(&bits, &w, sizeof bits);
    return bits;
}
static inline uint64_t kr_mass(float z, float max, float inv_t)
{
    return kr_biased_mass(z, max, inv_t) - KR_MASS_BIAS;
}
#define KR_MASS_ONE (1ull << 40) /* of the greatest value */

/* Whether no value up to this one can have a mass: with room for exp's rounding. */
static inline bool kr_weighs_nothing(float z, float max, float inv_t)
{
    return !((z - max) * inv_t > -29.0f); /* 2^40 e^-29 is 0.28 */
}

static inline uint64_t kr_mul_high(uint64_t a, uint64_t b)
{
    return (uint64_t)((unsigned __int128)a * b >> 64);
}

#endif
