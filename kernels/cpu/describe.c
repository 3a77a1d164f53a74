/* describe: one line per op of a prepared plan, level by level. Engine thread; reads only. */
#include "kernels/cpu/cpu.h"

static void print_value(const struct kr_cpu_exec *x, struct cn_buf *out, int v)
{
    const struct kr_value *t = &x->plan->values[v];
    cn_buf_printf(out, " %%%d[%c,%u]", v, "RLE"[t->domain], t->width);
}

static const char *const act_names[] = {
    [KR_ACT_NONE] = "identity",         [KR_ACT_SILU] = "silu",
    [KR_ACT_GELU_TANH] = "gelu_tanh",   [KR_ACT_GELU] = "gelu",
    [KR_ACT_SIGMOID] = "sigmoid",       [KR_ACT_RELU2] = "relu2",
    [KR_ACT_SWIGLU_OAI] = "swiglu_oai",
};

static void print_weight(struct cn_buf *out, const struct kr_tensor *w)
{
    if (!w->data) return;
    cn_buf_printf(out, " %s %s[", w->name, kr_type_info((uint32_t)w->type)->name);
    for (uint32_t i = w->n_dims; i-- > 0;)
        cn_buf_printf(out, i ? "%llu," : "%llu]", (unsigned long long)w->ne[i]);
}

static void print_details(const struct kr_cpu_exec *x, const struct kr_plan_op *op,
                          struct cn_buf *out)
{
    if (op->kv_layer >= 0) {
        const struct kr_kv_layer *l = &x->kv_layers[op->kv_layer];
        cn_buf_printf(out, " kv layer %d group %u heads %u k %u v %u window %u", op->kv_layer,
                      l->group, l->n_heads, l->k_dim, l->v_dim,
                      x->kv_groups[l->group].window_tokens);
    }
    if (op->rope >= 0) {
        const struct kr_plan_rope *r = &x->plan->ropes[op->rope];
        cn_buf_printf(out, " %s %u of %u", r->kind == KR_ROPE_NORM ? "norm" : "neox", r->n_rot,
                      r->head_dim);
    }
    if (op->kind == KR_OP_GLU || op->kind == KR_OP_ACT || op->kind == KR_OP_CONV)
        cn_buf_printf(out, " %s", act_names[op->act]);
    if (op->state >= 0)
        cn_buf_printf(out, " state %d of %u floats", op->state,
                      x->plan->states[op->state].n_floats);
    if (op->heads > 1) cn_buf_printf(out, " heads %u", op->heads);
}

static void print_step(const struct kr_cpu_exec *x, const struct kr_step *s, struct cn_buf *out)
{
    cn_buf_printf(out, "%4u ", s->level);
    if (s->kind == KR_STEP_QUANTIZE) {
        cn_buf_puts(out, "quantize");
        print_value(x, out, (int)s->op);
        cn_buf_printf(out, " -> q8 (%s)\n", x->dev->mm.name);
        return;
    }
    if (s->kind == KR_STEP_ANGLES) {
        cn_buf_printf(out, "angles of rotation %u (double)\n", s->op);
        return;
    }
    const struct kr_plan_op *op = &x->plan->ops[s->op];
    if (s->kind == KR_STEP_GATHER) {
        cn_buf_puts(out, "dispatch");
        print_value(x, out, op->in[0]);
        print_value(x, out, op->in[1]);
        cn_buf_puts(out, " -> q8 (copied)\n");
        return;
    }
    if (s->kind == KR_STEP_GROUP) {
        cn_buf_puts(out, "group rows by expert");
        print_value(x, out, op->out);
        cn_buf_puts(out, " (counting sort)\n");
        return;
    }
    cn_buf_puts(out, kr_op_names[op->kind]);
    for (int i = 0; i < KR_OP_INPUTS; i++)
        if (op->in[i] >= 0) print_value(x, out, op->in[i]);
    print_weight(out, &op->w);
    print_weight(out, &op->bias);
    print_details(x, op, out);
    if (op->out >= 0) {
        cn_buf_puts(out, " ->");
        print_value(x, out, op->out);
    }
    cn_buf_printf(out, " (%s)\n", kr_is_product(op) ? x->dev->mm.name : x->dev->ops.name);
}

int kr_cpu_describe(const struct kr_exec *base, struct cn_buf *out)
{
    const struct kr_cpu_exec *x = CN_CONTAINER(base, struct kr_cpu_exec, base);
    for (uint32_t l = 0; l < x->n_levels; l++) {
        for (uint32_t i = x->levels[l].row_begin; i < x->levels[l].row_end; i++)
            print_step(x, &x->row_steps[i], out);
        for (uint32_t i = x->levels[l].heavy_begin; i < x->levels[l].heavy_end; i++)
            print_step(x, &x->heavy_steps[i], out);
    }
    return out->failed ? CN_ENOMEM : 0;
}
