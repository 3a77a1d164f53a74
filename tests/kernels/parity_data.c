/* The matrices and input rows that the parity-and-bench harness multiplies. */
#include "tests/kernels/parity_data.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/half.h"
#include "tests/kernels/scales.h"

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
    for (uint32_t i = 0; i < n; i++)
        block[i] = (uint8_t)(parity_u32(r) >> 8);
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

void parity_weights_new(struct parity_weights *w, enum kr_type type, uint32_t rows, uint32_t cols,
                        uint64_t seed)
{
    const struct kr_type_info *info = kr_type_info(type);
    struct parity_rng r = {seed * 0x9e3779b97f4a7c15ull + 1};
    size_t blocks = (size_t)rows * (cols / info->block_elems);
    w->raw = parity_alloc(blocks * info->block_bytes);
    w->values = parity_alloc((size_t)rows * cols * sizeof(float));
    w->bias = parity_alloc(rows * sizeof(float));
    for (size_t i = 0; i < blocks; i++)
        random_block(&r, type, w->raw + i * info->block_bytes);
    for (uint32_t i = 0; i < rows; i++)
        w->bias[i] = parity_uniform(&r);
    kr_dequantize_row(type, w->raw, w->values, (size_t)rows * cols);
    w->groups = (rows + KR_PACK_ROWS - 1) / KR_PACK_ROWS;
    void *data = parity_alloc(kr_packed_bytes(type, rows, cols));
    w->packed = (struct kr_packed){type, rows, cols, data};
    kr_pack(&w->packed, w->raw, 0, w->groups / 2);
    kr_pack(&w->packed, w->raw, w->groups / 2, w->groups);
}

void parity_weights_free(struct parity_weights *w)
{
    free(w->raw);
    free(w->values);
    free(w->bias);
    free(w->packed.data);
}

void parity_inputs_new(struct parity_inputs *in, uint32_t n, uint32_t cols, uint64_t seed,
                       float scale)
{
    struct parity_rng r = {seed * 0x9e3779b97f4a7c15ull + 7};
    in->n = n;
    in->cols = cols;
    in->stride = cols + 3;
    in->x = parity_alloc((n * in->stride + 1) * sizeof(float));
    for (size_t i = 0; i < n * in->stride; i++)
        in->x[i] = parity_uniform(&r) * scale;
    in->q_mem = parity_alloc(kr_q8_bytes(n, cols));
    kr_q8_place(&in->q, in->q_mem, n, cols);
}

void parity_inputs_free(struct parity_inputs *in)
{
    free(in->x);
    free(in->q_mem);
}

void parity_run(const struct kr_matmul_kernels *k, const struct parity_weights *w, uint32_t g0,
                uint32_t g1, const struct parity_inputs *in, uint32_t r0, uint32_t r1, bool bias,
                float *out, size_t stride)
{
    bool q8 = kr_type_wants_q8(w->packed.type);
    kr_matmul(k, &w->packed, g0, g1, q8 ? &in->q : NULL, q8 ? NULL : in->x, in->stride, r0, r1,
              bias ? w->bias : NULL, out, stride);
}
