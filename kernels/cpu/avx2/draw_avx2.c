/* draw: the loops over a vocabulary for avx2. Pure; any thread. */
#include "kernels/draw_loops_simd.h"

const struct kr_draw_loops *kr_draw_loops_avx2(void)
{
    return draw_loops();
}
