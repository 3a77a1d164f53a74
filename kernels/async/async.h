/* async: a CPU device behind a thread, as the host would see a device of its own.
 *
 * What the host asks for becomes a job of the device's queue and is done in the order of asking:
 * copies of blocks, forward passes, draws. A job owns all that it needs (rows, changed entries of
 * block tables, guesses, masks), because the host continues meanwhile. Private to kernels/async.
 *
 * Threads: the host's (the engine thread) makes jobs and waits for them; the device's runs them.
 * Everything that both touch is under `lock`, or belongs to the job that is running. */
#ifndef KERNELS_ASYNC_ASYNC_H
#define KERNELS_ASYNC_ASYNC_H

#include "kernels/device.h"

#include <pthread.h>

#define KR_ASYNC_DEPTH 2 /* steps in flight */
#define KR_ASYNC_STEPS 4 /* whose ids are kept: those in flight, and those that their rows name */

struct kr_async_exec;
struct kr_async_step;

enum kr_async_kind {
    KR_ASYNC_COPY,
    KR_ASYNC_MOVE,
    KR_ASYNC_STATE,
    KR_ASYNC_FORWARD,
    KR_ASYNC_DRAW
};
struct kr_async_job {
    struct kr_async_job *next;
    enum kr_async_kind kind;
    struct kr_async_exec *x;
    struct kr_async_step *step;         /* FORWARD, DRAW */
    struct kr_kv_mem *mem;              /* the CPU's: COPY, MOVE, FORWARD */
    uint32_t group, dst, src, n_tokens; /* COPY */
    struct kr_move *moves;              /* MOVE: [n_moves], in the job's own memory */
    uint32_t n_moves;
    bool out;
};

struct kr_async {
    struct kr_device base;
    struct kr_device *cpu;
    struct kr_async_opts opts;
    pthread_t thread;
    bool thread_there, lock_there;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    struct kr_async_job *first, **last; /* not begun */
    uint64_t asked, finished;           /* jobs */
    uint64_t n_steps;                   /* the device's thread's */
    bool stop;
    atomic_bool lost;
    _Atomic uint64_t taken; /* bytes of opts.memory_bytes */
};

/* A changed part of a slot's table, whose entries are in the step's. */
struct kr_async_change {
    uint32_t seq, group, from, n;
    size_t at;
};
/* A step from its launch until four launches later. */
struct kr_async_step {
    uint64_t ticket, cpu_ticket;
    struct kr_async_job forward, draw_job;
    /* what the launch brought */
    struct kr_batch batch;
    struct kr_row *rows;
    struct kr_seq *seqs;
    struct kr_async_change *changes;
    uint32_t *entries;
    size_t rows_cap, seqs_cap, changes_cap, entries_cap, n_changes, n_entries;
    uint32_t n_wanted;
    /* what the draw brought */
    struct kr_draw *draws;
    uint32_t *words; /* guesses and masks */
    const uint32_t **masks;
    size_t draws_cap, words_cap, masks_cap;
    uint32_t n_draws;
    bool draw_asked;
    /* what came of it; under the device's lock */
    int rc;
    struct cn_error err;
    bool forward_done, draw_done;
    /* the device's thread's, the host's once it is done */
    float *logits; /* of a step that is not drawn */
    size_t logits_cap, results_cap, ids_cap;
    struct kr_result *results;
    uint32_t *ids; /* by row of the step: what was drawn of it */
};

/* A slot's draw state: the device's own, made of what the host sent. The device's thread's. */
struct kr_async_lists;
struct kr_async_copy {
    uint64_t generation; /* 0: the slot is empty */
    int rc;              /* what went wrong with the state; draws fail with it */
    struct kr_draw_state *state;
    struct kr_async_lists *lists; /* that the state borrows */
};

struct kr_async_exec {
    struct kr_exec base;
    struct kr_async *dev;
    struct kr_exec *cpu;
    uint64_t taken;                             /* bytes of the device's memory */
    struct kr_async_step steps[KR_ASYNC_STEPS]; /* by ticket */
    /* tables: by slot and group, [max_entries]; the device's thread's */
    uint32_t *tables, **pointers; /* pointers: to the tables */
    uint64_t max_entries;
    uint64_t *generations;        /* of each slot; the host's */
    struct kr_async_copy *copies; /* by slot, [max_seqs] */
    struct kr_draw_rooms rooms;   /* of their draws */
    uint32_t n_copies;            /* not empty */
    bool *used;
};

/* device.c */
/* Gives its number: how many jobs were asked for with it. */
uint64_t kr_async_push(struct kr_async *d, struct kr_async_job *j);
/* Until every job that was asked for is done. */
void kr_async_drain(struct kr_async *d);
/* memory.c */
/* Takes bytes of the device's memory for `what`; CN_ENOMEM. Any thread. */
int kr_async_take(struct kr_async *d, uint64_t bytes, const char *what, struct cn_error *err);
void kr_async_give(struct kr_async *d, uint64_t bytes);
/* Prepares the CPU's exec at the pace of the device's upload. */
int kr_async_upload(struct kr_async *d, const struct kr_plan *p, const struct kr_prepare_opts *opts,
                    struct kr_exec **out, struct cn_error *err);
int kr_async_host_new(struct kr_device *d, uint64_t bytes, void **out, struct cn_error *err);
void kr_async_host_free(struct kr_device *d, void *host, uint64_t bytes);
int kr_async_move(struct kr_async_exec *x, struct kr_kv_mem *cpu_mem, const struct kr_move *moves,
                  uint32_t n, bool out, uint64_t *ticket, struct cn_error *err);
bool kr_async_moved(struct kr_exec *x, uint64_t ticket, bool wait);
/* On the device's thread. */
void kr_async_run_move(struct kr_async *d, struct kr_async_job *j);
/* draw.c */
int kr_async_draw_new(struct kr_exec *x, struct kr_draw_at at, const struct kr_draw_told *told);
int kr_async_draw_clone(struct kr_exec *x, struct kr_draw_at at, uint32_t choice,
                        uint32_t from_slot);
int kr_async_draw_put(struct kr_exec *x, uint32_t slot, uint64_t before, const uint32_t *ids,
                      size_t n);
void kr_async_draw_drop(struct kr_exec *x, uint32_t slot);
void kr_async_copies_fini(struct kr_async_exec *x);
/* On the device's thread: does what a job says; the state of a place, or NULL with *rc. */
void kr_async_run_state(struct kr_async_exec *x, struct kr_async_job *j);
struct kr_draw_state *kr_async_state(const struct kr_async_exec *x, struct kr_draw_at at, int *rc);
/* step.c: on the device's thread. */
void kr_async_run(struct kr_async *d, struct kr_async_job *j);
int kr_async_launch(struct kr_exec *x, struct kr_kv_mem *m, const struct kr_batch *b,
                    uint64_t *ticket, struct cn_error *err);
int kr_async_collect(struct kr_exec *x, uint64_t ticket, float **logits, struct cn_error *err);
int kr_async_draw(struct kr_exec *x, uint64_t ticket, const struct kr_draw *draws, uint32_t n,
                  struct cn_error *err);
int kr_async_collect_drawn(struct kr_exec *x, uint64_t ticket, const struct kr_result **out,
                           struct cn_error *err);

#endif
