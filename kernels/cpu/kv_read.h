/* kv_read: how KV blocks keep values, one at a time: what vector code uses for what is left over,
 * and plain C for everything. Private to kernels/cpu.
 *
 * f16; or blocks of 32 dims with an f16 scale after all values: q8_0 int8, q4_0 two dims a byte
 * (the even one below), each less 8. q8_0 has what is multiplied and added side by side, as
 * products of integers take it: K two dims of a token, V two tokens of a dim.
 *
 * q8_0 K that is read by all of its keys (latent layers and chosen keys aside) meets queries
 * rounded to 16 bits, as 8-bit weights meet activations rounded to 8: the queries, times the
 * softmax's scale, by blocks of 32 dims; 32767 is the block's largest; nearest, ties to even. That
 * is 1/256 of what the keys' own rounding did, part of what q8_0 means, and the same on all
 * ISAs. */
#ifndef KERNELS_CPU_KV_READ_H
#define KERNELS_CPU_KV_READ_H

#include "kernels/kernels.h"
#include "kernels/half.h"

#define KR_KV_DIMS 32u /* that share a scale */

/* The largest of a query's 32 dims; when they are all this small they are 0. */
#define KR_WORD_MAX   32767.0f
#define KR_WORD_LEAST 1e-30f

/* Bytes of n values of a token, and of their scales. */
static inline uint64_t kr_kv_bytes(enum kr_type type, uint32_t n)
{
    return type == KR_F16 ? 2ull * n : type == KR_Q8_0 ? n : ((uint64_t)n + 1) / 2;
}
static inline uint64_t kr_kv_scale_bytes(enum kr_type type, uint32_t n)
{
    return type == KR_F16 ? 0 : ((uint64_t)n + KR_KV_DIMS - 1) / KR_KV_DIMS * 2;
}

static inline float kr_kv_half(const uint8_t *p, uint64_t i)
{
    return kr_f16_f32(kr_load_u16(p + 2 * i));
}

static inline float kr_kv_nibble(uint8_t byte, uint32_t d)
{
    return (float)((int)(byte >> 4 * (d & 1) & 15) - 8);
}

/* Value d of a token whose values lie together: V but of q8_0, and K of latent layers. */
static inline float kr_kv_value(enum kr_type type, const uint8_t *values, const uint8_t *scales,
                                uint32_t d)
{
    if (type == KR_F16) return kr_kv_half(values, d);
    float scale = kr_kv_half(scales, d / KR_KV_DIMS);
    if (type == KR_Q8_0) return scale * (float)(int8_t)values[d];
    return scale * kr_kv_nibble(values[d / 2], d);
}

/* Value d of token tok of n, where the same dim of all tokens lies together: K. */
static inline float kr_kv_key(enum kr_type type, const uint8_t *keys, const uint8_t *scales,
                              uint32_t n, uint32_t tok, uint32_t d)
{
    if (type == KR_F16) return kr_kv_half(keys, (uint64_t)d * n + tok);
    float scale = kr_kv_half(scales, (uint64_t)(d / KR_KV_DIMS) * n + tok);
    uint64_t pair = (uint64_t)(d / 2) * n + tok;
    if (type == KR_Q8_0) return scale * (float)(int8_t)keys[2 * pair + d % 2];
    return scale * kr_kv_nibble(keys[pair], d);
}

/* Value d of v_dim of token tok of n: V. */
static inline float kr_kv_v(enum kr_type type, const uint8_t *values, const uint8_t *scales,
                            uint32_t n, uint32_t v_dim, uint32_t tok, uint32_t d)
{
    if (type != KR_Q8_0)
        return kr_kv_value(type, values + kr_kv_bytes(type, v_dim) * tok,
                           scales + kr_kv_scale_bytes(type, v_dim) * tok, d);
    float scale = kr_kv_half(scales, (uint64_t)(d / KR_KV_DIMS) * n + tok);
    return scale * (float)(int8_t)values[2 * ((uint64_t)(tok / 2) * v_dim + d) + tok % 2];
}

#endif
