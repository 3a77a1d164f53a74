/* Evaluation of expressions of chat templates: a walk over the syntax tree. */
#include "engine/text/jinja/ast.h"

#include <string.h>

static struct eng_jv lookup(struct eng_jctx *c, uint32_t id)
{
    for (const struct eng_jscope *s = c->scope; s; s = s->up)
        for (size_t i = s->n; i-- > 0;)
            if (s->v[i].id == id) return s->v[i].v;
    if (c->globals[id].t != J_ABSENT) return c->globals[id];
    const struct eng_jname *name = &c->tpl->names[id];
    if (name->global)
        return eng_jv_func(c, name->global, name->s->p, (struct eng_jv){.t = J_ABSENT});
    struct eng_jundef *u = eng_j_alloc(c, sizeof(*u));
    u->kind = J_UNDEF_NAME;
    u->name = eng_jv_str(name->s);
    return (struct eng_jv){.t = J_UNDEF, .u = u};
}

static struct eng_jv eval_list(struct eng_jctx *c, const struct eng_jnode *n)
{
    struct eng_jlist *l = eng_j_list(c, n->n_kids, false);
    for (size_t i = 0; i < n->n_kids; i++)
        eng_j_push(c, l, eng_j_eval(c, n->kids[i]));
    return n->type == N_LIST ? eng_jv_list(l) : eng_jv_tuple(l);
}

static struct eng_jv eval_dict(struct eng_jctx *c, const struct eng_jnode *n)
{
    struct eng_jdict *m = eng_j_dict(c, false);
    for (size_t i = 0; i + 1 < n->n_kids; i += 2) {
        struct eng_jv k = eng_j_eval(c, n->kids[i]);
        eng_j_dict_set(c, m, k, eng_j_eval(c, n->kids[i + 1]));
    }
    return eng_jv_dict(m);
}

static struct eng_jv eval_concat(struct eng_jctx *c, const struct eng_jnode *n)
{
    const struct eng_jstr *s = eng_j_str(c, eng_j_eval(c, n->kids[0]));
    if (n->n_kids == 2)
        return eng_jv_str(eng_j_concat(c, s, eng_j_str(c, eng_j_eval(c, n->kids[1]))));
    struct eng_jbuf *b = eng_j_buf(c, 0);
    eng_j_put_str(c, b, s);
    for (size_t i = 1; i < n->n_kids; i++)
        eng_j_put_value(c, b, eng_j_eval(c, n->kids[i]));
    return eng_jv_str(eng_j_done(c, b));
}

static struct eng_jv eval_compare(struct eng_jctx *c, const struct eng_jnode *n)
{
    struct eng_jv left = eng_j_eval(c, n->a);
    for (size_t i = 0; i < n->n_kids; i++) {
        struct eng_jv right = eng_j_eval(c, n->kids[i]);
        if (!eng_j_relation(c, n->ops[i], left, right)) return eng_jv_bool(false);
        left = right;
    }
    return eng_jv_bool(true);
}

static struct eng_jv eval_logic(struct eng_jctx *c, const struct eng_jnode *n)
{
    struct eng_jv v = eng_j_eval(c, n->kids[0]);
    for (size_t i = 1; i < n->n_kids && eng_j_truth(c, v) == (n->type == N_AND); i++)
        v = eng_j_eval(c, n->kids[i]);
    return v;
}

static struct eng_jv eval_item(struct eng_jctx *c, const struct eng_jnode *n)
{
    struct eng_jv v = eng_j_eval(c, n->a);
    if (n->b->type != N_SLICE) return eng_j_getitem(c, v, eng_j_eval(c, n->b));
    struct eng_jv part[3];
    for (size_t i = 0; i < 3; i++)
        part[i] = n->b->kids[i] ? eng_j_eval(c, n->b->kids[i]) : (struct eng_jv){.t = J_ABSENT};
    if (v.t == J_UNDEF) eng_j_undef_error(c, v);
    return eng_j_slice(c, v, part[0], part[1], part[2]);
}

static struct eng_jv eval_call(struct eng_jctx *c, const struct eng_jnode *n)
{
    struct eng_jv fn = eng_j_eval(c, n->a);
    struct eng_jargs a = eng_j_eval_args(c, n->args, "function");
    return eng_j_call(c, fn, &a);
}

static struct eng_jv apply(struct eng_jctx *c, const struct eng_jnode *n, struct eng_jv v)
{
    struct eng_jargs a = eng_j_eval_args(c, n->args, n->value.s->p);
    if (!n->fn)
        eng_j_raise(c, "no %s named '%s'", n->type == N_TEST ? "test" : "filter",
                    eng_j_quote(c, n->value.s));
    eng_j_work(c, 64);
    return n->fn(c, v, &a);
}

struct eng_jv eng_j_apply_filters(struct eng_jctx *c, const struct eng_jnode *n, struct eng_jv v)
{
    if (!n) return v;
    return apply(c, n, eng_j_apply_filters(c, n->a, v));
}

static struct eng_jv eval_chain(struct eng_jctx *c, const struct eng_jnode *n)
{
    struct eng_jv v = eng_j_eval(c, n->a);
    for (size_t i = 0; i < n->n_kids; i++)
        v = eng_j_arith(c, n->ops[i], v, eng_j_eval(c, n->kids[i]));
    return v;
}

static struct eng_jv eval_cond(struct eng_jctx *c, const struct eng_jnode *n)
{
    while (n->type == N_COND) {
        if (eng_j_truth(c, eng_j_eval(c, n->b))) {
            n = n->a;
        } else if (n->c) {
            n = n->c;
        } else {
            return eng_jv_hint(c, "the inline if-expression evaluated to false and has no else");
        }
    }
    return eng_j_eval(c, n);
}

static struct eng_jv eval_inner(struct eng_jctx *c, const struct eng_jnode *n)
{
    switch (n->type) {
    case N_LIST:
    case N_TUPLE:
        return eval_list(c, n);
    case N_DICT:
        return eval_dict(c, n);
    case N_CHAIN:
        return eval_chain(c, n);
    case N_COMPARE:
        return eval_compare(c, n);
    case N_CONCAT:
        return eval_concat(c, n);
    case N_AND:
    case N_OR:
        return eval_logic(c, n);
    case N_NOT:
        return eng_jv_bool(!eng_j_truth(c, eng_j_eval(c, n->a)));
    case N_NEG:
    case N_POS:
        return eng_j_negate(c, eng_j_eval(c, n->a), n->type == N_NEG);
    case N_COND:
        return eval_cond(c, n);
    case N_ATTR:
        return eng_j_getattr(c, eng_j_eval(c, n->a), n->value.s);
    case N_ITEM:
        return eval_item(c, n);
    case N_CALL:
        return eval_call(c, n);
    default:
        return apply(c, n, eng_j_eval(c, n->a));
    }
}

struct eng_jv eng_j_eval(struct eng_jctx *c, const struct eng_jnode *n)
{
    if (n->type == N_CONST) return n->value;
    if (n->type == N_NAME) return lookup(c, n->name);
    eng_j_enter(c);
    eng_j_work(c, 8);
    struct eng_jv v = eval_inner(c, n);
    eng_j_leave(c);
    return v;
}
