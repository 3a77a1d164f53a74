/* Half-precision formats in plain C, exact: F16 (IEEE binary16) and BF16 (upper half of binary32).
 * Pure; private to kernels/ and its tests. NaN payloads are carried over as they are. */
#ifndef KERNELS_HALF_H
#define KERNELS_HALF_H

#include <stdint.h>
#include <string.h>

static inline float kr_bits_f32(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

static inline uint32_t kr_f32_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    return bits;
}

static inline float kr_f16_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu;
    if (exponent == 31) return kr_bits_f32(sign | 0x7f800000u | mantissa << 13);
    if (exponent != 0) return kr_bits_f32(sign | (exponent + 112) << 23 | mantissa << 13);
    float f = (float)mantissa * 0x1p-24f; /* zero or subnormal: exact in binary32 */
    return kr_bits_f32(kr_f32_bits(f) | sign);
}

/* Rounds to nearest even. */
static inline uint16_t kr_f32_f16(float f)
{
    uint32_t bits = kr_f32_bits(f), mag = bits & 0x7fffffff;
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    if (mag > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (mag >> 13 & 0x1ff));
    if (mag >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* rounds to 65536 or more */
    if (mag < 0x38800000) {
        /* Below 2^-14, steps of 2^-24: adding 0.5 leaves their count, rounded, in the last bits. */
        return (uint16_t)(sign | (kr_f32_bits(kr_bits_f32(mag) + 0.5f) & 0x7ff));
    }
    return (uint16_t)(sign | ((mag + 0xfff + (mag >> 13 & 1) - 0x38000000) >> 13));
}

static inline float kr_bf16_f32(uint16_t h)
{
    return kr_bits_f32((uint32_t)h << 16);
}

/* Loads a little-endian 16-bit word from any address. */
static inline uint16_t kr_load_u16(const void *p)
{
    const uint8_t *b = p;
    return (uint16_t)(b[0] | b[1] << 8);
}

#endif
