/* Packed weights to registers of four rows each (vector v: rows 4v..4v+3), for direct tiles and for
 * panels. Private to kernels/cpu/neon. Templates: callers give bits, header and v as constants. */
#ifndef KERNELS_CPU_NEON_UNPACK_H
#define KERNELS_CPU_NEON_UNPACK_H

#include <arm_neon.h>
#include <string.h>

#include "kernels/cpu/neon/matmul_neon.h"

ALWAYS_INLINE float32x4_t load_halves(const uint8_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

ALWAYS_INLINE uint32x4_t load_bytes(const uint8_t *p)
{
    uint32_t four;
    memcpy(&four, p, sizeof(four));
    return vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
}
ALWAYS_INLINE float32x4_t load_signed(const uint8_t *p)
{
    uint32_t four;
    memcpy(&four, p, sizeof(four));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four)))));
}

/* K2: four pairs of bytes of vector v, the second of each pair in the upper 16 bits. */
ALWAYS_INLINE uint32x4_t load_pairs(const uint8_t *headers, uint32_t block, const int v)
{
    const uint8_t *unit = headers + 320 * (block / 8);
    return vreinterpretq_u32_u16(vmovl_u8(vld1_u8(unit + 64 + 32 * (block % 8) + 8 * v)));
}

/* Scales of vector v of a block: s1 is the second half's (K6, K2) or the min (DM, K). */
ALWAYS_INLINE void tile_scales(const uint8_t *headers, const int header, uint32_t block,
                               const int v, float32x4_t *s0, float32x4_t *s1)
{
    const uint8_t *unit = headers + 320 * (block / 8), *sub = unit + 64 + 32 * (block % 8);
    if (header == KR_HDR_D) {
        *s0 = load_halves(headers + 32 * block + 8 * v);
    } else if (header == KR_HDR_DM) {
        *s0 = load_halves(headers + 64 * block + 8 * v);
        *s1 = load_halves(headers + 64 * block + 32 + 8 * v);
    } else if (header == KR_HDR_K) {
        float32x4_t m = vcvtq_f32_u32(load_bytes(sub + 16 + 4 * v));
        *s0 = vmulq_f32(load_halves(unit + 8 * v), vcvtq_f32_u32(load_bytes(sub + 4 * v)));
        *s1 = vnegq_f32(vmulq_f32(load_halves(unit + 32 + 8 * v), m));
    } else if (header == KR_HDR_KX) {
        unit = headers + 160 * (block / 8);
        *s0 =
            vmulq_f32(load_halves(unit + 8 * v), load_signed(unit + 32 + 16 * (block % 8) + 4 * v));
    } else if (header == KR_HDR_T) {
        *s0 = vmulq_n_f32(load_halves(headers + 32 * (block / 8) + 8 * v), KR_EIGHTH);
    } else if (header == KR_HDR_K2) {
        const uint32x4_t both = load_pairs(headers, block, v), nibble = vdupq_n_u32(15);
        const float32x4_t d = vmulq_n_f32(load_halves(unit + 8 * v), KR_EIGHTH);
        *s0 = vmulq_f32(d, vcvtq_f32_u32(vandq_u32(both, nibble)));
        *s1 = vmulq_f32(d, vcvtq_f32_u32(vandq_u32(vshrq_n_u32(both, 16), nibble)));
    } else if (header == KR_HDR_E) {
        const uint32x4_t e = load_bytes(headers + 16 * block + 4 * v);
        *s0 = vreinterpretq_f32_u32(vshlq_n_u32(e, 23));
    } else {
        const float32x4_t d = vld1q_f32((const float *)(const void *)unit + 4 * v);
        *s0 = vmulq_f32(d, load_signed(sub + 4 * v));
        *s1 = vmulq_f32(d, load_signed(sub + 16 + 4 * v));
    }
}

/* K2: the halves' mins of vector v side by side, and what they are multiplied with. */
ALWAYS_INLINE int16x8_t tile_half_mins(const uint8_t *headers, uint32_t block, const int v,
                                       float32x4_t *s)
{
    *s = vnegq_f32(load_halves(headers + 320 * (block / 8) + 32 + 8 * v));
    return vreinterpretq_s16_u32(vshrq_n_u32(load_pairs(headers, block, v), 4) &
                                 vdupq_n_u32(0x000f000f));
}

ALWAYS_INLINE uint8x16_t shifted_right(uint8x16_t w, const int n)
{
    return n < 0 ? w << vdupq_n_u8((uint8_t)(n < 0 ? -n : 0))
                 : w >> vdupq_n_u8((uint8_t)(n < 0 ? 0 : n));
}

/* The bits above a nibble, or above two bits, for word i, in place. */
ALWAYS_INLINE uint8x16_t high_bits(const uint8_t *block, const int bits, const int i, const int v)
{
    const uint8x16_t w = vld1q_u8(block + (bits == 6 ? 64 * (i / 4) : 0) + 16 * v);
    const int right = bits == 6 ? 2 * (i % 4) - 4 : bits == 5 ? i - 4 : i - 5;
    const uint8_t mask = bits == 6 ? 0x30 : bits == 5 ? 0x10 : 0x20;
    return vandq_u8(shifted_right(w, right), vdupq_n_u8(mask));
}

/* The numbers that nibbles stand for. */
ALWAYS_INLINE int8x16_t tile_table(const int bits)
{
    static const int8_t iq4[16] = {KR_IQ4_VALUES}, odd[16] = {KR_ODD_VALUES};
    static const int8_t fp4[16] = {KR_FP4_VALUES};
    return vld1q_s8(bits == KR_BITS_IQ4 ? iq4 : bits == KR_BITS_ODD ? odd : fp4);
}

/* Words that need no offset: they are signed. */
ALWAYS_INLINE bool signed_words(const int bits)
{
    return bits >= 8;
}

/* Word i (0..7) of vector v. Of 2 and 3 bits: eight times it. */
ALWAYS_INLINE int8x16_t tile_word(const uint8_t *block, const int bits, const int i, const int v)
{
    if (bits == 8)
        return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(block + 64 * i + 16 * v), vdupq_n_u8(128)));
    if (bits <= 3) {
        uint8x16_t w = vld1q_u8(block + 64 * ((bits == 3) + i / 4) + 16 * v);
        w = vandq_u8(shifted_right(w, 2 * (i % 4) - 3), vdupq_n_u8(0x18));
        if (bits == 3) w = vorrq_u8(w, high_bits(block, bits, i, v));
        return vreinterpretq_s8_u8(w);
    }
    const int skip = bits % 16 - 4; /* vectors of high bits before the nibbles */
    uint8x16_t w = vld1q_u8(block + 64 * (skip + i % 4) + 16 * v);
    w = i < 4 ? vandq_u8(w, vdupq_n_u8(15)) : vshrq_n_u8(w, 4);
    if (bits > 16) return vqtbl1q_s8(tile_table(bits), w);
    if (bits > 4) w = vorrq_u8(w, high_bits(block, bits, i, v));
    return vreinterpretq_s8_u8(w);
}

/* What words are too large by. */
ALWAYS_INLINE int tile_offset(const int bits, const int header)
{
    if (signed_words(bits) || header == KR_HDR_DM || header == KR_HDR_K || header == KR_HDR_K2)
        return 0;
    return header == KR_HDR_K6 ? 32 : bits == 5 ? 16 : 8;
}

/* A word for a panel. */
ALWAYS_INLINE int8x16_t panel_word(const uint8_t *block, const int bits, const int header,
                                   const int i, const int v)
{
    const int offset = tile_offset(bits, header);
    const int8x16_t w = tile_word(block, bits, i, v);
    return offset ? vsubq_s8(w, vdupq_n_s8((int8_t)offset)) : w;
}

/* The first n (0..4) of four floats; the others are zero, or not written. */
ALWAYS_INLINE float32x4_t load_lanes(const float *p, uint32_t n)
{
    float some[4] = {0};
    if (n >= 4) return vld1q_f32(p);
    for (uint32_t i = 0; i < n; i++)
        some[i] = p[i];
    return vld1q_f32(some);
}
ALWAYS_INLINE void store_lanes(float *p, uint32_t n, float32x4_t f)
{
    float some[4];
    if (n >= 4) {
        vst1q_f32(p, f);
        return;
    }
    vst1q_f32(some, f);
    for (uint32_t i = 0; i < n; i++)
        p[i] = some[i];
}
/* Of `lanes` rows those of vector v. */
ALWAYS_INLINE uint32_t lanes_of(uint32_t lanes, const int v)
{
    const uint32_t first = 4 * (uint32_t)v;
    return lanes > first ? CN_MIN(lanes - first, 4u) : 0;
}

#endif
