/* CPU ops other than matrix products: one table per ISA. Private to kernels/cpu.
 *
 * Every function works on one row (attention: on a tile of rows that share blocks, and one KV head)
 * and its result depends on that row alone, bit for bit, so that callers may split rows, keys
 * and threads as they like. Lengths are any number; nothing is read or written past them.
 * exp is our own in all of them (at most 3 ulp on [-87, 88]; 0 below, held at e^88 above; NaN stays
 * NaN), so that bytes do not change with the C library. */
#ifndef KERNELS_CPU_OPS_H
#define KERNELS_CPU_OPS_H

#include "kernels/cpu/probe.h"
#include "kernels/cpu/recurrent.h"
#include "kernels/kernels.h"
#include "kernels/sight.h"

/* Keys are taken in ranges aligned to absolute positions; each range gives a softmax state, ranges
 * merge in ascending order into the state of a super-range, those again into the row's. Only whole
 * super-ranges are given to different threads, so the order of merging is one whatever the
 * split. */
#define KR_RANGE_KEYS   128u
#define KR_SUPER_RANGES 4u
#define KR_SUPER_KEYS   (KR_RANGE_KEYS * KR_SUPER_RANGES)
/* An indexer's heads are taken so many at a time. */
#define KR_SELECT_HEADS 48u
/* Up to so many (row, query head) pairs read K and V where they lie (f16 is by some code with
 * more), and what comes next ahead. */
#define KR_FEW_PAIRS 8u
/* Rows of v and of the accumulators are padded to this many floats. */
#define KR_LANES 16u

/* Softmax states of m (row, query head) pairs: maximum, sum of exponentials (0 = no key yet) and
 * sum of weighted values, acc_stride floats apart. */
struct kr_attn_state { float *max, *sum, *acc; };

/* Where one block keeps the K and V of one layer and head: byte offsets from the block's start.
 * K: [k_dim][block_tokens], V: [block_tokens][v_dim]; f16 scales, one per 32 dims:
 * K [ceil(k_dim/32)][block_tokens], V [block_tokens][ceil(v_dim/32)]. q4_0's K is
 * [ceil(k_dim/2)][block_tokens]; q8_0's K [ceil(k_dim/2)][block_tokens][2], V
 * [block_tokens/2][v_dim][2], and V's scales [ceil(v_dim/32)][block_tokens]. Latent layers keep K
 * [block_tokens][k_dim], scales likewise, and no V. */
struct kr_kv_place { uint64_t k, k_scale, v, v_scale; };

/* What is read after a tile's keys, in the order in which it is wanted: asked for little by little
 * while those are worked on. A hint alone. */
struct kr_attn_run {
    const uint8_t *at;
    uint32_t bytes;
};
struct kr_attn_ahead {
    const uint8_t *at, *end;        /* of the first run: what is left of it */
    const struct kr_attn_run *runs; /* the ones after it */
    uint32_t n;                     /* of them */
    uint32_t pace;                  /* bytes that are asked for at once */
    uint64_t left;                  /* bytes for ranges to come, */
    uint32_t keys;                  /* and the keys of those */
};

/* A tile: rows whose keys lie in the same blocks, of one sequence or of several that share them, at
 * ascending positions (some may be equal); `heads` query heads each; pair r * heads + g. */
struct kr_attn_tile {
    uint32_t n_rows, heads;
    const uint32_t *pos; /* [n_rows] */
    struct kr_sight sight;
    uint32_t k_dim, v_dim, acc_stride;
    uint32_t block_tokens;
    enum kr_type kv_type;
    bool latent;   /* V is the first v_dim values of K */
    float softcap; /* 0 = none */
    /* One row that sees some keys of the range only: their indices, ascending; NULL: all visible.
     * Ranges without one are not asked for. */
    const uint8_t *list;
    uint32_t n_list;
    struct kr_kv_place at;
    const float *q; /* [n_rows * heads][k_dim], multiplied by the scale */
    /* Scratch for q as integers, and for what these are worth: of pairs rounded up to KR_FEW_PAIRS,
     * dims rounded up to 32, one in 32 dims. NULL: K and V are taken as float32. */
    int16_t *words;
    float *worth;
    float *keys;                 /* scratch [k_dim][KR_RANGE_KEYS] */
    float *values;               /* scratch [KR_RANGE_KEYS][acc_stride] */
    float *p;                    /* scratch [n_rows * heads][KR_RANGE_KEYS] */
    struct kr_attn_ahead *ahead; /* hint, moved on by attn_range; not NULL, but may be empty */
};

struct kr_cpu_ops {
    const char *name;
    /* y = x * w / sqrt(mean(x^2) + eps); w may be NULL */
    void (*rms_norm)(float *y, const float *x, const float *w, float eps, uint32_t n);
    /* y = (x - mean) / sqrt(var + eps) * w + b; w and b may be NULL */
    void (*layer_norm)(float *y, const float *x, const float *w, const float *b, float eps,
                       uint32_t n);
    void (*add)(float *y, const float *a, const float *b, uint32_t n);
    void (*scale)(float *y, const float *x, float s, uint32_t n);
    /* y = the sum over k rows, in order, of each times its weight; w NULL: of each */
    void (*sum_rows)(float *y, const float *const *x, const float *w, uint32_t k, uint32_t n);
    void (*softcap)(float *y, const float *x, float cap, uint32_t n);
    /* y = act(gate) * up; up NULL: act(gate) */
    void (*glu)(float *y, const float *gate, const float *up, enum kr_act act, uint32_t n);
    /* One head: pairs by kind, cs = n_rot/2 cosines then as many sines. */
    void (*rope)(float *y, const float *x, const float *cs, enum kr_rope_kind kind,
                 uint32_t head_dim, uint32_t n_rot);
    /* Round to nearest even. */
    void (*to_f16)(uint16_t *y, const float *x, uint32_t n);
    /* Makes t->words and t->worth of t->q: once for a tile that has such, before its ranges. How
     * they lie is the ISA's. */
    void (*attn_queries)(const struct kr_attn_tile *t);
    /* The range's state for every pair of the tile that sees a key of [base, base + 128); others
     * get sum = 0. blocks: the range's block starts, [0] holds key `base`; only those with a
     * visible key are read. */
    void (*attn_range)(const struct kr_attn_tile *t, uint32_t base, const uint8_t *const *blocks,
                       struct kr_attn_state s);
    /* dst = dst then src, for n pairs. */
    void (*attn_merge)(struct kr_attn_state dst, struct kr_attn_state src, uint32_t n,
                       uint32_t v_dim, uint32_t acc_stride);
    /* y = acc / sum; a sink (NULL: none) is one more term of the sum, e^(*sink - max) */
    void (*attn_finish)(float *y, const float *acc, float max, float sum, const float *sink,
                        uint32_t v_dim);
    /* An indexer's scores of the keys that the tile's row sees in [base, base + 128), by index:
     * sum over heads of w[h] * max(0, q[h] . key). Others are undefined; whole vectors of scores
     * may be written. Needs scratch for KR_SELECT_HEADS pairs. */
    void (*select_range)(const struct kr_attn_tile *t, uint32_t base, const uint8_t *const *blocks,
                         const float *w, float *scores);
    struct kr_recurrent_ops recurrent;
    struct kr_probe_ops probe;
};
/* Fills the table for an ISA (AUTO: the best) and returns true; false when kr_cpu_has is.
 * (isa.c) */
bool kr_ops_fill(enum kr_isa isa, struct kr_cpu_ops *o);
/* All but `recurrent` and `probe`, each in builds for its processor only; for isa.c. */
void kr_ops_generic(struct kr_cpu_ops *o);
void kr_ops_avx2(struct kr_cpu_ops *o);
void kr_ops_avx512(struct kr_cpu_ops *o);
void kr_ops_neon(struct kr_cpu_ops *o);
/* The table in an ISA's file, which has functions of these names. */
#define KR_OPS_HERE(isa)                                                                           \
    (struct kr_cpu_ops)                                                                            \
    {                                                                                              \
        .name = (isa), .rms_norm = rms_norm, .layer_norm = layer_norm, .add = add, .scale = scale, \
        .sum_rows = sum_rows, .softcap = softcap, .glu = glu, .rope = rope, .to_f16 = to_f16,      \
        .attn_queries = attn_queries, .attn_range = attn_range, .attn_merge = attn_merge,          \
        .attn_finish = attn_finish, .select_range = select_range,                                  \
    }

/* The visible keys of row r within [base, base + 128), as indices into the range or the list;
 * *k0 >= *k1 when there are none. */
static inline void kr_attn_visible(const struct kr_attn_tile *t, uint32_t r, uint32_t base,
                                   uint32_t *k0, uint32_t *k1)
{
    uint64_t from, to;
    if (t->list) {
        *k0 = 0;
        *k1 = t->n_list;
        return;
    }
    kr_sight_at(&t->sight, t->pos[r], &from, &to);
    *k0 = from > base ? (uint32_t)CN_MIN(from - base, KR_RANGE_KEYS) : 0;
    *k1 = to > base ? (uint32_t)CN_MIN(to - base, KR_RANGE_KEYS) : 0;
}

#endif
