/* recurrent, generic: plain C, the reference of the other ISAs. Pure functions, any thread.
 * States are float32; sums over a state are kept in double, in ascending order. */
#include "kernels/cpu/recurrent.h"
#include "kernels/cpu/generic/exp.h"

static float sigmoid(float x)
{
    return 1.0f / (1.0f + exp_f32(-x));
}

/* ln(1 + e) = 2 atanh(e / (2 + e)) by its series; e <= 1: rest below 2e-9. */
static float softplus(float x)
{
    float e = exp_f32(-fabsf(x)), s = e / (2.0f + e), z = s * s, p = 1.0f / 15;
    for (int i = 13; i > 0; i -= 2)
        p = p * z + 1.0f / (float)i;
    float rest = 2.0f * s * p;
    return x > 0 ? x + rest : rest;
}

static void conv(float *y, const float *const *in, const float *w, size_t w_stride,
                 const float *bias, uint32_t taps, bool silu, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        double sum = bias ? (double)bias[i] : 0;
        for (uint32_t j = 0; j < taps; j++)
            sum += (double)w[j * w_stride + i] * in[j][i];
        float v = (float)sum;
        y[i] = silu ? v / (1.0f + exp_f32(-v)) : v;
    }
}

static void scan(const struct kr_scan_part *p)
{
    for (uint32_t r = 0; r < p->n_rows; r++) {
        const float *b = p->b + r * p->b_stride, *c = p->c + r * p->c_stride;
        for (uint32_t i = 0; i < p->lanes; i++) {
            uint32_t h = p->each ? i : 0;
            float dt = p->dt[r * p->dt_stride + h];
            float delta = softplus(p->dt_bias ? dt + p->dt_bias[h] : dt);
            float x = p->x[r * p->x_stride + i], dx = delta * x;
            float decay = p->each ? 0 : exp_f32(delta * p->a[0]);
            double sum = (double)p->d[h] * x;
            for (uint32_t n = 0; n < p->n_state; n++) {
                size_t at = (size_t)n * p->lanes + i;
                if (p->each) decay = exp_f32(delta * p->a[at]);
                p->state[at] = decay * p->state[at] + dx * b[n];
                sum += (double)p->state[at] * c[n];
            }
            p->y[r * p->y_stride + i] = (float)sum;
        }
    }
}

static void delta(const struct kr_delta_part *p)
{
    for (uint32_t r = 0; r < p->n_rows; r++) {
        const float *q = p->q + r * p->q_stride, *k = p->k + r * p->k_stride;
        float g = exp_f32(p->decay * softplus(p->a[r * p->a_stride] + p->dt_bias));
        float beta = sigmoid(p->b[r * p->b_stride]);
        for (uint32_t i = 0; i < p->lanes; i++) {
            float *m = p->state + i;
            double kept = 0, sum = 0;
            for (uint32_t n = 0; n < p->n_state; n++)
                kept += (double)m[(size_t)n * p->lanes] * k[n];
            float d = beta * (p->v[r * p->v_stride + i] - g * (float)kept);
            for (uint32_t n = 0; n < p->n_state; n++) {
                float *e = &m[(size_t)n * p->lanes];
                *e = g * *e + d * k[n];
                sum += (double)*e * q[n];
            }
            p->y[r * p->y_stride + i] = (float)sum;
        }
    }
}

void kr_recurrent_generic(struct kr_recurrent_ops *o)
{
    *o = (struct kr_recurrent_ops){.conv = conv, .scan = scan, .delta = delta};
}
