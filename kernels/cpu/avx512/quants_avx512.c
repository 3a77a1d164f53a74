/* AVX-512 VNNI: quantised products of a range of row groups and input rows.
 * Pure but for the outputs. Few input rows meet the packed weights directly, unpacked in registers;
 * more of them meet a panel that two groups were unpacked to once. Both add up in the same order,
 * so the choice may depend on the number of rows. */
#include "kernels/cpu/avx512/matmul_avx512.h"
#include "kernels/cpu/avx512/tile.h"

#define PANEL_BLOCKS    32 /* 40 KiB, most of a first-level cache; of K2 48 */
/* Input rows go in runs that stay in the second-level cache while the weights pass. */
#define X_RUN_BYTES    (768 << 10)
#define X_RUN_MIN_ROWS 96

#define TILE(name, bits, header, G, R)                                                             \
    static void name##_##G##_##R(const struct tile *t)                                             \
    {                                                                                              \
        tile_run(t, bits, header, G, R);                                                           \
    }
struct tile_set {
    tile_fn *fn[TILE_MAX_GROUPS][TILE_MAX_ROWS];
};

/* All the tiles of a kind, and their table: [groups - 1][rows - 1]. */
#if TILE_MAX_ROWS == 6
#define TILES(name, bits, header)                                                                  \
    TILE(name, bits, header, 1, 1) TILE(name, bits, header, 1, 2)                                  \
    TILE(name, bits, header, 1, 3) TILE(name, bits, header, 1, 4)                                  \
    TILE(name, bits, header, 1, 5) TILE(name, bits, header, 1, 6)                                  \
    TILE(name, bits, header, 2, 1) TILE(name, bits, header, 2, 2)                                  \
    TILE(name, bits, header, 2, 3) TILE(name, bits, header, 2, 4)                                  \
    TILE(name, bits, header, 2, 5) TILE(name, bits, header, 2, 6)                                  \
    static const struct tile_set name = {{                                                         \
        {name##_1_1, name##_1_2, name##_1_3, name##_1_4, name##_1_5, name##_1_6},                  \
        {name##_2_1, name##_2_2, name##_2_3, name##_2_4, name##_2_5, name##_2_6},                  \
    }};
#else
#define TILES(name, bits, header)                                                                  \
    TILE(name, bits, header, 1, 1) TILE(name, bits, header, 1, 2)                                  \
    TILE(name, bits, header, 2, 1) TILE(name, bits, header, 2, 2)                                  \
    static const struct tile_set name = {{                                                         \
        {name##_1_1, name##_1_2},                                                                  \
        {name##_2_1, name##_2_2},                                                                  \
    }};
#endif

TILES(q4_d, 4, KR_HDR_D)
TILES(q4_dm, 4, KR_HDR_DM)
TILES(q5_d, 5, KR_HDR_D)
TILES(q5_dm, 5, KR_HDR_DM)
TILES(q8_d, 8, KR_HDR_D)
TILES(q4_k, 4, KR_HDR_K)
TILES(q5_k, 5, KR_HDR_K)
TILES(q6_k, 6, KR_HDR_K6)
TILES(q2_k, 2, KR_HDR_K2)
TILES(q3_k, 3, KR_HDR_K6)
TILES(tq_t, 2, KR_HDR_T)
TILES(iq4_d, KR_BITS_IQ4, KR_HDR_D)
TILES(iq4_kx, KR_BITS_IQ4, KR_HDR_KX)
TILES(odd_kx, KR_BITS_ODD, KR_HDR_KX)
TILES(fp4_e, KR_BITS_FP4, KR_HDR_E)
TILES(panel_d, 8, PANEL_D)
TILES(panel_dm, 8, PANEL_DM)
TILES(panel_k6, 8, PANEL_K6)
TILES(panel_k2, 8, PANEL_K2)

static const struct tile_set *direct_tiles(enum kr_type type)
{
    switch (type) {
    case KR_Q4_0:
        return &q4_d;
    case KR_Q4_1:
        return &q4_dm;
    case KR_Q5_0:
        return &q5_d;
    case KR_Q5_1:
        return &q5_dm;
    case KR_Q8_0:
        return &q8_d;
    case KR_Q2_K:
        return &q2_k;
    case KR_Q3_K:
        return &q3_k;
    case KR_Q4_K:
        return &q4_k;
    case KR_Q5_K:
        return &q5_k;
    case KR_IQ4_NL:
        return &iq4_d;
    case KR_IQ3_S:
        return &odd_kx;
    case KR_IQ4_XS:
        return &iq4_kx;
    case KR_TQ1_0:
    case KR_TQ2_0:
        return &tq_t;
    case KR_MXFP4:
        return &fp4_e;
    default:
        return &q6_k;
    }
}

static const struct tile_set *panel_tiles(const struct kr_layout *l)
{
    if (l->header == KR_HDR_DM || l->header == KR_HDR_K) return &panel_dm;
    if (l->header == KR_HDR_K2) return &panel_k2;
    return l->header == KR_HDR_K6 ? &panel_k6 : &panel_d;
}

ALWAYS_INLINE void unpack_blocks(const uint8_t *headers, const uint8_t *quants, uint32_t blocks,
                                 const int bits, const int header, uint8_t *panel)
{
    const size_t panel_step = TILE_MAX_GROUPS * panel_bytes(header);
    for (uint32_t b = 0; b < blocks; b++, quants += bits % 16 * 64, panel += panel_step) {
        __m512 s0, s1 = _mm512_setzero_ps();
        tile_scales(headers, header, b, &s0, &s1);
        _mm512_store_ps(panel + 512, s0);
        _mm512_store_ps(panel + 576, s1);
        if (header == KR_HDR_K2) {
            __m512i mins;
            tile_half_mins(headers, b, &mins, &s0);
            _mm512_store_ps(panel + 640, s0);
            _mm512_store_si512(panel + 704, mins);
        }
        UNROLL for (int k = 0; k < 4; k++)
        {
            __m512i low, high;
            tile_words(quants, bits, k, &low, &high);
            _mm512_store_si512(panel + 64 * k, low);
            _mm512_store_si512(panel + 64 * (k + 4), high);
        }
    }
}

/* Unpacks a run of blocks of a group into its places in a panel. */
static void unpack(enum kr_type type, const uint8_t *headers, const uint8_t *quants,
                   uint32_t blocks, uint8_t *panel)
{
    switch (type) {
    case KR_Q4_0:
        unpack_blocks(headers, quants, blocks, 4, KR_HDR_D, panel);
        break;
    case KR_Q4_1:
        unpack_blocks(headers, quants, blocks, 4, KR_HDR_DM, panel);
        break;
    case KR_Q5_0:
        unpack_blocks(headers, quants, blocks, 5, KR_HDR_D, panel);
        break;
    case KR_Q5_1:
        unpack_blocks(headers, quants, blocks, 5, KR_HDR_DM, panel);
        break;
    case KR_Q4_K:
        unpack_blocks(headers, quants, blocks, 4, KR_HDR_K, panel);
        break;
    case KR_Q5_K:
        unpack_blocks(headers, quants, blocks, 5, KR_HDR_K, panel);
        break;
    case KR_Q2_K:
        unpack_blocks(headers, quants, blocks, 2, KR_HDR_K2, panel);
        break;
    case KR_Q3_K:
        unpack_blocks(headers, quants, blocks, 3, KR_HDR_K6, panel);
        break;
    case KR_TQ1_0:
    case KR_TQ2_0:
        unpack_blocks(headers, quants, blocks, 2, KR_HDR_T, panel);
        break;
    case KR_IQ4_NL:
        unpack_blocks(headers, quants, blocks, KR_BITS_IQ4, KR_HDR_D, panel);
        break;
    case KR_IQ3_S:
        unpack_blocks(headers, quants, blocks, KR_BITS_ODD, KR_HDR_KX, panel);
        break;
    case KR_IQ4_XS:
        unpack_blocks(headers, quants, blocks, KR_BITS_IQ4, KR_HDR_KX, panel);
        break;
    case KR_MXFP4:
        unpack_blocks(headers, quants, blocks, KR_BITS_FP4, KR_HDR_E, panel);
        break;
    default:
        unpack_blocks(headers, quants, blocks, 6, KR_HDR_K6, panel);
        break;
    }
}

static uint32_t row_tiles(uint32_t rows)
{
    return (rows + TILE_MAX_ROWS - 1) / TILE_MAX_ROWS;
}

/* Runs the tiles of input rows, in tiles as equal as can be so that no row count falls off. */
static void run_rows(const struct tile_set *set, uint32_t groups, struct tile t, uint32_t rows)
{
    uint32_t tiles = row_tiles(rows);
    const struct kr_q8_block *x = t.x;
    float *out = t.out;
    for (uint32_t i = 0, r = 0; i < tiles; i++) {
        uint32_t n = (rows - r + tiles - i - 1) / (tiles - i);
        t.x = x + r * t.x_stride;
        t.out = out + r * t.out_stride;
        set->fn[groups - 1][n - 1](&t);
        t.ahead += (size_t)t.ahead_bytes * t.blocks;
        r += n;
    }
}

/* How a row's blocks are cut into panels: as equal as can be, whole headers each. */
static uint32_t panel_blocks(const struct kr_layout *l, uint32_t blocks)
{
    const uint32_t unit = l->header_blocks, units = blocks / unit;
    uint32_t most = PANEL_BLOCKS / unit, panels = (units + most - 1) / most;
    return (units + panels - 1) / panels * unit;
}

/* A product of one or two groups: `t` holds the group's headers and quants from the first block. */
static void run_panels(enum kr_type type, const struct kr_layout *l, uint32_t groups,
                       struct tile t, uint32_t rows, const float *bias)
{
    _Alignas(64) uint8_t panel[PANEL_BLOCKS * TILE_MAX_GROUPS * PANEL_MAX_BYTES];
    const uint32_t blocks = t.blocks, each = panel_blocks(l, blocks);
    const struct kr_q8_block *x = t.x;
    const uint8_t *headers[TILE_MAX_GROUPS] = {t.headers[0], t.headers[1]};
    const uint8_t *quants[TILE_MAX_GROUPS] = {t.quants[0], t.quants[1]};

    t.quants[0] = panel;
    t.quants[1] = panel + panel_bytes(l->header);
    for (uint32_t b = 0; b < blocks; b += t.blocks) {
        t.blocks = CN_MIN(blocks - b, each);
        t.x = x + b;
        t.resume = b > 0;
        t.bias = b + t.blocks == blocks ? bias : NULL;
        for (uint32_t g = 0; g < groups; g++)
            unpack(type, headers[g] + kr_header_at(l, b), quants[g] + (size_t)b * l->quant_bytes,
                   t.blocks, panel + g * panel_bytes(l->header));
        run_rows(panel_tiles(l), groups, t, rows);
        t.ahead += (size_t)t.ahead_bytes * t.blocks * row_tiles(rows);
    }
}

/* From how many input rows on a panel pays: measured. Taking plain nibbles apart costs hardly more
 * than what a panel is in the way of the cache. */
static uint32_t panel_from(const struct kr_layout *l)
{
    if (l->bits == 8) return UINT32_MAX;
    if (l->bits == 4 && l->header == KR_HDR_D) return 65;
    return l->bits == 4 && l->header == KR_HDR_DM ? 27 : 19;
}

/* Every tile fetches its part of the next groups: of several tiles over the same groups only the
 * first meets weights that are not in the cache, and would wait for memory that is idle later; and
 * what the processor fetches by itself stops at the end of each run of memory, four in a pair of
 * groups. */
static void set_ahead(struct tile *t, size_t group_bytes, const struct kr_packed *w, bool last,
                      uint32_t rows)
{
    uint32_t parts = row_tiles(rows) * t->blocks;
    bool then = last && w->then;
    t->ahead = then ? w->then : t->headers[0] + TILE_MAX_GROUPS * group_bytes;
    t->ahead_other = then ? w->then_other : group_bytes;
    t->ahead_bytes = (uint32_t)(group_bytes / parts + 3) / 4 * 4;
}

static uint32_t start_offset(const struct kr_layout *l)
{
    const uint32_t size = sizeof(int32_t), at = offsetof(struct kr_q8_block, start);
    return l->offset_shift == 3 ? at : l->offset_shift == 4 ? at + size : at + 2 * size;
}

static void run_groups(const struct kr_packed *w, uint32_t g0, uint32_t g1, const struct kr_q8 *q,
                       uint32_t r0, uint32_t r1, const float *bias, float *out, size_t out_stride)
{
    const struct kr_layout *l = kr_layout(w->type);
    const struct tile_set *direct = direct_tiles(w->type);
    const size_t group_bytes = kr_group_bytes(l, w->cols);
    const size_t header_bytes = kr_header_plane_bytes(l, w->cols);
    const uint32_t blocks = w->cols / KR_SUB, rows = r1 - r0;
    for (uint32_t g = g0; g < g1; g += TILE_MAX_GROUPS) {
        uint32_t groups = CN_MIN(g1 - g, (uint32_t)TILE_MAX_GROUPS), first = g * KR_PACK_ROWS;
        struct tile t = {
            .blocks = blocks,
            .start_at = start_offset(l),
            .x = q->blocks + (size_t)r0 * q->stride,
            .x_stride = q->stride,
            .out = out + r0 * out_stride + first,
            .out_stride = out_stride,
            .bias = bias ? bias + first : NULL,
        };
        for (uint32_t i = 0; i < groups; i++) {
            uint32_t n = CN_MIN(w->rows - first - i * KR_PACK_ROWS, (uint32_t)KR_PACK_ROWS);
            t.headers[i] = (const uint8_t *)w->data + (g + i) * group_bytes;
            t.quants[i] = t.headers[i] + header_bytes;
            t.lanes[i] = (__mmask16)((1u << n) - 1);
        }
        set_ahead(&t, group_bytes, w, g + TILE_MAX_GROUPS >= g1, rows);
        if (rows >= panel_from(l))
            run_panels(w->type, l, groups, t, rows, t.bias);
        else
            run_rows(direct, groups, t, rows);
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
