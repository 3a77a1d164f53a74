/* attention_load_simd: K and V of a range of keys made float32 in a thread's scratch: for many
 * rows, for latent layers and for chosen keys. Included once by each ISA's file, through
 * attention_simd.h.
 *
 * Keys that are not visible may hold anything; those that were not chosen are not loaded. */
#ifndef KERNELS_CPU_ATTENTION_LOAD_SIMD_H
#define KERNELS_CPU_ATTENTION_LOAD_SIMD_H

#include "kernels/cpu/attention_tile_simd.h"

/* VL dims from d (a multiple of VL) on of a token's n values that lie together; 0 past them. */
V_INLINE vf dims_at(const enum kr_type type, const uint8_t *values, const uint8_t *scales,
                    uint32_t d, uint32_t n)
{
    if (d + VL > n) {
        float some[VL] = {0};
        for (uint32_t i = 0; d + i < n; i++)
            some[i] = kr_kv_value(type, values, scales, d + i);
        return v_load(some);
    }
    if (type == KR_F16) return v_half(values + 2 * (size_t)d);
    vf s = v_half_all(kr_load_u16(scales + 2 * (d / KR_KV_DIMS)));
    return v_mul(s, type == KR_Q8_0 ? v_int8(values + d) : v_int4(values + d / 2));
}

/* VL tokens from tok on, where a dim of all tokens lies together: [k_dim][VL]. */
V_INLINE void keys_at(const enum kr_type type, const struct kr_attn_tile *t, const uint8_t *keys,
                      const uint8_t *scales, uint32_t tok, float *dst)
{
    size_t bt = t->block_tokens;
    vf s = v_set(0), low = s, high = s;
    for (uint32_t d = 0; d < t->k_dim; d++, dst += VL) {
        if (type != KR_F16 && d % KR_KV_DIMS == 0)
            s = v_half(scales + 2 * (d / KR_KV_DIMS * bt + tok));
        if (type == KR_F16) {
            v_store(dst, v_half(keys + 2 * (d * bt + tok)));
        } else {
            size_t pair = d / 2 * bt + tok;
            if (d % 2 == 0 && type == KR_Q8_0) v_int8_pair(keys + 2 * pair, &low, &high);
            if (d % 2 == 0 && type == KR_Q4_0) v_int4_pair(keys + pair, &low, &high);
            v_store(dst, v_mul(s, d % 2 ? high : low));
        }
    }
}

/* The key that has lane i of vector v; lanes past the last listed one repeat it. */
static uint32_t key_of(const struct kr_attn_tile *t, uint32_t v, uint32_t i)
{
    return t->list ? t->list[CN_MIN(v * VL + i, t->n_list - 1)] : v * VL + i;
}

static void gather_keys(const struct kr_attn_tile *t, uint32_t v, const uint8_t *const *blocks,
                        float *dst)
{
    uint32_t bt = t->block_tokens;
    for (uint32_t i = 0; i < VL; i++) {
        uint32_t key = key_of(t, v, i);
        const uint8_t *b = blocks[key / bt];
        for (uint32_t d = 0; d < t->k_dim; d++)
            dst[(size_t)d * VL + i] =
                kr_kv_key(t->kv_type, b + t->at.k, b + t->at.k_scale, bt, key % bt, d);
    }
}

/* Copies t->keys as [key / VL][k_dim][VL], so that a product reads consecutive cache lines. */
static void load_keys(const struct kr_attn_tile *t, uint32_t k0, uint32_t k1,
                      const uint8_t *const *blocks)
{
    uint32_t bt = t->block_tokens;
    for (uint32_t v = k0 / VL; v * VL < k1; v++) {
        float *dst = t->keys + (size_t)v * t->k_dim * VL;
        if (t->list) {
            gather_keys(t, v, blocks, dst);
            continue;
        }
        const uint8_t *b = blocks[v * VL / bt], *keys = b + t->at.k, *scales = b + t->at.k_scale;
        uint32_t tok = v * VL % bt;
        if (t->kv_type == KR_F16)
            keys_at(KR_F16, t, keys, scales, tok, dst);
        else if (t->kv_type == KR_Q8_0)
            keys_at(KR_Q8_0, t, keys, scales, tok, dst);
        else
            keys_at(KR_Q4_0, t, keys, scales, tok, dst);
    }
}

/* Token tok's values in block b: [acc_stride], zero past v_dim. */
V_INLINE void load_value(const enum kr_type type, const struct kr_attn_tile *t, const uint8_t *b,
                         uint32_t tok, float *dst)
{
    const uint8_t *values = b + t->at.v, *scales = b + t->at.v_scale;
    if (type != KR_Q8_0) {
        values += kr_kv_bytes(type, t->v_dim) * tok;
        scales += kr_kv_scale_bytes(type, t->v_dim) * tok;
    }
    for (uint32_t d = 0; d < t->acc_stride; d += VL) {
        if (type != KR_Q8_0) {
            v_store(dst + d, dims_at(type, values, scales, d, t->v_dim));
            continue;
        }
        float some[VL] = {0};
        for (uint32_t i = 0; i < VL && d + i < t->v_dim; i++)
            some[i] = kr_kv_v(type, values, scales, t->block_tokens, t->v_dim, tok, d + i);
        v_store(dst + d, v_load(some));
    }
}

/* t->values as [key][acc_stride]. */
static void load_values(const struct kr_attn_tile *t, uint32_t k0, uint32_t k1,
                        const uint8_t *const *blocks)
{
    for (uint32_t k = k0; k < k1; k++) {
        uint32_t key = t->list ? t->list[k] : k, tok = token_of(t, key);
        const uint8_t *b = blocks[block_of(t, key)];
        float *dst = t->values + (size_t)k * t->acc_stride;
        if (t->kv_type == KR_F16)
            load_value(KR_F16, t, b, tok, dst);
        else if (t->kv_type == KR_Q8_0)
            load_value(KR_Q8_0, t, b, tok, dst);
        else
            load_value(KR_Q4_0, t, b, tok, dst);
    }
}

/* Both from a latent layer: a token's values lie together, so that keys are VL tokens
 * transposed. */
static void load_latent(const struct kr_attn_tile *t, uint32_t k0, uint32_t k1,
                        const uint8_t *const *blocks)
{
    uint32_t bt = t->block_tokens, end = CN_MAX(t->k_dim, t->acc_stride);
    for (uint32_t v = k0 / VL; v * VL < k1; v++) {
        const uint8_t *from[VL], *scales[VL];
        float *keys = t->keys + (size_t)v * t->k_dim * VL;
        float *values = t->values + (size_t)v * VL * t->acc_stride;
        for (uint32_t i = 0; i < VL; i++) {
            uint32_t key = key_of(t, v, i);
            const uint8_t *b = blocks[key / bt];
            from[i] = b + t->at.k + kr_kv_bytes(t->kv_type, t->k_dim) * (key % bt);
            scales[i] = b + t->at.k_scale + kr_kv_scale_bytes(t->kv_type, t->k_dim) * (key % bt);
        }
        for (uint32_t d = 0; d < end; d += VL) {
            vf m[VL];
            for (uint32_t i = 0; i < VL; i++)
                m[i] = dims_at(t->kv_type, from[i], scales[i], d, t->k_dim);
            for (uint32_t i = 0; d < t->acc_stride && i < VL; i++)
                v_store(values + (size_t)i * t->acc_stride + d, m[i]);
            if (d >= t->k_dim) continue;
            v_transpose(m);
            for (uint32_t i = 0; i < CN_MIN(VL, t->k_dim - d); i++)
                v_store(keys + (size_t)(d + i) * VL, m[i]);
        }
    }
}

#endif
