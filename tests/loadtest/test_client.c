/* loadtest: which of a server's addresses is spoken to. */
#include "loadtest/client.h"

#include <netinet/in.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- a server that answers everything with nothing, on the loop of its client ---------------- */

static void on_alloc(uv_handle_t *h, size_t hint, uv_buf_t *out)
{
    static char sink[4096];

    *out = uv_buf_init(sink, sizeof sink);
}

static void free_handle(uv_handle_t *h)
{
    free(h);
}

static void on_asked(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
    static char text[] = "HTTP/1.1 204 No Content\r\n\r\n";
    uv_buf_t answer = uv_buf_init(text, sizeof text - 1);

    if (n < 0)
        uv_close((uv_handle_t *)s, free_handle);
    else if (n > 0)
        assert_int_equal(uv_try_write(s, &answer, 1), answer.len);
}

static void on_guest(uv_stream_t *listener, int status)
{
    uv_tcp_t *guest = malloc(sizeof *guest);

    assert_int_equal(status, 0);
    assert_int_equal(uv_tcp_init(listener->loop, guest), 0);
    assert_int_equal(uv_accept(listener, (uv_stream_t *)guest), 0);
    uv_read_start((uv_stream_t *)guest, on_alloc, on_asked);
}

static void address_of(int fd, struct sockaddr_storage *out)
{
    socklen_t n = sizeof *out;

    assert_int_equal(getsockname(fd, (struct sockaddr *)out, &n), 0);
}

static void on_some_port(struct sockaddr_in *out)
{
    *out = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void listen_at(uv_loop_t *loop, uv_tcp_t *l, struct sockaddr_storage *out)
{
    struct sockaddr_in any;
    int fd;

    on_some_port(&any);
    assert_int_equal(uv_tcp_init(loop, l), 0);
    assert_int_equal(uv_tcp_bind(l, (struct sockaddr *)&any, 0), 0);
    assert_int_equal(uv_listen((uv_stream_t *)l, 8, on_guest), 0);
    assert_int_equal(uv_fileno((uv_handle_t *)l, &fd), 0);
    address_of(fd, out);
}

/* A port that is taken and refuses connections. */
static int refuse_at(struct sockaddr_storage *out)
{
    struct sockaddr_in any;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    on_some_port(&any);
    assert_int_equal(bind(fd, (struct sockaddr *)&any, sizeof any), 0);
    address_of(fd, out);
    return fd;
}

/* ---- calls ----------------------------------------------------------------------------------- */

struct asked {
    struct lt_call call;
    enum lt_end end;
    bool over;
};

static bool on_data(struct lt_call *c, uint64_t now, const char *p, size_t n)
{
    return true;
}

static void on_end(struct lt_call *c, uint64_t now, enum lt_end end, const char *detail)
{
    struct asked *a = CN_CONTAINER(c, struct asked, call);

    a->end = end;
    a->over = true;
}

static void begin(struct lt_client *c, struct asked *a)
{
    static const struct lt_call_ops ops = {on_data, on_end};

    *a = (struct asked){.call = {.ops = &ops}};
    cn_buf_init(&a->call.out, 0);
    cn_buf_puts(&a->call.out, "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    lt_client_start(c, &a->call);
}

static enum lt_end ended(struct lt_client *c, struct asked *a)
{
    while (!a->over)
        uv_run(c->loop, UV_RUN_ONCE);
    cn_buf_fini(&a->call.out);
    return a->end;
}

static enum lt_end ask(struct lt_client *c)
{
    struct asked a;

    begin(c, &a);
    return ended(c, &a);
}

static void finish(uv_loop_t *loop, struct lt_client *c, uv_tcp_t *listener)
{
    lt_client_close(c);
    if (listener) uv_close((uv_handle_t *)listener, NULL);
    uv_run(loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(loop), 0);
    free(c);
}

static void the_next_address_is_tried_until_one_works(void **state)
{
    struct lt_client *c = malloc(sizeof *c);
    struct lt_addrs addrs = {.n = 3};
    struct asked two[2];
    uv_loop_t loop;
    uv_tcp_t listener;
    int closed[2] = {refuse_at(&addrs.v[0]), refuse_at(&addrs.v[2])};

    assert_int_equal(uv_loop_init(&loop), 0);
    listen_at(&loop, &listener, &addrs.v[1]);
    assert_int_equal(lt_client_init(c, &loop, &addrs, 60u * 1000000000u, false), 0);
    for (int i = 0; i < 2; i++)
        begin(c, &two[i]); /* both before it is known */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ended(c, &two[i]), LT_END_OK);
        assert_int_equal(two[i].call.status, 204);
    }
    assert_true(c->proven && c->addr == 1);
    uint64_t opened = c->opened;
    assert_int_equal(ask(c), LT_END_OK); /* remembered */
    assert_int_equal(c->opened, opened + 1);
    uv_close((uv_handle_t *)&listener, NULL);
    assert_int_equal(ask(c), LT_END_CONNECT); /* from then on a failure is a failure */
    assert_int_equal(c->opened, opened + 2);
    finish(&loop, c, NULL);
    close(closed[0]);
    close(closed[1]);
}

static void when_all_refuse_it_has_failed(void **state)
{
    struct lt_client *c = malloc(sizeof *c);
    struct lt_addrs addrs = {.n = 2};
    uv_loop_t loop;
    int closed[2] = {refuse_at(&addrs.v[0]), refuse_at(&addrs.v[1])};

    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(lt_client_init(c, &loop, &addrs, 60u * 1000000000u, true), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(ask(c), LT_END_CONNECT);
    assert_int_equal(c->opened, 4);
    assert_false(c->proven);
    finish(&loop, c, NULL);
    close(closed[0]);
    close(closed[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_next_address_is_tried_until_one_works),
        cmocka_unit_test(when_all_refuse_it_has_failed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
