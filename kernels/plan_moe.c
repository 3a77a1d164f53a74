/* plan_moe: recording of mixtures of experts. Part of plan.c's recording: same thread, same
 * invariant. A route is a value of the step's rows, [R, 2 * n_used]: the experts in the order of
 * choice (as 32-bit integers), then their weights. */
#include "kernels/plan.h"

static bool router_ok(struct kr_plan *p, const struct kr_router *r, uint32_t n_experts)
{
    if (!r->n_used || r->n_used > n_experts || r->n_used > KR_MAX_CHOICES) {
        cn_fail(&p->err, CN_EFORMAT, "route: %u of %u experts", r->n_used, n_experts);
        return false;
    }
    if (p->n_used && p->n_used != r->n_used) {
        cn_fail(&p->err, CN_EUNSUPP, "route: layers that use %u and %u experts are not supported",
                p->n_used, r->n_used);
        return false;
    }
    if (r->n_groups &&
        (n_experts % r->n_groups || !r->n_groups_used || r->n_groups_used > r->n_groups ||
         (uint64_t)r->n_groups_used * (n_experts / r->n_groups) < r->n_used)) {
        cn_fail(&p->err, CN_EFORMAT, "route: %u of %u groups of %u experts", r->n_groups_used,
                r->n_groups, n_experts);
        return false;
    }
    if (r->n_groups > KR_MAX_CHOICES) {
        cn_fail(&p->err, CN_EUNSUPP, "route: %u groups of experts, at most %u are supported",
                r->n_groups, KR_MAX_CHOICES);
        return false;
    }
    return kr_plan_finite_ok(p, "route", "scale", r->scale);
}

int kr_op_route(struct kr_plan *p, int logits, const struct kr_router *router)
{
    if (!kr_plan_value_ok(p, "route", logits)) return -1;
    uint32_t n_experts = p->values[logits].width;
    if (!kr_plan_rows_ok(p, "route", logits, n_experts) || !router_ok(p, router, n_experts))
        return -1;
    struct kr_plan_op op = kr_plan_new_op(KR_OP_ROUTE, logits, -1);
    op.router = *router;
    if (router->bias && (!kr_plan_vector_ok(p, router->bias, n_experts) ||
                         !kr_plan_copy_tensor(p, &op.bias, router->bias)))
        return -1;
    if (router->expert_scale && (!kr_plan_vector_ok(p, router->expert_scale, n_experts) ||
                                 !kr_plan_copy_tensor(p, &op.extra, router->expert_scale)))
        return -1;
    p->n_used = router->n_used;
    return kr_plan_add(p, &op, 2ull * router->n_used, KR_DOM_ROWS);
}

/* The op that made a route. */
static const struct kr_plan_op *route_of(struct kr_plan *p, const char *op, int route)
{
    if (!kr_plan_value_ok(p, op, route)) return NULL;
    const struct kr_plan_op *r = &p->ops[p->values[route].op];
    if (r->kind == KR_OP_ROUTE) return r;
    cn_fail(&p->err, CN_EINVAL, "%s: value %d is no route", op, route);
    return NULL;
}

static bool routed_ok(struct kr_plan *p, const char *op, int x)
{
    if (!kr_plan_value_ok(p, op, x)) return false;
    if (p->values[x].domain == KR_DOM_ROUTED) return true;
    cn_fail(&p->err, CN_EINVAL, "%s: value %d was not dispatched to experts", op, x);
    return false;
}

int kr_op_dispatch(struct kr_plan *p, int x, int route, bool scaled)
{
    if (!kr_plan_value_ok(p, "dispatch", x) || !route_of(p, "dispatch", route) ||
        !kr_plan_rows_ok(p, "dispatch", x, p->values[x].width))
        return -1;
    struct kr_plan_op op = kr_plan_new_op(KR_OP_DISPATCH, x, route);
    op.flag = scaled;
    return kr_plan_add(p, &op, p->values[x].width, KR_DOM_ROUTED);
}

int kr_op_expert_matmul(struct kr_plan *p, int x, int route, const struct kr_tensor *w,
                        const struct kr_tensor *bias, uint32_t first, uint32_t n)
{
    const struct kr_plan_op *r = route_of(p, "expert_matmul", route);
    if (!r || !routed_ok(p, "expert_matmul", x) || !kr_plan_tensor_ok(p, w)) return -1;
    uint32_t n_experts = p->values[r->in[0]].width, width = p->values[x].width;
    if (kr_tensor_dim(w, 3) != 1 || kr_tensor_dim(w, 2) != n_experts || w->ne[0] != width || !n ||
        (uint64_t)first + n > kr_tensor_dim(w, 1)) {
        cn_fail_param(
            &p->err, CN_EFORMAT, kr_tensor_name(w),
            "tensor %s is [%llu, %llu, %llu]: %u experts, rows %u to %llu, %u columns are "
            "needed",
            kr_tensor_name(w), (unsigned long long)kr_tensor_dim(w, 2),
            (unsigned long long)kr_tensor_dim(w, 1), (unsigned long long)w->ne[0], n_experts, first,
            (unsigned long long)first + n, width);
        return -1;
    }
    struct kr_plan_op op = kr_plan_new_op(KR_OP_EXPERT_MATMUL, x, route);
    op.heads = n_experts;
    op.from = first;
    op.len = n;
    if (!kr_plan_copy_tensor(p, &op.w, w)) return -1;
    if (bias && (!kr_plan_floats_ok(p, bias, n_experts, kr_tensor_dim(w, 1)) ||
                 !kr_plan_copy_tensor(p, &op.bias, bias)))
        return -1;
    return kr_plan_add(p, &op, n, KR_DOM_ROUTED);
}

int kr_op_combine(struct kr_plan *p, int x, int route, bool weighted)
{
    if (!route_of(p, "combine", route) || !routed_ok(p, "combine", x)) return -1;
    struct kr_plan_op op = kr_plan_new_op(KR_OP_COMBINE, x, route);
    op.flag = weighted;
    return kr_plan_add(p, &op, p->values[x].width, KR_DOM_ROWS);
}
