/* probe in plain C: what the compiler makes of it for the oldest processor of the kind. Pure; any
 * thread. */
#include "kernels/cpu/probe.h"

#include <string.h>

enum { WORDS = 128, N = 64 };

/* Keeps what was computed, and hides from the compiler what memory holds. */
#define TOUCH(p) __asm__ volatile("" : : "r"(p) : "memory")

static void read_bytes(const void *p, size_t n)
{
    uint64_t sum[8] = {0};
    for (const uint8_t *at = p, *end = at + n; at < end; at += WORDS * 8) {
        uint64_t w[8];
        for (int i = 0; i < WORDS; i += 8) {
            memcpy(w, at + (size_t)i * 8, sizeof w);
            for (int j = 0; j < 8; j++)
                sum[j] |= w[j];
        }
    }
    TOUCH(sum);
}

static uint64_t int8_products(uint32_t rounds)
{
    int32_t sum[N] = {0};
    int8_t a[N], b[N];
    memset(a, 3, sizeof a);
    memset(b, 5, sizeof b);
    for (uint32_t r = 0; r < rounds; r++) {
        TOUCH(a);
        for (int i = 0; i < N; i++)
            sum[i] = (int32_t)((uint32_t)sum[i] + (uint32_t)(a[i] * b[i]));
    }
    TOUCH(sum);
    return (uint64_t)rounds * N * 2;
}

static uint64_t float_products(uint32_t rounds)
{
    float sum[N] = {0};
    for (uint32_t r = 0; r < rounds; r++) {
        for (int i = 0; i < N; i++)
            sum[i] = sum[i] * 0.5f + 1.0f;
        TOUCH(sum);
    }
    return (uint64_t)rounds * N * 2;
}

void kr_probe_generic(struct kr_probe_ops *o)
{
    *o = (struct kr_probe_ops){.read = read_bytes, .int8 = int8_products, .fma = float_products};
}
