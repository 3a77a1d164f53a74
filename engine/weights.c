/* weights: tensors by name with the shape they must have, and the ops that take them.
 * A name or shape that does not fit is an error that names tensor, shape and expectation; memory
 * for packed weights is committed later, when the whole plan is known to be sound. */
#include "engine/arch/arch.h"

#include "engine/gguf.h"

#include <stdio.h>
#include <string.h>

struct name { char text[96]; };

static struct name name_of(int layer, const char *name, const char *suffix)
{
    struct name n;
    if (layer == ENG_GLOBAL)
        snprintf(n.text, sizeof(n.text), "%s%s", name, suffix);
    else
        snprintf(n.text, sizeof(n.text), "blk.%d.%s%s", layer, name, suffix);
    return n;
}

static void out_of_memory(struct eng_builder *b)
{
    if (!eng_b_failed(b)) cn_fail(&b->error, CN_ENOMEM, "out of memory");
}

static const struct kr_tensor *find(struct eng_builder *b, struct name n)
{
    const char *name = n.text;
    if (eng_b_failed(b)) return NULL;
    const struct kr_tensor *t = eng_gguf_find(b->g, name);
    if (!t) {
        cn_fail_param(&b->error, CN_EFORMAT, name, "the tensor \"%s\" is missing", name);
    } else if (!kr_type_info((uint32_t)t->type)) {
        cn_fail_param(&b->error, CN_EUNSUPP, name,
                      "tensor \"%s\" has the weight type %s (%u), which is not supported "
                      "(supported: %s)",
                      name, eng_gguf_tensor_type((uint32_t)t->type).name, (unsigned)t->type,
                      kr_type_list());
        t = NULL;
    }
    return t;
}

uint64_t eng_b_rows(struct eng_builder *b, int layer, const char *name)
{
    const struct kr_tensor *t = eng_gguf_find(b->g, name_of(layer, name, "").text);
    return eng_b_failed(b) || !t ? 0 : t->ne[1];
}

bool eng_b_has(struct eng_builder *b, int layer, const char *name)
{
    return !eng_b_failed(b) && eng_gguf_find(b->g, name_of(layer, name, "").text);
}

void eng_b_check_needs(struct eng_builder *b)
{
    const char *const *needs = b->arch->needs;
    for (int l = ENG_GLOBAL; needs && l < (int)b->h.n_layers && !eng_b_failed(b); l++)
        for (const char *const *p = needs; *p; p += 2)
            if (eng_b_has(b, l, p[0])) find(b, name_of(l, p[1], ""));
}

/* Which tensors that layers may lack were there, by name. */
struct eng_optional {
    struct eng_optional *next;
    char name[64];
    int layer; /* the first that was asked about */
    bool there;
};

bool eng_b_optional(struct eng_builder *b, int layer, const char *name)
{
    bool there = eng_b_has(b, layer, name);
    struct eng_optional *o = b->optional;
    if (layer == ENG_GLOBAL || eng_b_failed(b)) return there;
    while (o && strcmp(o->name, name))
        o = o->next;
    if (!o) {
        o = cn_arena_alloc(b->arena, sizeof(*o));
        if (!o) {
            cn_fail(&b->error, CN_ENOMEM, "out of memory");
            return false;
        }
        *o = (struct eng_optional){.next = b->optional, .layer = layer, .there = there};
        snprintf(o->name, sizeof(o->name), "%s", name);
        b->optional = o;
    } else if (o->there != there) {
        struct name lacks = name_of(there ? o->layer : layer, name, "");
        cn_fail_param(&b->error, CN_EFORMAT, lacks.text,
                      "the tensor \"%s\" is missing: other layers have it", lacks.text);
    }
    return there;
}

static bool has_shape(struct eng_builder *b, const struct kr_tensor *t, uint64_t rows,
                      uint64_t cols)
{
    if (t->ne[0] == cols && t->ne[1] == rows && t->ne[2] == 1 && t->ne[3] == 1) return true;
    cn_fail_param(
        &b->error, CN_EFORMAT, t->name,
        "tensor \"%s\" is [%llu, %llu, %llu, %llu], the model's keys ask for [%llu, %llu]", t->name,
        (unsigned long long)t->ne[0], (unsigned long long)t->ne[1], (unsigned long long)t->ne[2],
        (unsigned long long)t->ne[3], (unsigned long long)cols, (unsigned long long)rows);
    return false;
}

/* "<name>.weight" of exactly [rows, cols]; any supported type. NULL after an error. */
static const struct kr_tensor *matrix(struct eng_builder *b, int layer, const char *name,
                                      uint64_t rows, uint64_t cols)
{
    const struct kr_tensor *t = find(b, name_of(layer, name, ".weight"));
    return t && has_shape(b, t, rows, cols) ? t : NULL;
}

/* A tensor of one's own that can be changed; NULL after an error, or for none. */
static struct kr_tensor *tensor_copy(struct eng_builder *b, const struct kr_tensor *t)
{
    struct kr_tensor *own = t ? cn_arena_copy(b->arena, t, sizeof(*t)) : NULL;
    if (t && !own) out_of_memory(b);
    return own;
}

const struct kr_tensor *eng_b_matrices(struct eng_builder *b, int layer, const char *name,
                                       uint64_t n, uint64_t rows, uint64_t cols)
{
    const struct kr_tensor *t = find(b, name_of(layer, name, ""));
    if (!t) return NULL;
    if (t->ne[0] == cols && t->ne[1] == rows && t->ne[2] == n && t->ne[3] == 1) return t;
    cn_fail_param(&b->error, CN_EFORMAT, t->name,
                  "tensor \"%s\" is [%llu, %llu, %llu, %llu], the model's keys ask for "
                  "[%llu, %llu, %llu]",
                  t->name, (unsigned long long)t->ne[0], (unsigned long long)t->ne[1],
                  (unsigned long long)t->ne[2], (unsigned long long)t->ne[3],
                  (unsigned long long)cols, (unsigned long long)rows, (unsigned long long)n);
    return NULL;
}

/* Rows [first, first + n) of a matrix; rows are whole blocks, so a slice is a tensor. */
static const struct kr_tensor *slice(struct eng_builder *b, const struct kr_tensor *t,
                                     uint64_t first, uint64_t n)
{
    struct kr_tensor *s = tensor_copy(b, t);
    if (!s) return NULL;
    uint64_t row_bytes = t->bytes / t->ne[1]; /* exact: bytes = rows * bytes of a row */
    s->n_dims = 2;
    s->ne[1] = n;
    s->data = (const uint8_t *)t->data + first * row_bytes;
    s->bytes = n * row_bytes;
    return s;
}

/* A tensor's n values as float32. */
static const struct kr_tensor *as_floats(struct eng_builder *b, const struct kr_tensor *t,
                                         uint64_t n)
{
    if (t->type == KR_F32) return t;
    struct kr_tensor *f = tensor_copy(b, t);
    float *values = cn_arena_alloc(b->arena, n * sizeof(*values)); /* n <= the file's bytes */
    if (!values) out_of_memory(b);
    if (!f || !values) return NULL;
    kr_dequantize_row(t->type, t->data, values, n);
    f->type = KR_F32;
    f->data = values;
    f->bytes = n * sizeof(*values);
    return f;
}

static const struct kr_tensor *vector(struct eng_builder *b, struct name name, uint64_t n)
{
    const struct kr_tensor *t = find(b, name);
    return t && has_shape(b, t, 1, n) ? as_floats(b, t, n) : NULL;
}

const struct kr_tensor *eng_b_floats(struct eng_builder *b, int layer, const char *name,
                                     uint64_t rows, uint64_t cols)
{
    const struct kr_tensor *t = find(b, name_of(layer, name, ""));
    return t && has_shape(b, t, rows, cols) ? as_floats(b, t, rows * cols) : NULL;
}

const struct kr_tensor *eng_b_flat(struct eng_builder *b, int layer, const char *name,
                                   uint64_t rows, uint64_t cols)
{
    const struct kr_tensor *t = eng_b_floats(b, layer, name, rows, cols);
    struct kr_tensor *flat = t ? tensor_copy(b, t) : NULL;
    if (!flat) return NULL;
    flat->n_dims = 1;
    flat->ne[0] = rows * cols;
    flat->ne[1] = 1;
    return flat;
}

const struct kr_tensor *eng_b_vector(struct eng_builder *b, int layer, const char *name, uint64_t n)
{
    return vector(b, name_of(layer, name, ""), n);
}

/* ---- ops ------------------------------------------------------------------------------------- */

int eng_b_table(struct eng_builder *b, const char *name, uint64_t width, float scale)
{
    const struct kr_tensor *t = find(b, name_of(ENG_GLOBAL, name, ".weight"));
    if (!t || !has_shape(b, t, CN_MAX(t->ne[1], b->h.n_vocab), width)) return -1;
    t = slice(b, t, 0, b->h.n_vocab);
    return t ? kr_op_embed(b->plan, t, scale) : -1;
}

int eng_b_embed(struct eng_builder *b, float scale)
{
    return eng_b_table(b, "token_embd", b->h.embd_dim, scale);
}

uint64_t eng_b_token_types(struct eng_builder *b)
{
    static const char key[] = "tokenizer.ggml.token_type_count";
    uint64_t rows = eng_b_rows(b, ENG_GLOBAL, "token_types.weight"), count = rows;
    struct cn_error err;
    int rc = eng_gguf_u64(b->g, key, &count, &err);
    if (eng_b_failed(b)) return 0;
    if (rc && rc != CN_ENOENT) b->error = err;
    if (!rc && count != rows)
        cn_fail_param(&b->error, CN_EFORMAT, key,
                      "key \"%s\" is %llu, the tensor \"token_types.weight\" has %llu rows", key,
                      (unsigned long long)count, (unsigned long long)rows);
    return eng_b_failed(b) ? 0 : rows;
}

static const struct kr_tensor *optional_bias(struct eng_builder *b, int layer, const char *name,
                                             uint64_t n)
{
    struct name bias = name_of(ENG_GLOBAL, name, ".bias");
    return eng_b_optional(b, layer, bias.text) ? vector(b, name_of(layer, name, ".bias"), n) : NULL;
}

int eng_b_norm(struct eng_builder *b, int x, int layer, const char *name, uint32_t heads,
               uint32_t dim)
{
    const struct kr_tensor *w = vector(b, name_of(layer, name, ".weight"), dim);
    if (!w) return -1;
    if (!b->arch->layer_norm) return kr_op_rms_norm(b->plan, x, w, b->h.eps, heads);
    const struct kr_tensor *bias = optional_bias(b, layer, name, dim);
    return eng_b_failed(b) ? -1 : kr_op_layer_norm(b->plan, x, w, bias, b->h.eps, heads);
}

static int product(struct eng_builder *b, int x, const struct kr_tensor *w,
                   const struct kr_tensor *bias)
{
    if (!w || eng_b_failed(b)) return -1;
    b->matmul_bytes += w->bytes; /* each weight once, or the head once more: below twice the file */
    return kr_op_matmul(b->plan, x, w, bias);
}

/* "<name>.scale" multiplies a product in files of types that are not supported here. */
static void refuse_scale(struct eng_builder *b, int layer, const char *name)
{
    struct name n = name_of(layer, name, ".scale");
    if (!eng_b_failed(b) && eng_gguf_find(b->g, n.text))
        cn_fail_param(&b->error, CN_EUNSUPP, n.text,
                      "the tensor \"%s\" is not supported (scaled weights)", n.text);
}

int eng_b_linear(struct eng_builder *b, int x, int layer, const char *name, uint64_t rows,
                 uint64_t cols)
{
    refuse_scale(b, layer, name);
    const struct kr_tensor *w = matrix(b, layer, name, rows, cols);
    return product(b, x, w, optional_bias(b, layer, name, rows));
}

/* Values [first, first + n) of a vector. */
static const struct kr_tensor *part(struct eng_builder *b, const struct kr_tensor *t,
                                    uint64_t first, uint64_t n)
{
    struct kr_tensor *s = tensor_copy(b, t);
    if (!s) return NULL;
    s->ne[0] = n;
    s->data = (const float *)t->data + first;
    s->bytes = n * sizeof(float);
    return s;
}

int eng_b_linear_part(struct eng_builder *b, int x, int layer, const char *name, uint64_t first,
                      uint64_t rows, uint64_t all, uint64_t cols)
{
    refuse_scale(b, layer, name);
    const struct kr_tensor *w = matrix(b, layer, name, all, cols);
    const struct kr_tensor *bias = optional_bias(b, layer, name, all);
    return product(b, x, slice(b, w, first, rows), bias ? part(b, bias, first, rows) : NULL);
}

static struct eng_qkv fused_qkv(struct eng_builder *b, int x, int layer, const uint64_t rows[3])
{
    static const char *const own_bias[3] = {"attn_q", "attn_k", "attn_v"};
    int out[3] = {-1, -1, -1};
    uint64_t total = rows[0] + rows[1] + rows[2], first = 0; /* each below 2^32 */

    refuse_scale(b, layer, "attn_qkv");
    const struct kr_tensor *w = matrix(b, layer, "attn_qkv", total, b->h.embd_dim);
    const struct kr_tensor *bias = optional_bias(b, layer, "attn_qkv", total);
    for (int i = 0; i < 3; i++) {
        const struct kr_tensor *own =
            bias ? part(b, bias, first, rows[i]) : optional_bias(b, layer, own_bias[i], rows[i]);
        out[i] = product(b, x, slice(b, w, first, rows[i]), own);
        first += rows[i];
    }
    return (struct eng_qkv){out[0], out[1], out[2]};
}

struct eng_qkv eng_b_qkv(struct eng_builder *b, int x, int layer)
{
    const struct eng_layer *l = &b->h.layers[layer];
    const uint64_t rows[3] = {(uint64_t)l->n_heads * l->k_dim, (uint64_t)l->n_kv_heads * l->k_dim,
                              (uint64_t)l->n_kv_heads * l->v_dim};
    bool fused = eng_b_has(b, layer, "attn_qkv.weight");

    if (b->arch->qkv_bias && !(fused && eng_b_has(b, layer, "attn_qkv.bias"))) {
        eng_b_vector(b, layer, "attn_q.bias", rows[0]); /* an error when it is missing */
        eng_b_vector(b, layer, "attn_k.bias", rows[1]);
        eng_b_vector(b, layer, "attn_v.bias", rows[2]);
    }
    if (fused) return fused_qkv(b, x, layer, rows);
    struct eng_qkv out;
    out.q = eng_b_linear(b, x, layer, "attn_q", rows[0], b->h.embd_dim);
    out.k = eng_b_linear(b, x, layer, "attn_k", rows[1], b->h.embd_dim);
    out.v = eng_b_linear(b, x, layer, "attn_v", rows[2], b->h.embd_dim);
    return out;
}

void eng_b_vectors(struct eng_builder *b, int x)
{
    if (!eng_b_failed(b)) kr_plan_output(b->plan, kr_op_take_logits(b->plan, x));
}

void eng_b_head(struct eng_builder *b, int x)
{
    const struct eng_hparams *h = &b->h;
    if (eng_b_failed(b)) return;
    x = kr_op_take_logits(b->plan, x);
    const char *norm = b->arch->output_norm;
    if (!norm || !eng_gguf_find(b->g, name_of(ENG_GLOBAL, norm, ".weight").text))
        norm = "output_norm"; /* some writers keep to the usual name */
    x = eng_b_norm(b, x, ENG_GLOBAL, norm, 1, h->embd_dim);
    if (h->pooling) {
        if (!eng_b_failed(b)) kr_plan_output(b->plan, x);
        return;
    }
    refuse_scale(b, ENG_GLOBAL, "output");
    bool own = b->arch->own_head || eng_b_has(b, ENG_GLOBAL, "output.weight");
    struct name name = name_of(ENG_GLOBAL, own ? "output" : "token_embd", ".weight");
    const struct kr_tensor *w = find(b, name);
    if (w && w->ne[1] < h->n_vocab) {
        cn_fail_param(&b->error, CN_EFORMAT, w->name, "tensor \"%s\" has %llu rows for %llu tokens",
                      w->name, (unsigned long long)w->ne[1], (unsigned long long)h->n_vocab);
        return;
    }
    if (!w || !has_shape(b, w, w->ne[1], h->embd_dim)) return;
    x = product(b, x, slice(b, w, 0, h->n_vocab),
                optional_bias(b, ENG_GLOBAL, "output", h->n_vocab));
    x = eng_b_scale(b, x, h->logit_scale);
    if (h->final_softcap > 0 && x >= 0) x = kr_op_softcap(b->plan, x, h->final_softcap);
    if (!eng_b_failed(b)) kr_plan_output(b->plan, x);
}
