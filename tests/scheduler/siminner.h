/* What the parts of the simulator know of each other; see sim.h. */
#ifndef TESTS_SCHEDULER_SIMINNER_H
#define TESTS_SCHEDULER_SIMINNER_H

#include "tests/scheduler/sim.h"

#define SIM_VOCAB   251u
#define SIM_MAX_IDS (2 * SIM_MAX_LEN)

/* Ids that are to be put out, in order. */
struct sim_ids {
    uint32_t head, n, id[SIM_MAX_IDS];
    bool command[SIM_MAX_IDS];
};

/* What the client of a choice keeps beside its output. */
struct sim_text {
    struct sim_ids due;        /* given to sch_force and not put out yet */
    struct sim_ids mask;       /* to come by masks of one id */
    bool late;                 /* a draw was asked for before the ids of `due` came */
    bool command[SIM_MAX_LEN]; /* which of the output was forced from outside */
};

/* Of a row of a step. SIM_ONLY: its draw was not wanted, nobody may name its id.
 * SIM_SKIPPED: nor may anybody look at the results of its segment. */
enum { SIM_UNDRAWN, SIM_DRAWN, SIM_ONLY, SIM_SKIPPED };
struct sim_row {
    uint64_t hash;
    uint32_t token, sampled;
    uint8_t state;
};

struct sim_step {
    const struct sch_step *step;
    uint64_t ticket;
    struct sim_row *rows;
    bool lost;  /* collect will fail */
    bool drawn; /* draw was called */
};

/* What a device keeps for a slot: whose it is, and a copy of the tables. */
struct sim_slot {
    uint64_t generation, owner;
    uint32_t *table[SIM_MAX_GROUPS];
};

static inline uint64_t sim_mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15ull;
    return h ^ h >> 29;
}
static inline struct sim_req *sim_req_of(void *user)
{
    return user;
}
static inline bool sim_is_state(const struct sim *m, uint32_t g)
{
    return m->o.groups[g].span == KV_SPAN_STATE;
}
static inline uint64_t sim_first_seen(const struct kv_group *g, uint64_t pos)
{
    if (g->span == KV_SPAN_WINDOW) return pos + 1 > g->tokens ? pos + 1 - g->tokens : 0;
    return g->span == KV_SPAN_CHUNK ? pos / g->tokens * g->tokens : 0;
}
static inline bool sim_stops(const struct sim_req *r, uint32_t token)
{
    return r->stop_mod && token % r->stop_mod == 0;
}
static inline uint64_t sim_row_begin(const struct sim_req *r, uint64_t pos, uint32_t token)
{
    uint64_t h = sim_mix(sim_mix(sim_mix(7 + r->spec.adapter * 64, r->spec.model), pos), token);

    for (uint32_t i = 0; i < r->spec.n_media; i++) { /* what it sees behind itself */
        const struct sch_media *x = &r->media[i];

        if (!x->both || pos < x->first || pos >= x->first + x->n) continue;
        for (uint64_t k = 0; k < x->n; k++)
            h = sim_mix(h, r->prompt[x->first + k]);
    }
    return h;
}

/* Zeroed memory of the simulation's own, which never runs out. */
void *sim_alloc(struct sim *m, size_t size);

/* ---- simsave.c: memory of the host ----------------------------------------------------------- */
double sim_save_rate(void *self);
int sim_save(void *self, uint32_t model, const struct kv_held *blocks, uint32_t n, uint64_t *kept);
int sim_restore(void *self, uint32_t model, uint64_t kept, const struct kv_held *blocks,
                uint32_t n);
void sim_forget(void *self, uint64_t kept);

/* ---- simdev.c: the device -------------------------------------------------------------------- */
int sim_launch(void *self, const struct sch_step *step, uint64_t *ticket);
int sim_draw(void *self, uint64_t ticket, struct sch_draw *draws, uint32_t n);
int sim_collect(void *self, uint64_t ticket, struct sch_step_result *out);
uint64_t *sim_word(struct sim *m, uint32_t g, uint32_t block, uint64_t i);
/* A block that is written must not be one that another sequence's step in flight still reads. */
void sim_may_write(struct sim *m, uint32_t block, uint64_t owner);
bool sim_draw_in_flight(const struct sim *m, const struct sim_req *r, uint32_t choice);

/* ---- simtext.c: the client ------------------------------------------------------------------- */
/* What the row at pos, which holds `token`, draws from the hash of what it sees. */
uint32_t sim_pick(const struct sim *m, const struct sim_req *r, uint32_t choice, uint64_t pos,
                  uint32_t token, uint64_t hash);
/* The id that comes next, taken off; false: there is none. */
bool sim_ids_next(struct sim_ids *q, uint32_t *id);
/* Adds what is forced behind output `index`, which is `token`; how many ids. */
uint32_t sim_script(const struct sim *m, const struct sim_req *r, uint32_t choice, uint64_t index,
                    uint32_t token, struct sim_ids *q);
/* Whether the request's draws depend on what was put out before them. */
bool sim_has_masks(const struct sim_req *r);
struct sim_text *sim_text_of(struct sim *m, struct sim_req *r, uint32_t choice);
enum sch_verdict sim_on_token(void *arg, const struct sch_token *t);
void sim_on_choice_end(void *arg, uint64_t id, void *user, uint32_t choice, enum sch_end reason);
void sim_on_end(void *arg, uint64_t id, void *user, enum sch_end reason, int code,
                const struct sch_usage *usage);
uint32_t sim_propose(void *arg, const struct sch_drafting *d, uint32_t most, uint32_t *out);

#endif
