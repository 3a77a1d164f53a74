/* Selection of the likeliest tokens: a histogram over the distance from the maximum says which
 * bucket the cut falls in; buckets above it are kept whole, only that bucket is ordered (by a heap,
 * and only as far as needed). Two passes over the vocabulary, O(V + k log k). */
#include "engine/sample_select.h"

#include <math.h>
#include <stdlib.h>

#define N_BUCKETS 512
#define PER_NAT 48.0f /* buckets per unit of (max - z) / temperature */
#define NEAR ((N_BUCKETS - 1) / PER_NAT) /* what is farther from the maximum shares the last bucket */

static uint32_t bucket_of(float z, float max, float inv_t)
{
    float d = (max - z) * inv_t * PER_NAT; /* may be +inf */
    return d < N_BUCKETS - 1 ? (uint32_t)d : N_BUCKETS - 1;
}

/* Likelier first; equal values by lower id, so that the order is total. */
static bool before(const struct eng_candidate *a, const struct eng_candidate *b)
{
    return a->z > b->z || (a->z == b->z && a->id < b->id);
}

static void sift_down(struct eng_candidate *h, size_t n, size_t i)
{
    for (;;) {
        size_t best = i, l = 2 * i + 1, r = l + 1;
        if (l < n && before(&h[l], &h[best])) best = l;
        if (r < n && before(&h[r], &h[best])) best = r;
        if (best == i) return;
        struct eng_candidate t = h[i];
        h[i] = h[best];
        h[best] = t;
        i = best;
    }
}

static struct eng_candidate heap_pop(struct eng_candidate *h, size_t *n)
{
    struct eng_candidate top = h[0];
    h[0] = h[--*n];
    sift_down(h, *n, 0);
    return top;
}

ENG_PER_WIDTH double eng_exp_sum(const float *z, size_t n, float max, float inv_t, double *chunks)
{
    double total = 0;
    float w[256];
    for (size_t at = 0; at < n; at += 256) {
        size_t len = CN_MIN(n - at, (size_t)256);
        float sum[16] = {0};
        for (size_t i = 0; i < len; i++)
            w[i] = eng_exp((z[at + i] - max) * inv_t);
        for (size_t i = len; i < 256; i++)
            w[i] = 0;
        for (size_t i = 0; i < 256; i += 16)
            for (size_t j = 0; j < 16; j++)
                sum[j] += w[i + j];
        double chunk = 0;
        for (size_t j = 0; j < 16; j++)
            chunk += sum[j];
        if (chunks) chunks[at / 256] = chunk;
        total += chunk;
    }
    return total;
}

/* Whether any of the 64 values at z is above t. */
ENG_PER_WIDTH static bool any_above(const float *z, float t)
{
    int32_t any = 0;
    for (size_t i = 0; i < 64; i++)
        any |= z[i] > t;
    return any != 0;
}

struct histogram {
    uint64_t count[N_BUCKETS];
    double mass[N_BUCKETS];
};

/* Most of a vocabulary is far from the maximum: groups without a near value are only summed. */
static void histogram(const float *z, size_t n, float max, float inv_t, struct histogram *h)
{
    uint32_t last = N_BUCKETS - 1;
    float limit = max - NEAR / inv_t;
    double near = 0, total = eng_exp_sum(z, n, max, inv_t, NULL);
    uint64_t n_near = 0;
    for (size_t at = 0; at < n; at += 64) {
        size_t end = CN_MIN(at + 64, n);
        if (end - at == 64 && !any_above(z + at, limit)) continue;
        for (size_t i = at; i < end; i++) {
            uint32_t b = bucket_of(z[i], max, inv_t);
            if (b == last) continue;
            float w = eng_exp((z[i] - max) * inv_t);
            h->count[b]++;
            h->mass[b] += w;
            near += w;
            n_near++;
        }
    }
    h->count[last] = n - n_near;
    h->mass[last] = CN_MAX(total - near, 0.0);
}

/* Collects the prefix, in likelihood order, that first reaches `count` tokens or `mass`. */
static int collect(const float *z, size_t n, float max, float inv_t, const struct histogram *h,
                   uint64_t count, double mass, struct eng_candidates *out)
{
    uint64_t whole = 0;
    double whole_mass = 0;
    uint32_t cut = 0;
    while (cut < N_BUCKETS - 1 && whole + h->count[cut] < count &&
           whole_mass + h->mass[cut] < mass) {
        whole += h->count[cut];
        whole_mass += h->mass[cut];
        cut++;
    }
    size_t n_cut = h->count[cut];
    struct eng_candidate *v = cn_malloc_array(whole + n_cut + 1, sizeof *v);
    struct eng_candidate *heap = cn_malloc_array(n_cut + 1, sizeof *heap);
    if (!v || !heap) {
        free(v);
        free(heap);
        return CN_ENOMEM;
    }
    size_t nv = 0, nh = 0;
    /* A bucket's edge in z, less a little for rounding. */
    float limit = cut == N_BUCKETS - 1 ? -INFINITY : max - ((float)cut + 1.5f) / PER_NAT / inv_t;
    for (size_t at = 0; at < n; at += 64) {
        size_t end = CN_MIN(at + 64, n);
        if (end - at == 64 && !any_above(z + at, limit)) continue;
        for (size_t i = at; i < end; i++) {
            uint32_t b = bucket_of(z[i], max, inv_t);
            if (b > cut || z[i] == -INFINITY) continue;
            struct eng_candidate c = {
                .z = z[i], .w = eng_exp((z[i] - max) * inv_t), .id = (uint32_t)i};
            if (b < cut) v[nv++] = c;
            else heap[nh++] = c;
        }
    }
    for (size_t i = nh / 2; i-- > 0;)
        sift_down(heap, nh, i);
    double mass_at = whole_mass;
    while (nh && (nv < count || nv == 0) && (mass_at < mass || nv == 0)) {
        v[nv] = heap_pop(heap, &nh);
        mass_at += v[nv++].w;
    }
    free(heap);
    out->v = v;
    out->n = nv;
    return 0;
}

static int by_likelihood(const void *a, const void *b)
{
    return before(a, b) ? -1 : 1;
}

int eng_select(const float *z, size_t n, float max, const struct eng_select_rule *rule,
               struct eng_candidates *out)
{
    struct histogram h = {0};
    double total = 0;
    histogram(z, n, max, rule->inv_t, &h);
    for (uint32_t b = 0; b < N_BUCKETS; b++)
        total += h.mass[b];
    bool cut_p = rule->top_p < 1.0f;
    uint64_t count = rule->top_k ? rule->top_k : UINT64_MAX;
    double mass = cut_p && !rule->top_k ? rule->top_p * total : INFINITY;
    struct eng_candidates c = {0};
    int rc = collect(z, n, max, rule->inv_t, &h, count, mass, &c);
    if (rc) return rc;
    if (cut_p && rule->top_k) {
        qsort(c.v, c.n, sizeof *c.v, by_likelihood);
        double all = 0, at = 0;
        for (size_t i = 0; i < c.n; i++)
            all += c.v[i].w;
        size_t keep = 0;
        while (keep < c.n && (keep == 0 || at < rule->top_p * all))
            at += c.v[keep++].w;
        c.n = keep;
    }
    size_t keep = 0;
    c.mass = 0;
    for (size_t i = 0; i < c.n; i++) {
        if (c.v[i].w < rule->min_p) continue; /* the likeliest has w = 1 */
        c.mass += c.v[i].w;
        c.v[keep++] = c.v[i];
    }
    c.n = keep;
    *out = c;
    return 0;
}
