/* qwen2moe: Qwen 1.5 and 2, mixtures of experts.
 *
 *   each layer:  x = x + Wo attention(rope(Wq n + bq), rope(Wk n + bk), Wv n + bv)
 *                x = x + experts(n) + sigmoid(ws . n) * shared(n)      n = rms(x; ffn_norm)
 *
 * Odd points: the experts' weights are softmax over all and not divided by their sum; the shared
 * expert has a gate of its own, one number a row (ffn_gate_inp_shexp). */
#include "engine/arch/arch.h"

static int ffn(struct eng_builder *b, int x, int l)
{
    uint64_t shared_ff = eng_b_bounded(b, "expert_shared_feed_forward_length",
                                       CN_MAX(b->h.layers[l].ff_dim, 1u), UINT32_MAX / 2);
    struct eng_experts e = eng_b_experts_of(b, l, KR_GATE_SOFTMAX, KR_ACT_SILU);
    int n = eng_b_norm(b, x, l, "ffn_norm", 1, b->h.embd_dim);
    int y = eng_b_experts(b, n, eng_b_router(b, n, l), l, &e);
    return kr_op_add(b->plan, y, eng_b_gated_shared_expert(b, n, l, shared_ff));
}

static void record(struct eng_builder *b)
{
    eng_b_plain_decoder(b, ffn);
}

const struct eng_arch eng_arch_qwen2moe = {
    .name = "qwen2moe",
    .rope = KR_ROPE_NEOX,
    .qkv_bias = true,
    .own_head = true,
    .experts = true,
    .record = record,
};
