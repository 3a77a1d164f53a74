/* Records of API requests: from the body to the last byte of the answer.
 *
 * Loop thread only. A record is reached from other threads' messages by slot and generation, never
 * by pointer. It lives until its answer is done (or its client gone), no worker has its call, and
 * every part that the runtime accepted has sent its END. Each counter (tenant, jobs, slots) is
 * raised and lowered exactly once per record. */
#ifndef SERVER_REQUEST_H
#define SERVER_REQUEST_H

#include "server/call.h"
#include "server/internal.h"

/* A call of a tool. Calls stay until the choice ends; in a stream their arguments until they are
 * sent. */
struct srv_tool_call {
    char id[32];
    struct cn_buf name, arguments;
    bool begun; /* streams: its id and name are out */
};

/* One choice of the answer. Its buffers collect what is not sent yet: all of it, or one delta. */
struct srv_choice {
    uint32_t index;
    bool started; /* streams: its first chunk is out */
    bool ended, echoed;
    enum rt_finish finish;
    char *stop_text; /* or NULL */
    struct cn_buf text, reasoning;
    struct srv_tool_call *calls;
    size_t n_calls, cap_calls;
    struct cn_buf ids;                                      /* token ids, comma-separated */
    struct cn_buf content;                                  /* chat: entries of logprobs.content */
    struct cn_buf lp_tokens, lp_values, lp_top, lp_offsets; /* completions: the four lists */
    struct eng_detok detok; /* where tokens lie in the text, for text_offset */
    struct cn_buf shown;    /* what the last one added to it */
    uint64_t offset;        /* code points before the next token */
    bool dirty;             /* something to send */
    double logprob_sum;
    uint64_t n_tokens;
};

/* One prompt: one request of the runtime. */
struct srv_sub {
    uint32_t slot;
    bool live;     /* submitted, END not seen */
    bool accepted; /* it can not be refused any more */
    struct rt_usage usage;
};

struct srv_req {
    struct srv *srv;
    struct srv_conn *conn; /* NULL: answered, or the client is gone */
    struct srv_req *prev, *next;
    struct srv_call *call;
    uint32_t tenant;
    uint32_t job_slot;
    bool on_worker;
    bool reading;    /* the worker's job is to read the body's head, */
    bool submitting; /* or to submit; else all between */
    bool answering;  /* or to write the answer (embeddings) */
    bool held;       /* call->model is */
    bool cancelled;
    bool stream, begun; /* a streamed answer; its head is out */
    bool paused;
    struct srv_sub *subs;
    size_t n_subs, n_live, n_accepted, n_ended;
    struct srv_choice *choices; /* n_subs * best_of */
    size_t n_choices;
    uint64_t wait_ns; /* since when its model is waited for, under job_slot's id; 0: it is not */
    uint64_t submitted_ns, wrote_ns, paused_ns;
    uint64_t first_ns;    /* the first token; 0: none came */
    int code;             /* why it failed, 0: it did not */
    char id[40];
    char request_id[SRV_REQUEST_ID + 1];
    int64_t created;
    struct rt_usage usage;
    struct cn_buf prefix; /* of every chunk: {"id":...,"choices":[ */
};

/* Starts an API request; answers errors itself. */
void srv_req_start(struct srv *s, struct srv_conn *c, enum srv_op op, uint32_t tenant);
/* Its client is gone. */
void srv_req_gone(struct srv_req *q);
/* Its stream's output was all taken. */
void srv_req_sent(struct srv_req *q);
/* Ends the answer with an error, in whatever form is still possible, and cancels the rest. */
void srv_req_fail(struct srv_req *q, const struct cn_error *err);

/* All vectors of an embeddings request are there. */
void srv_req_answer_vectors(struct srv_req *q);
/* Gives the runtime more of its inputs, as those before are done. */
void srv_req_submit_more(struct srv_req *q);
/* Frees the record when nothing needs it any more. */
void srv_req_release(struct srv_req *q);
/* The names that the runtime gives to fields, as the endpoint calls them. */
void srv_req_name_field(const struct srv_req *q, struct cn_error *err);

/* ---- req_event.c ----------------------------------------------------------------------------- */
void srv_req_event(struct srv_req *q, uint32_t sub, const struct rt_event *e);

/* ---- vectors.c ------------------------------------------------------------------------------- */

/* Inputs that the runtime may have at once. */
size_t srv_vec_at_once(const struct srv_req *q);
/* Takes an EMBEDDING event: part sub has its vector. */
int srv_vec_take(struct srv_req *q, uint32_t sub, const struct rt_event *e);

/* ---- slot.c ---------------------------------------------------------------------------------- */
int srv_slot_take(struct srv *s, struct srv_req *q, uint32_t sub, uint32_t *out);
void srv_slot_give(struct srv *s, uint32_t i);
uint64_t srv_slot_id(const struct srv *s, uint32_t i);
struct srv_req *srv_slot_find(const struct srv *s, uint64_t id, uint32_t *sub);

/* ---- request_log.c --------------------------------------------------------------------------- */

/* One line about a request that is over: who, what, how it ended, how much. Never its text. */
void srv_req_log(const struct srv_req *q);

/* ---- sse.c -------------------------------------------------------------------------------------
 */
void srv_sse_begin(struct srv_req *q);
void srv_sse_tick(struct srv_req *q, uint64_t now);
/* Sends what the choice has collected; with `end`, its last chunk as well. */
void srv_sse_choice(struct srv_req *q, struct srv_choice *c, bool end);
void srv_sse_finish(struct srv_req *q);
void srv_sse_fail(struct srv_req *q, const struct cn_error *err);
void srv_sse_drained(struct srv_req *q);

/* ---- output.c: what both dialects share, and each one's shapes
 * ----------------------------------- */
int srv_out_begin(struct srv_req *q);   /* id and prefix */
int srv_out_choices(struct srv_req *q); /* makes the choices */
void srv_out_choices_free(struct srv_req *q);
/* Takes a TOKENS or PROMPT event into a choice's buffers. */
void srv_out_tokens(struct srv_req *q, struct srv_choice *c, const struct rt_event *e);
void srv_out_echo(struct srv_req *q, struct srv_choice *c, const struct srv_prompt *p);
/* One choice as it stands in an answer, and as a chunk's: delta, or the last one with its reason.
 */
void srv_out_choice(struct cn_buf *b, struct srv_req *q, struct srv_choice *c, uint32_t index);
void srv_out_role(struct cn_buf *b, struct srv_req *q, struct srv_choice *c);
void srv_out_delta(struct cn_buf *b, struct srv_req *q, struct srv_choice *c);
void srv_out_end(struct cn_buf *b, struct srv_req *q, struct srv_choice *c);
void srv_out_usage(struct cn_buf *b, const struct srv_req *q);
/* The whole answer that is not streamed. */
void srv_out_answer(struct cn_buf *b, struct srv_req *q);
void srv_choice_reset(struct srv_choice *c);

/* ---- reply.c: the parts of a chat answer ----------------------------------------------------- */

/* Takes the text of a TOKENS event into the choice's buffers. */
void srv_parts_take(struct srv_choice *c, const struct rt_event *e);
/* `"message":{...}` of a whole answer, and `"delta":{...}` with what is new. */
void srv_parts_message(struct cn_buf *b, const struct srv_choice *c);
void srv_parts_delta(struct cn_buf *b, const struct srv_choice *c);
/* What was new is sent. */
void srv_parts_sent(struct srv_choice *c);
void srv_parts_free(struct srv_choice *c);

#endif
