/* What the files for NEON and for I8MM share. Private to kernels/cpu/neon.
 *
 * A tile is a group of 16 output rows times 1 to TILE_MAX_ROWS input rows over a run of blocks. A
 * direct one meets the packed weights; the others a panel: a run of blocks of a group, unpacked to
 * signed bytes from which the type's offset has been taken, with their scales as float32. Integer
 * sums are exact in either, so the choice between them may depend on the number of rows. */
#ifndef KERNELS_CPU_NEON_MATMUL_NEON_H
#define KERNELS_CPU_NEON_MATMUL_NEON_H

#include "kernels/cpu/pack.h"
#include "kernels/cpu/template.h"

#define TILE_MAX_ROWS 4
#define PANEL_BLOCKS  16 /* a multiple of 8 */
/* Of a block in a panel. */
#define PANEL_MAX_BYTES 1152

#include "kernels/cpu/kind.inc"

struct kind kr_neon_kind(enum kr_type type);
/* Row groups [g0, g1) times input rows [r0, r1). */
void kr_neon_quants(struct kind k, const struct kr_packed *w, uint32_t g0, uint32_t g1,
                    const struct kr_q8 *q, uint32_t r0, uint32_t r1, const float *bias, float *out,
                    size_t out_stride);
void kr_neon_quantize(struct kr_q8 *q, const float *x, size_t x_stride, uint32_t r0, uint32_t r1);
void kr_neon_floats(const struct kr_packed *w, uint32_t g0, uint32_t g1, const float *x,
                    size_t x_stride, uint32_t r0, uint32_t r1, const float *bias, float *out,
                    size_t out_stride);

#endif
