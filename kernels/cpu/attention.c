/* attention: cuts a batch into tiles (rows of one sequence) and walks each tile's key ranges.
 *
 * Tilings are made at prepare, cut on the engine thread at launch, and then only read. A piece of
 * work is (tile, some super-ranges, unit: a KV head or some of its query heads); when a tile's
 * super-ranges went to several threads, the one that ends last merges their states, in ascending
 * order, as a single thread would have. */
#include "kernels/cpu/cpu.h"

#include <string.h>

/* Pieces of work per thread that splitting aims at, and the memory it may take for states. */
#define WORKS_A_THREAD  4u
#define MAX_PARTS_BYTES (64u << 20)

/* ---- prepare ---------------------------------------------------------------------------------- */

static uint32_t find_tiling(struct kr_cpu_exec *x, uint32_t group, uint32_t tile_rows)
{
    for (uint32_t i = 0; i < x->n_tilings; i++)
        if (x->tilings[i].group == group && x->tilings[i].tile_rows == tile_rows) return i;
    x->tilings[x->n_tilings] = (struct kr_tiling){ .group = group, .tile_rows = tile_rows };
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

static void plan_attention(struct kr_cpu_exec *x, uint32_t index)
{
    const struct kr_plan_op *op = &x->plan->ops[index];
    const struct kr_kv_layer *l = &x->kv_layers[op->kv_layer];
    struct kr_attn_step *a = &x->attn[index];
    uint32_t v_pad = (l->v_dim + KR_LANES - 1) & ~(KR_LANES - 1);
    cut_heads(a, op->heads / l->n_heads);
    uint32_t rows = CN_MAX(CN_MIN(KR_TILE_PAIRS / a->heads, KR_TILE_ROWS), 1u);
    if (op->in[1] >= 0) rows = 1; /* each row has keys of its own */
    a->tiling = find_tiling(x, l->group, rows);
    struct kr_tiling *t = &x->tilings[a->tiling];
    uint32_t units = l->n_heads * a->parts;
    t->n_units = CN_MAX(t->n_units, units);
    t->row_floats = CN_MAX(t->row_floats, units * a->heads * (v_pad + 2));
    x->max_pairs = CN_MAX(x->max_pairs, rows * a->heads);
    x->max_k_dim = CN_MAX(x->max_k_dim, l->k_dim);
    x->max_v_pad = CN_MAX(x->max_v_pad, v_pad);
}

/* A row's scores are kept as floats of its "states". */
static void plan_select(struct kr_cpu_exec *x, uint32_t index)
{
    const struct kr_kv_layer *l = &x->kv_layers[x->plan->ops[index].kv_layer];
    struct kr_attn_step *a = &x->attn[index];
    *a = (struct kr_attn_step){ .tiling = find_tiling(x, l->group, 1), .parts = 1 };
    struct kr_tiling *t = &x->tilings[a->tiling];
    t->n_units = CN_MAX(t->n_units, 1u);
    t->row_floats = CN_MAX(t->row_floats, KR_SUPER_KEYS);
    x->max_pairs = CN_MAX(x->max_pairs, KR_SELECT_HEADS);
    x->max_k_dim = CN_MAX(x->max_k_dim, l->k_dim);
    x->max_scores = (x->opts.max_context + KR_SUPER_KEYS - 1) / KR_SUPER_KEYS * KR_SUPER_KEYS;
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
    uint64_t most_floats = 0, supers = (x->opts.max_context - 1) / KR_SUPER_KEYS + 1;
    for (uint32_t i = 0; i < x->n_tilings; i++) {
        x->max_units = CN_MAX(x->max_units, x->tilings[i].n_units);
        most_floats = CN_MAX(most_floats, x->tilings[i].row_floats * supers);
    }
    uint32_t threads = kr_pool_threads(x->dev->pool), splits = WORKS_A_THREAD * threads;
    x->max_works = x->opts.max_rows + splits;
    x->max_split = threads > 1 ? splits : 0;
    if (threads > 1 && supers > 1)
        x->parts_floats = CN_MIN(most_floats * CN_MIN(splits, x->opts.max_rows),
                                 MAX_PARTS_BYTES / sizeof(float));
    return 0;
}

/* A thread's scratch, in floats: keys, values, probabilities, queries, three states; select's:
 * keys, probabilities, scores. */
static uint64_t state_floats(const struct kr_cpu_exec *x)
{
    return (uint64_t)x->max_pairs * (x->max_v_pad + 2ull) + KR_LANES;
}

uint64_t kr_cpu_attention_bytes(const struct kr_cpu_exec *x)
{
    uint64_t keys = (uint64_t)KR_RANGE_KEYS * (x->max_k_dim + x->max_pairs);
    uint64_t floats = keys + (uint64_t)KR_RANGE_KEYS * x->max_v_pad +
                      (uint64_t)x->max_pairs * x->max_k_dim + 3 * state_floats(x);
    floats = CN_MAX(floats, keys + x->max_scores);
    return (floats * sizeof(float) + 63) & ~63ull;
}

/* ---- launch ----------------------------------------------------------------------------------- */

struct kr_sight kr_cpu_sight(const struct kr_cpu_exec *x, uint32_t group, uint32_t end)
{
    return (struct kr_sight){ .span = x->kv_groups[group].span,
                              .tokens = x->kv_groups[group].window_tokens, .end = end };
}

/* The keys that some row of a tile sees. */
void kr_cpu_tile_sight(const struct kr_cpu_exec *x, uint32_t group, const struct kr_tile *tile,
                       uint64_t *from, uint64_t *to)
{
    struct kr_sight sight = kr_cpu_sight(x, group, tile->end);
    uint64_t unused;
    kr_sight_at(&sight, tile->pos, from, &unused);
    kr_sight_at(&sight, tile->pos + tile->n_rows - 1, &unused, to);
}

static void cut_tiles(struct kr_cpu_exec *x, struct kr_tiling *t)
{
    const struct kr_row *rows = x->now.batch->rows;
    t->n_tiles = 0;
    for (uint32_t r = 0, last = 0; r < x->now.n_rows;) {
        uint64_t from, to;
        while (last < x->now.n_rows && rows[last].seq == rows[r].seq)
            last++;
        struct kr_tile *tile = &t->tiles[t->n_tiles++];
        *tile = (struct kr_tile){ .row = r, .n_rows = CN_MIN(t->tile_rows, last - r),
                                  .seq = rows[r].seq, .pos = rows[r].pos[0],
                                  .end = rows[last - 1].pos[0] + 1, .pieces = 1 };
        kr_cpu_tile_sight(x, t->group, tile, &from, &to);
        tile->first = (uint32_t)(from / KR_SUPER_KEYS);
        tile->last = (uint32_t)((to - 1) / KR_SUPER_KEYS + 1);
        r += tile->n_rows;
    }
}

/* How many pieces a tile's keys are cut into: enough for all threads, if the states fit. */
static void split_tile(struct kr_cpu_exec *x, const struct kr_tiling *t, struct kr_tile *tile,
                       uint64_t *used)
{
    uint32_t works = t->n_tiles * t->n_units, supers = tile->last - tile->first;
    uint64_t floats = (uint64_t)tile->n_rows * t->row_floats * supers;
    if (works >= x->max_split || supers < 2 || *used + floats > x->parts_floats) return;
    tile->pieces = CN_MIN(supers, (x->max_split + works - 1) / works);
    tile->part = *used;
    *used += floats;
}

static void cut_tiling(struct kr_cpu_exec *x, struct kr_tiling *t)
{
    uint64_t used = 0;
    cut_tiles(x, t);
    t->n_works = 0;
    for (uint32_t i = t->n_tiles; i-- > 0;) { /* late positions first: they see more keys */
        struct kr_tile *tile = &t->tiles[i];
        uint32_t supers = tile->last - tile->first;
        split_tile(x, t, tile, &used);
        for (uint32_t j = 0; j < tile->pieces; j++)
            t->works[t->n_works++] = (struct kr_work){
                .tile = i, .first = tile->first + supers * j / tile->pieces,
                .last = tile->first + supers * (j + 1) / tile->pieces };
    }
}

void kr_cpu_cut_batch(struct kr_cpu_exec *x)
{
    for (uint32_t i = 0; i < x->n_tilings; i++)
        cut_tiling(x, &x->tilings[i]);
}

/* ---- a piece of work -------------------------------------------------------------------------- */

struct piece {
    struct kr_cpu_exec *x;
    const struct kr_plan_op *op;
    const struct kr_attn_step *step;
    const float *sinks;
    const struct kr_kv_layer *layer;
    const struct kr_tile *tile;
    uint32_t unit, head0, kv_head, thread; /* head0: the first query head */
    uint64_t end;                          /* of the keys it reads */
    const struct kr_tile *next;            /* of the piece of work after this one; NULL: none */
    uint32_t next_head;
    uint64_t next_key;                     /* where its first range begins */
    const uint8_t *ahead[KR_RANGE_KEYS / 16];
    struct kr_attn_tile t;
    struct kr_attn_state range, super, total; /* scratch */
};

static struct kr_attn_state state_at(float *mem, uint32_t pairs)
{
    return (struct kr_attn_state){ .max = mem, .sum = mem + pairs, .acc = mem + 2ull * pairs };
}

static struct kr_attn_state part_state(const struct piece *p, uint32_t super)
{
    uint32_t pairs = p->t.n_rows * p->step->heads, supers = p->tile->last - p->tile->first;
    uint64_t each = (uint64_t)pairs * (p->t.acc_stride + 2);
    uint64_t i = (uint64_t)p->unit * supers + (super - p->tile->first);
    return state_at(p->x->parts + p->tile->part + i * each, pairs);
}

static void set_tile(struct piece *p)
{
    struct kr_cpu_exec *x = p->x;
    const struct kr_kv_layer *l = p->layer;
    uint32_t all = p->op->heads / l->n_heads, part = p->unit % p->step->parts * p->step->heads;
    uint32_t heads = CN_MIN(p->step->heads, all - part), pairs = p->tile->n_rows * heads;
    p->kv_head = p->unit / p->step->parts;
    p->head0 = p->kv_head * all + part;
    uint32_t v_pad = (l->v_dim + KR_LANES - 1) & ~(KR_LANES - 1);
    float *mem = (float *)(void *)(x->attn_mem + p->thread * x->attn_bytes);
    float *keys = mem, *values = keys + (size_t)KR_RANGE_KEYS * l->k_dim;
    float *probs = values + (size_t)KR_RANGE_KEYS * v_pad;
    float *q = probs + (size_t)KR_RANGE_KEYS * pairs, *states = q + (size_t)pairs * l->k_dim;
    p->t = (struct kr_attn_tile){
        .n_rows = p->tile->n_rows, .heads = heads, .pos0 = p->tile->pos,
        .sight = kr_cpu_sight(x, l->group, p->tile->end), .k_dim = l->k_dim, .v_dim = l->v_dim,
        .acc_stride = v_pad, .block_tokens = x->opts.block_tokens,
        .kv_type = x->opts.kv_type, .latent = l->latent,
        .softcap = p->op->softcap, .q = q, .keys = keys, .values = values, .p = probs,
        .at = { .k = l->at + l->head.k + p->kv_head * l->k_head,
                .k_scale = l->at + l->head.k_scale + p->kv_head * l->ks_head,
                .v = l->at + l->head.v + p->kv_head * l->v_head,
                .v_scale = l->at + l->head.v_scale + p->kv_head * l->vs_head } };
    p->range = state_at(states, pairs);
    p->super = state_at(states + state_floats(x), pairs);
    p->total = state_at(states + 2 * state_floats(x), pairs);
    for (uint32_t r = 0; r < p->tile->n_rows; r++) {
        const float *row = kr_value_row(x, (uint32_t)p->op->in[0], p->tile->row + r);
        x->dev->ops.scale(q + (size_t)r * heads * l->k_dim,
                          row + (size_t)p->head0 * l->k_dim, p->op->f, heads * l->k_dim);
    }
}

void kr_cpu_range_blocks(const struct kr_cpu_exec *x, uint32_t group, const struct kr_tile *tile,
                         uint64_t base, const uint8_t *blocks[KR_RANGE_KEYS / 16])
{
    uint32_t bt = x->opts.block_tokens;
    const uint32_t *table = x->now.batch->seqs[tile->seq].tables[group];
    uint64_t from, to;
    kr_cpu_tile_sight(x, group, tile, &from, &to);
    from = CN_MAX(base, from);
    to = CN_MIN(base + KR_RANGE_KEYS, to);
    memset(blocks, 0, KR_RANGE_KEYS / 16 * sizeof *blocks);
    for (uint64_t b = from / bt; b * bt < to; b++)
        blocks[b - base / bt] = kr_cpu_block(x, x->now.mem, group, table[b]);
}

/* The keys of the range that were chosen for the tile's row, of those that it sees. */
static uint32_t list_chosen(const struct piece *p, uint64_t base, uint8_t list[KR_RANGE_KEYS])
{
    const struct kr_cpu_exec *x = p->x;
    uint32_t select = (uint32_t)p->op->in[1], n_words = x->plan->values[select].width, n = 0;
    const float *words = kr_value_row(x, select, p->tile->row);
    uint64_t from, to;
    kr_cpu_tile_sight(x, p->layer->group, p->tile, &from, &to);
    for (uint64_t i = base / 32; i < base / 32 + KR_RANGE_KEYS / 32 && i < n_words; i++) {
        uint32_t bits;
        memcpy(&bits, words + i, sizeof bits);
        for (; bits; bits &= bits - 1) {
            uint64_t key = 32 * i + (uint32_t)__builtin_ctz(bits);
            if (key >= from && key < to) list[n++] = (uint8_t)(key - base);
        }
    }
    return n;
}

/* Where the K lies that is read after the range at `base`: the next range's, or that of the piece
 * which the thread will most likely do next. */
static void find_ahead(struct piece *p, uint64_t base)
{
    const struct kr_kv_layer *l = p->layer;
    const struct kr_tile *tile = p->tile;
    const uint8_t *blocks[KR_RANGE_KEYS / 16] = { 0 };
    uint32_t head = p->kv_head;
    base += KR_RANGE_KEYS;
    if (base >= p->end) {
        tile = p->next;
        head = p->next_head;
        base = p->next_key;
    }
    if (tile) kr_cpu_range_blocks(p->x, l->group, tile, base, blocks);
    p->t.ahead = p->ahead;
    p->t.ahead_bytes = (uint32_t)l->k_head;
    p->t.n_ahead = 0;
    for (uint32_t i = 0; i < KR_RANGE_KEYS / 16; i++)
        if (blocks[i]) p->ahead[p->t.n_ahead++] = blocks[i] + l->at + l->head.k + head * l->k_head;
}

/* False when no key of the range was chosen, and nothing was done. */
static bool do_range(struct piece *p, uint64_t base, struct kr_attn_state s)
{
    const struct kr_cpu_exec *x = p->x;
    const uint8_t *blocks[KR_RANGE_KEYS / 16];
    uint8_t list[KR_RANGE_KEYS];
    if (p->op->in[1] >= 0) {
        p->t.list = list;
        p->t.n_list = list_chosen(p, base, list);
        if (!p->t.n_list) return false;
    }
    kr_cpu_range_blocks(x, p->layer->group, p->tile, base, blocks);
    find_ahead(p, base);
    x->dev->ops.attn_range(&p->t, (uint32_t)base, blocks, s);
    return true;
}

/* One super-range's ranges, merged in order. */
static void do_super(struct piece *p, uint32_t super, struct kr_attn_state s)
{
    const struct kr_cpu_exec *x = p->x;
    uint64_t base = (uint64_t)super * KR_SUPER_KEYS, end = base + KR_SUPER_KEYS, from, to;
    kr_cpu_tile_sight(x, p->layer->group, p->tile, &from, &to);
    to = CN_MIN(end, to);
    uint32_t pairs = p->t.n_rows * p->t.heads;
    bool empty = true;
    for (; base < to; base += KR_RANGE_KEYS) {
        if (base + KR_RANGE_KEYS <= from) continue;
        if (!do_range(p, base, empty ? s : p->range)) continue;
        if (!empty) x->dev->ops.attn_merge(s, p->range, pairs, p->t.v_dim, p->t.acc_stride);
        empty = false;
    }
    if (empty) memset(s.sum, 0, pairs * sizeof *s.sum);
}

static void finish(struct piece *p, struct kr_attn_state s)
{
    struct kr_cpu_exec *x = p->x;
    uint32_t heads = p->t.heads, v_dim = p->t.v_dim;
    for (uint32_t i = 0; i < p->t.n_rows * heads; i++) {
        float *y = kr_value_row(x, (uint32_t)p->op->out, p->tile->row + i / heads);
        uint32_t head = p->head0 + i % heads;
        x->dev->ops.attn_finish(y + (size_t)head * v_dim, s.acc + (size_t)i * p->t.acc_stride,
                                s.max[i], s.sum[i], p->sinks ? p->sinks + head : NULL, v_dim);
    }
}

bool kr_cpu_last_piece(struct kr_cpu_exec *x, uint32_t tile, uint32_t unit, uint32_t pieces)
{
    atomic_uint *done = &x->parts_done[(size_t)tile * x->max_units + unit];
    if (atomic_fetch_add_explicit(done, 1, memory_order_acq_rel) + 1 < pieces) return false;
    atomic_store_explicit(done, 0, memory_order_relaxed);
    return true;
}

/* The last of a tile's pieces merges all of their states. */
static void finish_split(struct piece *p, uint32_t tile)
{
    const struct kr_cpu_exec *x = p->x;
    uint32_t pairs = p->t.n_rows * p->t.heads;
    if (!kr_cpu_last_piece(p->x, tile, p->unit, p->tile->pieces)) return;
    struct kr_attn_state total = part_state(p, p->tile->first);
    for (uint32_t s = p->tile->first + 1; s < p->tile->last; s++)
        x->dev->ops.attn_merge(total, part_state(p, s), pairs, p->t.v_dim, p->t.acc_stride);
    finish(p, total);
}

static void do_piece(struct piece *p, const struct kr_work *w)
{
    struct kr_cpu_exec *x = p->x;
    uint64_t from;
    set_tile(p);
    kr_cpu_tile_sight(x, p->layer->group, p->tile, &from, &p->end);
    p->end = CN_MIN(p->end, (uint64_t)w->last * KR_SUPER_KEYS);
    if (p->tile->pieces > 1) {
        for (uint32_t i = w->first; i < w->last; i++)
            do_super(p, i, part_state(p, i));
        finish_split(p, w->tile);
        return;
    }
    uint32_t pairs = p->t.n_rows * p->t.heads;
    do_super(p, w->first, p->total);
    for (uint32_t i = w->first + 1; i < w->last; i++) {
        do_super(p, i, p->super);
        x->dev->ops.attn_merge(p->total, p->super, pairs, p->t.v_dim, p->t.acc_stride);
    }
    finish(p, p->total);
}

static uint32_t units_of(const struct kr_cpu_exec *x, const struct kr_step *s)
{
    return x->kv_layers[x->plan->ops[s->op].kv_layer].n_heads * x->attn[s->op].parts;
}

uint32_t kr_cpu_attention_works(const struct kr_cpu_exec *x, const struct kr_step *s)
{
    return x->tilings[x->attn[s->op].tiling].n_works * units_of(x, s);
}

static void set_next(struct piece *p, const struct kr_work *w, uint32_t unit)
{
    uint64_t from, to;
    p->next = &p->x->tilings[p->step->tiling].tiles[w->tile];
    p->next_head = unit / p->step->parts;
    kr_cpu_tile_sight(p->x, p->layer->group, p->next, &from, &to);
    from = CN_MAX(from, (uint64_t)w->first * KR_SUPER_KEYS);
    p->next_key = from / KR_RANGE_KEYS * KR_RANGE_KEYS;
}

void kr_cpu_attention(struct kr_cpu_exec *x, uint32_t thread, const struct kr_step *s,
                      uint32_t work)
{
    const struct kr_plan_op *op = &x->plan->ops[s->op];
    const struct kr_attn_step *a = &x->attn[s->op];
    const struct kr_tiling *t = &x->tilings[a->tiling];
    uint32_t units = units_of(x, s), next = work + 1;
    const struct kr_work *w = &t->works[work / units];
    struct piece p = { .x = x, .op = op, .step = a, .sinks = s->w,
                       .layer = &x->kv_layers[op->kv_layer], .tile = &t->tiles[w->tile],
                       .unit = work % units, .thread = thread };
    if (next < t->n_works * units) set_next(&p, &t->works[next / units], next % units);
    do_piece(&p, w);
}
