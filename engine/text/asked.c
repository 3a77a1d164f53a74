/* Sampling: what a request asks for, and whether that is in range. Pure. */
#include "engine/text/text.h"

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
    if (s->logprobs < -1 || s->logprobs > CN_MAX_TOP)
        return cn_fail_param(err, CN_ERANGE, "logprobs", "at most %d log-probabilities are given",
                             CN_MAX_TOP);
    for (size_t i = 0; i < s->n_bias; i++) {
        if (s->bias[i].id >= eng_vocab_size(v))
            return cn_fail_param(err, CN_ERANGE, "logit_bias", "token %u is not in the vocabulary",
                                 s->bias[i].id);
        if ((rc = check_range(s->bias[i].add, -100, 100, false, "logit_bias", err))) return rc;
    }
    return 0;
}
