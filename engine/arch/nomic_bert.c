/* nomic_bert: nomic-embed-text 1 and 1.5. Gives vectors, not tokens.
 *
 *   x = ln(embd[token] + token_types[0]; token_embd_norm)
 *   each layer:  x = ln(x + Wo attention(rope(Wq x), rope(Wk x), Wv x); attn_output_norm)
 *                x = ln(x + Wdown(silu(Wgate x) * Wup x); layer_output_norm)
 *   the rows' vectors are x
 *
 * Odd points: every row sees every other; norms come after the sums and have biases, products have
 * none; pairs of the rotation are (i, i + n/2), its base is 1000 in the published files. */
#include "engine/arch/arch.h"

/* The first token type's vector in every row (text has one type): the bias of a norm of nothing. */
static int token_type(struct eng_builder *b, int x, uint64_t types)
{
    uint64_t dim = b->h.embd_dim;
    const struct kr_tensor *t = eng_b_flat(b, ENG_GLOBAL, "token_types.weight", types, dim);
    struct kr_tensor *first = t ? cn_arena_copy(b->arena, t, sizeof(*t)) : NULL;
    if (!first) {
        if (!eng_b_failed(b)) cn_fail(&b->error, CN_ENOMEM, "out of memory");
        return -1;
    }
    first->ne[0] = dim;
    first->bytes = dim * sizeof(float);
    return kr_op_layer_norm(b->plan, kr_op_scale(b->plan, x, 0), first, first, 1, 1);
}

static void record(struct eng_builder *b)
{
    uint32_t dim = b->h.embd_dim;
    int x = eng_b_embed(b, 1.0f);
    uint64_t types = eng_b_token_types(b);
    if (types) x = kr_op_add(b->plan, x, token_type(b, x, types));
    x = eng_b_norm(b, x, ENG_GLOBAL, "token_embd_norm", 1, dim);
    for (int l = 0; l < (int)b->h.n_layers && !eng_b_failed(b); l++) {
        struct eng_qkv a = eng_b_qkv(b, x, l);
        eng_b_rotate(b, &a, l);
        int o = eng_b_attn_output(b, eng_b_attend(b, &a, l, eng_b_usual_scale(b, l)), l);
        x = eng_b_norm(b, kr_op_add(b->plan, x, o), l, "attn_output_norm", 1, dim);
        int f = eng_b_ffn(b, x, l, KR_ACT_SILU);
        x = eng_b_norm(b, kr_op_add(b->plan, x, f), l, "layer_output_norm", 1, dim);
    }
    eng_b_vectors(b, x);
}

const struct eng_arch eng_arch_nomic_bert = {
    .name = "nomic-bert",
    .rope = KR_ROPE_NEOX,
    .layer_norm = true,
    .encoder = true,
    .needs = eng_needs_encoder_norms,
    .record = record,
};
