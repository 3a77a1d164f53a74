/* HTTP/1.1 and 1.0 over a byte stream: connections, requests, answers. Knows no endpoint.
 *
 * Loop thread only. A connection handles one request at a time: while an answer is open, bytes of
 * the next request wait (and the end of the stream is still noticed). Each request that was handed
 * to the handler ends in exactly one of: a whole answer, the end of a streamed answer, on_gone.
 * What llhttp lets through and we do not is decided in http_check.c. */
#ifndef SERVER_HTTP_H
#define SERVER_HTTP_H

#include "base/base.h"
#include "server/gate.h"
#include "server/stream.h"
#include "server/text_pool.h"
#include "server/turn.h"

#include <llhttp.h>

#define SRV_MAX_TARGET    8192
#define SRV_MAX_HEAD      32768 /* request line, headers and what stands between */
#define SRV_MAX_HEADERS   100
#define SRV_MAX_CHUNK_EXT 4096
#define SRV_OPEN_BODY     4096   /* of a request that needs no key */
#define SRV_MAX_PIPELINED 65536  /* bytes kept while an answer is open */
#define SRV_REQUEST_ID    64     /* characters of an id that a client may choose */
#define SRV_MAX_UNSENT    262144 /* with more unsent no further request is parsed; a stranger's: */
#define SRV_STRANGER_UNSENT    65536
#define SRV_STRANGERS          0     /* account and lane of connections that have shown no key */
#define SRV_CONN_BYTES         4096  /* what a connection counts for beside its buffers */
#define SRV_OUT_INCLUDED       2048  /* in it, of what waits to be sent: an error always has room */
#define SRV_BODY_AHEAD         65536 /* of a body has come: it has room for what was announced */
#define SRV_BODY_AHEAD_CHUNKED (1 << 20) /* likewise, for a body of any length */
#define SRV_REQUESTS_A_TURN    16        /* of one connection */
#define SRV_LINGER_IDLE_NS     (5 * 1000000000ull)
#define SRV_LINGER_MAX_NS      (30 * 1000000000ull)

/* Headers whose value matters; each may come once. */
enum srv_header {
#define HEADER(id, name) SRV_H_##id,
#include "server/headers.def"
#undef HEADER
    SRV_H_COUNT
};

/* The head of a request; alive from its first byte until its answer is done, or its streamed answer
 * has begun: streams may be many, and wait for long. */
struct srv_head {
    struct cn_error err; /* why the request is refused */
    struct cn_buf target;
    struct cn_buf name, value; /* of the header being read */
    struct cn_hold hold;       /* what the values count for */
    char *values[SRV_H_COUNT]; /* NUL-terminated, no NUL inside, NULL when absent */
    unsigned n_headers;
    size_t header_bytes;
    size_t path_at, path_len; /* in target */
    bool trailers;            /* past the head: headers are trailers, and dropped */
    char request_id[SRV_REQUEST_ID + 1];
};

enum srv_phase {
    SRV_IDLE,    /* between requests */
    SRV_HEADING, /* in a request's head */
    SRV_BODY,
    SRV_HANDLING, /* an answer is due */
    SRV_LINGER,   /* answered, reads only to let the peer see it */
    SRV_CLOSED,   /* waits for the stream's on_closed */
};

/* What becomes of bytes that come. */
enum srv_input {
    SRV_IN_READ,      /* they are parsed as they come */
    SRV_IN_QUEUED,    /* they wait for a turn of the loop, in http->ready */
    SRV_IN_BLOCKED,   /* they wait until what is unsent is sent */
    SRV_IN_THROTTLED, /* more came than is kept, and an answer is due: read once a tick */
};

/* Whose answer the request gets, and how its body goes out. */
enum srv_answer {
    SRV_ANSWER_WHOLE,   /* the handler's, in one */
    SRV_ANSWER_REFUSAL, /* head->err, once the message is whole */
    SRV_ANSWER_RAW,     /* the handler's, as it comes; its end is the connection's */
    SRV_ANSWER_CHUNKED, /* the handler's, as it comes */
};

struct srv_http_limits {
    size_t max_body;
    uint64_t header_ns, idle_ns, write_ns;
    uint64_t body_grace_ns, body_min_rate;
    uint64_t body_ns; /* for the whole body; 0: no limit */
};

struct srv_conn;
struct srv_http_handler {
    /* The head is whole and well-formed; the body is not read yet. Negative refuses it. */
    int (*on_head)(void *ctx, struct srv_conn *c, struct cn_error *err);
    /* The request is whole. The answer may come now or later. */
    void (*on_request)(void *ctx, struct srv_conn *c);
    /* The peer left while an answer was due; c->user is to be forgotten. */
    void (*on_gone)(void *ctx, struct srv_conn *c);
    /* A streamed answer's bytes were all given to the kernel. */
    void (*on_sent)(void *ctx, struct srv_conn *c);
    /* A connection's memory was given back. */
    void (*on_closed)(void *ctx);
    /* The request is about to be refused without on_request; NULL: not called. */
    void (*on_refused)(void *ctx, struct srv_conn *c, const struct cn_error *err);
    /* What Retry-After says with 429 and 503; NULL: one second. */
    uint32_t (*retry_after_s)(void *ctx);
    /* An answer begins: c->head is there, or the request had none. NULL: not called. */
    void (*on_answer)(void *ctx, const struct srv_conn *c, int status);
};

/* What all connections of a server share. */
struct srv_http {
    struct srv_http_limits limits;
    const struct srv_http_handler *handler;
    void *ctx;
    struct cn_metrics *metrics;
    struct srv_conn *conns;
    size_t n_conns;
    struct cn_budget *budget;             /* NULL: nothing is charged */
    struct srv_turn *turn;                /* NULL: turns have no bound */
    struct srv_text_pool *pool;           /* gives large bodies back; NULL: the loop does */
    struct srv_conn *ready, **ready_tail; /* bytes wait to be parsed, longest first */
    struct srv_gate *gate;                /* NULL: places are not counted */
    const struct srv_trust *trust;        /* NULL: no proxy is trusted */
    bool draining;                        /* every answer closes */
    uint64_t slow_closed, slow_told_ns;   /* closed for slow reading since the last line about it */
    int64_t date_s;
    char date[32];
};

struct srv_conn {
    struct srv_http *http;
    struct srv_stream *stream;
    struct srv_conn *prev, *next;
    void *user;        /* the handler's, while an answer is due */
    const void *route; /* the handler's notes between on_head and on_request */
    uint64_t tenant;   /* id of who asks; with that */
    uint64_t key;      /* cfg_key_id of the key that came; 0: none */
    uint64_t changes;  /* of the tenants before these were found */
    struct srv_place place;
    struct srv_peer client; /* whom the request at hand is for: the peer, or a proxy's client */
    const char *extra;      /* static: further header lines for a refusal, or NULL */
    llhttp_t parser;
    struct srv_head *head;
    struct cn_buf body;
    size_t body_bytes;   /* as announced; 0: in chunks, or none */
    struct cn_buf in;    /* bytes not parsed yet */
    struct cn_hold hold; /* SRV_CONN_BYTES; its account is the connection's */
    struct srv_conn *next_ready;
    uint64_t since_ns; /* start of the phase */
    uint64_t read_ns;  /* last byte read while lingering */
    uint64_t appended, stall_mark, stall_ns;
    size_t body_max;             /* bytes that this request's body may have */
    size_t raw_bytes, ext_bytes; /* of this phase; of chunk extensions */
    uint64_t *tally;  /* counts the bytes of the answer's body until the request is done; or NULL */
    uint32_t lane;    /* account that pays, and lane of its jobs */
    uint32_t retry_s; /* for Retry-After of a refusal; 0: as the handler says */
    enum srv_phase phase : 8;
    enum srv_input input : 8;
    enum srv_answer answer : 8;
    char key_id[9]; /* the first digits of the hash of the key that came; "" without a valid one */
    /* What is known of the request, */
    bool keep_alive : 1, http10 : 1, head_only : 1, has_body : 1;
    bool known : 1;   /* tenant is who asks */
    bool started : 1; /* more than empty lines came */
    /* and of the connection. */
    bool served : 1;  /* a request was answered */
    bool eof : 1;     /* its peer sends no more */
    bool overrun : 1; /* bytes of it were dropped: what follows cannot be parsed */
    bool pumping : 1; /* conn_pump is at work: it goes on by itself */
};

void srv_http_init(struct srv_http *h, const struct srv_http_handler *handler, void *ctx,
                   struct cn_metrics *metrics);
/* A new connection on a stream (moved; closed when memory is short). NULL in that case. */
struct srv_conn *srv_conn_new(struct srv_http *h, struct srv_stream *stream);
/* Reports that the whole process was paused for pause_ns until now. No client could be served in
 * that time, so it is left out of the timeouts of all connections. Call it before the next
 * srv_http_tick. */
void srv_http_paused(struct srv_http *h, uint64_t pause_ns, uint64_t now);
/* Looks at time-outs of all connections. */
void srv_http_tick(struct srv_http *h, uint64_t now);
/* Closes connections that are between requests; the others close after their answer. */
void srv_http_drain(struct srv_http *h);
/* Closes all of them now. on_gone comes for open answers. */
void srv_http_close_all(struct srv_http *h);

/* Parses what waits of connections, in the order of its coming, until the turn is over. Whether
 * some is left. */
bool srv_http_work(struct srv_http *h);

/* ---- the request at hand --------------------------------------------------------------------- */

static inline enum llhttp_method srv_conn_method(const struct srv_conn *c)
{
    return (enum llhttp_method)c->parser.method;
}
/* This and the path: until the answer's stream has begun (srv_conn_stream_begin), when the
 * request's head goes. */
static inline const char *srv_conn_header(const struct srv_conn *c, enum srv_header id)
{
    return c->head->values[id];
}
/* The path of the target, still percent-encoded; not NUL-terminated. */
const char *srv_conn_path(const struct srv_conn *c, size_t *n);

/* ---- answers (http_answer.c) ----------------------------------------------------------------- */

/* A whole answer. extra: further header lines, each ending in CRLF, or NULL. */
void srv_conn_answer(struct srv_conn *c, int status, const char *type, const void *body, size_t n,
                     const char *extra);
/* An error in OpenAI's envelope, with the headers that its status asks for. */
void srv_conn_error(struct srv_conn *c, const struct cn_error *err, const char *extra);
/* A streamed answer: head, then data as often as wanted, then the end. Chunked, or ended by closing
 * for HTTP/1.0. `close`: the connection is closed afterwards in any case. */
void srv_conn_stream_begin(struct srv_conn *c, const char *type, const char *extra);
/* Whether n bytes of data have room: 0, or why not; nothing is appended. */
int srv_conn_room(struct srv_conn *c, size_t n);
void srv_conn_stream_data(struct srv_conn *c, const void *data, size_t n);
void srv_conn_stream_end(struct srv_conn *c, bool close);
/* Bytes appended that the kernel has not taken. */
size_t srv_conn_unsent(const struct srv_conn *c);
/* Drops the connection at once; on_gone does not come. */
void srv_conn_abort(struct srv_conn *c);
/* Appends {"error":{...}} for err. */
void srv_error_json(struct cn_buf *b, const struct cn_error *err);

/* ---- between http.c, http_parse.c, http_check.c, http_answer.c and http_time.c --------------- */

/* Callbacks of the parser, whose data is the connection. */
extern const llhttp_settings_t srv_parse_settings;
/* Enters a phase; its clock and its count of bytes begin. */
void srv_conn_phase(struct srv_conn *c, enum srv_phase phase);
/* Closes the connection; on_gone comes for an open answer. reset: what is queued is dropped. */
void srv_conn_close(struct srv_conn *c, bool reset);
/* Sends what is queued and a FIN, then reads until the peer closes too: closing with unread input
 * would send a reset, and the peer could lose the answer. */
void srv_conn_linger(struct srv_conn *c);
/* Answers a request that cannot continue, and closes: where the next one begins is not known. The
 * head's err is the reason when it is set, else code and text are. */
void srv_conn_break(struct srv_conn *c, int code, const char *text);

/* Notes one header (c->head->name and value) of the head. */
int srv_head_header(struct srv_head *h, struct cn_error *err);
/* All decisions on a whole head. */
int srv_head_check(struct srv_conn *c, struct cn_error *err);
/* host[:port] as RFC 9112 allows it in Host, without userinfo. */
bool srv_host_ok(const char *s, size_t n);
/* Answers head->err: the handler never sees the request. */
void srv_conn_refuse(struct srv_conn *c);
/* From now on the tenant that was found pays for the connection. */
int srv_conn_rebill(struct srv_conn *c);
/* Frees the head, which is no longer needed. */
void srv_conn_drop_head(struct srv_conn *c);
/* The answer is done: on to the next request, or towards closing. */
void srv_conn_done(struct srv_conn *c, bool close);
void srv_conn_append(struct srv_conn *c, const void *p, size_t n);

#endif
