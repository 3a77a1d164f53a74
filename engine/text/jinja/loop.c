/* Loops of chat templates and the object `loop`. Items are taken one by one, filtered as they come,
 * so that a filter sees what the body changed; loop.last and loop.nextitem look one item ahead,
 * loop.length takes all. */
#include "engine/text/jinja/ast.h"

#include <string.h>

/* A fresh scope for each turn: the last turn's memory, unless a macro still refers to it. */
static void enter_scope(struct eng_jctx *c, struct eng_jscope *outer, struct eng_jscope **mine)
{
    c->scope = outer;
    if (*mine && !(*mine)->captured) {
        (*mine)->n = 0;
        c->scope = *mine;
        return;
    }
    eng_j_push_scope(c);
    *mine = c->scope;
}

/* The next item that passes the loop's filter. */
static bool pull(struct eng_jctx *c, struct eng_jloop *l, struct eng_jv *out)
{
    const struct eng_jnode *n = l->node;
    while (eng_j_next(c, &l->it, out)) {
        if (!n->c || l->filtered) return true;
        struct eng_jscope *now = c->scope;
        enter_scope(c, l->outer, &l->filter_scope);
        eng_j_assign(c, n->a, *out);
        bool pass = eng_j_truth(c, eng_j_eval(c, n->c));
        c->scope = now;
        if (pass) return true;
    }
    return false;
}

static bool peek(struct eng_jctx *c, struct eng_jloop *l)
{
    if (l->after.t == J_ABSENT && !pull(c, l, &l->after)) l->after.t = J_ABSENT;
    return l->after.t != J_ABSENT;
}

size_t eng_j_loop_length(struct eng_jctx *c, struct eng_jloop *l)
{
    size_t n;
    if (l->length >= 0) return (size_t)l->length;
    if (!l->node->c && l->iterable.t != J_GEN && eng_j_len(c, l->iterable, &n)) {
        l->length = (int64_t)n;
        return n;
    }
    struct eng_jlist *rest = eng_j_list(c, 0, false);
    struct eng_jv v;
    bool ahead = l->after.t != J_ABSENT;
    while (pull(c, l, &v))
        eng_j_push(c, rest, v);
    l->length = (int64_t)rest->n + l->index0 + 1 + ahead;
    l->filtered = true;
    l->it = (struct eng_jit){.v = eng_jv_list(rest)};
    return (size_t)l->length;
}

struct eng_jv eng_j_loop_attr(struct eng_jctx *c, struct eng_jloop *l, const struct eng_jstr *name)
{
    static const char *const by_index[] = {"index", "index0", "first", "depth", "depth0"};
    for (size_t i = 0; i < CN_ARRAY_LEN(by_index); i++) {
        if (!eng_j_str_is(name, by_index[i])) continue;
        if (i == 2) return eng_jv_bool(l->index0 == 0);
        return eng_jv_int(i == 0   ? l->index0 + 1
                          : i == 1 ? l->index0
                                   : (int64_t)l->depth0 + (i == 3));
    }
    if (eng_j_str_is(name, "last")) return eng_jv_bool(!peek(c, l));
    if (eng_j_str_is(name, "length")) return eng_jv_int((int64_t)eng_j_loop_length(c, l));
    if (eng_j_str_is(name, "revindex"))
        return eng_jv_int((int64_t)eng_j_loop_length(c, l) - l->index0);
    if (eng_j_str_is(name, "revindex0"))
        return eng_jv_int((int64_t)eng_j_loop_length(c, l) - l->index0 - 1);
    if (eng_j_str_is(name, "previtem"))
        return l->index0 ? l->before : eng_jv_hint(c, "there is no previous item");
    if (eng_j_str_is(name, "nextitem"))
        return peek(c, l) ? l->after : eng_jv_hint(c, "there is no next item");
    return (struct eng_jv){.t = J_ABSENT};
}

static void bind_loop(struct eng_jctx *c, struct eng_jloop *l)
{
    eng_j_set_var(c, c->tpl->id_loop, (struct eng_jv){.t = J_LOOP, .loop = l});
}

void eng_j_run_for(struct eng_jctx *c, const struct eng_jnode *n, struct eng_jv iterable,
                   uint32_t depth0, struct eng_jscope *outer)
{
    struct eng_jscope *old = c->scope;
    struct eng_jloop *l = eng_j_alloc(c, sizeof(*l));
    struct eng_jv item;
    l->node = n;
    l->outer = outer;
    l->iterable = iterable;
    l->it = eng_j_iter(c, iterable);
    l->index0 = -1;
    l->length = -1;
    l->depth0 = depth0;
    for (;;) {
        if (l->after.t != J_ABSENT) {
            item = l->after;
            l->after.t = J_ABSENT;
        } else if (!pull(c, l, &item)) {
            break;
        }
        l->index0++;
        l->before = l->current;
        l->current = item;
        enter_scope(c, outer, &l->scope);
        bind_loop(c, l);
        eng_j_assign(c, n->a, item);
        enum eng_jflow flow = eng_j_exec(c, n->kids[0]);
        c->line = n->line;
        if (flow == J_FLOW_BREAK) break;
    }
    if (l->index0 < 0 && n->kids[1]) {
        c->scope = outer;
        eng_j_push_scope(c);
        eng_j_exec(c, n->kids[1]);
    }
    c->scope = old;
}

/* loop(items) in a recursive loop: its text for other items. */
struct eng_jv eng_j_loop_call(struct eng_jctx *c, struct eng_jloop *l, const struct eng_jargs *a)
{
    struct eng_jv v;
    if (!l->node->op) eng_j_raise(c, "the loop must be marked recursive to be called");
    eng_j_bind(c, a, "iterable", &v);
    if (++c->depth > c->max_depth)
        eng_j_fail(c, CN_ELIMIT, "calls are nested more than %u deep", c->max_depth);
    struct eng_jbuf *out = c->out;
    c->out = eng_j_buf(c, 0);
    eng_j_run_for(c, l->node, v, l->depth0 + 1, l->outer);
    const struct eng_jstr *s = eng_j_done(c, c->out);
    c->out = out;
    c->depth--;
    return eng_jv_str(s);
}
