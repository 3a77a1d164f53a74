/* AVX2: products of float weights (F32, F16, BF16) and float32 activations.
 * Pure but for the outputs. A lane is an output row; columns are added one after another by fused
 * multiply-add, so every tile shape gives the same bytes (generic/matmul_generic.c).
 * Many input rows meet runs of columns that stay in the first-level cache, widened to float32 once;
 * the sums wait in the outputs meanwhile. */
#include "kernels/cpu/avx2/matmul_avx2.h"

#include <immintrin.h>

#include "kernels/cpu/avx2/tile.h"

#define MAX_GROUPS 4
#define MAX_ROWS   6
/* How far ahead of the weights in use a single row fetches. */
#define PREFETCH_BYTES    2048
/* From how many input rows on runs of columns pay. */
#define PANEL_MIN_ROWS    33
#define PANEL_COLS        256
/* Input rows go in runs that stay in the second-level cache while the weights pass. */
#define X_RUN_BYTES       (256 << 10)
#define X_RUN_MIN_ROWS    64
#define PANEL_GROUP_BYTES (PANEL_COLS * KR_PACK_ROWS * sizeof(float))

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

ALWAYS_INLINE __m256 load_column(const uint8_t *p, const enum kr_type type, const int h)
{
    if (type == KR_F32) return _mm256_load_ps((const float *)p + 8 * h);
    __m128i v = _mm_load_si128((const __m128i *)p + h);
    if (type == KR_F16) return _mm256_cvtph_ps(v);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}

/* How many of the eight rows of vector v (two to a group) exist. */
ALWAYS_INLINE uint32_t lanes_of(const struct float_tile *t, const int v)
{
    uint32_t first = 8 * (uint32_t)v;
    return t->outputs > first ? CN_MIN(t->outputs - first, 8u) : 0;
}

ALWAYS_INLINE void float_tile(const struct float_tile *t, const enum kr_type type, const int G,
                              const int R)
{
    const size_t column = type == KR_F32 ? 64 : 32;
    const uint8_t *w = t->weights;
    const float *x = t->x;
    __m256 acc[2 * MAX_GROUPS][MAX_ROWS];

    UNROLL for (int v = 0; v < 2 * G; v++)
    {
        UNROLL for (int r = 0; r < R; r++)
        {
            const float *out = t->out + r * t->out_stride + 8 * v;
            acc[v][r] = _mm256_setzero_ps();
            if (t->resume) acc[v][r] = load_lanes(out, lanes_of(t, v));
        }
    }
    for (uint32_t c = 0; c < t->cols; c++, w += column, x++) {
        __m256 wv[2 * MAX_GROUPS];
        UNROLL for (int v = 0; v < 2 * G; v++)
        {
            const uint8_t *p = w + v / 2 * t->group_bytes;
            if (R == 1 && v % 2 == 0) _mm_prefetch((const char *)p + PREFETCH_BYTES, _MM_HINT_T0);
            wv[v] = load_column(p, type, v % 2);
        }
        UNROLL for (int r = 0; r < R; r++)
        {
            const __m256 xr = _mm256_set1_ps(x[r * t->x_stride]);
            UNROLL for (int v = 0; v < 2 * G; v++)
                acc[v][r] = _mm256_fmadd_ps(wv[v], xr, acc[v][r]);
        }
    }
    UNROLL for (int v = 0; v < 2 * G; v++)
    {
        __m256 bias = _mm256_setzero_ps();
        if (t->bias) bias = load_lanes(t->bias + 8 * v, lanes_of(t, v));
        UNROLL for (int r = 0; r < R; r++)
        {
            if (t->bias) acc[v][r] = _mm256_add_ps(acc[v][r], bias);
            store_lanes(t->out + r * t->out_stride + 8 * v, lanes_of(t, v), acc[v][r]);
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
    TILE(name, type, 1, 5) TILE(name, type, 1, 6) TILE(name, type, 4, 1)                           \
    static float_tile_fn *const name[MAX_ROWS] = {name##_1_1, name##_1_2, name##_1_3,              \
                                                  name##_1_4, name##_1_5, name##_1_6};

TILES(f32, KR_F32)
TILES(f16, KR_F16)
TILES(bf16, KR_BF16)

/* The tile of one group and R rows, or of 4 groups and one row, to have more sums under way. */
static float_tile_fn *choose(enum kr_type type, uint32_t groups, uint32_t rows)
{
    if (groups == 4) return type == KR_F32 ? f32_4_1 : type == KR_F16 ? f16_4_1 : bf16_4_1;
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
    for (uint32_t i = 0; i < 2 * cols; i++, p += 16, panel += 32)
        _mm256_store_ps((float *)panel, type == KR_F16 ? load_column(p, KR_F16, 0)
                                                       : load_column(p, KR_BF16, 0));
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
        groups = g1 - g >= 4 && rows == 1 ? 4 : 1;
        if (rows >= PANEL_MIN_ROWS && w->cols > 0) run_panels(w->type, t, rows);
        else run_rows(w->type, groups, t, rows);
    }
}

void kr_avx2_floats(const struct kr_packed *w, uint32_t g0, uint32_t g1, const float *x,
                    size_t x_stride, uint32_t r0, uint32_t r1, const float *bias, float *out,
                    size_t out_stride)
{
    const uint64_t row_bytes = CN_MAX(w->cols, 1u) * sizeof(float);
    const uint32_t run = (uint32_t)CN_MAX(X_RUN_BYTES / row_bytes, (uint64_t)X_RUN_MIN_ROWS);
    for (uint32_t r = r0; r < r1; r += run)
        run_groups(w, g0, g1, x, x_stride, r, r1 - r > run ? r + run : r1, bias, out, out_stride);
}
