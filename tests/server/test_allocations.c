/* A token costs no allocation of ours on its way from the logits to the socket: the whole daemon in
 * this process, on the null model, with malloc, calloc and realloc counted where our code calls
 * them. A step is made to take a time, as with a real model, so that frames do not pile up. One
 * allocation in 128 tokens is let pass: the pool's nodes of blocks, two to nine in 1600 tokens, and
 * buffers that grow where a busy machine lets the loop fall behind. That being the machine's doing,
 * and not a token's, the least of TRIES tries counts: a try can only be too many by it, never too
 * few, and what a token allocates itself is there in all of them. One allocation in a hundred
 * tokens fails. */
#include "kernels/kernels.h"
#include "runtime/runtime.h"
#include "server/server.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

enum { WARM = 300, COUNTED = 1600, AFTER = 100, TOKENS_EACH = 128, TRIES = 12 };

static _Atomic bool counting;
static _Atomic uint64_t n_allocs;

/* None fails: they are counted. */
static bool alloc_fails(void)
{
    if (atomic_load_explicit(&counting, memory_order_relaxed)) atomic_fetch_add(&n_allocs, 1);
    return false;
}

#include "tests/wrap_alloc.h"

int __real_kr_launch(struct kr_exec *x, struct kr_kv_mem *m, const struct kr_batch *b,
                     uint64_t *ticket, struct cn_error *err);
int __wrap_kr_launch(struct kr_exec *x, struct kr_kv_mem *m, const struct kr_batch *b,
                     uint64_t *ticket, struct cn_error *err);

int __wrap_kr_launch(struct kr_exec *x, struct kr_kv_mem *m, const struct kr_batch *b,
                     uint64_t *ticket, struct cn_error *err)
{
    usleep(200);
    return __real_kr_launch(x, m, b, ticket, err);
}

static struct srv *srv;
static struct rt *rt;
static struct cfg cfg;
static struct cn_metrics metrics;
static pthread_t thread;
static _Atomic int port; /* -1: it could not start */

static void on_ready(void *arg)
{
    atomic_store(&port, srv_port(srv));
}

static void *serve(void *arg)
{
    struct cn_error err = {0};
    if (srv_run(srv, rt, &err)) fprintf(stderr, "%s\n", err.message);
    atomic_store(&port, -1);
    return NULL;
}

static int start(void **state)
{
    struct cn_error err = {0};
    if (cfg_init(&cfg, &err)) return -1;
    cn_log_setup(CN_LOG_ERROR, CN_LOG_TEXT);
    cfg.server.port = 0;
    cfg.engine.threads = 1;
    struct rt_opts ro = {
        .cfg = &cfg, .metrics = &metrics, .model_id = "null", .model_path = "null:vocab=16384"};
    struct srv_opts so = {
        .cfg = &cfg, .metrics = &metrics, .version = "0", .ready = on_ready, .quiet = true};
    if (rt_new(&ro, &rt, &err) || srv_new(&so, &srv, &err)) return -1;
    return pthread_create(&thread, NULL, serve, NULL) ? -1 : 0;
}

static int stop(void **state)
{
    srv_stop(srv);
    pthread_join(thread, NULL);
    rt_free(rt);
    srv_free(srv);
    cfg_fini(&cfg);
    return 0;
}

static int ask(const char *path, const char *body)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char head[400];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    while (!atomic_load(&port))
        usleep(1000);
    assert_true(atomic_load(&port) > 0);
    to.sin_port = htons((uint16_t)atomic_load(&port));
    int n = snprintf(head, sizeof head,
                     "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                     "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                     path, strlen(body));
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    assert_int_equal(write(fd, head, (size_t)n), n);
    assert_int_equal(write(fd, body, strlen(body)), strlen(body));
    return fd;
}

static int dial(const char *path, const char *fields)
{
    char body[400];
    snprintf(body, sizeof body, "{\"stream\":true,\"max_tokens\":%d,%s}", WARM + COUNTED + AFTER,
             fields);
    return ask(path, body);
}

/* Reads on until `n` events were seen in all, or the stream ends. */
static void read_events(int fd, size_t *seen, size_t n)
{
    static const char mark[] = "\ndata: {";
    static size_t at; /* of the mark, as far as it was read; a stream begins anew */
    char buf[4096];
    if (!*seen) at = 0;
    while (*seen < n) {
        ssize_t got = read(fd, buf, sizeof buf);
        if (got <= 0) return;
        for (ssize_t i = 0; i < got; i++) {
            at = buf[i] == mark[at] ? at + 1 : buf[i] == mark[0];
            if (at < sizeof mark - 1) continue;
            at = 0;
            ++*seen;
        }
    }
}

/* The tokens that it counted, and the allocations in them. */
static size_t count(const char *path, const char *fields, uint64_t *allocs)
{
    size_t seen = 0, from;
    int fd = dial(path, fields);
    read_events(fd, &seen, WARM);
    from = seen;
    atomic_store(&n_allocs, 0);
    atomic_store(&counting, true);
    read_events(fd, &seen, WARM + COUNTED);
    atomic_store(&counting, false);
    *allocs = atomic_load(&n_allocs);
    from = seen - from;
    read_events(fd, &seen, SIZE_MAX);
    close(fd);
    if (seen >= WARM + COUNTED) return from;
    *allocs = 1; /* the loop fell behind, and chunks had several tokens each: no try */
    return 0;
}

static void check(const char *path, const char *fields)
{
    uint64_t allocs, least = UINT64_MAX;
    for (int i = 0; i < TRIES; i++) {
        size_t tokens = count(path, fields, &allocs);
        if (allocs * TOKENS_EACH <= tokens) return;
        least = CN_MIN(least, allocs);
    }
    fail_msg("%s: %llu allocations or more in %d tokens", fields, (unsigned long long)least,
             COUNTED);
}

static void test_chat(void **state)
{
    check("/v1/chat/completions", "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]");
}

static void test_kinds_of_sampling(void **state)
{
    check("/v1/completions", "\"prompt\":\"b\",\"temperature\":0");
    check("/v1/completions", "\"prompt\":\"c\",\"temperature\":0.7,\"top_p\":0.9");
    check("/v1/completions", "\"prompt\":\"d\",\"temperature\":2,\"top_p\":0.999");
    check("/v1/completions", "\"prompt\":\"d\",\"top_k\":40,\"top_p\":0.95,\"min_p\":0.01");
}

static void test_stop_strings(void **state)
{
    check("/v1/completions", "\"prompt\":\"e\",\"stop\":[\"never so\",\" nor so\"]");
}

static void test_logprobs(void **state)
{
    check("/v1/chat/completions", "\"messages\":[{\"role\":\"user\",\"content\":\"f\"}],"
                                  "\"logprobs\":true,\"top_logprobs\":2");
    check("/v1/completions", "\"prompt\":\"g\",\"logprobs\":2,\"presence_penalty\":0.5,"
                             "\"frequency_penalty\":0.1,\"repetition_penalty\":1.1");
    check("/v1/completions",
          "\"prompt\":\"h\",\"logprobs\":2,\"logit_bias\":{\"65\":-20,\"70\":3}");
}

/* The allocations from sending a prompt of so many bytes to the end of the answer, which scores all
 * of its tokens: about as many. (As ids, each would be an object of the body's.) */
static uint64_t count_prompt(int n_bytes, const char *fields, uint64_t *tokens)
{
    static char body[8192], answer[1 << 20];
    size_t got = 0;
    ssize_t k;
    int n = snprintf(body, sizeof body, "{\"max_tokens\":1,%s,\"prompt\":\"", fields);
    for (int i = 0; i < n_bytes; i++)
        body[n + i] = (char)('b' + i % 10);
    strcpy(body + n + n_bytes, "\"}");
    atomic_store(&n_allocs, 0);
    atomic_store(&counting, true);
    int fd = ask("/v1/completions", body);
    while ((k = read(fd, answer + got, sizeof answer - 1 - got)) > 0)
        got += (size_t)k;
    atomic_store(&counting, false);
    close(fd);
    answer[got] = 0;
    assert_non_null(strstr(answer, " 200 OK"));
    const char *list = strstr(answer, "\"token_logprobs\":[");
    assert_non_null(list);
    for (*tokens = 0, list = strchr(list, '['); *list != ']'; list++)
        *tokens += *list == ',';
    return atomic_load(&n_allocs);
}

/* What a longer prompt costs beyond a shorter one. */
static void test_prompt_logprobs(void **state)
{
    static const char *const kinds[] = {"\"echo\":true,\"logprobs\":0",
                                        "\"echo\":true,\"logprobs\":3"};
    for (size_t i = 0; i < CN_ARRAY_LEN(kinds); i++) {
        uint64_t least = UINT64_MAX, some = 0, more = 0;
        for (int t = 0; t < TRIES; t++) {
            uint64_t few = count_prompt(COUNTED / 4, kinds[i], &some);
            uint64_t many = count_prompt(COUNTED * 2, kinds[i], &more);
            assert_true(more - some > COUNTED);
            if ((many - CN_MIN(many, few)) * TOKENS_EACH <= more - some) break;
            least = CN_MIN(least, many - few);
            if (t == TRIES - 1)
                fail_msg("%s: %llu allocations or more in %llu tokens", kinds[i],
                         (unsigned long long)least, (unsigned long long)(more - some));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat),
        cmocka_unit_test(test_kinds_of_sampling),
        cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_prompt_logprobs),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
