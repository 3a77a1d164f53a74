/* Where each bit of a packed matrix lies. Private to kernels/cpu.
 *
 * A matrix is groups of 16 rows, one after another, each a multiple of 64 bytes and 64-aligned.
 * Float types: column after column, 16 elements each (padded to 64 bytes at the end of a group).
 * Quantised types: a group is a plane of headers, padded to 64 bytes, then a plane of quants.
 *
 * Quants, per block of 32 columns; "word i" of a row is its columns 4i..4i+3, one byte each:
 *   2 bits: two vectors, bits 2f..2f+1 of byte t of vector v are column 4(4v+f)+t
 *   3 bits: one vector, bit i of a row's byte t is bit 2 of column 4i+t; then as 2 bits
 *   4 bits: 4 vectors of 16 rows x 4 bytes; in vector k low nibbles are word k, high ones word k+4
 *   5 bits: one vector, bit i of a row's byte t is bit 4 of column 4i+t; then as 4 bits
 *   6 bits: bits 4..5 as 2 bits; then the others as 4 bits
 *   8 bits: 8 vectors, vector i is word i (Q8_0: biased by 128, so unsigned)
 *   IQ4, FP4, ODD: as 4 bits; the nibbles stand for the numbers of a table
 * Kernels make of 2 and 3 bits eight times the number, so that the sums for offsets are those of
 * other types (8 for ternary ones, 32 for Q3_K), and divide the scale by 8.
 * Headers:
 *   D:  per block 16 f16 scales                     (Q4_0 Q5_0 Q8_0 IQ4_NL)
 *   DM: per block 16 f16 scales, 16 f16 mins        (Q4_1 Q5_1)
 *   K:  per 256 columns 16 f16 d, 16 f16 dmin, then per block 16 u8 scales, 16 u8 mins (Q4_K Q5_K)
 *   K6: per 256 columns 16 f32 d, then per block 2 x 16 i8 scales, one per half (Q6_K; Q3_K: d / 8)
 *   K2: per 256 columns 16 f16 d, 16 f16 dmin, then per block 16 pairs of u8, one per half: the
 *       scale in the low nibble, the min in the high one                              (Q2_K)
 *   T:  per 256 columns 16 f16 d                                                (TQ1_0 TQ2_0)
 *   KX: per 256 columns 16 f16 d, then per block 16 i8 scales                   (IQ3_S IQ4_XS)
 *   E:  per block 16 u8, each the exponent bits of its scale as a float32; scales below 2^-126
 *       count as zero, for subnormals are slow                                        (MXFP4) */
#ifndef KERNELS_CPU_PACK_H
#define KERNELS_CPU_PACK_H

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "kernels/blocks.h"
#include "kernels/cpu/matmul.h"

enum kr_header {
    KR_HDR_NONE,
    KR_HDR_D,
    KR_HDR_DM,
    KR_HDR_K,
    KR_HDR_K6,
    KR_HDR_K2,
    KR_HDR_KX,
    KR_HDR_T,
    KR_HDR_E
};
/* Beside numbers of bits: nibbles that stand for numbers. */
enum { KR_BITS_IQ4 = 16 + 4, KR_BITS_FP4 = 32 + 4, KR_BITS_ODD = 48 + 4 };

struct kr_layout {
    uint8_t bits;          /* of a quant: 2, 3, 4, 5, 6, 8, KR_BITS_...; of a float: 16, 32 */
    uint8_t header;        /* enum kr_header */
    uint8_t offset_shift;  /* the offset is 1 << this; 0 = no offset */
    uint8_t header_blocks; /* blocks of 32 columns per header */
    uint16_t header_bytes;
    uint16_t quant_bytes; /* per block */
};
/* The type must be one that kr_type_info knows. */
const struct kr_layout *kr_layout(enum kr_type type);

/* The header of a block is at headers + kr_header_at(l, block); what is a block's own of a header
 * for 256 columns is at kr_sub_scales_at inside it. */
static inline size_t kr_header_at(const struct kr_layout *l, uint32_t block)
{
    return (size_t)(block / l->header_blocks) * l->header_bytes;
}
static inline size_t kr_sub_scales_at(const struct kr_layout *l, uint32_t block)
{
    return l->header == KR_HDR_KX ? 32 + 16 * (block % 8) : 64 + 32 * (block % 8);
}
static inline size_t kr_header_plane_bytes(const struct kr_layout *l, uint32_t cols)
{
    size_t units = cols / KR_SUB / l->header_blocks;
    return (units * l->header_bytes + 63) & ~(size_t)63;
}
static inline size_t kr_group_bytes(const struct kr_layout *l, uint32_t cols)
{
    if (l->header == KR_HDR_NONE)
        return ((size_t)cols * KR_PACK_ROWS * (l->bits / 8) + 63) & ~(size_t)63;
    return kr_header_plane_bytes(l, cols) + (size_t)(cols / KR_SUB) * l->quant_bytes;
}

/* What scales of 2 and 3 bits are multiplied with: exact. */
#define KR_EIGHTH 0.125f

/* The starts of a block whose halves' quants add up to sum0 and sum1. */
static inline void kr_q8_starts(struct kr_q8_block *b, int32_t sum0, int32_t sum1)
{
    b->start[0] = KR_SUM_BIAS - 8 * (sum0 + sum1);
    b->start[1] = KR_SUM_BIAS - 16 * (sum0 + sum1);
    b->start[2] = KR_SUM_BIAS - 128 * (sum0 + sum1);
    b->half_start[0] = KR_SUM_BIAS - 32 * sum0;
    b->half_start[1] = KR_SUM_BIAS - 32 * sum1;
    b->half_sum[0] = (int16_t)sum0;
    b->half_sum[1] = (int16_t)sum1;
}

/* A block whose values are all next to nothing, or of which one is no finite number: then so are
 * the sums that it takes part in. */
static inline void kr_q8_flat(struct kr_q8_block *b, bool bad)
{
    memset(b, 0, sizeof(*b));
    kr_q8_starts(b, 0, 0);
    b->scale = b->scaled_sum = bad ? NAN : 0;
}

/* Where in a block that start is which belongs to the offset of a type's quants. */
static inline uint32_t kr_q8_start_at(const struct kr_layout *l)
{
    const uint32_t size = sizeof(int32_t), at = offsetof(struct kr_q8_block, start);
    return l->offset_shift == 3 ? at : l->offset_shift == 4 ? at + size : at + 2 * size;
}

/* Quantises rows [r0, r1) by blocks of KR_SUB values: each by `block`, the last padded with
 * zeros. */
static inline __attribute__((always_inline)) void kr_q8_rows(
    struct kr_q8 *q, const float *x, size_t x_stride, uint32_t r0, uint32_t r1,
    void (*block)(const float *x, struct kr_q8_block *block))
{
    const uint32_t whole = q->cols / KR_SUB, tail = q->cols % KR_SUB;
    for (uint32_t r = r0; r < r1; r++) {
        struct kr_q8_block *blocks = q->blocks + (size_t)r * q->stride;
        const float *row = x + r * x_stride;
        for (uint32_t b = 0; b < whole; b++)
            block(row + b * KR_SUB, blocks + b);
        if (tail) {
            float last[KR_SUB] = {0};
            memcpy(last, row + whole * KR_SUB, tail * sizeof(float));
            block(last, blocks + whole);
        }
    }
}

#endif
