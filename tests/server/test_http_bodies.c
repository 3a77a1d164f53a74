/* The memory of connections over the stand-in stream: charged as bytes arrive, to the address or
 * the tenant, and given back exactly once; nothing is parsed for one who does not read. */
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
    c->lane = tenant;
    return f; /* the handler leaves the tenant as it is, and knows it */
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

/* Strangers and two tenants share a budget: reserves of 1, 4 and 4 parts of its half. The handler
 * knows tenant 1 or 2 by the connection's own number. */
static struct cn_account *give_budget(struct world *w, uint64_t bytes)
{
    static const struct cn_share shares[] = {{1, false}, {4, true}, {4, true}};

    assert_int_equal(cn_budget_new(bytes, shares, 3, &w->http.budget), 0);
    return cn_budget_account(w->http.budget, 1);
}

static uint64_t held_by(struct world *w, size_t i)
{
    return cn_account_held(cn_budget_account(w->http.budget, i));
}

/* Only bytes that came count: announcing bodies keeps nobody out. */
static void test_bodies_announced(void **state)
{
    struct world w;
    struct fake_stream *others[16];

    world_init(&w);
    w.http.limits.max_body = 400000;
    give_budget(&w, 4000000);
    for (size_t i = 0; i < CN_ARRAY_LEN(others); i++) {
        others[i] = another(&w, 1);
        fake_feed(others[i], long_post, sizeof long_post - 1);
    }
    assert_in_range(held_by(&w, 1), 16 * SRV_CONN_BYTES, 16 * (SRV_CONN_BYTES + 1024));
    struct fake_stream *whole = another(&w, 1);
    fake_feed(whole, long_post, sizeof long_post - 1);
    feed_many(whole, 'x', 300000);
    assert_int_equal(w.requests, 1);
    leave(&w, whole);
    for (size_t i = 0; i < CN_ARRAY_LEN(others); i++)
        leave(&w, others[i]);
    world_fini(&w);
}

/* What does not fit beside a tenant's own bodies is its affair (429), another one still has room,
 * and what an answer gives back can be taken again. */
static void test_bodies_together(void **state)
{
    struct world w;

    world_init(&w);
    w.http.limits.max_body = 400000;
    struct cn_account *first = give_budget(&w, 1200000); /* 266,666 and half of 600,000 */
    assert_int_equal(cn_account_most(first), 566666);
    struct fake_stream *one = another(&w, 1), *same = another(&w, 1), *other = another(&w, 2);
    fake_feed(one, long_post, sizeof long_post - 1);
    feed_many(one, 'x', 300000);
    assert_int_equal(w.requests, 1);

    fake_feed(same, long_post, sizeof long_post - 1);
    feed_many(same, 'x', 300000);
    assert_non_null(strstr(cn_buf_cstr(&same->sent), "429"));
    assert_non_null(strstr(cn_buf_cstr(&same->sent), "memory_in_use"));
    assert_non_null(strstr(cn_buf_cstr(&same->sent), "Retry-After: 1\r\n"));

    fake_feed(other, long_post, sizeof long_post - 1);
    feed_many(other, 'x', 300000);
    assert_int_equal(w.requests, 2);
    assert_in_range(held_by(&w, 2), 300000, 566666);
    leave(&w, same);
    leave(&w, other);
    assert_int_equal(held_by(&w, 2), 0);
    leave(&w, one);
    assert_int_equal(held_by(&w, 1), 0);
    world_fini(&w);
}

/* A body that could never fit is refused as that. */
static void test_body_never_fits(void **state)
{
    struct world w;

    world_init(&w);
    w.http.limits.max_body = 400000;
    give_budget(&w, 400000);
    struct fake_stream *one = another(&w, 1);
    fake_feed(one, long_post, sizeof long_post - 1);
    fake_turn(one);
    assert_non_null(strstr(cn_buf_cstr(&one->sent), "413"));
    assert_non_null(strstr(cn_buf_cstr(&one->sent), "server.memory_bytes"));
    leave(&w, one);
    world_fini(&w);
}

/* Strangers have their part and no more: a connection beyond it is closed at once. */
static void test_strangers(void **state)
{
    struct world w;
    struct fake_stream *others[64];
    size_t n = 0;

    world_init(&w);
    give_budget(&w, 18 * 16 * SRV_CONN_BYTES); /* strangers: 16 connections */
    for (; n < CN_ARRAY_LEN(others); n++) {
        others[n] = fake_new();
        if (!srv_conn_new(&w.http, &others[n]->base)) break;
    }
    assert_int_equal(n, 16);
    fake_turn(others[n]);
    assert_true(others[n]->closed && others[n]->reset);
    fake_free(others[n]);
    w.closed = 0;
    while (n--)
        leave(&w, others[n]);
    world_fini(&w);
}

/* Pipelined requests of one who does not read the answers wait, and then are answered in order. */
static void test_unread_answers(void **state)
{
    static const char get[] = "GET /a HTTP/1.1\r\n" H "\r\n";
    struct world w;
    char many[sizeof get * 1500];
    size_t n = 0;

    world_init(&w);
    w.stream->window = 1; /* the kernel takes nearly nothing */
    for (; n + sizeof get < sizeof many; n += sizeof get - 1)
        memcpy(many + n, get, sizeof get - 1);
    size_t fed = n / (sizeof get - 1);
    for (int i = 0; i < 4 && w.stream->reading; i++) {
        fake_feed(w.stream, many, n);
        while (srv_http_work(&w.http)) {
        }
        fake_turn(w.stream);
    }
    assert_false(w.stream->reading);
    assert_in_range(w.stream->base.out.len, SRV_STRANGER_UNSENT, SRV_STRANGER_UNSENT + 4096);
    assert_in_range(w.requests, 16, fed - 1);
    w.stream->window = SIZE_MAX;
    for (int i = 0; i < 1000 && !w.stream->reading; i++) {
        fake_turn(w.stream);
        while (srv_http_work(&w.http)) {
        }
    }
    assert_true(w.stream->reading);
    assert_int_equal(w.requests, fed);
    world_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bodies_announced), cmocka_unit_test(test_bodies_together),
        cmocka_unit_test(test_body_never_fits),  cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_unread_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
