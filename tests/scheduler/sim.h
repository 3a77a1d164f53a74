/* A device and a model that are not there: the real scheduler and pool run over simulated memory.
 *
 * A row writes, per layer group, a hash of its token and of everything it can see, read through the
 * block tables; a sampled token is a hash of what its row sees. So a wrong table, a block shared or
 * freed too early, a copy left out, a row computed twice or not at all changes the output, which is
 * compared with the same request run alone over plain arrays (sim_solo). */
#ifndef TESTS_SCHEDULER_SIM_H
#define TESTS_SCHEDULER_SIM_H

#include "scheduler/scheduler.h"

#define SIM_MAX_GROUPS  3
#define SIM_MAX_REQS    64
#define SIM_MAX_CHOICES 4
#define SIM_MAX_LEN     512
#define SIM_MAX_MEDIA   4

struct sim_req {
    uint64_t id;
    struct sch_request spec;
    uint32_t prompt[SIM_MAX_LEN];
    uint64_t marks[4];
    struct sch_media media[SIM_MAX_MEDIA];
    uint64_t stop_mod;  /* a token divisible by it ends a choice; 0 = none */
    uint32_t mask_mod;  /* of what may be drawn one in so many ids is left out, other ones
                         * behind each token; 0 = none. With steppers of depth 2: only if late */
    uint32_t force_mod; /* one token in so many is followed by forced ids; 0 = none is */
    uint32_t force_behind, force_n; /* once, behind so many tokens, so many ids; 0 = not */
    bool force_masks; /* they come by masks of one id, not by sch_force; as mask_mod */
    bool cut;         /* sch_force failed: its choice was stopped */
    bool waits;       /* paused since a draw of it was skipped */
    bool parrot;      /* puts out its prompt again and again, whatever its rows see */
    bool submitted, cancelled, had_rows;
    uint64_t cancel_iteration;
    uint32_t ends, choice_ends[SIM_MAX_CHOICES];
    enum sch_end reason, choice_reason[SIM_MAX_CHOICES];
    int code;
    struct sch_usage usage;
    uint32_t n_out[SIM_MAX_CHOICES];
    uint32_t out[SIM_MAX_CHOICES][SIM_MAX_LEN];
    uint32_t *solo[SIM_MAX_CHOICES]; /* for drafts: what it puts out alone */
    struct sim_text *text[SIM_MAX_CHOICES];
    uint32_t scored[SIM_MAX_LEN]; /* logits of prompt rows, as the stepper saw them wanted */
};

struct sim_opts {
    uint64_t seed;
    bool late; /* the stepper has draw: masks come after the launch */
    uint32_t depth, block_tokens, n_groups, n_models;
    struct kv_group groups[SIM_MAX_GROUPS];
    uint64_t slab_bytes;
    uint32_t n_slabs;
    uint32_t max_rows, max_logit_rows;
    uint64_t context;
    uint64_t step_ns, row_ns; /* of the fake device */
    uint32_t jitter;          /* steps and draws take up to so many ns more; 0 = none */
    uint64_t key_ns;          /* for each key behind a row of a prompt */
    bool keys_once;           /* of a segment's rows together */
    struct sch_opts sch;      /* pool, stepper and callbacks are filled in */
    uint32_t fail_launch, fail_draw, fail_collect, fail_row; /* one in so many; 0 = never */
    uint32_t skip;       /* draws that are skipped, and drafts that are not drawn: one in so many */
    uint64_t host_words; /* that can be saved at once; 0 = nothing is saved */
    uint32_t fail_save;  /* saves and restores: one in so many; 0 = never */
    double save_rate;    /* bytes per second that the scheduler is told; 0 = none */
    uint32_t max_draft;  /* 0 = no speculation */
    bool guess;          /* drafts are made up, with the right tokens and wrong ones at random;
                          * else the scheduler's own */
    uint32_t vocab;      /* 0 = 251 */
};

struct sim_step;
struct sim_slot;
struct sim_text;
struct sim {
    struct sim_opts o;
    uint64_t rng, clock, iterations, tickets;
    struct kv_pool *pool;
    struct kv_space *space[2];
    struct sch *sch;
    uint64_t *mem;
    uint64_t slab_units;
    struct sim_step *steps[2]; /* in flight */
    uint32_t n_steps;
    struct sch_row_result *results;
    struct sim_slot *slots;
    uint32_t max_running;
    struct { uint64_t ticket, owner; } *users; /* per block: the last step that reads it */
    struct sim_req *reqs;
    uint32_t n_reqs;
    uint64_t rows, prompt_rows;
    uint64_t n_beside; /* steps that were launched with another one in flight */
    uint64_t n_masked; /* rows that were drawn with a mask, after the launch */
    uint64_t n_skipped;
    struct sim_kept *kept;
    uint64_t kept_words, n_kept;
    struct sch_usage told; /* sums over all requests that ended */
    bool *device;          /* set while the simulated device and client run; NULL: not wanted */
    bool failed;
    char what[256];
};

void sim_init(struct sim *m, const struct sim_opts *o);
void sim_fini(struct sim *m);
uint64_t sim_rnd(struct sim *m);
uint32_t sim_below(struct sim *m, uint32_t n);
/* Marks the run as failed; the first reason stays. */
void sim_fail(struct sim *m, const char *fmt, ...) CN_PRINTF(2, 3);
/* A new request with n random prompt tokens; change its spec before sim_submit. */
struct sim_req *sim_req_new(struct sim *m, uint32_t tenant, uint64_t n_prompt, uint64_t max_new);
/* Positions [first, first + n) of its prompt, behind its other media, hold medium `which` of that
 * size, whose rows see each other both ways where that is odd. */
void sim_add_media(struct sim_req *r, uint64_t first, uint64_t n, uint8_t which);
int sim_submit(struct sim *m, struct sim_req *r);
bool sim_iterate(struct sim *m);
/* Forces ids from outside of on_token, and remembers it for the checks; sch_force's answer. */
int sim_force(struct sim *m, struct sim_req *r, uint32_t choice, const uint32_t *ids, uint32_t n);
/* Until nothing is left to do; fails when it does not come to that. */
void sim_run(struct sim *m);
/* The tokens that choice puts out when it runs alone: how many, and whether a stop ended it. */
uint32_t sim_solo(struct sim *m, const struct sim_req *r, uint32_t choice, uint32_t *out,
                  bool *stopped);
/* Compares every ended request with its solo run, and the pool at rest with an empty one. */
void sim_check_outputs(struct sim *m);
void sim_check_idle(struct sim *m);

#endif
