/* plan_kv: recording of KV layers, recurrent state and the ops that read or write them.
 * Part of plan.c's recording: same thread, same invariant. */
#include "kernels/plan.h"

#include <string.h>

#define MAX_HEADS    65536u
#define MAX_HEAD_DIM 65536u

/* ---- groups, layers, states ------------------------------------------------------------------ */

static int add_group(struct kr_plan *p, enum kr_span span, uint32_t tokens)
{
    if (cn_grow(&p->groups, &p->cap_groups, p->n_groups + 1, sizeof *p->groups))
        return kr_plan_no_memory(p);
    p->groups[p->n_groups] = (struct kr_plan_group){.span = span, .window_tokens = tokens};
    return (int)p->n_groups++;
}

int kr_plan_kv_group(struct kr_plan *p, enum kr_span span, uint32_t tokens)
{
    if (kr_plan_broken(p)) return -1;
    bool counted = span == KR_SPAN_WINDOW || span == KR_SPAN_CHUNK;
    if (span < KR_SPAN_ALL || span >= KR_SPAN_STATE || (counted && !tokens) ||
        (span == KR_SPAN_ALL && tokens)) {
        cn_fail(&p->err, CN_EINVAL, "kv_group: span %d of %u tokens", (int)span, tokens);
        return -1;
    }
    return add_group(p, span, tokens);
}

static int add_layer(struct kr_plan *p, int group, struct kr_plan_layer layer)
{
    if (kr_plan_broken(p)) return -1;
    if (group < 0 || (size_t)group >= p->n_groups || group == p->state_group) {
        cn_fail(&p->err, CN_EINVAL, "kv_layer: group %d does not exist", group);
        return -1;
    }
    if (!layer.n_kv_heads || !layer.k_dim || layer.k_dim > MAX_HEAD_DIM ||
        layer.v_dim > MAX_HEAD_DIM || layer.n_kv_heads > MAX_HEADS ||
        (layer.latent && (!layer.v_dim || layer.v_dim > layer.k_dim)) ||
        (uint64_t)layer.n_kv_heads * CN_MAX(layer.k_dim, layer.v_dim) > KR_MAX_WIDTH) {
        cn_fail(&p->err, CN_EINVAL, "kv_layer: %u heads of %u and %u values", layer.n_kv_heads,
                layer.k_dim, layer.v_dim);
        return -1;
    }
    if (cn_grow(&p->layers, &p->cap_layers, p->n_layers + 1, sizeof *p->layers))
        return kr_plan_no_memory(p);
    layer.group = (uint32_t)group;
    layer.index = p->groups[group].n_layers++;
    p->layers[p->n_layers] = layer;
    return (int)p->n_layers++;
}

int kr_plan_kv_layer(struct kr_plan *p, int group, uint32_t n_kv_heads, uint32_t k_dim,
                     uint32_t v_dim)
{
    return add_layer(
        p, group, (struct kr_plan_layer){.n_kv_heads = n_kv_heads, .k_dim = k_dim, .v_dim = v_dim});
}

int kr_plan_kv_layer_latent(struct kr_plan *p, int group, uint32_t n_kv_heads, uint32_t k_dim,
                            uint32_t v_dim)
{
    return add_layer(p, group,
                     (struct kr_plan_layer){
                         .n_kv_heads = n_kv_heads, .k_dim = k_dim, .v_dim = v_dim, .latent = true});
}

int kr_plan_state(struct kr_plan *p, uint32_t n_floats)
{
    if (kr_plan_broken(p)) return -1;
    if (!n_floats || n_floats > KR_MAX_WIDTH) {
        cn_fail(&p->err, CN_EINVAL, "a state of %u values", n_floats);
        return -1;
    }
    if (p->state_group < 0) p->state_group = add_group(p, KR_SPAN_STATE, 0);
    if (p->state_group < 0) return -1;
    if (cn_grow(&p->states, &p->cap_states, p->n_states + 1, sizeof *p->states))
        return kr_plan_no_memory(p);
    p->states[p->n_states] = (struct kr_plan_state){.n_floats = n_floats, .at = p->state_floats};
    p->state_floats += (n_floats + 15ull) & ~15ull; /* each on a cache line */
    p->groups[p->state_group].n_layers++;
    return (int)p->n_states++;
}

/* ---- keys and values ------------------------------------------------------------------------- */

static struct kr_plan_layer *layer_of(struct kr_plan *p, const char *op, int layer)
{
    if (layer >= 0 && (size_t)layer < p->n_layers) return &p->layers[layer];
    cn_fail(&p->err, CN_EINVAL, "%s: KV layer %d does not exist", op, layer);
    return NULL;
}

/* A layer whose keys are there. */
static const struct kr_plan_layer *written_layer(struct kr_plan *p, const char *op, int layer)
{
    const struct kr_plan_layer *l = layer_of(p, op, layer);
    if (!l || l->written) return l;
    cn_fail(&p->err, CN_EINVAL, "%s: KV layer %d has not been written", op, layer);
    return NULL;
}

void kr_op_kv_write(struct kr_plan *p, int kv_layer, int k, int v)
{
    if (!kr_plan_value_ok(p, "kv_write", k)) return;
    struct kr_plan_layer *l = layer_of(p, "kv_write", kv_layer);
    if (!l || !kr_plan_rows_ok(p, "kv_write", k, l->n_kv_heads * l->k_dim)) return;
    bool has_v = l->v_dim && !l->latent;
    if (has_v && !kr_plan_rows_ok(p, "kv_write", v, l->n_kv_heads * l->v_dim)) return;
    if (!has_v && v != -1) {
        cn_fail(&p->err, CN_EINVAL, "kv_write: KV layer %d has no V of its own", kv_layer);
        return;
    }
    if (l->written) {
        cn_fail(&p->err, CN_EINVAL, "kv_write: KV layer %d is written twice", kv_layer);
        return;
    }
    struct kr_plan_op op = kr_plan_new_op(KR_OP_KV_WRITE, k, v);
    op.kv_layer = kv_layer;
    if (kr_plan_add(p, &op, 0, KR_DOM_ROWS) < 0 && kr_plan_broken(p)) return;
    l->written = true;
}

static int attention(struct kr_plan *p, int q, const struct kr_attn *attn, int select)
{
    if (!kr_plan_value_ok(p, "attention", q)) return -1;
    const struct kr_plan_layer *l = written_layer(p, "attention", attn->kv_layer);
    if (!l) return -1;
    if (!attn->n_heads || attn->n_heads % l->n_kv_heads || attn->n_heads > MAX_HEADS || !l->v_dim) {
        cn_fail(&p->err, CN_EFORMAT, "attention: %u query heads for %u KV heads", attn->n_heads,
                l->n_kv_heads);
        return -1;
    }
    uint64_t wanted = (uint64_t)attn->n_heads * l->k_dim;
    if (p->values[q].width != wanted) {
        cn_fail(&p->err, CN_EFORMAT, "attention: q has %u values, %u heads of %u need %llu",
                p->values[q].width, attn->n_heads, l->k_dim, (unsigned long long)wanted);
        return -1;
    }
    if (!kr_plan_rows_ok(p, "attention", q, (uint32_t)wanted)) return -1;
    if (!kr_plan_finite_ok(p, "attention", "scale", attn->scale) ||
        !kr_plan_finite_ok(p, "attention", "softcap", attn->softcap))
        return -1;
    struct kr_plan_op op = kr_plan_new_op(KR_OP_ATTENTION, q, select);
    op.kv_layer = attn->kv_layer;
    op.heads = attn->n_heads;
    op.f = attn->scale;
    op.softcap = attn->softcap;
    if (attn->sinks && (!kr_plan_vector_ok(p, attn->sinks, attn->n_heads) ||
                        !kr_plan_copy_tensor(p, &op.w, attn->sinks)))
        return -1;
    return kr_plan_add(p, &op, (uint64_t)attn->n_heads * l->v_dim, KR_DOM_ROWS);
}

int kr_op_attention(struct kr_plan *p, int q, const struct kr_attn *attn)
{
    return attention(p, q, attn, -1);
}

int kr_op_attention_selected(struct kr_plan *p, int q, const struct kr_attn *attn, int select)
{
    if (!kr_plan_value_ok(p, "attention", select)) return -1;
    if (p->ops[p->values[select].op].kind != KR_OP_SELECT) {
        cn_fail(&p->err, CN_EINVAL, "attention: value %d is no selection", select);
        return -1;
    }
    return attention(p, q, attn, select);
}

int kr_op_select(struct kr_plan *p, int q, int w, int kv_layer, uint32_t top_k,
                 uint64_t max_context)
{
    if (!kr_plan_value_ok(p, "select", q) || !kr_plan_value_ok(p, "select", w)) return -1;
    const struct kr_plan_layer *l = written_layer(p, "select", kv_layer);
    if (!l) return -1;
    uint32_t heads = p->values[w].width;
    if (l->v_dim || l->n_kv_heads != 1 || !top_k || !max_context || max_context > KR_MAX_WIDTH ||
        heads > MAX_HEADS) {
        cn_fail(&p->err, CN_EFORMAT, "select: %u keys of %llu, %u heads over a layer of %u heads",
                top_k, (unsigned long long)max_context, heads, l->n_kv_heads);
        return -1;
    }
    if (!kr_plan_rows_ok(p, "select", w, heads) ||
        !kr_plan_rows_ok(p, "select", q, heads * l->k_dim))
        return -1;
    struct kr_plan_op op = kr_plan_new_op(KR_OP_SELECT, q, w);
    op.kv_layer = kv_layer;
    op.heads = heads;
    op.len = top_k;
    return kr_plan_add(p, &op, (max_context + 31) / 32, KR_DOM_ROWS);
}

/* ---- recurrences ----------------------------------------------------------------------------- */

/* Takes a state for one op: it must have the right size and no other user. */
static bool take_state(struct kr_plan *p, const char *op, int state, uint64_t n_floats)
{
    if (kr_plan_broken(p)) return false;
    if (state < 0 || (size_t)state >= p->n_states || p->states[state].used ||
        p->states[state].n_floats != n_floats) {
        cn_fail(&p->err, CN_EINVAL, "%s: state %d is not one of %llu values for this op alone", op,
                state, (unsigned long long)n_floats);
        return false;
    }
    p->states[state].used = true;
    return true;
}

int kr_op_conv(struct kr_plan *p, int x, int state, const struct kr_tensor *w,
               const struct kr_tensor *b, enum kr_act act)
{
    if (!kr_plan_value_ok(p, "conv", x) || !kr_plan_rows_ok(p, "conv", x, p->values[x].width))
        return -1;
    uint32_t width = p->values[x].width;
    uint64_t taps = w->ne[0];
    if (!kr_plan_floats_ok(p, w, width, taps)) return -1;
    if (taps < 2 || taps > 64 || (act != KR_ACT_NONE && act != KR_ACT_SILU)) {
        cn_fail_param(&p->err, CN_EUNSUPP, kr_tensor_name(w),
                      "tensor %s: a convolution over %llu rows is not supported (2 to 64 are)",
                      kr_tensor_name(w), (unsigned long long)taps);
        return -1;
    }
    struct kr_plan_op op = kr_plan_new_op(KR_OP_CONV, x, -1);
    op.act = act;
    op.len = (uint32_t)taps;
    op.state = state;
    if (!kr_plan_copy_tensor(p, &op.w, w)) return -1;
    if (b && (!kr_plan_vector_ok(p, b, width) || !kr_plan_copy_tensor(p, &op.bias, b))) return -1;
    if (!take_state(p, "conv", state, width * (taps - 1))) return -1;
    return kr_plan_add(p, &op, width, KR_DOM_ROWS);
}

int kr_op_scan(struct kr_plan *p, const struct kr_scan *s)
{
    if (!kr_plan_value_ok(p, "scan", s->x)) return -1;
    uint32_t width = p->values[s->x].width;
    if (!s->n_heads || !s->n_groups || !s->n_state || width % s->n_heads ||
        s->n_heads % s->n_groups || (uint64_t)s->n_groups * s->n_state > KR_MAX_WIDTH ||
        (uint64_t)width * s->n_state > KR_MAX_WIDTH) {
        cn_fail(&p->err, CN_EFORMAT, "scan: %u values, %u heads, %u groups, states of %u", width,
                s->n_heads, s->n_groups, s->n_state);
        return -1;
    }
    uint32_t shared = s->n_groups * s->n_state;
    if (!kr_plan_rows_ok(p, "scan", s->x, width) ||
        !kr_plan_rows_ok(p, "scan", s->dt, s->n_heads) ||
        !kr_plan_rows_ok(p, "scan", s->b, shared) || !kr_plan_rows_ok(p, "scan", s->c, shared))
        return -1;
    uint64_t n_decay = kr_tensor_dim(s->a, 0);
    bool each = width == s->n_heads && n_decay == (uint64_t)s->n_heads * s->n_state;
    struct kr_plan_op op = kr_plan_new_op(KR_OP_SCAN, s->x, s->dt);
    op.in[KR_SCAN_B] = s->b;
    op.in[KR_SCAN_C] = s->c;
    op.heads = s->n_heads;
    op.n_groups = s->n_groups;
    op.n_state = s->n_state;
    op.state = s->state;
    op.flag = each;
    if (!kr_plan_vector_ok(p, s->a, each ? n_decay : s->n_heads) ||
        !kr_plan_copy_tensor(p, &op.w, s->a) || !kr_plan_vector_ok(p, s->d, s->n_heads) ||
        !kr_plan_copy_tensor(p, &op.extra, s->d))
        return -1;
    if (s->dt_bias && (!kr_plan_vector_ok(p, s->dt_bias, s->n_heads) ||
                       !kr_plan_copy_tensor(p, &op.bias, s->dt_bias)))
        return -1;
    if (!take_state(p, "scan", s->state, (uint64_t)width * s->n_state)) return -1;
    return kr_plan_add(p, &op, width, KR_DOM_ROWS);
}

int kr_op_delta(struct kr_plan *p, const struct kr_delta *d)
{
    if (!kr_plan_value_ok(p, "delta", d->v) || !kr_plan_value_ok(p, "delta", d->k)) return -1;
    uint32_t v = p->values[d->v].width, k = p->values[d->k].width;
    if (!d->n_k_heads || !d->n_v_heads || k % d->n_k_heads || v % d->n_v_heads ||
        d->n_v_heads % d->n_k_heads || (uint64_t)v * (k / d->n_k_heads) > KR_MAX_WIDTH) {
        cn_fail(&p->err, CN_EFORMAT, "delta: %u values in %u key heads, %u in %u value heads", k,
                d->n_k_heads, v, d->n_v_heads);
        return -1;
    }
    if (!kr_plan_rows_ok(p, "delta", d->q, k) || !kr_plan_rows_ok(p, "delta", d->k, k) ||
        !kr_plan_rows_ok(p, "delta", d->v, v) || !kr_plan_rows_ok(p, "delta", d->a, d->n_v_heads) ||
        !kr_plan_rows_ok(p, "delta", d->b, d->n_v_heads))
        return -1;
    struct kr_plan_op op = kr_plan_new_op(KR_OP_DELTA, d->q, d->k);
    op.in[KR_DELTA_V] = d->v;
    op.in[KR_DELTA_A] = d->a;
    op.in[KR_DELTA_B] = d->b;
    op.heads = d->n_v_heads;
    op.n_groups = d->n_k_heads;
    op.flag = d->tiled;
    op.state = d->state;
    if (!kr_plan_vector_ok(p, d->decay, d->n_v_heads) || !kr_plan_copy_tensor(p, &op.w, d->decay) ||
        !kr_plan_vector_ok(p, d->dt_bias, d->n_v_heads) ||
        !kr_plan_copy_tensor(p, &op.bias, d->dt_bias))
        return -1;
    if (!take_state(p, "delta", d->state, (uint64_t)v * (k / d->n_k_heads))) return -1;
    return kr_plan_add(p, &op, v, KR_DOM_ROWS);
}

int kr_op_follow(struct kr_plan *p, int x, int state, const struct kr_tensor *texts)
{
    if (!kr_plan_value_ok(p, "follow", x) || !kr_plan_rows_ok(p, "follow", x, p->values[x].width))
        return -1;
    uint64_t n = kr_tensor_dim(texts, 1);
    if (p->values[x].width < 4 || n > 1u << 24) {
        cn_fail(&p->err, CN_EINVAL, "follow: rows of %u values, a text of %llu places",
                p->values[x].width, (unsigned long long)n);
        return -1;
    }
    struct kr_plan_op op = kr_plan_new_op(KR_OP_FOLLOW, x, -1);
    op.len = (uint32_t)n;
    op.state = state;
    if (!kr_plan_floats_ok(p, texts, n, 2) || !kr_plan_copy_tensor(p, &op.w, texts)) return -1;
    if (!take_state(p, "follow", state, 1)) return -1;
    return kr_plan_add(p, &op, 1, KR_DOM_ROWS);
}
