/* Tensor types: the table, and exact dequantisation. Pure; any thread.
 * Formulas: the GGUF block formats; results are bit-equal to gguf-py's float32 arithmetic, so the
 * order of the multiplications and additions below is part of the contract. */
#include "kernels/kernels.h"

#include "kernels/blocks.h"
#include "kernels/half.h"

/* One line per supported type: GGUF id, name, elements and bytes per block, quant offset. */
#define TYPES(X)                                                                                   \
    X(F32, 1, 4, 0)                                                                                \
    X(F16, 1, 2, 0)                                                                                \
    X(BF16, 1, 2, 0)                                                                               \
    X(Q4_0, 32, 18, 8)                                                                             \
    X(Q4_1, 32, 20, 0)                                                                             \
    X(Q5_0, 32, 22, 16)                                                                            \
    X(Q5_1, 32, 24, 0)                                                                             \
    X(Q8_0, 32, 34, 128)                                                                           \
    X(Q4_K, 256, 144, 0)                                                                           \
    X(Q5_K, 256, 176, 0)                                                                           \
    X(Q6_K, 256, 210, 32)

const struct kr_type_info *kr_type_info(uint32_t type)
{
    switch (type) {
#define X(id, elems, bytes, offset)                                                                \
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
#define X(id, elems, bytes, offset) ", " #id
    static const char list[] = "" TYPES(X);
#undef X
    return list + 2;
}

uint32_t kr_block_offset(enum kr_type type)
{
    switch (type) {
#define X(id, elems, bytes, offset)                                                                \
    case KR_##id:                                                                                  \
        return offset;
        TYPES(X)
#undef X
    }
    return 0;
}

static void nibbles(const uint8_t *p, uint8_t q[KR_SUB])
{
    for (int j = 0; j < 16; j++) {
        q[j] = p[j] & 15;
        q[j + 16] = p[j] >> 4;
    }
}

static void fifth_bits(const uint8_t *p, uint8_t q[KR_SUB])
{
    uint32_t bits = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                    (uint32_t)p[3] << 24;
    for (int i = 0; i < KR_SUB; i++) q[i] |= (uint8_t)((bits >> i & 1) << 4);
}

/* Q4_K and Q5_K keep two subs in 32 bytes: the even one in the low nibbles. */
static void k_nibbles(const uint8_t *p, uint32_t sub, uint8_t q[KR_SUB])
{
    unsigned shift = 4 * (sub & 1);
    p += 32 * (sub / 2);
    for (int l = 0; l < KR_SUB; l++) q[l] = p[l] >> shift & 15;
}

static void q6_quants(const uint8_t *block, uint32_t sub, uint8_t q[KR_SUB])
{
    uint32_t half = sub / 4, k = sub % 4;
    const uint8_t *low = block + 64 * half + 32 * (k & 1), *high = block + 128 + 32 * half;
    unsigned low_shift = 4 * (k >> 1), high_shift = 2 * k;
    for (int l = 0; l < KR_SUB; l++)
        q[l] = (uint8_t)((low[l] >> low_shift & 15) | (high[l] >> high_shift & 3) << 4);
}

void kr_block_quants(enum kr_type type, const uint8_t *block, uint32_t sub, uint8_t q[KR_SUB])
{
    switch (type) {
    case KR_Q4_0:
        nibbles(block + 2, q);
        break;
    case KR_Q4_1:
        nibbles(block + 4, q);
        break;
    case KR_Q5_0:
        nibbles(block + 6, q);
        fifth_bits(block + 2, q);
        break;
    case KR_Q5_1:
        nibbles(block + 8, q);
        fifth_bits(block + 4, q);
        break;
    case KR_Q8_0:
        for (int i = 0; i < KR_SUB; i++) q[i] = block[2 + i] ^ 0x80;
        break;
    case KR_Q4_K:
        k_nibbles(block + 16, sub, q);
        break;
    case KR_Q5_K:
        k_nibbles(block + 48, sub, q);
        for (int l = 0; l < KR_SUB; l++) q[l] |= (uint8_t)((block[16 + l] >> sub & 1) << 4);
        break;
    case KR_Q6_K:
        q6_quants(block, sub, q);
        break;
    case KR_F32:
    case KR_F16:
    case KR_BF16:
        cn_assert(!"a type without quants");
    }
}

void kr_block_k_scale(const uint8_t *block, uint32_t sub, uint8_t *scale, uint8_t *min)
{
    const uint8_t *s = block + 4;
    if (sub < 4) {
        *scale = s[sub] & 63;
        *min = s[sub + 4] & 63;
    } else {
        *scale = (uint8_t)((s[sub + 4] & 15) | s[sub - 4] >> 6 << 4);
        *min = (uint8_t)(s[sub + 4] >> 4 | s[sub] >> 6 << 4);
    }
}

static void dequantize_sub(enum kr_type type, const uint8_t *block, uint32_t sub, float *dst)
{
    uint8_t q[KR_SUB];
    kr_block_quants(type, block, sub, q);
    if (type == KR_Q4_1 || type == KR_Q5_1) {
        float d = kr_f16_f32(kr_load_u16(block)), m = kr_f16_f32(kr_load_u16(block + 2));
        for (int i = 0; i < KR_SUB; i++) dst[i] = d * (float)q[i] + m;
    } else if (type == KR_Q4_K || type == KR_Q5_K) {
        uint8_t sc, mn;
        kr_block_k_scale(block, sub, &sc, &mn);
        float d = kr_f16_f32(kr_load_u16(block)) * (float)sc;
        float m = kr_f16_f32(kr_load_u16(block + 2)) * (float)mn;
        for (int i = 0; i < KR_SUB; i++) dst[i] = d * (float)q[i] - m;
    } else if (type == KR_Q6_K) {
        const int8_t *sc = (const int8_t *)block + 192 + 2 * sub;
        float d = kr_f16_f32(kr_load_u16(block + 208));
        float scale[2] = {d * (float)sc[0], d * (float)sc[1]};
        for (int i = 0; i < KR_SUB; i++) dst[i] = scale[i / 16] * (float)(q[i] - 32);
    } else {
        int offset = (int)kr_block_offset(type);
        float d = kr_f16_f32(kr_load_u16(block));
        for (int i = 0; i < KR_SUB; i++) dst[i] = d * (float)(q[i] - offset);
    }
}

void kr_dequantize_row(enum kr_type type, const void *src, float *dst, size_t n)
{
    const uint8_t *p = src;
    if (type == KR_F32) {
        if (n > 0) memcpy(dst, p, n * sizeof(float));
    } else if (type == KR_F16) {
        for (size_t i = 0; i < n; i++) dst[i] = kr_f16_f32(kr_load_u16(p + 2 * i));
    } else if (type == KR_BF16) {
        for (size_t i = 0; i < n; i++) dst[i] = kr_bf16_f32(kr_load_u16(p + 2 * i));
    } else {
        const struct kr_type_info *info = kr_type_info(type);
        cn_assert(info && n % info->block_elems == 0);
        for (size_t i = 0; i < n; i += info->block_elems, p += info->block_bytes)
            for (uint32_t sub = 0; sub < info->block_elems / KR_SUB; sub++)
                dequantize_sub(type, p, sub, dst + i + sub * KR_SUB);
    }
}
