/* Parity of matrix products and of the quantisation of activations.
 * Truth: the dequantised weights times the (quantised) activations, summed in double. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/matmul.h"
#include "kernels/half.h"
#include "tests/kernels/parity_data.h"

#define MAX_BATCH 70

/* Generic against double. What an activation is worth is what its quants say: the error of
 * quantising is the method's, not the kernel's. */
static void check_truth(struct parity *p, const struct parity_weights *w,
                        const struct parity_inputs *in, const float *out, size_t stride)
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
                        const struct parity_weights *w, const struct parity_inputs *in,
                        const float *truth, size_t truth_stride, uint32_t batch, uint32_t r0,
                        uint32_t split)
{
    const uint32_t rows = w->packed.rows;
    const size_t stride = rows + 5;
    const char *name = kr_type_info(w->packed.type)->name;
    struct parity_area a;
    parity_area_new(&a, (size_t)(r0 + batch) * stride);
    float *before = parity_alloc(a.n * sizeof(float));
    memcpy(before, a.data, a.n * sizeof(float));
    parity_run(k, w, 0, split, in, r0, r0 + batch, true, a.data, stride);
    parity_run(k, w, split, w->groups, in, r0, r0 + batch, true, a.data, stride);
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
    struct parity_weights w;
    struct parity_inputs in;
    struct parity_area truth;
    parity_weights_new(&w, type, rows, cols, rows * 131 + cols);
    parity_inputs_new(&in, max_batch, cols, rows * 17 + cols, scale);
    generic->quantize(&in.q, in.x, in.stride, 0, max_batch);
    parity_area_new(&truth, (size_t)max_batch * rows);
    parity_run(generic, &w, 0, w.groups, &in, 0, max_batch, true, truth.data, rows);
    check_truth(p, &w, &in, truth.data, rows);
    for (uint32_t batch = 1; batch <= max_batch; batch++) {
        check_equal(p, k, &w, &in, truth.data, rows, batch, 0, batch % (w.groups + 1));
        check_equal(p, k, &w, &in, truth.data, rows, 1, batch - 1, 0);
    }
    if (max_batch > 2) check_equal(p, k, &w, &in, truth.data, rows, max_batch - 2, 1, 0);
    parity_area_free(&truth);
    parity_inputs_free(&in);
    parity_weights_free(&w);
}

/* More and longer input rows than fit in a run that a cache holds. */
static void check_runs(struct parity *p, const struct kr_matmul_kernels *k,
                       const struct kr_matmul_kernels *generic, enum kr_type type)
{
    const uint32_t rows = 35, cols = 8192, batch = 130;
    struct parity_weights w;
    struct parity_inputs in;
    struct parity_area truth;
    parity_weights_new(&w, type, rows, cols, 3);
    parity_inputs_new(&in, batch, cols, 4, 1);
    generic->quantize(&in.q, in.x, in.stride, 0, batch);
    parity_area_new(&truth, (size_t)batch * rows);
    parity_run(generic, &w, 0, w.groups, &in, 0, batch, true, truth.data, rows);
    check_truth(p, &w, &in, truth.data, rows);
    check_equal(p, k, &w, &in, truth.data, rows, batch, 0, 2);
    check_equal(p, k, &w, &in, truth.data, rows, batch - 33, 33, 0);
    parity_area_free(&truth);
    parity_inputs_free(&in);
    parity_weights_free(&w);
}

/* A row with NaN or infinity gives NaN (floats: whatever IEEE says) and leaves the others alone. */
static void check_not_finite(struct parity *p, const struct kr_matmul_kernels *k, enum kr_type type)
{
    const uint32_t rows = 33, cols = 512, n = 9;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    struct parity_weights w;
    struct parity_inputs in;
    float *clean = parity_alloc(n * rows * sizeof(float));
    float *out = parity_alloc(n * rows * sizeof(float));
    parity_weights_new(&w, type, rows, cols, 5);
    parity_inputs_new(&in, n, cols, 6, 1);
    k->quantize(&in.q, in.x, in.stride, 0, n);
    parity_run(k, &w, 0, w.groups, &in, 0, n, false, clean, rows);
    for (size_t b = 0; b < CN_ARRAY_LEN(bad); b++) {
        in.x[4 * in.stride + 100 + b] = bad[b];
        k->quantize(&in.q, in.x, in.stride, 0, n);
        parity_run(k, &w, 0, w.groups, &in, 0, n, false, out, rows);
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
    parity_inputs_free(&in);
    parity_weights_free(&w);
}

void parity_matmul(struct parity *p)
{
    struct kr_matmul_kernels k, generic;
    kr_matmul_fill(p->opts.isa, &k);
    kr_matmul_fill(KR_ISA_GENERIC, &generic);
    static const uint32_t panels[] = {512, 544, 640, 672, 768, 1024, 1280, 1312, 2304};
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
        /* rows enough for panels, whose last is whole, short and one block */
        for (uint32_t n = 0; unit > 1 && n < CN_ARRAY_LEN(panels); n++)
            if (panels[n] % unit == 0)
                check_shape(p, &k, &generic, type, 40, panels[n], 13 + n % 2 * 6, 1);
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
    struct parity_inputs in;
    parity_inputs_new(&in, n, cols, cols + n, scale);
    if (cols > 40 && n > 1) in.x[in.stride + 40] = NAN;
    if (cols > 70 && n > 2) in.x[2 * in.stride + 70] = -INFINITY;
    for (uint32_t c = 0; c < 32 && c < cols; c++)
        in.x[(n - 1) * in.stride + c] = 0;
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
        parity_check(p,
                     !memcmp(in.q.blocks + (size_t)r * in.q.stride,
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
    parity_inputs_free(&in);
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
