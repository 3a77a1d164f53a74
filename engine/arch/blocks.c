/* blocks: the parts of a layer that many families share, as sequences of ops. A family's file is
 * written in them where its layer has this form, and in their parts where it has another. */
#include "engine/arch/arch.h"

#include <math.h>

void eng_b_head_norms(struct eng_builder *b, struct eng_qkv *a, int layer)
{
    const struct eng_layer *l = &b->h.layers[layer];
    a->q = eng_b_norm(b, a->q, layer, "attn_q_norm", l->n_heads, b->h.k_dim);
    a->k = eng_b_norm(b, a->k, layer, "attn_k_norm", l->n_kv_heads, b->h.k_dim);
}

void eng_b_rotate(struct eng_builder *b, struct eng_qkv *a, int layer)
{
    struct kr_rope rope = eng_b_rope(b, b->h.layers[layer].windowed);
    a->q = kr_op_rope(b->plan, a->q, &rope);
    a->k = kr_op_rope(b->plan, a->k, &rope);
}

static int *group_of(struct eng_builder *b, const struct eng_layer *l, uint32_t *window)
{
    bool windowed = l->windowed && b->h.window_tokens;
    *window = windowed ? (uint32_t)b->h.window_tokens : 0; /* below the context, so below 2^24 */
    return windowed ? &b->window_group : &b->full_group;
}

int eng_b_attend(struct eng_builder *b, const struct eng_qkv *a, int layer, float scale)
{
    const struct eng_layer *l = &b->h.layers[layer];
    uint32_t window;
    int *group = group_of(b, l, &window);

    if (eng_b_failed(b)) return -1;
    if (*group < 0) *group = kr_plan_kv_group(b->plan, window ? KR_SPAN_WINDOW : KR_SPAN_ALL, window);
    int kv = kr_plan_kv_layer(b->plan, *group, l->n_kv_heads, b->h.k_dim, b->h.v_dim);
    kr_op_kv_write(b->plan, kv, a->k, a->v);
    struct kr_attn attn = {.kv_layer = kv, .n_heads = l->n_heads, .scale = scale};
    return kr_op_attention(b->plan, a->q, &attn);
}

int eng_b_attn_output(struct eng_builder *b, int o, int layer)
{
    return eng_b_linear(b, o, layer, "attn_output", b->h.embd_dim,
                        (uint64_t)b->h.layers[layer].n_heads * b->h.v_dim);
}

float eng_b_usual_scale(const struct eng_builder *b)
{
    return 1.0f / sqrtf((float)b->h.k_dim);
}

int eng_b_ffn(struct eng_builder *b, int x, int layer, enum kr_act act)
{
    uint64_t dim = b->h.embd_dim, ff = b->h.layers[layer].ff_dim;
    int gate = eng_b_linear(b, x, layer, "ffn_gate", ff, dim);
    int up = eng_b_linear(b, x, layer, "ffn_up", ff, dim);
    if (eng_b_failed(b)) return -1;
    return eng_b_linear(b, kr_op_glu(b->plan, gate, up, act), layer, "ffn_down", dim, ff);
}

/* ---- branches -------------------------------------------------------------------------------- */

int eng_b_attn_branch(struct eng_builder *b, int x, int layer)
{
    int n = eng_b_norm(b, x, layer, "attn_norm", 1, b->h.embd_dim);
    struct eng_qkv a = eng_b_qkv(b, n, layer);
    eng_b_rotate(b, &a, layer);
    int o = eng_b_attend(b, &a, layer, eng_b_usual_scale(b));
    return eng_b_attn_output(b, o, layer);
}

int eng_b_ffn_branch(struct eng_builder *b, int x, int layer, enum kr_act act)
{
    int n = eng_b_norm(b, x, layer, "ffn_norm", 1, b->h.embd_dim);
    return eng_b_ffn(b, n, layer, act);
}
