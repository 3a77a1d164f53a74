/* attention_tile_simd: the common parts of all attention tiles: numbers of pairs and columns, where
 * keys are read, and prefetching. Included once by each ISA's file, through attention_simd.h. */
#ifndef KERNELS_CPU_ATTENTION_TILE_SIMD_H
#define KERNELS_CPU_ATTENTION_TILE_SIMD_H

#include "kernels/cpu/kv_read.h"
#include "kernels/cpu/ops_simd.h"

/* Registers: V_PAIRS pairs by V_COLS vectors of accumulators; or, where K and V are read in place
 * and converted on the way, up to V_MANY pairs by half as many vectors. */
#define V_PAIRS 6u
#define V_MANY  KR_FEW_PAIRS
#define V_COLS  (VL == 16u ? 4u : 2u)

/* With up to this many pairs f16 is read in place. If a tile's products take longer than converting
 * its keys to float32, storing the converted keys saves nothing until there are many tiles. */
#define V_DIRECT (VL == 8u ? 24u : V_MANY)

/* With few registers, each type has its own function: constants of another type would be kept in
 * registers that the sums need. */
#if VL == 16
#define V_APART V_INLINE
#else
#define V_APART static __attribute__((noinline))
#endif

/* With few registers: up to V_FEW pairs use V_WIDE vectors of f16 values. A fused multiply-add
 * takes about four cycles on each of two units, so fewer than eight independent sums stall, and
 * three pairs by two vectors would be six. */
#define V_FEW  (VL == 16u ? 0u : 3u)
#define V_WIDE 4u

#if defined(__AVX2__) && !defined(__AVX512F__)
/* With few registers: the compiler moves no load up across it, which would spill sums to memory.
 * With more registers it would only repeat loads. */
#define V_LOAD_LATE() __asm__ volatile("" ::: "memory")
/* f16 is read as attention_half_simd.h says, with up to this many vectors of keys. */
#define V_HALVES 1
#define V_KEYS   V_WIDE
#else
#define V_LOAD_LATE() (void)0
#define V_HALVES      0
#define V_KEYS        V_COLS
#endif

/* Floats between the queries of few pairs: a constant, because registers are scarce. */
#define Q_DIMS  512u
#define Q_PITCH (Q_DIMS + 16u)

/* Pairs that a tile takes at once of `pairs` that are read in place. With few registers, several
 * tiles of some pairs by two vectors are faster than one tile of all by one vector, where every
 * product needs its own broadcast. */
static uint32_t pairs_at_once(uint32_t pairs)
{
    uint32_t tiles = (pairs + V_PAIRS - 1) / V_PAIRS;
    return VL == 16u || tiles <= 1 ? V_MANY : (pairs + tiles - 1) / tiles;
}

#if V_HALVES
/* Vectors of f16 keys that n pairs use at once, of `left`. Twelve sums, one key and the floats of
 * the pairs it is multiplied with (or the other way round) fill at most sixteen registers. */
static uint32_t half_cols(uint32_t n, uint32_t left)
{
    uint32_t most = n <= V_FEW ? V_WIDE : n == 4 ? 3 : V_COLS;
    return most == 3 && left == 4 ? 2 : CN_MIN(left, most); /* not three and one */
}

/* About how often fetch_some is called for f16 keys [k0, k1), `some` pairs at a time. */
static uint32_t half_calls(const struct kr_attn_tile *t, uint32_t some, uint32_t k0, uint32_t k1)
{
    uint32_t vectors = (k1 - 1) / VL - k0 / VL + 1, most = half_cols(some, vectors);
    uint32_t scores = (vectors + most - 1) / most * ((t->k_dim + 1) / 2);
    uint32_t tokens = some <= V_FEW ? (k1 - k0 + 1) / 2 : k1 - k0;
    uint32_t parts = t->acc_stride / ((some <= V_FEW ? V_WIDE : V_COLS) * VL);
    return scores + tokens * CN_MAX(parts, 1u);
}
#endif

/* ---- what is read next ----------------------------------------------------------------------- */

#define LINE 64u
/* Cache lines prefetched at once: about as many as a step reads. */
#define FETCH_LINES (VL == 16u ? 2u : 1u)

/* About how often fetch_some is called for keys [k0, k1). */
static uint32_t fetch_calls(const struct kr_attn_tile *t, uint32_t k0, uint32_t k1)
{
    uint32_t pairs = t->n_rows * t->heads, half = V_COLS / 2;
    uint32_t some = t->words ? pairs : CN_MIN(pairs_at_once(pairs), pairs);
    uint32_t cols = some > V_PAIRS ? half : V_COLS;
    uint32_t halves = ((k1 - 1) / VL - k0 / VL) / half + 1;
    uint32_t tiles = cols == half ? halves : (halves + 1) / 2;
    uint32_t dims = t->kv_type == KR_F16 ? t->k_dim : (t->k_dim + 1) / 2; /* two at a time */
    if (t->words) return tiles * dims + ((k1 - k0) / 2 + 1) * CN_MAX(t->acc_stride / (2 * VL), 1u);
#if V_HALVES
    if (t->kv_type == KR_F16) return (pairs + some - 1) / some * half_calls(t, some, k0, k1);
#endif
    if (V_FEW > 0 && some <= V_FEW && t->kv_type == KR_F16) cols = V_WIDE;
    return (pairs + some - 1) / some *
           (tiles * dims + (k1 - k0) * CN_MAX(t->acc_stride / (cols * VL), 1u));
}

/* Spreads the prefetch over the calls of range [k0, k1): sets the bytes per call. */
static void pace_fetch(const struct kr_attn_tile *t, uint32_t k0, uint32_t k1)
{
    struct kr_attn_ahead *a = t->ahead;
    uint32_t keys = k1 - k0, calls = fetch_calls(t, k0, k1);
    uint32_t lines = V_HALVES && t->kv_type == KR_F16 ? 2 : FETCH_LINES; /* of two steps */
    uint64_t bytes = a->left;
    if (keys < a->keys) bytes = bytes * keys / a->keys;
    a->pace = (uint32_t)CN_MIN((bytes + calls - 1) / calls, lines * LINE);
    a->keys -= CN_MIN(a->keys, keys);
    a->left -= bytes;
}

/* Prefetches into the second level, because the first one holds what is in use. Fetching a line
 * twice costs little. */
V_INLINE void fetch_lines(struct kr_attn_ahead *f, const uint32_t lines)
{
    __builtin_prefetch(f->at, 0, 2);
    if (lines > 1) __builtin_prefetch(f->at + LINE, 0, 2);
    f->at += f->pace;
    if (__builtin_expect(f->at < f->end, 1)) return;
    if (f->n) {
        f->at = f->runs->at;
        f->end = f->at + f->runs->bytes;
        f->runs++;
        f->n--;
    } else {
        f->at = f->end;
        f->end = (const uint8_t *)UINTPTR_MAX; /* so that this is not asked again */
        f->left = 0;
        f->pace = 0;
    }
}

V_INLINE void fetch_some(struct kr_attn_ahead *f)
{
    fetch_lines(f, FETCH_LINES);
}

/* ---- where keys are -------------------------------------------------------------------------- */

/* Index of the range's block (of 16 or 32 tokens) that holds a key. */
V_INLINE uint32_t block_of(const struct kr_attn_tile *t, uint32_t key)
{
    return key >> (4 + t->block_tokens / 32);
}
V_INLINE uint32_t token_of(const struct kr_attn_tile *t, uint32_t key)
{
    return key & (t->block_tokens - 1);
}
/* The first key after those of its block. */
V_INLINE uint32_t next_block(const struct kr_attn_tile *t, uint32_t key)
{
    return key - token_of(t, key) + t->block_tokens;
}

/* Source of the keys of each column of a tile: the thread's scratch, or the blocks. */
struct key_source {
    const uint8_t *at[V_KEYS], *scales[V_KEYS];
    size_t step; /* bytes from dim to dim, or from pair to pair in blocks of 32 */
};

/* Columns without a visible key read the nearest one that has one; their results are not used. */
static struct key_source find_keys(const struct kr_attn_tile *t, const uint8_t *const *blocks,
                                   uint32_t v, uint32_t first, uint32_t last)
{
    uint32_t elem = t->kv_type == KR_Q4_0 ? 1 : 2;
    struct key_source s = {.step = blocks ? elem * t->block_tokens : VL * sizeof(float)};
    for (uint32_t c = 0; c < V_KEYS; c++) {
        uint32_t at = CN_MAX(CN_MIN(v + c, last), first), key = at * VL;
        if (!blocks) {
            s.at[c] = (const uint8_t *)(t->keys + (size_t)at * t->k_dim * VL);
            continue;
        }
        const uint8_t *b = blocks[block_of(t, key)];
        uint32_t tok = token_of(t, key);
        s.at[c] = b + t->at.k + (size_t)elem * tok;
        s.scales[c] = b + t->at.k_scale + 2ull * tok;
    }
    return s;
}

#endif
