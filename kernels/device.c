/* device: the kinds of devices, and each call handed to the kind that made the object. Holds no
 * state. */
#include "kernels/device.h"
#include "kernels/plan.h"

#include <string.h>

static int new_cpu(const struct kr_device_opts *o, struct kr_device **out, struct cn_error *err)
{
    return kr_cpu_new(&o->cpu, out, err);
}

static int new_async(const struct kr_device_opts *o, struct kr_device **out, struct cn_error *err)
{
    struct kr_device *cpu;
    int rc = kr_cpu_new(&o->cpu, &cpu, err);
    return rc ? rc : kr_async_new(cpu, &o->async, out, err);
}

static const struct {
    const char *kind;
    int (*make)(const struct kr_device_opts *o, struct kr_device **out, struct cn_error *err);
} kinds[] = {
#define DEVICE(name) {#name, new_##name},
#include "kernels/devices.def"
#undef DEVICE
};

const char *kr_device_kinds(void)
{
#define DEVICE(name) ", " #name
    static const char list[] =
#include "kernels/devices.def"
        ;
#undef DEVICE
    return list + 2;
}

int kr_device_new(const char *kind, const struct kr_device_opts *opts, struct kr_device **out,
                  struct cn_error *err)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(kinds); i++)
        if (!strcmp(kind, kinds[i].kind) || !strcmp(kind, "auto"))
            return kinds[i].make(opts, out, err);
    return cn_fail(err, CN_EINVAL, "there is no device %s; there are %s", kind, kr_device_kinds());
}

void kr_device_free(struct kr_device *d)
{
    if (d) d->ops->free(d);
}

void kr_device_info(const struct kr_device *d, struct kr_device_info *out)
{
    *out = (struct kr_device_info){.kind = d->ops->kind,
                                   .max_depth = d->ops->max_depth,
                                   .max_outputs = d->ops->max_outputs,
                                   .keeps_draws = d->ops->draw_new != NULL,
                                   .lends_at_load = d->lends_at_load};
    if (d->ops->memory) d->ops->memory(d, &out->memory_bytes, &out->free_bytes);
    out->move_bytes_s = atomic_load(&d->move_bytes_s);
    out->moved_ns = atomic_load(&d->moved_ns);
}

void kr_device_moved(struct kr_device *d, uint64_t bytes, uint64_t ns)
{
    double rate = (double)bytes * 1e9 / (double)CN_MAX(ns, 1u);
    double was = (double)atomic_load(&d->move_bytes_s);
    if (was > 0) rate = was + (rate - was) / 2;
    atomic_store(&d->move_bytes_s, (uint64_t)CN_MAX(rate, 1.0));
    atomic_store(&d->moved_ns, cn_now_ns());
}

bool kr_device_lost(const struct kr_device *d, const char **why)
{
    return d->ops->lost && d->ops->lost(d, why);
}

const char *kr_device_path(const struct kr_device *d)
{
    return d->path;
}

const struct kr_draw_loops *kr_device_draw_loops(const struct kr_device *d)
{
    return d->ops->draw_loops(d);
}

uint32_t kr_device_threads(const struct kr_device *d)
{
    return d->ops->threads(d);
}

void kr_device_parallel(struct kr_device *d, uint32_t n, void (*fn)(void *arg, uint32_t i),
                        void *arg)
{
    d->ops->parallel(d, n, fn, arg);
}

int kr_device_probe(struct kr_device *d, uint64_t most_bytes, uint64_t ns_each,
                    struct kr_probe *out, struct cn_error *err)
{
    return d->ops->probe(d, most_bytes, ns_each, out, err);
}

int kr_device_probe_read(struct kr_device *d, uint64_t bytes, uint64_t ns, double *bytes_s,
                         struct cn_error *err)
{
    return d->ops->probe_read(d, bytes, ns, bytes_s, err);
}

int kr_prepare(struct kr_device *d, const struct kr_plan *p, const struct kr_prepare_opts *opts,
               struct kr_exec **out, struct cn_error *err)
{
    int rc = kr_plan_check(p, opts, err);
    struct kr_device_info info;
    kr_device_info(d, &info);
    if (!rc && p->n_more + 1 > info.max_outputs)
        rc = cn_fail(err, CN_EUNSUPP, "the plan's output %s: %s gives %u of a plan",
                     p->more[info.max_outputs - 1].name, info.kind, info.max_outputs);
    return rc ? rc : d->ops->prepare(d, p, opts, out, err);
}

void kr_exec_free(struct kr_exec *x)
{
    if (x) x->ops->exec_free(x);
}

const struct kr_exec_info *kr_exec_info(const struct kr_exec *x)
{
    return &x->info;
}

void kr_exec_counters(const struct kr_exec *x, struct kr_counters *out)
{
    x->ops->counters(x, out);
}

int kr_exec_describe(const struct kr_exec *x, struct cn_buf *out)
{
    return x->ops->describe(x, out);
}

int kr_exec_profile(struct kr_exec *x, bool on)
{
    return x->ops->profile(x, on);
}

int kr_exec_profile_text(const struct kr_exec *x, struct cn_buf *out)
{
    return x->ops->profile_text(x, out);
}

int kr_kv_mem_new(struct kr_device *d, uint64_t slab_bytes, uint32_t n_slabs,
                  struct kr_kv_mem **out, struct cn_error *err)
{
    uint64_t bytes;
    if (!slab_bytes || slab_bytes % 64 || !n_slabs || n_slabs > UINT32_MAX >> KR_BLOCK_INDEX_BITS ||
        !cn_mul_u64(slab_bytes, n_slabs, &bytes) || bytes > SIZE_MAX / 2)
        return cn_fail(err, CN_EINVAL, "KV memory of %u slabs of %llu bytes is not possible",
                       n_slabs, (unsigned long long)slab_bytes);
    int rc = d->ops->kv_mem_new(d, slab_bytes, n_slabs, out, err);
    if (rc) return rc;
    (*out)->ops = d->ops;
    (*out)->slab_bytes = slab_bytes;
    (*out)->n_slabs = n_slabs;
    return 0;
}

void kr_kv_mem_free(struct kr_kv_mem *m)
{
    if (m) m->ops->kv_mem_free(m);
}

int kr_kv_copy(struct kr_exec *x, struct kr_kv_mem *m, uint32_t group, uint32_t dst_block,
               uint32_t src_block, uint32_t n_tokens)
{
    int rc = kr_check_copy(x, m, group, dst_block, src_block, n_tokens);
    return rc || dst_block == src_block
               ? rc
               : x->ops->kv_copy(x, m, group, dst_block, src_block, n_tokens);
}

int kr_host_new(struct kr_device *d, uint64_t bytes, void **out, struct cn_error *err)
{
    if (bytes > SIZE_MAX / 2)
        return cn_fail(err, CN_ENOMEM, "host memory of %llu bytes is not possible",
                       (unsigned long long)bytes);
    return d->ops->host_new(d, bytes, out, err);
}

void kr_host_free(struct kr_device *d, void *host, uint64_t bytes)
{
    if (host) d->ops->host_free(d, host, bytes);
}

int kr_kv_move(struct kr_exec *x, struct kr_kv_mem *m, const struct kr_move *moves, uint32_t n,
               bool out, uint64_t *ticket, struct cn_error *err)
{
    int rc = kr_check_moves(x, m, moves, n, err);
    return rc ? rc : x->ops->kv_move(x, m, moves, n, out, ticket, err);
}

bool kr_moved(struct kr_exec *x, uint64_t ticket, bool wait)
{
    return x->ops->moved(x, ticket, wait);
}

int kr_launch(struct kr_exec *x, struct kr_kv_mem *m, const struct kr_batch *b, uint64_t *ticket,
              struct cn_error *err)
{
    int rc = kr_check_batch(x, m, b, err);
    return rc ? rc : x->ops->launch(x, m, b, ticket, err);
}

int kr_collect(struct kr_exec *x, uint64_t ticket, float **logits, struct cn_error *err)
{
    return x->ops->collect(x, ticket, logits, err);
}

int kr_draw_open(struct kr_exec *x, struct kr_draw_at at, const struct kr_draw_state *s,
                 struct kr_draw_at like, const uint32_t *output, size_t n_output)
{
    struct kr_draw_told told;
    if (!x->ops->draw_new) return 0;
    if (!x->draws_at || !at.generation || at.slot >= x->opts.max_seqs) return CN_ERANGE;
    kr_draw_state_tell(s, &told);
    x->draws_at[at.slot] = 0;
    int rc = kr_draw_is_at(x, like) ? x->ops->draw_clone(x, at, told.choice, like.slot)
                                    : x->ops->draw_new(x, at, &told);
    if (!rc && told.counts && n_output) rc = x->ops->draw_put(x, at.slot, 0, output, n_output);
    if (!rc) x->draws_at[at.slot] = at.generation;
    return rc;
}

int kr_draw_put(struct kr_exec *x, struct kr_draw_at at, struct kr_draw_state *s, uint64_t before,
                const uint32_t *ids, size_t n)
{
    struct kr_draw_told told;
    if (x->ops->draw_new) {
        kr_draw_state_tell(s, &told);
        if (!told.counts || !kr_draw_is_at(x, at)) return 0;
        return x->ops->draw_put(x, at.slot, before, ids, n);
    }
    int rc = 0;
    kr_draw_state_cut(s, before);
    for (size_t i = 0; i < n && !rc; i++)
        rc = kr_draw_state_accept(s, ids[i]);
    return rc;
}

void kr_draw_close(struct kr_exec *x, struct kr_draw_at at)
{
    if (!kr_draw_is_at(x, at)) return;
    x->draws_at[at.slot] = 0;
    x->ops->draw_drop(x, at.slot);
}

int kr_draw(struct kr_exec *x, uint64_t ticket, const struct kr_draw *draws, uint32_t n,
            struct cn_error *err)
{
    int rc = kr_check_draws(x, draws, n, err);
    return rc ? rc : x->ops->draw(x, ticket, draws, n, err);
}

int kr_collect_drawn(struct kr_exec *x, uint64_t ticket, const struct kr_result **out,
                     struct cn_error *err)
{
    return x->ops->collect_drawn(x, ticket, out, err);
}
