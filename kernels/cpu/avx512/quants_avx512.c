/* AVX-512 VNNI: quantised products of a range of row groups and input rows.
 * Pure but for the outputs. Few input rows meet the packed weights directly, unpacked in registers;
 * of more the first tile leaves what it unpacked in a panel, which the other tiles meet. Both add
 * up in the same order, so the choice may depend on the number of rows. */
#include "kernels/cpu/avx512/matmul_avx512.h"
#include "kernels/cpu/avx512/tile.h"
#include "kernels/cpu/row_tiles.inc"

#define PANEL_BLOCKS 20 /* 25 KiB, half of a first-level cache; of K2 30 */
/* Input rows go in runs that stay in the second-level cache while the weights pass. */
#define X_RUN_BYTES    (768 << 10)
#define X_RUN_MIN_ROWS 96

#define TILE(name, bits, header, kind, G, R)                                                       \
    static void name##_##G##_##R(const struct tile *t)                                             \
    {                                                                                              \
        tile_run(t, bits, header, kind, G, R);                                                     \
    }
#if TILE_MAX_ROWS == 7
/* clang-format off */
#define TILE_ROWS(name, bits, header, kind, G)                                                     \
    TILE(name, bits, header, kind, G, 1) TILE(name, bits, header, kind, G, 2)                      \
    TILE(name, bits, header, kind, G, 3) TILE(name, bits, header, kind, G, 4)                      \
    TILE(name, bits, header, kind, G, 5) TILE(name, bits, header, kind, G, 6)                      \
    TILE(name, bits, header, kind, G, 7)
/* clang-format on */
#define TILE_LIST(name, G)                                                                         \
    {name##_##G##_1, name##_##G##_2, name##_##G##_3, name##_##G##_4,                               \
     name##_##G##_5, name##_##G##_6, name##_##G##_7}
/* The first of several tiles as equal as can be has more than half of the most rows. */
/* clang-format off */
#define TILE_TALL(name, bits, header, kind, G)                                                     \
    TILE(name, bits, header, kind, G, 4) TILE(name, bits, header, kind, G, 5)                      \
    TILE(name, bits, header, kind, G, 6) TILE(name, bits, header, kind, G, 7)
/* clang-format on */
#define TILE_TALL_LIST(name, G)                                                                    \
    {NULL, NULL, NULL, name##_##G##_4, name##_##G##_5, name##_##G##_6, name##_##G##_7}
#else
#define TILE_ROWS(name, bits, header, kind, G)                                                     \
    TILE(name, bits, header, kind, G, 1) TILE(name, bits, header, kind, G, 2)
#define TILE_LIST(name, G)                     {name##_##G##_1, name##_##G##_2}
#define TILE_TALL(name, bits, header, kind, G) TILE(name, bits, header, kind, G, 2)
#define TILE_TALL_LIST(name, G)                {NULL, name##_##G##_2}
#endif

/* Tiles of a kind: [groups - 1][rows - 1]. */
struct tile_set { tile_fn *fn[TILE_MAX_GROUPS][TILE_MAX_ROWS]; };
/* clang-format off */
#define PANEL_TILES(name, header)                                                                  \
    TILE_ROWS(name, 8, header, TILE_PANEL, 1)                                                      \
    TILE_ROWS(name, 8, header, TILE_PANEL, 2)                                                      \
    static const struct tile_set name = {{TILE_LIST(name, 1), TILE_LIST(name, 2)}};
/* clang-format on */

/* The tiles that meet packed weights. */
struct packed_tiles {
    struct tile_set direct, makes;
    const struct tile_set *panel; /* NULL: none, as quants of 8 bits need none */
};
/* clang-format off */
#define PACKED_TILES(name, bits, header, panel)                                                    \
    TILE_ROWS(name##_direct, bits, header, TILE_DIRECT, 1)                                         \
    TILE_ROWS(name##_direct, bits, header, TILE_DIRECT, 2)                                         \
    TILE_TALL(name##_makes, bits, header, TILE_MAKES, 1)                                           \
    TILE_TALL(name##_makes, bits, header, TILE_MAKES, 2)                                           \
    static const struct packed_tiles name = {                                                      \
        {{TILE_LIST(name##_direct, 1), TILE_LIST(name##_direct, 2)}},                              \
        {{TILE_TALL_LIST(name##_makes, 1), TILE_TALL_LIST(name##_makes, 2)}},                      \
        &panel,                                                                                    \
    };
/* clang-format on */

PANEL_TILES(panel_d, PANEL_D)
PANEL_TILES(panel_dm, PANEL_DM)
PANEL_TILES(panel_k6, PANEL_K6)
PANEL_TILES(panel_k2, PANEL_K2)
PACKED_TILES(q4_d, 4, KR_HDR_D, panel_d)
PACKED_TILES(q4_dm, 4, KR_HDR_DM, panel_dm)
PACKED_TILES(q5_d, 5, KR_HDR_D, panel_d)
PACKED_TILES(q5_dm, 5, KR_HDR_DM, panel_dm)
PACKED_TILES(q4_k, 4, KR_HDR_K, panel_dm)
PACKED_TILES(q5_k, 5, KR_HDR_K, panel_dm)
PACKED_TILES(q6_k, 6, KR_HDR_K6, panel_k6)
PACKED_TILES(q2_k, 2, KR_HDR_K2, panel_k2)
PACKED_TILES(q3_k, 3, KR_HDR_K6, panel_k6)
PACKED_TILES(tq_t, 2, KR_HDR_T, panel_d)
PACKED_TILES(iq4_d, KR_BITS_IQ4, KR_HDR_D, panel_d)
PACKED_TILES(iq4_kx, KR_BITS_IQ4, KR_HDR_KX, panel_d)
PACKED_TILES(odd_kx, KR_BITS_ODD, KR_HDR_KX, panel_d)
PACKED_TILES(fp4_e, KR_BITS_FP4, KR_HDR_E, panel_d)
TILE_ROWS(q8_d, 8, KR_HDR_D, TILE_DIRECT, 1)
TILE_ROWS(q8_d, 8, KR_HDR_D, TILE_DIRECT, 2)
static const struct packed_tiles q8_d = {.direct = {{TILE_LIST(q8_d, 1), TILE_LIST(q8_d, 2)}}};

static const struct packed_tiles *packed_tiles(enum kr_type type)
{
    static const struct packed_tiles *const of[] = {
        [KR_Q4_0] = &q4_d,     [KR_Q4_1] = &q4_dm, [KR_Q5_0] = &q5_d,    [KR_Q5_1] = &q5_dm,
        [KR_Q8_0] = &q8_d,     [KR_Q2_K] = &q2_k,  [KR_Q3_K] = &q3_k,    [KR_Q4_K] = &q4_k,
        [KR_Q5_K] = &q5_k,     [KR_Q6_K] = &q6_k,  [KR_IQ4_NL] = &iq4_d, [KR_IQ3_S] = &odd_kx,
        [KR_IQ4_XS] = &iq4_kx, [KR_TQ1_0] = &tq_t, [KR_TQ2_0] = &tq_t,   [KR_MXFP4] = &fp4_e,
    };
    return of[type];
}

/* Runs the tiles of input rows. The first tile is one of `first`; the others read the weights that
 * it leaves for them at `quants`. Leaves t as it found it except for `ahead`, which it moves past
 * what was fetched. */
static void run_rows(const struct tile_set *first, const struct tile_set *others,
                     const uint8_t *const *quants, uint32_t groups, struct tile *t, uint32_t rows)
{
    const struct tile_set *set = first;
    const uint8_t *const packed[] = {t->quants[0], t->quants[1]};
    const struct kr_q8_block *x = t->x;
    float *out = t->out;
    for (uint32_t tiles = row_tiles(rows), n; tiles; tiles--, rows -= n, set = others) {
        n = next_tile_rows(rows, tiles);
        set->fn[groups - 1][n - 1](t);
        pass_rows(t, n);
        t->quants[0] = quants[0];
        t->quants[1] = quants[1];
        t->ahead += (size_t)t->ahead_bytes * t->blocks;
    }
    t->quants[0] = packed[0];
    t->quants[1] = packed[1];
    t->x = x;
    t->out = out;
}

/* How a row's blocks are cut into panels: as equal as can be, whole headers each. */
static uint32_t panel_blocks(const struct kr_layout *l, uint32_t blocks)
{
    const uint32_t unit = l->header_blocks, units = blocks / unit;
    uint32_t most = PANEL_BLOCKS / unit, panels = (units + most - 1) / most;
    return (units + panels - 1) / panels * unit;
}

/* A product of one or two groups: `t` holds the group's headers and quants from the first block. */
static void run_panels(const struct packed_tiles *tiles, const struct kr_layout *l, uint32_t groups,
                       struct tile t, uint32_t rows)
{
    _Alignas(64) uint8_t panel[PANEL_BLOCKS * TILE_MAX_GROUPS * PANEL_MAX_BYTES];
    const uint8_t *const in_panel[] = {panel, panel + panel_bytes(l->header)};
    const uint32_t blocks = t.blocks, each = panel_blocks(l, blocks);
    const struct kr_q8_block *x = t.x;
    const float *bias = t.bias;

    t.panel = panel;
    for (uint32_t b = 0; b < blocks; b += t.blocks) {
        t.blocks = CN_MIN(blocks - b, each);
        t.x = x + b;
        t.resume = b > 0;
        t.bias = b + t.blocks == blocks ? bias : NULL;
        run_rows(&tiles->makes, tiles->panel, in_panel, groups, &t, rows);
        for (uint32_t g = 0; g < groups; g++) {
            t.headers[g] += kr_header_at(l, t.blocks);
            t.quants[g] += (size_t)t.blocks * l->quant_bytes;
        }
    }
}

/* From how many input rows on a panel pays: measured. Plain nibbles are quickly taken apart. */
static uint32_t panel_from(const struct kr_layout *l)
{
    if (l->bits == 8) return UINT32_MAX;
    return l->bits == 4 ? 12 : 8;
}

/* Every tile fetches its part of the next groups: of several tiles over the same groups only the
 * first meets weights that are not in the cache, and would wait for memory that is idle later; and
 * what the processor fetches by itself stops at the end of each run of memory, four in a pair of
 * groups. */
static void set_ahead(struct tile *t, size_t group_bytes, const struct kr_packed *w, bool last)
{
    bool then = last && w->then;
    t->ahead = then ? w->then : t->headers[0] + TILE_MAX_GROUPS * group_bytes;
    t->ahead_other = then ? w->then_other : group_bytes;
    t->near_other = then ? 0 : group_bytes + (size_t)(t->quants[0] - t->headers[0]);
}

static void run_groups(const struct kr_packed *w, uint32_t g0, uint32_t g1, const struct kr_q8 *q,
                       uint32_t r0, uint32_t r1, const float *bias, float *out, size_t out_stride)
{
    const struct kr_layout *l = kr_layout(w->type);
    const struct packed_tiles *tiles = packed_tiles(w->type);
    const size_t group_bytes = kr_group_bytes(l, w->cols);
    const size_t header_bytes = kr_header_plane_bytes(l, w->cols);
    const uint32_t blocks = w->cols / KR_SUB, rows = r1 - r0;
    const bool panel = rows >= panel_from(l);
    struct tile t = {
        .blocks = blocks,
        .start_at = kr_q8_start_at(l),
        .x = q->blocks + (size_t)r0 * q->stride,
        .x_stride = q->stride,
        .out_stride = out_stride,
        .ahead_bytes = (uint32_t)(group_bytes / (row_tiles(rows) * blocks) + 3) / 4 * 4,
    };
    /* One row takes some 300 ns a pair of groups: what does not change is set outside. */
    for (uint32_t g = g0; g < g1; g += TILE_MAX_GROUPS) {
        uint32_t groups = CN_MIN(g1 - g, (uint32_t)TILE_MAX_GROUPS), first = g * KR_PACK_ROWS;
        t.out = out + r0 * out_stride + first;
        t.bias = bias ? bias + first : NULL;
        for (uint32_t i = 0; i < groups; i++) {
            uint32_t n = CN_MIN(w->rows - first - i * KR_PACK_ROWS, (uint32_t)KR_PACK_ROWS);
            t.headers[i] = (const uint8_t *)w->data + (g + i) * group_bytes;
            t.quants[i] = t.headers[i] + header_bytes;
            t.lanes[i] = (__mmask16)((1u << n) - 1);
        }
        set_ahead(&t, group_bytes, w, g + TILE_MAX_GROUPS >= g1);
        if (panel)
            run_panels(tiles, l, groups, t, rows);
        else
            run_rows(&tiles->direct, &tiles->direct, t.quants, groups, &t, rows);
    }
}

void kr_avx512_quants(const struct kr_packed *w, uint32_t g0, uint32_t g1, const struct kr_q8 *q,
                      uint32_t r0, uint32_t r1, const float *bias, float *out, size_t out_stride)
{
    uint64_t row_bytes = (uint64_t)q->stride * sizeof(struct kr_q8_block);
    uint32_t run = (uint32_t)CN_MAX(X_RUN_BYTES / row_bytes, (uint64_t)X_RUN_MIN_ROWS);
    uint32_t rows = r1 - r0, runs = (rows + run - 1) / run;
    for (uint32_t i = 0; i < runs; i++) { /* as equal as can be, like tiles in them */
        uint32_t from = r0 + (uint32_t)((uint64_t)rows * i / runs);
        uint32_t to = r0 + (uint32_t)((uint64_t)rows * (i + 1) / runs);
        run_groups(w, g0, g1, q, from, to, bias, out, out_stride);
    }
}
