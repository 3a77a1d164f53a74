/* Streamed answers: server-sent events, heartbeats, slow readers. Loop thread only.
 * Frames go into the connection's buffer; it is sent once per turn of the loop. Invariant: a stream
 * ends with [DONE], or with one error event and no [DONE], or with the connection. */
#include "server/request.h"

#include <string.h>

static const char type[] = "text/event-stream; charset=utf-8";
static const char headers[] = "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n";

/* The scratch frame, begun with `data: ` and the chunk's prefix. */
static struct cn_buf *frame_begin(struct srv_req *q)
{
    struct cn_buf *b = &q->srv->frame;

    cn_buf_reset(b);
    cn_buf_puts(b, "data: ");
    cn_buf_append(b, q->prefix.data, q->prefix.len);
    return b;
}

static void frame_send(struct srv_req *q, struct cn_buf *b)
{
    if (b->failed) {
        srv_req_fail(q, &(struct cn_error){.code = CN_ENOMEM});
        return;
    }
    srv_conn_stream_data(q->conn, b->data, b->len);
    q->wrote_ns = cn_now_ns();
}

static void frame_end(struct srv_req *q, struct cn_buf *b)
{
    cn_buf_puts(b, q->call->include_usage ? "],\"usage\":null}\n\n" : "]}\n\n");
    frame_send(q, b);
}

static void comment(struct srv_req *q, const char *text)
{
    srv_conn_stream_data(q->conn, text, strlen(text));
    q->wrote_ns = cn_now_ns();
}

static void set_paused(struct srv_req *q, bool paused)
{
    if (q->paused == paused) return;
    q->paused = paused;
    q->paused_ns = cn_now_ns();
    for (size_t i = 0; i < q->n_subs; i++) {
        uint64_t id = (uint64_t)q->srv->slots[q->subs[i].slot].gen << 32 | q->subs[i].slot;
        if (q->subs[i].live) rt_pause(q->srv->rt, &q->srv->mail, id, paused);
    }
}

static void check_reader(struct srv_req *q)
{
    if (q->conn && srv_conn_unsent(q->conn) > q->srv->cfg->server.stream_buffer_bytes)
        set_paused(q, true);
}

void srv_sse_drained(struct srv_req *q)
{
    set_paused(q, false);
}

static void put_choice(struct srv_req *q, struct srv_choice *c, bool end)
{
    if (!c->started && q->conn) {
        c->started = true;
        struct cn_buf *b = frame_begin(q);
        srv_out_role(b, q, c);
        frame_end(q, b);
    }
    if (c->dirty && q->conn) {
        struct cn_buf *b = frame_begin(q);
        srv_out_delta(b, q, c);
        frame_end(q, b);
        srv_choice_reset(c);
    }
    if (end && q->conn) {
        struct cn_buf *b = frame_begin(q);
        srv_out_end(b, q, c);
        frame_end(q, b);
    }
    check_reader(q);
}

/* Until the head is out, choices collect: one prompt of several may be refused yet. */
void srv_sse_choice(struct srv_req *q, struct srv_choice *c, bool end)
{
    if (q->begun) put_choice(q, c, end);
}

void srv_sse_begin(struct srv_req *q)
{
    if (q->begun || !q->conn) return;
    q->begun = true;
    srv_conn_stream_begin(q->conn, type, headers);
    comment(q, ": accepted\n\n");
    for (size_t i = 0; i < q->n_choices && q->conn; i++)
        if (q->choices[i].dirty || q->choices[i].ended)
            put_choice(q, &q->choices[i], q->choices[i].ended);
}

void srv_sse_finish(struct srv_req *q)
{
    struct srv_conn *conn;

    srv_sse_begin(q);
    if (q->call->include_usage && q->conn) {
        struct cn_buf *b = frame_begin(q);
        cn_buf_puts(b, "],");
        srv_out_usage(b, q);
        cn_buf_puts(b, "}\n\n");
        frame_send(q, b);
    }
    if (!(conn = q->conn)) return;
    srv_conn_stream_data(conn, "data: [DONE]\n\n", 14);
    q->conn = NULL;
    conn->user = NULL;
    srv_conn_stream_end(conn, false);
}

void srv_sse_fail(struct srv_req *q, const struct cn_error *err)
{
    struct srv_conn *conn = q->conn;
    struct cn_buf b;

    cn_buf_init(&b, 0);
    cn_buf_puts(&b, "data: ");
    srv_error_json(&b, err);
    cn_buf_puts(&b, "\n\n");
    if (!b.failed) srv_conn_stream_data(conn, b.data, b.len);
    cn_buf_fini(&b);
    q->conn = NULL;
    conn->user = NULL;
    srv_conn_stream_end(conn, true);
}

void srv_sse_tick(struct srv_req *q, uint64_t now)
{
    const struct cfg *cfg = q->srv->cfg;

    /* A second early: the tick is coarse, and the promise is "at least every". */
    double beat =
        cfg->server.heartbeat_s > 2 ? cfg->server.heartbeat_s - 1 : cfg->server.heartbeat_s / 2;
    if (!q->begun) {
        /* While its model is loaded it may still be refused, with a status of its own. */
        uint64_t since = q->wait_ns ? q->wait_ns : q->submitted_ns;
        if (since && now > since + (q->wait_ns ? (uint64_t)(beat * 1e9) : 900000000u))
            srv_sse_begin(q);
        return;
    }
    if (q->paused) {
        if (srv_conn_unsent(q->conn) <= cfg->server.stream_buffer_bytes / 2) {
            set_paused(q, false);
        } else if ((double)(now - q->paused_ns) > cfg->server.slow_reader_timeout_s * 1e9) {
            struct srv_conn *conn = q->conn;
            srv_req_gone(q);
            srv_conn_abort(conn);
        }
        return;
    }
    if (now > q->wrote_ns && (double)(now - q->wrote_ns) > beat * 1e9) comment(q, ": waiting\n\n");
}
