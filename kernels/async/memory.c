/* memory: what the asynchronous device has of its own, counted, and the pace of its upload. The bytes
 * themselves are the host's. */
#include "kernels/async/async.h"

#include <time.h>

#define LOOK_NS 5000000u /* so often it is seen that loading is to stop */

int kr_async_take(struct kr_async *d, uint64_t bytes, const char *what, struct cn_error *err)
{
    uint64_t all = d->opts.memory_bytes, taken = atomic_load(&d->taken);
    if (!all) return 0;
    do {
        if (bytes > all - taken)
            return cn_fail(err, CN_ENOMEM, "%s takes %s, and the device has %s free of %s", what,
                           cn_size(bytes).text, cn_size(all - taken).text, cn_size(all).text);
    } while (!atomic_compare_exchange_weak(&d->taken, &taken, taken + bytes));
    return 0;
}

void kr_async_give(struct kr_async *d, uint64_t bytes)
{
    if (d->opts.memory_bytes) atomic_fetch_sub(&d->taken, bytes);
}

/* ---- the upload ------------------------------------------------------------------------------ */

struct upload {
    const struct kr_prepare_opts *asked;
    uint64_t bytes_s, began_ns;
};

static bool stopped(const struct upload *u)
{
    return u->asked->stop && atomic_load_explicit(u->asked->stop, memory_order_relaxed);
}

/* Waits until so many bytes could have arrived. */
static void paced(void *arg, uint64_t done, uint64_t total)
{
    const struct upload *u = arg;
    uint64_t until = u->began_ns + (uint64_t)((double)done / (double)u->bytes_s * 1e9), now;
    while (!stopped(u) && (now = cn_now_ns()) < until) {
        struct timespec t = {.tv_nsec = (long)CN_MIN(until - now, (uint64_t)LOOK_NS)};
        nanosleep(&t, NULL);
    }
    if (u->asked->progress) u->asked->progress(u->asked->progress_arg, done, total);
}

int kr_async_upload(struct kr_async *d, const struct kr_plan *p,
                    const struct kr_prepare_opts *opts, struct kr_exec **out, struct cn_error *err)
{
    struct kr_prepare_opts o = *opts;
    struct upload u = {opts, d->opts.upload_bytes_s, cn_now_ns()};
    if (!u.bytes_s) return kr_prepare(d->cpu, p, opts, out, err);
    o.progress = paced;
    o.progress_arg = &u;
    return kr_prepare(d->cpu, p, &o, out, err);
}
