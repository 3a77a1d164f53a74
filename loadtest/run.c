/* A run: asks for the model's name, warms up, starts the clock, sends what is due, ends.
 *
 * Requests are due at times that follow from the scenario alone (open loop), or when a client is
 * free (closed loop); latencies count from then, so that a server that is late cannot hide it by
 * keeping requests from being sent. */
#include "loadtest/run.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define TICK_MS 5
#define TURN_NS 1000000u /* of sending what is due, before the loop looks at anything else */
#define SHOW_NS 1000000000u
#define RETRY_NS                                                                                   \
    100000000u /* a client's pause after a failure, so that a dead server is not hammered */
#define MODELS_MAX (1u << 20)

static uint64_t ns_of(double seconds)
{
    return (uint64_t)(seconds * 1e9);
}

/* Fires when due_ns is reached, up to a millisecond late, never early. */
static void arm(uv_timer_t *t, uint64_t due_ns, uv_timer_cb cb)
{
    uint64_t now = cn_now_ns();

    uv_update_time(t->loop);
    uv_timer_start(t, cb, due_ns > now ? (due_ns - now + 999999) / 1000000 : 0, 0);
}

static bool exhausted(const struct lt_class_run *k)
{
    return k->run->stopped || (k->c->requests && k->issued >= (uint64_t)k->c->requests);
}

/* ---- the end --------------------------------------------------------------------------------- */

static void close_handle(uv_handle_t *h, void *arg)
{
    (void)arg;
    if (!uv_is_closing(h) && h->type != UV_TCP) uv_close(h, NULL);
}

/* Takes all handles away, so that the loop ends. Nothing is sent from here on. */
static void shut(struct lt_run *r)
{
    r->stopped = true;
    r->phase = LT_PHASE_END;
    for (size_t i = 0; i < r->result->n_classes; i++)
        while (r->classes[i].first)
            lt_request_cut(r->classes[i].first, false);
    lt_client_close(&r->client);
    uv_close((uv_handle_t *)&r->tick, NULL);
    uv_close((uv_handle_t *)&r->until, NULL);
    uv_close((uv_handle_t *)&r->interrupt, NULL);
    uv_close((uv_handle_t *)&r->terminate, NULL);
    for (size_t i = 0; i < r->result->n_classes; i++) {
        struct lt_class_run *k = &r->classes[i];

        uv_close((uv_handle_t *)&k->timer, NULL);
        for (int64_t u = 0; k->users && u < k->c->clients; u++)
            uv_close((uv_handle_t *)&k->users[u].timer, NULL);
    }
}

static bool foreground_done(const struct lt_run *r)
{
    for (size_t i = 0; i < r->result->n_classes; i++) {
        const struct lt_class_run *k = &r->classes[i];

        if (!k->c->background && (!exhausted(k) || k->in_flight)) return false;
    }
    return true;
}

static void check_end(struct lt_run *r)
{
    if (r->phase != LT_PHASE_MEASURE || !foreground_done(r)) return;
    r->end_ns = cn_now_ns();
    shut(r);
}

/* ---- sending --------------------------------------------------------------------------------- */

static void on_user(uv_timer_t *t)
{
    struct lt_user *u = t->data;
    struct lt_class_run *k = u->class;

    if (k->run->phase != LT_PHASE_MEASURE || exhausted(k)) {
        check_end(k->run);
        return;
    }
    if (cn_now_ns() < u->due_ns) {
        arm(t, u->due_ns, on_user);
        return;
    }
    lt_request_send(k, u, u->due_ns, false);
}

/* Sends what is due. A schedule that is faster than requests can be made falls behind: what is sent
 * late shows as lag, what is never sent as behind_s; answers, the clock's end and signals are
 * looked at between two turns all the same. */
static void on_arrival(uv_timer_t *t)
{
    struct lt_class_run *k = t->data;
    struct lt_run *r = k->run;
    uint64_t now = cn_now_ns(), end = now + TURN_NS;

    while (!exhausted(k) && !r->oom && k->next_due_ns <= now) {
        if (r->stop_ns && k->next_due_ns > r->stop_ns) return; /* on_until ends the run */
        if (now >= end) {
            /* neither 0 nor a fresh time: libuv would be back here before it looked at a socket */
            uv_timer_start(t, on_arrival, 1, 0);
            return;
        }
        lt_request_send(k, NULL, k->next_due_ns, false);
        k->next_due_ns = r->start_ns + ns_of(k->c->start_s) + ns_of(lt_arrival_next(&k->arrival));
        now = cn_now_ns();
    }
    if (r->oom) return; /* on_tick ends the run */
    if (!exhausted(k))
        arm(t, k->next_due_ns, on_arrival);
    else
        check_end(r);
}

static void on_until(uv_timer_t *t)
{
    struct lt_run *r = t->data;

    if (cn_now_ns() < r->stop_ns) {
        arm(t, r->stop_ns, on_until);
        return;
    }
    r->stopped = true;
    check_end(r);
}

static void start_class(struct lt_class_run *k)
{
    struct lt_run *r = k->run;
    uint64_t first = r->start_ns + ns_of(k->c->start_s);

    if (k->c->rate > 0) {
        lt_arrival_init(&k->arrival, k->c->rate, k->c->arrival == LT_EVEN, r->result->seed,
                        k->index);
        k->next_due_ns = first + ns_of(lt_arrival_next(&k->arrival));
        arm(&k->timer, k->next_due_ns, on_arrival);
        return;
    }
    for (int64_t i = 0; i < k->c->clients; i++) {
        struct lt_user *u = &k->users[i];

        u->due_ns = first + ns_of(k->c->ramp_s * (double)i / (double)k->c->clients);
        arm(&u->timer, u->due_ns, on_user);
    }
}

static void begin_measuring(struct lt_run *r)
{
    r->phase = LT_PHASE_MEASURE;
    r->start_ns = cn_now_ns();
    r->window_ns = r->start_ns + ns_of(r->s->warmup_s);
    if (r->s->duration_s > 0) {
        r->stop_ns = r->start_ns + ns_of(r->s->duration_s);
        arm(&r->until, r->stop_ns, on_until);
    }
    for (size_t i = 0; i < r->result->n_classes; i++)
        start_class(&r->classes[i]);
}

/* ---- warming up ------------------------------------------------------------------------------ */

static void check_warm(struct lt_run *r)
{
    for (size_t i = 0; i < r->result->n_classes; i++) {
        const struct lt_class_run *k = &r->classes[i];

        if (k->in_flight || k->warm_issued < (uint64_t)k->c->warmup_requests) return;
    }
    begin_measuring(r);
}

static void begin_warming(struct lt_run *r)
{
    r->phase = LT_PHASE_WARM;
    for (size_t i = 0; i < r->result->n_classes; i++) {
        struct lt_class_run *k = &r->classes[i];
        int64_t n = CN_MIN(k->c->warmup_requests, k->c->clients);

        for (int64_t u = 0; u < n; u++)
            lt_request_send(k, NULL, cn_now_ns(), true);
    }
    check_warm(r);
}

void lt_run_request_over(struct lt_class_run *k, struct lt_user *user, bool warm, bool failed)
{
    struct lt_run *r = k->run;

    if (r->phase == LT_PHASE_END) return;
    if (warm) {
        if (k->warm_issued < (uint64_t)k->c->warmup_requests)
            lt_request_send(k, NULL, cn_now_ns(), true);
        else
            check_warm(r);
        return;
    }
    if (user && !exhausted(k)) {
        user->due_ns = cn_now_ns() + CN_MAX(ns_of(k->c->think_s), failed ? RETRY_NS : 0u);
        on_user(&user->timer);
    }
    check_end(r);
}

/* ---- the model's name ------------------------------------------------------------------------ */

struct ask {
    struct lt_call call;
    struct lt_run *run;
    struct cn_buf body;
    struct cn_error *err;
    int rc;
};

static bool ask_data(struct lt_call *call, uint64_t now, const char *p, size_t n)
{
    (void)now;
    cn_buf_append(&CN_CONTAINER(call, struct ask, call)->body, p, n);
    return true;
}

/* data[0].id of the list of models. */
static bool first_model(const struct cn_buf *body, char *out, size_t size)
{
    json_t *v = json_loadb(body->data ? body->data : "", body->len, 0, NULL);
    const char *id =
        json_string_value(json_object_get(json_array_get(json_object_get(v, "data"), 0), "id"));
    bool fits = id && strlen(id) < size;

    if (fits) snprintf(out, size, "%s", id);
    json_decref(v);
    return fits;
}

static void ask_end(struct lt_call *call, uint64_t now, enum lt_end end, const char *detail)
{
    struct ask *a = CN_CONTAINER(call, struct ask, call);
    struct lt_run *r = a->run;

    (void)now;
    if (end != LT_END_OK)
        a->rc = cn_fail(a->err, CN_EIO, "GET %s/v1/models: %s", r->target.base, detail);
    else if (call->status != 200)
        a->rc =
            cn_fail(a->err, CN_EIO, "GET %s/v1/models: status %d", r->target.base, call->status);
    else if (!first_model(&a->body, r->result->model, sizeof r->result->model))
        a->rc = cn_fail(a->err, CN_EIO, "GET %s/v1/models: no model is listed, or a name too long",
                        r->target.base);
    if (a->rc)
        shut(r);
    else
        begin_warming(r);
}

static void ask_model(struct lt_run *r, struct ask *a, struct cn_error *err)
{
    static const struct lt_call_ops ops = {ask_data, ask_end};

    *a = (struct ask){.run = r, .err = err, .call = {.ops = &ops}};
    cn_buf_init(&a->body, MODELS_MAX);
    cn_buf_init(&a->call.out, 0);
    lt_head(r, "GET", "/v1/models", r->s->n_tenants ? r->s->tenants[0].key : r->key, 0,
            &a->call.out);
    lt_client_start(&r->client, &a->call);
}

/* ---- the run --------------------------------------------------------------------------------- */

static void show(struct lt_run *r, uint64_t now)
{
    uint64_t ok = 0, failed = 0, running = 0;

    for (size_t i = 0; i < r->result->n_classes; i++) {
        const struct lt_tally *t = r->classes[i].tally;

        ok += t->ok + t->aborted;
        running += r->classes[i].in_flight;
        for (int f = 0; f < LT_F_COUNT; f++)
            failed += t->failed[f];
    }
    r->shown_ns = now;
    fprintf(stderr, "\r%s %5.0f s  %llu done  %llu running  %llu failed ",
            r->phase == LT_PHASE_MEASURE ? "" : "warming up",
            r->phase == LT_PHASE_MEASURE ? (double)(now - r->start_ns) / 1e9 : 0.0,
            (unsigned long long)ok, (unsigned long long)running, (unsigned long long)failed);
}

/* Cuts what its client aborts after a time; ends a run that is out of memory. */
static void on_tick(uv_timer_t *t)
{
    struct lt_run *r = t->data;
    uint64_t now = cn_now_ns();

    for (size_t i = 0; i < r->result->n_classes && r->phase != LT_PHASE_END; i++) {
        struct lt_class_run *k = &r->classes[i];

        if (k->c->abort_share <= 0 || k->c->abort_after_s <= 0) continue;
        for (struct lt_request *q = k->first, *next; q && r->phase != LT_PHASE_END; q = next) {
            next = q->next;
            if (q->cut_at_ns && q->cut_at_ns <= now) lt_request_cut(q, true);
        }
    }
    if (r->phase == LT_PHASE_END) return;
    if (r->progress && now - r->shown_ns >= SHOW_NS) show(r, now);
    if (r->oom) {
        r->end_ns = now;
        shut(r);
    }
}

static void on_interrupt(uv_signal_t *h, int signum)
{
    struct lt_run *r = h->data;

    (void)signum;
    r->result->interrupted = true;
    if (r->phase == LT_PHASE_END) return;
    r->end_ns = cn_now_ns();
    shut(r);
}

static double cpu_s(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static int prepare(struct lt_run *r, struct cn_error *err)
{
    struct lt_result *out = r->result;
    const struct lt_scenario *s = r->s;

    r->classes = cn_calloc(s->n_classes, sizeof *r->classes);
    out->classes = cn_calloc(s->n_classes, sizeof *out->classes);
    out->tenants = cn_calloc(s->n_tenants, sizeof *out->tenants);
    if (!r->classes || !out->classes || !out->tenants)
        return cn_fail(err, CN_ENOMEM, "out of memory");
    out->n_tenants = s->n_tenants;
    for (size_t i = 0; i < s->n_classes; i++) {
        struct lt_class_run *k = &r->classes[i];

        k->run = r;
        k->c = &s->classes[i];
        k->tally = &out->classes[i];
        k->index = i;
        uv_timer_init(&r->loop, &k->timer);
        k->timer.data = k;
        out->n_classes++;
        if (k->c->rate > 0) continue;
        k->users = cn_calloc((size_t)k->c->clients, sizeof *k->users);
        if (!k->users) return cn_fail(err, CN_ENOMEM, "out of memory");
        for (int64_t u = 0; u < k->c->clients; u++) {
            uv_timer_init(&r->loop, &k->users[u].timer);
            k->users[u].timer.data = &k->users[u];
            k->users[u].class = k;
        }
    }
    return CN_OK;
}

void lt_class_window(const struct lt_class_run *k, uint64_t now, uint64_t *from, uint64_t *until)
{
    const struct lt_run *r = k->run;

    *from = CN_MAX(r->window_ns, r->start_ns + ns_of(k->c->start_s));
    *until = r->stop_ns ? CN_MIN(now, r->stop_ns) : now;
    if (k->c->requests && k->issued >= (uint64_t)k->c->requests && !k->in_flight)
        *until = CN_MIN(*until, k->last_busy_ns);
}

static double seconds(uint64_t from, uint64_t until)
{
    return until > from ? (double)(until - from) / 1e9 : 0;
}

static void sum_up(struct lt_run *r, double cpu_before)
{
    struct lt_result *out = r->result;
    uint64_t until = r->stop_ns && r->stop_ns < r->end_ns ? r->stop_ns : r->end_ns;

    out->cpu_s = cpu_s() - cpu_before;
    out->wall_s = r->start_ns ? (double)(r->end_ns - r->start_ns) / 1e9 : 0;
    out->window_s = r->start_ns ? seconds(r->window_ns, until) : 0;
    out->opened = r->client.opened;
    out->reused = r->client.reused;
    for (size_t i = 0; i < out->n_classes; i++) {
        const struct lt_class_run *k = &r->classes[i];
        struct lt_tally *t = &out->classes[i];
        uint64_t first, last;

        lt_class_window(k, r->end_ns, &first, &last);
        t->window_s = r->start_ns ? seconds(first, last) : 0;
        t->split_s[1] = CN_MIN((double)k->beside_ns / 1e9, t->window_s);
        t->split_s[0] = t->window_s - t->split_s[1];
        if (k->c->rate > 0 && r->start_ns && k->next_due_ns < until &&
            (!k->c->requests || k->issued < (uint64_t)k->c->requests))
            t->behind_s = (double)(until - k->next_due_ns) / 1e9;
    }
}

static void raise_descriptors(void)
{
    struct rlimit l;

    if (getrlimit(RLIMIT_NOFILE, &l)) return;
    l.rlim_cur = l.rlim_max;
    setrlimit(RLIMIT_NOFILE, &l);
}

/* Everything of the loop, from its first handle to its last. */
static int run_loop(struct lt_run *r, struct cn_error *err)
{
    struct ask ask = {0};
    double cpu_before = cpu_s();
    int rc = prepare(r, err);

    uv_timer_init(&r->loop, &r->tick);
    uv_timer_init(&r->loop, &r->until);
    uv_signal_init(&r->loop, &r->interrupt);
    uv_signal_init(&r->loop, &r->terminate);
    r->tick.data = r->until.data = r->interrupt.data = r->terminate.data = r;
    uv_timer_start(&r->tick, on_tick, TICK_MS, TICK_MS);
    uv_signal_start(&r->interrupt, on_interrupt, SIGINT);
    uv_signal_start(&r->terminate, on_interrupt, SIGTERM);
    if (rc) {
        uv_walk(&r->loop, close_handle, NULL);
    } else if (*r->s->model) {
        snprintf(r->result->model, sizeof r->result->model, "%s", r->s->model);
        begin_warming(r);
    } else {
        ask_model(r, &ask, err);
    }
    uv_run(&r->loop, UV_RUN_DEFAULT);
    if (!rc) rc = ask.rc;
    if (!rc && r->oom) rc = cn_fail(err, CN_ENOMEM, "out of memory");
    if (!rc) sum_up(r, cpu_before);
    cn_buf_fini(&ask.body);
    cn_buf_fini(&ask.call.out);
    return rc;
}

int lt_run(const struct lt_scenario *s, const char *url, const char *key, bool progress,
           struct lt_result *out, struct cn_error *err)
{
    struct lt_run *r = cn_calloc(1, sizeof *r);
    struct lt_addrs addrs;
    int rc;

    memset(out, 0, sizeof *out);
    if (!r) return cn_fail(err, CN_ENOMEM, "out of memory");
    r->s = s;
    r->key = key;
    r->result = out;
    r->progress = progress;
    out->seed = (uint64_t)s->seed;
    while (!out->seed) {
        cn_random(&out->seed, sizeof out->seed);
        out->seed &= INT64_MAX; /* so that it can be given again */
    }
    raise_descriptors();
    rc = strlen(s->model) < sizeof out->model
             ? lt_target_parse(url, &r->target, err)
             : cn_fail(err, CN_ELIMIT, "model: longer than %zu bytes", sizeof out->model - 1);
    if (!rc) rc = lt_target_resolve(&r->target, &addrs, err);
    if (!rc && uv_loop_init(&r->loop)) rc = cn_fail(err, CN_EINTERNAL, "no event loop");
    if (!rc) {
        rc = lt_client_init(&r->client, &r->loop, &addrs, ns_of(s->timeout_s), s->keep_alive);
        if (!rc) rc = run_loop(r, err);
        uv_loop_close(&r->loop);
    }
    if (progress) fputs("\r\033[K", stderr);
    for (size_t i = 0; r->classes && i < s->n_classes; i++)
        free(r->classes[i].users);
    free(r->classes);
    free(r);
    return rc;
}

void lt_result_fini(struct lt_result *r)
{
    for (size_t i = 0; i < r->n_classes; i++) {
        struct lt_tally *t = &r->classes[i];

        lt_samples_fini(&t->ttft);
        lt_samples_fini(&t->itl[0]);
        lt_samples_fini(&t->itl[1]);
        lt_samples_fini(&t->total);
        lt_samples_fini(&t->tpot);
        lt_samples_fini(&t->lag);
    }
    for (size_t i = 0; i < r->n_tenants; i++) {
        lt_samples_fini(&r->tenants[i].ttft);
        lt_samples_fini(&r->tenants[i].total);
    }
    free(r->classes);
    free(r->tenants);
    memset(r, 0, sizeof *r);
}
