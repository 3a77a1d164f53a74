/* kv: the memory of KV blocks, where each layer and head lies in a block, storing and copying.
 *
 * Engine thread, but for kr_cpu_kv_store, which the step's threads call for different rows. A block of a group holds, layer by layer, K [head][k_dim][token] (so that a vector lane is
 * a key) and V [head][token][v_dim]; q8_0 has its f16 scales after each. A block of the group of
 * states is a sequence's, one op's after the other (recurrent.h says how each lies). */
#include "kernels/cpu/cpu.h"
#include "kernels/half.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define Q8_DIMS   32u
#define HUGE_PAGE (2ull << 20)

/* ---- layout ----------------------------------------------------------------------------------- */

static uint64_t pad64(uint64_t n)
{
    return (n + 63) & ~63ull;
}

static void place_layer(struct kr_cpu_exec *x, uint32_t i, uint64_t *block_bytes)
{
    const struct kr_plan_layer *p = &x->plan->layers[i];
    struct kr_kv_layer *l = &x->kv_layers[i];
    uint64_t bt = x->opts.block_tokens, heads = p->n_kv_heads;
    bool q8 = x->opts.kv_type == KR_Q8_0;
    uint64_t elem = q8 ? 1 : 2;
    uint64_t k_scales = q8 ? (p->k_dim + Q8_DIMS - 1) / Q8_DIMS * bt * 2 : 0;
    uint64_t v_scales = q8 ? (p->v_dim + Q8_DIMS - 1) / Q8_DIMS * bt * 2 : 0;
    *l = (struct kr_kv_layer){ .group = p->group, .n_heads = p->n_kv_heads, .k_dim = p->k_dim,
                               .v_dim = p->v_dim, .at = *block_bytes,
                               .k_head = p->k_dim * bt * elem, .ks_head = k_scales,
                               .v_head = p->v_dim * bt * elem, .vs_head = v_scales };
    l->head.k = 0;
    l->head.k_scale = pad64(heads * l->k_head);
    l->head.v = l->head.k_scale + pad64(heads * k_scales);
    l->head.v_scale = l->head.v + pad64(heads * l->v_head);
    *block_bytes += l->head.v_scale + pad64(heads * v_scales);
}

int kr_cpu_kv_layout(struct kr_cpu_exec *x, struct cn_error *err)
{
    const struct kr_plan *p = x->plan;
    x->kv_layers = cn_calloc(p->n_layers, sizeof *x->kv_layers);
    x->kv_groups = cn_calloc(p->n_groups, sizeof *x->kv_groups);
    if (!x->kv_layers || !x->kv_groups) return cn_fail(err, CN_ENOMEM, "out of memory");
    for (uint32_t i = 0; i < p->n_layers; i++)
        place_layer(x, i, &x->kv_groups[p->layers[i].group].block_bytes);
    if (p->state_group >= 0)
        x->kv_groups[p->state_group].block_bytes = pad64(p->state_floats * sizeof(float));
    for (uint32_t g = 0; g < p->n_groups; g++) {
        x->kv_groups[g].span = p->groups[g].span;
        x->kv_groups[g].window_tokens = p->groups[g].window_tokens;
        x->kv_groups[g].n_layers = p->groups[g].n_layers;
        x->kv_groups[g].block_bytes = CN_MAX(x->kv_groups[g].block_bytes, 64u);
    }
    x->base.info.n_groups = (uint32_t)p->n_groups;
    x->base.info.groups = x->kv_groups;
    return 0;
}

/* ---- memory ----------------------------------------------------------------------------------- */

int kr_cpu_mem_new(struct kr_device *d, uint64_t slab_bytes, uint32_t n_slabs,
                   struct kr_kv_mem **out, struct cn_error *err)
{
    uint64_t bytes;
    if (!slab_bytes || slab_bytes % 64 || !n_slabs ||
        n_slabs > UINT32_MAX >> KR_BLOCK_INDEX_BITS || !cn_mul_u64(slab_bytes, n_slabs, &bytes) ||
        bytes > SIZE_MAX / 2)
        return cn_fail(err, CN_EINVAL, "KV memory of %u slabs of %llu bytes is not possible",
                       n_slabs, (unsigned long long)slab_bytes);
    struct kr_cpu_mem *m = cn_calloc(1, sizeof *m);
    if (!m) return cn_fail(err, CN_ENOMEM, "out of memory");
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
        free(m);
        return cn_fail(err, CN_ENOMEM, "out of memory: KV memory of %llu bytes",
                       (unsigned long long)bytes);
    }
#if defined(MADV_HUGEPAGE)
    /* A layer's part of a block is a few KB: with small pages each costs a walk of the tables. */
    if (slab_bytes >= HUGE_PAGE) madvise(data, bytes, MADV_HUGEPAGE);
#endif
    *m = (struct kr_cpu_mem){ .base.ops = d->ops, .data = data, .slab_bytes = slab_bytes,
                              .bytes = bytes, .n_slabs = n_slabs };
    *out = &m->base;
    return 0;
}

void kr_cpu_mem_free(struct kr_kv_mem *base)
{
    if (!base) return;
    struct kr_cpu_mem *m = CN_CONTAINER(base, struct kr_cpu_mem, base);
    munmap(m->data, m->bytes);
    free(m);
}

uint8_t *kr_cpu_block(const struct kr_cpu_exec *x, const struct kr_cpu_mem *m, uint32_t group,
                      uint32_t block)
{
    uint64_t slab = block >> KR_BLOCK_INDEX_BITS, bytes = x->kv_groups[group].block_bytes;
    uint64_t index = block & ((1u << KR_BLOCK_INDEX_BITS) - 1);
    if (slab >= m->n_slabs || (index + 1) * bytes > m->slab_bytes) return NULL;
    return m->data + slab * m->slab_bytes + index * bytes;
}

/* Copies the first n of bt elements in each of `rows` rows. */
static void copy_columns(uint8_t *dst, const uint8_t *src, uint64_t rows, uint64_t row_bytes,
                         uint64_t n_bytes)
{
    for (uint64_t r = 0; r < rows; r++)
        memcpy(dst + r * row_bytes, src + r * row_bytes, n_bytes);
}

int kr_cpu_kv_copy(struct kr_exec *base, struct kr_kv_mem *m, uint32_t group, uint32_t dst,
                   uint32_t src, uint32_t n_tokens)
{
    const struct kr_cpu_exec *x = CN_CONTAINER(base, struct kr_cpu_exec, base);
    const struct kr_cpu_mem *mem = CN_CONTAINER(m, struct kr_cpu_mem, base);
    uint64_t bt = x->opts.block_tokens, elem = x->opts.kv_type == KR_Q8_0 ? 1 : 2;
    if (group >= x->base.info.n_groups) return CN_EINVAL;
    bool whole = x->kv_groups[group].span == KR_SPAN_STATE;
    if (n_tokens > bt && !whole) return CN_EINVAL;
    uint8_t *d = kr_cpu_block(x, mem, group, dst);
    const uint8_t *s = kr_cpu_block(x, mem, group, src);
    if (!d || !s) return CN_ERANGE;
    if (d == s) return 0;
    if (whole) memcpy(d, s, x->kv_groups[group].block_bytes);
    for (uint32_t i = 0; i < x->plan->n_layers; i++) {
        const struct kr_kv_layer *l = &x->kv_layers[i];
        if (l->group != group) continue;
        uint64_t k = l->at + l->head.k, ks = l->at + l->head.k_scale;
        uint64_t v = l->at + l->head.v, vs = l->at + l->head.v_scale;
        copy_columns(d + k, s + k, (uint64_t)l->n_heads * l->k_dim, bt * elem, n_tokens * elem);
        copy_columns(d + ks, s + ks, l->n_heads * l->ks_head / (bt * 2), bt * 2, n_tokens * 2ull);
        copy_columns(d + v, s + v, l->n_heads, l->v_head, l->v_head / bt * n_tokens);
        if (l->vs_head)
            copy_columns(d + vs, s + vs, l->n_heads, l->vs_head, l->vs_head / bt * n_tokens);
    }
    return 0;
}

/* ---- storing ---------------------------------------------------------------------------------- */

/* Up to 32 values: scale = max |x| / 127 in f16. A value that is not finite makes the scale NaN,
 * so that it is seen and not stored as a number. */
static uint16_t quantize_dims(const float *x, uint32_t n, int8_t *q)
{
    float max = 0;
    bool finite = true;
    for (uint32_t i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        finite = finite && a <= 3.4028235e38f;
        max = a > max ? a : max;
    }
    float inv = max > 1e-36f ? 127.0f / max : 0.0f;
    for (uint32_t i = 0; i < n; i++)
        q[i] = finite ? (int8_t)lrintf(x[i] * inv) : 1;
    return finite ? kr_f32_f16(max / 127.0f) : 0x7e00;
}

static void put_half(uint8_t *p, uint64_t i, uint16_t h)
{
    memcpy(p + 2 * i, &h, sizeof h);
}

static void store_q8(const struct kr_kv_layer *l, uint8_t *head_k, uint8_t *head_ks,
                     uint8_t *head_v, uint8_t *head_vs, uint32_t tok, uint32_t bt, const float *k,
                     const float *v)
{
    int8_t q[Q8_DIMS];
    for (uint32_t d = 0; d < l->k_dim; d += Q8_DIMS) {
        uint32_t n = CN_MIN(Q8_DIMS, l->k_dim - d);
        put_half(head_ks, (uint64_t)(d / Q8_DIMS) * bt + tok, quantize_dims(k + d, n, q));
        for (uint32_t i = 0; i < n; i++)
            head_k[(uint64_t)(d + i) * bt + tok] = (uint8_t)q[i];
    }
    uint64_t v_scales = (l->v_dim + Q8_DIMS - 1) / Q8_DIMS;
    for (uint32_t d = 0; d < l->v_dim; d += Q8_DIMS) {
        uint32_t n = CN_MIN(Q8_DIMS, l->v_dim - d);
        put_half(head_vs, tok * v_scales + d / Q8_DIMS, quantize_dims(v + d, n, q));
        memcpy(head_v + (uint64_t)tok * l->v_dim + d, q, n);
    }
}

static void store_f16(const struct kr_cpu_ops *ops, const struct kr_kv_layer *l, uint8_t *head_k,
                      uint8_t *head_v, uint32_t tok, uint32_t bt, const float *k, const float *v)
{
    uint16_t h[64];
    for (uint32_t d = 0; d < l->k_dim; d += 64) {
        uint32_t n = CN_MIN(64u, l->k_dim - d);
        ops->to_f16(h, k + d, n);
        for (uint32_t i = 0; i < n; i++)
            put_half(head_k, (uint64_t)(d + i) * bt + tok, h[i]);
    }
    ops->to_f16((uint16_t *)(void *)(head_v + (uint64_t)tok * l->v_dim * 2), v, l->v_dim);
}

void kr_cpu_kv_store(const struct kr_cpu_exec *x, uint32_t layer, uint32_t row, const float *k,
                     const float *v)
{
    const struct kr_kv_layer *l = &x->kv_layers[layer];
    const struct kr_row *r = &x->now.batch->rows[row];
    uint32_t bt = x->opts.block_tokens, tok = r->pos[0] % bt;
    uint32_t block = x->now.batch->seqs[r->seq].tables[l->group][r->pos[0] / bt];
    uint8_t *at = kr_cpu_block(x, x->now.mem, l->group, block) + l->at;
    for (uint32_t h = 0; h < l->n_heads; h++) {
        uint8_t *hk = at + l->head.k + h * l->k_head, *hv = at + l->head.v + h * l->v_head;
        const float *kh = k + (size_t)h * l->k_dim, *vh = v + (size_t)h * l->v_dim;
        if (x->opts.kv_type == KR_F16)
            store_f16(&x->dev->ops, l, hk, hv, tok, bt, kh, vh);
        else
            store_q8(l, hk, at + l->head.k_scale + h * l->ks_head, hv,
                     at + l->head.v_scale + h * l->vs_head, tok, bt, kh, vh);
    }
}
