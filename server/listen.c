/* Listening sockets: TCP, Unix, or handed over by systemd. Loop thread; owns server->listeners.
 * A connection that comes when there is no room stays with its listener, which libuv does not poll
 * until that connection has been taken. */
#include "server/listen.h"

#include "server/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define FIRST_HANDED_FD 3
#define BACKLOG         511
#define ACCEPT_LOG_NS   1000000000u

static int add_listener(struct srv *s, int fd, bool local, char *path)
{
    struct srv_listener *more =
        cn_realloc_array(s->listeners, s->n_listeners + 1, sizeof *s->listeners);
    if (!more) return CN_ENOMEM;
    s->listeners = more;
    struct srv_listener *l = &more[s->n_listeners++];
    memset(l, 0, sizeof *l);
    l->srv = s;
    l->fd = fd;
    l->local = local;
    l->path = path;
    return 0;
}

static bool loopback_addr(const struct sockaddr *sa)
{
    if (sa->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)sa)->sin_addr.s_addr) >> 24 == 127;
    if (sa->sa_family != AF_INET6) return false;
    const struct in6_addr *a = &((const struct sockaddr_in6 *)sa)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(a)) return a->s6_addr[12] == 127;
    return IN6_IS_ADDR_LOOPBACK(a);
}

static int need_keys(struct srv *s, const struct sockaddr *sa, struct cn_error *err)
{
    if (cfg_has_keys(s->cfg) || sa->sa_family == AF_UNIX || loopback_addr(sa)) return 0;
    return cn_fail_param(err, CN_EINVAL, "server.host",
                         "an address that others can reach needs tenants with keys "
                         "(make one with `conifer key new`)");
}

/* *missing: the machine lacks this kind of address. */
static int bind_one(struct srv *s, const struct addrinfo *ai, bool *missing, struct cn_error *err)
{
    int one = 1;
    *missing = false;
    int rc = need_keys(s, ai->ai_addr, err);
    if (rc) return rc;
    int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        *missing = errno == EAFNOSUPPORT;
        return cn_fail(err, CN_EIO, "socket: %s", strerror(errno));
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (ai->ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
    if (bind(fd, ai->ai_addr, ai->ai_addrlen)) {
        *missing = errno == EADDRNOTAVAIL;
        rc = cn_fail(err, CN_EIO, "cannot listen on %s port %d: %s%s", s->cfg->server.host,
                     (int)s->cfg->server.port, strerror(errno),
                     errno == EADDRINUSE ? "; stop the server that has it, or take another --port"
                                         : "");
    } else if ((rc = add_listener(s, fd, false, NULL))) {
        cn_fail(err, rc, "out of memory");
    }
    if (rc) close(fd);
    return rc;
}

static int bind_tcp(struct srv *s, struct cn_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    char port[16];
    size_t bound = 0;
    int rc = 0;

    snprintf(port, sizeof port, "%d", (int)s->cfg->server.port);
    int gai = getaddrinfo(s->cfg->server.host, port, &hints, &list);
    if (gai)
        return cn_fail_param(err, CN_EINVAL, "server.host", "cannot resolve %s: %s",
                             s->cfg->server.host, gai_strerror(gai));
    for (struct addrinfo *ai = list; ai; ai = ai->ai_next) {
        if (ai->ai_family != AF_INET && ai->ai_family != AF_INET6) continue;
        bool missing;
        int one = bind_one(s, ai, &missing, err);
        if (one == 0)
            bound++;
        else if (!missing || !ai->ai_next)
            rc = rc ? rc : missing && bound ? 0 : one;
        /* localhost is often both 127.0.0.1 and ::1; with a port of the system's choice one is
         * enough, as the two would differ. */
        if (bound && s->cfg->server.port == 0) break;
    }
    freeaddrinfo(list);
    if (!rc && !bound) rc = cn_fail(err, CN_EIO, "%s has no address", s->cfg->server.host);
    return rc;
}

/* Removes a socket file that no process listens on any more. */
static void remove_stale(const struct sockaddr_un *sa)
{
    struct stat st;

    if (lstat(sa->sun_path, &st) || !S_ISSOCK(st.st_mode)) return;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    if (connect(fd, (const struct sockaddr *)sa, sizeof *sa) && errno == ECONNREFUSED)
        unlink(sa->sun_path);
    close(fd);
}

static int bind_unix(struct srv *s, struct cn_error *err)
{
    const char *path = s->cfg->server.unix_socket;
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int rc = 0;

    if (!path || !*path) return 0;
    if (strlen(path) >= sizeof sa.sun_path)
        return cn_fail_param(err, CN_EINVAL, "server.unix_socket", "the path is longer than %zu",
                             sizeof sa.sun_path - 1);
    memcpy(sa.sun_path, path, strlen(path) + 1);
    remove_stale(&sa);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return cn_fail(err, CN_EIO, "socket: %s", strerror(errno));
    mode_t old = umask(0117); /* owner and group may connect */
    if (bind(fd, (struct sockaddr *)&sa, sizeof sa))
        rc = cn_fail(err, CN_EIO, "cannot listen on %s: %s", path, strerror(errno));
    umask(old);
    char *copy = rc ? NULL : strdup(path);
    if (!rc && (!copy || add_listener(s, fd, true, copy))) {
        rc = cn_fail(err, CN_ENOMEM, "out of memory");
        unlink(path);
        free(copy);
    }
    if (rc) close(fd);
    return rc;
}

/* systemd's sockets: file descriptors from 3 on, meant for this process id. */
static int take_handed(struct srv *s, bool *any, struct cn_error *err)
{
    const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
    int rc;

    *any = false;
    if (!pid || !count || strtol(pid, NULL, 10) != (long)getpid()) return 0;
    long n = strtol(count, NULL, 10);
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    for (int fd = FIRST_HANDED_FD; fd < FIRST_HANDED_FD + n; fd++) {
        struct sockaddr_storage sa;
        socklen_t len = sizeof sa;
        if (getsockname(fd, (struct sockaddr *)&sa, &len))
            return cn_fail(err, CN_EIO, "LISTEN_FDS: descriptor %d is not a socket", fd);
        if ((rc = need_keys(s, (struct sockaddr *)&sa, err))) return rc;
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
        if ((rc = add_listener(s, fd, sa.ss_family == AF_UNIX, NULL)))
            return cn_fail(err, rc, "out of memory");
        *any = true;
    }
    return 0;
}

int srv_listen_open(struct srv *s, struct cn_error *err)
{
    bool handed;
    int rc = take_handed(s, &handed, err);

    if (rc || handed) return rc;
    if ((rc = bind_tcp(s, err))) return rc;
    return bind_unix(s, err);
}

/* ---- serving --------------------------------------------------------------------------------- */

static void take(struct srv_listener *l)
{
    struct srv *s = l->srv;

    if (srv_gate_room(&s->gate) == SRV_ROOM_NONE) {
        l->waiting = true;
        return;
    }
    l->waiting = false;
    struct srv_stream *st = srv_stream_accept(s, l);
    if (st) srv_conn_new(&s->http, st);
}

/* A flood of connections must not become one of log lines: one a second, with how many it is
 * for. */
static void failed_accept(struct srv *s, int status)
{
    struct srv_accept_log *a = &s->accept_log;
    uint64_t now = cn_now_ns();

    a->failed++;
    if (a->told_ns && now - a->told_ns < ACCEPT_LOG_NS) return;
    if (a->failed > 1)
        cn_log(CN_LOG_WARN, "server", "accept: %s (%llu times since the last such line)",
               uv_strerror(status), (unsigned long long)a->failed);
    else
        cn_log(CN_LOG_WARN, "server", "accept: %s", uv_strerror(status));
    *a = (struct srv_accept_log){.told_ns = now};
}

static void on_rest(uv_handle_t *h)
{
    ((struct srv_listener *)h->data)->inited = false;
}

static void on_connection(uv_stream_t *h, int status)
{
    struct srv_listener *l = h->data;

    if (status < 0) { /* libuv has shed the connection already when descriptors are short */
        failed_accept(l->srv, status);
        /* libuv would try again and again without ever returning to the loop. */
        l->resting = true;
        uv_close(&l->u.handle, on_rest);
        return;
    }
    take(l);
}

static int open_listener(struct srv_listener *l)
{
    struct srv *s = l->srv;
    int fd = fcntl(l->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return uv_translate_sys_error(errno);
    int rc = l->local ? uv_pipe_init(&s->loop, &l->u.pipe, 0) : uv_tcp_init(&s->loop, &l->u.tcp);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    l->inited = true;
    l->u.handle.data = l;
    rc = l->local ? uv_pipe_open(&l->u.pipe, fd) : uv_tcp_open(&l->u.tcp, fd);
    if (rc < 0)
        close(fd);
    else
        rc = uv_listen(&l->u.stream, BACKLOG, on_connection);
    if (rc < 0) uv_close(&l->u.handle, on_rest);
    return rc;
}

int srv_listen_start(struct srv *s, struct cn_error *err)
{
    for (size_t i = 0; i < s->n_listeners; i++) {
        int rc = open_listener(&s->listeners[i]);
        if (rc < 0) return cn_fail(err, CN_EIO, "listen: %s", uv_strerror(rc));
    }
    return 0;
}

void srv_listen_resume(struct srv *s)
{
    for (size_t i = 0; i < s->n_listeners; i++) {
        struct srv_listener *l = &s->listeners[i];
        if (l->waiting && !uv_is_closing(&l->u.handle)) take(l);
        if (l->resting && !l->inited && open_listener(l) == 0) l->resting = false;
    }
}

void srv_listen_stop(struct srv *s)
{
    for (size_t i = 0; i < s->n_listeners; i++) {
        struct srv_listener *l = &s->listeners[i];
        l->waiting = l->resting = false;
        if (l->fd >= 0) close(l->fd);
        l->fd = -1;
        if (l->inited && !uv_is_closing(&l->u.handle)) uv_close(&l->u.handle, NULL);
        if (l->path) unlink(l->path);
        free(l->path);
        l->path = NULL;
    }
}

void srv_listen_free(struct srv *s)
{
    for (size_t i = 0; i < s->n_listeners; i++) {
        struct srv_listener *l = &s->listeners[i];
        if (l->fd >= 0) close(l->fd);
        if (l->path) unlink(l->path);
        free(l->path);
    }
    free(s->listeners);
    s->listeners = NULL;
    s->n_listeners = 0;
}

int srv_port(const struct srv *s)
{
    for (size_t i = 0; i < s->n_listeners; i++) {
        struct sockaddr_storage sa;
        socklen_t len = sizeof sa;
        int fd = s->listeners[i].fd;
        if (s->listeners[i].local || fd < 0) continue;
        if (getsockname(fd, (struct sockaddr *)&sa, &len)) continue;
        if (sa.ss_family == AF_INET) return ntohs(((struct sockaddr_in *)&sa)->sin_port);
        if (sa.ss_family == AF_INET6) return ntohs(((struct sockaddr_in6 *)&sa)->sin6_port);
    }
    return 0;
}
