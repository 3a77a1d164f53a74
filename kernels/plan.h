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

/* Which rows a value has: those of the step, or only those whose logits are wanted. */
enum kr_domain { KR_DOM_ROWS, KR_DOM_LOGITS };

struct kr_value {
    uint32_t width;
    enum kr_domain domain;
    uint32_t op; /* that made it */
};

struct kr_plan_op {
    enum kr_op_kind kind;
    int in[2]; /* value ids, -1 when unused */
    int out;   /* -1: kv_write */
    struct kr_tensor w, bias; /* data == NULL when absent */
    float f;        /* scale, eps or cap */
    uint32_t heads; /* rms_norm, rope: parts of a row; attention: query heads */
    enum kr_act act;
    int rope;       /* index of the rotation */
    int kv_layer;   /* kv_write, attention */
    float softcap;  /* attention */
};

struct kr_plan_rope {
    enum kr_rope_kind kind;
    uint32_t head_dim, n_rot;
    float amplitude;
    float *inv_freq; /* n_rot / 2, the plan's */
};
struct kr_plan_group {
    uint32_t window_tokens, n_layers;
};
struct kr_plan_layer {
    uint32_t group, n_kv_heads, k_dim, v_dim;
    uint32_t index; /* within the group */
    bool written;
};

struct kr_plan {
    struct cn_arena arena; /* names, frequencies */
    struct cn_error err;   /* the first one; code 0 when none */
    struct kr_plan_op *ops;
    struct kr_value *values;
    struct kr_plan_rope *ropes;
    struct kr_plan_group *groups;
    struct kr_plan_layer *layers;
    size_t n_ops, n_values, n_ropes, n_groups, n_layers;
    size_t cap_ops, cap_values, cap_ropes, cap_groups, cap_layers;
    int output; /* value, -1 until set */
};

#endif
