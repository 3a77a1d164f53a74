/* gemma4: Gemma 4, text (E2B, E4B, 31B; 26B-A4B with experts).
 *
 *   x = embd[token] * sqrt(D)
 *   e = (rms(Wp x / sqrt(D); per_layer_proj_norm) + per_layer_embd[token] * sqrt(P)) / sqrt(2)
 *   each layer:  q = rope(rms(Wq n; attn_q_norm)), k = rope(rms(Wk n; attn_k_norm)), v = rms(Wv n)
 *                x = x + rms(Wo attention(q, k, v); post_attention_norm),  n = rms(x; attn_norm)
 *                x = x + rms(f; post_ffw_norm),  f = ffn(rms(x; ffn_norm)), or with experts
 *                f = rms(ffn(rms(x; ffn_norm)); post_ffw_norm_1)
 *                    + rms(experts(rms(x; pre_ffw_norm_2)); post_ffw_norm_2)
 *                x = x + rms(Wproj(gelu(Wgate x) * e[layer]); post_norm)
 *                x = x * layer_output_scale
 *   logits = 30 tanh(head rms(x; output_norm) / 30)
 *
 * Odd points: scores are not scaled; v is normalised without weights, and starts from Wk n where
 * there is no Wv. Windowed layers have heads of another size and a base of their own; full layers
 * turn by rope_freqs, whose 1e30 leaves most pairs where they are. The last shared_kv_layers layers
 * store no keys: they read those of the last layer of their kind that does. e is there only where
 * embedding_length_per_layer_input is not 0. The router reads rms(x) * ffn_gate_inp.scale /
 * sqrt(D), not what the experts read; the weights of the chosen are divided by their sum, then
 * multiplied by each expert's own scale. */
#include "engine/arch/arch.h"

#include <math.h>

/* The layer whose keys and values layer l reads. */
static int kv_source(struct eng_builder *b, int l, int n_own)
{
    if (l < n_own) return l;
    for (int i = n_own - 1; i >= 0; i--)
        if (b->h.layers[i].windowed == b->h.layers[l].windowed) return i;
    eng_b_refuse_key(b, CN_EFORMAT, "attention.shared_kv_layers",
                     "leaves a layer without keys and values to share");
    return 0;
}

static int attention(struct eng_builder *b, int n, int l, int from)
{
    const struct eng_layer *layer = &b->h.layers[l];
    uint64_t dim = b->h.embd_dim, kv = (uint64_t)layer->n_kv_heads * layer->k_dim;
    struct kr_rope rope = eng_b_rope(b, l);
    int q = eng_b_linear(b, n, l, "attn_q", (uint64_t)layer->n_heads * layer->k_dim, dim);
    q = eng_b_norm(b, q, l, "attn_q_norm", layer->n_heads, layer->k_dim);
    if (eng_b_failed(b)) return -1;
    q = kr_op_rope(b->plan, q, &rope);
    if (from != l) return eng_b_attend_shared(b, q, l, from, 1.0f);

    int k = eng_b_linear(b, n, l, "attn_k", kv, dim), v = k;
    if (layer->windowed || eng_b_optional(b, l, "attn_v.weight"))
        v = eng_b_linear(b, n, l, "attn_v", (uint64_t)layer->n_kv_heads * layer->v_dim, dim);
    k = eng_b_norm(b, k, l, "attn_k_norm", layer->n_kv_heads, layer->k_dim);
    if (eng_b_failed(b)) return -1;
    v = kr_op_rms_norm(b->plan, v, NULL, b->h.eps, layer->n_kv_heads);
    struct eng_qkv a = {q, kr_op_rope(b->plan, k, &rope), v};
    return eng_b_attend(b, &a, l, 1.0f);
}

/* What every layer adds of the token itself: [R, layers * width], 0 wide when the model has
 * none. */
static int per_layer_inputs(struct eng_builder *b, int x, uint32_t width)
{
    uint32_t all = width * b->h.n_layers;
    int p = eng_b_linear(b, x, ENG_GLOBAL, "per_layer_model_proj", all, b->h.embd_dim);
    if (eng_b_failed(b)) return -1;
    p = kr_op_scale(b->plan, p, 1.0f / sqrtf((float)b->h.embd_dim));
    p = eng_b_norm(b, p, ENG_GLOBAL, "per_layer_proj_norm", b->h.n_layers, width);
    int e = eng_b_table(b, "per_layer_token_embd", all, sqrtf((float)width));
    return eng_b_failed(b) ? -1 : kr_op_scale(b->plan, kr_op_add(b->plan, p, e), sqrtf(0.5f));
}

static int add_layer_input(struct eng_builder *b, int x, int l, int inputs, uint32_t width)
{
    int g = eng_b_linear(b, x, l, "inp_gate", width, b->h.embd_dim);
    if (eng_b_failed(b)) return -1;
    int e = kr_op_slice(b->plan, inputs, 1, (uint32_t)l * width, width);
    g = kr_op_glu(b->plan, g, e, KR_ACT_GELU_TANH);
    int p = eng_b_linear(b, g, l, "proj", b->h.embd_dim, width);
    return kr_op_add(b->plan, x, eng_b_norm(b, p, l, "post_norm", 1, b->h.embd_dim));
}

/* The router's logits. */
static int router(struct eng_builder *b, int x, int l)
{
    const struct kr_tensor *scale = eng_b_vector(b, l, "ffn_gate_inp.scale", b->h.embd_dim);
    const struct kr_tensor *w =
        eng_b_matrices(b, l, "ffn_gate_inp.weight", 1, b->h.n_experts, b->h.embd_dim);
    if (eng_b_failed(b)) return -1;
    int n = kr_op_rms_norm(b->plan, x, scale, b->h.eps, 1);
    n = kr_op_scale(b->plan, n, 1.0f / sqrtf((float)b->h.embd_dim));
    b->matmul_bytes += w->bytes;
    return kr_op_matmul(b->plan, n, w, NULL);
}

static int experts(struct eng_builder *b, int x, int l)
{
    struct eng_experts e = eng_b_experts_of(b, l, KR_GATE_SOFTMAX, KR_ACT_GELU_TANH);
    e.router.norm = true;
    if (eng_b_optional(b, l,
                       "ffn_gate_inp.per_expert_scale")) /* ollama's name of ffn_down_exps.scale */
        e.router.expert_scale = eng_b_vector(b, l, "ffn_gate_inp.per_expert_scale", b->h.n_experts);
    int n = eng_b_norm(b, x, l, "pre_ffw_norm_2", 1, b->h.embd_dim);
    int y = eng_b_experts(b, n, router(b, x, l), l, &e);
    return eng_b_norm(b, y, l, "post_ffw_norm_2", 1, b->h.embd_dim);
}

/* The dense part, and beside it the experts where the layer has them. */
static int feed_forward(struct eng_builder *b, int x, int l)
{
    int f = eng_b_ffn_branch(b, x, l, KR_ACT_GELU_TANH);
    if (eng_b_has_experts(b, l) || eng_b_has(b, l, "ffn_down_exps.weight")) {
        if (!b->h.n_experts)
            eng_b_refuse_key(b, CN_EFORMAT, "expert_count",
                             "is missing or 0, but there is a tensor \"ffn_gate_inp\"");
        f = eng_b_norm(b, f, l, "post_ffw_norm_1", 1, b->h.embd_dim);
        int e = experts(b, x, l);
        f = eng_b_failed(b) ? -1 : kr_op_add(b->plan, f, e);
    }
    return eng_b_norm(b, f, l, "post_ffw_norm", 1, b->h.embd_dim);
}

static void record(struct eng_builder *b)
{
    const struct eng_hparams *h = &b->h;
    uint64_t shared = 0, width = 0;
    eng_b_u64(b, "attention.shared_kv_layers", &shared);
    eng_b_u64(b, "embedding_length_per_layer_input", &width);
    if (shared >= h->n_layers)
        eng_b_refuse_key(b, CN_EFORMAT, "attention.shared_kv_layers", "leaves no layer with keys");
    if (width > (1u << 16))
        eng_b_refuse_key(b, CN_EFORMAT, "embedding_length_per_layer_input", "is too large");
    if (!width && eng_b_has(b, ENG_GLOBAL, "per_layer_model_proj.weight"))
        eng_b_refuse_key(b, CN_EFORMAT, "embedding_length_per_layer_input",
                         "is missing or 0, but there is a tensor \"per_layer_model_proj\"");
    for (int l = 0; l < (int)h->n_layers; l++) /* without them full layers would turn as a whole */
        if (!h->layers[l].windowed)
            eng_b_vector(b, ENG_GLOBAL, "rope_freqs.weight", h->layers[l].n_rot / 2);
    int n_own = (int)(h->n_layers - shared);

    int x = eng_b_embed(b, sqrtf((float)h->embd_dim));
    int inputs = width ? per_layer_inputs(b, x, (uint32_t)width) : -1;
    for (int l = 0; l < (int)h->n_layers && !eng_b_failed(b); l++) {
        int n = eng_b_norm(b, x, l, "attn_norm", 1, h->embd_dim);
        int o = eng_b_attn_output(b, attention(b, n, l, kv_source(b, l, n_own)), l);
        x = kr_op_add(b->plan, x, eng_b_norm(b, o, l, "post_attention_norm", 1, h->embd_dim));

        x = kr_op_add(b->plan, x, feed_forward(b, x, l));

        if (width) x = add_layer_input(b, x, l, inputs, (uint32_t)width);
        if (eng_b_optional(b, l, "layer_output_scale.weight")) {
            const struct kr_tensor *s = eng_b_vector(b, l, "layer_output_scale.weight", 1);
            if (s) x = eng_b_scale(b, x, *(const float *)s->data);
        }
    }
    eng_b_head(b, x);
}

const struct eng_arch eng_arch_gemma4 = {
    .name = "gemma4",
    .rope = KR_ROPE_NEOX,
    .default_freq_base = 1e6f,
    .default_final_softcap = 30,
    .window_rope = ENG_WINDOW_ROPE_OWN,
    .experts = true,
    .record = record,
};
