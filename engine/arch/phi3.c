/* phi3: Phi 3, 3.5 and 4, Phi 4 mini.
 *
 * As llama, with q, k and v in one tensor (attn_qkv), gate and up in one (ffn_up, gate first).
 *
 * Odd points: RoPE turns pairs (i, i + n/2), in Phi 4 mini only of a part of each head; "longrope"
 * divides frequencies by rope_factors_short or _long, whichever the context asks for. Phi 3's
 * window is applied in every layer where the key is there and not 0. */
#include "engine/arch/arch.h"

static void record(struct eng_builder *b)
{
    eng_b_plain_decoder(b, NULL);
}

const struct eng_arch eng_arch_phi3 = {
    .name = "phi3",
    .rope = KR_ROPE_NEOX,
    .partial_rope = true,
    .record = record,
};
