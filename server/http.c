/* Connections: bytes -> llhttp -> handler, time-outs, closing so that the peer sees the answer.
 * Loop thread only; owns every srv_conn. Invariant: bytes are parsed in phases IDLE, HEADING and
 * BODY only; while an answer is due they wait in `in`, at most SRV_MAX_PIPELINED of them. */
#include "server/http.h"

#include <stdlib.h>
#include <string.h>

static void conn_pump(struct srv_conn *c, const char *data, size_t n);

static void head_free(struct srv_head *h)
{
    if (!h) return;
    cn_buf_fini(&h->target);
    cn_buf_fini(&h->name);
    cn_buf_fini(&h->value);
    for (int i = 0; i < SRV_H_COUNT; i++)
        free(h->values[i]);
    free(h);
}

uint64_t srv_body_take(struct srv_conn *c)
{
    uint64_t n = c->body_charge;

    c->body_charge = 0;
    return n;
}

void srv_body_give(struct srv_http *h, uint32_t tenant, uint64_t n)
{
    h->body_held -= n;
    if (h->tenant_held) h->tenant_held[tenant] -= n;
}

static void release_body(struct srv_conn *c)
{
    cn_buf_fini(&c->body);
    srv_body_give(c->http, c->tenant, srv_body_take(c));
}

void srv_conn_drop_head(struct srv_conn *c)
{
    head_free(c->head);
    c->head = NULL;
}

static void request_fini(struct srv_conn *c)
{
    srv_conn_drop_head(c);
    release_body(c);
    c->user = NULL;
    c->route = NULL;
    c->extra = NULL;
}

static void set_phase(struct srv_conn *c, enum srv_phase phase)
{
    c->phase = phase;
    c->since_ns = cn_now_ns();
    c->raw_bytes = 0;
}

/* ---- closing --------------------------------------------------------------------------------- */

static void conn_close(struct srv_conn *c, bool reset)
{
    if (c->phase == SRV_CLOSED) return;
    bool due = c->phase == SRV_HANDLING;
    set_phase(c, SRV_CLOSED);
    if (due) c->http->handler->on_gone(c->http->ctx, c);
    request_fini(c);
    c->stream->ops->close(c->stream, reset);
}

void srv_conn_abort(struct srv_conn *c)
{
    if (c->phase == SRV_CLOSED) return;
    set_phase(c, SRV_CLOSED);
    request_fini(c);
    c->stream->ops->close(c->stream, true);
}

/* Sends what is queued and a FIN, then reads until the peer closes too: closing with unread input
 * would send a reset, and the peer could lose the answer. */
static void conn_linger(struct srv_conn *c)
{
    request_fini(c);
    cn_buf_fini(&c->in);
    set_phase(c, SRV_LINGER);
    c->read_ns = c->since_ns;
    if (c->eof && srv_conn_unsent(c) == 0) {
        conn_close(c, false);
        return;
    }
    c->stream->ops->shutdown(c->stream);
    if (!c->eof) c->stream->ops->read(c->stream, true);
}

void srv_conn_done(struct srv_conn *c, bool close)
{
    if (c->phase == SRV_CLOSED) return;
    c->streaming = false;
    if (close || !c->keep_alive || c->overrun || c->http->draining) {
        conn_linger(c);
        return;
    }
    request_fini(c);
    set_phase(c, SRV_IDLE);
    /* The next request may be here already. From inside the pump its own loop goes on. */
    if (!c->pumping && c->in.len) conn_pump(c, NULL, 0);
}

/* ---- parser callbacks ------------------------------------------------------------------------ */

static struct srv_conn *conn_of(llhttp_t *p)
{
    return p->data;
}

static struct cn_error *why(const struct srv_conn *c)
{
    return &c->head->err;
}

static int on_begin(llhttp_t *p)
{
    conn_of(p)->started = true;
    return 0;
}

static int on_url(llhttp_t *p, const char *at, size_t n)
{
    struct srv_conn *c = conn_of(p);

    if (c->head->target.len + n > SRV_MAX_TARGET)
        return cn_fail(why(c), CN_ETARGET, "the request target is longer than %d bytes",
                       SRV_MAX_TARGET);
    if (cn_buf_append(&c->head->target, at, n)) return cn_fail(why(c), CN_ENOMEM, "out of memory");
    return 0;
}

static int header_part(struct srv_conn *c, struct cn_buf *to, const char *at, size_t n)
{
    struct srv_head *h = c->head;

    h->header_bytes += n;
    if (h->header_bytes > SRV_MAX_HEAD)
        return cn_fail(why(c), CN_EHEADERS, "the headers are longer than %d bytes", SRV_MAX_HEAD);
    if (h->trailers) return 0;
    if (cn_buf_append(to, at, n)) return cn_fail(why(c), CN_ENOMEM, "out of memory");
    return 0;
}

static int on_field(llhttp_t *p, const char *at, size_t n)
{
    return header_part(conn_of(p), &conn_of(p)->head->name, at, n);
}

static int on_value(llhttp_t *p, const char *at, size_t n)
{
    return header_part(conn_of(p), &conn_of(p)->head->value, at, n);
}

static int on_value_complete(llhttp_t *p)
{
    struct srv_conn *c = conn_of(p);

    if (++c->head->n_headers > SRV_MAX_HEADERS)
        return cn_fail(why(c), CN_EHEADERS, "there are more than %d headers", SRV_MAX_HEADERS);
    if (c->head->trailers) return 0;
    int rc = srv_head_header(c->head, why(c));
    cn_buf_reset(&c->head->name);
    cn_buf_reset(&c->head->value);
    return rc;
}

/* Bytes that came, never bytes announced. A tenant may hold as much as it leaves free, so that one
 * takes at most half and each further one finds room; small bodies always have it, as the number of
 * connections bounds what they come to. */
static int charge_body(struct srv_conn *c, uint64_t n)
{
    struct srv_http *h = c->http;
    uint64_t left = h->body_held_max - CN_MIN(h->body_held, h->body_held_max);
    uint64_t mine = h->tenant_held ? h->tenant_held[c->tenant] : h->body_held;

    if (c->body_charge + n > SRV_SMALL_BODY && (n > left || mine + n > left - n))
        return cn_fail(why(c), CN_ENOMEM, "too many request bodies are being received");
    h->body_held += n;
    if (h->tenant_held) h->tenant_held[c->tenant] += n;
    c->body_charge += n;
    return 0;
}

static int check_body(struct srv_conn *c)
{
    const char *expect = srv_conn_header(c, SRV_H_expect);

    if (c->parser.content_length > c->http->limits.max_body)
        return cn_fail(why(c), CN_EBODY, "the body is longer than %zu bytes",
                       c->http->limits.max_body);
    if (expect && strcasecmp(expect, "100-continue"))
        return cn_fail(why(c), CN_EEXPECT, "the Expect header is not supported");
    return 0;
}

static int on_headers_complete(llhttp_t *p)
{
    struct srv_conn *c = conn_of(p);

    p->upgrade = 0; /* no protocol to change to: the message is read as any other */
    c->keep_alive = llhttp_should_keep_alive(p);
    c->http10 = p->http_minor == 0;
    c->head_only = p->method == HTTP_HEAD;
    c->has_body = p->content_length > 0 || c->head->values[SRV_H_transfer_encoding];
    if (srv_head_check(c, why(c))) return why(c)->code;
    if (c->http->metrics) cn_metric_add(c->http->metrics, CN_M_http_requests, 1);

    int rc = c->http->handler->on_head(c->http->ctx, c, why(c));
    if (rc == 0) rc = check_body(c);
    if (rc && !why(c)->code) cn_fail(why(c), rc, "%s", cn_err_info(rc)->text);
    if (rc && c->has_body) return rc;
    c->refused = rc != 0;
    if (c->has_body && !c->http10 && srv_conn_header(c, SRV_H_expect))
        srv_conn_append(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    c->head->trailers = true;
    c->head->header_bytes = 0;
    c->head->n_headers = 0;
    set_phase(c, SRV_BODY);
    return 0;
}

static int on_chunk_ext(llhttp_t *p, const char *at, size_t n)
{
    struct srv_conn *c = conn_of(p);

    c->ext_bytes += n;
    if (c->ext_bytes <= SRV_MAX_CHUNK_EXT) return 0;
    return cn_fail(why(c), CN_EHTTP, "chunk extensions are longer than %d bytes",
                   SRV_MAX_CHUNK_EXT);
}

/* Whether n more bytes are within the limit. */
static int body_room(struct srv_conn *c, uint64_t n)
{
    if (n <= c->http->limits.max_body - c->body.len) return 0;
    return cn_fail(why(c), CN_EBODY, "the body is longer than %zu bytes",
                   c->http->limits.max_body);
}

/* A chunk that says it is too long is not waited for. */
static int on_chunk_header(llhttp_t *p)
{
    return body_room(conn_of(p), p->content_length);
}

static int on_body(llhttp_t *p, const char *at, size_t n)
{
    struct srv_conn *c = conn_of(p);

    if (body_room(c, n)) return why(c)->code;
    if (charge_body(c, n)) return why(c)->code;
    if (cn_buf_append(&c->body, at, n)) return cn_fail(why(c), CN_ENOMEM, "out of memory");
    return 0;
}

static int on_message_complete(llhttp_t *p)
{
    set_phase(conn_of(p), SRV_HANDLING);
    return HPE_PAUSED;
}

static const llhttp_settings_t settings = {
    .on_message_begin = on_begin,
    .on_url = on_url,
    .on_header_field = on_field,
    .on_header_value = on_value,
    .on_header_value_complete = on_value_complete,
    .on_headers_complete = on_headers_complete,
    .on_chunk_extension_name = on_chunk_ext,
    .on_chunk_extension_value = on_chunk_ext,
    .on_chunk_header = on_chunk_header,
    .on_body = on_body,
    .on_message_complete = on_message_complete,
};

/* ---- bytes in -------------------------------------------------------------------------------- */

static int request_begin(struct srv_conn *c)
{
    c->head = cn_calloc(1, sizeof *c->head);
    if (!c->head) return CN_ENOMEM;
    cn_buf_init(&c->head->target, SRV_MAX_TARGET + 1);
    cn_buf_init(&c->head->name, SRV_MAX_HEAD + 1);
    cn_buf_init(&c->head->value, SRV_MAX_HEAD + 1);
    cn_buf_init(&c->body, c->http->limits.max_body + 1);
    llhttp_init(&c->parser, HTTP_REQUEST, &settings);
    c->parser.data = c;
    c->ext_bytes = 0;
    c->started = c->refused = c->streaming = c->chunked_out = false;
    c->keep_alive = c->http10 = c->head_only = c->has_body = c->known = false;
    set_phase(c, SRV_HEADING);
    return 0;
}

/* Answers what cannot go on, and closes: where the next request begins is not known. */
static void refuse(struct srv_conn *c, int code, const char *text)
{
    if (!why(c)->code) cn_fail(why(c), code, "%s", text);
    c->keep_alive = false;
    set_phase(c, SRV_HANDLING);
    srv_conn_refuse(c);
}

/* Parses up to the end of the message at hand; returns how many bytes were taken. */
static size_t feed(struct srv_conn *c, const char *data, size_t n)
{
    if (c->phase == SRV_IDLE && request_begin(c)) {
        conn_close(c, true);
        return n;
    }
    bool heading = c->phase == SRV_HEADING;
    if (heading) n = CN_MIN(n, SRV_MAX_HEAD + 1 - c->raw_bytes);

    llhttp_errno_t rc = llhttp_execute(&c->parser, data, n);
    if (rc == HPE_PAUSED && c->phase == SRV_HANDLING) {
        size_t used = (size_t)(llhttp_get_error_pos(&c->parser) - data);
        if (c->refused)
            srv_conn_refuse(c);
        else
            c->http->handler->on_request(c->http->ctx, c);
        return used;
    }
    if (rc != HPE_OK) {
        refuse(c, CN_EHTTP, "the HTTP request is malformed");
        return n;
    }
    c->raw_bytes += n;
    if (heading && c->phase == SRV_HEADING && c->raw_bytes > SRV_MAX_HEAD) {
        cn_fail(why(c), CN_EHEADERS, "the request's head is longer than %d bytes", SRV_MAX_HEAD);
        refuse(c, CN_EHEADERS, "");
    } else if (c->phase == SRV_BODY &&
               c->raw_bytes > c->http->limits.max_body * 2 + SRV_MAX_PIPELINED) {
        refuse(c, CN_EBODY, "the body's chunks are longer than allowed");
    }
    return n;
}

static bool parsing(const struct srv_conn *c)
{
    return c->phase == SRV_IDLE || c->phase == SRV_HEADING || c->phase == SRV_BODY;
}

/* Keeps bytes of requests to come. Too many: they are dropped, and so is keep-alive. */
static void keep_input(struct srv_conn *c, const char *data, size_t n)
{
    if (c->overrun || n == 0) return;
    if (cn_buf_append(&c->in, data, n)) {
        c->overrun = true;
        cn_buf_fini(&c->in);
    }
}

/* Feeds what waits in `in`, then data; keeps the rest. */
static void conn_pump(struct srv_conn *c, const char *data, size_t n)
{
    struct cn_buf held = c->in;
    size_t at = 0, used = 0;

    c->pumping = true;
    cn_buf_init(&c->in, SRV_MAX_PIPELINED);
    while (parsing(c) && at < held.len)
        at += feed(c, held.data + at, held.len - at);
    while (parsing(c) && used < n)
        used += feed(c, data + used, n - used);
    c->pumping = false;
    if (c->phase == SRV_HANDLING) {
        keep_input(c, held.data ? held.data + at : NULL, held.len - at);
        keep_input(c, data ? data + used : NULL, n - used);
    }
    cn_buf_fini(&held);
}

static void on_read(void *owner, const char *data, size_t n)
{
    struct srv_conn *c = owner;

    switch (c->phase) {
    case SRV_IDLE:
    case SRV_HEADING:
    case SRV_BODY:
        conn_pump(c, data, n);
        break;
    case SRV_HANDLING:
        keep_input(c, data, n);
        break;
    case SRV_LINGER:
        c->read_ns = cn_now_ns();
        break;
    case SRV_CLOSED:
        break;
    }
}

static void on_eof(void *owner)
{
    struct srv_conn *c = owner;

    c->eof = true;
    switch (c->phase) {
    case SRV_HEADING:
    case SRV_BODY:
        if (c->started) {
            refuse(c, CN_EHTTP, "the request ended early");
            break;
        }
        conn_linger(c);
        break;
    case SRV_IDLE:
    case SRV_LINGER:
        if (srv_conn_unsent(c) == 0)
            conn_close(c, false);
        else if (c->phase == SRV_IDLE)
            conn_linger(c);
        break;
    case SRV_HANDLING: /* half-closed counts as gone: nobody waits for long answers that way */
        conn_close(c, false);
        break;
    case SRV_CLOSED:
        break;
    }
}

static void on_fail(void *owner)
{
    conn_close(owner, true);
}

static void on_sent(void *owner)
{
    struct srv_conn *c = owner;

    c->stall_ns = 0;
    if (c->phase == SRV_LINGER && c->eof)
        conn_close(c, false);
    else if (c->phase == SRV_HANDLING && c->streaming)
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
    free(c);
    h->handler->on_closed(h->ctx);
}

static const struct srv_stream_events stream_events = {on_read, on_eof, on_fail, on_sent,
                                                       on_closed};

/* ---- all connections ---------------------------------------------------------------------------
 */

void srv_http_init(struct srv_http *h, const struct srv_http_handler *handler, void *ctx,
                   struct cn_metrics *metrics)
{
    memset(h, 0, sizeof *h);
    h->handler = handler;
    h->ctx = ctx;
    h->metrics = metrics;
    h->body_held_max = UINT64_MAX;
    h->date_s = -1;
}

static void orphan_closed(void *owner) {}

struct srv_conn *srv_conn_new(struct srv_http *h, struct srv_stream *stream)
{
    static const struct srv_stream_events orphan = {.on_closed = orphan_closed};
    struct srv_conn *c = cn_calloc(1, sizeof *c);

    if (!c) {
        stream->events = &orphan;
        stream->ops->close(stream, true);
        return NULL;
    }
    c->http = h;
    c->stream = stream;
    stream->events = &stream_events;
    stream->owner = c;
    cn_buf_init(&c->in, SRV_MAX_PIPELINED);
    set_phase(c, SRV_IDLE);
    c->next = h->conns;
    if (c->next) c->next->prev = c;
    h->conns = c;
    h->n_conns++;
    if (h->metrics) cn_metric_set(h->metrics, CN_M_connections, (double)h->n_conns);
    stream->ops->read(stream, true);
    return c;
}

/* A reader that takes nearly nothing of what waits for it is cut off. */
static bool stalled(struct srv_conn *c, uint64_t now)
{
    uint64_t unsent = srv_conn_unsent(c), sent = c->appended - unsent;

    if (unsent == 0 || c->stall_ns == 0) {
        c->stall_ns = unsent ? now : 0;
        c->stall_mark = sent;
        return false;
    }
    uint64_t window = c->http->limits.write_ns;
    if (now - c->stall_ns < window) return false;
    bool slow = sent - c->stall_mark < CN_MAX(1, window / 1000000000u * 1024);
    c->stall_ns = now;
    c->stall_mark = sent;
    return slow;
}

static void conn_tick(struct srv_conn *c, uint64_t now)
{
    const struct srv_http_limits *l = &c->http->limits;
    uint64_t age = now > c->since_ns ? now - c->since_ns : 0;

    if (c->phase != SRV_CLOSED && stalled(c, now)) {
        conn_close(c, true);
        return;
    }
    switch (c->phase) {
    case SRV_IDLE:
        if (age > l->idle_ns && srv_conn_unsent(c) == 0) conn_linger(c);
        break;
    case SRV_HEADING:
        if (age <= l->header_ns) break;
        if (c->started)
            refuse(c, CN_ETIMEOUT, "the request's head took too long to arrive");
        else
            conn_linger(c);
        break;
    case SRV_BODY:
        if (l->body_min_rate && age > l->body_grace_ns &&
            (double)c->raw_bytes < (double)l->body_min_rate * (double)age / 1e9)
            refuse(c, CN_ETIMEOUT, "the body arrives too slowly");
        break;
    case SRV_LINGER:
        if (srv_conn_unsent(c) == 0 &&
            (age > SRV_LINGER_MAX_NS || now > c->read_ns + SRV_LINGER_IDLE_NS))
            conn_close(c, false);
        break;
    case SRV_HANDLING:
    case SRV_CLOSED:
        break;
    }
}

void srv_http_paused(struct srv_http *h, uint64_t pause_ns, uint64_t now)
{
    for (struct srv_conn *c = h->conns; c; c = c->next) {
        c->since_ns = CN_MIN(c->since_ns + pause_ns, now);
        c->read_ns = CN_MIN(c->read_ns + pause_ns, now);
        if (c->stall_ns) c->stall_ns = CN_MIN(c->stall_ns + pause_ns, now);
    }
}

void srv_http_tick(struct srv_http *h, uint64_t now)
{
    for (struct srv_conn *c = h->conns, *next; c; c = next) {
        next = c->next;
        conn_tick(c, now);
    }
}

void srv_http_drain(struct srv_http *h)
{
    h->draining = true;
    for (struct srv_conn *c = h->conns, *next; c; c = next) {
        next = c->next;
        if (c->phase == SRV_IDLE) conn_linger(c);
    }
}

void srv_http_close_all(struct srv_http *h)
{
    for (struct srv_conn *c = h->conns, *next; c; c = next) {
        next = c->next;
        conn_close(c, false);
    }
}
