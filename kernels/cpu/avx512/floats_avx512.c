/* Products of float weights for AVX-512: the shared vector code, 16 lanes. Pure but for the
 * outputs. */
#include "kernels/cpu/avx512/matmul_avx512.h"
#include "kernels/cpu/floats_simd.h"

FLOATS(kr_avx512_floats)
