/* attention: walks the key ranges of tiles (rows that share blocks).
 *
 * Runs on pool threads; tiles.c and share.c cut the batch. A piece of work is a tile, some
 * super-ranges and a unit (a KV head or some of its query heads). Tiles of several sequences come
 * first: their states are kept per row and super-range, and the rows' own tiles merge them with the
 * rest. If several threads had a tile's super-ranges, the last one to end merges their states, in
 * ascending order, as a single thread would have. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/kv_read.h"

#include <string.h>

/* Limits of the prefetch during a piece of work: runs of memory, and bytes of a whole tile. */
#define AHEAD_RUNS  64u
#define AHEAD_BYTES (512u << 10)

/* ---- a piece of work ------------------------------------------------------------------------- */

struct piece {
    struct kr_cpu_exec *x;
    const struct kr_plan_op *op;
    const struct kr_attn_step *step;
    const float *sinks;
    const struct kr_kv_layer *layer;
    const struct kr_tiling *tiling;
    const struct kr_tile *tile;
    uint32_t unit, head0, kv_head, thread; /* head0: the first query head */
    uint64_t end;                          /* of the keys it reads */
    bool looks_ahead;                      /* range by range */
    const struct kr_tile *next;            /* tile of the next piece of work; NULL: none */
    uint32_t next_head;
    uint64_t next_key; /* where its first range begins */
    struct kr_attn_ahead ahead;
    struct kr_attn_run *runs; /* [AHEAD_RUNS] */
    struct kr_attn_tile t;
    struct kr_attn_state range, super, total; /* scratch */
};

static struct kr_attn_state state_at(float *mem, uint32_t pairs)
{
    return (struct kr_attn_state){.max = mem, .sum = mem + pairs, .acc = mem + 2ull * pairs};
}

/* The kept state of a super-range of an own tile. */
static struct kr_attn_state kept_state(const struct piece *p, const struct kr_tile *own,
                                       uint32_t super)
{
    uint32_t pairs = own->n_rows * p->step->heads;
    uint64_t each = (uint64_t)pairs * (p->t.acc_stride + 2);
    uint64_t i = (uint64_t)p->unit * own->n_states + kr_state_of(own, super);
    return state_at(p->x->parts + own->part + i * each, pairs);
}

/* Prefetches n floats that are used soon into the second level: the first one is in use. */
static void fetch_floats(const float *at, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16)
        __builtin_prefetch(at + i, 0, 2);
}

static void set_tile(struct piece *p)
{
    struct kr_cpu_exec *x = p->x;
    const struct kr_kv_layer *l = p->layer;
    uint32_t all = p->op->heads / l->n_heads, part = p->unit % p->step->parts * p->step->heads;
    uint32_t heads = CN_MIN(p->step->heads, all - part), pairs = p->tile->n_rows * heads;
    p->kv_head = p->unit / p->step->parts;
    p->head0 = p->kv_head * all + part;
    uint64_t at = l->at + p->kv_head * l->step;
    uint32_t v_pad = (l->v_dim + KR_LANES - 1) & ~(KR_LANES - 1);
    float *mem = (float *)(void *)(x->attn_mem + p->thread * x->attn_bytes);
    float *keys = mem, *values = keys + (size_t)KR_RANGE_KEYS * l->k_dim;
    float *probs = values + (size_t)KR_RANGE_KEYS * v_pad;
    float *q = probs + (size_t)KR_RANGE_KEYS * pairs, *states = q + (size_t)pairs * l->k_dim;
    p->t = (struct kr_attn_tile){.n_rows = p->tile->n_rows,
                                 .heads = heads,
                                 .pos = p->tiling->positions + p->tile->row,
                                 .sight = kr_sight_of(&x->kv_groups[l->group], p->tile->end),
                                 .k_dim = l->k_dim,
                                 .v_dim = l->v_dim,
                                 .acc_stride = v_pad,
                                 .block_tokens = x->base.opts.block_tokens,
                                 .kv_type = x->base.opts.kv_type,
                                 .latent = l->latent,
                                 .softcap = p->op->softcap,
                                 .q = q,
                                 .keys = keys,
                                 .values = values,
                                 .p = probs,
                                 .ahead = &p->ahead,
                                 .at = {.k = at + l->head.k,
                                        .k_scale = at + l->head.k_scale,
                                        .v = at + l->head.v,
                                        .v_scale = at + l->head.v_scale}};
    p->range = state_at(states, pairs);
    p->super = state_at(states + kr_cpu_state_floats(x), pairs);
    p->total = state_at(states + 2 * kr_cpu_state_floats(x), pairs);
    if (p->t.kv_type == KR_Q8_0 && !l->latent && p->op->in[1] < 0) {
        p->t.words = (int16_t *)(void *)(states + 3 * kr_cpu_state_floats(x));
        p->t.worth = states + 3 * kr_cpu_state_floats(x) + kr_cpu_word_floats(pairs, l->k_dim);
    }
    for (uint32_t r = 0; r < p->tile->n_rows; r++) {
        uint32_t row = p->tiling->rows[p->tile->row + r];
        const float *from = kr_value_row(x, (uint32_t)p->op->in[0], row);
        const float *to = kr_value_row(x, (uint32_t)p->op->out, row);
        from += (size_t)p->head0 * l->k_dim;
        x->dev->ops.scale(q + (size_t)r * heads * l->k_dim, from, p->op->f, heads * l->k_dim);
        if (p->head0 + 2 * heads <= p->op->heads) /* the next unit's queries */
            fetch_floats(from + (size_t)heads * l->k_dim, heads * l->k_dim);
        fetch_floats(to + (size_t)p->head0 * l->v_dim, heads * l->v_dim); /* where sums end up */
    }
    if (p->t.words) x->dev->ops.attn_queries(&p->t);
}

void kr_cpu_range_blocks(const struct kr_cpu_exec *x, uint32_t group, const struct kr_tile *tile,
                         uint64_t base, const uint8_t *blocks[KR_RANGE_KEYS / 16])
{
    uint32_t bt = x->base.opts.block_tokens;
    const uint32_t *table = x->now.batch->seqs[tile->seq].tables[group];
    uint64_t from, to;
    kr_cpu_tile_sight(x, group, tile, &from, &to);
    from = CN_MAX(base, from);
    to = CN_MIN(base + KR_RANGE_KEYS, to);
    memset(blocks, 0, KR_RANGE_KEYS / 16 * sizeof *blocks);
    for (uint64_t b = from / bt; b * bt < to; b++)
        blocks[b - base / bt] = kr_cpu_block(x, x->now.mem, group, table[b]);
}

/* Lists the keys of the range that were chosen for the tile's row and that it sees. */
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

/* ---- what is read next ----------------------------------------------------------------------- */

static void begin_list(struct piece *p)
{
    const uint8_t *none = (const uint8_t *)p->runs;
    p->ahead = (struct kr_attn_ahead){.at = none, .end = none};
}

static void add_run(struct piece *p, const uint8_t *at, uint64_t bytes)
{
    p->ahead.left += bytes;
    p->runs[p->ahead.n++] = (struct kr_attn_run){at, (uint32_t)bytes};
}

/* The listed memory will be fetched during the work on `keys` keys; 0: those of one range. */
static void end_list(struct piece *p, uint64_t keys)
{
    struct kr_attn_ahead *a = &p->ahead;
    a->keys = (uint32_t)keys;
    a->runs = p->runs;
    if (!a->n) return;
    a->at = p->runs[0].at;
    a->end = a->at + p->runs[0].bytes;
    a->runs++;
    a->n--;
}

/* Lists K and V of one head that are read after the range at `base`: those of the next range, or of
 * the piece that the thread will most likely do next. */
static void list_range(struct piece *p, uint64_t base)
{
    const struct kr_kv_layer *l = p->layer;
    const struct kr_tile *tile = p->tile;
    const uint8_t *blocks[KR_RANGE_KEYS / 16] = {0};
    uint32_t head = p->kv_head;
    begin_list(p);
    base += KR_RANGE_KEYS;
    if (base >= p->end) {
        tile = p->next;
        head = p->next_head;
        base = p->next_key;
    }
    if (tile) kr_cpu_range_blocks(p->x, l->group, tile, base, blocks);
    for (uint32_t i = 0; i < KR_RANGE_KEYS / 16; i++)
        if (blocks[i]) add_run(p, blocks[i] + l->at + head * l->step, l->step);
    end_list(p, 0);
}

/* Number of blocks that a tile's work reads, from *from on; 0: too many to fetch as a whole. */
static uint64_t whole_blocks(const struct piece *p, const struct kr_tile *tile,
                             const struct kr_work *w, uint64_t *from)
{
    uint64_t to, bt = p->x->base.opts.block_tokens;
    kr_cpu_tile_sight(p->x, p->layer->group, tile, from, &to);
    *from = CN_MAX(*from, (uint64_t)w->first * KR_SUPER_KEYS) / bt;
    to = (CN_MIN(to, (uint64_t)w->last * KR_SUPER_KEYS) + bt - 1) / bt;
    uint64_t n = to - *from;
    return n <= AHEAD_RUNS && n * p->layer->bytes <= AHEAD_BYTES ? n : 0;
}

/* Lists a part of the next tile, with all of its heads in the order of their addresses: this tile's
 * units together fetch all of it. Memory is fastest in long consecutive runs. False if there is no
 * next tile, or if one of the two is more than the cache should hold. */
static bool list_tile(struct piece *p, const struct kr_tile *tiles, const struct kr_work *works,
                      uint32_t work, uint32_t end, uint32_t units)
{
    const struct kr_cpu_exec *x = p->x;
    const struct kr_kv_layer *l = p->layer;
    uint64_t from;
    begin_list(p);
    if (work + units >= end || !whole_blocks(p, p->tile, &works[work / units], &from)) return false;
    const struct kr_work *w = &works[(work + units) / units];
    const struct kr_tile *next = &tiles[w->tile];
    const uint32_t *table = x->now.batch->seqs[next->seq].tables[l->group];
    uint64_t n = whole_blocks(p, next, w, &from);
    for (uint64_t b = from + n * p->unit / units; b < from + n * (p->unit + 1) / units; b++)
        add_run(p, kr_cpu_block(x, x->now.mem, l->group, table[b]) + l->at, l->bytes);
    return n > 0;
}

/* Counts what the range reads. */
static void count_keys(const struct piece *p, uint64_t base)
{
    const struct kr_kv_layer *l = p->layer;
    const struct kr_cpu_exec *x = p->x;
    uint64_t from, to, bytes = (l->k_head + l->ks_head + l->v_head + l->vs_head);
    kr_cpu_tile_sight(x, l->group, p->tile, &from, &to);
    from = CN_MAX(from, base);
    to = CN_MIN(to, base + KR_RANGE_KEYS);
    uint64_t n = p->t.list ? p->t.n_list : to > from ? to - from : 0;
    x->touched[p->thread].kv += n * bytes / x->base.opts.block_tokens;
}

/* False: no key of the range was chosen, and nothing was done. */
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
    if (p->looks_ahead) list_range(p, base);
    count_keys(p, base);
    x->dev->ops.attn_range(&p->t, (uint32_t)base, blocks, s);
    return true;
}

/* The ranges of one super-range, merged in order; s may hold the state of earlier ranges. */
static void do_super(struct piece *p, uint32_t super, struct kr_attn_state s)
{
    const struct kr_cpu_exec *x = p->x;
    uint64_t base = (uint64_t)super * KR_SUPER_KEYS, end = base + KR_SUPER_KEYS, from, to;
    uint64_t begin = (uint64_t)p->tile->begin * KR_RANGE_KEYS;
    kr_cpu_tile_sight(x, p->layer->group, p->tile, &from, &to);
    to = CN_MIN(end, to);
    uint32_t pairs = p->t.n_rows * p->t.heads;
    bool empty = begin <= base || !p->tile->joins;
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
        uint32_t row = p->tiling->rows[p->tile->row + i / heads];
        float *y = kr_value_row(x, (uint32_t)p->op->out, row);
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

static void merge(const struct piece *p, struct kr_attn_state to, struct kr_attn_state from)
{
    p->x->dev->ops.attn_merge(to, from, p->t.n_rows * p->t.heads, p->t.v_dim, p->t.acc_stride);
}

/* The first super-range after those that share this one's state. */
static uint32_t next_state(const struct kr_tile *own, uint32_t super)
{
    return super < own->first + own->merged ? own->first + own->merged : super + 1;
}

/* All super-ranges of a tile, in order; the states before the piece's own were kept by others. */
static void do_whole(struct piece *p, const struct kr_work *w)
{
    const struct kr_tile *own = p->tile;
    struct kr_attn_state total = p->total;
    uint32_t n_kept = own->n_states ? own->first + own->merged - 1 + own->n_states : own->first;
    for (uint32_t i = own->first; i < own->last;) {
        bool begun = i < n_kept, first = i == own->first;
        struct kr_attn_state s = begun ? kept_state(p, own, i) : first ? p->total : p->super;
        if (i >= w->first) do_super(p, i, s);
        if (first)
            total = s;
        else
            merge(p, total, s);
        i = begun ? next_state(own, i) : i + 1;
    }
    finish(p, total);
}

/* Some super-ranges of a tile; the last of its pieces merges all of their states. */
static void do_some(struct piece *p, const struct kr_work *w)
{
    const struct kr_tile *own = p->tile;
    for (uint32_t i = w->first; i < w->last; i++)
        do_super(p, i, kept_state(p, own, i));
    if (!kr_cpu_last_piece(p->x, w->tile, p->unit, own->pieces)) return;
    struct kr_attn_state total = kept_state(p, own, own->first);
    for (uint32_t i = next_state(own, own->first); i < own->last; i++)
        merge(p, total, kept_state(p, own, i));
    finish(p, total);
}

/* Leaves the rows' states of a super-range with their own tiles. */
static void leave_states(const struct piece *p, uint32_t super, struct kr_attn_state s)
{
    uint32_t heads = p->t.heads, stride = p->t.acc_stride;
    for (uint32_t r = 0; r < p->t.n_rows; r++) {
        uint32_t row = p->tiling->rows[p->tile->row + r];
        const struct kr_tile *own = &p->tiling->tiles[p->tiling->owner[row]];
        struct kr_attn_state to = kept_state(p, own, super);
        uint32_t at = (row - own->row) * heads, from = r * heads;
        memcpy(to.max + at, s.max + from, heads * sizeof *s.max);
        memcpy(to.sum + at, s.sum + from, heads * sizeof *s.sum);
        memcpy(to.acc + (size_t)at * stride, s.acc + (size_t)from * stride,
               (size_t)heads * stride * sizeof *s.acc);
    }
}

static void do_shared(struct piece *p, const struct kr_work *w)
{
    const struct kr_tile *tile = p->tile;
    for (uint32_t i = w->first; i < w->last; i++) {
        bool first = i == tile->first, merged = i < tile->first + tile->merged;
        struct kr_attn_state s = first ? p->total : p->super;
        do_super(p, i, s);
        if (merged && !first) merge(p, p->total, s);
        if (i + 1 == tile->first + tile->merged)
            leave_states(p, tile->first, p->total);
        else if (!merged)
            leave_states(p, i, s);
    }
}

static uint32_t units_of(const struct kr_cpu_exec *x, const struct kr_plan_op *op,
                         const struct kr_attn_step *a)
{
    return x->kv_layers[op->kv_layer].n_heads * a->parts;
}

uint32_t kr_cpu_attention_works(const struct kr_cpu_exec *x, const struct kr_step *s, bool shared)
{
    const struct kr_tiling *t = &x->tilings[x->attn[s->op].tiling];
    return (shared ? t->n_shared_works : t->n_works) *
           units_of(x, &x->plan->ops[s->op], &x->attn[s->op]);
}

/* Pieces that a thread takes at once: those of a tile, if there are enough for all threads. */
uint32_t kr_cpu_attention_chunk(const struct kr_cpu_exec *x, const struct kr_step *s,
                                uint32_t works)
{
    uint32_t units = units_of(x, &x->plan->ops[s->op], &x->attn[s->op]);
    return works >= 4 * units * kr_pool_threads(x->dev->pool) ? units : 1;
}

/* What will be fetched on the way. */
static void look_ahead(struct piece *p, const struct kr_tile *tiles, const struct kr_work *works,
                       uint32_t work, uint32_t n)
{
    uint32_t units = units_of(p->x, p->op, p->step), next = work + 1;
    uint32_t end = kr_pool_share_end(n, kr_pool_threads(p->x->dev->pool), work);
    uint64_t from, to;
    begin_list(p);
    if (p->t.n_rows * p->t.heads > KR_FEW_PAIRS || p->t.latent || p->op->in[1] >= 0) return;
    if (list_tile(p, tiles, works, work, end, units)) {
        kr_cpu_tile_sight(p->x, p->layer->group, p->tile, &from, &to);
        from = CN_MAX(from, (uint64_t)works[work / units].first * KR_SUPER_KEYS);
        end_list(p, p->end - from);
        return;
    }
    p->looks_ahead = true;
    if (next >= end) return;
    const struct kr_work *w = &works[next / units];
    p->next = &tiles[w->tile];
    p->next_head = next % units / p->step->parts;
    kr_cpu_tile_sight(p->x, p->layer->group, p->next, &from, &to);
    from = CN_MAX(from, (uint64_t)w->first * KR_SUPER_KEYS);
    p->next_key = from / KR_RANGE_KEYS * KR_RANGE_KEYS;
}

/* Does piece `work` of the op's shared tiles, or of its own tiles. */
static void do_work(struct kr_cpu_exec *x, uint32_t thread, const struct kr_step *s, bool shared,
                    uint32_t work)
{
    const struct kr_plan_op *op = &x->plan->ops[s->op];
    const struct kr_attn_step *a = &x->attn[s->op];
    const struct kr_tiling *t = &x->tilings[a->tiling];
    const struct kr_tile *tiles = shared ? t->shared : t->tiles;
    const struct kr_work *works = shared ? t->shared_works : t->works;
    uint32_t units = units_of(x, op, a);
    struct kr_attn_run runs[AHEAD_RUNS];
    const struct kr_work *w = &works[work / units];
    struct piece p = {.x = x,
                      .op = op,
                      .step = a,
                      .sinks = s->w,
                      .tiling = t,
                      .layer = &x->kv_layers[op->kv_layer],
                      .tile = &tiles[w->tile],
                      .unit = work % units,
                      .thread = thread,
                      .runs = runs};
    uint64_t from;
    set_tile(&p);
    kr_cpu_tile_sight(x, p.layer->group, p.tile, &from, &p.end);
    p.end = CN_MIN(p.end, (uint64_t)w->last * KR_SUPER_KEYS);
    look_ahead(&p, tiles, works, work, kr_cpu_attention_works(x, s, shared));
    if (shared)
        do_shared(&p, w);
    else if (p.tile->pieces > 1)
        do_some(&p, w);
    else
        do_whole(&p, w);
}

void kr_cpu_attention(struct kr_cpu_exec *x, uint32_t thread, const struct kr_step *s,
                      uint32_t work)
{
    do_work(x, thread, s, false, work);
}

void kr_cpu_attention_shared(struct kr_cpu_exec *x, uint32_t thread, const struct kr_step *s,
                             uint32_t work)
{
    do_work(x, thread, s, true, work);
}
