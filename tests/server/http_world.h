/* One connection of the HTTP layer over the stand-in stream, with a handler that answers in the
 * ways the tests need: "/secret" is refused, "/later" is answered by the test, "/stream" is
 * streamed, anything else says its path and the length of its body. */
#ifndef TESTS_SERVER_HTTP_WORLD_H
#define TESTS_SERVER_HTTP_WORLD_H

#include "server/http.h"

#include "tests/server/fake_stream.h"

#define H "Host: a\r\n"

struct world {
    struct srv_http http;
    struct cn_metrics metrics;
    struct fake_stream *stream;
    struct srv_conn *open; /* a request of /later or /stream */
    unsigned requests, gone, closed, sent;
    size_t body_len;
};

void world_init(struct world *w);
/* Closes what is open; everything must be given back, whatever happened before. */
void world_fini(struct world *w);
/* What was sent so far. */
const char *world_sent(struct world *w);

#endif
