/* ops other than matrix products for AVX2: the shared vector code, 8 lanes. Pure; any thread. */
#include "kernels/cpu/attention_simd.h"

void kr_ops_avx2(struct kr_cpu_ops *o)
{
    *o = KR_OPS_HERE("avx2");
}
