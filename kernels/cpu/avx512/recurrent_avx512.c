/* recurrences for AVX-512: the shared vector code, 16 lanes. Pure; any thread. */
#include "kernels/cpu/recurrent_simd.h"

void kr_recurrent_avx512(struct kr_recurrent_ops *o)
{
    *o = (struct kr_recurrent_ops){.conv = conv, .scan = scan, .delta = delta};
}
