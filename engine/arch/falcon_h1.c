/* falcon_h1: Falcon H1 (falcon-h1).
 *
 *   each layer:  n = rms(x; attn_norm)
 *                x = x + Wo attention(rope(Wq n), rope(Wk n), Wv n) + mamba2(n)
 *                x = x + Wdown(silu(Wgate n) * Wup n),                n = rms(x; ffn_norm)
 *
 * Odd points: attention and Mamba-2 stand side by side in every layer and read the same norm. The
 * second norm's tensor is named "ffn_norm", without ".weight". The model's many multipliers are in
 * the weights already. */
#include "engine/arch/arch.h"

static int attention(struct eng_builder *b, int n, int l)
{
    struct eng_qkv a = eng_b_qkv(b, n, l);
    eng_b_rotate(b, &a, l);
    return eng_b_attn_output(b, eng_b_attend(b, &a, l, eng_b_usual_scale(b, l)), l);
}

static void record(struct eng_builder *b)
{
    uint32_t dim = b->h.embd_dim;
    int x = eng_b_embed(b, 1.0f);
    for (int l = 0; l < (int)b->h.n_layers && !eng_b_failed(b); l++) {
        int n = eng_b_norm(b, x, l, "attn_norm", 1, dim);
        int o = attention(b, n, l);
        x = kr_op_add(b->plan, kr_op_add(b->plan, x, o), eng_b_mamba2(b, n, l));

        const char *name = eng_b_has(b, l, "ffn_norm") ? "ffn_norm" : "ffn_norm.weight";
        const struct kr_tensor *w = eng_b_vector(b, l, name, dim);
        if (!w) return;
        n = kr_op_rms_norm(b->plan, x, w, b->h.eps, 1);
        x = kr_op_add(b->plan, x, eng_b_ffn(b, n, l, KR_ACT_SILU));
    }
    eng_b_head(b, x);
}

const struct eng_arch eng_arch_falcon_h1 = {
    .name = "falcon-h1",
    .rope = KR_ROPE_NEOX,
    .record = record,
};
