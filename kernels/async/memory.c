/* memory: what the asynchronous device has of its own, counted; the pace at which weights and
 * blocks get there; blocks that move to the host and back. The bytes themselves are the host's. */
#include "kernels/async/async.h"

#include <stdlib.h>
#include <string.h>

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

int kr_async_upload(struct kr_async *d, const struct kr_plan *p, const struct kr_prepare_opts *opts,
                    struct kr_exec **out, struct cn_error *err)
{
    struct kr_prepare_opts o = *opts;
    struct upload u = {opts, d->opts.upload_bytes_s, cn_now_ns()};
    if (!u.bytes_s) return kr_prepare(d->cpu, p, opts, out, err);
    o.progress = paced;
    o.progress_arg = &u;
    return kr_prepare(d->cpu, p, &o, out, err);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

int kr_async_host_new(struct kr_device *d, uint64_t bytes, void **out, struct cn_error *err)
{
    return kr_host_new(CN_CONTAINER(d, struct kr_async, base)->cpu, bytes, out, err);
}

void kr_async_host_free(struct kr_device *d, void *host, uint64_t bytes)
{
    struct kr_async *a = CN_CONTAINER(d, struct kr_async, base);
    kr_async_drain(a);
    kr_host_free(a->cpu, host, bytes);
}

int kr_async_move(struct kr_async_exec *x, struct kr_kv_mem *cpu_mem, const struct kr_move *moves,
                  uint32_t n, bool out, uint64_t *ticket, struct cn_error *err)
{
    const char *why;
    if (kr_device_lost(&x->dev->base, &why))
        return cn_fail(err, CN_EDEVICE, "the device is lost: %s", why);
    struct kr_async_job *j = cn_calloc(1, sizeof *j + n * sizeof *moves);
    if (!j) return cn_fail(err, CN_ENOMEM, "out of memory");
    *j = (struct kr_async_job){.kind = KR_ASYNC_MOVE,
                               .x = x,
                               .mem = cpu_mem,
                               .out = out,
                               .n_moves = n,
                               .moves = (struct kr_move *)(void *)(j + 1)};
    memcpy(j->moves, moves, n * sizeof *moves);
    *ticket = kr_async_push(x->dev, j);
    return 0;
}

bool kr_async_moved(struct kr_exec *base, uint64_t ticket, bool wait)
{
    struct kr_async *d = CN_CONTAINER(base, struct kr_async_exec, base)->dev;
    pthread_mutex_lock(&d->lock);
    while (wait && d->finished < ticket)
        pthread_cond_wait(&d->done, &d->lock);
    bool done = d->finished >= ticket;
    pthread_mutex_unlock(&d->lock);
    return done;
}

void kr_async_run_move(struct kr_async *d, struct kr_async_job *j)
{
    const struct kr_exec_info *info = kr_exec_info(j->x->cpu);
    uint64_t bytes = 0, ticket, began = cn_now_ns();
    for (uint32_t i = 0; i < j->n_moves; i++)
        bytes += info->groups[j->moves[i].group].block_bytes;
    if (d->opts.upload_bytes_s) {
        uint64_t ns = (uint64_t)((double)bytes / (double)d->opts.upload_bytes_s * 1e9);
        struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u),
                             .tv_nsec = (long)(ns % 1000000000u)};
        nanosleep(&t, NULL);
    }
    kr_kv_move(j->x->cpu, j->mem, j->moves, j->n_moves, j->out, &ticket, NULL);
    kr_device_moved(&d->base, bytes, cn_now_ns() - began);
}
