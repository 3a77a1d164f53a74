/* Connections: bytes -> llhttp -> handler, closing so that the peer sees the answer.
 * Loop thread only; owns every srv_conn. Invariant: bytes are parsed in phases IDLE, HEADING and
 * BODY only; while an answer is due they wait in `in`, at most SRV_MAX_PIPELINED of them. */
#include "server/http.h"

#include <stdlib.h>
#include <string.h>

static void resume(struct srv_conn *c);
static void dequeue(struct srv_conn *c);

static struct cn_error *why(const struct srv_conn *c)
{
    return &c->head->err;
}

static void head_free(struct srv_head *h)
{
    if (!h) return;
    cn_buf_fini(&h->target);
    cn_buf_fini(&h->name);
    cn_buf_fini(&h->value);
    for (int i = 0; i < SRV_H_COUNT; i++)
        free(h->values[i]);
    cn_hold_drop(&h->hold);
    free(h);
}

void srv_conn_drop_head(struct srv_conn *c)
{
    head_free(c->head);
    c->head = NULL;
}

static void request_fini(struct srv_conn *c)
{
    srv_conn_drop_head(c);
    srv_text_drop(c->http->pool, c->lane, &c->body);
    c->user = NULL;
    c->route = NULL;
    c->extra = NULL;
    c->tally = NULL;
}

void srv_conn_phase(struct srv_conn *c, enum srv_phase phase)
{
    c->phase = phase;
    c->since_ns = cn_now_ns();
    c->raw_bytes = 0;
}

int srv_conn_rebill(struct srv_conn *c)
{
    struct srv_http *h = c->http;
    struct cn_account *old = c->hold.account;
    struct cn_account *account = h->budget ? cn_budget_account(h->budget, c->lane) : NULL;
    struct cn_buf *const buffers[] = {&c->in, &c->stream->out, &c->head->target, &c->head->name,
                                      &c->head->value};
    int rc = account == old ? 0 : cn_account_take(account, c->hold.bytes + c->head->hold.bytes);

    if (rc || account == old) return rc;
    cn_account_give(old, c->hold.bytes + c->head->hold.bytes);
    c->hold.account = c->head->hold.account = c->stream->account = account;
    for (size_t i = 0; !rc && i < CN_ARRAY_LEN(buffers); i++)
        rc = cn_buf_rebill(buffers[i], account);
    return rc;
}

/* ---- closing --------------------------------------------------------------------------------- */

void srv_conn_close(struct srv_conn *c, bool reset)
{
    if (c->phase == SRV_CLOSED) return;
    dequeue(c);
    bool due = c->phase == SRV_HANDLING;
    srv_conn_phase(c, SRV_CLOSED);
    if (c->http->gate) srv_gate_leave(c->http->gate, c);
    if (due) c->http->handler->on_gone(c->http->ctx, c);
    request_fini(c);
    c->stream->ops->close(c->stream, reset);
}

void srv_conn_abort(struct srv_conn *c)
{
    if (c->phase == SRV_CLOSED) return;
    dequeue(c);
    srv_conn_phase(c, SRV_CLOSED);
    if (c->http->gate) srv_gate_leave(c->http->gate, c);
    request_fini(c);
    c->stream->ops->close(c->stream, true);
}

void srv_conn_linger(struct srv_conn *c)
{
    dequeue(c);
    c->input = SRV_IN_READ;
    request_fini(c);
    cn_buf_fini(&c->in);
    srv_conn_phase(c, SRV_LINGER);
    c->read_ns = c->since_ns;
    if (c->eof && srv_conn_unsent(c) == 0) {
        srv_conn_close(c, false);
        return;
    }
    c->stream->ops->shutdown(c->stream);
    if (!c->eof) c->stream->ops->read(c->stream, true);
}

void srv_conn_done(struct srv_conn *c, bool close)
{
    if (c->phase == SRV_CLOSED) return;
    c->answer = SRV_ANSWER_WHOLE;
    c->served = true;
    if (close || !c->keep_alive || c->overrun || c->http->draining) {
        srv_conn_linger(c);
        return;
    }
    request_fini(c);
    srv_conn_phase(c, SRV_IDLE);
    if (c->http->gate) srv_gate_idle(c->http->gate, c, true);
    /* The next request may be here already. Inside the pump, its own loop continues. */
    if (!c->pumping && c->in.len) resume(c);
}

/* ---- bytes in -------------------------------------------------------------------------------- */

static int request_begin(struct srv_conn *c)
{
    c->head = cn_calloc(1, sizeof *c->head);
    if (!c->head) return CN_ENOMEM;
    if (c->http->gate) srv_gate_idle(c->http->gate, c, false);
    struct cn_account *account = c->hold.account;
    c->head->hold.account = account;
    cn_buf_init_for(&c->head->target, SRV_MAX_TARGET + 1, account);
    cn_buf_init_for(&c->head->name, SRV_MAX_HEAD + 1, account);
    cn_buf_init_for(&c->head->value, SRV_MAX_HEAD + 1, account);
    cn_buf_init(&c->body, c->http->limits.max_body + 1);
    llhttp_init(&c->parser, HTTP_REQUEST, &srv_parse_settings);
    c->parser.data = c;
    c->ext_bytes = 0;
    c->retry_s = 0;
    c->body_max = c->http->limits.max_body;
    c->started = false;
    c->answer = SRV_ANSWER_WHOLE;
    c->client = c->stream->peer;
    c->keep_alive = c->http10 = c->head_only = c->has_body = c->known = false;
    c->key_id[0] = 0;
    srv_conn_phase(c, SRV_HEADING);
    return 0;
}

void srv_conn_break(struct srv_conn *c, int code, const char *text)
{
    if (!why(c)->code) cn_fail(why(c), code, "%s", text);
    c->keep_alive = false;
    srv_conn_phase(c, SRV_HANDLING);
    srv_conn_refuse(c);
}

/* Parses up to the end of the message at hand; returns how many bytes were taken. */
static size_t feed(struct srv_conn *c, const char *data, size_t n)
{
    if (c->phase == SRV_IDLE && request_begin(c)) {
        srv_conn_close(c, true);
        return n;
    }
    bool heading = c->phase == SRV_HEADING;
    if (heading) n = CN_MIN(n, SRV_MAX_HEAD + 1 - c->raw_bytes);

    llhttp_errno_t rc = llhttp_execute(&c->parser, data, n);
    if (rc == HPE_PAUSED && c->phase == SRV_HANDLING) {
        size_t used = (size_t)(llhttp_get_error_pos(&c->parser) - data);
        if (c->answer == SRV_ANSWER_REFUSAL)
            srv_conn_refuse(c);
        else
            c->http->handler->on_request(c->http->ctx, c);
        return used;
    }
    if (rc != HPE_OK) {
        srv_conn_break(c, CN_EHTTP, "the HTTP request is malformed");
        return n;
    }
    c->raw_bytes += n;
    if (heading && c->phase == SRV_HEADING && c->raw_bytes > SRV_MAX_HEAD) {
        cn_fail(why(c), CN_EHEADERS, "the request's head is longer than %d bytes", SRV_MAX_HEAD);
        srv_conn_break(c, CN_EHEADERS, "");
    } else if (c->phase == SRV_BODY && c->raw_bytes > c->body_max * 2 + SRV_MAX_PIPELINED) {
        cn_fail(why(c), CN_EBODY, "the body's chunks take more than %zu bytes, for %zu at most",
                c->body_max * 2 + SRV_MAX_PIPELINED, c->body_max);
        srv_conn_break(c, CN_EBODY, "");
    }
    return n;
}

static bool parsing(const struct srv_conn *c)
{
    return c->phase == SRV_IDLE || c->phase == SRV_HEADING || c->phase == SRV_BODY;
}

/* Keeps bytes for later. Too many, or no memory for them: they are dropped, and so is
 * keep-alive. */
static void keep_input(struct srv_conn *c, const char *data, size_t n)
{
    if (c->overrun || n == 0) return;
    if (cn_buf_append(&c->in, data, n)) {
        c->overrun = true;
        cn_buf_fini(&c->in);
    }
}

/* ---- whose turn it is ------------------------------------------------------------------------ */

static void enqueue(struct srv_conn *c)
{
    struct srv_http *h = c->http;

    if (c->input == SRV_IN_QUEUED) return;
    c->input = SRV_IN_QUEUED;
    c->next_ready = NULL;
    *h->ready_tail = c;
    h->ready_tail = &c->next_ready;
}

static void dequeue(struct srv_conn *c)
{
    struct srv_http *h = c->http;
    struct srv_conn **p = &h->ready;

    if (c->input != SRV_IN_QUEUED) return;
    while (*p != c)
        p = &(*p)->next_ready;
    *p = c->next_ready;
    if (!*p) h->ready_tail = p;
    c->input = SRV_IN_READ;
}

/* Bytes that came are not parsed yet, and no more are read. */
static bool waits(const struct srv_conn *c)
{
    return c->input == SRV_IN_QUEUED || c->input == SRV_IN_BLOCKED;
}

/* Nothing is parsed for one who does not read the answers that are there. */
static bool too_much_unsent(const struct srv_conn *c)
{
    return srv_conn_unsent(c) > (c->known ? SRV_MAX_UNSENT : SRV_STRANGER_UNSENT);
}

/* Bytes are left that cannot be parsed now: no more are read until they are. */
static void wait_for_turn(struct srv_conn *c)
{
    if (too_much_unsent(c)) {
        dequeue(c);
        c->input = SRV_IN_BLOCKED;
    } else {
        enqueue(c);
    }
    c->stream->ops->read(c->stream, false);
}

/* Feeds from p while the connection may have more parsed, and *requests of it; returns how much was
 * taken. */
static size_t feed_some(struct srv_conn *c, const char *p, size_t n, unsigned *requests)
{
    size_t at = 0;

    while (at < n && parsing(c)) {
        if (c->phase == SRV_IDLE &&
            (!*requests || too_much_unsent(c) || srv_turn_over(c->http->turn)))
            break;
        at += feed(c, p + at, n - at);
        if (c->phase == SRV_IDLE || c->phase == SRV_HANDLING) (*requests)--;
    }
    return at;
}

/* Ends the input where bytes were lost: a request that has begun is refused, and later bytes are
 * not read as requests. */
static void end_at_gap(struct srv_conn *c)
{
    int rc = c->in.code;

    if (c->phase == SRV_IDLE && (rc == CN_ELIMIT || request_begin(c)))
        srv_conn_linger(c);
    else
        srv_conn_break(c, rc, cn_err_info(rc)->text);
}

/* Feeds what waits in `in`, then data; keeps the rest. */
static void conn_pump(struct srv_conn *c, const char *data, size_t n)
{
    struct cn_buf held = c->in;
    unsigned requests = SRV_REQUESTS_A_TURN;
    size_t at, used = 0;

    c->pumping = true;
    cn_buf_init_for(&c->in, SRV_MAX_PIPELINED, c->hold.account);
    at = feed_some(c, held.data, held.len, &requests);
    if (at == held.len) used = feed_some(c, data, n, &requests);
    c->pumping = false;
    if (c->phase == SRV_HANDLING || parsing(c)) {
        keep_input(c, held.data ? held.data + at : NULL, held.len - at);
        keep_input(c, data ? data + used : NULL, n - used);
    }
    cn_buf_fini(&held);
    if (!parsing(c)) return;
    if (c->overrun)
        end_at_gap(c);
    else if (c->in.len)
        wait_for_turn(c);
}

static void end_of_input(struct srv_conn *c);

/* Continues with the bytes that waited. */
static void resume(struct srv_conn *c)
{
    if (!parsing(c)) return;
    if (srv_turn_over(c->http->turn)) {
        enqueue(c);
        return;
    }
    conn_pump(c, NULL, 0);
    if (waits(c)) return;
    if (c->eof)
        end_of_input(c);
    else if (parsing(c) || (c->phase == SRV_HANDLING && c->input != SRV_IN_THROTTLED))
        c->stream->ops->read(c->stream, true); /* also to see when it leaves */
}

bool srv_http_work(struct srv_http *h)
{
    while (h->ready && !srv_turn_over(h->turn)) {
        struct srv_conn *c = h->ready;
        dequeue(c);
        resume(c);
    }
    return h->ready != NULL;
}

static void on_read(void *owner, const char *data, size_t n)
{
    struct srv_conn *c = owner;

    switch (c->phase) {
    case SRV_IDLE:
    case SRV_HEADING:
    case SRV_BODY:
        if (waits(c)) {
            keep_input(c, data, n);
            wait_for_turn(c);
        } else {
            conn_pump(c, data, n);
        }
        break;
    case SRV_HANDLING:
        keep_input(c, data, n);
        if (!c->overrun) break;
        c->input = SRV_IN_THROTTLED; /* the tick reads on, to see when it leaves */
        c->stream->ops->read(c->stream, false);
        break;
    case SRV_LINGER:
        c->read_ns = cn_now_ns();
        break;
    case SRV_CLOSED:
        break;
    }
}

static void end_of_input(struct srv_conn *c)
{
    switch (c->phase) {
    case SRV_HEADING:
    case SRV_BODY:
        if (c->started) {
            srv_conn_break(c, CN_EHTTP, "the request ended early");
            break;
        }
        srv_conn_linger(c);
        break;
    case SRV_IDLE:
    case SRV_LINGER:
        if (srv_conn_unsent(c) == 0)
            srv_conn_close(c, false);
        else if (c->phase == SRV_IDLE)
            srv_conn_linger(c);
        break;
    case SRV_HANDLING: /* half-closed counts as gone: no client waits for a long answer that way */
        srv_conn_close(c, false);
        break;
    case SRV_CLOSED:
        break;
    }
}

static void on_eof(void *owner)
{
    struct srv_conn *c = owner;

    c->eof = true;
    if (!waits(c)) end_of_input(c); /* else when what came before it is parsed */
}

static void on_fail(void *owner)
{
    srv_conn_close(owner, true);
}

static bool streams(const struct srv_conn *c)
{
    return c->phase == SRV_HANDLING &&
           (c->answer == SRV_ANSWER_RAW || c->answer == SRV_ANSWER_CHUNKED);
}

static void on_sent(void *owner)
{
    struct srv_conn *c = owner;

    c->stall_ns = 0;
    if (c->input == SRV_IN_BLOCKED) {
        c->input = SRV_IN_READ;
        resume(c);
    } else if (c->phase == SRV_LINGER && c->eof)
        srv_conn_close(c, false);
    else if (streams(c))
        c->http->handler->on_sent(c->http->ctx, c);
}

static void on_closed(void *owner)
{
    struct srv_conn *c = owner;
    struct srv_http *h = c->http;

    if (c->prev)
        c->prev->next = c->next;
    else
        h->conns = c->next;
    if (c->next) c->next->prev = c->prev;
    h->n_conns--;
    if (h->metrics) cn_metric_set(h->metrics, CN_M_connections, (double)h->n_conns);
    request_fini(c);
    cn_buf_fini(&c->in);
    cn_hold_drop(&c->hold);
    free(c);
    h->handler->on_closed(h->ctx);
}

static const struct srv_stream_events stream_events = {on_read, on_eof, on_fail, on_sent,
                                                       on_closed};

/* ---- all connections ------------------------------------------------------------------------- */

void srv_http_init(struct srv_http *h, const struct srv_http_handler *handler, void *ctx,
                   struct cn_metrics *metrics)
{
    memset(h, 0, sizeof *h);
    h->handler = handler;
    h->ctx = ctx;
    h->metrics = metrics;
    h->ready_tail = &h->ready;
    h->date_s = -1;
}

static void orphan_closed(void *owner)
{
}

struct srv_conn *srv_conn_new(struct srv_http *h, struct srv_stream *stream)
{
    static const struct srv_stream_events orphan = {.on_closed = orphan_closed};
    struct cn_hold hold = {.account =
                               h->budget ? cn_budget_account(h->budget, SRV_STRANGERS) : NULL};
    struct srv_conn *c = cn_hold_take(&hold, SRV_CONN_BYTES) ? NULL : cn_calloc(1, sizeof *c);

    if (!c) {
        cn_hold_drop(&hold);
        stream->events = &orphan;
        stream->ops->close(stream, true);
        return NULL;
    }
    c->http = h;
    c->stream = stream;
    stream->events = &stream_events;
    stream->owner = c;
    c->client = stream->peer;
    c->lane = SRV_STRANGERS;
    c->hold = hold;
    stream->account = hold.account;
    cn_buf_rebill(&stream->out, hold.account); /* it is empty */
    stream->out.included = SRV_OUT_INCLUDED;
    cn_buf_init_for(&c->in, SRV_MAX_PIPELINED, hold.account);
    srv_conn_phase(c, SRV_IDLE);
    c->next = h->conns;
    if (c->next) c->next->prev = c;
    h->conns = c;
    h->n_conns++;
    if (h->metrics) cn_metric_set(h->metrics, CN_M_connections, (double)h->n_conns);
    if (h->gate) srv_gate_enter(h->gate, c);
    stream->ops->read(stream, true);
    return c;
}

void srv_http_drain(struct srv_http *h)
{
    h->draining = true;
    for (struct srv_conn *c = h->conns, *next; c; c = next) {
        next = c->next;
        if (c->phase == SRV_IDLE) srv_conn_linger(c);
    }
}

void srv_http_close_all(struct srv_http *h)
{
    for (struct srv_conn *c = h->conns, *next; c; c = next) {
        next = c->next;
        srv_conn_close(c, false);
    }
}
