/* device: the table behind each kind of device. Private to kernels/; CPU is in kernels/cpu/. */
#ifndef KERNELS_DEVICE_H
#define KERNELS_DEVICE_H

#include "kernels/kernels.h"

struct kr_device_ops {
    const char *kind;
    uint32_t max_depth;
    uint32_t max_outputs; /* of a plan */
    void (*free)(struct kr_device *d);
    bool (*lost)(const struct kr_device *d, const char **why); /* NULL: never */
    /* All of it and what is free; NULL: it uses the host's. Any thread. */
    void (*memory)(const struct kr_device *d, uint64_t *bytes, uint64_t *free_bytes);
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
    int (*draw)(struct kr_exec *x, uint64_t ticket, const struct kr_draw *draws, uint32_t n,
                struct cn_error *err);
    int (*collect_drawn)(struct kr_exec *x, uint64_t ticket, const struct kr_result **out,
                         struct cn_error *err);
};

/* Each device kind embeds these as its first member. */
struct kr_device {
    const struct kr_device_ops *ops;
    const char *path; /* static text */
};
struct kr_exec {
    const struct kr_device_ops *ops;
    struct kr_exec_info info;
    struct kr_prepare_opts opts;
    uint64_t ticket;   /* of the last step: the device's launch raises it */
    uint32_t ids_kept; /* steps whose ids rows may name, the next one's included; 0: none */
    uint32_t n_tables, n_tokens; /* kr_plan_tables */
    /* of the last batch that was found right */
    uint32_t *logit_rows; /* [n_wanted] rows that want logits */
    uint32_t n_wanted;
    uint32_t *seen, round; /* by sequence: the check that saw it last */
};
struct kr_kv_mem {
    const struct kr_device_ops *ops;
    uint64_t slab_bytes; /* set by kr_kv_mem_new */
    uint32_t n_slabs;
};

/* ---- what devices have in common (check.c) --------------------------------------------------- */

/* A zeroed exec's opts, and of its info what is the same on every device (kr_plan_count).
 * CN_ENOMEM; kr_exec_fini in any case. */
int kr_exec_init(struct kr_exec *x, const struct kr_device *d, const struct kr_plan *p,
                 const struct kr_prepare_opts *opts, struct cn_error *err);
void kr_exec_fini(struct kr_exec *x);
/* These stand before the device's own calls, which so get nothing that is out of bounds. A batch's
 * logit_rows and n_wanted are noted. */
int kr_check_batch(struct kr_exec *x, const struct kr_kv_mem *m, const struct kr_batch *b,
                   struct cn_error *err);
int kr_check_draws(const struct kr_exec *x, const struct kr_draw *draws, uint32_t n,
                   struct cn_error *err);
int kr_check_moves(const struct kr_exec *x, const struct kr_kv_mem *m, const struct kr_move *moves,
                   uint32_t n, struct cn_error *err);
int kr_check_copy(const struct kr_exec *x, const struct kr_kv_mem *m, uint32_t group, uint32_t dst,
                  uint32_t src, uint32_t n_tokens);
/* Whether a block number is one of the memory's, with blocks of that size. */
bool kr_block_inside(const struct kr_kv_mem *m, uint64_t block_bytes, uint32_t block);

#endif
