/* draw: the loops over a vocabulary for generic. Pure; any thread. */
#include "kernels/draw_loops_simd.h"

const struct kr_draw_loops *kr_draw_loops_generic(void)
{
    return draw_loops();
}
