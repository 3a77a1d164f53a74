/* command_r: Command R and R+ (command-r), Command R7B and Command A (cohere2).
 *
 *   x = embd[token]
 *   each layer:  n = ln(x; attn_norm)
 *                x = x + Wo attention(rope(Wq n), rope(Wk n), Wv n) + Wdown(silu(Wgate n) * Wup n)
 *   logits = logit_scale * head ln(x; output_norm)
 *
 * Odd points: attention and feed-forward part read the same norm and are added together; norms
 * subtract the mean and have no bias; the head is the embedding table. R+ normalises queries and
 * keys head by head, each head by weights of its own (attn_q_norm [heads, head size]). cohere2 has
 * a window in 3 layers of 4; the fourth sees everything and does not turn. */
#include "engine/arch/arch.h"

#include <stdio.h>

static int head_norms(struct eng_builder *b, int x, int l, const char *name, uint32_t heads)
{
    char full[32];
    snprintf(full, sizeof(full), "%s.weight", name);
    if (!eng_b_optional(b, l, full)) return x;
    uint32_t dim = b->h.layers[l].k_dim;
    const struct kr_tensor *w = eng_b_flat(b, l, full, heads, dim);
    return w ? kr_op_layer_norm(b->plan, x, w, NULL, b->h.eps, heads) : -1;
}

static void record_layers(struct eng_builder *b, bool full_layers_turn)
{
    b->h.logit_scale = eng_b_positive(b, "logit_scale", 0, true);

    int x = eng_b_embed(b, 1.0f);
    for (int l = 0; l < (int)b->h.n_layers && !eng_b_failed(b); l++) {
        const struct eng_layer *layer = &b->h.layers[l];
        int n = eng_b_norm(b, x, l, "attn_norm", 1, b->h.embd_dim);
        struct eng_qkv a = eng_b_qkv(b, n, l);
        a.q = head_norms(b, a.q, l, "attn_q_norm", layer->n_heads);
        a.k = head_norms(b, a.k, l, "attn_k_norm", layer->n_kv_heads);
        if (layer->windowed || full_layers_turn) eng_b_rotate(b, &a, l);
        int o = eng_b_attn_output(b, eng_b_attend(b, &a, l, eng_b_usual_scale(b, l)), l);
        int f = eng_b_ffn(b, n, l, KR_ACT_SILU);
        x = kr_op_add(b->plan, kr_op_add(b->plan, x, o), f);
    }
    eng_b_head(b, x);
}

static void record_command_r(struct eng_builder *b)
{
    record_layers(b, true);
}

static void record_cohere2(struct eng_builder *b)
{
    record_layers(b, false);
}

const struct eng_arch eng_arch_command_r = {
    .name = "command-r",
    .rope = KR_ROPE_NORM,
    .layer_norm = true,
    .record = record_command_r,
};

const struct eng_arch eng_arch_cohere2 = {
    .name = "cohere2",
    .rope = KR_ROPE_NORM,
    .layer_norm = true,
    .window_period = 4,
    .window_needed = true,
    .record = record_cohere2,
};
