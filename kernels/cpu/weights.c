/* weights: one packed copy of each distinct matrix, written by the threads that will read it.
 *
 * Runs at prepare. The copy lies in one mapping; each thread packs the same share of a matrix's row
 * groups that it multiplies later, so that on machines with several memory nodes the pages are its
 * own. Norm weights and biases are copied too: a file need not align them. */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Groups of a matrix given out at once: enough to hide the cost of asking, few enough to share. */
#define CHUNK_MIN_BYTES 8192u
#define CHUNK_MAX_BYTES (256u << 10)
#define CHUNKS_A_THREAD 4u

static uint32_t n_groups(const struct kr_packed *w)
{
    return (w->rows + KR_PACK_ROWS - 1) / KR_PACK_ROWS;
}

static uint64_t packed_size(const struct kr_packed *w)
{
    return (kr_packed_bytes(w->type, w->rows, w->cols) + 63) & ~63ull;
}

static uint32_t rows_of(const struct kr_tensor *t)
{
    return t->n_dims > 1 ? (uint32_t)t->ne[1] : 1;
}

/* Chunks are in pairs of groups. */
static uint32_t chunk_of(const struct kr_cpu_exec *x, const struct kr_packed *w)
{
    uint32_t pairs = (n_groups(w) + 1) / 2;
    uint64_t pair_bytes = packed_size(w) / pairs + 1;
    uint64_t chunk = pairs / (CHUNKS_A_THREAD * kr_pool_threads(x->dev->pool));
    chunk = CN_MIN(chunk, CHUNK_MAX_BYTES / pair_bytes);
    chunk = CN_MAX(chunk, CHUNK_MIN_BYTES / pair_bytes);
    return (uint32_t)CN_MAX(chunk, 1u);
}

/* Whether w is a matrix or a table rather than a few floats that every row needs. */
static bool is_packed(const struct kr_plan_op *op)
{
    return op->kind == KR_OP_MATMUL || op->kind == KR_OP_HEAD_MATMUL ||
           op->kind == KR_OP_EXPERT_MATMUL || op->kind == KR_OP_EMBED ||
           op->kind == KR_OP_EMBED_POS;
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

/* First pass: which tensors are distinct, and how big the copies are. */
static void find_distinct(struct kr_cpu_exec *x, const struct kr_tensor **from, uint64_t *n_floats)
{
    for (uint32_t i = 0; i < x->n_heavy_steps; i++) {
        struct kr_step *s = &x->heavy_steps[i];
        const struct kr_plan_op *op = &x->plan->ops[s->op];
        if (op->kind != KR_OP_MATMUL) continue;
        uint32_t w = 0;
        while (w < x->n_packed &&
               !(from[w]->data == op->w.data && x->packed[w].type == op->w.type &&
                 x->packed[w].cols == op->w.ne[0] && x->packed[w].rows == rows_of(&op->w)))
            w++;
        if (w == x->n_packed) {
            from[w] = &op->w;
            x->packed[w] = (struct kr_packed){ .type = op->w.type, .rows = rows_of(&op->w),
                                               .cols = (uint32_t)op->w.ne[0] };
            x->base.info.packed_bytes += packed_size(&x->packed[w]);
            x->n_packed++;
        }
        x->base.info.weight_bytes += packed_size(&x->packed[w]);
        s->weight = w;
        s->chunk = chunk_of(x, &x->packed[w]);
    }
    for (uint32_t i = 0; i < x->n_heavy_steps; i++)
        *n_floats += step_floats(x, &x->heavy_steps[i]);
    for (uint32_t i = 0; i < x->n_row_steps; i++)
        *n_floats += step_floats(x, &x->row_steps[i]);
    x->base.info.weight_bytes += *n_floats * sizeof(float);
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
    const struct kr_packed *w;
    const void *src;
};

static void pack_pairs(void *arg, uint32_t index, uint32_t thread, uint32_t lo, uint32_t hi)
{
    const struct pack_job *j = arg;
    kr_pack(j->w, j->src, 2 * lo, CN_MIN(2 * hi, n_groups(j->w)));
}

static void pack_all(struct kr_cpu_exec *x, const struct kr_tensor *const *from)
{
    uint64_t done = 0, total = x->base.info.packed_bytes;
    uint8_t *at = x->weight_mem;
    for (uint32_t i = 0; i < x->n_packed; i++) {
        struct kr_packed *w = &x->packed[i];
        w->data = at;
        at += packed_size(w);
        struct pack_job pack = { w, from[i]->data };
        uint32_t pairs = (n_groups(w) + 1) / 2;
        struct kr_job job = { .fn = pack_pairs, .n = pairs,
                              .chunk = pairs / (4 * kr_pool_threads(x->dev->pool)) + 1 };
        kr_pool_run(x->dev->pool, &(struct kr_stage){ 0, 1 }, 1, &job, &pack);
        done += packed_size(w);
        if (x->opts.progress) x->opts.progress(x->opts.progress_arg, done, total);
    }
}

int kr_cpu_load_weights(struct kr_cpu_exec *x, struct cn_error *err)
{
    uint64_t n_floats = 0;
    const struct kr_tensor **from = cn_calloc(x->n_heavy_steps, sizeof *from);
    x->packed = cn_calloc(x->n_heavy_steps, sizeof *x->packed);
    int rc = from && x->packed ? 0 : CN_ENOMEM;
    if (!rc) {
        find_distinct(x, from, &n_floats);
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
    if (!rc && x->weight_mem) pack_all(x, from);
    free(from);
    if (!rc) return 0;
    return cn_fail(err, rc, "out of memory: the repacked weights need %llu bytes",
                   (unsigned long long)x->base.info.packed_bytes);
}
