/* HTTP/1.1 exchanges with one server over libuv and llhttp: connections that are kept and used
 * again, time-outs, readers of a byte rate. One thread; nothing here knows of models. */
#ifndef LOADTEST_CLIENT_H
#define LOADTEST_CLIENT_H

#include "base/base.h"

#include <llhttp.h>
#include <sys/socket.h>
#include <uv.h>

enum lt_end {
    LT_END_OK,      /* the answer is whole, whatever its status */
    LT_END_CONNECT, /* no connection */
    LT_END_CLOSED,  /* the server closed, or reset, before the answer was whole */
    LT_END_TIMEOUT,
    LT_END_BAD_HTTP, /* what came is not HTTP */
};

struct lt_call;
struct lt_call_ops {
    /* Some of the body; false cuts the exchange: on_end is not called then. */
    bool (*on_data)(struct lt_call *c, uint64_t now_ns, const char *p, size_t n);
    /* Once, unless the exchange was cut. detail is for a person. The call may be freed in it. */
    void (*on_end)(struct lt_call *c, uint64_t now_ns, enum lt_end end, const char *detail);
};
/* One exchange; embedded in what the caller keeps of it. */
struct lt_call {
    const struct lt_call_ops *ops;
    struct cn_buf out;        /* the request's bytes; moved to the client by lt_client_start */
    uint64_t read_rate_bytes; /* a second; 0: as fast as it comes */
    int status;               /* 0 until the head is there */
    /* the client's own */
    struct lt_conn *conn;
    struct lt_call *prev, *next; /* of those under way, in the order of their start */
    uint64_t deadline_ns;
};

/* Where a server may be, in the order to be tried. */
#define LT_ADDRS 16
struct lt_addrs {
    struct sockaddr_storage v[LT_ADDRS];
    size_t n;
};

struct lt_client {
    uv_loop_t *loop;
    struct lt_addrs addrs;
    size_t addr; /* that connections are made to */
    bool proven; /* one was made: no other address is tried from then on */
    llhttp_settings_t settings;
    uv_timer_t sweep;
    uint64_t timeout_ns;
    bool keep_alive;
    struct lt_conn *conns, *idle; /* all of them; those that wait for a call */
    struct lt_call *first, *last;
    uint64_t opened, reused;
    char buffer[65536];
};

int lt_client_init(struct lt_client *c, uv_loop_t *loop, const struct lt_addrs *addrs,
                   uint64_t timeout_ns, bool keep_alive);
/* Starts an exchange. Failures come through on_end, never from within this call. */
void lt_client_start(struct lt_client *c, struct lt_call *call);
/* Cuts an exchange: its connection is closed, on_end is not called. */
void lt_client_cut(struct lt_client *c, struct lt_call *call);
/* Closes everything; calls under way are forgotten. Run the loop until it is empty afterwards. */
void lt_client_close(struct lt_client *c);

#endif
