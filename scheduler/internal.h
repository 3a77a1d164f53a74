/* Inside the scheduler: requests, choices, tenants, steps in flight.
 *
 * A choice is NEW (waits for choice 0's prompt), WAITING (in its tenant's queue), RUNNING (has a KV
 * sequence and a slot, and is in the running list), or ENDED. Only RUNNING and parked choices hold
 * blocks; a parked one was paused or yielded: it is WAITING, without a slot, in the parked list.
 * Age = (request number, choice): the oldest running choice that can run is never preempted for
 * another, unless it is background work and the other is not; so something always ends. */
#ifndef SCHEDULER_INTERNAL_H
#define SCHEDULER_INTERNAL_H

#include "scheduler/draft.h"
#include "scheduler/scheduler.h"

#define SCH_NONE       UINT32_MAX
#define SCH_MAX_DEPTH  2
#define SCH_MAX_MODELS 256
/* A tenant starts nothing more while this many of its requests, or half of max_running if that is
 * more, are paused. */
#define SCH_LEAST_PAUSED 16
#define SCH_CURVE_ROWS   64 /* no drafts in steps of more rows */
#define SCH_CURVE_SEQS   7  /* 1, 2, up to 4, 8, ... sequences */

/* Passes of composing a step. */
enum { PASS_WHOLE, PASS_DECODE, PASS_PREFILL, PASS_PREFILL_LATER, SCH_N_PASSES };

struct sch_req;
struct sch_choice;
struct sch_tenant;
struct sch_flight;

enum choice_state { CH_NEW, CH_WAITING, CH_RUNNING, CH_ENDED };

struct sch_list { struct sch_choice *head, *tail; };

struct sch_choice {
    struct sch_req *req;
    uint32_t index;
    uint8_t state;
    bool resumed;     /* WAITING, of a started request: goes before new ones */
    bool evict;       /* preempt it once no step with it is in flight */
    bool yields;      /* park it then: another tenant gets its slot */
    bool yielded;     /* parked because it yielded */
    bool displaced;   /* preempted for its slot, not memory: not in preemptions */
    bool planned_now; /* has rows in the step being composed */
    bool looked;      /* has compared its prompt with those of others since it started */
    bool starved;     /* got no rows in this step for lack of blocks */
    bool skipped;     /* its draw in a step in flight was skipped: nothing follows that row */
    struct kv_seq *seq;
    uint32_t *ids; /* prompt and output; [req->limit] */
    uint64_t n_ids;
    uint64_t high;       /* positions below this were computed or adopted at least once */
    uint64_t shared;     /* positions below this were found in or written to the prefix cache */
    uint64_t scored;     /* positions below this have had their prompt logits */
    uint64_t charged_ns; /* time up to which its blocks are charged */
    uint32_t preemptions;
    uint32_t passed_over; /* SCH_ONE_STEP: steps without enough rows left for it */
    uint64_t promised;    /* tokens that admission counted on */
    uint32_t in_flight;   /* steps with rows of it */
    uint64_t last_ticket; /* step and row of its last sampled row */
    uint32_t last_row;
    uint32_t n_draft; /* drafts after n_ids, in the next step or in flight */
    uint32_t place;   /* RUNNING: its slot */
    uint32_t *forced; /* ids to emit next: n_forced of them from forced_at on */
    size_t forced_cap;
    uint64_t forced_at, n_forced;
    uint64_t kept; /* name of the stepper's copy of its blocks; 0: none */
    uint64_t kept_tokens, kept_bytes;
    uint64_t waits_from;     /* from this many ids on it may wait for its next id, for drafts */
    struct sch_draft *draft; /* NULL before it decodes, and without speculation */
    struct sch_choice *prev, *next;          /* queue or running list */
    struct sch_choice *next_cand;            /* composition */
    struct sch_choice *park_next, **park_at; /* park_at: the pointer to it; NULL: not parked */
};

struct sch_req {
    struct sch *s;
    uint64_t id, number; /* number: age */
    uint32_t slot;
    struct sch_tenant *tenant;
    enum sch_class class;
    struct sch_request spec; /* prompt, marks and media are owned */
    struct kv_range *joined; /* of its media those whose rows see each other both ways */
    uint32_t n_joined;
    uint64_t max_new, limit; /* limit: n_prompt + max_new */
    bool cancelled, paused, started, siblings_out, ended;
    enum sch_end reason;
    int code;
    uint32_t n_running, n_waiting, n_open; /* choices; open: not ENDED */
    uint32_t in_flight;                    /* segments in steps in flight */
    uint32_t skips;                        /* times that another request of its tenant went first */
    uint32_t overtaken; /* times that another tenant's request, which had room, went first */
    uint64_t peek_ns, peeked, peeked_in_use;
    uint32_t heap_pos;                        /* among the deadlines */
    uint64_t wake_ns;                         /* its key there */
    struct sch_req *cancel_next, **cancel_at; /* what points to it; NULL: in no list of cancels */
    struct sch_usage usage;
    struct sch_choice choices[];
};

struct sch_tenant {
    uint32_t index;
    struct sch_tenant_opts opts;
    double counter, served;
    struct sch_list fresh[SCH_N_CLASSES], resumed[SCH_N_CLASSES];
    uint32_t heap_pos[SCH_N_CLASSES];
    uint32_t n_open;               /* requests accepted and not ended */
    uint32_t n_waiting;            /* of n_open, not running */
    uint32_t n_queued;             /* of n_open, never started */
    uint32_t n_started;            /* of n_open, started, preempted ones included */
    uint32_t n_started_background; /* of n_started */
    uint32_t n_paused;             /* of n_started, paused: they hold memory, but no slot */
    uint32_t most_paused;          /* n_paused at which nothing new of it starts */
    uint64_t queued_tokens;        /* prompt tokens of n_queued */
    uint64_t part, part_tokens;    /* its quota of the queue */
    uint32_t n_running, n_running_background; /* choices */
    double started;                           /* weighted cost of the prompts admitted in `round` */
    uint64_t round; /* number of its last admission; all up to the next step are one */
    struct sch_list cand[SCH_N_PASSES]; /* composition: linked by next_cand */
    uint64_t prompt_computed, cached, generated;
    uint64_t lease;       /* output tokens left, or SCH_NO_LEASE */
    uint64_t saved_bytes; /* of host memory, for its preempted choices */
    double unsaid;        /* cost served and not yet reported to other schedulers */
    struct sch_tenant *unsaid_next, **unsaid_at; /* what points to it; NULL: it is in no list */
};

struct sch_theap {
    struct sch_tenant **v;
    uint32_t n;
};

/* Time of decode-only steps, by number of sequences and of rows. */
struct sch_curve {
    struct sch_point {
        double ns;
        uint64_t step;
    } at[SCH_CURVE_SEQS][SCH_CURVE_ROWS + 1];
    uint64_t steps; /* number measured so far */
};
struct sch_guesser {
    struct sch_choice *c;
    uint32_t n;
    double p, gain;
};

/* base + row x rows, and the sums it was fitted from: over (rows, ns), older steps weigh less. */
struct sch_fit {
    double w, wx, wy, wxx, wxy, base_ns, row_ns;
    bool fitted; /* row_ns is */
};

struct sch_model {
    bool used;
    struct sch_model_opts o;
    uint32_t block_tokens, n_groups, chunk; /* chunk: rows of a sequence in all steps in flight */
    uint64_t block_bytes;                   /* a block of tokens in all groups */
    uint32_t n_reqs;
    uint32_t passed_over;       /* steps given to other models while it had work */
    struct sch_fit cost, alone; /* of all steps; of those that only decode */
    double beside_ns;           /* time that a prompt row adds to a decode step; 0: not known */
    double single_ns;           /* the same of a step's only prompt row; 0: not known lately */
    uint32_t since_alone;       /* steps since the last decode-only one */
    double credit;              /* rows of short prompts that may be read at full pace */
    uint64_t credit_ns;         /* time up to which credit was added */
    uint64_t compositions;      /* steps that were composed */
    struct sch_curve *curve;    /* NULL: no speculation */
};

struct sch_rec {
    struct sch_choice *choice;
    struct sch_req *req;
    bool forced;  /* its draw is the choice's first forced id */
    bool skipped; /* the stepper skipped its draw */
};
struct sch_flight {
    uint64_t ticket, launched_ns;
    bool drawn;        /* its draws were asked for */
    uint32_t n_decode; /* decode rows, drafts and forced ids included */
    uint32_t more;     /* while it is composed: rows left for forced ids, beyond one per
                        * decoding choice */
    struct sch_step step;
    struct sch_segment *segs;
    struct sch_rec *recs; /* per segment; choice is NULL once it ended */
    uint64_t number;      /* its number for the pool (tickets are the device's) */
    struct kv_copy *copies;
    size_t copies_cap;
};

struct sch_slot {
    struct sch_req *req;
    uint32_t generation, next_free;
};
struct sch_place {
    uint64_t generation;
    uint32_t next_free;
};

struct sch {
    struct sch_opts o;
    struct sch_slot *slots;
    size_t slots_cap;
    uint32_t n_slots, free_slot;
    uint64_t next_number;
    struct sch_tenant **tenants;
    size_t tenants_cap;
    uint32_t n_tenants;   /* entries of `tenants`; NULL: ended */
    uint32_t n_known;     /* entries that are not NULL */
    bool spent;           /* a tenant's lease is used up */
    double weight_active; /* of tenants with open requests */
    double weight_known;  /* of all */
    double vtime;
    struct sch_tenant *unsaid;        /* with something to tell other schedulers */
    double worth_cost, worth_s;       /* cost and duration of steps, old ones fading: opts.shared */
    double longest;                   /* prompt that was accepted */
    uint64_t n_queued, queued_tokens; /* sums over the tenants */
    uint64_t kept, kept_tokens;       /* unused part of all tenants' quotas */
    bool parts_stale;
    uint64_t last_start_ns; /* of a request */
    double start_gap_ns;    /* mean time between the last starts, while requests wait */
    struct sch_theap heap[SCH_N_CLASSES]; /* tenants that may start, lowest counter first */
    size_t heap_cap[SCH_N_CLASSES];
    struct sch_req **dl; /* heap of deadlines */
    size_t dl_cap;
    uint32_t n_dl;
    struct sch_model *models;
    size_t models_cap;
    uint32_t n_models;
    struct sch_list running;
    struct sch_place *places; /* max_running of them */
    uint32_t free_place;
    struct sch_choice *parked; /* WAITING ones that hold blocks */
    uint32_t n_running, n_running_class[SCH_N_CLASSES];
    struct sch_req *cancels;
    struct sch_flight store[SCH_MAX_DEPTH]; /* the stepper keeps pointers into these */
    struct sch_flight *flights[SCH_MAX_DEPTH];
    uint32_t n_flights;      /* flights[0] is the oldest; from n_flights on they are empty */
    struct sch_tenant **act; /* tenants in the step being composed, room for max_running */
    uint32_t n_act;
    struct kv_held *held; /* scratch of save.c */
    size_t held_cap;
    struct sch_draw *draws;       /* of a step, room for max_running */
    struct sch_guesser *guessers; /* those that decode, room for SCH_CURVE_ROWS; NULL: none */
    struct sch_choice *solo;      /* the choice that runs alone until it ends, or NULL */
    struct sch_tenant *last_admitted;
    uint64_t admissions, rounds, n_launched;
    bool again; /* the next iteration can do something */
    bool stale; /* requests came or went since the last admission */
    uint64_t now;
    struct sch_stats stats;
};

static inline bool choice_older(const struct sch_choice *a, const struct sch_choice *b)
{
    return a->req->number != b->req->number ? a->req->number < b->req->number : a->index < b->index;
}
/* Tokens generated so far. */
static inline uint64_t choice_generated(const struct sch_choice *c)
{
    return c->n_ids - c->req->spec.n_prompt;
}
static inline struct sch_model *choice_model(const struct sch_choice *c)
{
    return &c->req->s->models[c->req->spec.model];
}

/* Started requests that count against a new one of this class: background ones do not. */
static inline uint32_t tenant_started(const struct sch_tenant *t, uint32_t class)
{
    return class == SCH_BACKGROUND ? t->n_started : t->n_started - t->n_started_background;
}
static inline bool tenant_is_full(const struct sch_tenant *t, uint32_t class)
{
    if (t->n_paused >= t->most_paused) return true;
    return t->opts.max_concurrent && tenant_started(t, class) >= t->opts.max_concurrent;
}
static inline bool tenant_may_start(const struct sch_tenant *t, uint32_t class)
{
    return t->resumed[class].head || (t->fresh[class].head && !tenant_is_full(t, class));
}

/* ---- sch.c ----------------------------------------------------------------------------------- */
struct sch_req *sch_find(const struct sch *s, uint64_t id);
/* Takes r off the list of cancels. */
void sch_cancel_unlist(struct sch_req *r);
void sch_req_free(struct sch_req *r);
int sch_tenant_get(struct sch *s, uint32_t index, struct sch_tenant **out);

/* ---- door.c ---------------------------------------------------------------------------------- */
/* Refuses a request that can never run; else *max_new: tokens that each choice may generate. */
int sch_door_size(struct sch *s, const struct sch_request *r, uint64_t *max_new,
                  struct cn_error *err);
/* Refuses a request beyond the tenant's limits or the queue's. */
int sch_door_limits(struct sch *s, const struct sch_request *r, const struct sch_tenant *t,
                    struct cn_error *err);
/* The most slots of max_running that this tenant may have. */
uint32_t sch_door_places(const struct sch *s, const struct sch_tenant *t, enum sch_class class);
/* A started request is paused or resumed. */
void sch_door_pause(struct sch *s, struct sch_req *r, bool paused);
/* A request is accepted; its first choice starts for the first time; its last choice ended. */
void sch_door_enter(struct sch *s, struct sch_req *r);
void sch_door_start(struct sch *s, struct sch_req *r);
void sch_door_leave(struct sch *s, struct sch_req *r);

/* ---- media.c --------------------------------------------------------------------------------- */
/* Refuses media that are not where the items say, or can never run. */
int sch_media_check(const struct sch_model *m, const struct sch_request *r, struct cn_error *err);
int sch_media_copy(struct sch_req *r, const struct sch_request *spec); /* CN_ENOMEM: free r */
/* Which of the request's media the segment has rows of. */
void sch_media_of(const struct sch_req *r, struct sch_segment *g);
/* Whether a medium whose rows must be in one step begins at pos. */
bool sch_media_is_next(const struct sch_choice *c, uint64_t pos);
/* At most n rows from pos on without cutting such a medium; where one begins at pos, all of it
 * though that may be more than n, or 0 when it is more than `room`. */
uint32_t sch_media_uncut(const struct sch_choice *c, uint64_t pos, uint32_t n, uint32_t room);

/* ---- queue.c --------------------------------------------------------------------------------- */
void sch_list_push(struct sch_list *l, struct sch_choice *c);
void sch_list_remove(struct sch_list *l, struct sch_choice *c);
int sch_queue_room(struct sch *s);
/* After the tenant's limit, or how many it has started, changed. */
void sch_queue_sync(struct sch *s, struct sch_tenant *t);
void sch_queue_add(struct sch_choice *c, bool resumed);
void sch_queue_remove(struct sch_choice *c);
void sch_queue_pause(struct sch_req *r, bool paused);
/* Updates the counts of running and waiting requests when a choice of r starts or stops. */
void sch_req_phase(struct sch_req *r, int running, int waiting);
/* Takes a choice out of the running list and closes its sequence. */
void sch_choice_close(struct sch *s, struct sch_choice *c, bool failed);
/* Closes the choice's sequence (failed: its blocks leave the cache) and frees its drafts' tables.
 */
void sch_seq_close(struct sch_choice *c, bool failed);
/* The tenant's choice of this class that should run next. */
struct sch_choice *sch_queue_best(struct sch *s, struct sch_tenant *t, enum sch_class class);
void sch_charge(struct sch *s, struct sch_tenant *t, double cost);
void sch_counter_set(struct sch *s, struct sch_tenant *t, double counter);
void sch_tenant_opened(struct sch *s, struct sch_tenant *t);
void sch_tenant_closed(struct sch *s, struct sch_tenant *t);
void sch_deadline_set(struct sch *s, struct sch_req *r);
void sch_deadline_clear(struct sch *s, struct sch_req *r);
int sch_deadline_room(struct sch *s, uint32_t n);
/* Heap order by counter, for arrays of tenants without positions. */
void sch_act_down(struct sch_tenant **v, uint32_t n, uint32_t i);

/* ---- share.c --------------------------------------------------------------------------------- */
void sch_share_charge(struct sch *s, struct sch_tenant *t, double cost);
void sch_share_unlist(struct sch_tenant *t);
/* A step took so long. */
void sch_share_step(struct sch *s, uint64_t ns);

/* ---- admit.c --------------------------------------------------------------------------------- */
void sch_admit(struct sch *s);
void sch_preempt(struct sch *s, struct sch_choice *c);
/* The choice that gives blocks back so that c can continue; c itself if no other choice should.
 * NULL: none at present. force: ignores the bounds on preemptions. */
struct sch_choice *sch_victim(struct sch *s, struct sch_choice *c, bool force);
/* Gives v's blocks back, now or when its step is collected. */
void sch_evict(struct sch *s, struct sch_choice *v);
struct sch_choice *sch_oldest(const struct sch *s);
double sch_over_share(const struct sch *s, const struct sch_tenant *t);

/* ---- compose.c ------------------------------------------------------------------------------- */
/* Fills the flight with the next step; false when there is nothing to run. */
bool sch_compose(struct sch *s, struct sch_flight *f);
/* A step of c alone, whatever it takes; false when c was put back to start again. */
bool sch_compose_alone(struct sch *s, struct sch_flight *f, struct sch_choice *c);

/* ---- park.c ---------------------------------------------------------------------------------- */
void sch_running_in(struct sch *s, struct sch_choice *c);
void sch_running_out(struct sch *s, struct sch_choice *c);
/* Paused choices, and those that yield, give up their places when they are in no step. */
void sch_park_all(struct sch *s);
/* Takes c off the parked list; it keeps its sequence. */
void sch_unpark(struct sch *s, struct sch_choice *c);
void sch_parked_close(struct sch *s, struct sch_choice *c, bool failed);
/* Charges its tenant for the time since its blocks were last charged. */
void sch_charge_blocks(struct sch *s, struct sch_choice *c);

/* ---- save.c ---------------------------------------------------------------------------------- */
/* What c has computed is kept, if the stepper can, before it loses its blocks. */
void sch_save(struct sch *s, struct sch_choice *c);
/* Restores what is kept of c into its new sequence. False: it failed; c must be computed again,
 * with another sequence. */
bool sch_restore(struct sch *s, struct sch_choice *c);
void sch_forget_kept(struct sch_choice *c);

/* ---- cost.c ---------------------------------------------------------------------------------- */
void sch_cost_init(struct sch_model *m);
/* n_decode: how many of the rows decode. */
void sch_cost_learn(struct sch_model *m, uint32_t rows, uint32_t n_decode, double ns);
uint32_t sch_cost_rows(const struct sch_model *m, double target_ns);
uint32_t sch_cost_beside(const struct sch_model *m, uint32_t n_decode, double part);
/* Whether to run a decode-only step now, to time it: every `steps` steps. */
bool sch_cost_asks(const struct sch_model *m, uint32_t n_decode, uint32_t steps);
uint32_t sch_cost_short(const struct sch_model *m, uint32_t n_decode, double target_ns);
/* A step with this many prompt rows next to decode rows has ended. */
void sch_cost_credit(struct sch_model *m, uint32_t rows, uint64_t now);

/* ---- spec.c ---------------------------------------------------------------------------------- */
int sch_curve_new(struct sch *s, struct sch_model *m);
/* A step of n_seqs sequences and n_rows rows that did nothing but decode took ns. */
void sch_curve_learn(struct sch_model *m, uint32_t n_seqs, uint32_t n_rows, double ns);
/* Makes drafts for the choices that are about to decode: n_draft, and the ids after n_ids.
 * others: a request outside the step waits for its end. */
void sch_speculate(struct sch *s, struct sch_model *m, bool others);
/* Whether c, whose next row needs the id that is being drawn, had better wait for it: drafts behind
 * it promise more. *taken: as many ids were taken up for that in this step. */
bool sch_awaits(const struct sch *s, struct sch_choice *c, uint64_t *taken);

/* ---- draw.c ---------------------------------------------------------------------------------- */
/* Has the stepper draw the step's rows, unless that was done before. */
void sch_draw_step(struct sch *s, struct sch_flight *f);
/* A choice's sampled rows are there: hands out its tokens. */
void sch_take_tokens(struct sch *s, const struct sch_rec *rec, const struct sch_segment *g,
                     const struct sch_row_result *rows);
/* Its draw was skipped: forgets the sampled rows, which are computed again. */
void sch_take_nothing(struct sch *s, struct sch_choice *c, const struct sch_segment *g);
void sch_commit_rows(struct sch *s, struct sch_choice *c, uint64_t pos, uint32_t n);
void sch_forced_free(struct sch_choice *c);

/* ---- end.c ----------------------------------------------------------------------------------- */
void sch_choice_stop(struct sch *s, struct sch_choice *c, enum sch_end reason, bool failed);
void sch_req_end(struct sch *s, struct sch_req *r, enum sch_end reason, int code);
/* on_end, when every choice has ended and no step with it is in flight. */
void sch_req_settle(struct sch *s, struct sch_req *r);
void sch_collect(struct sch *s);
bool sch_launch(struct sch *s, struct sch_flight *f);

#endif
