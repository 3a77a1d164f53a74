/* Matrix products in plain C: the reference that the vector kernels must equal bit for bit.
 * Pure but for the memory given.
 *
 * The sum of an output element, in this order on every ISA, block of 32 columns after block:
 *   D:   acc = fma(product(isum, scale_w), scale_x, acc), the offset inside isum
 *   KX:  as D with scale_w = d * sc; T: d / 8; E: a power of two
 *   DM:  as D without offset, then acc = fma(min_w, scaled_sum_x, acc)
 *   K:   as DM with scale_w = d * sc and min_w = -(dmin * mn), rounded to float32
 *   K6:  each half of 16 columns has an isum and scale_w = d * sc:
 *        acc = fma(fma(isum1, scale_w1, product(isum0, scale_w0)), scale_x, acc)
 *   K2:  as K6 with scale_w = d / 8 * sc, and before scale_x fma(msum, -dmin, that), where msum
 *        adds up min_w * (sum of x) of both halves
 * Floats: acc = fma(w, x, acc), column after column.
 *
 * product(isum, s) is isum * s, rounded once. isum is exact and |isum| < 2^22, so the integer
 * isum + KR_SUM_BIAS is the float 1.5 * 2^23 + isum bit for bit, and no conversion is needed:
 * fma(that float, s, -1.5 * 2^23 * s), where the last term is exact because s has few bits
 * (a float16 times at most 8 more). MXFP4 alone has scales so large that it overflows, from 2^104
 * on: such products are NaN. */
#include "kernels/cpu/pack.h"

#include <math.h>

#include "kernels/half.h"

/* A block of a group, unpacked: 16 rows of 32 quants with their scales. */
struct unpacked {
    uint8_t q[KR_PACK_ROWS][KR_SUB];
    float scale[2][KR_PACK_ROWS]; /* the second one only for K6 and K2 */
    float min[KR_PACK_ROWS];
    uint8_t half_min[2][KR_PACK_ROWS]; /* K2: the halves' integers, min is what they share */
};

static void quantize_block(const float *x, uint32_t n, struct kr_q8_block *block)
{
    float amax = 0;
    bool finite = true;
    int32_t half[2] = {0, 0};
    for (uint32_t i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        if (!isfinite(a)) finite = false;
        if (a > amax) amax = a;
    }
    memset(block, 0, sizeof(*block));
    kr_q8_starts(block, 0, 0);
    if (!finite || amax < 1e-36f) {
        block->scale = block->scaled_sum = finite ? 0 : NAN;
        return;
    }
    float inverse = 127.0f / amax;
    for (uint32_t i = 0; i < n; i++) {
        block->q[i] = (int8_t)rintf(x[i] * inverse);
        half[i / 16] += block->q[i];
    }
    int32_t sum = half[0] + half[1];
    block->scale = amax / 127.0f;
    block->scaled_sum = block->scale * (float)sum;
    kr_q8_starts(block, half[0], half[1]);
}

static void quantize(struct kr_q8 *q, const float *x, size_t x_stride, uint32_t r0, uint32_t r1)
{
    uint32_t blocks = (q->cols + KR_SUB - 1) / KR_SUB;
    for (uint32_t r = r0; r < r1; r++)
        for (uint32_t b = 0; b < blocks; b++) {
            uint32_t n = CN_MIN(q->cols - b * KR_SUB, (uint32_t)KR_SUB);
            quantize_block(x + r * x_stride + b * KR_SUB, n, q->blocks + (size_t)r * q->stride + b);
        }
}

/* Column c of a row; p is at the row's four bytes in the first vector. */
static unsigned packed_quant(const struct kr_layout *l, const uint8_t *p, int c)
{
    const int word = c / 4, half = word / 4;
    const uint8_t *b = p + c % 4;
    switch (l->bits) {
    case 2:
        return 8 * (b[64 * half] >> 2 * (word % 4) & 3u);
    case 3:
        return 8 * ((b[64 + 64 * half] >> 2 * (word % 4) & 3u) | (b[0] >> word & 1u) << 2);
    case 5:
        return (b[64 + 64 * (word % 4)] >> 4 * half & 15u) | (b[0] >> word & 1u) << 4;
    case 6:
        return (b[128 + 64 * (word % 4)] >> 4 * half & 15u) | (b[64 * half] >> 2 * (word % 4) & 3u)
                                                                  << 4;
    case 8:
        return b[64 * word];
    default:
        return b[64 * (word % 4)] >> 4 * half & 15u;
    }
}

static void unpack_quants(enum kr_type type, const struct kr_layout *l, const uint8_t *p,
                          struct unpacked *u)
{
    const int8_t *table = kr_block_table(type);
    for (int lane = 0; lane < KR_PACK_ROWS; lane++)
        for (int c = 0; c < KR_SUB; c++) {
            unsigned q = packed_quant(l, p + 4 * lane, c);
            if (table) q = (unsigned)(table[q] + (1 << l->offset_shift));
            u->q[lane][c] = (uint8_t)q;
        }
}

static void unpack_lane(const struct kr_layout *l, const uint8_t *h, const uint8_t *sub, int lane,
                        struct unpacked *u)
{
    float d = 0, m = 0;
    if (l->header == KR_HDR_K6)
        memcpy(&d, h + 4 * lane, 4);
    else if (l->header == KR_HDR_E)
        d = kr_bits_f32((uint32_t)h[lane] << 23);
    else
        d = kr_f16_f32(kr_load_u16(h + 2 * lane));
    if (l->header == KR_HDR_DM || l->header == KR_HDR_K || l->header == KR_HDR_K2)
        m = kr_f16_f32(kr_load_u16(h + 32 + 2 * lane));
    u->scale[0][lane] = d;
    u->min[lane] = m;
    switch (l->header) {
    case KR_HDR_K:
        u->scale[0][lane] = d * (float)sub[lane];
        u->min[lane] = -(m * (float)sub[16 + lane]);
        break;
    case KR_HDR_K6:
        for (int half = 0; half < 2; half++)
            u->scale[half][lane] = d * (float)(int8_t)sub[16 * half + lane];
        break;
    case KR_HDR_K2:
        u->min[lane] = -m;
        for (int half = 0; half < 2; half++) {
            u->scale[half][lane] = d * KR_EIGHTH * (float)(sub[2 * lane + half] & 15);
            u->half_min[half][lane] = sub[2 * lane + half] >> 4;
        }
        break;
    case KR_HDR_KX:
        u->scale[0][lane] = d * (float)(int8_t)sub[lane];
        break;
    case KR_HDR_T:
        u->scale[0][lane] = d * KR_EIGHTH;
        break;
    }
}

static void unpack_header(const struct kr_layout *l, const uint8_t *h, uint32_t block,
                          struct unpacked *u)
{
    const uint8_t *sub = l->header_blocks > 1 ? h + kr_sub_scales_at(l, block) : NULL;
    for (int lane = 0; lane < KR_PACK_ROWS; lane++)
        unpack_lane(l, h, sub, lane, u);
}

static int32_t dot16(const uint8_t *w, const int8_t *x)
{
    int32_t s = 0;
    for (int i = 0; i < 16; i++)
        s += (int32_t)w[i] * x[i];
    return s;
}

/* What the sum of a block's products starts from. */
static int32_t block_start(const struct kr_layout *l, const struct kr_q8_block *x)
{
    switch (l->offset_shift) {
    case 3:
        return x->start[0];
    case 4:
        return x->start[1];
    case 7:
        return x->start[2];
    default:
        return KR_SUM_BIAS;
    }
}

static float product(int32_t biased, float scale)
{
    return fmaf(kr_bits_f32((uint32_t)biased), scale, -0x1.8p23f * scale);
}

/* sum + isum * scale, rounded once. */
static float product_more(int32_t biased, float scale, float sum)
{
    return fmaf(kr_bits_f32((uint32_t)biased) - 0x1.8p23f, scale, sum);
}

/* Adds a block of one input row to the sums of up to 16 output rows. */
static void add_block(const struct kr_layout *l, const struct unpacked *u,
                      const struct kr_q8_block *x, uint32_t lanes, float *out)
{
    int32_t start = block_start(l, x);
    for (uint32_t lane = 0; lane < lanes; lane++) {
        int32_t low = dot16(u->q[lane], x->q), high = dot16(u->q[lane] + 16, x->q + 16);
        float acc = out[lane];
        if (l->header == KR_HDR_K6) {
            float sum = product(low + x->half_start[0], u->scale[0][lane]);
            sum = product_more(high + x->half_start[1], u->scale[1][lane], sum);
            acc = fmaf(sum, x->scale, acc);
        } else if (l->header == KR_HDR_K2) {
            int32_t mins = u->half_min[0][lane] * x->half_sum[0];
            mins += u->half_min[1][lane] * x->half_sum[1];
            float sum = product(low + KR_SUM_BIAS, u->scale[0][lane]);
            sum = product_more(high + KR_SUM_BIAS, u->scale[1][lane], sum);
            sum = product_more(mins + KR_SUM_BIAS, u->min[lane], sum);
            acc = fmaf(sum, x->scale, acc);
        } else {
            acc = fmaf(product(low + high + start, u->scale[0][lane]), x->scale, acc);
        }
        if (l->header == KR_HDR_DM || l->header == KR_HDR_K)
            acc = fmaf(u->min[lane], x->scaled_sum, acc);
        out[lane] = acc;
    }
}

static void quantised_group(const struct kr_packed *w, const struct kr_layout *l, uint32_t g,
                            const struct kr_q8 *q, uint32_t r0, uint32_t r1, uint32_t lanes,
                            float *out, size_t out_stride)
{
    const uint8_t *headers = (const uint8_t *)w->data + g * kr_group_bytes(l, w->cols);
    const uint8_t *quants = headers + kr_header_plane_bytes(l, w->cols);
    uint32_t blocks = w->cols / KR_SUB;
    for (uint32_t b = 0; b < blocks; b++) {
        struct unpacked u;
        unpack_quants(w->type, l, quants + (size_t)b * l->quant_bytes, &u);
        unpack_header(l, headers + kr_header_at(l, b), b, &u);
        for (uint32_t r = r0; r < r1; r++)
            add_block(l, &u, q->blocks + (size_t)r * q->stride + b, lanes, out + r * out_stride);
    }
}

static float float_element(enum kr_type type, const void *p, size_t i)
{
    if (type == KR_F32) return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return type == KR_F16 ? kr_f16_f32(h) : kr_bf16_f32(h);
}

static void float_group(const struct kr_packed *w, const struct kr_layout *l, uint32_t g,
                        const float *x, size_t x_stride, uint32_t r0, uint32_t r1, uint32_t lanes,
                        float *out, size_t out_stride)
{
    const uint8_t *group = (const uint8_t *)w->data + g * kr_group_bytes(l, w->cols);
    for (uint32_t c = 0; c < w->cols; c++) {
        float column[KR_PACK_ROWS];
        for (uint32_t i = 0; i < lanes; i++)
            column[i] = float_element(w->type, group, (size_t)c * KR_PACK_ROWS + i);
        for (uint32_t r = r0; r < r1; r++)
            for (uint32_t i = 0; i < lanes; i++)
                out[r * out_stride + i] =
                    fmaf(column[i], x[r * x_stride + c], out[r * out_stride + i]);
    }
}

static void products(const struct kr_packed *w, uint32_t g0, uint32_t g1, const struct kr_q8 *q,
                     const float *x, size_t x_stride, uint32_t r0, uint32_t r1, const float *bias,
                     float *out, size_t out_stride)
{
    const struct kr_layout *l = kr_layout(w->type);
    for (uint32_t g = g0; g < g1; g++) {
        uint32_t first = g * KR_PACK_ROWS;
        uint32_t lanes = CN_MIN(w->rows - first, (uint32_t)KR_PACK_ROWS);
        for (uint32_t r = r0; r < r1; r++)
            for (uint32_t i = 0; i < lanes; i++)
                out[r * out_stride + first + i] = 0;
        if (l->header == KR_HDR_NONE)
            float_group(w, l, g, x, x_stride, r0, r1, lanes, out + first, out_stride);
        else
            quantised_group(w, l, g, q, r0, r1, lanes, out + first, out_stride);
        if (!bias) continue;
        for (uint32_t r = r0; r < r1; r++)
            for (uint32_t i = 0; i < lanes; i++)
                out[r * out_stride + first + i] += bias[first + i];
    }
}

static void quants(const struct kr_packed *w, uint32_t g0, uint32_t g1, const struct kr_q8 *q,
                   uint32_t r0, uint32_t r1, const float *bias, float *out, size_t out_stride)
{
    products(w, g0, g1, q, NULL, 0, r0, r1, bias, out, out_stride);
}

static void floats(const struct kr_packed *w, uint32_t g0, uint32_t g1, const float *x,
                   size_t x_stride, uint32_t r0, uint32_t r1, const float *bias, float *out,
                   size_t out_stride)
{
    products(w, g0, g1, NULL, x, x_stride, r0, r1, bias, out, out_stride);
}

void kr_matmul_generic(struct kr_matmul_kernels *k)
{
    *k = (struct kr_matmul_kernels){"generic", quantize, quants, floats};
}
