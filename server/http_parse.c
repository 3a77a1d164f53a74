/* The parser's callbacks: a request's head and body as they come, within their bounds. Loop thread
 * only. A callback that fails has put the reason into the head's err; http.c answers it. */
#include "server/http.h"

#include <string.h>

static struct srv_conn *conn_of(llhttp_t *p)
{
    return p->data;
}

static struct cn_error *why(const struct srv_conn *c)
{
    return &c->head->err;
}

/* The reason of a buffer that could not grow. */
static int short_of(const struct srv_conn *c, int rc)
{
    return rc ? cn_fail(why(c), rc, "%s", cn_err_info(rc)->text) : 0;
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
    return short_of(c, cn_buf_append(&c->head->target, at, n));
}

static int header_part(struct srv_conn *c, struct cn_buf *to, const char *at, size_t n)
{
    struct srv_head *h = c->head;

    h->header_bytes += n;
    if (h->header_bytes > SRV_MAX_HEAD)
        return cn_fail(why(c), CN_EHEADERS, "the headers are longer than %d bytes", SRV_MAX_HEAD);
    if (h->trailers) return 0;
    return short_of(c, cn_buf_append(to, at, n));
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

/* A body of n bytes, whatever else its tenant holds. */
static bool never_fits(const struct srv_conn *c, uint64_t n)
{
    return c->hold.account && n > cn_account_most(c->hold.account);
}

static int too_long(const struct srv_conn *c)
{
    bool configured = c->body_max == c->http->limits.max_body;

    return cn_fail(why(c), CN_EBODY, "the body is longer than %zu bytes (%s)", c->body_max,
                   configured ? "server.max_body_bytes" : "the limit of this route");
}

static int check_body(struct srv_conn *c)
{
    const char *expect = srv_conn_header(c, SRV_H_expect);

    if (c->parser.content_length > c->body_max) return too_long(c);
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
    c->body_bytes = (size_t)CN_MIN(p->content_length, (uint64_t)SIZE_MAX);
    c->has_body = p->content_length > 0 || c->head->values[SRV_H_transfer_encoding];
    if (c->http->trust)
        c->client = srv_peer_client(c->http->trust, &c->stream->peer,
                                    srv_conn_header(c, SRV_H_forwarded_for));
    if (srv_head_check(c, why(c))) return why(c)->code;
    if (c->http->metrics) cn_metric_add(c->http->metrics, CN_M_http_requests, 1);

    int rc = c->http->handler->on_head(c->http->ctx, c, why(c));
    if (rc == 0) rc = check_body(c);
    if (rc == 0 && c->known) rc = srv_conn_rebill(c);
    cn_buf_rebill(&c->body, c->hold.account); /* it is empty */
    if (rc == 0 && never_fits(c, c->parser.content_length)) rc = CN_ETOOLARGE;
    if (rc && !why(c)->code) cn_fail(why(c), rc, "%s", cn_err_info(rc)->text);
    if (rc && c->has_body) return rc;
    if (rc) c->answer = SRV_ANSWER_REFUSAL;
    if (c->has_body && !c->http10 && srv_conn_header(c, SRV_H_expect))
        srv_conn_append(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    c->head->trailers = true;
    c->head->header_bytes = 0;
    c->head->n_headers = 0;
    srv_conn_phase(c, SRV_BODY);
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
    return n <= c->body_max - c->body.len ? 0 : too_long(c);
}

/* A chunk that says it is too long is not waited for. */
static int on_chunk_header(llhttp_t *p)
{
    return body_room(conn_of(p), p->content_length);
}

/* A buffer that doubles copies MiBs within a turn of the loop. Once some of a body has come, all of
 * it has its room or is refused: what was announced. In chunks it is what a body may have; where
 * there is less, it grows as it comes. */
static int reserve_ahead(struct srv_conn *c)
{
    size_t want = c->body_bytes;
    struct cn_buf *b = &c->body;

    if (!want && b->len >= SRV_BODY_AHEAD_CHUNKED) want = c->http->limits.max_body;
    if (b->len < SRV_BODY_AHEAD || want <= b->cap || want > c->http->limits.max_body) return 0;
    int rc = cn_buf_reserve(b, want - b->len);
    if (!rc || c->body_bytes) return rc;
    b->failed = false;
    b->code = 0;
    return 0;
}

static int on_body(llhttp_t *p, const char *at, size_t n)
{
    struct srv_conn *c = conn_of(p);

    if (body_room(c, n)) return why(c)->code;
    int rc = reserve_ahead(c);
    if (!rc) rc = cn_buf_append(&c->body, at, n);
    if (rc == CN_EHELD && never_fits(c, c->body.len + n)) rc = CN_ETOOLARGE;
    return short_of(c, rc);
}

static int on_message_complete(llhttp_t *p)
{
    srv_conn_phase(conn_of(p), SRV_HANDLING);
    return HPE_PAUSED;
}

const llhttp_settings_t srv_parse_settings = {
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
