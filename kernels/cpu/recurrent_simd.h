/* recurrences for AVX2, AVX-512 and NEON: included once by each ISA's file. A lane is a channel
 * (conv, scan) or a row of a head's matrix (delta), so that no sum goes across lanes; whole and
 * partial vectors do the same operations on a lane. */
#ifndef KERNELS_CPU_RECURRENT_SIMD_H
#define KERNELS_CPU_RECURRENT_SIMD_H

#include "kernels/cpu/recurrent.h"
#include "kernels/cpu/simd.h"

/* Rows that a block of a state stays in registers for. */
#define ROWS 16u
/* Floats that a state is fetched ahead: in decode steps it comes from memory. */
#define AHEAD 1024

/* `full` is a constant where these are used. */
V_INLINE vf get(const float *p, uint32_t n, bool full)
{
    return full ? v_load(p) : v_load_n(p, n);
}
V_INLINE void put(float *p, vf a, uint32_t n, bool full)
{
    if (full)
        v_store(p, a);
    else
        v_store_n(p, a, n);
}

/* ln(1 + e) = 2 atanh(e / (2 + e)) by its series; e <= 1: rest below 2e-9. */
V_INLINE vf v_softplus(vf x)
{
    vf minus = v_sub(v_set(0), x), e = v_exp(v_min(minus, x)); /* x when it is NaN */
    vf s = v_div(e, v_add(v_set(2.0f), e)), z = v_mul(s, s);
    vf p = v_set(1.0f / 15);
    p = v_fma(p, z, v_set(1.0f / 13));
    p = v_fma(p, z, v_set(1.0f / 11));
    p = v_fma(p, z, v_set(1.0f / 9));
    p = v_fma(p, z, v_set(1.0f / 7));
    p = v_fma(p, z, v_set(1.0f / 5));
    p = v_fma(p, z, v_set(1.0f / 3));
    p = v_fma(p, z, v_set(1.0f));
    return v_fma(v_add(s, s), p, v_max(v_set(0), x));
}

/* 2^t = 2^n 2^r, r in +-1/2, 2^r - 1 by a polynomial without constant term, fitted for the least
 * relative error of 2^r (2e-9); t is held above -126, NaN stays NaN. 2^0 is 1 exactly. */
V_INLINE vf v_exp2(vf t)
{
#if VL == 8
    t = v_min(v_set(127.0f), t); /* v_scale2's limit */
#endif
    t = v_max(v_set(-126.0f), t);
    vf n = v_round(t), r = v_sub(t, n);
    vf p = v_set(0x1.41fbbcp-13f);
    p = v_fma(p, r, v_set(0x1.5f3e54p-10f));
    p = v_fma(p, r, v_set(0x1.3b2d4cp-7f));
    p = v_fma(p, r, v_set(0x1.c6aee8p-5f));
    p = v_fma(p, r, v_set(0x1.ebfbdcp-3f));
    p = v_fma(p, r, v_set(0x1.62e430p-1f));
    p = v_fma(p, r, v_set(1.0f));
    return v_scale2(p, n);
}
#define LOG2_E v_set(0x1.715476p0f)

/* ---- convolution ----------------------------------------------------------------------------- */

V_INLINE vf conv_at(const float *const *in, const float *w, size_t w_stride, const float *bias,
                    uint32_t taps, bool silu, uint32_t i, uint32_t n, bool full)
{
    vf y = bias ? get(bias + i, n, full) : v_set(0);
    for (uint32_t j = 0; j < taps; j++)
        y = v_fma(get(w + j * w_stride + i, n, full), get(in[j] + i, n, full), y);
    if (!silu) return y;
    return v_div(y, v_add(v_set(1.0f), v_exp(v_sub(v_set(0), y))));
}

V_INLINE void conv_loop(float *y, const float *const *in, const float *w, size_t w_stride,
                        const float *bias, uint32_t taps, bool silu, uint32_t n)
{
    uint32_t i = 0;
    for (; i + VL <= n; i += VL)
        v_store(y + i, conv_at(in, w, w_stride, bias, taps, silu, i, VL, true));
    if (i < n) v_store_n(y + i, conv_at(in, w, w_stride, bias, taps, silu, i, n - i, false), n - i);
}

static void conv(float *y, const float *const *in, const float *w, size_t w_stride,
                 const float *bias, uint32_t taps, bool silu, uint32_t n)
{
    if (taps == 4 && silu)
        conv_loop(y, in, w, w_stride, bias, 4, true, n);
    else if (taps == 3 && !silu)
        conv_loop(y, in, w, w_stride, bias, 3, false, n);
    else
        conv_loop(y, in, w, w_stride, bias, taps, silu, n);
}

/* ---- scan ------------------------------------------------------------------------------------ */

/* Some rows of up to VL lanes of a block. */
struct scan_rows {
    const struct kr_scan_part *p;
    uint32_t row, n_rows, lane, lanes;
    float decay[ROWS][VL]; /* each: delta * log2 e, by lane; else the head's decay in [0] */
    float dx[ROWS][VL], y[ROWS][VL];
};

/* delta, delta * x and what y begins with: d * x. */
V_INLINE void scan_begin(struct scan_rows *s, bool each, bool full)
{
    const struct kr_scan_part *p = s->p;
    float delta[ROWS] = {0};
    if (!each) {
        for (uint32_t r = 0; r < s->n_rows; r++)
            delta[r] = p->dt[(s->row + r) * p->dt_stride] + (p->dt_bias ? p->dt_bias[0] : 0);
        float decay[ROWS];
        for (uint32_t r = 0; r < ROWS; r += VL) {
            vf d = v_softplus(v_load(delta + r));
            v_store(delta + r, d);
            v_store(decay + r, v_exp(v_mul(d, v_set(p->a[0]))));
        }
        for (uint32_t r = 0; r < s->n_rows; r++)
            s->decay[r][0] = decay[r];
    }
    for (uint32_t r = 0; r < s->n_rows; r++) {
        size_t row = s->row + r;
        vf x = get(p->x + row * p->x_stride + s->lane, s->lanes, full), dt = v_set(delta[r]);
        vf d = each ? get(p->d + s->lane, s->lanes, full) : v_set(p->d[0]);
        if (each) {
            dt = get(p->dt + row * p->dt_stride + s->lane, s->lanes, full);
            if (p->dt_bias) dt = v_add(dt, get(p->dt_bias + s->lane, s->lanes, full));
            dt = v_softplus(dt);
            v_store(s->decay[r], v_mul(dt, LOG2_E));
        }
        v_store(s->dx[r], v_mul(dt, x));
        v_store(s->y[r], v_mul(d, x));
    }
}

/* States [n, n + count) over the rows; count (1 or a multiple of 4) and the flags are constants.
 * Four sums, so that a single row does not wait for one long chain. */
V_INLINE void scan_states(struct scan_rows *s, uint32_t n, const uint32_t count, bool each,
                          bool full)
{
    const struct kr_scan_part *p = s->p;
    float *state = p->state + (size_t)n * p->lanes + s->lane;
    const float *a = each ? p->a + (size_t)n * p->lanes + s->lane : NULL;
    vf m[16];
    UNROLL for (uint32_t j = 0; j < count; j++) {
        __builtin_prefetch(state + (size_t)j * p->lanes + AHEAD);
        m[j] = get(state + (size_t)j * p->lanes, s->lanes, full);
    }
    for (uint32_t r = 0; r < s->n_rows; r++) {
        const float *b = p->b + (s->row + r) * p->b_stride + n;
        const float *c = p->c + (s->row + r) * p->c_stride + n;
        vf dx = v_load(s->dx[r]), sum[4];
        vf decay = each ? v_load(s->decay[r]) : v_set(s->decay[r][0]);
        UNROLL for (uint32_t j = 0; j < count; j++) {
            vf e = decay;
            if (each) e = v_exp2(v_mul(decay, get(a + (size_t)j * p->lanes, s->lanes, full)));
            m[j] = v_fma(e, m[j], v_mul(dx, v_set(b[j])));
            sum[j % 4] = j < 4 ? v_mul(m[j], v_set(c[j])) : v_fma(m[j], v_set(c[j]), sum[j % 4]);
        }
        if (count >= 4) sum[0] = v_add(v_add(sum[0], sum[1]), v_add(sum[2], sum[3]));
        v_store(s->y[r], v_add(v_load(s->y[r]), sum[0]));
    }
    UNROLL for (uint32_t j = 0; j < count; j++)
        put(state + (size_t)j * p->lanes, m[j], s->lanes, full);
}

/* As many states at a time as the registers hold. */
#define STATES_AT_ONCE (VL == 16 ? 16u : 8u)

V_INLINE void scan_lanes(const struct kr_scan_part *p, uint32_t lane, bool each, bool full)
{
    struct scan_rows s; /* its rows are not worth clearing */
    s.p = p;
    s.lane = lane;
    s.lanes = CN_MIN(p->lanes - lane, VL);
    for (s.row = 0; s.row < p->n_rows; s.row += ROWS) {
        uint32_t n = 0;
        s.n_rows = CN_MIN(p->n_rows - s.row, ROWS);
        scan_begin(&s, each, full);
        for (; n + STATES_AT_ONCE <= p->n_state; n += STATES_AT_ONCE)
            scan_states(&s, n, STATES_AT_ONCE, each, full);
        for (; n + 4 <= p->n_state; n += 4)
            scan_states(&s, n, 4, each, full);
        for (; n < p->n_state; n++)
            scan_states(&s, n, 1, each, full);
        for (uint32_t r = 0; r < s.n_rows; r++)
            put(p->y + (s.row + r) * p->y_stride + lane, v_load(s.y[r]), s.lanes, full);
    }
}

static void scan(const struct kr_scan_part *p)
{
    uint32_t lane = 0;
    for (; lane + VL <= p->lanes; lane += VL) {
        if (p->each)
            scan_lanes(p, lane, true, true);
        else
            scan_lanes(p, lane, false, true);
    }
    if (lane == p->lanes) return;
    if (p->each)
        scan_lanes(p, lane, true, false);
    else
        scan_lanes(p, lane, false, false);
}

/* ---- delta rule ------------------------------------------------------------------------------ */

/* Vectors of a whole block, and sums kept apart so that one need not wait for the other. */
#define VECTORS   (KR_DELTA_LANES / VL)
#define KEPT_SUMS (VL == 16 ? 4u : 2u)
#define OUT_SUMS  (VL == 16 ? 2u : 1u)

/* m = g m + d k; what m q adds to the row's output. */
V_INLINE vf delta_update(float *at, uint32_t lanes, bool full, float g, vf d, float k, float q,
                         vf out)
{
    vf m = v_fma(d, v_set(k), v_mul(v_set(g), get(at, lanes, full)));
    put(at, m, lanes, full);
    return v_fma(m, v_set(q), out);
}

/* A row of `count` vectors, the last one of `lanes` lanes when not full. */
V_INLINE void delta_row(const struct kr_delta_part *p, uint32_t lane, const uint32_t count,
                        uint32_t lanes, bool full, uint32_t row, float g, float beta)
{
    const float *q = p->q + row * p->q_stride, *k = p->k + row * p->k_stride;
    const float *v = p->v + row * p->v_stride + lane;
    float *y = p->y + row * p->y_stride + lane, *state = p->state + lane;
    uint32_t dk = p->n_state, n;
    size_t step = p->lanes;
    vf kept[4][4], out[2][4], d[4];
    UNROLL for (uint32_t i = 0; i < count; i++) {
        UNROLL for (uint32_t u = 0; u < KEPT_SUMS; u++)
            kept[u][i] = v_set(0);
        UNROLL for (uint32_t u = 0; u < OUT_SUMS; u++)
            out[u][i] = v_set(0);
    }
    for (n = 0; n + KEPT_SUMS <= dk; n += KEPT_SUMS) UNROLL
        for (uint32_t u = 0; u < KEPT_SUMS; u++) UNROLL
            for (uint32_t i = 0; i < count; i++)
                kept[u][i] = v_fma(get(state + (n + u) * step + i * VL, lanes, full),
                                   v_set(k[n + u]), kept[u][i]);
    for (; n < dk; n++) UNROLL
        for (uint32_t i = 0; i < count; i++)
            kept[0][i] =
                v_fma(get(state + n * step + i * VL, lanes, full), v_set(k[n]), kept[0][i]);
    UNROLL for (uint32_t i = 0; i < count; i++) {
        vf sum = v_add(kept[0][i], kept[1][i]);
        if (KEPT_SUMS == 4) sum = v_add(sum, v_add(kept[2][i], kept[3][i]));
        d[i] = v_fma(v_set(-g), sum, get(v + i * VL, lanes, full));
        d[i] = v_mul(v_set(beta), d[i]);
    }
    for (n = 0; n + OUT_SUMS <= dk; n += OUT_SUMS) UNROLL
        for (uint32_t u = 0; u < OUT_SUMS; u++) UNROLL
            for (uint32_t i = 0; i < count; i++)
                out[u][i] = delta_update(state + (n + u) * step + i * VL, lanes, full, g, d[i],
                                         k[n + u], q[n + u], out[u][i]);
    for (; n < dk; n++) UNROLL
        for (uint32_t i = 0; i < count; i++)
            out[0][i] = delta_update(state + n * step + i * VL, lanes, full, g, d[i], k[n], q[n],
                                     out[0][i]);
    UNROLL for (uint32_t i = 0; i < count; i++)
        put(y + i * VL, OUT_SUMS == 2 ? v_add(out[0][i], out[OUT_SUMS - 1][i]) : out[0][i], lanes,
            full);
}

/* The head's gates for some rows: e^(decay softplus(a + bias)) and sigmoid(b). */
static void delta_gates(const struct kr_delta_part *p, uint32_t row, uint32_t n, float *g,
                        float *beta)
{
    float a[ROWS] = {0}, b[ROWS] = {0};
    for (uint32_t r = 0; r < n; r++) {
        a[r] = p->a[(row + r) * p->a_stride] + p->dt_bias;
        b[r] = p->b[(row + r) * p->b_stride];
    }
    for (uint32_t r = 0; r < ROWS; r += VL) {
        v_store(g + r, v_exp(v_mul(v_set(p->decay), v_softplus(v_load(a + r)))));
        vf e = v_exp(v_sub(v_set(0), v_load(b + r)));
        v_store(beta + r, v_div(v_set(1.0f), v_add(v_set(1.0f), e)));
    }
}

static void delta(const struct kr_delta_part *p)
{
    float g[ROWS], beta[ROWS];
    for (uint32_t row = 0; row < p->n_rows; row += ROWS) {
        uint32_t n = CN_MIN(p->n_rows - row, ROWS);
        delta_gates(p, row, n, g, beta);
        for (uint32_t r = 0; r < n; r++) {
            if (p->lanes == KR_DELTA_LANES) {
                delta_row(p, 0, VECTORS, VL, true, row + r, g[r], beta[r]);
                continue;
            }
            uint32_t lane = 0;
            for (; lane + VL <= p->lanes; lane += VL)
                delta_row(p, lane, 1, VL, true, row + r, g[r], beta[r]);
            if (lane < p->lanes)
                delta_row(p, lane, 1, p->lanes - lane, false, row + r, g[r], beta[r]);
        }
    }
}

#endif
