/* Tensor types: the table, and exact dequantisation. Pure; any thread.
 * Formulas: the GGUF block formats; results are bit-equal to gguf-py's float32 arithmetic, so the
 * order of the multiplications and additions below is part of the contract. */
#include "kernels/kernels.h"

#include "kernels/blocks.h"
#include "kernels/half.h"

/* One line per supported type: GGUF name, elements and bytes per block. */
#define TYPES(X)                                                                                   \
    X(F32, 1, 4)                                                                                   \
    X(F16, 1, 2)                                                                                   \
    X(BF16, 1, 2)                                                                                  \
    X(Q4_0, 32, 18)                                                                                \
    X(Q4_1, 32, 20)                                                                                \
    X(Q5_0, 32, 22)                                                                                \
    X(Q5_1, 32, 24)                                                                                \
    X(Q8_0, 32, 34)                                                                                \
    X(Q2_K, 256, 84)                                                                               \
    X(Q3_K, 256, 110)                                                                              \
    X(Q4_K, 256, 144)                                                                              \
    X(Q5_K, 256, 176)                                                                              \
    X(Q6_K, 256, 210)                                                                              \
    X(IQ4_NL, 32, 18)                                                                              \
    X(IQ3_S, 256, 110)                                                                             \
    X(IQ4_XS, 256, 136)                                                                            \
    X(TQ1_0, 256, 54)                                                                              \
    X(TQ2_0, 256, 66)                                                                              \
    X(MXFP4, 32, 17)

const struct kr_type_info *kr_type_info(uint32_t type)
{
    switch (type) {
#define X(id, elems, bytes)                                                                        \
    case KR_##id: {                                                                                \
        static const struct kr_type_info info = {#id, elems, bytes};                               \
        return &info;                                                                              \
    }
        TYPES(X)
#undef X
    default:
        return NULL;
    }
}

const char *kr_type_list(void)
{
#define X(id, elems, bytes) ", " #id
    static const char list[] = "" TYPES(X);
#undef X
    return list + 2;
}

/* What a sub's numbers are multiplied with, half by half, and what is then added. */
struct sub_scales {
    float scale[2], min[2];
    bool has_min;
};

static float half_at(const uint8_t *p)
{
    return kr_f16_f32(kr_load_u16(p));
}

static struct sub_scales sub_scales(enum kr_type type, const uint8_t *block, uint32_t sub)
{
    const uint8_t *at = block + kr_block_d_at(type);
    float d = type == KR_MXFP4 ? kr_block_e8m0_half(block[0]) : half_at(at);
    struct sub_scales s = {.scale = {d, d}, .has_min = false};
    switch (type) {
    case KR_Q4_1:
    case KR_Q5_1:
        s.has_min = true;
        s.min[0] = s.min[1] = half_at(at + 2);
        break;
    case KR_Q4_K:
    case KR_Q5_K: {
        uint8_t sc, mn;
        kr_block_k_scale(block, sub, &sc, &mn);
        s.has_min = true;
        s.scale[0] = s.scale[1] = d * (float)sc;
        s.min[0] = s.min[1] = -(half_at(at + 2) * (float)mn);
        break;
    }
    case KR_Q2_K:
        s.has_min = true;
        for (uint32_t h = 0; h < 2; h++) {
            uint8_t both = (uint8_t)kr_block_scale(type, block, 2 * sub + h);
            s.scale[h] = d * (float)(both & 15);
            s.min[h] = -(half_at(at + 2) * (float)(both >> 4));
        }
        break;
    case KR_Q3_K:
    case KR_Q6_K:
        for (uint32_t h = 0; h < 2; h++)
            s.scale[h] = d * (float)kr_block_scale(type, block, 2 * sub + h);
        break;
    case KR_IQ3_S:
    case KR_IQ4_XS:
        s.scale[0] = s.scale[1] = d * (float)kr_block_scale(type, block, sub);
        break;
    default:
        break;
    }
    return s;
}

static void dequantize_sub(enum kr_type type, const uint8_t *block, uint32_t sub, float *dst)
{
    const struct sub_scales s = sub_scales(type, block, sub);
    const int8_t *table = kr_block_table(type);
    const int offset = (int)kr_block_offset(type);
    uint8_t q[KR_SUB];
    kr_block_quants(type, block, sub, q);
    for (int i = 0; i < KR_SUB; i++) {
        float v = s.scale[i / 16] * (float)(table ? table[q[i]] : q[i] - offset);
        dst[i] = s.has_min ? v + s.min[i / 16] : v;
    }
}

void kr_quantize_f16(const float *src, uint16_t *dst, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = kr_f32_f16(src[i]);
}

void kr_dequantize_row(enum kr_type type, const void *src, float *dst, size_t n)
{
    const uint8_t *p = src;
    if (type == KR_F32) {
        if (n > 0) memcpy(dst, p, n * sizeof(float));
    } else if (type == KR_F16) {
        for (size_t i = 0; i < n; i++)
            dst[i] = kr_f16_f32(kr_load_u16(p + 2 * i));
    } else if (type == KR_BF16) {
        for (size_t i = 0; i < n; i++)
            dst[i] = kr_bf16_f32(kr_load_u16(p + 2 * i));
    } else {
        const struct kr_type_info *info = kr_type_info(type);
        cn_assert(info && n % info->block_elems == 0);
        for (size_t i = 0; i < n; i += info->block_elems, p += info->block_bytes)
            for (uint32_t sub = 0; sub < info->block_elems / KR_SUB; sub++)
                dequantize_sub(type, p, sub, dst + i + sub * KR_SUB);
    }
}
