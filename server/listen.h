/* Listening sockets: opened and bound before the model is loaded, so that a taken port is
 * reported at once; listened on when there is something to serve. Loop thread only, after
 * srv_listen_start. */
#ifndef SERVER_LISTEN_H
#define SERVER_LISTEN_H

#include "base/base.h"

#include <uv.h>

struct srv;

/* A socket of either kind, as libuv has it. */
union srv_uv_socket {
    uv_handle_t handle;
    uv_stream_t stream;
    uv_tcp_t tcp;
    uv_pipe_t pipe;
};

struct srv_listener {
    union srv_uv_socket u;
    struct srv *srv;
    int fd;       /* the socket; the handle has a copy, so that it can be closed and opened again */
    bool local;   /* Unix socket */
    bool inited;  /* the handle lives in the loop */
    bool resting; /* accept failed: the handle is closed until the tick opens it again */
    bool waiting; /* a connection is ready and not taken: at max_connections */
    char *path;   /* Unix socket to remove at the end, or NULL */
};

/* Opens config's TCP address and Unix socket, or takes those that systemd hands over
 * (LISTEN_FDS). Refuses an address that others can reach when no tenant has a key. */
int srv_listen_open(struct srv *s, struct cn_error *err);
int srv_listen_start(struct srv *s, struct cn_error *err);
/* Takes connections that waited for room, and listens again where accept had failed. */
void srv_listen_resume(struct srv *s);
void srv_listen_stop(struct srv *s);
void srv_listen_free(struct srv *s); /* frees what was opened and never started, too */

#endif
