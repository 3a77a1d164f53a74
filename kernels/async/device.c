/* device: the asynchronous device's thread and queue, and the calls that are the CPU's own. */
#include "kernels/async/async.h"

#include <stdlib.h>
#include <time.h>

static struct kr_async *device_of(const struct kr_device *d)
{
    return CN_CONTAINER(d, struct kr_async, base);
}

static struct kr_async_exec *exec_of(const struct kr_exec *x)
{
    return CN_CONTAINER(x, struct kr_async_exec, base);
}

/* KV memory: the CPU's, which knows its own kind. */
struct async_mem {
    struct kr_kv_mem base;
    struct kr_async *dev;
    struct kr_kv_mem *cpu;
    uint64_t taken; /* bytes of the device's memory */
};

/* ---- the queue ------------------------------------------------------------------------------- */

static void *run(void *arg)
{
    struct kr_async *d = arg;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        struct kr_async_job *j = d->first;
        if (!j && d->stop) break;
        if (!j) {
            pthread_cond_wait(&d->work, &d->lock);
            continue;
        }
        d->first = j->next;
        if (!d->first) d->last = &d->first;
        pthread_mutex_unlock(&d->lock);
        kr_async_run(d, j);
        pthread_mutex_lock(&d->lock);
        if (j->kind == KR_ASYNC_FORWARD) j->step->forward_done = true;
        if (j->kind == KR_ASYNC_DRAW) j->step->draw_done = true;
        if (j->kind < KR_ASYNC_FORWARD) free(j); /* the others are a step's */
        d->finished++;
        pthread_cond_broadcast(&d->done);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

uint64_t kr_async_push(struct kr_async *d, struct kr_async_job *j)
{
    j->next = NULL;
    pthread_mutex_lock(&d->lock);
    *d->last = j;
    d->last = &j->next;
    uint64_t number = ++d->asked;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->lock);
    return number;
}

void kr_async_drain(struct kr_async *d)
{
    pthread_mutex_lock(&d->lock);
    uint64_t all = d->asked; /* others may go on asking */
    while (d->finished < all)
        pthread_cond_wait(&d->done, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

/* ---- the device ------------------------------------------------------------------------------ */

static void async_free(struct kr_device *base)
{
    struct kr_async *d = device_of(base);
    if (d->thread_there) {
        pthread_mutex_lock(&d->lock);
        d->stop = true;
        pthread_cond_signal(&d->work);
        pthread_mutex_unlock(&d->lock);
        pthread_join(d->thread, NULL);
    }
    if (d->lock_there) {
        pthread_mutex_destroy(&d->lock);
        pthread_cond_destroy(&d->work);
        pthread_cond_destroy(&d->done);
    }
    kr_device_free(d->cpu);
    free(d);
}

static bool async_lost(const struct kr_device *base, const char **why)
{
    if (!atomic_load(&device_of(base)->lost)) return false;
    if (why) *why = "it was to be lost after so many steps";
    return true;
}

static void async_memory(const struct kr_device *base, uint64_t *bytes, uint64_t *free_bytes)
{
    const struct kr_async *d = device_of(base);
    *bytes = d->opts.memory_bytes;
    *free_bytes = *bytes - CN_MIN(*bytes, atomic_load(&d->taken));
}

static const struct kr_draw_loops *async_draw_loops(const struct kr_device *d)
{
    return kr_device_draw_loops(device_of(d)->cpu);
}

static uint32_t async_threads(const struct kr_device *d)
{
    return kr_device_threads(device_of(d)->cpu);
}

/* The CPU's threads run one thing at a time. */
static void async_parallel(struct kr_device *d, uint32_t n, void (*fn)(void *arg, uint32_t i),
                           void *arg)
{
    kr_async_drain(device_of(d));
    kr_device_parallel(device_of(d)->cpu, n, fn, arg);
}

static int async_probe(struct kr_device *d, uint64_t most_bytes, uint64_t ns_each,
                       struct kr_probe *out, struct cn_error *err)
{
    kr_async_drain(device_of(d));
    return kr_device_probe(device_of(d)->cpu, most_bytes, ns_each, out, err);
}

static int async_probe_read(struct kr_device *d, uint64_t bytes, uint64_t ns, double *bytes_s,
                            struct cn_error *err)
{
    kr_async_drain(device_of(d));
    return kr_device_probe_read(device_of(d)->cpu, bytes, ns, bytes_s, err);
}

static int async_mem_new(struct kr_device *d, uint64_t slab_bytes, uint32_t n_slabs,
                         struct kr_kv_mem **out, struct cn_error *err)
{
    uint64_t bytes = slab_bytes * n_slabs;
    struct async_mem *m = cn_calloc(1, sizeof *m);
    if (!m) return cn_fail(err, CN_ENOMEM, "out of memory");
    int rc = kr_async_take(device_of(d), bytes, "KV memory", err);
    if (!rc && (rc = kr_kv_mem_new(device_of(d)->cpu, slab_bytes, n_slabs, &m->cpu, err)))
        kr_async_give(device_of(d), bytes);
    if (rc) {
        free(m);
        return rc;
    }
    m->dev = device_of(d);
    m->taken = bytes;
    *out = &m->base;
    return 0;
}

static void async_mem_free(struct kr_kv_mem *base)
{
    struct async_mem *m = CN_CONTAINER(base, struct async_mem, base);
    kr_async_drain(m->dev);
    kr_kv_mem_free(m->cpu);
    kr_async_give(m->dev, m->taken);
    free(m);
}

/* ---- plans ----------------------------------------------------------------------------------- */

static void step_fini(struct kr_async_step *s)
{
    free(s->rows);
    free(s->seqs);
    free(s->changes);
    free(s->entries);
    free(s->draws);
    free(s->words);
    free(s->masks);
    free(s->logits);
    free(s->results);
    free(s->ids);
}

static void async_exec_free(struct kr_exec *base)
{
    struct kr_async_exec *x = exec_of(base);
    kr_async_drain(x->dev);
    for (uint32_t i = 0; i < KR_ASYNC_STEPS; i++)
        step_fini(&x->steps[i]);
    kr_exec_free(x->cpu);
    kr_async_give(x->dev, x->taken);
    free(x->tables);
    free(x->pointers);
    free(x->generations);
    free(x->used);
    kr_async_copies_fini(x);
    kr_exec_fini(&x->base);
    free(x);
}

/* Tables of all slots, and room for their draw states; without slots, of as many sequences as a
 * step may have. */
static int make_tables(struct kr_async_exec *x)
{
    uint64_t n_slots = x->base.opts.max_seqs ? x->base.opts.max_seqs : x->base.opts.max_rows, n;
    uint32_t groups = x->base.info.n_groups;
    x->max_entries = x->base.opts.max_context / x->base.opts.block_tokens + 1;
    if (!cn_mul_u64(n_slots * groups, x->max_entries, &n)) return CN_ENOMEM;
    x->tables = cn_malloc_array(n, sizeof *x->tables); /* touched where it is used */
    x->pointers = cn_malloc_array(n_slots * groups, sizeof *x->pointers);
    x->generations = cn_calloc(n_slots, sizeof *x->generations);
    x->used = cn_calloc(n_slots, sizeof *x->used);
    x->copies = cn_calloc(x->base.opts.max_seqs, sizeof *x->copies);
    if (!x->tables || !x->pointers || !x->generations || !x->used || !x->copies) return CN_ENOMEM;
    for (uint64_t i = 0; i < n_slots * groups; i++)
        x->pointers[i] = x->tables + i * x->max_entries;
    return 0;
}

/* What the exec will take of the device's memory is taken before any of it is made. */
static int take_room(struct kr_async_exec *x, const struct kr_plan *p, struct cn_error *err)
{
    struct kr_prepare_opts measure = x->base.opts;
    struct kr_exec *sized;
    if (!x->dev->opts.memory_bytes || x->base.opts.measure) return 0;
    measure.measure = true;
    int rc = kr_prepare(x->dev->cpu, p, &measure, &sized, err);
    if (rc) return rc;
    uint64_t bytes = kr_exec_info(sized)->packed_bytes + kr_exec_info(sized)->scratch_bytes;
    kr_exec_free(sized);
    rc = kr_async_take(x->dev, bytes, "the model", err);
    if (!rc) x->taken = bytes;
    return rc;
}

static int async_prepare(struct kr_device *base, const struct kr_plan *p,
                         const struct kr_prepare_opts *opts, struct kr_exec **out,
                         struct cn_error *err)
{
    struct kr_async *d = device_of(base);
    struct kr_async_exec *x = cn_calloc(1, sizeof *x);
    if (!x) return cn_fail(err, CN_ENOMEM, "out of memory");
    x->dev = d;
    kr_draw_rooms_init(&x->rooms);
    x->base.ids_kept = KR_ASYNC_STEPS - 1; /* a launch takes the oldest step's place */
    if (!opts->background && !opts->measure) kr_async_drain(d);
    int rc = kr_exec_init(&x->base, base, p, opts, err);
    if (!rc) rc = take_room(x, p, err);
    if (!rc) rc = kr_async_upload(d, p, opts, &x->cpu, err);
    if (!rc) x->base.info = *kr_exec_info(x->cpu);
    if (!rc && !opts->measure && (rc = make_tables(x)))
        cn_fail(err, rc, "out of memory for block tables");
    if (rc) {
        async_exec_free(&x->base);
        return rc;
    }
    *out = &x->base;
    return 0;
}

static void async_counters(const struct kr_exec *x, struct kr_counters *out)
{
    kr_async_drain(exec_of(x)->dev);
    kr_exec_counters(exec_of(x)->cpu, out);
}

static int async_describe(const struct kr_exec *x, struct cn_buf *out)
{
    return kr_exec_describe(exec_of(x)->cpu, out);
}

static int async_profile(struct kr_exec *x, bool on)
{
    kr_async_drain(exec_of(x)->dev);
    return kr_exec_profile(exec_of(x)->cpu, on);
}

static int async_profile_text(const struct kr_exec *x, struct cn_buf *out)
{
    kr_async_drain(exec_of(x)->dev);
    return kr_exec_profile_text(exec_of(x)->cpu, out);
}

static int async_kv_copy(struct kr_exec *base, struct kr_kv_mem *m, uint32_t group, uint32_t dst,
                         uint32_t src, uint32_t n_tokens)
{
    struct kr_async_exec *x = exec_of(base);
    struct kr_async_job *j = cn_malloc_array(1, sizeof *j);
    if (!j) return CN_ENOMEM;
    *j = (struct kr_async_job){.kind = KR_ASYNC_COPY,
                               .x = x,
                               .group = group,
                               .dst = dst,
                               .src = src,
                               .n_tokens = n_tokens,
                               .mem = CN_CONTAINER(m, struct async_mem, base)->cpu};
    kr_async_push(x->dev, j);
    return 0;
}

static int async_kv_move(struct kr_exec *x, struct kr_kv_mem *m, const struct kr_move *moves,
                         uint32_t n, bool out, uint64_t *ticket, struct cn_error *err)
{
    return kr_async_move(exec_of(x), CN_CONTAINER(m, struct async_mem, base)->cpu, moves, n, out,
                         ticket, err);
}

static int async_launch(struct kr_exec *x, struct kr_kv_mem *m, const struct kr_batch *b,
                        uint64_t *ticket, struct cn_error *err)
{
    return kr_async_launch(x, m ? CN_CONTAINER(m, struct async_mem, base)->cpu : NULL, b, ticket,
                           err);
}

static const struct kr_device_ops async_ops = {
    .kind = "async",
    .max_depth = KR_ASYNC_DEPTH,
    .max_outputs = 1,
    .free = async_free,
    .lost = async_lost,
    .memory = async_memory,
    .draw_loops = async_draw_loops,
    .threads = async_threads,
    .parallel = async_parallel,
    .probe = async_probe,
    .probe_read = async_probe_read,
    .prepare = async_prepare,
    .exec_free = async_exec_free,
    .counters = async_counters,
    .describe = async_describe,
    .profile = async_profile,
    .profile_text = async_profile_text,
    .kv_mem_new = async_mem_new,
    .kv_mem_free = async_mem_free,
    .kv_copy = async_kv_copy,
    .host_new = kr_async_host_new,
    .host_free = kr_async_host_free,
    .kv_move = async_kv_move,
    .moved = kr_async_moved,
    .launch = async_launch,
    .collect = kr_async_collect,
    .draw_new = kr_async_draw_new,
    .draw_clone = kr_async_draw_clone,
    .draw_put = kr_async_draw_put,
    .draw_drop = kr_async_draw_drop,
    .draw = kr_async_draw,
    .collect_drawn = kr_async_collect_drawn,
};

int kr_async_new(struct kr_device *cpu, const struct kr_async_opts *opts, struct kr_device **out,
                 struct cn_error *err)
{
    struct kr_async *d = cn_calloc(1, sizeof *d);
    if (!d) {
        kr_device_free(cpu);
        return cn_fail(err, CN_ENOMEM, "out of memory");
    }
    d->base = (struct kr_device){
        .ops = &async_ops, .path = kr_device_path(cpu), .lends_at_load = opts->lends_at_load};
    d->cpu = cpu;
    d->opts = *opts;
    d->last = &d->first;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->work, NULL);
    pthread_cond_init(&d->done, NULL);
    d->lock_there = true;
    d->thread_there = !pthread_create(&d->thread, NULL, run, d);
    if (!d->thread_there) {
        async_free(&d->base);
        return cn_fail(err, CN_ENOMEM, "the device's thread could not be started");
    }
    *out = &d->base;
    return 0;
}
