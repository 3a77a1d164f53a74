/* Execution of the statements of chat templates: scopes, assignment, output. */
#include "engine/text/jinja/ast.h"

#include <string.h>

struct eng_jscope *eng_j_push_scope(struct eng_jctx *c)
{
    struct eng_jscope *old = c->scope, *s = eng_j_alloc(c, sizeof(*s));
    s->up = old;
    c->scope = s;
    return old;
}

void eng_j_set_var(struct eng_jctx *c, uint32_t id, struct eng_jv v)
{
    struct eng_jscope *s = c->scope;
    if (!s) {
        c->globals[id] = v;
        return;
    }
    for (size_t i = 0; i < s->n; i++) {
        if (s->v[i].id != id) continue;
        s->v[i].v = v;
        return;
    }
    s->v = eng_j_room(c, s->v, s->n, &s->cap, sizeof(*s->v));
    s->v[s->n++] = (struct eng_jvar){.id = id, .v = v};
}

static struct eng_jv find_var(struct eng_jctx *c, uint32_t id)
{
    const struct eng_jnode n = {.type = N_NAME, .name = id};
    return eng_j_eval(c, &n);
}

void eng_j_assign(struct eng_jctx *c, const struct eng_jnode *target, struct eng_jv v)
{
    if (target->type == N_NAME) {
        eng_j_set_var(c, target->name, v);
    } else if (target->type == N_NSREF) {
        struct eng_jv ns = find_var(c, target->name);
        if (ns.t != J_NS) eng_j_raise(c, "cannot assign attribute on non-namespace object");
        const struct eng_jstr *name = target->value.s;
        if (name->n && name->p[0] == '_')
            eng_j_raise(c, "a namespace cannot hold attributes that begin with an underscore");
        eng_j_dict_set(c, ns.m, target->value, v);
    } else {
        struct eng_jlist *l = eng_j_to_list(c, v);
        if (l->n != target->n_kids)
            eng_j_raise(c, "%s values to unpack (expected %zu, got %zu)",
                        l->n < target->n_kids ? "not enough" : "too many", target->n_kids, l->n);
        for (size_t i = 0; i < l->n; i++)
            eng_j_assign(c, target->kids[i], l->v[i]);
    }
}

const struct eng_jstr *eng_j_capture(struct eng_jctx *c, const struct eng_jnode *block)
{
    struct eng_jbuf *out = c->out;
    c->out = eng_j_buf(c, 0);
    eng_j_exec(c, block);
    const struct eng_jstr *s = eng_j_done(c, c->out);
    c->out = out;
    return s;
}

static struct eng_jv new_macro(struct eng_jctx *c, const struct eng_jnode *n)
{
    struct eng_jmacro *m = eng_j_alloc(c, sizeof(*m));
    m->def = n->macro;
    m->scope = c->scope;
    for (struct eng_jscope *s = c->scope; s && !s->captured; s = s->up)
        s->captured = true;
    return (struct eng_jv){.t = J_MACRO, .mac = m};
}

/* {% call f(x) %}: f(x, caller=macro of the body). */
static void exec_call(struct eng_jctx *c, const struct eng_jnode *n)
{
    struct eng_jv fn = eng_j_eval(c, n->a->a);
    struct eng_jargs a = eng_j_eval_args(c, n->a->args, "function");
    struct eng_jkw *kw = eng_j_alloc_n(c, a.nkw + 1, sizeof(*kw));
    if (a.nkw) memcpy(kw, a.kw, a.nkw * sizeof(*kw));
    kw[a.nkw++] = (struct eng_jkw){.name = eng_j_lit(c, "caller"), .v = new_macro(c, n)};
    a.kw = kw;
    eng_j_put_value(c, c->out, eng_j_call(c, fn, &a));
}

static enum eng_jflow exec_if(struct eng_jctx *c, const struct eng_jnode *n)
{
    for (size_t i = 0; i + 1 < n->n_kids; i += 2)
        if (eng_j_truth(c, eng_j_eval(c, n->kids[i]))) return eng_j_exec(c, n->kids[i + 1]);
    return n->c ? eng_j_exec(c, n->c) : J_FLOW_NEXT;
}

static enum eng_jflow exec_with(struct eng_jctx *c, const struct eng_jnode *n)
{
    /* All values are evaluated outside of the new scope. */
    struct eng_jv *v = eng_j_alloc_n(c, n->n_kids + 1, sizeof(*v));
    for (size_t i = 0; i + 1 < n->n_kids; i += 2)
        v[i] = eng_j_eval(c, n->kids[i + 1]);
    struct eng_jscope *old = eng_j_push_scope(c);
    for (size_t i = 0; i + 1 < n->n_kids; i += 2)
        eng_j_assign(c, n->kids[i], v[i]);
    enum eng_jflow flow = eng_j_exec(c, n->c);
    c->scope = old;
    return flow;
}

/* The text of a block that has its own scope. */
static struct eng_jv scoped_text(struct eng_jctx *c, const struct eng_jnode *block)
{
    struct eng_jscope *old = eng_j_push_scope(c);
    const struct eng_jstr *s = eng_j_capture(c, block);
    c->scope = old;
    return eng_jv_str(s);
}

static enum eng_jflow exec_block(struct eng_jctx *c, const struct eng_jnode *n)
{
    enum eng_jflow flow = J_FLOW_NEXT;
    eng_j_enter(c);
    for (size_t i = 0; flow == J_FLOW_NEXT && i < n->n_kids; i++)
        flow = eng_j_exec(c, n->kids[i]);
    eng_j_leave(c);
    return flow;
}

enum eng_jflow eng_j_exec(struct eng_jctx *c, const struct eng_jnode *n)
{
    if (n->type == S_BLOCK) return exec_block(c, n);
    c->line = n->line;
    eng_j_step(c, 1);
    switch (n->type) {
    case S_DATA:
        eng_j_put(c, c->out, n->value.s->p, n->value.s->n, true);
        break;
    case S_OUTPUT:
        for (size_t i = 0; i < n->n_kids; i++)
            eng_j_put_value(c, c->out, eng_j_eval(c, n->kids[i]));
        break;
    case S_IF:
        return exec_if(c, n);
    case S_FOR:
        eng_j_run_for(c, n, eng_j_eval(c, n->b), 0, c->scope);
        break;
    case S_SET:
        eng_j_assign(c, n->a, eng_j_eval(c, n->b));
        break;
    case S_SETBLOCK:
        eng_j_assign(c, n->a, eng_j_apply_filters(c, n->b, scoped_text(c, n->c)));
        break;
    case S_MACRO:
        eng_j_set_var(c, n->macro->name_id, new_macro(c, n));
        break;
    case S_CALL:
        exec_call(c, n);
        break;
    case S_FILTER:
        eng_j_put_value(c, c->out, eng_j_apply_filters(c, n->b, scoped_text(c, n->c)));
        break;
    case S_WITH:
        return exec_with(c, n);
    case S_SCOPE:
        eng_j_put_value(c, c->out, scoped_text(c, n->c));
        break;
    case S_BREAK:
        return J_FLOW_BREAK;
    case S_CONTINUE:
        return J_FLOW_CONTINUE;
    default:
        break;
    }
    return J_FLOW_NEXT;
}
