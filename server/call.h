/* An API request as a text worker sees it: from the body's bytes to prompts, sampling and stops;
 * or, for the endpoints that need no engine, to the whole answer. No connection, no loop. Owned by
 * its request record, except while the pool has it. */
#ifndef SERVER_CALL_H
#define SERVER_CALL_H

#include "config/config.h"
#include "engine/text/text.h"
#include "runtime/runtime.h"
#include "server/form.h"
#include "server/json.h"
#include "server/params.h"
#include "server/pieces.h"
#include "server/text_pool.h"

struct srv_req;

enum srv_op {
    SRV_OP_CHAT,
    SRV_OP_TEXT,
    SRV_OP_TOKENIZE,
    SRV_OP_DETOKENIZE,
    SRV_OP_TEMPLATE,
    SRV_OP_EMBED
};

#define SRV_MAX_PROMPTS    1024
#define SRV_MAX_CHOICES    1024 /* prompts times choices */
#define SRV_MAX_INPUTS     2048 /* of an embeddings request */
#define SRV_MAX_BIAS       1024
#define SRV_MAX_STOPS      64
#define SRV_MAX_STOP_BYTES 4096
#define SRV_PARAM          96 /* bytes of a field's name */

/* What a call reads: its model and the limits. Vocabulary, template, context and fingerprint are
 * there once the model is (srv_req holds it). */
struct srv_text_env {
    const struct eng_vocab *vocab;
    const struct eng_template *chat_template; /* NULL when the model has none */
    const struct eng_history *history;    /* how calls are written in it; NULL as the template */
    const struct eng_reply_format *reply; /* how its answers are marked; NULL as the template */
    enum rt_tools tools;                  /* how tools reach the model */
    const char *model_id, *fingerprint;
    uint64_t context;
    uint64_t embedding_size;      /* 0: the model generates text */
    struct eng_sampling sampling; /* what the request does not say */
    int64_t max_n, max_tokens;    /* limits of the config; max_tokens 0 = none */
    int64_t max_tokenize_tokens;
    struct srv_grammars *grammars;     /* kept for further requests */
    int64_t grammar_ms, grammar_bytes; /* limits of compiling one */
    int64_t mask_ms;                   /* and of following it by a token */
    double default_deadline_s;
};

/* A text on its way to tokens: as eng_tokenize takes it. */
struct srv_text {
    const char *data;
    size_t len;
    const struct eng_span *spans;
    size_t n_spans;
    unsigned flags;
};

struct srv_prompt {
    uint32_t *ids;
    size_t n;
    char *text; /* of a text prompt, when it is to be echoed */
    size_t text_len;
    float *vector; /* its embedding, once there: env->embedding_size values */
};

struct srv_call {
    struct srv_job job;             /* first member */
    uint64_t slot;                  /* who waits for it */
    const struct srv_text_env *env; /* own, as soon as the model is there */
    struct srv_text_env own;
    struct rt_model *model;
    enum srv_op op;
    uint64_t tenant, key;     /* ids */
    enum rt_priority ceiling; /* of the tenant */
    struct cn_hold hold;      /* what the call takes beside its buffers */
    struct cn_buf body;
    json_t *root;              /* the parsed body; NULL: not parsed yet */
    struct srv_json_room json; /* for the body, and JSON within its strings */
    struct srv_params p;       /* its JSON members are borrowed from root, and gone with it */
    bool head;                 /* p is read */
    uint64_t received_ns;
    int64_t header_deadline_ms; /* 0 = none */

    struct cn_error err; /* code 0: done */
    /* The answer: appends a piece of about SRV_PIECE bytes; true when it was the last, or
     * failed. */
    bool (*write)(struct srv_call *c, struct cn_buf *b);
    struct srv_cursor at;   /* where it stands */
    struct cn_buf answer;   /* the piece */
    bool written;           /* it is the last */
    struct srv_req *record; /* completions: what the engine gave */
    uint32_t *shown_ids;    /* /tokenize: the answer's */
    size_t n_shown_ids;
    struct cn_buf text; /* /detokenize, /apply-template: the answer's */
    struct srv_prompt *prompts;
    size_t n_prompts;
    struct eng_sampling sampling;
    struct cn_bias *bias;
    size_t n_bias;
    char **stop;
    size_t n_stop;
    uint32_t *stop_ids;
    size_t n_stop_ids;
    struct eng_tools *tools; /* what a chat offers; NULL: nothing */
    const json_t *larks;     /* formats of some of them: names with grammars of Lark. The body's */
    struct cn_buf customs;   /* names of those that are custom (custom.h), each with a NUL */
    size_t past_calls;       /* calls in its messages */
    bool legacy;             /* it offers them as functions, and gets function_call */
    struct srv_form form;    /* what the answer must be; its value is gone with root */
    struct eng_grammar *grammar; /* held; NULL: the answer is free */
    struct eng_guide **guides;   /* of each prompt that was submitted, with a grammar; and as the */
    struct rt_guide *rt_guides;  /* runtime takes them */
    struct rt_shared *shared;    /* stops and bias as the runtime takes them, once submitted */
    uint32_t n, best_of;         /* choices answered, choices generated */
    uint64_t max_tokens;         /* 0 = up to the window */
    const char *max_name;        /* the field that set max_tokens; NULL when the client did not */
    bool echo_only;              /* max_tokens 0 with echo: the prompt is all that is wanted */
    bool include_usage;
    bool want_logprobs;
    bool parted; /* chat: the answer is taken apart; where in it the prompt ends: */
    enum eng_reply_start start;
    char odd[SRV_PARAM]; /* chat: the first arguments that are no JSON object; "": all are */
    bool base64;         /* embeddings: not as numbers */
    enum rt_priority priority;
    uint64_t deadline_ns;

    struct rt *rt;            /* for srv_submit_work: where to, */
    struct cn_mailbox *reply; /* where events go, */
    uint64_t *ids;            /* each prompt's id, */
    size_t submit_until;      /* and how many to hand over */
    size_t n_submitted;       /* out: prompts the runtime has taken; with err fewer */
};

void srv_call_free(struct srv_call *c);
/* As srv_call_free, which the pool does where it takes long. pool may be NULL. */
void srv_call_drop(struct srv_call *c, struct srv_text_pool *pool);
/* Whether the engine answers it. */
bool srv_op_runs(enum srv_op op);
/* All that needs no model: parses the body, reads its fields and the deadline, where that is still
 * to be done. */
int srv_call_head(struct srv_call *c);
/* The same as a job: sets c->err. */
void srv_call_head_work(struct srv_job *job);
/* The job's work: everything from the body to the prompts or the answer; sets c->err. */
void srv_call_work(struct srv_job *job);

/* About how many ns srv_submit_work takes. */
uint64_t srv_submit_cost(const struct srv_call *c);
/* A job's work too: hands every prompt to the runtime. Any thread. */
void srv_submit_work(struct srv_job *job);

/* The next piece of the answer; a job's work too. Sets c->err. */
void srv_write_work(struct srv_job *job);
/* embed.c: the vectors -> the answer. */
bool srv_embed_write(struct srv_call *c, struct cn_buf *b);

/* Takes n bytes for the call from its tenant's account, until the call is freed; sets c->err. */
int srv_call_take(struct srv_call *c, uint64_t n);

/* At most what the ids of n bytes of text take, of which there may be `max` (0: any number). */
uint64_t srv_ids_bytes(size_t n, size_t max);

/* ---- between the files of the worker's side -------------------------------------------------- */

int srv_messages_check(struct srv_call *c); /* messages.c */
/* messages.c: checked messages, into the form that the template takes; after the tools' check. */
int srv_messages_fit(struct srv_call *c);
/* messages, tools, kwargs -> the conversation as text (chat.c). */
int srv_chat_render(struct srv_call *c, struct eng_rendered *out);
int srv_tools_read(struct srv_call *c);      /* tools.c: c->tools, and a form that is calls */
int srv_chat_prompt(struct srv_call *c);     /* chat.c: -> prompts[0] */
int srv_text_prompts(struct srv_call *c);    /* prompts.c: `prompt` or `input` in its four shapes */
int srv_embed_read(struct srv_call *c);      /* embed.c: all but the input */
int srv_tokenize_answer(struct srv_call *c); /* prompts.c */
int srv_detokenize_answer(struct srv_call *c); /* prompts.c */
int srv_text_answer(struct srv_call *c);       /* call.c: c->text is the answer */
void srv_deadline_read(struct srv_call *c);    /* sampling.c */
int srv_priority_read(struct srv_call *c);     /* sampling.c */
/* prompts.c: for eng_tokenize: at most `max` ids (0 = any number), in slices, ended with the
 * call. */
struct eng_ids srv_ids_for(struct srv_call *c, uint64_t max);
int srv_counts_read(struct srv_call *c);   /* sampling.c: n and best_of */
int srv_sampling_read(struct srv_call *c); /* sampling.c: all that is not text, nor these */
/* prompts.c: the text has more tokens than the window; how many, where counting them is cheap. */
int srv_too_long(struct srv_call *c, const char *field, const struct srv_text *t);
/* sampling.c: the window holds every prompt and what was asked for after it. */
int srv_window_check(struct srv_call *c);

#endif
