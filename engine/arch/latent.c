/* latent: the matrices of multi-head latent attention's absorbed form.
 *
 * Newer files have them as they are used. Older ones have attn_kv_b [heads * (nope + v_dim),
 * latent], per head `nope` rows of keys and then `v_dim` of values: k_b is the transpose of the
 * former, kept in float16 (float32 when the file has more than that), v_b the latter as they are
 * stored. */
#include "engine/arch/arch.h"

#include <string.h>

static void *take(struct eng_builder *b, uint64_t n, uint64_t size)
{
    uint64_t bytes;
    void *p = cn_mul_u64(n, size, &bytes) ? cn_arena_alloc(b->loading, bytes) : NULL;
    if (!p && !eng_b_failed(b)) cn_fail(&b->error, CN_ENOMEM, "out of memory");
    return p;
}

static struct kr_tensor *matrices(struct eng_builder *b, const struct kr_tensor *from,
                                  enum kr_type type, uint64_t n, uint64_t rows, uint64_t cols)
{
    const struct kr_type_info *ti = kr_type_info((uint32_t)type);
    uint64_t bytes = n * rows * (cols / ti->block_elems) * ti->block_bytes;
    struct kr_tensor *t = cn_arena_copy(b->arena, from, sizeof(*from));
    const void *data = b->measuring ? from->data : take(b, bytes, 1);
    if (!t || !data) {
        if (!eng_b_failed(b)) cn_fail(&b->error, CN_ENOMEM, "out of memory");
        return NULL;
    }
    *t = (struct kr_tensor){.name = from->name,
                            .type = type,
                            .n_dims = 3,
                            .ne = {cols, rows, n, 1},
                            .data = data,
                            .bytes = bytes};
    return t;
}

/* dst[column][row] = the value of row `row`, for rows of `cols` values. */
static void put_column(struct kr_tensor *dst, uint64_t at, uint64_t row, const float *values,
                       uint64_t cols)
{
    uint64_t width = dst->ne[0];
    for (uint64_t c = 0; c < cols; c++) {
        uint64_t i = at + c * width + row;
        if (dst->type == KR_F32)
            ((float *)dst->data)[i] = values[c];
        else
            kr_quantize_f16(&values[c], (uint16_t *)dst->data + i, 1);
    }
}

static struct eng_latent split(struct eng_builder *b, const struct kr_tensor *w, uint32_t heads,
                               uint32_t nope, uint32_t v_dim, uint32_t latent)
{
    bool precise = w->type == KR_F32 || w->type == KR_BF16;
    uint64_t row_bytes = w->bytes / w->ne[1];
    struct kr_tensor *k = matrices(b, w, precise ? KR_F32 : KR_F16, heads, latent, nope);
    struct kr_tensor *v = matrices(b, w, w->type, heads, v_dim, latent);
    float *row = take(b, latent, sizeof(*row));
    if (!k || !v || !row) return (struct eng_latent){NULL, NULL};
    if (b->measuring) return (struct eng_latent){k, v};
    for (uint64_t h = 0; h < heads; h++) {
        const uint8_t *from = (const uint8_t *)w->data + h * (nope + v_dim) * row_bytes;
        for (uint64_t r = 0; r < nope; r++) {
            kr_dequantize_row(w->type, from + r * row_bytes, row, latent);
            put_column(k, h * latent * nope, r, row, latent);
        }
        memcpy((uint8_t *)v->data + h * v_dim * row_bytes, from + nope * row_bytes,
               v_dim * row_bytes);
    }
    return (struct eng_latent){k, v};
}

struct eng_latent eng_b_latent(struct eng_builder *b, int layer, bool legacy, uint32_t heads,
                               uint32_t nope, uint32_t v_dim, uint32_t latent)
{
    if (!legacy || eng_b_has(b, layer, "attn_k_b.weight"))
        return (struct eng_latent){
            eng_b_matrices(b, layer, "attn_k_b.weight", heads, latent, nope),
            eng_b_matrices(b, layer, "attn_v_b.weight", heads, v_dim, latent)};
    const struct kr_tensor *w =
        eng_b_matrices(b, layer, "attn_kv_b.weight", 1, (uint64_t)heads * (nope + v_dim), latent);
    return w ? split(b, w, heads, nope, v_dim, latent) : (struct eng_latent){NULL, NULL};
}
