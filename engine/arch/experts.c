/* experts: mixtures of experts, as the families that have them share them.
 *
 *   logits = Wr x (+ br);  chosen = the best n_used, weights by the gating
 *   y = sum over chosen of weight * Wdown(act(Wgate x) * Wup x)
 *
 * The tensors of all experts lie together: ffn_gate_exps, ffn_up_exps [E, F, D], or both in one,
 * ffn_gate_up_exps [E, 2F, D] (gate first); ffn_down_exps [E, D, F]; each may have a bias [E,
 * rows]. ffn_down_exps.scale [E] multiplies an expert's output: it goes into the router's
 * weights. */
#include "engine/arch/arch.h"

#include <stdio.h>

/* The key's numbers of gatings. */
enum { KEY_SOFTMAX = 1, KEY_SIGMOID = 2, KEY_SQRT_SOFTPLUS = 4 };

static enum kr_gating read_gating(struct eng_builder *b, enum kr_gating gating)
{
    uint64_t key = 0;
    eng_b_u64(b, "expert_gating_func", &key);
    switch (key) {
    case 0:
        return gating;
    case KEY_SOFTMAX:
        return KR_GATE_SOFTMAX;
    case KEY_SIGMOID:
        return KR_GATE_SIGMOID;
    case KEY_SQRT_SOFTPLUS:
        return KR_GATE_SQRT_SOFTPLUS;
    }
    eng_b_refuse_key(b, CN_EUNSUPP, "expert_gating_func",
                     "is not one that is supported (1 softmax, 2 sigmoid, 4 sqrt of softplus)");
    return gating;
}

static void read_groups(struct eng_builder *b, struct kr_router *r)
{
    uint64_t groups = 0, used = 0;
    eng_b_u64(b, "expert_group_count", &groups);
    eng_b_u64(b, "expert_group_used_count", &used);
    if (groups <= 1 && used > 1)
        eng_b_refuse_key(b, CN_EFORMAT, "expert_group_used_count",
                         "is more than expert_group_count");
    if (groups <= 1) return;
    if (groups > b->h.n_experts || b->h.n_experts % groups || !used || used > groups) {
        eng_b_refuse_key(b, CN_EFORMAT, "expert_group_count",
                         "and expert_group_used_count do not divide the experts");
        return;
    }
    r->n_groups = (uint32_t)groups;
    r->n_groups_used = (uint32_t)used;
}

struct eng_experts eng_b_experts_of(struct eng_builder *b, int layer, enum kr_gating gating,
                                    enum kr_act act)
{
    struct eng_experts e = {.act = act};
    uint64_t used = 0;
    bool norm = false;
    if (!eng_b_per_layer(b, "expert_used_count", (uint32_t)layer, &used))
        eng_b_refuse_key(b, CN_EFORMAT, "expert_used_count", "is missing");
    if (!eng_b_failed(b) && (!used || used > b->h.n_experts))
        eng_b_refuse_key(b, CN_EFORMAT, "expert_used_count", "is 0 or more than expert_count");
    e.router.n_used = (uint32_t)used;
    e.router.gating = read_gating(b, gating);
    eng_b_bool(b, "expert_weights_norm", &norm);
    e.router.norm = norm;
    e.router.scale = eng_b_positive(b, "expert_weights_scale", 0, false);
    if (e.router.scale == 0) e.router.scale = 1;
    read_groups(b, &e.router);
    if (eng_b_optional(b, layer, "exp_probs_b.bias"))
        e.router.bias = eng_b_vector(b, layer, "exp_probs_b.bias", b->h.n_experts);
    if (eng_b_optional(b, layer, "ffn_down_exps.scale"))
        e.router.expert_scale = eng_b_vector(b, layer, "ffn_down_exps.scale", b->h.n_experts);
    return e;
}

bool eng_b_has_experts(struct eng_builder *b, int layer)
{
    return eng_b_has(b, layer, "ffn_gate_inp.weight");
}

int eng_b_router(struct eng_builder *b, int x, int layer)
{
    return eng_b_linear(b, x, layer, "ffn_gate_inp", b->h.n_experts, b->h.embd_dim);
}

/* Rows [first, first + n) of every expert of "<name>.weight" [E, rows, cols]. */
static int product(struct eng_builder *b, int x, int route, int layer, const char *name,
                   uint64_t first, uint64_t n, uint64_t rows, uint64_t cols)
{
    char full[64];
    snprintf(full, sizeof(full), "%s.weight", name);
    const struct kr_tensor *w = eng_b_matrices(b, layer, full, b->h.n_experts, rows, cols);
    const struct kr_tensor *bias = NULL;
    snprintf(full, sizeof(full), "%s.bias", name);
    if (eng_b_optional(b, layer, full)) bias = eng_b_floats(b, layer, full, b->h.n_experts, rows);
    if (!w || eng_b_failed(b)) return -1;
    b->matmul_bytes += w->bytes / rows * n;
    return kr_op_expert_matmul(b->plan, x, route, w, bias, (uint32_t)first, (uint32_t)n);
}

int eng_b_experts(struct eng_builder *b, int x, int logits, int layer, const struct eng_experts *e)
{
    uint64_t dim = b->h.embd_dim, ff = b->h.expert_ff_dim;
    if (eng_b_failed(b)) return -1;
    if (!ff) {
        eng_b_refuse_key(b, CN_EFORMAT, "expert_feed_forward_length", "is missing");
        return -1;
    }
    int route = kr_op_route(b->plan, logits, &e->router), gate, up;
    int each = kr_op_dispatch(b->plan, x, route, e->scaled_input);
    if (eng_b_has(b, layer, "ffn_gate_up_exps.weight")) {
        gate = product(b, each, route, layer, "ffn_gate_up_exps", 0, ff, 2 * ff, dim);
        up = product(b, each, route, layer, "ffn_gate_up_exps", ff, ff, 2 * ff, dim);
    } else {
        gate = product(b, each, route, layer, "ffn_gate_exps", 0, ff, ff, dim);
        up = product(b, each, route, layer, "ffn_up_exps", 0, ff, ff, dim);
    }
    if (eng_b_failed(b)) return -1;
    int h = kr_op_glu(b->plan, gate, up, e->act);
    h = product(b, h, route, layer, "ffn_down_exps", 0, dim, dim, ff);
    return eng_b_failed(b) ? -1 : kr_op_combine(b->plan, h, route, !e->scaled_input);
}

void eng_b_no_shared_expert(struct eng_builder *b, int layer, const char *key)
{
    if (eng_b_has(b, layer, "ffn_down_shexp.weight"))
        eng_b_refuse_key(b, CN_EFORMAT, key,
                         "is missing or 0, but there is a tensor \"ffn_down_shexp\"");
}

uint64_t eng_b_shared_width(struct eng_builder *b, int layer)
{
    uint64_t width = 0;
    eng_b_u64(b, "expert_shared_feed_forward_length", &width);
    if (!width) eng_b_no_shared_expert(b, layer, "expert_shared_feed_forward_length");
    if (width > UINT32_MAX / 2)
        eng_b_refuse_key(b, CN_EFORMAT, "expert_shared_feed_forward_length", "is too large");
    return width;
}

int eng_b_shared_expert(struct eng_builder *b, int x, int layer, uint64_t ff_dim, enum kr_act act)
{
    uint64_t dim = b->h.embd_dim;
    int gate = eng_b_linear(b, x, layer, "ffn_gate_shexp", ff_dim, dim);
    int up = eng_b_linear(b, x, layer, "ffn_up_shexp", ff_dim, dim);
    if (eng_b_failed(b)) return -1;
    return eng_b_linear(b, kr_op_glu(b->plan, gate, up, act), layer, "ffn_down_shexp", dim, ff_dim);
}

int eng_b_gated_shared_expert(struct eng_builder *b, int x, int layer, uint64_t ff_dim)
{
    int y = eng_b_shared_expert(b, x, layer, ff_dim, KR_ACT_SILU);
    int gate = eng_b_linear(b, x, layer, "ffn_gate_inp_shexp", 1, b->h.embd_dim);
    return eng_b_failed(b) ? -1 : kr_op_glu(b->plan, gate, y, KR_ACT_SIGMOID);
}
