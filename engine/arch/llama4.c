/* llama4: Llama 4 Scout and Maverick, text.
 *
 *   x = embd[token]
 *   each layer:  q, k, v = Wq n, Wk n, Wv n,  n = rms(x; attn_norm)
 *     turning:   q, k = rms(rope(q)), rms(rope(k))  per head, without weights
 *     others:    q = q (1 + 0.1 ln(1 + floor((position + 1) / 8192)))      (temperature_scale,
 * _length) x = x + Wo attention(q, k, v) x = x + Wdown(silu(Wgate n) * Wup n)                   n =
 * rms(x; ffn_norm) or experts(n) + shared(n) logits = head rms(x; output_norm)
 *
 * Odd points: three layers of four turn and see only the chunk of 8192 positions that they are in;
 * the fourth does not turn and sees everything. Maverick (128 experts) does not normalise q and k.
 * Every M-th layer has experts (interleave_moe_layer_step). Weights are the sigmoid of the logits,
 * and what they multiply is the experts' input. Pairs are (2i, 2i+1). A file that says
 * attention.sliding_window = 0 has no chunks, and turns everywhere; another number there is the
 * chunk's length. */
#include "engine/arch/arch.h"

enum { UNTURNED_PERIOD = 4, CHUNK = 8192, EXPERTS_OF_MAVERICK = 128 };

struct temperature {
    float scale;
    uint32_t length;
};

static int attention(struct eng_builder *b, int x, int l, bool chunked, struct temperature t)
{
    const struct eng_layer *layer = &b->h.layers[l];
    int n = eng_b_norm(b, x, l, "attn_norm", 1, b->h.embd_dim);
    struct eng_qkv a = eng_b_qkv(b, n, l);
    if (eng_b_failed(b)) return -1;
    if (!chunked || (l + 1) % UNTURNED_PERIOD) {
        eng_b_rotate(b, &a, l);
        if (b->h.n_experts != EXPERTS_OF_MAVERICK) {
            a.q = kr_op_rms_norm(b->plan, a.q, NULL, b->h.eps, layer->n_heads);
            a.k = kr_op_rms_norm(b->plan, a.k, NULL, b->h.eps, layer->n_kv_heads);
        }
    } else {
        a.q = kr_op_pos_scale(b->plan, a.q, t.scale, 1, t.length);
    }
    return eng_b_attn_output(b, eng_b_attend(b, &a, l, eng_b_usual_scale(b, l)), l);
}

static int experts(struct eng_builder *b, int n, int l)
{
    struct eng_experts e = eng_b_experts_of(b, l, KR_GATE_SIGMOID, KR_ACT_SILU);
    e.scaled_input = true;
    int y = eng_b_experts(b, n, eng_b_router(b, n, l), l, &e);
    return kr_op_add(b->plan, y, eng_b_shared_expert(b, n, l, b->h.expert_ff_dim, KR_ACT_SILU));
}

static void record(struct eng_builder *b)
{
    uint64_t step = eng_b_bounded(b, "interleave_moe_layer_step", 1, UINT32_MAX);
    uint64_t window = CHUNK;
    eng_b_u64(b, "attention.sliding_window", &window);
    struct temperature t = {
        eng_b_positive(b, "attention.temperature_scale", 0.1f, false),
        (uint32_t)eng_b_bounded(b, "attention.temperature_length", CHUNK, UINT32_MAX)};

    int x = eng_b_embed(b, 1.0f);
    for (int l = 0; l < (int)b->h.n_layers && !eng_b_failed(b); l++) {
        x = kr_op_add(b->plan, x, attention(b, x, l, window != 0, t));
        int n = eng_b_norm(b, x, l, "ffn_norm", 1, b->h.embd_dim);
        bool sparse = b->h.n_experts && (uint64_t)(l + 1) % step == 0;
        x = kr_op_add(b->plan, x, sparse ? experts(b, n, l) : eng_b_ffn(b, n, l, KR_ACT_SILU));
    }
    eng_b_head(b, x);
}

const struct eng_arch eng_arch_llama4 = {
    .name = "llama4",
    .rope = KR_ROPE_NORM,
    .default_window = CHUNK,
    .window_period = UNTURNED_PERIOD,
    .window_span = KR_SPAN_CHUNK,
    .experts = true,
    .record = record,
};
