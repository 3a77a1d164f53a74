/* Everything of a generation request that is not its text: sampling, stops, counts, limits,
 * priority, deadline. Worker threads; works on one call. */
#include "server/call.h"

#include <stdlib.h>
#include <string.h>

static int add_stop(struct srv_call *c, const json_t *s)
{
    size_t n = json_string_length(s);

    if (!json_is_string(s))
        return cn_fail_param(&c->err, CN_ETYPE, "stop", "stop must be a string or strings");
    if (n == 0)
        return cn_fail_param(&c->err, CN_EINVAL, "stop", "stop may not hold an empty string");
    if (n > SRV_MAX_STOP_BYTES)
        return cn_fail_param(&c->err, CN_ELIMIT, "stop", "a stop string is longer than %d bytes",
                             SRV_MAX_STOP_BYTES);
    if (memchr(json_string_value(s), 0, n))
        return cn_fail_param(&c->err, CN_EINVAL, "stop",
                             "a stop string may not hold the character U+0000");
    if (c->n_stop == SRV_MAX_STOPS)
        return cn_fail_param(&c->err, CN_ELIMIT, "stop", "there are more than %d stop strings",
                             SRV_MAX_STOPS);
    c->stop[c->n_stop] = strdup(json_string_value(s));
    if (!c->stop[c->n_stop]) return cn_fail(&c->err, CN_ENOMEM, "out of memory");
    c->n_stop++;
    return 0;
}

static int read_stop(struct srv_call *c)
{
    const json_t *v = c->p.stop;
    json_t *s;
    size_t i;
    int rc;

    if (!v) return 0;
    c->stop = cn_calloc(SRV_MAX_STOPS, sizeof *c->stop);
    if (!c->stop) return cn_fail(&c->err, CN_ENOMEM, "out of memory");
    if (!json_is_array(v)) return add_stop(c, v);
    json_array_foreach(v, i, s) if ((rc = add_stop(c, s))) return rc;
    return 0;
}

static int read_stop_ids(struct srv_call *c)
{
    size_t n = json_array_size(c->p.stop_ids), i;
    json_t *v;

    if (!n) return 0;
    if (n > SRV_MAX_STOPS)
        return cn_fail_param(&c->err, CN_ELIMIT, "stop_token_ids", "there are more than %d ids",
                             SRV_MAX_STOPS);
    c->stop_ids = cn_malloc_array(n, sizeof *c->stop_ids);
    if (!c->stop_ids) return cn_fail(&c->err, CN_ENOMEM, "out of memory");
    json_array_foreach(c->p.stop_ids, i, v)
    {
        int64_t id;
        if (!srv_json_int(v, &id))
            return cn_fail_param(&c->err, CN_ETYPE, "stop_token_ids",
                                 "stop_token_ids[%zu] must be a token id", i);
        if (id < 0 || (uint64_t)id >= eng_vocab_size(c->env->vocab))
            return cn_fail_param(&c->err, CN_ERANGE, "stop_token_ids",
                                 "stop_token_ids[%zu] is not an id of the vocabulary", i);
        c->stop_ids[c->n_stop_ids++] = (uint32_t)id;
    }
    return 0;
}

static int read_bias(struct srv_call *c)
{
    size_t n = json_object_size(c->p.logit_bias);
    const char *key;
    json_t *v;

    if (!n) return 0;
    if (n > SRV_MAX_BIAS)
        return cn_fail_param(&c->err, CN_ELIMIT, "logit_bias",
                             "logit_bias has more than %d entries", SRV_MAX_BIAS);
    c->bias = cn_malloc_array(n, sizeof *c->bias);
    if (!c->bias) return cn_fail(&c->err, CN_ENOMEM, "out of memory");
    json_object_foreach(c->p.logit_bias, key, v)
    {
        char *end;
        unsigned long long id = strtoull(key, &end, 10);
        if (key[0] < '0' || key[0] > '9' || *end || id >= eng_vocab_size(c->env->vocab))
            return cn_fail_param(&c->err, CN_EINVAL, "logit_bias",
                                 "logit_bias: a key is not an id of the vocabulary");
        if (!json_is_number(v))
            return cn_fail_param(&c->err, CN_ETYPE, "logit_bias",
                                 "logit_bias: the value of %s must be a number", key);
        double bias = json_number_value(v);
        if (!(bias >= -100 && bias <= 100))
            return cn_fail_param(&c->err, CN_ERANGE, "logit_bias",
                                 "logit_bias: the value of %s must be between -100 and 100", key);
        c->bias[c->n_bias++] = (struct cn_bias){(uint32_t)id, (float)bias};
    }
    return 0;
}

static int check_count(struct srv_call *c, const char *name, int64_t n)
{
    if (n >= 1 && n <= c->env->max_n) return 0;
    return cn_fail_param(&c->err, CN_ERANGE, name,
                         "%s must be between 1 and %lld (limits.max_n), got %lld", name,
                         (long long)c->env->max_n, (long long)n);
}

int srv_counts_read(struct srv_call *c)
{
    const struct srv_params *p = &c->p;
    int64_t best = srv_given(p, SRV_P_best_of) ? p->best_of : p->n;
    int rc;

    if ((rc = check_count(c, "n", p->n)) || (rc = check_count(c, "best_of", best))) return rc;
    if (best < p->n)
        return cn_fail_param(&c->err, CN_EINVAL, "best_of", "best_of must be at least n");
    if (best > p->n && p->stream)
        return cn_fail_param(&c->err, CN_EINVAL, "best_of",
                             "best_of above n cannot be streamed: the best is known at the end");
    c->n = (uint32_t)p->n;
    c->best_of = (uint32_t)best;
    return 0;
}

static int read_max_tokens(struct srv_call *c)
{
    const struct srv_params *p = &c->p;
    bool newer = srv_given(p, SRV_P_max_completion_tokens);
    const char *name = newer ? "max_completion_tokens" : "max_tokens";
    bool text = c->op == SRV_OP_TEXT;
    int64_t max = newer ? p->max_completion_tokens : text ? p->max_text_tokens : p->max_tokens;
    int64_t limit = c->env->max_tokens;
    bool asked = max && (!text || srv_given(p, SRV_P_max_text_tokens));

    if (limit && !asked && max) max = CN_MIN(max, limit);
    if (limit && max > limit)
        return cn_fail_param(&c->err, CN_ERANGE, name,
                             "%s must be at most %lld here (limits.max_tokens)", name,
                             (long long)limit);
    c->max_tokens = (uint64_t)max;
    if (asked) c->max_name = name;
    if (text && srv_given(p, SRV_P_max_text_tokens) && max == 0) {
        if (!p->echo)
            return cn_fail_param(&c->err, CN_ERANGE, name, "%s must be at least 1, or 0 with echo",
                                 name);
        c->echo_only = true;
        c->max_tokens = 1;
    } else if (max == 0) {
        c->max_tokens = (uint64_t)limit;
    }
    if (c->max_tokens && (uint64_t)p->min_tokens > c->max_tokens)
        return cn_fail_param(&c->err, CN_EINVAL, "min_tokens",
                             "min_tokens is above %s, which is %llu", name,
                             (unsigned long long)c->max_tokens);
    return 0;
}

/* What a client asks for is refused, never cut: only a bound of the config's gives way to the
 * window. */
int srv_window_check(struct srv_call *c)
{
    const char *field = c->op == SRV_OP_CHAT ? "messages" : "prompt";
    unsigned long long context = c->env->context;

    for (size_t i = 0; i < c->n_prompts; i++) {
        unsigned long long n = c->prompts[i].n;
        if (n >= context)
            return cn_fail_param(&c->err, CN_EWINDOW, field,
                                 "the prompt has %llu tokens; the context window of %llu tokens "
                                 "must hold it and at least one more",
                                 n, context);
        if (c->max_name && c->max_tokens > context - n)
            return cn_fail_param(&c->err, CN_EWINDOW, c->max_name,
                                 "%s is %llu and the prompt has %llu tokens: together more than "
                                 "the context window of %llu tokens; at most %llu are left",
                                 c->max_name, (unsigned long long)c->max_tokens, n, context,
                                 context - n);
    }
    return 0;
}

static int read_logprobs(struct srv_call *c)
{
    const struct srv_params *p = &c->p;

    c->sampling.logprobs = -1;
    if (c->op == SRV_OP_TEXT && srv_given(p, SRV_P_n_logprobs)) {
        c->want_logprobs = true;
        c->sampling.logprobs = (int32_t)p->n_logprobs;
    } else if (c->op == SRV_OP_CHAT && p->logprobs) {
        c->want_logprobs = true;
        c->sampling.logprobs = (int32_t)p->top_logprobs;
    } else if (c->op == SRV_OP_CHAT && p->top_logprobs > 0) {
        return cn_fail_param(&c->err, CN_EINVAL, "top_logprobs",
                             "top_logprobs needs logprobs to be true");
    }
    if (c->best_of > c->n && c->sampling.logprobs < 0) c->sampling.logprobs = 0;
    return 0;
}

int srv_priority_read(struct srv_call *c)
{
    static const char *const names[] = {"interactive", "normal", "background", NULL};
    int i = c->p.priority ? srv_json_one_of(c->p.priority, names) : (int)c->ceiling;

    if (i < 0)
        return cn_fail_param(&c->err, CN_EINVAL, "priority",
                             "priority must be interactive, normal or background");
    if (i < (int)c->ceiling)
        return cn_fail_param(&c->err, CN_EINVAL, "priority",
                             "priority %s is above this tenant's highest, %s", names[i],
                             names[c->ceiling]);
    c->priority = (enum rt_priority)i;
    return 0;
}

static int read_stream_options(struct srv_call *c)
{
    const json_t *v = json_object_get(c->p.stream_options, "include_usage");

    if (!c->p.stream_options) return 0;
    if (!c->p.stream)
        return cn_fail_param(&c->err, CN_EINVAL, "stream_options",
                             "stream_options needs stream to be true");
    if (v && !json_is_null(v) && !json_is_boolean(v))
        return cn_fail_param(&c->err, CN_ETYPE, "stream_options.include_usage",
                             "include_usage must be a boolean");
    c->include_usage = json_is_true(v);
    return 0;
}

void srv_deadline_read(struct srv_call *c)
{
    double ms = c->env->default_deadline_s * 1000;

    if (c->header_deadline_ms) ms = (double)c->header_deadline_ms;
    if (c->p.deadline_ms && (ms <= 0 || (double)c->p.deadline_ms < ms))
        ms = (double)c->p.deadline_ms;
    c->deadline_ns = ms > 0 ? c->received_ns + (uint64_t)(ms * 1e6) : 0;
}

/* The model's defaults, and over them what the request names. */
static void read_draw(struct srv_call *c)
{
    const struct srv_params *p = &c->p;
    struct cfg_sampling asked = {.v = {[CFG_S_TEMPERATURE] = p->temperature,
                                       [CFG_S_TOP_P] = p->top_p,
                                       [CFG_S_TOP_K] = (double)CN_MAX(p->top_k, (int64_t)0),
                                       [CFG_S_MIN_P] = p->min_p,
                                       [CFG_S_REPETITION] = p->repetition_penalty,
                                       [CFG_S_PRESENCE] = p->presence_penalty,
                                       [CFG_S_FREQUENCY] = p->frequency_penalty}};
    static const enum srv_param of[CFG_N_SAMPLING] = {[CFG_S_TEMPERATURE] = SRV_P_temperature,
                                                      [CFG_S_TOP_P] = SRV_P_top_p,
                                                      [CFG_S_TOP_K] = SRV_P_top_k,
                                                      [CFG_S_MIN_P] = SRV_P_min_p,
                                                      [CFG_S_REPETITION] = SRV_P_repetition_penalty,
                                                      [CFG_S_PRESENCE] = SRV_P_presence_penalty,
                                                      [CFG_S_FREQUENCY] = SRV_P_frequency_penalty};

    for (int f = 0; f < CFG_N_SAMPLING; f++)
        if (srv_given(p, of[f])) asked.given |= 1u << f;
    c->sampling = c->env->sampling;
    rt_sampling_apply(&c->sampling, &asked);
}

int srv_sampling_read(struct srv_call *c)
{
    const struct srv_params *p = &c->p;
    struct eng_sampling *s = &c->sampling;
    int rc;

    read_draw(c);
    if ((rc = read_max_tokens(c)) || (rc = read_logprobs(c)) || (rc = read_stop(c)) ||
        (rc = read_stop_ids(c)) || (rc = read_bias(c)) || (rc = srv_priority_read(c)) ||
        (rc = read_stream_options(c)))
        return rc;
    s->min_tokens = (uint32_t)p->min_tokens;
    s->ignore_eos = p->ignore_eos;
    if (srv_given(p, SRV_P_seed))
        s->seed = (uint64_t)p->seed;
    else
        cn_random(&s->seed, sizeof s->seed);
    s->bias = c->bias;
    s->n_bias = c->n_bias;
    return eng_sampling_check(s, c->env->vocab, &c->err);
}
