/* ahead: which keys and values a thread reads after those at hand, so that they are on their way
 * while it computes.
 *
 * Pool threads, each its own cursor. The cursor walks the blocks of the pieces of work that the
 * thread will most likely do, one whole range of keys before what is read: a range asks for as many
 * blocks as it reads itself, so that memory and arithmetic go on at the same pace however long each
 * sequence is. Hints alone: a thread that helps another begins anew, and no number depends on it. */
#include "kernels/cpu/cpu.h"

static void open_work(const struct kr_cpu_exec *x, struct kr_ahead *a)
{
    const struct kr_tiling *t = &x->tilings[x->attn[a->op].tiling];
    const struct kr_work *w = &(a->shared ? t->shared_works : t->works)[a->work / a->units];
    uint32_t bt = x->opts.block_tokens;
    uint64_t from;
    a->tile = &(a->shared ? t->shared : t->tiles)[w->tile];
    a->kv_head = a->work % a->units / x->attn[a->op].parts;
    kr_cpu_tile_sight(x, a->layer->group, a->tile, &from, &a->end);
    from = CN_MAX(from, (uint64_t)w->first * KR_SUPER_KEYS);
    a->end = CN_MIN(a->end, (uint64_t)w->last * KR_SUPER_KEYS);
    a->key = from / bt * bt;
}

void kr_cpu_ahead_begin(struct kr_cpu_exec *x, uint32_t thread, const struct kr_step *s, bool shared,
                        uint32_t work)
{
    struct kr_ahead *a = &x->ahead[thread];
    bool goes_on = a->step == x->steps + 1 && a->op == s->op && a->shared == shared &&
                   a->expected == work;
    if (!goes_on) {
        const struct kr_kv_layer *l = &x->kv_layers[x->plan->ops[s->op].kv_layer];
        uint32_t n = kr_cpu_attention_works(x, s, shared);
        *a = (struct kr_ahead){ .step = x->steps + 1, .op = s->op, .shared = shared, .layer = l,
                                .units = l->n_heads * x->attn[s->op].parts, .work = work,
                                .stop = kr_pool_share_end(x->dev->pool, n, work) };
        open_work(x, a);
    }
    a->expected = work + 1;
}

/* The next block; NULL when the thread's share is at its end. */
static const uint8_t *next_block(const struct kr_cpu_exec *x, struct kr_ahead *a)
{
    while (a->key >= a->end) {
        if (a->work + 1 >= a->stop) return NULL;
        a->work++;
        open_work(x, a);
    }
    uint64_t i = a->key / x->opts.block_tokens;
    uint32_t block = x->now.batch->seqs[a->tile->seq].tables[a->layer->group][i];
    a->key += x->opts.block_tokens;
    return kr_cpu_block(x, x->now.mem, a->layer->group, block) + a->layer->at;
}

static void add_run(struct kr_ahead *a, const uint8_t *at, uint64_t bytes)
{
    if (bytes) a->runs[a->n_runs++] = (struct kr_attn_run){ at, (uint32_t)bytes };
}

/* K of the cursor's head, its scales; V's alike. */
static void add_keys(struct kr_ahead *a, const uint8_t *block)
{
    const struct kr_kv_layer *l = a->layer;
    add_run(a, block + l->head.k + a->kv_head * l->k_head, l->k_head);
    add_run(a, block + l->head.k_scale + a->kv_head * l->ks_head, l->ks_head);
}

static void add_values(struct kr_ahead *a, const uint8_t *block)
{
    const struct kr_kv_layer *l = a->layer;
    add_run(a, block + l->head.v + a->kv_head * l->v_head, l->v_head);
    add_run(a, block + l->head.v_scale + a->kv_head * l->vs_head, l->vs_head);
}

void kr_cpu_ahead_range(struct kr_cpu_exec *x, uint32_t thread, uint32_t n_blocks,
                        struct kr_attn_tile *t)
{
    struct kr_ahead *a = &x->ahead[thread];
    const uint32_t distance = KR_RANGE_KEYS / x->opts.block_tokens;
    const uint8_t *block;
    a->n_runs = 0;
    /* What nobody asked for before: its keys are wanted at once, its values a little later. */
    for (; a->lead < n_blocks && (block = next_block(x, a)); a->lead++)
        add_values(a, block);
    a->lead -= CN_MIN(a->lead, n_blocks);
    for (; a->lead < distance && (block = next_block(x, a)); a->lead++) {
        add_keys(a, block);
        add_values(a, block);
    }
    t->ahead = a->runs;
    t->n_ahead = a->n_runs;
}
