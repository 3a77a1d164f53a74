/* AVX2 and AVX-VNNI: quantised products of a range of row groups and input rows. Pure but for the
 * outputs.
 * Input rows meet the packed weights directly, unpacked in registers; many of them may meet a panel
 * that a group was unpacked to once. Both add up in the same order, so the choice may depend on the
 * number of rows. */
#include "kernels/cpu/avx2/matmul_avx2.h"
#include "kernels/cpu/avx2/tile.h"
#include "kernels/cpu/panels.inc"
#include "kernels/cpu/row_tiles.inc"

/* From how many input rows on a panel pays. Of 4 bits it takes loading twice as many words, which
 * AVX-VNNI, with less to do for each word, has no time for; of 8 bits there is nothing to
 * unpack. */
#define PANEL_MIN_ROWS  9
#define PANEL4_MIN_ROWS (TILE_VNNI ? UINT32_MAX : 32)

#define TILE(name, bits, header, panel, R)                                                         \
    static void name##_##R(const struct tile *t)                                                   \
    {                                                                                              \
        tile_run(t, bits, header, panel, R);                                                       \
    }
/* All the tiles of a kind, and their table: [rows - 1]. */
#if TILE_MAX_ROWS == 6
/* clang-format off */
#define TILES(name, bits, header, panel)                                                           \
    TILE(name, bits, header, panel, 1) TILE(name, bits, header, panel, 2)                          \
    TILE(name, bits, header, panel, 3) TILE(name, bits, header, panel, 4)                          \
    TILE(name, bits, header, panel, 5) TILE(name, bits, header, panel, 6)                          \
    static const struct tile_set name = {                                                          \
        {name##_1, name##_2, name##_3, name##_4, name##_5, name##_6}};
/* clang-format on */
#elif TILE_MAX_ROWS == 2
#define TILES(name, bits, header, panel)                                                           \
    TILE(name, bits, header, panel, 1)                                                             \
    TILE(name, bits, header, panel, 2) static const struct tile_set name = {{name##_1, name##_2}};
#else
/* clang-format off */
#define TILES(name, bits, header, panel)                                                           \
    TILE(name, bits, header, panel, 1) TILE(name, bits, header, panel, 2)                          \
    TILE(name, bits, header, panel, 3) TILE(name, bits, header, panel, 4)                          \
    static const struct tile_set name = {{name##_1, name##_2, name##_3, name##_4}};
/* clang-format on */
#endif

#define DIRECT(name, bits, header) TILES(name, bits, header, false)
EACH_PACKING(DIRECT)
TILES(panel4_d, 4, KR_HDR_D, true)
TILES(panel4_dm, 4, KR_HDR_DM, true)
TILES(panel5_d, 5, KR_HDR_D, true)
TILES(panel5_dm, 5, KR_HDR_DM, true)
TILES(panel5_k2, 5, KR_HDR_K2, true)
TILES(panel6_k6, 6, KR_HDR_K6, true)
TILES(panel8_d, 8, KR_HDR_D, true)

ALWAYS_INLINE void unpack_blocks(const uint8_t *headers, const uint8_t *quants, uint32_t blocks,
                                 const int bits, const int header, uint8_t *panel)
{
    for (uint32_t b = 0; b < blocks; b++, quants += bits % 16 * 64, panel += panel_bytes(header)) {
        UNROLL for (int h = 0; h < 2; h++) {
            __m256 s0, s1 = _mm256_setzero_ps();
            tile_scales(headers, header, b, h, &s0, &s1);
            _mm256_store_ps((float *)(panel + 512) + 8 * h, s0);
            _mm256_store_ps((float *)(panel + 576) + 8 * h, s1);
            if (header == KR_HDR_K2) {
                __m256i mins;
                tile_half_mins(headers, b, h, &mins, &s0);
                _mm256_store_ps((float *)(panel + 640) + 8 * h, s0);
                _mm256_store_si256((__m256i *)(panel + 704) + h, mins);
            }
            UNROLL for (int i = 0; i < 8; i++)
                _mm256_store_si256((__m256i *)(panel + 64 * i + 32 * h),
                                   tile_word(quants, bits, false, i, h));
        }
    }
}

UNPACK(unpack4_d, 4, KR_HDR_D)
UNPACK(unpack4_dm, 4, KR_HDR_DM)
UNPACK_MOST
UNPACK(unpack_iq4_d, KR_BITS_IQ4, KR_HDR_D)
UNPACK(unpack_fp4, KR_BITS_FP4, KR_HDR_E)

static struct kind choose(enum kr_type type)
{
    switch (type) {
    case KR_Q4_0:
        return (struct kind){&q4_d, &panel4_d, unpack4_d, PANEL4_MIN_ROWS};
    case KR_Q4_1:
        return (struct kind){&q4_dm, &panel4_dm, unpack4_dm, PANEL4_MIN_ROWS};
    case KR_Q5_0:
        return (struct kind){&q5_d, &panel5_d, unpack5_d, PANEL_MIN_ROWS};
    case KR_Q5_1:
        return (struct kind){&q5_dm, &panel5_dm, unpack5_dm, PANEL_MIN_ROWS};
    case KR_Q8_0:
        return (struct kind){&q8_d, NULL, NULL, UINT32_MAX};
    case KR_Q2_K:
        return (struct kind){&q2_k, &panel5_k2, unpack2_k, PANEL_MIN_ROWS};
    case KR_Q3_K:
        return (struct kind){&q3_k, &panel6_k6, unpack3_k, PANEL_MIN_ROWS};
    case KR_Q4_K:
        return (struct kind){&q4_k, &panel4_dm, unpack4_k, PANEL4_MIN_ROWS};
    case KR_Q5_K:
        return (struct kind){&q5_k, &panel5_dm, unpack5_k, PANEL_MIN_ROWS};
    case KR_IQ4_NL:
        return (struct kind){&iq4_d, &panel8_d, unpack_iq4_d, PANEL4_MIN_ROWS};
    case KR_IQ3_S:
        return (struct kind){&odd_kx, &panel5_d, unpack_odd, PANEL_MIN_ROWS};
    case KR_IQ4_XS:
        return (struct kind){&iq4_kx, &panel8_d, unpack_iq4_kx, PANEL4_MIN_ROWS};
    case KR_TQ1_0:
    case KR_TQ2_0:
        return (struct kind){&tq_t, &panel5_d, unpack_tq, PANEL_MIN_ROWS};
    case KR_MXFP4:
        return (struct kind){&fp4_e, &panel5_d, unpack_fp4, PANEL_MIN_ROWS};
    default:
        return (struct kind){&q6_k, &panel6_k6, unpack6_k, PANEL_MIN_ROWS};
    }
}

/* Runs the tiles of input rows. Leaves t as it found it except for `ahead`, which it moves past
 * what was fetched. */
static void run_rows(const struct kind *k, bool panel, struct tile *t, uint32_t rows)
{
    const struct tile_set *set = panel ? k->panel : k->direct;
    const uint32_t ahead = t->ahead_bytes * (panel ? 1 : t->blocks);
    const struct kr_q8_block *x = t->x;
    float *out = t->out;
    for (uint32_t tiles = row_tiles(rows), n; tiles; tiles--, rows -= n) {
        n = next_tile_rows(rows, tiles);
        for (uint32_t at = 0; panel && at < t->ahead_bytes; at += 64)
            _mm_prefetch((const char *)t->ahead + at, _MM_HINT_T1);
        set->fn[n - 1](t);
        pass_rows(t, n);
        t->ahead += ahead;
    }
    t->x = x;
    t->out = out;
}

/* Every tile fetches its part of the next group: of several tiles over the same group only the
 * first meets weights that are not in the cache, and would wait for memory that is idle later; and
 * what the processor fetches by itself stops at the end of each run of memory. */
static uint32_t ahead_bytes(const struct tile *t, size_t group_bytes, bool panel, uint32_t rows)
{
    uint32_t parts = row_tiles(rows);
    parts *= panel ? (t->blocks - 1) / PANEL_BLOCKS + 1 : t->blocks;
    return (uint32_t)(group_bytes / parts + 63) / 64 * 64;
}

static void run_groups(const struct kr_packed *w, uint32_t g0, uint32_t g1, const struct kr_q8 *q,
                       uint32_t r0, uint32_t r1, const float *bias, float *out, size_t out_stride)
{
    const struct kr_layout *l = kr_layout(w->type);
    const struct kind k = choose(w->type);
    const size_t group_bytes = kr_group_bytes(l, w->cols);
    const uint32_t rows = r1 - r0;
    const bool panel = rows >= k.panel_rows;
    struct tile t = {
        .blocks = w->cols / KR_SUB,
        .start_at = kr_q8_start_at(l),
        .x = q->blocks + (size_t)r0 * q->stride,
        .x_stride = q->stride,
        .out_stride = out_stride,
    };

    t.ahead_bytes = ahead_bytes(&t, group_bytes, panel, rows);
    run_panel_groups(&k, w, g0, g1, &t, panel, r0, rows, bias, out);
}

void kr_avx2_quants(const struct kr_packed *w, uint32_t g0, uint32_t g1, const struct kr_q8 *q,
                    uint32_t r0, uint32_t r1, const float *bias, float *out, size_t out_stride)
{
    const uint32_t run = x_run_rows(q);
    for (uint32_t r = r0; r < r1; r += run)
        run_groups(w, g0, g1, q, r, r1 - r > run ? r + run : r1, bias, out, out_stride);
}
