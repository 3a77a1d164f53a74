/* jamba: Jamba 1.5, Jamba Reasoning.
 *
 *   each layer:  x = x + mixer(n)       n = rms(x; attn_norm)
 *                    Mamba-1, or attention where attention.head_count_kv is not 0
 *                x = x + ffn(n)         n = rms(x; ffn_norm)
 *                    experts in the layers that have a router
 *
 * Odd points: nothing turns; dt, B and C are normalised with weights; the experts' weights are
 * softmax over all and not divided by their sum. */
#include "engine/arch/arch.h"

static int attention(struct eng_builder *b, int n, int l)
{
    struct eng_qkv a = eng_b_qkv(b, n, l);
    return eng_b_attn_output(b, eng_b_attend(b, &a, l, eng_b_usual_scale(b, l)), l);
}

static int ffn(struct eng_builder *b, int x, int l)
{
    if (!eng_b_has_experts(b, l)) return eng_b_ffn_branch(b, x, l, KR_ACT_SILU);
    struct eng_experts e = eng_b_experts_of(b, l, KR_GATE_SOFTMAX, KR_ACT_SILU);
    return eng_b_experts_branch(b, x, l, &e);
}

static void record(struct eng_builder *b)
{
    int x = eng_b_embed(b, 1.0f);
    for (int l = 0; l < (int)b->h.n_layers && !eng_b_failed(b); l++) {
        int n = eng_b_norm(b, x, l, "attn_norm", 1, b->h.embd_dim);
        int m = b->h.layers[l].n_heads ? attention(b, n, l) : eng_b_mamba1(b, n, l, false);
        x = kr_op_add(b->plan, x, m);
        x = kr_op_add(b->plan, x, ffn(b, x, l));
    }
    eng_b_head(b, x);
}

static const char *const needs[] = {
    "ssm_in.weight",
    "ssm_dt_norm.weight",
    "ssm_in.weight",
    "ssm_b_norm.weight",
    "ssm_in.weight",
    "ssm_c_norm.weight",
    "ssm_in.weight",
    "ssm_dt.bias",
    "ssm_in.weight",
    "ssm_conv1d.bias",
    NULL,
};

const struct eng_arch eng_arch_jamba = {
    .name = "jamba",
    .recurrent = true,
    .experts = true,
    .needs = needs,
    .record = record,
};
