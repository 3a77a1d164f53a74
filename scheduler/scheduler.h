/* scheduler: who runs next. Queue, fairness, admission, composition of steps, preemption, cancel.
 *
 * Pure functions of its state, the stepper's clock and the stepper's results; no threads, no
 * device, no text. The runtime implements struct sch_stepper with a device, the simulator with a
 * fake.
 *
 * A request has n choices; each choice has a KV sequence while it runs. Every accepted request gets
 * exactly one on_end, after one on_choice_end per choice.
 *
 * Fairness: a tenant's counter grows by the cost of its service (computed prompt tokens, decode
 * tokens, KV bytes x time) over its weight. The lowest counter goes first. A tenant that comes back
 * from idle is lifted to the lowest counter of the busy ones. Tokens computed again after a
 * preemption are free. The cost of a token does not depend on the number of waiting requests.
 *
 * Several schedulers may serve the same tenants, each with a device of its own: share.c.
 *
 * Speculation: a decoding choice may get draft rows after the row of its last token. The draft is
 * what followed an earlier occurrence of its current suffix in its own prompt and output (draft.c).
 * Sampled tokens are kept up to and including the first that differs from the next row's draft, so
 * drafts never change the output. The number of draft rows follows from measured step times and
 * from how often such drafts were right (spec.c): none where they gain less than 5 %, none while a
 * prompt is to be read, and never so many that another choice's tokens come more than 10 % later. A
 * right draft costs its tenant what any token costs, a wrong one is free. Sequences with state have
 * no drafts, because a state cannot be cut. A draft follows a known id: with two steps in flight a
 * choice skips the next step and waits for the id that is being drawn, if drafts gain more than
 * that.
 *
 * Forced ids (sch_force): the caller can give a choice the next ids of its output, such as text for
 * which a grammar leaves one way, or the closing of a reasoning block. They are output like drawn
 * ids, and on_token gets them before any of their rows runs. The rows are then computed a few at a
 * time, and only the last one is drawn. The output is the same as if each position had a mask of
 * one id.
 *
 * Order of a step: launch(t + 1); collect(t), whose tokens go to on_token; draw(t + 1). With one
 * step in flight: launch(t), draw(t), collect(t). Either way on_token has seen every id before
 * those that a draw chooses.
 *
 * Threads: one thread (the engine thread) calls everything here. Callbacks run inside sch_iterate
 * and may call sch_cancel, sch_pause, sch_submit and sch_force. */
#ifndef SCHEDULER_SCHEDULER_H
#define SCHEDULER_SCHEDULER_H

#include "base/base.h"
#include "kvpool/kvpool.h"

struct sch;

/* ---- steps: what the scheduler asks of the device (types only) ------------------------------- */

/* Rows of one sequence, positions ascending by one from pos. All tokens of a segment come from one
 * source. For positions of a medium the stepper finds the embeddings through user. A medium whose
 * rows attend both ways is never cut: all of its rows are in one segment. */
struct sch_segment {
    uint64_t request; /* id */
    void *user;       /* the request's; valid until its on_end, which comes only when no step
                       * with rows of the request is in flight */
    uint32_t choice;
    uint32_t adapter;    /* 0 = none */
    uint32_t slot;       /* < max_running, unique among running choices. A choice keeps it as long
                          * as its place in max_running */
    uint64_t generation; /* of the slot; rises whenever the slot is given out. What was stored for
                          * the slot before (tables, draw state) is void then */
    struct kv_seq *seq;  /* tables: kv_seq_tables; changes: kv_seq_changed */
    uint32_t n_more;     /* further sequences of the choice, one per further space of the model */
    struct kv_seq *const *more;
    uint64_t pos; /* position of the first row */
    uint32_t n_rows;
    uint32_t n_prompt_rows; /* leading rows at positions of the request's prompt; the others are at
                             * generated positions, also when they are computed again */
    uint32_t first_row;     /* index of its first row in the step */
    const uint32_t *ids; /* items of the choice from position 0: prompt and output. Those before the
                          * first position to be drawn are known when its draw is asked for */
    const uint32_t *tokens; /* n_rows item ids; NULL: from_ticket and from_row (then n_rows is 1) */
    uint32_t media, n_media; /* the request's media that rows of the segment belong to: the first
                              * one and their number */
    uint64_t from_ticket;    /* the id sampled for row from_row of that step */
    uint32_t from_row;
    uint32_t n_sample; /* the last n_sample rows are sampled (0 inside a prompt). With more than
                        * one, all but the first hold drafts: they are drawn in order, each only
                        * if the draw before it gave its token */
    uint32_t n_logits; /* the last n_logits rows want logits (>= n_sample): scored prompts */
};

struct sch_step {
    uint32_t model; /* index given by sch_model_add */
    uint32_t n_segments, n_rows, n_sample, n_logits;
    const struct sch_segment *segments;
    uint32_t n_copies; /* to do before the step, in order */
    const struct kv_copy *copies;
};

/* One per sampled row, in the order of the rows. After a draw that differs from the next row's
 * token, the segment's further results are ignored. */
struct sch_row_result {
    int status; /* 0; CN_ENUMERIC: the row's logits are not finite; CN_ECANCELLED: a row of a draft
                 * was not drawn. What was drawn before it counts */
    uint32_t token;
    const void *drawn; /* the stepper's own record; passed to on_token */
};
struct sch_step_result {
    uint32_t n_rows;
    const struct sch_row_result *rows; /* the stepper's, valid until the next collect */
};

#define SCH_NO_ID UINT32_MAX

/* A segment whose sampled rows (n_sample of them) are to be drawn. */
struct sch_draw {
    uint32_t segment; /* index in the step */
    uint32_t only;    /* SCH_NO_ID, or a forced id: the first sampled row's draw gives it,
                       * whatever the logits are. on_token gets it with `forced`, so it does not
                       * count as drawn. The result's token is ignored, and no row takes its id
                       * from this ticket */
    bool ended;       /* the choice has ended: nothing to draw */
    bool skipped;     /* set by draw: what the first sampled row is drawn with (its mask) is not
                       * there in time. The segment's results are ignored, and its sampled rows
                       * are computed again in a later step */
};

/* launch: borrows the step until it is collected; *ticket rises with every call. An error fails the
 *   requests of the step only.
 * draw: once for each launched step, in order, after the tokens of the step before were delivered
 *   and before the next launch. By then masks, forced ids and ended choices are known. draws: one
 *   for each segment with sampled rows, in their order (n may be 0), borrowed during the call. An
 *   error fails the requests of the step, which is still collected. A stepper may draw rows without
 *   a mask at launch: a result is ignored if its id was forced meanwhile. It may skip a segment
 *   whose mask takes too long, so that the others do not wait; it then pauses the request
 *   (sch_pause) until the mask is there, or the same rows run again at once. NULL: the stepper
 *   draws by itself, in launch or collect.
 * collect: waits for the oldest launched step; an error fails its requests.
 * save: copies blocks of a sequence to host memory; *kept, never 0, names the copy. It reads them
 *   after the steps launched so far; later steps may overwrite them. On an error (no room) the
 *   choice is computed again. blocks are borrowed during the call, in restore too.
 * restore: copies the saved contents into other blocks, before the steps launched later. Each of
 *   `blocks` has the group and index of a saved one. Errors as in save.
 * forget: the copy is no longer needed. save, restore and forget are NULL where nothing is saved.
 * save_bytes: bytes of host memory; with several tenants each has at most half of it.
 * save_rate: bytes per second of save and of restore; NULL, or 0: not known. A choice is saved only
 * if both together take no longer than computing it again. cancel (may be NULL): the results of a
 * launched step are no longer needed (at sch_free). */
struct sch_stepper {
    void *self;
    uint32_t depth; /* steps in flight: 1 or 2 */
    int (*launch)(void *self, const struct sch_step *step, uint64_t *ticket);
    int (*draw)(void *self, uint64_t ticket, struct sch_draw *draws, uint32_t n);
    int (*collect)(void *self, uint64_t ticket, struct sch_step_result *out);
    int (*save)(void *self, uint32_t model, const struct kv_held *blocks, uint32_t n,
                uint64_t *kept);
    int (*restore)(void *self, uint32_t model, uint64_t kept, const struct kv_held *blocks,
                   uint32_t n);
    void (*forget)(void *self, uint64_t kept);
    uint64_t save_bytes;
    double (*save_rate)(void *self);
    void (*cancel)(void *self, uint64_t ticket);
    uint64_t (*now)(void *self); /* monotonic, ns */
};

/* ---- requests -------------------------------------------------------------------------------- */

/* Positions [first, first + n) of a prompt hold a medium; their item ids are kv_media_ids. `both`:
 * its rows attend both ways. Then all of them are in one step, whatever that step's budget of rows
 * is, and the cache returns all of them or none. */
struct sch_media {
    uint64_t first, n;
    bool both;
};

enum sch_class { SCH_INTERACTIVE, SCH_NORMAL, SCH_BACKGROUND, SCH_N_CLASSES };
enum {
    SCH_NO_CACHE_READ = 1, /* compute every prompt token */
    SCH_NO_CACHE_WRITE = 2,
    SCH_PROMPT_LOGITS = 4, /* logits of every computed prompt row, for choice 0 (with
                            * NO_CACHE_READ every row is computed) */
    SCH_ONE_STEP = 8,      /* encoders: all prompt rows in one step, blocks shared with no other
                            * request; one choice of one token, and no more rows than a step has */
    SCH_NO_OUTPUT = 16,    /* its tokens stand for something else (vectors): they take no lease */
};
struct sch_request {
    uint32_t tenant, model;
    uint32_t adapter; /* of the model; 0 = none. Prompts with different adapters share nothing
                       * and do not wait for each other */
    enum sch_class class;
    uint64_t salt;                 /* namespace within the tenant's */
    const uint32_t *prompt;        /* item ids; copied */
    uint64_t n_prompt;             /* >= 1 */
    const struct sch_media *media; /* ascending, without overlap; copied. Their items, and no
                                    * others, have KV_MEDIA set. NULL: tokens only */
    uint32_t n_media;
    const uint64_t *marks; /* ends of messages in the prompt, ascending: a model with state should
                            * keep snapshots there; copied */
    uint32_t n_marks;
    uint64_t max_new;   /* tokens per choice; 0 = up to the end of the window */
    uint32_t n_choices; /* >= 1 */
    uint32_t flags;
    uint64_t queue_deadline_ns; /* absolute; ended if not started by then; 0 = none */
    uint64_t deadline_ns;       /* absolute; ended if not done by then; 0 = none */
    void *user;
};

enum sch_verdict { SCH_CONTINUE, SCH_STOP };
enum sch_end {
    SCH_END_STOP,   /* on_token returned SCH_STOP */
    SCH_END_LENGTH, /* max_new or the window is reached */
    SCH_END_CANCELLED,
    SCH_END_DEADLINE,
    SCH_END_ERROR, /* with a CN_E code */
};
struct sch_usage {
    uint64_t prompt_tokens;
    uint64_t cached_tokens;            /* of the prompt, adopted by choice 0 when it first ran */
    uint64_t computed_tokens;          /* rows computed for the first time, all choices */
    uint64_t recomputed_tokens;        /* rows computed again after preemptions */
    uint64_t written_tokens;           /* of the prompt, computed and put into the prefix cache */
    uint64_t drafted_rows, right_rows; /* rows of drafts; those of them whose token was put out */
    uint64_t unseen_rows;      /* computed when the choice had already ended, or not drawn from
                                * (sch_draw's skipped); without drafts */
    uint64_t generated_tokens; /* delivered through on_token, all choices */
    uint32_t preemptions;
    uint64_t submitted_ns, first_step_ns, first_token_ns, ended_ns; /* 0 = never */
};
struct sch_token {
    uint64_t request;
    void *user;
    uint32_t choice;
    uint64_t index;    /* of the output token, from 0 */
    uint64_t position; /* n_prompt + index */
    uint32_t token;
    bool forced;       /* by sch_force */
    const void *drawn; /* from the stepper; NULL: it was forced */
};

struct sch_callbacks {
    void *arg;
    enum sch_verdict (*on_token)(void *arg, const struct sch_token *t);
    void (*on_choice_end)(void *arg, uint64_t id, void *user, uint32_t choice, enum sch_end reason);
    /* code: 0 for STOP and LENGTH, else CN_E... After this the id is stale. */
    void (*on_end)(void *arg, uint64_t id, void *user, enum sch_end reason, int code,
                   const struct sch_usage *usage);
};

/* ---- set-up (sch.c) -------------------------------------------------------------------------- */

struct sch_drafting { /* the choice to draft for */
    void *user;
    uint32_t choice;
    const uint32_t *ids; /* prompt and output so far */
    uint64_t n_ids;
};
/* The choice's own text is indexed while it runs, with at most 16 bytes per token of its context
 * beside the token ids. A step starts at most 64 such indexes; each lives until its choice ends. */
struct sch_speculation {
    uint32_t max_draft; /* tokens per choice and step; 0: no drafts at all */
    /* Another source of drafts (NULL: the choice's own text): writes at most `most` ids and returns
     * their number. All of them are tried, whatever they cost. */
    uint32_t (*propose)(void *arg, const struct sch_drafting *d, uint32_t most, uint32_t *out);
    void *arg;
};

struct sch_opts {         /* 0 = the default in parentheses */
    struct kv_pool *pool; /* borrowed */
    struct sch_stepper stepper;
    struct sch_callbacks cb;
    uint32_t max_running; /* choices that may be in steps at once (256). With several tenants, one
                           * has at most half of them, or its part by weight or its max_concurrent
                           * if that is more */
    uint32_t max_queue;   /* requests that wait for their first start (1024) */
    uint64_t max_queue_tokens; /* their prompt tokens (4,194,304); a tenant's only request may have
                                * more */
    uint64_t step_target_ns;   /* longest time of a step with decode rows (100 ms) */
    double step_stretch; /* fraction by which prompts may lengthen a step beyond decoding alone (no
                          * limit); k times that when 4 / k choices decode per waiting prompt */
    uint32_t short_prompt; /* a prompt with at most this many tokens to compute is short: whatever
                            * step_stretch is, it is read nearly as fast as with steps of
                            * step_target_ns. After a burst of 4,096 such rows, short prompts take
                            * at most half of the time (0: no prompt is short) */
    uint32_t max_choices;  /* per request (8) */
    uint32_t max_preemptions; /* per choice; after them it is not preempted again (4) */
    /* cost units: a computed prompt token costs 1 */
    double decode_cost; /* per generated token (2) */
    double block_cost;  /* per second and bytes of a block of tokens, all groups (0.05) */
    uint64_t quantum;   /* cost that a tenant may overdraw for a cached prefix (512) */
    struct sch_speculation speculation;
    bool shared; /* other schedulers serve the same tenants: the caller uses
                  * sch_served_take */
};
int sch_new(const struct sch_opts *opts, struct sch **out, struct cn_error *err);
/* Ends the remaining requests (SCH_END_CANCELLED) and waits for steps in flight. */
void sch_free(struct sch *s);

struct sch_model_opts {
    struct kv_space *space; /* borrowed */
    uint32_t n_more;        /* spaces of further sequences of each choice: an encoder's, a draft
                             * model's. Choices have one sequence so far: above 0 is CN_EUNSUPP */
    struct kv_space *const *more;
    uint64_t context;  /* window of the model */
    uint32_t max_rows; /* of a step */
    uint32_t max_logit_rows;
};
/* Models are numbered from 0 in the order of adding; the number of a dropped model is reused. */
int sch_model_add(struct sch *s, const struct sch_model_opts *opts, uint32_t *model,
                  struct cn_error *err);
int sch_model_drop(struct sch *s, uint32_t model); /* CN_EBUSY: requests for it have not ended */

struct sch_tenant_opts {     /* 0 = the default in parentheses */
    double weight;           /* (1) */
    uint32_t max_concurrent; /* requests started and not ended (no limit). Others wait without
                              * holding up other tenants. Background requests count only against
                              * background ones */
    uint32_t max_queued; /* requests never started, beyond those that max_concurrent lets start (no
                          * limit) */
    enum sch_class ceiling; /* the best class of its requests */
    uint64_t kv_reserve_bytes;
};
/* Tenants are numbered densely from 0. A tenant that was never set has the defaults and is known
 * from its first request on. Takes effect at once; after raising a limit call sch_iterate. */
int sch_tenant_set(struct sch *s, uint32_t tenant, const struct sch_tenant_opts *opts);
/* Ends a tenant and drops its cache. Its number may then be given to another tenant, which
 * starts without history. CN_EBUSY: requests of it have not ended, or steps of them are in
 * flight; nothing has changed. Cancel them first. */
int sch_tenant_end(struct sch *s, uint32_t tenant);
/* Adds `tokens` to a tenant's lease of output tokens. Without a lease it has no limit: the first
 * call sets one, and SCH_NO_LEASE removes it. Each token that is put out takes one, over all
 * requests of the tenant. When none is left, a request that needs another ends with CN_EBUDGET. The
 * tenant's other open requests end with it before the next step is composed, unless tokens were
 * added; sch_submit refuses new ones. */
#define SCH_NO_LEASE UINT64_MAX
int sch_tenant_lease(struct sch *s, uint32_t tenant, uint64_t tokens);

/* ---- several schedulers with the same tenants (share.c) -------------------------------------- */

/* Each has its own device, pool and queue. Service in one raises the tenant's counter in the
 * others, so that tenants which were served less go first there. Service is exchanged in seconds of
 * steps, on whatever device: the sender converts cost to seconds by its cost per second so far, the
 * receiver back by its own. (A token may take a thousand times as long in one group as in another.
 * Counted in tokens, a little work on the fast device would outweigh all work of the slow one.)
 * Counters only decide the order: a tenant that is alone in a group is served as if there were no
 * other groups.
 *
 * Bound: where two tenants have work waiting in all schedulers, their service in seconds over
 * weight, summed over the schedulers, differs by no more than in one (twice the larger of the
 * costliest prompt and a batch, in seconds of the scheduler where that is most) plus one step of
 * each scheduler, which the others have not heard of yet. Service in a scheduler without other
 * tenants counts elsewhere as well, but never for more than the larger of a prompt and a batch: the
 * tenant goes last while others wait, and its wait ends after that much service of theirs. */
struct sch_served {
    uint32_t tenant;
    double seconds;
};
/* Writes the service of at most `most` tenants since it was last taken, one entry per tenant, and
 * returns their number. Needs opts.shared. */
uint32_t sch_served_take(struct sch *s, struct sch_served *out, uint32_t most);
/* The larger of the costliest prompt and a batch, in seconds; 0 before the first step. */
double sch_burst_s(const struct sch *s);
/* Another scheduler served a tenant; burst_s: sch_burst_s of that scheduler. Unknown tenants are
 * ignored. */
void sch_served_elsewhere(struct sch *s, const struct sch_served *v, double burst_s);

/* ---- running (sch.c) ------------------------------------------------------------------------- */

/* Accepts a request, or refuses it:
 *   CN_EQUEUE (queue full), CN_ERATE (the tenant's max_queued): the message has the limit's key in
 *     conifer.yaml, its value and whose it is
 *   CN_EWINDOW: also for a SCH_ONE_STEP prompt, or a medium with `both`, longer than a step
 *   CN_EINVAL: media that do not match the items, or one with `both` at the prompt's end
 *   CN_EUNSUPP: SCH_PROMPT_LOGITS with a medium that has `both`
 *   CN_ENEVERFIT (with the arithmetic), CN_ERANGE (choices, max_new), CN_EMODEL, CN_EBUDGET,
 *   CN_EDEADLINE, CN_ENOMEM
 * Half of the queue is divided among the known tenants by weight (at least one request each): a
 * tenant with less than its part waiting never gets CN_EQUEUE because of others. Beyond its part it
 * may use what leaves the other parts free: a single tenant the whole queue, one of several half of
 * it, or its max_queued if that is more. With more tenants than half of max_queue, a tenant may
 * have no more waiting than is still free. */
int sch_submit(struct sch *s, const struct sch_request *r, uint64_t *id, struct cn_error *err);
/* Tokens that each choice of the request may generate. 0: the id is stale. */
uint64_t sch_max_new(const struct sch *s, uint64_t id);
/* Takes effect in the next sch_iterate, before anything else. A stale id is ignored. */
void sch_cancel(struct sch *s, uint64_t id);
/* A paused request gets no rows and gives up its place in max_running; it keeps its blocks while
 * there is room. Resumed, it waits for a place again, before the requests of its tenant that never
 * started. It counts against max_concurrent all the time. A tenant whose paused requests are half
 * of max_running, or 16 if that is more, starts no new ones. */
void sch_pause(struct sch *s, uint64_t id, bool paused);
/* Appends to the next ids of the choice's output. They are copied; ids past the choice's limit are
 * left out. Each is a generated token, with a verdict, usage and cost like any other. When called
 * from the choice's own on_token, they follow that token: on_token gets them one by one as soon as
 * it has returned SCH_CONTINUE, at most SCH_FORCE_BURST per iteration. When called from elsewhere,
 * they come in place of the choice's next token, or of the one after it if the draw was already
 * asked for. Before the first token they wait until the prompt is read. They survive preemption and
 * pauses. 0; CN_ENOENT: the id is stale or the choice has ended; CN_ERANGE: no such choice;
 * CN_ENOMEM. */
#define SCH_FORCE_BURST 256
int sch_force(struct sch *s, uint64_t id, uint32_t choice, const uint32_t *ids, uint32_t n);
/* One iteration: cancels, deadlines, admission, composition and launch of at most one step, and
 * collection of one when `depth` steps are in flight or there is nothing to launch. True if it
 * launched or collected a step: call it again at once. */
bool sch_iterate(struct sch *s);
/* Does the first part of sch_iterate now: cancels, deadlines, admission. Then in a burst no request
 * is refused because of queued requests that could already start. False, without doing anything, if
 * nothing has changed since the last time. */
bool sch_let_in(struct sch *s);
/* The time (ns) when sch_iterate next has something to do, if nothing else happens; UINT64_MAX =
 * never. Only meaningful after sch_iterate returned false. */
uint64_t sch_next_wake(const struct sch *s);
/* Seconds after which a refused request might be accepted (for Retry-After), 1 to 60, estimated
 * from how fast waiting requests were started lately. O(1); it uses the time of the last
 * sch_iterate. */
uint32_t sch_retry_after_s(const struct sch *s);

struct sch_stats {
    uint64_t running; /* requests that hold KV blocks */
    uint64_t waiting; /* accepted, not running; includes paused ones */
    uint64_t paused;  /* started and paused */
    uint64_t waiting_tokens;
    uint64_t in_flight; /* steps */
    uint64_t steps, rows;
    uint64_t prompt_tokens;   /* of accepted requests */
    uint64_t prompt_computed; /* prompt rows computed for the first time */
    uint64_t prompt_cached;   /* prompt tokens adopted instead */
    uint64_t computed;        /* rows computed for the first time; of drafts only the right ones */
    uint64_t written;         /* prompt tokens computed and put into the prefix cache */
    uint64_t recomputed, generated, preemptions;
    uint64_t saved, restored;  /* choices whose blocks were saved at a preemption; and restored */
    uint64_t forced;           /* of the generated ones */
    uint64_t cancelled_tokens; /* generated for requests that were cancelled */
    uint64_t wasted;           /* rows computed without use, other than drafts */
    uint64_t drafted;          /* rows of drafts */
    uint64_t drafts_right;     /* those of them whose token was drawn and put out */
    uint64_t accepted, refused, ended_ok, ended_error, ended_cancelled;
    uint64_t last_step_ns;            /* duration */
    uint64_t last_progress_ns;        /* when a step was last collected */
    double step_base_ns, step_row_ns; /* the fitted cost of a step: base + rows x row */
};
void sch_stats(const struct sch *s, struct sch_stats *out);

struct sch_tenant_stats {
    double counter; /* weighted cost served (lifts included) */
    double served;  /* cost served, not weighted, no lifts */
    uint64_t running, waiting, paused, prompt_computed, cached, generated;
    uint64_t lease;       /* output tokens left, or SCH_NO_LEASE */
    uint64_t saved_bytes; /* host memory of its preempted choices */
};
void sch_tenant_stats(const struct sch *s, uint32_t tenant, struct sch_tenant_stats *out);

/* Full consistency check for tests: CN_EINTERNAL says what is wrong. */
int sch_check(const struct sch *s, struct cn_error *err);

#endif
