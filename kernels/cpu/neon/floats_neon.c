/* NEON: products of float weights (F32, F16, BF16) and float32 activations.
 * Pure but for the outputs. A lane is an output row; columns are added one after another by fused
 * multiply-add, so every tile shape gives the same bytes (generic/matmul_generic.c).
 * Many input rows meet runs of columns that stay in the first-level cache, widened to float32 once;
 * the sums wait in the outputs meanwhile. */
#include "kernels/cpu/neon/unpack.h"

/* 6 rows by 4 vectors of sums, the weights' 4 and an input's 1: 29 registers of 32. */
#define MAX_ROWS 6
/* One row: so many groups at once, to have more sums under way. */
#define MAX_GROUPS 2
/* From how many input rows on runs of columns pay. */
#define PANEL_MIN_ROWS    33
#define PANEL_COLS        256
#define PANEL_GROUP_BYTES (PANEL_COLS * KR_PACK_ROWS * sizeof(float))
/* Input rows go in runs that stay in the second-level cache while the weights pass. */
#define X_RUN_BYTES       (256 << 10)
#define X_RUN_MIN_ROWS    64
#define PREFETCH_BYTES    2048

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

/* Rows 4v..4v+3 of a column. */
ALWAYS_INLINE float32x4_t load_column(const uint8_t *p, const enum kr_type type, const int v)
{
    if (type == KR_F32) return vld1q_f32((const float *)(const void *)p + 4 * v);
    if (type == KR_F16) return load_halves(p + 8 * v);
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p + 8 * v)), 16));
}

ALWAYS_INLINE void float_tile(const struct float_tile *t, const enum kr_type type, const int G,
                              const int R)
{
    const size_t column = type == KR_F32 ? 64 : 32;
    const uint8_t *w = t->weights;
    const float *x = t->x;
    float32x4_t acc[4 * MAX_GROUPS][MAX_ROWS];

    UNROLL for (int v = 0; v < 4 * G; v++)
    {
        UNROLL for (int r = 0; r < R; r++)
        {
            const float *out = t->out + r * t->out_stride + 4 * v;
            acc[v][r] = vdupq_n_f32(0);
            if (t->resume) acc[v][r] = load_lanes(out, lanes_of(t->outputs, v));
        }
    }
    for (uint32_t c = 0; c < t->cols; c++, w += column, x++) {
        float32x4_t wv[4 * MAX_GROUPS];
        UNROLL for (int v = 0; v < 4 * G; v++)
        {
            const uint8_t *p = w + v / 4 * t->group_bytes;
            if (R == 1 && v % 4 == 0) __builtin_prefetch(p + PREFETCH_BYTES);
            wv[v] = load_column(p, type, v % 4);
        }
        UNROLL for (int r = 0; r < R; r++)
        {
            const float xr = x[r * t->x_stride];
            UNROLL for (int v = 0; v < 4 * G; v++) acc[v][r] = vfmaq_n_f32(acc[v][r], wv[v], xr);
        }
    }
    UNROLL for (int v = 0; v < 4 * G; v++)
    {
        float32x4_t bias = vdupq_n_f32(0);
        if (t->bias) bias = load_lanes(t->bias + 4 * v, lanes_of(t->outputs, v));
        UNROLL for (int r = 0; r < R; r++)
        {
            if (t->bias) acc[v][r] = vaddq_f32(acc[v][r], bias);
            store_lanes(t->out + r * t->out_stride + 4 * v, lanes_of(t->outputs, v), acc[v][r]);
        }
    }
}

#define TILE(name, type, G, R)                                                                     \
    static void name##_##G##_##R(const struct float_tile *t)                                       \
    {                                                                                              \
        float_tile(t, type, G, R);                                                                 \
    }
#define TILES(name, type)                                                                          \
    TILE(name, type, 1, 1) TILE(name, type, 1, 2) TILE(name, type, 1, 3) TILE(name, type, 1, 4)    \
    TILE(name, type, 1, 5) TILE(name, type, 1, 6) TILE(name, type, 2, 1)                           \
    static float_tile_fn *const name[MAX_ROWS] = {name##_1_1, name##_1_2, name##_1_3,              \
                                                  name##_1_4, name##_1_5, name##_1_6};

TILES(f32, KR_F32)
TILES(f16, KR_F16)
TILES(bf16, KR_BF16)

/* The tile of one group and R rows, or of 2 groups and one row. */
static float_tile_fn *choose(enum kr_type type, uint32_t groups, uint32_t rows)
{
    if (groups == 2) return type == KR_F32 ? f32_2_1 : type == KR_F16 ? f16_2_1 : bf16_2_1;
    if (type == KR_F32) return f32[rows - 1];
    return type == KR_F16 ? f16[rows - 1] : bf16[rows - 1];
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

static void widen(enum kr_type type, const uint8_t *p, uint32_t cols, uint8_t *panel)
{
    float *to = (float *)(void *)panel;
    for (uint32_t i = 0; i < 4 * cols; i++, p += 8, to += 4)
        vst1q_f32(to, type == KR_F16 ? load_column(p, KR_F16, 0) : load_column(p, KR_BF16, 0));
}

static void run_panels(enum kr_type type, struct float_tile t, uint32_t rows)
{
    _Alignas(64) uint8_t panel[PANEL_GROUP_BYTES];
    const size_t column = type == KR_F32 ? 64 : 32;
    const struct float_tile whole = t;
    for (uint32_t c = 0; c < whole.cols; c += t.cols) {
        t.cols = CN_MIN(whole.cols - c, (uint32_t)PANEL_COLS);
        t.weights = whole.weights + c * column;
        t.x = whole.x + c;
        t.resume = c > 0;
        t.bias = c + t.cols == whole.cols ? whole.bias : NULL;
        if (type != KR_F32) {
            widen(type, t.weights, t.cols, panel);
            t.weights = panel;
        }
        run_rows(KR_F32, 1, t, rows);
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
        groups = g1 - g >= 2 && rows == 1 ? 2 : 1;
        if (rows >= PANEL_MIN_ROWS && w->cols > 0) run_panels(w->type, t, rows);
        else run_rows(w->type, groups, t, rows);
    }
}

void kr_neon_floats(const struct kr_packed *w, uint32_t g0, uint32_t g1, const float *x,
                    size_t x_stride, uint32_t r0, uint32_t r1, const float *bias, float *out,
                    size_t out_stride)
{
    const uint64_t row_bytes = CN_MAX(w->cols, 1u) * sizeof(float);
    const uint32_t run = (uint32_t)CN_MAX(X_RUN_BYTES / row_bytes, (uint64_t)X_RUN_MIN_ROWS);
    for (uint32_t r = r0; r < r1; r += run)
        run_groups(w, g0, g1, x, x_stride, r, r1 - r > run ? r + run : r1, bias, out, out_stride);
}
