/* Parity of matrix products and of the quantisation of activations.
 * Truth: the dequantised weights times the (quantised) activations, summed in double. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/matmul.h"
#include "kernels/half.h"
#include "tests/kernels/parity.h"
#include "tests/kernels/scales.h"

#define MAX_BATCH 70

/* A random matrix as a file would hold it, packed, and as numbers. */
struct weights {
    struct kr_packed packed;
    uint8_t *raw;
    float *values; /* [rows][cols] */
    float *bias;
    uint32_t groups;
};

static uint16_t random_half(struct parity_rng *r)
{
    /* Mostly usual scales, some subnormal, zero or negative ones. */
    switch (parity_u32(r) % 16) {
    case 0:
        return (uint16_t)(parity_u32(r) & 0x83ff);
    case 1:
        return 0;
    default:
        return (uint16_t)((parity_u32(r) & 0x83ff) | (8 + parity_u32(r) % 7) << 10);
    }
}

static void random_block(struct parity_rng *r, enum kr_type type, uint8_t *block)
{
    uint32_t n = kr_type_info(type)->block_bytes;
    for (uint32_t i = 0; i < n; i++) block[i] = (uint8_t)(parity_u32(r) >> 8);
    if (type == KR_F32) {
        float f = parity_uniform(r);
        memcpy(block, &f, 4);
        return;
    }
    if (type == KR_MXFP4) { /* usual exponents, and now and then the smallest */
        uint32_t any = parity_u32(r);
        block[0] = (uint8_t)(any % 16 ? 110 + any / 16 % 24 : any / 16 % 5);
        return;
    }
    uint16_t h = random_half(r), m = random_half(r);
    if (type == KR_BF16) h = (uint16_t)(kr_f32_bits(parity_uniform(r)) >> 16);
    memcpy(block + scale_at(type), &h, 2);
    if (min_at(type) >= 0) memcpy(block + min_at(type), &m, 2);
}

static void weights_new(struct weights *w, enum kr_type type, uint32_t rows, uint32_t cols,
                        uint64_t seed)
{
    const struct kr_type_info *info = kr_type_info(type);
    struct parity_rng r = {seed * 0x9e3779b97f4a7c15ull + 1};
    size_t blocks = (size_t)rows * (cols / info->block_elems);
    w->raw = parity_alloc(blocks * info->block_bytes);
    w->values = parity_alloc((size_t)rows * cols * sizeof(float));
    w->bias = parity_alloc(rows * sizeof(float));
    for (size_t i = 0; i < blocks; i++) random_block(&r, type, w->raw + i * info->block_bytes);
    for (uint32_t i = 0; i < rows; i++) w->bias[i] = parity_uniform(&r);
    kr_dequantize_row(type, w->raw, w->values, (size_t)rows * cols);
    w->groups = (rows + KR_PACK_ROWS - 1) / KR_PACK_ROWS;
    void *data = parity_alloc(kr_packed_bytes(type, rows, cols));
    w->packed = (struct kr_packed){type, rows, cols, data};
    kr_pack(&w->packed, w->raw, 0, w->groups / 2);
    kr_pack(&w->packed, w->raw, w->groups / 2, w->groups);
}

static void weights_free(struct weights *w)
{
    free(w->raw);
    free(w->values);
    free(w->bias);
    free(w->packed.data);
}

/* Input rows, and what the kernels are given of them. */
struct inputs {
    float *x;
    size_t stride;
    uint32_t n, cols;
    struct kr_q8 q;
    void *q_mem;
};

static void inputs_new(struct inputs *in, uint32_t n, uint32_t cols, uint64_t seed, float scale)
{
    struct parity_rng r = {seed * 0x9e3779b97f4a7c15ull + 7};
    in->n = n;
    in->cols = cols;
    in->stride = cols + 3;
    in->x = parity_alloc((n * in->stride + 1) * sizeof(float));
    for (size_t i = 0; i < n * in->stride; i++) in->x[i] = parity_uniform(&r) * scale;
    in->q_mem = parity_alloc(kr_q8_bytes(n, cols));
    kr_q8_place(&in->q, in->q_mem, n, cols);
}

static void inputs_free(struct inputs *in)
{
    free(in->x);
    free(in->q_mem);
}

static void run(const struct kr_matmul_kernels *k, const struct weights *w, uint32_t g0,
                uint32_t g1, const struct inputs *in, uint32_t r0, uint32_t r1, bool bias,
                float *out, size_t stride)
{
    bool q8 = kr_type_wants_q8(w->packed.type);
    k->matmul(&w->packed, g0, g1, q8 ? &in->q : NULL, q8 ? NULL : in->x, in->stride, r0, r1,
              bias ? w->bias : NULL, out, stride);
}

/* Generic against double. What an activation is worth is what its quants say: the error of
 * quantising is the method's, not the kernel's. */
static void check_truth(struct parity *p, const struct weights *w, const struct inputs *in,
                        const float *out, size_t stride)
{
    const uint32_t cols = w->packed.cols, blocks = cols / 32;
    const bool q8 = kr_type_wants_q8(w->packed.type);
    /* Rounded products per output: a block's scales, products and sums are below 8 roundings. */
    const double terms = q8 ? 8.0 * blocks : cols;
    for (uint32_t r = 0; r < in->n; r++)
        for (uint32_t o = 0; o < w->packed.rows; o++) {
            const float *wo = w->values + (size_t)o * cols;
            double want = w->bias[o], size = fabs(want);
            for (uint32_t c = 0; c < cols; c++) {
                double x = in->x[r * in->stride + c];
                if (q8) {
                    const struct kr_q8_block *b = &in->q.blocks[(size_t)r * in->q.stride + c / 32];
                    x = (double)b->scale * b->q[c % 32];
                }
                want += wo[c] * x;
                size += fabs(wo[c] * x);
            }
            /* A min and a scaled sum cancel: their sizes, not their difference, bound the error. */
            if (w->packed.type != KR_F32) size *= 4;
            double diff = fabs(out[r * stride + o] - want);
            if (!parity_check(p, diff <= (terms + 4) * 0x1p-24 * size + 1e-30,
                              "matmul %s %ux%u row %u output %u: %g, not %g",
                              kr_type_info(w->packed.type)->name, w->packed.rows, cols, r, o,
                              (double)out[r * stride + o], want))
                return;
        }
}

/* The same bytes as generic, nothing outside the outputs touched: batches of the sizes given,
 * split into group ranges as the seed says. */
static void check_equal(struct parity *p, const struct kr_matmul_kernels *k,
                        const struct weights *w, const struct inputs *in, const float *truth,
                        size_t truth_stride, uint32_t batch, uint32_t r0, uint32_t split)
{
    const uint32_t rows = w->packed.rows;
    const size_t stride = rows + 5;
    const char *name = kr_type_info(w->packed.type)->name;
    struct parity_area a;
    parity_area_new(&a, (size_t)(r0 + batch) * stride);
    float *before = parity_alloc(a.n * sizeof(float));
    memcpy(before, a.data, a.n * sizeof(float));
    run(k, w, 0, split, in, r0, r0 + batch, true, a.data, stride);
    run(k, w, split, w->groups, in, r0, r0 + batch, true, a.data, stride);
    parity_check(p, parity_area_intact(&a), "matmul %s %ux%u batch %u: wrote outside", name, rows,
                 w->packed.cols, batch);
    for (uint32_t r = 0; r < r0 + batch; r++) {
        const float *got = a.data + r * stride, *was = before + r * stride;
        uint32_t width = r < r0 ? 0 : rows;
        parity_check(p, !memcmp(got + width, was + width, (stride - width) * sizeof(float)),
                     "matmul %s %ux%u batch %u: wrote beside row %u", name, rows, w->packed.cols,
                     batch, r);
        if (!parity_check(p, !memcmp(got, truth + r * truth_stride, width * sizeof(float)),
                          "matmul %s %ux%u batch %u from %u: row %u differs", name, rows,
                          w->packed.cols, batch, r0, r))
            break;
    }
    free(before);
    parity_area_free(&a);
}

static void check_shape(struct parity *p, const struct kr_matmul_kernels *k,
                        const struct kr_matmul_kernels *generic, enum kr_type type, uint32_t rows,
                        uint32_t cols, uint32_t max_batch, float scale)
{
    struct weights w;
    struct inputs in;
    struct parity_area truth;
    weights_new(&w, type, rows, cols, rows * 131 + cols);
    inputs_new(&in, max_batch, cols, rows * 17 + cols, scale);
    generic->quantize(&in.q, in.x, in.stride, 0, max_batch);
    parity_area_new(&truth, (size_t)max_batch * rows);
    run(generic, &w, 0, w.groups, &in, 0, max_batch, true, truth.data, rows);
    check_truth(p, &w, &in, truth.data, rows);
    for (uint32_t batch = 1; batch <= max_batch; batch++) {
        check_equal(p, k, &w, &in, truth.data, rows, batch, 0, batch % (w.groups + 1));
        check_equal(p, k, &w, &in, truth.data, rows, 1, batch - 1, 0);
    }
    if (max_batch > 2) check_equal(p, k, &w, &in, truth.data, rows, max_batch - 2, 1, 0);
    parity_area_free(&truth);
    inputs_free(&in);
    weights_free(&w);
}

/* More and longer input rows than fit in a run that a cache holds. */
static void check_runs(struct parity *p, const struct kr_matmul_kernels *k,
                       const struct kr_matmul_kernels *generic, enum kr_type type)
{
    const uint32_t rows = 35, cols = 8192, batch = 130;
    struct weights w;
    struct inputs in;
    struct parity_area truth;
    weights_new(&w, type, rows, cols, 3);
    inputs_new(&in, batch, cols, 4, 1);
    generic->quantize(&in.q, in.x, in.stride, 0, batch);
    parity_area_new(&truth, (size_t)batch * rows);
    run(generic, &w, 0, w.groups, &in, 0, batch, true, truth.data, rows);
    check_truth(p, &w, &in, truth.data, rows);
    check_equal(p, k, &w, &in, truth.data, rows, batch, 0, 2);
    check_equal(p, k, &w, &in, truth.data, rows, batch - 33, 33, 0);
    parity_area_free(&truth);
    inputs_free(&in);
    weights_free(&w);
}

/* A row with NaN or infinity gives NaN (floats: whatever IEEE says) and leaves the others alone. */
static void check_not_finite(struct parity *p, const struct kr_matmul_kernels *k, enum kr_type type)
{
    const uint32_t rows = 33, cols = 512, n = 9;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    struct weights w;
    struct inputs in;
    float *clean = parity_alloc(n * rows * sizeof(float));
    float *out = parity_alloc(n * rows * sizeof(float));
    weights_new(&w, type, rows, cols, 5);
    inputs_new(&in, n, cols, 6, 1);
    k->quantize(&in.q, in.x, in.stride, 0, n);
    run(k, &w, 0, w.groups, &in, 0, n, false, clean, rows);
    for (size_t b = 0; b < CN_ARRAY_LEN(bad); b++) {
        in.x[4 * in.stride + 100 + b] = bad[b];
        k->quantize(&in.q, in.x, in.stride, 0, n);
        run(k, &w, 0, w.groups, &in, 0, n, false, out, rows);
        for (uint32_t r = 0; r < n; r++)
            for (uint32_t o = 0; o < rows; o++) {
                bool ok = r == 4 ? !isfinite(out[r * rows + o])
                                 : !memcmp(&out[r * rows + o], &clean[r * rows + o], 4);
                parity_check(p, ok, "matmul %s with %f in row 4: row %u output %u is %f",
                             kr_type_info(type)->name, (double)bad[b], r, o,
                             (double)out[r * rows + o]);
            }
    }
    free(clean);
    free(out);
    inputs_free(&in);
    weights_free(&w);
}

void parity_matmul(struct parity *p)
{
    struct kr_matmul_kernels k, generic;
    kr_matmul_fill(p->opts.isa, &k);
    kr_matmul_fill(KR_ISA_GENERIC, &generic);
    for (size_t i = 0; i < parity_n_types; i++) {
        enum kr_type type = parity_types[i];
        uint32_t unit = kr_type_info(type)->block_elems;
        if (!parity_wants(p, "matmul", type)) continue;
        /* Every number of columns around the sizes of a panel, every tail of rows. */
        for (uint32_t n = 1; n * unit <= (unit == 1 ? 40u : 1200u); n++)
            check_shape(p, &k, &generic, type, 1 + (n * 7) % 50, n * unit, 3 + n % 5, 1);
        for (uint32_t rows = 1; rows <= 50; rows++)
            check_shape(p, &k, &generic, type, rows, unit * 2, 2 + rows % 13, 1);
        check_shape(p, &k, &generic, type, 40, unit == 1 ? 259 : 1536, MAX_BATCH, 1);
        check_shape(p, &k, &generic, type, 20, 256, 13, 1e-40f);
        check_shape(p, &k, &generic, type, 20, 256, 13, 1e-30f);
        check_shape(p, &k, &generic, type, 20, 256, 13, 1e25f);
        check_runs(p, &k, &generic, type);
        check_not_finite(p, &k, type);
    }
}

/* ---- quantisation ---------------------------------------------------------------------------- */

static void check_quants(struct parity *p, const struct kr_matmul_kernels *k,
                         const struct kr_matmul_kernels *generic, uint32_t n, uint32_t cols,
                         float scale)
{
    struct inputs in;
    inputs_new(&in, n, cols, cols + n, scale);
    if (cols > 40 && n > 1) in.x[in.stride + 40] = NAN;
    if (cols > 70 && n > 2) in.x[2 * in.stride + 70] = -INFINITY;
    for (uint32_t c = 0; c < 32 && c < cols; c++) in.x[(n - 1) * in.stride + c] = 0;
    size_t bytes = kr_q8_bytes(n, cols);
    struct kr_q8 other;
    void *mem = parity_alloc(bytes);
    kr_q8_place(&other, mem, n, cols);
    memset(in.q_mem, 0xa5, bytes);
    memset(mem, 0x5a, bytes);
    generic->quantize(&in.q, in.x, in.stride, 0, n);
    k->quantize(&other, in.x, in.stride, 0, n / 2);
    k->quantize(&other, in.x, in.stride, n / 2, n);
    /* PARITY_EQUAL: one division, one multiplication, one rounding per value on every ISA. */
    for (uint32_t r = 0; r < n; r++)
        parity_check(p, !memcmp(in.q.blocks + (size_t)r * in.q.stride,
                                other.blocks + (size_t)r * in.q.stride,
                                (cols + 31) / 32 * sizeof(struct kr_q8_block)),
                     "quantize %ux%u scale %g: row %u differs", n, cols, (double)scale, r);
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t c = 0; c < cols; c++) {
            uint32_t first = c / 32 * 32;
            const struct kr_q8_block *b = &in.q.blocks[(size_t)r * in.q.stride + c / 32];
            float x = in.x[r * in.stride + c], amax = 0;
            bool finite = true;
            for (uint32_t i = first; i < cols && i < first + 32; i++) {
                float a = fabsf(in.x[r * in.stride + i]);
                finite = finite && isfinite(a);
                amax = a > amax ? a : amax;
            }
            /* Half a step, and the roundings of scale and inverse. */
            bool ok = finite ? fabsf(b->scale * b->q[c % 32] - x) <= amax / 253.9f + 1e-36f
                             : isnan(b->scale);
            parity_check(p, ok, "quantize %ux%u: %g became %g * %d", n, cols, (double)x,
                         (double)b->scale, b->q[c % 32]);
        }
    free(mem);
    inputs_free(&in);
}

void parity_quantize(struct parity *p)
{
    struct kr_matmul_kernels k, generic;
    kr_matmul_fill(p->opts.isa, &k);
    kr_matmul_fill(KR_ISA_GENERIC, &generic);
    if (p->opts.op && strcmp(p->opts.op, "quantize")) return;
    for (uint32_t cols = 1; cols <= 200; cols++)
        check_quants(p, &k, &generic, 1 + cols % 6, cols, 3);
    for (uint32_t cols = 250; cols <= 1600; cols += 13) /* long enough for blocks to go together */
        check_quants(p, &k, &generic, 1 + cols % 6, cols, 3);
    check_quants(p, &k, &generic, 5, 576, 1e-42f);
    check_quants(p, &k, &generic, 5, 576, 1e-35f);
    check_quants(p, &k, &generic, 5, 576, 3e38f);
}

/* ---- bench ----------------------------------------------------------------------------------- */

/* Processor time of this thread: other programs on the machine count less. */
static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void bench_one(struct parity *p, const struct kr_matmul_kernels *k, const struct weights *w,
                      const struct inputs *in, uint32_t batch, float *out)
{
    uint64_t start = cn_now_ns(), best = UINT64_MAX;
    for (uint32_t i = 0; i < 3 || cn_now_ns() - start < p->opts.min_ms * 1000000ull; i++) {
        uint64_t t = cpu_ns();
        run(k, w, 0, w->groups, in, 0, batch, false, out, w->packed.rows);
        t = cpu_ns() - t;
        best = CN_MIN(best, t);
    }
    parity_figure(p, "matmul", kr_type_info(w->packed.type)->name, w->packed.rows, w->packed.cols,
                  batch, (double)best * 1e-9, 2.0 * w->packed.rows * w->packed.cols * batch,
                  (double)kr_packed_bytes(w->packed.type, w->packed.rows, w->packed.cols));
}

void parity_matmul_bench(struct parity *p)
{
    static const uint32_t shapes[][2] = {{576, 1536}, {1536, 576}, {2048, 2048}};
    static const uint32_t batches[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 512};
    struct kr_matmul_kernels k;
    kr_matmul_fill(p->opts.isa, &k);
    for (size_t s = 0; s < (p->opts.rows ? 1 : CN_ARRAY_LEN(shapes)); s++)
        for (size_t i = 0; i < parity_n_types; i++) {
            uint32_t rows = p->opts.rows ? p->opts.rows : shapes[s][0];
            uint32_t cols = p->opts.rows ? p->opts.cols : shapes[s][1];
            struct weights w;
            struct inputs in;
            if (!parity_wants(p, "matmul", parity_types[i])) continue;
            if (cols % kr_type_info(parity_types[i])->block_elems) continue;
            weights_new(&w, parity_types[i], rows, cols, 1);
            inputs_new(&in, 512, cols, 2, 1);
            k.quantize(&in.q, in.x, in.stride, 0, 512);
            float *out = parity_alloc((size_t)512 * rows * sizeof(float));
            for (size_t b = 0; b < CN_ARRAY_LEN(batches); b++)
                bench_one(p, &k, &w, &in, batches[b], out);
            free(out);
            inputs_free(&in);
            weights_free(&w);
        }
}
