/* A byte stream without sockets: what the server writes is kept, what the test feeds is read.
 * Nothing happens but in fake_feed, fake_eof and fake_turn, so that every order can be played. */
#ifndef TESTS_SERVER_FAKE_STREAM_H
#define TESTS_SERVER_FAKE_STREAM_H

#include "server/stream.h"

struct fake_stream {
    struct srv_stream base;
    struct cn_buf sent; /* the peer has it */
    size_t window;      /* how much the peer takes per turn; SIZE_MAX = all */
    bool reading, shut, closing, closed, reset;
};

/* Outlives its connection: free it with fake_free after the end. */
struct fake_stream *fake_new(void);
void fake_free(struct fake_stream *f);
/* Bytes, or the end, from the peer; dropped when the server does not read. */
void fake_feed(struct fake_stream *f, const void *p, size_t n);
void fake_eof(struct fake_stream *f);
void fake_fail(struct fake_stream *f);
/* One turn of the loop: output moves to the peer; a close is carried out. */
void fake_turn(struct fake_stream *f);

#endif
