/* Selection of the likeliest tokens: a histogram over the distance from the maximum says which
 * bucket the cut falls in; buckets above it are kept whole, only that bucket is ordered (by a heap,
 * and only as far as needed). O(V + k log k).
 *
 * A value below a floor that is known beforehand is in no set: with top_k the k-th of the runs'
 * maxima, with min_p alone its own bound. Runs that lie below it are not looked at again; only
 * top_p needs the weight of all. */
#include "engine/sample_select.h"

#include <math.h>
#include <stdlib.h>

#define N_BUCKETS 512
#define PER_NAT 48.0f /* buckets per unit of (max - z) / temperature */

static uint32_t bucket_of(float z, float max, float inv_t)
{
    float d = (max - z) * inv_t * PER_NAT; /* may be +inf */
    return d < N_BUCKETS - 1 ? (uint32_t)d : N_BUCKETS - 1;
}

/* What no value of bucket b or of those before it is at or below: half a bucket beyond its edge,
 * and one float, where half a bucket is less than that. */
static float below_bucket(uint32_t b, float max, float inv_t)
{
    return nextafterf(max - ((float)b + 1.5f) / PER_NAT / inv_t, -INFINITY);
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

/* Maxima of whole runs. 32 running maxima, so that the compiler keeps them in vectors, and more
 * than one; NaN is looked for in pairs. */
ENG_PER_WIDTH static bool whole_tops(const float *z, size_t n_runs, float *tops)
{
    int32_t nan[32] = {0}, any = 0;
    for (size_t r = 0; r < n_runs; r++, z += ENG_TOPS_RUN) {
        float m[32];
        for (size_t j = 0; j < 32; j++)
            m[j] = z[j];
        for (size_t i = 0; i < ENG_TOPS_RUN; i += 64)
            for (size_t j = 0; j < 32; j++) {
                float x = z[i + j], y = z[i + j + 32];
                nan[j] |= __builtin_isunordered(x, y);
                x = x > y ? x : y;
                m[j] = x > m[j] ? x : m[j];
            }
        for (size_t j = 0; j < 16; j++)
            m[j] = m[j + 16] > m[j] ? m[j + 16] : m[j];
        for (size_t j = 0; j < 8; j++)
            m[j] = m[j + 8] > m[j] ? m[j + 8] : m[j];
        for (size_t j = 0; j < 4; j++)
            m[j] = m[j + 4] > m[j] ? m[j + 4] : m[j];
        tops[r] = CN_MAX(CN_MAX(m[0], m[1]), CN_MAX(m[2], m[3]));
    }
    for (size_t j = 0; j < 32; j++)
        any |= nan[j];
    return !any;
}

bool eng_tops(const float *z, size_t n, float *tops)
{
    size_t whole = n / ENG_TOPS_RUN, left = n % ENG_TOPS_RUN;
    bool good = whole_tops(z, whole, tops);
    if (left) {
        float last[ENG_TOPS_RUN];
        memcpy(last, z + n - left, left * sizeof *last);
        for (size_t i = left; i < ENG_TOPS_RUN; i++)
            last[i] = -INFINITY;
        good &= whole_tops(last, 1, tops + whole);
    }
    return good;
}

ENG_PER_WIDTH void eng_exp_each(const float *z, size_t n, float max, float inv_t, float *w)
{
    for (size_t i = 0; i < n; i++)
        w[i] = eng_exp((z[i] - max) * inv_t);
}

ENG_PER_WIDTH double eng_exp_sum(const float *z, size_t n, float max, float inv_t)
{
    double total = 0;
    float w[256];
    for (size_t at = 0; at < n; at += 256) {
        size_t len = CN_MIN(n - at, (size_t)256);
        const float *p = z + at;
        float sum[16] = {0};
        if (len < 256) {
            for (size_t i = 0; i < 256; i++)
                w[i] = i < len ? p[i] : -INFINITY; /* weighs nothing */
            p = w;
        }
        for (size_t i = 0; i < 256; i += 16)
            for (size_t j = 0; j < 16; j++)
                sum[j] += eng_exp((p[i + j] - max) * inv_t);
        for (size_t j = 0; j < 16; j++)
            total += sum[j];
    }
    return total;
}

float eng_kth_top(const float *tops, size_t n, uint32_t k, float *heap)
{
    for (size_t i = 0; i < n; i++) {
        size_t at = i;
        if (i < k) {
            for (; at > 0 && heap[(at - 1) / 2] > tops[i]; at = (at - 1) / 2)
                heap[at] = heap[(at - 1) / 2];
        } else {
            if (!(tops[i] > heap[0])) continue;
            at = 0;
            for (size_t c = 1; c < k; at = c, c = 2 * at + 1) {
                if (c + 1 < k && heap[c + 1] < heap[c]) c++;
                if (!(heap[c] < tops[i])) break;
                heap[at] = heap[c];
            }
        }
        heap[at] = tops[i];
    }
    return heap[0];
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

/* What a selection works on. */
struct row {
    const float *z;
    size_t n;
    const float *tops;
    float max, inv_t, floor; /* nothing below the floor counts */
};

/* Groups of 64 that hold a value above `limit`, none below the floor: the next one at or after
 * *at. */
static bool next_group(const struct row *w, float limit, size_t *at, size_t *end)
{
    while (*at < w->n) {
        *end = CN_MIN(*at + 64, w->n);
        float top = w->tops[*at / ENG_TOPS_RUN];
        if (!(top > limit) || top < w->floor)
            *at = (*at / ENG_TOPS_RUN + 1) * ENG_TOPS_RUN;
        else if (*end - *at == 64 && !any_above(w->z + *at, limit))
            *at += 64;
        else
            return true;
    }
    return false;
}

/* Most of a vocabulary is far from the maximum: groups without a near value are only summed. */
static void histogram(const struct row *w, bool all, struct histogram *h)
{
    uint32_t last = N_BUCKETS - 1;
    float limit = below_bucket(last - 1, w->max, w->inv_t);
    double near = 0, total = all ? eng_exp_sum(w->z, w->n, w->max, w->inv_t) : 0;
    uint64_t n_near = 0;
    if (w->floor > limit) limit = nextafterf(w->floor, -INFINITY);
    for (size_t at = 0, end; next_group(w, limit, &at, &end); at = end) {
        for (size_t i = at; i < end; i++) {
            uint32_t b = bucket_of(w->z[i], w->max, w->inv_t);
            if (b == last || w->z[i] < w->floor) continue;
            float e = eng_exp((w->z[i] - w->max) * w->inv_t);
            h->count[b]++;
            h->mass[b] += e;
            near += e;
            n_near++;
        }
    }
    h->count[last] = w->n - n_near;
    h->mass[last] = CN_MAX(total - near, 0.0);
}

/* How many values count at all. */
static uint64_t at_least_floor(const struct row *w)
{
    float limit = nextafterf(w->floor, -INFINITY);
    uint64_t count = 0;
    for (size_t at = 0, end; next_group(w, limit, &at, &end); at = end)
        for (size_t i = at; i < end; i++)
            count += w->z[i] >= w->floor;
    return count;
}

/* Collects the prefix, in likelihood order, that first reaches `count` tokens or `mass`. */
static int collect(const struct row *w, const struct histogram *h, uint64_t count, double mass,
                   struct eng_candidates *out)
{
    const float *z = w->z, max = w->max, inv_t = w->inv_t;
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
    /* the last bucket's count is of all the rest, a vocabulary's worth */
    if (cut == N_BUCKETS - 1 && w->floor > -INFINITY) n_cut = at_least_floor(w) - whole;
    int rc = cn_grow(&out->v, &out->cap, whole + 2 * n_cut + 1, sizeof *out->v);
    if (rc) return rc;
    struct eng_candidate *v = out->v, *heap = v + whole + n_cut;
    size_t nv = 0, nh = 0;
    float limit = cut == N_BUCKETS - 1 ? -INFINITY : below_bucket(cut, max, inv_t);
    if (w->floor > limit) limit = nextafterf(w->floor, -INFINITY);
    for (size_t at = 0, end; next_group(w, limit, &at, &end); at = end) {
        for (size_t i = at; i < end; i++) {
            uint32_t b = bucket_of(z[i], max, inv_t);
            if (b > cut || z[i] == -INFINITY || z[i] < w->floor) continue;
            struct eng_candidate c = {
                .z = z[i], .w = eng_exp((z[i] - max) * inv_t), .id = (uint32_t)i};
            if (b == cut && nh < n_cut) heap[nh++] = c;
            else if (b < cut && nv < whole) v[nv++] = c;
        }
    }
    for (size_t i = nh / 2; i-- > 0;)
        sift_down(heap, nh, i);
    double mass_at = whole_mass;
    while (nh && (nv < count || nv == 0) && (mass_at < mass || nv == 0)) {
        v[nv] = heap_pop(heap, &nh);
        mass_at += v[nv++].w;
    }
    out->n = nv;
    return 0;
}

static int by_likelihood(const void *a, const void *b)
{
    return before(a, b) ? -1 : 1;
}

int eng_select(const float *z, size_t n, const float *tops, float max,
               const struct eng_select_rule *rule, struct eng_candidates *out)
{
    struct histogram h = {0};
    struct row w = {z, n, tops, max, rule->inv_t, -INFINITY};
    double total = 0;
    if (rule->top_k && rule->top_k <= eng_n_tops(n)) {
        int rc = cn_grow(&out->v, &out->cap, rule->top_k, sizeof *out->v);
        if (rc) return rc;
        w.floor = eng_kth_top(tops, eng_n_tops(n), rule->top_k, (void *)out->v);
    } else if (!rule->top_k && rule->top_p >= 1.0f && rule->min_p > 0) {
        w.floor = max + (logf(rule->min_p) - 1e-3f) / rule->inv_t; /* a little less, for rounding */
    }
    histogram(&w, !rule->top_k && rule->top_p < 1.0f, &h);
    for (uint32_t b = 0; b < N_BUCKETS; b++)
        total += h.mass[b];
    bool cut_p = rule->top_p < 1.0f;
    uint64_t count = rule->top_k ? rule->top_k : UINT64_MAX;
    double mass = cut_p && !rule->top_k ? rule->top_p * total : INFINITY;
    int rc = collect(&w, &h, count, mass, out);
    if (rc) return rc;
    if (cut_p && rule->top_k) {
        qsort(out->v, out->n, sizeof *out->v, by_likelihood);
        double all = 0, at = 0;
        for (size_t i = 0; i < out->n; i++)
            all += out->v[i].w;
        size_t keep = 0;
        while (keep < out->n && (keep == 0 || at < rule->top_p * all))
            at += out->v[keep++].w;
        out->n = keep;
    }
    size_t keep = 0;
    out->mass = 0;
    for (size_t i = 0; i < out->n; i++) {
        if (out->v[i].w < rule->min_p) continue; /* the likeliest has w = 1 */
        out->mass += out->v[i].w;
        out->v[keep++] = out->v[i];
    }
    out->n = keep;
    return 0;
}
