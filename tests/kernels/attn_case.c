#include "tests/kernels/attn_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/half.h"
#include "tests/kernels/tiny.h"

static void need(bool ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "attn_case: %s\n", what);
    abort();
}

static void *get(size_t n, size_t each)
{
    void *p = calloc(n ? n : 1, each);
    need(p, "memory");
    return p;
}

/* ---- the plan -------------------------------------------------------------------------------- */

struct attn_parts attn_parts_of(const struct attn_shape *s)
{
    struct attn_parts p = {0};
    p.k = s->heads * s->k_dim;
    p.v = p.k + s->kv_heads * s->k_dim;
    p.iq = p.v + (s->latent ? 0 : s->kv_heads * s->v_dim);
    p.iw = p.iq + s->sel_heads * s->sel_dim;
    p.ik = p.iw + s->sel_heads;
    p.end = p.ik + (s->top_k ? s->sel_dim : 0);
    return p;
}

static float softmax_scale(const struct attn_shape *s)
{
    return 3.0f / sqrtf((float)s->k_dim);
}

static int take(struct kr_plan *p, int x, uint32_t from, uint32_t to)
{
    return kr_op_slice(p, x, 1, from, to - from);
}

static void record(struct attn_case *c)
{
    const struct attn_shape *s = &c->shape;
    struct attn_parts at = attn_parts_of(s);
    struct kr_plan *p = c->plan = kr_plan_new();
    need(p, "plan");
    struct kr_tensor table = {.name = "table",
                              .type = KR_F32,
                              .n_dims = 2,
                              .ne = {c->width, 1, 1, 1},
                              .data = c->table,
                              .bytes = c->width * sizeof(float)};
    struct kr_tensor sinks = {.name = "sinks",
                              .type = KR_F32,
                              .n_dims = 1,
                              .ne = {s->heads, 1, 1, 1},
                              .data = c->sinks,
                              .bytes = s->heads * sizeof(float)};
    int x = kr_op_embed(p, &table, 1.0f), select = -1;
    int group = kr_plan_kv_group(p, s->span, s->tokens);
    if (s->top_k) {
        int keys = kr_plan_kv_layer(p, kr_plan_kv_group(p, s->span, s->tokens), 1, s->sel_dim, 0);
        kr_op_kv_write(p, keys, take(p, x, at.ik, at.end), -1);
        select = kr_op_select(p, take(p, x, at.iq, at.iw), take(p, x, at.iw, at.ik), keys, s->top_k,
                              1u << 18);
    }
    int layer = s->latent ? kr_plan_kv_layer_latent(p, group, s->kv_heads, s->k_dim, s->v_dim)
                          : kr_plan_kv_layer(p, group, s->kv_heads, s->k_dim, s->v_dim);
    kr_op_kv_write(p, layer, take(p, x, at.k, at.v), s->latent ? -1 : take(p, x, at.v, at.iq));
    struct kr_attn attn = {.kv_layer = layer,
                           .n_heads = s->heads,
                           .scale = softmax_scale(s),
                           .softcap = s->softcap,
                           .sinks = s->sinks ? &sinks : NULL};
    int q = take(p, x, at.q, at.k);
    int y = s->top_k ? kr_op_attention_selected(p, q, &attn, select) : kr_op_attention(p, q, &attn);
    kr_plan_output(p, kr_op_take_logits(p, y));
    struct cn_error err = {0};
    if (kr_plan_finish(p, &err)) need(false, err.message);
}

static int small_int(uint64_t *seed, int most)
{
    return (int)(tiny_rand(seed) % (2u * (uint32_t)most + 1)) - most;
}

/* The indexer's keys are whole in every KV type: each block of 32 has the value that makes its
 * scale 1. */
static void fill_row(const struct attn_case *c, float *row, uint64_t *seed)
{
    const struct attn_shape *s = &c->shape;
    struct attn_parts at = attn_parts_of(s);
    for (uint32_t i = 0; i < at.iq; i++)
        row[i] = 1.7f * tiny_uniform(seed);
    for (uint32_t i = at.iq; i < at.ik; i++)
        row[i] = (float)small_int(seed, 3);
    for (uint32_t i = 0; i < at.end - at.ik; i++) {
        row[at.ik + i] = (float)small_int(seed, 2);
        if (i % 32 == 0) row[at.ik + i] = c->kv_type == KR_Q8_0 ? 127 : -8;
    }
}

void attn_case_open(struct attn_case *c, const struct attn_shape *shape, enum kr_type kv_type,
                    uint64_t seed)
{
    *c = (struct attn_case){.shape = *shape,
                            .kv_type = kv_type,
                            .width = attn_parts_of(shape).end,
                            .out = shape->heads * shape->v_dim};
    c->rows = get((size_t)shape->n * c->width, sizeof(float));
    c->table = get(c->width, sizeof(float));
    c->sinks = get(shape->heads, sizeof(float));
    for (uint32_t r = 0; r < shape->n; r++)
        fill_row(c, c->rows + (size_t)r * c->width, &seed);
    for (uint32_t h = 0; h < shape->heads; h++) /* from far below the keys' scores to far above */
        c->sinks[h] = 12 * tiny_uniform(&seed);
    record(c);
}

void attn_case_close(struct attn_case *c)
{
    kr_plan_free(c->plan);
    free(c->rows);
    free(c->kept);
    free(c->table);
    free(c->sinks);
}

/* ---- truth ----------------------------------------------------------------------------------- */

/* What the pool keeps of value d of a vector of n: blocks of 32 (the last may be shorter) with an
 * f16 scale. */
static float kept(const float *x, uint32_t n, uint32_t d, enum kr_type type)
{
    const float *b = x + d / 32 * 32;
    float top = 0;
    if (type == KR_F16) return kr_f16_f32(kr_f32_f16(x[d]));
    for (uint32_t i = 0; i < CN_MIN(32u, n - d / 32 * 32); i++)
        if (fabsf(b[i]) > fabsf(top)) top = b[i];
    if (type == KR_Q8_0) {
        float inv = 127.0f / fabsf(top);
        return kr_f16_f32(kr_f32_f16(fabsf(top) / 127.0f)) * rintf(x[d] * inv);
    }
    float scale = top / -8.0f, inv = 1.0f / scale;
    return kr_f16_f32(kr_f32_f16(scale)) * (fminf(floorf(x[d] * inv + 8.5f), 15) - 8);
}

/* Keys and values of all rows; products of 8 and 11 bits are exact. */
static void keep(struct attn_case *c)
{
    const struct attn_shape *s = &c->shape;
    struct attn_parts at = attn_parts_of(s);
    c->kept = get((size_t)s->n * c->width, sizeof(float));
    for (size_t row = 0; row < (size_t)s->n * c->width; row += c->width)
        for (uint32_t i = at.k; i < at.iq; i++) {
            uint32_t part = i < at.v ? at.k : at.v, n = i < at.v ? s->k_dim : s->v_dim;
            uint32_t d = (i - part) % n;
            c->kept[row + i] = kept(c->rows + row + i - d, n, d, c->kv_type);
        }
}

static bool sees(const struct attn_shape *s, uint32_t row, uint32_t key)
{
    if (s->span == KR_SPAN_BOTH)
        return !s->tokens || (key > row ? key - row : row - key) <= s->tokens / 2;
    if (key > row) return false;
    if (s->span == KR_SPAN_WINDOW) return row - key < s->tokens;
    return s->span != KR_SPAN_CHUNK || key >= row / s->tokens * s->tokens;
}

/* chosen[key]: visible and among the best top_k by (score, lower position). */
static void choose(const struct attn_case *c, uint32_t r, bool *chosen)
{
    const struct attn_shape *s = &c->shape;
    struct attn_parts at = attn_parts_of(s);
    const float *row = c->rows + (size_t)r * c->width;
    double *score = get(s->n, sizeof *score);
    for (uint32_t j = 0; j < s->n; j++) {
        const float *key = c->rows + (size_t)j * c->width + at.ik;
        for (uint32_t h = 0; h < s->sel_heads; h++) {
            double dot = 0;
            for (uint32_t d = 0; d < s->sel_dim; d++)
                dot += (double)row[at.iq + h * s->sel_dim + d] * (double)key[d];
            score[j] += (double)row[at.iw + h] * fmax(0, dot);
        }
    }
    for (uint32_t j = 0; j < s->n; j++) {
        uint32_t before = 0;
        for (uint32_t i = 0; i < s->n; i++)
            before += sees(s, r, i) && (score[i] > score[j] || (score[i] == score[j] && i < j));
        chosen[j] = sees(s, r, j) && before < s->top_k;
    }
    free(score);
}

/* Dim d of a query times the softmax's scale; where q8_0 keys are read by all rows it is one of
 * 65535 steps of the block's largest. */
static double query(const struct attn_case *c, const float *q, uint32_t d)
{
    const struct attn_shape *s = &c->shape;
    float scale = softmax_scale(s), most = 0;
    if (c->kv_type != KR_Q8_0 || s->latent || s->top_k) return (double)q[d] * (double)scale;
    for (uint32_t i = d / 32 * 32; i < CN_MIN(d / 32 * 32 + 32, s->k_dim); i++)
        most = fmaxf(most, fabsf(q[i] * scale));
    float inv = 32767.0f / most; /* float32, as the steps are defined: a tie goes the same way */
    return most > 0 ? (double)rintf(q[d] * scale * inv) * (double)most / 32767 : 0;
}

static double logit(const struct attn_case *c, const double *q, uint32_t j, uint32_t kv_head)
{
    const struct attn_shape *s = &c->shape;
    const float *k =
        c->kept + (size_t)j * c->width + attn_parts_of(s).k + (size_t)kv_head * s->k_dim;
    double x = 0;
    for (uint32_t d = 0; d < s->k_dim; d++)
        x += q[d] * (double)k[d];
    return s->softcap > 0 ? s->softcap * tanh(x / (double)s->softcap) : x;
}

static void truth_head(const struct attn_case *c, uint32_t r, uint32_t h, const bool *chosen,
                       double *y)
{
    const struct attn_shape *s = &c->shape;
    struct attn_parts at = attn_parts_of(s);
    uint32_t kv_head = h / (s->heads / s->kv_heads);
    const float *row = c->rows + (size_t)r * c->width + at.q + (size_t)h * s->k_dim;
    double *q = get(s->k_dim, sizeof *q);
    for (uint32_t d = 0; d < s->k_dim; d++)
        q[d] = query(c, row, d);
    double *p = get(s->n, sizeof *p), max = s->sinks ? (double)c->sinks[h] : -INFINITY;
    for (uint32_t j = 0; j < s->n; j++) {
        p[j] = -INFINITY;
        if (chosen[j]) p[j] = logit(c, q, j, kv_head);
        max = fmax(max, p[j]);
    }
    double sum = s->sinks ? exp((double)c->sinks[h] - max) : 0;
    for (uint32_t j = 0; j < s->n; j++)
        sum += p[j] = exp(p[j] - max);
    memset(y, 0, s->v_dim * sizeof *y);
    for (uint32_t j = 0; j < s->n; j++) {
        const float *kept = c->kept + (size_t)j * c->width;
        const float *v = s->latent ? kept + at.k + (size_t)kv_head * s->k_dim
                                   : kept + at.v + (size_t)kv_head * s->v_dim;
        for (uint32_t d = 0; chosen[j] && d < s->v_dim; d++)
            y[d] += p[j] / sum * (double)v[d];
    }
    free(q);
    free(p);
}

void attn_case_truth(struct attn_case *c, uint32_t r, double *y)
{
    const struct attn_shape *s = &c->shape;
    if (!c->kept) keep(c);
    bool *chosen = get(s->n, sizeof *chosen);
    if (s->top_k)
        choose(c, r, chosen);
    else
        for (uint32_t j = 0; j < s->n; j++)
            chosen[j] = sees(s, r, j);
    for (uint32_t h = 0; h < s->heads; h++)
        truth_head(c, r, h, chosen, y + (size_t)h * s->v_dim);
    free(chosen);
}

/* ---- runs ------------------------------------------------------------------------------------ */

enum { MAX_GROUPS = 2 };

struct bench {
    struct kr_device *dev;
    struct kr_exec *exec;
    struct kr_kv_mem *mem;
    uint32_t *tables[2][MAX_GROUPS];
    const uint32_t *ptrs[2][MAX_GROUPS];
    uint32_t n_groups, spare[MAX_GROUPS]; /* a block that nobody has */
};

static bool open_bench(struct bench *b, const struct attn_case *c, const struct attn_run *how)
{
    struct cn_error err = {0};
    *b = (struct bench){0};
    int rc = dev_new(how->isa, how->threads, &b->dev, &err);
    if (rc == CN_EUNSUPP) return false;
    need(!rc, err.message);
    struct kr_prepare_opts prep = {.kv_type = c->kv_type,
                                   .block_tokens = how->block_tokens,
                                   .max_rows = how->max_rows,
                                   .max_logit_rows = how->max_rows,
                                   .max_context = 2048};
    if (kr_prepare(b->dev, c->plan, &prep, &b->exec, &err)) need(false, err.message);
    const struct kr_exec_info *info = kr_exec_info(b->exec);
    uint64_t slab = 64;
    for (uint32_t g = 0; g < info->n_groups; g++)
        slab = CN_MAX(slab, info->groups[g].block_bytes);
    b->n_groups = info->n_groups;
    /* A block a slab; every second sequence and group has its own. */
    uint32_t n = c->shape.n / how->block_tokens + 1, slabs = 2 * MAX_GROUPS * n;
    for (uint32_t g = 0; g < b->n_groups; g++)
        b->spare[g] = (slabs + g) << KR_BLOCK_INDEX_BITS;
    if (kr_kv_mem_new(b->dev, slab, slabs + MAX_GROUPS, &b->mem, &err)) need(false, err.message);
    for (uint32_t s = 0; s < 2; s++)
        for (uint32_t g = 0; g < b->n_groups; g++) {
            b->ptrs[s][g] = b->tables[s][g] = get(n, sizeof(uint32_t));
            for (uint32_t i = 0; i < n; i++) {
                uint32_t at = how->order & 1 ? n - 1 - i : i;
                at = 2 * (MAX_GROUPS * at + g) + s;
                b->tables[s][g][i] = (how->order & 2 ? slabs - 1 - at : at) << KR_BLOCK_INDEX_BITS;
            }
        }
    return true;
}

static void close_bench(struct bench *b)
{
    for (uint32_t s = 0; s < 2; s++)
        for (uint32_t g = 0; g < b->n_groups; g++)
            free(b->tables[s][g]);
    kr_kv_mem_free(b->mem);
    kr_exec_free(b->exec);
    kr_device_free(b->dev);
}

/* Rows [from[i], from[i] + n[i]) of each of two sequences. */
static void step(struct bench *b, const struct attn_case *c, const uint32_t from[2],
                 const uint32_t n[2], float *const out[2])
{
    struct kr_row *rows = get(n[0] + n[1], sizeof *rows);
    struct kr_seq seqs[2] = {{.tables = b->ptrs[0]}, {.tables = b->ptrs[1]}};
    uint32_t n_rows = 0;
    for (uint32_t s = 0; s < 2; s++)
        for (uint32_t i = 0; i < n[s]; i++) {
            uint32_t pos = from[s] + i;
            rows[n_rows++] = (struct kr_row){.seq = s,
                                             .pos = pos,
                                             .logits = true,
                                             .src = KR_ROW_EMBED,
                                             .embed = c->rows + (size_t)pos * c->width};
        }
    struct kr_batch batch = {.n_rows = n_rows, .n_seqs = 2, .rows = rows, .seqs = seqs};
    struct cn_error err = {0};
    uint64_t ticket;
    float *y;
    if (kr_launch(b->exec, b->mem, &batch, &ticket, &err)) need(false, err.message);
    if (kr_collect(b->exec, ticket, &y, &err)) need(false, err.message);
    for (uint32_t s = 0; s < 2; s++) {
        memcpy(out[s] + (size_t)from[s] * c->out, y, (size_t)n[s] * c->out * sizeof *y);
        y += (size_t)n[s] * c->out;
    }
    free(rows);
}

static void move_on(struct bench *b, const struct attn_run *how, uint32_t done)
{
    uint32_t last = (done - 1) / how->block_tokens, n = (done - 1) % how->block_tokens + 1;
    for (uint32_t g = 0; g < b->n_groups; g++) {
        uint32_t old = b->tables[0][g][last];
        need(!kr_kv_copy(b->exec, b->mem, g, b->spare[g], old, n), "copy");
        b->tables[0][g][last] = b->spare[g];
        b->spare[g] = old;
    }
}

float *attn_case_run(const struct attn_case *c, const struct attn_run *how, float **other)
{
    struct bench b;
    if (!open_bench(&b, c, how)) return NULL;
    uint32_t n = c->shape.n, done[2] = {0, how->twice ? 0 : n}, started = 0;
    float *out[2] = {get((size_t)n * c->out, sizeof(float)),
                     get((size_t)n * c->out, sizeof(float))};
    for (uint32_t i = 0; done[0] < n || done[1] < n; i++) {
        if (!how->cuts[i]) i = 0;
        uint32_t m[2];
        m[0] = CN_MIN(how->cuts[i], n - done[0]);
        m[1] = started >= how->behind || done[0] == n ? CN_MIN(how->cuts[i], n - done[1]) : 0;
        if (m[0] + m[1] > how->max_rows) m[1] = how->max_rows - m[0];
        step(&b, c, done, m, out);
        done[0] += m[0];
        done[1] += m[1];
        started += m[0];
        if (how->copies) move_on(&b, how, done[0]);
    }
    close_bench(&b);
    if (other)
        *other = out[1];
    else
        free(out[1]);
    return out[0];
}

uint32_t attn_case_share(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return 3;
#else
    return getenv("CONIFER_SHORT") ? 3 : 1;
#endif
}
