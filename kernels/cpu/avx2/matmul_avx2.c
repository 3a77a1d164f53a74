#include "kernels/cpu/matmul.h"
void kr_matmul_avx2(struct kr_matmul_kernels *k)
{
    kr_matmul_generic(k);
}
