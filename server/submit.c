/* From a call to the runtime's requests: one for each prompt. Any thread; works on one call. */
#include "server/call.h"

#include <stdlib.h>
#include <string.h>

static void *copy_of(const void *p, size_t n)
{
    void *q = cn_malloc_array(n, 1);
    if (q && n) memcpy(q, p, n);
    return q;
}

/* Part i as the runtime takes it. The prompt's ids stay with the call only where they are shown. */
static int make_rt(struct srv_call *c, size_t i, struct rt_request *out)
{
    struct srv_prompt *p = &c->prompts[i];
    uint64_t room = c->env->context > p->n ? c->env->context - p->n : 0;

    memset(out, 0, sizeof *out);
    out->id = c->ids[i];
    out->reply = c->reply;
    out->model = rt_model_number(c->model);
    out->tenant = c->tenant;
    out->key = c->key;
    out->priority = c->priority;
    out->n_prompt = p->n;
    out->n = c->best_of;
    out->max_tokens = CN_MIN(c->max_tokens, room); /* the client's own is checked by now */
    out->max_is_bound = !c->max_name;
    out->sampling = c->sampling;
    out->sampling.bias = NULL; /* those of shared */
    out->sampling.n_bias = 0;
    if (c->grammar) { /* it says where the answer may end, and where nothing else may come */
        out->sampling.ignore_eos = false;
        out->sampling.min_tokens = 0;
    }
    out->include_stop = c->p.include_stop;
    out->special_tokens = !c->p.skip_special;
    out->parted = c->parted;
    out->start = c->start;
    out->tools = c->tools;
    out->one_call = c->tools && (!c->p.parallel_tool_calls || c->legacy);
    out->prompt_logprobs = c->p.echo && c->want_logprobs;
    out->deadline_ns = c->deadline_ns;
    out->embed = c->op == SRV_OP_EMBED;
    if (out->embed) out->max_tokens = 1; /* as the scheduler counts it; nothing comes after it */
    out->shared = rt_shared_ref(c->shared);
    if (c->p.return_ids) {
        out->prompt = copy_of(p->ids, p->n * sizeof *p->ids);
    } else {
        out->prompt = p->ids;
        p->ids = NULL;
    }
    if (out->prompt) return 0;
    rt_request_fini(out);
    return CN_ENOMEM;
}

_Static_assert((int)ENG_ALL_IDS == (int)RT_ALL_IDS && (int)ENG_SOME_IDS == (int)RT_SOME_IDS &&
                   (int)ENG_NO_TIME == (int)RT_NO_TIME,
               "eng_guide_mask is a runtime's mask");

/* What holds part i to the call's grammar. In a conversation the answer begins where its reasoning
 * ends. */
static int make_guide(struct srv_call *c, size_t i, struct rt_request *r)
{
    struct eng_guide_in in = {.grammar = c->grammar,
                              .free = c->form.free,
                              .vocab = c->env->vocab,
                              .reply = c->parted ? c->env->reply : NULL,
                              .start = (int)c->start,
                              .n = c->best_of,
                              .max_tokens = UINT64_MAX, /* the runtime says it: limit */
                              .max_reasoning = srv_given(&c->p, SRV_P_thinking_budget)
                                                   ? (uint64_t)c->p.thinking_budget
                                                   : UINT64_MAX,
                              .account = c->hold.account,
                              .max_ns = (uint64_t)c->env->mask_ms * 1000000u};
    if (!c->grammar && (in.max_reasoning == UINT64_MAX || !in.reply)) return 0;
    if (!c->guides) c->guides = cn_calloc(c->n_prompts, sizeof *c->guides);
    if (!c->rt_guides) c->rt_guides = cn_calloc(c->n_prompts, sizeof *c->rt_guides);
    if (!c->guides || !c->rt_guides) return CN_ENOMEM;
    int rc = eng_guide_new(&in, &c->guides[i]);
    c->rt_guides[i] = (struct rt_guide){.arg = c->guides[i],
                                        .mask = eng_guide_mask,
                                        .put = eng_guide_put,
                                        .end = eng_guide_end,
                                        .limit = eng_guide_limit,
                                        .stop = eng_guide_stop};
    r->guide = &c->rt_guides[i];
    return rc;
}

static int submit_one(struct srv_call *c, size_t i)
{
    struct rt_request r;
    int rc = make_rt(c, i, &r);

    if (rc) return cn_fail(&c->err, rc, "%s", cn_err_info(rc)->text);
    rc = make_guide(c, i, &r);
    if (rc)
        cn_fail(&c->err, rc, "%s", cn_err_info(rc)->text);
    else
        rc = rt_submit(c->rt, &r, &c->err);
    if (rc) rt_request_fini(&r);
    return rc;
}

/* What all prompts have in common, when the first of them is submitted. */
static int share(struct srv_call *c)
{
    struct rt_shared_in in = {.stop = (const char *const *)c->stop,
                              .n_stop = c->n_stop,
                              .stop_ids = c->stop_ids,
                              .n_stop_ids = c->n_stop_ids,
                              .bias = c->bias,
                              .n_bias = c->n_bias};

    if (c->shared || !(c->n_stop || c->n_stop_ids || c->n_bias)) return 0;
    int rc = rt_shared_new(&in, &c->shared);
    return rc ? cn_fail(&c->err, rc, "%s", cn_err_info(rc)->text) : 0;
}

uint64_t srv_submit_cost(const struct srv_call *c)
{
    enum {
        PROMPT_NS = 4000,
        CHOICE_NS = 2000,
        STOP_NS = 6000,
        BIAS_NS = 4,
        TOKEN_NS = 1,
        COUNTED_NS = 20 /* a token that the repetition penalty counts */
    };
    uint64_t token = c->sampling.repetition_penalty == 1.0f ? TOKEN_NS : COUNTED_NS;
    uint64_t ns = c->n_stop * STOP_NS;

    for (size_t i = 0; i < c->n_prompts; i++)
        ns += PROMPT_NS + (uint64_t)c->best_of * CHOICE_NS + c->n_bias * BIAS_NS +
              c->prompts[i].n * token;
    return ns;
}

void srv_submit_work(struct srv_job *job)
{
    struct srv_call *c = CN_CONTAINER(job, struct srv_call, job);

    if (share(c)) return;
    for (; c->n_submitted < c->submit_until; c->n_submitted++) {
        if (!srv_text_yield(job)) {
            cn_fail(&c->err, CN_ECANCELLED, "cancelled");
            return;
        }
        int rc = submit_one(c, c->n_submitted);
        if (!rc) continue;
        if (!c->err.code) cn_fail(&c->err, rc, "%s", cn_err_info(rc)->text);
        return;
    }
}
