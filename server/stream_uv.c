/* Byte streams over libuv: TCP and Unix sockets. Loop thread only.
 * Output: `out` collects, `sending` is what goes to the kernel. Streams with something to send
 * stand on the server's list `dirty`, which a prepare handle empties before the loop sleeps: a
 * slice a stream and round, as long as the turn has time. What the kernel does not take at once
 * waits for a uv_write of a little, at most one in flight; its end says that there is room
 * again. */
#include "server/stream.h"

#include "server/internal.h"
#include "server/listen.h"

#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Memory of idle connections counts: buffers above this are given back when empty. */
#define KEEP_BUFFER 4096
#define SLICE       65536
/* libuv writes this while it polls, for as many streams as have room: it is little. */
#define FIRST_OF_REST 4096

struct uv_conn {
    struct srv_stream base;
    union srv_uv_socket u;
    uv_write_t write;
    uv_shutdown_t shut;
    struct srv *srv;
    struct cn_buf sending;
    size_t sent;   /* of sending */
    size_t flying; /* of sending, with the write in flight */
    struct uv_conn *next_dirty;
    bool dirty, writing, want_shutdown, closing, failed;
};

static struct uv_conn *conn_of(struct srv_stream *s)
{
    return CN_CONTAINER(s, struct uv_conn, base);
}

static void fail(struct uv_conn *c)
{
    if (c->closing || c->failed) return;
    c->failed = true;
    c->base.events->on_fail(c->base.owner);
}

/* A failure means that the peer is gone, which reading reports as well. */
static void on_shutdown(uv_shutdown_t *req, int status)
{
}

static void start_shutdown(struct uv_conn *c)
{
    c->want_shutdown = false;
    uv_shutdown(&c->shut, &c->u.stream, on_shutdown);
}

static void op_flush(struct srv_stream *st);

static void on_write(uv_write_t *req, int status)
{
    struct uv_conn *c = req->data;

    c->writing = false;
    if (c->closing) return;
    if (status < 0) {
        fail(c);
        return;
    }
    c->sent += c->flying;
    op_flush(&c->base);
}

static void wait_for_room(struct uv_conn *c)
{
    size_t left = c->sending.len - c->sent;
    uv_buf_t b = uv_buf_init(c->sending.data + c->sent, CN_MIN(left, (size_t)FIRST_OF_REST));

    c->write.data = c;
    c->flying = b.len;
    c->writing = true;
    if (uv_write(&c->write, &c->u.stream, &b, 1, on_write) >= 0) return;
    c->writing = false;
    fail(c);
}

static bool has_unsent(const struct uv_conn *c)
{
    return c->base.out.len || c->sent < c->sending.len;
}

/* The next to go is what is in out. */
static void take_out(struct uv_conn *c)
{
    cn_buf_reset(&c->sending);
    c->sent = 0;
    if (c->sending.cap > KEEP_BUFFER) cn_buf_fini(&c->sending);
    if (!c->base.out.len) return;
    struct cn_buf t = c->sending;
    c->sending = c->base.out;
    c->base.out = t;
    if (cn_buf_rebill(&c->base.out, c->base.account)) { /* what was kept of it */
        cn_buf_fini(&c->base.out);
        cn_buf_rebill(&c->base.out, c->base.account);
    }
}

/* Writes as much of a slice as the kernel takes. */
static void push(struct uv_conn *c)
{
    if (c->closing || c->writing || c->failed) return;
    if (c->base.out.failed) { /* out of memory: bytes are missing, nothing may follow */
        fail(c);
        return;
    }
    if (c->sent == c->sending.len) take_out(c);
    size_t left = c->sending.len - c->sent;
    if (left) {
        uv_buf_t b = uv_buf_init(c->sending.data + c->sent, CN_MIN(left, (size_t)SLICE));
        int n = uv_try_write(&c->u.stream, &b, 1);
        if (n < 0 && n != UV_EAGAIN) {
            fail(c);
            return;
        }
        c->sent += n > 0 ? (size_t)n : 0;
        if (n < (int)b.len) {
            wait_for_room(c);
            return;
        }
        if (c->sent == c->sending.len) take_out(c);
    }
    if (has_unsent(c))
        op_flush(&c->base);
    else if (c->want_shutdown)
        start_shutdown(c);
}

static void undirty(struct uv_conn *c)
{
    struct uv_conn **p = &c->srv->dirty;

    while (*p != c)
        p = &(*p)->next_dirty;
    *p = c->next_dirty;
    if (!*p) c->srv->dirty_tail = p;
    c->dirty = false;
}

bool srv_streams_flush(struct srv *s)
{
    while (s->dirty && !srv_turn_over(&s->turn)) {
        struct uv_conn *c = s->dirty;
        undirty(c);
        bool had = has_unsent(c) || c->flying;
        push(c);
        if (c->failed || c->closing || has_unsent(c)) continue;
        c->flying = 0;
        if (had) c->base.events->on_sent(c->base.owner);
    }
    return s->dirty != NULL;
}

static void op_flush(struct srv_stream *st)
{
    struct uv_conn *c = conn_of(st);

    if (c->dirty || c->closing) return;
    c->dirty = true;
    c->next_dirty = NULL;
    *c->srv->dirty_tail = c;
    c->srv->dirty_tail = &c->next_dirty;
}

/* One buffer for all: every owner takes what it was given before the next read. No buffer when the
 * turn is over: libuv then asks again in the next one. */
static void on_alloc(uv_handle_t *h, size_t hint, uv_buf_t *b)
{
    struct uv_conn *c = h->data;
    if (srv_turn_over(&c->srv->turn)) {
        *b = uv_buf_init(NULL, 0);
        return;
    }
    *b = uv_buf_init(c->srv->read_buf, sizeof c->srv->read_buf);
}

static void on_read(uv_stream_t *h, ssize_t n, const uv_buf_t *b)
{
    struct uv_conn *c = h->data;

    if (c->closing || n == 0 || n == UV_ENOBUFS) return;
    if (n > 0) {
        c->base.events->on_read(c->base.owner, b->base, (size_t)n);
    } else if (n == UV_EOF) {
        uv_read_stop(&c->u.stream);
        c->base.events->on_eof(c->base.owner);
    } else {
        uv_read_stop(&c->u.stream);
        fail(c);
    }
}

static void op_read(struct srv_stream *st, bool on)
{
    struct uv_conn *c = conn_of(st);

    if (c->closing) return;
    if (!on) {
        uv_read_stop(&c->u.stream);
        return;
    }
    int rc = uv_read_start(&c->u.stream, on_alloc, on_read);
    if (rc < 0 && rc != UV_EALREADY) fail(c);
}

static void op_shutdown(struct srv_stream *st)
{
    struct uv_conn *c = conn_of(st);

    if (c->closing) return;
    c->want_shutdown = true;
    op_flush(st);
}

static void on_closed(uv_handle_t *h)
{
    struct uv_conn *c = h->data;

    c->base.events->on_closed(c->base.owner);
    cn_buf_fini(&c->base.out);
    cn_buf_fini(&c->sending);
    free(c);
}

static void op_close(struct srv_stream *st, bool reset)
{
    struct uv_conn *c = conn_of(st);

    if (c->closing) return;
    if (c->dirty) undirty(c);
    c->closing = true;
    if (reset && c->u.handle.type == UV_TCP) {
        struct linger now = {1, 0};
        uv_os_fd_t fd;
        if (uv_fileno(&c->u.handle, &fd) == 0)
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    }
    uv_close(&c->u.handle, on_closed);
}

static size_t op_unsent(const struct srv_stream *st)
{
    const struct uv_conn *c = CN_CONTAINER(st, struct uv_conn, base);
    return st->out.len + c->sending.len - c->sent;
}

static struct srv_peer peer_of(const struct uv_conn *c)
{
    struct sockaddr_storage sa = {.ss_family = AF_UNSPEC};
    int len = sizeof sa;

    if (c->base.local) return (struct srv_peer){.kind = SRV_PEER_UNIX};
    if (uv_tcp_getpeername(&c->u.tcp, (struct sockaddr *)&sa, &len)) sa.ss_family = AF_UNSPEC;
    return srv_peer_of((struct sockaddr *)&sa);
}

static const struct srv_stream_ops uv_ops = {op_flush, op_read, op_shutdown, op_close, op_unsent};

/* A peer that vanished without a word is noticed within 30 s, sending or not. */
static void tune_tcp(uv_tcp_t *t)
{
    uv_os_fd_t fd;

    uv_tcp_nodelay(t, 1);
    uv_tcp_keepalive(t, 1, 15);
    if (uv_fileno((uv_handle_t *)t, &fd)) return;
#ifdef TCP_USER_TIMEOUT
    unsigned ms = 30000;
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
#endif
#ifdef TCP_NOTSENT_LOWAT
    /* The kernel would take megabytes for a reader that does not read. */
    int unsent = 131072;
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
#endif
#ifdef TCP_KEEPINTVL
    int interval = 5, count = 3;
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
#endif
}

static void free_unaccepted(uv_handle_t *h)
{
    free(h->data);
}

struct srv_stream *srv_stream_accept(struct srv *s, struct srv_listener *from)
{
    struct uv_conn *c = cn_calloc(1, sizeof *c);

    if (!c) return NULL;
    int rc = from->local ? uv_pipe_init(&s->loop, &c->u.pipe, 0) : uv_tcp_init(&s->loop, &c->u.tcp);
    if (rc < 0) {
        free(c);
        return NULL;
    }
    c->u.handle.data = c;
    if (uv_accept(&from->u.stream, &c->u.stream) < 0) {
        uv_close(&c->u.handle, free_unaccepted);
        return NULL;
    }
    if (!from->local) tune_tcp(&c->u.tcp);
    c->srv = s;
    c->base.ops = &uv_ops;
    c->base.local = from->local;
    c->base.peer = peer_of(c);
    cn_buf_init(&c->base.out, 0);
    cn_buf_init(&c->sending, 0);
    c->sending.included = SRV_OUT_INCLUDED;
    return &c->base;
}
