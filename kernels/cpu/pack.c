/* Packs tensors into groups of 16 interleaved rows; sizes of quantised activations.
 * Pure but for the memory given; the layout is described in pack.h. */
#include "kernels/cpu/pack.h"

#include "kernels/half.h"

const struct kr_layout *kr_layout(enum kr_type type)
{
    static const struct kr_layout f32 = {32, KR_HDR_NONE, 0, 1, 0, 0};
    static const struct kr_layout f16 = {16, KR_HDR_NONE, 0, 1, 0, 0};
    static const struct kr_layout q4_0 = {4, KR_HDR_D, 3, 1, 32, 256};
    static const struct kr_layout q4_1 = {4, KR_HDR_DM, 0, 1, 64, 256};
    static const struct kr_layout q5_0 = {5, KR_HDR_D, 4, 1, 32, 320};
    static const struct kr_layout q5_1 = {5, KR_HDR_DM, 0, 1, 64, 320};
    static const struct kr_layout q8_0 = {8, KR_HDR_D, 7, 1, 32, 512};
    static const struct kr_layout q2_k = {2, KR_HDR_K2, 0, 8, 320, 128};
    static const struct kr_layout q3_k = {3, KR_HDR_K6, 5, 8, 320, 192};
    static const struct kr_layout q4_k = {4, KR_HDR_K, 0, 8, 320, 256};
    static const struct kr_layout q5_k = {5, KR_HDR_K, 0, 8, 320, 320};
    static const struct kr_layout q6_k = {6, KR_HDR_K6, 5, 8, 320, 384};
    static const struct kr_layout iq4_nl = {KR_BITS_IQ4, KR_HDR_D, 7, 1, 32, 256};
    static const struct kr_layout iq3_s = {KR_BITS_ODD, KR_HDR_KX, 4, 8, 160, 256};
    static const struct kr_layout iq4_xs = {KR_BITS_IQ4, KR_HDR_KX, 7, 8, 160, 256};
    static const struct kr_layout tq = {2, KR_HDR_T, 3, 8, 32, 128};
    static const struct kr_layout mxfp4 = {KR_BITS_FP4, KR_HDR_E, 4, 1, 16, 256};
    switch (type) {
    case KR_F32:
        return &f32;
    case KR_F16:
    case KR_BF16:
        return &f16;
    case KR_Q4_0:
        return &q4_0;
    case KR_Q4_1:
        return &q4_1;
    case KR_Q5_0:
        return &q5_0;
    case KR_Q5_1:
        return &q5_1;
    case KR_Q8_0:
        return &q8_0;
    case KR_Q2_K:
        return &q2_k;
    case KR_Q3_K:
        return &q3_k;
    case KR_Q4_K:
        return &q4_k;
    case KR_Q5_K:
        return &q5_k;
    case KR_Q6_K:
        return &q6_k;
    case KR_IQ4_NL:
        return &iq4_nl;
    case KR_IQ3_S:
        return &iq3_s;
    case KR_IQ4_XS:
        return &iq4_xs;
    case KR_TQ1_0:
    case KR_TQ2_0:
        return &tq;
    case KR_MXFP4:
        return &mxfp4;
    }
    cn_assert(!"a type without a packed layout");
}

bool kr_type_wants_q8(enum kr_type type)
{
    return kr_layout(type)->header != KR_HDR_NONE;
}

uint64_t kr_packed_bytes(enum kr_type type, uint32_t rows, uint32_t cols)
{
    uint64_t groups = ((uint64_t)rows + KR_PACK_ROWS - 1) / KR_PACK_ROWS;
    return groups * kr_group_bytes(kr_layout(type), cols);
}

uint64_t kr_group_range_bytes(const struct kr_packed *w, uint32_t g0, uint32_t g1)
{
    return (uint64_t)(g1 - g0) * kr_group_bytes(kr_layout(w->type), w->cols);
}

/* Bit `bit` of the row's quants, one of word i in bit i of four bytes. */
static void put_one_bit(uint8_t *p, const uint8_t q[KR_SUB], int bit)
{
    uint32_t v = 0;
    for (int i = 0; i < 8; i++)
        v |= (cn_load32(q + 4 * i) >> bit & 0x01010101u) << i;
    memcpy(p, &v, sizeof v);
}

/* Bits `bit` and `bit` + 1: words 0..3 in one vector, 4..7 in the next. */
static void put_two_bits(uint8_t *p, const uint8_t q[KR_SUB], int bit)
{
    for (int i = 0; i < 2; i++) {
        uint32_t v = 0;
        for (int f = 0; f < 4; f++)
            v |= (cn_load32(q + 16 * i + 4 * f) >> bit & 0x03030303u) << 2 * f;
        memcpy(p + 64 * i, &v, sizeof v);
    }
}

/* One row's 32 quants into the block of its group; lane is the row in the group. */
static void put_quants(const struct kr_layout *l, uint8_t *block, uint32_t lane,
                       const uint8_t q[KR_SUB])
{
    uint8_t *p = block + 4 * lane;
    switch (l->bits) {
    case 8:
        for (int i = 0; i < 8; i++)
            memcpy(p + 64 * i, q + 4 * i, 4);
        return;
    case 2:
        put_two_bits(p, q, 0);
        return;
    case 3:
        put_one_bit(p, q, 2);
        put_two_bits(p + 64, q, 0);
        return;
    case 5:
        put_one_bit(p, q, 4);
        p += 64;
        break;
    case 6:
        put_two_bits(p, q, 4);
        p += 128;
        break;
    }
    for (int k = 0; k < 4; k++) {
        uint32_t v =
            (cn_load32(q + 4 * k) & 0x0f0f0f0fu) | (cn_load32(q + 4 * k + 16) & 0x0f0f0f0fu) << 4;
        memcpy(p + 64 * k, &v, sizeof v);
    }
}

/* One row's scales, from a block of the file into the header of its group. */
static void put_header(enum kr_type type, const struct kr_layout *l, uint8_t *header, uint32_t lane,
                       const uint8_t *block)
{
    const uint8_t *at = block + kr_block_d_at(type);
    switch (l->header) {
    case KR_HDR_DM:
    case KR_HDR_K:
    case KR_HDR_K2:
        memcpy(header + 2 * lane, at, 2);
        memcpy(header + 32 + 2 * lane, at + 2, 2);
        break;
    case KR_HDR_D:
    case KR_HDR_KX:
    case KR_HDR_T:
        memcpy(header + 2 * lane, at, 2);
        break;
    case KR_HDR_K6: {
        float d = kr_f16_f32(kr_load_u16(at)) * (l->bits == 3 ? KR_EIGHTH : 1);
        memcpy(header + 4 * lane, &d, 4);
        break;
    }
    case KR_HDR_E:
        header[lane] = (uint8_t)(kr_f32_bits(kr_block_e8m0_half(block[0])) >> 23);
        break;
    }
}

/* The integer scales of a sub of one row: s is at the sub's in its group's header. */
static void put_sub_scales(enum kr_type type, const struct kr_layout *l, uint8_t *s, uint32_t lane,
                           const uint8_t *block, uint32_t sub)
{
    switch (l->header) {
    case KR_HDR_K:
        kr_block_k_scale(block, sub, s + lane, s + 16 + lane);
        break;
    case KR_HDR_K6:
        for (uint32_t h = 0; h < 2; h++)
            s[16 * h + lane] = (uint8_t)kr_block_scale(type, block, 2 * sub + h);
        break;
    case KR_HDR_K2:
        for (uint32_t h = 0; h < 2; h++)
            s[2 * lane + h] = (uint8_t)kr_block_scale(type, block, 2 * sub + h);
        break;
    case KR_HDR_KX:
        s[lane] = (uint8_t)kr_block_scale(type, block, sub);
        break;
    }
}

/* Blocks [b0, b1) of a row; src is at the first. */
static void pack_quantised_run(const struct kr_packed *w, uint8_t *group, uint32_t lane,
                               uint32_t b0, uint32_t b1, const uint8_t *src)
{
    const struct kr_layout *l = kr_layout(w->type);
    const struct kr_type_info *info = kr_type_info(w->type);
    uint8_t *quants = group + kr_header_plane_bytes(l, w->cols);
    uint32_t subs = info->block_elems / KR_SUB;
    for (uint32_t b = b0; b < b1; b += subs, src += info->block_bytes) {
        uint8_t *header = group + kr_header_at(l, b);
        put_header(w->type, l, header, lane, src);
        for (uint32_t sub = 0; sub < subs; sub++) {
            uint8_t q[KR_SUB], *scales = header + kr_sub_scales_at(l, sub);
            put_sub_scales(w->type, l, scales, lane, src, sub);
            kr_block_quants(w->type, src, sub, q);
            put_quants(l, quants + (size_t)(b + sub) * l->quant_bytes, lane, q);
        }
    }
}

/* Runs of columns keep the lines that all the rows write to in the cache. */
static void pack_quantised_group(const struct kr_packed *w, uint32_t rows, uint8_t *group,
                                 const uint8_t *src)
{
    const struct kr_type_info *info = kr_type_info(w->type);
    const uint32_t blocks = w->cols / KR_SUB, run = 8, subs = info->block_elems / KR_SUB;
    const size_t row_bytes = (size_t)blocks / subs * info->block_bytes;
    for (uint32_t b = 0; b < blocks; b += run)
        for (uint32_t lane = 0; lane < rows; lane++)
            pack_quantised_run(w, group, lane, b, CN_MIN(b + run, blocks),
                               src + lane * row_bytes + (size_t)b / subs * info->block_bytes);
}

/* Rows past the last one are left as they are: zero. Runs of columns keep the lines that all the
 * rows write to in the cache. */
static void pack_float_group(uint32_t elem_bytes, uint32_t rows, uint32_t cols, uint8_t *group,
                             const uint8_t *src)
{
    const uint32_t run = 128;
    for (uint32_t c0 = 0; c0 < cols; c0 += run)
        for (uint32_t lane = 0; lane < rows; lane++) {
            uint32_t n = CN_MIN(cols - c0, run);
            const uint8_t *from = src + ((size_t)lane * cols + c0) * elem_bytes;
            uint8_t *to = group + ((size_t)c0 * KR_PACK_ROWS + lane) * elem_bytes;
            if (elem_bytes == 2) {
                for (uint32_t c = 0; c < n; c++)
                    memcpy(to + 32 * c, from + 2 * c, 2);
            } else {
                for (uint32_t c = 0; c < n; c++)
                    memcpy(to + 64 * c, from + 4 * c, 4);
            }
        }
}

/* What no row is written to: the ends of the planes, or lanes without a row. */
static void clear(const struct kr_layout *l, uint32_t cols, uint32_t rows, uint8_t *group)
{
    size_t headers = l->header == KR_HDR_NONE ? 0 : kr_header_plane_bytes(l, cols);
    size_t bytes = kr_group_bytes(l, cols);
    if (!bytes) return;
    if (rows < KR_PACK_ROWS) {
        memset(group, 0, bytes);
        return;
    }
    if (headers) memset(group + headers - 64, 0, 64);
    memset(group + bytes - 64, 0, 64);
}

void kr_pack(const struct kr_packed *w, const void *src, uint32_t g0, uint32_t g1)
{
    const struct kr_layout *l = kr_layout(w->type);
    const struct kr_type_info *info = kr_type_info(w->type);
    size_t row_bytes = (size_t)w->cols / info->block_elems * info->block_bytes;
    size_t group_bytes = kr_group_bytes(l, w->cols);
    cn_assert(w->cols % info->block_elems == 0);
    for (uint32_t g = g0; g < g1; g++) {
        uint8_t *group = (uint8_t *)w->data + g * group_bytes;
        const uint8_t *first = (const uint8_t *)src + (size_t)g * KR_PACK_ROWS * row_bytes;
        uint32_t rows = CN_MIN(w->rows - g * KR_PACK_ROWS, (uint32_t)KR_PACK_ROWS);
        clear(l, w->cols, rows, group);
        if (l->header == KR_HDR_NONE) {
            pack_float_group(info->block_bytes, rows, w->cols, group, first);
        } else {
            pack_quantised_group(w, rows, group, first);
        }
    }
}

static uint32_t q8_stride(uint32_t cols)
{
    return (uint32_t)(((uint64_t)cols + KR_SUB - 1) / KR_SUB) | 1;
}

uint64_t kr_q8_bytes(uint32_t n, uint32_t cols)
{
    return (uint64_t)n * q8_stride(cols) * sizeof(struct kr_q8_block);
}

void kr_q8_place(struct kr_q8 *q, void *mem, uint32_t n, uint32_t cols)
{
    _Static_assert(sizeof(struct kr_q8_block) == 64, "one cache line");
    q->n = n;
    q->cols = cols;
    q->stride = q8_stride(cols);
    q->blocks = mem;
}
