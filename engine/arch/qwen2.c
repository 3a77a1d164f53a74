/* qwen2: Qwen 1.5, 2 and 2.5, dense.
 *
 *   x = embd[token]
 *   each layer:  n = rms(x; attn_norm)
 *                q, k, v = Wq n + bq, Wk n + bk, Wv n + bv
 *                q, k = rope(q), rope(k)
 *                x = x + Wo attention(q, k, v)     scale 1 / sqrt(head size), causal
 *                n = rms(x; ffn_norm)
 *                x = x + Wdown(silu(Wgate n) * Wup n)
 *   logits = head rms(x; output_norm)
 *
 * Odd points: biases on q, k and v are part of the family, there is none on the output; RoPE turns
 * pairs (i, i + n/2); small models have no tensor "output" (the embedding table is the head). */
#include "engine/arch/arch.h"

#include <math.h>

static void record(struct eng_builder *b)
{
    const struct eng_hparams *h = &b->h;
    float scale = 1.0f / sqrtf((float)h->k_dim);

    int x = eng_b_embed(b, 1.0f);
    for (int l = 0; l < (int)h->n_layers && !eng_b_failed(b); l++) {
        struct kr_rope rope = eng_b_rope(b, h->layers[l].windowed);

        int n = eng_b_norm(b, x, l, "attn_norm", 1, h->embd_dim);
        struct eng_qkv a = eng_b_qkv(b, n, l);
        a.q = kr_op_rope(b->plan, a.q, &rope);
        a.k = kr_op_rope(b->plan, a.k, &rope);
        int o = eng_b_attend(b, &a, l, scale);
        o = eng_b_linear(b, o, l, "attn_output", h->embd_dim,
                         (uint64_t)h->layers[l].n_heads * h->v_dim);
        x = kr_op_add(b->plan, x, o);

        n = eng_b_norm(b, x, l, "ffn_norm", 1, h->embd_dim);
        x = kr_op_add(b->plan, x, eng_b_ffn(b, n, l, KR_ACT_SILU));
    }
    eng_b_head(b, x);
}

const struct eng_arch eng_arch_qwen2 = {
    .name = "qwen2",
    .rope = KR_ROPE_NEOX,
    .qkv_bias = true,
    .record = record,
};
