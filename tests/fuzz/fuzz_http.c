/* Fuzz target: bytes from a client, in pieces of any size, with time-outs and disconnects in
 * between.
 *
 * The first bytes choose the pieces and what else happens; the rest is the client's. Whatever
 * comes: each request handed out ends exactly once, the connection's memory is given back, and what
 * is answered does not depend on how the bytes were cut. */
#include "server/http.h"

#include "tests/server/fake_stream.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

struct world {
    struct srv_http http;
    struct fake_stream *stream;
    struct srv_conn *open;
    unsigned begun, ended, closed;
    bool all_at_once; /* no answers that come later */
};

static int on_head(void *ctx, struct srv_conn *c, struct cn_error *err)
{
    size_t n;
    const char *path = srv_conn_path(c, &n);

    cn_assert(n > 0 && path[0] == '/');
    cn_assert(srv_conn_method(c) != HTTP_CONNECT);
    cn_assert(c->http10 || srv_conn_header(c, SRV_H_host));
    for (size_t i = 0; i < n; i++)
        cn_assert((unsigned char)path[i] > ' ' && path[i] != '\\');
    return n > 1 && path[1] == 'x' ? cn_fail(err, CN_EAUTH, "no") : 0;
}

static void on_request(void *ctx, struct srv_conn *c)
{
    struct world *w = ctx;
    size_t n;
    const char *path = srv_conn_path(c, &n);

    cn_assert(!w->open && c->body.len <= w->http.limits.max_body);
    w->begun++;
    if (!w->all_at_once && n > 1 && path[1] == 'l') {
        w->open = c;
        c->user = w;
        return;
    }
    w->ended++;
    if (n > 1 && path[1] == 's') {
        char *kept = strndup(path, n); /* the path goes when the stream begins */
        cn_assert(kept);
        srv_conn_stream_begin(c, "text/plain", NULL);
        srv_conn_stream_data(c, kept, n);
        srv_conn_stream_end(c, n % 2);
        free(kept);
        return;
    }
    srv_conn_answer(c, 200, "text/plain", c->body.data, c->body.len, NULL);
}

static void on_gone(void *ctx, struct srv_conn *c)
{
    struct world *w = ctx;

    if (!c->user) return;
    cn_assert(w->open == c);
    w->open = NULL;
    w->ended++;
}

static void on_sent(void *ctx, struct srv_conn *c)
{
}

static void on_closed(void *ctx)
{
    struct world *w = ctx;

    cn_assert(++w->closed == 1 && !w->open);
}

static const struct srv_http_handler handler = {on_head, on_request, on_gone, on_sent, on_closed};

static void answer_open(struct world *w)
{
    struct srv_conn *c = w->open;

    if (!c) return;
    w->open = NULL;
    w->ended++;
    c->user = NULL;
    srv_conn_answer(c, 200, "text/plain", "late", 4, NULL);
}

/* What waits for its turn, as the loop does before it sleeps. */
static void work(struct world *w)
{
    while (srv_http_work(&w->http)) {
    }
}

static void begin(struct world *w, bool all_at_once)
{
    memset(w, 0, sizeof *w);
    srv_http_init(&w->http, &handler, w, NULL);
    w->http.limits = (struct srv_http_limits){1024, 1000, 1000, 1000, 1000, 1};
    cn_assert(
        !cn_budget_new(1 << 20, (struct cn_share[]){{1, false}, {1, true}}, 2, &w->http.budget));
    w->all_at_once = all_at_once;
    w->stream = fake_new();
    cn_assert(srv_conn_new(&w->http, &w->stream->base));
}

static void end(struct world *w)
{
    srv_http_close_all(&w->http);
    fake_turn(w->stream);
    cn_assert(w->stream->closed && w->closed == 1 && w->begun == w->ended);
    cn_assert(!w->http.n_conns && !w->http.conns && !w->http.ready);
    fake_free(w->stream);
    cn_assert(!cn_budget_held(w->http.budget));
    cn_budget_free(w->http.budget);
}

/* The statuses answered, in order, as text. */
static void statuses(const struct cn_buf *sent, struct cn_buf *out)
{
    cn_buf_reset(out);
    for (size_t i = 0; i + 12 < sent->len; i++) {
        if (memcmp(sent->data + i, "HTTP/1.1 ", 9)) continue;
        if (i + 20 < sent->len && !memcmp(sent->data + i + 12, " ", 1))
            cn_buf_append(out, sent->data + i + 9, 3);
    }
}

static void cut_does_not_matter(const uint8_t *data, size_t n, uint8_t seed)
{
    struct cn_buf a, b;
    unsigned begun = 0;
    uint32_t rnd = seed * 2654435761u + 1;

    cn_buf_init(&a, 0);
    cn_buf_init(&b, 0);
    for (int pass = 0; pass < 2; pass++) {
        struct world w;
        begin(&w, true);
        for (size_t i = 0; i < n;) {
            size_t piece = n;
            if (pass) {
                rnd = rnd * 1664525u + 1013904223u;
                piece = seed % 3 ? 1 + (rnd >> 16) % (seed + 1u) : 1;
            }
            piece = CN_MIN(piece, n - i);
            fake_feed(w.stream, data + i, piece);
            work(&w);
            for (int k = 0; k < 1000 && !w.stream->reading && !w.stream->closing && !w.open; k++) {
                fake_turn(w.stream); /* it has read what kept it from being read */
                work(&w);
            }
            i += piece;
        }
        fake_turn(w.stream);
        statuses(&w.stream->sent, pass ? &b : &a);
        cn_assert(!pass || begun == w.begun);
        begun = w.begun;
        end(&w);
    }
    cn_assert(a.len == b.len && (a.len == 0 || !memcmp(a.data, b.data, a.len)));
    cn_buf_fini(&a);
    cn_buf_fini(&b);
}

static void anything_may_happen(const uint8_t *data, size_t n, uint8_t seed)
{
    struct world w;
    uint32_t rnd = seed * 2654435761u + 1;
    uint64_t now = cn_now_ns();

    begin(&w, false);
    for (size_t i = 0; i < n;) {
        rnd = rnd * 1664525u + 1013904223u;
        unsigned what = rnd >> 24;
        size_t piece = CN_MIN(1 + (rnd >> 8) % 64, n - i);
        fake_feed(w.stream, data + i, piece);
        if (what & 1) work(&w);
        i += piece;
        if (what < 60)
            fake_turn(w.stream);
        else if (what < 90)
            answer_open(&w);
        else if (what < 94)
            srv_http_tick(&w.http, now += (uint64_t)(rnd & 1023) * 100000000u);
        else if (what < 96)
            w.stream->window = rnd & 63;
        else if (what < 98)
            fake_eof(w.stream);
        else if (what == 98)
            fake_fail(w.stream);
        else if (what == 99)
            srv_http_drain(&w.http);
        else if (what == 100 && w.open) {
            struct srv_conn *c = w.open;
            w.open = NULL;
            w.ended++;
            srv_conn_abort(c);
        }
        if (w.stream->closing) fake_turn(w.stream);
        if (w.stream->closed) break;
    }
    end(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 2) return 0;
    if (data[0] & 1)
        cut_does_not_matter(data + 2, n - 2, data[1]);
    else
        anything_may_happen(data + 2, n - 2, data[1]);
    return 0;
}
