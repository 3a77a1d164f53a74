/* scheduler: who runs next. Queue, fairness, admission, composition of steps, preemption, cancel.
 *
 * Pure: state, the stepper's clock, and what the stepper answers; no threads, no device, no text.
 * The runtime implements struct sch_stepper with a device; the simulator with a fake.
 *
 * A request has n choices; each choice has a KV sequence while it runs. Every accepted request gets
 * exactly one on_end, after one on_choice_end per choice.
 *
 * Fairness: a tenant's counter grows by the cost of what it is served (computed prompt tokens,
 * decode tokens, KV bytes x time) over its weight; the lowest counter goes first; a tenant that
 * comes back from idle is lifted to the lowest of those that are busy. Tokens computed again after
 * a preemption cost nobody. Cost per token does not depend on how many requests wait.
 *
 * Several schedulers may serve the same tenants, each with a device of its own: share.c.
 *
 * Speculation: a decoding choice may get draft rows after the row of its last token: what followed
 * an earlier occurrence of its current suffix in its own prompt and output (draft.c). Sampled
 * tokens are kept through the first that differs from the next row's draft, so drafts never change
 * the output. How many rows is decided by what steps were measured to take and how often guesses
 * like these came true (spec.c): none where that gains less than 5 %, none while a prompt is to be
 * read, and never so many that another one's tokens come more than 10 % later. A draft that was
 * right costs its tenant what any token costs; one that was wrong costs nobody. Not where a
 * sequence has a state, which cannot be cut. Drafts follow an id that is known: with two steps in
 * flight a choice waits for the one that is being drawn, instead of having its row in the next
 * step, where drafts promise more than that.
 *
 * Forced ids (sch_force): a choice can be given the ids that it puts out next, such as text that a
 * grammar allows no other way, or the closing of a reasoning block. They are output like drawn
 * ids, and on_token has seen them before any row of theirs runs; the rows are then computed a few
 * at a time, and only the last one is drawn. The output is the same as if each position's draw had
 * been given a mask of one id.
 *
 * Order of a step: launch(t + 1); collect(t), whose tokens go to on_token; draw(t + 1). With one
 * step in flight: launch(t), draw(t), collect(t). So on_token has seen every id before the ones
 * that a draw chooses, in both cases.
 *
 * Threads: everything here is called by one thread (the engine thread). Callbacks run inside
 * sch_iterate; of the functions below they may call sch_cancel, sch_pause, sch_submit and
 * sch_force. */
#ifndef SCHEDULER_SCHEDULER_H
#define SCHEDULER_SCHEDULER_H

#include "base/base.h"
#include "kvpool/kvpool.h"

struct sch;

/* ---- steps: what the scheduler asks of the device (types only) ------------------------------- */

/* Rows of one sequence, positions ascending by one from pos. All tokens of a segment come from one
 * source. What the positions of a medium hold instead (embeddings) is known to the stepper through
 * user; a medium whose rows see each other both ways is never cut: all of its rows are in it. */
struct sch_segment {
    uint64_t request;        /* id */
    void *user;              /* of the request: valid until its on_end, and that comes only when no
                              * step with rows of the request is in flight */
    uint32_t choice;
    uint32_t adapter;        /* 0 = none */
    uint32_t slot;           /* < max_running: no other running choice has it. The choice keeps it
                              * as long as it keeps its place in max_running */
    uint64_t generation;     /* of the slot, rising: it changes whenever the slot is given out. Then
                              * nothing holds that was kept for the slot (tables, draw state) */
    struct kv_seq *seq;      /* tables: kv_seq_tables; changes: kv_seq_changed */
    uint32_t n_more;         /* further sequences of the choice, one of each of the model's further
                              * spaces */
    struct kv_seq *const *more;
    uint64_t pos;            /* position of the first row */
    uint32_t n_rows;
    uint32_t n_prompt_rows;  /* the first of them, whose positions are in the request's prompt; the
                              * others are generated ones, also when they are computed again */
    uint32_t first_row;      /* the step's number of its first row */
    const uint32_t *tokens;  /* n_rows item ids; NULL: from_ticket and from_row (then n_rows is 1) */
    uint32_t media, n_media; /* of the request's media those that rows of it are of: from this one
                              * on so many */
    uint64_t from_ticket;    /* the id sampled for row from_row of that step */
    uint32_t from_row;
    uint32_t n_sample;       /* the last n_sample rows are sampled (0 in the midst of a prompt). Of
                              * more than one, all but the first hold drafts: they are drawn in
                              * order, each only if the draw before it gave its token */
    uint32_t n_logits;       /* the last n_logits rows want logits (>= n_sample): scored prompts */
};

struct sch_step {
    uint32_t model;          /* index given by sch_model_add */
    uint32_t n_segments, n_rows, n_sample, n_logits;
    const struct sch_segment *segments;
    uint32_t n_copies;       /* to be done before the step, in order */
    const struct kv_copy *copies;
};

/* One per sampled row, in the order of the rows. Behind a draw that is not the next row's token the
 * segment's are not looked at. */
struct sch_row_result {
    int status;              /* 0, or CN_ENUMERIC: the row's logits are no numbers */
    uint32_t token;
    const void *drawn;       /* the stepper's own record; passed to on_token */
};
struct sch_step_result {
    uint32_t n_rows;
    const struct sch_row_result *rows; /* the stepper's, valid until the next collect */
};

#define SCH_NO_ID UINT32_MAX

/* A segment whose sampled rows (n_sample of them) are to be drawn. */
struct sch_draw {
    uint32_t segment;        /* its number in the step */
    uint32_t only;           /* SCH_NO_ID, or the id that the first sampled row's draw gives,
                              * whatever its logits are: it was forced. on_token has had it or will have it,
                              * with `forced`: do not count it as drawn. The result's token is not
                              * looked at, and no row takes its id from this ticket */
    bool ended;              /* the choice has ended: nothing needs to be drawn */
};

/* launch: borrows the step until it is collected; *ticket rises by every call. An error fails the
 *   requests of the step, nothing else.
 * draw: once for each launched step, in order, when the tokens of the step before were delivered
 *   and before another one is launched: masks, ids that were forced and choices that ended are
 *   known. draws: one for each segment with sampled rows, in their order (n may be 0), borrowed
 *   during the call. An error fails the requests of the step; the step is collected all the same.
 *   A stepper may draw rows that need no mask at launch: a result that was forced in the meantime
 *   is not looked at. NULL: the stepper draws by itself, in launch or in collect.
 * collect: waits for the oldest launched step; an error fails its requests.
 * save: keeps what these blocks of a sequence hold, in memory of the host; *kept, never 0, names it. It
 *   reads them after the steps launched so far; steps launched from now on may overwrite them. An error
 *   (there is no room): the choice is computed again. blocks are borrowed during the call, as in restore.
 * restore: brings what is kept back into other blocks, before the steps that are launched from now on:
 *   each of `blocks` has the group and index of one that was saved. An error: as in save.
 * forget: what is kept is of no use any more. All three are NULL where nothing is saved.
 * cancel (may be NULL): the results of a launched step are no longer wanted (at sch_free). */
struct sch_stepper {
    void *self;
    uint32_t depth;          /* steps in flight: 1 or 2 */
    int (*launch)(void *self, const struct sch_step *step, uint64_t *ticket);
    int (*draw)(void *self, uint64_t ticket, const struct sch_draw *draws, uint32_t n);
    int (*collect)(void *self, uint64_t ticket, struct sch_step_result *out);
    int (*save)(void *self, uint32_t model, const struct kv_held *blocks, uint32_t n, uint64_t *kept);
    int (*restore)(void *self, uint32_t model, uint64_t kept, const struct kv_held *blocks,
                   uint32_t n);
    void (*forget)(void *self, uint64_t kept);
    void (*cancel)(void *self, uint64_t ticket);
    uint64_t (*now)(void *self); /* monotonic, ns */
};

/* ---- requests -------------------------------------------------------------------------------- */

/* Positions [first, first + n) of a prompt hold a medium; their item ids are kv_media_ids. `both`: its
 * rows see each other both ways. Then all are in one step, whatever that step was to take, and the
 * cache gives back all of them or none. */
struct sch_media {
    uint64_t first, n;
    bool both;
};

enum sch_class { SCH_INTERACTIVE, SCH_NORMAL, SCH_BACKGROUND, SCH_N_CLASSES };
enum { SCH_NO_CACHE_READ = 1,   /* compute every prompt token */
       SCH_NO_CACHE_WRITE = 2,
       SCH_PROMPT_LOGITS = 4,   /* logits of every prompt row, for choice 0 (with NO_CACHE_READ:
                                 * of all of them; else of those that are computed) */
       SCH_ONE_STEP = 8,        /* all prompt rows in one step (encoders), shared with nobody: one
                                 * choice of one token, and no more rows than a step has */
       SCH_NO_OUTPUT = 16 };    /* its tokens stand for something else (vectors): no lease is taken */
struct sch_request {
    uint32_t tenant, model;
    uint32_t adapter;        /* of the model; 0 = none. Prompts of another adapter share nothing
                              * with this one, and neither waits for the other */
    enum sch_class class;
    uint64_t salt;           /* namespace within the tenant's */
    const uint32_t *prompt;  /* item ids; copied */
    uint64_t n_prompt;       /* >= 1 */
    const struct sch_media *media; /* ascending, without overlap; copied. Exactly their items have
                              * KV_MEDIA set. NULL: tokens only */
    uint32_t n_media;
    const uint64_t *marks;   /* ends of messages in the prompt, ascending: where a model with state
                              * should keep a snapshot of it; copied */
    uint32_t n_marks;
    uint64_t max_new;        /* tokens per choice; 0 = as many as the window has room for */
    uint32_t n_choices;      /* >= 1 */
    uint32_t flags;
    uint64_t queue_deadline_ns; /* absolute: not started by then = ended; 0 = none */
    uint64_t deadline_ns;    /* absolute: not done by then = ended; 0 = none */
    void *user;
};

enum sch_verdict { SCH_CONTINUE, SCH_STOP };
enum sch_end {
    SCH_END_STOP,            /* on_token said so */
    SCH_END_LENGTH,          /* max_new or the window is reached */
    SCH_END_CANCELLED, SCH_END_DEADLINE,
    SCH_END_ERROR,           /* with a CN_E code */
};
struct sch_usage {
    uint64_t prompt_tokens;
    uint64_t cached_tokens;     /* of the prompt, found by choice 0 when it first ran */
    uint64_t computed_tokens;   /* rows computed, all choices, recomputed ones not counted */
    uint64_t recomputed_tokens; /* after preemptions */
    uint64_t written_tokens;    /* of the prompt, computed and now in the prefix cache */
    uint64_t drafted_rows, right_rows; /* rows of drafts; of these, whose token was put out */
    uint64_t unseen_rows;       /* computed, and the choice had ended: drafts aside */
    uint64_t generated_tokens;  /* delivered through on_token, all choices */
    uint32_t preemptions;
    uint64_t submitted_ns, first_step_ns, first_token_ns, ended_ns; /* 0 = never */
};
struct sch_token {
    uint64_t request;
    void *user;
    uint32_t choice;
    uint64_t index;          /* of the output token, from 0 */
    uint64_t position;       /* n_prompt + index */
    uint32_t token;
    bool forced;             /* by sch_force */
    const void *drawn;       /* from the stepper; NULL: it was forced */
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

struct sch_drafting {        /* for whom */
    void *user;
    uint32_t choice;
    const uint32_t *ids;     /* prompt and output so far */
    uint64_t n_ids;
};
/* The choice's own text is indexed while it runs: at most 16 bytes per token of its context, beside
 * the token ids themselves. A step begins at most 64 such indexes; each stays until its choice
 * ends. */
struct sch_speculation {
    uint32_t max_draft;      /* tokens per choice and step; 0: no drafts at all */
    /* Another source of drafts (NULL: the choice's own text): writes at most `most` ids and returns
     * how many. All are tried, whatever they cost. */
    uint32_t (*propose)(void *arg, const struct sch_drafting *d, uint32_t most, uint32_t *out);
    void *arg;
};

struct sch_opts {            /* 0 = the default in parentheses */
    struct kv_pool *pool;    /* borrowed */
    struct sch_stepper stepper;
    struct sch_callbacks cb;
    uint32_t max_running;    /* choices that may be in steps at once (256). Of several tenants one
                              * has at most half of them, or its part by weight or its
                              * max_concurrent if that is more */
    uint32_t max_queue;      /* requests that wait for their first start (1024) */
    uint64_t max_queue_tokens; /* their prompt tokens (4,194,304); the only one of a tenant may
                              * have more */
    uint64_t step_target_ns; /* what a step with decode rows in it should take at most (100 ms) */
    double step_stretch;     /* and by what part longer than decoding alone takes (no limit); k
                              * times that with 4 / k choices that decode for a prompt to read */
    uint32_t short_prompt;   /* a prompt with at most so many tokens to compute is short: whatever
                              * step_stretch is, it is read nearly as soon as in steps of
                              * step_target_ns. After a burst of 4,096 such rows only while they
                              * take no more than half of the time (0: none is) */
    uint32_t max_choices;    /* per request (8) */
    uint32_t max_preemptions; /* per choice; then it is not chosen any more (4) */
    /* cost units: a computed prompt token costs 1 */
    double decode_cost;      /* per generated token (2) */
    double block_cost;       /* per second and bytes of a block of tokens, all groups (0.05) */
    uint64_t quantum;        /* cost that a tenant may overdraw for a cached prefix (512) */
    struct sch_speculation speculation;
    bool shared;             /* other schedulers serve the same tenants: sch_served_take is called */
};
int sch_new(const struct sch_opts *opts, struct sch **out, struct cn_error *err);
/* Ends what is left (SCH_END_CANCELLED), waits for steps in flight. */
void sch_free(struct sch *s);

struct sch_model_opts {
    struct kv_space *space;  /* borrowed */
    uint32_t n_more;         /* spaces of further sequences that each choice has: an encoder's, a
                              * drafting model's. 0, or CN_EUNSUPP: choices have one sequence */
    struct kv_space *const *more;
    uint64_t context;        /* window of the model */
    uint32_t max_rows;       /* of a step */
    uint32_t max_logit_rows;
};
/* Models are numbered from 0 in the order of adding; a dropped number is used again. */
int sch_model_add(struct sch *s, const struct sch_model_opts *opts, uint32_t *model,
                  struct cn_error *err);
int sch_model_drop(struct sch *s, uint32_t model); /* CN_EBUSY while requests for it are left */

struct sch_tenant_opts {     /* 0 = the default in parentheses */
    double weight;           /* (1) */
    uint32_t max_concurrent; /* requests started and not ended (no limit). Others wait, without
                              * holding up other tenants. Background ones count only against
                              * background ones */
    uint32_t max_queued;     /* requests never started, beyond those that max_concurrent would let
                              * start (no limit) */
    enum sch_class ceiling;  /* no request runs in a better class */
    uint64_t kv_reserve_bytes;
};
/* Tenants are numbered densely from 0; one that was never set has the defaults, and is known from
 * its first request on. Takes effect at once; for a raised limit call sch_iterate. */
int sch_tenant_set(struct sch *s, uint32_t tenant, const struct sch_tenant_opts *opts);
/* Ends a tenant, its cache included. The number may then be given to another one, who starts anew.
 * CN_EBUSY, with nothing changed: requests of it have not ended, or steps of them are in flight.
 * Cancel them first. */
int sch_tenant_end(struct sch *s, uint32_t tenant);
/* Gives a tenant `tokens` more output tokens. Without any lease it has no limit; the first one sets
 * what it has, SCH_NO_LEASE takes the limit away. Each token that is put out takes one, over all
 * its requests. When none is left, what wants another ends with CN_EBUDGET, and all that is open
 * does before the next step is composed, unless more were given; sch_submit refuses. */
#define SCH_NO_LEASE UINT64_MAX
int sch_tenant_lease(struct sch *s, uint32_t tenant, uint64_t tokens);

/* ---- several schedulers with the same tenants (share.c) -------------------------------------- */

/* Each has its own device, pool and queue; what a tenant is served in one raises its counter in the
 * others, so that it comes after those that were served less there. A second of steps is worth the
 * same whichever device took it: cost becomes seconds by what a second of the sender's steps was
 * worth so far, and cost again by what one of the receiver's is. (A token may cost a thousand times
 * as much time in one group as in another; counted in tokens, a little work on the fast one would
 * weigh more than all that the slow one can do.) Counters only say who comes first: a tenant that is
 * alone in a group is served as if there were no others.
 *
 * Bound: where two tenants have work waiting in all schedulers, their service in seconds over
 * weight, summed over the schedulers, differs by no more than in one (twice the larger of the
 * costliest prompt and a batch, in seconds of the scheduler where that is most) plus what one step of
 * each brings, which the others do not know of yet. What a tenant was served where nobody else
 * wanted to be is held against it elsewhere, but never by more than the larger of a prompt and a
 * batch: it comes last while others wait, and no later than that when it stops. */
struct sch_served {
    uint32_t tenant;
    double seconds;
};
/* What tenants were served since they were last told of, each once: at most `most`; how many. Needs
 * opts.shared. */
uint32_t sch_served_take(struct sch *s, struct sch_served *out, uint32_t most);
/* The larger of the costliest prompt and a batch, in seconds; 0 before the first step. */
double sch_burst_s(const struct sch *s);
/* Another scheduler served a tenant; burst_s: of that one. Unknown tenants are ignored. */
void sch_served_elsewhere(struct sch *s, const struct sch_served *v, double burst_s);

/* ---- running (sch.c) ------------------------------------------------------------------------- */

/* Accepts a request, or refuses it: CN_EQUEUE (queue full), CN_ERATE (the tenant's max_queued),
 * both with the limit's key in conifer.yaml, its value and whose it is; CN_EWINDOW (also a
 * SCH_ONE_STEP prompt longer than a step, or a medium that is seen both ways), CN_EINVAL (media that do
 * not agree with the items; one seen both ways at the prompt's end), CN_EUNSUPP (SCH_PROMPT_LOGITS with
 * one seen both ways), CN_ENEVERFIT (with the arithmetic), CN_ERANGE (choices,
 * max_new), CN_EMODEL, CN_EBUDGET, CN_EDEADLINE, CN_ENOMEM. Half of the queue is divided among the known
 * tenants by weight (at least one request each); a tenant with less than its part waiting is never
 * refused with CN_EQUEUE for what others have there. Beyond its part it may use all that leaves the
 * other parts free: a single tenant the whole queue, one of several half of it, or its max_queued
 * where that is more. Tenants too many for that (more than half of
 * max_queue): none may have more waiting than is still free. */
int sch_submit(struct sch *s, const struct sch_request *r, uint64_t *id, struct cn_error *err);
/* Takes effect in the next sch_iterate, before anything else. A stale id is ignored. */
void sch_cancel(struct sch *s, uint64_t id);
/* A paused request gets no more decode or prefill rows and gives up its place in max_running; it
 * keeps its blocks while there is room. Resumed, it waits for a place again, before all of its
 * tenant's that never started. It counts against max_concurrent all the time; a tenant whose paused
 * ones are half of max_running, or 16 if that is more, starts nothing new. */
void sch_pause(struct sch *s, uint64_t id, bool paused);
/* Appends to the ids that the choice puts out next; they are copied, and what is beyond its limit
 * is left out. Each is a generated token, with a verdict, usage and cost like others. Called from
 * the choice's own on_token, they follow that token: on_token gets them one by one as soon as it
 * has returned SCH_CONTINUE, at most SCH_FORCE_BURST in an iteration. Called from elsewhere, they
 * come when the choice's next token is due, or the one after it if its draw was asked for already.
 * Before the first token they wait until the prompt is read. They outlive preemption and pauses.
 * 0; CN_ENOENT: the id is stale or the choice has ended; CN_ERANGE: no such choice; CN_ENOMEM. */
#define SCH_FORCE_BURST 256
int sch_force(struct sch *s, uint64_t id, uint32_t choice, const uint32_t *ids, uint32_t n);
/* One iteration: cancels, deadlines, admission, composition and launch of at most one step, and
 * collection of one when `depth` steps are in flight or there is nothing to launch. True when
 * there was a step to launch or collect: call it again at once. */
bool sch_iterate(struct sch *s);
/* Does now what the next sch_iterate would do first: cancels, deadlines, admission. In a burst, no
 * request is then refused because one that could already start still occupies the queue. False,
 * having done nothing, if nothing has changed since the last time. */
bool sch_let_in(struct sch *s);
/* When sch_iterate has something to do by the clock alone: ns, UINT64_MAX = never. Only meaningful
 * after sch_iterate returned false. */
uint64_t sch_next_wake(const struct sch *s);
/* Seconds after which a refused request might be accepted (for Retry-After), 1 to 60: from how fast
 * waiting requests were started lately. O(1); its clock is that of the last sch_iterate. */
uint32_t sch_retry_after_s(const struct sch *s);

struct sch_stats {
    uint64_t running;            /* requests that hold KV blocks */
    uint64_t waiting;            /* accepted, not running: paused ones too */
    uint64_t paused;             /* started and paused */
    uint64_t waiting_tokens;
    uint64_t in_flight;          /* steps */
    uint64_t steps, rows;
    uint64_t prompt_tokens;      /* of accepted requests */
    uint64_t prompt_computed;    /* prompt rows computed for the first time */
    uint64_t prompt_cached;      /* prompt tokens adopted instead */
    uint64_t computed;           /* rows computed for the first time, drafts only if they were right */
    uint64_t written;            /* prompt tokens that were computed and entered the prefix cache */
    uint64_t recomputed, generated, preemptions;
    uint64_t saved, restored;    /* choices whose blocks were kept at a preemption, and brought back */
    uint64_t forced;             /* of the generated ones */
    uint64_t cancelled_tokens;   /* generated for requests that were cancelled */
    uint64_t wasted;             /* rows computed whose result nobody saw, drafts aside */
    uint64_t drafted;            /* rows of drafts */
    uint64_t drafts_right;       /* of these, whose token was drawn before them and put out */
    uint64_t accepted, refused, ended_ok, ended_error, ended_cancelled;
    uint64_t last_step_ns;       /* duration */
    uint64_t last_progress_ns;   /* when a step was last collected */
    double step_base_ns, step_row_ns; /* the fitted cost of a step: base + rows x row */
};
void sch_stats(const struct sch *s, struct sch_stats *out);

struct sch_tenant_stats {
    double counter;              /* weighted cost served (lifts included) */
    double served;               /* cost served, not weighted, no lifts */
    uint64_t running, waiting, paused, prompt_computed, cached, generated;
    uint64_t lease;              /* output tokens left, or SCH_NO_LEASE */
};
void sch_tenant_stats(const struct sch *s, uint32_t tenant, struct sch_tenant_stats *out);

/* Full consistency check for tests: CN_EINTERNAL says what is wrong. */
int sch_check(const struct sch *s, struct cn_error *err);

#endif
