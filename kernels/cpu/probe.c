/* probe: measures what the device's threads reach together now; speeds are reported as shares of
 * it. Engine thread; the buffer that is read belongs to the device and is kept from probe to
 * probe. */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB        (1ull << 20)
#define STEP_BYTES (256u << 10) /* read between two looks at the clock */
#define MIN_BYTES  (512 * MIB)
#define ROUNDS     256u /* of products between two looks at the clock */
#define REPEATS    4u

/* What one thread of a probe does; a cache line each. */
struct part {
    _Alignas(64) uint64_t done, end_ns;
    uint64_t at; /* where the next run reads on, past what the cache may have */
};
struct kr_cpu_probe {
    uint8_t *data;
    uint64_t bytes;
    struct part *parts; /* by thread */
};
struct run {
    const struct kr_probe_ops *ops;
    struct kr_cpu_probe *p;
    uint64_t slice; /* bytes read by each */
    uint64_t until_ns;
};

static void read_part(void *arg, uint32_t i)
{
    const struct run *r = arg;
    struct part *part = &r->p->parts[i];
    const uint8_t *data = r->p->data + i * r->slice;
    do {
        if (part->at + STEP_BYTES > r->slice) part->at = 0;
        r->ops->read(data + part->at, STEP_BYTES);
        part->at += STEP_BYTES;
        part->done += STEP_BYTES;
        part->end_ns = cn_now_ns();
    } while (part->end_ns < r->until_ns);
}

static void int8_part(void *arg, uint32_t i)
{
    const struct run *r = arg;
    struct part *part = &r->p->parts[i];
    do {
        part->done += r->ops->int8(ROUNDS);
        part->end_ns = cn_now_ns();
    } while (part->end_ns < r->until_ns);
}

static void fma_part(void *arg, uint32_t i)
{
    const struct run *r = arg;
    struct part *part = &r->p->parts[i];
    do {
        part->done += r->ops->fma(ROUNDS);
        part->end_ns = cn_now_ns();
    } while (part->end_ns < r->until_ns);
}

/* The best of a few short runs, because other load can only lower a run. */
static double best(struct kr_cpu *c, void (*fn)(void *arg, uint32_t i), uint64_t slice, uint64_t ns)
{
    uint32_t threads = kr_pool_threads(c->pool);
    struct run r = {&c->ops.probe, c->probe, slice, 0};
    double most = 0;
    for (uint32_t k = 0; k < REPEATS; k++) {
        uint64_t start = cn_now_ns(), end = start, done = 0;
        r.until_ns = start + ns / REPEATS;
        for (uint32_t i = 0; i < threads; i++)
            r.p->parts[i].done = 0;
        kr_device_parallel(&c->base, threads, fn, &r);
        for (uint32_t i = 0; i < threads; i++) {
            done += r.p->parts[i].done;
            end = CN_MAX(end, r.p->parts[i].end_ns);
        }
        most = CN_MAX(most, (double)done * 1e9 / (double)CN_MAX(end - start, 1u));
    }
    return most;
}

/* ---- the buffer ------------------------------------------------------------------------------ */

/* Twice the last-level cache: so much is never found in it, and larger buffers give the same
 * figure. */
static uint64_t default_bytes(void)
{
    long cache = 0;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    return CN_MAX(MIN_BYTES, cache > 0 ? 2 * (uint64_t)cache : 0);
}

void kr_cpu_probe_free(struct kr_cpu_probe *p)
{
    if (!p) return;
    if (p->data) munmap(p->data, p->bytes);
    free(p->parts);
    free(p);
}

static void fill_part(void *arg, uint32_t i)
{
    const struct run *r = arg;
    memset(r->p->data + i * r->slice, 1, r->slice); /* pages of its own: untouched ones share one */
}

/* At least `bytes` of memory that is really there, each thread's slice placed by itself. */
static int grow(struct kr_cpu *c, uint64_t bytes, struct cn_error *err)
{
    uint32_t threads = kr_pool_threads(c->pool);
    if (!c->probe) {
        struct kr_cpu_probe *p = cn_calloc(1, sizeof *p);
        if (p) p->parts = aligned_alloc(64, threads * sizeof *p->parts);
        if (!p || !p->parts) {
            kr_cpu_probe_free(p);
            return cn_fail(err, CN_ENOMEM, "out of memory");
        }
        memset(p->parts, 0, threads * sizeof *p->parts);
        c->probe = p;
    }
    struct kr_cpu_probe *p = c->probe;
    if (p->bytes >= bytes) return 0;
    if (p->data) munmap(p->data, p->bytes);
    p->bytes = 0;
    p->data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p->data == MAP_FAILED) {
        p->data = NULL;
        return cn_fail(err, CN_ENOMEM, "no memory for %llu MiB to read",
                       (unsigned long long)(bytes / MIB));
    }
    p->bytes = bytes;
#if defined(MADV_HUGEPAGE)
    madvise(p->data, bytes, MADV_HUGEPAGE); /* as weights and KV are kept */
#endif
    struct run r = {.p = p, .slice = bytes / threads};
    kr_device_parallel(&c->base, threads, fill_part, &r);
    return 0;
}

/* ---- the probes ------------------------------------------------------------------------------ */

int kr_cpu_probe_read(struct kr_device *d, uint64_t bytes, uint64_t ns, double *bytes_s,
                      struct cn_error *err)
{
    struct kr_cpu *c = CN_CONTAINER(d, struct kr_cpu, base);
    uint64_t whole = (uint64_t)kr_pool_threads(c->pool) * STEP_BYTES;
    bytes = CN_MAX(1, bytes / whole) * whole;
    int rc = grow(c, bytes, err);
    if (rc) return rc;
    *bytes_s = best(c, read_part, bytes / whole * STEP_BYTES, ns);
    return 0;
}

int kr_cpu_probe(struct kr_device *d, uint64_t most_bytes, uint64_t ns_each, struct kr_probe *out,
                 struct cn_error *err)
{
    struct kr_cpu *c = CN_CONTAINER(d, struct kr_cpu, base);
    uint64_t bytes = CN_MIN(default_bytes(), most_bytes);
    int rc = kr_cpu_probe_read(d, bytes, ns_each, &out->read_bytes_s, err);
    if (rc) return rc;
    out->int8_ops_s = best(c, int8_part, 0, ns_each);
    out->fma_flops_s = best(c, fma_part, 0, ns_each);
    return 0;
}
