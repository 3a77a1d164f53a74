/* The parity-and-bench harness: how near matrix products come to what the machine can do.
 *
 * Few input rows are bound by reading the weights, many by multiplying: each figure stands beside
 * both bounds, which are measured in the same round on the same threads. A product's weights are
 * copied often enough that no cache keeps them from one turn to the next. Medians of rounds. */
#include "tests/kernels/parity_data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/cpu/ops.h"
#include "kernels/cpu/pool.h"

#define MAX_BATCHES  64
#define MAX_ROUNDS   99
#define COPIES_BYTES (400ull << 20)
#define CHUNKS       4 /* a thread */
#define PROBE_PARTS  64
#define PROBE_ROUNDS 2048u

struct bench {
    struct parity *p;
    struct kr_matmul_kernels k;
    struct kr_cpu_ops ops; /* for its probes */
    struct kr_pool *pool;
    struct parity_weights w;
    struct parity_inputs in;
    float *out;
    uint8_t *copies;
    size_t copy_bytes;
    uint32_t n_copies, copy; /* the one in use */
    uint32_t batch;
};

/* A round's figures: seconds of the product, and the two rates around it. */
struct round { double s, bytes_per_s, ops_per_s; };

static double now_s(void)
{
    return (double)cn_now_ns() * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, uint32_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static void on_all_threads(struct bench *b, uint32_t n, uint32_t chunk,
                           void (*fn)(void *, uint32_t, uint32_t, uint32_t, uint32_t))
{
    struct kr_job job = {.fn = fn, .n = n, .chunk = chunk};
    kr_pool_run(b->pool, &(struct kr_stage){0, 1}, 1, &job, b);
}

/* Bytes read at a time. */
static size_t probe_part(const struct bench *b)
{
    return b->copy_bytes * b->n_copies / PROBE_PARTS & ~(size_t)4095;
}

/* Of bytes for quantised types, of float32 for the others. */
static uint64_t products(const struct bench *b)
{
    if (kr_type_wants_q8(b->w.packed.type)) return b->ops.probe.int8(PROBE_ROUNDS);
    return b->ops.probe.fma(PROBE_ROUNDS);
}

static void products_job(void *arg, uint32_t index, uint32_t thread, uint32_t lo, uint32_t hi)
{
    for (uint32_t i = lo; i < hi; i++)
        products(arg);
}

static void read_job(void *arg, uint32_t index, uint32_t thread, uint32_t lo, uint32_t hi)
{
    struct bench *b = arg;
    const size_t part = probe_part(b);
    for (uint32_t i = lo; i < hi; i++)
        b->ops.probe.read(b->copies + i * part, part);
}

static double probe_products(struct bench *b)
{
    const uint32_t n = PROBE_PARTS * kr_pool_threads(b->pool);
    const double ops = (double)products(b) * n, t = now_s();
    on_all_threads(b, n, 1, products_job);
    return ops / (now_s() - t);
}

static double probe_read(struct bench *b)
{
    double t = now_s();
    on_all_threads(b, PROBE_PARTS, 1, read_job);
    return (double)probe_part(b) * PROBE_PARTS / (now_s() - t);
}

/* As a step places values: an odd number of cache lines from row to row. */
static size_t out_stride(uint32_t rows)
{
    return (((size_t)rows + 15) / 16 | 1) * 16;
}

/* Units are pairs of row groups, as in a step. */
static void product_job(void *arg, uint32_t index, uint32_t thread, uint32_t lo, uint32_t hi)
{
    struct bench *b = arg;
    struct parity_weights w = b->w;
    w.packed.data = b->copies + b->copy * b->copy_bytes;
    parity_run(&b->k, &w, 2 * lo, CN_MIN(2 * hi, w.groups), &b->in, 0, b->batch, false, b->out,
               out_stride(w.packed.rows));
}

/* Seconds of one product, over at least min_ms. */
static double time_product(struct bench *b, uint32_t batch)
{
    const uint32_t pairs = (b->w.groups + 1) / 2;
    const uint32_t chunk = CN_MAX(pairs / (CHUNKS * kr_pool_threads(b->pool)), 1u);
    uint32_t n = 0;
    b->batch = batch;
    double start = now_s(), end = start + b->p->opts.min_ms * 1e-3, t;
    do {
        b->copy = (b->copy + 1) % b->n_copies;
        on_all_threads(b, pairs, chunk, product_job);
        n++;
    } while ((t = now_s()) < end);
    return (t - start) / n;
}

static void report(struct bench *b, uint32_t batch, const struct round *rounds, uint32_t n)
{
    const struct kr_packed *w = &b->w.packed;
    const double ops = 2.0 * w->rows * w->cols * batch;
    const double bytes = (double)kr_packed_bytes(w->type, w->rows, w->cols);
    double s[MAX_ROUNDS], read[MAX_ROUNDS], peak[MAX_ROUNDS], larger[MAX_ROUNDS], sum[MAX_ROUNDS];
    double most_read = 0, most_ops = 0; /* of the best round of each */
    for (uint32_t i = 0; i < n; i++) {
        most_read = CN_MAX(most_read, rounds[i].bytes_per_s);
        most_ops = CN_MAX(most_ops, rounds[i].ops_per_s);
        s[i] = rounds[i].s;
        read[i] = bytes / rounds[i].bytes_per_s / s[i];
        peak[i] = ops / rounds[i].ops_per_s / s[i];
        larger[i] = CN_MAX(read[i], peak[i]);
        sum[i] = read[i] + peak[i];
    }
    const double t = median(s, n), spread = (s[3 * n / 4] - s[n / 4]) / t;
    const double best = CN_MAX(bytes / most_read, ops / most_ops) / s[0];
    const char *text = "%-8s %-6s %5ux%-5u batch %3u %9.2f us %8.1f GOP/s spread %.3f  "
                       "of read %.3f, peak %.3f, the larger %.3f (best %.3f), their sum %.3f\n";
    const char *json = "{\"isa\":\"%s\",\"op\":\"matmul\",\"type\":\"%s\",\"rows\":%u,\"cols\":%u,"
                       "\"batch\":%u,\"us\":%.3f,\"gops\":%.3f,\"spread\":%.3f,\"of_read\":%.3f,"
                       "\"of_peak\":%.3f,\"of_larger\":%.3f,\"best_of_larger\":%.3f,"
                       "\"of_sum\":%.3f}\n";
    const char *form = b->p->opts.json ? json : text;
    printf(form, b->p->isa_name, kr_type_info(w->type)->name, w->rows, w->cols, batch, t * 1e6,
           ops / t * 1e-9, spread, median(read, n), median(peak, n), median(larger, n), best,
           median(sum, n));
    fflush(stdout);
}

/* Every batch once a round, between two probes. */
static void bench_product(struct bench *b, const uint32_t *batches, uint32_t n_batches)
{
    static struct round rounds[MAX_BATCHES][MAX_ROUNDS];
    const uint32_t n = CN_MIN(CN_MAX(b->p->opts.rounds, 1u), (uint32_t)MAX_ROUNDS);
    double read = probe_read(b), peak = probe_products(b);
    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t i = 0; i < n_batches; i++)
            rounds[i][r].s = time_product(b, batches[i]);
        double read_after = probe_read(b), ops_after = probe_products(b);
        for (uint32_t i = 0; i < n_batches; i++) {
            rounds[i][r].bytes_per_s = (read + read_after) / 2;
            rounds[i][r].ops_per_s = (peak + ops_after) / 2;
        }
        read = read_after;
        peak = ops_after;
    }
    if (!b->p->opts.json)
        printf("%s, %u threads: %.2f GB/s, at most %.1f GOP/s\n", b->p->isa_name,
               kr_pool_threads(b->pool), read * 1e-9, peak * 1e-9);
    for (uint32_t i = 0; i < n_batches; i++)
        report(b, batches[i], rounds[i], n);
}

static void make_copies(struct bench *b)
{
    const struct kr_packed *w = &b->w.packed;
    b->copy_bytes = kr_packed_bytes(w->type, w->rows, w->cols);
    b->n_copies = (uint32_t)(COPIES_BYTES / b->copy_bytes) + 1;
    b->copies = mmap(NULL, b->n_copies * b->copy_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b->copies == MAP_FAILED) {
        fprintf(stderr, "parity: out of memory\n");
        exit(1);
    }
#if defined(MADV_HUGEPAGE)
    madvise(b->copies, b->n_copies * b->copy_bytes, MADV_HUGEPAGE);
#endif
    for (uint32_t i = 0; i < b->n_copies; i++)
        memcpy(b->copies + i * b->copy_bytes, w->data, b->copy_bytes);
}

static void bench_shape(struct bench *b, enum kr_type type, uint32_t rows, uint32_t cols,
                        const uint32_t *batches, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++)
        most = CN_MAX(most, batches[i]);
    parity_weights_new(&b->w, type, rows, cols, 1);
    parity_inputs_new(&b->in, most, cols, 2, 1);
    b->out = parity_alloc(most * out_stride(rows) * sizeof(float));
    b->k.quantize(&b->in.q, b->in.x, b->in.stride, 0, most);
    make_copies(b);
    bench_product(b, batches, n);
    munmap(b->copies, b->n_copies * b->copy_bytes);
    free(b->out);
    parity_inputs_free(&b->in);
    parity_weights_free(&b->w);
}

/* "1,2,16-19,512" */
static uint32_t parse_batches(const char *s, uint32_t *out)
{
    uint32_t n = 0;
    while (*s && n < MAX_BATCHES) {
        char *end;
        unsigned long lo = strtoul(s, &end, 10), hi = lo;
        if (*end == '-') hi = strtoul(end + 1, &end, 10);
        if (end == s || !lo || hi < lo || hi > 65536 || (*end && *end != ',')) return 0;
        for (; lo <= hi && n < MAX_BATCHES; lo++)
            out[n++] = (uint32_t)lo;
        s = *end ? end + 1 : end;
    }
    return n;
}

void parity_matmul_bench(struct parity *p)
{
    static const uint32_t shapes[][2] = {{2048, 2048}, {512, 2048}, {8192, 2048}, {2048, 8192}};
    static const char usual[] = "1-8,13,16,24,32,48,64,128,256,512";
    struct bench b = {.p = p, .pool = kr_pool_new(CN_MAX(p->opts.threads, 1u))};
    uint32_t batches[MAX_BATCHES];
    uint32_t n = parse_batches(p->opts.batches ? p->opts.batches : usual, batches);
    if (!b.pool || !n) {
        fprintf(stderr, "parity: no threads, or no batch sizes in %s\n", p->opts.batches);
        exit(2);
    }
    kr_matmul_fill(p->opts.isa, &b.k);
    kr_ops_fill(p->opts.isa, &b.ops);
    for (size_t i = 0; i < parity_n_types; i++)
        for (size_t s = 0; s < (p->opts.rows ? 1 : CN_ARRAY_LEN(shapes)); s++) {
            uint32_t rows = p->opts.rows ? p->opts.rows : shapes[s][0];
            uint32_t cols = p->opts.rows ? p->opts.cols : shapes[s][1];
            if (!parity_wants(p, "matmul", parity_types[i])) continue;
            if (cols % kr_type_info(parity_types[i])->block_elems) continue;
            bench_shape(&b, parity_types[i], rows, cols, batches, n);
        }
    kr_pool_free(b.pool);
}
