/* granite: Granite 3, dense; granitemoe: its mixtures of experts; granitehybrid: Granite 4 H,
 * Bamba.
 *
 *   x = embd[token] * embedding_scale
 *   each layer:  x = x + residual_scale Wo attention(rope(Wq n), rope(Wk n), Wv n)
 *                    or, granitehybrid where attention.head_count_kv is 0, mamba2(n)
 *                x = x + residual_scale Wdown(silu(Wgate n) * Wup n)
 *                                 or residual_scale (experts(n) + shared(n))
 *   logits = head rms(x; output_norm) / logit_scale
 *
 * Odd points: scores are multiplied by attention.scale, where the key is there and not 0. Where
 * rope.scaling.finetuned is false nothing turns at all. RoPE turns pairs (2i, 2i+1), because
 * converters permute the rows of Wq and Wk. Experts' weights are softmax over all, of the chosen
 * then divided by their sum; the shared expert is there where its key is not 0, without a gate. */
#include "engine/arch/arch.h"

static int mixer(struct eng_builder *b, int x, int l, float scale, bool turns)
{
    int n = eng_b_norm(b, x, l, "attn_norm", 1, b->h.embd_dim);
    if (!b->h.layers[l].n_heads) return eng_b_mamba2(b, n, l);
    struct eng_qkv a = eng_b_qkv(b, n, l);
    if (turns) eng_b_rotate(b, &a, l);
    float s = scale > 0 ? scale : eng_b_usual_scale(b, l);
    return eng_b_attn_output(b, eng_b_attend(b, &a, l, s), l);
}

static int experts(struct eng_builder *b, int x, int l)
{
    uint64_t shared_ff = eng_b_shared_width(b, l);
    struct eng_experts e = eng_b_experts_of(b, l, KR_GATE_SOFTMAX, KR_ACT_SILU);
    e.router.norm = true;
    int n = eng_b_norm(b, x, l, "ffn_norm", 1, b->h.embd_dim);
    int y = eng_b_experts(b, n, eng_b_router(b, n, l), l, &e);
    if (!shared_ff) return y;
    return kr_op_add(b->plan, y, eng_b_shared_expert(b, n, l, shared_ff, KR_ACT_SILU));
}

static void record(struct eng_builder *b)
{
    float scale = eng_b_positive(b, "attention.scale", 0, false);
    float residual = eng_b_positive(b, "residual_scale", 0, false);
    bool turns = true;
    eng_b_bool(b, "rope.scaling.finetuned", &turns);
    if (residual == 0) residual = 1;
    float embedding = eng_b_positive(b, "embedding_scale", 0, false);
    float logit = eng_b_positive(b, "logit_scale", 0, false);
    if (logit > 0) b->h.logit_scale = 1.0f / logit;

    int x = eng_b_embed(b, embedding > 0 ? embedding : 1);
    for (int l = 0; l < (int)b->h.n_layers && !eng_b_failed(b); l++) {
        int o = mixer(b, x, l, scale, turns);
        x = kr_op_add(b->plan, x, eng_b_scale(b, o, residual));
        int f = b->h.n_experts ? experts(b, x, l) : eng_b_ffn_branch(b, x, l, KR_ACT_SILU);
        x = kr_op_add(b->plan, x, eng_b_scale(b, f, residual));
    }
    eng_b_head(b, x);
}

static const char *const mamba2_needs[] = {"ssm_in.weight", "ssm_norm.weight", "ssm_in.weight",
                                           "ssm_conv1d.bias", NULL};

const struct eng_arch eng_arch_granite = {
    .name = "granite",
    .rope = KR_ROPE_NORM,
    .record = record,
};

const struct eng_arch eng_arch_granitemoe = {
    .name = "granitemoe",
    .rope = KR_ROPE_NORM,
    .experts = true,
    .record = record,
};

const struct eng_arch eng_arch_granitehybrid = {
    .name = "granitehybrid",
    .rope = KR_ROPE_NORM,
    .partial_rope = true, /* Bamba turns the first half of a head */
    .needs = mamba2_needs,
    .recurrent = true,
    .experts = true,
    .record = record,
};
