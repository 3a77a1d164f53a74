/* qwen3next: Qwen 3 Next; qwen35, qwen35moe: Qwen 3.5.
 *
 *   each layer:  x = x + mixer(n)       n = rms(x; attn_norm)
 *                    the gated delta rule (mixers.c), or in every fourth layer
 *                    Wo (attention(rope(rms(q)), rope(rms(k)), v) * sigmoid(g)),
 *                    [q; g] = Wq n per head
 *                x = x + ffn(n)         n = rms(x; post_attention_norm)
 *                    experts(n) + sigmoid(ws . n) * shared(n), or dense in qwen35
 *   logits = head rms(x; output_norm)
 *
 * Odd points: post_attention_norm is the norm before the feed-forward part; a quarter of each
 * head turns; Wq has two halves per head, queries and gates. attention.recurrent_layers names
 * the recurrent layers; without it, all but every full_attention_interval-th are recurrent. Text
 * has one position on all axes, so that the interleaved rotation of Qwen 3.5 is the usual one. */
#include "engine/arch/arch.h"

static int attention(struct eng_builder *b, int n, int l)
{
    const struct eng_layer *layer = &b->h.layers[l];
    uint64_t dim = b->h.embd_dim, kv = (uint64_t)layer->n_kv_heads;
    int qg = eng_b_linear(b, n, l, "attn_q", 2ull * layer->n_heads * layer->k_dim, dim);
    struct eng_qkv a;
    a.k = eng_b_linear(b, n, l, "attn_k", kv * layer->k_dim, dim);
    a.v = eng_b_linear(b, n, l, "attn_v", kv * layer->v_dim, dim);
    if (eng_b_failed(b)) return -1;
    a.q = kr_op_slice(b->plan, qg, layer->n_heads, 0, layer->k_dim);
    int gate = kr_op_slice(b->plan, qg, layer->n_heads, layer->k_dim, layer->k_dim);
    eng_b_head_norms(b, &a, l);
    eng_b_rotate(b, &a, l);
    int o = eng_b_attend(b, &a, l, eng_b_usual_scale(b, l));
    if (eng_b_failed(b)) return -1;
    return eng_b_attn_output(b, kr_op_glu(b->plan, gate, o, KR_ACT_SIGMOID), l);
}

static bool is_recurrent(struct eng_builder *b, int l)
{
    uint64_t value = 0, interval = 4;
    if (!b->h.layers[l].n_heads) return true;
    if (eng_b_per_layer(b, "attention.recurrent_layers", (uint32_t)l, &value)) return value != 0;
    interval = eng_b_bounded(b, "full_attention_interval", interval, UINT32_MAX);
    return (uint64_t)(l + 1) % interval != 0;
}

static int ffn(struct eng_builder *b, int x, int l)
{
    int n = eng_b_norm(b, x, l, "post_attention_norm", 1, b->h.embd_dim);
    if (!b->h.n_experts) return eng_b_ffn(b, n, l, KR_ACT_SILU);
    struct eng_experts e = eng_b_experts_of(b, l, KR_GATE_SOFTMAX, KR_ACT_SILU);
    e.router.norm = true;
    int y = eng_b_experts(b, n, eng_b_router(b, n, l), l, &e);
    uint64_t shared_ff = eng_b_shared_width(b, l);
    if (!shared_ff) return y;
    return kr_op_add(b->plan, y, eng_b_gated_shared_expert(b, n, l, shared_ff));
}

static void record(struct eng_builder *b)
{
    int x = eng_b_embed(b, 1.0f);
    for (int l = 0; l < (int)b->h.n_layers && !eng_b_failed(b); l++) {
        int n = eng_b_norm(b, x, l, "attn_norm", 1, b->h.embd_dim);
        int m = is_recurrent(b, l) ? eng_b_delta_net(b, n, l) : attention(b, n, l);
        x = kr_op_add(b->plan, x, m);
        x = kr_op_add(b->plan, x, ffn(b, x, l));
    }
    eng_b_head(b, x);
}

#define QWEN3NEXT(id, text)                                                                        \
    const struct eng_arch eng_arch_##id = {                                                        \
        .name = text,                                                                              \
        .rope = KR_ROPE_NEOX,                                                                      \
        .partial_rope = true,                                                                      \
        .recurrent = true,                                                                         \
        .experts = true,                                                                           \
        .record = record,                                                                          \
    }
QWEN3NEXT(qwen3next, "qwen3next");
QWEN3NEXT(qwen35, "qwen35");
QWEN3NEXT(qwen35moe, "qwen35moe");
