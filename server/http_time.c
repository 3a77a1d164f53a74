/* Time-outs of connections: the tick closes or answers whatever took too long. Loop thread only. */
#include "server/http.h"

#define SLOW_BYTES_S 1024u        /* a client that reads less than this is cut off */
#define SLOW_LOG_NS  10000000000u /* between two log lines about such clients */

/* Whether the client reads too little of what waits for it. */
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
    bool slow = sent - c->stall_mark < CN_MAX(1, window / 1000000000u * SLOW_BYTES_S);
    c->stall_ns = now;
    c->stall_mark = sent;
    return slow;
}

static void conn_tick(struct srv_conn *c, uint64_t now)
{
    const struct srv_http_limits *l = &c->http->limits;
    uint64_t age = now > c->since_ns ? now - c->since_ns : 0;

    if (c->phase != SRV_CLOSED && stalled(c, now)) {
        c->http->slow_closed++;
        srv_conn_close(c, true);
        return;
    }
    switch (c->phase) {
    case SRV_IDLE:
        if (age > (c->served ? l->idle_ns : l->header_ns) && srv_conn_unsent(c) == 0)
            srv_conn_linger(c);
        break;
    case SRV_HEADING:
        if (age <= l->header_ns) break;
        if (c->started)
            srv_conn_break(c, CN_ETIMEOUT,
                           "the request's head took too long to arrive (server.header_timeout_s)");
        else
            srv_conn_linger(c);
        break;
    case SRV_BODY:
        if (l->body_ns && age > l->body_ns)
            srv_conn_break(c, CN_ETIMEOUT,
                           "the body took too long to arrive (server.body_timeout_s)");
        else if (l->body_min_rate && age > l->body_grace_ns &&
                 (double)c->raw_bytes < (double)l->body_min_rate * (double)age / 1e9)
            srv_conn_break(c, CN_ETIMEOUT, "the body arrives too slowly (server.body_min_rate)");
        break;
    case SRV_LINGER:
        if (srv_conn_unsent(c) == 0 &&
            (age > SRV_LINGER_MAX_NS || now > c->read_ns + SRV_LINGER_IDLE_NS))
            srv_conn_close(c, false);
        break;
    case SRV_HANDLING:
        if (c->input == SRV_IN_THROTTLED) c->stream->ops->read(c->stream, true);
        c->input = SRV_IN_READ;
        break;
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

static void log_slow(struct srv_http *h, uint64_t now)
{
    if (!h->slow_closed || (h->slow_told_ns && now - h->slow_told_ns < SLOW_LOG_NS)) return;
    cn_log(CN_LOG_WARN, "server",
           "connections closed because their clients read less than %u bytes a second: %llu "
           "(server.slow_reader_timeout_s)",
           SLOW_BYTES_S, (unsigned long long)h->slow_closed);
    h->slow_closed = 0;
    h->slow_told_ns = now;
}

void srv_http_tick(struct srv_http *h, uint64_t now)
{
    for (struct srv_conn *c = h->conns, *next; c; c = next) {
        next = c->next;
        conn_tick(c, now);
    }
    log_slow(h, now);
}
