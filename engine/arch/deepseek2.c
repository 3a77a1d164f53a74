/* deepseek2: DeepSeek V2, V2-Lite, V3, R1, Kimi K2, GLM 4.7 Flash; deepseek32: V3.2, with DSA.
 *
 *   each layer:  n = rms(x; attn_norm)
 *                q = Wq_b rms(Wq_a n; attn_q_a_norm)   (Lite: Wq n)       per head [nope | rope]
 *                c = rms(Wkv_a n; attn_kv_a_norm), r = rope(Wkr n)        one for all heads
 *                q' = [Wk_b[h] q_nope | rope(q_rope)],  k = [c | r],  v = c
 *                q' = q' (1 + b ln(1 + floor(position / T)))  (attention.temperature_scale b)
 *                o[h] = Wv_b[h] attention(q', k, v)
 *                x = x + Wo o
 *                x = x + ffn(n) in the first layers, experts(n) + shared(n) in the others
 *
 * Multi-head latent attention in its absorbed form for every row: what is stored of a token is c
 * and r alone. Odd points: the scale is g^2 / sqrt(nope + rope), g = 1 + yarn_log_multiplier
 * ln(factor), and then RoPE has no amplitude; pairs are (2i, 2i+1). Older files have one tensor
 * attn_kv_b per layer: its rows are taken apart, and Wk_b transposed, at load. V2 limits groups by
 * their best expert, V3 by the sum of their two best. Without expert_gating_func experts' weights
 * are softmax, but sigmoid where the choice has a bias: files of GLM 4.7 Flash lack the key.
 *
 * DSA: an indexer of Hi heads scores every key, and attention sees the top_k best:
 *   qi = rope(Wiq rms(Wq_a n)), ki = rope(ln(Wik n)), w = Wiw n / sqrt(Hi di)
 * its rotary part stands first in a head, its pairs are (i, i + n/2), its norm's eps is 1e-6. */
#include "engine/arch/arch.h"

#include <math.h>

static const float index_norm_eps = 1e-6f;

struct mla {
    uint32_t heads, nope, rope, v_dim, latent;
    uint64_t q_rank;                            /* 0: one matrix */
    bool legacy;                                /* attn_kv_b */
    uint32_t index_heads, index_dim, index_top; /* 0: no indexer */
    int index_group;
    float scale, amplitude;
    float beta; /* q grows with the position; 0: it does not */
    uint32_t period;
};

static struct mla read_mla(struct eng_builder *b)
{
    const struct eng_hparams *h = &b->h;
    const struct eng_layer *l = &h->layers[0];
    struct mla m = {.heads = l->n_heads, .rope = l->n_rot, .index_group = -1, .amplitude = -1};
    uint64_t k_dim = l->k_dim, v_dim = l->v_dim;
    m.latent = (uint32_t)eng_b_bounded(b, "attention.kv_lora_rank", 0, 65536);
    m.legacy = !eng_b_u64(b, "attention.key_length_mla", &k_dim);
    if (!m.legacy) v_dim = eng_b_bounded(b, "attention.value_length_mla", 0, 65536);
    if (k_dim <= m.rope || k_dim > 65536)
        eng_b_refuse_key(b, CN_EFORMAT,
                         m.legacy ? "attention.key_length" : "attention.key_length_mla",
                         "is not more than rope.dimension_count");
    m.nope = (uint32_t)(k_dim - m.rope);
    m.v_dim = (uint32_t)v_dim;
    if (eng_b_has(b, 0, "attn_q_a.weight"))
        m.q_rank = eng_b_bounded(b, "attention.q_lora_rank", 0, 1u << 24);

    m.beta = eng_b_positive(b, "attention.temperature_scale", 0, false);
    if (m.beta > 0)
        m.period = (uint32_t)eng_b_bounded(b, "attention.temperature_length", 0, UINT32_MAX);

    double gain = 1, log_factor = h->scaling_factor > 1 ? log(h->scaling_factor) : 0;
    if (h->scaling == ENG_ROPE_YARN)
        gain = 1 + (h->has_yarn_log_mul ? h->yarn_log_mul : 0.1) * log_factor;
    if (h->has_yarn_log_mul) m.amplitude = h->attn_factor;
    m.scale = (float)(gain * gain / sqrt((double)m.nope + m.rope));
    return m;
}

/* The rotation of the `rope` values that stand alone or at the head of `dim` values. */
static struct kr_rope rotation(struct eng_builder *b, const struct mla *m, int l,
                               enum kr_rope_kind kind, uint32_t dim)
{
    struct kr_rope r = eng_b_rope(b, l);
    r.kind = kind;
    r.head_dim = dim;
    if (m->amplitude >= 0) r.amplitude = m->amplitude;
    return r;
}

/* Which keys a row sees: a value of kr_op_select. */
static int select_keys(struct eng_builder *b, const struct mla *m, int n, int qr, int l)
{
    uint32_t heads = m->index_heads, dim = m->index_dim;
    struct kr_rope rope = rotation(b, m, l, KR_ROPE_NEOX, dim);
    int q = eng_b_linear(b, qr, l, "indexer.attn_q_b", (uint64_t)heads * dim, m->q_rank);
    int k = eng_b_linear(b, n, l, "indexer.attn_k", dim, b->h.embd_dim);
    int w = eng_b_linear(b, n, l, "indexer.proj", heads, b->h.embd_dim);
    const struct kr_tensor *norm = eng_b_vector(b, l, "indexer.k_norm.weight", dim);
    const struct kr_tensor *bias = eng_b_vector(b, l, "indexer.k_norm.bias", dim);
    if (eng_b_failed(b)) return -1;
    q = kr_op_rope(b->plan, q, &rope);
    k = kr_op_layer_norm(b->plan, k, norm, bias, index_norm_eps, 1);
    k = kr_op_rope(b->plan, k, &rope);
    w = kr_op_scale(b->plan, w, 1.0f / sqrtf((float)heads * (float)dim));
    int kv = kr_plan_kv_layer(b->plan, m->index_group, 1, dim, 0);
    kr_op_kv_write(b->plan, kv, k, -1);
    return kr_op_select(b->plan, q, w, kv, m->index_top, b->h.context);
}

/* Stores the latent of each row; the layer's number in the plan. */
static int store_latent(struct eng_builder *b, const struct mla *m, int n, int l)
{
    uint64_t all = (uint64_t)m->latent + m->rope, dim = b->h.embd_dim;
    struct kr_rope rope = rotation(b, m, l, KR_ROPE_NORM, m->rope);
    int c = eng_b_linear_part(b, n, l, "attn_kv_a_mqa", 0, m->latent, all, dim);
    int r = eng_b_linear_part(b, n, l, "attn_kv_a_mqa", m->latent, m->rope, all, dim);
    c = eng_b_norm(b, c, l, "attn_kv_a_norm", 1, m->latent);
    if (eng_b_failed(b)) return -1;
    int k = kr_op_concat(b->plan, c, kr_op_rope(b->plan, r, &rope), 1);
    int kv = kr_plan_kv_layer_latent(b->plan, eng_b_kv_group(b, l), 1, (uint32_t)all, m->latent);
    kr_op_kv_write(b->plan, kv, k, -1);
    return kv;
}

static int attention(struct eng_builder *b, const struct mla *m, int x, int l)
{
    uint64_t q_rows = (uint64_t)m->heads * (m->nope + m->rope), dim = b->h.embd_dim;
    struct kr_rope rope = rotation(b, m, l, KR_ROPE_NORM, m->rope);
    int n = eng_b_norm(b, x, l, "attn_norm", 1, b->h.embd_dim), qr = -1, q;
    if (m->q_rank) {
        qr = eng_b_linear(b, n, l, "attn_q_a", m->q_rank, dim);
        qr = eng_b_norm(b, qr, l, "attn_q_a_norm", 1, (uint32_t)m->q_rank);
        q = eng_b_linear(b, qr, l, "attn_q_b", q_rows, m->q_rank);
    } else {
        q = eng_b_linear(b, n, l, "attn_q", q_rows, dim);
    }
    int kv = store_latent(b, m, n, l);
    struct eng_latent w = eng_b_latent(b, l, m->legacy, m->heads, m->nope, m->v_dim, m->latent);
    if (eng_b_failed(b)) return -1;
    int nope = kr_op_slice(b->plan, q, m->heads, 0, m->nope);
    int turned = kr_op_rope(b->plan, kr_op_slice(b->plan, q, m->heads, m->nope, m->rope), &rope);
    q = kr_op_concat(b->plan, kr_op_head_matmul(b->plan, nope, w.k_b), turned, m->heads);
    if (m->beta > 0) q = kr_op_pos_scale(b->plan, q, m->beta, 0, m->period);
    struct kr_attn attn = {.kv_layer = kv, .n_heads = m->heads, .scale = m->scale};
    int u = m->index_heads
                ? kr_op_attention_selected(b->plan, q, &attn, select_keys(b, m, n, qr, l))
                : kr_op_attention(b->plan, q, &attn);
    int o = kr_op_head_matmul(b->plan, u, w.v_b);
    return eng_b_linear(b, o, l, "attn_output", dim, (uint64_t)m->heads * m->v_dim);
}

static int experts(struct eng_builder *b, int x, int l, uint64_t n_shared)
{
    /* No key: a bias of the choice is what the later, sigmoid routers have. */
    bool biased = eng_b_optional(b, l, "exp_probs_b.bias");
    struct eng_experts e =
        eng_b_experts_of(b, l, biased ? KR_GATE_SIGMOID : KR_GATE_SOFTMAX, KR_ACT_SILU);
    e.router.one_best = e.router.gating == KR_GATE_SOFTMAX;
    int n = eng_b_norm(b, x, l, "ffn_norm", 1, b->h.embd_dim);
    int y = eng_b_experts(b, n, eng_b_router(b, n, l), l, &e);
    if (!n_shared) eng_b_no_shared_expert(b, l, "expert_shared_count");
    if (!n_shared) return y;
    uint64_t ff = n_shared * b->h.expert_ff_dim;
    return kr_op_add(b->plan, y, eng_b_shared_expert(b, n, l, ff, KR_ACT_SILU));
}

static void record_layers(struct eng_builder *b, const struct mla *m)
{
    uint64_t dense = 0, n_shared = 0;
    eng_b_u64(b, "leading_dense_block_count", &dense);
    eng_b_u64(b, "expert_shared_count", &n_shared);
    if (n_shared > 65536) eng_b_refuse_key(b, CN_EFORMAT, "expert_shared_count", "is too large");

    int x = eng_b_embed(b, 1.0f);
    for (int l = 0; l < (int)b->h.n_layers && !eng_b_failed(b); l++) {
        x = kr_op_add(b->plan, x, attention(b, m, x, l));
        bool sparse = b->h.n_experts && (uint64_t)l >= dense;
        int f = sparse ? experts(b, x, l, n_shared) : eng_b_ffn_branch(b, x, l, KR_ACT_SILU);
        x = kr_op_add(b->plan, x, f);
    }
    eng_b_head(b, x);
}

static void record_deepseek2(struct eng_builder *b)
{
    struct mla m = read_mla(b);
    record_layers(b, &m);
}

static void record_deepseek32(struct eng_builder *b)
{
    struct mla m = read_mla(b);
    m.index_heads = (uint32_t)eng_b_bounded(b, "attention.indexer.head_count", 0, 65536);
    m.index_dim = (uint32_t)eng_b_bounded(b, "attention.indexer.key_length", 0, 65536);
    m.index_top = (uint32_t)eng_b_bounded(b, "attention.indexer.top_k", 0, UINT32_MAX);
    if (!m.q_rank)
        eng_b_refuse_key(b, CN_EFORMAT, "attention.q_lora_rank",
                         "is missing: the indexer reads it");
    if (m.index_dim < m.rope)
        eng_b_refuse_key(b, CN_EFORMAT, "attention.indexer.key_length",
                         "is less than rope.dimension_count");
    if (eng_b_failed(b)) return;
    m.index_group = kr_plan_kv_group(b->plan, KR_SPAN_ALL, 0);
    record_layers(b, &m);
}

const struct eng_arch eng_arch_deepseek2 = {
    .name = "deepseek2",
    .rope = KR_ROPE_NORM,
    .partial_rope = true,
    .experts = true,
    .record = record_deepseek2,
};

const struct eng_arch eng_arch_deepseek32 = {
    .name = "deepseek32",
    .rope = KR_ROPE_NORM,
    .partial_rope = true,
    .experts = true,
    .record = record_deepseek32,
};
