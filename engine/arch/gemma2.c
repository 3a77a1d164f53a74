/* gemma2: Gemma 2.
 *
 *   x = embd[token] * sqrt(D)
 *   each layer:  a = Wo attention(rope(Wq n), rope(Wk n), Wv n),  n = rms(x; attn_norm)
 *                x = x + rms(a; post_attention_norm)
 *                f = Wdown(gelu(Wgate n) * Wup n),                n = rms(x; ffn_norm)
 *                x = x + rms(f; post_ffw_norm)
 *   scores = 50 tanh(scale q.k / 50), logits = 30 tanh(head rms(x; output_norm) / 30)
 *
 * Odd points: even layers see a window, odd ones everything, all turn alike. The caps are in the
 * keys; without them they are 50 and 30. The scale is 1 / sqrt(head size), but 1 / sqrt(D / heads)
 * in the 27B model (46 layers): no key says so. */
#include "engine/arch/arch.h"

#include <math.h>

enum { LAYERS_OF_27B = 46 };

static void record(struct eng_builder *b)
{
    const struct eng_hparams *h = &b->h;

    int x = eng_b_embed(b, sqrtf((float)h->embd_dim));
    for (int l = 0; l < (int)h->n_layers && !eng_b_failed(b); l++) {
        int n = eng_b_norm(b, x, l, "attn_norm", 1, h->embd_dim);
        struct eng_qkv a = eng_b_qkv(b, n, l);
        eng_b_rotate(b, &a, l);
        int o = eng_b_attn_output(
            b, eng_b_attend(b, &a, l, eng_b_scale_of_size(b, l, LAYERS_OF_27B)), l);
        x = kr_op_add(b->plan, x, eng_b_norm(b, o, l, "post_attention_norm", 1, h->embd_dim));

        int f = eng_b_ffn_branch(b, x, l, KR_ACT_GELU_TANH);
        x = kr_op_add(b->plan, x, eng_b_norm(b, f, l, "post_ffw_norm", 1, h->embd_dim));
    }
    eng_b_head(b, x);
}

const struct eng_arch eng_arch_gemma2 = {
    .name = "gemma2",
    .rope = KR_ROPE_NEOX,
    .default_attn_softcap = 50,
    .default_final_softcap = 30,
    .default_window = 4096,
    .window_period = 2,
    .record = record,
};
