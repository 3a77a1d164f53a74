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
 * Odd points: q, k and v have biases, the output projection has none; RoPE turns pairs (i, i +
 * n/2); small models have no tensor "output" (the embedding table is the head). */
#include "engine/arch/arch.h"

static void record(struct eng_builder *b)
{
    eng_b_plain_decoder(b, NULL);
}

const struct eng_arch eng_arch_qwen2 = {
    .name = "qwen2",
    .rope = KR_ROPE_NEOX,
    .qkv_bias = true,
    .record = record,
};
