/* runtime: the engine threads. They drive schedulers with the engine, turn tokens into text, and
 * report events; models are loaded and unloaded. No sockets.
 *
 * Each engine group (cfg's `groups`; one without them) has a thread, started by rt_new, that owns
 * its scheduler, pool, device and the execs of its models. Other threads send it messages: submit
 * and cancel go in, events come back on the mailbox that each request names. Messages carry ids,
 * not pointers: a stale id is ignored. A request goes to the group of its model; commands about a
 * tenant go to all groups.
 *
 * With several models, a separate thread of the group loads those requested while there is room. A
 * user of a model holds it (rt_acquire, rt_release); a held model is not unloaded.
 *
 * Every accepted request yields: ACCEPTED, then (PROMPT), TOKENS... (or one EMBEDDING), one
 * CHOICE_END per choice, and exactly one END, whatever happens. A refused request yields only
 * END, with the reason. */
#ifndef RUNTIME_RUNTIME_H
#define RUNTIME_RUNTIME_H

#include "base/base.h"
#include "config/config.h"
#include "engine/text/text.h"

/* Defined in engine/engine.h and kernels/kernels.h. */
struct eng_model;
struct eng_model_info;
struct eng_recommended;
struct kr_device;
struct kr_prepare_opts;

struct rt;

struct rt_model_opts {         /* one of several models; all is copied */
    const char *id;            /* name clients use */
    const char *path;          /* file; NULL: the id's file in the models folder, as soon as it
                                * is there */
    const char *chat_template; /* file; NULL: the model's own */
    uint64_t context;          /* 0: the model's own */
    int kv_type;               /* enum cfg_kv_type */
    const char *sampling;      /* text of models.sampling; NULL: none */
    bool tools_fallback;       /* as models.tools_fallback */
    uint32_t group;            /* index of its group in cfg's groups */
    bool pin, preload;
};
struct rt_opts {
    const struct cfg *cfg;       /* borrowed for the life of the runtime */
    struct cn_metrics *metrics;  /* likewise */
    struct cfg_tenants *tenants; /* held for that time; NULL: those of cfg, which never change */
    /* One model, with the settings of cfg's group `model`: loaded by rt_new, never unloaded. */
    const char *model_path; /* resolved file */
    const char *model_id;   /* name clients use; copied */
    /* Or several (then the two above are ignored); the first is the default. */
    const struct rt_model_opts *models;
    size_t n_models;
    void (*progress)(void *arg, uint64_t done_bytes,
                     uint64_t total_bytes); /* loading; may be NULL */
    void *progress_arg;
};
/* The device that the config asks for; *out owned. rt_prepare_opts: the sizes of its steps. The
 * daemon, `conifer show` and `conifer plan` use the same. */
int rt_device_new(const struct cfg *cfg, struct kr_device **out, struct cn_error *err);
struct kr_prepare_opts rt_prepare_opts(const struct cfg *cfg);
/* Memory free now for weights, scratch and KV blocks: the device's own, or the machine's
 * (cfg_engine_memory). engine.memory_bytes is ignored. */
struct rt_room {
    uint64_t bytes;    /* 0: not known */
    bool own;          /* the device's own: no other program needs it */
    const char *whose; /* "machine", "device": for messages */
};
struct rt_room rt_room(const struct cfg *cfg, const struct kr_device *d);
/* Checks a file's header against these settings: CN_ERANGE for a model.context beyond what the
 * model was trained for; errors of eng_gguf_open for a file that is not a model. */
int rt_check_model(const struct cfg *cfg, const char *model_path, struct cn_error *err);

/* The size of the KV memory, and its reason. */
enum rt_kv_why {
    RT_KV_ASKED,  /* kv.memory_bytes */
    RT_KV_ENOUGH, /* scheduler.max_running windows need no more */
    RT_KV_HALF,   /* half of what is left; the rest is for the page cache and others */
    RT_KV_GIVEN   /* all that is left of engine.memory_bytes, or of the device's own memory */
};
struct rt_memory_plan {
    enum rt_kv_why why;
    uint64_t total_bytes; /* n_slabs of slab_bytes each */
    uint64_t slab_bytes;
    uint32_t n_slabs;
    uint64_t one_bytes; /* a sequence of the whole window; the largest of several models */
};
/* For a measured or opened model; info->exec has its sizes. left_bytes: memory left after weights
 * and scratch (0 = unknown). given: it is reserved for this daemon, so KV may take it all, not
 * half. CN_ENOMEM with the arithmetic when the memory cannot serve it. */
int rt_memory_for(const struct cfg *cfg, const struct eng_model_info *info, uint64_t left_bytes,
                  bool given, struct rt_memory_plan *out, struct cn_error *err);
/* rt_check_model for one of `models`. */
int rt_check_served(const struct rt_model_opts *m, struct cn_error *err);
/* Loads the model, or the preloaded ones of several (on the calling thread), sizes the pool and
 * starts the threads. CN_ENOMEM, with the arithmetic in the message, if memory does not suffice.
 * One of several models that cannot be loaded fails only its own requests. */
int rt_new(const struct rt_opts *opts, struct rt **out, struct cn_error *err);
/* Sizes several models by the rules of rt_new, without loading them. A model that cannot be
 * measured is logged, as at start. */
struct rt_model_weight {
    uint64_t bytes; /* weights and scratch; 0: it could not be measured */
    uint64_t context;
    int kv_type;           /* enum kr_type */
    uint64_t window_bytes; /* KV memory of a sequence of the whole window */
    uint64_t max_tokens;   /* longest sequence in KV memory; 0: its blocks do not fit */
    bool fits;             /* it can be loaded next to the pinned models */
};
struct rt_weights {        /* of an engine group */
    uint64_t there_bytes;  /* memory for all of it; 0: not known */
    bool own;              /* it is the device's own memory */
    uint64_t budget_bytes; /* part of it for weights and scratch; UINT64_MAX: not known */
    struct rt_memory_plan kv;
};
/* out: one for each of cfg's groups; each[n_models] comes zeroed. */
int rt_weigh(const struct rt_opts *opts, struct rt_weights *out, struct rt_model_weight *each,
             struct cn_error *err);
/* Ends all requests (END with CN_EDRAIN), stops the thread, frees everything. */
void rt_free(struct rt *r);
/* From now on submissions get CN_EDRAIN; running requests continue. */
void rt_drain(struct rt *r);
/* Requests accepted whose END has not been posted. */
uint64_t rt_in_flight(const struct rt *r);
/* Seconds after which a request refused for a full queue might be accepted (Retry-After), >= 1. */
uint32_t rt_retry_after_s(const struct rt *r);

/* The only model; valid for the runtime's life. Its vocabulary and template are immutable and may
 * be used from any thread. NULL with several models: those must be acquired. */
struct eng_model *rt_model(const struct rt *r);
/* Id of the only or the default model. */
const char *rt_model_id(const struct rt *r);
/* "fp_...": identifies the only model and the numeric path; "" with several models. */
const char *rt_fingerprint(const struct rt *r);

/* ---- models (models.c, loader.c): any thread ------------------------------------------------- */

/* One of the configured models; valid for the runtime's life. */
struct rt_model;
enum rt_model_state { RT_UNLOADED, RT_LOADING, RT_LOADED, RT_FAILED, RT_N_MODEL_STATES };
/* Sampling defaults of a model. */
struct rt_sampling {
    struct eng_sampling v;
    const char *from; /* "file", "catalog", "default", or "config" if that sets any */
};
/* The defaults of a measured or opened file. file: info->recommended; config: values set there. */
void rt_sampling_for(const char *path, const struct eng_recommended *file,
                     const struct cfg_sampling *config, struct rt_sampling *out);
/* Overrides s by the values set in `asked`. A temperature of 0 means the likeliest token whatever
 * the defaults are: filters and penalties that are not set with it are off. */
void rt_sampling_apply(struct eng_sampling *s, const struct cfg_sampling *asked);
/* How the tools of a request reach a model: not at all, described in the system message, or by its
 * chat template. */
enum rt_tools { RT_TOOLS_NONE, RT_TOOLS_FALLBACK, RT_TOOLS_NATIVE };
/* t: the template, or NULL; fallback: models.tools_fallback. */
static inline enum rt_tools rt_tools_for(const struct eng_template *t, bool fallback)
{
    if (!t) return RT_TOOLS_NONE;
    if (eng_template_takes_tools(t)) return RT_TOOLS_NATIVE;
    return fallback ? RT_TOOLS_FALLBACK : RT_TOOLS_NONE;
}
static inline const char *rt_tools_name(enum rt_tools tools)
{
    static const char *const names[] = {"none", "fallback", "native"};
    return names[tools];
}
struct rt_model_status {
    const char *id; /* valid for the runtime's life */
    enum rt_model_state state;
    int64_t created_s;           /* when the runtime began to serve it */
    uint64_t context;            /* 0: not known */
    struct rt_sampling sampling; /* known with the context */
    bool embeds;                 /* as rt_embedding_size; known with the context */
    enum rt_tools tools;         /* likewise */
    bool pinned;
    char fingerprint[40];  /* "": not known */
    struct cn_error error; /* FAILED: why */
};
size_t rt_n_models(const struct rt *r);                     /* >= 1 */
struct rt_model *rt_model_at(const struct rt *r, size_t i); /* 0: the default */
uint32_t rt_model_number(const struct rt_model *m);
/* NULL if no model has that name. */
struct rt_model *rt_model_find(const struct rt *r, const char *name, size_t n);
void rt_model_status(const struct rt_model *m, struct rt_model_status *out);

/* Acquires a model. 0 with *held set: it is loaded and now held. 0 without: one RT_EV_MODEL will
 * arrive on `reply`; if its code is 0, the model is held from then on. Errors: CN_EDRAIN,
 * CN_ENOMEM, CN_ENOTREADY (a recent load failed; err says why). */
int rt_acquire(struct rt_model *m, uint64_t tenant, struct cn_mailbox *reply, uint64_t id,
               bool *held, struct cn_error *err);
/* Stops waiting. False: the event was posted already. */
bool rt_acquire_cancel(struct rt_model *m, const struct cn_mailbox *reply, uint64_t id);
/* Gives back what rt_acquire gave. */
void rt_release(struct rt_model *m);
struct rt_model_text {
    const struct eng_vocab *vocab;
    const struct eng_template *chat_template; /* NULL: it has none */
    const struct eng_reply_format *reply;
    const struct eng_history *history;
    const char *fingerprint;
    uint64_t context;
    enum rt_tools tools;
};
/* m must be held; the members point to memory that is valid while it is. */
void rt_model_text(const struct rt_model *m, struct rt_model_text *out);
/* m must be held. */
void rt_model_sampling(const struct rt_model *m, struct rt_sampling *out);
/* m must be held: the number of values of its embeddings; 0: it generates text. */
uint64_t rt_embedding_size(const struct rt_model *m);

struct rt_health {
    bool draining;
    bool failed;  /* the model's file changed under it (requests get CN_ENOTREADY), or its device is
                   * lost (CN_EDEVICE) */
    bool lost;    /* a device is lost */
    bool pending; /* it has work */
    bool stuck;   /* pending, and no progress for longer than stuck_after_ns */
    uint64_t since_progress_ns; /* time since the last launch or end of a step, while pending */
    uint64_t stuck_after_ns;    /* most that the step in flight should take: 2 s, or more if
                                 * measured steps take longer */
};
void rt_health(const struct rt *r, struct rt_health *out);

enum rt_priority { RT_INTERACTIVE, RT_NORMAL, RT_BACKGROUND };

/* What the requests of one call share: made once, reference-counted, immutable. Any thread. */
struct rt_shared;
struct rt_shared_in {        /* all copied */
    const char *const *stop; /* stop strings; removed from the output */
    size_t n_stop;
    const uint32_t *stop_ids; /* more ids that end a choice */
    size_t n_stop_ids;
    const struct cn_bias *bias; /* logit bias */
    size_t n_bias;
};
/* CN_ENOMEM, or 0 with *out, which the caller holds once. */
int rt_shared_new(const struct rt_shared_in *in, struct rt_shared **out);
struct rt_shared *rt_shared_ref(struct rt_shared *s); /* takes NULL */
void rt_shared_unref(struct rt_shared *s);            /* takes NULL */

/* Constrains an answer, for example to a grammar. `mask` is called by two threads beside the engine
 * thread, which calls the others: at once for different choices, but never for one choice. */
enum { RT_ALL_IDS, RT_SOME_IDS, RT_NO_TIME };
struct rt_guide {
    void *arg;
    /* What may come after the ids that were put and then these drafts. RT_SOME_IDS: those whose
     * bits it has set in the mask, which was all 0; if no bit is set, the request ends with
     * CN_ENUMERIC. RT_NO_TIME: finding out takes more than max_ns of processor time. Without drafts
     * it is then asked once more, by the second thread, with UINT64_MAX: the request is paused
     * meanwhile, and the steps of others go on. With drafts, these rows are not drawn. */
    int (*mask)(void *arg, uint32_t choice, const uint32_t *guesses, uint32_t n_guesses,
                uint64_t max_ns, uint32_t *mask);
    /* An id was emitted. Returns the number of ids that must come next: *forced, borrowed until the
     * next call. They are put one by one, without sampling. Masks must agree. May be NULL. */
    uint32_t (*put)(void *arg, uint32_t choice, uint32_t id, const uint32_t **forced);
    /* The choice has its whole answer: nothing more is asked for it. Not called for choices of a
     * request that fails. Engine thread. May be NULL. */
    void (*end)(void *arg, uint32_t choice);
    /* The most ids that a choice may have, as the window and the memory allow: once, before all
     * others. May be NULL. */
    void (*limit)(void *arg, uint64_t max_tokens);
    /* The request has ended: a mask that is being made, if there is one, is of no use. Engine
     * thread, while `mask` may run. May be NULL. */
    void (*stop)(void *arg);
};

/* A medium in a prompt (an image, a sound): n positions from `first` on hold rows of embeddings
 * instead of tokens. The prefix cache treats media with one digest as equal: it must cover
 * everything that the rows are computed from. `both`: the rows attend to each other both ways. */
struct rt_media {
    size_t first, n;
    uint8_t digest[32];
    float *embeds; /* [n][width of the model], as its first layer takes them */
    bool both;
};

/* A request, prompt already tokenised. rt_submit moves prompt (heap, freed with free()) and the
 * hold on shared when it returns 0; on failure they stay the caller's. */
struct rt_request {
    uint64_t id;              /* chosen by the caller, unique among its live requests */
    struct cn_mailbox *reply; /* where events go; outlives the request's END */
    uint32_t model;           /* the model's number (rt_model_at); held by the caller */
    uint64_t tenant;          /* a tenant's id; removed: CN_EREVOKED */
    uint64_t key;             /* cfg_key_id of the request's key; 0: none */
    enum rt_priority priority;
    uint32_t *prompt;
    size_t n_prompt;        /* >= 1 */
    struct rt_media *media; /* ascending, without overlap; heap, like the embeddings, and
                             * moved with the prompt, whose ids there are ignored.
                             * CN_EUNSUPP: the model or the device takes no such rows */
    size_t n_media;
    uint32_t (*turns)[3];          /* [n_prompt] for models whose positions are three numbers; heap,
                                    * moved. Output goes on from the last one. NULL: a position's own
                                    * number; CN_EUNSUPP: the model uses one */
    uint32_t adapter;              /* 0 = none; CN_EUNSUPP: the model does not have it */
    uint32_t n;                    /* choices, >= 1 */
    uint64_t max_tokens;           /* per choice; 0 = up to the window, or what memory holds */
    bool max_is_bound;             /* max_tokens is only a bound: less is fine if memory ends */
    struct eng_sampling sampling;  /* .bias and .stop_ids are those of shared */
    struct rt_shared *shared;      /* stop strings, stop ids, bias; NULL: none */
    bool include_stop;             /* keep the stop string in the output */
    bool special_tokens;           /* show control tokens in the text (skip_special_tokens false) */
    bool parted;                   /* the answer to a conversation, to be taken apart as the model's
                                    * template says (eng_model_reply); stop strings then count in
                                    * the answer, not in reasoning and calls */
    enum eng_reply_start start;    /* parted: where in the reply the prompt ends */
    const struct eng_tools *tools; /* parted: what the answer may call; borrowed until END; NULL:
                                    * nothing */
    bool one_call;                 /* parted: a choice ends when its first call is whole */
    bool embed;                    /* the prompt's vector, no text: n is 1, nothing is sampled; the
                                    * prompt may be as long as the window */
    bool prompt_logprobs;          /* PROMPT event with the prompt's own log-probabilities */
    const struct rt_guide *guide;  /* borrowed until END; NULL: no constraint */
    uint64_t deadline_ns;          /* cn_now_ns() time; 0 = none */
};
void rt_request_fini(struct rt_request *q); /* frees the members after a failed submit */

/* Thread-safe. 0: the request will end with exactly one END event. Otherwise CN_EDRAIN, CN_EQUEUE,
 * CN_ENOMEM, CN_EWINDOW ...: the request is still the caller's. */
int rt_submit(struct rt *r, struct rt_request *q, struct cn_error *err);
/* Thread-safe; takes effect within one iteration in any state. END follows (CN_ECANCELLED), unless
 * it was already posted. Unknown ids are ignored. */
void rt_cancel(struct rt *r, const struct cn_mailbox *reply, uint64_t id);
/* ---- tenants (tenant.c): any thread ---------------------------------------------------------- */

/* Sets the tenants; one caller at a time. New and changed settings take effect within one
 * iteration. Requests of removed tenants end with CN_EREVOKED; when they have ended, the tenant's
 * cache is dropped and the runtime leaves its slot. CN_ENOMEM: nothing has changed. */
int rt_tenants_set(struct rt *r, struct cfg_tenants *now);
/* Ends the requests of a tenant, or only those of one key (0: any), within one iteration; END has
 * the code. */
int rt_cancel_of(struct rt *r, uint64_t tenant, uint64_t key, int code);
/* Drops the tenant's cache in every group; blocks in use by its running requests stay. */
int rt_drop_cache(struct rt *r, uint64_t tenant);
/* Sets a tenant's lease of output tokens in one engine group (sch_tenant_lease); UINT64_MAX: no
 * limit. Requests there that need one more token than the lease has end with CN_EBUDGET. */
int rt_lease(struct rt *r, uint32_t group, uint64_t tenant, uint64_t tokens);

/* For a slow reader: a paused request keeps its blocks but takes no part in steps until resumed. */
void rt_pause(struct rt *r, const struct cn_mailbox *reply, uint64_t id, bool paused);

enum rt_event_kind {
    RT_EV_ACCEPTED,
    RT_EV_PROMPT,
    RT_EV_TOKENS,
    RT_EV_EMBEDDING,
    RT_EV_CHOICE_END,
    RT_EV_END,
    RT_EV_MODEL, /* answers rt_acquire: code, param, message as in END */
};
enum rt_finish { RT_FINISH_STOP, RT_FINISH_LENGTH, RT_FINISH_ERROR, RT_FINISH_CANCELLED };

struct rt_token {
    uint32_t id;
    float logprob;          /* NAN: none (the first prompt token) */
    uint32_t n_top, top_at; /* alternatives: event->top[top_at .. top_at + n_top) */
};
struct rt_usage {
    uint64_t prompt_tokens, cached_tokens, completion_tokens;
    uint64_t reasoning_tokens; /* of completion_tokens, in parted output */
    /* Its work: rows of all choices. */
    uint64_t computed_tokens;   /* computed for the first time, rejected drafts left out */
    uint64_t recomputed_tokens; /* computed again after preemptions */
    uint64_t written_tokens;    /* prompt tokens computed and written to the prefix cache */
    uint64_t drafted_rows, rejected_rows; /* draft rows; the rejected ones among them */
    uint64_t unseen_rows;                 /* rows computed after their choice had ended */
    uint64_t preemptions;
    uint64_t submitted_ns, first_step_ns, first_token_ns, ended_ns; /* cn_now_ns(); 0: never */
};
/* Owned by who takes it from the mailbox; rt_event_free. */
struct rt_event {
    struct cn_msg msg; /* first member */
    uint64_t id;
    enum rt_event_kind kind;
    uint32_t choice;
    uint32_t retry_s; /* MODEL with an error: seconds until it may be loaded; 0: not
                       * known */
    /* TOKENS: text that is final now (valid UTF-8, may be empty while text is held back) and the
     * tokens it came from; PROMPT: the prompt's tokens, no text. */
    const char *text;
    size_t text_len;
    const struct eng_run *runs; /* parted output: the parts of the text; none: all is the answer */
    size_t n_runs;
    const struct rt_token *tokens;
    size_t n_tokens;
    const struct cn_top *top;
    /* EMBEDDING: pooled, of length 1. */
    const float *vector;
    size_t n_vector;
    /* CHOICE_END: finish; stop_text: the stop string that matched, or NULL; cut: the arguments of a
     * call are not whole. */
    enum rt_finish finish;
    const char *stop_text;
    bool cut;
    /* END: 0 or the error, and the usage. */
    int code;
    struct cn_error *error; /* owned; NULL: the code suffices. See rt_event_reason */
    struct rt_usage usage;
};
/* The error of an END or MODEL with a code. */
static inline struct cn_error rt_event_reason(const struct rt_event *e)
{
    struct cn_error err = {0};
    if (e->error) return *e->error;
    if (e->code) cn_fail(&err, e->code, "%s", cn_err_info(e->code)->text);
    return err;
}
void rt_event_free(struct rt_event *e);

#endif
