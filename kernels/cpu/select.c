/* select: an indexer's choice of keys for each row: scores by ranges of keys, then the best of
 * them.
 *
 * Pool threads. A tile is one row; when its super-ranges went to several threads, the one that ends
 * last chooses. A key's score depends on row and key alone and the choice on the scores alone, so
 * that the split changes nothing. */
#include "kernels/cpu/cpu.h"

#include <string.h>

struct choice {
    struct kr_cpu_exec *x;
    const struct kr_plan_op *op;
    const struct kr_tile *tile;
    uint64_t from, to; /* the row sees */
    float *scores;     /* of keys from the tile's first super-range on */
    uint32_t *words;   /* the result */
};

static void set_bit(uint32_t *words, uint64_t key)
{
    words[key / 32] |= 1u << key % 32;
}

/* ---- the best -------------------------------------------------------------------------------- */

/* In the order of the scores, -0 and 0 alike; not a number is above all, so that it is seen. */
static uint32_t rank_of(float score)
{
    uint32_t bits;
    if (score != score) return UINT32_MAX;
    score += 0.0f;
    memcpy(&bits, &score, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* The k-th largest rank of n scores (1 <= k <= n), and how many of that rank belong to the k:
 * a byte at a time from the top, counting those that have the bytes found so far. */
static uint32_t kth_rank(const float *scores, uint64_t n, uint64_t k, uint64_t *equal)
{
    uint32_t found = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        uint32_t counts[256] = {0}, byte = 255;
        for (uint64_t i = 0; i < n; i++) {
            uint32_t rank = rank_of(scores[i]);
            if (shift == 24 || (rank ^ found) >> (shift + 8) == 0) counts[rank >> shift & 255]++;
        }
        while (counts[byte] < k)
            k -= counts[byte--];
        found |= byte << shift;
    }
    *equal = k;
    return found;
}

static void choose(const struct choice *c)
{
    uint64_t n = c->to - c->from, left;
    const float *scores = c->scores + (c->from - (uint64_t)c->tile->first * KR_SUPER_KEYS);
    uint32_t least = kth_rank(scores, n, c->op->len, &left);
    for (uint64_t i = 0; i < n; i++) {
        uint32_t rank = rank_of(scores[i]);
        if (rank < least || (rank == least && !left)) continue;
        if (rank == least) left--;
        set_bit(c->words, c->from + i);
    }
}

/* ---- scores ---------------------------------------------------------------------------------- */

static void score_supers(const struct choice *c, const struct kr_work *w, struct kr_attn_tile *t,
                         const float *weights)
{
    const struct kr_cpu_exec *x = c->x;
    uint32_t group = x->kv_layers[c->op->kv_layer].group;
    const uint8_t *blocks[KR_RANGE_KEYS / 16];
    uint64_t base = (uint64_t)w->first * KR_SUPER_KEYS;
    uint64_t end = CN_MIN((uint64_t)w->last * KR_SUPER_KEYS, c->to);
    for (; base < end; base += KR_RANGE_KEYS) {
        if (base + KR_RANGE_KEYS <= c->from) continue;
        kr_cpu_range_blocks(x, group, c->tile, base, blocks);
        x->dev->ops.select_range(t, (uint32_t)base, blocks, weights,
                                 c->scores + (base - (uint64_t)c->tile->first * KR_SUPER_KEYS));
    }
}

static struct kr_attn_tile tile_of(const struct choice *c, float *mem)
{
    const struct kr_cpu_exec *x = c->x;
    const struct kr_kv_layer *l = &x->kv_layers[c->op->kv_layer];
    return (struct kr_attn_tile){
        .n_rows = 1,
        .heads = c->op->heads,
        .pos = &c->tile->pos,
        .sight = kr_sight_of(&x->kv_groups[l->group], c->tile->end),
        .k_dim = l->k_dim,
        .block_tokens = x->base.opts.block_tokens,
        .kv_type = x->base.opts.kv_type,
        .q = kr_value_row(x, (uint32_t)c->op->in[0], c->tile->row),
        .keys = mem,
        .p = mem + (size_t)KR_RANGE_KEYS * l->k_dim,
        .at = {.k = l->at + l->head.k, .k_scale = l->at + l->head.k_scale}};
}

void kr_cpu_select(struct kr_cpu_exec *x, uint32_t thread, const struct kr_step *s, uint32_t work)
{
    const struct kr_plan_op *op = &x->plan->ops[s->op];
    const struct kr_tiling *tiling = &x->tilings[x->attn[s->op].tiling];
    const struct kr_work *w = &tiling->works[work];
    const struct kr_tile *tile = &tiling->tiles[w->tile];
    struct choice c = {.x = x, .op = op, .tile = tile};
    float *mem = (float *)(void *)(x->attn_mem + thread * x->attn_bytes);
    c.words = (uint32_t *)(void *)kr_value_row(x, (uint32_t)op->out, tile->row);
    kr_cpu_tile_sight(x, x->kv_layers[op->kv_layer].group, tile, &c.from, &c.to);
    if (c.to - c.from <= op->len) { /* all of them: nothing to score */
        if (w->first != tile->first) return;
        memset(c.words, 0, x->plan->values[op->out].width * sizeof *c.words);
        for (uint64_t key = c.from; key < c.to; key++)
            set_bit(c.words, key);
        return;
    }
    struct kr_attn_tile t = tile_of(&c, mem);
    c.scores = t.p + (size_t)KR_RANGE_KEYS * KR_SELECT_HEADS;
    if (tile->pieces > 1) c.scores = x->parts + tile->part;
    score_supers(&c, w, &t, kr_value_row(x, (uint32_t)op->in[1], tile->row));
    if (tile->pieces > 1 && !kr_cpu_last_piece(x, w->tile, 0, tile->pieces)) return;
    memset(c.words, 0, x->plan->values[op->out].width * sizeof *c.words);
    choose(&c);
}
