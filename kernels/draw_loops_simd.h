/* The loops of draw_loops.h, for whatever ISA this is compiled for: the compiler makes vectors of
 * them. Included by one file of each ISA. */
#include "kernels/draw_loops.h"

/* 32 running maxima, so that they stay in vectors, and in more than one; NaN is looked for in
 * pairs. */
static inline bool tops(const float *z, size_t n_runs, float *out)
{
    int32_t nan[32] = {0}, any = 0;
    for (size_t r = 0; r < n_runs; r++, z += KR_DRAW_RUN) {
        float m[32];
        for (size_t j = 0; j < 32; j++)
            m[j] = z[j];
        for (size_t i = 0; i < KR_DRAW_RUN; i += 64)
            for (size_t j = 0; j < 32; j++) {
                float x = z[i + j], y = z[i + j + 32];
                nan[j] |= __builtin_isunordered(x, y);
                x = x > y ? x : y;
                m[j] = x > m[j] ? x : m[j];
            }
        for (size_t j = 0; j < 16; j++)
            m[j] = m[j + 16] > m[j] ? m[j + 16] : m[j];
        for (size_t j = 0; j < 8; j++)
            m[j] = m[j + 8] > m[j] ? m[j + 8] : m[j];
        for (size_t j = 0; j < 4; j++)
            m[j] = m[j + 4] > m[j] ? m[j + 4] : m[j];
        out[r] = CN_MAX(CN_MAX(m[0], m[1]), CN_MAX(m[2], m[3]));
    }
    for (size_t j = 0; j < 32; j++)
        any |= nan[j];
    return !any;
}

static inline uint64_t mass(const float *z, size_t n, float max, float inv_t)
{
    uint64_t sum[16] = {0};
    float rest[256];
    for (size_t at = 0; at < n; at += 256) {
        size_t len = CN_MIN(n - at, (size_t)256);
        const float *p = z + at;
        if (len < 256) {
            for (size_t i = 0; i < 256; i++)
                rest[i] = i < len ? p[i] : -__builtin_inff(); /* weighs nothing */
            p = rest;
        }
        for (size_t i = 0; i < 256; i += 16)
            for (size_t j = 0; j < 16; j++)
                sum[j] += kr_biased_mass(p[i + j], max, inv_t);
    }
    for (size_t j = 1; j < 16; j++)
        sum[0] += sum[j];
    return sum[0] - (n + 255) / 256 * 256 * KR_MASS_BIAS;
}

static inline bool any_above(const float *z, float t)
{
    int32_t any = 0;
    for (size_t i = 0; i < 64; i++)
        any |= z[i] > t;
    return any != 0;
}

static inline bool bar(float *z, size_t n_words, const uint32_t *mask)
{
    int32_t bad[32] = {0}, any = 0;
    for (size_t i = 0; i < n_words; i++, z += 32)
        for (size_t j = 0; j < 32; j++) {
            bad[j] |= !(z[j] < __builtin_inff());
            z[j] = mask[i] & 1u << j ? z[j] : -__builtin_inff();
        }
    for (size_t j = 0; j < 32; j++)
        any |= bad[j];
    return !any;
}

static inline const struct kr_draw_loops *draw_loops(void)
{
    static const struct kr_draw_loops loops = {tops, mass, any_above, bar};
    return &loops;
}
