/* kv: the memory of KV blocks, their layout by layer and head, storing and copying.
 *
 * Engine thread, except for kr_cpu_kv_store, which the step's threads call for different rows. A
 * block of a group holds, layer by layer and head by head (memory is fastest with long runs), K
 * [k_dim][token] (so that a vector lane is a key) and V [token][v_dim]; after them quantised
 * types have the f16 scales of both. q8_0 has pairs side by side: K [k_dim / 2][token][2], V
 * [token / 2][v_dim][2], and V's scales as K's. Latent layers have K [token][k_dim] alone: it is
 * V too, and chosen keys are read one by one. A block of the group of states is a sequence's,
 * one op's after the other (recurrent.h says how each lies). */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/kv_read.h"
#include "kernels/half.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE (2ull << 20)

/* ---- layout ---------------------------------------------------------------------------------- */

static uint64_t pad64(uint64_t n)
{
    return (n + 63) & ~63ull;
}

static void place_layer(struct kr_cpu_exec *x, uint32_t i, uint64_t *block_bytes)
{
    const struct kr_plan_layer *p = &x->plan->layers[i];
    struct kr_kv_layer *l = &x->kv_layers[i];
    uint64_t bt = x->base.opts.block_tokens;
    uint32_t v_kept = p->latent ? 0 : p->v_dim;
    enum kr_type type = x->base.opts.kv_type;
    uint32_t k_kept = p->k_dim + (type == KR_Q8_0 && !p->latent ? p->k_dim % 2 : 0);
    *l = (struct kr_kv_layer){.group = p->group,
                              .n_heads = p->n_kv_heads,
                              .k_dim = p->k_dim,
                              .v_dim = p->v_dim,
                              .v_kept = v_kept,
                              .latent = p->latent,
                              .at = *block_bytes,
                              .k_head = kr_kv_bytes(type, k_kept) * bt,
                              .ks_head = kr_kv_scale_bytes(type, p->k_dim) * bt,
                              .v_head = kr_kv_bytes(type, v_kept) * bt,
                              .vs_head = kr_kv_scale_bytes(type, v_kept) * bt};
    l->head.v = l->k_head;
    l->head.k_scale = l->head.v + l->v_head;
    l->head.v_scale = l->head.k_scale + l->ks_head;
    l->step = pad64(l->head.v_scale + l->vs_head);
    l->bytes = l->step * p->n_kv_heads;
    *block_bytes += l->bytes;
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
    kr_plan_groups(p, x->kv_groups);
    for (uint32_t g = 0; g < p->n_groups; g++)
        x->kv_groups[g].block_bytes = CN_MAX(x->kv_groups[g].block_bytes, 64u);
    x->base.info.n_groups = (uint32_t)p->n_groups;
    x->base.info.groups = x->kv_groups;
    return 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

int kr_cpu_mem_new(struct kr_device *d, uint64_t slab_bytes, uint32_t n_slabs,
                   struct kr_kv_mem **out, struct cn_error *err)
{
    uint64_t bytes = slab_bytes * n_slabs;
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
    /* A head's part of a block is a few KB: with small pages each costs a walk of the tables. Slabs
     * are as many whole blocks as come near a huge page's size. */
    if (slab_bytes > HUGE_PAGE / 2) madvise(data, bytes, MADV_HUGEPAGE);
#endif
    *m = (struct kr_cpu_mem){.data = data, .bytes = bytes};
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

/* Copies the first n of bt tokens' elements in each row of [rows][bt]. */
static void copy_tokens(uint8_t *dst, const uint8_t *src, uint64_t rows, uint64_t elem, uint64_t bt,
                        uint64_t n)
{
    for (uint64_t r = 0; r < rows; r++)
        memcpy(dst + r * bt * elem, src + r * bt * elem, n * elem);
}

/* K's rows are dims (of q8_0 pairs of them); a latent layer has one row, like V. */
static void copy_head(const struct kr_kv_layer *l, enum kr_type type, uint8_t *d, const uint8_t *s,
                      uint64_t bt, uint64_t n)
{
    uint64_t elem = l->latent ? l->k_head / bt : type == KR_Q4_0 ? 1 : 2;
    uint64_t scale = l->latent ? l->ks_head / bt : 2;
    bool pairs = type == KR_Q8_0;
    copy_tokens(d + l->head.k, s + l->head.k, l->k_head / bt / elem, elem, bt, n);
    if (l->ks_head)
        copy_tokens(d + l->head.k_scale, s + l->head.k_scale, l->ks_head / bt / scale, scale, bt,
                    n);
    copy_tokens(d + l->head.v, s + l->head.v, 1, l->v_head / bt, bt, pairs ? n + n % 2 : n);
    if (pairs)
        copy_tokens(d + l->head.v_scale, s + l->head.v_scale, l->vs_head / bt / 2, 2, bt, n);
    else
        copy_tokens(d + l->head.v_scale, s + l->head.v_scale, 1, l->vs_head / bt, bt, n);
}

#define PIECE (256u << 10)

struct pieces {
    uint8_t *d;
    const uint8_t *s;
    uint64_t bytes;
};

static void copy_piece(void *arg, uint32_t i)
{
    const struct pieces *p = arg;
    uint64_t at = (uint64_t)i * PIECE;
    memcpy(p->d + at, p->s + at, CN_MIN(p->bytes - at, (uint64_t)PIECE));
}

/* A recurrent state may have many megabytes, and every stream waits for the copy. */
static void copy_state(const struct kr_cpu_exec *x, uint8_t *d, const uint8_t *s, uint64_t bytes)
{
    struct pieces p = {d, s, bytes};
    if (bytes <= PIECE)
        memcpy(d, s, bytes);
    else
        kr_device_parallel(&x->dev->base, (uint32_t)((bytes + PIECE - 1) / PIECE), copy_piece, &p);
}

int kr_cpu_kv_copy(struct kr_exec *base, struct kr_kv_mem *m, uint32_t group, uint32_t dst,
                   uint32_t src, uint32_t n_tokens)
{
    const struct kr_cpu_exec *x = CN_CONTAINER(base, struct kr_cpu_exec, base);
    const struct kr_cpu_mem *mem = CN_CONTAINER(m, struct kr_cpu_mem, base);
    uint64_t bt = x->base.opts.block_tokens;
    bool whole = x->kv_groups[group].span == KR_SPAN_STATE;
    uint8_t *d = kr_cpu_block(x, mem, group, dst);
    const uint8_t *s = kr_cpu_block(x, mem, group, src);
    if (whole) copy_state(x, d, s, x->kv_groups[group].block_bytes);
    for (uint32_t i = 0; i < x->plan->n_layers; i++) {
        const struct kr_kv_layer *l = &x->kv_layers[i];
        for (uint32_t h = 0; l->group == group && h < l->n_heads; h++) {
            uint64_t at = l->at + h * l->step;
            copy_head(l, x->base.opts.kv_type, d + at, s + at, bt, n_tokens);
        }
    }
    return 0;
}

/* ---- storing --------------------------------------------------------------------------------- */

/* The scale of 32 values that are `steps` times it at most. A value that is not finite makes it
 * NaN, so that it is seen and not stored as a number. Gives its inverse, 0 for none. Magnitudes are
 * compared as integers, where their order is the same and infinity and NaN come last: the compiler
 * makes vectors of such loops, whatever it targets. */
static uint16_t find_scale(const float x[KR_KV_DIMS], enum kr_type type, float *inv)
{
    int32_t most = 0;
    for (uint32_t i = 0; i < KR_KV_DIMS; i++) {
        int32_t a = (int32_t)(kr_f32_bits(x[i]) & 0x7fffffffu);
        most = a > most ? a : most;
    }
    *inv = 0;
    if (most >= 0x7f800000) return 0x7e00;
    float top;
    memcpy(&top, &most, sizeof top);
    if (type != KR_Q8_0) { /* the sign of the first of them counts */
        uint32_t i = 0;
        while (fabsf(x[i]) != top)
            i++;
        top = x[i];
    }
    float steps = type == KR_Q8_0 ? 127.0f : -8.0f; /* -8 is the one that 4 bits reach */
    if (fabsf(top) > 1e-36f) *inv = steps / top;
    return kr_f32_f16(top / steps);
}

/* Up to 32 values as the pool keeps them, one a byte: int8, or 4 bits from 0 to 15. */
static uint16_t quantize_dims(const float *from, uint32_t n, enum kr_type type,
                              uint8_t q[KR_KV_DIMS])
{
    static const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to nearest even */
    float padded[KR_KV_DIMS], inv;
    const float *x = from;
    if (n < KR_KV_DIMS) {
        for (uint32_t i = 0; i < KR_KV_DIMS; i++)
            padded[i] = i < n ? from[i] : 0;
        x = padded;
    }
    uint16_t scale = find_scale(x, type, &inv);
    if (inv == 0.0f) {
        memset(q, type == KR_Q8_0 ? 0 : 8, KR_KV_DIMS);
    } else if (type == KR_Q8_0) {
        for (uint32_t i = 0; i < KR_KV_DIMS; i++)
            q[i] = (uint8_t)kr_f32_bits(x[i] * inv + magic);
    } else {
        for (uint32_t i = 0; i < KR_KV_DIMS; i++) {
            int v = (int)(x[i] * inv + 8.5f);
            q[i] = (uint8_t)(v < 15 ? v : 15);
        }
    }
    return scale;
}

static void put_half(uint8_t *p, uint64_t i, uint16_t h)
{
    memcpy(p + 2 * i, &h, sizeof h);
}

/* Where dims of a token lie: so many bytes from an even one to the next, from it to the odd one
 * (q4_0 has both in a byte), and from scale to scale. */
struct places { uint64_t pair, odd, scale; };

static void store_blocks(enum kr_type type, const float *x, uint32_t n, uint8_t *to,
                         uint8_t *scales, struct places at)
{
    uint8_t q[KR_KV_DIMS];
    for (uint32_t d = 0; d < n; d += KR_KV_DIMS) {
        uint32_t some = CN_MIN(KR_KV_DIMS, n - d);
        put_half(scales + d / KR_KV_DIMS * at.scale, 0, quantize_dims(x + d, some, type, q));
        if (type != KR_Q8_0 && some % 2) q[some] = 0;
        if (type == KR_Q8_0)
            for (uint32_t i = 0; i < some; i++)
                to[(d + i) / 2 * at.pair + i % 2 * at.odd] = q[i];
        else
            for (uint32_t i = 0; i < some; i += 2)
                to[(d + i) / 2 * at.pair] = (uint8_t)(q[i] | q[i + 1] << 4);
    }
}

/* K of latent layers, whose dims lie together. */
static void store_latent(const struct kr_cpu_ops *ops, enum kr_type type, const float *x,
                         uint32_t n, uint8_t *to, uint8_t *scales)
{
    struct places at = {.pair = type == KR_Q8_0 ? 2 : 1, .odd = 1, .scale = 2};
    if (type == KR_F16)
        ops->to_f16((uint16_t *)(void *)to, x, n);
    else
        store_blocks(type, x, n, to, scales, at);
}

/* V: those of q8_0 beside their neighbour's. */
static void store_values(const struct kr_cpu_ops *ops, enum kr_type type, const float *x,
                         uint32_t n, uint8_t *values, uint8_t *scales, uint32_t bt, uint32_t tok)
{
    struct places at = {.pair = 4, .odd = 2, .scale = 2ull * bt};
    if (type == KR_Q8_0)
        store_blocks(type, x, n, values + 2ull * n * (tok / 2) + tok % 2, scales + 2ull * tok, at);
    else
        store_latent(ops, type, x, n, values + kr_kv_bytes(type, n) * tok,
                     scales + kr_kv_scale_bytes(type, n) * tok);
}

/* Layout: each dim's values of all tokens are adjacent. */
static void store_key(const struct kr_cpu_ops *ops, enum kr_type type, const float *x, uint32_t n,
                      uint8_t *keys, uint8_t *scales, uint32_t bt, uint32_t tok)
{
    uint16_t h[64];
    uint32_t each = type == KR_Q8_0 ? 2 : 1;
    struct places at = {.pair = each * bt, .odd = 1, .scale = 2ull * bt};
    if (type != KR_F16) {
        store_blocks(type, x, n, keys + each * tok, scales + 2ull * tok, at);
        return;
    }
    for (uint32_t d = 0; d < n; d += 64) {
        uint32_t some = CN_MIN(64u, n - d);
        ops->to_f16(h, x + d, some);
        for (uint32_t i = 0; i < some; i++)
            put_half(keys, (uint64_t)(d + i) * bt + tok, h[i]);
    }
}

void kr_cpu_kv_store(const struct kr_cpu_exec *x, uint32_t layer, uint32_t row, const float *k,
                     const float *v)
{
    const struct kr_kv_layer *l = &x->kv_layers[layer];
    const struct kr_row *r = &x->now.batch->rows[row];
    const struct kr_cpu_ops *ops = &x->dev->ops;
    enum kr_type type = x->base.opts.kv_type;
    uint32_t bt = x->base.opts.block_tokens, tok = r->pos % bt;
    uint32_t block = x->now.batch->seqs[r->seq].tables[l->group][r->pos / bt];
    uint8_t *at = kr_cpu_block(x, x->now.mem, l->group, block) + l->at;
    for (uint32_t h = 0; h < l->n_heads; h++) {
        uint8_t *head = at + h * l->step, *keys = head + l->head.k;
        uint8_t *scales = head + l->head.k_scale;
        const float *from = k + (size_t)h * l->k_dim;
        if (l->latent)
            store_latent(ops, type, from, l->k_dim, keys + l->k_head / bt * tok,
                         scales + l->ks_head / bt * tok);
        else
            store_key(ops, type, from, l->k_dim, keys, scales, bt, tok);
        if (l->v_kept)
            store_values(ops, type, v + (size_t)h * l->v_kept, l->v_kept, head + l->head.v,
                         head + l->head.v_scale, bt, tok);
    }
}
