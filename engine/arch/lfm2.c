/* lfm2: LFM2 and LFM2.5; lfm2moe: their mixtures of experts.
 *
 *   each layer:  x = x + mixer(n)       n = rms(x; attn_norm)
 *                    a gated short convolution, or where attention.head_count_kv is not 0
 *                    Wo attention(rope(rms(Wq n; attn_q_norm)), rope(rms(Wk n; attn_k_norm)), Wv n)
 *                x = x + ffn(n)         n = rms(x; ffn_norm)
 *   logits = head rms(x; token_embd_norm)
 *
 * Odd points: the last norm is named token_embd_norm; convolution layers keep no keys, only
 * their last few inputs. Experts from layer leading_dense_block_count on; their weights are
 * sigmoids, a bias has a say in the choice alone, and they are divided by their sum.
 * feed_forward_length is wrong in some files, so the width comes from the tensor. */
#include "engine/arch/arch.h"

static int attention(struct eng_builder *b, int n, int l)
{
    struct eng_qkv a = eng_b_qkv(b, n, l);
    eng_b_head_norms(b, &a, l);
    eng_b_rotate(b, &a, l);
    return eng_b_attn_output(b, eng_b_attend(b, &a, l, eng_b_usual_scale(b, l)), l);
}

static int ffn(struct eng_builder *b, int x, int l)
{
    int n = eng_b_norm(b, x, l, "ffn_norm", 1, b->h.embd_dim);
    uint64_t dense = 0;
    bool said = eng_b_u64(b, "leading_dense_block_count", &dense);
    if (said && b->arch->experts && eng_b_has_experts(b, l) != ((uint64_t)l >= dense))
        eng_b_refuse_key(b, CN_EFORMAT, "leading_dense_block_count",
                         "is not where the tensors \"ffn_gate_inp\" begin");
    if (!eng_b_has_experts(b, l)) {
        uint64_t rows = eng_b_rows(b, l, "ffn_gate.weight");
        if (rows && rows <= UINT32_MAX / 2) b->h.layers[l].ff_dim = (uint32_t)rows;
        return eng_b_ffn(b, n, l, KR_ACT_SILU);
    }
    struct eng_experts e = eng_b_experts_of(b, l, KR_GATE_SIGMOID, KR_ACT_SILU);
    e.router.norm = true;
    return eng_b_experts(b, n, eng_b_router(b, n, l), l, &e);
}

static void record(struct eng_builder *b)
{
    int x = eng_b_embed(b, 1.0f);
    for (int l = 0; l < (int)b->h.n_layers && !eng_b_failed(b); l++) {
        int n = eng_b_norm(b, x, l, "attn_norm", 1, b->h.embd_dim);
        int m = b->h.layers[l].n_heads ? attention(b, n, l) : eng_b_short_conv(b, n, l);
        x = kr_op_add(b->plan, x, m);
        x = kr_op_add(b->plan, x, ffn(b, x, l));
    }
    eng_b_head(b, x);
}

const struct eng_arch eng_arch_lfm2 = {
    .name = "lfm2",
    .rope = KR_ROPE_NEOX,
    .output_norm = "token_embd_norm",
    .recurrent = true,
    .record = record,
};

static const char *const needs[] = {
    "ffn_gate_inp.weight",
    "exp_probs_b.bias",
    NULL,
};

const struct eng_arch eng_arch_lfm2moe = {
    .name = "lfm2moe",
    .rope = KR_ROPE_NEOX,
    .output_norm = "token_embd_norm",
    .recurrent = true,
    .experts = true,
    .needs = needs,
    .record = record,
};
