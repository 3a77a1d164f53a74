/* Products of float weights for AVX2: the shared vector code, 8 lanes. Pure but for the outputs. */
#include "kernels/cpu/avx2/matmul_avx2.h"
#include "kernels/cpu/floats_simd.h"

FLOATS(kr_avx2_floats)
