/* mamba: Mamba-1 and Falcon-Mamba; mamba2: Mamba-2.
 *
 *   x = embd[token]
 *   each layer:  x = x + mixer(rms(x; attn_norm))          (mixers.c)
 *   logits = head rms(x; output_norm)
 *
 * Odd points: no attention, so no KV at all, and no feed-forward part. Falcon-Mamba (key
 * ssm.dt_b_c_rms) normalises dt, B and C without weights. */
#include "engine/arch/arch.h"

static void record_mamba(struct eng_builder *b)
{
    bool bare_norms = false;
    eng_b_bool(b, "ssm.dt_b_c_rms", &bare_norms);
    int x = eng_b_embed(b, 1.0f);
    for (int l = 0; l < (int)b->h.n_layers && !eng_b_failed(b); l++) {
        int n = eng_b_norm(b, x, l, "attn_norm", 1, b->h.embd_dim);
        x = kr_op_add(b->plan, x, eng_b_mamba1(b, n, l, bare_norms));
    }
    eng_b_head(b, x);
}

static void record_mamba2(struct eng_builder *b)
{
    int x = eng_b_embed(b, 1.0f);
    for (int l = 0; l < (int)b->h.n_layers && !eng_b_failed(b); l++) {
        int n = eng_b_norm(b, x, l, "attn_norm", 1, b->h.embd_dim);
        x = kr_op_add(b->plan, x, eng_b_mamba2(b, n, l));
    }
    eng_b_head(b, x);
}

static const char *const mamba_needs[] = {"ssm_in.weight", "ssm_dt.bias", "ssm_in.weight",
                                          "ssm_conv1d.bias", NULL};
static const char *const mamba2_needs[] = {"ssm_in.weight", "ssm_norm.weight", "ssm_in.weight",
                                           "ssm_conv1d.bias", NULL};

const struct eng_arch eng_arch_mamba = {
    .name = "mamba",
    .recurrent = true,
    .needs = mamba_needs,
    .record = record_mamba,
};

const struct eng_arch eng_arch_mamba2 = {
    .name = "mamba2",
    .recurrent = true,
    .needs = mamba2_needs,
    .record = record_mamba2,
};
