/* The memory of request bodies over the stand-in stream: charged as bytes arrive, by tenant, and
 * given back exactly once. */
#include "tests/server/http_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bodies_announced),
        cmocka_unit_test(test_bodies_together),
        cmocka_unit_test(test_bodies_taken_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
