/* starcoder2: StarCoder 2.
 *
 *   x = embd[token]
 *   each layer:  x = x + Wo attention(rope(Wq n), rope(Wk n), Wv n) + bo,  n = ln(x; attn_norm)
 *                x = x + Wdown(gelu(Wup n)),                               n = ln(x; ffn_norm)
 *   logits = head ln(x; output_norm)
 *
 * Odd points: norms subtract the mean and have a bias, every product has a bias, the feed-forward
 * part has no gate. The window is applied in every layer where the key is there. */
#include "engine/arch/arch.h"

static void record(struct eng_builder *b)
{
    int x = eng_b_embed(b, 1.0f);
    for (int l = 0; l < (int)b->h.n_layers && !eng_b_failed(b); l++) {
        x = kr_op_add(b->plan, x, eng_b_attn_branch(b, x, l));
        int n = eng_b_norm(b, x, l, "ffn_norm", 1, b->h.embd_dim);
        x = kr_op_add(b->plan, x, eng_b_plain_ffn(b, n, l, KR_ACT_GELU_TANH));
    }
    eng_b_head(b, x);
}

static const char *const needs[] = {
    "attn_norm.weight",
    "attn_norm.bias",
    "ffn_norm.weight",
    "ffn_norm.bias",
    "output_norm.weight",
    "output_norm.bias",
    NULL,
};

const struct eng_arch eng_arch_starcoder2 = {
    .name = "starcoder2",
    .rope = KR_ROPE_NEOX,
    .layer_norm = true,
    .needs = needs,
    .record = record,
};
