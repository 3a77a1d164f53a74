/* From a call to the runtime's requests: one for each prompt. Any thread; works on one call. */
#include "server/call.h"

#include <stdlib.h>
#include <string.h>

static char **copy_stops(const struct srv_call *c)
{
    char **all = cn_calloc(c->n_stop, sizeof *all);

    for (size_t i = 0; all && i < c->n_stop; i++) {
        all[i] = strdup(c->stop[i]);
        if (all[i]) continue;
        while (i > 0)
            free(all[--i]);
        free(all);
        return NULL;
    }
    return all;
}

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
    out->model = c->model;
    out->tenant = c->job.tenant;
    out->priority = c->priority;
    out->n_prompt = p->n;
    out->n = c->best_of;
    out->max_tokens = CN_MIN(c->max_tokens, room); /* the client's own is checked by now */
    out->max_is_bound = !c->max_name;
    out->sampling = c->sampling;
    out->include_stop = c->p.include_stop;
    out->special_tokens = !c->p.skip_special;
    out->parted = c->parted;
    out->start = c->start;
    out->prompt_logprobs = c->p.echo && c->want_logprobs;
    out->deadline_ns = c->deadline_ns;
    out->embed = c->op == SRV_OP_EMBED;
    if (out->embed) out->max_tokens = 1; /* as the scheduler counts it; nothing comes after it */
    out->sampling.bias = copy_of(c->bias, c->n_bias * sizeof *c->bias);
    out->stop = copy_stops(c);
    out->stop_ids = copy_of(c->stop_ids, c->n_stop_ids * sizeof *c->stop_ids);
    if (out->stop) out->n_stop = c->n_stop;
    if (out->stop_ids) out->n_stop_ids = c->n_stop_ids;
    if (c->p.return_ids) {
        out->prompt = copy_of(p->ids, p->n * sizeof *p->ids);
    } else {
        out->prompt = p->ids;
        p->ids = NULL;
    }
    if (out->prompt && out->sampling.bias && out->stop && out->stop_ids) return 0;
    rt_request_fini(out);
    return CN_ENOMEM;
}

static int submit_one(struct srv_call *c, size_t i)
{
    struct rt_request r;
    int rc = make_rt(c, i, &r);

    if (rc) return cn_fail(&c->err, rc, "%s", cn_err_info(rc)->text);
    rc = rt_submit(c->rt, &r, &c->err);
    if (rc) rt_request_fini(&r);
    return rc;
}

void srv_submit_work(struct srv_job *job)
{
    struct srv_call *c = CN_CONTAINER(job, struct srv_call, job);

    for (; c->n_submitted < c->submit_until; c->n_submitted++) {
        if (atomic_load(&job->cancelled)) {
            cn_fail(&c->err, CN_ECANCELLED, "cancelled");
            return;
        }
        int rc = submit_one(c, c->n_submitted);
        if (!rc) continue;
        if (!c->err.code) cn_fail(&c->err, rc, "%s", cn_err_info(rc)->text);
        return;
    }
}
