/* mixers: recurrent parts of a layer, in terms of the plan's convolution, scan and delta ops.
 *
 * Mamba-1: [x; z] = Win n; x = silu(conv x); [r; B; C] = Wx x (each normalised in some models)
 *             y = scan(x, Wdt r + bdt, B, C);  out = Wout (y * silu(z))
 * Mamba-2:    [z; x; B; C; dt] = Win n;  [x; B; C] = silu(conv [x; B; C])
 *             y = scan(x, dt + bdt, B, C);  out = Wout rms(y * silu(z); ssm_norm), group by group
 * short conv: [B; C; x] = Win n;  out = Wout (C * conv(B * x))
 * delta:      [q; k; v] = silu(conv Wqkv n);  q, k = q / |q| / sqrt(dk), k / |k|
 *             o = delta(q, k, v, a, b);  out = Wout (rms(o; ssm_norm) * silu(Wz n))
 *
 * ssm_a is -exp(A_log) already. In Mamba-2 and the delta rule the key ssm.time_step_rank is the
 * number of heads. */
#include "engine/arch/arch.h"

#include <math.h>
#include <stdio.h>

#define MAX_SSM (1u << 24)

/* Of the vectors of the delta rule, whatever the model's. */
static const float unit_norm_eps = 1e-6f;

static int conv(struct eng_builder *b, int x, int layer, const char *name, uint64_t width,
                uint64_t taps, enum kr_act act)
{
    char full[48];
    snprintf(full, sizeof(full), "%s.weight", name);
    const struct kr_tensor *w = eng_b_floats(b, layer, full, width, taps), *bias = NULL;
    snprintf(full, sizeof(full), "%s.bias", name);
    if (eng_b_optional(b, layer, full)) bias = eng_b_vector(b, layer, full, width);
    if (eng_b_failed(b)) return -1;
    int state = kr_plan_state(b->plan, (uint32_t)CN_MIN(width * (taps - 1), UINT32_MAX));
    return kr_op_conv(b->plan, x, state, w, bias, act);
}

static uint32_t ssm(struct eng_builder *b, const char *key, uint64_t least)
{
    uint64_t n = eng_b_bounded(b, key, 0, MAX_SSM);
    if (!eng_b_failed(b) && n < least) eng_b_refuse_key(b, CN_EFORMAT, key, "is too small");
    return (uint32_t)n;
}

/* ---- Mamba ----------------------------------------------------------------------------------- */

static int small_norm(struct eng_builder *b, int x, int layer, const char *name, uint32_t width,
                      bool bare)
{
    char full[32];
    snprintf(full, sizeof(full), "%s.weight", name);
    if (eng_b_optional(b, layer, full)) return eng_b_norm(b, x, layer, name, 1, width);
    return bare && !eng_b_failed(b) ? kr_op_rms_norm(b->plan, x, NULL, b->h.eps, 1) : x;
}

int eng_b_mamba1(struct eng_builder *b, int n, int layer, bool bare_norms)
{
    uint32_t inner = ssm(b, "ssm.inner_size", 1), states = ssm(b, "ssm.state_size", 1);
    uint32_t rank = ssm(b, "ssm.time_step_rank", 1), taps = ssm(b, "ssm.conv_kernel", 2);
    uint64_t dim = b->h.embd_dim, all = (uint64_t)rank + 2ull * states;

    int x = eng_b_linear_part(b, n, layer, "ssm_in", 0, inner, 2ull * inner, dim);
    int z = eng_b_linear_part(b, n, layer, "ssm_in", inner, inner, 2ull * inner, dim);
    x = conv(b, x, layer, "ssm_conv1d", inner, taps, KR_ACT_SILU);
    int r = eng_b_linear_part(b, x, layer, "ssm_x", 0, rank, all, inner);
    int in = eng_b_linear_part(b, x, layer, "ssm_x", rank, states, all, inner);
    int out = eng_b_linear_part(b, x, layer, "ssm_x", (uint64_t)rank + states, states, all, inner);
    r = small_norm(b, r, layer, "ssm_dt_norm", rank, bare_norms);
    in = small_norm(b, in, layer, "ssm_b_norm", states, bare_norms);
    out = small_norm(b, out, layer, "ssm_c_norm", states, bare_norms);
    int dt = eng_b_linear(b, r, layer, "ssm_dt", inner, rank);
    struct kr_scan scan = {.x = x,
                           .dt = dt,
                           .b = in,
                           .c = out,
                           .n_heads = inner,
                           .n_groups = 1,
                           .n_state = states,
                           .a = eng_b_flat(b, layer, "ssm_a", inner, states),
                           .d = eng_b_vector(b, layer, "ssm_d", inner)};
    if (eng_b_failed(b)) return -1;
    scan.state = kr_plan_state(b->plan, (uint32_t)CN_MIN((uint64_t)inner * states, UINT32_MAX));
    int y = kr_op_glu(b->plan, z, kr_op_scan(b->plan, &scan), KR_ACT_SILU);
    return eng_b_linear(b, y, layer, "ssm_out", dim, inner);
}

int eng_b_mamba2(struct eng_builder *b, int n, int layer)
{
    uint32_t inner = ssm(b, "ssm.inner_size", 1), states = ssm(b, "ssm.state_size", 1);
    uint32_t heads = ssm(b, "ssm.time_step_rank", 1), taps = ssm(b, "ssm.conv_kernel", 2);
    uint32_t groups = ssm(b, "ssm.group_count", 1);
    uint64_t dim = b->h.embd_dim, shared = (uint64_t)groups * states, mixed = inner + 2 * shared;
    uint64_t all = inner + mixed + heads;

    int z = eng_b_linear_part(b, n, layer, "ssm_in", 0, inner, all, dim);
    int xbc = eng_b_linear_part(b, n, layer, "ssm_in", inner, mixed, all, dim);
    int dt = eng_b_linear_part(b, n, layer, "ssm_in", inner + mixed, heads, all, dim);
    xbc = conv(b, xbc, layer, "ssm_conv1d", mixed, taps, KR_ACT_SILU);
    struct kr_scan scan = {.dt = dt,
                           .n_heads = heads,
                           .n_groups = groups,
                           .n_state = states,
                           .a = eng_b_flat(b, layer, "ssm_a", heads, 1),
                           .d = eng_b_flat(b, layer, "ssm_d", heads, 1),
                           .dt_bias = eng_b_vector(b, layer, "ssm_dt.bias", heads)};
    const struct kr_tensor *norm = NULL;
    if (eng_b_optional(b, layer, "ssm_norm.weight"))
        norm = eng_b_flat(b, layer, "ssm_norm.weight", groups, inner / groups);
    if (eng_b_failed(b)) return -1; /* the tensors fit, so all widths are below 2^30 */
    scan.x = kr_op_slice(b->plan, xbc, 1, 0, inner);
    scan.b = kr_op_slice(b->plan, xbc, 1, inner, (uint32_t)shared);
    scan.c = kr_op_slice(b->plan, xbc, 1, (uint32_t)(inner + shared), (uint32_t)shared);
    scan.state = kr_plan_state(b->plan, (uint32_t)CN_MIN((uint64_t)inner * states, UINT32_MAX));
    int y = kr_op_glu(b->plan, z, kr_op_scan(b->plan, &scan), KR_ACT_SILU);
    if (norm) y = kr_op_rms_norm(b->plan, y, norm, b->h.eps, groups);
    return eng_b_linear(b, y, layer, "ssm_out", dim, inner);
}

/* ---- short convolution ----------------------------------------------------------------------- */

int eng_b_short_conv(struct eng_builder *b, int n, int layer)
{
    uint32_t taps = ssm(b, "shortconv.l_cache", 2);
    uint64_t dim = b->h.embd_dim;
    int in = eng_b_linear_part(b, n, layer, "shortconv.in_proj", 0, dim, 3 * dim, dim);
    int out = eng_b_linear_part(b, n, layer, "shortconv.in_proj", dim, dim, 3 * dim, dim);
    int x = eng_b_linear_part(b, n, layer, "shortconv.in_proj", 2 * dim, dim, 3 * dim, dim);
    if (eng_b_failed(b)) return -1;
    int u = kr_op_glu(b->plan, in, x, KR_ACT_NONE);
    int v = conv(b, u, layer, "shortconv.conv", dim, taps, KR_ACT_NONE);
    if (eng_b_failed(b)) return -1;
    return eng_b_linear(b, kr_op_glu(b->plan, out, v, KR_ACT_NONE), layer, "shortconv.out_proj",
                        dim, dim);
}

/* ---- delta rule ------------------------------------------------------------------------------ */

struct delta_dims {
    uint32_t k_heads, v_heads, k_dim, v_dim;
    uint64_t k_all, v_all;
};

static struct delta_dims read_delta(struct eng_builder *b)
{
    struct delta_dims d = {.k_dim = ssm(b, "ssm.state_size", 1),
                           .k_heads = ssm(b, "ssm.group_count", 1),
                           .v_heads = ssm(b, "ssm.time_step_rank", 1)};
    d.v_all = ssm(b, "ssm.inner_size", 1);
    d.k_all = (uint64_t)d.k_heads * d.k_dim;
    if (eng_b_failed(b)) return d;
    if (d.v_all % d.v_heads || d.v_heads % d.k_heads)
        eng_b_refuse_key(b, CN_EFORMAT, "ssm.time_step_rank",
                         "does not divide ssm.inner_size, or ssm.group_count does not divide it");
    d.v_dim = (uint32_t)(d.v_all / d.v_heads);
    return d;
}

/* q, k and v of all heads beside each other, and z. Older files of Qwen 3 Next have one tensor,
 * ssm_in, with the parts of each key head together. */
static int project(struct eng_builder *b, const struct delta_dims *d, int n, int layer, int *z)
{
    uint64_t dim = b->h.embd_dim;
    if (!eng_b_has(b, layer, "ssm_in.weight")) {
        *z = eng_b_linear(b, n, layer, "attn_gate", d->v_all, dim);
        return eng_b_linear(b, n, layer, "attn_qkv", 2 * d->k_all + d->v_all, dim);
    }
    uint32_t v_each = (uint32_t)(d->v_all / d->k_heads), k = d->k_dim;
    int all = eng_b_linear(b, n, layer, "ssm_in", 2 * d->k_all + 2 * d->v_all, dim);
    if (eng_b_failed(b)) return -1;
    int q = kr_op_slice(b->plan, all, d->k_heads, 0, k);
    int key = kr_op_slice(b->plan, all, d->k_heads, k, k);
    int v = kr_op_slice(b->plan, all, d->k_heads, 2 * k, v_each);
    *z = kr_op_slice(b->plan, all, d->k_heads, 2 * k + v_each, v_each);
    return kr_op_concat(b->plan, kr_op_concat(b->plan, q, key, 1), v, 1);
}

/* a and b of every value head. One tensor, ssm_ba, has them key head by key head, and then value
 * heads stand in their own order; two tensors mean that they stand in turns of the key heads. */
static void project_gates(struct eng_builder *b, const struct delta_dims *d, int n, int layer,
                          struct kr_delta *op)
{
    uint64_t dim = b->h.embd_dim;
    op->tiled = !eng_b_has(b, layer, "ssm_ba.weight");
    if (op->tiled) {
        op->a = eng_b_linear(b, n, layer, "ssm_alpha", d->v_heads, dim);
        op->b = eng_b_linear(b, n, layer, "ssm_beta", d->v_heads, dim);
        return;
    }
    uint32_t each = d->v_heads / d->k_heads;
    int ba = eng_b_linear(b, n, layer, "ssm_ba", 2ull * d->v_heads, dim);
    if (eng_b_failed(b)) return;
    op->b = kr_op_slice(b->plan, ba, d->k_heads, 0, each);
    op->a = kr_op_slice(b->plan, ba, d->k_heads, each, each);
}

/* x / sqrt(sum x^2 + eps) * s, head by head. */
static int unit(struct eng_builder *b, int x, const struct delta_dims *d, float s)
{
    float n = (float)d->k_dim;
    x = kr_op_rms_norm(b->plan, x, NULL, unit_norm_eps / n, d->k_heads);
    return kr_op_scale(b->plan, x, s / sqrtf(n));
}

int eng_b_delta_net(struct eng_builder *b, int n, int layer)
{
    struct delta_dims d = read_delta(b);
    uint32_t taps = ssm(b, "ssm.conv_kernel", 2);
    uint64_t mixed = 2 * d.k_all + d.v_all;
    struct kr_delta op = {.n_k_heads = d.k_heads, .n_v_heads = d.v_heads};
    int z = -1;
    if (eng_b_failed(b)) return -1;
    int qkv = project(b, &d, n, layer, &z);
    qkv = conv(b, qkv, layer, "ssm_conv1d", mixed, taps, KR_ACT_SILU);
    project_gates(b, &d, n, layer, &op);
    op.decay = eng_b_vector(b, layer, "ssm_a", d.v_heads);
    const char *bias = eng_b_has(b, layer, "ssm_dt.bias") ? "ssm_dt.bias" : "ssm_dt";
    op.dt_bias = eng_b_vector(b, layer, bias, d.v_heads);
    if (eng_b_failed(b)) return -1;
    uint32_t k_all = (uint32_t)d.k_all;
    int q = kr_op_slice(b->plan, qkv, 1, 0, k_all), k = kr_op_slice(b->plan, qkv, 1, k_all, k_all);
    op.q = unit(b, q, &d, 1.0f / sqrtf((float)d.k_dim));
    op.k = unit(b, k, &d, 1.0f);
    op.v = kr_op_slice(b->plan, qkv, 1, 2 * k_all, (uint32_t)d.v_all);
    op.state = kr_plan_state(b->plan, (uint32_t)CN_MIN(d.v_all * d.k_dim, UINT32_MAX));
    int o = eng_b_norm(b, kr_op_delta(b->plan, &op), layer, "ssm_norm", d.v_heads, d.v_dim);
    if (eng_b_failed(b)) return -1;
    return eng_b_linear(b, kr_op_glu(b->plan, z, o, KR_ACT_SILU), layer, "ssm_out", b->h.embd_dim,
                        d.v_all);
}
