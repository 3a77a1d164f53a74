/* device: hands each call to the device kind that made the object. Holds no state. */
#include "kernels/device.h"

void kr_device_free(struct kr_device *d)
{
    if (d) d->ops->free(d);
}

const char *kr_device_path(const struct kr_device *d)
{
    return d->path;
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
    return d->ops->prepare(d, p, opts, out, err);
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
    return d->ops->kv_mem_new(d, slab_bytes, n_slabs, out, err);
}

void kr_kv_mem_free(struct kr_kv_mem *m)
{
    if (m) m->ops->kv_mem_free(m);
}

int kr_kv_copy(struct kr_exec *x, struct kr_kv_mem *m, uint32_t group, uint32_t dst_block,
               uint32_t src_block, uint32_t n_tokens)
{
    return x->ops->kv_copy(x, m, group, dst_block, src_block, n_tokens);
}

int kr_launch(struct kr_exec *x, struct kr_kv_mem *m, const struct kr_batch *b, uint64_t *ticket,
              struct cn_error *err)
{
    return x->ops->launch(x, m, b, ticket, err);
}

int kr_collect(struct kr_exec *x, uint64_t ticket, float **logits, struct cn_error *err)
{
    return x->ops->collect(x, ticket, logits, err);
}
