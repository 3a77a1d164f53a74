/* Functions that every chat template can call, and the methods of loops and cyclers. */
#include "engine/text/jinja/ast.h"

#include <math.h>
#include <string.h>
#include <time.h>

/* The reference's sandbox refuses longer ranges. */
enum { MAX_RANGE = 100000 };

static struct eng_jv fn_range(struct eng_jctx *c, struct eng_jv self, const struct eng_jargs *a)
{
    struct eng_jv v[3];
    eng_j_bind(c, a, ".a .b? .c?", v);
    struct eng_jrange *r = eng_j_alloc(c, sizeof(*r));
    r->step = eng_j_want_int(c, v[2], 1);
    r->start = v[1].t == J_ABSENT ? 0 : eng_j_want_int(c, v[0], 0);
    r->stop = eng_j_want_int(c, v[v[1].t == J_ABSENT ? 0 : 1], 0);
    if (!r->step) eng_j_raise(c, "range() arg 3 must not be zero");
    uint64_t step = r->step > 0 ? (uint64_t)r->step : -(uint64_t)r->step;
    uint64_t span = r->step > 0 ? (uint64_t)r->stop - (uint64_t)r->start
                                : (uint64_t)r->start - (uint64_t)r->stop;
    bool empty = r->step > 0 ? r->stop <= r->start : r->stop >= r->start;
    r->n = empty ? 0 : (size_t)((span - 1) / step) + 1;
    if (r->n > MAX_RANGE) eng_j_raise(c, "range too big: at most %d items are allowed", MAX_RANGE);
    bool client = v[0].client || v[1].client || v[2].client;
    return (struct eng_jv){.t = J_RANGE, .client = client, .r = r};
}

static void fill_dict(struct eng_jctx *c, struct eng_jdict *m, const struct eng_jargs *a)
{
    if (a->npos > 1) eng_j_raise(c, "%s() takes at most 1 argument", a->fname);
    if (a->npos && a->pos[0].t == J_DICT) {
        const struct eng_jdict *from = a->pos[0].m;
        m->client |= from->client;
        for (size_t i = 0; i < from->n; i++) {
            eng_j_step(c, 1);
            eng_j_dict_set(c, m, from->e[i].k, from->e[i].v);
        }
    } else if (a->npos) {
        struct eng_jit it = eng_j_iter(c, a->pos[0]);
        struct eng_jv item;
        m->client |= eng_jv_client(a->pos[0]);
        while (eng_j_next(c, &it, &item)) {
            struct eng_jlist *pair = eng_j_to_list(c, item);
            if (pair->n != 2)
                eng_j_raise(c, "dictionary update sequence has an element of length %zu", pair->n);
            eng_j_dict_set(c, m, pair->v[0], pair->v[1]);
        }
    }
    for (size_t i = 0; i < a->nkw; i++)
        eng_j_dict_set(c, m, eng_jv_str(a->kw[i].name), a->kw[i].v);
}

static struct eng_jv fn_dict(struct eng_jctx *c, struct eng_jv self, const struct eng_jargs *a)
{
    struct eng_jdict *m = eng_j_dict(c, false);
    fill_dict(c, m, a);
    return eng_jv_dict(m);
}

static struct eng_jv fn_namespace(struct eng_jctx *c, struct eng_jv self, const struct eng_jargs *a)
{
    struct eng_jdict *m = eng_j_dict(c, false);
    fill_dict(c, m, a);
    for (size_t i = 0; i < m->n; i++)
        if (m->e[i].k.t == J_STR && m->e[i].k.s->n && m->e[i].k.s->p[0] == '_')
            eng_j_raise(c, "a namespace cannot hold attributes that begin with an underscore");
    return (struct eng_jv){.t = J_NS, .m = m};
}

static struct eng_jv fn_raise(struct eng_jctx *c, struct eng_jv self, const struct eng_jargs *a)
{
    struct eng_jv v;
    eng_j_bind(c, a, "message", &v);
    const struct eng_jstr *s = eng_j_str(c, v);
    char *z = eng_j_alloc(c, CN_MIN(s->n, (size_t)400) + 1);
    memcpy(z, s->p, CN_MIN(s->n, (size_t)400));
    for (char *p = z; *p; p++)
        if ((unsigned char)*p < 32 || *p == 127) *p = ' ';
    eng_j_raise(c, "%s", z);
}

/* The text of strftime is short or it is an error: its length is not for the template to choose. */
static struct eng_jv fn_strftime_now(struct eng_jctx *c, struct eng_jv self,
                                     const struct eng_jargs *a)
{
    struct eng_jv v;
    char out[1024];
    eng_j_bind(c, a, "format", &v);
    const struct eng_jstr *s = eng_j_want_str(c, v, "the format of strftime_now");
    time_t now = (time_t)c->now_s;
    struct tm tm;
    if (!gmtime_r(&now, &tm)) eng_j_raise(c, "the time is out of range");
    if (!s->n) return eng_jv_z(c, "");
    const char *fmt = eng_j_copy(c, s->p, s->n, true)->p; /* with its NUL */
    if (s->n > 256) eng_j_raise(c, "the format of strftime_now is too long");
    size_t n = strftime(out, sizeof(out), fmt, &tm);
    if (!n) eng_j_raise(c, "the format of strftime_now gives no text");
    if (cn_utf8_valid_len(out, n) != n) eng_j_raise(c, "strftime_now failed");
    return eng_jv_str(eng_j_copy(c, out, n, eng_j_trusted(s)));
}

static struct eng_jv new_cycler(struct eng_jctx *c, uint8_t type)
{
    struct eng_jcycler *y = eng_j_alloc(c, sizeof(*y));
    y->l = eng_j_list(c, 0, false);
    return (struct eng_jv){.t = type, .cyc = y};
}

static struct eng_jv fn_cycler(struct eng_jctx *c, struct eng_jv self, const struct eng_jargs *a)
{
    struct eng_jv y = new_cycler(c, J_CYCLER);
    if (!a->npos || a->nkw) eng_j_raise(c, "at least one item has to be provided");
    for (size_t i = 0; i < a->npos; i++)
        eng_j_push(c, y.cyc->l, a->pos[i]);
    return y;
}

static struct eng_jv fn_joiner(struct eng_jctx *c, struct eng_jv self, const struct eng_jargs *a)
{
    struct eng_jv v, y = new_cycler(c, J_JOINER);
    eng_j_bind(c, a, "sep?", &v);
    eng_j_push(c, y.cyc->l, v.t == J_ABSENT ? eng_jv_z(c, ", ") : v);
    return y;
}

static const struct eng_jnamed globals[] = {
    {"cycler", fn_cycler},
    {"dict", fn_dict},
    {"joiner", fn_joiner},
    {"namespace", fn_namespace},
    {"raise_exception", fn_raise},
    {"range", fn_range},
    {"strftime_now", fn_strftime_now},
};

const struct eng_jnamed *eng_j_find_named(const struct eng_jnamed *t, size_t n, const char *p,
                                          size_t len)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2, k = strlen(t[mid].name);
        int d = memcmp(t[mid].name, p, CN_MIN(k, len));
        if (!d) d = (k > len) - (k < len);
        if (!d) return &t[mid];
        if (d < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

eng_jfn *eng_j_find_global(const char *p, size_t n)
{
    const struct eng_jnamed *e = eng_j_find_named(globals, CN_ARRAY_LEN(globals), p, n);
    return e ? e->fn : NULL;
}

/* ---- methods of loop and cycler -------------------------------------------------------------- */

static struct eng_jv loop_cycle(struct eng_jctx *c, struct eng_jv self, const struct eng_jargs *a)
{
    if (!a->npos || a->nkw) eng_j_raise(c, "no items for cycling given");
    return a->pos[(size_t)self.loop->index0 % a->npos];
}

static struct eng_jv loop_changed(struct eng_jctx *c, struct eng_jv self, const struct eng_jargs *a)
{
    struct eng_jlist *l = eng_j_list(c, a->npos, false), *last = self.loop->changed;
    for (size_t i = 0; i < a->npos; i++)
        eng_j_push(c, l, a->pos[i]);
    self.loop->changed = l;
    return eng_jv_bool(!last || !eng_j_equal(c, eng_jv_list(last), eng_jv_list(l)));
}

static struct eng_jv cycler_next(struct eng_jctx *c, struct eng_jv self, const struct eng_jargs *a)
{
    eng_j_bind(c, a, "", NULL);
    struct eng_jv v = self.cyc->l->v[self.cyc->pos];
    self.cyc->pos = (self.cyc->pos + 1) % self.cyc->l->n;
    return v;
}

static struct eng_jv cycler_reset(struct eng_jctx *c, struct eng_jv self, const struct eng_jargs *a)
{
    eng_j_bind(c, a, "", NULL);
    self.cyc->pos = 0;
    return eng_jv_none();
}

/* ---- methods of dictionaries, lists and numbers ---------------------------------------------- */

static struct eng_jv dict_get(struct eng_jctx *c, struct eng_jv self, const struct eng_jargs *a)
{
    struct eng_jv v[2];
    eng_j_bind(c, a, ".key .default?", v);
    struct eng_jv *p = eng_j_dict_get(c, self.m, v[0]);
    return p ? *p : v[1].t == J_ABSENT ? eng_jv_none() : v[1];
}

static struct eng_jv view(struct eng_jctx *c, struct eng_jv self, const struct eng_jargs *a,
                          enum eng_jview_kind kind)
{
    eng_j_bind(c, a, "", NULL);
    struct eng_jview *w = eng_j_alloc(c, sizeof(*w));
    w->m = self.m;
    w->kind = kind;
    return (struct eng_jv){.t = J_VIEW, .view = w};
}

static struct eng_jv dict_keys(struct eng_jctx *c, struct eng_jv self, const struct eng_jargs *a)
{
    return view(c, self, a, J_KEYS);
}

static struct eng_jv dict_values(struct eng_jctx *c, struct eng_jv self, const struct eng_jargs *a)
{
    return view(c, self, a, J_VALUES);
}

static struct eng_jv dict_items(struct eng_jctx *c, struct eng_jv self, const struct eng_jargs *a)
{
    return view(c, self, a, J_ITEMS);
}

/* Nothing can change a dictionary or list, so a copy is the thing itself. */
static struct eng_jv copy(struct eng_jctx *c, struct eng_jv self, const struct eng_jargs *a)
{
    eng_j_bind(c, a, "", NULL);
    return self.t == J_LIST ? eng_jv_list(eng_j_to_list(c, self)) : self;
}

static struct eng_jv dict_fromkeys(struct eng_jctx *c, struct eng_jv self,
                                   const struct eng_jargs *a)
{
    struct eng_jv v[2], item;
    eng_j_bind(c, a, ".keys .value?", v);
    struct eng_jdict *m = eng_j_dict(c, eng_jv_client(v[0]));
    struct eng_jit it = eng_j_iter(c, v[0]);
    while (eng_j_next(c, &it, &item))
        eng_j_dict_set(c, m, item, v[1].t == J_ABSENT ? eng_jv_none() : v[1]);
    return eng_jv_dict(m);
}

static struct eng_jv seq_count(struct eng_jctx *c, struct eng_jv self, const struct eng_jargs *a)
{
    struct eng_jv v, item;
    int64_t n = 0;
    eng_j_bind(c, a, ".value", &v);
    struct eng_jit it = eng_j_iter(c, self);
    while (eng_j_next(c, &it, &item))
        n += eng_j_equal(c, item, v);
    return eng_jv_int(n);
}

static struct eng_jv seq_index(struct eng_jctx *c, struct eng_jv self, const struct eng_jargs *a)
{
    struct eng_jv v[3], item;
    size_t len = 0;
    eng_j_bind(c, a, ".value .start? .stop?", v);
    eng_j_len(c, self, &len);
    int64_t n = (int64_t)len, from = eng_j_want_int(c, v[1], 0), to = eng_j_want_int(c, v[2], n);
    if (from < 0) from = CN_MAX(from + n, 0);
    if (to < 0) to += n;
    struct eng_jit it = eng_j_iter(c, self);
    for (int64_t i = 0; eng_j_next(c, &it, &item); i++)
        if (i >= from && i < to && eng_j_equal(c, item, v[0])) return eng_jv_int(i);
    eng_j_raise(c, "the value is not in the %s", eng_j_type_name(self));
}

static struct eng_jv is_integer(struct eng_jctx *c, struct eng_jv self, const struct eng_jargs *a)
{
    eng_j_bind(c, a, "", NULL);
    return eng_jv_bool(self.d - floor(self.d) == 0);
}

static struct eng_jv bit_length(struct eng_jctx *c, struct eng_jv self, const struct eng_jargs *a)
{
    eng_j_bind(c, a, "", NULL);
    int64_t i = eng_jv_i(self), n = 0;
    for (uint64_t u = i < 0 ? -(uint64_t)i : (uint64_t)i; u; u >>= 1)
        n++;
    return eng_jv_int(n);
}

/* The reference's sandbox refuses both, but Kimi's templates count calls and queue their ids with
 * them. A list belongs to one rendering, so nothing else sees the change. */
static struct eng_jv list_append(struct eng_jctx *c, struct eng_jv self, const struct eng_jargs *a)
{
    struct eng_jv v;
    eng_j_bind(c, a, ".object", &v);
    eng_j_push(c, self.l, v);
    return eng_jv_none();
}

static struct eng_jv list_pop(struct eng_jctx *c, struct eng_jv self, const struct eng_jargs *a)
{
    struct eng_jv v;
    struct eng_jlist *l = self.l;
    eng_j_bind(c, a, ".index?", &v);
    int64_t n = (int64_t)l->n, i = eng_j_want_int(c, v, n - 1);
    if (i < 0 && n) i += v.t == J_ABSENT ? 0 : n;
    if (!n) eng_j_raise(c, "pop from empty list");
    if (i < 0 || i >= n) eng_j_raise(c, "pop index out of range");
    struct eng_jv taken = l->v[i];
    eng_j_step(c, (uint64_t)(n - i) / 16 + 1);
    memmove(&l->v[i], &l->v[i + 1], (size_t)(n - i - 1) * sizeof(*l->v));
    l->n--;
    return taken;
}

static const struct eng_jnamed dict_methods[] = {
    {"copy", copy},        {"fromkeys", dict_fromkeys}, {"get", dict_get},
    {"items", dict_items}, {"keys", dict_keys},         {"values", dict_values},
};
static const struct eng_jnamed list_methods[] = {
    {"append", list_append}, {"copy", copy},    {"count", seq_count},
    {"index", seq_index},    {"pop", list_pop},
};
static const struct eng_jnamed tuple_methods[] = {{"count", seq_count}, {"index", seq_index}};
static const struct eng_jnamed loop_methods[] = {{"changed", loop_changed}, {"cycle", loop_cycle}};
static const struct eng_jnamed cycler_methods[] = {{"next", cycler_next}, {"reset", cycler_reset}};
static const struct eng_jnamed int_methods[] = {{"bit_length", bit_length}, {"conjugate", copy}};
static const struct eng_jnamed float_methods[] = {{"conjugate", copy}, {"is_integer", is_integer}};

eng_jfn *eng_j_find_method(struct eng_jv v, const struct eng_jstr *name, const char **canonical)
{
    static const struct {
        const struct eng_jnamed *t;
        size_t n;
    } by_type[J_JOINER + 1] = {
        [J_DICT] = {dict_methods, CN_ARRAY_LEN(dict_methods)},
        [J_LIST] = {list_methods, CN_ARRAY_LEN(list_methods)},
        [J_TUPLE] = {tuple_methods, CN_ARRAY_LEN(tuple_methods)},
        [J_RANGE] = {tuple_methods, CN_ARRAY_LEN(tuple_methods)},
        [J_LOOP] = {loop_methods, CN_ARRAY_LEN(loop_methods)},
        [J_CYCLER] = {cycler_methods, CN_ARRAY_LEN(cycler_methods)},
        [J_INT] = {int_methods, CN_ARRAY_LEN(int_methods)},
        [J_BOOL] = {int_methods, CN_ARRAY_LEN(int_methods)},
        [J_FLOAT] = {float_methods, CN_ARRAY_LEN(float_methods)},
    };
    const struct eng_jnamed *e = NULL;
    if (v.t == J_STR) {
        e = eng_j_find_named(eng_j_methods_cut, eng_j_n_methods_cut, name->p, name->n);
        if (!e) e = eng_j_find_named(eng_j_methods_case, eng_j_n_methods_case, name->p, name->n);
    } else if (by_type[v.t].n) {
        e = eng_j_find_named(by_type[v.t].t, by_type[v.t].n, name->p, name->n);
    }
    static const struct eng_jnamed fromkeys = {"fromkeys", dict_fromkeys};
    if (v.t == J_FUNC && v.f->fn == fn_dict && eng_j_str_is(name, "fromkeys")) e = &fromkeys;
    *canonical = e ? e->name : NULL;
    return e ? e->fn : NULL;
}
