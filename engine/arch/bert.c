/* bert: BERT, MiniLM and other encoders of its form. Gives vectors, not tokens.
 *
 *   x = ln(embd[token] + position_embd[position] + token_types[0]; token_embd_norm)
 *   each layer:  x = ln(x + Wo attention(Wq x, Wk x, Wv x); attn_output_norm)
 *                x = ln(x + Wdown(gelu(Wup x)); layer_output_norm)
 *   the rows' vectors are x
 *
 * Odd points: every row sees every other; norms come after the sums, and have biases like every
 * product; gelu is the exact one (by erf). Positions end with the table. */
#include "engine/arch/arch.h"

/* The table of positions with the first token type's vector added to each: text has one type. */
static const struct kr_tensor *positions(struct eng_builder *b)
{
    uint64_t dim = b->h.embd_dim, n = eng_b_rows(b, ENG_GLOBAL, "position_embd.weight");
    uint64_t types = eng_b_token_types(b);
    const struct kr_tensor *p = eng_b_floats(b, ENG_GLOBAL, "position_embd.weight", n, dim);
    if (!p || !types) return p;
    const struct kr_tensor *t = eng_b_floats(b, ENG_GLOBAL, "token_types.weight", types, dim);
    struct kr_tensor *sum = t ? cn_arena_copy(b->arena, p, sizeof(*p)) : NULL;
    float *values = sum ? cn_arena_copy(b->arena, p->data, n * dim * sizeof(float)) : NULL;
    if (!values) {
        if (!eng_b_failed(b)) cn_fail(&b->error, CN_ENOMEM, "out of memory");
        return NULL;
    }
    for (uint64_t i = 0; i < n * dim; i++)
        values[i] += ((const float *)t->data)[i % dim];
    sum->data = values;
    return sum;
}

static void record(struct eng_builder *b)
{
    uint32_t dim = b->h.embd_dim;
    const struct kr_tensor *p = positions(b);
    int x = eng_b_embed(b, 1.0f);
    if (!p || eng_b_failed(b)) return;
    x = kr_op_add(b->plan, x, kr_op_embed_pos(b->plan, p));
    x = eng_b_norm(b, x, ENG_GLOBAL, "token_embd_norm", 1, dim);
    for (int l = 0; l < (int)b->h.n_layers && !eng_b_failed(b); l++) {
        struct eng_qkv a = eng_b_qkv(b, x, l);
        int o = eng_b_attn_output(b, eng_b_attend(b, &a, l, eng_b_usual_scale(b, l)), l);
        if (eng_b_failed(b)) return;
        x = eng_b_norm(b, kr_op_add(b->plan, x, o), l, "attn_output_norm", 1, dim);
        int f = eng_b_plain_ffn(b, x, l, KR_ACT_GELU);
        if (eng_b_failed(b)) return;
        x = eng_b_norm(b, kr_op_add(b->plan, x, f), l, "layer_output_norm", 1, dim);
    }
    eng_b_vectors(b, x);
}

const struct eng_arch eng_arch_bert = {
    .name = "bert",
    .layer_norm = true,
    .encoder = true,
    .needs = eng_needs_encoder_norms,
    .record = record,
};
