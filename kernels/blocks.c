/* Inside the blocks of quantised types: quants, scales, offsets, tables. Pure; any thread.
 * Facts of the GGUF block formats. */
#include "kernels/blocks.h"

#include "kernels/half.h"

uint32_t kr_block_d_at(enum kr_type type)
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

uint32_t kr_block_offset(enum kr_type type)
{
    switch (type) {
    case KR_TQ1_0:
    case KR_TQ2_0:
        return 1;
    case KR_Q3_K:
        return 4;
    case KR_Q4_0:
        return 8;
    case KR_Q5_0:
        return 16;
    case KR_Q6_K:
        return 32;
    case KR_Q8_0:
        return 128;
    default:
        return 0;
    }
}

const int8_t *kr_block_table(enum kr_type type)
{
    static const int8_t iq4[16] = {KR_IQ4_VALUES}, odd[16] = {KR_ODD_VALUES};
    static const int8_t fp4[16] = {KR_FP4_VALUES};
    switch (type) {
    case KR_IQ3_S:
        return odd;
    case KR_IQ4_NL:
    case KR_IQ4_XS:
        return iq4;
    case KR_MXFP4:
        return fp4;
    default:
        return NULL;
    }
}

/* Bytes go eight at a time: loading would be slower than a disk otherwise. */
#define EACH_BYTE 0x0101010101010101u

/* q = (low >> low_shift & low_mask) | (high >> high_shift & high_mask) << at, byte by byte. */
static inline void two_fields(const uint8_t *low, unsigned low_shift, unsigned low_mask,
                              const uint8_t *high, unsigned high_shift, unsigned high_mask,
                              unsigned at, uint8_t q[KR_SUB])
{
    for (int i = 0; i < KR_SUB; i += 8) {
        uint64_t v = cn_load64(low + i) >> low_shift & low_mask * EACH_BYTE;
        v |= (cn_load64(high + i) >> high_shift & high_mask * EACH_BYTE) << at;
        memcpy(q + i, &v, sizeof v);
    }
}

static inline void one_field(const uint8_t *p, uint32_t n, unsigned shift, unsigned mask,
                             uint8_t *q)
{
    for (uint32_t i = 0; i < n; i += 8) {
        uint64_t v = cn_load64(p + i) >> shift & mask * EACH_BYTE;
        memcpy(q + i, &v, sizeof v);
    }
}

static void nibbles(const uint8_t *p, uint8_t q[KR_SUB])
{
    one_field(p, 16, 0, 15, q);
    one_field(p, 16, 4, 15, q + 16);
}

/* Bit i of the four bytes goes to q[i]. */
static void fifth_bits(const uint8_t *p, uint8_t q[KR_SUB])
{
    for (int i = 0; i < KR_SUB; i += 8)
        for (int bit = 0; bit < 8; bit++)
            q[i + bit] |= (uint8_t)((p[i / 8] >> bit & 1) << 4);
}

/* Q4_K and Q5_K keep two subs in 32 bytes: the even one in the low nibbles. */
static void k_nibbles(const uint8_t *p, uint32_t sub, uint8_t q[KR_SUB])
{
    one_field(p + 32 * (sub / 2), KR_SUB, 4 * (sub & 1), 15, q);
}

static void q6_quants(const uint8_t *block, uint32_t sub, uint8_t q[KR_SUB])
{
    uint32_t half = sub / 4, k = sub % 4;
    const uint8_t *low = block + 64 * half + 32 * (k & 1), *high = block + 128 + 32 * half;
    two_fields(low, 4 * (k >> 1), 15, high, 2 * k, 3, 4, q);
}

/* Four subs in 32 bytes, two bits of each. */
static void two_bits(const uint8_t *p, uint32_t sub, uint8_t q[KR_SUB])
{
    one_field(p + 32 * (sub / 4), KR_SUB, 2 * (sub % 4), 3, q);
}

/* TQ1_0: bytes of five ternary digits, the first one the highest: digit n is the integer part of
 * 3 * frac(3^n * byte / 256). 32 bytes of five, 16 of five, 4 of four. */
static void trits(const uint8_t *p, uint32_t sub, uint8_t q[KR_SUB])
{
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    for (uint32_t l = 0; l < KR_SUB; l++) {
        uint32_t i = KR_SUB * sub + l, run = i < 160 ? 32 : i < 240 ? 16 : 4;
        uint32_t at = i < 160 ? 0 : i < 240 ? 32 : 48, from = i < 160 ? 0 : i < 240 ? 160 : 240;
        uint8_t rest = (uint8_t)(p[at + (i - from) % run] * power[(i - from) / run]);
        q[l] = (uint8_t)(rest * 3 >> 8);
    }
}

/* IQ3_S: nine bits choose four odd magnitudes, whose signs come apart; each becomes the place in
 * the table of odd numbers. */
static void odd_places(const uint8_t *block, uint32_t sub, uint8_t q[KR_SUB])
{
    const uint8_t *low = block + 2 + 8 * sub, *signs = block + 74 + 4 * sub;
    const uint32_t high = block[66 + sub];
    for (uint32_t i = 0; i < KR_SUB; i++) {
        uint32_t four = i / 4, entry = low[four] | (high >> four & 1) << 8;
        uint8_t digit = kr_iq3s_grid[entry] >> 3 * (i % 4) & 7;
        q[i] = signs[i / 8] >> i % 8 & 1 ? 7 - digit : 8 + digit;
    }
}

void kr_block_quants(enum kr_type type, const uint8_t *block, uint32_t sub, uint8_t q[KR_SUB])
{
    switch (type) {
    case KR_Q4_0:
    case KR_IQ4_NL:
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
        for (int i = 0; i < KR_SUB; i++)
            q[i] = block[2 + i] ^ 0x80;
        break;
    case KR_Q2_K:
        two_bits(block + 16, sub, q);
        break;
    case KR_Q3_K:
        two_fields(block + 32 + 32 * (sub / 4), 2 * (sub % 4), 3, block, sub, 1, 2, q);
        break;
    case KR_Q4_K:
        k_nibbles(block + 16, sub, q);
        break;
    case KR_Q5_K:
        two_fields(block + 48 + 32 * (sub / 2), 4 * (sub & 1), 15, block + 16, sub, 1, 4, q);
        break;
    case KR_Q6_K:
        q6_quants(block, sub, q);
        break;
    case KR_IQ3_S:
        odd_places(block, sub, q);
        break;
    case KR_IQ4_XS:
        nibbles(block + 8 + 16 * sub, q);
        break;
    case KR_TQ1_0:
        trits(block, sub, q);
        break;
    case KR_TQ2_0:
        two_bits(block, sub, q);
        break;
    case KR_MXFP4:
        nibbles(block + 1, q);
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

int8_t kr_block_scale(enum kr_type type, const uint8_t *block, uint32_t i)
{
    unsigned low, high;
    switch (type) {
    case KR_Q2_K:
        return (int8_t)block[i];
    case KR_Q6_K:
        return (int8_t)block[192 + i];
    case KR_Q3_K:
        low = block[96 + i % 8] >> 4 * (i / 8) & 15;
        high = block[104 + i % 4] >> 2 * (i / 4) & 3;
        return (int8_t)((int)(low | high << 4) - 32);
    case KR_IQ3_S:
        return (int8_t)(1 + 2 * (block[106 + i / 2] >> 4 * (i % 2) & 15));
    default: /* IQ4_XS */
        low = block[4 + i / 2] >> 4 * (i % 2) & 15;
        high = kr_load_u16(block + 2) >> 2 * i & 3u;
        return (int8_t)((int)(low | high << 4) - 32);
    }
}

float kr_block_e8m0_half(uint8_t e)
{
    return kr_bits_f32(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}
