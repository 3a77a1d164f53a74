/* blocks: the parts of a layer that many families share, as sequences of ops. A family's file is
 * written in them where its layer has this form, and in their parts where it has another. */
#include "engine/arch/arch.h"

#include <math.h>

void eng_b_head_norms(struct eng_builder *b, struct eng_qkv *a, int layer)
{
    const struct eng_layer *l = &b->h.layers[layer];
    a->q = eng_b_norm(b, a->q, layer, "attn_q_norm", l->n_heads, l->k_dim);
    a->k = eng_b_norm(b, a->k, layer, "attn_k_norm", l->n_kv_heads, l->k_dim);
}

void eng_b_rotate(struct eng_builder *b, struct eng_qkv *a, int layer)
{
    struct kr_rope rope = eng_b_rope(b, layer);
    a->q = kr_op_rope(b->plan, a->q, &rope);
    a->k = kr_op_rope(b->plan, a->k, &rope);
}

int eng_b_kv_group(struct eng_builder *b, int layer)
{
    bool windowed = b->h.layers[layer].windowed && b->h.window_tokens;
    int *group = windowed ? &b->window_group : &b->full_group;
    if (eng_b_failed(b) || *group >= 0) return *group;
    enum kr_span span = b->arch->window_span ? b->arch->window_span : KR_SPAN_WINDOW;
    enum kr_span full = b->arch->encoder ? KR_SPAN_BOTH : KR_SPAN_ALL;
    if (b->arch->encoder) span = KR_SPAN_BOTH;
    *group = windowed ? kr_plan_kv_group(b->plan, span, (uint32_t)b->h.window_tokens) /* < 2^25 */
                      : kr_plan_kv_group(b->plan, full, 0);
    return *group;
}

int eng_b_attend_shared(struct eng_builder *b, int q, int layer, int from, float scale)
{
    const struct eng_layer *l = &b->h.layers[layer];
    struct kr_attn attn = {.kv_layer = b->h.layers[from].kv_layer,
                           .n_heads = l->n_heads,
                           .scale = scale,
                           .softcap = b->h.attn_softcap};
    if (eng_b_optional(b, layer, "attn_sinks.weight"))
        attn.sinks = eng_b_vector(b, layer, "attn_sinks.weight", l->n_heads);
    return eng_b_failed(b) ? -1 : kr_op_attention(b->plan, q, &attn);
}

int eng_b_attend(struct eng_builder *b, const struct eng_qkv *a, int layer, float scale)
{
    struct eng_layer *l = &b->h.layers[layer];
    if (eng_b_failed(b)) return -1;
    l->kv_layer =
        kr_plan_kv_layer(b->plan, eng_b_kv_group(b, layer), l->n_kv_heads, l->k_dim, l->v_dim);
    kr_op_kv_write(b->plan, l->kv_layer, a->k, a->v);
    return eng_b_attend_shared(b, a->q, layer, layer, scale);
}

int eng_b_attn_output(struct eng_builder *b, int o, int layer)
{
    return eng_b_linear(b, o, layer, "attn_output", b->h.embd_dim,
                        (uint64_t)b->h.layers[layer].n_heads * b->h.layers[layer].v_dim);
}

float eng_b_usual_scale(const struct eng_builder *b, int layer)
{
    return 1.0f / sqrtf((float)b->h.layers[layer].k_dim);
}

float eng_b_width_scale(const struct eng_builder *b, int layer)
{
    return 1.0f / sqrtf((float)b->h.embd_dim / (float)b->h.layers[layer].n_heads);
}

float eng_b_scale_of_size(const struct eng_builder *b, int layer, uint32_t n_layers)
{
    return b->h.n_layers == n_layers ? eng_b_width_scale(b, layer) : eng_b_usual_scale(b, layer);
}

/* Whether gate and up lie in one tensor, gate first. */
static bool fused_gate(struct eng_builder *b, int layer, uint64_t ff)
{
    return !eng_b_has(b, layer, "ffn_gate.weight") &&
           eng_b_rows(b, layer, "ffn_up.weight") == 2 * ff;
}

int eng_b_ffn(struct eng_builder *b, int x, int layer, enum kr_act act)
{
    uint64_t dim = b->h.embd_dim, ff = b->h.layers[layer].ff_dim;
    int gate, up;
    if (fused_gate(b, layer, ff)) {
        gate = eng_b_linear_part(b, x, layer, "ffn_up", 0, ff, 2 * ff, dim);
        up = eng_b_linear_part(b, x, layer, "ffn_up", ff, ff, 2 * ff, dim);
    } else {
        gate = eng_b_linear(b, x, layer, "ffn_gate", ff, dim);
        up = eng_b_linear(b, x, layer, "ffn_up", ff, dim);
    }
    if (eng_b_failed(b)) return -1;
    return eng_b_linear(b, kr_op_glu(b->plan, gate, up, act), layer, "ffn_down", dim, ff);
}

int eng_b_plain_ffn(struct eng_builder *b, int x, int layer, enum kr_act act)
{
    uint64_t dim = b->h.embd_dim, ff = b->h.layers[layer].ff_dim;
    int up = eng_b_linear(b, x, layer, "ffn_up", ff, dim);
    if (eng_b_failed(b)) return -1;
    return eng_b_linear(b, kr_op_act(b->plan, up, act), layer, "ffn_down", dim, ff);
}

int eng_b_scale(struct eng_builder *b, int x, float s)
{
    return eng_b_failed(b) || s == 1.0f ? x : kr_op_scale(b->plan, x, s);
}

/* ---- branches -------------------------------------------------------------------------------- */

int eng_b_attn_branch(struct eng_builder *b, int x, int layer)
{
    int n = eng_b_norm(b, x, layer, "attn_norm", 1, b->h.embd_dim);
    struct eng_qkv a = eng_b_qkv(b, n, layer);
    eng_b_rotate(b, &a, layer);
    int o = eng_b_attend(b, &a, layer, eng_b_usual_scale(b, layer));
    return eng_b_attn_output(b, o, layer);
}

int eng_b_ffn_branch(struct eng_builder *b, int x, int layer, enum kr_act act)
{
    int n = eng_b_norm(b, x, layer, "ffn_norm", 1, b->h.embd_dim);
    return eng_b_ffn(b, n, layer, act);
}

int eng_b_experts_branch(struct eng_builder *b, int x, int layer, const struct eng_experts *e)
{
    int n = eng_b_norm(b, x, layer, "ffn_norm", 1, b->h.embd_dim);
    return eng_b_experts(b, n, eng_b_router(b, n, layer), layer, e);
}

void eng_b_plain_decoder(struct eng_builder *b, int (*ffn)(struct eng_builder *b, int x, int layer))
{
    int x = eng_b_embed(b, 1.0f);
    for (int l = 0; l < (int)b->h.n_layers && !eng_b_failed(b); l++) {
        x = kr_op_add(b->plan, x, eng_b_attn_branch(b, x, l));
        int f = ffn ? ffn(b, x, l) : eng_b_ffn_branch(b, x, l, KR_ACT_SILU);
        x = kr_op_add(b->plan, x, f);
    }
    eng_b_head(b, x);
}

const char *const eng_needs_encoder_norms[] = {
    "token_embd_norm.weight",
    "token_embd_norm.bias",
    "attn_output_norm.weight",
    "attn_output_norm.bias",
    "layer_output_norm.weight",
    "layer_output_norm.bias",
    NULL,
};
