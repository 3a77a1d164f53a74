/* Sampling: what a request asks for, as what is drawn with (kernels/draw.h). Pure. */
#include "engine/engine.h"

int eng_draw_state_new(const struct eng_sampling *s, const struct eng_draw_env *env,
                       struct kr_draw_state **out, struct cn_error *err)
{
    size_t n_eog;
    const uint32_t *eog = eng_vocab_eog(env->vocab, &n_eog);
    int rc = eng_sampling_check(s, env->vocab, err);
    if (rc) return rc;
    struct kr_draw_opts o = {.loops = env->loops,
                             .n_vocab = eng_vocab_size(env->vocab),
                             .temperature = s->temperature,
                             .top_k = s->top_k,
                             .top_p = s->top_p,
                             .min_p = s->min_p,
                             .repetition = s->repetition_penalty,
                             .presence = s->presence_penalty,
                             .frequency = s->frequency_penalty,
                             .seed = s->seed,
                             .edits = s->bias,
                             .n_edits = s->n_bias,
                             .never = eog,
                             .n_never = s->ignore_eos ? n_eog : 0,
                             .late = eog,
                             .n_late = n_eog,
                             .late_more = s->stop_ids,
                             .n_late_more = s->n_stop_ids,
                             .late_until = s->min_tokens ? env->n_prompt + s->min_tokens : 0,
                             .n_top = s->logprobs};
    rc = kr_draw_state_new(&o, 0, env->rooms, out);
    return rc ? cn_fail(err, rc, "out of memory for what a choice draws with") : 0;
}
