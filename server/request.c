/* API requests: start, worker, runtime, events, end. Loop thread only; owns every srv_req and the
 * table of slots. */
#include "server/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARSE_ON_LOOP  65536 /* longer bodies are parsed by a worker */
#define SUBMIT_ON_LOOP 65536 /* more tokens times choices are submitted by a worker */

/* ---- slots
 * --------------------------------------------------------------------------------------- */

static int slot_take(struct srv *s, struct srv_req *q, uint32_t sub, uint32_t *out)
{
    uint32_t i = s->free_slot;

    if (i != UINT32_MAX) {
        s->free_slot = s->slots[i].sub;
    } else {
        if (s->n_slots == UINT32_MAX - 1) return CN_ENOMEM;
        int rc = cn_grow(&s->slots, &s->cap_slots, s->n_slots + 1, sizeof *s->slots);
        if (rc) return rc;
        i = (uint32_t)s->n_slots++;
        s->slots[i].gen = 0;
    }
    s->slots[i].req = q;
    s->slots[i].sub = sub;
    s->slots[i].gen++;
    *out = i;
    return 0;
}

static void slot_give(struct srv *s, uint32_t i)
{
    s->slots[i].req = NULL;
    s->slots[i].sub = s->free_slot;
    s->free_slot = i;
}

static uint64_t slot_id(const struct srv *s, uint32_t i)
{
    return (uint64_t)s->slots[i].gen << 32 | i;
}

static struct srv_req *slot_find(const struct srv *s, uint64_t id, uint32_t *sub)
{
    uint32_t i = (uint32_t)id;

    if (i >= s->n_slots || !s->slots[i].req || s->slots[i].gen != id >> 32) return NULL;
    *sub = s->slots[i].sub;
    return s->slots[i].req;
}

/* ---- records
 * ------------------------------------------------------------------------------------- */

/* The body is gone: its room is the tenant's next one's. */
static void give_body(struct srv_req *q)
{
    srv_body_give(&q->srv->http, q->tenant, q->body_charge);
    q->body_charge = 0;
}

static void req_free(struct srv_req *q)
{
    struct srv *s = q->srv;

    if (q->prev)
        q->prev->next = q->next;
    else
        s->reqs = q->next;
    if (q->next) q->next->prev = q->prev;
    s->n_reqs--;
    s->tenant_reqs[q->tenant]--;
    give_body(q);
    srv_req_log(q);
    srv_out_choices_free(q);
    srv_call_free(q->call);
    free(q->subs);
    free(q);
}

static void release(struct srv_req *q)
{
    if (!q->conn && !q->on_worker && !q->n_live) req_free(q);
}

static struct srv_req *req_new(struct srv *s, struct srv_conn *c, uint32_t tenant)
{
    struct srv_req *q = cn_calloc(1, sizeof *q);

    if (!q) return NULL;
    q->call = cn_calloc(1, sizeof *q->call);
    if (!q->call) {
        free(q);
        return NULL;
    }
    q->srv = s;
    q->conn = c;
    c->user = q;
    q->tenant = tenant;
    q->next = s->reqs;
    if (q->next) q->next->prev = q;
    s->reqs = q;
    s->n_reqs++;
    s->tenant_reqs[tenant]++;
    return q;
}

static void cancel_subs(struct srv_req *q)
{
    struct srv *s = q->srv;

    for (size_t i = 0; i < q->n_subs; i++)
        if (q->subs[i].live) rt_cancel(s->rt, &s->mail, slot_id(s, q->subs[i].slot));
}

/* Nobody wants the rest: the worker skips it, the runtime ends it within one iteration. */
static void cancel(struct srv_req *q)
{
    if (q->cancelled) return;
    q->cancelled = true;
    if (q->on_worker) atomic_store(&q->call->job.cancelled, true);
    cancel_subs(q);
}

void srv_req_gone(struct srv_req *q)
{
    if (q->conn) {
        q->conn->user = NULL;
        q->code = CN_ECANCELLED;
    }
    q->conn = NULL;
    cancel(q);
    release(q);
}

/* Fails the answer; the record stays until release. */
static void fail_answer(struct srv_req *q, const struct cn_error *err)
{
    struct srv_conn *c = q->conn;

    cancel(q);
    if (!c) return;
    q->code = err->code;
    if (q->begun) {
        srv_sse_fail(q, err);
        return;
    }
    q->conn = NULL;
    c->user = NULL;
    srv_conn_error(c, err, NULL);
}

void srv_req_fail(struct srv_req *q, const struct cn_error *err)
{
    fail_answer(q, err);
}

void srv_req_sent(struct srv_req *q)
{
    srv_sse_drained(q);
}

/* ---- start
 * --------------------------------------------------------------------------------------- */

/* A tenant's requests here, beyond what its limits let run and wait, are refused before any work.
 */
static int check_tenant(struct srv *s, uint32_t tenant, struct cn_error *err)
{
    if (tenant >= s->cfg->n_tenants) return 0;
    const struct cfg_tenant *t = &s->cfg->tenants[tenant];
    if (!t->max_concurrency || !t->max_queued) return 0;
    if (s->tenant_reqs[tenant] < (uint64_t)t->max_concurrency + (uint64_t)t->max_queued) return 0;
    return cn_fail(err, CN_ERATE, "the limit of requests at once is reached");
}

/* X-Deadline-Ms: as strict, and within the same bounds, as the body's deadline_ms. */
static int read_deadline(const char *s, int64_t *ms, struct cn_error *err)
{
    int64_t v = 0, low, high;

    *ms = 0;
    if (!s) return 0;
    srv_params_bounds(SRV_P_deadline_ms, &low, &high);
    for (; *s >= '0' && *s <= '9' && v <= high; s++)
        v = v * 10 + (*s - '0');
    if (*s || v < low || v > high)
        return cn_fail_param(err, CN_ERANGE, "X-Deadline-Ms",
                             "X-Deadline-Ms must be an integer between %lld and %lld",
                             (long long)low, (long long)high);
    *ms = v;
    return 0;
}

static void set_call(struct srv_req *q, enum srv_op op, int64_t deadline_ms)
{
    struct srv *s = q->srv;
    struct srv_call *call = q->call;

    call->env = &s->text;
    call->op = op;
    call->ceiling = q->tenant < s->cfg->n_tenants
                        ? (enum rt_priority)s->cfg->tenants[q->tenant].priority
                        : RT_NORMAL;
    call->received_ns = cn_now_ns();
    call->header_deadline_ms = deadline_ms;
    call->body = q->conn->body; /* moved, with what it is charged */
    q->body_charge = srv_body_take(q->conn);
    cn_buf_init(&q->conn->body, 0);
    call->job.tenant = q->tenant;
    call->job.cost = call->body.len + 1;
    call->job.work = srv_call_work;
    atomic_init(&call->job.cancelled, false);
}

static void start_job(struct srv_req *q)
{
    q->on_worker = true;
    q->srv->n_jobs++;
    q->call->slot = slot_id(q->srv, q->job_slot);
    srv_text_push(q->srv->pool, &q->call->job);
}

/* A request that never reached the engine; those that did are counted there. */
static void count_refused(struct srv *s, enum srv_op op, uint32_t tenant)
{
    if (op != SRV_OP_CHAT && op != SRV_OP_TEXT) return;
    cn_metric_add(s->metrics, CN_M_requests_refused, 1);
    cn_tenant_add(s->metrics, tenant, CN_TM_refused, 1);
}

void srv_req_start(struct srv *s, struct srv_conn *c, enum srv_op op, uint32_t tenant)
{
    struct cn_error err = {0};
    struct srv_req *q = NULL;
    int64_t deadline_ms;

    if (read_deadline(srv_conn_header(c, SRV_H_deadline_ms), &deadline_ms, &err) ||
        check_tenant(s, tenant, &err)) {
        count_refused(s, op, tenant);
        srv_conn_error(c, &err, NULL);
        return;
    }
    q = req_new(s, c, tenant);
    if (!q) {
        count_refused(s, op, tenant);
        srv_conn_error(c, &(struct cn_error){.code = CN_ENOMEM}, NULL);
        return;
    }
    set_call(q, op, deadline_ms);
    int rc = 0;
    if (q->call->body.len <= PARSE_ON_LOOP && srv_call_parse(q->call)) {
        rc = q->call->err.code;
        err = q->call->err;
    }
    if (!rc && (rc = slot_take(s, q, 0, &q->job_slot))) err.code = rc;
    if (rc) {
        count_refused(s, op, tenant);
        fail_answer(q, &err);
        release(q);
        return;
    }
    start_job(q);
}

/* ---- to the runtime
 * ------------------------------------------------------------------------------ */

/* The runtime has one name for what holds the prompt and for the length of the answer; each endpoint
 * has its own. */
static void name_field(const struct srv_req *q, struct cn_error *err)
{
    const char *max = q->call->max_name;

    if (max && !strcmp(err->param, "max_tokens")) {
        snprintf(err->param, sizeof err->param, "%s", max);
        cn_error_wrap(err, "%s", max);
    }
    if (!strcmp(err->param, "messages") || !strcmp(err->param, "prompt"))
        snprintf(err->param, sizeof err->param, "%s",
                 q->call->op == SRV_OP_CHAT ? "messages" : "prompt");
}

/* Parts that were not submitted will get no END. */
static void submit_done(struct srv_req *q)
{
    struct srv_call *c = q->call;

    for (size_t i = c->n_submitted; i < q->n_subs; i++) {
        q->subs[i].live = false;
        q->n_live--;
        slot_give(q->srv, q->subs[i].slot);
    }
    if (q->cancelled) {
        cancel_subs(q); /* what was submitted after the first cancel */
    } else if (c->err.code) {
        count_refused(q->srv, c->op, q->tenant);
        name_field(q, &c->err);
        fail_answer(q, &c->err);
    }
}

/* A slot for each part, so that events find it whenever they come. */
static int make_subs(struct srv_req *q)
{
    struct srv_call *c = q->call;

    q->subs = cn_calloc(c->n_prompts, sizeof *q->subs);
    c->ids = cn_malloc_array(c->n_prompts, sizeof *c->ids);
    if (!q->subs || !c->ids) return CN_ENOMEM;
    for (; q->n_subs < c->n_prompts; q->n_subs++) {
        struct srv_sub *sub = &q->subs[q->n_subs];
        int rc = slot_take(q->srv, q, (uint32_t)q->n_subs, &sub->slot);
        if (rc) return rc;
        sub->live = true;
        q->n_live++;
        c->ids[q->n_subs] = slot_id(q->srv, sub->slot);
    }
    return 0;
}

/* Prompts are looked at once more per choice: with many or long ones that is a worker's job too. */
static void submit(struct srv_req *q)
{
    struct srv_call *c = q->call;
    uint64_t work = 0;

    q->stream = c->p.stream;
    c->rt = q->srv->rt;
    c->reply = &q->srv->mail;
    int rc = make_subs(q);
    if (!rc) rc = srv_out_begin(q);
    if (!rc) rc = srv_out_choices(q);
    q->submitted_ns = cn_now_ns();
    for (size_t i = 0; i < c->n_prompts; i++)
        work += (c->prompts[i].n + c->n_bias + 64) * c->best_of;
    if (!rc && work > SUBMIT_ON_LOOP && !(rc = slot_take(q->srv, q, 0, &q->job_slot))) {
        q->submitting = true;
        c->job.work = srv_submit_work;
        c->job.cost = work;
        start_job(q);
        return;
    }
    if (rc)
        cn_fail(&c->err, rc, "%s", cn_err_info(rc)->text);
    else
        srv_submit_work(&c->job);
    submit_done(q);
}

/* ---- what comes back
 * ----------------------------------------------------------------------------- */

static void job_done(struct srv_req *q)
{
    struct srv *s = q->srv;
    struct srv_conn *c = q->conn;

    q->on_worker = false;
    s->n_jobs--;
    slot_give(s, q->job_slot);
    if (q->submitting) {
        q->submitting = false;
        submit_done(q);
        release(q);
        return;
    }
    if (!c) {
        release(q);
        return;
    }
    if (q->call->err.code) {
        count_refused(s, q->call->op, q->tenant);
        fail_answer(q, &q->call->err);
    } else if (q->call->op == SRV_OP_CHAT || q->call->op == SRV_OP_TEXT) {
        submit(q);
    } else {
        q->conn = NULL;
        c->user = NULL;
        srv_conn_answer(c, 200, "application/json", q->call->answer.data, q->call->answer.len,
                        NULL);
    }
    release(q);
}

static void answer_whole(struct srv_req *q)
{
    struct srv_conn *c = q->conn;
    struct cn_buf b;

    if (!c) return;
    cn_buf_init(&b, 0);
    srv_out_answer(&b, q);
    if (b.failed) {
        fail_answer(q, &(struct cn_error){.code = CN_ENOMEM});
    } else {
        q->conn = NULL;
        c->user = NULL;
        srv_conn_answer(c, 200, "application/json", b.data, b.len, NULL);
    }
    cn_buf_fini(&b);
}

static void add_usage(struct srv_req *q, const struct rt_usage *u)
{
    q->usage.prompt_tokens += u->prompt_tokens;
    q->usage.cached_tokens += u->cached_tokens;
    if (!q->call->echo_only) q->usage.completion_tokens += u->completion_tokens;
}

static void on_end(struct srv_req *q, uint32_t sub, const struct rt_event *e)
{
    struct srv *s = q->srv;

    q->subs[sub].live = false;
    q->n_live--;
    slot_give(s, q->subs[sub].slot);
    add_usage(q, &e->usage);
    if (q->conn && e->code) {
        struct cn_error err = {.code = e->code};
        memcpy(err.param, e->param, sizeof err.param);
        memcpy(err.message, e->message, sizeof err.message);
        name_field(q, &err);
        fail_answer(q, &err);
    } else if (q->conn && !q->n_live) {
        if (q->stream)
            srv_sse_finish(q);
        else
            answer_whole(q);
    }
    release(q);
}

/* The first output of a choice: the prompt goes before it where it is to be echoed. */
static void echo_once(struct srv_req *q, uint32_t sub, struct srv_choice *c)
{
    if (!q->call->p.echo || c->echoed) return;
    c->echoed = true;
    srv_out_echo(q, c, &q->call->prompts[sub]);
}

static void on_choice_end(struct srv_req *q, uint32_t sub, struct srv_choice *c,
                          const struct rt_event *e)
{
    if (e->finish != RT_FINISH_STOP && e->finish != RT_FINISH_LENGTH) return; /* END tells why */
    echo_once(q, sub, c);
    c->ended = true;
    c->finish = q->call->echo_only ? RT_FINISH_LENGTH : e->finish;
    if (e->stop_text && !q->call->echo_only) c->stop_text = strdup(e->stop_text);
    if (q->stream) srv_sse_choice(q, c, true);
}

static void on_prompt(struct srv_req *q, uint32_t sub, const struct rt_event *e)
{
    for (uint32_t i = 0; i < q->call->best_of && q->conn; i++) {
        struct srv_choice *c = &q->choices[sub * q->call->best_of + i];
        echo_once(q, sub, c);
        srv_out_tokens(q, c, e);
        if (q->stream) srv_sse_choice(q, c, false);
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
    if (!q->call->echo_only) srv_out_tokens(q, c, e);
    if (q->stream) srv_sse_choice(q, c, false);
}

static void on_event(struct srv *s, const struct rt_event *e)
{
    uint32_t sub;
    struct srv_req *q = slot_find(s, e->id, &sub);

    if (!q) return;
    if (e->kind == RT_EV_END) {
        on_end(q, sub, e);
        return;
    }
    if (!q->conn || e->choice >= q->call->best_of) return;
    struct srv_choice *c = &q->choices[sub * q->call->best_of + e->choice];
    switch (e->kind) {
    case RT_EV_ACCEPTED:
        on_accepted(q, sub);
        break;
    case RT_EV_PROMPT:
        on_prompt(q, sub, e);
        break;
    case RT_EV_TOKENS:
        on_tokens(q, sub, c, e);
        break;
    case RT_EV_CHOICE_END:
        on_choice_end(q, sub, c, e);
        break;
    case RT_EV_END:
        break;
    }
}

void srv_on_mail(struct srv *s)
{
    struct cn_msg *m = cn_mailbox_take(&s->jobs_done), *next;

    for (; m; m = next) {
        next = m->next;
        uint64_t id =
            CN_CONTAINER(CN_CONTAINER(m, struct srv_job, msg), struct srv_call, job)->slot;
        uint32_t sub;
        struct srv_req *q = slot_find(s, id, &sub);
        cn_assert(q);
        job_done(q);
    }
    for (m = cn_mailbox_take(&s->mail); m; m = next) {
        struct rt_event *e = CN_CONTAINER(m, struct rt_event, msg);
        next = m->next;
        on_event(s, e);
        rt_event_free(e);
    }
}

void srv_mail_clear(struct srv *s)
{
    srv_on_mail(s);
}

/* ---- all of them
 * ----------------------------------------------------------------------------------- */

void srv_reqs_tick(struct srv *s, uint64_t now)
{
    for (struct srv_req *q = s->reqs, *next; q; q = next) {
        next = q->next;
        if (q->conn && q->stream && q->n_live) srv_sse_tick(q, now);
    }
}

void srv_reqs_end(struct srv *s, const struct cn_error *why)
{
    for (struct srv_req *q = s->reqs, *next; q; q = next) {
        next = q->next;
        fail_answer(q, why);
        release(q);
    }
}
