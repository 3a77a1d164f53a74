/* plan: what a recorded plan holds, for the devices that prepare it. Private to kernels/. */
#ifndef KERNELS_PLAN_H
#define KERNELS_PLAN_H

#include "kernels/kernels.h"

enum kr_op_kind {
#define OP(id, name, text) KR_OP_##id,
#include "kernels/ops.def"
#undef OP
    KR_OP_COUNT
};
extern const char *const kr_op_names[KR_OP_COUNT];

/* Which rows a value has: those of the step, only those whose logits are wanted, or one per row and
 * chosen expert. */
enum kr_domain { KR_DOM_ROWS, KR_DOM_LOGITS, KR_DOM_ROUTED, KR_N_DOMAINS };

#define KR_OP_INPUTS 5
/* Experts that a row may go to; groups that they may stand in. */
#define KR_MAX_CHOICES 256u

struct kr_value {
    uint32_t width;
    enum kr_domain domain;
    uint32_t op; /* that made it */
};

struct kr_plan_op {
    enum kr_op_kind kind;
    int in[KR_OP_INPUTS];            /* value ids, -1 when unused */
    int out;                         /* -1: kv_write */
    struct kr_tensor w, bias, extra; /* data == NULL when absent */
    float f;                         /* scale, eps or cap; pos_scale: beta */
    uint32_t heads; /* norms, rope, slice, concat: parts of a row; attention, select: query heads */
    enum kr_act act;
    int rope;           /* index of the rotation */
    int kv_layer;       /* kv_write, attention, select */
    int state;          /* conv, scan, delta */
    float softcap;      /* attention */
    uint32_t from, len; /* slice: values of a head; expert_matmul: rows of an expert; pos_scale:
                         * offset and period; select: len = top_k; peak: first and period;
                         * follow: len = places */
    uint32_t n_groups, n_state; /* scan; delta: n_groups = key heads; peak: n_state = at_period */
    bool flag;                  /* dispatch: scaled; combine: weighted; delta: tiled */
    struct kr_router router;    /* route; its tensors are bias and extra */
};
/* Inputs of ops with more than two: */
enum { KR_SCAN_X, KR_SCAN_DT, KR_SCAN_B, KR_SCAN_C }; /* w = a, bias = dt_bias, extra = d */
enum { KR_DELTA_Q, KR_DELTA_K, KR_DELTA_V, KR_DELTA_A, KR_DELTA_B }; /* w = decay, bias = dt_bias */
/* dispatch, expert_matmul, combine: in[0] = x, in[1] = route; attention: in[1] = the selection. */

struct kr_plan_rope {
    enum kr_rope_kind kind;
    uint32_t head_dim, n_rot;
    float amplitude;
    float *inv_freq; /* n_rot / 2, the plan's */
};
struct kr_plan_group {
    enum kr_span span;
    uint32_t window_tokens, n_layers;
};
struct kr_plan_layer {
    uint32_t group, n_kv_heads, k_dim, v_dim;
    uint32_t index; /* within the group */
    bool latent;    /* V is the head of K */
    bool written;
};
struct kr_plan_state {
    uint32_t n_floats;
    uint64_t at; /* floats before it in the sequence's state */
    bool used;
};

struct kr_plan_more {
    const char *name;
    int value;
};

struct kr_plan {
    struct cn_arena arena; /* names, frequencies */
    struct cn_error err;   /* the first one; code 0 when none */
    struct kr_plan_op *ops;
    struct kr_value *values;
    struct kr_plan_rope *ropes;
    struct kr_plan_group *groups;
    struct kr_plan_layer *layers;
    struct kr_plan_state *states;
    size_t n_ops, n_values, n_ropes, n_groups, n_layers, n_states;
    size_t cap_ops, cap_values, cap_ropes, cap_groups, cap_layers, cap_states;
    int state_group;           /* -1: no state */
    uint64_t state_floats;     /* of a sequence */
    uint64_t n_positions;      /* lines of the shortest position table; UINT64_MAX without one */
    uint32_t n_used;           /* experts of every route; 0 = no route */
    int output;                /* value, -1 until set */
    struct kr_plan_more *more; /* outputs beside it */
    size_t n_more, cap_more;
};

/* ---- what devices ask of a plan (plan_ask.c) ------------------------------------------------- */

static inline bool kr_is_product(const struct kr_plan_op *op)
{
    return op->kind == KR_OP_MATMUL || op->kind == KR_OP_HEAD_MATMUL ||
           op->kind == KR_OP_EXPERT_MATMUL;
}
/* Whether a finished plan can be prepared with these options, on any device. */
int kr_plan_check(const struct kr_plan *p, const struct kr_prepare_opts *o, struct cn_error *err);
/* Numbers that are the same on every device: multiply-adds, experts, width and vocabulary, and the
 * bytes that a token's line of the embedding tables has. */
void kr_plan_count(const struct kr_plan *p, struct kr_exec_info *info);
/* Tables that a row's token is looked up in; *n_tokens: lines of the shortest, UINT32_MAX without
 * one. */
uint32_t kr_plan_tables(const struct kr_plan *p, uint32_t *n_tokens);
/* groups[p->n_groups]: all but their block_bytes, which are the device's. */
void kr_plan_groups(const struct kr_plan *p, struct kr_kv_group *groups);
/* needed[p->n_ops], zeroed: whether the output, the KV memory or a state depends on an op. A device
 * that fuses ops says with `reads` which values it reads for one, in place of op->in; NULL:
 * those. */
typedef void kr_plan_reads(void *arg, const struct kr_plan_op *op, int in[KR_OP_INPUTS]);
void kr_plan_needed(const struct kr_plan *p, kr_plan_reads *reads, void *arg, bool *needed);

/* ---- recording: plan.c's helpers for plan_kv.c and plan_moe.c -------------------------------- */

/* Widths are kept below this so that products of two fit 64 bits with room to spare. */
#define KR_MAX_WIDTH (1u << 30)

bool kr_plan_broken(const struct kr_plan *p);
int kr_plan_no_memory(struct kr_plan *p);
/* These keep an error that names op or tensor and return false. */
bool kr_plan_value_ok(struct kr_plan *p, const char *op, int v);
bool kr_plan_rows_ok(struct kr_plan *p, const char *op, int v, uint32_t width); /* of the step */
bool kr_plan_tensor_ok(struct kr_plan *p, const struct kr_tensor *t);
bool kr_plan_vector_ok(struct kr_plan *p, const struct kr_tensor *t, uint64_t n);
bool kr_plan_floats_ok(struct kr_plan *p, const struct kr_tensor *t, uint64_t rows, uint64_t cols);
bool kr_plan_finite_ok(struct kr_plan *p, const char *op, const char *what, float f);
bool kr_plan_copy_tensor(struct kr_plan *p, struct kr_tensor *dst, const struct kr_tensor *src);
struct kr_plan_op kr_plan_new_op(enum kr_op_kind kind, int a, int b);
/* Appends the op and, when width is not 0, the value it makes; its id, -1 without one. */
int kr_plan_add(struct kr_plan *p, struct kr_plan_op *op, uint64_t width, enum kr_domain domain);
static inline uint64_t kr_tensor_dim(const struct kr_tensor *t, unsigned i)
{
    return i < t->n_dims ? t->ne[i] : 1;
}
static inline const char *kr_tensor_name(const struct kr_tensor *t)
{
    return t && t->name ? t->name : "?";
}

#endif
