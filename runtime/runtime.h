/* runtime: the engine threads. They drive schedulers with the engine, turn tokens into text, and
 * report events; models are loaded and unloaded. No sockets.
 *
 * Each engine group (cfg's `groups`; one without them) has a thread, started by rt_new, that owns its
 * scheduler, pool, device and the execs of its models. Others talk to it by messages: submit and
 * cancel go in, events come back on the mailbox that each request names. Ids, never pointers: a
 * stale id is ignored. A request goes to the group of its model; what concerns a tenant goes to all.
 *
 * Of several models those that are asked for are loaded, by a thread of the group's own, while there
 * is room; who uses a model holds it (rt_acquire, rt_release), and what is held is not unloaded.
 *
 * Every accepted request yields: ACCEPTED, then (PROMPT), TOKENS... (or one EMBEDDING), one
 * CHOICE_END per choice, and exactly one END, whatever happens. A refused one yields END alone,
 * with the reason. */
#ifndef RUNTIME_RUNTIME_H
#define RUNTIME_RUNTIME_H

#include "base/base.h"
#include "config/config.h"
#include "engine/text/text.h"

/* Only those who include engine/engine.h and kernels/kernels.h too can look into these. */
struct eng_model;
struct eng_model_info;
struct eng_recommended;
struct kr_device;
struct kr_prepare_opts;

struct rt;

struct rt_model_opts {              /* one of several models; all is copied */
    const char *id;                 /* name clients use */
    const char *path;               /* file; NULL: that of the id in the models folder, whenever it
                                     * is there */
    const char *chat_template;      /* file; NULL: the model's own */
    uint64_t context;               /* 0: the model's own */
    int kv_type;                    /* enum cfg_kv_type */
    const char *sampling;           /* as models.sampling; NULL: nothing */
    uint32_t group;                 /* that it runs in: an index of cfg's groups */
    bool pin, preload;
};
struct rt_opts {
    const struct cfg *cfg;          /* borrowed for the life of the runtime */
    struct cn_metrics *metrics;     /* likewise */
    struct cfg_tenants *tenants;    /* held for it too; NULL: those of cfg, for good */
    /* One model, with the settings of cfg's group `model`: loaded by rt_new, for good. */
    const char *model_path;         /* resolved file */
    const char *model_id;           /* name clients use; copied */
    /* Or several (then the two above are not read); the first is the default. */
    const struct rt_model_opts *models;
    size_t n_models;
    void (*progress)(void *arg, uint64_t done_bytes,
                     uint64_t total_bytes); /* loading; may be NULL */
    void *progress_arg;
};
/* The device that the config asks for, and the sizes of its steps: what serves is what `conifer
 * show` and `conifer plan` measure. *out returned owned. */
int rt_device_new(const struct cfg *cfg, struct kr_device **out, struct cn_error *err);
struct kr_prepare_opts rt_prepare_opts(const struct cfg *cfg);
/* What is free now for weights, scratch and KV blocks on a device: of its own memory, or of the
 * machine's (cfg_engine_memory). engine.memory_bytes is not looked at. */
struct rt_room {
    uint64_t bytes;    /* 0: not known */
    bool own;          /* the device's own: no other program needs it */
    const char *whose; /* "machine", "device": for messages */
};
struct rt_room rt_room(const struct cfg *cfg, const struct kr_device *d);
/* What a file's header alone says against serving it with these settings: a model.context beyond
 * what the model was trained for (CN_ERANGE), or a file that is no model (as eng_gguf_open). */
int rt_check_model(const struct cfg *cfg, const char *model_path, struct cn_error *err);

/* The KV memory that a daemon with this config takes for one model, and what decided it. */
enum rt_kv_why {
    RT_KV_ASKED,  /* kv.memory_bytes */
    RT_KV_ENOUGH, /* scheduler.max_running windows need no more */
    RT_KV_HALF,   /* half of what is left; the rest is for the page cache and others */
    RT_KV_GIVEN   /* all that is left of engine.memory_bytes, or of the device's own memory */
};
struct rt_memory_plan {
    enum rt_kv_why why;
    uint64_t total_bytes;        /* n_slabs of slab_bytes each */
    uint64_t slab_bytes;
    uint32_t n_slabs;
    uint64_t one_bytes;          /* a sequence of the whole window; of several models the largest */
};
/* For a measured or opened model; info->exec has its sizes. left_bytes: memory left after weights
 * and scratch (0 = unknown). given: it is reserved for this daemon, so KV may take it all, not
 * half. CN_ENOMEM with the arithmetic when the memory cannot serve it. */
int rt_memory_for(const struct cfg *cfg, const struct eng_model_info *info, uint64_t left_bytes,
                  bool given, struct rt_memory_plan *out, struct cn_error *err);
/* rt_check_model for one of `models`. */
int rt_check_served(const struct rt_model_opts *m, struct cn_error *err);
/* Loads the model, or those of several that are to be preloaded (on the calling thread), sizes the
 * pool, starts the threads. Memory that does not fit is CN_ENOMEM with the arithmetic in the
 * message. One of several models that cannot be loaded fails its own requests only. */
int rt_new(const struct rt_opts *opts, struct rt **out, struct cn_error *err);
/* What rt_new would make of several models, by the same rules; nothing is loaded. One that cannot be
 * measured is told in the log, as at start. */
struct rt_model_weight {
    uint64_t bytes;                 /* weights and scratch; 0: it could not be measured */
    uint64_t context;
    int kv_type;                    /* enum kr_type */
    uint64_t window_bytes;          /* KV memory of a sequence of the whole window */
    uint64_t max_tokens;            /* of it that the KV memory holds; 0: none of its blocks fits */
    bool fits;                      /* beside the pinned ones: it can be loaded */
};
struct rt_weights {                 /* of an engine group */
    uint64_t there_bytes;           /* for all; 0: not known */
    bool own;                       /* it is the device's own memory */
    uint64_t budget_bytes;          /* of it for weights and scratch; UINT64_MAX: not known */
    struct rt_memory_plan kv;
};
/* out: one for each of cfg's groups; each[n_models] comes zeroed. */
int rt_weigh(const struct rt_opts *opts, struct rt_weights *out, struct rt_model_weight *each,
             struct cn_error *err);
/* Ends all requests (END with CN_EDRAIN), stops the thread, frees everything. */
void rt_free(struct rt *r);
/* From now on submissions get CN_EDRAIN; running requests go on. */
void rt_drain(struct rt *r);
/* Requests accepted whose END has not been posted. */
uint64_t rt_in_flight(const struct rt *r);
/* Seconds after which a request refused for a full queue might be accepted (Retry-After), >= 1. */
uint32_t rt_retry_after_s(const struct rt *r);

/* The one model; valid for the runtime's life. Its vocabulary and template are immutable and may be
 * used from any thread. Of several: NULL, they must be acquired. */
struct eng_model *rt_model(const struct rt *r);
/* Of the one or of the default model. */
const char *rt_model_id(const struct rt *r);
/* "fp_...": the one model and the numeric path; "" where there are several. */
const char *rt_fingerprint(const struct rt *r);

/* ---- models (models.c, loader.c): any thread ------------------------------------------------- */

/* One of the configured models; valid for the runtime's life. */
struct rt_model;
enum rt_model_state { RT_UNLOADED, RT_LOADING, RT_LOADED, RT_FAILED, RT_N_MODEL_STATES };
/* What requests draw with that do not say otherwise. */
struct rt_sampling {
    struct eng_sampling v;
    const char *from;               /* "file", "catalog", "default", or "config" where that names
                                     * any of it */
};
/* For a file that was measured or opened: info->recommended; config: what it names. */
void rt_sampling_for(const char *path, const struct eng_recommended *file,
                     const struct cfg_sampling *config, struct rt_sampling *out);
/* What is named takes the place of what is there. A temperature of 0 means the likeliest token
 * whatever the defaults are: filters and penalties that are not named beside it are off. */
void rt_sampling_apply(struct eng_sampling *s, const struct cfg_sampling *asked);
struct rt_model_status {
    const char *id;                 /* valid for the runtime's life */
    enum rt_model_state state;
    int64_t created_s;              /* when the runtime began to serve it */
    uint64_t context;               /* 0: not known */
    struct rt_sampling sampling;    /* known with the context */
    bool embeds;                    /* as rt_embedding_size; known with the context */
    bool pinned;
    char fingerprint[40];           /* "": not known */
    struct cn_error error;          /* FAILED: why */
};
size_t rt_n_models(const struct rt *r);             /* >= 1 */
struct rt_model *rt_model_at(const struct rt *r, size_t i); /* 0: the default */
uint32_t rt_model_number(const struct rt_model *m);
/* NULL when there is none of that name. */
struct rt_model *rt_model_find(const struct rt *r, const char *name, size_t n);
void rt_model_status(const struct rt_model *m, struct rt_model_status *out);

/* Acquires a model. 0 with *held set: it is loaded and now held. 0 without: one RT_EV_MODEL will
 * arrive on `reply`; if its code is 0, the model is held from then on. Errors: CN_EDRAIN,
 * CN_ENOMEM, CN_ENOTREADY (a recent load failed; err says why). */
int rt_acquire(struct rt_model *m, uint64_t tenant, struct cn_mailbox *reply, uint64_t id, bool *held,
               struct cn_error *err);
/* No longer waits. False: the event is on its way, or was taken. */
bool rt_acquire_cancel(struct rt_model *m, const struct cn_mailbox *reply, uint64_t id);
/* Gives back what rt_acquire gave. */
void rt_release(struct rt_model *m);
struct rt_model_text {
    const struct eng_vocab *vocab;
    const struct eng_template *chat_template; /* NULL: it has none */
    const struct eng_reply_format *reply;
    const char *fingerprint;
    uint64_t context;
};
/* Of a held model; what the members point to is valid while it is held. */
void rt_model_text(const struct rt_model *m, struct rt_model_text *out);
/* Of a held model. */
void rt_model_sampling(const struct rt_model *m, struct rt_sampling *out);
/* Of a held model: values of an embedding; 0 where it generates text. It does one or the other. */
uint64_t rt_embedding_size(const struct rt_model *m);

struct rt_health {
    bool draining;
    bool failed; /* the model's file changed under it (requests get CN_ENOTREADY), or its device is
                  * lost (CN_EDEVICE) */
    bool pending;                   /* there is work */
    bool stuck;                     /* pending, and no progress for longer than stuck_after_ns */
    uint64_t since_progress_ns;     /* time since the last launch or end of a step, while pending */
    uint64_t stuck_after_ns;        /* longest time that what is under way should take: 2 s, or more
                                     * where measured steps say so */
};
void rt_health(const struct rt *r, struct rt_health *out);

enum rt_priority { RT_INTERACTIVE, RT_NORMAL, RT_BACKGROUND };

/* What the requests of one call have in common: made once, counted, immutable. Any thread. */
struct rt_shared;
struct rt_shared_in { /* all copied */
    const char *const *stop;  /* stop strings; removed from the output */
    size_t n_stop;
    const uint32_t *stop_ids; /* further ids that end a choice */
    size_t n_stop_ids;
    const struct cn_bias *bias; /* logit bias */
    size_t n_bias;
};
/* CN_ENOMEM, or 0 with *out, which the caller holds once. */
int rt_shared_new(const struct rt_shared_in *in, struct rt_shared **out);
struct rt_shared *rt_shared_ref(struct rt_shared *s); /* takes NULL */
void rt_shared_unref(struct rt_shared *s);            /* takes NULL */

/* What an answer may be, such as a text of a grammar. `mask` is called by a thread of its own while a
 * step runs, `put` by the engine thread; never both at once for a choice. */
struct rt_guide {
    void *arg;
    /* Which ids may come next, after those that were put and then these guesses: sets their bits of
     * a mask that is all 0, and true; false: all may. At least one bit is set. */
    bool (*mask)(void *arg, uint32_t choice, const uint32_t *guesses, uint32_t n_guesses,
                 uint32_t *mask);
    /* An id was put out. Returns how many ids must come next, which are then put one by one without
     * a draw: *forced, borrowed until the next call. Masks say the same of them. May be NULL. */
    uint32_t (*put)(void *arg, uint32_t choice, uint32_t id, const uint32_t **forced);
};

/* A medium in a prompt (an image, a sound): n positions from `first` on hold rows of embeddings, and not
 * tokens. Media of one digest are the same to the prefix cache: it is of all that the rows are computed
 * from. `both`: they see each other both ways. */
struct rt_media {
    size_t first, n;
    uint8_t digest[32];
    float *embeds;                  /* [n][width of the model], as its first layer takes them */
    bool both;
};

/* A request, prompt already tokenised. rt_submit moves prompt (heap, freed with free()) and the hold
 * on shared when it returns 0; on failure they stay the caller's. */
struct rt_request {
    uint64_t id;                    /* chosen by the caller, unique among its live requests */
    struct cn_mailbox *reply;       /* where events go; outlives the request's END */
    uint32_t model;                 /* its number (rt_model_at); held by the caller */
    uint64_t tenant;                /* id of a snapshot; of a removed one: CN_EREVOKED */
    uint64_t key;                   /* cfg_key_id of the key that it came with; 0: none */
    enum rt_priority priority;
    uint32_t *prompt;
    size_t n_prompt;                /* >= 1 */
    struct rt_media *media;         /* ascending, without overlap; heap, as the embeddings are, and
                                     * moved with the prompt, in whose place there anything may
                                     * stand. CN_EUNSUPP: the model or the device takes no such rows */
    size_t n_media;
    uint32_t (*turns)[3];           /* [n_prompt] for models whose positions are three numbers; heap,
                                     * moved. Output goes on from the last one. NULL: a position's own
                                     * number; CN_EUNSUPP: the model uses one */
    uint32_t adapter;               /* of the model, 0 = none; CN_EUNSUPP: it has no such one */
    uint32_t n;                     /* choices, >= 1 */
    uint64_t max_tokens;            /* per choice; 0 = up to the window, or what memory holds */
    bool max_is_bound; /* nobody asked for max_tokens: less is fine where memory ends */
    struct eng_sampling sampling;   /* .bias and .stop_ids are those of shared */
    struct rt_shared *shared;       /* stop strings, stop ids, bias; NULL: none */
    bool include_stop;              /* keep the stop string in the output */
    bool special_tokens; /* show control tokens in the text (skip_special_tokens false) */
    bool parted;         /* the answer to a conversation, to be taken apart as the model's
                                     * template says (eng_model_reply); stop strings then count in
                                     * the answer, not in reasoning and calls */
    enum eng_reply_start start;     /* parted: where in the reply the prompt ends */
    bool embed;                     /* the prompt's vector, no text: n is 1, nothing is sampled; the
                                     * prompt may be as long as the window */
    bool prompt_logprobs;           /* PROMPT event with the prompt's own log-probabilities */
    const struct rt_guide *guide;   /* borrowed until END; NULL: any answer is one */
    uint64_t deadline_ns;           /* cn_now_ns() time; 0 = none */
};
void rt_request_fini(struct rt_request *q); /* frees what a failed submit left */

/* Thread-safe. 0: the request will end with exactly one END event. Otherwise CN_EDRAIN, CN_EQUEUE,
 * CN_ENOMEM, CN_EWINDOW ...: nothing was taken. */
int rt_submit(struct rt *r, struct rt_request *q, struct cn_error *err);
/* Thread-safe; takes effect within one iteration in any state. END follows (CN_ECANCELLED), unless
 * it was already posted. Unknown ids are ignored. */
void rt_cancel(struct rt *r, const struct cn_mailbox *reply, uint64_t id);
/* ---- tenants (tenant.c): any thread ---------------------------------------------------------- */

/* From now on these are the tenants, in the order of calls; one caller at a time. What is new or
 * changed takes effect within one iteration; requests of those who are gone end with CN_EREVOKED.
 * When they have ended, their cache is dropped, and the runtime leaves their slots. CN_ENOMEM:
 * nothing has changed. */
int rt_tenants_set(struct rt *r, struct cfg_tenants *now);
/* Ends every request of a tenant, or only those that came with one key (0: any); END has the code.
 * Within one iteration. */
int rt_cancel_of(struct rt *r, uint64_t tenant, uint64_t key, int code);
/* Drops what is cached of the tenant, in every group; what its running requests use stays. */
int rt_drop_cache(struct rt *r, uint64_t tenant);
/* Gives it output tokens of one engine group, as sch_tenant_lease: UINT64_MAX takes the limit away.
 * Requests there that would need one more than there are end with CN_EBUDGET. */
int rt_lease(struct rt *r, uint32_t group, uint64_t tenant, uint64_t tokens);

/* A slow reader: the request keeps its blocks but takes no part in steps until resumed. */
void rt_pause(struct rt *r, const struct cn_mailbox *reply, uint64_t id, bool paused);

enum rt_event_kind {
    RT_EV_ACCEPTED, RT_EV_PROMPT, RT_EV_TOKENS, RT_EV_EMBEDDING, RT_EV_CHOICE_END, RT_EV_END,
    RT_EV_MODEL,                    /* answers rt_acquire: code, param, message as in END */
};
enum rt_finish { RT_FINISH_STOP, RT_FINISH_LENGTH, RT_FINISH_ERROR, RT_FINISH_CANCELLED };

struct rt_token {
    uint32_t id;
    float logprob;                  /* NAN where there is none (first prompt token) */
    uint32_t n_top, top_at;         /* alternatives: event->top[top_at .. top_at + n_top) */
};
struct rt_usage {
    uint64_t prompt_tokens, cached_tokens, completion_tokens;
    uint64_t reasoning_tokens;      /* of completion_tokens, in parted output */
    /* What it took: rows of all choices. */
    uint64_t computed_tokens;       /* for the first time; without drafts that were wrong */
    uint64_t recomputed_tokens;     /* again, after preemptions */
    uint64_t written_tokens;        /* of the prompt, computed and now in the prefix cache */
    uint64_t drafted_rows, rejected_rows; /* rows of drafts; of these, wrong ones */
    uint64_t unseen_rows;           /* computed when their choice had ended */
    uint64_t preemptions;
    uint64_t submitted_ns, first_step_ns, first_token_ns, ended_ns; /* cn_now_ns(); 0: never */
};
/* Owned by who takes it from the mailbox; rt_event_free. */
struct rt_event {
    struct cn_msg msg;              /* first member */
    uint64_t id;
    enum rt_event_kind kind;
    uint32_t choice;
    uint32_t retry_s;               /* MODEL, refused: seconds after which it may be there; 0: not
                                     * known */
    /* TOKENS: text that is final now (valid UTF-8, may be empty while text is held back) and the
     * tokens it came from; PROMPT: the prompt's tokens, no text. */
    const char *text;
    size_t text_len;
    const struct eng_run *runs; /* of parted output: what the text is; none: all is the answer */
    size_t n_runs;
    const struct rt_token *tokens;
    size_t n_tokens;
    const struct cn_top *top;
    /* EMBEDDING: pooled, of length 1. */
    const float *vector;
    size_t n_vector;
    /* CHOICE_END: finish; stop_text: the stop string that matched, or NULL. */
    enum rt_finish finish;
    const char *stop_text;
    /* END: 0 or the error, and what was used. */
    int code;
    struct cn_error *error; /* owned; NULL: the code says it all. rt_event_reason reads it */
    struct rt_usage usage;
};
/* Why, of an END or MODEL with a code. */
static inline struct cn_error rt_event_reason(const struct rt_event *e)
{
    struct cn_error err = {0};
    if (e->error) return *e->error;
    if (e->code) cn_fail(&err, e->code, "%s", cn_err_info(e->code)->text);
    return err;
}
void rt_event_free(struct rt_event *e);

#endif
