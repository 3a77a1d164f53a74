/* Products of float weights (F32, F16, BF16) and float32 activations, for AVX2, AVX-512 and NEON:
 * included once by each ISA's file, which names the function that it fills in. Pure but for the
 * outputs.
 *
 * A lane is an output row; columns are added one after another by fused multiply-add, so every tile
 * shape gives the same bytes (generic/matmul_generic.c). Many input rows meet runs of columns that
 * stay in the first-level cache, widened to float32 once; the sums wait in the outputs
 * meanwhile. */
#ifndef KERNELS_CPU_FLOATS_SIMD_H
#define KERNELS_CPU_FLOATS_SIMD_H

#include "kernels/cpu/pack.h"
#include "kernels/cpu/simd.h"

/* Vectors of a group of output rows. */
#define PER_GROUP ((int)(KR_PACK_ROWS / VL))
/* The largest tile fills the registers: of AVX-512 8 rows by 2 groups, else 6 by one; one row takes
 * 4 groups, to have more sums under way, or 2 of NEON, whose vectors are two registers each. */
#define MAX_ROWS    (VL == 16u ? 8 : 6)
#define TILE_GROUPS (VL == 16u ? 2 : 1)
#if defined(__aarch64__)
#define ROW_GROUPS           2
#define ROW_NAME(name)       name##_2_1
#define ROW_TILE(name, type) TILE(name, type, 2, 1)
#else
#define ROW_GROUPS           4
#define ROW_NAME(name)       name##_4_1
#define ROW_TILE(name, type) TILE(name, type, 4, 1)
#endif
/* How far ahead of the weights in use a single row fetches. */
#define PREFETCH_BYTES 2048
/* From how many input rows on runs of columns pay. */
#define PANEL_MIN_ROWS (VL == 16u ? 25u : 33u)
#define PANEL_COLS     256u
#define PANEL_FLOATS   (PANEL_COLS * KR_PACK_ROWS)
/* Input rows go in runs that stay in the second-level cache while the weights pass. */
#define X_RUN_BYTES    (VL == 16u ? 768u << 10 : 256u << 10)
#define X_RUN_MIN_ROWS (VL == 16u ? 96u : 64u)

struct float_tile {
    const uint8_t *weights; /* first group, first column */
    size_t group_bytes;
    uint32_t cols;
    const float *x;
    size_t x_stride;
    float *out;
    size_t out_stride;
    uint32_t outputs;  /* rows from the first group's first on */
    bool resume;       /* out holds the sums so far */
    const float *bias; /* for the first output row; NULL: none, or not yet */
};
typedef void float_tile_fn(const struct float_tile *t);

V_INLINE size_t column_bytes(const enum kr_type type)
{
    return KR_PACK_ROWS * (type == KR_F32 ? sizeof(float) : sizeof(uint16_t));
}

/* Vector v of a group's column. */
V_INLINE vf load_column(const uint8_t *p, const enum kr_type type, const int v)
{
    if (type == KR_F32) return v_load((const float *)(const void *)p + (int)VL * v);
    p += 2 * (int)VL * v;
    return type == KR_F16 ? v_half(p) : v_bfloat(p);
}

/* How many of the rows of vector v exist. */
V_INLINE uint32_t lanes_of(const struct float_tile *t, const int v)
{
    uint32_t first = VL * (uint32_t)v;
    return t->outputs > first ? CN_MIN(t->outputs - first, VL) : 0;
}

V_INLINE void float_tile(const struct float_tile *t, const enum kr_type type, const int G,
                         const int R)
{
    const int vectors = PER_GROUP * G;
    const uint8_t *w = t->weights;
    const float *x = t->x;
    vf acc[PER_GROUP * ROW_GROUPS][MAX_ROWS];

    UNROLL for (int v = 0; v < vectors; v++) {
        UNROLL for (int r = 0; r < R; r++) {
            const float *out = t->out + r * t->out_stride + (int)VL * v;
            acc[v][r] = v_set(0);
            if (t->resume) acc[v][r] = v_load_n(out, lanes_of(t, v));
        }
    }
    for (uint32_t c = 0; c < t->cols; c++, w += column_bytes(type), x++) {
        vf wv[PER_GROUP * ROW_GROUPS];
        UNROLL for (int v = 0; v < vectors; v++) {
            const uint8_t *p = w + v / PER_GROUP * t->group_bytes;
            if (R == 1 && v % PER_GROUP == 0) __builtin_prefetch(p + PREFETCH_BYTES);
            wv[v] = load_column(p, type, v % PER_GROUP);
        }
        UNROLL for (int r = 0; r < R; r++) {
            const vf xr = v_set(x[r * t->x_stride]);
            UNROLL for (int v = 0; v < vectors; v++)
                acc[v][r] = v_fma(wv[v], xr, acc[v][r]);
        }
    }
    UNROLL for (int v = 0; v < vectors; v++) {
        vf bias = v_set(0);
        if (t->bias) bias = v_load_n(t->bias + (int)VL * v, lanes_of(t, v));
        UNROLL for (int r = 0; r < R; r++) {
            if (t->bias) acc[v][r] = v_add(acc[v][r], bias);
            v_store_n(t->out + r * t->out_stride + (int)VL * v, acc[v][r], lanes_of(t, v));
        }
    }
}

#define TILE(name, type, G, R)                                                                     \
    static void name##_##G##_##R(const struct float_tile *t)                                       \
    {                                                                                              \
        float_tile(t, type, G, R);                                                                 \
    }
/* clang-format off */
#define TILES_6(name, type, G)                                                                     \
    TILE(name, type, G, 1) TILE(name, type, G, 2) TILE(name, type, G, 3) TILE(name, type, G, 4)    \
    TILE(name, type, G, 5) TILE(name, type, G, 6)
/* clang-format on */
#define ROWS_6(name, G)                                                                            \
    name##_##G##_1, name##_##G##_2, name##_##G##_3, name##_##G##_4, name##_##G##_5, name##_##G##_6
/* All tiles of a type, and their table: [groups - 1][rows - 1]. */
#if VL == 16u
/* clang-format off */
#define TILES(name, type)                                                                          \
    TILES_6(name, type, 1) TILE(name, type, 1, 7) TILE(name, type, 1, 8)                           \
    TILES_6(name, type, 2) TILE(name, type, 2, 7) TILE(name, type, 2, 8) ROW_TILE(name, type)     \
    static float_tile_fn *const name[TILE_GROUPS][MAX_ROWS] = {                                    \
        {ROWS_6(name, 1), name##_1_7, name##_1_8}, {ROWS_6(name, 2), name##_2_7, name##_2_8}};
/* clang-format on */
#else
#define TILES(name, type)                                                                          \
    TILES_6(name, type, 1)                                                                         \
    ROW_TILE(name, type)                                                                           \
    static float_tile_fn *const name[TILE_GROUPS][MAX_ROWS] = {{ROWS_6(name, 1)}};
#endif

TILES(f32, KR_F32)
TILES(f16, KR_F16)
TILES(bf16, KR_BF16)

static float_tile_fn *choose(enum kr_type type, uint32_t groups, uint32_t rows)
{
    if (groups == ROW_GROUPS)
        return type == KR_F32 ? ROW_NAME(f32) : type == KR_F16 ? ROW_NAME(f16) : ROW_NAME(bf16);
    if (type == KR_F32) return f32[groups - 1][rows - 1];
    return type == KR_F16 ? f16[groups - 1][rows - 1] : bf16[groups - 1][rows - 1];
}

static void run_rows(enum kr_type type, uint32_t groups, struct float_tile t, uint32_t rows)
{
    const uint32_t tiles = (rows + MAX_ROWS - 1) / MAX_ROWS;
    const float *x = t.x;
    float *out = t.out;
    for (uint32_t i = 0, r = 0; i < tiles; i++) {
        uint32_t n = (rows - r + tiles - i - 1) / (tiles - i);
        t.x = x + r * t.x_stride;
        t.out = out + r * t.out_stride;
        choose(type, groups, n)(&t);
        r += n;
    }
}

static void widen(enum kr_type type, const uint8_t *p, uint32_t cols, float *panel)
{
    for (uint32_t i = 0; i < cols * KR_PACK_ROWS; i += VL, p += 2 * VL)
        v_store(panel + i, type == KR_F16 ? v_half(p) : v_bfloat(p));
}

static void run_panels(enum kr_type type, uint32_t groups, struct float_tile t, uint32_t rows)
{
    _Alignas(64) float panel[TILE_GROUPS * PANEL_FLOATS];
    const struct float_tile whole = t;
    for (uint32_t c = 0; c < whole.cols; c += t.cols) {
        t.cols = CN_MIN(whole.cols - c, PANEL_COLS);
        t.weights = whole.weights + c * column_bytes(type);
        t.x = whole.x + c;
        t.resume = c > 0;
        t.bias = c + t.cols == whole.cols ? whole.bias : NULL;
        if (type != KR_F32) {
            for (uint32_t g = 0; g < groups; g++)
                widen(type, t.weights + g * whole.group_bytes, t.cols, panel + g * PANEL_FLOATS);
            t.weights = (const uint8_t *)panel;
            t.group_bytes = PANEL_FLOATS * sizeof(float);
        }
        run_rows(KR_F32, groups, t, rows);
    }
}

static void run_groups(const struct kr_packed *w, uint32_t g0, uint32_t g1, const float *x,
                       size_t x_stride, uint32_t r0, uint32_t r1, const float *bias, float *out,
                       size_t out_stride)
{
    const size_t group_bytes = kr_group_bytes(kr_layout(w->type), w->cols);
    const uint32_t rows = r1 - r0;
    for (uint32_t g = g0, groups; g < g1; g += groups) {
        const uint32_t first = g * KR_PACK_ROWS;
        struct float_tile t = {
            .weights = (const uint8_t *)w->data + g * group_bytes,
            .group_bytes = group_bytes,
            .cols = w->cols,
            .x = x + r0 * x_stride,
            .x_stride = x_stride,
            .out = out + r0 * out_stride + first,
            .out_stride = out_stride,
            .outputs = w->rows - first,
            .bias = bias ? bias + first : NULL,
        };
        if (g1 - g >= ROW_GROUPS && rows == 1)
            groups = ROW_GROUPS;
        else
            groups = CN_MIN(g1 - g, (uint32_t)TILE_GROUPS);
        if (rows >= PANEL_MIN_ROWS && w->cols > 0)
            run_panels(w->type, groups, t, rows);
        else
            run_rows(w->type, groups, t, rows);
    }
}

/* The ISA's product, as its header declares it. */
#define FLOATS(name)                                                                               \
    void name(const struct kr_packed *w, uint32_t g0, uint32_t g1, const float *x,                 \
              size_t x_stride, uint32_t r0, uint32_t r1, const float *bias, float *out,            \
              size_t out_stride)                                                                   \
    {                                                                                              \
        const size_t row_bytes = CN_MAX(w->cols, 1u) * sizeof(float);                              \
        const uint32_t run = CN_MAX((uint32_t)(X_RUN_BYTES / row_bytes), X_RUN_MIN_ROWS);          \
        for (uint32_t r = r0; r < r1; r += run)                                                    \
            run_groups(w, g0, g1, x, x_stride, r, r1 - r > run ? r + run : r1, bias, out,          \
                       out_stride);                                                                \
    }

#endif
