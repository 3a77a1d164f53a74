/* CPU matrix products: packed weights, quantised activations, kernels per ISA. Private to kernels/.
 *
 * Packed layout: rows in groups of 16 so that a vector lane is an output row (a group past the last
 * row is padded with zeros); along a row in blocks of 32 columns. The layout is one for every ISA
 * (kernels/cpu/pack.h says where each bit lies). Activations are quantised once per input: int8 in
 * blocks of 32 with a float32 scale each, and the blocks' sums for offsets.
 * Each output element is summed block by block in column order whatever the number of rows, so a
 * row's bytes do not depend on its neighbours (kernels/kernels.h, promise 1), on the ranges a call
 * is split into, or on the ISA: quantised products are bit-equal on all of them, float ones too.
 * Float types (F32, F16, BF16) multiply float32 activations without quantising.
 *
 * Threads: everything here is pure but for the memory it is given; calls on disjoint row groups or
 * disjoint input rows may run at the same time. A matmul call takes up to 40 KiB of stack. */
#ifndef KERNELS_CPU_MATMUL_H
#define KERNELS_CPU_MATMUL_H

#include "kernels/kernels.h"

#define KR_PACK_ROWS 16

/* ---- processor (cpuid.c) --------------------------------------------------------------------- */

/* Whether the build has kernels for an ISA and the processor and operating system can run them. */
bool kr_cpu_has(enum kr_isa isa);
/* The best ISA for which kr_cpu_has holds: at least KR_ISA_GENERIC. */
enum kr_isa kr_cpu_best(void);

/* ---- weights (pack.c) ------------------------------------------------------------------------ */

struct kr_packed {
    enum kr_type type;
    uint32_t rows, cols; /* cols a multiple of the type's block (floats: any) */
    void *data;          /* 64-byte aligned, kr_packed_bytes long */
    /* Hint: what is read after the groups of a call, and as far behind it the next group of it;
     * NULL: the groups behind them. Memory that is not there is no harm. */
    const uint8_t *then;
    size_t then_other;
};
uint64_t kr_packed_bytes(enum kr_type type, uint32_t rows, uint32_t cols);
/* Of row groups [g0, g1): a kernel reads them once for some rows. */
uint64_t kr_group_range_bytes(const struct kr_packed *w, uint32_t g0, uint32_t g1);
/* Packs row groups [g0, g1) of a tensor (row r's bytes at src + r * row bytes). Any thread. */
void kr_pack(const struct kr_packed *w, const void *src, uint32_t g0, uint32_t g1);
bool kr_type_wants_q8(enum kr_type type); /* false: float activations */

/* ---- activations (pack.c) ---------------------------------------------------------------------
 * A block is 32 columns of a row in one cache line: scale = amax / 127, q = round to nearest even
 * of x * (127 / amax), and the sums of q that offsets and mins are multiplied with. A block with a
 * value that is not finite has scale NaN, so that its row's outputs are NaN; one whose values are
 * all below 1e-36 counts as zero. */
#define KR_SUM_BIAS 0x4b400000 /* see generic/matmul_generic.c */
struct kr_q8_block {
    int8_t q[32];
    float scale;
    float scaled_sum; /* scale * (sum of q), for types with a min */
    /* What integer sums of products start from: KR_SUM_BIAS, minus the sum of q times the offset */
    int32_t start[3];      /* 8, 16, 128 (Q4_0, Q5_0, Q8_0) */
    int32_t half_start[2]; /* 32, for each half of 16 (Q6_K) */
    int16_t half_sum[2];   /* of q, for each half of 16 (Q2_K's mins) */
};
/* n rows of cols values; cols padded to 32 with zeros. Memory is the caller's. */
struct kr_q8 {
    uint32_t n, cols;
    uint32_t stride;            /* blocks from row to row: odd, so that rows spread over a cache */
    struct kr_q8_block *blocks; /* [n][stride], 64-byte aligned */
};
uint64_t kr_q8_bytes(uint32_t n, uint32_t cols);
void kr_q8_place(struct kr_q8 *q, void *mem, uint32_t n, uint32_t cols);

/* ---- kernels --------------------------------------------------------------------------------- */

struct kr_matmul_kernels {
    const char *name;
    /* Quantises rows [r0, r1) of x (row r at x + r * x_stride) into q's rows [r0, r1). */
    void (*quantize)(struct kr_q8 *q, const float *x, size_t x_stride, uint32_t r0, uint32_t r1);
    /* out[r * out_stride + o] = sum for output rows o of groups [g0, g1) and input rows [r0, r1)
     * (+ bias[o] when not NULL). quants for types that kr_type_wants_q8, floats for the others.
     * Fastest with an even number of groups a call and all the input rows at once. */
    void (*quants)(const struct kr_packed *w, uint32_t g0, uint32_t g1, const struct kr_q8 *q,
                   uint32_t r0, uint32_t r1, const float *bias, float *out, size_t out_stride);
    void (*floats)(const struct kr_packed *w, uint32_t g0, uint32_t g1, const float *x,
                   size_t x_stride, uint32_t r0, uint32_t r1, const float *bias, float *out,
                   size_t out_stride);
};
/* Whichever of the two the type takes: q for quantised types, x/x_stride for float types. */
static inline void kr_matmul(const struct kr_matmul_kernels *k, const struct kr_packed *w,
                             uint32_t g0, uint32_t g1, const struct kr_q8 *q, const float *x,
                             size_t x_stride, uint32_t r0, uint32_t r1, const float *bias,
                             float *out, size_t out_stride)
{
    if (kr_type_wants_q8(w->type))
        k->quants(w, g0, g1, q, r0, r1, bias, out, out_stride);
    else
        k->floats(w, g0, g1, x, x_stride, r0, r1, bias, out, out_stride);
}
/* Fills the table for an ISA (AUTO: the best) and returns true; false when kr_cpu_has is.
 * (isa.c) */
bool kr_matmul_fill(enum kr_isa isa, struct kr_matmul_kernels *k);
/* Names the numeric path of an ISA that the build has. */
const char *kr_isa_path(enum kr_isa isa);
/* The tables themselves, each in builds for its processor only; for isa.c. */
void kr_matmul_generic(struct kr_matmul_kernels *k);
void kr_matmul_avx2(struct kr_matmul_kernels *k);
void kr_matmul_avxvnni(struct kr_matmul_kernels *k);
void kr_matmul_avx512(struct kr_matmul_kernels *k);
void kr_matmul_neon(struct kr_matmul_kernels *k);
void kr_matmul_i8mm(struct kr_matmul_kernels *k);

#endif
