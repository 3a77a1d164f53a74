/* device: the table behind each kind of device. Private to kernels/; CPU is in kernels/cpu/. */
#ifndef KERNELS_DEVICE_H
#define KERNELS_DEVICE_H

#include "kernels/kernels.h"

struct kr_device_ops {
    const char *kind;
    uint32_t max_depth;
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
};
struct kr_kv_mem {
    const struct kr_device_ops *ops;
};

#endif
