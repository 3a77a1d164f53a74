/* Which kernels this processor and operating system can run. Pure; any thread. */
#include "kernels/cpu/matmul.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* Which register states the operating system saves: without it vector registers lose their upper
 * halves at a context switch, whatever CPUID says. */
static uint64_t xcr0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static bool x86_has(enum kr_isa isa)
{
    const uint32_t fma = 1u << 12, osxsave = 1u << 27, f16c = 1u << 29, avx2 = 1u << 5;
    const uint32_t avx512 = 1u << 16 /* F */ | 1u << 17 /* DQ */ | 1u << 30 /* BW */ |
                            1u << 31 /* VL */;
    const uint32_t vnni = 1u << 11, avx_vnni = 1u << 4;
    const uint64_t ymm_state = 0x6, zmm_state = 0xe6;
    uint32_t a, b, c, d, need1 = fma | osxsave | f16c;

    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & need1) != need1) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & avx2)) return false;
    if (isa != KR_ISA_AVX512 && (xcr0() & ymm_state) != ymm_state) return false;
    if (isa == KR_ISA_AVX2) return true;
    if (isa == KR_ISA_AVXVNNI)
        return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & avx_vnni);
    return (b & avx512) == avx512 && (c & vnni) && (xcr0() & zmm_state) == zmm_state;
}
#endif

bool kr_cpu_has(enum kr_isa isa)
{
    switch (isa) {
    case KR_ISA_AUTO:
    case KR_ISA_GENERIC:
        return true;
#if defined(__x86_64__)
    case KR_ISA_AVX2:
    case KR_ISA_AVXVNNI:
    case KR_ISA_AVX512:
        return x86_has(isa);
#endif
    default:
        return false;
    }
}

enum kr_isa kr_cpu_best(void)
{
    static const enum kr_isa best[] = {KR_ISA_AVX512, KR_ISA_AVXVNNI, KR_ISA_AVX2};
    for (size_t i = 0; i < CN_ARRAY_LEN(best); i++)
        if (kr_cpu_has(best[i])) return best[i];
    return KR_ISA_GENERIC;
}
