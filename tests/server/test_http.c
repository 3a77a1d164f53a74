/* HTTP over the stand-in stream: every decision on malformed input, and the limits. Each input is
 * played whole, byte by byte and in pieces of seven, and must be answered the same. */
#include "tests/server/http_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* "200 400 closed": the statuses answered, interim ones too, and whether the server ended it. */
static void outcome(struct world *w, char *out, size_t size)
{
    size_t at = 0;
    out[0] = 0;
    for (const char *all = world_sent(w), *p = all; (p = strstr(p, "HTTP/1.1 ")); p += 9) {
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

/* X-Forwarded-For may come in several lines, which are one list; it counts from a proxy only. */
static void test_forwarded(void **state)
{
    static const char get[] = "GET /later HTTP/1.1\r\n" H "X-Forwarded-For: 192.0.2.1\r\n"
                              "x-forwarded-for: 198.51.100.1 \r\nX-Forwarded-For: 10.0.0.2\r\n"
                              "\r\n";
    struct cfg_range proxies;
    const struct srv_trust trust = {&proxies, 1};
    char text[SRV_PEER_TEXT];

    assert_int_equal(cfg_parse_range("10.0.0.0/8", 10, &proxies, NULL), 0);
    for (int trusted = 0; trusted < 2; trusted++) {
        struct world w;
        world_init(&w);
        w.http.trust = &trust;
        w.stream->base.peer = (struct srv_peer){.kind = SRV_PEER_IP, .port = 5};
        const char *from = trusted ? "10.0.0.1" : "11.0.0.1";
        assert_true(cfg_parse_addr(from, 8, &w.stream->base.peer.addr));
        fake_feed(w.stream, get, sizeof get - 1);
        assert_non_null(w.open);
        srv_peer_text(&w.open->client, text);
        assert_string_equal(text, trusted ? "198.51.100.1" : "11.0.0.1:5");
        srv_conn_answer(w.open, 200, "text/plain", "", 0, NULL);
        world_fini(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_forwarded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
