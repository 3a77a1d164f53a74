/* probe for I8MM: NEON's, with products of matrices of bytes. Pure; any thread. */
#include "kernels/cpu/neon/probe_neon.h"

INT8_PRODUCTS(vmmlaq_s32, 32)

void kr_probe_i8mm(struct kr_probe_ops *o)
{
    kr_probe_neon(o);
    o->int8 = int8_products;
}
