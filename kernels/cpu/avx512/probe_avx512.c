/* probe for AVX-512 VNNI: loads, dpbusd and fused multiply-adds of whole registers. Twelve chains
 * hide the latency of two units. Pure; any thread. */
#include "kernels/cpu/probe.h"

#include <immintrin.h>

enum { CHAINS = 12, STEPS = 8 };

/* Keeps what was computed. */
#define KEEP(v) __asm__ volatile("" : : "v"(v))

static void read_bytes(const void *p, size_t n)
{
    __m512i sum[4];
    for (int i = 0; i < 4; i++)
        sum[i] = _mm512_setzero_si512();
    for (const uint8_t *at = p, *end = at + n; at < end; at += 1024)
        for (int i = 0; i < 16; i++)
            sum[i % 4] = _mm512_or_si512(sum[i % 4], _mm512_load_si512(at + i * 64));
    for (int i = 0; i < 4; i++)
        KEEP(sum[i]);
}

static uint64_t int8_products(uint32_t rounds)
{
    __m512i sum[CHAINS], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
    for (int c = 0; c < CHAINS; c++)
        sum[c] = _mm512_setzero_si512();
    for (uint32_t r = 0; r < rounds; r++)
        for (int s = 0; s < STEPS; s++) {
            __asm__("" : "+v"(a)); /* another value, for all the compiler knows */
            for (int c = 0; c < CHAINS; c++)
                sum[c] = _mm512_dpbusd_epi32(sum[c], a, b);
        }
    for (int c = 0; c < CHAINS; c++)
        KEEP(sum[c]);
    return (uint64_t)rounds * STEPS * CHAINS * 64 * 2;
}

static uint64_t float_products(uint32_t rounds)
{
    __m512 sum[CHAINS], a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(1.0f);
    for (int c = 0; c < CHAINS; c++)
        sum[c] = _mm512_setzero_ps();
    for (uint32_t r = 0; r < rounds; r++)
        for (int s = 0; s < STEPS; s++) {
            __asm__("" : "+v"(a));
            for (int c = 0; c < CHAINS; c++)
                sum[c] = _mm512_fmadd_ps(sum[c], a, b);
        }
    for (int c = 0; c < CHAINS; c++)
        KEEP(sum[c]);
    return (uint64_t)rounds * STEPS * CHAINS * 16 * 2;
}

void kr_probe_avx512(struct kr_probe_ops *o)
{
    *o = (struct kr_probe_ops){.read = read_bytes, .int8 = int8_products, .fma = float_products};
}
