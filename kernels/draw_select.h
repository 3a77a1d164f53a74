/* Selection of the likeliest ids without a full sort. Private to kernels/. */
#ifndef KERNELS_DRAW_SELECT_H
#define KERNELS_DRAW_SELECT_H

#include "kernels/draw_loops.h"

struct kr_candidate {
    float z;
    uint32_t id;
    uint64_t w; /* its mass */
};
struct kr_candidates {
    struct kr_candidate *v; /* the caller's: grown where it must be, for the next selection too */
    size_t cap, n;
    uint64_t mass; /* sum of w */
};
struct kr_select_rule {
    float inv_t;
    uint32_t top_k;
    float top_p, min_p;
};

static inline size_t kr_n_tops(size_t n)
{
    return (n + KR_DRAW_RUN - 1) / KR_DRAW_RUN;
}

/* The greatest value of every run of z[0..n) to tops; false when a value is NaN. */
bool kr_tops(const struct kr_draw_loops *l, const float *z, size_t n, float *tops);
/* The k-th greatest of n >= k of them: k values of the row are no less. heap: room for k. */
float kr_kth_top(const float *tops, size_t n, uint32_t k, float *heap);

/* The ids that top_k, then top_p (of what top_k left), then min_p keep, in the order of ids; at
 * least one. tops: of z. out: zero at first. Errors: CN_ENOMEM. */
int kr_select(const struct kr_draw_loops *loops, const float *z, size_t n, const float *tops,
              float max, const struct kr_select_rule *rule, struct kr_candidates *out);

/* The natural logarithm of total / 2^40; total > 0. */
float kr_log_mass(uint64_t total);

#endif
