/* probe: what bounds the kernels, per ISA: bytes read, int8 products, fused multiply-adds. Private
 * to kernels/cpu. Pure but for the memory that is read; any thread. */
#ifndef KERNELS_CPU_PROBE_H
#define KERNELS_CPU_PROBE_H

#include "base/base.h"

struct kr_probe_ops {
    /* Reads n bytes (a multiple of 1024, 64-byte aligned) once, in order. */
    void (*read)(const void *p, size_t n);
    /* `rounds` rounds of independent chains of products in registers; returns the operations done,
     * two for each multiply and add. */
    uint64_t (*int8)(uint32_t rounds);
    uint64_t (*fma)(uint32_t rounds);
};
void kr_probe_generic(struct kr_probe_ops *o);
/* Each in builds for its processor only; use kr_ops_fill. */
void kr_probe_avx2(struct kr_probe_ops *o);
void kr_probe_avxvnni(struct kr_probe_ops *o);
void kr_probe_avx512(struct kr_probe_ops *o);
void kr_probe_neon(struct kr_probe_ops *o);
void kr_probe_i8mm(struct kr_probe_ops *o);

#endif
