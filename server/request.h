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
#include "server/pieces.h"

/* A call of a tool. Calls stay until the choice ends; in a stream their arguments until they are
 * sent. */
struct srv_tool_call {
    char id[96];
    struct cn_buf name, arguments; /* of a custom tool: its input */
    bool begun;                    /* streams: its id and name are out */
    bool custom;
    struct eng_extract input; /* of a custom tool's arguments */
    struct cn_buf raw;        /* they, until the input was found */
};

/* One choice of the answer. It collects what is not written yet: all of it, or what a stream has
 * not sent. Everything is paid for by the tenant's account. */
struct srv_choice {
    uint32_t index;
    bool queued;  /* streams: on the request's list of choices with something to send */
    bool started; /* streams: what comes before its text is out */
    bool ended, echoed;
    bool last;  /* streams: its last chunk is out */
    bool fresh; /* something in text, reasoning or calls is not sent */
    enum rt_finish finish;
    bool cut;             /* the arguments of its last call are not whole */
    bool hurried;         /* its form was completed for want of tokens */
    bool one_call, skips; /* calls after the first are left out; one is */
    enum eng_call_ids call_ids;
    const struct cn_buf *customs; /* names of custom tools, the call's */
    size_t past_calls;            /* of the conversation, which ids count: ENG_IDS_KIMI */
    const char *stop_text;        /* one of the call's, or NULL */
    struct cn_buf text, reasoning;
    struct srv_tool_call *calls;
    size_t n_calls, cap_calls;
    const struct rt_event *prompt; /* the echoed prompt's tokens; its part's, or NULL */
    struct cn_buf tokens;          /* of struct rt_token, and */
    struct cn_buf top;             /* of struct cn_top: their alternatives */
    size_t n_sent;                 /* streams: of the prompt's and these tokens */
    size_t ids_sent;               /* streams: of the prompt's ids, where they are asked for */
    size_t text_sent;              /* streams: bytes of the echoed text */
    struct eng_detok detok;        /* where tokens lie in the text, for text_offset */
    struct cn_buf shown;           /* what the last one added to it */
    uint64_t offset;               /* code points before the next token */
    double logprob_sum;
    uint64_t n_tokens;
    struct srv_choice *next; /* on the request's list */
};

/* One prompt: one request of the runtime. */
struct srv_sub {
    uint32_t slot;
    bool live;               /* submitted, END not seen */
    bool accepted;           /* it can not be refused any more */
    struct rt_event *prompt; /* owned: its tokens' log-probabilities, for all choices; or NULL */
};

/* What a worker does for a request. */
enum srv_work {
    SRV_WORK_NONE,
    SRV_WORK_HEAD,    /* reads the body's head: which model, streamed or not */
    SRV_WORK_PREPARE, /* the rest of the body; template, tokens */
    SRV_WORK_SUBMIT,  /* hands its parts to the runtime */
    SRV_WORK_WRITE,   /* writes the answer, or a piece of it */
};

/* What of the answer is on its way. */
enum srv_sent {
    SRV_SENT_NOTHING, /* an error has a status of its own */
    SRV_SENT_EVENTS,  /* a stream's head, and events as they come */
    SRV_SENT_ALL_IN,  /* the same, and nothing more comes: it ends when all is written */
    SRV_SENT_PIECES,  /* pieces of an answer that is not streamed and too long for one */
};

struct srv_req {
    struct srv *srv;
    struct srv_conn *conn; /* NULL: answered, or the client is gone */
    struct srv_req *prev, *next;
    struct srv_call *call;
    uint64_t tenant;             /* id */
    uint64_t key;                /* cfg_key_id of its key; 0: none */
    struct cfg_tenants *tenants; /* held: those when it began */
    uint32_t job_slot;
    enum srv_work work;
    enum srv_sent sent;
    uint32_t *order; /* of the choices in an answer that is not streamed */
    bool held;       /* call->model is */
    bool cancelled;
    bool stream; /* the answer is to be streamed */
    bool paused; /* the engine waits for its reader */
    struct srv_sub *subs;
    size_t n_subs, n_live, n_accepted, n_ended;
    struct srv_choice *choices; /* n_subs * best_of */
    size_t n_choices;
    struct srv_choice *waiting, **waiting_tail; /* streams: choices with something to send */
    struct srv_req *next_sending;
    bool sending;     /* on the server's list */
    uint64_t kept;    /* streams: about how many bytes of output are not written yet */
    uint64_t wait_ns; /* since when its model is waited for, under job_slot's id; 0: it is not */
    uint64_t submitted_ns, wrote_ns, paused_ns;
    uint64_t first_ns; /* the first token; 0: none came */
    int code;          /* why it failed, 0: it did not */
    char id[40];
    char request_id[SRV_REQUEST_ID + 1];
    char peer[SRV_PEER_TEXT], key_id[9]; /* for its line in the log */
    uint64_t bytes;                      /* of the answer's body so far */
    int64_t created;
    struct rt_usage usage;
    struct cn_buf prefix; /* of every chunk: {"id":...,"choices":[ */
};

/* Starts an API request; answers errors itself. */
void srv_req_start(struct srv *s, struct srv_conn *c, enum srv_op op);
/* Its client is gone. */
void srv_req_gone(struct srv_req *q);
/* Its stream's output was all taken. */
void srv_req_sent(struct srv_req *q);
/* Ends the answer with an error, in whatever form is still possible, and cancels the rest. */
void srv_req_fail(struct srv_req *q, const struct cn_error *err);

/* Whose request it is, with the limits that it began with. */
const struct cfg_tenant *srv_req_tenant(const struct srv_req *q);
/* Gives the runtime more of its inputs, as those before are done. */
void srv_req_submit_more(struct srv_req *q);
/* Whether the head of its stream is out. */
static inline bool srv_req_streams(const struct srv_req *q)
{
    return q->sent == SRV_SENT_EVENTS || q->sent == SRV_SENT_ALL_IN;
}
/* Frees the record when nothing needs it any more. */
void srv_req_release(struct srv_req *q);
/* The names that the runtime gives to fields, as the endpoint calls them. */
void srv_req_name_field(const struct srv_req *q, struct cn_error *err);

/* ---- between request.c and req_submit.c ------------------------------------------------------ */

/* Cancels the parts of the request that the runtime has. */
void srv_req_cancel_subs(struct srv_req *q);
/* Forgets the parts that the runtime was never given, which get no END. */
void srv_req_drop_unsubmitted(struct srv_req *q);
/* Counts a request that never reached the engine; those that did are counted there. */
void srv_req_count_refused(struct srv *s, enum srv_op op, uint64_t tenant);
/* Gives the call to a worker; job_slot is taken. */
void srv_req_job(struct srv_req *q, enum srv_work work);
/* The call is read: on to the engine. */
void srv_req_submit(struct srv_req *q);
/* All that was to be handed over is, or the call says why not. */
void srv_req_submitted(struct srv_req *q);

/* ---- req_event.c ----------------------------------------------------------------------------- */
/* All parts have ended, and none is being handed over: finishes the answer. Else nothing. */
void srv_req_ended(struct srv_req *q);
/* Whether the record has taken the event over. */
bool srv_req_event(struct srv_req *q, uint32_t sub, struct rt_event *e);

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

/* ---- sse.c -----------------------------------------------------------------------------------
 * Events only collect; what there is to send is written by srv_sse_work, within the turn and while
 * the reader keeps up. */
void srv_sse_begin(struct srv_req *q);
void srv_sse_tick(struct srv_req *q, uint64_t now);
/* The choice has something to send. */
void srv_sse_choice(struct srv_req *q, struct srv_choice *c);
/* Every part has ended: the stream does when all is sent. */
void srv_sse_finish(struct srv_req *q);
void srv_sse_fail(struct srv_req *q, const struct cn_error *err);
void srv_sse_drained(struct srv_req *q);
/* The record goes, or its client has gone. */
void srv_sse_forget(struct srv_req *q);

/* ---- output.c: what both dialects share, and each one's shapes ------------------------------- */
int srv_out_begin(struct srv_req *q);   /* id and prefix */
int srv_out_choices(struct srv_req *q); /* makes the choices */
void srv_out_choices_free(struct srv_req *q);
/* Takes a TOKENS event into a choice's buffers. */
int srv_out_tokens(struct srv_req *q, struct srv_choice *c, const struct rt_event *e);
/* A choice as chunks have it: the first (where the prompt's ids are asked for, some of them in each
 * chunk until all are out), a delta with a part of what there is, the last. */
void srv_out_role(struct cn_buf *b, struct srv_req *q, struct srv_choice *c);
void srv_out_delta(struct cn_buf *b, struct srv_req *q, struct srv_choice *c);
void srv_out_end(struct cn_buf *b, struct srv_req *q, struct srv_choice *c);
/* Whether a delta would have anything. */
bool srv_out_more(const struct srv_req *q, const struct srv_choice *c);
void srv_out_finish(struct cn_buf *b, const struct srv_req *q, const struct srv_choice *c);
void srv_out_usage(struct cn_buf *b, const struct srv_req *q);
const struct srv_prompt *srv_out_prompt(const struct srv_req *q, const struct srv_choice *c);
void srv_out_prompt_ids(struct cn_buf *b, const uint32_t *ids, size_t n);

/* ---- answer.c: answers that are not streamed ------------------------------------------------- */

/* All parts have ended: writes the answer, by a worker and in pieces where it is long. */
void srv_answer_begin(struct srv_req *q);
/* A piece is there, or the first of them is due; the reader took all of the last one. */
void srv_answer_piece(struct srv_req *q);
void srv_answer_sent(struct srv_req *q);
/* Another piece is to be written by a worker (request.c). */
int srv_req_write(struct srv_req *q);

/* ---- tokens.c -------------------------------------------------------------------------------- */

enum srv_token_list {
    SRV_LIST_CONTENT, /* chat */
    SRV_LIST_TOKENS,
    SRV_LIST_LOGPROBS,
    SRV_LIST_TOP,
    SRV_LIST_OFFSETS, /* completions */
    SRV_LIST_IDS
};
/* Keeps an event's tokens and alternatives. */
int srv_tokens_keep(struct srv_choice *c, const struct rt_event *e);
/* The echoed prompt's and the kept ones. */
size_t srv_tokens_n(const struct srv_choice *c);
/* The end of a run from `from` on that takes about `work` (a token 2, an alternative 1) to
 * write. */
size_t srv_tokens_some(const struct srv_choice *c, size_t from, size_t work);
/* Streams: those before n are sent. */
void srv_tokens_sent(struct srv_choice *c, size_t n);
size_t srv_tokens_first(const struct srv_choice *c, enum srv_token_list list);
/* Appends entries from .. to - 1 with commas between them while b is shorter than `most`; returns
 * the first that is not there. */
size_t srv_tokens_put(struct cn_buf *b, const struct srv_req *q, struct srv_choice *c,
                      enum srv_token_list list, size_t from, size_t to, size_t most);

/* ---- reply.c: the parts of a chat answer ----------------------------------------------------- */

/* Takes the text of a TOKENS event into the choice's buffers. */
int srv_parts_take(struct srv_choice *c, const struct rt_event *e);
/* Whether there is something in them that a stream has not sent. */
bool srv_parts_fresh(const struct srv_choice *c);
/* No more of it comes. */
int srv_parts_end(struct srv_choice *c);
/* `"message":{...}` of a whole answer, and `"delta":{...}` with what is new. */
void srv_parts_message(struct cn_buf *b, const struct srv_req *q, const struct srv_choice *c);
void srv_parts_delta(struct cn_buf *b, const struct srv_req *q, const struct srv_choice *c);
/* What was new is sent. */
void srv_parts_sent(struct srv_choice *c);
void srv_parts_free(struct srv_choice *c);

#endif
