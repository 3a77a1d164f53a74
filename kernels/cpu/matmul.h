/* CPU matrix products: packed weights, quantised activations, kernels per ISA. Private to kernels/.
 *
 * Packed layout: rows in groups of 16 so that a vector lane is an output row (a group past the last
 * row is padded with zeros); along a row in blocks of 32 columns (256 for K types' outer scales).
 * The layout is one for every ISA. Activations are quantised once per input: int8 in blocks of 32
 * with a float32 scale each, and the blocks' sums for offsets.
 * Each output element is summed block by block in column order whatever the number of rows, so a
 * row's bytes do not depend on its neighbours (kernels/kernels.h, promise 1).
 * Float types (F32, F16, BF16) multiply float32 activations without quantising. */
#ifndef KERNELS_CPU_MATMUL_H
#define KERNELS_CPU_MATMUL_H

#include "kernels/kernels.h"

#define KR_PACK_ROWS 16

struct kr_packed {
    enum kr_type type;
    uint32_t rows, cols;  /* cols a multiple of the type's block (floats: any) */
    void *data;           /* 64-byte aligned, kr_packed_bytes long */
};
uint64_t kr_packed_bytes(enum kr_type type, uint32_t rows, uint32_t cols);
/* Packs row groups [g0, g1) of a tensor (row r's bytes at src + r * row bytes). Any thread. */
void kr_pack(const struct kr_packed *w, const void *src, uint32_t g0, uint32_t g1);
bool kr_type_wants_q8(enum kr_type type); /* false: float activations */

/* Quantised rows: n rows of cols values; cols padded to 32. Memory is the caller's. */
struct kr_q8 {
    uint32_t n, cols;
    int8_t *q;       /* [n][padded cols] */
    float *scale;    /* [n][padded cols / 32] */
    int32_t *sum;    /* [n][padded cols / 16]: sums of q over 16 values (Q6_K needs halves) */
};
uint64_t kr_q8_bytes(uint32_t n, uint32_t cols);
void kr_q8_place(struct kr_q8 *q, void *mem, uint32_t n, uint32_t cols);

struct kr_matmul_kernels {
    const char *name;
    /* Quantises rows [r0, r1) of x (row stride x_stride floats) into q. */
    void (*quantize)(struct kr_q8 *q, const float *x, size_t x_stride, uint32_t r0, uint32_t r1);
    /* out[r * out_stride + o] = sum for output rows o of groups [g0, g1) and input rows [r0, r1)
     * (+ bias[o] when not NULL). q for quantised types, x/x_stride for float types. */
    void (*matmul)(const struct kr_packed *w, uint32_t g0, uint32_t g1, const struct kr_q8 *q,
                   const float *x, size_t x_stride, uint32_t r0, uint32_t r1, const float *bias,
                   float *out, size_t out_stride);
};
/* Fill the table for an ISA; generic always works. */
void kr_matmul_generic(struct kr_matmul_kernels *k);
void kr_matmul_avx2(struct kr_matmul_kernels *k);   /* x86-64 builds only; caller checked CPUID */
void kr_matmul_avx512(struct kr_matmul_kernels *k);

#endif
