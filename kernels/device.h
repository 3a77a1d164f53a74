/* device: the table of functions behind each kind of device. Private to kernels/. */
#ifndef KERNELS_DEVICE_H
#define KERNELS_DEVICE_H

#include "kernels/kernels.h"

/* Each function does what the function of that name in kernels.h promises (kr_prepare, kr_launch,
 * ...). kernels/device.c checks arguments first: batches, draws, copies, moves and sizes of memory
 * are within bounds. Tickets of collect, draw and collect_drawn are the device's to check. All
 * functions are required, except where NULL is explained; describe, profile and profile_text may do
 * nothing. A device that is no processor of the host holds a CPU device for what the host's threads
 * do (draw_loops, threads, parallel), as kernels/async does. */
struct kr_device_ops {
    const char *kind;     /* its word in devices.def */
    uint32_t max_depth;   /* steps in flight: 1 or 2 */
    uint32_t max_outputs; /* outputs of a plan */
    void (*free)(struct kr_device *d);
    /* NULL: it is never lost. */
    bool (*lost)(const struct kr_device *d, const char **why);
    /* Bytes of the device's own memory, all and free; NULL: it uses the host's. Any thread. */
    void (*memory)(const struct kr_device *d, uint64_t *bytes, uint64_t *free_bytes);
    /* kr_draw_loops (draw_loops.h) of the host's ISA, or of KR_ISA_GENERIC. */
    const struct kr_draw_loops *(*draw_loops)(const struct kr_device *d);
    uint32_t (*threads)(const struct kr_device *d);
    void (*parallel)(struct kr_device *d, uint32_t n, void (*fn)(void *arg, uint32_t i), void *arg);
    int (*probe)(struct kr_device *d, uint64_t most_bytes, uint64_t ns_each, struct kr_probe *out,
                 struct cn_error *err);
    int (*probe_read)(struct kr_device *d, uint64_t bytes, uint64_t ns, double *bytes_s,
                      struct cn_error *err);
    int (*prepare)(struct kr_device *d, const struct kr_plan *p, const struct kr_prepare_opts *opts,
                   struct kr_exec **out, struct cn_error *err);
    void (*exec_free)(struct kr_exec *x);
    void (*counters)(const struct kr_exec *x, struct kr_counters *out);
    int (*describe)(const struct kr_exec *x, struct cn_buf *out);
    int (*profile)(struct kr_exec *x, bool on);
    int (*profile_text)(const struct kr_exec *x, struct cn_buf *out);
    int (*kv_mem_new)(struct kr_device *d, uint64_t slab_bytes, uint32_t n_slabs,
                      struct kr_kv_mem **out, struct cn_error *err);
    void (*kv_mem_free)(struct kr_kv_mem *m);
    int (*kv_copy)(struct kr_exec *x, struct kr_kv_mem *m, uint32_t group, uint32_t dst_block,
                   uint32_t src_block, uint32_t n_tokens);
    int (*host_new)(struct kr_device *d, uint64_t bytes, void **out, struct cn_error *err);
    void (*host_free)(struct kr_device *d, void *host, uint64_t bytes);
    int (*kv_move)(struct kr_exec *x, struct kr_kv_mem *m, const struct kr_move *moves, uint32_t n,
                   bool out, uint64_t *ticket, struct cn_error *err);
    bool (*moved)(struct kr_exec *x, uint64_t ticket, bool wait);
    int (*launch)(struct kr_exec *x, struct kr_kv_mem *m, const struct kr_batch *b,
                  uint64_t *ticket, struct cn_error *err);
    int (*collect)(struct kr_exec *x, uint64_t ticket, float **logits, struct cn_error *err);
    /* The device's own copies of draw states, by slot (kr_draw_open, kr_draw_put, kr_draw_close).
     * All four are NULL where draws use the caller's states. Else kr_draw.state only says that a
     * row is drawn, and what lies behind the pointer belongs to the host. All that these bring is
     * copied; they take effect in order with draws. kernels/device.c knows which places are taken:
     * no call is about a choice that is not there. */
    /* A new state without output, in place of what the slot had. CN_ENOMEM. */
    int (*draw_new)(struct kr_exec *x, struct kr_draw_at at, const struct kr_draw_told *told);
    /* As another slot's, for another choice of its request: without that choice's output. */
    int (*draw_clone)(struct kr_exec *x, struct kr_draw_at at, uint32_t choice, uint32_t from_slot);
    /* The output is its first `before` ids and then these. Only for states that count. */
    int (*draw_put)(struct kr_exec *x, uint32_t slot, uint64_t before, const uint32_t *ids,
                    size_t n);
    void (*draw_drop)(struct kr_exec *x, uint32_t slot);
    /* For each draw, rows in order: kr_draw_row, then kr_draw_state_accept with the id, until a row
     * fails or its id is not the next row's draft; the results after it are CN_ECANCELLED. Scored
     * rows: kr_draw_score. kernels/cpu/draw.c is the example. */
    int (*draw)(struct kr_exec *x, uint64_t ticket, const struct kr_draw *draws, uint32_t n,
                struct cn_error *err);
    int (*collect_drawn)(struct kr_exec *x, uint64_t ticket, const struct kr_result **out,
                         struct cn_error *err);
};

/* A device's own objects have these as their first member. */
struct kr_device {
    const struct kr_device_ops *ops;
    const char *path;                        /* static text: kr_device_path */
    bool lends_at_load;                      /* kr_device_info */
    _Atomic uint64_t move_bytes_s, moved_ns; /* kr_device_moved */
};
struct kr_exec {
    const struct kr_device_ops *ops;
    struct kr_exec_info info;
    struct kr_prepare_opts opts;
    uint64_t ticket;   /* of the last step: the device's launch raises it */
    uint32_t ids_kept; /* steps whose ids rows may name, the next one's included; 0: none */
    uint32_t n_tables, n_tokens; /* kr_plan_tables */
    /* about the last batch that passed kr_check_batch */
    uint32_t *logit_rows; /* [n_wanted] rows that want logits */
    uint32_t n_wanted;
    uint32_t *seen, round; /* by sequence: the check that saw it last */
    uint64_t *draws_at;    /* by slot: generation of the choice whose draw state the device has;
                            * NULL: the device keeps none */
};
struct kr_kv_mem {
    const struct kr_device_ops *ops;
    uint64_t slab_bytes; /* set by kr_kv_mem_new */
    uint32_t n_slabs;
};

/* ---- common to all devices (check.c) --------------------------------------------------------- */

/* Fills a zeroed exec's opts, and the part of its info that is the same on every device
 * (kr_plan_count). The device fills the rest: groups (its own memory; kernels/plan.h:
 * kr_plan_groups) and n_groups with block_bytes, packed_bytes, scratch_bytes, turns, both_ways,
 * n_adapters, and ids_kept if its depth is 2. It adds the matrices and vectors to weight_bytes,
 * which has the embedding tables' lines only, and sets expert_bytes: they say how long the first
 * steps may take before the engine counts as stuck. CN_ENOMEM; call kr_exec_fini in any case. */
int kr_exec_init(struct kr_exec *x, const struct kr_device *d, const struct kr_plan *p,
                 const struct kr_prepare_opts *opts, struct cn_error *err);
void kr_exec_fini(struct kr_exec *x);
/* A device calls this for each kr_kv_move when it is done, with the time it took without waiting
 * for other work. Any thread. */
void kr_device_moved(struct kr_device *d, uint64_t bytes, uint64_t ns);
/* Called before the device's own functions, which so get nothing that is out of bounds.
 * kr_check_batch also fills logit_rows and n_wanted. */
int kr_check_batch(struct kr_exec *x, const struct kr_kv_mem *m, const struct kr_batch *b,
                   struct cn_error *err);
int kr_check_draws(const struct kr_exec *x, const struct kr_draw *draws, uint32_t n,
                   struct cn_error *err);
/* Whether the device has a draw state for this place. */
bool kr_draw_is_at(const struct kr_exec *x, struct kr_draw_at at);
int kr_check_moves(const struct kr_exec *x, const struct kr_kv_mem *m, const struct kr_move *moves,
                   uint32_t n, struct cn_error *err);
int kr_check_copy(const struct kr_exec *x, const struct kr_kv_mem *m, uint32_t group, uint32_t dst,
                  uint32_t src, uint32_t n_tokens);
/* Whether a block number is one of the memory's, with blocks of that size. */
bool kr_block_inside(const struct kr_kv_mem *m, uint64_t block_bytes, uint32_t block);

#endif
