/* Selection of the likeliest tokens: a histogram over the distance from the maximum says which
 * bucket the cut falls in; buckets above it are kept whole, and of that bucket a selection finds
 * the last one that is kept. Expected O(V), however many are kept and whatever the logits are: a
 * step of all tenants waits for each draw in it.
 *
 * A value below a floor that is known beforehand is in no set: with top_k the k-th of the runs'
 * maxima, with min_p alone its own bound. Runs that lie below it are not looked at again; only
 * top_p needs the weight of all. */
#include "kernels/draw_select.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_BUCKETS 512
#define PER_NAT   48.0f /* buckets per unit of (max - z) / temperature */

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
static bool before(const struct kr_candidate *a, const struct kr_candidate *b)
{
    return a->z > b->z || (a->z == b->z && a->id < b->id);
}

/* Moves what is before a random one of v[0..n), n > 0, to the front, and that one behind it: its
 * place. *mass: of those before it. */
static size_t split(struct kr_candidate *v, size_t n, uint64_t *dice, uint64_t *mass)
{
    *dice = *dice * 6364136223846793005u + 1442695040888963407u;
    size_t at = 0, pick = (size_t)(*dice >> 33) % n;
    struct kr_candidate pivot = v[pick];
    v[pick] = v[n - 1];
    *mass = 0;
    for (size_t i = 0; i + 1 < n; i++) {
        struct kr_candidate c = v[i];
        if (!before(&c, &pivot)) continue;
        *mass += c.w;
        v[i] = v[at];
        v[at++] = c;
    }
    v[n - 1] = v[at];
    v[at] = pivot;
    return at;
}

/* The last one kept of v[0..n), n > 0, in likelihood order: of the fewest that are `count` ids or
 * have `mass`, else of all; at least one is kept. Reorders v. */
static struct kr_candidate last_kept(struct kr_candidate *v, size_t n, uint64_t count,
                                     uint64_t mass)
{
    for (uint64_t dice = n, first;;) {
        size_t at = split(v, n, &dice, &first);
        if (at && (at >= count || first >= mass)) {
            n = at;
            continue;
        }
        count -= at;
        mass -= first;
        if (count <= 1 || v[at].w >= mass || at + 1 == n) return v[at];
        count--;
        mass -= v[at].w;
        v += at + 1;
        n -= at + 1;
    }
}

/* Keeps of v[0..n), in its order, what is not after `last`: how many. */
static size_t keep_to(struct kr_candidate *v, size_t n, struct kr_candidate last)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (!before(&last, &v[i])) v[kept++] = v[i];
    return kept;
}

bool kr_tops(const struct kr_draw_loops *l, const float *z, size_t n, float *tops)
{
    size_t whole = n / KR_DRAW_RUN, left = n % KR_DRAW_RUN;
    bool good = l->tops(z, whole, tops);
    if (left) {
        float last[KR_DRAW_RUN];
        memcpy(last, z + n - left, left * sizeof *last);
        for (size_t i = left; i < KR_DRAW_RUN; i++)
            last[i] = -INFINITY;
        good &= l->tops(last, 1, tops + whole);
    }
    return good;
}

/* The natural logarithm of total / 2^40, an error below 2e-7 of it. The fraction of its float in
 * [sqrt(1/2), sqrt 2), then the series of the inverse hyperbolic tangent. */
float kr_log_mass(uint64_t total)
{
    int top = 63 - __builtin_clzll(total), shift = CN_MAX(top - 23, 0), exponent = top - 40;
    float m = (float)(uint32_t)(total >> shift);
    for (int i = top - shift; i > 0; i--)
        m *= 0.5f;
    if (m > 1.41421354f) {
        m *= 0.5f;
        exponent++;
    }
    float s = (m - 1.0f) / (m + 1.0f), q = s * s, p = 0.222222222f;
    p = p * q + 0.285714286f;
    p = p * q + 0.4f;
    p = p * q + 0.666666667f;
    p = p * q + 2.0f;
    return (float)exponent * 0.693147181f + p * s;
}

float kr_kth_top(const float *tops, size_t n, uint32_t k, float *heap)
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

struct histogram { uint64_t count[N_BUCKETS], mass[N_BUCKETS]; };

/* What a selection works on. */
struct row {
    const struct kr_draw_loops *loops;
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
        float top = w->tops[*at / KR_DRAW_RUN];
        if (!(top > limit) || top < w->floor)
            *at = (*at / KR_DRAW_RUN + 1) * KR_DRAW_RUN;
        else if (*end - *at == 64 && !w->loops->any_above(w->z + *at, limit))
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
    uint64_t n_near = 0, near = 0;
    uint64_t total = all ? w->loops->mass(w->z, w->n, w->max, w->inv_t) : 0;
    if (w->floor > limit) limit = nextafterf(w->floor, -INFINITY);
    for (size_t at = 0, end; next_group(w, limit, &at, &end); at = end) {
        for (size_t i = at; i < end; i++) {
            uint32_t b = bucket_of(w->z[i], w->max, w->inv_t);
            if (b == last || w->z[i] < w->floor) continue;
            uint64_t e = kr_mass(w->z[i], w->max, w->inv_t);
            h->count[b]++;
            h->mass[b] += e;
            near += e;
            n_near++;
        }
    }
    h->count[last] = w->n - n_near;
    h->mass[last] = all ? total - near : 0;
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

/* v[0..first) and v[first..n) are in the order of ids, and so will be all n. tmp: room for
 * n - first. */
static void merge_by_id(struct kr_candidate *v, size_t first, size_t n, struct kr_candidate *tmp)
{
    size_t i = first, k = n - first;
    memcpy(tmp, v + first, k * sizeof *v);
    while (k) {
        bool mine = i && v[i - 1].id > tmp[k - 1].id;
        v[--n] = mine ? v[--i] : tmp[--k];
    }
}

/* Collects the prefix, in likelihood order, that first reaches `count` ids or `mass`; then in the
 * order of ids. */
static int collect(const struct row *w, const struct histogram *h, uint64_t count, uint64_t mass,
                   struct kr_candidates *out)
{
    const float *z = w->z, max = w->max, inv_t = w->inv_t;
    uint64_t whole = 0, whole_mass = 0;
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
    struct kr_candidate *v = out->v, *tmp = v + whole + n_cut;
    size_t nv = 0, nc = 0;
    float limit = cut == N_BUCKETS - 1 ? -INFINITY : below_bucket(cut, max, inv_t);
    if (w->floor > limit) limit = nextafterf(w->floor, -INFINITY);
    for (size_t at = 0, end; next_group(w, limit, &at, &end); at = end) {
        for (size_t i = at; i < end; i++) {
            uint32_t b = bucket_of(z[i], max, inv_t);
            if (b > cut || z[i] == -INFINITY || z[i] < w->floor) continue;
            struct kr_candidate c = {.z = z[i], .id = (uint32_t)i, .w = kr_mass(z[i], max, inv_t)};
            if (b == cut && nc < n_cut)
                v[whole + nc++] = c;
            else if (b < cut && nv < whole)
                v[nv++] = c;
        }
    }
    if (nc && (!nv || (nv < count && whole_mass < mass))) {
        memcpy(tmp, v + whole, nc * sizeof *v);
        nc = keep_to(v + whole, nc, last_kept(tmp, nc, count - nv, mass - whole_mass));
        memmove(v + nv, v + whole, nc * sizeof *v);
        merge_by_id(v, nv, nv + nc, tmp);
        nv += nc;
    }
    out->n = nv;
    return 0;
}

/* What top_p keeps at least of a mass: p as a fraction of 2^32. */
static uint64_t part_of(uint64_t total, float p)
{
    uint64_t parts = (uint64_t)(((double)p * 0x1p32 + 0x1p52) - 0x1p52);
    return (uint64_t)((unsigned __int128)total * parts >> 32);
}

/* Of the candidates that top_k left. */
static int keep_part(struct kr_candidates *c, float p)
{
    uint64_t all = 0;
    int rc = cn_grow(&c->v, &c->cap, 2 * c->n, sizeof *c->v);
    if (rc || !c->n) return rc;
    for (size_t i = 0; i < c->n; i++)
        all += c->v[i].w;
    memcpy(c->v + c->n, c->v, c->n * sizeof *c->v);
    c->n = keep_to(c->v, c->n, last_kept(c->v + c->n, c->n, UINT64_MAX, part_of(all, p)));
    return 0;
}

int kr_select(const struct kr_draw_loops *loops, const float *z, size_t n, const float *tops,
              float max, const struct kr_select_rule *rule, struct kr_candidates *out)
{
    struct histogram h = {0};
    struct row w = {loops, z, n, tops, max, rule->inv_t, -INFINITY};
    uint64_t total = 0, count = rule->top_k ? rule->top_k : UINT64_MAX;
    bool cut_p = rule->top_p < 1.0f;
    if (rule->top_k && rule->top_k <= kr_n_tops(n)) {
        int rc = cn_grow(&out->v, &out->cap, rule->top_k, sizeof *out->v);
        if (rc) return rc;
        w.floor = kr_kth_top(tops, kr_n_tops(n), rule->top_k, (void *)out->v);
    } else if (!rule->top_k && !cut_p && rule->min_p > 0) {
        w.floor = max + (logf(rule->min_p) - 1e-3f) / rule->inv_t; /* a little less, for rounding */
    }
    histogram(&w, !rule->top_k && cut_p, &h);
    for (uint32_t b = 0; b < N_BUCKETS; b++)
        total += h.mass[b];
    int rc = collect(&w, &h, count,
                     cut_p && !rule->top_k ? part_of(total, rule->top_p) : UINT64_MAX, out);
    if (rc) return rc;
    if (cut_p && rule->top_k && (rc = keep_part(out, rule->top_p))) return rc;
    uint64_t least = (uint64_t)ceil((double)rule->min_p * (double)KR_MASS_ONE);
    size_t keep = 0;
    out->mass = 0;
    for (size_t i = 0; i < out->n; i++) {
        if (out->v[i].w < least) continue; /* the likeliest has KR_MASS_ONE */
        out->mass += out->v[i].w;
        out->v[keep++] = out->v[i];
    }
    out->n = keep;
    return 0;
}
