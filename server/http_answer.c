/* Answers: heads, bodies, streamed data, errors in OpenAI's envelope. Loop thread only.
 * Invariant: between srv_conn_answer/_error or _stream_begin and the return to the pump, nothing
 * else is written for that request. */
#include "server/http.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static const char *reason_of(int status)
{
    static const struct {
        int status;
        const char *text;
    } all[] = {
        {200, "OK"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {402, "Payment Required"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {499, "Client Closed Request"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(all); i++)
        if (all[i].status == status) return all[i].text;
    return "Error";
}

static const char *http_date(struct srv_http *h)
{
    int64_t now = cn_wall_s();

    if (now != h->date_s) {
        time_t t = (time_t)now;
        struct tm tm;
        gmtime_r(&t, &tm);
        /* Not strftime's names: those follow the locale. */
        static const char days[] = "SunMonTueWedThuFriSat";
        static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
        snprintf(h->date, sizeof h->date, "%.3s, %02u %.3s %04u %02u:%02u:%02u GMT",
                 days + 3 * (tm.tm_wday % 7), (unsigned)tm.tm_mday % 100,
                 months + 3 * (tm.tm_mon % 12), (unsigned)(tm.tm_year + 1900) % 10000,
                 (unsigned)tm.tm_hour % 100, (unsigned)tm.tm_min % 100, (unsigned)tm.tm_sec % 100);
        h->date_s = now;
    }
    return h->date;
}

void srv_conn_append(struct srv_conn *c, const void *p, size_t n)
{
    struct cn_buf *out = &c->stream->out;
    size_t before = out->len;

    if (n) cn_buf_append(out, p, n);
    c->appended += out->len - before;
    if (c->tally) *c->tally += out->len - before;
    c->stream->ops->flush(c->stream); /* a failed buffer is found there */
}

/* The head up to, and without, the empty line's content length or transfer coding. */
static void put_head(struct srv_conn *c, int status, const char *type, const char *framing,
                     bool close, const char *extra)
{
    struct cn_buf *out = &c->stream->out;
    size_t before = out->len;

    if (status >= 400 && c->http->metrics) cn_metric_add(c->http->metrics, CN_M_http_errors, 1);
    if (c->http->handler->on_answer) c->http->handler->on_answer(c->http->ctx, c, status);
    cn_buf_printf(out, "HTTP/1.1 %d %s\r\nServer: conifer\r\nDate: %s\r\n", status,
                  reason_of(status), http_date(c->http));
    if (type) cn_buf_printf(out, "Content-Type: %s\r\n", type);
    cn_buf_puts(out, framing);
    if (c->head && c->head->request_id[0])
        cn_buf_printf(out, "X-Request-Id: %s\r\n", c->head->request_id);
    if (close)
        cn_buf_puts(out, "Connection: close\r\n");
    else if (c->http10)
        cn_buf_puts(out, "Connection: keep-alive\r\n");
    if (extra) cn_buf_puts(out, extra);
    cn_buf_puts(out, "\r\n");
    c->appended += out->len - before;
}

static bool closes(const struct srv_conn *c)
{
    return !c->keep_alive || c->overrun || c->http->draining;
}

void srv_conn_answer(struct srv_conn *c, int status, const char *type, const void *body, size_t n,
                     const char *extra)
{
    char framing[64];

    snprintf(framing, sizeof framing, "Content-Length: %zu\r\n", n);
    put_head(c, status, type, framing, closes(c), extra);
    srv_conn_append(c, body, c->head_only ? 0 : n);
    srv_conn_done(c, false);
}

void srv_error_json(struct cn_buf *b, const struct cn_error *err)
{
    const struct cn_err_info *info = cn_err_info(err->code);
    const char *message = err->message[0] ? err->message : info->text;

    cn_buf_puts(b, "{\"error\":{\"message\":");
    cn_buf_json_str(b, message, strlen(message));
    cn_buf_printf(b, ",\"type\":\"%s\",\"param\":", info->type);
    if (err->param[0])
        cn_buf_json_str(b, err->param, strlen(err->param));
    else
        cn_buf_puts(b, "null");
    cn_buf_printf(b, ",\"code\":\"%s\"}}", info->slug);
}

/* Each code of 429 and 503 has a series of its own. */
static void count_refused(struct cn_metrics *m, int code)
{
    if (code == CN_ERATE) cn_metric_add(m, CN_M_http_rate_limited, 1);
    if (code == CN_EQUEUE) cn_metric_add(m, CN_M_http_queue_full, 1);
    if (code == CN_ENOTREADY) cn_metric_add(m, CN_M_http_not_ready, 1);
    if (code == CN_EDRAIN) cn_metric_add(m, CN_M_http_shutting_down, 1);
    if (code == CN_EPLACES) cn_metric_add(m, CN_M_http_no_place, 1);
    if (code == CN_EFAILURES) cn_metric_add(m, CN_M_http_failed_keys, 1);
    if (code == CN_ENOMEM) cn_metric_add(m, CN_M_http_out_of_memory, 1);
    if (code == CN_EHELD) cn_metric_add(m, CN_M_http_memory_in_use, 1);
    if (code == CN_EFULL) cn_metric_add(m, CN_M_http_memory_full, 1);
    if (code == CN_EDEVICE) cn_metric_add(m, CN_M_http_device_lost, 1);
}

void srv_conn_error(struct srv_conn *c, const struct cn_error *err, const char *extra)
{
    int status = cn_err_info(err->code)->status;
    const struct srv_http *h = c->http;
    struct cn_buf b;
    char more[256], retry[40] = "";

    if (status == 429 || status == 503)
        snprintf(retry, sizeof retry, "Retry-After: %u\r\n",
                 c->retry_s                  ? c->retry_s
                 : h->handler->retry_after_s ? h->handler->retry_after_s(h->ctx)
                                             : 1);
    snprintf(more, sizeof more, "%s%s%s", extra ? extra : "",
             status == 401 ? "WWW-Authenticate: Bearer\r\n" : "", retry);
    if (h->metrics) count_refused(h->metrics, err->code);
    cn_buf_init(&b, 0);
    srv_error_json(&b, err);
    srv_conn_answer(c, status, "application/json", b.data, b.len, more);
    cn_buf_fini(&b);
}

void srv_conn_refuse(struct srv_conn *c)
{
    const struct srv_http *h = c->http;
    struct cn_error err = c->head->err; /* the head goes with the answer */

    srv_text_drop(c->http->pool, c->lane, &c->body);
    if (h->handler->on_refused) h->handler->on_refused(h->ctx, c, &err);
    srv_conn_error(c, &err, c->extra);
}

void srv_conn_stream_begin(struct srv_conn *c, const char *type, const char *extra)
{
    c->answer = c->http10 ? SRV_ANSWER_RAW : SRV_ANSWER_CHUNKED;
    if (c->http10) c->keep_alive = false;
    put_head(c, 200, type, c->http10 ? "" : "Transfer-Encoding: chunked\r\n", closes(c), extra);
    srv_conn_drop_head(c);
    c->stream->ops->flush(c->stream);
}

int srv_conn_room(struct srv_conn *c, size_t n)
{
    struct cn_buf *out = &c->stream->out;
    bool failed = out->failed;
    int rc = cn_buf_reserve(out, n + 32);

    if (rc && !failed) { /* it is as it was: an error may follow */
        out->failed = false;
        out->code = 0;
    }
    return rc;
}

void srv_conn_stream_data(struct srv_conn *c, const void *data, size_t n)
{
    char size[24];

    if (n == 0) return;
    if (c->answer != SRV_ANSWER_CHUNKED) {
        srv_conn_append(c, data, n);
        return;
    }
    int k = snprintf(size, sizeof size, "%zx\r\n", n);
    srv_conn_append(c, size, (size_t)k);
    srv_conn_append(c, data, n);
    srv_conn_append(c, "\r\n", 2);
}

void srv_conn_stream_end(struct srv_conn *c, bool close)
{
    if (c->answer == SRV_ANSWER_CHUNKED) srv_conn_append(c, "0\r\n\r\n", 5);
    srv_conn_done(c, close);
}

size_t srv_conn_unsent(const struct srv_conn *c)
{
    return c->stream->ops->unsent(c->stream);
}
