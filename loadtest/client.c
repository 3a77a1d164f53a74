/* HTTP exchanges. A connection carries one call at a time and owns the bytes being written, so that
 * a call may end before they are gone. A connection that was kept and turns out to be closed before
 * a byte of the answer came is replaced once by a fresh one. Until a connection was made, each that
 * fails is tried again at the server's next address.
 *
 * Callers' functions are called from the read callback after llhttp has returned, or from on_data
 * inside it; a connection is freed only by its close callback. */
#include "loadtest/client.h"

#include <stdlib.h>
#include <string.h>

#define SLOW_TICKS  10 /* reads a second of a slow reader */
#define SLOW_BUFFER 4096
#define SWEEP_MS    100

struct lt_conn {
    uv_tcp_t tcp;
    uv_timer_t pace; /* of a slow reader */
    uv_connect_t connect;
    uv_write_t write;
    llhttp_t parser;
    struct lt_client *client;
    struct lt_call *call;                 /* NULL: idle, or to be closed */
    struct lt_conn *prev, *next;          /* of all */
    struct lt_conn *idle_next, **idle_at; /* of the idle; what points to it, NULL: not idle */
    struct cn_buf out;
    size_t addr; /* of the client's addrs */
    int handles; /* not yet closed */
    bool connected, used, closing;
    bool writing, answered, complete, keep;
};

static void read_more(struct lt_conn *k);

/* ---- the list of calls under way ------------------------------------------------------------- */

/* Puts a call last, whose deadline is the latest, or first. */
static void call_link(struct lt_client *c, struct lt_call *call, bool first)
{
    call->prev = first ? NULL : c->last;
    call->next = first ? c->first : NULL;
    if (call->prev)
        call->prev->next = call;
    else
        c->first = call;
    if (call->next)
        call->next->prev = call;
    else
        c->last = call;
}

static void call_unlink(struct lt_client *c, struct lt_call *call)
{
    if (call->prev)
        call->prev->next = call->next;
    else
        c->first = call->next;
    if (call->next)
        call->next->prev = call->prev;
    else
        c->last = call->prev;
}

/* ---- connections ----------------------------------------------------------------------------- */

static void on_closed(uv_handle_t *h)
{
    struct lt_conn *k = h->data;

    if (--k->handles) return;
    cn_buf_fini(&k->out);
    free(k);
}

static void idle_add(struct lt_conn *k)
{
    k->idle_at = &k->client->idle;
    k->idle_next = k->client->idle;
    if (k->idle_next) k->idle_next->idle_at = &k->idle_next;
    k->client->idle = k;
}

static void idle_remove(struct lt_conn *k)
{
    *k->idle_at = k->idle_next;
    if (k->idle_next) k->idle_next->idle_at = k->idle_at;
    k->idle_at = NULL;
}

static void conn_close(struct lt_conn *k)
{
    struct lt_client *c = k->client;

    if (k->closing) return;
    k->closing = true;
    if (k->idle_at) idle_remove(k);
    if (k->prev)
        k->prev->next = k->next;
    else
        c->conns = k->next;
    if (k->next) k->next->prev = k->prev;
    uv_close((uv_handle_t *)&k->tcp, on_closed);
    uv_close((uv_handle_t *)&k->pace, on_closed);
}

/* Takes the call off its connection and notifies its owner. */
static void end_call(struct lt_call *call, struct lt_client *c, uint64_t now, enum lt_end end,
                     const char *detail)
{
    if (call->conn) call->conn->call = NULL;
    call->conn = NULL;
    call_unlink(c, call);
    call->ops->on_end(call, now, end, detail);
}

static void begin(struct lt_conn *k, struct lt_call *call);

/* To be made to the address `at`, or to a later one if none is known to work. */
static struct lt_conn *conn_new(struct lt_client *c, size_t at)
{
    struct lt_conn *k = cn_calloc(1, sizeof *k);

    if (!k) return NULL;
    k->client = c;
    cn_buf_init(&k->out, 0);
    /* no descriptor left, or no such kind of address here */
    for (k->addr = at; uv_tcp_init_ex(c->loop, &k->tcp, c->addrs.v[k->addr].ss_family);) {
        if (!c->proven && ++k->addr < c->addrs.n) continue;
        free(k);
        return NULL;
    }
    uv_timer_init(c->loop, &k->pace);
    k->tcp.data = k->pace.data = k->connect.data = k->write.data = k;
    k->handles = 2;
    k->next = c->conns;
    if (c->conns) c->conns->prev = k;
    c->conns = k;
    c->opened++;
    return k;
}

/* The connection failed, or was closed by the server. */
static void conn_lost(struct lt_conn *k, enum lt_end end, int uv_code)
{
    struct lt_client *c = k->client;
    struct lt_call *call = k->call;
    bool stale = k->used && !k->answered && end == LT_END_CLOSED;
    size_t at = c->proven ? c->addr : k->addr + 1;
    bool elsewhere = end == LT_END_CONNECT && at != k->addr && at < c->addrs.n;

    if (k->closing) return;
    k->call = NULL;
    if (!call) {
        conn_close(k);
        return;
    }
    call->conn = NULL;
    if ((stale || elsewhere) && !k->out.failed && k->out.len) {
        struct lt_conn *fresh = conn_new(c, elsewhere ? at : c->addr);

        if (fresh) {
            cn_buf_fini(&call->out);
            call->out = k->out;
            cn_buf_init(&k->out, 0);
            /* libuv may still point into those bytes; it gives up on them before on_closed, and
             * does not read them after uv_close */
            conn_close(k);
            begin(fresh, call);
            return;
        }
    }
    conn_close(k);
    end_call(call, c, cn_now_ns(), end,
             uv_code ? uv_strerror(uv_code) : "closed before the answer was whole");
}

/* ---- reading --------------------------------------------------------------------------------- */

static void on_alloc(uv_handle_t *h, size_t hint, uv_buf_t *out)
{
    struct lt_conn *k = h->data;
    size_t n = sizeof k->client->buffer;

    if (k->call && k->call->read_rate_bytes) {
        uint64_t part = CN_MAX(k->call->read_rate_bytes / SLOW_TICKS, 1);
        n = CN_MIN(n, part);
    }
    *out = uv_buf_init(k->client->buffer, (unsigned)n);
}

/* Ends a call whose answer is complete: keeps or closes the connection, notifies the call's
 * owner. */
static void finish(struct lt_conn *k, uint64_t now)
{
    struct lt_client *c = k->client;
    struct lt_call *call = k->call;

    k->call = NULL;
    call->conn = NULL;
    if (!k->keep || k->writing || !c->keep_alive || call->read_rate_bytes) {
        conn_close(k);
    } else {
        k->used = true;
        idle_add(k);
    }
    end_call(call, c, now, LT_END_OK, "");
}

static void on_pace(uv_timer_t *t)
{
    read_more(t->data);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct lt_conn *k = stream->data;
    enum llhttp_errno e;

    if (n == 0 || k->closing) return;
    if (n < 0) {
        if (n == UV_EOF && k->call && k->answered) llhttp_finish(&k->parser);
        if (k->complete && k->call) { /* the end of the connection was the end of the body */
            k->keep = false;
            finish(k, cn_now_ns());
            return;
        }
        conn_lost(k, LT_END_CLOSED, n == UV_EOF ? 0 : (int)n);
        return;
    }
    if (!k->call) { /* bytes without a request */
        conn_close(k);
        return;
    }
    if (!k->answered && !k->writing) cn_buf_fini(&k->out); /* it will not be sent again */
    k->answered = true;
    e = llhttp_execute(&k->parser, buf->base, (size_t)n);
    if (k->closing) return; /* cut by its owner */
    if (k->complete) {
        const char *at = llhttp_get_error_pos(&k->parser);

        if (e != HPE_PAUSED || at != buf->base + n) k->keep = false; /* more than an answer */
        finish(k, cn_now_ns());
    } else if (e != HPE_OK) {
        struct lt_call *call = k->call;

        conn_close(k);
        k->call = NULL;
        call->conn = NULL;
        end_call(call, k->client, cn_now_ns(), LT_END_BAD_HTTP, llhttp_errno_name(e));
    } else if (k->call->read_rate_bytes) {
        uv_read_stop(stream);
        uv_timer_start(&k->pace, on_pace, CN_MAX((uint64_t)n * 1000 / k->call->read_rate_bytes, 1),
                       0);
    }
}

static void read_more(struct lt_conn *k)
{
    if (!k->closing) uv_read_start((uv_stream_t *)&k->tcp, on_alloc, on_read);
}

static int on_head(llhttp_t *p)
{
    struct lt_conn *k = p->data;

    if (k->call && p->status_code >= 200) k->call->status = p->status_code;
    return 0;
}

static int on_body(llhttp_t *p, const char *at, size_t n)
{
    struct lt_conn *k = p->data;
    struct lt_call *call = k->call;

    if (!call) return HPE_USER;
    if (call->ops->on_data(call, cn_now_ns(), at, n)) return 0;
    if (k->call) lt_client_cut(k->client, call);
    return HPE_USER;
}

static int on_complete(llhttp_t *p)
{
    struct lt_conn *k = p->data;

    if (p->status_code < 200) return 0; /* 100 Continue and its like come before the answer */
    k->complete = true;
    k->keep = llhttp_should_keep_alive(p);
    return HPE_PAUSED;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* A failed write does not end the call: the server may have answered before it closed, and
 * reading shows which. */
static void on_written(uv_write_t *w, int status)
{
    struct lt_conn *k = w->data;

    k->writing = false;
    if (status)
        k->keep = false;
    else if (k->answered || !k->used)
        cn_buf_fini(&k->out);
}

/* Reports a request that could not be sent: from the loop, never from within its start. */
static void on_no_connection(uv_timer_t *t)
{
    conn_lost(t->data, LT_END_CONNECT, UV_ECONNABORTED);
}

static void send_out(struct lt_conn *k)
{
    uv_buf_t b = uv_buf_init(k->out.data, (unsigned)k->out.len);

    k->writing = true;
    if (uv_write(&k->write, (uv_stream_t *)&k->tcp, &b, 1, on_written)) {
        k->writing = false;
        uv_timer_start(&k->pace, on_no_connection, 0, 0);
        return;
    }
    read_more(k);
}

static void on_connected(uv_connect_t *r, int status)
{
    struct lt_conn *k = r->data;

    if (k->closing) return;
    if (status) {
        conn_lost(k, LT_END_CONNECT, status);
        return;
    }
    k->connected = true;
    k->client->addr = k->addr;
    k->client->proven = true;
    uv_tcp_nodelay(&k->tcp, 1);
    if (k->call) send_out(k);
}

/* Puts a call on a connection that has none. */
static void begin(struct lt_conn *k, struct lt_call *call)
{
    k->call = call;
    call->conn = k;
    call->status = 0;
    cn_buf_fini(&k->out);
    k->out = call->out;
    cn_buf_init(&call->out, 0);
    k->answered = k->complete = false;
    llhttp_init(&k->parser, HTTP_RESPONSE, &k->client->settings);
    k->parser.data = k;
    if (k->connected) {
        send_out(k);
        return;
    }
    if (call->read_rate_bytes) { /* else the system's buffers would do the reading */
        int size = SLOW_BUFFER;
        uv_recv_buffer_size((uv_handle_t *)&k->tcp, &size);
    }
    if (uv_tcp_connect(&k->connect, &k->tcp, (const struct sockaddr *)&k->client->addrs.v[k->addr],
                       on_connected))
        uv_timer_start(&k->pace, on_no_connection, 0, 0);
}

/* ---- the client ------------------------------------------------------------------------------ */

/* Ends the calls whose time is over: those at the head of the list, since all have the same. */
static void on_sweep(uv_timer_t *t)
{
    struct lt_client *c = t->data;
    uint64_t now = cn_now_ns();

    while (c->first && c->first->deadline_ns <= now) {
        struct lt_call *call = c->first;
        struct lt_conn *k = call->conn;

        if (k) {
            k->call = NULL;
            call->conn = NULL;
            conn_close(k);
        }
        end_call(call, c, now, k ? LT_END_TIMEOUT : LT_END_CONNECT,
                 k ? "no answer in time" : "no descriptor left");
    }
}

int lt_client_init(struct lt_client *c, uv_loop_t *loop, const struct lt_addrs *addrs,
                   uint64_t timeout_ns, bool keep_alive)
{
    memset(c, 0, sizeof *c);
    c->loop = loop;
    c->addrs = *addrs;
    c->timeout_ns = timeout_ns;
    c->keep_alive = keep_alive;
    llhttp_settings_init(&c->settings);
    c->settings.on_headers_complete = on_head;
    c->settings.on_body = on_body;
    c->settings.on_message_complete = on_complete;
    uv_timer_init(loop, &c->sweep);
    c->sweep.data = c;
    return uv_timer_start(&c->sweep, on_sweep, SWEEP_MS, SWEEP_MS) ? CN_EINTERNAL : CN_OK;
}

void lt_client_start(struct lt_client *c, struct lt_call *call)
{
    struct lt_conn *k = call->read_rate_bytes ? NULL : c->idle;
    uint64_t now = cn_now_ns();

    call->conn = NULL;
    call->deadline_ns = now + c->timeout_ns;
    if (k) {
        idle_remove(k);
        c->reused++;
    } else {
        k = conn_new(c, c->addr);
    }
    call_link(c, call, !k);
    if (k)
        begin(k, call);
    else
        call->deadline_ns = now; /* the next sweep says so */
}

void lt_client_cut(struct lt_client *c, struct lt_call *call)
{
    struct lt_conn *k = call->conn;

    if (k) {
        k->call = NULL;
        conn_close(k);
    }
    call->conn = NULL;
    call_unlink(c, call);
    cn_buf_fini(&call->out);
}

void lt_client_close(struct lt_client *c)
{
    while (c->conns) {
        struct lt_conn *k = c->conns;

        if (k->call) k->call->conn = NULL;
        k->call = NULL;
        conn_close(k);
    }
    c->first = c->last = NULL;
    if (!uv_is_closing((uv_handle_t *)&c->sweep)) uv_close((uv_handle_t *)&c->sweep, NULL);
}
