#include "tests/kernels/tiny.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/half.h"
#include "tests/kernels/scales.h"

static void need(bool ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "tiny: %s\n", what);
    abort();
}

uint32_t tiny_rand(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*seed >> 32);
}

float tiny_uniform(uint64_t *seed)
{
    return (float)((double)tiny_rand(seed) / 2147483648.0 - 1.0);
}

static void *blob(struct tiny *t, size_t bytes)
{
    t->blobs = realloc(t->blobs, (t->n_blobs + 1) * sizeof *t->blobs);
    void *p = calloc(1, bytes ? bytes : 1);
    need(t->blobs && p, "memory");
    t->blobs[t->n_blobs++] = p;
    return p;
}

struct kr_tensor tiny_vector(struct tiny *t, const char *name, uint32_t n, float mid, float spread)
{
    float *v = blob(t, n * sizeof *v);
    for (uint32_t i = 0; i < n; i++)
        v[i] = mid + spread * tiny_uniform(&t->seed);
    return (struct kr_tensor){.name = name,
                              .type = KR_F32,
                              .n_dims = 1,
                              .ne = {n, 1, 1, 1},
                              .data = v,
                              .bytes = n * sizeof *v};
}

/* The rest of a block may be any bytes. */
static void set_scales(enum kr_type type, uint8_t *b, float d, float min)
{
    uint16_t hd = kr_f32_f16(d), hm = kr_f32_f16(min);
    if (type == KR_MXFP4) {
        b[scale_at(type)] = e8m0_half_of(d);
        return;
    }
    memcpy(b + scale_at(type), &hd, 2);
    if (min_at(type) >= 0) memcpy(b + min_at(type), &hm, 2);
}

struct kr_tensor tiny_matrix(struct tiny *t, const char *name, enum kr_type type, uint32_t rows,
                             uint32_t cols, float size)
{
    const struct kr_type_info *ti = kr_type_info((uint32_t)type);
    need(ti && cols % ti->block_elems == 0, "matrix shape");
    size_t n = (size_t)rows * (cols / ti->block_elems);
    uint8_t *p = blob(t, n * ti->block_bytes);
    float d = size / sqrtf((float)cols);
    for (size_t i = 0; i < n; i++) {
        uint8_t *b = p + i * ti->block_bytes;
        float f = d * 2 * tiny_uniform(&t->seed);
        uint16_t h = kr_f32_f16(f);
        for (uint32_t j = 0; j < ti->block_bytes; j++)
            b[j] = (uint8_t)(tiny_rand(&t->seed) >> 8);
        switch (type) {
        case KR_F32:
            memcpy(b, &f, 4);
            break;
        case KR_F16:
            memcpy(b, &h, 2);
            break;
        case KR_BF16:
            h = (uint16_t)(kr_f32_bits(f) >> 16);
            memcpy(b, &h, 2);
            break;
        case KR_TQ1_0:
        case KR_TQ2_0:
            set_scales(type, b, d, 0);
            break;
        case KR_Q2_K:
            set_scales(type, b, d / 8, d / 8);
            break;
        case KR_Q8_0:
        case KR_Q3_K:
        case KR_IQ4_NL:
            set_scales(type, b, d / 64, 0);
            break;
        case KR_Q4_0:
        case KR_Q4_1:
        case KR_MXFP4:
            set_scales(type, b, d / 4, -2 * d);
            break;
        case KR_Q5_0:
        case KR_Q5_1:
            set_scales(type, b, d / 8, -2 * d);
            break;
        default:
            set_scales(type, b, d / (type == KR_Q6_K || type == KR_IQ4_XS ? 2000 : 256), d / 32);
        }
    }
    return (struct kr_tensor){.name = name,
                              .type = type,
                              .n_dims = 2,
                              .ne = {cols, rows, 1, 1},
                              .data = p,
                              .bytes = n * ti->block_bytes};
}

static int linear(struct tiny *t, int x, uint32_t rows, uint32_t cols, bool bias)
{
    struct kr_tensor w = tiny_matrix(t, "w", t->shape.weights, rows, cols, 1.0f);
    struct kr_tensor b = tiny_vector(t, "b", rows, 0, 0.1f);
    return kr_op_matmul(t->plan, x, &w, bias ? &b : NULL);
}

static int norm(struct tiny *t, int x, uint32_t n, uint32_t heads)
{
    struct kr_tensor w = tiny_vector(t, "norm", n, 1, 0.2f);
    return kr_op_rms_norm(t->plan, x, &w, 1e-5f, heads);
}

static int layer(struct tiny *t, int x, int group, const struct kr_rope *rope)
{
    const struct tiny_shape *s = &t->shape;
    struct kr_plan *p = t->plan;
    uint32_t q_width = s->heads * s->head_dim, kv_width = s->kv_heads * s->head_dim;
    int n = norm(t, x, s->width, 1);
    int q = linear(t, n, q_width, s->width, s->bias);
    int k = linear(t, n, kv_width, s->width, s->bias);
    int v = linear(t, n, kv_width, s->width, s->bias);
    if (s->qk_norm) {
        q = norm(t, q, s->head_dim, s->heads);
        k = norm(t, k, s->head_dim, s->kv_heads);
    }
    q = kr_op_rope(p, q, rope);
    k = kr_op_rope(p, k, rope);
    int kv = kr_plan_kv_layer(p, group, s->kv_heads, s->head_dim, s->head_dim);
    kr_op_kv_write(p, kv, k, v);
    struct kr_attn attn = {.kv_layer = kv,
                           .n_heads = s->heads,
                           .softcap = s->softcap,
                           .scale = 3.0f / sqrtf((float)s->head_dim)};
    int a = kr_op_attention(p, q, &attn);
    x = kr_op_add(p, x, linear(t, a, s->width, q_width, false));
    n = norm(t, x, s->width, 1);
    int gate = linear(t, n, s->ffn, s->width, false), up = linear(t, n, s->ffn, s->width, false);
    int h = kr_op_glu(p, gate, up, s->softcap > 0 ? KR_ACT_GELU_TANH : KR_ACT_SILU);
    return kr_op_add(p, x, linear(t, h, s->width, s->ffn, false));
}

struct tiny *tiny_new(const struct tiny_shape *shape, uint64_t seed)
{
    struct tiny *t = calloc(1, sizeof *t);
    need(t, "memory");
    t->shape = *shape;
    t->seed = seed;
    t->plan = kr_plan_new();
    need(t->plan, "plan");
    float *inv = blob(t, shape->head_dim / 2 * sizeof *inv);
    for (uint32_t i = 0; i < shape->head_dim / 2; i++)
        inv[i] = (float)pow(10000.0, -2.0 * i / shape->head_dim);
    struct kr_rope rope = {.kind = shape->neox ? KR_ROPE_NEOX : KR_ROPE_NORM,
                           .head_dim = shape->head_dim,
                           .n_rot = shape->head_dim,
                           .inv_freq = inv,
                           .amplitude = 1};
    int full = kr_plan_kv_group(t->plan, KR_SPAN_ALL, 0), part = full;
    if (shape->window) part = kr_plan_kv_group(t->plan, KR_SPAN_WINDOW, shape->window);
    struct kr_tensor table = tiny_matrix(t, "embd", shape->head, shape->vocab, shape->width, 1.0f);
    int x = kr_op_embed(t->plan, &table, shape->softcap > 0 ? 4.0f : 1.0f);
    for (uint32_t i = 0; i < shape->n_layers; i++)
        x = layer(t, x, i % 2 ? part : full, &rope);
    x = kr_op_take_logits(t->plan, x);
    x = norm(t, x, shape->width, 1);
    x = kr_op_matmul(t->plan, x, &table, NULL);
    if (shape->softcap > 0) x = kr_op_softcap(t->plan, x, shape->softcap);
    kr_plan_output(t->plan, x);
    struct cn_error err = {0};
    if (kr_plan_finish(t->plan, &err)) need(false, err.message);
    return t;
}

void tiny_free(struct tiny *t)
{
    kr_plan_free(t->plan);
    for (uint32_t i = 0; i < t->n_blobs; i++)
        free(t->blobs[i]);
    free(t->blobs);
    free(t);
}

bool tiny_run_open(struct tiny_run *r, const struct tiny *t, const struct tiny_run_opts *o)
{
    struct cn_error err = {0};
    *r = (struct tiny_run){
        .block_tokens = o->block_tokens, .n_blocks = o->n_blocks, .order = o->order};
    const char *kind = o->device ? o->device : dev_kind();
    int rc = dev_new_of(kind, o->isa, o->threads, &r->dev, &err);
    if (rc == CN_EUNSUPP) return false;
    need(!rc, err.message);
    uint32_t logit_rows = o->max_logit_rows ? o->max_logit_rows : o->max_rows;
    struct kr_prepare_opts prep = {.kv_type = o->kv_type,
                                   .block_tokens = o->block_tokens,
                                   .max_rows = o->max_rows,
                                   .max_logit_rows = logit_rows,
                                   .max_seqs = o->max_seqs,
                                   .max_context = o->max_context};
    if (kr_prepare(r->dev, t->plan, &prep, &r->exec, &err)) need(false, err.message);
    const struct kr_exec_info *info = kr_exec_info(r->exec);
    uint64_t slab = 64;
    for (uint32_t g = 0; g < info->n_groups; g++)
        slab = CN_MAX(slab, info->groups[g].block_bytes);
    r->n_groups = info->n_groups;
    r->slab_blocks = o->slab_blocks ? o->slab_blocks : 1;
    if (kr_kv_mem_new(r->dev, slab * r->slab_blocks,
                      (o->n_blocks / r->slab_blocks + 1) * info->n_groups, &r->mem, &err))
        need(false, err.message);
    return true;
}

void tiny_run_close(struct tiny_run *r)
{
    kr_kv_mem_free(r->mem);
    kr_exec_free(r->exec);
    kr_device_free(r->dev);
}

/* Groups take turns with slabs, `order` scatters and reverses. */
static uint32_t next_block(struct tiny_run *r, uint32_t group)
{
    uint32_t i = r->used[group]++;
    need(i < r->n_blocks, "KV memory of the test");
    if (r->order & 1) i = r->n_blocks - 1 - i;
    if (r->order & 2) i = (uint32_t)((uint64_t)i * 7919 % r->n_blocks);
    uint32_t slab = i / r->slab_blocks * r->n_groups + group;
    return slab << KR_BLOCK_INDEX_BITS | i % r->slab_blocks;
}

void tiny_seq_open(struct tiny_run *r, struct tiny_seq *s, const uint32_t *tokens, uint32_t n,
                   uint32_t vocab, bool keep)
{
    *s = (struct tiny_seq){.tokens = tokens, .n_tokens = n};
    uint32_t blocks = (n + r->block_tokens - 1) / r->block_tokens;
    for (uint32_t g = 0; g < r->n_groups; g++) {
        s->tables[g] = malloc(blocks * sizeof(uint32_t));
        need(s->tables[g], "memory");
        for (uint32_t i = 0; i < blocks; i++)
            s->tables[g][i] = next_block(r, g);
        s->table_ptrs[g] = s->tables[g];
    }
    if (!keep) return;
    s->logits = calloc((size_t)n * vocab, sizeof(float));
    need(s->logits, "memory");
}

void tiny_seq_close(struct tiny_seq *s)
{
    for (int g = 0; g < 4; g++)
        free(s->tables[g]);
    free(s->logits);
}

void tiny_step(struct tiny_run *r, struct tiny_seq *const *seqs, const uint32_t *n, uint32_t n_seqs,
               uint32_t vocab)
{
    uint32_t n_rows = 0, total = 0;
    for (uint32_t i = 0; i < n_seqs; i++)
        total += n[i];
    struct kr_row *rows = calloc(total ? total : 1, sizeof *rows);
    struct kr_seq *ks = calloc(n_seqs, sizeof *ks);
    need(rows && ks, "memory");
    for (uint32_t i = 0; i < n_seqs; i++) {
        ks[i].tables = seqs[i]->table_ptrs;
        for (uint32_t j = 0; j < n[i]; j++, n_rows++) {
            uint32_t pos = seqs[i]->done + j;
            rows[n_rows] = (struct kr_row){.seq = i,
                                           .pos = pos,
                                           .src = KR_ROW_TOKEN,
                                           .logits = seqs[i]->logits != NULL,
                                           .token = seqs[i]->tokens[pos]};
        }
    }
    struct kr_batch b = {.n_rows = n_rows, .n_seqs = n_seqs, .rows = rows, .seqs = ks};
    struct cn_error err = {0};
    uint64_t ticket;
    float *logits;
    if (kr_launch(r->exec, r->mem, &b, &ticket, &err)) need(false, err.message);
    if (kr_collect(r->exec, ticket, &logits, &err)) need(false, err.message);
    for (uint32_t i = 0; i < n_seqs; i++) {
        for (uint32_t j = 0; j < n[i] && seqs[i]->logits; j++, logits += vocab)
            memcpy(seqs[i]->logits + (size_t)(seqs[i]->done + j) * vocab, logits,
                   vocab * sizeof(float));
        seqs[i]->done += n[i];
    }
    free(rows);
    free(ks);
}
