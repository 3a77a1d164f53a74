/* Allocations fail, one at a time and from one on: the k-th of a scripted run, for every k until
 * the run no longer reaches it. Whatever fails: nothing crashes, every request ends once,
 * everything is given back, and a refusal says that memory is short. Linked with -Wl,--wrap for
 * malloc and kin. */
#include "server/http.h"

#include "tests/server/fake_stream.h"
#include "tests/server/small_env.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static volatile long countdown = -1; /* allocations until one fails; negative: none does */
static volatile bool for_ever, failed;
static volatile long held; /* blocks in use */

static bool fails(void)
{
    if (countdown < 0) return false;
    if (countdown > 0) {
        countdown--;
        return false;
    }
    failed = true;
    if (!for_ever) countdown = -1;
    return true;
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void __real_free(void *p);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void __wrap_free(void *p);

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : (held++, __real_malloc(n));
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : (held++, __real_calloc(n, size));
}

void *__wrap_realloc(void *p, size_t n)
{
    if (fails()) return NULL;
    if (!p) held++;
    return __real_realloc(p, n);
}

void __wrap_free(void *p)
{
    if (p) held--;
    __real_free(p);
}

char *__wrap_strdup(const char *s);
char *__wrap_strndup(const char *s, size_t n);

char *__wrap_strndup(const char *s, size_t n)
{
    size_t len = strnlen(s, n);
    char *p = __wrap_malloc(len + 1);

    if (!p) return NULL;
    memcpy(p, s, len);
    p[len] = 0;
    return p;
}

char *__wrap_strdup(const char *s)
{
    return __wrap_strndup(s, strlen(s));
}

/* ---- HTTP ------------------------------------------------------------------------------------ */

static unsigned begun, ended, closed;

static int on_head(void *ctx, struct srv_conn *c, struct cn_error *err)
{
    return 0;
}

static void on_request(void *ctx, struct srv_conn *c)
{
    begun++;
    ended++;
    if (c->body.len % 2) {
        srv_conn_stream_begin(c, "text/plain", NULL);
        srv_conn_stream_data(c, c->body.data, c->body.len);
        srv_conn_stream_end(c, false);
        return;
    }
    srv_conn_answer(c, 200, "text/plain", c->body.data, c->body.len, NULL);
}

static void on_gone(void *ctx, struct srv_conn *c)
{
}

static void on_sent(void *ctx, struct srv_conn *c)
{
}

static void on_closed(void *ctx)
{
    closed++;
}

static const struct srv_http_handler handler = {on_head, on_request, on_gone, on_sent, on_closed};

static void run_http(void)
{
    static const char text[] =
        "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nAuthorization: Bearer k\r\n\r\nhello"
        "POST /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n"
        "GET /c HTTP/1.1\r\nHost: a\r\nContent-Length: 01\r\n\r\n";
    struct srv_http h;

    srv_http_init(&h, &handler, NULL, NULL);
    h.limits = (struct srv_http_limits){1024, 1000000000, 1000000000, 1000000000, 1000000000, 1};
    closed = 0;
    long k = countdown; /* the stand-in itself does not fail */
    countdown = -1;
    struct fake_stream *f = fake_new();
    countdown = k;
    struct srv_conn *c = srv_conn_new(&h, &f->base);
    for (size_t i = 0; c && i < sizeof text - 1; i += 16) {
        /* The stand-in's copies are its own affair. */
        k = countdown;
        countdown = -1;
        char *piece = malloc(16);
        countdown = k;
        assert_non_null(piece);
        memcpy(piece, text + i, CN_MIN((size_t)16, sizeof text - 1 - i));
        if (!f->closing && f->reading)
            f->base.events->on_read(f->base.owner, piece, CN_MIN((size_t)16, sizeof text - 1 - i));
        free(piece);
        if (f->base.out.failed) fake_fail(f);
    }
    if (c) srv_http_close_all(&h);
    fake_turn(f);
    assert_true(f->closed);
    assert_int_equal(closed, c ? 1 : 0);
    assert_int_equal(begun, ended);
    assert_int_equal(h.n_conns, 0);
    assert_null(h.ready);
    fake_free(f);
}

/* ---- bodies ---------------------------------------------------------------------------------- */

static const struct {
    enum srv_op op;
    const char *body;
    bool falls_back;
} bodies[] = {
    {SRV_OP_CHAT,
     "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"ab\"},"
     "{\"type\":\"text\",\"text\":\"c\"}]},{\"role\":\"assistant\",\"tool_calls\":[{\"function\":"
     "{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}}]}],\"chat_template_kwargs\":{\"x\":1},"
     "\"enable_thinking\":true,\"stop\":[\"a\",\"b\"],\"stop_token_ids\":[5],\"logit_bias\":"
     "{\"5\":1},\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}"},
    {SRV_OP_CHAT,
     "{\"messages\":[{\"role\":\"user\",\"content\":\"ab\"},{\"role\":\"assistant\",\"tool_calls\":"
     "[{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\","
     "\"tool_call_id\":\"1\",\"content\":[{\"type\":\"input_text\",\"text\":\"c\"}]}],"
     "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}",
     true},
    {SRV_OP_TEXT, "{\"prompt\":[\"ab\",\"cd\"],\"echo\":true,\"logprobs\":1}"},
    {SRV_OP_TEXT, "{\"prompt\":[[5,6,7],[8]],\"echo\":true}"},
    {SRV_OP_TOKENIZE, "{\"prompt\":\"abc\",\"return_token_strs\":true}"},
    {SRV_OP_DETOKENIZE, "{\"tokens\":[5,6,7,200]}"},
    {SRV_OP_EMBED, "{\"input\":[\"ab\",[5,6,7]],\"dimensions\":4}"},
    {SRV_OP_EMBED, "{\"input\":[\"ab\",[5,6,7]],\"encoding_format\":\"base64\"}"},
    {SRV_OP_TEMPLATE, "{\"messages\":[{\"role\":\"user\",\"content\":\"ab\"}]}"},
};

static void write_embeddings(struct srv_call *c)
{
    for (size_t i = 0; i < c->n_prompts; i++) {
        float *v = c->prompts[i].vector = calloc(8, sizeof *v);
        if (v) v[i] = 1;
        if (!v) cn_fail(&c->err, CN_ENOMEM, "out of memory");
        if (!v) return;
    }
    c->write = srv_embed_write;
    srv_write_work(&c->job);
    if (!c->err.code) assert_true(c->written && c->answer.len > 0 && !c->answer.failed);
}

static void run_body(size_t i)
{
    long k = countdown;
    countdown = -1;
    struct srv_call *c = calloc(1, sizeof *c);
    assert_non_null(c);
    cn_buf_init(&c->body, 0);
    assert_int_equal(cn_buf_puts(&c->body, bodies[i].body), 0);
    c->op = bodies[i].op;
    c->env = c->op == SRV_OP_EMBED  ? small_embed_env()
             : bodies[i].falls_back ? small_fallback_env()
                                    : small_env();
    countdown = k;
    srv_call_work(&c->job);
    if (c->op == SRV_OP_EMBED && !c->err.code) write_embeddings(c);
    countdown = -1;
    /* One that did not matter (arguments that stay text, say) may have failed without harm. */
    if (c->err.code && c->err.code != CN_ENOMEM)
        fail_msg("body %zu, allocation %ld: %s", i, k, c->err.message);
    if (!failed) assert_int_equal(c->err.code, 0);
    srv_call_free(c);
}

/* ---- the sweep ------------------------------------------------------------------------------- */

static void sweep(void (*run)(size_t), size_t arg)
{
    run(arg); /* what is made once, is made now */
    for (int mode = 0; mode < 2; mode++) {
        for (long k = 0;; k++) {
            long before = held;
            countdown = k;
            for_ever = mode;
            failed = false;
            run(arg);
            countdown = -1;
            if (held != before) fail_msg("%ld blocks lost at allocation %ld", held - before, k);
            if (!failed) {
                assert_true(k > 3);
                break;
            }
        }
    }
}

static void http_once(size_t unused)
{
    begun = ended = 0;
    run_http();
}

static void test_http(void **state)
{
    sweep(http_once, 0);
}

static void test_bodies(void **state)
{
    srv_json_setup(); /* jansson's calls are wrapped as well */
    for (size_t i = 0; i < CN_ARRAY_LEN(bodies); i++)
        sweep(run_body, i);
}

/* What is wrong with a body is told as such, also when memory was short a moment ago. */
static void test_syntax_after_memory(void **state)
{
    static const char good[] = "{\"a\":[1,\"two\"]}", bad[] = "{\"a\":[1,\"two\"}";
    struct srv_json_room left = {.left = 1000};
    struct cn_error err;
    json_t *root;

    srv_json_setup();
    for (long k = 0; k < 4; k++) {
        countdown = k;
        for_ever = true;
        assert_int_equal(srv_json_parse(good, sizeof good - 1, &left, &root, &err), CN_ENOMEM);
        assert_int_equal(cn_err_info(err.code)->status, 503);
        countdown = -1;
        assert_int_equal(srv_json_parse(bad, sizeof bad - 1, &left, &root, &err), CN_EJSON);
        assert_int_equal(srv_json_parse(good, sizeof good - 1, &left, &root, &err), 0);
        json_decref(root);
    }
}

/* Texts for which jansson's buffer grows: all of them are there, or the body is refused. */
static void test_texts_while_memory_is_short(void **state)
{
    enum { TEXTS = 11 };
    static char body[1 << 16];
    size_t n = 0;
    struct cn_error err;
    json_t *root;

    srv_json_setup();
    n += (size_t)snprintf(body + n, sizeof body - n, "{\"a\":[");
    for (unsigned i = 0; i < 40; i++)
        n += (size_t)snprintf(body + n, sizeof body - n, "\"x\",[[{}],");
    for (unsigned i = 0; i < 40; i++)
        n += (size_t)snprintf(body + n, sizeof body - n, "%s1]", i ? "," : "");
    n += (size_t)snprintf(body + n, sizeof body - n, "],");
    for (unsigned i = 0; i < TEXTS; i++) {
        n += (size_t)snprintf(body + n, sizeof body - n, "%s\"%u\":\"y", i ? "," : "", i);
        for (unsigned k = 0; k < 8u << i; k++)
            n += (size_t)snprintf(body + n, sizeof body - n, "%s", i % 2 ? "\\nx" : "b");
        body[n++] = '"';
    }
    body[n++] = '}';
    for (long k = 0, done = 0; !done; k++) {
        for (int always = 0; always < 2; always++) {
            struct srv_json_room left = {.left = 9000};
            for_ever = always;
            countdown = k;
            int rc = srv_json_parse(body, n, &left, &root, &err);
            countdown = -1;
            done = !failed;
            failed = false;
            assert_int_equal(rc, done ? 0 : CN_ENOMEM);
            if (done) json_decref(root);
            countdown = 0; /* outside of a parse an allocation that fails is told as such */
            if (!done) assert_null(json_string("y"));
            countdown = -1;
            failed = false;
        }
        assert_in_range(k, 0, 5000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts_while_memory_is_short),
        cmocka_unit_test(test_http),
        cmocka_unit_test(test_bodies),
        cmocka_unit_test(test_syntax_after_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
