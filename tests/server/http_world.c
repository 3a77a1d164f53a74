#include "tests/server/http_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int on_head(void *ctx, struct srv_conn *c, struct cn_error *err)
{
    size_t n;
    const char *path = srv_conn_path(c, &n);
    if (n == 7 && !memcmp(path, "/secret", n)) return cn_fail(err, CN_EAUTH, "no key");
    c->known = n == 6 && !memcmp(path, "/later", n); /* the rest may be anybody's */
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

void world_init(struct world *w)
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

void world_fini(struct world *w)
{
    srv_http_close_all(&w->http);
    fake_turn(w->stream);
    assert_true(w->stream->closed);
    assert_int_equal(w->closed, 1);
    assert_int_equal(w->http.n_conns, 0);
    assert_null(w->http.conns);
    assert_int_equal((int)cn_metric_get(&w->metrics, CN_M_connections), 0);
    fake_free(w->stream);
    if (w->http.budget) assert_int_equal(cn_budget_held(w->http.budget), 0);
    cn_budget_free(w->http.budget);
}

const char *world_sent(struct world *w)
{
    const char *s = cn_buf_cstr(&w->stream->sent);
    return s ? s : "";
}
