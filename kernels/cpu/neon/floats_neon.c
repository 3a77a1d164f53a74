/* Products of float weights for NEON: the shared vector code, 8 lanes. Pure but for the outputs. */
#include "kernels/cpu/neon/matmul_neon.h"
#include "kernels/cpu/floats_simd.h"

FLOATS(kr_neon_floats)
