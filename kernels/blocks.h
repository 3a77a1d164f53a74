/* What is inside a quantised block of a GGUF tensor. Private to kernels/: types.c implements it,
 * the packer and the tests use it. Pure.
 *
 * Every quantised type is seen as runs of 32 columns ("subs"): 32 unsigned quants and, for each
 * half of 16, value = scale[half] * (quant - offset), plus `min` for the types that have one. */
#ifndef KERNELS_BLOCKS_H
#define KERNELS_BLOCKS_H

#include "kernels/kernels.h"

#define KR_SUB 32

/* The 32 quants of sub `sub` of a block, as unsigned numbers: Q8_0's are biased by 128. */
void kr_block_quants(enum kr_type type, const uint8_t *block, uint32_t sub, uint8_t q[KR_SUB]);
/* Q4_K and Q5_K: the 6-bit scale and min of a sub. */
void kr_block_k_scale(const uint8_t *block, uint32_t sub, uint8_t *scale, uint8_t *min);
/* What is subtracted from a quant: 8, 16, 32 or 128; 0 for types with a min. */
uint32_t kr_block_offset(enum kr_type type);

#endif
