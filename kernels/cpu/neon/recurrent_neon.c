/* recurrences for NEON: the shared vector code, 8 lanes. Pure; any thread. */
#include "kernels/cpu/recurrent_simd.h"

void kr_recurrent_neon(struct kr_recurrent_ops *o)
{
    *o = (struct kr_recurrent_ops){.conv = conv, .scan = scan, .delta = delta};
}
