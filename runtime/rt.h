/* The runtime's own structs. Private to runtime/.
 *
 * Ownership: a struct rt_req belongs to the caller's thread until it is posted to the engine
 * thread, and to the engine thread from then on; it is freed when its END is posted. */
#ifndef RUNTIME_RT_H
#define RUNTIME_RT_H

#include "engine/engine.h"
#include "kvpool/kvpool.h"
#include "runtime/guide.h"
#include "runtime/pooled.h"
#include "runtime/runtime.h"
#include "runtime/shared.h"
#include "runtime/text_out.h"
#include "runtime/watch.h"
#include "scheduler/scheduler.h"

/* ---- requests (request.c) -------------------------------------------------------------------- */

struct rt_choice {
    struct kr_draw_state *sampler;
    struct kr_draw_at at; /* where the device was sent it last */
    struct rt_text_out text;
    int stop;    /* index of the matched stop string, or -1 */
    bool called; /* its first call is whole, and no other is wanted */
    uint64_t last_token_ns;
    uint64_t last_step;     /* number of the step that gave it */
    struct rt_aside *aside; /* NULL: none of its masks took long */
};

struct rt_prompt_score { /* of one prompt token */
    float logprob;
    uint32_t n_top;
    struct cn_top top[CN_MAX_TOP];
};

#define RT_MAX_MARKS 4

struct rt_req {
    struct rt *rt;
    struct rt_group *group;         /* the model's */
    struct rt_model *m;             /* held */
    struct rt_request q;            /* as submitted; owned */
    struct rt_choice *choices;      /* [q.n] */
    struct rt_prompt_score *scores; /* [n_prompt], only for prompt_logprobs */
    struct sch_media *media;        /* [q.n_media] */
    uint64_t marks[RT_MAX_MARKS];   /* positions after the ends of messages, ascending */
    uint32_t n_marks;
    struct rt_pooled *pooled; /* embedding requests only, which have no sampler and no text */
    uint64_t sch_id;
    struct rt_req *next;  /* in the table of live requests */
    uint8_t paused;       /* enum rt_pause: by what */
    uint32_t n_aside;     /* masks of it that are being made aside */
    bool over;            /* has ended; kept until n_aside is 0 */
    int error;            /* found by the runtime; overrides the scheduler's reason */
    struct rt_event *end; /* the END event, allocated early so that it cannot fail */
};

/* A request is paused while its client reads too slowly, its tenant's guides take too long, or a
 * mask of it is made aside. */
enum rt_pause { RT_PAUSE_READER = 1, RT_PAUSE_PACE = 2, RT_PAUSE_MASK = 4 };
void rt_req_pause(struct rt_req *req, enum rt_pause why, bool paused);

/* Whether it is an encoder: each row sees the whole prompt, which must be in one step. */
bool rt_reads_whole(const struct kr_exec_info *x);
/* Builds a request on the caller's thread; does everything that can fail or takes time. */
int rt_req_new(struct rt *r, const struct rt_request *q, struct rt_req **out, struct cn_error *err);
/* keep_request: the memory that q points to stays the caller's. */
void rt_req_free(struct rt_req *req, bool keep_request);
/* Posts its END, which is filled, and frees it. Engine thread. */
void rt_req_leave(struct rt_req *req);

/* ---- media in prompts (media.c) -------------------------------------------------------------- */

struct rt_flight;
void rt_media_free(struct rt_request *q);
/* Refuses by name what the model's exec does not take. */
int rt_media_check(const struct kr_exec_info *x, const struct rt_request *q, struct cn_error *err);
/* Puts the media's item ids into the prompt, and lists them for the scheduler. CN_ENOMEM. */
int rt_media_take(struct rt_req *req);
/* What the segment's rows of media hold; rows: of the segment. */
void rt_media_rows(const struct rt_req *req, const struct sch_segment *g, struct kr_row *rows,
                   uint64_t width);
/* The three numbers of a step's rows, where requests have them. CN_ENOMEM. */
int rt_media_turns(struct rt_flight *f, uint32_t n_rows);

/* The scheduler's callbacks (arg is the struct rt_group). */
enum sch_verdict rt_on_token(void *arg, const struct sch_token *t);
/* Whether this token ends a choice of the request. Any thread. */
bool rt_ends_choice(const struct rt_req *req, uint32_t id);
void rt_on_choice_end(void *arg, uint64_t id, void *user, uint32_t choice, enum sch_end reason);
void rt_on_end(void *arg, uint64_t id, void *user, enum sch_end reason, int code,
               const struct sch_usage *usage);

/* ---- events (event.c) ------------------------------------------------------------------------ */

/* Blocks of events that are used again, of one group. NULL when out of memory. Closed, it goes
 * once the last of its blocks was freed. */
struct rt_kept;
struct rt_kept *rt_kept_new(void);
void rt_kept_close(struct rt_kept *k);

struct rt_event_parts {
    struct rt_kept *kept; /* source of small blocks; NULL: the event is allocated */
    const struct eng_parts *text;
    const struct rt_token *tokens;
    size_t n_tokens;
    const struct cn_top *top;
    size_t n_top;
    const float *vector;
    size_t n_vector;
    const char *stop_text;
};
/* NULL when out of memory. Copies the parts. */
struct rt_event *rt_event_new(uint64_t id, enum rt_event_kind kind, uint32_t choice,
                              const struct rt_event_parts *parts);

/* Sets code and message; the code alone when out of memory, so that it cannot fail. */
void rt_event_fail(struct rt_event *e, const struct cn_error *err);

/* ---- steps (stepper.c) ----------------------------------------------------------------------- */

#define RT_MAX_DRAFT 16 /* most drafts of a choice in a step */

#define RT_MAX_DEPTH 2 /* steps in flight */

struct rt_logits_row;
/* A step from its launch until it is collected. */
struct rt_flight {
    const struct sch_step *step;
    struct rt_model *model;
    uint64_t ticket; /* of the model's exec */
    bool drawn;      /* else its rows are pooled to vectors */
    bool guided;     /* a request has a guide: jobs are filled */
    uint32_t n_logits;
    struct kr_row *rows;
    struct kr_seq *seqs, *more; /* more: further ones of the segments, in their order */
    uint32_t *changed;          /* by segment and group */
    uint32_t (*turns)[3];       /* by row; of steps with such requests */
    struct kr_draw *draws;
    struct rt_logits_row *logits_rows;
    struct sch_row_result *results;
    struct rt_mask_job *jobs; /* by segment; of guided requests */
    uint32_t *mask_words;
    const uint32_t **masks; /* by logits row */
    uint64_t masks_ns;      /* processor time that they took */
    size_t rows_cap, seqs_cap, more_cap, changed_cap, draws_cap, logits_cap, results_cap, jobs_cap,
        words_cap, masks_cap, turns_cap;
};
struct rt_stepper {
    struct rt_group *group;
    uint32_t depth; /* steps in flight */
    uint64_t n_launched, n_collected;
    struct rt_flight flights[RT_MAX_DEPTH]; /* by number */
    struct rt_model *model;                 /* of the last collected step */
    struct kr_draw_rooms rooms;             /* of all samplers */
    struct rt_masks masks, asides;          /* asides: made while their requests wait */
    uint32_t n_aside;                       /* jobs of asides that are not done */
};
void rt_stepper_init(struct rt_stepper *s, struct rt_group *g);
void rt_stepper_fini(struct rt_stepper *s);
/* With the group's device. */
struct sch_stepper rt_stepper_interface(struct rt_stepper *s);
/* The device gave CN_EDEVICE: every request ends so, and the runtime has failed. Engine thread. */
void rt_device_lost(struct rt_group *g);

/* ---- what preempted choices keep (host.c); engine thread ------------------------------------- */

struct rt_saved;
struct rt_host {
    struct rt_group *group;
    void *memory; /* kr_host_new; NULL: nothing is saved */
    uint64_t bytes;
    struct rt_saved *list;
    uint64_t last_id;
    struct kr_move *moves; /* scratch */
    size_t moves_cap;
};
/* By the config; CN_ENOMEM. */
int rt_host_init(struct rt_group *g, struct cn_error *err);
/* Nothing of this exec is needed any more; when it returns, nothing is moved for it. */
void rt_host_leave(struct rt_group *g, const struct kr_exec *x);
void rt_host_fini(struct rt_group *g); /* after the scheduler, before the device */
/* As sch_stepper's save, restore and forget. */
int rt_host_save(struct rt_host *h, struct kr_exec *x, const struct kv_held *blocks, uint32_t n,
                 uint64_t *id);
int rt_host_restore(struct rt_host *h, uint64_t id, const struct kv_held *blocks, uint32_t n);
void rt_host_forget(struct rt_host *h, uint64_t id);
/* Bytes per second of moves: as measured lately, else a guess. */
double rt_host_rate(const struct rt_host *h);

/* ---- memory (memory.c) ----------------------------------------------------------------------- */

/* One of several models: its groups and its window. */
struct rt_memory_ask {
    const struct kr_exec_info *info;
    uint64_t context;
};
/* How much KV memory, cut how, so that every model's blocks go into the slabs, and the memory
 * serves at least one of them. free_bytes: what the machine can give (0 = unknown), given: to this
 * daemon alone; want_bytes: from the config, 0 = choose. The message of CN_ENOMEM shows the
 * arithmetic. */
int rt_memory_plan_for(const struct rt_memory_ask *asks, size_t n, uint32_t block_tokens,
                       uint32_t max_running, uint64_t want_bytes, uint64_t free_bytes, bool given,
                       struct rt_memory_plan *out, struct cn_error *err);
/* As above for one model, whose blocks must go into the slabs. */
int rt_memory_plan(const struct kr_exec_info *info, uint32_t block_tokens, uint64_t context,
                   uint32_t max_running, uint64_t want_bytes, uint64_t free_bytes, bool given,
                   struct rt_memory_plan *out, struct cn_error *err);

/* Appends what each group takes: ", KV of 3 layers 3 KiB a token, state of ...". */
void rt_memory_text(const struct kr_exec_info *info, uint32_t block_tokens, struct cn_buf *out);

/* ---- tenants on the engine thread (tenant.c) ------------------------------------------------- */

/* By slot: the tenant there, and the counts last reported. The engine thread owns it. */
struct rt_tenants {
    struct rt_tenant {
        uint64_t id; /* of the tenant that is there, or was there last */
        uint64_t computed, cached, generated;
        uint64_t running, waiting; /* last reported, as part of a sum over the groups */
        uint64_t ended[3];         /* not reported yet: CN_TM_ok, CN_TM_error, CN_TM_cancelled */
        uint64_t embedded;         /* vectors: the scheduler counts each as a token */
        bool used, leaving;        /* leaving: its requests are ending */
        bool stale;                /* its settings differ from the scheduler's */
        bool changed;
    } *v;              /* [n] */
    uint32_t *changed; /* slots with `changed` set */
    size_t v_cap, changed_cap;
    uint32_t n, n_changed, next;
    uint32_t n_leaving, leave_at, to_look; /* to_look: slots not looked at since something ran */
    uint32_t party;
    uint64_t kv_bytes;           /* the pool's; kv_share is a fraction of it */
    struct cfg_tenants *now;     /* held: the snapshot in effect; NULL before the first */
    struct cfg_tenants *next_up; /* held: the next one, when memory is short; else NULL */
};
/* Puts a snapshot into effect. Engine thread, or before it runs. t is moved. CN_ENOMEM: retried
 * later. */
int rt_tenants_apply(struct rt_group *g, struct cfg_tenants *t);
/* After an iteration: removes leaving tenants that have nothing left. ran: the iteration found
 * work. True: call it again. */
bool rt_tenants_leave(struct rt_group *g, bool ran);
/* Refuses an id of a tenant that is gone. */
int rt_tenants_check(const struct rt_group *g, uint64_t id, struct cn_error *err);
void rt_tenants_fini(struct rt_tenants *t);
/* A request of this tenant was accepted or gave a token. */
void rt_tenant_changed(struct rt_group *g, uint32_t tenant);
/* A request of the tenant ended with this code. */
void rt_tenant_ended(struct rt_group *g, uint32_t tenant, int code);
/* After an iteration: reports the series of changed tenants, and of a few more in turn, because
 * some changes have no event (a start, a preemption). The cost does not grow with the tenants. */
void rt_tenants_tell(struct rt_group *g);
/* A vector was made; the scheduler counted a token for it. */
void rt_tenant_embedded(struct rt_group *g, uint32_t tenant);

/* ---- the time that guides take (pace.c): engine thread -------------------------------------- */

struct rt_pace {
    struct rt_debtor {
        uint64_t tenant, ns; /* ns: its debt */
        bool waits;          /* its guided requests are paused */
    } *v;
    size_t cap;
    uint32_t n;
    uint64_t paid_ns; /* when time last paid debts */
};
/* The tenant's guides took so much processor time for the masks of a step, or for a token. */
void rt_pace_charge(struct rt_pace *p, uint64_t tenant, uint64_t ns);
bool rt_pace_waits(struct rt_pace *p, uint64_t tenant);
/* Before an iteration: pays debts; pauses and resumes requests. Returns when it is to be called
 * again (cn_now_ns), UINT64_MAX = only after a charge. */
uint64_t rt_pace(struct rt_group *g, uint64_t now);
void rt_pace_fini(struct rt_pace *p);

/* Whether a model's blocks fit into slabs of that size (CN_EUNSUPP). */
int rt_memory_blocks_fit(const struct kr_exec_info *info, uint64_t slab_bytes,
                         struct cn_error *err);
/* Refuses (CN_ENEVERFIT) a request that the pool can never hold: fit_tokens is what it holds for
 * the request's tenant when nothing else runs. What was not asked for, *max_tokens loses
 * instead. */
int rt_memory_fit(const struct rt_request *q, uint64_t fit_tokens, uint64_t pool_bytes,
                  uint64_t *max_tokens, struct cn_error *err);

/* ---- models (models.c, open.c, loader.c) ----------------------------------------------------- */

enum rt_cmd_kind {
    RT_CMD_SUBMIT,
    RT_CMD_CANCEL,
    RT_CMD_PAUSE,
    RT_CMD_ATTACH,
    RT_CMD_DETACH,
    RT_CMD_TENANTS,
    RT_CMD_CANCEL_OF,
    RT_CMD_DROP_CACHE,
    RT_CMD_LEASE,
    RT_CMD_MASK,
    RT_CMD_STOP
};
struct rt_cmd { /* for the engine thread, which frees it, except ATTACH, DETACH and MASK */
    struct cn_msg msg;
    enum rt_cmd_kind kind;
    struct rt_req *req; /* SUBMIT: moved */
    const struct cn_mailbox *reply;
    uint64_t id;
    bool paused;
    struct rt_model *m;
    struct cfg_tenants *tenants; /* TENANTS: moved */
    uint64_t tenant, key, tokens;
    uint32_t choice; /* MASK: of req */
    int code;
};
/* Copies c into the inbox; CN_ENOMEM. Any thread. */
int rt_send(struct rt_group *g, struct rt_cmd c);
/* To every group, or, with CN_ENOMEM, to none. Each copy holds c.tenants once; the caller's hold
 * stays. */
int rt_send_all(struct rt *r, struct rt_cmd c);

/* A request waits for a model. The event is allocated beforehand, so that it cannot fail. */
struct rt_wait {
    struct rt_wait *next;
    struct cn_mailbox *reply;
    uint32_t tenant;
    uint64_t since_ns;
    struct rt_event *event;
};

/* A configured model. Its life: unloaded, (waits), loading, loaded, unloaded again. Only the loader
 * changes the state; what the engine thread knows of it comes and goes with ATTACH and DETACH. */
/* Identifies a file, so that a file that replaces it is noticed. All 0: a model without a file. */
struct rt_file {
    uint64_t dev, ino, bytes;
    int64_t mtime_s, mtime_ns;
};

struct rt_model {
    /* never changed */
    struct rt *rt;
    struct rt_group *group; /* where it runs */
    uint32_t index;
    char *id, *chat_template;
    uint64_t asked_context;
    int kv_type;
    bool tools_fallback, pin, preload;
    /* rt_new's thread, then the loader's */
    char *path; /* NULL: not found yet, by its id */
    /* under the runtime's models_lock */
    enum rt_model_state state;
    struct eng_model *model; /* stays put while uses > 0 */
    uint64_t uses;           /* holders; while there are any it is not unloaded */
    bool leaving;            /* to be unloaded for another model: no new holders */
    bool broken;             /* its file changed: as leaving, then FAILED */
    bool tried;              /* in this round of the loader there was nothing to do for it */
    uint64_t used_ns, loaded_ns;
    uint32_t only; /* the tenant that used it since it was loaded, or these: */
#define RT_NOBODY UINT32_MAX
#define RT_MANY   (UINT32_MAX - 1)
    uint64_t bytes;        /* memory of weights and scratch now */
    uint64_t need;         /* memory when loaded; 0: not measured yet */
    struct rt_file file;   /* the file that need is of */
    uint64_t context;      /* 0: not known */
    struct rt_wait *waits; /* oldest first */
    uint64_t n_waits;
    uint64_t blocked_ns; /* since when there is no room for it; 0: there is */
    uint64_t retry_ns;   /* FAILED: when it may be tried again */
    uint32_t failures;
    struct cn_error error;
    char fingerprint[40];
    struct cfg_sampling asked_sampling; /* of the config */
    struct rt_sampling sampling;        /* with `context` */
    bool embeds;
    enum rt_tools tools;
    /* the loader's question to the engine thread, and the answer */
    struct rt_cmd cmd;
    int answer;
    struct cn_error answer_error;
    _Atomic bool answered;
    /* engine thread */
    struct kv_space *space;
    uint32_t sch_model;
    bool in_sch;
    double base_ns, row_ns; /* cost of its steps */
};
#define RT_MAX_MODELS   256
#define RT_FILE_CHANGED "the file of the model %s changed while it was served"

int rt_models_init(struct rt *r, const struct rt_opts *o, struct cn_error *err);
void rt_models_fini(struct rt *r); /* after all groups */
/* Adds a holder to a model; false when it is not loaded. */
bool rt_model_hold(struct rt_model *m);
/* With models_lock: everybody who waits gets the model (err NULL), or the error; those alone who
 * came before `before_ns`. retry_s: when it may be there; 0: not known. */
void rt_model_answer(struct rt_model *m, const struct cn_error *err, uint32_t retry_s,
                     uint64_t before_ns);
/* With models_lock. */
void rt_model_set_state(struct rt_model *m, enum rt_model_state state);

enum kr_type rt_kv_type(int cfg_kv_type); /* device.c */
/* The one model has all that there is, whatever groups the config has. */
int rt_group_device(struct rt_group *g, struct cn_error *err);
/* The bookkeeping of its blocks, as the device lends them. */
int rt_group_blocks(struct rt_group *g, const struct rt_memory_plan *plan, struct cn_error *err);
/* Sizes and numbers from the file alone. *out (may be NULL) is for eng_model_unref. */
int rt_model_measure(struct rt_model *m, struct eng_model **out, struct cn_error *err);
/* Whether its path names another file than the one that was measured. */
bool rt_model_replaced(const struct rt_model *m);
struct rt_loading {
    bool background; /* the engine thread is running */
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_arg;
};
int rt_model_open(struct rt_model *m, const struct rt_loading *how, struct eng_model **out,
                  struct cn_error *err);
/* The pool, the scheduler, and the models that are there from the beginning. */
int rt_group_open(struct rt_group *g, const struct rt_opts *o, struct cn_error *err);
/* For rt_weigh, of a runtime that is for nothing else. each: of all models of the runtime. */
int rt_group_weigh(struct rt_group *g, struct rt_weights *out, struct rt_model_weight *each,
                   struct cn_error *err);
/* Makes m->model known to pool and scheduler, or forgets it (CN_EBUSY: not yet). Engine thread, or
 * before it runs. */
int rt_attach(struct rt_model *m, struct cn_error *err);
int rt_detach(struct rt_model *m);

/* ---- who pays for loads (stay.c); all with models_lock --------------------------------------- */

/* Sets the tenants that pay for loads; takes the lock itself. CN_ENOMEM: nothing has changed. */
int rt_stay_set(struct rt *r, const struct cfg_tenants *t);
/* The least charge of any tenant that waits for m. */
double rt_stay_due(const struct rt_model *m, uint64_t now);
/* Until when v does not make way for m (0: it does): engine.min_stay_s after it was loaded, and
 * after the tenant that waits for m took the place of others' models. Where that tenant is the only
 * one about, its own models make way at once. */
uint64_t rt_stays_until(const struct rt_model *v, const struct rt_model *m, uint64_t now);
void rt_stay_used(struct rt_model *m, uint32_t tenant);
/* v is unloaded for m. */
void rt_stay_taken(const struct rt_model *v, const struct rt_model *m, uint64_t now);
/* Charges the tenants that wait for m. */
void rt_stay_loaded(struct rt_model *m, double seconds);

int rt_loader_start(struct rt_group *g, struct cn_error *err);
/* Requests that wait for a model get CN_EDRAIN. */
void rt_loader_stop(struct rt_group *g);
/* Wakes the loader: something changed that it may wait for. Any thread. */
void rt_loader_poke(struct rt_group *g);
/* A load has failed: requests that wait get the error, and for a while those that ask. */
void rt_model_failed(struct rt_model *m, const struct cn_error *err);

/* ---- reason.c -------------------------------------------------------------------------------- */

/* The error that clients get for a model that could not be loaded. */
void rt_public_error(const struct rt_model *m, const struct cn_error *err, struct cn_error *out);

/* ---- fairness over the groups (exchange.c) --------------------------------------------------- */

/* What other groups served the tenants of a group since it last listened. */
struct rt_heard {
    pthread_mutex_t lock;
    bool ready;
    struct rt_owed {
        uint64_t id; /* of the tenant */
        double seconds;
        bool listed;
    } *v;              /* [n], by slot */
    uint32_t *changed; /* [n]: slots that are listed */
    size_t v_cap, changed_cap;
    uint32_t n, n_changed;
    double burst_s[CFG_MAX_GROUPS]; /* sch_burst_s of the other groups, as last reported */
};
int rt_heard_init(struct rt_heard *h);
void rt_heard_fini(struct rt_heard *h);
/* Room for so many slots; CN_ENOMEM. */
int rt_heard_grow(struct rt_heard *h, uint32_t n);
/* Engine thread: after an iteration what its steps served, before one what others' did. */
void rt_exchange_tell(struct rt_group *g);
void rt_exchange_listen(struct rt_group *g);

/* ---- engine groups (group.c) ----------------------------------------------------------------- */

/* A device and all that serves with it: an engine thread, which owns scheduler, pool and stepper,
 * and a loader. A model belongs to one group for good. */
struct rt_group {
    struct rt *rt;
    uint32_t index;
    struct kr_device *device;
    struct rt_model **models; /* [n_models]: those that run here */
    size_t n_models;
    uint64_t budget; /* bytes for weights and scratch; UINT64_MAX: not known */
    struct kr_kv_mem *kv_mem;
    struct rt_kept *kept; /* blocks of events that were taken */
    /* engine thread only, once it runs */
    struct kv_pool *pool;
    uint64_t slab_bytes;
    struct rt_model *running[RT_MAX_MODELS]; /* by the scheduler's number */
    struct sch *sch;
    struct rt_stepper stepper;
    struct rt_host host;
    struct eng_parts token_text; /* scratch: what a token made final */
    struct rt_req **table;       /* live requests by (reply, id) */
    size_t table_size, n_live;
    struct sch_stats last_stats;
    uint64_t last_evictions;
    uint64_t embedded; /* vectors given: no tokens, though the scheduler counts them so */
    struct rt_tenants tenants;
    struct rt_pace pace;
    struct rt_heard heard; /* has a lock of its own */
    bool stopping, lost;   /* lost: a device is lost, and the requests here were ended */
    struct rt_told {       /* its part, as last reported, of gauges that sum over groups */
        double blocks[KV_N_STATES], running, waiting, paused;
    } told;
    uint64_t checked_ns; /* when the models' files were last looked at */
    /* shared */
    pthread_t thread;
    bool thread_started, mailbox_ready;
    struct cn_mailbox inbox;
    struct rt_cmd *stop; /* the message that ends the thread */
    struct rt_watch watch;
    _Atomic uint32_t retry_after_s;
    bool wants_room;     /* under models_lock: the loader waits for a model to be let go */
    uint64_t blocked_ns; /* since when it does, 0: it does not; the loader's */
    /* the loader */
    pthread_t loader;
    bool loader_started, loader_mail_ready;
    struct cn_mailbox loader_inbox;
    struct cn_msg poke; /* in the inbox while poked */
    _Atomic bool poked, loader_stop;
};

/* g comes zeroed, and needs rt_group_fini whatever comes of it. */
int rt_group_init(struct rt_group *g, struct rt *r, uint32_t index, struct cn_error *err);
/* What was opened starts to run: the engine thread, and the loader where there are several
 * models. */
int rt_group_start(struct rt_group *g, struct cn_error *err);
/* Ends all requests, then the threads; rt_group_join waits for them. */
void rt_group_stop(struct rt_group *g);
void rt_group_join(struct rt_group *g);
/* After rt_group_join; its models' plans go with it. */
void rt_group_fini(struct rt_group *g);

/* Cancels live requests of a tenant (UINT64_MAX: of all that are not there any more), with a key
 * (0: any). */
void rt_cancel_those(struct rt_group *g, uint64_t tenant, uint64_t key, int code);
/* Removes a live request from the table. */
void rt_forget(struct rt_group *g, struct rt_req *req);

/* ---- the runtime (runtime.c) ----------------------------------------------------------------- */

struct rt {
    const struct cfg *cfg;
    struct cn_metrics *metrics;
    struct cfg_tenants *first_tenants; /* held until they are in effect */
    int64_t created_s;
    struct rt_group *groups; /* [n_groups], never moved */
    uint32_t n_groups;
    struct rt_model *models; /* [n_models], never moved */
    size_t n_models;
    bool several;         /* of a list: loaded and unloaded as needed */
    uint64_t there_bytes; /* of the machine's memory, at the start; 0: not known */
    uint64_t given_bytes; /* of that, what groups were given so far */
    struct rt_payer {     /* what a tenant's loads took; under models_lock */
        double paid_s;    /* seconds, when last charged */
        uint64_t at_ns;   /* and when that was */
        uint64_t took_ns; /* when a model that others used made way for it; 0: never */
        uint64_t id;      /* who has the slot */
        double weight;
    } *payers; /* [n_payers] */
    uint32_t n_payers;
    /* shared */
    _Atomic bool draining, failed, lost; /* lost: the device of a group is */
    _Atomic uint64_t in_flight;
    pthread_mutex_t models_lock;
    bool lock_ready;
};

#endif
