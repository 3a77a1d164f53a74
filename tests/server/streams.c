/* A client for measuring: many connections from one thread, answers counted and thrown away.
 *
 * usage: streams PORT live N            N idle connections, each after one GET /health/live
 *        streams PORT hold N TOKENS     N streams, each until its answer has begun
 *        streams PORT read N TOKENS     likewise, and read on: who does not gives up its place
 *        streams PORT run N TOKENS      N streams read to their ends
 * live, hold and read print "ready" when all are there and keep them until standard input ends. run
 * prints {"events", "bytes", "seconds"}: `data:` lines, the last of each stream included. Exit
 * status 1: a connection failed, or an answer was not 200. */
#include "base/base.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

struct conn {
    int fd;
    uint64_t got;
    unsigned last;  /* bytes of "\ndata:" seen at the end of what came */
    unsigned blank; /* of the stream's last line */
    bool begun, done;
};

static const char mark[] = "\ndata:", last_line[] = "data: [DONE]";
static uint64_t events, bytes;

static void die(const char *what)
{
    fprintf(stderr, "streams: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int dial(int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void send_request(int fd, const char *mode, long tokens)
{
    char body[256], text[512];
    int n;
    if (!strcmp(mode, "live")) {
        n = snprintf(text, sizeof text, "GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n");
    } else {
        int len = snprintf(body, sizeof body,
                           "{\"messages\":[{\"role\":\"user\",\"content\":\"Say something\"}],"
                           "\"stream\":true,\"temperature\":0,\"ignore_eos\":true,"
                           "\"max_tokens\":%ld}",
                           tokens);
        n = snprintf(text, sizeof text,
                     "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                     "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
                     len, body);
    }
    if (write(fd, text, (size_t)n) != n) die("write");
}

/* Counts lines that begin with "data:", and sees the last one; both may be cut anywhere. */
static void count(struct conn *c, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        c->last = s[i] == mark[c->last] ? c->last + 1 : s[i] == mark[0];
        if (c->last == sizeof mark - 1) {
            c->last = 0;
            events++;
        }
        c->blank = s[i] == last_line[c->blank] ? c->blank + 1 : s[i] == last_line[0];
        if (c->blank == sizeof last_line - 1) {
            c->blank = 0;
            c->done = true;
        }
    }
}

/* True when the connection has what its mode waits for. */
static bool take(struct conn *c, const char *mode)
{
    static char buf[1 << 18];
    ssize_t n = read(c->fd, buf, sizeof buf);
    if (n <= 0) die("read");
    if (!c->got && (n < 12 || memcmp(buf + 9, "200", 3))) {
        fprintf(stderr, "streams: %.*s\n", (int)n, buf);
        exit(1);
    }
    c->got += (uint64_t)n;
    bytes += (uint64_t)n;
    c->begun = true;
    if (!strcmp(mode, "run")) {
        count(c, buf, (size_t)n);
        return c->done;
    }
    return true;
}

static void wait_all(struct conn *all, size_t n, int ep, const char *mode)
{
    struct epoll_event got[256];
    size_t left = n;
    while (left) {
        int k = epoll_wait(ep, got, (int)CN_ARRAY_LEN(got), 60000);
        if (k == 0) errno = ETIMEDOUT;
        if (k <= 0) die("epoll_wait");
        for (int i = 0; i < k; i++) {
            struct conn *c = got[i].data.ptr;
            if (!take(c, mode)) continue;
            epoll_ctl(ep, EPOLL_CTL_DEL, c->fd, NULL);
            left--;
        }
    }
}

/* Until standard input ends; what the first n connections get is thrown away. */
static void wait_for_end(struct conn *all, size_t n, int ep)
{
    static char buf[1 << 18];
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL};

    if (epoll_ctl(ep, EPOLL_CTL_ADD, 0, &e)) die("epoll_ctl");
    for (size_t i = 0; i < n; i++) {
        e.data.ptr = &all[i];
        if (epoll_ctl(ep, EPOLL_CTL_ADD, all[i].fd, &e)) die("epoll_ctl");
    }
    while (epoll_wait(ep, &e, 1, -1) == 1) {
        const struct conn *c = e.data.ptr;
        ssize_t got = read(c ? c->fd : 0, buf, sizeof buf);
        if (got <= 0 && !c) return;
        if (got <= 0) epoll_ctl(ep, EPOLL_CTL_DEL, c->fd, NULL);
    }
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: streams PORT live|hold|read|run N [TOKENS]\n");
        return 2;
    }
    const char *mode = argv[2];
    size_t n = strtoul(argv[3], NULL, 10);
    long tokens = argc > 4 ? strtol(argv[4], NULL, 10) : 0;
    struct rlimit fds;
    if (!getrlimit(RLIMIT_NOFILE, &fds)) {
        fds.rlim_cur = fds.rlim_max;
        setrlimit(RLIMIT_NOFILE, &fds);
    }
    struct conn *all = cn_calloc(n, sizeof *all);
    int ep = epoll_create1(EPOLL_CLOEXEC);
    if (!all || ep < 0) die("start");
    for (size_t i = 0; i < n; i++) {
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = &all[i]};
        all[i].fd = dial(atoi(argv[1]));
        if (epoll_ctl(ep, EPOLL_CTL_ADD, all[i].fd, &e)) die("epoll_ctl");
        if (!strcmp(mode, "run")) continue;
        send_request(all[i].fd, mode, tokens);
    }
    uint64_t start = cn_now_ns();
    for (size_t i = 0; i < n && !strcmp(mode, "run"); i++)
        send_request(all[i].fd, mode, tokens);
    wait_all(all, n, ep, mode);
    if (!strcmp(mode, "run")) {
        printf("{\"events\": %llu, \"bytes\": %llu, \"seconds\": %.6f}\n",
               (unsigned long long)events, (unsigned long long)bytes,
               (double)(cn_now_ns() - start) / 1e9);
    } else {
        puts("ready");
        fflush(stdout);
        wait_for_end(all, strcmp(mode, "read") ? 0 : n, ep);
    }
    for (size_t i = 0; i < n; i++)
        close(all[i].fd);
    free(all);
    close(ep);
    return 0;
}
