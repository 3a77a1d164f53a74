/* plan_ask: what every device asks of a plan before it makes it ready. Pure. */
#include "kernels/plan.h"

int kr_plan_check(const struct kr_plan *p, const struct kr_prepare_opts *o, struct cn_error *err)
{
    if (p->err.code || p->output < 0)
        return cn_fail(err, CN_EINVAL, "the plan was not finished without error");
    if (o->kv_type != KR_F16 && o->kv_type != KR_Q8_0 && o->kv_type != KR_Q4_0)
        return cn_fail(err, CN_EUNSUPP, "the KV type must be f16, q8_0 or q4_0");
    if (o->block_tokens != 16 && o->block_tokens != 32)
        return cn_fail(err, CN_EINVAL, "KV blocks of %u tokens: 16 or 32 are possible",
                       o->block_tokens);
    if (!o->max_rows || o->max_rows > 1u << 20 || !o->max_logit_rows ||
        o->max_logit_rows > o->max_rows)
        return cn_fail(err, CN_EINVAL, "steps of %u rows, %u with logits", o->max_rows,
                       o->max_logit_rows);
    if (!o->max_context || o->max_context > 1u << 30)
        return cn_fail(err, CN_EINVAL, "a context of %llu tokens",
                       (unsigned long long)o->max_context);
    if (o->max_context > p->n_positions)
        return cn_fail(err, CN_EINVAL, "a context of %llu tokens, the model has %llu positions",
                       (unsigned long long)o->max_context, (unsigned long long)p->n_positions);
    for (size_t i = 0; i < p->n_ops; i++) {
        const struct kr_plan_op *op = &p->ops[i];
        if (op->kind == KR_OP_SELECT && o->max_context > 32ull * p->values[op->out].width)
            return cn_fail(err, CN_EINVAL,
                           "a context of %llu tokens, the indexer was made for %llu",
                           (unsigned long long)o->max_context, 32ull * p->values[op->out].width);
    }
    return 0;
}

/* Of products with weights: what a row costs, and what its logits do. */
static void count_macs(const struct kr_plan *p, struct kr_exec_info *info)
{
    for (size_t i = 0; i < p->n_ops; i++) {
        const struct kr_plan_op *op = &p->ops[i];
        if (!kr_is_product(op)) continue;
        uint64_t macs = op->w.ne[0] * kr_tensor_dim(&op->w, 1);
        if (op->kind == KR_OP_HEAD_MATMUL) macs *= kr_tensor_dim(&op->w, 2);
        if (op->kind == KR_OP_EXPERT_MATMUL) macs = op->w.ne[0] * op->len * p->n_used;
        if (p->values[op->out].domain == KR_DOM_LOGITS)
            info->logit_macs += macs;
        else
            info->row_macs += macs;
    }
}

uint32_t kr_plan_tables(const struct kr_plan *p, uint32_t *n_tokens)
{
    uint32_t n = 0;
    *n_tokens = UINT32_MAX;
    for (size_t i = 0; i < p->n_ops; i++) {
        const struct kr_tensor *w = &p->ops[i].w;
        if (p->ops[i].kind != KR_OP_EMBED) continue;
        *n_tokens = CN_MIN(*n_tokens, w->n_dims > 1 ? (uint32_t)w->ne[1] : 1);
        n++;
    }
    return n;
}

void kr_plan_count(const struct kr_plan *p, struct kr_exec_info *info)
{
    count_macs(p, info);
    info->n_vocab = p->values[p->output].width;
    info->n_outputs = 1 + (uint32_t)p->n_more;
    info->n_experts_used = p->n_used;
    for (size_t i = 0; i < p->n_ops; i++) {
        const struct kr_plan_op *op = &p->ops[i];
        if (op->kind == KR_OP_ROUTE)
            info->n_experts = CN_MAX(info->n_experts, p->values[op->in[0]].width);
        if (op->kind != KR_OP_EMBED) continue;
        const struct kr_type_info *ti = kr_type_info((uint32_t)op->w.type);
        if (!info->embd_dim) info->embd_dim = op->w.ne[0];
        info->weight_bytes += op->w.ne[0] / ti->block_elems * ti->block_bytes;
    }
}

void kr_plan_groups(const struct kr_plan *p, struct kr_kv_group *groups)
{
    for (size_t g = 0; g < p->n_groups; g++) {
        groups[g].span = p->groups[g].span;
        groups[g].window_tokens = p->groups[g].window_tokens;
        groups[g].n_layers = p->groups[g].n_layers;
    }
}

void kr_plan_needed(const struct kr_plan *p, kr_plan_reads *reads, void *arg, bool *needed)
{
    for (size_t i = p->n_ops; i-- > 0;) {
        const struct kr_plan_op *op = &p->ops[i];
        int in[KR_OP_INPUTS];
        if (op->kind == KR_OP_KV_WRITE || op->state >= 0 || op->out == p->output) needed[i] = true;
        for (size_t k = 0; k < p->n_more; k++)
            if (op->out == p->more[k].value) needed[i] = true;
        if (!needed[i]) continue;
        for (int k = 0; k < KR_OP_INPUTS; k++)
            in[k] = op->in[k];
        if (reads) reads(arg, op, in);
        for (int k = 0; k < KR_OP_INPUTS; k++)
            if (in[k] >= 0) needed[p->values[in[k]].op] = true;
    }
}
