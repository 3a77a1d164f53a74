/* probe for AVX2: loads, maddubs (sums kept in 16 bits, which shows the rate of the unit alone)
 * and fused multiply-adds of whole registers. Compiled a second time for AVX-VNNI, with
 * vpdpbusd. Ten chains hide the latency of two units. Pure; any thread. A product of 8-bit
 * weights reaches at most half the rate of maddubs alone: one pair of them fills 16 bits, so
 * each maddubs needs a change of signs before it and a madd after it, on the same units. With 4,
 * 5 and 6 bits, 8, 4 and 2 sums fit before they are widened. */
#include "kernels/cpu/probe.h"

#include <immintrin.h>

enum { CHAINS = 10, STEPS = 8 };

#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#if defined(__AVXVNNI__)
#define kr_probe_avx2         kr_probe_avxvnni
#define ADD_PRODUCTS(s, a, b) _mm256_dpbusd_avx_epi32(s, a, b)
#else
#define ADD_PRODUCTS(s, a, b) _mm256_add_epi16(s, _mm256_maddubs_epi16(a, b))
#endif

/* Keeps what was computed. */
#define KEEP(v) __asm__ volatile("" : : "x"(v))

static void read_bytes(const void *p, size_t n)
{
    __m256i sum[4];
    for (int i = 0; i < 4; i++)
        sum[i] = _mm256_setzero_si256();
    for (const uint8_t *at = p, *end = at + n; at < end; at += 512)
        for (int i = 0; i < 16; i++)
            sum[i % 4] =
                _mm256_or_si256(sum[i % 4], _mm256_load_si256((const __m256i *)(at + i * 32)));
    for (int i = 0; i < 4; i++)
        KEEP(sum[i]);
}

static uint64_t int8_products(uint32_t rounds)
{
    __m256i sum[CHAINS], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5);
    UNROLL for (int c = 0; c < CHAINS; c++)
        sum[c] = _mm256_setzero_si256();
    for (uint32_t r = 0; r < rounds; r++)
        for (int s = 0; s < STEPS; s++) UNROLL
            for (int c = 0; c < CHAINS; c++) {
                __asm__("" : "+x"(a)); /* another value, for all the compiler knows */
                sum[c] = ADD_PRODUCTS(sum[c], a, b);
                __asm__("" : "+x"(sum[c])); /* a chain, not a tree of products kept in memory */
            }
    UNROLL for (int c = 0; c < CHAINS; c++)
        KEEP(sum[c]);
    return (uint64_t)rounds * STEPS * CHAINS * 32 * 2;
}

static uint64_t float_products(uint32_t rounds)
{
    __m256 sum[CHAINS], a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(1.0f);
    for (int c = 0; c < CHAINS; c++)
        sum[c] = _mm256_setzero_ps();
    for (uint32_t r = 0; r < rounds; r++)
        for (int s = 0; s < STEPS; s++) {
            __asm__("" : "+x"(a));
            for (int c = 0; c < CHAINS; c++)
                sum[c] = _mm256_fmadd_ps(sum[c], a, b);
        }
    for (int c = 0; c < CHAINS; c++)
        KEEP(sum[c]);
    return (uint64_t)rounds * STEPS * CHAINS * 8 * 2;
}

void kr_probe_avx2(struct kr_probe_ops *o)
{
    *o = (struct kr_probe_ops){.read = read_bytes, .int8 = int8_products, .fma = float_products};
}
