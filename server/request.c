/* API requests: start, model, worker, runtime, end. Loop thread only; owns every srv_req. */
#include "server/pages.h"
#include "server/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARSE_ON_LOOP 4096 /* longer bodies are parsed by a worker */

/* ---- records --------------------------------------------------------------------------------- */

static void req_free(struct srv_req *q)
{
    struct srv *s = q->srv;

    if (q->prev)
        q->prev->next = q->next;
    else
        s->reqs = q->next;
    if (q->next) q->next->prev = q->prev;
    s->n_reqs--;
    s->seats[cfg_slot(q->tenant)].reqs--;
    srv_req_log(q);
    cfg_tenants_unref(q->tenants);
    srv_sse_forget(q);
    srv_out_choices_free(q);
    if (q->held && s->rt) rt_release(q->call->model);
    srv_call_drop(q->call, s->pool);
    free(q->subs);
    free(q->order);
    free(q);
}

void srv_req_release(struct srv_req *q)
{
    if (!q->conn && !q->work && !q->n_live && !q->wait_ns) req_free(q);
}

const struct cfg_tenant *srv_req_tenant(const struct srv_req *q)
{
    return cfg_tenants_find(q->tenants, q->tenant);
}

static struct srv_req *req_new(struct srv *s, struct srv_conn *c)
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
    q->tenant = c->tenant;
    q->key = c->key;
    q->tenants = cfg_tenants_ref(s->tenants);
    q->next = s->reqs;
    if (q->next) q->next->prev = q;
    s->reqs = q;
    s->n_reqs++;
    s->seats[cfg_slot(q->tenant)].reqs++;
    return q;
}

void srv_req_cancel_subs(struct srv_req *q)
{
    struct srv *s = q->srv;

    for (size_t i = 0; i < q->n_subs; i++)
        if (q->subs[i].live) rt_cancel(s->rt, &s->mail, srv_slot_id(s, q->subs[i].slot));
}

static void count_waiting(struct srv *s, bool more)
{
    if (more)
        s->n_waiting++;
    else
        s->n_waiting--;
    cn_metric_set(s->metrics, CN_M_requests_model, (double)s->n_waiting);
}

static void end_wait(struct srv_req *q)
{
    q->wait_ns = 0;
    count_waiting(q->srv, false);
    srv_slot_give(q->srv, q->job_slot);
}

/* Parts that the runtime was never given will get no END. */
void srv_req_drop_unsubmitted(struct srv_req *q)
{
    struct srv_call *c = q->call;

    for (; c->n_submitted < q->n_subs; c->n_submitted++) {
        q->subs[c->n_submitted].live = false;
        q->n_live--;
        srv_slot_give(q->srv, q->subs[c->n_submitted].slot);
    }
}

/* Cancels the rest of a request: the worker skips it, the runtime ends it within one iteration. */
static void cancel(struct srv_req *q)
{
    if (q->cancelled) return;
    q->cancelled = true;
    if (q->work)
        atomic_store(&q->call->job.cancelled, true);
    else
        srv_req_drop_unsubmitted(q);
    if (q->wait_ns &&
        rt_acquire_cancel(q->call->model, &q->srv->mail, srv_slot_id(q->srv, q->job_slot)))
        end_wait(q); /* else its event is on its way */
    srv_req_cancel_subs(q);
}

void srv_req_gone(struct srv_req *q)
{
    if (q->conn) {
        q->conn->user = NULL;
        q->code = CN_ECANCELLED;
    }
    srv_sse_forget(q);
    q->conn = NULL;
    cancel(q);
    srv_req_release(q);
}

/* Fails the answer; the record stays until release. */
static void fail_answer(struct srv_req *q, const struct cn_error *err)
{
    struct srv_conn *c = q->conn;

    cancel(q);
    if (!c) return;
    q->code = err->code;
    if (srv_req_streams(q)) {
        srv_sse_fail(q, err);
        return;
    }
    q->conn = NULL;
    c->user = NULL;
    if (q->sent == SRV_SENT_PIECES)
        srv_conn_abort(c); /* half an answer must not look whole */
    else
        srv_conn_error(c, err, NULL);
}

void srv_req_fail(struct srv_req *q, const struct cn_error *err)
{
    fail_answer(q, err);
}

void srv_req_sent(struct srv_req *q)
{
    if (q->sent == SRV_SENT_PIECES)
        srv_answer_sent(q);
    else if (srv_req_streams(q))
        srv_sse_drained(q);
}

/* ---- start ----------------------------------------------------------------------------------- */

/* A tenant's requests here, beyond what its limits let run and wait, are refused before any
 * work. */
static int check_tenant(struct srv *s, const struct srv_conn *c, struct cn_error *err)
{
    int rc = srv_tenants_check(s, c, err);

    if (rc) return rc;
    const struct cfg_tenant *t = cfg_tenants_find(s->tenants, c->tenant);
    if (!t->max_concurrency || !t->max_queued) return 0;
    uint64_t most = (uint64_t)t->max_concurrency + (uint64_t)t->max_queued;
    if (s->seats[cfg_slot(c->tenant)].reqs < most) return 0;
    return cn_fail(
        err, CN_ERATE,
        "this tenant's limit of %llu requests at once is reached: max_concurrency is %lld "
        "and max_queued %lld",
        (unsigned long long)most, (long long)t->max_concurrency, (long long)t->max_queued);
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

    memcpy(q->request_id, q->conn->head->request_id, sizeof q->request_id);
    memcpy(q->key_id, q->conn->key_id, sizeof q->key_id);
    srv_peer_text(&q->conn->client, q->peer);
    q->conn->tally = &q->bytes;
    call->env = &s->text;
    call->op = op;
    call->ceiling = (enum rt_priority)srv_req_tenant(q)->priority;
    call->received_ns = cn_now_ns();
    call->header_deadline_ms = deadline_ms;
    call->body = q->conn->body; /* moved, with what it is charged */
    call->hold.account = cn_budget_account(s->budget, srv_lane_of(q->tenant));
    call->hold.beside = &call->body;
    cn_buf_init(&q->conn->body, 0);
    call->job.lane = srv_lane_of(q->tenant);
    call->tenant = q->tenant;
    call->key = q->key;
    call->job.cost = call->body.len + 1;
    atomic_init(&call->job.cancelled, false);
}

/* job_slot is taken. */
void srv_req_job(struct srv_req *q, enum srv_work work)
{
    static void (*const jobs[])(struct srv_job *job) = {
        [SRV_WORK_HEAD] = srv_call_head_work,
        [SRV_WORK_PREPARE] = srv_call_work,
        [SRV_WORK_SUBMIT] = srv_submit_work,
        [SRV_WORK_WRITE] = srv_write_work,
    };

    q->call->job.work = jobs[work];
    q->work = work;
    q->srv->n_jobs++;
    q->call->slot = srv_slot_id(q->srv, q->job_slot);
    srv_text_push(q->srv->pool, &q->call->job);
}

/* A request that never reached the engine; those that did are counted there. */
void srv_req_count_refused(struct srv *s, enum srv_op op, uint64_t tenant)
{
    if (!srv_op_runs(op)) return;
    cn_metric_add(s->metrics, CN_M_requests_refused, 1);
    cn_tenant_add(s->metrics, cfg_slot(tenant), CN_TM_refused, 1);
}

/* ---- its model ------------------------------------------------------------------------------- */

static int find_model(struct srv_req *q, struct cn_error *err)
{
    const struct srv *s = q->srv;
    const json_t *name = q->call->p.model;
    struct rt_model *m = rt_model_at(s->rt, 0);

    if (name) m = rt_model_find(s->rt, json_string_value(name), json_string_length(name));
    if (!m && s->cfg->server.unknown_model == CFG_UNKNOWN_DEFAULT) m = rt_model_at(s->rt, 0);
    q->call->model = m;
    if (m) {
        struct rt_model_status status;
        rt_model_status(m, &status);
        q->call->own = s->text;
        q->call->own.model_id = status.id;
        q->call->env = &q->call->own;
        return 0;
    }
    return srv_no_model(s, name, err);
}

/* The model is held: the rest is a worker's. */
static void use_model(struct srv_req *q)
{
    struct srv_call *c = q->call;
    struct rt_model_text m;

    q->held = true;
    rt_model_text(c->model, &m);
    c->own.vocab = m.vocab;
    c->own.chat_template = m.chat_template;
    c->own.reply = m.reply;
    c->own.history = m.history;
    c->own.tools = m.tools;
    c->own.fingerprint = m.fingerprint;
    c->own.context = m.context;
    c->own.embedding_size = rt_embedding_size(c->model);
    struct rt_sampling sampling;
    rt_model_sampling(c->model, &sampling);
    c->own.sampling = sampling.v;
    srv_req_job(q, SRV_WORK_PREPARE);
}

/* The body's head is read: on to the model, now or when it has been loaded. */
static int get_model(struct srv_req *q, struct cn_error *err)
{
    struct srv *s = q->srv;
    bool held;
    int rc = find_model(q, err);

    q->stream = q->call->p.stream;
    if (!rc && (rc = srv_slot_take(s, q, 0, &q->job_slot))) cn_fail(err, rc, "out of memory");
    if (rc) return rc;
    rc = rt_acquire(q->call->model, q->tenant, &s->mail, srv_slot_id(s, q->job_slot), &held, err);
    if (rc) {
        srv_slot_give(s, q->job_slot);
    } else if (held) {
        use_model(q);
    } else {
        q->wait_ns = cn_now_ns();
        count_waiting(s, true);
    }
    return rc;
}

static void refuse(struct srv_req *q, const struct cn_error *err)
{
    srv_req_count_refused(q->srv, q->call->op, q->tenant);
    fail_answer(q, err);
}

/* The answer to rt_acquire; the client may be gone by now. */
static void on_model(struct srv_req *q, const struct rt_event *e)
{
    struct srv *s = q->srv;

    if (!q->conn || q->cancelled || e->code) {
        struct cn_error err = rt_event_reason(e);
        end_wait(q);
        q->held = !e->code;
        if (q->conn && e->retry_s) q->conn->retry_s = e->retry_s;
        if (e->code && !q->cancelled) refuse(q, &err);
        srv_req_release(q);
        return;
    }
    q->wait_ns = 0; /* its slot is the job's now */
    count_waiting(s, false);
    use_model(q);
}

void srv_req_start(struct srv *s, struct srv_conn *c, enum srv_op op)
{
    struct cn_error err = {0};
    struct srv_req *q = NULL;
    int64_t deadline_ms;

    if (read_deadline(srv_conn_header(c, SRV_H_deadline_ms), &deadline_ms, &err) ||
        check_tenant(s, c, &err)) {
        srv_req_count_refused(s, op, c->tenant);
        srv_refused_log(s, c, &err);
        srv_conn_error(c, &err, NULL);
        return;
    }
    q = req_new(s, c);
    if (!q) {
        err.code = CN_ENOMEM;
        srv_req_count_refused(s, op, c->tenant);
        srv_refused_log(s, c, &err);
        srv_conn_error(c, &err, NULL);
        return;
    }
    set_call(q, op, deadline_ms);
    int rc = 0;
    if (q->call->body.len > PARSE_ON_LOOP) {
        if ((rc = srv_slot_take(s, q, 0, &q->job_slot))) err.code = rc;
        if (!rc) srv_req_job(q, SRV_WORK_HEAD);
    } else if ((rc = srv_call_head(q->call))) {
        err = q->call->err;
        if (!err.code) err.code = rc;
    } else {
        rc = get_model(q, &err);
    }
    if (!rc) return;
    refuse(q, &err);
    srv_req_release(q);
}

/* ---- what comes back ------------------------------------------------------------------------- */

int srv_req_write(struct srv_req *q)
{
    int rc = srv_slot_take(q->srv, q, 0, &q->job_slot);

    if (rc) return rc;
    q->call->job.cost = SRV_PIECE;
    srv_req_job(q, SRV_WORK_WRITE);
    return 0;
}

/* A worker has done its part, and the client waits for the answer. */
static void after_work(struct srv_req *q, enum srv_work done)
{
    struct cn_error err = q->call->err;

    switch (done) {
    case SRV_WORK_HEAD:
        if (err.code || get_model(q, &err)) refuse(q, &err);
        break;
    case SRV_WORK_PREPARE:
        if (err.code)
            refuse(q, &err);
        else if (srv_op_runs(q->call->op))
            srv_req_submit(q);
        else
            srv_answer_piece(q);
        break;
    case SRV_WORK_WRITE:
        if (err.code)
            fail_answer(q, &err); /* the engine has counted it */
        else
            srv_answer_piece(q);
        break;
    case SRV_WORK_SUBMIT:
    case SRV_WORK_NONE:
        break;
    }
}

static void job_done(struct srv_req *q)
{
    struct srv *s = q->srv;
    enum srv_work done = q->work;

    q->work = SRV_WORK_NONE;
    s->n_jobs--;
    srv_slot_give(s, q->job_slot);
    if (done == SRV_WORK_SUBMIT) { /* what the runtime has is followed, client or not */
        srv_req_submitted(q);
        srv_req_ended(q);
    } else if (q->conn) {
        after_work(q, done);
    }
    srv_req_release(q);
}

static void on_event(struct srv *s, struct rt_event *e)
{
    uint32_t sub;
    struct srv_req *q = srv_slot_find(s, e->id, &sub);
    bool taken = false;

    if (q && e->kind == RT_EV_MODEL)
        on_model(q, e);
    else if (q)
        taken = srv_req_event(q, sub, e);
    if (!taken) rt_event_free(e);
}

static void fetch_mail(struct srv_mail *to, struct cn_mailbox *from)
{
    for (*to->tail = cn_mailbox_take(from); *to->tail;)
        to->tail = &(*to->tail)->next;
}

static struct cn_msg *next_mail(struct srv_mail *from)
{
    struct cn_msg *m = from->head;

    if (!m) return NULL;
    from->head = m->next;
    if (!from->head) from->tail = &from->head;
    return m;
}

bool srv_on_mail(struct srv *s, struct srv_turn *turn)
{
    struct cn_msg *m;

    fetch_mail(&s->jobs, &s->jobs_done);
    while (!srv_turn_over(turn) && (m = next_mail(&s->jobs))) {
        uint64_t id =
            CN_CONTAINER(CN_CONTAINER(m, struct srv_job, msg), struct srv_call, job)->slot;
        uint32_t sub;
        struct srv_req *q = srv_slot_find(s, id, &sub);
        cn_assert(q);
        job_done(q);
    }
    fetch_mail(&s->events, &s->mail);
    while (!srv_turn_over(turn) && (m = next_mail(&s->events))) {
        struct rt_event *e = CN_CONTAINER(m, struct rt_event, msg);
        on_event(s, e);
    }
    return s->jobs.head || s->events.head;
}

void srv_mail_clear(struct srv *s)
{
    srv_on_mail(s, NULL);
}

/* ---- all of them ----------------------------------------------------------------------------- */

void srv_reqs_tick(struct srv *s, uint64_t now)
{
    for (struct srv_req *q = s->reqs, *next; q; q = next) {
        next = q->next;
        if (q->wait_ns && q->call->deadline_ns && now >= q->call->deadline_ns) {
            fail_answer(q, &(struct cn_error){.code = CN_EDEADLINE});
            srv_req_release(q);
            continue;
        }
        if (q->conn && q->stream && (q->n_live || q->wait_ns || srv_req_streams(q)))
            srv_sse_tick(q, now);
    }
}

void srv_reqs_end(struct srv *s, const struct cn_error *why)
{
    for (struct srv_req *q = s->reqs, *next; q; q = next) {
        next = q->next;
        fail_answer(q, why);
        srv_req_release(q);
    }
}
