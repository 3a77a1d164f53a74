/* NEON: quantised products of a range of row groups and input rows. Pure but for the outputs.
 * Input rows meet the packed weights directly, unpacked in registers; many of them may meet a panel
 * that a group was unpacked to once. */
#include "kernels/cpu/neon/tile.h"
#include "kernels/cpu/panels.inc"
#include "kernels/cpu/row_tiles.inc"

/* From how many input rows on a panel pays, but for types that take next to nothing to unpack. */
#define PANEL_MIN_ROWS 9

#define TILE(name, bits, header, panel, R)                                                         \
    static void name##_##R(const struct tile *t)                                                   \
    {                                                                                              \
        tile_run(t, bits, header, panel, R);                                                       \
    }
/* clang-format off */
#define TILES(name, bits, header, panel)                                                           \
    TILE(name, bits, header, panel, 1) TILE(name, bits, header, panel, 2)                          \
    TILE(name, bits, header, panel, 3) TILE(name, bits, header, panel, 4)                          \
    static const struct tile_set name = {{name##_1, name##_2, name##_3, name##_4}};
/* clang-format on */

#define DIRECT(name, bits, header) TILES(name, bits, header, false)
EACH_PACKING(DIRECT)
TILES(panel_d, 8, KR_HDR_D, true)
TILES(panel_dm, 8, KR_HDR_DM, true)
TILES(panel_k2, 8, KR_HDR_K2, true)
TILES(panel_k6, 8, KR_HDR_K6, true)

ALWAYS_INLINE void unpack_blocks(const uint8_t *headers, const uint8_t *quants, uint32_t blocks,
                                 const int bits, const int header, uint8_t *panel)
{
    for (uint32_t b = 0; b < blocks; b++, quants += bits % 16 * 64, panel += panel_bytes(header)) {
        float *scales = (float *)(void *)(panel + 512);
        UNROLL for (int v = 0; v < 4; v++) {
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

UNPACK_MOST

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

static void run_rows(const struct kind *k, bool panel, struct tile *t, uint32_t rows)
{
    const struct tile_set *set = panel ? k->panel : k->direct;
    const uint32_t ahead = t->ahead_bytes * (panel ? 1 : t->blocks);
    const struct kr_q8_block *x = t->x;
    float *out = t->out;
    for (uint32_t n; rows; rows -= n) {
        n = tile_rows(k, panel, rows);
        for (uint32_t at = 0; panel && at < t->ahead_bytes; at += 64)
            __builtin_prefetch(t->ahead + at);
        set->fn[n - 1](t);
        pass_rows(t, n);
        t->ahead += ahead;
    }
    t->x = x;
    t->out = out;
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
    const uint32_t rows = r1 - r0, blocks = w->cols / KR_SUB;
    const bool panel = k->panel && rows >= k->panel_rows && blocks;
    struct tile t = {
        .blocks = blocks,
        .x = q->blocks + (size_t)r0 * q->stride,
        .x_stride = q->stride,
        .out_stride = out_stride,
        .ahead_bytes = ahead_bytes(blocks, group_bytes, panel, rows),
    };

    run_panel_groups(k, w, g0, g1, &t, panel, r0, rows, bias, out);
}

void kr_neon_quants(struct kind k, const struct kr_packed *w, uint32_t g0, uint32_t g1,
                    const struct kr_q8 *q, uint32_t r0, uint32_t r1, const float *bias, float *out,
                    size_t out_stride)
{
    const uint32_t run = x_run_rows(q);
    for (uint32_t r = r0; r < r1; r += run)
        run_groups(&k, w, g0, g1, q, r, r1 - r > run ? r + run : r1, bias, out, out_stride);
}
