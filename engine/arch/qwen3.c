/* qwen3: Qwen 3, dense.
 *
 *   x = embd[token]
 *   each layer:  n = rms(x; attn_norm)
 *                q, k, v = Wq n, Wk n, Wv n
 *                q, k = rope(rms(q; attn_q_norm)), rope(rms(k; attn_k_norm))   per head
 *                x = x + Wo attention(q, k, v)     scale 1 / sqrt(head size), causal
 *                n = rms(x; ffn_norm)
 *                x = x + Wdown(silu(Wgate n) * Wup n)
 *   logits = head rms(x; output_norm)
 *
 * Odd points: queries and keys are normalised head by head before RoPE, which turns pairs
 * (i, i + n/2); no biases; the head size (128) is usually not embedding / heads. */
#include "engine/arch/arch.h"

#include <math.h>

static void record(struct eng_builder *b)
{
    const struct eng_hparams *h = &b->h;
    float scale = 1.0f / sqrtf((float)h->k_dim);

    int x = eng_b_embed(b, 1.0f);
    for (int l = 0; l < (int)h->n_layers && !eng_b_failed(b); l++) {
        const struct eng_layer *layer = &h->layers[l];
        struct kr_rope rope = eng_b_rope(b, layer->windowed);

        int n = eng_b_norm(b, x, l, "attn_norm", 1, h->embd_dim);
        struct eng_qkv a = eng_b_qkv(b, n, l);
        a.q = eng_b_norm(b, a.q, l, "attn_q_norm", layer->n_heads, h->k_dim);
        a.k = eng_b_norm(b, a.k, l, "attn_k_norm", layer->n_kv_heads, h->k_dim);
        a.q = kr_op_rope(b->plan, a.q, &rope);
        a.k = kr_op_rope(b->plan, a.k, &rope);
        int o = eng_b_attend(b, &a, l, scale);
        o = eng_b_linear(b, o, l, "attn_output", h->embd_dim, (uint64_t)layer->n_heads * h->v_dim);
        x = kr_op_add(b->plan, x, o);

        n = eng_b_norm(b, x, l, "ffn_norm", 1, h->embd_dim);
        x = kr_op_add(b->plan, x, eng_b_ffn(b, n, l, KR_ACT_SILU));
    }
    eng_b_head(b, x);
}

const struct eng_arch eng_arch_qwen3 = {
    .name = "qwen3",
    .rope = KR_ROPE_NEOX,
    .record = record,
};
