/* llama: Llama 1 to 3, Mistral, Mixtral, SmolLM, TinyLlama, Yi, DeepSeek-LLM.
 *
 *   x = embd[token]
 *   each layer:  n = rms(x; attn_norm)
 *                q, k, v = Wq n, Wk n, Wv n        (biases where the file has them)
 *                q, k = rope(q), rope(k)
 *                x = x + Wo attention(q, k, v)     scale 1 / sqrt(head size), causal
 *                n = rms(x; ffn_norm)
 *                x = x + Wdown(silu(Wgate n) * Wup n)     or, Mixtral, the sum of two experts'
 *   logits = head rms(x; output_norm)
 *
 * Odd points: RoPE turns pairs (2i, 2i+1), because converters permute the rows of Wq and Wk. Llama
 * 3.1's frequency factors are the tensor rope_freqs. The head is the embedding table when there is
 * no tensor "output". The window of Mistral 7B v0.1 is applied in every layer where the key
 * llama.attention.sliding_window says so. Experts' weights are softmax over all, of the chosen then
 * divided by their sum. Head size may differ from embedding / heads. */
#include "engine/arch/arch.h"

static int ffn(struct eng_builder *b, int x, int l)
{
    if (!eng_b_has_experts(b, l)) return eng_b_ffn_branch(b, x, l, KR_ACT_SILU);
    struct eng_experts e = eng_b_experts_of(b, l, KR_GATE_SOFTMAX, KR_ACT_SILU);
    e.router.norm = true;
    return eng_b_experts_branch(b, x, l, &e);
}

static void record(struct eng_builder *b)
{
    eng_b_plain_decoder(b, ffn);
}

const struct eng_arch eng_arch_llama = {
    .name = "llama",
    .rope = KR_ROPE_NORM,
    .experts = true,
    .record = record,
};
