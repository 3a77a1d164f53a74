/* Sampling: what a request asks for, checked, and as what is drawn with (kernels/draw.h). Pure. */
#include "engine/engine.h"

void eng_sampling_defaults(struct eng_sampling *s)
{
    *s = (struct eng_sampling){
        .temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.0f, .logprobs = -1};
}

static int check_range(float v, double lo, double hi, bool lo_open, const char *name,
                       struct cn_error *err)
{
    /* NaN fails both comparisons. */
    if ((lo_open ? v > lo : v >= lo) && v <= hi) return 0;
    return cn_fail_param(err, CN_ERANGE, name, "%s must be %s %g and at most %g", name,
                         lo_open ? "above" : "at least", lo, hi);
}

int eng_sampling_check(const struct eng_sampling *s, const struct eng_vocab *v,
                       struct cn_error *err)
{
    int rc = 0;
    if ((rc = check_range(s->temperature, 0, 2, false, "temperature", err))) return rc;
    if ((rc = check_range(s->top_p, 0, 1, true, "top_p", err))) return rc;
    if ((rc = check_range(s->min_p, 0, 1, false, "min_p", err))) return rc;
    if ((rc = check_range(s->repetition_penalty, 0, 100, true, "repetition_penalty", err)))
        return rc;
    if ((rc = check_range(s->presence_penalty, -2, 2, false, "presence_penalty", err))) return rc;
    if ((rc = check_range(s->frequency_penalty, -2, 2, false, "frequency_penalty", err))) return rc;
    if (s->logprobs < -1 || s->logprobs > KR_MAX_TOP)
        return cn_fail_param(err, CN_ERANGE, "logprobs", "at most %d log-probabilities are given",
                             KR_MAX_TOP);
    for (size_t i = 0; i < s->n_bias; i++) {
        if (s->bias[i].id >= eng_vocab_size(v))
            return cn_fail_param(err, CN_ERANGE, "logit_bias", "token %u is not in the vocabulary",
                                 s->bias[i].id);
        if ((rc = check_range(s->bias[i].add, -100, 100, false, "logit_bias", err))) return rc;
    }
    return 0;
}

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
