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

struct kr_plan *kr_plan_new(void)
{
    struct kr_plan *p = cn_calloc(1, sizeof *p);
    if (!p) return NULL;
    cn_arena_init(&p->arena, 0);
    p->output = -1;
    p->state_group = -1;
    p->n_positions = UINT64_MAX;
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
    free(p->states);
    free(p->more);
    free(p);
}

bool kr_plan_broken(const struct kr_plan *p)
{
    return p->err.code != 0;
}

int kr_plan_no_memory(struct kr_plan *p)
{
    cn_fail(&p->err, CN_ENOMEM, "out of memory while recording the plan");
    return -1;
}

int kr_plan_finish(struct kr_plan *p, struct cn_error *err)
{
    if (!kr_plan_broken(p) && p->output < 0) cn_fail(&p->err, CN_EINVAL, "the plan has no output");
    if (!kr_plan_broken(p)) return 0;
    if (err) *err = p->err;
    return p->err.code;
}

/* ---- small checks ---------------------------------------------------------------------------- */

bool kr_plan_value_ok(struct kr_plan *p, const char *op, int v)
{
    if (kr_plan_broken(p)) return false;
    if (v >= 0 && (size_t)v < p->n_values) return true;
    cn_fail(&p->err, CN_EINVAL, "%s: value %d does not exist", op, v);
    return false;
}

/* The bytes of a tensor cover its shape, rows are whole blocks, the type is known. */
bool kr_plan_tensor_ok(struct kr_plan *p, const struct kr_tensor *t)
{
    const char *name = kr_tensor_name(t);
    const struct kr_type_info *ti = kr_type_info((uint32_t)t->type);
    if (!ti) {
        cn_fail_param(&p->err, CN_EUNSUPP, name,
                      "tensor %s has weight type %d, which is not supported (supported: %s)", name,
                      (int)t->type, kr_type_list());
        return false;
    }
    uint64_t rows = 1, bytes, cols = kr_tensor_dim(t, 0);
    bool fits = t->n_dims >= 1 && t->n_dims <= 4 && cols > 0 && cols <= KR_MAX_WIDTH;
    for (unsigned i = 1; fits && i < t->n_dims; i++)
        fits = t->ne[i] > 0 && cn_mul_u64(rows, t->ne[i], &rows) && rows <= KR_MAX_WIDTH;
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
    if (!kr_plan_tensor_ok(p, t)) return false;
    if (kr_tensor_dim(t, 2) == 1 && kr_tensor_dim(t, 3) == 1) return true;
    cn_fail_param(&p->err, CN_EFORMAT, kr_tensor_name(t), "tensor %s is not a matrix",
                  kr_tensor_name(t));
    return false;
}

/* An F32 vector of n values. */
bool kr_plan_vector_ok(struct kr_plan *p, const struct kr_tensor *t, uint64_t n)
{
    if (!kr_plan_tensor_ok(p, t)) return false;
    if (t->type != KR_F32) {
        cn_fail_param(&p->err, CN_EUNSUPP, kr_tensor_name(t), "tensor %s must be F32, it is %s",
                      kr_tensor_name(t), kr_type_info((uint32_t)t->type)->name);
        return false;
    }
    if (kr_tensor_dim(t, 0) == n && kr_tensor_dim(t, 1) == 1 && kr_tensor_dim(t, 2) == 1 &&
        kr_tensor_dim(t, 3) == 1)
        return true;
    cn_fail_param(&p->err, CN_EFORMAT, kr_tensor_name(t),
                  "tensor %s has %llu values where %llu are needed", kr_tensor_name(t),
                  (unsigned long long)kr_tensor_dim(t, 0), (unsigned long long)n);
    return false;
}

bool kr_plan_floats_ok(struct kr_plan *p, const struct kr_tensor *t, uint64_t rows, uint64_t cols)
{
    if (!kr_plan_tensor_ok(p, t)) return false;
    if (t->type == KR_F32 && kr_tensor_dim(t, 0) == cols && kr_tensor_dim(t, 1) == rows &&
        kr_tensor_dim(t, 2) == 1 && kr_tensor_dim(t, 3) == 1)
        return true;
    cn_fail_param(&p->err, CN_EFORMAT, kr_tensor_name(t),
                  "tensor %s must be F32 of [%llu, %llu] values", kr_tensor_name(t),
                  (unsigned long long)rows, (unsigned long long)cols);
    return false;
}

bool kr_plan_rows_ok(struct kr_plan *p, const char *op, int v, uint32_t width)
{
    if (!kr_plan_value_ok(p, op, v)) return false;
    const struct kr_value *x = &p->values[v];
    if (x->domain == KR_DOM_ROWS && x->width == width) return true;
    cn_fail(&p->err, CN_EFORMAT,
            "%s: an input has %u values%s where %u of the step's rows are needed", op, x->width,
            x->domain == KR_DOM_ROWS ? "" : " of other rows", width);
    return false;
}

bool kr_plan_finite_ok(struct kr_plan *p, const char *op, const char *what, float f)
{
    if (isfinite(f)) return true;
    cn_fail(&p->err, CN_EINVAL, "%s: %s is not a finite number", op, what);
    return false;
}

bool kr_plan_copy_tensor(struct kr_plan *p, struct kr_tensor *dst, const struct kr_tensor *src)
{
    *dst = *src;
    const char *name = kr_tensor_name(src);
    dst->name = cn_arena_strn(&p->arena, name, strlen(name));
    if (dst->name) return true;
    kr_plan_no_memory(p);
    return false;
}

int kr_plan_add(struct kr_plan *p, struct kr_plan_op *op, uint64_t width, enum kr_domain domain)
{
    if (width > KR_MAX_WIDTH) {
        cn_fail(&p->err, CN_EFORMAT, "%s: rows of %llu values", kr_op_names[op->kind],
                (unsigned long long)width);
        return -1;
    }
    if (cn_grow(&p->ops, &p->cap_ops, p->n_ops + 1, sizeof *p->ops) ||
        cn_grow(&p->values, &p->cap_values, p->n_values + 1, sizeof *p->values))
        return kr_plan_no_memory(p);
    op->out = -1;
    if (width) {
        op->out = (int)p->n_values;
        p->values[p->n_values++] =
            (struct kr_value){.width = (uint32_t)width, .domain = domain, .op = (uint32_t)p->n_ops};
    }
    p->ops[p->n_ops++] = *op;
    return op->out;
}

struct kr_plan_op kr_plan_new_op(enum kr_op_kind kind, int a, int b)
{
    return (struct kr_plan_op){
        .kind = kind, .in = {a, b, -1, -1, -1}, .out = -1, .rope = -1, .kv_layer = -1, .state = -1};
}

/* ---- ops with weights ------------------------------------------------------------------------ */

int kr_op_embed(struct kr_plan *p, const struct kr_tensor *table, float scale)
{
    if (kr_plan_broken(p) || !matrix_ok(p, table) || !kr_plan_finite_ok(p, "embed", "scale", scale))
        return -1;
    struct kr_plan_op op = kr_plan_new_op(KR_OP_EMBED, -1, -1);
    op.f = scale;
    if (!kr_plan_copy_tensor(p, &op.w, table)) return -1;
    return kr_plan_add(p, &op, (uint32_t)table->ne[0], KR_DOM_ROWS);
}

int kr_op_embed_pos(struct kr_plan *p, const struct kr_tensor *table)
{
    if (kr_plan_broken(p) || !matrix_ok(p, table)) return -1;
    struct kr_plan_op op = kr_plan_new_op(KR_OP_EMBED_POS, -1, -1);
    if (!kr_plan_copy_tensor(p, &op.w, table)) return -1;
    p->n_positions = CN_MIN(p->n_positions, kr_tensor_dim(table, 1));
    return kr_plan_add(p, &op, table->ne[0], KR_DOM_ROWS);
}

/* A norm's weight or bias: n values for each part of the row, or one for every value of it. */
static bool norm_vector(struct kr_plan *p, struct kr_tensor *dst, const struct kr_tensor *t,
                        uint32_t width, uint32_t heads)
{
    if (!t) return true;
    uint32_t n = kr_tensor_dim(t, 0) == width ? width : width / heads;
    return kr_plan_vector_ok(p, t, n) && kr_plan_copy_tensor(p, dst, t);
}

static int norm(struct kr_plan *p, enum kr_op_kind kind, int x, const struct kr_tensor *w,
                const struct kr_tensor *b, float eps, uint32_t heads)
{
    const char *name = kr_op_names[kind];
    if (!kr_plan_value_ok(p, name, x)) return -1;
    const struct kr_value v = p->values[x];
    if (!heads || v.width % heads) {
        cn_fail_param(&p->err, CN_EFORMAT, w ? kr_tensor_name(w) : "", "%s: %u values in %u parts",
                      name, v.width, heads);
        return -1;
    }
    if (!kr_plan_finite_ok(p, name, "eps", eps)) return -1;
    struct kr_plan_op op = kr_plan_new_op(kind, x, -1);
    op.f = eps;
    op.heads = heads;
    if (!norm_vector(p, &op.w, w, v.width, heads) || !norm_vector(p, &op.bias, b, v.width, heads))
        return -1;
    return kr_plan_add(p, &op, v.width, v.domain);
}

int kr_op_rms_norm(struct kr_plan *p, int x, const struct kr_tensor *w, float eps, uint32_t heads)
{
    return norm(p, KR_OP_RMS_NORM, x, w, NULL, eps, heads);
}

int kr_op_layer_norm(struct kr_plan *p, int x, const struct kr_tensor *w, const struct kr_tensor *b,
                     float eps, uint32_t heads)
{
    return norm(p, KR_OP_LAYER_NORM, x, w, b, eps, heads);
}

int kr_op_matmul(struct kr_plan *p, int x, const struct kr_tensor *w, const struct kr_tensor *bias)
{
    if (!kr_plan_value_ok(p, "matmul", x) || !matrix_ok(p, w)) return -1;
    const struct kr_value v = p->values[x];
    uint64_t out = kr_tensor_dim(w, 1);
    if (w->ne[0] != v.width) {
        cn_fail_param(&p->err, CN_EFORMAT, kr_tensor_name(w),
                      "tensor %s has %llu columns, its input has %u values", kr_tensor_name(w),
                      (unsigned long long)w->ne[0], v.width);
        return -1;
    }
    struct kr_plan_op op = kr_plan_new_op(KR_OP_MATMUL, x, -1);
    if (!kr_plan_copy_tensor(p, &op.w, w)) return -1;
    if (bias && (!kr_plan_vector_ok(p, bias, out) || !kr_plan_copy_tensor(p, &op.bias, bias)))
        return -1;
    return kr_plan_add(p, &op, (uint32_t)out, v.domain);
}

int kr_op_head_matmul(struct kr_plan *p, int x, const struct kr_tensor *w)
{
    if (!kr_plan_value_ok(p, "head_matmul", x) || !kr_plan_tensor_ok(p, w)) return -1;
    const struct kr_value v = p->values[x];
    uint64_t heads = kr_tensor_dim(w, 2), out;
    if (kr_tensor_dim(w, 3) != 1 || heads > 65536 || w->ne[0] * heads != v.width ||
        !cn_mul_u64(heads, kr_tensor_dim(w, 1), &out) || out > KR_MAX_WIDTH) {
        cn_fail_param(&p->err, CN_EFORMAT, kr_tensor_name(w),
                      "tensor %s: %llu matrices of %llu columns do not fit rows of %u values",
                      kr_tensor_name(w), (unsigned long long)heads, (unsigned long long)w->ne[0],
                      v.width);
        return -1;
    }
    struct kr_plan_op op = kr_plan_new_op(KR_OP_HEAD_MATMUL, x, -1);
    op.heads = (uint32_t)heads;
    if (!kr_plan_copy_tensor(p, &op.w, w)) return -1;
    return kr_plan_add(p, &op, out, v.domain);
}

/* ---- rotations ------------------------------------------------------------------------------- */

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
        return kr_plan_no_memory(p);
    float *copy = cn_arena_copy(&p->arena, r->inv_freq, bytes);
    if (!copy) return kr_plan_no_memory(p);
    p->ropes[p->n_ropes] = (struct kr_plan_rope){.kind = r->kind,
                                                 .head_dim = r->head_dim,
                                                 .n_rot = r->n_rot,
                                                 .amplitude = r->amplitude,
                                                 .inv_freq = copy};
    return (int)p->n_ropes++;
}

int kr_op_rope(struct kr_plan *p, int x, const struct kr_rope *rope)
{
    if (!kr_plan_value_ok(p, "rope", x)) return -1;
    const struct kr_value v = p->values[x];
    if (!rope->head_dim || v.width % rope->head_dim || !rope->n_rot || rope->n_rot % 2 ||
        rope->n_rot > rope->head_dim || !rope->inv_freq) {
        cn_fail(&p->err, CN_EFORMAT, "rope: %u of %u dims rotate in rows of %u values", rope->n_rot,
                rope->head_dim, v.width);
        return -1;
    }
    if (!kr_plan_finite_ok(p, "rope", "amplitude", rope->amplitude)) return -1;
    for (uint32_t i = 0; i < rope->n_rot / 2; i++)
        if (!kr_plan_finite_ok(p, "rope", "inv_freq", rope->inv_freq[i])) return -1;
    struct kr_plan_op op = kr_plan_new_op(KR_OP_ROPE, x, -1);
    op.heads = v.width / rope->head_dim;
    op.rope = find_rope(p, rope);
    if (op.rope < 0) return -1;
    return kr_plan_add(p, &op, v.width, v.domain);
}

/* ---- elementwise ----------------------------------------------------------------------------- */

static bool same_rows(struct kr_plan *p, const char *name, int a, int b)
{
    if (!kr_plan_value_ok(p, name, a) || !kr_plan_value_ok(p, name, b)) return false;
    if (p->values[a].domain == p->values[b].domain) return true;
    cn_fail(&p->err, CN_EFORMAT,
            "%s: its inputs have different rows (before and after take_logits or dispatch)", name);
    return false;
}

static int unary(struct kr_plan *p, struct kr_plan_op op)
{
    const char *name = kr_op_names[op.kind];
    if (!kr_plan_value_ok(p, name, op.in[0]) || !kr_plan_finite_ok(p, name, "its factor", op.f))
        return -1;
    const struct kr_value a = p->values[op.in[0]];
    return kr_plan_add(p, &op, a.width, a.domain);
}

int kr_op_act(struct kr_plan *p, int x, enum kr_act act)
{
    struct kr_plan_op op = kr_plan_new_op(KR_OP_ACT, x, -1);
    op.act = act;
    if (!kr_plan_broken(p) && act == KR_ACT_SWIGLU_OAI)
        cn_fail(&p->err, CN_EINVAL, "act: this activation is for gates only");
    return unary(p, op);
}

int kr_op_glu(struct kr_plan *p, int gate, int up, enum kr_act act)
{
    if (!same_rows(p, "glu", gate, up)) return -1;
    const struct kr_value g = p->values[gate], u = p->values[up];
    if (u.width % g.width) {
        cn_fail(&p->err, CN_EFORMAT, "glu: a gate of %u values for rows of %u", g.width, u.width);
        return -1;
    }
    struct kr_plan_op op = kr_plan_new_op(KR_OP_GLU, gate, up);
    op.act = act;
    return kr_plan_add(p, &op, u.width, u.domain);
}

int kr_op_add(struct kr_plan *p, int a, int b)
{
    if (!same_rows(p, "add", a, b)) return -1;
    const struct kr_value x = p->values[a];
    if (x.width != p->values[b].width) {
        cn_fail(&p->err, CN_EFORMAT, "add: rows of %u and of %u values", x.width,
                p->values[b].width);
        return -1;
    }
    struct kr_plan_op op = kr_plan_new_op(KR_OP_ADD, a, b);
    return kr_plan_add(p, &op, x.width, x.domain);
}

int kr_op_scale(struct kr_plan *p, int x, float s)
{
    struct kr_plan_op op = kr_plan_new_op(KR_OP_SCALE, x, -1);
    op.f = s;
    return unary(p, op);
}

int kr_op_softcap(struct kr_plan *p, int x, float cap)
{
    struct kr_plan_op op = kr_plan_new_op(KR_OP_SOFTCAP, x, -1);
    op.f = cap;
    if (!kr_plan_broken(p) && !(cap > 0))
        cn_fail(&p->err, CN_EINVAL, "softcap: the cap is not above 0");
    return unary(p, op);
}

int kr_op_pos_scale(struct kr_plan *p, int x, float beta, uint32_t offset, uint32_t period)
{
    struct kr_plan_op op = kr_plan_new_op(KR_OP_POS_SCALE, x, -1);
    op.f = beta;
    op.from = offset;
    op.len = period;
    if (!kr_plan_broken(p) && !period) cn_fail(&p->err, CN_EINVAL, "pos_scale: a period of 0");
    if (!kr_plan_value_ok(p, "pos_scale", x) ||
        !kr_plan_rows_ok(p, "pos_scale", x, p->values[x].width))
        return -1;
    return unary(p, op);
}

int kr_op_slice(struct kr_plan *p, int x, uint32_t heads, uint32_t from, uint32_t len)
{
    if (!kr_plan_value_ok(p, "slice", x)) return -1;
    const struct kr_value v = p->values[x];
    if (!heads || v.width % heads || !len || (uint64_t)from + len > v.width / heads) {
        cn_fail(&p->err, CN_EFORMAT, "slice: values %u to %llu of %u heads in rows of %u", from,
                (unsigned long long)from + len, heads, v.width);
        return -1;
    }
    struct kr_plan_op op = kr_plan_new_op(KR_OP_SLICE, x, -1);
    op.heads = heads;
    op.from = from;
    op.len = len;
    return kr_plan_add(p, &op, (uint64_t)heads * len, v.domain);
}

int kr_op_concat(struct kr_plan *p, int a, int b, uint32_t heads)
{
    if (!same_rows(p, "concat", a, b)) return -1;
    const struct kr_value x = p->values[a], y = p->values[b];
    if (!heads || x.width % heads || y.width % heads) {
        cn_fail(&p->err, CN_EFORMAT, "concat: rows of %u and %u values in %u heads", x.width,
                y.width, heads);
        return -1;
    }
    struct kr_plan_op op = kr_plan_new_op(KR_OP_CONCAT, a, b);
    op.heads = heads;
    return kr_plan_add(p, &op, (uint64_t)x.width + y.width, x.domain);
}

static bool scripted_peak(struct kr_plan *p, struct kr_plan_op *op, const struct kr_peak *peak)
{
    if (p->values[op->in[0]].width == 1)
        return kr_plan_vector_ok(p, peak->tokens, kr_tensor_dim(peak->tokens, 0)) &&
               kr_plan_vector_ok(p, peak->rest, peak->width) &&
               kr_plan_copy_tensor(p, &op->w, peak->tokens) &&
               kr_plan_copy_tensor(p, &op->extra, peak->rest);
    cn_fail(&p->err, CN_EINVAL, "peak: rows of %u values where a place is one",
            p->values[op->in[0]].width);
    return false;
}

int kr_op_peak(struct kr_plan *p, int x, const struct kr_peak *peak)
{
    if (!kr_plan_value_ok(p, "peak", x)) return -1;
    if (peak->first >= peak->width || peak->at_period >= peak->width) {
        cn_fail(&p->err, CN_EINVAL, "peak: at %u or %u of %u values", peak->first, peak->at_period,
                peak->width);
        return -1;
    }
    struct kr_plan_op op = kr_plan_new_op(KR_OP_PEAK, x, -1);
    if (peak->tokens && !scripted_peak(p, &op, peak)) return -1;
    op.from = peak->first;
    op.len = peak->period;
    op.n_state = peak->at_period;
    return kr_plan_add(p, &op, peak->width, p->values[x].domain);
}

int kr_op_take_logits(struct kr_plan *p, int x)
{
    if (!kr_plan_value_ok(p, "take_logits", x)) return -1;
    if (p->values[x].domain != KR_DOM_ROWS) {
        cn_fail(&p->err, CN_EINVAL, "take_logits: value %d has only the logit rows already", x);
        return -1;
    }
    struct kr_plan_op op = kr_plan_new_op(KR_OP_TAKE_LOGITS, x, -1);
    return kr_plan_add(p, &op, p->values[x].width, KR_DOM_LOGITS);
}

void kr_plan_output(struct kr_plan *p, int x)
{
    if (!kr_plan_value_ok(p, "output", x)) return;
    if (p->output >= 0) {
        cn_fail(&p->err, CN_EINVAL, "the plan has two outputs");
    } else if (p->values[x].domain != KR_DOM_LOGITS) {
        cn_fail(&p->err, CN_EINVAL, "the output must come after take_logits");
    } else {
        p->output = x;
    }
}

void kr_plan_output_more(struct kr_plan *p, const char *name, int x)
{
    if (!kr_plan_value_ok(p, "output", x)) return;
    if (p->values[x].domain != KR_DOM_LOGITS) {
        cn_fail(&p->err, CN_EINVAL, "the output %s must come after take_logits", name);
        return;
    }
    for (size_t i = 0; i < p->n_more; i++) {
        if (strcmp(p->more[i].name, name)) continue;
        cn_fail(&p->err, CN_EINVAL, "the plan has two outputs %s", name);
        return;
    }
    char *copy = cn_arena_strn(&p->arena, name, strlen(name));
    if (!copy || cn_grow(&p->more, &p->cap_more, p->n_more + 1, sizeof *p->more)) {
        kr_plan_no_memory(p);
        return;
    }
    p->more[p->n_more++] = (struct kr_plan_more){copy, x};
}
