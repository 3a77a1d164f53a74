/* draw: the loops over a vocabulary for neon. Pure; any thread. */
#include "kernels/draw_loops_simd.h"

const struct kr_draw_loops *kr_draw_loops_neon(void)
{
    return draw_loops();
}
