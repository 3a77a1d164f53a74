/* The parity-and-bench harness: times of the recurrences, at sizes of real models. That they are
 * right is shown by test_recurrent.c.
 *
 * As in a step, in each part of the lanes some rows go through every block before the next rows do.
 * Batch 1 is a decode step: one row for each of several sequences in turn, so that states come from
 * memory. */
#include "tests/kernels/parity.h"

#include <stdlib.h>
#include <time.h>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/ops.h"

enum { MAX_BATCH = 256, SEQUENCES = 24, AT_ONCE = 32, PARTS = 16 };

struct work {
    const char *op;
    uint32_t heads, dim, n; /* n: states of a lane; conv: taps */
    bool each;
    /* of a row: one line of values serves as every input */
    float *in, *out, *state, *w;
};

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void run_conv(const struct kr_recurrent_ops *o, const struct work *w, uint32_t rows)
{
    const float *from[64];
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t j = 0; j < w->n; j++)
            from[j] = w->in + (size_t)(r + j) * w->dim;
        o->conv(w->out + (size_t)r * w->dim, from, w->w, w->dim, w->w, w->n, true, w->dim);
    }
}

static void run_scan(const struct kr_recurrent_ops *o, const struct work *w, float *state,
                     uint32_t part, uint32_t row, uint32_t rows)
{
    uint32_t lanes = w->heads * w->dim, span = w->each ? lanes : w->dim;
    const float *in = w->in + (size_t)row * lanes, *shared = w->in + (size_t)row * w->n;
    uint32_t end = lanes / PARTS * (part + 1);
    for (uint32_t at = lanes / PARTS * part; at < end; at += KR_SCAN_LANES) {
        uint32_t head = at / span;
        struct kr_scan_part p = {.n_rows = rows,
                                 .n_state = w->n,
                                 .lanes = CN_MIN(KR_SCAN_LANES, lanes - at),
                                 .each = w->each,
                                 .state = state + (size_t)at * w->n,
                                 .a = w->each ? w->w + (size_t)at * w->n : w->w + head,
                                 .d = w->w + head,
                                 .dt_bias = w->w + head,
                                 .x = in + at,
                                 .dt = in + (w->each ? at : head),
                                 .b = shared,
                                 .c = shared + MAX_BATCH * w->n,
                                 .y = w->out + row * lanes + at,
                                 .x_stride = lanes,
                                 .dt_stride = lanes,
                                 .b_stride = w->n,
                                 .c_stride = w->n,
                                 .y_stride = lanes};
        o->scan(&p);
    }
}

static void run_delta(const struct kr_recurrent_ops *o, const struct work *w, float *state,
                      uint32_t part, uint32_t row, uint32_t rows)
{
    uint32_t lanes = w->heads * w->dim;
    const float *in = w->in + (size_t)row * lanes, *shared = w->in + (size_t)row * w->n;
    uint32_t end = lanes / PARTS * (part + 1);
    for (uint32_t at = lanes / PARTS * part; at < end; at += KR_DELTA_LANES) {
        uint32_t head = at / w->dim;
        struct kr_delta_part p = {.n_rows = rows,
                                  .n_state = w->n,
                                  .lanes = CN_MIN(KR_DELTA_LANES, lanes - at),
                                  .state = state + (size_t)at * w->n,
                                  .decay = w->w[head],
                                  .q = shared,
                                  .k = shared + MAX_BATCH * w->n,
                                  .v = in + at,
                                  .a = in + head,
                                  .b = in + head,
                                  .y = w->out + row * lanes + at,
                                  .q_stride = w->n,
                                  .k_stride = w->n,
                                  .v_stride = lanes,
                                  .a_stride = lanes,
                                  .b_stride = lanes,
                                  .y_stride = lanes};
        o->delta(&p);
    }
}

static void bench_batch(struct parity *p, const struct kr_recurrent_ops *o, const struct work *w,
                        uint32_t batch)
{
    size_t floats = (size_t)w->heads * w->dim * w->n;
    uint64_t start = cn_now_ns(), best = UINT64_MAX;
    double per_lane = (w->op[0] == 'c' ? 2.0 : w->op[0] == 's' ? 5.0 : 7.0) * w->n;
    for (uint32_t i = 0; i < 2 * SEQUENCES || cn_now_ns() - start < p->opts.min_ms * 1000000ull;
         i++) {
        float *state = w->state + (batch > 1 ? 0 : i % SEQUENCES) * floats;
        uint64_t t = cpu_ns();
        if (w->op[0] == 'c') run_conv(o, w, batch);
        for (uint32_t part = 0; part < PARTS && w->op[0] != 'c'; part++)
            for (uint32_t row = 0; row < batch; row += AT_ONCE) {
                uint32_t n = CN_MIN(AT_ONCE, batch - row);
                if (w->op[0] == 's')
                    run_scan(o, w, state, part, row, n);
                else
                    run_delta(o, w, state, part, row, n);
            }
        t = cpu_ns() - t;
        best = CN_MIN(best, t);
    }
    parity_figure(p, w->op, "F32", w->heads * w->dim, w->n, batch, (double)best * 1e-9,
                  per_lane * w->heads * w->dim * batch, 2.0 * (double)floats * sizeof(float));
}

void parity_recurrent_bench(struct parity *p)
{
    static const struct work works[] = {{"conv", 1, 8192, 4, false, 0},
                                        {"scan", 8192, 1, 16, true, 0},   /* Mamba-1 */
                                        {"scan", 128, 64, 128, false, 0}, /* Mamba-2 */
                                        {"delta", 32, 128, 128, false, 0}};
    static const uint32_t batches[] = {1, 16, MAX_BATCH};
    struct kr_cpu_ops o;
    struct parity_rng rng = {7};
    if (p->opts.rows || !kr_ops_fill(p->opts.isa, &o)) return;
    for (size_t i = 0; i < CN_ARRAY_LEN(works); i++) {
        struct work w = works[i];
        if (!parity_wants(p, w.op, KR_F32)) continue;
        size_t lanes = (size_t)w.heads * w.dim, states = SEQUENCES * lanes * w.n;
        w.in = parity_alloc((MAX_BATCH + 64) * lanes * sizeof(float));
        w.out = parity_alloc(MAX_BATCH * lanes * sizeof(float));
        w.state = parity_alloc(states * sizeof(float));
        w.w = parity_alloc((lanes * w.n + 64) * sizeof(float));
        for (size_t j = 0; j < (MAX_BATCH + 64) * lanes; j++)
            w.in[j] = 0.1f * parity_uniform(&rng);
        for (size_t j = 0; j < lanes * w.n + 64; j++)
            w.w[j] = parity_uniform(&rng) - 1.001f;
        for (size_t j = 0; j < states; j++)
            w.state[j] = parity_uniform(&rng);
        for (size_t b = 0; b < CN_ARRAY_LEN(batches); b++)
            bench_batch(p, &o.recurrent, &w, batches[b]);
        free(w.in);
        free(w.out);
        free(w.state);
        free(w.w);
    }
}
