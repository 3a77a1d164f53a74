/* ops other than matrix products for NEON: the shared vector code, 8 lanes. Pure; any thread. */
#include "kernels/cpu/attention_simd.h"

void kr_ops_neon(struct kr_cpu_ops *o)
{
    *o = KR_OPS_HERE("neon");
}
