/* ops other than matrix products for AVX-512: the shared vector code, 16 lanes. Pure; any
 * thread. */
#include "kernels/cpu/attention_simd.h"

void kr_ops_avx512(struct kr_cpu_ops *o)
{
    *o = KR_OPS_HERE("avx512");
}
