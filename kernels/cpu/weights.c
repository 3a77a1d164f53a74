/* weights: one packed copy of each distinct matrix, written by the threads that will read it.
 *
 * Runs at prepare. The copy lies in one mapping; each thread packs the same share of a matrix's row
 * groups that it multiplies later, so that on machines with several memory nodes the pages are its
 * own. (In the background one thread packs them all, and leaves the pool alone.) Norm weights and
 * biases are copied too: a file need not align them. */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Groups of a matrix given out at once: enough to hide the cost of asking, few enough to share. */
#define CHUNK_MIN_BYTES 8192u
#define CHUNK_MAX_BYTES (256u << 10)
#define CHUNKS_A_THREAD 4u
/* Packed between two looks at whether to stop, and how much of the file each thread may still hold
 * when the copy is there already. */
#define ALONE_BYTES (256u << 10)

static uint32_t n_groups(const struct kr_packed *w)
{
    return (w->rows + KR_PACK_ROWS - 1) / KR_PACK_ROWS;
}

static uint64_t matrix_size(const struct kr_packed *w)
{
    return kr_packed_bytes(w->type, w->rows, w->cols); /* a multiple of 64 */
}

/* Where a packed weight comes from: rows [from, from + w->rows) of each of n matrices. */
struct source {
    const struct kr_tensor *t;
    uint32_t n, from;
};

static uint64_t packed_size(const struct kr_packed *w, const struct source *s)
{
    return s->n * matrix_size(w);
}

static uint32_t rows_of(const struct kr_plan_op *op)
{
    if (op->kind == KR_OP_EXPERT_MATMUL) return op->len;
    return op->w.n_dims > 1 ? (uint32_t)op->w.ne[1] : 1;
}

/* Chunks are in pairs of groups. With several matrices a chunk is of one of them, all of a matrix's
 * chunks but the last are alike, and `busy` of them are expected to be used in a step. */
static void cut_weight(const struct kr_cpu_exec *x, struct kr_step *s, const struct kr_packed *w,
                       uint32_t busy)
{
    uint32_t pairs = (n_groups(w) + 1) / 2;
    uint64_t pair_bytes = matrix_size(w) / pairs + 1;
    uint64_t chunk = (uint64_t)pairs * busy / (CHUNKS_A_THREAD * kr_pool_threads(x->dev->pool));
    chunk = CN_MIN(chunk, CHUNK_MAX_BYTES / pair_bytes);
    chunk = CN_MAX(chunk, CHUNK_MIN_BYTES / pair_bytes);
    s->chunk = (uint32_t)CN_MIN(CN_MAX(chunk, 1u), pairs);
    s->parts = (pairs + s->chunk - 1) / s->chunk;
    if (kr_matrices(&x->plan->ops[s->op]) > 1) s->chunk = (pairs + s->parts - 1) / s->parts;
    s->parts = (pairs + s->chunk - 1) / s->chunk;
}

/* Whether w is a matrix or a table rather than a few floats that every row needs. */
static bool is_packed(const struct kr_plan_op *op)
{
    return kr_is_product(op) || op->kind == KR_OP_EMBED || op->kind == KR_OP_EMBED_POS;
}

static uint64_t vector_values(const struct kr_tensor *t)
{
    return t->data ? t->ne[0] * kr_tensor_dim(t, 1) : 0;
}

static uint64_t padded(uint64_t n)
{
    return (n + 15) & ~15ull;
}

static uint64_t step_floats(const struct kr_cpu_exec *x, const struct kr_step *s)
{
    if (s->kind != KR_STEP_OP) return 0;
    const struct kr_plan_op *op = &x->plan->ops[s->op];
    uint64_t n = padded(vector_values(&op->bias)) + padded(vector_values(&op->extra));
    return is_packed(op) ? n : n + padded(vector_values(&op->w));
}

/* The packed weight of an op: an earlier op's when they share it. */
static uint32_t packed_index(struct kr_cpu_exec *x, const struct kr_plan_op *op,
                             struct source *sources)
{
    uint32_t i = 0, rows = rows_of(op), n = kr_matrices(op);
    while (i < x->n_packed &&
           !(sources[i].t->data == op->w.data && x->packed[i].type == op->w.type &&
             x->packed[i].cols == op->w.ne[0] && x->packed[i].rows == rows && sources[i].n == n &&
             sources[i].from == op->from))
        i++;
    if (i < x->n_packed) return i;
    sources[i] = (struct source){.t = &op->w, .n = n, .from = op->from};
    x->packed[i] =
        (struct kr_packed){.type = op->w.type, .rows = rows, .cols = (uint32_t)op->w.ne[0]};
    x->base.info.packed_bytes += packed_size(&x->packed[i], &sources[i]);
    return x->n_packed++;
}

/* First pass: which tensors are distinct, and how big the copies are. Experts' weights, biases
 * included, are in info.expert_bytes. */
static void find_distinct(struct kr_cpu_exec *x, struct source *sources, uint64_t *n_floats)
{
    uint64_t expert_floats = 0;
    for (uint32_t i = 0; i < x->n_heavy_steps; i++) {
        struct kr_step *s = &x->heavy_steps[i];
        const struct kr_plan_op *op = &x->plan->ops[s->op];
        if (s->kind != KR_STEP_OP) continue;
        *n_floats += step_floats(x, s);
        if (!kr_is_product(op)) continue;
        s->weight = packed_index(x, op, sources);
        const struct kr_packed *w = &x->packed[s->weight];
        if (op->kind == KR_OP_EXPERT_MATMUL) {
            expert_floats += step_floats(x, s);
            cut_weight(x, s, w, x->plan->n_used);
        } else {
            x->base.info.weight_bytes += packed_size(w, &sources[s->weight]);
            cut_weight(x, s, w, kr_matrices(op));
        }
    }
    for (uint32_t i = 0; i < x->n_row_steps; i++)
        *n_floats += step_floats(x, &x->row_steps[i]);
    x->base.info.weight_bytes += (*n_floats - expert_floats) * sizeof(float);
}

/* Which weights are read after which: of the last of a step, the next step's first. */
static void link_products(struct kr_cpu_exec *x)
{
    uint32_t then = 0;
    for (uint32_t turn = 0; turn < 2; turn++)
        for (uint32_t i = x->n_heavy_steps; i-- > 0;) {
            struct kr_step *s = &x->heavy_steps[i];
            if (s->kind != KR_STEP_OP || x->plan->ops[s->op].kind != KR_OP_MATMUL) continue;
            s->then = then;
            then = s->weight;
        }
}

static const float *copy_vector(const struct kr_tensor *t, float **at)
{
    if (!t->data) return NULL;
    float *copy = *at;
    memcpy(copy, t->data, vector_values(t) * sizeof(float));
    *at += padded(vector_values(t));
    return copy;
}

static void copy_step_vectors(const struct kr_cpu_exec *x, struct kr_step *s, float **at)
{
    if (s->kind != KR_STEP_OP) return;
    const struct kr_plan_op *op = &x->plan->ops[s->op];
    float *w = *at;
    if (!is_packed(op)) s->w = copy_vector(&op->w, at);
    if (op->kind == KR_OP_CONV || (op->kind == KR_OP_SCAN && op->flag))
        kr_cpu_recurrent_weight(x->plan, op, w);
    s->bias = copy_vector(&op->bias, at);
    s->extra = copy_vector(&op->extra, at);
}

static int copy_vectors(struct kr_cpu_exec *x, uint64_t n_floats)
{
    x->vectors = aligned_alloc(64, CN_MAX(n_floats, 16u) * sizeof(float));
    if (!x->vectors) return CN_ENOMEM;
    float *at = x->vectors;
    for (uint32_t i = 0; i < x->n_heavy_steps; i++)
        copy_step_vectors(x, &x->heavy_steps[i], &at);
    for (uint32_t i = 0; i < x->n_row_steps; i++)
        copy_step_vectors(x, &x->row_steps[i], &at);
    return 0;
}

struct pack_job {
    const struct kr_prepare_opts *opts;
    const struct kr_packed *w;
    const struct source *from;
};

static uint64_t row_bytes(const struct kr_tensor *t)
{
    const struct kr_type_info *ti = kr_type_info((uint32_t)t->type);
    return t->ne[0] / ti->block_elems * ti->block_bytes;
}

/* The source of pairs [lo, hi) in every matrix is done with, so that the file and the copy are not
 * both in memory. Another thread may still read some of it: it only finds it again more slowly. */
static void leave(const struct pack_job *j, uint32_t lo, uint32_t hi)
{
    const struct kr_tensor *t = j->from->t;
    uint64_t first = (uint64_t)lo * 2 * KR_PACK_ROWS;
    uint64_t end = CN_MIN((uint64_t)hi * 2 * KR_PACK_ROWS, j->w->rows), bytes = row_bytes(t);
    if (!j->opts->copied || first >= end) return;
    for (uint32_t m = 0; m < j->from->n; m++) {
        uint64_t row = m * kr_tensor_dim(t, 1) + j->from->from + first;
        j->opts->copied(j->opts->copied_arg, (const uint8_t *)t->data + row * bytes,
                        (end - first) * bytes);
    }
}

/* Units are pairs of groups, pair by pair and matrix by matrix in it: as they are multiplied. */
static void pack_pairs(void *arg, uint32_t index, uint32_t thread, uint32_t lo, uint32_t hi)
{
    const struct pack_job *j = arg;
    const struct kr_tensor *t = j->from->t;
    uint32_t n = j->from->n;
    for (uint32_t i = lo; i < hi; i++) {
        uint32_t matrix = i % n, pair = i / n;
        struct kr_packed w = *j->w;
        w.data = (uint8_t *)w.data + matrix * matrix_size(&w);
        kr_pack(&w,
                (const uint8_t *)t->data +
                    (matrix * kr_tensor_dim(t, 1) + j->from->from) * row_bytes(t),
                2 * pair, CN_MIN(2 * pair + 2, n_groups(&w)));
    }
    leave(j, lo / n, hi / n);
}

/* Units a thread takes at a time: of several matrices whole pairs of groups, so that their source
 * is left once. Of one no more than ALONE_BYTES beside the copy. */
static uint32_t whole_pairs(uint32_t chunk, uint32_t n, uint32_t units)
{
    return CN_MIN(units, (chunk + n - 1) / n * n);
}

static bool stopped(const struct kr_cpu_exec *x)
{
    return x->base.opts.stop && atomic_load_explicit(x->base.opts.stop, memory_order_relaxed);
}

/* Units 0..n-1 on this thread: the pool may be in a step of another model. */
static void pack_alone(const struct kr_cpu_exec *x, struct pack_job *pack, uint32_t n)
{
    uint64_t unit = packed_size(pack->w, pack->from) / n + 1;
    uint32_t chunk = whole_pairs((uint32_t)CN_MIN(n, ALONE_BYTES / unit + 1), pack->from->n, n);
    for (uint32_t i = 0; i < n && !stopped(x); i += CN_MIN(chunk, n - i))
        pack_pairs(pack, 0, 0, i, i + CN_MIN(chunk, n - i));
}

static int pack_all(struct kr_cpu_exec *x, const struct source *sources)
{
    uint64_t done = 0, total = x->base.info.packed_bytes;
    uint8_t *at = x->weight_mem;
    for (uint32_t i = 0; i < x->n_packed; i++) {
        if (stopped(x)) return CN_ECANCELLED;
        struct kr_packed *w = &x->packed[i];
        w->data = at;
        at += packed_size(w, &sources[i]);
        struct pack_job pack = {&x->base.opts, w, &sources[i]};
        uint32_t units = (n_groups(w) + 1) / 2 * sources[i].n;
        uint64_t most = ALONE_BYTES / (packed_size(w, &sources[i]) / units + 1) + 1;
        uint32_t chunk = units / (4 * kr_pool_threads(x->dev->pool)) + 1;
        if (sources[i].n == 1) chunk = (uint32_t)CN_MIN(chunk, most);
        struct kr_job job = {
            .fn = pack_pairs, .n = units, .chunk = whole_pairs(chunk, sources[i].n, units)};
        if (x->base.opts.background)
            pack_alone(x, &pack, units);
        else
            kr_pool_run(x->dev->pool, &(struct kr_stage){0, 1}, 1, &job, &pack);
        leave(&pack, 0, (n_groups(w) + 1) / 2);
        done += packed_size(w, &sources[i]);
        if (x->base.opts.progress) x->base.opts.progress(x->base.opts.progress_arg, done, total);
    }
    return stopped(x) ? CN_ECANCELLED : 0;
}

int kr_cpu_load_weights(struct kr_cpu_exec *x, struct cn_error *err)
{
    uint64_t n_floats = 0;
    struct source *from = cn_calloc(x->n_heavy_steps, sizeof *from);
    x->packed = cn_calloc(x->n_heavy_steps, sizeof *x->packed);
    int rc = from && x->packed ? 0 : CN_ENOMEM;
    if (!rc) {
        find_distinct(x, from, &n_floats);
        if (x->base.opts.measure) {
            free(from);
            return 0;
        }
        link_products(x);
        rc = copy_vectors(x, n_floats);
    }
    if (!rc && x->base.info.packed_bytes) {
        x->weight_mem_bytes = x->base.info.packed_bytes;
        x->weight_mem = mmap(NULL, x->weight_mem_bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (x->weight_mem == MAP_FAILED) {
            x->weight_mem = NULL;
            rc = CN_ENOMEM;
        } else {
#if defined(MADV_HUGEPAGE)
            madvise(x->weight_mem, x->weight_mem_bytes, MADV_HUGEPAGE);
#endif
        }
    }
    if (!rc && x->weight_mem) rc = pack_all(x, from);
    free(from);
    if (!rc) return 0;
    if (rc == CN_ECANCELLED) return cn_fail(err, rc, "loading was given up");
    return cn_fail(err, rc, "out of memory: the repacked weights need %llu bytes",
                   (unsigned long long)x->base.info.packed_bytes);
}
