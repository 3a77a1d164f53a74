/* gpt_oss: OpenAI gpt-oss (gpt-oss).
 *
 *   x = embd[token]
 *   each layer:  x = x + Wo attention(rope(Wq n + bq), rope(Wk n + bk), Wv n + bv) + bo
 *                with a sink per head,  n = rms(x; attn_norm)
 *                x = x + experts(n),    n = rms(x; post_attention_norm)
 *   logits = head rms(x; output_norm)
 *
 * Odd points: post_attention_norm is the norm before the experts. Even layers see a window; all
 * turn by the same scaled frequencies. The router has a bias; weights are softmax over the chosen
 * alone. Experts have biases on all three products, and the clamped gate
 * g sigmoid(1.702 g) (u + 1). */
#include "engine/arch/arch.h"

static void record(struct eng_builder *b)
{
    int x = eng_b_embed(b, 1.0f);
    for (int l = 0; l < (int)b->h.n_layers && !eng_b_failed(b); l++) {
        x = kr_op_add(b->plan, x, eng_b_attn_branch(b, x, l));
        struct eng_experts e = eng_b_experts_of(b, l, KR_GATE_SOFTMAX_TOP, KR_ACT_SWIGLU_OAI);
        int n = eng_b_norm(b, x, l, "post_attention_norm", 1, b->h.embd_dim);
        x = kr_op_add(b->plan, x, eng_b_experts(b, n, eng_b_router(b, n, l), l, &e));
    }
    eng_b_head(b, x);
}

static const char *const needs[] = {
    "attn_q.weight",
    "attn_q.bias",
    "attn_k.weight",
    "attn_k.bias",
    "attn_v.weight",
    "attn_v.bias",
    "attn_output.weight",
    "attn_output.bias",
    "attn_output.weight",
    "attn_sinks.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_inp.bias",
    "ffn_gate_exps.weight",
    "ffn_gate_exps.bias",
    "ffn_up_exps.weight",
    "ffn_up_exps.bias",
    "ffn_gate_up_exps.weight",
    "ffn_gate_up_exps.bias",
    "ffn_down_exps.weight",
    "ffn_down_exps.bias",
    NULL,
};

const struct eng_arch eng_arch_gpt_oss = {
    .name = "gpt-oss",
    .rope = KR_ROPE_NEOX,
    .window_period = 2,
    .window_needed = true,
    .own_head = true,
    .experts = true,
    .needs = needs,
    .record = record,
};
