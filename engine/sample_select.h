/* Selection of the likeliest tokens without a full sort. Private to engine/. */
#ifndef ENGINE_SAMPLE_SELECT_H
#define ENGINE_SAMPLE_SELECT_H

#include "engine/engine.h"

#include <string.h>

struct eng_candidate { float z, w; uint32_t id; }; /* w = exp((z - max) / temperature) */
struct eng_candidates {
    struct eng_candidate *v; /* heap; the caller frees */
    size_t n;
    double mass;             /* sum of w, in the order of v */
};
struct eng_select_rule { float inv_t; uint32_t top_k; float top_p, min_p; };

/* The greatest value of each run of ENG_TOPS_RUN values: what lets later passes look at few of them. */
enum { ENG_TOPS_RUN = 512 };
static inline size_t eng_n_tops(size_t n)
{
    return (n + ENG_TOPS_RUN - 1) / ENG_TOPS_RUN;
}

/* The k-th greatest of n >= k of them: k values of the row are no less. heap: room for k. */
float eng_kth_top(const float *tops, size_t n, uint32_t k, float *heap);

/* The tokens that top_k, then top_p (of what top_k left), then min_p keep; at least one. The order
 * of v is fixed by (z, n) alone. tops: of z. Errors: CN_ENOMEM. */
int eng_select(const float *z, size_t n, const float *tops, float max,
               const struct eng_select_rule *rule, struct eng_candidates *out);

/* e^x for x <= 0, relative error below 3e-7; 0 below -87. Branch-free so that loops vectorise.
 * Range reduction by ln 2 in two parts (Cody and Waite), then the Taylor polynomial of degree 7. */
static inline float eng_exp(float x)
{
    float c = x < -87.0f ? -87.0f : x;
    float k = c * 1.44269504f + 12582912.0f; /* round to an integer in the low mantissa bits */
    int32_t bits;
    memcpy(&bits, &k, sizeof bits);
    k -= 12582912.0f;
    float r = (c - k * 0.693145752f) - k * 1.42860677e-6f;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    int32_t e = (int32_t)((uint32_t)bits << 23) + (127 << 23);
    float scale;
    memcpy(&scale, &e, sizeof scale);
    return x < -87.0f ? 0.0f : p * scale;
}

/* Sum of exp((z - max) * inv_t) over z[0..n), always in the same order. With `chunks` (n / 256
 * rounded up of them, or NULL) also the sum of every 256 values. */
double eng_exp_sum(const float *z, size_t n, float max, float inv_t, double *chunks);

/* A loop over the vocabulary is compiled once per vector width and chosen at run time. Element by
 * element the arithmetic is the same, so are the bytes. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__clang__)
#define ENG_PER_WIDTH __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ENG_PER_WIDTH
#endif

#endif
