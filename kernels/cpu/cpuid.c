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
    const uint32_t avx512 =
        1u << 16 /* F */ | 1u << 17 /* DQ */ | 1u << 30 /* BW */ | 1u << 31 /* VL */;
    const uint32_t vnni = 1u << 11, avx_vnni = 1u << 4;
    const uint64_t ymm_state = 0x6, zmm_state = 0xe6;
    uint32_t a, b, c, d, need1 = fma | osxsave | f16c;

    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & need1) != need1) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & avx2)) return false;
    if (isa != KR_ISA_AVX512 && (xcr0() & ymm_state) != ymm_state) return false;
    if (isa == KR_ISA_AVX2) return true;
    if (isa == KR_ISA_AVXVNNI) return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & avx_vnni);
    return (b & avx512) == avx512 && (c & vnni) && (xcr0() & zmm_state) == zmm_state;
}
#endif

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

static bool arm_has(enum kr_isa isa)
{
    const unsigned long dotprod = 1ul << 20 /* HWCAP_ASIMDDP */, i8mm = 1ul << 13 /* HWCAP2_I8MM */;
    if (!(getauxval(AT_HWCAP) & dotprod)) return false;
    return isa == KR_ISA_NEON || (getauxval(AT_HWCAP2) & i8mm);
}
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>

static bool told(const char *name)
{
    int value = 0;
    size_t size = sizeof(value);
    return !sysctlbyname(name, &value, &size, NULL, 0) && value;
}

static bool arm_has(enum kr_isa isa)
{
    if (!told("hw.optional.arm.FEAT_DotProd")) return false;
    return isa == KR_ISA_NEON || told("hw.optional.arm.FEAT_I8MM");
}
#elif defined(__aarch64__)
static bool arm_has(enum kr_isa isa)
{
    return false; /* no way to ask is known here */
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
#elif defined(__aarch64__)
    case KR_ISA_NEON:
    case KR_ISA_I8MM:
        return arm_has(isa);
#endif
    default:
        return false;
    }
}

enum kr_isa kr_cpu_best(void)
{
    static const enum kr_isa best[] = {KR_ISA_AVX512, KR_ISA_AVXVNNI, KR_ISA_AVX2, KR_ISA_I8MM,
                                       KR_ISA_NEON};
    for (size_t i = 0; i < CN_ARRAY_LEN(best); i++)
        if (kr_cpu_has(best[i])) return best[i];
    return KR_ISA_GENERIC;
}
