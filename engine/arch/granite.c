/* granite: Granite 3, dense.
 *
 *   x = embd[token] * embedding_scale
 *   each layer:  x = x + residual_scale Wo attention(rope(Wq n), rope(Wk n), Wv n)
 *                x = x + residual_scale Wdown(silu(Wgate n) * Wup n)
 *   logits = head rms(x; output_norm) / logit_scale
 *
 * Odd points: scores are multiplied by attention.scale, where the key is there and not 0. Where
 * rope.scaling.finetuned is false nothing turns at all. RoPE turns pairs (2i, 2i+1), because
 * converters permute the rows of Wq and Wk. */
#include "engine/arch/arch.h"

static int attention(struct eng_builder *b, int x, int l, float scale, bool turns)
{
    int n = eng_b_norm(b, x, l, "attn_norm", 1, b->h.embd_dim);
    struct eng_qkv a = eng_b_qkv(b, n, l);
    if (turns) eng_b_rotate(b, &a, l);
    float s = scale > 0 ? scale : eng_b_usual_scale(b, l);
    return eng_b_attn_output(b, eng_b_attend(b, &a, l, s), l);
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
        int o = attention(b, x, l, scale, turns);
        x = kr_op_add(b->plan, x, eng_b_scale(b, o, residual));
        int f = eng_b_ffn_branch(b, x, l, KR_ACT_SILU);
        x = kr_op_add(b->plan, x, eng_b_scale(b, f, residual));
    }
    eng_b_head(b, x);
}

const struct eng_arch eng_arch_granite = {
    .name = "granite",
    .rope = KR_ROPE_NORM,
    .record = record,
};
