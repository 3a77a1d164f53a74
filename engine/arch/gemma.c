/* gemma: Gemma 1.
 *
 *   x = embd[token] * sqrt(D)
 *   each layer:  x = x + Wo attention(rope(Wq n), rope(Wk n), Wv n),  n = rms(x; attn_norm)
 *                x = x + Wdown(gelu(Wgate n) * Wup n),                n = rms(x; ffn_norm)
 *   logits = head rms(x; output_norm)
 *
 * Odd points: the head is the embedding table; heads are 256 wide whatever D is; the weights of the
 * norms have their "+ 1" folded in. */
#include "engine/arch/arch.h"

#include <math.h>

static void record(struct eng_builder *b)
{
    int x = eng_b_embed(b, sqrtf((float)b->h.embd_dim));
    for (int l = 0; l < (int)b->h.n_layers && !eng_b_failed(b); l++) {
        x = kr_op_add(b->plan, x, eng_b_attn_branch(b, x, l));
        x = kr_op_add(b->plan, x, eng_b_ffn_branch(b, x, l, KR_ACT_GELU_TANH));
    }
    eng_b_head(b, x);
}

const struct eng_arch eng_arch_gemma = {
    .name = "gemma",
    .rope = KR_ROPE_NEOX,
    .record = record,
};
