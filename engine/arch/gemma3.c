/* gemma3: Gemma 3, text; gemma_embedding: EmbeddingGemma, which gives vectors.
 *
 *   x = embd[token] * sqrt(D)
 *   each layer:  n = rms(x; attn_norm)
 *                q, k, v = Wq n, Wk n, Wv n
 *                q, k = rope(rms(q; attn_q_norm)), rope(rms(k; attn_k_norm))   per head
 *                a = Wo attention(q, k, v)         causal, window in 5 layers of 6
 *                x = x + rms(a; post_attention_norm)
 *                f = Wdown(gelu(Wgate n) * Wup n)  with n = rms(x; ffn_norm)
 *                x = x + rms(f; post_ffw_norm)
 *   logits = head rms(x; output_norm), soft-capped only where the file has the key
 *
 * Odd points: both branches are normalised again before they are added. Layers 5, 11, ... see
 * everything and turn by freq_base (with linear scaling in the larger models); the others see a
 * window and turn by freq_base_swa, unscaled. The weights of the norms have their "+ 1" folded in.
 * The scale is 1 / sqrt(head size), but 1 / sqrt(D / heads) in the 27B model (62 layers). Files
 * made by ollama lack some keys, name others differently, and have more tokens than embeddings.
 *
 * EmbeddingGemma: the same layers, every row sees every other (in windowed layers those at most
 * half a window away, before it or after), and no head. A row's vector is rms(x; output_norm), then
 * Wdense_3 Wdense_2 of it where the file has these: they have no biases and nothing between them,
 * so that the mean of the rows' vectors is what the projections of the rows' mean are. */
#include "engine/arch/arch.h"

#include <math.h>
#include <stdio.h>

enum { LAYERS_OF_27B = 62, LONG_CONTEXT = 131072, LONG_CONTEXT_FACTOR = 8 };

static int layers(struct eng_builder *b)
{
    const struct eng_hparams *h = &b->h;

    int x = eng_b_embed(b, sqrtf((float)h->embd_dim));
    for (int l = 0; l < (int)h->n_layers && !eng_b_failed(b); l++) {
        int n = eng_b_norm(b, x, l, "attn_norm", 1, h->embd_dim);
        struct eng_qkv a = eng_b_qkv(b, n, l);
        eng_b_head_norms(b, &a, l);
        eng_b_rotate(b, &a, l);
        int o = eng_b_attend(b, &a, l, eng_b_scale_of_size(b, l, LAYERS_OF_27B));
        o = eng_b_attn_output(b, o, l);
        o = eng_b_norm(b, o, l, "post_attention_norm", 1, h->embd_dim);
        x = kr_op_add(b->plan, x, o);

        int f = eng_b_ffn_branch(b, x, l, KR_ACT_GELU_TANH);
        f = eng_b_norm(b, f, l, "post_ffw_norm", 1, h->embd_dim);
        x = kr_op_add(b->plan, x, f);
    }
    return x;
}

static void record(struct eng_builder *b)
{
    eng_b_head(b, layers(b));
}

/* "<name>.weight" as wide as the file says, or x itself when there is none. */
static int dense(struct eng_builder *b, int x, const char *name, uint64_t *width)
{
    char weight[32], in[32], out[32];
    uint64_t rows;
    snprintf(weight, sizeof(weight), "%s.weight", name);
    snprintf(in, sizeof(in), "%s_feat_in", name);
    snprintf(out, sizeof(out), "%s_feat_out", name);
    if (!eng_b_has(b, ENG_GLOBAL, weight) && !eng_b_u64(b, out, &rows)) return x;
    if (eng_b_bounded(b, in, *width, 1u << 24) != *width)
        eng_b_refuse_key(b, CN_EFORMAT, in, "is not the width of what comes before it");
    rows = eng_b_bounded(b, out, CN_MAX(eng_b_rows(b, ENG_GLOBAL, weight), 1u), 1u << 24);
    x = eng_b_linear(b, x, ENG_GLOBAL, name, rows, *width);
    *width = rows;
    return x;
}

static void record_embedding(struct eng_builder *b)
{
    uint64_t width = b->h.embd_dim;
    int x = eng_b_norm(b, layers(b), ENG_GLOBAL, "output_norm", 1, b->h.embd_dim);
    x = dense(b, x, "dense_2", &width);
    x = dense(b, x, "dense_3", &width);
    eng_b_vectors(b, x);
}

/* Published files of the long-context models may lack the scaling their weights were trained
 * for. */
static void adjust(struct eng_hparams *h, bool has_scaling)
{
    if (has_scaling || h->train_context < LONG_CONTEXT) return;
    h->scaling = ENG_ROPE_LINEAR;
    h->scaling_factor = LONG_CONTEXT_FACTOR;
}

static const char *const aliases[] = {
    "rope.freq_base", "rope.global.freq_base", "rope.freq_base_swa", "rope.local.freq_base", NULL,
};

const struct eng_arch eng_arch_gemma3 = {
    .name = "gemma3",
    .rope = KR_ROPE_NEOX,
    .default_eps = 1e-6f,
    .default_freq_base = 1e6f,
    .window_period = 6,
    .window_rope = ENG_WINDOW_ROPE_OWN,
    .cut_vocabulary = true,
    .aliases = aliases,
    .adjust = adjust,
    .record = record,
};

const struct eng_arch eng_arch_gemma_embedding = {
    .name = "gemma-embedding",
    .rope = KR_ROPE_NEOX,
    .default_eps = 1e-6f,
    .default_freq_base = 1e6f,
    .window_period = 6,
    .window_rope = ENG_WINDOW_ROPE_OWN,
    .window_needed = true,
    .encoder = true,
    .aliases = aliases,
    .record = record_embedding,
};
