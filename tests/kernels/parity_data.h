/* The matrices and input rows that the parity-and-bench harness multiplies. */
#ifndef TESTS_KERNELS_PARITY_DATA_H
#define TESTS_KERNELS_PARITY_DATA_H

#include "kernels/cpu/matmul.h"
#include "tests/kernels/parity.h"

/* A random matrix as a file would hold it, packed, and as numbers. */
struct parity_weights {
    struct kr_packed packed;
    uint8_t *raw;
    float *values; /* [rows][cols] */
    float *bias;
    uint32_t groups;
};

/* Reproducible: any bytes, with scales as models have them, and some odd ones. */
void parity_weights_new(struct parity_weights *w, enum kr_type type, uint32_t rows, uint32_t cols,
                        uint64_t seed);
void parity_weights_free(struct parity_weights *w);

/* Input rows, and what the kernels are given of them. */
struct parity_inputs {
    float *x;
    size_t stride;
    uint32_t n, cols;
    struct kr_q8 q;
    void *q_mem;
};

void parity_inputs_new(struct parity_inputs *in, uint32_t n, uint32_t cols, uint64_t seed,
                       float scale);
void parity_inputs_free(struct parity_inputs *in);

/* Groups [g0, g1) times input rows [r0, r1). */
void parity_run(const struct kr_matmul_kernels *k, const struct parity_weights *w, uint32_t g0,
                uint32_t g1, const struct parity_inputs *in, uint32_t r0, uint32_t r1, bool bias,
                float *out, size_t stride);

#endif
