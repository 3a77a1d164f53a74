/* The server's life: loop, signals, tick, drain. The thread that calls srv_run is the loop thread.
 * Invariant at the end of srv_run: no connection, no handle, no job; records may remain only for
 * requests whose END the runtime still owes (srv_free takes those after rt_free). */
#include "server/grammars.h"
#include "server/internal.h"
#include "server/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define TICK_MS        100
#define IDLE_MS        1000
#define SPARE_FDS      64 /* for files, the loop and the log beside connections */
#define END_WAIT_NS    3000000000ull
#define OUT_NS         10000000000ull /* for the end of a server whose engine is stuck */
#define READING_END_NS 2000000000ull  /* at the end, for a reading of the tenants */

/* No connection is taken any more, and those between requests are closed. */
static void shut_door(struct srv *s)
{
    if (s->door_shut) return;
    s->door_shut = true;
    srv_listen_stop(s);
    srv_http_drain(&s->http);
}

/* Still accepts connections for server.drain_delay_s: a load balancer must see that the server
 * is not ready before connections are refused. */
static void begin_drain(struct srv *s)
{
    uint64_t now = cn_now_ns(), delay_ns = (uint64_t)(s->cfg->server.drain_delay_s * 1e9);

    if (s->draining) return;
    s->draining = s->http.draining = true;
    s->door_until_ns = now + delay_ns;
    s->drain_until_ns = now + CN_MAX(delay_ns, (uint64_t)(s->cfg->server.drain_timeout_s * 1e9));
    srv_notify("STOPPING=1");
    if (!delay_ns) shut_door(s);
    if (!s->quiet)
        cn_log(CN_LOG_INFO, "server", "draining: %zu request%s open", s->n_reqs,
               s->n_reqs == 1 ? "" : "s");
}

/* Open answers end with an error now; then the engine has a moment to say that it let go. */
static void end_now(struct srv *s, int code)
{
    struct cn_error why = {0};

    if (s->ending) return;
    s->ending = true;
    shut_door(s);
    s->end_until_ns = cn_now_ns() + END_WAIT_NS;
    cn_fail(&why, code, "%s", cn_err_info(code)->text);
    srv_reqs_end(s, &why);
}

static void check_drain(struct srv *s, uint64_t now)
{
    if (!s->draining) return;
    /* What was with a worker, or waits for its model, may still be submitted. */
    if (!s->rt_drained && s->n_jobs == 0 && s->n_waiting == 0) {
        s->rt_drained = true;
        rt_drain(s->rt);
    }
    if (!s->ending && now > s->drain_until_ns) end_now(s, CN_EDRAIN);
    if (now >= s->door_until_ns) shut_door(s);
    bool idle = s->n_reqs == 0 && s->http.n_conns == 0 && s->door_shut;
    /* Clients that do not close are not waited for once their answers are out. */
    if (s->n_reqs == 0 && s->ending && now > s->end_until_ns - END_WAIT_NS / 2) idle = true;
    if (idle || (s->ending && now > s->end_until_ns)) uv_stop(&s->loop);
}

void srv_health(struct srv *s, struct rt_health *h)
{
    uint64_t now = cn_now_ns();

    rt_health(s->rt, h);
    uint64_t paused = srv_witness_look(&s->witness, now);
    h->since_progress_ns = srv_progress_look(&s->progress, now, h->since_progress_ns, paused);
    h->stuck = h->since_progress_ns > h->stuck_after_ns;
}

/* Ends the process after engine.stuck_exit_s of a stuck engine. It cannot be joined and serves
 * no request; the exit status tells the supervisor to start the server again. */
static void check_stuck(struct srv *s, const struct rt_health *h, uint64_t now)
{
    uint64_t most = (uint64_t)(s->cfg->engine.stuck_exit_s * 1e9);

    if (!h->stuck || !most || s->stuck_out || h->since_progress_ns - h->stuck_after_ns < most)
        return;
    s->stuck_out = true;
    cn_log(CN_LOG_ERROR, "server",
           "the engine has been stuck for %.1f s (engine.stuck_exit_s): the server ends with exit "
           "status %d; start it again, and report what it did before",
           (double)(h->since_progress_ns - h->stuck_after_ns) * 1e-9, SRV_EXIT_STUCK);
    srv_witness_end_at(&s->witness, now + OUT_NS, SRV_EXIT_STUCK);
    begin_drain(s);
    end_now(s, CN_EDRAIN);
}

static void check_engine(struct srv *s, uint64_t now)
{
    struct rt_health h;

    srv_health(s, &h);
    if (h.failed && !s->failed) {
        s->failed = true;
        cn_log(CN_LOG_ERROR, "server", "the engine failed");
        begin_drain(s);
        end_now(s, h.lost ? CN_EDEVICE : CN_EDRAIN);
    }
    if (h.stuck != s->stuck) {
        s->stuck = h.stuck;
        if (h.stuck)
            cn_log(
                CN_LOG_ERROR, "server",
                "the engine is stuck: no progress for %.1f s, where at most %.1f s were expected",
                (double)h.since_progress_ns * 1e-9, (double)h.stuck_after_ns * 1e-9);
        else
            cn_log(CN_LOG_WARN, "server", "the engine moves again");
    }
    check_stuck(s, &h, now);
    if (!s->watchdog_ns || now < s->watchdog_next_ns || h.failed || h.stuck) return;
    s->watchdog_next_ns = now + s->watchdog_ns / 4;
    srv_notify("WATCHDOG=1");
}

static void on_due(uv_timer_t *t);

static void tick(struct srv *s)
{
    uint64_t now = cn_now_ns();

    uint64_t paused = srv_witness_look(&s->witness, now);
    if (paused > s->ticked_paused_ns) srv_http_paused(&s->http, paused - s->ticked_paused_ns, now);
    s->ticked_paused_ns = paused;
    srv_http_tick(&s->http, now);
    srv_gate_tick(&s->gate, s->metrics, now);
    srv_listen_resume(s);
    srv_reqs_tick(s, now);
    srv_refused_tick(s, now);
    srv_tenants_tick(s);
    check_engine(s, now);
    check_drain(s, now);
    bool idle = !s->http.n_conns && !s->draining && !s->watchdog_ns;
    uv_timer_start(&s->tick, on_due, idle ? IDLE_MS : TICK_MS, 0);
}

/* libuv runs timers before it polls. After a pause of the whole process, data that clients sent
 * in time is still unread then. So timeouts are checked after the poll, which this wakes. */
static void on_due(uv_timer_t *t)
{
    struct srv *s = t->data;
    s->tick_due = true;
    uv_timer_start(t, on_due, 1, 0);
}

static void on_after_poll(uv_check_t *h)
{
    struct srv *s = h->data;
    if (!s->tick_due) return;
    s->tick_due = false;
    tick(s);
}

/* libuv calls what came within its poll, so that a turn is all from here to here: waiting takes no
 * CPU time. That of this thread alone, so that what else the machine does is not counted. */
static void end_turn(struct srv *s)
{
    uint64_t now = cn_thread_ns(), turn = now - s->turn_ns;

    s->turn_ns = now;
    if (!s->metrics) return;
    cn_metric_observe(s->metrics, CN_H_loop_turn, turn);
    if (turn <= s->turn_max_ns) return;
    s->turn_max_ns = turn;
    cn_metric_set(s->metrics, CN_M_loop_turn_max_seconds, (double)turn * 1e-9);
}

static void on_more(uv_idle_t *h)
{
}

/* All work of a turn but reading is done here, before the loop sleeps. */
static void on_before_poll(uv_prepare_t *h)
{
    struct srv *s = h->data;

    srv_turn_begin(&s->turn);
    bool more = srv_on_mail(s, &s->turn);
    srv_turn_begin(&s->turn); /* a flood of events keeps neither streams nor requests waiting */
    more |= srv_sse_work(s);
    srv_turn_begin(&s->turn);
    more |= srv_http_work(&s->http);
    srv_turn_begin(&s->turn);
    more |= srv_streams_flush(s);
    srv_turn_begin(&s->turn);
    if (more)
        uv_idle_start(&s->more, on_more);
    else
        uv_idle_stop(&s->more);
    end_turn(s);
}

static void wake(void *arg)
{
    struct srv *s = arg;
    srv_wake_send(&s->wake);
}

static void stop_step(struct srv *s)
{
    if (s->draining)
        end_now(s, CN_EDRAIN);
    else
        begin_drain(s);
    uv_timer_start(&s->tick, on_due, 0, 0);
}

static void on_stop(uv_async_t *a)
{
    struct srv *s = a->data;
    /* Two calls may have become one wake. */
    for (unsigned n = atomic_exchange(&s->stops, 0); n > 0; n--)
        stop_step(s);
}

void srv_stop(struct srv *s)
{
    atomic_fetch_add(&s->stops, 1);
    uv_async_send(&s->stop_async);
}

/* The log's writer reports whether the file could be opened. */
static void reopen_log(const char *name, const char *more)
{
    if (!cn_log_reopen(name, more))
        cn_log(CN_LOG_INFO, "server", "%s: there is no log.file to reopen%s", name, more);
}

static bool has_terminal(void)
{
    int fd = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) return false;
    close(fd);
    return true;
}

/* Whether a closed terminal ends this process, as it does most programs: not under nohup. */
static bool is_at_terminal(void)
{
    struct sigaction hup;
    return !sigaction(SIGHUP, NULL, &hup) && hup.sa_handler != SIG_IGN && has_terminal();
}

/* The signal of a closed terminal is also an operator's: to read tenants and keys again. */
static void hang_up(struct srv *s)
{
    if (s->at_terminal && !has_terminal()) {
        cn_log(CN_LOG_INFO, "server", "SIGHUP: the terminal is closed");
        stop_step(s);
        return;
    }
    if (!s->source) {
        reopen_log("SIGHUP",
                   "; settings are read at start only: restart the server to change them");
        return;
    }
    reopen_log("SIGHUP", "; tenants and keys are read again");
    srv_tenants_reload(s);
}

static void on_signal(uv_signal_t *h, int signum)
{
    if (signum == SIGUSR1)
        reopen_log("SIGUSR1", "");
    else if (signum == SIGHUP)
        hang_up(h->data);
    else
        stop_step(h->data);
}

/* ---- start ----------------------------------------------------------------------------------- */

/* As many connections as descriptors allow; raises their limit where it can. */
static size_t conn_places(size_t asked)
{
    const size_t spare = SPARE_FDS + SRV_HEALTH_PLACES;
    struct rlimit fds;

    if (getrlimit(RLIMIT_NOFILE, &fds)) return asked;
    if (fds.rlim_cur < asked + spare && fds.rlim_cur < fds.rlim_max) {
        fds.rlim_cur = CN_MIN(fds.rlim_max, asked + spare);
        if (setrlimit(RLIMIT_NOFILE, &fds)) getrlimit(RLIMIT_NOFILE, &fds);
    }
    if (fds.rlim_cur == RLIM_INFINITY || fds.rlim_cur >= asked + spare) return asked;
    size_t places = fds.rlim_cur > spare * 2 ? fds.rlim_cur - spare : fds.rlim_cur / 2;
    cn_log(CN_LOG_WARN, "server", "the limit of open files allows %zu connections, not %zu", places,
           asked);
    return places;
}

static int set_limits(struct srv *s, struct cn_error *err)
{
    const struct cfg *c = s->cfg;
    struct srv_http_limits *l = &s->http.limits;

    l->max_body = c->server.max_body_bytes;
    l->header_ns = (uint64_t)(c->server.header_timeout_s * 1e9);
    l->idle_ns = (uint64_t)(c->server.idle_timeout_s * 1e9);
    l->write_ns = (uint64_t)(c->server.slow_reader_timeout_s * 1e9);
    l->body_grace_ns = (uint64_t)(c->server.body_grace_s * 1e9);
    l->body_ns = (uint64_t)(c->server.body_timeout_s * 1e9);
    l->body_min_rate = (uint64_t)c->server.body_min_rate;
    size_t places = conn_places((size_t)c->server.max_connections);
    size_t per_address = (size_t)c->server.max_connections_per_address;
    struct srv_gate_limits g = {
        .places = places,
        .n_tenants = s->tenants->n_slots,
        .per_tenant = srv_tenants_places(s->tenants, places),
        .per_address = !cfg_has_keys(c) ? SIZE_MAX /* all are this machine's */
                       : per_address    ? per_address
                                        : CN_MAX(places / 4, (size_t)16),
        .failures = (uint32_t)c->server.failed_keys_per_minute,
    };
    double *weights = srv_tenants_weights(s->tenants);
    if (!weights) return cn_fail(err, CN_ENOMEM, "out of memory");
    g.weights = weights;
    s->http.gate = &s->gate;
    int rc = srv_gate_init(&s->gate, &g, &s->trust, err);
    free(weights);
    return rc;
}

int srv_new(const struct srv_opts *opts, struct srv **out, struct cn_error *err)
{
    struct srv *s = cn_calloc(1, sizeof *s);

    if (!s) return cn_fail(err, CN_ENOMEM, "out of memory");
    s->cfg = opts->cfg;
    s->metrics = opts->metrics;
    s->version = opts->version;
    s->ready = opts->ready;
    s->ready_arg = opts->ready_arg;
    s->quiet = opts->quiet;
    s->free_slot = UINT32_MAX;
    srv_json_setup();
    int rc = uv_loop_init(&s->loop);
    if (rc < 0) {
        free(s);
        return cn_fail(err, CN_EIO, "event loop: %s", uv_strerror(rc));
    }
    s->loop_ready = true;
    cn_buf_init(&s->frame, 0);
    srv_http_init(&s->http, &srv_routes, s, s->metrics);
    s->http.turn = &s->turn;
    s->dirty_tail = &s->dirty;
    s->events.tail = &s->events.head;
    s->jobs.tail = &s->jobs.head;
    s->sending_tail = &s->sending;
    rc = srv_tenants_open(s, opts, err);
    if (!rc) rc = srv_budget_open(s);
    if (!rc) rc = srv_grammars_new(s->budget, &s->grammars);
    if (!rc && !(rc = cn_mailbox_init(&s->mail, wake, s))) s->mail_ready = true;
    if (!rc && !(rc = cn_mailbox_init(&s->jobs_done, wake, s))) s->done_ready = true;
    if (rc) cn_fail(err, rc, "out of memory");
    if (!rc && (rc = srv_wake_open(&s->wake))) cn_fail(err, rc, "event loop: %s", strerror(errno));
    s->http.trust = &s->trust;
    if (!rc) rc = srv_trust_init(&s->trust, s->cfg, err);
    if (!rc) rc = srv_listen_open(s, err);
    if (!rc) rc = set_limits(s, err);
    if (rc) {
        srv_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

static int start_text(struct srv *s, struct cn_error *err)
{
    size_t n = (size_t)s->tenants->n_slots;
    double *weights = srv_tenants_weights(s->tenants);

    if (!weights) return cn_fail(err, CN_ENOMEM, "out of memory");
    s->text = (struct srv_text_env){
        .model_id = rt_model_id(s->rt),
        .max_n = s->cfg->limits.max_n,
        .max_tokens = s->cfg->limits.max_tokens,
        .max_tokenize_tokens = s->cfg->limits.max_tokenize_tokens,
        .default_deadline_s = s->cfg->scheduler.default_deadline_s,
        .grammars = s->grammars,
        .grammar_ms = s->cfg->limits.grammar_ms,
        .mask_ms = s->cfg->limits.mask_ms,
        .grammar_bytes = s->cfg->limits.grammar_bytes,
    };
    static const double one = 1; /* strangers' */
    int rc = srv_text_pool_new((unsigned)s->cfg->server.text_workers, &one, 1, &s->jobs_done,
                               &s->pool, err);
    if (!rc && !(rc = srv_text_grow(s->pool, n + 1)))
        srv_text_weigh(s->pool, 1, weights, n);
    else if (!err->code)
        cn_fail(err, rc, "out of memory");
    s->http.pool = s->pool;
    free(weights);
    return rc;
}

static int start_handles(struct srv *s, struct cn_error *err)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};
    uv_signal_t *const handles[] = {&s->sigterm, &s->sigint, &s->sighup, &s->sigusr1};
    int rc = uv_async_init(&s->loop, &s->stop_async, on_stop);

    s->at_terminal = is_at_terminal();
    s->stop_async.data = s->tick.data = s->before_poll.data = s;
    s->after_poll.data = s->more.data = s;
    if (rc == 0) rc = srv_wake_start(&s->wake, &s->loop);
    if (rc == 0) rc = uv_timer_init(&s->loop, &s->tick);
    if (rc == 0) rc = uv_prepare_init(&s->loop, &s->before_poll);
    if (rc == 0) rc = uv_check_init(&s->loop, &s->after_poll);
    if (rc == 0) rc = uv_idle_init(&s->loop, &s->more);
    if (rc == 0) rc = uv_timer_start(&s->tick, on_due, TICK_MS, 0);
    if (rc == 0) rc = uv_prepare_start(&s->before_poll, on_before_poll);
    if (rc == 0) rc = uv_check_start(&s->after_poll, on_after_poll);
    for (size_t i = 0; rc == 0 && i < CN_ARRAY_LEN(signals); i++) {
        rc = uv_signal_init(&s->loop, handles[i]);
        handles[i]->data = s;
        if (rc == 0) rc = uv_signal_start(handles[i], on_signal, signals[i]);
    }
    return rc < 0 ? cn_fail(err, CN_EIO, "event loop: %s", uv_strerror(rc)) : 0;
}

static void close_handle(uv_handle_t *h, void *arg)
{
    if (!uv_is_closing(h)) uv_close(h, NULL);
}

static void log_ready(const struct srv *s)
{
    if (s->quiet) return;
    int port = srv_port(s);
    struct cn_buf names;
    cn_buf_init(&names, 0);
    for (size_t i = 0; i < rt_n_models(s->rt); i++) {
        struct rt_model_status m;
        rt_model_status(rt_model_at(s->rt, i), &m);
        cn_buf_printf(&names, i ? ",%s" : "%s", m.id);
    }
    const char *all = names.failed ? rt_model_id(s->rt) : cn_buf_cstr(&names);
    bool v6 = strchr(s->cfg->server.host, ':') != NULL; /* in brackets, or it could not be opened */
    if (port)
        cn_log(CN_LOG_INFO, "server", "serving %s on http://%s%s%s:%d", all, v6 ? "[" : "",
               s->cfg->server.host, v6 ? "]" : "", port);
    if (s->cfg->server.unix_socket)
        cn_log(CN_LOG_INFO, "server", "serving %s on %s", all, s->cfg->server.unix_socket);
    cn_buf_fini(&names);
}

/* Waits for the thread that reads the tenants, but not for a file system that does not answer. */
static bool reading_ends(struct srv *s)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    uint64_t until = cn_now_ns() + READING_END_NS;

    if (s->reload.running) uv_cancel((uv_req_t *)&s->reload.work);
    while (s->reload.running && cn_now_ns() < until) {
        uv_run(&s->loop, UV_RUN_NOWAIT);
        nanosleep(&nap, NULL);
    }
    return !s->reload.running;
}

/* Closes what is left: connections first, as their records hold on to them. False: the thread that
 * reads the tenants does not end. */
static bool close_all(struct srv *s)
{
    srv_listen_stop(s);
    srv_http_close_all(&s->http);
    srv_text_pool_free(s->pool);
    s->pool = s->http.pool = NULL;
    uv_walk(&s->loop, close_handle, NULL);
    if (!reading_ends(s)) return false;
    uv_run(&s->loop, UV_RUN_DEFAULT);
    srv_on_mail(s, NULL);
    srv_refused_tick(s, UINT64_MAX);
    return true;
}

int srv_run(struct srv *s, struct rt *rt, struct cn_error *err)
{
    signal(SIGPIPE, SIG_IGN);
    s->rt = rt;
    int rc = srv_witness_start(&s->witness, err);
    if (!rc) rc = start_text(s, err);
    if (!rc) rc = start_handles(s, err);
    if (!rc) rc = srv_listen_start(s, err);
    if (!rc) {
        s->watchdog_ns = srv_notify_watchdog_ns();
        srv_notify("READY=1");
        log_ready(s);
        if (s->ready) s->ready(s->ready_arg);
        if (atomic_load(&s->stops)) uv_async_send(&s->stop_async);
        cn_signals_take(true);
        s->turn_ns = cn_thread_ns();
        uv_run(&s->loop, UV_RUN_DEFAULT);
        cn_signals_take(false);
        if (s->failed) rc = cn_fail(err, CN_EINTERNAL, "the engine failed");
    }
    if (!close_all(s))
        return cn_fail(err, CN_EBUSY, "the file with the tenants is still being read");
    if (!rc && s->n_reqs)
        rc = cn_fail(err, CN_EBUSY, "the engine did not let go of %zu request%s", s->n_reqs,
                     s->n_reqs == 1 ? "" : "s");
    return rc;
}

bool srv_stuck(const struct srv *s)
{
    return s->stuck_out;
}

void srv_free(struct srv *s)
{
    if (!s) return;
    srv_witness_stop(&s->witness);
    s->rt = NULL; /* gone, if it was ever there */
    if (s->mail_ready && s->done_ready) srv_mail_clear(s);
    srv_listen_free(s);
    if (s->loop_ready) {
        uv_run(&s->loop, UV_RUN_DEFAULT);
        uv_loop_close(&s->loop);
    }
    srv_wake_fini(&s->wake);
    if (s->mail_ready) cn_mailbox_fini(&s->mail);
    if (s->done_ready) cn_mailbox_fini(&s->jobs_done);
    srv_tenants_close(s);
    srv_gate_fini(&s->gate);
    srv_trust_fini(&s->trust);
    cn_buf_fini(&s->frame);
    free(s->slots);
    srv_grammars_free(s->grammars);
    cn_budget_free(s->budget);
    free(s);
}
