/* Inside the scheduler: requests, choices, tenants, steps in flight.
 *
 * A choice is NEW (waits for choice 0's prompt), WAITING (in its tenant's queue), RUNNING (has a KV
 * sequence and a place, stands in the running list), or ENDED. Only RUNNING choices hold blocks,
 * and those that were paused: they are WAITING, without a place, in the list of parked ones.
 * Age = (request number, choice): the oldest running choice that can run is never preempted for
 * another, unless it is background work and the other is not; so something always ends. */
#ifndef SCHEDULER_INTERNAL_H
#define SCHEDULER_INTERNAL_H

#include "scheduler/draft.h"
#include "scheduler/scheduler.h"

#define SCH_NONE UINT32_MAX
#define SCH_MAX_DEPTH 2
#define SCH_MAX_MODELS 256
#define SCH_LEAST_PAUSED 16  /* so many started ones of a tenant, or half of max_running, may be
                              * paused before nothing more of its starts */
#define SCH_CURVE_ROWS 64    /* steps of more rows are never drafted for */
#define SCH_CURVE_SEQS 7     /* 1, 2, up to 4, 8, ... sequences */

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
    bool resumed;            /* WAITING, of a request that was started: these go first */
    bool evict;              /* to be preempted when no step with it is in flight */
    bool yields;             /* likewise parked: its place is another tenant's, */
    bool yielded;            /* and was, so that it is parked now */
    bool displaced;          /* preempted for its slot, not memory: not in preemptions */
    bool planned_now;        /* has rows in the step that is being composed */
    bool looked;             /* for what others have read or will, since it was started */
    bool starved;            /* wanted rows in this step and there were no blocks */
    struct kv_seq *seq;
    uint32_t *ids;           /* prompt and output; room for all that may come */
    uint64_t n_ids;
    uint64_t high;           /* positions below this were computed or adopted before */
    uint64_t shared;         /* positions below this were found in the prefix cache or written there */
    uint64_t scored;         /* positions below this had their logits, if asked for */
    uint64_t charged_ns;     /* block time is charged up to here */
    uint32_t preemptions;
    uint32_t passed_over;    /* steps that had not enough rows left for all of its prompt */
    uint64_t promised;       /* tokens that it was let in for */
    uint32_t in_flight;      /* steps with rows of it */
    uint64_t last_ticket;    /* where its last sampled row is */
    uint32_t last_row;
    uint32_t n_draft;        /* ids behind n_ids that are guesses: to be, or in, the next step */
    uint32_t place;          /* RUNNING: the slot of its segments */
    uint32_t *forced;        /* ids to be put out when a token is due: n_forced from forced_at on */
    size_t forced_cap;
    uint64_t forced_at, n_forced;
    uint64_t kept, kept_tokens; /* the stepper's name for what it saved of so many positions; 0: none */
    uint64_t waits_from;     /* from so many ids on it may wait for one, to be drafted for */
    struct sch_draft *draft; /* NULL before it decodes, and where there is no speculation */
    struct sch_choice *prev, *next;   /* queue or running list */
    struct sch_choice *next_cand;     /* composition */
    struct sch_choice *park_next, **park_at; /* what points to it; NULL: it is not parked */
};

struct sch_req {
    struct sch *s;
    uint64_t id, number;     /* number: age */
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
    uint32_t in_flight;      /* segments in steps in flight */
    uint32_t skips;          /* times another of its tenant was preferred */
    uint32_t overtaken;      /* times another tenant's started for which there was room */
    uint64_t peek_ns, peeked, peeked_in_use;
    uint32_t heap_pos;       /* among the deadlines */
    uint64_t wake_ns;        /* its key there */
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
    uint32_t n_open;         /* requests accepted and not ended */
    uint32_t n_waiting;      /* of these, not running */
    uint32_t n_queued;       /* of these, never started */
    uint32_t n_started;      /* of these, started and not done, be they preempted */
    uint32_t n_started_background; /* of those */
    uint32_t n_paused;       /* of n_started, paused ones: they have no place, but memory */
    uint32_t most_paused;    /* then nothing new of its starts */
    uint64_t queued_tokens;  /* prompt tokens of n_queued */
    uint64_t part, part_tokens; /* of the queue: what others leave to it */
    uint32_t n_running, n_running_background; /* choices */
    double started;          /* weighted cost of the prompts that admission `round` has let in */
    uint64_t round;          /* admissions up to the next step are one */
    struct sch_list cand[SCH_N_PASSES]; /* composition: linked by next_cand */
    uint64_t prompt_computed, cached, generated;
    uint64_t lease;          /* output tokens left, or SCH_NO_LEASE */
    double unsaid;           /* cost served that other schedulers were not told of */
    struct sch_tenant *unsaid_next, **unsaid_at; /* what points to it; NULL: it is in no list */
};

struct sch_theap { struct sch_tenant **v; uint32_t n; };

/* What steps of so many rows took that only decode, by number of sequences. */
struct sch_curve {
    struct sch_point { double ns; uint64_t step; } at[SCH_CURVE_SEQS][SCH_CURVE_ROWS + 1];
    uint64_t steps;          /* measured so far */
};
struct sch_guesser { struct sch_choice *c; uint32_t n; double p, gain; };

/* base + row x rows, and the sums it was fitted from: over (rows, ns), older steps weigh less. */
struct sch_fit { double w, wx, wy, wxx, wxy, base_ns, row_ns; bool fitted; }; /* row_ns is */

struct sch_model {
    bool used;
    struct sch_model_opts o;
    uint32_t block_tokens, n_groups, chunk; /* chunk: rows of a sequence in all steps in flight */
    uint64_t block_bytes;    /* a block of tokens in all groups */
    uint32_t n_reqs;
    uint32_t passed_over;    /* steps that went to other models while it had work */
    struct sch_fit cost, alone; /* of all steps; of those that only decode */
    double beside_ns;        /* what a prompt's row adds to a step that decodes; 0: not known */
    double single_ns;        /* a row that is the only one of prompts; 0: not known of late */
    uint32_t since_alone;    /* steps since one that only decoded */
    double credit;           /* rows of short prompts that may still be read at their pace, and */
    uint64_t credit_ns;      /* since when that was not added to */
    uint64_t compositions;   /* steps that were composed */
    struct sch_curve *curve; /* NULL: no speculation */
};

struct sch_rec {
    struct sch_choice *choice;
    struct sch_req *req;
    bool forced;             /* the id that its draw gives is the first of the choice's forced ones */
};
struct sch_flight {
    uint64_t ticket, launched_ns;
    bool drawn;              /* its draws were asked for */
    uint32_t n_decode;       /* rows of those that decode, with drafts and forced ids */
    uint32_t more;           /* while it is composed: rows that those that decode may still have
                              * beyond one each, where ids were forced */
    struct sch_step step;
    struct sch_segment *segs;
    struct sch_rec *recs;    /* per segment; choice is NULL once it ended */
    uint64_t number;         /* what the pool is told: tickets may be of several devices */
    struct kv_copy *copies;
    size_t copies_cap;
};

struct sch_slot { struct sch_req *req; uint32_t generation, next_free; };
struct sch_place { uint64_t generation; uint32_t next_free; };

struct sch {
    struct sch_opts o;
    struct sch_slot *slots;
    size_t slots_cap;
    uint32_t n_slots, free_slot;
    uint64_t next_number;
    struct sch_tenant **tenants;
    size_t tenants_cap;
    uint32_t n_tenants;      /* entries of `tenants`, NULL for one that was ended */
    uint32_t n_known;        /* of these, not NULL */
    bool spent;              /* somebody's lease has come to its end */
    double weight_active;    /* of tenants with open requests */
    double weight_known;     /* of all */
    double vtime;
    struct sch_tenant *unsaid; /* with something to tell other schedulers */
    double worth_cost, worth_s; /* cost and duration of steps, old ones fading: opts.shared */
    double longest;          /* prompt that was accepted */
    uint64_t n_queued, queued_tokens; /* sums over the tenants */
    uint64_t kept, kept_tokens; /* of the parts of all tenants: not in use */
    bool parts_stale;
    uint64_t last_start_ns;  /* of a request */
    double start_gap_ns;     /* between starts while requests wait, mean of the last */
    struct sch_theap heap[SCH_N_CLASSES]; /* tenants that may start, lowest counter first */
    size_t heap_cap[SCH_N_CLASSES];
    struct sch_req **dl;     /* heap of deadlines */
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
    uint32_t n_flights;      /* flights[0] is the oldest; those from n_flights on are empty */
    struct sch_tenant **act; /* tenants in the step being composed, room for max_running */
    uint32_t n_act;
    struct kv_held *held;    /* scratch of save.c */
    size_t held_cap;
    struct sch_draw *draws;  /* of a step, room for max_running */
    struct sch_guesser *guessers; /* those that decode, room for SCH_CURVE_ROWS; NULL: none */
    struct sch_choice *solo; /* runs alone until it ends */
    struct sch_tenant *last_admitted;
    uint64_t admissions, rounds, n_launched;
    bool again;              /* something changed that the next iteration can use */
    bool stale;              /* somebody came or went since the last admission */
    uint64_t now;
    struct sch_stats stats;
};

static inline bool choice_older(const struct sch_choice *a, const struct sch_choice *b)
{
    return a->req->number != b->req->number ? a->req->number < b->req->number
                                            : a->index < b->index;
}
/* Tokens that it has put out. */
static inline uint64_t choice_generated(const struct sch_choice *c)
{
    return c->n_ids - c->req->spec.n_prompt;
}
static inline struct sch_model *choice_model(const struct sch_choice *c)
{
    return &c->req->s->models[c->req->spec.model];
}

/* Requests that keep another of this class from starting: background ones give way. */
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
/* No longer among those that are to be cancelled. */
void sch_cancel_unlist(struct sch_req *r);
void sch_req_free(struct sch_req *r);
int sch_tenant_get(struct sch *s, uint32_t index, struct sch_tenant **out);

/* ---- door.c ---------------------------------------------------------------------------------- */
/* Refuses what can never run; else how many tokens each choice may put out. */
int sch_door_size(struct sch *s, const struct sch_request *r, uint64_t *max_new,
                  struct cn_error *err);
/* Refuses what the tenant's limits or the queue have no place for. */
int sch_door_limits(struct sch *s, const struct sch_request *r, const struct sch_tenant *t,
                    struct cn_error *err);
/* How many of max_running are for this tenant's at most. */
uint32_t sch_door_places(const struct sch *s, const struct sch_tenant *t, enum sch_class class);
/* A started request is paused, or goes on. */
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
/* At most n rows from pos on without cutting such a medium; where one begins at pos, all of it though
 * that may be more than n, or 0 when it is more than `room`. */
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
/* Counts of running and waiting requests, when a choice of r starts or stops to do either. */
void sch_req_phase(struct sch_req *r, int running, int waiting);
/* Takes a choice out of the running list and closes its sequence. */
void sch_choice_close(struct sch *s, struct sch_choice *c, bool failed);
/* The choice of this tenant and class that should run next. */
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
/* Who gives blocks back so that c can go on: c itself when nobody else should. NULL: nobody now.
 * force: bounds on preemptions do not count. */
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
/* It keeps its sequence, and is no more among those that may lose it for being parked. */
void sch_unpark(struct sch *s, struct sch_choice *c);
void sch_parked_close(struct sch *s, struct sch_choice *c, bool failed);
/* Pays for the time since its blocks were last paid for. */
void sch_charge_blocks(struct sch *s, struct sch_choice *c);

/* ---- save.c ---------------------------------------------------------------------------------- */
/* What c has computed is kept, if the stepper can, before it loses its blocks. */
void sch_save(struct sch *s, struct sch_choice *c);
/* c, of which something is kept, has a new sequence, and gets it back. False: it failed, and c is to be
 * computed again, with another sequence. */
bool sch_restore(struct sch *s, struct sch_choice *c);
void sch_forget_kept(struct sch_choice *c);

/* ---- cost.c ---------------------------------------------------------------------------------- */
void sch_cost_init(struct sch_model *m);
/* n_decode: of the rows, those that decode. */
void sch_cost_learn(struct sch_model *m, uint32_t rows, uint32_t n_decode, double ns);
uint32_t sch_cost_rows(const struct sch_model *m, double target_ns);
uint32_t sch_cost_beside(const struct sch_model *m, uint32_t n_decode, double part);
/* Whether to see what n_decode rows take alone: every so many steps. */
bool sch_cost_asks(const struct sch_model *m, uint32_t n_decode, uint32_t steps);
uint32_t sch_cost_short(const struct sch_model *m, uint32_t n_decode, double target_ns);
/* A step ended that read so many rows of prompts beside others that decode. */
void sch_cost_credit(struct sch_model *m, uint32_t rows, uint64_t now);

/* ---- spec.c ---------------------------------------------------------------------------------- */
int sch_curve_new(struct sch *s, struct sch_model *m);
/* A step of n_seqs sequences and n_rows rows that did nothing but decode took ns. */
void sch_curve_learn(struct sch_model *m, uint32_t n_seqs, uint32_t n_rows, double ns);
/* Drafts for those that are about to decode: n_draft, and the ids behind n_ids. others: somebody
 * who is not in the step waits for its end. */
void sch_speculate(struct sch *s, struct sch_model *m, bool others);
/* Whether c, whose next row needs the id that is being drawn, had better wait for it: drafts behind
 * it promise more. *taken: as many ids were taken up for that in this step. */
bool sch_awaits(const struct sch *s, struct sch_choice *c, uint64_t *taken);

/* ---- draw.c ---------------------------------------------------------------------------------- */
/* Tells the stepper to draw the step's rows, if it was not told before. */
void sch_draw_step(struct sch *s, struct sch_flight *f);
/* A choice's sampled rows are there: hands out its tokens. */
void sch_take_tokens(struct sch *s, const struct sch_rec *rec, const struct sch_segment *g,
                     const struct sch_row_result *rows);
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
