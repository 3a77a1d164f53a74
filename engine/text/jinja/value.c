/* Values of the chat template interpreter: lists, dictionaries, truth, equality, order, iteration,
 * sorting, as Python has them. */
#include "engine/text/jinja/ast.h"

#include <math.h>
#include <string.h>

struct eng_jv eng_jv_z(struct eng_jctx *c, const char *z)
{
    return eng_jv_str(eng_j_lit(c, z));
}

struct eng_jv eng_jv_hint(struct eng_jctx *c, const char *hint)
{
    struct eng_jundef *u = eng_j_alloc(c, sizeof(*u));
    u->kind = J_UNDEF_HINT;
    u->hint = hint;
    return (struct eng_jv){.t = J_UNDEF, .u = u};
}

struct eng_jv eng_jv_gen(struct eng_jctx *c, struct eng_jlist *l, const char *name)
{
    struct eng_jgen *g = eng_j_alloc(c, sizeof(*g));
    g->l = l;
    g->name = name;
    return (struct eng_jv){.t = J_GEN, .g = g};
}

struct eng_jv eng_jv_bad_gen(struct eng_jctx *c, const char *error)
{
    struct eng_jv v = eng_jv_gen(c, eng_j_list(c, 0, false), "generator");
    v.g->error = error;
    return v;
}

struct eng_jv eng_jv_func(struct eng_jctx *c, eng_jfn *fn, const char *name, struct eng_jv self)
{
    struct eng_jfunc *f = eng_j_alloc(c, sizeof(*f));
    *f = (struct eng_jfunc){.fn = fn, .name = name, .self = self};
    return (struct eng_jv){.t = J_FUNC, .f = f};
}

bool eng_jv_client(struct eng_jv v)
{
    switch (v.t) {
    case J_STR:
        return !eng_j_trusted(v.s);
    case J_LIST:
    case J_TUPLE:
        return v.l->client;
    case J_DICT:
    case J_NS:
        return v.m->client;
    case J_VIEW:
        return v.view->m->client;
    case J_GEN:
        return v.g->l->client;
    default:
        return v.client;
    }
}

struct eng_jlist *eng_j_list(struct eng_jctx *c, size_t cap, bool client)
{
    struct eng_jlist *l = eng_j_alloc(c, sizeof(*l));
    if (cap) l->v = eng_j_alloc_n(c, cap, sizeof(*l->v));
    l->cap = cap;
    l->client = client;
    return l;
}

void eng_j_push(struct eng_jctx *c, struct eng_jlist *l, struct eng_jv v)
{
    l->v = eng_j_room(c, l->v, l->n, &l->cap, sizeof(*l->v));
    l->v[l->n++] = v;
}

/* ---- dictionaries ---------------------------------------------------------------------------- */

static uint64_t hash_of(struct eng_jctx *c, struct eng_jv v)
{
    switch (v.t) {
    case J_STR:
        return cn_siphash13(c->key, v.s->p, v.s->n);
    case J_FLOAT: /* equal numbers have equal hashes */
        if (v.d == floor(v.d) && fabs(v.d) < 9e18) {
            int64_t i = (int64_t)v.d;
            return cn_siphash13(c->key, &i, sizeof(i));
        }
        return cn_siphash13(c->key, &v.d, sizeof(v.d));
    case J_BOOL:
    case J_INT: {
        int64_t i = eng_jv_i(v);
        return cn_siphash13(c->key, &i, sizeof(i));
    }
    case J_TUPLE: {
        uint64_t h = 1;
        eng_j_enter(c);
        for (size_t i = 0; i < v.l->n; i++)
            h = h * 1000003 + hash_of(c, v.l->v[i]);
        eng_j_leave(c);
        return h;
    }
    case J_LIST:
    case J_DICT:
        eng_j_raise(c, "unhashable type: '%s'", eng_j_type_name(v));
    default:
        return v.t; /* rare as keys */
    }
}

static struct eng_jpair *dict_at(struct eng_jctx *c, const struct eng_jdict *m, struct eng_jv k,
                                 uint64_t h)
{
    if (!m->idx) {
        for (size_t i = 0; i < m->n; i++)
            if (m->e[i].hash == h && eng_j_equal(c, m->e[i].k, k)) return &m->e[i];
        return NULL;
    }
    for (size_t i = h & (m->n_idx - 1); m->idx[i]; i = (i + 1) & (m->n_idx - 1)) {
        struct eng_jpair *e = &m->e[m->idx[i] - 1];
        if (e->hash == h && eng_j_equal(c, e->k, k)) return e;
    }
    return NULL;
}

struct eng_jdict *eng_j_dict(struct eng_jctx *c, bool client)
{
    struct eng_jdict *m = eng_j_alloc(c, sizeof(*m));
    m->client = client;
    return m;
}

static void index_entry(struct eng_jdict *m, size_t entry)
{
    size_t i = m->e[entry].hash & (m->n_idx - 1);
    while (m->idx[i])
        i = (i + 1) & (m->n_idx - 1);
    m->idx[i] = (uint32_t)entry + 1;
}

void eng_j_dict_set(struct eng_jctx *c, struct eng_jdict *m, struct eng_jv k, struct eng_jv v)
{
    uint64_t h = hash_of(c, k);
    struct eng_jpair *e = dict_at(c, m, k, h);
    if (e) {
        e->v = v;
        return;
    }
    m->e = eng_j_room(c, m->e, m->n, &m->cap, sizeof(*m->e));
    m->e[m->n++] = (struct eng_jpair){.k = k, .v = v, .hash = h};
    if (m->n <= 8) return;
    if (m->n * 2 <= m->n_idx) {
        index_entry(m, m->n - 1);
        return;
    }
    m->n_idx = m->n_idx ? m->n_idx * 2 : 32;
    m->idx = eng_j_alloc_n(c, m->n_idx, sizeof(*m->idx));
    for (size_t i = 0; i < m->n; i++)
        index_entry(m, i);
}

struct eng_jv *eng_j_dict_get(struct eng_jctx *c, const struct eng_jdict *m, struct eng_jv k)
{
    uint64_t h = hash_of(c, k);
    struct eng_jpair *e = m->n ? dict_at(c, m, k, h) : NULL;
    return e ? &e->v : NULL;
}

struct eng_jv *eng_j_dict_str(struct eng_jctx *c, const struct eng_jdict *m,
                              const struct eng_jstr *k)
{
    return eng_j_dict_get(c, m, eng_jv_str(k));
}

/* ---- properties ------------------------------------------------------------------------------ */

const char *eng_j_type_name(struct eng_jv v)
{
    static const char *const names[] = {
        [J_ABSENT] = "Undefined", [J_UNDEF] = "Undefined",  [J_NONE] = "NoneType",
        [J_BOOL] = "bool",        [J_INT] = "int",          [J_FLOAT] = "float",
        [J_STR] = "str",          [J_LIST] = "list",        [J_TUPLE] = "tuple",
        [J_DICT] = "dict",        [J_VIEW] = "dict_items",  [J_RANGE] = "range",
        [J_GEN] = "generator",    [J_NS] = "Namespace",     [J_FUNC] = "function",
        [J_MACRO] = "Macro",      [J_LOOP] = "LoopContext", [J_CYCLER] = "Cycler",
        [J_JOINER] = "Joiner"};
    if (v.t == J_VIEW && v.view->kind != J_ITEMS)
        return v.view->kind == J_KEYS ? "dict_keys" : "dict_values";
    return names[v.t];
}

_Noreturn void eng_j_undef_error(struct eng_jctx *c, struct eng_jv v)
{
    const struct eng_jundef *u = v.u;
    const char *name = NULL;
    if (u->kind != J_UNDEF_HINT) name = eng_j_quote(c, eng_j_str(c, u->name));
    switch (u->kind) {
    case J_UNDEF_NAME:
        eng_j_raise(c, "'%s' is undefined", name);
    case J_UNDEF_ATTR:
        if (u->name.t == J_STR)
            eng_j_raise(c, "'%s object' has no attribute '%s'", eng_j_type_name(u->obj), name);
        eng_j_raise(c, "%s object has no element %s", eng_j_type_name(u->obj), name);
    case J_UNDEF_UNSAFE:
        eng_j_raise(c, "access to attribute '%s' of '%s' object is unsafe", name,
                    eng_j_type_name(u->obj));
    default:
        eng_j_raise(c, "%s", u->hint);
    }
}

bool eng_j_len(struct eng_jctx *c, struct eng_jv v, size_t *n)
{
    switch (v.t) {
    case J_UNDEF:
        *n = 0;
        return true;
    case J_STR:
        *n = eng_j_cps(v.s);
        return true;
    case J_LIST:
    case J_TUPLE:
        *n = v.l->n;
        return true;
    case J_DICT:
        *n = v.m->n;
        return true;
    case J_VIEW:
        *n = v.view->m->n;
        return true;
    case J_RANGE:
        *n = v.r->n;
        return true;
    case J_LOOP:
        *n = eng_j_loop_length(c, v.loop);
        return true;
    default:
        return false;
    }
}

bool eng_j_truth(struct eng_jctx *c, struct eng_jv v)
{
    size_t n;
    switch (v.t) {
    case J_ABSENT:
    case J_UNDEF:
    case J_NONE:
        return false;
    case J_BOOL:
        return v.b;
    case J_INT:
        return v.i != 0;
    case J_FLOAT:
        return v.d != 0;
    case J_STR:
        return v.s->n != 0;
    default:
        return eng_j_len(c, v, &n) ? n != 0 : true;
    }
}

/* ---- equality and order ---------------------------------------------------------------------- */

static bool is_number(struct eng_jv v)
{
    return v.t == J_BOOL || v.t == J_INT || v.t == J_FLOAT;
}

/* -1, 0, 1; 2 when one is not a number. Exact: long double holds every int64. */
static int number_cmp(struct eng_jv a, struct eng_jv b)
{
    if (eng_jv_is_int(a) && eng_jv_is_int(b)) {
        int64_t x = eng_jv_i(a), y = eng_jv_i(b);
        return (x > y) - (x < y);
    }
    long double x = a.t == J_FLOAT ? (long double)a.d : (long double)eng_jv_i(a);
    long double y = b.t == J_FLOAT ? (long double)b.d : (long double)eng_jv_i(b);
    if (isnan(x) || isnan(y)) return 2;
    return (x > y) - (x < y);
}

static bool list_equal(struct eng_jctx *c, const struct eng_jlist *a, const struct eng_jlist *b)
{
    if (a->n != b->n) return false;
    bool same = true;
    eng_j_enter(c);
    eng_j_work(c, a->n * 16);
    for (size_t i = 0; same && i < a->n; i++)
        same = eng_j_equal(c, a->v[i], b->v[i]);
    eng_j_leave(c);
    return same;
}

static bool dict_equal(struct eng_jctx *c, const struct eng_jdict *a, const struct eng_jdict *b)
{
    if (a->n != b->n) return false;
    bool same = true;
    eng_j_enter(c);
    eng_j_work(c, a->n * 64);
    for (size_t i = 0; same && i < a->n; i++) {
        struct eng_jpair *e = dict_at(c, b, a->e[i].k, a->e[i].hash);
        same = e && eng_j_equal(c, a->e[i].v, e->v);
    }
    eng_j_leave(c);
    return same;
}

bool eng_j_equal(struct eng_jctx *c, struct eng_jv a, struct eng_jv b)
{
    if (is_number(a) && is_number(b)) return number_cmp(a, b) == 0;
    if (a.t != b.t) return false;
    switch (a.t) {
    case J_UNDEF:
    case J_NONE:
        return true;
    case J_STR:
        eng_j_work(c, CN_MIN(a.s->n, b.s->n));
        return eng_j_str_eq(a.s, b.s);
    case J_LIST:
    case J_TUPLE:
        return a.l == b.l || list_equal(c, a.l, b.l);
    case J_DICT:
        return a.m == b.m || dict_equal(c, a.m, b.m);
    case J_RANGE:
        return a.r->n == b.r->n && (!a.r->n || a.r->start == b.r->start) &&
               (a.r->n < 2 || a.r->step == b.r->step);
    default:
        return a.l == b.l; /* the same object */
    }
}

int eng_j_compare(struct eng_jctx *c, struct eng_jv a, struct eng_jv b, const char *op)
{
    if (is_number(a) && is_number(b)) return number_cmp(a, b);
    if (a.t == J_UNDEF) eng_j_undef_error(c, a);
    if (b.t == J_UNDEF) eng_j_undef_error(c, b);
    if (a.t == b.t && a.t == J_STR) {
        eng_j_work(c, CN_MIN(a.s->n, b.s->n));
        int d = eng_j_str_cmp(a.s, b.s);
        return (d > 0) - (d < 0);
    }
    if (a.t == b.t && (a.t == J_LIST || a.t == J_TUPLE)) {
        eng_j_enter(c);
        size_t n = CN_MIN(a.l->n, b.l->n), i = 0;
        while (i < n && eng_j_equal(c, a.l->v[i], b.l->v[i]))
            i++;
        int d = i < n ? eng_j_compare(c, a.l->v[i], b.l->v[i], op)
                      : (a.l->n > b.l->n) - (a.l->n < b.l->n);
        eng_j_leave(c);
        return d;
    }
    eng_j_raise(c, "'%s' not supported between instances of '%s' and '%s'", op, eng_j_type_name(a),
                eng_j_type_name(b));
}

bool eng_j_contains(struct eng_jctx *c, struct eng_jv item, struct eng_jv seq)
{
    if (seq.t == J_STR) {
        if (item.t == J_UNDEF) eng_j_undef_error(c, item);
        if (item.t != J_STR)
            eng_j_raise(c, "'in <string>' requires string as left operand, not %s",
                        eng_j_type_name(item));
        eng_j_work(c, seq.s->n);
        return eng_j_find(seq.s, 0, seq.s->n, item.s) != SIZE_MAX;
    }
    if (seq.t == J_DICT) return eng_j_dict_get(c, seq.m, item) != NULL;
    if (seq.t == J_VIEW && seq.view->kind == J_KEYS)
        return eng_j_dict_get(c, seq.view->m, item) != NULL;
    if (!eng_j_iterable(seq))
        eng_j_raise(c, "argument of type '%s' is not iterable", eng_j_type_name(seq));
    struct eng_jit it = eng_j_iter(c, seq);
    struct eng_jv v;
    while (eng_j_next(c, &it, &v))
        if (eng_j_equal(c, v, item)) return true;
    return false;
}

/* ---- iteration ------------------------------------------------------------------------------- */

bool eng_j_iterable(struct eng_jv v)
{
    switch (v.t) {
    case J_UNDEF:
    case J_STR:
    case J_LIST:
    case J_TUPLE:
    case J_DICT:
    case J_VIEW:
    case J_RANGE:
    case J_GEN:
    case J_LOOP:
        return true;
    default:
        return false;
    }
}

struct eng_jit eng_j_iter(struct eng_jctx *c, struct eng_jv v)
{
    if (!eng_j_iterable(v) || v.t == J_LOOP)
        eng_j_raise(c, "'%s' object is not iterable", eng_j_type_name(v));
    if (v.t == J_GEN && v.g->error) eng_j_raise(c, "%s", v.g->error);
    return (struct eng_jit){.v = v};
}

static struct eng_jv view_item(struct eng_jctx *c, const struct eng_jview *w, size_t i)
{
    const struct eng_jpair *e = &w->m->e[i];
    if (w->kind == J_KEYS) return e->k;
    if (w->kind == J_VALUES) return e->v;
    struct eng_jlist *l = eng_j_list(c, 2, w->m->client);
    eng_j_push(c, l, e->k);
    eng_j_push(c, l, e->v);
    return eng_jv_tuple(l);
}

bool eng_j_next(struct eng_jctx *c, struct eng_jit *it, struct eng_jv *out)
{
    size_t i = it->i, at;
    struct eng_jv v = it->v;
    eng_j_step(c, 1);
    switch (v.t) {
    case J_STR:
        if (i >= v.s->n) return false;
        at = i;
        eng_j_cp_next(v.s, &it->i);
        *out = eng_jv_str(eng_j_as_markup(c, eng_j_sub(c, v.s, at, it->i - at), false));
        return true;
    case J_LIST:
    case J_TUPLE:
        if (i >= v.l->n) return false;
        *out = v.l->v[i];
        break;
    case J_DICT:
        if (i >= v.m->n) return false;
        *out = v.m->e[i].k;
        break;
    case J_VIEW:
        if (i >= v.view->m->n) return false;
        *out = view_item(c, v.view, i);
        break;
    case J_RANGE:
        if (i >= v.r->n) return false;
        *out = eng_jv_taint(eng_jv_int(v.r->start + (int64_t)i * v.r->step), v.client);
        break;
    case J_GEN:
        if (v.g->pos >= v.g->l->n) return false;
        *out = v.g->l->v[v.g->pos++];
        break;
    default:
        return false;
    }
    it->i++;
    return true;
}

struct eng_jlist *eng_j_to_list(struct eng_jctx *c, struct eng_jv v)
{
    struct eng_jit it = eng_j_iter(c, v);
    struct eng_jlist *l = eng_j_list(c, 0, v.t == J_STR ? false : eng_jv_client(v));
    struct eng_jv item;
    while (eng_j_next(c, &it, &item))
        eng_j_push(c, l, item);
    return l;
}

/* Merge sort, stable; `reverse` keeps equal ones in their order, as Python does. */
void eng_j_sort(struct eng_jctx *c, struct eng_jlist *l, const struct eng_jv *keys, bool reverse)
{
    size_t n = l->n;
    uint32_t *a = eng_j_alloc_n(c, n + 1, sizeof(*a)), *b = eng_j_alloc_n(c, n + 1, sizeof(*b));
    for (size_t i = 0; i < n; i++)
        a[i] = (uint32_t)i;
    for (size_t w = 1; w < n; w *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * w) {
            size_t mid = CN_MIN(lo + w, n), hi = CN_MIN(lo + 2 * w, n), i = lo, j = mid, k = lo;
            while (i < mid && j < hi) {
                eng_j_work(c, 32);
                int d = reverse ? eng_j_compare(c, keys[a[i]], keys[a[j]], "<")
                                : eng_j_compare(c, keys[a[j]], keys[a[i]], "<");
                b[k++] = d == -1 ? a[j++] : a[i++];
            }
            while (i < mid)
                b[k++] = a[i++];
            while (j < hi)
                b[k++] = a[j++];
        }
        uint32_t *t = a;
        a = b;
        b = t;
    }
    struct eng_jv *v = eng_j_alloc_n(c, n + 1, sizeof(*v));
    for (size_t i = 0; i < n; i++)
        v[i] = l->v[a[i]];
    l->v = v;
    l->cap = n + 1;
}
