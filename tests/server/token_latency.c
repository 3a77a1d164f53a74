/* What the server adds to a token: from the logits to the client's socket, one stream. The whole
 * daemon in this process, on the null model; a step is made to take a time, as with a real one, so
 * that every thread has gone to sleep when the token comes. A measurement, not a test.
 *
 * usage: token_latency [STEP_US [TOKENS]]     prints {"p50_us", "p90_us", "p99_us", "tokens"} */
#include "kernels/kernels.h"
#include "runtime/runtime.h"
#include "server/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static uint64_t step_ns = 1000000;
static uint64_t *made; /* when the logits of each token were there */
static _Atomic size_t n_made;
static size_t n_tokens = 3000;
static bool with_logits;
static _Atomic int port;

int __real_kr_launch(struct kr_exec *x, struct kr_kv_mem *m, const struct kr_batch *b,
                     uint64_t *ticket, struct cn_error *err);
int __wrap_kr_launch(struct kr_exec *x, struct kr_kv_mem *m, const struct kr_batch *b,
                     uint64_t *ticket, struct cn_error *err);
int __real_kr_collect(struct kr_exec *x, uint64_t ticket, float **logits, struct cn_error *err);
int __wrap_kr_collect(struct kr_exec *x, uint64_t ticket, float **logits, struct cn_error *err);

int __wrap_kr_launch(struct kr_exec *x, struct kr_kv_mem *m, const struct kr_batch *b,
                     uint64_t *ticket, struct cn_error *err)
{
    struct timespec pause = {.tv_sec = (time_t)(step_ns / 1000000000u),
                             .tv_nsec = (long)(step_ns % 1000000000u)};
    with_logits = b->rows[b->n_rows - 1].logits;
    while (nanosleep(&pause, &pause) && errno == EINTR)
        ;
    return __real_kr_launch(x, m, b, ticket, err);
}

int __wrap_kr_collect(struct kr_exec *x, uint64_t ticket, float **logits, struct cn_error *err)
{
    int rc = __real_kr_collect(x, ticket, logits, err);
    size_t n = atomic_load(&n_made);
    if (with_logits && n < n_tokens) {
        made[n] = cn_now_ns();
        atomic_store(&n_made, n + 1);
    }
    return rc;
}

struct server {
    struct srv *srv;
    struct rt *rt;
};

static void on_ready(void *arg)
{
    struct server *s = arg;
    atomic_store(&port, srv_port(s->srv));
}

static void *serve(void *arg)
{
    struct server *s = arg;
    struct cn_error err = {0};
    if (srv_run(s->srv, s->rt, &err)) fprintf(stderr, "%s\n", err.message);
    return NULL;
}

static void must(int rc, const struct cn_error *err)
{
    if (!rc) return;
    fprintf(stderr, "token_latency: %s\n", err->message);
    exit(1);
}

static int dial(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char body[160], text[400];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    while (!atomic_load(&port))
        usleep(1000);
    to.sin_port = htons((uint16_t)atomic_load(&port));
    int len = snprintf(body, sizeof body,
                       "{\"prompt\":\"a\",\"stream\":true,\"temperature\":0,\"max_tokens\":%zu}",
                       n_tokens);
    int n = snprintf(text, sizeof text,
                     "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                     "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
                     len, body);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) ||
        write(fd, text, (size_t)n) != n) {
        perror("token_latency");
        exit(1);
    }
    return fd;
}

/* Every token's text begins with a space. */
static void read_tokens(int fd, double *us)
{
    static const char mark[] = "\"text\":\" ";
    char buf[65536];
    size_t at = 0, seen = 0;
    while (seen < n_tokens) {
        ssize_t n = read(fd, buf, sizeof buf);
        uint64_t now = cn_now_ns();
        if (n <= 0) exit(1);
        for (ssize_t i = 0; i < n && seen < n_tokens; i++) {
            at = buf[i] == mark[at] ? at + 1 : buf[i] == mark[0];
            if (at < sizeof mark - 1) continue;
            at = 0;
            us[seen] = (double)(now - made[seen]) / 1e3;
            seen++;
        }
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
    struct cn_error err = {0};
    struct cfg cfg;
    static struct cn_metrics metrics;
    struct server s = {0};
    pthread_t thread;
    if (argc > 1) step_ns = strtoull(argv[1], NULL, 10) * 1000;
    if (argc > 2) n_tokens = CN_MAX(strtoul(argv[2], NULL, 10), 2ul);
    double *us = cn_calloc(n_tokens, sizeof *us);
    made = cn_calloc(n_tokens, sizeof *made);
    must(us && made ? cfg_init(&cfg, &err) : CN_ENOMEM, &err);
    cn_log_setup(CN_LOG_ERROR, CN_LOG_TEXT);
    cfg.server.port = 0;
    cfg.engine.threads = 1;
    struct rt_opts ro = {
        .cfg = &cfg, .metrics = &metrics, .model_id = "null", .model_path = "null:context=1048576"};
    struct srv_opts so = {.cfg = &cfg,
                          .metrics = &metrics,
                          .version = "0",
                          .ready = on_ready,
                          .ready_arg = &s,
                          .quiet = true};
    must(rt_new(&ro, &s.rt, &err), &err);
    must(srv_new(&so, &s.srv, &err), &err);
    must(pthread_create(&thread, NULL, serve, &s) ? CN_ENOMEM : 0, &err);
    int fd = dial();
    read_tokens(fd, us);
    close(fd);
    srv_stop(s.srv);
    pthread_join(thread, NULL);
    rt_free(s.rt);
    srv_free(s.srv);
    qsort(us + 1, n_tokens - 1, sizeof *us, by_value); /* the first has the head's time in it */
    printf("{\"p50_us\": %.1f, \"p90_us\": %.1f, \"p99_us\": %.1f, \"tokens\": %zu}\n",
           us[n_tokens / 2], us[n_tokens * 9 / 10], us[n_tokens * 99 / 100], n_tokens);
    free(us);
    free(made);
    cfg_fini(&cfg);
    return 0;
}
