/* olmo2: OLMo 2 and 3.
 *
 *   x = embd[token]
 *   each layer:  q, k = rope(rms(Wq x; attn_q_norm)), rope(rms(Wk x; attn_k_norm)),  v = Wv x
 *                x = x + rms(Wo attention(q, k, v); post_attention_norm)
 *                x = x + rms(Wdown(silu(Wgate x) * Wup x); post_ffw_norm)
 *   logits = head rms(x; output_norm)
 *
 * Odd points: no norm before a branch, one after it; queries and keys are normalised as whole rows,
 * before they are cut into heads. OLMo 3 has a window in 3 layers of 4; those turn unscaled. */
#include "engine/arch/arch.h"

static void record(struct eng_builder *b)
{
    const struct eng_hparams *h = &b->h;

    int x = eng_b_embed(b, 1.0f);
    for (int l = 0; l < (int)h->n_layers && !eng_b_failed(b); l++) {
        const struct eng_layer *layer = &h->layers[l];
        struct eng_qkv a = eng_b_qkv(b, x, l);
        a.q = eng_b_norm(b, a.q, l, "attn_q_norm", 1, layer->n_heads * layer->k_dim);
        a.k = eng_b_norm(b, a.k, l, "attn_k_norm", 1, layer->n_kv_heads * layer->k_dim);
        eng_b_rotate(b, &a, l);
        int o = eng_b_attn_output(b, eng_b_attend(b, &a, l, eng_b_usual_scale(b, l)), l);
        x = kr_op_add(b->plan, x, eng_b_norm(b, o, l, "post_attention_norm", 1, h->embd_dim));

        int f = eng_b_ffn(b, x, l, KR_ACT_SILU);
        x = kr_op_add(b->plan, x, eng_b_norm(b, f, l, "post_ffw_norm", 1, h->embd_dim));
    }
    eng_b_head(b, x);
}

const struct eng_arch eng_arch_olmo2 = {
    .name = "olmo2",
    .rope = KR_ROPE_NEOX,
    .window_period = 4,
    .own_head = true,
    .window_rope = ENG_WINDOW_ROPE_UNSCALED,
    .record = record,
};
