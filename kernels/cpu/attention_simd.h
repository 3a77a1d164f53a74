/* attention over one range of keys for AVX2, AVX-512 and NEON: included once by each ISA's file.
 *
 * K and V of the range are first made float32 in the thread's scratch, so that all KV types take
 * the same path and many rows share the work; for few rows they are read where they lie, which
 * gives the same numbers. A score is summed over dims in ascending order, a weighted value over keys
 * in ascending order, one fused multiply-add each, whatever else is in the tile; invisible keys take
 * no part (their lanes may hold anything, NaN too), keys that were not chosen are not loaded. */
#ifndef KERNELS_CPU_ATTENTION_SIMD_H
#define KERNELS_CPU_ATTENTION_SIMD_H

#include "kernels/cpu/kv_read.h"
#include "kernels/cpu/ops_simd.h"

/* Registers: V_PAIRS pairs by V_COLS vectors of accumulators; or, where K and V are read in place and
 * converted on the way, up to V_MANY pairs by half as many vectors. */
#define V_PAIRS 6u
#define V_MANY  8u
#define V_COLS  (VL == 16u ? 4u : 2u)

/* Calls f(n, V_COLS, ...) with n a constant from 1 to V_PAIRS. */
#define V_SWITCH(n, f, ...)        \
    switch (n) {                   \
    case 1:                        \
        f(1, V_COLS, __VA_ARGS__); \
        break;                     \
    case 2:                        \
        f(2, V_COLS, __VA_ARGS__); \
        break;                     \
    case 3:                        \
        f(3, V_COLS, __VA_ARGS__); \
        break;                     \
    case 4:                        \
        f(4, V_COLS, __VA_ARGS__); \
        break;                     \
    case 5:                        \
        f(5, V_COLS, __VA_ARGS__); \
        break;                     \
    default:                       \
        f(6, V_COLS, __VA_ARGS__); \
    }

/* The same for what is read in place: up to V_MANY, those beyond V_PAIRS by half as many vectors. */
#define V_SWITCH_MANY(n, f, ...)           \
    switch (n) {                           \
    case 7:                                \
        f(7, V_COLS / 2, __VA_ARGS__);     \
        break;                             \
    case 8:                                \
        f(8, V_COLS / 2, __VA_ARGS__);     \
        break;                             \
    default:                               \
        V_SWITCH(n, f, __VA_ARGS__)        \
    }

/* ---- K and V to float32 ------------------------------------------------------------------------ */

/* VL dims from d (a multiple of VL) on of a token's n values that lie together; 0 past them. */
V_INLINE vf dims_at(enum kr_type type, const uint8_t *values, const uint8_t *scales, uint32_t d,
                    uint32_t n)
{
    if (d + VL > n) {
        float some[VL] = { 0 };
        for (uint32_t i = 0; d + i < n; i++)
            some[i] = kr_kv_value(type, values, scales, d + i);
        return v_load(some);
    }
    if (type == KR_F16) return v_half(values + 2 * (size_t)d);
    vf s = v_half_all(kr_load_u16(scales + 2 * (d / KR_KV_DIMS)));
    return v_mul(s, type == KR_Q8_0 ? v_int8(values + d) : v_int4(values + d / 2));
}

/* VL tokens from tok on, where a dim of all tokens lies together: [k_dim][VL]. */
V_INLINE void keys_at(const enum kr_type type, const struct kr_attn_tile *t, const uint8_t *keys,
                      const uint8_t *scales, uint32_t tok, float *dst)
{
    size_t bt = t->block_tokens;
    vf s = v_set(0), low = s, high = s;
    for (uint32_t d = 0; d < t->k_dim; d++, dst += VL) {
        if (type != KR_F16 && d % KR_KV_DIMS == 0)
            s = v_half(scales + 2 * (d / KR_KV_DIMS * bt + tok));
        if (type == KR_F16) {
            v_store(dst, v_half(keys + 2 * (d * bt + tok)));
        } else if (type == KR_Q8_0) {
            v_store(dst, v_mul(s, v_int8(keys + d * bt + tok)));
        } else {
            if (d % 2 == 0) v_int4_pair(keys + d / 2 * bt + tok, &low, &high);
            v_store(dst, v_mul(s, d % 2 ? high : low));
        }
    }
}

/* The key that has lane i of vector v; lanes past the last listed one repeat it. */
static uint32_t key_of(const struct kr_attn_tile *t, uint32_t v, uint32_t i)
{
    return t->list ? t->list[CN_MIN(v * VL + i, t->n_list - 1)] : v * VL + i;
}

static void gather_keys(const struct kr_attn_tile *t, uint32_t v, const uint8_t *const *blocks,
                        float *dst)
{
    uint32_t bt = t->block_tokens;
    for (uint32_t i = 0; i < VL; i++) {
        uint32_t key = key_of(t, v, i);
        const uint8_t *b = blocks[key / bt];
        for (uint32_t d = 0; d < t->k_dim; d++)
            dst[(size_t)d * VL + i] = kr_kv_key(t->kv_type, b + t->at.k, b + t->at.k_scale, bt,
                                                key % bt, d);
    }
}

/* t->keys as [key / VL][k_dim][VL]: what a product walks through lies in one line after another. */
static void load_keys(const struct kr_attn_tile *t, uint32_t k0, uint32_t k1,
                      const uint8_t *const *blocks)
{
    uint32_t bt = t->block_tokens;
    for (uint32_t v = k0 / VL; v * VL < k1; v++) {
        float *dst = t->keys + (size_t)v * t->k_dim * VL;
        if (t->list) {
            gather_keys(t, v, blocks, dst);
            continue;
        }
        const uint8_t *b = blocks[v * VL / bt], *keys = b + t->at.k, *scales = b + t->at.k_scale;
        uint32_t tok = v * VL % bt;
        if (t->kv_type == KR_F16)
            keys_at(KR_F16, t, keys, scales, tok, dst);
        else if (t->kv_type == KR_Q8_0)
            keys_at(KR_Q8_0, t, keys, scales, tok, dst);
        else
            keys_at(KR_Q4_0, t, keys, scales, tok, dst);
    }
}

/* t->values as [key][acc_stride], zero past v_dim. */
static void load_values(const struct kr_attn_tile *t, uint32_t k0, uint32_t k1,
                        const uint8_t *const *blocks)
{
    uint32_t bt = t->block_tokens;
    for (uint32_t k = k0; k < k1; k++) {
        uint32_t key = t->list ? t->list[k] : k;
        const uint8_t *b = blocks[key / bt];
        const uint8_t *values = b + t->at.v + kr_kv_bytes(t->kv_type, t->v_dim) * (key % bt);
        const uint8_t *scales =
            b + t->at.v_scale + kr_kv_scale_bytes(t->kv_type, t->v_dim) * (key % bt);
        float *dst = t->values + (size_t)k * t->acc_stride;
        for (uint32_t d = 0; d < t->acc_stride; d += VL)
            v_store(dst + d, dims_at(t->kv_type, values, scales, d, t->v_dim));
    }
}

/* Both from a latent layer: a token's values lie together, so that keys are VL tokens transposed. */
static void load_latent(const struct kr_attn_tile *t, uint32_t k0, uint32_t k1,
                        const uint8_t *const *blocks)
{
    uint32_t bt = t->block_tokens, end = CN_MAX(t->k_dim, t->acc_stride);
    for (uint32_t v = k0 / VL; v * VL < k1; v++) {
        const uint8_t *from[VL], *scales[VL];
        float *keys = t->keys + (size_t)v * t->k_dim * VL;
        float *values = t->values + (size_t)v * VL * t->acc_stride;
        for (uint32_t i = 0; i < VL; i++) {
            uint32_t key = key_of(t, v, i);
            const uint8_t *b = blocks[key / bt];
            from[i] = b + t->at.k + kr_kv_bytes(t->kv_type, t->k_dim) * (key % bt);
            scales[i] = b + t->at.k_scale + kr_kv_scale_bytes(t->kv_type, t->k_dim) * (key % bt);
        }
        for (uint32_t d = 0; d < end; d += VL) {
            vf m[VL];
            for (uint32_t i = 0; i < VL; i++)
                m[i] = dims_at(t->kv_type, from[i], scales[i], d, t->k_dim);
            for (uint32_t i = 0; d < t->acc_stride && i < VL; i++)
                v_store(values + (size_t)i * t->acc_stride + d, m[i]);
            if (d >= t->k_dim) continue;
            v_transpose(m);
            for (uint32_t i = 0; i < CN_MIN(VL, t->k_dim - d); i++)
                v_store(keys + (size_t)(d + i) * VL, m[i]);
        }
    }
}

/* ---- scores ------------------------------------------------------------------------------------ */

/* Where the keys of each column of a tile come from: the thread's scratch, or the blocks. */
struct key_source {
    const uint8_t *at[V_COLS], *scales[V_COLS];
    size_t step;                  /* bytes from dim to dim; q4_0: from pair to pair */
    const uint8_t *ahead[V_COLS]; /* the values of the same keys, which are wanted next */
    size_t ahead_step;
};

/* Columns without a visible key take the nearest one that has: what they give is not used. */
static struct key_source find_keys(const struct kr_attn_tile *t, const uint8_t *const *blocks,
                                   uint32_t v, uint32_t first, uint32_t last)
{
    uint32_t elem = t->kv_type == KR_F16 ? 2 : 1;
    uint64_t v_bytes = kr_kv_bytes(t->kv_type, t->v_dim);
    struct key_source s = { .step = blocks ? elem * t->block_tokens : VL * sizeof(float) };
    for (uint32_t c = 0; c < V_COLS; c++) {
        uint32_t at = CN_MAX(CN_MIN(v + c, last), first), key = at * VL;
        if (!blocks) {
            s.at[c] = (const uint8_t *)(t->keys + (size_t)at * t->k_dim * VL);
            continue;
        }
        const uint8_t *b = blocks[key / t->block_tokens];
        uint32_t tok = key % t->block_tokens;
        s.at[c] = b + t->at.k + (size_t)elem * tok;
        s.scales[c] = b + t->at.k_scale + 2ull * tok;
        s.ahead[c] = b + t->at.v + v_bytes * tok;
    }
    s.ahead_step = VL * v_bytes / t->k_dim;
    return s;
}

/* Dim d of the columns' keys, of q4_0 the one after it too. */
V_INLINE void key_dims(const uint32_t cols, const enum kr_type type, const struct kr_attn_tile *t,
                       const struct key_source *k, uint32_t d, vf scale[V_COLS],
                       vf key[2][V_COLS])
{
    for (uint32_t c = 0; c < cols; c++) {
        const uint8_t *at = k->at[c] + (type == KR_Q4_0 ? d / 2 : d) * k->step;
        if (type != KR_F32) __builtin_prefetch(k->ahead[c] + d * k->ahead_step);
        if (type != KR_F32 && type != KR_F16 && d % KR_KV_DIMS == 0)
            scale[c] = v_half(k->scales[c] + 2ull * (d / KR_KV_DIMS) * t->block_tokens);
        if (type == KR_F32) {
            key[0][c] = v_load((const float *)(const void *)at);
        } else if (type == KR_F16) {
            key[0][c] = v_half(at);
        } else if (type == KR_Q8_0) {
            key[0][c] = v_mul(scale[c], v_int8(at));
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
    const float *q = t->q + (size_t)pair * t->k_dim;
    float *p = t->p + (size_t)pair * KR_RANGE_KEYS + v * VL;
    const uint32_t dims = type == KR_Q4_0 ? 2 : 1;
    vf acc[V_MANY][V_COLS], scale[V_COLS], key[2][V_COLS];
    for (uint32_t c = 0; c < cols; c++)
        scale[c] = v_set(0);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t c = 0; c < cols; c++)
            acc[i][c] = v_set(0);
    for (uint32_t d = 0; d < t->k_dim; d += dims) {
        key_dims(cols, type, t, k, d, scale, key);
        for (uint32_t j = 0; j < dims; j++) {
            if (dims > 1 && d + j == t->k_dim) break;
            for (uint32_t i = 0; i < n; i++) {
                vf x = v_set(q[(size_t)i * t->k_dim + d + j]);
                for (uint32_t c = 0; c < cols; c++)
                    acc[i][c] = v_fma(x, key[j][c], acc[i][c]);
            }
        }
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t c = 0; c < cols; c++)
            v_store(p + (size_t)i * KR_RANGE_KEYS + c * VL, acc[i][c]);
}

/* All pairs by the vectors that hold keys [k0, k1); blocks: NULL when they are in t->keys. */
static void scores(const struct kr_attn_tile *t, uint32_t k0, uint32_t k1,
                   const uint8_t *const *blocks)
{
    uint32_t pairs = t->n_rows * t->heads, first = k0 / VL, last = (k1 - 1) / VL;
    uint32_t cols = blocks && pairs > V_PAIRS ? V_COLS / 2 : V_COLS;
    for (uint32_t v = first / cols * cols; v <= last; v += cols) {
        struct key_source k = find_keys(t, blocks, v, first, last);
        if (blocks && t->kv_type == KR_F16)
            V_SWITCH_MANY(pairs, scores_tile, KR_F16, t, 0, v, &k)
        else if (blocks && t->kv_type == KR_Q8_0)
            V_SWITCH_MANY(pairs, scores_tile, KR_Q8_0, t, 0, v, &k)
        else if (blocks)
            V_SWITCH_MANY(pairs, scores_tile, KR_Q4_0, t, 0, v, &k)
        for (uint32_t i = 0; !blocks && i < pairs; i += V_PAIRS)
            V_SWITCH(CN_MIN(V_PAIRS, pairs - i), scores_tile, KR_F32, t, i, v, &k)
    }
}

/* Scores of pair i capped; their maximum. Lanes outside [k0, k1) become -infinity, whose exponential
 * is 0. */
static float cap_scores(const struct kr_attn_tile *t, uint32_t i, uint32_t k0, uint32_t k1)
{
    float *p = t->p + (size_t)i * KR_RANGE_KEYS;
    vf none = v_set(-INFINITY), top = none, cap = v_set(t->softcap);
    for (uint32_t v = k0 / VL * VL; v < k1; v += VL) {
        vf s = v_load(p + v);
        bool whole = v >= k0 && v + VL <= k1;
        if (t->softcap > 0) s = v_mul(cap, v_tanh(v_div(s, cap)));
        if (!whole) s = v_keep(s, k0 > v ? k0 - v : 0, CN_MIN(k1 - v, VL), none);
        if (!whole || t->softcap > 0) v_store(p + v, s);
        top = v_max(top, s);
    }
    return v_hmax(top);
}

/* Scores of pair i to exponentials; their sum. */
static float exponentials(const struct kr_attn_tile *t, uint32_t i, uint32_t k0, uint32_t k1,
                          float max)
{
    float *p = t->p + (size_t)i * KR_RANGE_KEYS;
    vf total = v_set(0), m = v_set(max);
    for (uint32_t v = k0 / VL * VL; v < k1; v += VL) {
        vf e = v_exp(v_sub(v_load(p + v), m));
        v_store(p + v, e);
        total = v_add(total, e);
    }
    return v_sum(total);
}

/* ---- weighted values --------------------------------------------------------------------------- */

/* What is read next, fetched a few lines with each key. */
struct fetch {
    const uint8_t *const *places;
    uint32_t n, bytes, at, lines; /* places left, bytes of each, bytes done of the first; per key */
};

/* To be done in `calls` calls of fetch_some. */
static struct fetch fetch_in(const struct kr_attn_tile *t, uint32_t calls)
{
    uint32_t lines = t->n_ahead * ((t->ahead_bytes + 63) / 64);
    return (struct fetch){ t->ahead, lines ? t->n_ahead : 0, t->ahead_bytes, 0,
                           (lines + calls - 1) / calls };
}

V_INLINE void fetch_some(struct fetch *f)
{
    for (uint32_t i = 0; i < f->lines && f->n; i++) {
        __builtin_prefetch(f->places[0] + f->at, 0, 2); /* the first level holds what is in use */
        f->at += 64;
        if (f->at < f->bytes) continue;
        f->at = 0;
        f->places++;
        f->n--;
    }
}

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
V_INLINE vf value_at(const enum kr_type type, const uint8_t *v, const float *scales, uint32_t c)
{
    if (type == KR_F32) return v_load((const float *)(const void *)v + c);
    if (type == KR_F16) return v_half(v + 2ull * c);
    vf s = v_set(scales[c / KR_KV_DIMS]);
    return v_mul(s, type == KR_Q8_0 ? v_int8(v + c) : v_int4(v + c / 2));
}

/* acc of n pairs, `cols` vectors from column c: += p[key] * value[key] for keys [k0, k1); type: of
 * what values are read from, t->values or the blocks. */
V_INLINE void values_part(const uint32_t n, const uint32_t cols, const enum kr_type type,
                          const struct kr_attn_tile *t, const uint8_t *const *blocks,
                          struct fetch *next, float *acc, uint32_t pair, uint32_t c, uint32_t k0,
                          uint32_t k1)
{
    const bool direct = type != KR_F32;
    const float *p = t->p + (size_t)pair * KR_RANGE_KEYS;
    uint32_t bt = t->block_tokens;
    size_t step = direct ? kr_kv_bytes(type, t->v_dim) : t->acc_stride * sizeof(float);
    size_t scale_step = direct ? t->v_dim / KR_KV_DIMS : 0;
    acc += (size_t)pair * t->acc_stride + c;
    vf a[V_MANY][V_COLS];
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < cols; j++)
            a[i][j] = v_load(acc + (size_t)i * t->acc_stride + j * VL);
    for (uint32_t k = k0; k < k1;) {
        uint32_t end = direct ? CN_MIN(k1, (k / bt + 1) * bt) : k1;
        const uint8_t *v = (const uint8_t *)(t->values + (size_t)k * t->acc_stride);
        const float *scales = t->values + scale_step * k;
        if (direct) v = blocks[k / bt] + t->at.v + step * (k % bt);
        for (; k < end; k++, v += step, scales += scale_step) {
            if (direct) fetch_some(next);
            vf value[V_COLS];
            for (uint32_t j = 0; j < cols; j++)
                value[j] = value_at(type, v, scales, c + j * VL);
            for (uint32_t i = 0; i < n; i++) {
                vf w = v_set(p[(size_t)i * KR_RANGE_KEYS + k]);
                for (uint32_t j = 0; j < cols; j++)
                    a[i][j] = v_fma(w, value[j], a[i][j]);
            }
        }
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < cols; j++)
            v_store(acc + (size_t)i * t->acc_stride + j * VL, a[i][j]);
}

V_INLINE void values_tile(const uint32_t n, const uint32_t cols, const enum kr_type type,
                          const struct kr_attn_tile *t, const uint8_t *const *blocks,
                          struct fetch *next, float *acc, uint32_t pair, uint32_t k0, uint32_t k1)
{
    uint32_t c = 0;
    for (; c + cols * VL <= t->acc_stride; c += cols * VL)
        values_part(n, cols, type, t, blocks, next, acc, pair, c, k0, k1);
    for (; c < t->acc_stride; c += VL)
        values_part(n, 1, type, t, blocks, next, acc, pair, c, k0, k1);
}

static void values_of(const struct kr_attn_tile *t, const uint8_t *const *blocks,
                      struct fetch *next, float *acc, uint32_t pair, uint32_t n, uint32_t k0,
                      uint32_t k1)
{
    if (k0 >= k1) return;
    if (!blocks)
        V_SWITCH(n, values_tile, KR_F32, t, blocks, next, acc, pair, k0, k1)
    else if (t->kv_type == KR_F16)
        V_SWITCH_MANY(n, values_tile, KR_F16, t, blocks, next, acc, pair, k0, k1)
    else if (t->kv_type == KR_Q8_0)
        V_SWITCH_MANY(n, values_tile, KR_Q8_0, t, blocks, next, acc, pair, k0, k1)
    else
        V_SWITCH_MANY(n, values_tile, KR_Q4_0, t, blocks, next, acc, pair, k0, k1)
}

/* n neighbouring pairs: the keys all of them see together, what comes before and after alone. */
static void values_group(const struct kr_attn_tile *t, const uint8_t *const *blocks,
                         struct fetch *next, float *acc, uint32_t pair, uint32_t n, uint32_t base)
{
    uint32_t first0, first1, last0, last1, k0, k1;
    kr_attn_visible(t, pair / t->heads, base, &first0, &first1);
    kr_attn_visible(t, (pair + n - 1) / t->heads, base, &last0, &last1);
    bool shared = last0 < first1;
    for (uint32_t i = pair; i < pair + n; i++) {
        kr_attn_visible(t, i / t->heads, base, &k0, &k1);
        values_of(t, blocks, next, acc, i, 1, k0, shared ? last0 : k1);
    }
    if (!shared) return;
    values_of(t, blocks, next, acc, pair, n, last0, first1);
    for (uint32_t i = pair; i < pair + n; i++) {
        kr_attn_visible(t, i / t->heads, base, &k0, &k1);
        values_of(t, blocks, next, acc, i, 1, first1, k1);
    }
}

/* ---- a range ----------------------------------------------------------------------------------- */

static void attn_range(const struct kr_attn_tile *t, uint32_t base, const uint8_t *const *blocks,
                       struct kr_attn_state s)
{
    uint32_t from, to, unused, pairs = t->n_rows * t->heads, k0, k1;
    kr_attn_visible(t, 0, base, &from, &unused);
    kr_attn_visible(t, t->n_rows - 1, base, &unused, &to);
    memset(s.acc, 0, (size_t)pairs * t->acc_stride * sizeof *s.acc);
    memset(s.sum, 0, pairs * sizeof *s.sum);
    if (from >= to) return;
    /* Few pairs: reading in place beats writing float32 once and reading it once. */
    bool quantised = t->kv_type != KR_F16;
    bool direct = pairs <= V_MANY && t->v_dim == t->acc_stride && !t->latent && !t->list &&
                  !(quantised && t->v_dim % KR_KV_DIMS);
    if (t->latent) {
        load_latent(t, from, to, blocks);
    } else if (!direct) {
        load_keys(t, from, to, blocks);
        load_values(t, from, to, blocks);
    } else if (quantised) {
        load_scales(t, blocks, from, to);
    }
    scores(t, from, to, direct ? blocks : NULL);
    /* One thing after the other for all pairs: the processor then works on several at once. */
    for (uint32_t r = 0; r < t->n_rows; r++) {
        kr_attn_visible(t, r, base, &k0, &k1);
        for (uint32_t i = r * t->heads; k0 < k1 && i < (r + 1) * t->heads; i++)
            s.max[i] = cap_scores(t, i, k0, k1);
    }
    for (uint32_t r = 0; r < t->n_rows; r++) {
        kr_attn_visible(t, r, base, &k0, &k1);
        for (uint32_t i = r * t->heads; k0 < k1 && i < (r + 1) * t->heads; i++)
            s.sum[i] = exponentials(t, i, k0, k1, s.max[i]);
    }
    struct fetch next = fetch_in(t, (to - from) * CN_MAX(t->acc_stride / (V_COLS * VL), 1u));
    uint32_t some = direct ? V_MANY : V_PAIRS;
    for (uint32_t i = 0; i < pairs; i += some)
        values_group(t, direct ? blocks : NULL, &next, s.acc, i, CN_MIN(some, pairs - i), base);
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
        scores(&part, k0, k1, NULL);
        for (uint32_t v = k0 / VL * VL; v < k1; v += VL) {
            vf sum = h ? v_load(scores_out + v) : v_set(0);
            for (uint32_t i = 0; i < part.heads; i++) {
                vf s = v_max(v_set(0), v_load(t->p + (size_t)i * KR_RANGE_KEYS + v)); /* NaN stays */
                sum = v_fma(v_set(w[h + i]), s, sum);
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

/* The table of whichever ISA this is compiled for. */
static void fill_ops(struct kr_cpu_ops *o, const char *name)
{
    *o = (struct kr_cpu_ops){
        .name = name, .rms_norm = rms_norm, .layer_norm = layer_norm, .add = add, .scale = scale, .sum_rows = sum_rows, .softcap = softcap,
        .glu = glu, .rope = rope, .to_f16 = to_f16, .attn_range = attn_range,
        .attn_merge = attn_merge, .attn_finish = attn_finish, .select_range = select_range,
    };
}

#endif
