/* Turns the runtime's events of a request into its answer. Loop thread only; works on one
 * record. Invariant: the record may be gone when srv_req_event returns. */
#include "server/request.h"

#include <stdio.h>
#include <string.h>

/* Of the time stamps of all parts the first, 0 aside. */
static void take_first(uint64_t *at, uint64_t ns)
{
    if (ns && (!*at || ns < *at)) *at = ns;
}

static void add_usage(struct srv_req *q, const struct rt_usage *u)
{
    struct rt_usage *all = &q->usage;

    all->prompt_tokens += u->prompt_tokens;
    all->cached_tokens += u->cached_tokens;
    all->reasoning_tokens += u->reasoning_tokens;
    if (!q->call->echo_only) all->completion_tokens += u->completion_tokens;
    all->computed_tokens += u->computed_tokens;
    all->recomputed_tokens += u->recomputed_tokens;
    all->written_tokens += u->written_tokens;
    all->drafted_rows += u->drafted_rows;
    all->rejected_rows += u->rejected_rows;
    all->unseen_rows += u->unseen_rows;
    all->preemptions += u->preemptions;
    take_first(&all->submitted_ns, u->submitted_ns);
    take_first(&all->first_step_ns, u->first_step_ns);
    take_first(&all->first_token_ns, u->first_token_ns);
    all->ended_ns = CN_MAX(all->ended_ns, u->ended_ns);
}

void srv_req_ended(struct srv_req *q)
{
    if (!q->conn || q->n_live) return;
    if (q->stream && q->call->op != SRV_OP_EMBED)
        srv_sse_finish(q);
    else
        srv_answer_begin(q);
}

/* A choice that its grammar's guide gave up has no token to draw (CN_ENUMERIC): the guide knows the
 * reason, and the call which field asked for the grammar. Whatever else ended the request comes
 * before the guide's reason. */
static void name_guide(const struct srv_call *c, uint32_t sub, struct cn_error *err)
{
    for (uint32_t i = 0; c->guides && c->guides[sub] && i < c->best_of; i++) {
        if (!eng_guide_error(c->guides[sub], i, err)) continue;
        if (c->form.name) snprintf(err->param, sizeof err->param, "%s", c->form.name);
        return;
    }
}

static bool was_hurried(const struct srv_call *c, uint32_t sub, uint32_t choice)
{
    return c->guides && c->guides[sub] && eng_guide_hurried(c->guides[sub], choice);
}

static void on_end(struct srv_req *q, uint32_t sub, const struct rt_event *e)
{
    struct srv *s = q->srv;

    q->subs[sub].live = false;
    q->n_live--;
    q->n_ended++;
    srv_slot_give(s, q->subs[sub].slot);
    add_usage(q, &e->usage);
    if (q->conn && e->code) {
        struct cn_error err = rt_event_reason(e);
        if (e->code == CN_ENUMERIC) name_guide(q->call, sub, &err);
        srv_req_name_field(q, &err);
        srv_req_fail(q, &err);
    } else if (q->conn && q->call->op == SRV_OP_EMBED && q->call->n_submitted < q->n_subs) {
        srv_req_submit_more(q);
    } else if (q->work != SRV_WORK_SUBMIT) { /* else the worker's job is to come back first */
        srv_req_ended(q);
    }
    srv_req_release(q);
}

/* The first output of a choice: the prompt goes before it where it is to be echoed. */
static void echo_once(struct srv_req *q, uint32_t sub, struct srv_choice *c)
{
    if (!q->call->p.echo || c->echoed) return;
    c->echoed = true;
    c->prompt = q->call->want_logprobs ? q->subs[sub].prompt : NULL;
    q->kept += q->call->prompts[sub].text_len;
}

static void on_choice_end(struct srv_req *q, uint32_t sub, struct srv_choice *c,
                          const struct rt_event *e)
{
    if (e->finish != RT_FINISH_STOP && e->finish != RT_FINISH_LENGTH) return; /* END says why */
    echo_once(q, sub, c);
    c->ended = true;
    c->finish = q->call->echo_only ? RT_FINISH_LENGTH : e->finish;
    c->cut = e->cut;
    /* one that was cut is not whole; of others a mask may still be made */
    c->hurried = e->finish == RT_FINISH_STOP && was_hurried(q->call, sub, e->choice);
    int rc = srv_parts_end(c);
    if (rc) {
        srv_req_fail(q, &(struct cn_error){.code = rc});
        return;
    }
    for (size_t i = 0; e->stop_text && !q->call->echo_only && i < q->call->n_stop; i++)
        if (!strcmp(q->call->stop[i], e->stop_text)) c->stop_text = q->call->stop[i];
    if (q->stream) srv_sse_choice(q, c);
}

/* All choices show the same prompt: one copy of its tokens, the event itself. */
static void on_prompt(struct srv_req *q, uint32_t sub, struct rt_event *e)
{
    q->subs[sub].prompt = e;
    for (uint32_t i = 0; i < q->call->best_of; i++) {
        struct srv_choice *c = &q->choices[sub * q->call->best_of + i];
        echo_once(q, sub, c);
        q->kept += q->stream ? 64 * (uint64_t)e->n_tokens : 0;
        if (q->stream) srv_sse_choice(q, c);
    }
}

/* The head of a streamed answer waits until no part can be refused: a refusal has a status. */
static void on_accepted(struct srv_req *q, uint32_t sub)
{
    if (q->subs[sub].accepted) return;
    q->subs[sub].accepted = true;
    if (++q->n_accepted == q->n_subs && q->stream) srv_sse_begin(q);
}

static void on_tokens(struct srv_req *q, uint32_t sub, struct srv_choice *c,
                      const struct rt_event *e)
{
    if (!q->first_ns && e->n_tokens) q->first_ns = cn_now_ns();
    echo_once(q, sub, c);
    int rc = q->call->echo_only ? 0 : srv_out_tokens(q, c, e);
    if (rc)
        srv_req_fail(q, &(struct cn_error){.code = rc});
    else if (q->stream)
        srv_sse_choice(q, c);
}

static void on_embedding(struct srv_req *q, uint32_t sub, const struct rt_event *e)
{
    int rc = srv_vec_take(q, sub, e);

    if (rc) srv_req_fail(q, &(struct cn_error){.code = rc});
}

bool srv_req_event(struct srv_req *q, uint32_t sub, struct rt_event *e)
{
    if (e->kind == RT_EV_END) {
        on_end(q, sub, e);
        return false;
    }
    if (!q->conn || e->choice >= q->call->best_of) return false;
    if (q->call->op == SRV_OP_EMBED) {
        if (e->kind == RT_EV_EMBEDDING) on_embedding(q, sub, e);
        return false;
    }
    struct srv_choice *c = &q->choices[sub * q->call->best_of + e->choice];
    switch (e->kind) {
    case RT_EV_ACCEPTED:
        on_accepted(q, sub);
        break;
    case RT_EV_PROMPT:
        if (q->subs[sub].prompt) break;
        on_prompt(q, sub, e);
        return true;
    case RT_EV_TOKENS:
        on_tokens(q, sub, c, e);
        break;
    case RT_EV_CHOICE_END:
        on_choice_end(q, sub, c, e);
        break;
    case RT_EV_EMBEDDING:
    case RT_EV_END:
    case RT_EV_MODEL:
        break;
    }
    return false;
}
