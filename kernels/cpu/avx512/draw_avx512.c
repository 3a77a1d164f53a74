/* draw: the loops over a vocabulary for avx512. Pure; any thread. */
#if !defined(__clang__)
#pragma GCC target("prefer-vector-width=512") /* a tenth less time */
#endif
#include "kernels/draw_loops_simd.h"

const struct kr_draw_loops *kr_draw_loops_avx512(void)
{
    return draw_loops();
}
