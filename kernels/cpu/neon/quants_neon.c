/* NEON: quantised products of a range of row groups and input rows. Pure but for the outputs.
 * Input rows meet the packed weights directly, unpacked in registers; many of them may meet a panel
 * that a group was unpacked to once. */
#include "kernels/cpu/neon/tile.h"

/* From how many input rows on a panel pays, but for types that take next to nothing to unpack. */
#define PANEL_MIN_ROWS 9
/* Input rows go in runs that stay in the second-level cache while the weights pass. */
#define X_RUN_BYTES    (256 << 10)
#define X_RUN_MIN_ROWS 64

#define TILE(name, bits, header, panel, R)                                                         \
    static void name##_##R(const struct tile *t)                                                   \
    {                                                                                              \
        tile_run(t, bits, header, panel, R);                                                       \
    }
#define TILES(name, bits, header, panel)                                                           \
    TILE(name, bits, header, panel, 1) TILE(name, bits, header, panel, 2)                          \
    TILE(name, bits, header, panel, 3) TILE(name, bits, header, panel, 4)                          \
    static const struct tile_set name = {{name##_1, name##_2, name##_3, name##_4}};

TILES(q4_d, 4, KR_HDR_D, false)
TILES(q4_dm, 4, KR_HDR_DM, false)
TILES(q5_d, 5, KR_HDR_D, false)
TILES(q5_dm, 5, KR_HDR_DM, false)
TILES(q8_d, 8, KR_HDR_D, false)
TILES(q4_k, 4, KR_HDR_K, false)
TILES(q5_k, 5, KR_HDR_K, false)
TILES(q6_k, 6, KR_HDR_K6, false)
TILES(q2_k, 2, KR_HDR_K2, false)
TILES(q3_k, 3, KR_HDR_K6, false)
TILES(tq_t, 2, KR_HDR_T, false)
TILES(iq4_d, KR_BITS_IQ4, KR_HDR_D, false)
TILES(iq4_kx, KR_BITS_IQ4, KR_HDR_KX, false)
TILES(odd_kx, KR_BITS_ODD, KR_HDR_KX, false)
TILES(fp4_e, KR_BITS_FP4, KR_HDR_E, false)
TILES(panel_d, 8, KR_HDR_D, true)
TILES(panel_dm, 8, KR_HDR_DM, true)
TILES(panel_k2, 8, KR_HDR_K2, true)
TILES(panel_k6, 8, KR_HDR_K6, true)

ALWAYS_INLINE void unpack_blocks(const uint8_t *headers, const uint8_t *quants, uint32_t blocks,
                                 const int bits, const int header, uint8_t *panel)
{
    for (uint32_t b = 0; b < blocks; b++, quants += bits % 16 * 64, panel += panel_bytes(header)) {
        float *scales = (float *)(void *)(panel + 512);
        UNROLL for (int v = 0; v < 4; v++)
        {
            float32x4_t s0, s1 = vdupq_n_f32(0);
            tile_scales(headers, header, b, v, &s0, &s1);
            vst1q_f32(scales + 4 * v, s0);
            vst1q_f32(scales + 16 + 4 * v, s1);
            if (header == KR_HDR_K2) {
                int16x8_t mins = tile_half_mins(headers, b, v, &s0);
                vst1q_f32(scales + 32 + 4 * v, s0);
                vst1q_u8(panel + 704 + 16 * v, vreinterpretq_u8_s16(mins));
            }
            UNROLL for (int i = 0; i < 8; i++)
                vst1q_s8((int8_t *)panel + 128 * v + 16 * i,
                         panel_word(quants, bits, header, i, v));
        }
    }
}

#define UNPACK(name, bits, header)                                                                 \
    static void name(const uint8_t *headers, const uint8_t *quants, uint32_t blocks,               \
                     uint8_t *panel)                                                               \
    {                                                                                              \
        unpack_blocks(headers, quants, blocks, bits, header, panel);                               \
    }
UNPACK(unpack5_d, 5, KR_HDR_D)
UNPACK(unpack5_dm, 5, KR_HDR_DM)
UNPACK(unpack4_k, 4, KR_HDR_K)
UNPACK(unpack5_k, 5, KR_HDR_K)
UNPACK(unpack6_k, 6, KR_HDR_K6)
UNPACK(unpack2_k, 2, KR_HDR_K2)
UNPACK(unpack3_k, 3, KR_HDR_K6)
UNPACK(unpack_tq, 2, KR_HDR_T)
UNPACK(unpack_odd, KR_BITS_ODD, KR_HDR_KX)
UNPACK(unpack_iq4_kx, KR_BITS_IQ4, KR_HDR_KX)

static struct kind always_direct(const struct tile_set *set)
{
    return (struct kind){.direct = set};
}

static struct kind with_panel(const struct tile_set *set, const struct tile_set *panel,
                              unpack_fn *unpack)
{
    return (struct kind){set, panel, unpack, PANEL_MIN_ROWS, false};
}

struct kind kr_neon_kind(enum kr_type type)
{
    switch (type) {
    case KR_Q4_0:
        return always_direct(&q4_d);
    case KR_Q4_1:
        return always_direct(&q4_dm);
    case KR_Q5_0:
        return with_panel(&q5_d, &panel_d, unpack5_d);
    case KR_Q5_1:
        return with_panel(&q5_dm, &panel_dm, unpack5_dm);
    case KR_Q8_0:
        return always_direct(&q8_d);
    case KR_Q2_K:
        return with_panel(&q2_k, &panel_k2, unpack2_k);
    case KR_Q3_K:
        return with_panel(&q3_k, &panel_k6, unpack3_k);
    case KR_Q4_K:
        return with_panel(&q4_k, &panel_dm, unpack4_k);
    case KR_Q5_K:
        return with_panel(&q5_k, &panel_dm, unpack5_k);
    case KR_IQ4_NL:
        return always_direct(&iq4_d);
    case KR_IQ3_S:
        return with_panel(&odd_kx, &panel_d, unpack_odd);
    case KR_IQ4_XS:
        return with_panel(&iq4_kx, &panel_d, unpack_iq4_kx);
    case KR_TQ1_0:
    case KR_TQ2_0:
        return with_panel(&tq_t, &panel_d, unpack_tq);
    case KR_MXFP4:
        return always_direct(&fp4_e);
    default:
        return with_panel(&q6_k, &panel_k6, unpack6_k);
    }
}

/* ---- runs of rows and groups ----------------------------------------------------------------- */

/* In tiles as equal as can be, so that no row count falls off; of pairs: in whole ones but the
 * last. */
static uint32_t tile_rows(const struct kind *k, bool panel, uint32_t rows)
{
    const uint32_t unit = panel && k->pairs ? 2 : 1;
    const uint32_t units = (rows + unit - 1) / unit, most = TILE_MAX_ROWS / unit;
    const uint32_t tiles = (units + most - 1) / most;
    return CN_MIN((units + tiles - 1) / tiles * unit, rows);
}

static uint32_t row_tiles(uint32_t rows)
{
    return (rows + TILE_MAX_ROWS - 1) / TILE_MAX_ROWS;
}

/* Leaves t as it found it, but for `ahead`, which it moves past what was fetched. */
static void run_rows(const struct kind *k, bool panel, struct tile *t, uint32_t rows)
{
    const struct tile_set *set = panel ? k->panel : k->direct;
    const uint32_t ahead = t->ahead_bytes * (panel ? 1 : t->blocks);
    const struct kr_q8_block *x = t->x;
    float *out = t->out;
    for (uint32_t r = 0, n; r < rows; r += n) {
        n = tile_rows(k, panel, rows - r);
        t->x = x + r * t->x_stride;
        t->out = out + r * t->out_stride;
        for (uint32_t at = 0; panel && at < t->ahead_bytes; at += 64)
            __builtin_prefetch(t->ahead + at);
        set->fn[n - 1](t);
        t->ahead += ahead;
    }
    t->x = x;
    t->out = out;
}

static void run_panels(const struct kind *k, const struct kr_layout *l, const struct tile *whole,
                       uint32_t rows)
{
    _Alignas(64) uint8_t panel[PANEL_BLOCKS * PANEL_MAX_BYTES];
    struct tile t = *whole;

    t.quants = panel;
    for (uint32_t b = 0; b < whole->blocks; b += t.blocks) {
        t.blocks = CN_MIN(whole->blocks - b, (uint32_t)PANEL_BLOCKS);
        t.x = whole->x + b;
        t.resume = b > 0;
        t.bias = b + t.blocks == whole->blocks ? whole->bias : NULL;
        k->unpack(whole->headers + kr_header_at(l, b), whole->quants + (size_t)b * l->quant_bytes,
                  t.blocks, panel);
        run_rows(k, true, &t, rows);
    }
}

/* Several tiles over the same group: only the first meets weights that are not in the cache, and
 * would wait for memory that is idle later. So each of them fetches its part of the next group. */
static uint32_t ahead_bytes(uint32_t blocks, size_t group_bytes, bool panel, uint32_t rows)
{
    uint32_t parts = row_tiles(rows);
    if (parts == 1 || !blocks) return 0;
    parts *= panel ? (blocks - 1) / PANEL_BLOCKS + 1 : blocks;
    return (uint32_t)(group_bytes / parts + 63) / 64 * 64;
}

static void run_groups(const struct kind *k, const struct kr_packed *w, uint32_t g0, uint32_t g1,
                       const struct kr_q8 *q, uint32_t r0, uint32_t r1, const float *bias,
                       float *out, size_t out_stride)
{
    const struct kr_layout *l = kr_layout(w->type);
    const size_t group_bytes = kr_group_bytes(l, w->cols);
    const size_t header_bytes = kr_header_plane_bytes(l, w->cols);
    const uint32_t rows = r1 - r0, blocks = w->cols / KR_SUB;
    const bool panel = k->panel && rows >= k->panel_min_rows && blocks;
    struct tile t = {
        .blocks = blocks,
        .x = q->blocks + (size_t)r0 * q->stride,
        .x_stride = q->stride,
        .out_stride = out_stride,
        .ahead_bytes = ahead_bytes(blocks, group_bytes, panel, rows),
    };

    for (uint32_t g = g0; g < g1; g++) { /* what does not change is set once, above */
        const uint32_t first = g * KR_PACK_ROWS;
        t.headers = (const uint8_t *)w->data + g * group_bytes;
        t.quants = t.headers + header_bytes;
        t.ahead = t.headers + group_bytes;
        t.out = out + r0 * out_stride + first;
        t.lanes = CN_MIN(w->rows - first, (uint32_t)KR_PACK_ROWS);
        t.bias = bias ? bias + first : NULL;
        if (panel) run_panels(k, l, &t, rows);
        else run_rows(k, false, &t, rows);
    }
}

void kr_neon_quants(struct kind k, const struct kr_packed *w, uint32_t g0, uint32_t g1,
                    const struct kr_q8 *q, uint32_t r0, uint32_t r1, const float *bias, float *out,
                    size_t out_stride)
{
    uint64_t row_bytes = (uint64_t)q->stride * sizeof(struct kr_q8_block);
    uint32_t run = (uint32_t)CN_MAX(X_RUN_BYTES / row_bytes, (uint64_t)X_RUN_MIN_ROWS);
    for (uint32_t r = r0; r < r1; r += run)
        run_groups(&k, w, g0, g1, q, r, r1 - r > run ? r + run : r1, bias, out, out_stride);
}
