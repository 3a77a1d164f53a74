/* HTTP over the stand-in stream: every decision on malformed input, limits, time-outs, pipelining,
 * closing. Each input is played whole and byte by byte and must be answered the same. */
#include "server/http.h"

#include "tests/server/fake_stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct world {
    struct srv_http http;
    struct cn_metrics metrics;
    struct fake_stream *stream;
    struct srv_conn *open; /* a request of /later or /stream */
    unsigned requests, gone, closed, sent;
    size_t body_len;
};

static int on_head(void *ctx, struct srv_conn *c, struct cn_error *err)
{
    size_t n;
    const char *path = srv_conn_path(c, &n);
    if (n == 7 && !memcmp(path, "/secret", n)) return cn_fail(err, CN_EAUTH, "no key");
    return 0;
}

static void on_request(void *ctx, struct srv_conn *c)
{
    struct world *w = ctx;
    size_t n;
    const char *path = srv_conn_path(c, &n);
    char text[64];

    w->requests++;
    w->body_len = c->body.len;
    if (n >= 6 && !memcmp(path, "/later", 6)) {
        w->open = c;
        c->user = w;
        return;
    }
    if (n == 7 && !memcmp(path, "/stream", 7)) {
        srv_conn_stream_begin(c, "text/plain", NULL);
        srv_conn_stream_data(c, "hello", 5);
        srv_conn_stream_data(c, "world!", 6);
        srv_conn_stream_end(c, false);
        return;
    }
    int k = snprintf(text, sizeof text, "%.*s:%zu", (int)CN_MIN(n, (size_t)32), path, c->body.len);
    srv_conn_answer(c, 200, "text/plain", text, (size_t)k, NULL);
}

static void on_gone(void *ctx, struct srv_conn *c)
{
    struct world *w = ctx;
    if (c->user) w->gone++;
    if (w->open == c) w->open = NULL;
}

static void on_sent(void *ctx, struct srv_conn *c)
{
    ((struct world *)ctx)->sent++;
}

static void on_closed(void *ctx)
{
    ((struct world *)ctx)->closed++;
}

static const struct srv_http_handler handler = {on_head, on_request, on_gone, on_sent, on_closed};

static void world_init(struct world *w)
{
    memset(w, 0, sizeof *w);
    srv_http_init(&w->http, &handler, w, &w->metrics);
    w->http.limits = (struct srv_http_limits){.max_body = 4096,
                                              .header_ns = 1000000000,
                                              .idle_ns = 2000000000,
                                              .write_ns = 1000000000,
                                              .body_grace_ns = 1000000000,
                                              .body_min_rate = 1024};
    w->stream = fake_new();
    assert_non_null(srv_conn_new(&w->http, &w->stream->base));
}

/* Everything is given back, whatever happened before. */
static void world_fini(struct world *w)
{
    srv_http_close_all(&w->http);
    fake_turn(w->stream);
    assert_true(w->stream->closed);
    assert_int_equal(w->closed, 1);
    assert_int_equal(w->http.n_conns, 0);
    assert_null(w->http.conns);
    assert_int_equal(w->http.body_held, 0);
    assert_int_equal((int)cn_metric_get(&w->metrics, CN_M_connections), 0);
    fake_free(w->stream);
}

static const char *sent(struct world *w)
{
    const char *s = cn_buf_cstr(&w->stream->sent);
    return s ? s : "";
}

/* "200 400 closed": the statuses answered, interim ones too, and whether the server ended it. */
static void outcome(struct world *w, char *out, size_t size)
{
    size_t at = 0;
    out[0] = 0;
    for (const char *all = sent(w), *p = all; (p = strstr(p, "HTTP/1.1 ")); p += 9) {
        if (p[9] < '1' || p[9] > '5') continue; /* the words in a message */
        at += (size_t)snprintf(out + at, size - at, "%s%.3s", at ? " " : "", p + 9);
    }
    if (w->stream->shut || w->stream->closing)
        snprintf(out + at, size - at, "%sclosed", at ? " " : "");
}

static void play(const char *input, size_t n, size_t piece, const char *want, const char *name)
{
    struct world w;
    char got[512];

    world_init(&w);
    for (size_t i = 0; i < n; i += piece) {
        fake_feed(w.stream, input + i, CN_MIN(piece, n - i));
        if (piece > 1 || i % 64 == 0) fake_turn(w.stream);
    }
    fake_turn(w.stream);
    outcome(&w, got, sizeof got);
    if (strcmp(got, want))
        fail_msg("%s (pieces of %zu): got \"%s\", want \"%s\"", name, piece, got, want);
    world_fini(&w);
}

static void check(const char *input, size_t n, const char *want, const char *name)
{
    play(input, n, n ? n : 1, want, name);
    play(input, n, 1, want, name);
    play(input, n, 7, want, name);
}

#define H "Host: a\r\n"
static const struct {
    const char *name, *input, *want;
} cases[] = {
    {"plain", "GET / HTTP/1.1\r\n" H "\r\n", "200"},
    {"close", "GET / HTTP/1.1\r\n" H "Connection: close\r\n\r\n", "200 closed"},
    {"1.0", "GET / HTTP/1.0\r\n\r\n", "200 closed"},
    {"1.0 keep-alive", "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.0\r\n\r\n",
     "200 200 closed"},
    {"pipelined", "GET /a HTTP/1.1\r\n" H "\r\nGET /b HTTP/1.1\r\n" H "\r\n", "200 200"},
    {"leading empty lines", "\r\n\r\nGET / HTTP/1.1\r\n" H "\r\n", "200"},
    {"get with body",
     "GET / HTTP/1.1\r\n" H "Content-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\n" H "\r\n", "200 200"},
    {"chunked",
     "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
     "GET / HTTP/1.1\r\n" H "\r\n",
     "200 200"},
    {"trailers are dropped",
     "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n0\r\nAuthorization: x\r\n"
     "Host: b\r\n\r\nGET / HTTP/1.1\r\n" H "\r\n",
     "200 200"},
    {"expect", "POST / HTTP/1.1\r\n" H "Expect: 100-continue\r\nContent-Length: 2\r\n\r\nab",
     "100 200"},
    {"other expectation", "POST / HTTP/1.1\r\n" H "Expect: 200-ok\r\nContent-Length: 2\r\n\r\nab",
     "417 closed"},
    {"no host", "GET / HTTP/1.1\r\n\r\n", "400 closed"},
    {"two hosts", "GET / HTTP/1.1\r\n" H H "\r\n", "400 closed"},
    {"empty host", "GET / HTTP/1.1\r\nHost: \r\n\r\n", "400 closed"},
    {"host with path", "GET / HTTP/1.1\r\nHost: a/?\r\n\r\n", "400 closed"},
    {"host with userinfo", "GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", "400 closed"},
    {"host with a bad port", "GET / HTTP/1.1\r\nHost: a:70000\r\n\r\n", "400 closed"},
    {"host v6", "GET / HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n", "200"},
    {"length with zeros", "POST / HTTP/1.1\r\n" H "Content-Length: 0001\r\n\r\na", "400 closed"},
    {"length twice", "POST / HTTP/1.1\r\n" H "Content-Length: 1\r\nContent-Length: 1\r\n\r\na",
     "400 closed"},
    {"length list", "POST / HTTP/1.1\r\n" H "Content-Length: 1, 1\r\n\r\na", "400 closed"},
    {"length negative", "POST / HTTP/1.1\r\n" H "Content-Length: -1\r\n\r\na", "400 closed"},
    {"length overflow", "POST / HTTP/1.1\r\n" H "Content-Length: 99999999999999999999\r\n\r\n",
     "400 closed"},
    {"length and chunked",
     "POST / HTTP/1.1\r\n" H "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
     "400 closed"},
    {"gzip, chunked", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
     "501 closed"},
    {"chunked, chunked",
     "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", "400 closed"},
    {"chunked in 1.0", "POST / HTTP/1.0\r\n" H "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
     "400 closed"},
    {"xchunked", "POST / HTTP/1.1\r\n" H "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
     "501 closed"},
    {"two authorizations",
     "GET / HTTP/1.1\r\n" H "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
     "400 closed"},
    {"other host in target", "GET http://b/ HTTP/1.1\r\n" H "\r\n", "400 closed"},
    {"same host in target", "GET http://A/x HTTP/1.1\r\n" H "\r\n", "200"},
    {"authority form", "CONNECT a:80 HTTP/1.1\r\n" H "\r\n", "400 closed"},
    {"backslash", "GET /a\\b HTTP/1.1\r\n" H "\r\n", "400 closed"},
    {"percent zero", "GET /a%00 HTTP/1.1\r\n" H "\r\n", "400 closed"},
    {"bad percent", "GET /a%zz HTTP/1.1\r\n" H "\r\n", "400 closed"},
    {"cut percent", "GET /a%4 HTTP/1.1\r\n" H "\r\n", "400 closed"},
    {"fragment", "GET /a#b HTTP/1.1\r\n" H "\r\n", "400 closed"},
    {"non-ascii target", "GET /\xc3\xa4 HTTP/1.1\r\n" H "\r\n", "400 closed"},
    {"folded header", "GET / HTTP/1.1\r\n" H "X: a\r\n b\r\n\r\n", "400 closed"},
    {"space before colon", "GET / HTTP/1.1\r\nHost : a\r\n\r\n", "400 closed"},
    {"bare line feed", "GET / HTTP/1.1\nHost: a\n\n", "400 closed"},
    {"bare return", "GET / HTTP/1.1\r\n" H "X: a\rb\r\n\r\n", "400 closed"},
    {"chunk size 0x1",
     "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n",
     "400 closed"},
    {"chunk overflow",
     "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
     "400 closed"},
    {"1.2", "GET / HTTP/1.2\r\n" H "\r\n", "400 closed"},
    {"0.9", "GET / HTTP/0.9\r\n" H "\r\n", "400 closed"},
    {"2.0", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400 closed"},
    {"garbage", "\x16\x03\x01\x02\x00\x01", "400 closed"},
    {"unknown method", "FOO / HTTP/1.1\r\n" H "\r\n", "400 closed"},
    {"upgrade is ignored",
     "GET / HTTP/1.1\r\n" H "Connection: Upgrade\r\nUpgrade: h2c\r\n\r\nGET / HTTP/1.1\r\n" H
     "\r\n",
     "200 200"},
    {"refused without body goes on", "GET /secret HTTP/1.1\r\n" H "\r\nGET / HTTP/1.1\r\n" H "\r\n",
     "401 200"},
    {"refused before the body", "POST /secret HTTP/1.1\r\n" H "Content-Length: 9\r\n\r\n",
     "401 closed"},
    {"body too long by length", "POST / HTTP/1.1\r\n" H "Content-Length: 4097\r\n\r\n",
     "413 closed"},
    {"streamed", "GET /stream HTTP/1.1\r\n" H "\r\nGET / HTTP/1.1\r\n" H "\r\n", "200 200"},
    {"streamed to 1.0", "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "200 closed"},
    {"head", "HEAD / HTTP/1.1\r\n" H "\r\nGET / HTTP/1.1\r\n" H "\r\n", "200 200"},
    {"more after close", "GET / HTTP/1.1\r\n" H "Connection: close\r\n\r\nGET / HTTP/1.1\r\n\r\n",
     "200 closed"},
};

static void test_cases(void **state)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++)
        check(cases[i].input, strlen(cases[i].input), cases[i].want, cases[i].name);
    static const char nul[] = "GET / HTTP/1.1\r\n" H "X: a\0b\r\n\r\n";
    check(nul, sizeof nul - 1, "400 closed", "nul in a header");
}

static void repeat(struct cn_buf *b, const char *s, size_t times)
{
    while (times--)
        cn_buf_puts(b, s);
}

static void test_limits(void **state)
{
    struct cn_buf b;
    char line[64];

    cn_buf_init(&b, 0);
    cn_buf_puts(&b, "GET /");
    repeat(&b, "a", 9000);
    cn_buf_puts(&b, " HTTP/1.1\r\n" H "\r\n");
    check(b.data, b.len, "414 closed", "long target");

    cn_buf_reset(&b);
    cn_buf_puts(&b, "GET / HTTP/1.1\r\n" H "X: ");
    repeat(&b, "a", 40000);
    cn_buf_puts(&b, "\r\n\r\n");
    check(b.data, b.len, "431 closed", "long header");

    cn_buf_reset(&b);
    cn_buf_puts(&b, "GET / HTTP/1.1\r\n" H);
    for (int i = 0; i < 101; i++)
        cn_buf_printf(&b, "X-%d: a\r\n", i);
    cn_buf_puts(&b, "\r\n");
    check(b.data, b.len, "431 closed", "many headers");

    cn_buf_reset(&b);
    repeat(&b, "\r\n", 20000);
    check(b.data, b.len, "431 closed", "only empty lines");

    cn_buf_reset(&b);
    cn_buf_puts(&b, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n1;");
    repeat(&b, "a", 5000);
    cn_buf_puts(&b, "\r\na\r\n0\r\n\r\n");
    check(b.data, b.len, "400 closed", "long chunk extension");

    cn_buf_reset(&b);
    cn_buf_puts(&b, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n");
    repeat(&b, "1\r\na\r\n", 4096);
    cn_buf_puts(&b, "0\r\n\r\n");
    check(b.data, b.len, "200", "as long as allowed, in chunks of one");
    b.len -= 5;
    repeat(&b, "1\r\na\r\n", 1);
    check(b.data, b.len, "413 closed", "one more");

    cn_buf_reset(&b);
    cn_buf_puts(&b, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n");
    repeat(&b, "0", 200000);
    check(b.data, b.len, "413 closed", "a chunk size of zeros without end");

    cn_buf_reset(&b);
    cn_buf_puts(&b, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n0\r\n");
    for (int i = 0; i < 101; i++) {
        snprintf(line, sizeof line, "X-%d: a\r\n", i);
        cn_buf_puts(&b, line);
    }
    cn_buf_puts(&b, "\r\n");
    check(b.data, b.len, "431 closed", "many trailers");
    cn_buf_fini(&b);
}

static const char later[] = "GET /later HTTP/1.1\r\n" H "\r\n";

static void test_order(void **state)
{
    struct world w;

    world_init(&w);
    fake_feed(w.stream, later, sizeof later - 1);
    const char *more = "GET /b HTTP/1.1\r\n" H "\r\nGET /c HTTP/1.1\r\n" H "\r\n";
    fake_feed(w.stream, more, strlen(more));
    fake_turn(w.stream);
    assert_int_equal(w.requests, 1);
    assert_int_equal(w.stream->sent.len, 0);
    srv_conn_answer(w.open, 200, "text/plain", "late", 4, NULL);
    fake_turn(w.stream);
    assert_int_equal(w.requests, 3);
    const char *a = strstr(sent(&w), "late"), *b = strstr(sent(&w), "/b:0"),
               *c = strstr(sent(&w), "/c:0");
    assert_true(a && b && c && a < b && b < c);
    world_fini(&w);
}

/* More than may wait is dropped, and the connection ends after the answer at hand. */
static void test_overrun(void **state)
{
    struct world w;
    char junk[4096];

    memset(junk, 'x', sizeof junk);
    world_init(&w);
    fake_feed(w.stream, later, sizeof later - 1);
    for (int i = 0; i < 40; i++)
        fake_feed(w.stream, junk, sizeof junk);
    assert_non_null(w.open);
    srv_conn_answer(w.open, 200, "text/plain", "late", 4, NULL);
    fake_turn(w.stream);
    assert_non_null(strstr(sent(&w), "Connection: close"));
    assert_true(w.stream->shut);
    assert_int_equal(w.requests, 1);
    world_fini(&w);
}

static void test_gone(void **state)
{
    static void (*const leave[])(struct fake_stream *) = {fake_eof, fake_fail};
    for (size_t i = 0; i < CN_ARRAY_LEN(leave); i++) {
        struct world w;
        world_init(&w);
        fake_feed(w.stream, later, sizeof later - 1);
        assert_non_null(w.open);
        leave[i](w.stream);
        assert_int_equal(w.gone, 1);
        fake_turn(w.stream);
        assert_true(w.stream->closed);
        world_fini(&w);
        assert_int_equal(w.gone, 1);
    }
}

/* An answer that is queued when the end of the stream comes is still sent. */
static void test_half_close_after_request(void **state)
{
    struct world w;
    const char *get = "GET / HTTP/1.1\r\n" H "\r\n";

    world_init(&w);
    fake_feed(w.stream, get, strlen(get));
    fake_eof(w.stream);
    fake_turn(w.stream);
    assert_non_null(strstr(sent(&w), "200 OK"));
    fake_turn(w.stream);
    assert_true(w.stream->closed);
    world_fini(&w);
}

static void test_cut_short(void **state)
{
    struct world w;
    const char *post = "POST / HTTP/1.1\r\n" H "Content-Length: 9\r\n\r\nabc";

    world_init(&w);
    fake_feed(w.stream, post, strlen(post));
    fake_eof(w.stream);
    fake_turn(w.stream);
    assert_non_null(strstr(sent(&w), "400 Bad Request"));
    assert_int_equal(w.requests, 0);
    fake_turn(w.stream);
    assert_true(w.stream->closed);
    world_fini(&w);
}

static void test_timeouts(void **state)
{
    struct world w;
    uint64_t s = 1000000000u;

    world_init(&w); /* half a head */
    fake_feed(w.stream, "GET / HT", 8);
    srv_http_tick(&w.http, cn_now_ns() + s / 2);
    assert_int_equal(w.stream->shut, false);
    srv_http_tick(&w.http, cn_now_ns() + 2 * s);
    fake_turn(w.stream);
    assert_non_null(strstr(sent(&w), "408"));
    world_fini(&w);

    world_init(&w); /* a slow body */
    const char *post = "POST / HTTP/1.1\r\n" H "Content-Length: 2000\r\n\r\nabc";
    fake_feed(w.stream, post, strlen(post));
    srv_http_tick(&w.http, cn_now_ns() + s / 2);
    assert_int_equal(w.stream->shut, false);
    srv_http_tick(&w.http, cn_now_ns() + 3 * s);
    fake_turn(w.stream);
    assert_non_null(strstr(sent(&w), "408"));
    assert_non_null(strstr(sent(&w), "request_timeout"));
    world_fini(&w);

    world_init(&w); /* idle: closed without a word */
    srv_http_tick(&w.http, cn_now_ns() + 3 * s);
    fake_turn(w.stream);
    assert_int_equal(w.stream->sent.len, 0);
    assert_true(w.stream->shut);
    srv_http_tick(&w.http, cn_now_ns() + 60 * s); /* and not waited for for ever */
    fake_turn(w.stream);
    assert_true(w.stream->closed);
    world_fini(&w);

    world_init(&w); /* an answer that is due has no deadline here */
    fake_feed(w.stream, later, sizeof later - 1);
    srv_http_tick(&w.http, cn_now_ns() + 1000 * s);
    assert_false(w.stream->closing);
    world_fini(&w);
}

static void test_slow_reader(void **state)
{
    struct world w;
    const char *get = "GET / HTTP/1.1\r\n" H "\r\n";
    uint64_t now = cn_now_ns();

    world_init(&w);
    w.stream->window = 0;
    fake_feed(w.stream, get, strlen(get));
    fake_turn(w.stream);
    srv_http_tick(&w.http, now + 1);
    srv_http_tick(&w.http, now + 500000000u);
    assert_false(w.stream->closing);
    srv_http_tick(&w.http, now + 1500000000u);
    assert_true(w.stream->closing && w.stream->reset);
    world_fini(&w);
}

static void test_drain(void **state)
{
    struct world w;

    world_init(&w);
    fake_feed(w.stream, later, sizeof later - 1);
    srv_http_drain(&w.http);
    assert_false(w.stream->shut);
    srv_conn_answer(w.open, 200, "text/plain", "x", 1, NULL);
    fake_turn(w.stream);
    assert_non_null(strstr(sent(&w), "Connection: close"));
    assert_true(w.stream->shut);
    world_fini(&w);

    world_init(&w);
    srv_http_drain(&w.http);
    assert_true(w.stream->shut);
    world_fini(&w);
}

/* One more connection of a world, which counts those that closed. */
static struct fake_stream *another(struct world *w, uint32_t tenant)
{
    struct fake_stream *f = fake_new();
    struct srv_conn *c = srv_conn_new(&w->http, &f->base);

    assert_non_null(c);
    c->tenant = tenant;
    return f;
}

static void leave(struct world *w, struct fake_stream *f)
{
    fake_eof(f);
    fake_turn(f);
    assert_true(f->closed);
    fake_free(f);
    w->closed--;
}

static void feed_many(struct fake_stream *f, char byte, size_t n)
{
    char data[4096];

    memset(data, byte, sizeof data);
    for (size_t k; n && !f->closing && !f->shut; n -= k) {
        k = CN_MIN(n, sizeof data);
        fake_feed(f, data, k);
        fake_turn(f);
    }
}

static const char long_post[] = "POST /later HTTP/1.1\r\n" H "Content-Length: 300000\r\n\r\n";

/* Only bytes that came count: announcing bodies keeps nobody out. */
static void test_bodies_announced(void **state)
{
    struct world w;
    struct fake_stream *others[16];

    world_init(&w);
    w.http.limits.max_body = 400000;
    w.http.body_held_max = 1000000;
    for (size_t i = 0; i < CN_ARRAY_LEN(others); i++) {
        others[i] = another(&w, 0);
        fake_feed(others[i], long_post, sizeof long_post - 1);
        assert_int_equal(w.http.body_held, 0);
    }
    fake_feed(w.stream, long_post, sizeof long_post - 1);
    feed_many(w.stream, 'x', 300000);
    assert_int_equal(w.requests, 1);
    assert_int_equal(w.http.body_held, 300000);
    for (size_t i = 0; i < CN_ARRAY_LEN(others); i++)
        leave(&w, others[i]);
    world_fini(&w);
}

/* A tenant gets at most as much as it leaves; small bodies and other tenants still have room, and
 * what an answer gives back can be taken again. */
static void test_bodies_together(void **state)
{
    struct world w;
    uint64_t held[2] = {0};
    const char *small = "POST / HTTP/1.1\r\n" H "Content-Length: 65536\r\n\r\n";

    world_init(&w);
    w.http.limits.max_body = 400000;
    w.http.body_held_max = 1000000;
    w.http.tenant_held = held;
    fake_feed(w.stream, long_post, sizeof long_post - 1);
    feed_many(w.stream, 'x', 300000);
    assert_int_equal(w.requests, 1);

    struct fake_stream *same = another(&w, 0), *little = another(&w, 0), *other = another(&w, 1);
    fake_feed(same, long_post, sizeof long_post - 1);
    feed_many(same, 'x', 300000);
    assert_non_null(strstr(cn_buf_cstr(&same->sent), "503"));
    assert_non_null(strstr(cn_buf_cstr(&same->sent), "Retry-After: 1\r\n"));
    assert_int_equal(held[0], 300000);

    fake_feed(little, small, strlen(small));
    feed_many(little, 'x', 65536);
    assert_non_null(strstr(cn_buf_cstr(&little->sent), "200 OK"));

    fake_feed(other, long_post, sizeof long_post - 1);
    feed_many(other, 'x', 300000);
    assert_int_equal(w.requests, 3);
    assert_int_equal(held[1], 300000);
    assert_int_equal(w.http.body_held, 600000);

    leave(&w, same);
    leave(&w, little);
    leave(&w, other);
    assert_int_equal(held[1], 0);
    assert_int_equal(w.http.body_held, 300000);
    world_fini(&w);
    assert_int_equal(held[0], 0);
}

/* A body whose owner took over its charge counts until it is given back, whoever closes. */
static void test_bodies_taken_over(void **state)
{
    struct world w;
    uint64_t held[1] = {0};

    world_init(&w);
    w.http.limits.max_body = 400000;
    w.http.tenant_held = held;
    fake_feed(w.stream, long_post, sizeof long_post - 1);
    feed_many(w.stream, 'x', 300000);
    assert_int_equal(srv_body_take(w.open), 300000);
    assert_int_equal(srv_body_take(w.open), 0);
    srv_conn_answer(w.open, 200, "text/plain", "x", 1, NULL);
    assert_int_equal(held[0], 300000);
    srv_body_give(&w.http, 0, 300000);
    assert_int_equal(held[0], 0);
    world_fini(&w);
}

static void test_bodies_of_answers(void **state)
{
    struct world w;
    const char *head = "HEAD /x HTTP/1.1\r\n" H "\r\n", *st = "GET /stream HTTP/1.1\r\n" H "\r\n",
               *old = "GET /stream HTTP/1.0\r\n\r\n";

    world_init(&w);
    fake_feed(w.stream, head, strlen(head));
    fake_turn(w.stream);
    assert_non_null(strstr(sent(&w), "Content-Length: 4\r\n"));
    assert_null(strstr(sent(&w), "/x:0"));
    fake_feed(w.stream, st, strlen(st));
    fake_turn(w.stream);
    assert_non_null(strstr(sent(&w), "\r\n\r\n5\r\nhello\r\n6\r\nworld!\r\n0\r\n\r\n"));
    world_fini(&w);

    world_init(&w);
    fake_feed(w.stream, old, strlen(old));
    fake_turn(w.stream);
    assert_null(strstr(sent(&w), "chunked"));
    assert_non_null(strstr(sent(&w), "\r\n\r\nhelloworld!"));
    assert_true(w.stream->shut);
    world_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_overrun),
        cmocka_unit_test(test_gone),
        cmocka_unit_test(test_half_close_after_request),
        cmocka_unit_test(test_cut_short),
        cmocka_unit_test(test_timeouts),
        cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_bodies_announced),
        cmocka_unit_test(test_bodies_together),
        cmocka_unit_test(test_bodies_taken_over),
        cmocka_unit_test(test_bodies_of_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
