/* plan: records a forward pass and checks every shape while doing so.
 *
 * Any thread, one at a time. A plan owns its tables and copies of names and frequencies; tensor
 * bytes stay borrowed. Invariant: once err.code is set nothing is added any more, so that every op
 * in the table is sound and devices need no checks of their own. */
#include "kernels/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const kr_op_names[KR_OP_COUNT] = {
#define OP(id, name, text) [KR_OP_##id] = name,
#include "kernels/ops.def"
#undef OP
};

/* Widths are kept below this so that products of two fit 64 bits with room to spare. */
#define MAX_WIDTH (1u << 30)

struct kr_plan *kr_plan_new(void)
{
    struct kr_plan *p = cn_calloc(1, sizeof *p);
    if (!p) return NULL;
    cn_arena_init(&p->arena, 0);
    p->output = -1;
    return p;
}

void kr_plan_free(struct kr_plan *p)
{
    if (!p) return;
    cn_arena_fini(&p->arena);
    free(p->ops);
    free(p->values);
    free(p->ropes);
    free(p->groups);
    free(p->layers);
    free(p);
}

static bool broken(const struct kr_plan *p)
{
    return p->err.code != 0;
}

static int out_of_memory(struct kr_plan *p)
{
    cn_fail(&p->err, CN_ENOMEM, "out of memory while recording the plan");
    return -1;
}

int kr_plan_finish(struct kr_plan *p, struct cn_error *err)
{
    if (!broken(p) && p->output < 0) cn_fail(&p->err, CN_EINVAL, "the plan has no output");
    if (!broken(p)) return 0;
    if (err) *err = p->err;
    return p->err.code;
}

/* ---- small checks ---------------------------------------------------------------------------- */

static bool value_ok(struct kr_plan *p, const char *op, int v)
{
    if (broken(p)) return false;
    if (v >= 0 && (size_t)v < p->n_values) return true;
    cn_fail(&p->err, CN_EINVAL, "%s: value %d does not exist", op, v);
    return false;
}

static const char *name_of(const struct kr_tensor *t)
{
    return t && t->name ? t->name : "?";
}

static uint64_t tensor_dim(const struct kr_tensor *t, unsigned i)
{
    return i < t->n_dims ? t->ne[i] : 1;
}

/* The bytes of a tensor cover its shape, rows are whole blocks, the type is known. */
static bool tensor_ok(struct kr_plan *p, const struct kr_tensor *t)
{
    const char *name = name_of(t);
    const struct kr_type_info *ti = kr_type_info((uint32_t)t->type);
    if (!ti) {
        cn_fail_param(&p->err, CN_EUNSUPP, name,
                      "tensor %s has weight type %d, which is not supported (supported: %s)", name,
                      (int)t->type, kr_type_list());
        return false;
    }
    uint64_t rows = 1, bytes, cols = tensor_dim(t, 0);
    bool fits = t->n_dims >= 1 && t->n_dims <= 4 && cols > 0 && cols <= MAX_WIDTH;
    for (unsigned i = 1; fits && i < t->n_dims; i++)
        fits = t->ne[i] > 0 && cn_mul_u64(rows, t->ne[i], &rows) && rows <= MAX_WIDTH;
    if (!fits) {
        cn_fail_param(&p->err, CN_EFORMAT, name, "tensor %s has an impossible shape", name);
        return false;
    }
    if (cols % ti->block_elems) {
        cn_fail_param(&p->err, CN_EFORMAT, name,
                      "tensor %s has rows of %llu values, not a multiple of %s's block of %u", name,
                      (unsigned long long)cols, ti->name, ti->block_elems);
        return false;
    }
    if (!cn_mul_u64(cols / ti->block_elems * ti->block_bytes, rows, &bytes) || bytes > t->bytes ||
        !t->data) {
        cn_fail_param(&p->err, CN_EFORMAT, name, "tensor %s has fewer bytes than its shape needs",
                      name);
        return false;
    }
    return true;
}

static bool matrix_ok(struct kr_plan *p, const struct kr_tensor *t)
{
    if (!tensor_ok(p, t)) return false;
    if (tensor_dim(t, 2) == 1 && tensor_dim(t, 3) == 1) return true;
    cn_fail_param(&p->err, CN_EFORMAT, name_of(t), "tensor %s is not a matrix", name_of(t));
    return false;
}

/* An F32 vector of n values. */
static bool vector_ok(struct kr_plan *p, const struct kr_tensor *t, uint64_t n)
{
    if (!tensor_ok(p, t)) return false;
    if (t->type != KR_F32) {
        cn_fail_param(&p->err, CN_EUNSUPP, name_of(t), "tensor %s must be F32, it is %s", name_of(t),
                      kr_type_info((uint32_t)t->type)->name);
        return false;
    }
    if (tensor_dim(t, 0) == n && tensor_dim(t, 1) == 1 && tensor_dim(t, 2) == 1 &&
        tensor_dim(t, 3) == 1)
        return true;
    cn_fail_param(&p->err, CN_EFORMAT, name_of(t), "tensor %s has %llu values where %llu are needed",
                  name_of(t), (unsigned long long)tensor_dim(t, 0), (unsigned long long)n);
    return false;
}

static bool finite_ok(struct kr_plan *p, const char *op, const char *what, float f)
{
    if (isfinite(f)) return true;
    cn_fail(&p->err, CN_EINVAL, "%s: %s is not a finite number", op, what);
    return false;
}

static bool copy_tensor(struct kr_plan *p, struct kr_tensor *dst, const struct kr_tensor *src)
{
    *dst = *src;
    const char *name = name_of(src);
    dst->name = cn_arena_strn(&p->arena, name, strlen(name));
    if (dst->name) return true;
    out_of_memory(p);
    return false;
}

/* Appends the op and, when width is not 0, the value it makes. */
static int add_op(struct kr_plan *p, struct kr_plan_op *op, uint32_t width, enum kr_domain domain)
{
    if (cn_grow(&p->ops, &p->cap_ops, p->n_ops + 1, sizeof *p->ops) ||
        cn_grow(&p->values, &p->cap_values, p->n_values + 1, sizeof *p->values))
        return out_of_memory(p);
    op->out = -1;
    if (width) {
        op->out = (int)p->n_values;
        p->values[p->n_values++] =
            (struct kr_value){ .width = width, .domain = domain, .op = (uint32_t)p->n_ops };
    }
    p->ops[p->n_ops++] = *op;
    return op->out;
}

static struct kr_plan_op new_op(enum kr_op_kind kind, int a, int b)
{
    return (struct kr_plan_op){ .kind = kind, .in = { a, b }, .out = -1, .rope = -1,
                                .kv_layer = -1 };
}

/* ---- KV layers -------------------------------------------------------------------------------- */

int kr_plan_kv_group(struct kr_plan *p, uint32_t window_tokens)
{
    if (broken(p)) return -1;
    if (cn_grow(&p->groups, &p->cap_groups, p->n_groups + 1, sizeof *p->groups))
        return out_of_memory(p);
    p->groups[p->n_groups] = (struct kr_plan_group){ .window_tokens = window_tokens };
    return (int)p->n_groups++;
}

int kr_plan_kv_layer(struct kr_plan *p, int group, uint32_t n_kv_heads, uint32_t k_dim,
                     uint32_t v_dim)
{
    if (broken(p)) return -1;
    if (group < 0 || (size_t)group >= p->n_groups) {
        cn_fail(&p->err, CN_EINVAL, "kv_layer: group %d does not exist", group);
        return -1;
    }
    if (!n_kv_heads || !k_dim || !v_dim || k_dim > 65536 || v_dim > 65536 || n_kv_heads > 65536 ||
        (uint64_t)n_kv_heads * CN_MAX(k_dim, v_dim) > MAX_WIDTH) {
        cn_fail(&p->err, CN_EINVAL, "kv_layer: %u heads of %u and %u values", n_kv_heads, k_dim,
                v_dim);
        return -1;
    }
    if (cn_grow(&p->layers, &p->cap_layers, p->n_layers + 1, sizeof *p->layers))
        return out_of_memory(p);
    p->layers[p->n_layers] = (struct kr_plan_layer){
        .group = (uint32_t)group, .n_kv_heads = n_kv_heads, .k_dim = k_dim, .v_dim = v_dim,
        .index = p->groups[group].n_layers++ };
    return (int)p->n_layers++;
}

static struct kr_plan_layer *layer_of(struct kr_plan *p, const char *op, int layer)
{
    if (layer >= 0 && (size_t)layer < p->n_layers) return &p->layers[layer];
    cn_fail(&p->err, CN_EINVAL, "%s: KV layer %d does not exist", op, layer);
    return NULL;
}

void kr_op_kv_write(struct kr_plan *p, int kv_layer, int k, int v)
{
    if (!value_ok(p, "kv_write", k) || !value_ok(p, "kv_write", v)) return;
    struct kr_plan_layer *l = layer_of(p, "kv_write", kv_layer);
    if (!l) return;
    const struct kr_value *kv = &p->values[k], *vv = &p->values[v];
    if (kv->width != l->n_kv_heads * l->k_dim || vv->width != l->n_kv_heads * l->v_dim ||
        kv->domain != KR_DOM_ROWS || vv->domain != KR_DOM_ROWS) {
        cn_fail(&p->err, CN_EFORMAT, "kv_write: k has %u values and v %u, the layer's are %u and %u",
                kv->width, vv->width, l->n_kv_heads * l->k_dim, l->n_kv_heads * l->v_dim);
        return;
    }
    if (l->written) {
        cn_fail(&p->err, CN_EINVAL, "kv_write: KV layer %d is written twice", kv_layer);
        return;
    }
    struct kr_plan_op op = new_op(KR_OP_KV_WRITE, k, v);
    op.kv_layer = kv_layer;
    if (add_op(p, &op, 0, KR_DOM_ROWS) < 0 && broken(p)) return;
    l->written = true;
}

int kr_op_attention(struct kr_plan *p, int q, const struct kr_attn *attn)
{
    if (!value_ok(p, "attention", q)) return -1;
    const struct kr_plan_layer *l = layer_of(p, "attention", attn->kv_layer);
    if (!l) return -1;
    if (!l->written) {
        cn_fail(&p->err, CN_EINVAL, "attention: KV layer %d has not been written", attn->kv_layer);
        return -1;
    }
    if (!attn->n_heads || attn->n_heads % l->n_kv_heads || attn->n_heads > 65536) {
        cn_fail(&p->err, CN_EFORMAT, "attention: %u query heads for %u KV heads", attn->n_heads,
                l->n_kv_heads);
        return -1;
    }
    const struct kr_value *x = &p->values[q];
    uint64_t out = (uint64_t)attn->n_heads * l->v_dim;
    if ((uint64_t)attn->n_heads * l->k_dim != x->width || out > MAX_WIDTH) {
        cn_fail(&p->err, CN_EFORMAT, "attention: q has %u values, %u heads of %u need %llu",
                x->width, attn->n_heads, l->k_dim,
                (unsigned long long)attn->n_heads * l->k_dim);
        return -1;
    }
    if (x->domain != KR_DOM_ROWS) {
        cn_fail(&p->err, CN_EINVAL, "attention: its rows must be the step's, not the logit rows");
        return -1;
    }
    if (!finite_ok(p, "attention", "scale", attn->scale) ||
        !finite_ok(p, "attention", "softcap", attn->softcap))
        return -1;
    struct kr_plan_op op = new_op(KR_OP_ATTENTION, q, -1);
    op.kv_layer = attn->kv_layer;
    op.heads = attn->n_heads;
    op.f = attn->scale;
    op.softcap = attn->softcap;
    return add_op(p, &op, (uint32_t)out, KR_DOM_ROWS);
}

/* ---- ops with weights ------------------------------------------------------------------------- */

int kr_op_embed(struct kr_plan *p, const struct kr_tensor *table, float scale)
{
    if (broken(p) || !matrix_ok(p, table) || !finite_ok(p, "embed", "scale", scale)) return -1;
    struct kr_plan_op op = new_op(KR_OP_EMBED, -1, -1);
    op.f = scale;
    if (!copy_tensor(p, &op.w, table)) return -1;
    return add_op(p, &op, (uint32_t)table->ne[0], KR_DOM_ROWS);
}

int kr_op_rms_norm(struct kr_plan *p, int x, const struct kr_tensor *w, float eps, uint32_t heads)
{
    if (!value_ok(p, "rms_norm", x)) return -1;
    const struct kr_value v = p->values[x];
    if (!heads || v.width % heads) {
        cn_fail_param(&p->err, CN_EFORMAT, w ? name_of(w) : "", "rms_norm: %u values in %u parts",
                      v.width, heads);
        return -1;
    }
    if (!finite_ok(p, "rms_norm", "eps", eps)) return -1;
    struct kr_plan_op op = new_op(KR_OP_RMS_NORM, x, -1);
    op.f = eps;
    op.heads = heads;
    if (w && (!vector_ok(p, w, v.width / heads) || !copy_tensor(p, &op.w, w))) return -1;
    return add_op(p, &op, v.width, v.domain);
}

int kr_op_matmul(struct kr_plan *p, int x, const struct kr_tensor *w, const struct kr_tensor *bias)
{
    if (!value_ok(p, "matmul", x) || !matrix_ok(p, w)) return -1;
    const struct kr_value v = p->values[x];
    uint64_t out = tensor_dim(w, 1);
    if (w->ne[0] != v.width) {
        cn_fail_param(&p->err, CN_EFORMAT, name_of(w),
                      "tensor %s has %llu columns, its input has %u values", name_of(w),
                      (unsigned long long)w->ne[0], v.width);
        return -1;
    }
    struct kr_plan_op op = new_op(KR_OP_MATMUL, x, -1);
    if (!copy_tensor(p, &op.w, w)) return -1;
    if (bias && (!vector_ok(p, bias, out) || !copy_tensor(p, &op.bias, bias))) return -1;
    return add_op(p, &op, (uint32_t)out, v.domain);
}

/* ---- rotations -------------------------------------------------------------------------------- */

/* Equal rotations share one table of angles in a step. */
static int find_rope(struct kr_plan *p, const struct kr_rope *r)
{
    size_t bytes = (size_t)(r->n_rot / 2) * sizeof(float);
    for (size_t i = 0; i < p->n_ropes; i++) {
        const struct kr_plan_rope *o = &p->ropes[i];
        if (o->kind == r->kind && o->head_dim == r->head_dim && o->n_rot == r->n_rot &&
            !memcmp(&o->amplitude, &r->amplitude, sizeof r->amplitude) &&
            !memcmp(o->inv_freq, r->inv_freq, bytes))
            return (int)i;
    }
    if (cn_grow(&p->ropes, &p->cap_ropes, p->n_ropes + 1, sizeof *p->ropes))
        return out_of_memory(p);
    float *copy = cn_arena_copy(&p->arena, r->inv_freq, bytes);
    if (!copy) return out_of_memory(p);
    p->ropes[p->n_ropes] = (struct kr_plan_rope){ .kind = r->kind, .head_dim = r->head_dim,
                                                  .n_rot = r->n_rot, .amplitude = r->amplitude,
                                                  .inv_freq = copy };
    return (int)p->n_ropes++;
}

int kr_op_rope(struct kr_plan *p, int x, const struct kr_rope *rope)
{
    if (!value_ok(p, "rope", x)) return -1;
    const struct kr_value v = p->values[x];
    if (!rope->head_dim || v.width % rope->head_dim || !rope->n_rot || rope->n_rot % 2 ||
        rope->n_rot > rope->head_dim || !rope->inv_freq) {
        cn_fail(&p->err, CN_EFORMAT, "rope: %u of %u dims rotate in rows of %u values", rope->n_rot,
                rope->head_dim, v.width);
        return -1;
    }
    if (!finite_ok(p, "rope", "amplitude", rope->amplitude)) return -1;
    for (uint32_t i = 0; i < rope->n_rot / 2; i++)
        if (!finite_ok(p, "rope", "inv_freq", rope->inv_freq[i])) return -1;
    struct kr_plan_op op = new_op(KR_OP_ROPE, x, -1);
    op.heads = v.width / rope->head_dim;
    op.rope = find_rope(p, rope);
    if (op.rope < 0) return -1;
    return add_op(p, &op, v.width, v.domain);
}

/* ---- elementwise ------------------------------------------------------------------------------ */

static int binary(struct kr_plan *p, struct kr_plan_op op)
{
    const char *name = kr_op_names[op.kind];
    if (!value_ok(p, name, op.in[0]) || !value_ok(p, name, op.in[1])) return -1;
    const struct kr_value a = p->values[op.in[0]], b = p->values[op.in[1]];
    if (a.width != b.width || a.domain != b.domain) {
        cn_fail(&p->err, CN_EFORMAT, "%s: rows of %u and of %u values%s", name, a.width, b.width,
                a.domain != b.domain ? ", one before and one after take_logits" : "");
        return -1;
    }
    return add_op(p, &op, a.width, a.domain);
}

static int unary(struct kr_plan *p, struct kr_plan_op op)
{
    const char *name = kr_op_names[op.kind];
    if (!value_ok(p, name, op.in[0]) || !finite_ok(p, name, "its factor", op.f)) return -1;
    const struct kr_value a = p->values[op.in[0]];
    return add_op(p, &op, a.width, a.domain);
}

int kr_op_glu(struct kr_plan *p, int gate, int up, enum kr_act act)
{
    struct kr_plan_op op = new_op(KR_OP_GLU, gate, up);
    op.act = act;
    return binary(p, op);
}

int kr_op_add(struct kr_plan *p, int a, int b)
{
    return binary(p, new_op(KR_OP_ADD, a, b));
}

int kr_op_scale(struct kr_plan *p, int x, float s)
{
    struct kr_plan_op op = new_op(KR_OP_SCALE, x, -1);
    op.f = s;
    return unary(p, op);
}

int kr_op_softcap(struct kr_plan *p, int x, float cap)
{
    struct kr_plan_op op = new_op(KR_OP_SOFTCAP, x, -1);
    op.f = cap;
    if (!broken(p) && !(cap > 0)) cn_fail(&p->err, CN_EINVAL, "softcap: the cap is not above 0");
    return unary(p, op);
}

int kr_op_take_logits(struct kr_plan *p, int x)
{
    if (!value_ok(p, "take_logits", x)) return -1;
    if (p->values[x].domain != KR_DOM_ROWS) {
        cn_fail(&p->err, CN_EINVAL, "take_logits: value %d has only the logit rows already", x);
        return -1;
    }
    struct kr_plan_op op = new_op(KR_OP_TAKE_LOGITS, x, -1);
    return add_op(p, &op, p->values[x].width, KR_DOM_LOGITS);
}

void kr_plan_output(struct kr_plan *p, int x)
{
    if (!value_ok(p, "output", x)) return;
    if (p->output >= 0) {
        cn_fail(&p->err, CN_EINVAL, "the plan has two outputs");
    } else if (p->values[x].domain != KR_DOM_LOGITS) {
        cn_fail(&p->err, CN_EINVAL, "the output must come after take_logits");
    } else {
        p->output = x;
    }
}
