/* tiles: cuts a batch into tiles for attention: rows of one sequence, or of several that share
 * keys.
 *
 * Tilings are made at prepare, cut on the engine thread at launch, and then only read. A piece of
 * work is (tile, some super-ranges, unit: a KV head or some of its query heads). How a batch is cut
 * changes no byte: a range's state depends on row and keys alone, and states merge in one order. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/kv_read.h"

/* Pieces of work per thread that splitting aims at; what states of rows may take in all; what a
 * shared tile's pairs may take of a thread's scratch. */
#define WORKS_A_THREAD   4u
#define MAX_PARTS_BYTES  (64u << 20)
#define SHARED_BYTES     (1u << 20)
#define SHARED_STATES    4u /* kept for each of so many rows, for keys that are shared */
#define SHARED_STEP_ROWS 512u

/* ---- prepare --------------------------------------------------------------------------------- */

static uint32_t find_tiling(struct kr_cpu_exec *x, uint32_t group, uint32_t tile_rows,
                            bool each_alone)
{
    for (uint32_t i = 0; i < x->n_tilings; i++) {
        const struct kr_tiling *t = &x->tilings[i];
        if (t->group == group && t->tile_rows == tile_rows && t->each_alone == each_alone) return i;
    }
    x->tilings[x->n_tilings] = (struct kr_tiling){.group = group,
                                                  .tile_rows = tile_rows,
                                                  .each_alone = each_alone,
                                                  .shared_rows = UINT32_MAX};
    return x->n_tilings++;
}

/* Query heads of a KV head that a tile takes: all, or parts of whole groups of registers. */
static void cut_heads(struct kr_attn_step *a, uint32_t heads)
{
    a->parts = (heads + KR_TILE_PAIRS - 1) / KR_TILE_PAIRS;
    a->heads = (heads + a->parts - 1) / a->parts;
    if (a->parts == 1) return;
    a->heads = (a->heads + KR_TILE_GROUP - 1) / KR_TILE_GROUP * KR_TILE_GROUP;
    a->parts = (heads + a->heads - 1) / a->heads;
}

/* More rows than of one sequence: keys are read for the keys' sake here, not to fill registers. */
static uint32_t shared_rows(const struct kr_kv_layer *l, uint32_t v_pad, uint32_t heads,
                            uint32_t rows)
{
    uint64_t pair_floats = l->k_dim + KR_RANGE_KEYS + 3ull * (v_pad + 2);
    uint64_t pairs = SHARED_BYTES / sizeof(float) / pair_floats;
    pairs = CN_MIN(pairs, 4u * KR_TILE_PAIRS);
    return CN_MAX(CN_MAX(rows, 2u), (uint32_t)pairs / heads);
}

static void plan_attention(struct kr_cpu_exec *x, uint32_t index)
{
    const struct kr_plan_op *op = &x->plan->ops[index];
    const struct kr_kv_layer *l = &x->kv_layers[op->kv_layer];
    struct kr_attn_step *a = &x->attn[index];
    uint32_t v_pad = (l->v_dim + KR_LANES - 1) & ~(KR_LANES - 1);
    cut_heads(a, op->heads / l->n_heads);
    uint32_t rows = CN_MAX(CN_MIN(KR_TILE_PAIRS / a->heads, KR_TILE_ROWS), 1u);
    bool each_alone = op->in[1] >= 0;
    if (each_alone) rows = 1;
    a->tiling = find_tiling(x, l->group, rows, each_alone);
    struct kr_tiling *t = &x->tilings[a->tiling];
    uint32_t units = l->n_heads * a->parts, most = rows;
    t->n_units = CN_MAX(t->n_units, units);
    t->row_floats = CN_MAX(t->row_floats, units * a->heads * (v_pad + 2));
    if (!each_alone) most = shared_rows(l, v_pad, a->heads, rows);
    t->shared_rows = CN_MIN(t->shared_rows, most);
    x->max_pairs = CN_MAX(x->max_pairs, most * a->heads);
    x->max_k_dim = CN_MAX(x->max_k_dim, l->k_dim);
    x->max_v_pad = CN_MAX(x->max_v_pad, v_pad);
}

/* A row's scores are kept as floats of its "states". */
static void plan_select(struct kr_cpu_exec *x, uint32_t index)
{
    const struct kr_kv_layer *l = &x->kv_layers[x->plan->ops[index].kv_layer];
    struct kr_attn_step *a = &x->attn[index];
    *a = (struct kr_attn_step){.tiling = find_tiling(x, l->group, 1, true), .parts = 1};
    struct kr_tiling *t = &x->tilings[a->tiling];
    t->n_units = CN_MAX(t->n_units, 1u);
    t->row_floats = CN_MAX(t->row_floats, KR_SUPER_KEYS);
    x->max_pairs = CN_MAX(x->max_pairs, KR_SELECT_HEADS);
    x->max_k_dim = CN_MAX(x->max_k_dim, l->k_dim);
    x->max_scores = (x->base.opts.max_context + KR_SUPER_KEYS - 1) / KR_SUPER_KEYS * KR_SUPER_KEYS;
}

/* States of split keys: some rows' super-ranges; of shared keys: a few for each of many rows. */
static void size_parts(struct kr_cpu_exec *x)
{
    uint64_t supers = (x->base.opts.max_context - 1) / KR_SUPER_KEYS + 1, floats = 0, shared = 0;
    uint32_t threads = kr_pool_threads(x->dev->pool), splits = WORKS_A_THREAD * threads;
    for (uint32_t i = 0; i < x->n_tilings; i++) {
        const struct kr_tiling *t = &x->tilings[i];
        x->max_units = CN_MAX(x->max_units, t->n_units);
        floats = CN_MAX(floats, t->row_floats * supers);
        if (!t->each_alone) shared = CN_MAX(shared, (uint64_t)t->row_floats * SHARED_STATES);
    }
    x->max_works = 2 * x->base.opts.max_rows + splits;
    x->max_split = threads > 1 ? splits : 0;
    floats *= threads > 1 && supers > 1 ? CN_MIN(splits, x->base.opts.max_rows) : 0;
    shared *= x->base.opts.max_rows > 1 ? CN_MIN(SHARED_STEP_ROWS, x->base.opts.max_rows) : 0;
    x->parts_floats = CN_MIN(CN_MAX(floats, shared), MAX_PARTS_BYTES / sizeof(float));
}

int kr_cpu_plan_tilings(struct kr_cpu_exec *x, struct cn_error *err)
{
    x->attn = cn_calloc(x->plan->n_ops, sizeof *x->attn);
    x->tilings = cn_calloc(x->n_heavy_steps, sizeof *x->tilings);
    if (!x->attn || !x->tilings) return cn_fail(err, CN_ENOMEM, "out of memory");
    for (uint32_t i = 0; i < x->n_heavy_steps; i++) {
        uint32_t op = x->heavy_steps[i].op;
        if (x->plan->ops[op].kind == KR_OP_ATTENTION) plan_attention(x, op);
        if (x->plan->ops[op].kind == KR_OP_SELECT) plan_select(x, op);
    }
    size_parts(x);
    return 0;
}

uint64_t kr_cpu_word_floats(uint64_t pairs, uint64_t k_dim)
{
    uint64_t blocks = (k_dim + KR_KV_DIMS - 1) / KR_KV_DIMS;
    return (pairs + KR_FEW_PAIRS - 1) / KR_FEW_PAIRS * KR_FEW_PAIRS * blocks * (KR_KV_DIMS / 2);
}

/* A thread's scratch, in floats: keys, values, probabilities, queries, three states, queries as
 * integers and what these are worth; select's: keys, probabilities, scores. */
uint64_t kr_cpu_state_floats(const struct kr_cpu_exec *x)
{
    return (uint64_t)x->max_pairs * (x->max_v_pad + 2ull) + KR_LANES;
}

uint64_t kr_cpu_attention_bytes(const struct kr_cpu_exec *x)
{
    uint64_t keys = (uint64_t)KR_RANGE_KEYS * (x->max_k_dim + x->max_pairs);
    uint64_t floats = keys + (uint64_t)KR_RANGE_KEYS * x->max_v_pad +
                      (uint64_t)x->max_pairs * x->max_k_dim + 3 * kr_cpu_state_floats(x);
    if (x->base.opts.kv_type == KR_Q8_0)
        floats += kr_cpu_word_floats(x->max_pairs, x->max_k_dim) / (KR_KV_DIMS / 2) *
                  (KR_KV_DIMS / 2 + 1);
    floats = CN_MAX(floats, keys + x->max_scores);
    return (floats * sizeof(float) + 63) & ~63ull;
}

/* ---- launch ---------------------------------------------------------------------------------- */

/* The keys that some row of a tile sees, of those that it walks. */
void kr_cpu_tile_sight(const struct kr_cpu_exec *x, uint32_t group, const struct kr_tile *tile,
                       uint64_t *from, uint64_t *to)
{
    struct kr_sight sight = kr_sight_of(&x->kv_groups[group], tile->end);
    uint64_t unused;
    kr_sight_at(&sight, tile->pos, from, &unused);
    kr_sight_at(&sight, tile->last_pos, &unused, to);
    *from = CN_MAX(*from, (uint64_t)tile->begin * KR_RANGE_KEYS);
    *to = CN_MIN(*to, (uint64_t)tile->stop * KR_RANGE_KEYS);
}

static void cut_tiles(struct kr_cpu_exec *x, struct kr_tiling *t)
{
    const struct kr_row *rows = x->now.batch->rows;
    t->n_tiles = 0;
    t->n_shared = t->n_shared_works = 0;
    t->n_listed = x->now.n_rows;
    for (uint32_t r = 0, last = 0; r < x->now.n_rows;) {
        uint64_t from, to;
        while (last < x->now.n_rows && rows[last].seq == rows[r].seq)
            last++;
        struct kr_tile *tile = &t->tiles[t->n_tiles];
        *tile = (struct kr_tile){.row = r,
                                 .n_rows = CN_MIN(t->tile_rows, last - r),
                                 .seq = rows[r].seq,
                                 .pos = rows[r].pos,
                                 .stop = UINT32_MAX,
                                 .end = rows[last - 1].pos + 1,
                                 .merged = 1,
                                 .pieces = 1};
        tile->last_pos = tile->pos + tile->n_rows - 1;
        kr_cpu_tile_sight(x, t->group, tile, &from, &to);
        tile->begin = (uint32_t)(from / KR_RANGE_KEYS);
        tile->first = (uint32_t)(from / KR_SUPER_KEYS);
        tile->last = (uint32_t)((to - 1) / KR_SUPER_KEYS + 1);
        for (uint32_t end = r + tile->n_rows; r < end; r++) {
            t->rows[r] = r;
            t->positions[r] = rows[r].pos;
            t->owner[r] = t->n_tiles;
        }
        t->n_tiles++;
    }
}

/* How many pieces a tile's keys are cut into: enough for all threads, if the states fit. */
static void split_tile(struct kr_cpu_exec *x, const struct kr_tiling *t, struct kr_tile *tile,
                       uint64_t *used)
{
    uint32_t works = t->n_tiles * t->n_units, supers = tile->last - tile->begin / KR_SUPER_RANGES;
    uint32_t more = tile->last - tile->first - tile->merged + 1 - tile->n_states;
    uint64_t floats = (uint64_t)tile->n_rows * t->row_floats * more;
    if (works >= x->max_split || supers < 2 || *used + floats > x->parts_floats) return;
    tile->pieces = CN_MIN(supers, (x->max_split + works - 1) / works);
    tile->n_states += more;
    *used += floats;
}

static void cut_tiling(struct kr_cpu_exec *x, struct kr_tiling *t)
{
    uint64_t used = 0, part = 0;
    cut_tiles(x, t);
    if (!t->each_alone) used = kr_cpu_share(x, t);
    t->n_works = 0;
    for (uint32_t i = t->n_tiles; i-- > 0;) { /* late positions first: they see more keys */
        struct kr_tile *tile = &t->tiles[i];
        uint32_t first = tile->begin / KR_SUPER_RANGES, supers = tile->last - first;
        split_tile(x, t, tile, &used);
        tile->part = part;
        part += (uint64_t)tile->n_rows * t->row_floats * tile->n_states;
        for (uint32_t j = 0; j < tile->pieces; j++)
            t->works[t->n_works++] =
                (struct kr_work){.tile = i,
                                 .first = first + supers * j / tile->pieces,
                                 .last = first + supers * (j + 1) / tile->pieces};
    }
}

void kr_cpu_cut_batch(struct kr_cpu_exec *x)
{
    for (uint32_t i = 0; i < x->n_tilings; i++)
        cut_tiling(x, &x->tilings[i]);
}
