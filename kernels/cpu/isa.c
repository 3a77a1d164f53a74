/* isa: the ISAs by name, and where the tables of those in this build come from. Pure; any
 * thread. */
#include "kernels/cpu/ops.h"

#include "kernels/cpu/matmul.h"
#include "kernels/draw_loops.h"

#include <string.h>

/* Tables with the same numeric path give the same bytes. */
static const struct {
    const char *name, *path;
    void (*matmul)(struct kr_matmul_kernels *k);
    void (*ops)(struct kr_cpu_ops *o);
    void (*recurrent)(struct kr_recurrent_ops *o);
    void (*probe)(struct kr_probe_ops *o);
    const struct kr_draw_loops *(*draw)(void);
} isas[KR_N_ISAS] = {
    [KR_ISA_AUTO] = {.name = "auto"},
    [KR_ISA_GENERIC] = {"generic", "cpu-generic-2", kr_matmul_generic, kr_ops_generic,
                        kr_recurrent_generic, kr_probe_generic, kr_draw_loops_generic},
#if defined(__x86_64__)
    [KR_ISA_AVX2] = {"avx2", "cpu-avx2-2", kr_matmul_avx2, kr_ops_avx2, kr_recurrent_avx2,
                     kr_probe_avx2, kr_draw_loops_avx2},
    /* the quantised products are others, and give the same bytes */
    [KR_ISA_AVXVNNI] = {"avxvnni", "cpu-avx2-2", kr_matmul_avxvnni, kr_ops_avx2, kr_recurrent_avx2,
                        kr_probe_avxvnni, kr_draw_loops_avx2},
    [KR_ISA_AVX512] = {"avx512", "cpu-avx512-2", kr_matmul_avx512, kr_ops_avx512,
                       kr_recurrent_avx512, kr_probe_avx512, kr_draw_loops_avx512},
#else
    [KR_ISA_AVX2] = {.name = "avx2"},
    [KR_ISA_AVXVNNI] = {.name = "avxvnni"},
    [KR_ISA_AVX512] = {.name = "avx512"},
#endif
#if defined(__aarch64__)
    [KR_ISA_NEON] = {"neon", "cpu-neon-2", kr_matmul_neon, kr_ops_neon, kr_recurrent_neon,
                     kr_probe_neon, kr_draw_loops_neon},
    [KR_ISA_I8MM] = {"i8mm", "cpu-neon-2", kr_matmul_i8mm, kr_ops_neon, kr_recurrent_neon,
                     kr_probe_i8mm, kr_draw_loops_neon},
#else
    [KR_ISA_NEON] = {.name = "neon"},
    [KR_ISA_I8MM] = {.name = "i8mm"},
#endif
};

const char *kr_isa_name(enum kr_isa isa)
{
    return isas[isa].name;
}

enum kr_isa kr_isa_named(const char *name)
{
    int isa = KR_ISA_AUTO;
    while (isa < KR_N_ISAS && strcmp(name, isas[isa].name))
        isa++;
    return (enum kr_isa)isa;
}

const char *kr_isa_path(enum kr_isa isa)
{
    return isas[isa].path;
}

const struct kr_draw_loops *kr_draw_loops(enum kr_isa isa)
{
    if (isa == KR_ISA_AUTO) isa = kr_cpu_best();
    return kr_cpu_has(isa) ? isas[isa].draw() : NULL;
}

bool kr_matmul_fill(enum kr_isa isa, struct kr_matmul_kernels *k)
{
    if (isa == KR_ISA_AUTO) isa = kr_cpu_best();
    if (!kr_cpu_has(isa)) return false;
    isas[isa].matmul(k);
    return true;
}

bool kr_ops_fill(enum kr_isa isa, struct kr_cpu_ops *o)
{
    if (isa == KR_ISA_AUTO) isa = kr_cpu_best();
    if (!kr_cpu_has(isa)) return false;
    isas[isa].ops(o);
    isas[isa].recurrent(&o->recurrent);
    isas[isa].probe(&o->probe);
    return true;
}
