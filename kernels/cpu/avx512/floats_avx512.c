/* AVX-512: products of float weights (F32, F16, BF16) and float32 activations.
 * Pure but for the outputs. A lane is an output row; columns are added one after another by fused
 * multiply-add, so every tile shape gives the same bytes (generic/matmul_generic.c). */
#include <immintrin.h>

#include "kernels/cpu/avx512/matmul_avx512.h"
#include "kernels/cpu/avx512/tile.h"

#define MAX_GROUPS 4
#define MAX_ROWS   8

struct float_tile {
    const uint8_t *weights; /* first group */
    size_t group_bytes;
    uint32_t cols;
    const float *x;
    size_t x_stride;
    float *out;
    size_t out_stride;
    uint32_t outputs;  /* rows from the first group's first on */
    const float *bias; /* for the first output row, or NULL */
};
typedef void float_tile_fn(const struct float_tile *t);

ALWAYS_INLINE __m512 load_column(const uint8_t *p, const enum kr_type type)
{
    if (type == KR_F32) return _mm512_load_ps(p);
    __m256i h = _mm256_load_si256((const __m256i *)p);
    if (type == KR_F16) return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

ALWAYS_INLINE void float_tile(const struct float_tile *t, const enum kr_type type, const int G,
                              const int R)
{
    const size_t column = type == KR_F32 ? 64 : 32;
    const uint8_t *w = t->weights;
    const float *x = t->x;
    __m512 acc[MAX_GROUPS][MAX_ROWS];

    UNROLL for (int g = 0; g < G; g++)
    {
        UNROLL for (int r = 0; r < R; r++) acc[g][r] = _mm512_setzero_ps();
    }
    for (uint32_t c = 0; c < t->cols; c++, w += column, x++) {
        __m512 v[MAX_GROUPS];
        UNROLL for (int g = 0; g < G; g++)
        {
            v[g] = load_column(w + g * t->group_bytes, type);
            if (R == 1) _mm_prefetch(w + g * t->group_bytes + PREFETCH_BYTES, _MM_HINT_T0);
        }
        UNROLL for (int r = 0; r < R; r++)
        {
            __m512 xr = _mm512_set1_ps(x[r * t->x_stride]);
            UNROLL for (int g = 0; g < G; g++) acc[g][r] = _mm512_fmadd_ps(v[g], xr, acc[g][r]);
        }
    }
    UNROLL for (int g = 0; g < G; g++)
    {
        uint32_t n = CN_MIN(t->outputs - g * KR_PACK_ROWS, (uint32_t)KR_PACK_ROWS);
        __mmask16 m = (__mmask16)((1u << n) - 1);
        __m512 bias = _mm512_setzero_ps();
        if (t->bias) bias = _mm512_maskz_loadu_ps(m, t->bias + g * KR_PACK_ROWS);
        UNROLL for (int r = 0; r < R; r++)
        {
            if (t->bias) acc[g][r] = _mm512_add_ps(acc[g][r], bias);
            _mm512_mask_storeu_ps(t->out + r * t->out_stride + g * KR_PACK_ROWS, m, acc[g][r]);
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
    TILE(name, type, 1, 5) TILE(name, type, 1, 6) TILE(name, type, 1, 7) TILE(name, type, 1, 8)    \
    TILE(name, type, 2, 1) TILE(name, type, 2, 2) TILE(name, type, 2, 3) TILE(name, type, 2, 4)    \
    TILE(name, type, 2, 5) TILE(name, type, 2, 6) TILE(name, type, 2, 7) TILE(name, type, 2, 8)    \
    TILE(name, type, 4, 1)                                                                         \
    static float_tile_fn *const name[2][MAX_ROWS] = {                                              \
        {name##_1_1, name##_1_2, name##_1_3, name##_1_4, name##_1_5, name##_1_6, name##_1_7,       \
         name##_1_8},                                                                              \
        {name##_2_1, name##_2_2, name##_2_3, name##_2_4, name##_2_5, name##_2_6, name##_2_7,       \
         name##_2_8},                                                                              \
    };

TILES(f32, KR_F32)
TILES(f16, KR_F16)
TILES(bf16, KR_BF16)

/* The tile of G groups and R rows; 4 groups only with one row, to have more sums under way. */
static float_tile_fn *choose(enum kr_type type, uint32_t groups, uint32_t rows)
{
    if (groups == 4) return type == KR_F32 ? f32_4_1 : type == KR_F16 ? f16_4_1 : bf16_4_1;
    if (type == KR_F32) return f32[groups - 1][rows - 1];
    return type == KR_F16 ? f16[groups - 1][rows - 1] : bf16[groups - 1][rows - 1];
}

void kr_avx512_floats(const struct kr_packed *w, uint32_t g0, uint32_t g1, const float *x,
                      size_t x_stride, uint32_t r0, uint32_t r1, const float *bias, float *out,
                      size_t out_stride)
{
    const size_t group_bytes = kr_group_bytes(kr_layout(w->type), w->cols);
    const uint32_t rows = r1 - r0, tiles = (rows + MAX_ROWS - 1) / MAX_ROWS;
    if (r0 >= r1) return;
    for (uint32_t g = g0, groups; g < g1; g += groups) {
        groups = g1 - g >= 4 && rows == 1 ? 4 : g1 - g >= 2 ? 2 : 1;
        for (uint32_t i = 0, r = r0; i < tiles; i++) {
            uint32_t n = (r1 - r + tiles - i - 1) / (tiles - i), first = g * KR_PACK_ROWS;
            struct float_tile t = {
                .weights = (const uint8_t *)w->data + g * group_bytes,
                .group_bytes = group_bytes,
                .cols = w->cols,
                .x = x + r * x_stride,
                .x_stride = x_stride,
                .out = out + r * out_stride + first,
                .out_stride = out_stride,
                .outputs = w->rows - first,
                .bias = bias ? bias + first : NULL,
            };
            choose(w->type, groups, n)(&t);
            r += n;
        }
    }
}
