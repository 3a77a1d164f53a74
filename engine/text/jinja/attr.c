/* Attributes and items of values in chat templates: what the reference's immutable sandbox
 * allows, plus two methods of lists (globals.c). `a.b` prefers Python's attribute (a method),
 * `a['b']` the item. What may not be touched is an undefined value that raises when it is used. */
#include "engine/text/jinja/ast.h"

#include <string.h>

static struct eng_jv undefined(struct eng_jctx *c, struct eng_jv obj, struct eng_jv name,
                               bool unsafe)
{
    struct eng_jundef *u = eng_j_alloc(c, sizeof(*u));
    u->kind = unsafe ? J_UNDEF_UNSAFE : J_UNDEF_ATTR;
    u->obj = obj;
    u->name = name;
    return (struct eng_jv){.t = J_UNDEF, .u = u};
}

/* Python has the attribute, and the sandbox refuses it. */
static bool is_unsafe(struct eng_jv v, const struct eng_jstr *name)
{
    static const char *const list[] = {"clear",  "reverse", "insert", "sort",
                                       "extend", "remove",  NULL};
    static const char *const dict[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    const char *const *t = v.t == J_LIST ? list : v.t == J_DICT ? dict : NULL;
    for (; t && *t; t++)
        if (eng_j_str_is(name, *t)) return true;
    return name->n > 4 && memcmp(name->p, "__", 2) == 0 &&
           memcmp(name->p + name->n - 2, "__", 2) == 0 && v.t != J_NS;
}

static struct eng_jv macro_attr(struct eng_jctx *c, const struct eng_jmacro_def *m,
                                const struct eng_jstr *name)
{
    if (eng_j_str_is(name, "name")) return m->name ? eng_jv_str(m->name) : eng_jv_none();
    if (eng_j_str_is(name, "arguments")) {
        struct eng_jlist *l = eng_j_list(c, m->n_params, false);
        for (size_t i = 0; i < m->n_params; i++)
            eng_j_push(c, l, eng_jv_str(m->param_names[i]));
        return eng_jv_tuple(l);
    }
    if (eng_j_str_is(name, "caller")) return eng_jv_bool(m->uses_caller);
    if (eng_j_str_is(name, "catch_varargs")) return eng_jv_bool(m->uses_varargs);
    if (eng_j_str_is(name, "catch_kwargs")) return eng_jv_bool(m->uses_kwargs);
    return (struct eng_jv){.t = J_ABSENT};
}

static struct eng_jv number_attr(struct eng_jv v, const struct eng_jstr *name)
{
    if (eng_j_str_is(name, "real"))
        return v.t == J_BOOL ? eng_jv_taint(eng_jv_int(v.b), v.client) : v;
    if (eng_j_str_is(name, "imag")) return v.t == J_FLOAT ? eng_jv_float(0) : eng_jv_int(0);
    if (v.t != J_FLOAT && eng_j_str_is(name, "numerator"))
        return eng_jv_taint(eng_jv_int(eng_jv_i(v)), v.client);
    if (v.t != J_FLOAT && eng_j_str_is(name, "denominator")) return eng_jv_int(1);
    return (struct eng_jv){.t = J_ABSENT};
}

/* Attributes that are no methods; J_ABSENT when there is none. */
static struct eng_jv data_attr(struct eng_jctx *c, struct eng_jv v, const struct eng_jstr *name)
{
    struct eng_jv *p;
    switch (v.t) {
    case J_NS:
        p = eng_j_dict_str(c, v.m, name);
        return p ? *p : (struct eng_jv){.t = J_ABSENT};
    case J_LOOP:
        return eng_j_loop_attr(c, v.loop, name);
    case J_MACRO:
        return macro_attr(c, v.mac->def, name);
    case J_CYCLER:
        if (eng_j_str_is(name, "current")) return v.cyc->l->v[v.cyc->pos];
        if (eng_j_str_is(name, "items")) return eng_jv_tuple(v.cyc->l);
        return (struct eng_jv){.t = J_ABSENT};
    case J_RANGE:
        if (eng_j_str_is(name, "start")) return eng_jv_int(v.r->start);
        if (eng_j_str_is(name, "stop")) return eng_jv_int(v.r->stop);
        if (eng_j_str_is(name, "step")) return eng_jv_int(v.r->step);
        return (struct eng_jv){.t = J_ABSENT};
    case J_TUPLE:
        if (v.l->group && eng_j_str_is(name, "grouper")) return v.l->v[0];
        if (v.l->group && eng_j_str_is(name, "list")) return v.l->v[1];
        return (struct eng_jv){.t = J_ABSENT};
    case J_BOOL:
    case J_INT:
    case J_FLOAT:
        return number_attr(v, name);
    default:
        return (struct eng_jv){.t = J_ABSENT};
    }
}

/* Python's getattr through the sandbox; J_ABSENT when there is no such attribute. */
static struct eng_jv python_attr(struct eng_jctx *c, struct eng_jv v, const struct eng_jstr *name)
{
    if (is_unsafe(v, name)) return undefined(c, v, eng_jv_str(name), true);
    struct eng_jv r = data_attr(c, v, name);
    if (r.t != J_ABSENT) return r;
    const char *canonical;
    eng_jfn *fn = eng_j_find_method(v, name, &canonical);
    return fn ? eng_jv_func(c, fn, canonical, v) : r;
}

/* Python's subscript; J_ABSENT where it raises TypeError or LookupError. */
static struct eng_jv python_item(struct eng_jctx *c, struct eng_jv v, struct eng_jv key)
{
    struct eng_jv absent = {.t = J_ABSENT}, *p;
    size_t len;
    if (v.t == J_DICT) {
        if (key.t == J_LIST || key.t == J_DICT) return absent; /* unhashable */
        p = eng_j_dict_get(c, v.m, key);
        return p ? *p : absent;
    }
    if ((v.t != J_STR && v.t != J_LIST && v.t != J_TUPLE && v.t != J_RANGE) || !eng_jv_is_int(key))
        return absent;
    eng_j_len(c, v, &len);
    int64_t i = eng_jv_i(key), n = (int64_t)len;
    if (i < 0) i += n;
    if (i < 0 || i >= n) return absent;
    if (v.t == J_RANGE) return eng_jv_taint(eng_jv_int(v.r->start + i * v.r->step), v.client);
    if (v.t != J_STR) return v.l->v[i];
    size_t at = eng_j_off(v.s, (size_t)i), end = at;
    eng_j_work(c, len == v.s->n ? 0 : at);
    eng_j_cp_next(v.s, &end);
    return eng_jv_str(eng_j_sub(c, v.s, at, end - at));
}

struct eng_jv eng_j_getattr(struct eng_jctx *c, struct eng_jv v, const struct eng_jstr *name)
{
    if (v.t == J_UNDEF) eng_j_undef_error(c, v);
    struct eng_jv r = python_attr(c, v, name);
    if (r.t == J_ABSENT) r = python_item(c, v, eng_jv_str(name));
    return r.t == J_ABSENT ? undefined(c, v, eng_jv_str(name), false) : r;
}

struct eng_jv eng_j_getitem(struct eng_jctx *c, struct eng_jv v, struct eng_jv key)
{
    if (v.t == J_UNDEF) eng_j_undef_error(c, v);
    struct eng_jv r = python_item(c, v, key);
    if (r.t == J_ABSENT && key.t == J_STR) r = python_attr(c, v, key.s);
    return r.t == J_ABSENT ? undefined(c, v, key, false) : r;
}
