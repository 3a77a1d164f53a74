/* What is inside a quantised block of a GGUF tensor. Private to kernels/: blocks.c implements it,
 * types.c, the packer and the tests use it. Pure.
 *
 * Every quantised type is seen as runs of 32 columns ("subs"): 32 unsigned quants and, for each
 * half of 16, value = scale[half] * number + min[half], where the number is quant - offset or, for
 * the types that have one, table[quant]; only some types have a min. */
#ifndef KERNELS_BLOCKS_H
#define KERNELS_BLOCKS_H

#include "kernels/kernels.h"

#define KR_SUB 32

/* The 32 quants of sub `sub` of a block, as unsigned numbers: Q8_0's are biased by 128. */
void kr_block_quants(enum kr_type type, const uint8_t *block, uint32_t sub, uint8_t q[KR_SUB]);
/* Q4_K and Q5_K: the 6-bit scale and min of a sub. */
void kr_block_k_scale(const uint8_t *block, uint32_t sub, uint8_t *scale, uint8_t *min);
/* The i-th integer scale: of 32 columns (IQ3_S, IQ4_XS) or of 16 (Q3_K, Q6_K; Q2_K: the scale in
 * the low nibble, the min in the high one). */
int8_t kr_block_scale(enum kr_type type, const uint8_t *block, uint32_t i);
/* MXFP4: 2^(e - 128), half of what the exponent says, for kr_block_table doubles the values. */
float kr_block_e8m0_half(uint8_t e);
/* Where the f16 scale is; the f16 min of types that have one follows it. Not for MXFP4. */
uint32_t kr_block_d_at(enum kr_type type);
/* IQ3_S: four octal digits an entry, the lowest first; digit n is the magnitude 2 n + 1. */
extern const uint16_t kr_iq3s_grid[512];
/* What is subtracted from a quant: 1, 4, 8, 16, 32 or 128; 0 for types with a min or a table. */
uint32_t kr_block_offset(enum kr_type type);
/* The 16 numbers that 4-bit quants stand for: in IQ4_NL and IQ4_XS steps that grow with the
 * distance from zero, in IQ3_S the odd ones, in MXFP4 twice the values of E2M1. */
#define KR_IQ4_VALUES -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
#define KR_ODD_VALUES -15, -13, -11, -9, -7, -5, -3, -1, 1, 3, 5, 7, 9, 11, 13, 15
#define KR_FP4_VALUES 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12
/* One of them; NULL for types whose quants are numbers. */
const int8_t *kr_block_table(enum kr_type type);

#endif
