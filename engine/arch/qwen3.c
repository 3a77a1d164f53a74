/* qwen3: Qwen 3, dense; qwen3moe: its mixtures of experts.
 *
 *   x = embd[token]
 *   each layer:  n = rms(x; attn_norm)
 *                q, k, v = Wq n, Wk n, Wv n
 *                q, k = rope(rms(q; attn_q_norm)), rope(rms(k; attn_k_norm))   per head
 *                x = x + Wo attention(q, k, v)     scale 1 / sqrt(head size), causal
 *                n = rms(x; ffn_norm)
 *                x = x + Wdown(silu(Wgate n) * Wup n)     or experts(n) in every layer
 *   logits = head rms(x; output_norm)
 *
 * Odd points: queries and keys are normalised head by head before RoPE, which turns pairs
 * (i, i + n/2); no biases; the head size (128) is usually not embedding / heads. Experts' weights
 * are softmax over all, of the chosen then divided by their sum. */
#include "engine/arch/arch.h"

static int experts(struct eng_builder *b, int x, int l)
{
    struct eng_experts e = eng_b_experts_of(b, l, KR_GATE_SOFTMAX, KR_ACT_SILU);
    e.router.norm = true;
    return eng_b_experts_branch(b, x, l, &e);
}

static void record(struct eng_builder *b)
{
    int x = eng_b_embed(b, 1.0f);
    for (int l = 0; l < (int)b->h.n_layers && !eng_b_failed(b); l++) {
        int n = eng_b_norm(b, x, l, "attn_norm", 1, b->h.embd_dim);
        struct eng_qkv a = eng_b_qkv(b, n, l);
        eng_b_head_norms(b, &a, l);
        eng_b_rotate(b, &a, l);
        int o = eng_b_attend(b, &a, l, eng_b_usual_scale(b, l));
        x = kr_op_add(b->plan, x, eng_b_attn_output(b, o, l));

        int f = b->arch->experts ? experts(b, x, l) : eng_b_ffn_branch(b, x, l, KR_ACT_SILU);
        x = kr_op_add(b->plan, x, f);
    }
    eng_b_head(b, x);
}

const struct eng_arch eng_arch_qwen3 = {
    .name = "qwen3",
    .rope = KR_ROPE_NEOX,
    .record = record,
};

const struct eng_arch eng_arch_qwen3moe = {
    .name = "qwen3moe",
    .rope = KR_ROPE_NEOX,
    .experts = true,
    .record = record,
};
