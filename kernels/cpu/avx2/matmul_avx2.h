/* What the AVX2 files share. Private to kernels/cpu/avx2.
 * The quantised products are compiled a second time, for AVX-VNNI. */
#ifndef KERNELS_CPU_AVX2_MATMUL_AVX2_H
#define KERNELS_CPU_AVX2_MATMUL_AVX2_H

#include "kernels/cpu/matmul.h"

#if defined(__AVXVNNI__)
#define kr_matmul_avx2 kr_matmul_avxvnni
#define kr_avx2_quants kr_avxvnni_quants
#define KR_AVX2_NAME   "avxvnni"
#else
#define KR_AVX2_NAME "avx2"
#endif

void kr_avx2_quants(const struct kr_packed *w, uint32_t g0, uint32_t g1, const struct kr_q8 *q,
                    uint32_t r0, uint32_t r1, const float *bias, float *out, size_t out_stride);
void kr_avx2_floats(const struct kr_packed *w, uint32_t g0, uint32_t g1, const float *x,
                    size_t x_stride, uint32_t r0, uint32_t r1, const float *bias, float *out,
                    size_t out_stride);

#endif
