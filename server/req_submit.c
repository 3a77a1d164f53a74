/* A call on its way into the engine: what it will take there is paid for, each prompt has a slot,
 * and they are handed over, by a worker where that takes long. Loop thread only. */
#include "server/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUBMIT_ON_LOOP 262144 /* ns of srv_submit_cost: what takes longer a worker submits */
#define PROMPT_BYTES   2048   /* what the engine side takes for a prompt, */
#define CHOICE_BYTES   2048   /* and for a choice */

/* The runtime has one name for what holds the prompt and for the length of the answer; each
 * endpoint has its own. */
void srv_req_name_field(const struct srv_req *q, struct cn_error *err)
{
    const char *max = q->call->max_name;

    if (max && !strcmp(err->param, "max_tokens")) {
        snprintf(err->param, sizeof err->param, "%s", max);
        cn_error_wrap(err, "%s", max);
    }
    if (!strcmp(err->param, "messages") || !strcmp(err->param, "prompt"))
        snprintf(err->param, sizeof err->param, "%s",
                 q->call->op == SRV_OP_CHAT    ? "messages"
                 : q->call->op == SRV_OP_EMBED ? "input"
                                               : "prompt");
}

void srv_req_submitted(struct srv_req *q)
{
    struct srv_call *c = q->call;

    if (q->cancelled || c->err.code) srv_req_drop_unsubmitted(q);
    if (q->cancelled) {
        srv_req_cancel_subs(q); /* what was submitted after the first cancel */
    } else if (c->err.code) {
        srv_req_count_refused(q->srv, c->op, q->tenant);
        srv_req_name_field(q, &c->err);
        srv_req_fail(q, &c->err);
    }
}

/* About what the engine side takes for a call: a record for each prompt and each choice, ids that
 * are copied, vectors, the log-probabilities of prompts and the event that brings them. */
static uint64_t engine_bytes(const struct srv_call *c)
{
    uint64_t n = 0;

    for (size_t i = 0; i < c->n_prompts; i++) {
        uint64_t tokens = c->prompts[i].n;
        n += PROMPT_BYTES + (uint64_t)c->best_of * CHOICE_BYTES;
        if (c->p.return_ids) n += tokens * sizeof(uint32_t);
        if (c->p.echo && c->want_logprobs)
            n += tokens * (2 * sizeof(struct cn_top) * CN_MAX_TOP + 32);
    }
    if (c->op == SRV_OP_EMBED) n += c->n_prompts * c->env->embedding_size * sizeof(float);
    return n;
}

/* More prompts than the tenant's limits let run and wait together can never be taken. */
static int check_prompts(const struct srv_req *q, struct cn_error *err)
{
    const struct srv_call *c = q->call;

    if (c->op == SRV_OP_EMBED) return 0;
    const struct cfg_tenant *t = srv_req_tenant(q);
    if (!t->max_concurrency || !t->max_queued) return 0;
    uint64_t most = (uint64_t)t->max_concurrency + (uint64_t)t->max_queued;
    if (c->n_prompts <= most) return 0;
    return cn_fail_param(
        err, CN_ELIMIT, "prompt",
        "a request of this tenant may have %llu prompts: max_concurrency is %lld and "
        "max_queued %lld, got %zu",
        (unsigned long long)most, (long long)t->max_concurrency, (long long)t->max_queued,
        c->n_prompts);
}

/* Answers that are held to a form take memory from the beginning on. What can never fit is refused
 * before anything is generated. */
static int check_forms(struct srv_call *c)
{
    struct cn_account *a = c->hold.account;

    if (!c->grammar || !a) return 0;
    uint64_t most = cn_account_most(a), own = CN_MIN(c->hold.bytes, most);
    uint64_t all = c->n_prompts * eng_guide_bytes(c->env->vocab, c->best_of, true);
    if (all <= most - own) return 0;
    return cn_fail_param(
        &c->err, CN_ETOOLARGE, c->form.name,
        "%s: %zu answers that are held to it take %s at least, and this tenant can "
        "have %s (server.memory_bytes): ask for fewer at once",
        c->form.name, c->n_prompts * c->best_of, cn_size(all).text, cn_size(most).text);
}

/* A slot for each part, so that events find it whenever they come. */
static int make_subs(struct srv_req *q)
{
    struct srv_call *c = q->call;
    int rc = cn_hold_take(&c->hold, engine_bytes(c));

    if (rc) return rc;
    q->subs = cn_calloc(c->n_prompts, sizeof *q->subs);
    c->ids = cn_malloc_array(c->n_prompts, sizeof *c->ids);
    if (!q->subs || !c->ids) return CN_ENOMEM;
    for (; q->n_subs < c->n_prompts; q->n_subs++) {
        struct srv_sub *sub = &q->subs[q->n_subs];
        rc = srv_slot_take(q->srv, q, (uint32_t)q->n_subs, &sub->slot);
        if (rc) return rc;
        sub->live = true;
        q->n_live++;
        c->ids[q->n_subs] = srv_slot_id(q->srv, sub->slot);
    }
    return 0;
}

void srv_req_submit_more(struct srv_req *q)
{
    struct srv_call *c = q->call;

    c->submit_until = CN_MIN(c->n_prompts, q->n_ended + srv_vec_at_once(q));
    srv_submit_work(&c->job);
    srv_req_submitted(q);
}

/* Prompts are looked at once more per choice: with many or long ones that is a worker's job too. */
void srv_req_submit(struct srv_req *q)
{
    struct srv_call *c = q->call;
    uint64_t work;

    c->rt = q->srv->rt;
    c->reply = &q->srv->mail;
    c->submit_until = c->n_prompts;
    int rc = check_prompts(q, &c->err);
    if (!rc) rc = check_forms(c);
    if (!rc) rc = make_subs(q);
    if (!rc && c->op == SRV_OP_EMBED) {
        q->submitted_ns = cn_now_ns();
        srv_req_submit_more(q);
        return;
    }
    if (!rc) rc = srv_out_begin(q);
    if (!rc) rc = srv_out_choices(q);
    q->submitted_ns = cn_now_ns();
    work = srv_submit_cost(c);
    if (!rc && work > SUBMIT_ON_LOOP && !(rc = srv_slot_take(q->srv, q, 0, &q->job_slot))) {
        c->job.cost = work;
        srv_req_job(q, SRV_WORK_SUBMIT);
        return;
    }
    if (rc && !c->err.code)
        cn_fail(&c->err, rc, "%s", cn_err_info(rc)->text);
    else if (!rc)
        srv_submit_work(&c->job);
    srv_req_submitted(q);
}
