/* A connection's life over the stand-in stream: answers in the order of the requests, clients that
 * leave or half-close, time-outs, slow readers, draining. */
#include "tests/server/http_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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
    const char *a = strstr(world_sent(&w), "late"), *b = strstr(world_sent(&w), "/b:0"),
               *c = strstr(world_sent(&w), "/c:0");
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
    assert_non_null(strstr(world_sent(&w), "Connection: close"));
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
    assert_non_null(strstr(world_sent(&w), "200 OK"));
    fake_turn(w.stream);
    assert_true(w.stream->closed);
    world_fini(&w);
}

/* The end comes while requests wait for their turn, or after it. */
static void gone_around_its_turn(bool after)
{
    struct world w;
    struct cn_buf all;

    world_init(&w);
    cn_buf_init(&all, 0);
    for (int i = 0; i < SRV_REQUESTS_A_TURN; i++)
        cn_buf_puts(&all, "GET / HTTP/1.1\r\n" H "\r\n");
    cn_buf_puts(&all, later);
    fake_feed(w.stream, all.data, all.len);
    cn_buf_fini(&all);
    assert_int_equal(w.requests, SRV_REQUESTS_A_TURN);
    assert_false(w.stream->reading);
    if (!after) fake_eof(w.stream);
    srv_http_work(&w.http);
    assert_int_equal(w.requests, SRV_REQUESTS_A_TURN + 1);
    if (after) {
        assert_true(w.stream->reading); /* else nobody would see the end */
        fake_eof(w.stream);
    }
    assert_int_equal(w.gone, 1);
    fake_turn(w.stream);
    assert_true(w.stream->closed);
    world_fini(&w);
}

static void test_gone_around_its_turn(void **state)
{
    gone_around_its_turn(false);
    gone_around_its_turn(true);
}

static void test_cut_short(void **state)
{
    struct world w;
    const char *post = "POST / HTTP/1.1\r\n" H "Content-Length: 9\r\n\r\nabc";

    world_init(&w);
    fake_feed(w.stream, post, strlen(post));
    fake_eof(w.stream);
    fake_turn(w.stream);
    assert_non_null(strstr(world_sent(&w), "400 Bad Request"));
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
    assert_non_null(strstr(world_sent(&w), "408"));
    world_fini(&w);

    world_init(&w); /* a slow body */
    const char *post = "POST / HTTP/1.1\r\n" H "Content-Length: 2000\r\n\r\nabc";
    fake_feed(w.stream, post, strlen(post));
    srv_http_tick(&w.http, cn_now_ns() + s / 2);
    assert_int_equal(w.stream->shut, false);
    srv_http_tick(&w.http, cn_now_ns() + 3 * s);
    fake_turn(w.stream);
    assert_non_null(strstr(world_sent(&w), "408"));
    assert_non_null(strstr(world_sent(&w), "request_timeout"));
    world_fini(&w);

    world_init(&w); /* a body that is fast enough, and too long on its way */
    w.http.limits.body_ns = 5 * s;
    fake_feed(w.stream, post, strlen(post));
    char part[1500];
    memset(part, 'x', sizeof part);
    fake_feed(w.stream, part, sizeof part);
    w.http.limits.body_min_rate = 100;
    srv_http_tick(&w.http, cn_now_ns() + 4 * s);
    assert_int_equal(w.stream->shut, false);
    srv_http_tick(&w.http, cn_now_ns() + 6 * s);
    fake_turn(w.stream);
    assert_non_null(strstr(world_sent(&w), "408"));
    assert_non_null(strstr(world_sent(&w), "server.body_timeout_s"));
    world_fini(&w);

    world_init(&w); /* nothing came at all: the first byte has the head's time, later ones more */
    srv_http_tick(&w.http, cn_now_ns() + 3 * s / 2);
    fake_turn(w.stream);
    assert_true(w.stream->shut);
    world_fini(&w);
    world_init(&w);
    const char *get = "GET / HTTP/1.1\r\n" H "\r\n";
    fake_feed(w.stream, get, strlen(get));
    fake_turn(w.stream);
    srv_http_tick(&w.http, cn_now_ns() + 3 * s / 2);
    assert_false(w.stream->shut);
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
    assert_non_null(strstr(world_sent(&w), "Connection: close"));
    assert_true(w.stream->shut);
    world_fini(&w);

    world_init(&w);
    srv_http_drain(&w.http);
    assert_true(w.stream->shut);
    world_fini(&w);
}

static void test_forms_of_answers(void **state)
{
    struct world w;
    const char *head = "HEAD /x HTTP/1.1\r\n" H "\r\n", *st = "GET /stream HTTP/1.1\r\n" H "\r\n",
               *old = "GET /stream HTTP/1.0\r\n\r\n";

    world_init(&w);
    fake_feed(w.stream, head, strlen(head));
    fake_turn(w.stream);
    assert_non_null(strstr(world_sent(&w), "Content-Length: 4\r\n"));
    assert_null(strstr(world_sent(&w), "/x:0"));
    fake_feed(w.stream, st, strlen(st));
    fake_turn(w.stream);
    assert_non_null(strstr(world_sent(&w), "\r\n\r\n5\r\nhello\r\n6\r\nworld!\r\n0\r\n\r\n"));
    world_fini(&w);

    world_init(&w);
    fake_feed(w.stream, old, strlen(old));
    fake_turn(w.stream);
    assert_null(strstr(world_sent(&w), "chunked"));
    assert_non_null(strstr(world_sent(&w), "\r\n\r\nhelloworld!"));
    assert_true(w.stream->shut);
    world_fini(&w);
}

/* Every code of 429 and 503 has its own line on the page of metrics, and counts there alone. */
static void test_refusals_are_counted_by_code(void **state)
{
#define ERR(name, number, status, type, code, text) {number, status, code},
    static const struct {
        int code, status;
        const char *slug;
    } errors[] = {
#include "base/errors.def"
    };
#undef ERR
    int counted = 0;

    for (size_t i = 0; i < CN_ARRAY_LEN(errors); i++) {
        bool busy = errors[i].status == 429 || errors[i].status == 503;
        struct cn_error err = {.code = errors[i].code};
        struct cn_buf page;
        char line[128], *at;
        int lines = 0;
        struct world w;

        world_init(&w);
        fake_feed(w.stream, "GET /later HTTP/1.1\r\n" H "\r\n", 32);
        assert_non_null(w.open);
        srv_conn_error(w.open, &err, NULL);
        cn_buf_init(&page, 0);
        assert_int_equal(cn_metrics_render(&w.metrics, &page), 0);
        snprintf(line, sizeof line, "\nconifer_http_refused_total{status=\"%d\",code=\"%s\"} 1\n",
                 errors[i].status, errors[i].slug);
        assert_int_equal(strstr(cn_buf_cstr(&page), line) != NULL, busy);
        for (at = page.data; (at = strstr(at, "\nconifer_http_refused_total{")); at++)
            lines += at[strcspn(at + 1, "\n")] != '0';
        assert_int_equal(lines, busy);
        counted += busy;
        cn_buf_fini(&page);
        world_fini(&w);
    }
    assert_in_range(counted, 5, 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_overrun),
        cmocka_unit_test(test_gone),
        cmocka_unit_test(test_half_close_after_request),
        cmocka_unit_test(test_gone_around_its_turn),
        cmocka_unit_test(test_cut_short),
        cmocka_unit_test(test_timeouts),
        cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_forms_of_answers),
        cmocka_unit_test(test_refusals_are_counted_by_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
