/* Streamed answers: server-sent events, heartbeats, slow readers. Loop thread only.
 * Events leave what they bring with the choices; chunks are written from there into the
 * connection's buffer, requests by turns, as long as the turn lasts and the reader keeps up.
 * Invariant: a stream ends with [DONE], or with one error event and no [DONE], or with the
 * connection. */
#include "server/request.h"

#include <string.h>

static const char type[] = "text/event-stream; charset=utf-8";
static const char headers[] = "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n";

/* ---- who has something to send --------------------------------------------------------------- */

static void enqueue(struct srv_req *q)
{
    struct srv *s = q->srv;

    if (q->sending || !srv_req_streams(q) || !q->conn) return;
    q->sending = true;
    q->next_sending = NULL;
    *s->sending_tail = q;
    s->sending_tail = &q->next_sending;
}

void srv_sse_forget(struct srv_req *q)
{
    struct srv *s = q->srv;
    struct srv_req **p = &s->sending;

    if (!q->sending) return;
    while (*p != q)
        p = &(*p)->next_sending;
    *p = q->next_sending;
    if (!*p) s->sending_tail = p;
    q->sending = false;
}

static void choice_push(struct srv_req *q, struct srv_choice *c)
{
    if (!q->waiting) q->waiting_tail = &q->waiting;
    c->queued = true;
    c->next = NULL;
    *q->waiting_tail = c;
    q->waiting_tail = &c->next;
}

static struct srv_choice *choice_pop(struct srv_req *q)
{
    struct srv_choice *c = q->waiting;

    q->waiting = c->next;
    c->queued = false;
    return c;
}

/* ---- frames ---------------------------------------------------------------------------------- */

/* The scratch frame, begun with `data: ` and the chunk's prefix. */
static struct cn_buf *frame_begin(struct srv_req *q)
{
    struct cn_buf *b = &q->srv->frame;

    cn_buf_reset(b);
    cn_buf_puts(b, "data: ");
    cn_buf_append(b, q->prefix.data, q->prefix.len);
    return b;
}

/* What the connection's buffer cannot take is not sent in part: the stream ends with the reason. */
static void frame_send(struct srv_req *q, struct cn_buf *b)
{
    int rc = cn_buf_code(b);

    if (!rc) rc = srv_conn_room(q->conn, b->len);
    if (rc) {
        srv_req_fail(q, &(struct cn_error){.code = rc});
        return;
    }
    srv_conn_stream_data(q->conn, b->data, b->len);
    q->kept -= CN_MIN(q->kept, (uint64_t)b->len);
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

static bool behind(const struct srv_req *q)
{
    return srv_conn_unsent(q->conn) > q->srv->cfg->server.stream_buffer_bytes;
}

/* The engine waits for a reader who is behind, and for what is not written yet. */
static void check_pace(struct srv_req *q)
{
    uint64_t most = q->srv->cfg->server.stream_buffer_bytes;

    if (!q->waiting) q->kept = 0;
    if (behind(q) || q->kept > most)
        set_paused(q, true);
    else if (srv_conn_unsent(q->conn) <= most / 2 && q->kept <= most / 2)
        set_paused(q, false);
}

static bool has_more(const struct srv_req *q, const struct srv_choice *c)
{
    return !c->started || srv_out_more(q, c) || (c->ended && !c->last);
}

/* One chunk of a choice that has more. */
static void put_choice(struct srv_req *q, struct srv_choice *c)
{
    struct cn_buf *b = frame_begin(q);

    if (!c->started) {
        srv_out_role(b, q, c);
    } else if (srv_out_more(q, c)) {
        srv_out_delta(b, q, c);
    } else {
        c->last = true;
        srv_out_end(b, q, c);
    }
    frame_end(q, b);
}

static void finish(struct srv_req *q)
{
    struct srv_conn *conn;

    if (q->call->include_usage) {
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

#define CHUNKS_IN_TURN 8 /* of one request; then others have theirs */

/* Some chunks of a request, its choices by turns. The record may be gone afterwards. */
static void send_some(struct srv_req *q)
{
    for (int i = 0; i < CHUNKS_IN_TURN && q->conn && q->waiting && !behind(q); i++) {
        struct srv_choice *c = choice_pop(q);
        put_choice(q, c);
        if (q->conn && has_more(q, c)) choice_push(q, c);
    }
    if (q->conn && !q->waiting && q->sent == SRV_SENT_ALL_IN) finish(q);
    if (!q->conn) {
        srv_req_release(q);
        return;
    }
    check_pace(q);
    if (q->waiting && !behind(q)) enqueue(q); /* else when its reader has taken what there is */
}

bool srv_sse_work(struct srv *s)
{
    while (s->sending && !srv_turn_over(&s->turn)) {
        struct srv_req *q = s->sending;
        srv_sse_forget(q);
        send_some(q);
    }
    return s->sending != NULL;
}

/* ---- what happens ---------------------------------------------------------------------------- */

void srv_sse_drained(struct srv_req *q)
{
    check_pace(q);
    if (q->waiting || q->sent == SRV_SENT_ALL_IN) enqueue(q);
}

/* Until the head is out, choices collect: one prompt of several may be refused yet. */
void srv_sse_choice(struct srv_req *q, struct srv_choice *c)
{
    if (!c->queued && has_more(q, c)) choice_push(q, c);
    if (q->kept > q->srv->cfg->server.stream_buffer_bytes) set_paused(q, true);
    if (q->waiting) enqueue(q);
}

void srv_sse_begin(struct srv_req *q)
{
    if (q->sent || !q->conn) return;
    q->sent = SRV_SENT_EVENTS;
    srv_conn_stream_begin(q->conn, type, headers);
    comment(q, ": accepted\n\n");
    if (q->waiting) enqueue(q);
}

void srv_sse_finish(struct srv_req *q)
{
    srv_sse_begin(q);
    if (q->sent) q->sent = SRV_SENT_ALL_IN;
    enqueue(q);
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
    srv_sse_forget(q);
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
    if (!srv_req_streams(q)) {
        /* While its model is loaded it may still be refused, with a status of its own. */
        uint64_t since = q->wait_ns ? q->wait_ns : q->submitted_ns;
        if (since && now > since + (q->wait_ns ? (uint64_t)(beat * 1e9) : 900000000u))
            srv_sse_begin(q);
        return;
    }
    if (q->paused) {
        if (srv_conn_unsent(q->conn) <= cfg->server.stream_buffer_bytes / 2) {
            check_pace(q);
            if (q->waiting) enqueue(q);
        } else if ((double)(now - q->paused_ns) > cfg->server.slow_reader_timeout_s * 1e9) {
            struct srv_conn *conn = q->conn;
            srv_req_gone(q);
            srv_conn_abort(conn);
        }
        return;
    }
    if (now > q->wrote_ns && (double)(now - q->wrote_ns) > beat * 1e9) comment(q, ": waiting\n\n");
}
