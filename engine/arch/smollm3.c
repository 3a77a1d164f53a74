/* smollm3: SmolLM3.
 *
 * As llama, but that queries and keys do not turn in every fourth layer (3, 7, ...). */
#include "engine/arch/arch.h"

enum { UNTURNED_PERIOD = 4 };

static void record(struct eng_builder *b)
{
    int x = eng_b_embed(b, 1.0f);
    for (int l = 0; l < (int)b->h.n_layers && !eng_b_failed(b); l++) {
        int n = eng_b_norm(b, x, l, "attn_norm", 1, b->h.embd_dim);
        struct eng_qkv a = eng_b_qkv(b, n, l);
        if ((l + 1) % UNTURNED_PERIOD) eng_b_rotate(b, &a, l);
        int o = eng_b_attn_output(b, eng_b_attend(b, &a, l, eng_b_usual_scale(b, l)), l);
        x = kr_op_add(b->plan, x, o);
        x = kr_op_add(b->plan, x, eng_b_ffn_branch(b, x, l, KR_ACT_SILU));
    }
    eng_b_head(b, x);
}

const struct eng_arch eng_arch_smollm3 = {
    .name = "smollm3",
    .rope = KR_ROPE_NORM,
    .record = record,
};
