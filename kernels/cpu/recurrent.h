/* recurrent: the inner loops of convolution, scan and delta rule; one table per ISA.
 * Private to kernels/cpu.
 *
 * Rows go one after another and lanes (channels, rows of a head's matrix) do not touch each other,
 * so that a lane's bytes depend on its sequence alone: not on how rows are cut into calls, nor on
 * which lanes share a call's vectors. Lengths are any number; nothing is read or written past them.
 * Softplus is max(x, 0) + ln(1 + e^-|x|): above 20 that is x to float32's last bit, and it keeps
 * its relative precision far below 0. */
#ifndef KERNELS_CPU_RECURRENT_H
#define KERNELS_CPU_RECURRENT_H

#include "base/base.h"

/* States are kept lane block by lane block, [n_state][lanes of the block], so that a vector lane is
 * a channel and a block's state is contiguous. The last block of a head (scan with one decay per n:
 * of a group) has the lanes that are left. */
#define KR_SCAN_LANES  16u
#define KR_DELTA_LANES 32u

/* One block of a scan. x, y: the block's lanes; dt, d, dt_bias, a: the lanes' own when `each`
 * (dt [lanes], a [n_state][lanes] like the state), else one for the head. Strides: floats from row
 * to row. */
struct kr_scan_part {
    uint32_t n_rows, n_state, lanes; /* lanes <= KR_SCAN_LANES */
    bool each;
    float *state;
    const float *a, *d, *dt_bias; /* dt_bias may be NULL */
    const float *x, *dt, *b, *c;
    float *y;
    size_t x_stride, dt_stride, b_stride, c_stride, y_stride;
};
/* One block of a delta rule: some rows of a head's matrix, n_state = dk. a, b: the head's. */
struct kr_delta_part {
    uint32_t n_rows, n_state, lanes; /* lanes <= KR_DELTA_LANES */
    float *state;
    float decay, dt_bias;
    const float *q, *k, *v, *a, *b;
    float *y;
    size_t q_stride, k_stride, v_stride, a_stride, b_stride, y_stride;
};

struct kr_recurrent_ops {
    /* One row: y[i] = act(bias[i] + sum over taps j, in ascending order, of w[j * w_stride + i] *
     * in[j][i]); bias may be NULL; act is SiLU or nothing. */
    void (*conv)(float *y, const float *const *in, const float *w, size_t w_stride,
                 const float *bias, uint32_t taps, bool silu, uint32_t n);
    void (*scan)(const struct kr_scan_part *p);
    void (*delta)(const struct kr_delta_part *p);
};
/* Each in builds for its processor only; use kr_ops_fill. */
void kr_recurrent_generic(struct kr_recurrent_ops *o);
void kr_recurrent_avx2(struct kr_recurrent_ops *o);
void kr_recurrent_avx512(struct kr_recurrent_ops *o);
void kr_recurrent_neon(struct kr_recurrent_ops *o);

#endif
