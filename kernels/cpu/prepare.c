/* prepare: makes a plan ready for this machine: schedule, KV layout, packed weights, scratch.
 *
 * Engine thread (the pool packs), or with `background` any thread. Everything is chosen from the
 * plan and the options; all memory a step uses is taken here. */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <sys/mman.h>

static int check_opts(const struct kr_plan *p, const struct kr_prepare_opts *o,
                      struct cn_error *err)
{
    if (p->err.code || p->output < 0)
        return cn_fail(err, CN_EINVAL, "the plan was not finished without error");
    if (o->kv_type != KR_F16 && o->kv_type != KR_Q8_0 && o->kv_type != KR_Q4_0)
        return cn_fail(err, CN_EUNSUPP, "the KV type must be f16, q8_0 or q4_0");
    if (o->block_tokens != 16 && o->block_tokens != 32)
        return cn_fail(err, CN_EINVAL, "KV blocks of %u tokens: 16 or 32 are possible",
                       o->block_tokens);
    if (!o->max_rows || o->max_rows > 1u << 20 || !o->max_logit_rows ||
        o->max_logit_rows > o->max_rows)
        return cn_fail(err, CN_EINVAL, "steps of %u rows, %u with logits", o->max_rows,
                       o->max_logit_rows);
    if (!o->max_context || o->max_context > 1u << 30)
        return cn_fail(err, CN_EINVAL, "a context of %llu tokens",
                       (unsigned long long)o->max_context);
    if (o->max_context > p->n_positions)
        return cn_fail(err, CN_EINVAL, "a context of %llu tokens, the model has %llu positions",
                       (unsigned long long)o->max_context, (unsigned long long)p->n_positions);
    for (size_t i = 0; i < p->n_ops; i++) {
        const struct kr_plan_op *op = &p->ops[i];
        if (op->kind == KR_OP_SELECT && o->max_context > 32ull * p->values[op->out].width)
            return cn_fail(err, CN_EINVAL,
                           "a context of %llu tokens, the indexer was made for %llu",
                           (unsigned long long)o->max_context, 32ull * p->values[op->out].width);
    }
    return 0;
}

static uint64_t pad64(uint64_t n)
{
    return (n + 63) & ~63ull;
}

/* Takes n bytes at *at; with no memory yet it only counts. */
static void *take(uint8_t *mem, uint64_t *at, uint64_t n)
{
    void *p = mem ? mem + *at : NULL;
    *at += pad64(n);
    return p;
}

/* The scratch in its order; called once to count and once to place. */
static uint64_t lay_out_scratch(struct kr_cpu_exec *x, uint8_t *mem)
{
    uint64_t at = 0, threads = kr_pool_threads(x->dev->pool);
    uint64_t rows[KR_N_DOMAINS] = { x->opts.max_rows, x->opts.max_logit_rows,
                                    (uint64_t)x->opts.max_rows * x->plan->n_used };
    for (int d = 0; d < KR_N_DOMAINS; d++)
        x->shared[d] = take(mem, &at, x->row_floats[d] * rows[d] * sizeof(float));
    x->attn_bytes = kr_cpu_attention_bytes(x);
    x->attn_mem = take(mem, &at, x->attn_bytes * threads);
    x->parts = take(mem, &at, x->parts_floats * sizeof(float));
    x->parts_done = take(mem, &at, (uint64_t)x->max_split * x->max_units * sizeof(atomic_uint));
    x->members = take(mem, &at, rows[0] * sizeof(struct kr_member));
    if (x->plan->n_states) x->runs = take(mem, &at, rows[0] * sizeof(struct kr_run));
    x->logit_rows = take(mem, &at, rows[0] * sizeof(uint32_t));
    x->results = take(mem, &at, rows[0] * sizeof(struct kr_result));
    x->seq_seen = take(mem, &at, rows[0] * sizeof(uint32_t));
    x->grouping_mem = take(mem, &at, kr_cpu_grouping_bytes(x));
    x->touched = take(mem, &at, threads * sizeof *x->touched);
    for (uint32_t i = 0; i < x->n_tilings; i++) {
        struct kr_tiling *t = &x->tilings[i];
        t->tiles = take(mem, &at, rows[0] * sizeof(struct kr_tile));
        t->works = take(mem, &at, x->max_works * sizeof(struct kr_work));
        t->shared = take(mem, &at, rows[0] * sizeof(struct kr_tile));
        t->shared_works = take(mem, &at, x->max_works * sizeof(struct kr_work));
        t->rows = take(mem, &at, 3 * rows[0] * sizeof(uint32_t));
        t->positions = take(mem, &at, 3 * rows[0] * sizeof(uint32_t));
        t->owner = take(mem, &at, rows[0] * sizeof(uint32_t));
    }
    return at;
}

static int alloc_scratch(struct kr_cpu_exec *x, struct cn_error *err)
{
    /* What the layout relies on: n quantised rows take no more than n times one row. */
    cn_assert(kr_q8_bytes(x->opts.max_rows, 256) <= x->opts.max_rows * kr_q8_bytes(1, 256));
    x->scratch_bytes = lay_out_scratch(x, NULL);
    for (int d = 0; d < KR_N_DOMAINS; d++)
        if (x->row_floats[d] > UINT64_MAX >> 40)
            return cn_fail(err, CN_ENOMEM, "the plan's values are too large");
    void *mem = mmap(NULL, x->scratch_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mem == MAP_FAILED)
        return cn_fail(err, CN_ENOMEM, "out of memory: a step's scratch needs %llu bytes",
                       (unsigned long long)x->scratch_bytes);
    x->scratch = mem;
    lay_out_scratch(x, x->scratch);
    kr_cpu_place_groupings(x);
    x->base.info.scratch_bytes = x->scratch_bytes;
    return 0;
}

/* Of products with weights: what a row costs, and what its logits do. */
static void count_macs(const struct kr_plan *p, struct kr_exec_info *info)
{
    for (size_t i = 0; i < p->n_ops; i++) {
        const struct kr_plan_op *op = &p->ops[i];
        if (!kr_is_product(op)) continue;
        uint64_t macs = op->w.ne[0] * kr_tensor_dim(&op->w, 1);
        if (op->kind == KR_OP_HEAD_MATMUL) macs *= kr_tensor_dim(&op->w, 2);
        if (op->kind == KR_OP_EXPERT_MATMUL) macs = op->w.ne[0] * op->len * p->n_used;
        if (p->values[op->out].domain == KR_DOM_LOGITS) info->logit_macs += macs;
        else info->row_macs += macs;
    }
}

static void fill_info(struct kr_cpu_exec *x)
{
    const struct kr_plan *p = x->plan;
    count_macs(p, &x->base.info);
    x->base.info.n_vocab = p->values[p->output].width;
    x->n_tokens = UINT32_MAX;
    for (size_t i = 0; i < p->n_ops; i++) {
        if (p->ops[i].kind != KR_OP_EMBED) continue;
        const struct kr_tensor *w = &p->ops[i].w;
        if (!x->n_tables++) x->base.info.embd_dim = w->ne[0];
        x->n_tokens = CN_MIN(x->n_tokens, w->n_dims > 1 ? (uint32_t)w->ne[1] : 1);
        const struct kr_type_info *ti = kr_type_info((uint32_t)w->type);
        x->base.info.weight_bytes += w->ne[0] / ti->block_elems * ti->block_bytes;
    }
}

int kr_cpu_prepare(struct kr_device *d, const struct kr_plan *p, const struct kr_prepare_opts *opts,
                   struct kr_exec **out, struct cn_error *err)
{
    int rc = check_opts(p, opts, err);
    if (rc) return rc;
    struct kr_cpu_exec *x = cn_calloc(1, sizeof *x);
    if (!x) return cn_fail(err, CN_ENOMEM, "out of memory");
    x->base.ops = d->ops;
    x->dev = CN_CONTAINER(d, struct kr_cpu, base);
    x->plan = p;
    x->opts = *opts;
    fill_info(x);
    rc = kr_cpu_schedule(x, err);
    if (!rc) rc = kr_cpu_kv_layout(x, err);
    if (!rc) rc = kr_cpu_plan_tilings(x, err);
    if (!rc) rc = kr_cpu_plan_experts(x, err);
    if (!rc) rc = alloc_scratch(x, err);
    if (!rc) rc = kr_cpu_load_weights(x, err);
    if (rc) {
        kr_cpu_exec_free(&x->base);
        return rc;
    }
    *out = &x->base;
    return 0;
}

void kr_cpu_exec_free(struct kr_exec *base)
{
    if (!base) return;
    struct kr_cpu_exec *x = CN_CONTAINER(base, struct kr_cpu_exec, base);
    kr_cpu_profile(base, false);
    if (x->scratch) munmap(x->scratch, x->scratch_bytes);
    if (x->weight_mem) munmap(x->weight_mem, x->weight_mem_bytes);
    free(x->vectors);
    free(x->packed);
    free(x->row_steps);
    free(x->heavy_steps);
    free(x->levels);
    free(x->stages);
    free(x->jobs);
    free(x->slots);
    free(x->attn);
    free(x->tilings);
    free(x->groupings);
    free(x->kv_layers);
    free(x->kv_groups);
    free(x);
}
