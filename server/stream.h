/* A byte stream under HTTP: TCP and Unix sockets (stream_uv.c), a stand-in in tests, TLS later as
 * one more set of ops around another stream.
 *
 * Loop thread only. The owner appends to `out` and calls flush; the stream sends it, a slice
 * after the other, as the turns of the loop have time. Events never come from inside an op, except
 * that the stand-in of tests may do as it likes after flush. Invariant: after close, on_closed
 * comes exactly once and is the last event; the stream's memory is gone when it returns. */
#ifndef SERVER_STREAM_H
#define SERVER_STREAM_H

#include "base/base.h"
#include "server/peer.h"

struct srv_stream;

struct srv_stream_ops {
    void (*flush)(struct srv_stream *s);             /* send what is in out, soon */
    void (*read)(struct srv_stream *s, bool on);     /* whether on_read is wanted; starts off */
    void (*shutdown)(struct srv_stream *s);          /* no more writes: FIN after what is queued */
    void (*close)(struct srv_stream *s, bool reset); /* reset: drop what is queued, send RST */
    size_t (*unsent)(const struct srv_stream *s);    /* bytes appended that the kernel lacks */
};

struct srv_stream_events {
    void (*on_read)(void *owner, const char *data, size_t n);
    void (*on_eof)(void *owner);    /* the peer sends no more */
    void (*on_fail)(void *owner);   /* reading or writing failed: the peer is gone */
    void (*on_sent)(void *owner);   /* everything queued has been given to the kernel */
    void (*on_closed)(void *owner); /* last event */
};

struct srv_stream {
    const struct srv_stream_ops *ops;
    const struct srv_stream_events *events;
    void *owner;
    struct cn_buf out;          /* not yet handed to a write */
    struct cn_account *account; /* charged for out; NULL: no account is */
    bool local;                 /* a Unix socket: no browser can reach it */
    struct srv_peer peer;
};

struct srv;
struct srv_listener;
/* Takes the connection that the listener has ready; NULL when that failed. The caller sets events
 * and owner at once. */
struct srv_stream *srv_stream_accept(struct srv *s, struct srv_listener *from);

#endif
