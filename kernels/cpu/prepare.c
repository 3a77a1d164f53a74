/* prepare: makes a plan ready for this machine: schedule, KV layout, packed weights, scratch.
 *
 * Engine thread (the pool packs), or with `background` any thread. Everything is chosen from the
 * plan and the options; all memory a step uses is taken here. */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <sys/mman.h>

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
    uint64_t rows[KR_N_DOMAINS] = {x->base.opts.max_rows, x->base.opts.max_logit_rows,
                                   (uint64_t)x->base.opts.max_rows * x->plan->n_used};
    for (int d = 0; d < KR_N_DOMAINS; d++)
        x->shared[d] = take(mem, &at, x->row_floats[d] * rows[d] * sizeof(float));
    x->attn_bytes = kr_cpu_attention_bytes(x);
    x->attn_mem = take(mem, &at, x->attn_bytes * threads);
    x->parts = take(mem, &at, x->parts_floats * sizeof(float));
    x->parts_done = take(mem, &at, (uint64_t)x->max_split * x->max_units * sizeof(atomic_uint));
    x->members = take(mem, &at, rows[0] * sizeof(struct kr_member));
    if (x->plan->n_states) x->runs = take(mem, &at, rows[0] * sizeof(struct kr_run));
    x->results = take(mem, &at, rows[0] * sizeof(struct kr_result));
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
    cn_assert(kr_q8_bytes(x->base.opts.max_rows, 256) <=
              x->base.opts.max_rows * kr_q8_bytes(1, 256));
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

int kr_cpu_prepare(struct kr_device *d, const struct kr_plan *p, const struct kr_prepare_opts *opts,
                   struct kr_exec **out, struct cn_error *err)
{
    struct kr_cpu_exec *x = cn_calloc(1, sizeof *x);
    if (!x) return cn_fail(err, CN_ENOMEM, "out of memory");
    x->dev = CN_CONTAINER(d, struct kr_cpu, base);
    x->plan = p;
    int rc = kr_exec_init(&x->base, d, p, opts, err);
    if (!rc) rc = kr_cpu_schedule(x, err);
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
    kr_exec_fini(&x->base);
    free(x);
}
