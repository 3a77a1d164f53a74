/* Calling in chat templates: binding of arguments, functions, macros. */
#include "engine/text/jinja/ast.h"

#include <string.h>

static const struct eng_jkw *find_kw(const struct eng_jargs *a, const char *name, size_t n)
{
    for (size_t i = 0; i < a->nkw; i++)
        if (a->kw[i].name->n == n && memcmp(a->kw[i].name->p, name, n) == 0) return &a->kw[i];
    return NULL;
}

void eng_j_bind(struct eng_jctx *c, const struct eng_jargs *a, const char *spec, struct eng_jv *out)
{
    size_t i = 0, by_name = 0;
    for (const char *p = spec; *p; i++) {
        size_t n = strcspn(p, " ");
        const char *name = p + (*p == '.');
        bool optional = p[n - 1] == '?', positional = *p == '.';
        size_t len = n - optional - positional;
        const struct eng_jkw *kw = positional ? NULL : find_kw(a, name, len);
        if (i < a->npos) {
            if (kw)
                eng_j_raise(c, "%s() got two values for argument '%.*s'", a->fname, (int)len, name);
            out[i] = a->pos[i];
        } else if (kw) {
            out[i] = kw->v;
        } else if (optional) {
            out[i] = (struct eng_jv){.t = J_ABSENT};
        } else {
            eng_j_raise(c, "%s() misses the argument '%.*s'", a->fname, (int)len, name);
        }
        by_name += kw != NULL;
        p += n;
        if (*p == ' ') p++;
    }
    if (a->npos > i)
        eng_j_raise(c, "%s() takes at most %zu arguments (%zu given)", a->fname, i, a->npos);
    if (by_name < a->nkw) eng_j_raise(c, "%s() got an unexpected keyword argument", a->fname);
}

int64_t eng_j_want_int(struct eng_jctx *c, struct eng_jv v, int64_t absent)
{
    if (v.t == J_ABSENT) return absent;
    if (v.t == J_UNDEF) eng_j_undef_error(c, v);
    if (!eng_jv_is_int(v))
        eng_j_raise(c, "'%s' object cannot be interpreted as an integer", eng_j_type_name(v));
    return eng_jv_i(v);
}

const struct eng_jstr *eng_j_want_str(struct eng_jctx *c, struct eng_jv v, const char *what)
{
    if (v.t == J_UNDEF) eng_j_undef_error(c, v);
    if (v.t != J_STR) eng_j_raise(c, "%s must be str, not %s", what, eng_j_type_name(v));
    return v.s;
}

/* ---- evaluating arguments -------------------------------------------------------------------- */

static void add_kw(struct eng_jctx *c, struct eng_jargs *r, size_t *cap,
                   const struct eng_jstr *name, struct eng_jv v)
{
    if (find_kw(r, name->p, name->n))
        eng_j_raise(c, "%s() got two values for argument '%s'", r->fname, eng_j_quote(c, name));
    r->kw = eng_j_room(c, r->kw, r->nkw, cap, sizeof(*r->kw));
    r->kw[r->nkw++] = (struct eng_jkw){.name = name, .v = v};
}

struct eng_jargs eng_j_eval_args(struct eng_jctx *c, const struct eng_jcallargs *a,
                                 const char *fname)
{
    struct eng_jargs r = {.fname = fname};
    size_t cap_pos = a->npos, cap_kw = a->nkw;
    if (a->npos) r.pos = eng_j_alloc_n(c, a->npos, sizeof(*r.pos));
    if (a->nkw) r.kw = eng_j_alloc_n(c, a->nkw, sizeof(*r.kw));
    for (size_t i = 0; i < a->npos; i++)
        r.pos[r.npos++] = eng_j_eval(c, a->pos[i]);
    if (a->dyn) {
        struct eng_jlist *l = eng_j_to_list(c, eng_j_eval(c, a->dyn));
        for (size_t i = 0; i < l->n; i++) {
            r.pos = eng_j_room(c, r.pos, r.npos, &cap_pos, sizeof(*r.pos));
            r.pos[r.npos++] = l->v[i];
        }
    }
    for (size_t i = 0; i < a->nkw; i++)
        r.kw[r.nkw++] = (struct eng_jkw){.name = a->kw_name[i], .v = eng_j_eval(c, a->kw[i])};
    if (a->dyn_kw) {
        struct eng_jv m = eng_j_eval(c, a->dyn_kw);
        if (m.t == J_UNDEF) eng_j_undef_error(c, m);
        if (m.t != J_DICT) eng_j_raise(c, "the argument after ** must be a mapping");
        for (size_t i = 0; i < m.m->n; i++) {
            if (m.m->e[i].k.t != J_STR) eng_j_raise(c, "keywords must be strings");
            eng_j_step(c, 1);
            add_kw(c, &r, &cap_kw, m.m->e[i].k.s, m.m->e[i].v);
        }
    }
    return r;
}

/* ---- macros ---------------------------------------------------------------------------------- */

static void bind_params(struct eng_jctx *c, const struct eng_jmacro_def *d,
                        const struct eng_jargs *a, bool *used)
{
    for (size_t i = 0; i < d->n_params; i++) {
        const struct eng_jstr *name = d->param_names[i];
        const struct eng_jkw *kw = find_kw(a, name->p, name->n);
        if (kw) used[kw - a->kw] = true;
        if (i < a->npos) {
            if (kw)
                eng_j_raise(c, "macro '%s' got two values for the argument '%s'",
                            eng_j_quote(c, d->name), eng_j_quote(c, name));
            eng_j_set_var(c, d->params[i], a->pos[i]);
        } else if (kw) {
            eng_j_set_var(c, d->params[i], kw->v);
        } else if (d->defaults[i]) {
            eng_j_set_var(c, d->params[i], eng_j_eval(c, d->defaults[i]));
        } else {
            eng_j_set_var(c, d->params[i],
                          eng_jv_hint(c, "a parameter of a macro was not provided"));
        }
    }
}

/* What is left over goes to caller, varargs and kwargs where the body uses them. */
static void bind_rest(struct eng_jctx *c, const struct eng_jmacro_def *d, const struct eng_jargs *a,
                      const bool *used)
{
    struct eng_jdict *rest = eng_j_dict(c, false);
    struct eng_jv caller = eng_jv_hint(c, "no caller defined");
    for (size_t i = 0; i < a->nkw; i++) {
        if (used[i]) continue;
        if (d->uses_caller && eng_j_str_is(a->kw[i].name, "caller"))
            caller = a->kw[i].v;
        else if (d->uses_kwargs)
            eng_j_dict_set(c, rest, eng_jv_str(a->kw[i].name), a->kw[i].v);
        else
            eng_j_raise(c, "macro '%s' takes no keyword argument '%s'", eng_j_quote(c, d->name),
                        eng_j_quote(c, a->kw[i].name));
    }
    if (a->npos > d->n_params && !d->uses_varargs)
        eng_j_raise(c, "macro '%s' takes not more than %zu argument(s)", eng_j_quote(c, d->name),
                    d->n_params);
    if (d->uses_caller) eng_j_set_var(c, d->id_caller, caller);
    if (d->uses_kwargs) eng_j_set_var(c, d->id_kwargs, eng_jv_dict(rest));
    if (d->uses_varargs) {
        struct eng_jlist *l = eng_j_list(c, 0, false);
        for (size_t i = d->n_params; i < a->npos; i++)
            eng_j_push(c, l, a->pos[i]);
        eng_j_set_var(c, d->id_varargs, eng_jv_tuple(l));
    }
}

struct eng_jv eng_j_call_macro(struct eng_jctx *c, struct eng_jmacro *m, const struct eng_jargs *a)
{
    if (++c->depth > c->max_depth)
        eng_j_fail(c, CN_ELIMIT, "calls are nested more than %u deep", c->max_depth);
    struct eng_jscope *scope = c->scope;
    uint32_t line = c->line;
    bool *used = eng_j_alloc(c, a->nkw + 1);
    c->scope = m->scope;
    eng_j_push_scope(c);
    /* The rest first: a default may use varargs, kwargs or the caller. */
    for (size_t i = 0; i < a->nkw; i++)
        for (size_t k = 0; k < m->def->n_params; k++)
            used[i] |= eng_j_str_eq(a->kw[i].name, m->def->param_names[k]);
    bind_rest(c, m->def, a, used);
    bind_params(c, m->def, a, used);
    const struct eng_jstr *s = eng_j_capture(c, m->def->body);
    c->scope = scope;
    c->line = line;
    c->depth--;
    return eng_jv_str(s);
}

struct eng_jv eng_j_call(struct eng_jctx *c, struct eng_jv fn, const struct eng_jargs *a)
{
    eng_j_step(c, 1);
    switch (fn.t) {
    case J_UNDEF:
        eng_j_undef_error(c, fn);
    case J_FUNC: {
        struct eng_jargs named = *a;
        named.fname = fn.f->name;
        return fn.f->fn(c, fn.f->self, &named);
    }
    case J_MACRO:
        return eng_j_call_macro(c, fn.mac, a);
    case J_LOOP:
        return eng_j_loop_call(c, fn.loop, a);
    case J_JOINER: {
        bool used = fn.cyc->used;
        fn.cyc->used = true;
        return used ? fn.cyc->l->v[0] : eng_jv_z(c, "");
    }
    default:
        eng_j_raise(c, "'%s' object is not callable", eng_j_type_name(fn));
    }
}
