/* null: no arithmetic; for measuring everything else (engine/null.c makes its file).
 *
 *   logits = 32 at one token, 0 elsewhere:  the end of the answer where the position says so
 *            (answer_length), else a fixed function of the row's token and position
 *   with a script (script.texts):  place = follow(embd[token]),  logits = peak(place)
 *
 * Odd points: its layers have places for keys and values in the pool, which nothing is written to
 * or read from, so that a token takes its blocks like any other model's. The rows of
 * the embedding table are one zero, or with a script what kr_op_follow reads. */
#include "engine/arch/arch.h"

static int follow(struct eng_builder *b, int x, struct kr_peak *peak)
{
    uint64_t n = eng_b_rows(b, ENG_GLOBAL, "script.texts");
    const struct kr_tensor *texts = eng_b_floats(b, ENG_GLOBAL, "script.texts", n, 2);
    peak->tokens = eng_b_flat(b, ENG_GLOBAL, "script.tokens", 1, n);
    peak->rest = eng_b_flat(b, ENG_GLOBAL, "script.rest", 1, b->h.n_vocab);
    if (eng_b_failed(b)) return -1;
    return kr_op_follow(b->plan, x, kr_plan_state(b->plan, 1), texts);
}

static void record(struct eng_builder *b)
{
    uint64_t end = 0, answer = 0, first = 0;
    int x = eng_b_embed(b, 1.0f);
    for (int l = 0; l < (int)b->h.n_layers && !eng_b_failed(b); l++)
        kr_plan_kv_layer(b->plan, eng_b_kv_group(b, l), b->h.layers[l].n_kv_heads,
                         b->h.layers[l].k_dim, b->h.layers[l].v_dim);
    eng_b_u64(b, "answer_length", &answer);
    eng_b_u64(b, "first_answer", &first);
    if (!eng_b_failed(b) && answer) {
        struct cn_error err;
        int rc = eng_gguf_u64(b->g, "tokenizer.ggml.eos_token_id", &end, &err);
        if (rc) b->error = err;
    }
    if (!eng_b_failed(b) && (first >= b->h.n_vocab || end >= b->h.n_vocab || answer > UINT32_MAX))
        eng_b_refuse_key(b, CN_EFORMAT, "first_answer", "is not in the vocabulary");
    if (eng_b_failed(b)) return;
    struct kr_peak peak = {.width = (uint32_t)b->h.n_vocab,
                           .first = (uint32_t)first,
                           .period = (uint32_t)answer,
                           .at_period = (uint32_t)end};
    if (eng_b_has(b, ENG_GLOBAL, "script.texts")) x = follow(b, x, &peak);
    if (eng_b_failed(b)) return;
    x = kr_op_take_logits(b->plan, x);
    kr_plan_output(b->plan, kr_op_peak(b->plan, x, &peak));
}

const struct eng_arch eng_arch_null = {
    .name = "null",
    .rope = KR_ROPE_NEOX,
    .default_eps = 1e-5f,
    .record = record,
};
