/* simd.h for NEON: a vector is two registers, 8 lanes, so that the shared code's tiles fill the 32
 * registers as they fill AVX2's 16. There are no masked loads: parts of a vector go through memory,
 * value by value; nothing past the n-th lane is touched. Included by simd.h alone. */
#ifndef KERNELS_CPU_NEON_SIMD_NEON_H
#define KERNELS_CPU_NEON_SIMD_NEON_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#define V_INLINE static inline __attribute__((always_inline))

#define VL 8u
struct v_two {
    float32x4_t lo, hi;
};
#define vf struct v_two

V_INLINE vf v_load(const float *p) { return (vf){vld1q_f32(p), vld1q_f32(p + 4)}; }
V_INLINE void v_store(float *p, vf a)
{
    vst1q_f32(p, a.lo);
    vst1q_f32(p + 4, a.hi);
}
V_INLINE vf v_set(float f) { return (vf){vdupq_n_f32(f), vdupq_n_f32(f)}; }
V_INLINE vf v_add(vf a, vf b) { return (vf){vaddq_f32(a.lo, b.lo), vaddq_f32(a.hi, b.hi)}; }
V_INLINE vf v_sub(vf a, vf b) { return (vf){vsubq_f32(a.lo, b.lo), vsubq_f32(a.hi, b.hi)}; }
V_INLINE vf v_mul(vf a, vf b) { return (vf){vmulq_f32(a.lo, b.lo), vmulq_f32(a.hi, b.hi)}; }
V_INLINE vf v_div(vf a, vf b) { return (vf){vdivq_f32(a.lo, b.lo), vdivq_f32(a.hi, b.hi)}; }
V_INLINE vf v_fma(vf a, vf b, vf c)
{
    return (vf){vfmaq_f32(c.lo, a.lo, b.lo), vfmaq_f32(c.hi, a.hi, b.hi)};
}
V_INLINE vf v_pick(uint32x4_t lo, uint32x4_t hi, vf a, vf b) /* a where the bits are set */
{
    return (vf){vbslq_f32(lo, a.lo, b.lo), vbslq_f32(hi, a.hi, b.hi)};
}
V_INLINE vf v_max(vf a, vf b) /* b when either is NaN */
{
    return v_pick(vcgtq_f32(a.lo, b.lo), vcgtq_f32(a.hi, b.hi), a, b);
}
V_INLINE vf v_min(vf a, vf b)
{
    return v_pick(vcltq_f32(a.lo, b.lo), vcltq_f32(a.hi, b.hi), a, b);
}
V_INLINE vf v_round(vf a) { return (vf){vrndnq_f32(a.lo), vrndnq_f32(a.hi)}; }
V_INLINE float32x4_t v_two_to(float32x4_t n) /* n in [-126, 127] */
{
    int32x4_t e = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
    return vreinterpretq_f32_s32(vshlq_n_s32(e, 23));
}
V_INLINE vf v_scale2(vf a, vf n)
{
    return (vf){vmulq_f32(a.lo, v_two_to(n.lo)), vmulq_f32(a.hi, v_two_to(n.hi))};
}
V_INLINE vf v_zero_below(vf x, vf limit, vf a)
{
    const vf zero = v_set(0);
    return v_pick(vcltq_f32(x.lo, limit.lo), vcltq_f32(x.hi, limit.hi), zero, a);
}
V_INLINE vf v_load_some(const float *p, uint32_t n)
{
    float some[VL] = {0};
    for (uint32_t i = 0; i < n; i++)
        some[i] = p[i];
    return v_load(some);
}
V_INLINE void v_store_some(float *p, vf a, uint32_t n)
{
    float some[VL];
    v_store(some, a);
    for (uint32_t i = 0; i < n; i++)
        p[i] = some[i];
}
V_INLINE vf v_load_n(const float *p, uint32_t n) { return n >= VL ? v_load(p) : v_load_some(p, n); }
V_INLINE void v_store_n(float *p, vf a, uint32_t n)
{
    if (n >= VL) v_store(p, a);
    else v_store_some(p, a, n);
}
V_INLINE vf v_keep(vf a, uint32_t k0, uint32_t k1, vf other)
{
    static const uint32_t lanes[VL] = {0, 1, 2, 3, 4, 5, 6, 7};
    const uint32x4_t lo = vld1q_u32(lanes), hi = vld1q_u32(lanes + 4);
    const uint32x4_t from = vdupq_n_u32(k0), to = vdupq_n_u32(k1);
    return v_pick(vandq_u32(vcgeq_u32(lo, from), vcltq_u32(lo, to)),
                  vandq_u32(vcgeq_u32(hi, from), vcltq_u32(hi, to)), a, other);
}
V_INLINE vf v_sign_of(vf a, vf s)
{
    const uint32x4_t sign = vdupq_n_u32(0x80000000u);
    return v_pick(sign, sign, s, a);
}
V_INLINE float v_sum(vf a) { return vaddvq_f32(vaddq_f32(a.lo, a.hi)); }
V_INLINE vf v_max_bits(vf a, vf b)
{
    const uint32x4_t lo = vmaxq_u32(vreinterpretq_u32_f32(a.lo), vreinterpretq_u32_f32(b.lo));
    const uint32x4_t hi = vmaxq_u32(vreinterpretq_u32_f32(a.hi), vreinterpretq_u32_f32(b.hi));
    return (vf){vreinterpretq_f32_u32(lo), vreinterpretq_f32_u32(hi)};
}
V_INLINE float v_hmax_bits(vf a)
{
    const uint32x4_t m = vmaxq_u32(vreinterpretq_u32_f32(a.lo), vreinterpretq_u32_f32(a.hi));
    return vget_lane_f32(vreinterpret_f32_u32(vdup_n_u32(vmaxvq_u32(m))), 0);
}
V_INLINE float v_hmax(vf a) { return vmaxvq_f32(vmaxq_f32(a.lo, a.hi)); }
V_INLINE float32x4_t v_half_of(const uint8_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}
V_INLINE vf v_half(const void *p)
{
    return (vf){v_half_of((const uint8_t *)p), v_half_of((const uint8_t *)p + 8)};
}
V_INLINE vf v_half_all(uint16_t h)
{
    const float32x4_t f = vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h)));
    return (vf){f, f};
}
V_INLINE vf v_bfloat(const void *p)
{
    const uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8((const uint8_t *)p));
    return (vf){vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)),
                vreinterpretq_f32_u32(vshll_high_n_u16(h, 16))};
}
V_INLINE void v_to_half(void *p, vf a)
{
    vst1_u8((uint8_t *)p, vreinterpret_u8_f16(vcvt_f16_f32(a.lo)));
    vst1_u8((uint8_t *)p + 8, vreinterpret_u8_f16(vcvt_f16_f32(a.hi)));
}
V_INLINE vf v_of_bytes(int8x8_t b)
{
    const int16x8_t w = vmovl_s8(b);
    return (vf){vcvtq_f32_s32(vmovl_s16(vget_low_s16(w))), vcvtq_f32_s32(vmovl_high_s16(w))};
}
V_INLINE vf v_int8(const void *p) { return v_of_bytes(vld1_s8((const int8_t *)p)); }
struct v_sums {
    int32x4_t lo, hi;
};
struct v_words {
    int16x8_t first, second; /* of each pair */
};
#define vi struct v_sums
#define vw struct v_words
#define vq int16x4_t
V_INLINE vi v_none(void) { return (vi){vdupq_n_s32(0), vdupq_n_s32(0)}; }
V_INLINE vw v_words(const void *p)
{
    const int8x8x2_t b = vld2_s8((const int8_t *)p);
    return (vw){vmovl_s8(b.val[0]), vmovl_s8(b.val[1])};
}
V_INLINE vq v_words_all(const int16_t *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return vreinterpret_s16_s32(vdup_n_s32(pair));
}
V_INLINE vi v_dot(vi sum, vw a, vq b)
{
    sum.lo = vmlal_lane_s16(sum.lo, vget_low_s16(a.first), b, 0);
    sum.hi = vmlal_high_lane_s16(sum.hi, a.first, b, 0);
    sum.lo = vmlal_lane_s16(sum.lo, vget_low_s16(a.second), b, 1);
    sum.hi = vmlal_high_lane_s16(sum.hi, a.second, b, 1);
    return sum;
}
V_INLINE vf v_float(vi a) { return (vf){vcvtq_f32_s32(a.lo), vcvtq_f32_s32(a.hi)}; }
V_INLINE void v_to_words(int16_t *p, vf a)
{
    const int16x4_t lo = vqmovn_s32(vcvtnq_s32_f32(a.lo));
    vst1q_s16(p, vqmovn_high_s32(lo, vcvtnq_s32_f32(a.hi)));
}
V_INLINE void v_int8_pair(const void *p, vf *first, vf *second)
{
    const int8x8x2_t b = vld2_s8((const int8_t *)p);
    *first = v_of_bytes(b.val[0]);
    *second = v_of_bytes(b.val[1]);
}
#define V_BYTE_UNIT 1.0f
V_INLINE vf v_byte(const void *p, uint32_t second)
{
    const int8x8x2_t b = vld2_s8((const int8_t *)p);
    return v_of_bytes(second ? b.val[1] : b.val[0]);
}
V_INLINE vf v_int4(const void *p)
{
    uint32_t word;
    memcpy(&word, p, sizeof word);
    const uint8x8_t b = vreinterpret_u8_u32(vdup_n_u32(word));
    const uint8x8_t n = vzip1_u8(vand_u8(b, vdup_n_u8(15)), vshr_n_u8(b, 4));
    return v_of_bytes(vsub_s8(vreinterpret_s8_u8(n), vdup_n_s8(8)));
}
V_INLINE void v_int4_pair(const void *p, vf *low, vf *high)
{
    const uint8x8_t b = vld1_u8((const uint8_t *)p);
    const int8x8_t eight = vdup_n_s8(8);
    *low = v_of_bytes(vsub_s8(vreinterpret_s8_u8(vand_u8(b, vdup_n_u8(15))), eight));
    *high = v_of_bytes(vsub_s8(vreinterpret_s8_u8(vshr_n_u8(b, 4)), eight));
}
/* Four rows of four become columns. */
V_INLINE void v_transpose4(const float32x4_t in[4], float32x4_t out[4])
{
    float32x4_t a[4];
    for (int i = 0; i < 2; i++) { /* rows i and i + 2, lane by lane */
        a[i] = vzip1q_f32(in[i], in[i + 2]);
        a[i + 2] = vzip2q_f32(in[i], in[i + 2]);
    }
    out[0] = vzip1q_f32(a[0], a[1]);
    out[1] = vzip2q_f32(a[0], a[1]);
    out[2] = vzip1q_f32(a[2], a[3]);
    out[3] = vzip2q_f32(a[2], a[3]);
}
V_INLINE void v_transpose(vf m[8])
{
    float32x4_t quarter[4][4];
    for (int i = 0; i < 4; i++) {
        quarter[0][i] = m[i].lo;
        quarter[1][i] = m[i].hi;
        quarter[2][i] = m[i + 4].lo;
        quarter[3][i] = m[i + 4].hi;
    }
    for (int q = 0; q < 4; q++) {
        float32x4_t t[4];
        v_transpose4(quarter[q], t);
        for (int i = 0; i < 4; i++)
            quarter[q][i] = t[i];
    }
    for (int i = 0; i < 4; i++) {
        m[i] = (vf){quarter[0][i], quarter[2][i]};
        m[i + 4] = (vf){quarter[1][i], quarter[3][i]};
    }
}

#endif
