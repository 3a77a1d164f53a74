/* attention over one range of keys for AVX2, AVX-512 and NEON: included once by each ISA's file.
 *
 * K and V of the range are first made float32 in the thread's scratch, so that many rows share the
 * work; for few rows they are read where they lie, which gives the same numbers. (q8_0 has a way of
 * its own: attention_q8_simd.h.) A score is summed over dims in ascending order, a weighted value
 * over keys in ascending order, one fused multiply-add each, whatever else is in the tile;
 * invisible keys take no part (their lanes may hold anything, NaN too), keys that were not chosen
 * are not loaded. */
#ifndef KERNELS_CPU_ATTENTION_SIMD_H
#define KERNELS_CPU_ATTENTION_SIMD_H

#include "kernels/cpu/attention_half_simd.h"
#include "kernels/cpu/attention_load_simd.h"
#include "kernels/cpu/attention_q8_simd.h"
#include "kernels/cpu/attention_tile_simd.h"

/* Calls f(n, cols, ...) with n a constant from 1 to V_PAIRS. */
#define V_CASE(n, cols, f, ...)                                                                    \
    case n:                                                                                        \
        f(n, cols, __VA_ARGS__);                                                                   \
        break;
#define V_SWITCH(n, cols, f, ...)                                                                  \
    switch (n) {                                                                                   \
        V_CASE(1, cols, f, __VA_ARGS__)                                                            \
        V_CASE(2, cols, f, __VA_ARGS__)                                                            \
        V_CASE(3, cols, f, __VA_ARGS__)                                                            \
        V_CASE(4, cols, f, __VA_ARGS__)                                                            \
        V_CASE(5, cols, f, __VA_ARGS__)                                                            \
    default:                                                                                       \
        f(6, cols, __VA_ARGS__);                                                                   \
    }

/* The same for what is read in place: up to V_MANY, those beyond V_PAIRS by half of V_COLS. */
#if VL == 16
#define V_SWITCH_MANY(n, cols, f, ...)                                                             \
    switch (n) {                                                                                   \
        V_CASE(7, V_COLS / 2, f, __VA_ARGS__)                                                      \
        V_CASE(8, V_COLS / 2, f, __VA_ARGS__)                                                      \
    default:                                                                                       \
        V_SWITCH(n, cols, f, __VA_ARGS__)                                                          \
    }
#else
#define V_SWITCH_MANY V_SWITCH
#endif

/* The same for up to V_FEW. */
#define V_SWITCH_FEW(n, cols, f, ...)                                                              \
    switch (n) {                                                                                   \
        V_CASE(1, cols, f, __VA_ARGS__)                                                            \
        V_CASE(2, cols, f, __VA_ARGS__)                                                            \
    default:                                                                                       \
        f(3, cols, __VA_ARGS__);                                                                   \
    }

/* ---- scores ---------------------------------------------------------------------------------- */

/* Dim d of the columns' keys, of q4_0 the one after it too. */
V_INLINE void key_dims(const uint32_t cols, const enum kr_type type, const struct kr_attn_tile *t,
                       const struct key_source *k, uint32_t d, vf scale[V_COLS], vf key[2][V_COLS])
{
    for (uint32_t c = 0; c < cols; c++) {
        const uint8_t *at = k->at[c] + (type == KR_Q4_0 ? d / 2 : d) * k->step;
        if (type != KR_F32 && type != KR_F16 && d % KR_KV_DIMS == 0)
            scale[c] = v_half(k->scales[c] + 2ull * (d / KR_KV_DIMS) * t->block_tokens);
        if (type == KR_F32) {
            key[0][c] = v_load((const float *)(const void *)at);
        } else if (type == KR_F16) {
            key[0][c] = v_half(at);
        } else {
            v_int4_pair(at, &key[0][c], &key[1][c]);
            key[0][c] = v_mul(scale[c], key[0][c]);
            key[1][c] = v_mul(scale[c], key[1][c]);
        }
    }
}

/* n pairs by `cols` vectors of keys; type: of what they are read from. */
V_INLINE void scores_tile(const uint32_t n, const uint32_t cols, const enum kr_type type,
                          const struct kr_attn_tile *t, uint32_t pair, uint32_t v,
                          const struct key_source *k)
{
    struct kr_attn_ahead f = {.n = 0};
    if (type != KR_F32) f = *t->ahead; /* in registers */
    const size_t pitch = type == KR_F32 ? t->k_dim : Q_PITCH;
    const float *q = t->q + pair * pitch;
    float *p = t->p + (size_t)pair * KR_RANGE_KEYS + v * VL;
    const uint32_t dims = type == KR_Q4_0 ? 2 : 1;
    vf acc[V_MANY][V_COLS], scale[V_COLS], key[2][V_COLS];
    for (uint32_t c = 0; c < cols; c++)
        scale[c] = v_set(0);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t c = 0; c < cols; c++)
            acc[i][c] = v_set(0);
    for (uint32_t d = 0; d < t->k_dim; d += dims) {
        if (type != KR_F32) fetch_some(&f);
        key_dims(cols, type, t, k, d, scale, key);
        for (uint32_t j = 0; j < dims; j++) {
            if (dims > 1 && d + j == t->k_dim) break;
            for (uint32_t i = 0; i < n; i++) {
                vf x = v_set(q[i * pitch + d + j]);
                for (uint32_t c = 0; c < cols; c++)
                    acc[i][c] = v_fma(x, key[j][c], acc[i][c]);
            }
        }
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t c = 0; c < cols; c++)
            v_store(p + (size_t)i * KR_RANGE_KEYS + c * VL, acc[i][c]);
    if (type != KR_F32) *t->ahead = f;
}

V_APART void scores_half(uint32_t n, const uint32_t cols, const struct kr_attn_tile *t,
                         uint32_t pair, uint32_t v, const struct key_source *k)
{
    if (cols == V_COLS)
        V_SWITCH_MANY(n, V_COLS, scores_tile, KR_F16, t, pair, v, k)
    else
        V_SWITCH_MANY(n, V_COLS / 2, scores_tile, KR_F16, t, pair, v, k)
}

/* All pairs by `cols` vectors of keys from v on, read where they lie. */
V_INLINE void scores_in_place(const uint32_t cols, const struct kr_attn_tile *t, uint32_t v,
                              const struct key_source *k)
{
    uint32_t pairs = t->n_rows * t->heads, some = pairs_at_once(pairs);
    for (uint32_t i = 0; i < pairs; i += some)
        if (!V_HALVES && t->kv_type == KR_F16)
            scores_half(CN_MIN(some, pairs - i), cols, t, i, v, k);
        else
            V_SWITCH_MANY(CN_MIN(some, pairs - i), cols, scores_tile, KR_Q4_0, t, i, v, k)
}

/* All pairs by the vectors that hold keys [k0, k1), read where they lie. */
static void scores_direct(const struct kr_attn_tile *whole, uint32_t k0, uint32_t k1,
                          const uint8_t *const *blocks)
{
    const uint32_t half = V_COLS / 2;
    uint32_t pairs = whole->n_rows * whole->heads, first = k0 / VL, last = (k1 - 1) / VL, cols;
    struct kr_attn_tile t = *whole;
    float q[V_DIRECT * Q_PITCH];
    for (uint32_t i = 0; i < pairs; i++)
        memcpy(q + i * Q_PITCH, t.q + (size_t)i * t.k_dim, t.k_dim * sizeof *q);
    t.q = q;
#if V_HALVES
    if (t.kv_type == KR_F16) {
        half_scores(&t, first, last, blocks);
        return;
    }
#endif
    for (uint32_t v = first / half * half; v <= last; v += cols) {
        struct key_source k = find_keys(&t, blocks, v, first, last);
        cols = (VL == 16u && pairs > V_PAIRS) || v % V_COLS || last - v < half ? half : V_COLS;
        if (cols == half)
            scores_in_place(half, &t, v, &k);
        else
            scores_in_place(V_COLS, &t, v, &k);
    }
}

/* The same, of keys that are in t->keys. */
static void scores(const struct kr_attn_tile *t, uint32_t k0, uint32_t k1)
{
    uint32_t pairs = t->n_rows * t->heads, first = k0 / VL, last = (k1 - 1) / VL;
    for (uint32_t v = first / V_COLS * V_COLS; v <= last; v += V_COLS) {
        struct key_source k = find_keys(t, NULL, v, first, last);
        for (uint32_t i = 0; i < pairs; i += V_PAIRS)
            V_SWITCH(CN_MIN(V_PAIRS, pairs - i), V_COLS, scores_tile, KR_F32, t, i, v, &k)
    }
}

#define V_SOFT 4u /* pairs at once: what one waits for, others do meanwhile */
_Static_assert(V_SOFT <= V_EXPS, "their exponentials are taken together");

/* Scores of n pairs capped; their maxima. Lanes outside [k0, k1) become -infinity, whose
 * exponential is 0. */
V_INLINE void cap_scores(const uint32_t n, const struct kr_attn_tile *t, float *p, uint32_t k0,
                         uint32_t k1, float *max)
{
    vf none = v_set(-INFINITY), cap = v_set(t->softcap), top[V_SOFT];
    for (uint32_t i = 0; i < n; i++)
        top[i] = none;
    for (uint32_t v = k0 / VL * VL; v < k1; v += VL) {
        bool whole = v >= k0 && v + VL <= k1;
        for (uint32_t i = 0; i < n; i++) {
            float *at = p + (size_t)i * KR_RANGE_KEYS + v;
            vf s = v_load(at);
            if (t->softcap > 0) s = v_mul(cap, v_tanh(v_div(s, cap)));
            if (!whole) s = v_keep(s, k0 > v ? k0 - v : 0, CN_MIN(k1 - v, VL), none);
            if (!whole || t->softcap > 0) v_store(at, s);
            top[i] = v_max(top[i], s);
        }
    }
    for (uint32_t i = 0; i < n; i++)
        max[i] = v_hmax(top[i]);
}

/* Scores of n pairs that see the same keys to exponentials; their maxima and sums. */
V_INLINE void softmax(const uint32_t n, const struct kr_attn_tile *t, uint32_t pair, uint32_t k0,
                      uint32_t k1, struct kr_attn_state s)
{
    float *p = t->p + (size_t)pair * KR_RANGE_KEYS;
    vf total[V_SOFT], m[V_SOFT];
    cap_scores(n, t, p, k0, k1, s.max + pair);
    for (uint32_t i = 0; i < n; i++) {
        total[i] = v_set(0);
        m[i] = v_set(s.max[pair + i]);
    }
    for (uint32_t v = k0 / VL * VL; v < k1; v += VL) {
        float *at = p + v;
        vf e[V_SOFT];
        for (uint32_t i = 0; i < n; i++)
            e[i] = v_sub(v_load(at + (size_t)i * KR_RANGE_KEYS), m[i]);
        v_exp_all(n, e);
        for (uint32_t i = 0; i < n; i++) {
            v_store(at + (size_t)i * KR_RANGE_KEYS, e[i]);
            total[i] = v_add(total[i], e[i]);
        }
    }
    for (uint32_t i = 0; i < n; i++)
        s.sum[pair + i] = v_sum(total[i]);
}

/* The same for all pairs of a row. */
static void softmax_row(const struct kr_attn_tile *t, uint32_t r, uint32_t k0, uint32_t k1,
                        struct kr_attn_state s)
{
    for (uint32_t i = r * t->heads, end = i + t->heads; i < end; i += V_SOFT)
        switch (end - i) {
        case 1:
            softmax(1, t, i, k0, k1, s);
            break;
        case 2:
            softmax(2, t, i, k0, k1, s);
            break;
        case 3:
            softmax(3, t, i, k0, k1, s);
            break;
        default:
            softmax(V_SOFT, t, i, k0, k1, s);
        }
}

/* ---- weighted values ------------------------------------------------------------------------- */

/* The scales of values read in place, as floats in t->values: [key][v_dim / 32]. */
static void load_scales(const struct kr_attn_tile *t, const uint8_t *const *blocks, uint32_t k0,
                        uint32_t k1)
{
    uint32_t bt = t->block_tokens, n = bt * (t->v_dim / KR_KV_DIMS);
    for (uint32_t b = k0 / bt; b * bt < k1; b++)
        for (uint32_t i = 0; i < n; i += VL)
            v_store(t->values + (size_t)b * n + i, v_half(blocks[b] + t->at.v_scale + 2ull * i));
}

/* VL values from column c of those at v, of a token that the pool keeps or of the scratch. */
V_INLINE vf value_at(const enum kr_type type, const uint8_t *v, const float *scales, size_t c)
{
    if (type == KR_F32) return v_load((const float *)(const void *)v + c);
    if (type == KR_F16) return v_half(v + 2ull * c);
    return v_mul(v_set(scales[c / KR_KV_DIMS]), v_int4(v + c / 2));
}

_Static_assert(V_COLS <= V_WIDE && V_FEW <= 3, "what V_SWITCH_FEW and the sums' arrays hold");

/* a += p * a token's values, for n pairs by `cols` vectors from column c: the values stay in
 * registers while the pairs pass. */
V_INLINE void add_value(const uint32_t n, const uint32_t cols, const enum kr_type type,
                        const float *p, const uint8_t *v, const float *scales, size_t c,
                        vf a[][V_WIDE])
{
    vf value[V_COLS];
    for (uint32_t j = 0; j < cols; j++)
        value[j] = value_at(type, v, scales, c + j * VL);
    for (uint32_t i = 0; i < n; i++) {
        vf w = v_set(p[(size_t)i * KR_RANGE_KEYS]);
        for (uint32_t j = 0; j < cols; j++)
            a[i][j] = v_fma(w, value[j], a[i][j]);
    }
}

/* The same for few pairs by V_WIDE vectors of f16: the pairs' p stay in registers while the values
 * pass. */
V_INLINE void add_wide(const uint32_t n, const float *p, const uint8_t *v, vf a[][V_WIDE])
{
    vf w[V_WIDE];
    for (uint32_t i = 0; i < n; i++)
        w[i] = v_set(p[(size_t)i * KR_RANGE_KEYS]);
    for (uint32_t j = 0; j < V_WIDE; j++) {
        vf value = v_half(v + j * 2 * VL);
        for (uint32_t i = 0; i < n; i++)
            a[i][j] = v_fma(w[i], value, a[i][j]);
    }
}

/* acc of n pairs, `cols` vectors from column c: += p[key] * value[key] for keys [k0, k1); type: of
 * what values are read from, t->values or the blocks. */
V_INLINE void values_part(const uint32_t n, const uint32_t cols, const enum kr_type type,
                          const struct kr_attn_tile *t, const uint8_t *const *blocks, float *acc,
                          uint32_t pair, size_t c, uint32_t k0, uint32_t k1)
{
    const bool direct = type != KR_F32, wide = n <= V_FEW && cols == V_WIDE;
    const float *p = t->p + (size_t)pair * KR_RANGE_KEYS;
    size_t step = direct ? kr_kv_bytes(type, t->v_dim) : t->acc_stride * sizeof(float);
    size_t scale_step = direct ? t->v_dim / KR_KV_DIMS : 0;
    struct kr_attn_ahead f = {.n = 0};
    if (direct) f = *t->ahead; /* in registers */
    acc += (size_t)pair * t->acc_stride + c;
    vf a[V_MANY][V_WIDE];
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < cols; j++)
            a[i][j] = v_load(acc + (size_t)i * t->acc_stride + j * VL);
    for (uint32_t k = k0; k < k1;) {
        uint32_t end = direct ? CN_MIN(k1, next_block(t, k)) : k1;
        const uint8_t *v = (const uint8_t *)(t->values + (size_t)k * t->acc_stride);
        const float *scales = t->values + scale_step * k;
        if (direct) v = blocks[block_of(t, k)] + t->at.v + step * token_of(t, k);
#if V_HALVES
        if (wide) {
            v += 2 * c;
            const uint8_t *from[V_WIDE] = {v, v + 2 * VL, v + 4 * VL, v + 6 * VL};
            add_terms(n, V_WIDE, p + k, p + end, KR_RANGE_KEYS, from, step, &f, a);
            k = end;
            continue;
        }
#endif
        for (; k < end; k++, v += step, scales += scale_step) {
            if (direct) fetch_some(&f);
            if (wide)
                add_wide(n, p + k, v + 2 * c, a);
            else
                add_value(n, cols, type, p + k, v, scales, c, a);
        }
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < cols; j++)
            v_store(acc + (size_t)i * t->acc_stride + j * VL, a[i][j]);
    if (direct) *t->ahead = f;
}

V_INLINE void values_tile(const uint32_t n, const uint32_t cols, const enum kr_type type,
                          const struct kr_attn_tile *t, const uint8_t *const *blocks, float *acc,
                          uint32_t pair, uint32_t k0, uint32_t k1)
{
    uint32_t c = 0;
    for (; c + cols * VL <= t->acc_stride; c += cols * VL)
        values_part(n, cols, type, t, blocks, acc, pair, c, k0, k1);
    for (; cols > V_COLS && c + V_COLS * VL <= t->acc_stride; c += V_COLS * VL)
        values_part(n, V_COLS, type, t, blocks, acc, pair, c, k0, k1);
    for (; c < t->acc_stride; c += VL)
        values_part(n, 1, type, t, blocks, acc, pair, c, k0, k1);
}

static void values_of(const struct kr_attn_tile *t, const uint8_t *const *blocks, float *acc,
                      uint32_t pair, uint32_t n, uint32_t k0, uint32_t k1)
{
    if (k0 >= k1) return;
    if (!blocks)
        V_SWITCH(n, V_COLS, values_tile, KR_F32, t, blocks, acc, pair, k0, k1)
    else if (t->kv_type == KR_F16 && V_FEW > 0 && n <= V_FEW)
        V_SWITCH_FEW(n, V_WIDE, values_tile, KR_F16, t, blocks, acc, pair, k0, k1)
    else if (t->kv_type == KR_F16)
        V_SWITCH_MANY(n, V_COLS, values_tile, KR_F16, t, blocks, acc, pair, k0, k1)
    else
        V_SWITCH_MANY(n, V_COLS, values_tile, KR_Q4_0, t, blocks, acc, pair, k0, k1)
}

/* n neighbouring pairs: the keys all of them see together, what comes before and after alone. */
static void values_group(const struct kr_attn_tile *t, const uint8_t *const *blocks, float *acc,
                         uint32_t pair, uint32_t n, uint32_t base)
{
    uint32_t first0, first1, last0, last1, k0, k1;
    kr_attn_visible(t, pair / t->heads, base, &first0, &first1);
    kr_attn_visible(t, (pair + n - 1) / t->heads, base, &last0, &last1);
    bool shared = last0 < first1;
    if (first0 == last0 && first1 == last1) { /* of one row */
        values_of(t, blocks, acc, pair, n, first0, first1);
        return;
    }
    for (uint32_t i = pair; i < pair + n; i++) {
        kr_attn_visible(t, i / t->heads, base, &k0, &k1);
        values_of(t, blocks, acc, i, 1, k0, shared ? last0 : k1);
    }
    if (!shared) return;
    values_of(t, blocks, acc, pair, n, last0, first1);
    for (uint32_t i = pair; i < pair + n; i++) {
        kr_attn_visible(t, i / t->heads, base, &k0, &k1);
        values_of(t, blocks, acc, i, 1, first1, k1);
    }
}

/* ---- a range --------------------------------------------------------------------------------- */

/* Scores of all pairs by keys [k0, k1), which the tile's rows see between them. True: K and V are
 * read in place. */
static bool range_scores(const struct kr_attn_tile *t, uint32_t k0, uint32_t k1,
                         const uint8_t *const *blocks)
{
    /* Few pairs: reading in place beats writing float32 once and reading it once. */
    bool q4 = t->kv_type == KR_Q4_0;
    uint32_t few = t->kv_type == KR_F16 ? V_DIRECT : V_MANY;
    bool direct = t->n_rows * t->heads <= few && t->k_dim <= Q_DIMS && t->v_dim == t->acc_stride &&
                  !t->latent && !t->list && t->kv_type != KR_Q8_0 && !(q4 && t->v_dim % KR_KV_DIMS);
    if (direct && q4) load_scales(t, blocks, k0, k1);
    if (direct || t->words) pace_fetch(t, k0, k1);
    if (t->words) {
        q8_scores(t, k0, k1, blocks);
        return true;
    }
    if (direct) {
        scores_direct(t, k0, k1, blocks);
        return true;
    }
    if (t->latent) {
        load_latent(t, k0, k1, blocks);
    } else {
        load_keys(t, k0, k1, blocks);
        load_values(t, k0, k1, blocks);
    }
    scores(t, k0, k1);
    return false;
}

static void attn_range(const struct kr_attn_tile *t, uint32_t base, const uint8_t *const *blocks,
                       struct kr_attn_state s)
{
    uint32_t from, to, unused, pairs = t->n_rows * t->heads, k0, k1;
    kr_attn_visible(t, 0, base, &from, &unused);
    kr_attn_visible(t, t->n_rows - 1, base, &unused, &to);
    memset(s.acc, 0, (size_t)pairs * t->acc_stride * sizeof *s.acc);
    memset(s.sum, 0, pairs * sizeof *s.sum);
    if (from >= to) return;
    bool direct = range_scores(t, from, to, blocks);
    for (uint32_t r = 0; r < t->n_rows; r++) {
        kr_attn_visible(t, r, base, &k0, &k1);
        if (k0 < k1) softmax_row(t, r, k0, k1, s);
    }
    if (t->words) {
        q8_values(t, blocks, s.acc, base, from, to);
        return;
    }
    uint32_t some = direct ? pairs_at_once(pairs) : V_PAIRS;
    for (uint32_t i = 0; i < pairs; i += some)
        values_group(t, direct ? blocks : NULL, s.acc, i, CN_MIN(some, pairs - i), base);
}

/* Pieces of heads, so that their scores fit the scratch; heads add up in ascending order. */
static void select_range(const struct kr_attn_tile *t, uint32_t base, const uint8_t *const *blocks,
                         const float *w, float *scores_out)
{
    uint32_t k0, k1;
    kr_attn_visible(t, 0, base, &k0, &k1);
    if (k0 >= k1) return;
    load_keys(t, k0, k1, blocks);
    for (uint32_t h = 0; h < t->heads; h += KR_SELECT_HEADS) {
        struct kr_attn_tile part = *t;
        part.heads = CN_MIN(KR_SELECT_HEADS, t->heads - h);
        part.q = t->q + (size_t)h * t->k_dim;
        scores(&part, k0, k1);
        for (uint32_t v = k0 / VL * VL; v < k1; v += VL) {
            vf sum = h ? v_load(scores_out + v) : v_set(0);
            for (uint32_t i = 0; i < part.heads; i++) {
                vf s = v_load(t->p + (size_t)i * KR_RANGE_KEYS + v);
                sum = v_fma(v_set(w[h + i]), v_max(v_set(0), s), sum); /* NaN stays */
            }
            v_store(scores_out + v, sum);
        }
    }
}

/* dst = dst * a + src * b: what has no key yet is taken as it is. */
static void merge_pair(struct kr_attn_state dst, struct kr_attn_state src, uint32_t i, float max,
                       float a, float b, uint32_t acc_stride)
{
    float *da = dst.acc + (size_t)i * acc_stride;
    const float *sa = src.acc + (size_t)i * acc_stride;
    if (src.sum[i] == 0) return;
    if (dst.sum[i] == 0) {
        dst.max[i] = src.max[i];
        dst.sum[i] = src.sum[i];
        memcpy(da, sa, acc_stride * sizeof *da);
        return;
    }
    dst.max[i] = max;
    dst.sum[i] = dst.sum[i] * a + src.sum[i] * b;
    for (uint32_t d = 0; d < acc_stride; d += VL)
        v_store(da + d, v_fma(v_load(sa + d), v_set(b), v_mul(v_load(da + d), v_set(a))));
}

static void attn_merge(struct kr_attn_state dst, struct kr_attn_state src, uint32_t n,
                       uint32_t v_dim, uint32_t acc_stride)
{
    float max[VL], a[VL], b[VL];
    for (uint32_t i = 0; i < n; i += VL) {
        uint32_t some = CN_MIN(VL, n - i);
        vf d = v_load_n(dst.max + i, some), s = v_load_n(src.max + i, some), m = v_max(d, s);
        v_store(max, m);
        v_store(a, v_exp(v_sub(d, m)));
        v_store(b, v_exp(v_sub(s, m)));
        for (uint32_t j = 0; j < some; j++)
            merge_pair(dst, src, i + j, max[j], a[j], b[j], acc_stride);
    }
}

static void attn_finish(float *y, const float *acc, float max, float sum, const float *sink,
                        uint32_t v_dim)
{
    if (sink) sum += v_exp1(*sink - max);
    scale(y, acc, 1.0f / sum, v_dim);
}

#endif
