/* kernels: tensor types, recorded plans, devices, and the memory that KV blocks live in.
 *
 * A model family records its forward pass once as a plan (kr_plan_*, kr_op_*). A device prepares a
 * plan: it chooses kernels from shapes and types alone (never from the number of rows), repacks
 * weights, fuses ops, lays out scratch, and reports exact memory. A step only binds a batch.
 *
 * Promise 1 (same bytes whatever the load) rests here: for one prepared plan, the bytes of a row's
 * result depend on the row's sequence (its tokens and positions) alone: not on the other rows, on
 * how the sequence was cut into chunks, on thread count, or on which blocks hold its keys.
 * So: every output element is summed in one order; attention reads K and V back from the blocks in
 * the pool's type, the current chunk included, in fixed absolute key ranges merged in one order.
 *
 * Threads: a device, its execs and memories are used by one thread at a time (the engine thread);
 * the device's own worker threads are inside. kr_type_*, kr_dequantize_row are pure. */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include "base/base.h"

/* ---- tensor types (types.c; formulas: GGUF, reference attention section 3) -------------------- */

enum kr_type { /* numbers as in GGUF */
    KR_F32 = 0, KR_F16 = 1, KR_Q4_0 = 2, KR_Q4_1 = 3, KR_Q5_0 = 6, KR_Q5_1 = 7, KR_Q8_0 = 8,
    KR_Q4_K = 12, KR_Q5_K = 13, KR_Q6_K = 14, KR_BF16 = 30,
};
struct kr_type_info {
    const char *name;      /* "Q4_K" */
    uint32_t block_elems;  /* elements per block, 1 for floats */
    uint32_t block_bytes;
};
/* NULL for a type that is not supported (any number may be asked). */
const struct kr_type_info *kr_type_info(uint32_t type);
/* Comma-separated names of all supported types, for messages. */
const char *kr_type_list(void);
/* The stored values of n elements (a multiple of the block) as float32: bit-equal to gguf-py. */
void kr_dequantize_row(enum kr_type type, const void *src, float *dst, size_t n);

/* A tensor in a file: bytes borrowed (usually from a mapping) for the life of what uses it.
 * ne[0] is the fastest dimension: a matrix of R rows and C columns has ne = {C, R, 1, 1}. */
struct kr_tensor {
    const char *name;
    enum kr_type type;
    uint32_t n_dims;
    uint64_t ne[4];
    const void *data;
    uint64_t bytes;
};

/* ---- plans (plan.c) --------------------------------------------------------------------------
 * Recording never fails half-way: an error (shapes that do not match, out of memory) is kept and
 * later ops are no-ops; kr_plan_finish returns the first one. Ops return a value id >= 0. */

struct kr_plan;
struct kr_plan *kr_plan_new(void); /* NULL when out of memory */
void kr_plan_free(struct kr_plan *p);
/* Checks that there is an output; returns the first error of the recording. */
int kr_plan_finish(struct kr_plan *p, struct cn_error *err);

/* KV layers: a group is a set of layers that share one block table. window_tokens: how many last
 * tokens (itself included) a position can see; 0 = all. Groups are numbered from 0, layers within
 * the plan from 0. */
int kr_plan_kv_group(struct kr_plan *p, uint32_t window_tokens);
int kr_plan_kv_layer(struct kr_plan *p, int group, uint32_t n_kv_heads, uint32_t k_dim,
                     uint32_t v_dim);

enum kr_rope_kind { KR_ROPE_NORM, KR_ROPE_NEOX }; /* pairs (2i, 2i+1) or (i, i + n_rot/2) */
struct kr_rope {
    enum kr_rope_kind kind;
    uint32_t head_dim, n_rot;
    /* n_rot/2 angles per position step, every scaling folded in (copied by the op):
     * angle = position * inv_freq[i]; cos and sin are multiplied by amplitude. */
    const float *inv_freq;
    float amplitude;
};
struct kr_attn {
    int kv_layer;
    uint32_t n_heads;   /* query heads; a multiple of the layer's n_kv_heads */
    float scale;
    float softcap;      /* 0 = none: s = cap * tanh(s / cap), after scale */
    /* the window is the group's: visible iff 0 <= p_query - p_key < window_tokens */
};
enum kr_act { KR_ACT_SILU, KR_ACT_GELU_TANH };

/* table [V, D] -> [R, D] */
int kr_op_embed(struct kr_plan *p, const struct kr_tensor *table, float scale);
/* x [R, heads * len(w)] -> same shape; w is [len] F32 or NULL (all ones; then len = width/heads) */
int kr_op_rms_norm(struct kr_plan *p, int x, const struct kr_tensor *w, float eps, uint32_t heads);
/* x [R, C], w [O, C], bias [O] F32 or NULL -> [R, O] */
int kr_op_matmul(struct kr_plan *p, int x, const struct kr_tensor *w,
                 const struct kr_tensor *bias);
/* x [R, heads * head_dim] -> same shape */
int kr_op_rope(struct kr_plan *p, int x, const struct kr_rope *rope);
/* k [R, n_kv_heads * k_dim], v [R, n_kv_heads * v_dim] */
void kr_op_kv_write(struct kr_plan *p, int kv_layer, int k, int v);
/* q [R, n_heads * k_dim] -> [R, n_heads * v_dim]; the layer's kv_write must come before */
int kr_op_attention(struct kr_plan *p, int q, const struct kr_attn *attn);
int kr_op_glu(struct kr_plan *p, int gate, int up, enum kr_act act);
int kr_op_add(struct kr_plan *p, int a, int b);
int kr_op_scale(struct kr_plan *p, int x, float s);
int kr_op_softcap(struct kr_plan *p, int x, float cap);
int kr_op_take_logits(struct kr_plan *p, int x);
/* x [logit rows, V] is what a step gives back. Exactly once. */
void kr_plan_output(struct kr_plan *p, int x);

/* ---- devices (device.c, cpu/) ------------------------------------------------------------------ */

enum kr_isa { KR_ISA_AUTO, KR_ISA_GENERIC, KR_ISA_AVX2, KR_ISA_AVX512 }; /* AVX512 = F+BW+VL+DQ+VNNI */

struct kr_device;
struct kr_cpu_opts {
    enum kr_isa isa;      /* one the machine lacks is CN_EUNSUPP */
    uint32_t n_threads;   /* 0 = the processors this process may use */
};
int kr_cpu_new(const struct kr_cpu_opts *opts, struct kr_device **out, struct cn_error *err);
void kr_device_free(struct kr_device *d);
/* Names the numeric path, for system_fingerprint: "cpu-avx512-1". Thread count is not in it. */
const char *kr_device_path(const struct kr_device *d);
uint32_t kr_device_threads(const struct kr_device *d);
/* Runs fn(arg, i) for i in 0..n-1 on the device's threads (the caller included) and waits. */
void kr_device_parallel(struct kr_device *d, uint32_t n, void (*fn)(void *arg, uint32_t i),
                        void *arg);

struct kr_prepare_opts {
    enum kr_type kv_type;      /* KR_F16 or KR_Q8_0 */
    uint32_t block_tokens;     /* 16 or 32 */
    uint32_t max_rows;         /* rows of a step */
    uint32_t max_logit_rows;
    uint64_t max_context;      /* positions are below this (RoPE tables, score scratch) */
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes); /* may be NULL */
    void *progress_arg;
};

struct kr_kv_group {
    uint32_t window_tokens, n_layers;
    uint64_t block_bytes;      /* all layers of the group, one block; a multiple of 64 */
};
struct kr_exec_info {
    uint64_t weight_bytes;     /* what a decode step reads of the weights */
    uint64_t packed_bytes;     /* memory taken by repacked weights */
    uint64_t scratch_bytes;    /* exact */
    uint64_t embd_dim, n_vocab;
    uint32_t n_groups;
    const struct kr_kv_group *groups;
};

/* A plan made ready for a device. The plan and its tensors' bytes must outlive it. */
struct kr_exec;
int kr_prepare(struct kr_device *d, const struct kr_plan *p, const struct kr_prepare_opts *opts,
               struct kr_exec **out, struct cn_error *err);
void kr_exec_free(struct kr_exec *x);
const struct kr_exec_info *kr_exec_info(const struct kr_exec *x);
/* One line per op: name, shapes, kernel variant; for `show` and docs. */
int kr_exec_describe(const struct kr_exec *x, struct cn_buf *out);

/* KV memory: n_slabs slabs of slab_bytes (a multiple of 64), page-aligned, committed when touched.
 * A block number is slab << KR_BLOCK_INDEX_BITS | index; the block of group g lies at
 * slab * slab_bytes + index * groups[g].block_bytes. A slab serves one group at a time. */
#define KR_BLOCK_INDEX_BITS 12
struct kr_kv_mem;
int kr_kv_mem_new(struct kr_device *d, uint64_t slab_bytes, uint32_t n_slabs,
                  struct kr_kv_mem **out, struct cn_error *err);
void kr_kv_mem_free(struct kr_kv_mem *m);
/* Copies the first n_tokens of a block (copy-on-write of a partial block). */
int kr_kv_copy(struct kr_exec *x, struct kr_kv_mem *m, uint32_t group, uint32_t dst_block,
               uint32_t src_block, uint32_t n_tokens);

/* ---- steps -------------------------------------------------------------------------------------- */

enum kr_row_src { KR_ROW_TOKEN, KR_ROW_EMBED, KR_ROW_TICKET };
struct kr_row {
    uint32_t seq;               /* index into the batch's sequences */
    uint32_t pos[3];            /* pos[0] is the position; the others are for models that use three */
    uint32_t adapter;           /* 0 = none */
    uint8_t src;                /* enum kr_row_src */
    bool logits;
    union {
        uint32_t token;
        const float *embed;     /* [embd_dim] */
        struct { uint64_t ticket; uint32_t row; } from; /* the id sampled for that row of a step */
    };
};
struct kr_seq {
    /* Per group: block number of each logical block (position / block_tokens); entries behind the
     * window are not read. Long enough for the last row's position. */
    const uint32_t *const *tables;
};
/* Rows of a sequence stand together, positions ascending by one. */
struct kr_batch {
    uint32_t n_rows, n_seqs;
    const struct kr_row *rows;
    const struct kr_seq *seqs;
};

/* Starts a step: at most max_rows rows. The batch's arrays are borrowed until kr_collect. On the
 * CPU the step is done when this returns; KR_ROW_TICKET is CN_EUNSUPP there (depth 1). */
int kr_launch(struct kr_exec *x, struct kr_kv_mem *m, const struct kr_batch *b, uint64_t *ticket,
              struct cn_error *err);
/* Waits; *logits points to [rows with logits][n_vocab], valid until the next launch. It may be
 * written to (masks, penalties). */
int kr_collect(struct kr_exec *x, uint64_t ticket, float **logits, struct cn_error *err);

#endif
