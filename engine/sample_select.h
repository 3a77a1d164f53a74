/* Selection of the likeliest tokens without a full sort. Private to engine/. */
#ifndef ENGINE_SAMPLE_SELECT_H
#define ENGINE_SAMPLE_SELECT_H

#include "engine/engine.h"

#include <string.h>

struct eng_candidate { float z, w; uint32_t id; }; /* w = exp((z - max) / temperature) */
struct eng_candidates {
    struct eng_candidate *v; /* the caller's: grown where it must be, for the next selection too */
    size_t cap, n;
    double mass;             /* sum of w, in the order of v */
};
struct eng_select_rule { float inv_t; uint32_t top_k; float top_p, min_p; };

/* The greatest value of each run of ENG_TOPS_RUN values: what lets later passes look at few of
 * them. */
enum { ENG_TOPS_RUN = 512 };
static inline size_t eng_n_tops(size_t n)
{
    return (n + ENG_TOPS_RUN - 1) / ENG_TOPS_RUN;
}

/* The k-th greatest of n >= k of them: k values of the row are no less. heap: room for k. */
float eng_kth_top(const float *tops, size_t n, uint32_t k, float *heap);

/* The tokens that top_k, then top_p (of what top_k left), then min_p keep; at least one. The order
 * of v is fixed by (z, n) alone. tops: of z. out: zero at first. Errors: CN_ENOMEM. */
int eng_select(const float *z, size_t n, const float *tops, float max,
               const struct eng_select_rule *rule, struct eng_candidates *out);

/* The greatest value of every run of z[0..n) to tops; false when a value is NaN. */
bool eng_tops(const float *z, size_t n, float *tops);

/* e^x for x <= 0, relative error below 3e-7; 0 below -87. Branch-free so that loops vectorise.
 * Range reduction by ln 2 in two parts (Cody and Waite), then 1 + x and a polynomial of degree 5
 * whose other coefficients make the greatest relative error least. */
static inline float eng_exp(float x)
{
    float c = x < -87.0f ? -87.0f : x;
    float k =
        c * 1.44269504f + 12583039.0f; /* round to an integer + 127 in the low mantissa bits */
    uint32_t bits;
    memcpy(&bits, &k, sizeof bits);
    k -= 12583039.0f;
    float r = (c - k * 0.693145752f) - k * 1.42860677e-6f;
    float p = 8.3125010e-3f;
    p = p * r + 4.1890331e-2f;
    p = p * r + 0.16667116f;
    p = p * r + 0.49999231f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    bits <<= 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return x < -87.0f ? 0.0f : p * scale;
}

/* w[i] = exp((z[i] - max) * inv_t), and their sum over z[0..n), always in the same order. */
void eng_exp_each(const float *z, size_t n, float max, float inv_t, float *w);
double eng_exp_sum(const float *z, size_t n, float max, float inv_t);

/* A loop over the vocabulary is compiled once per vector width and chosen at run time. Element by
 * element the arithmetic is the same, so are the bytes. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__clang__)
#define ENG_PER_WIDTH __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ENG_PER_WIDTH
#endif

#endif
