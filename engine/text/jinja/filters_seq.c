/* Filters of chat templates on sequences and mappings. Where Python returns a generator, so do
 * these: it can be walked once and is no JSON. */
#include "engine/text/jinja/value.h"

#include <string.h>

static struct eng_jv f_length(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    size_t n;
    eng_j_bind(c, a, "", NULL);
    if (!eng_j_len(c, v, &n))
        eng_j_raise(c, "object of type '%s' has no len()", eng_j_type_name(v));
    return eng_jv_int((int64_t)n);
}

static struct eng_jv f_default(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o[2];
    eng_j_bind(c, a, "default_value? boolean?", o);
    bool use = v.t == J_UNDEF || (eng_j_truth(c, o[1]) && !eng_j_truth(c, v));
    if (!use) return v;
    return o[0].t == J_ABSENT ? eng_jv_z(c, "") : o[0];
}

static struct eng_jv f_list(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    eng_j_bind(c, a, "", NULL);
    return eng_jv_list(eng_j_to_list(c, v));
}

static struct eng_jv f_items(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    eng_j_bind(c, a, "", NULL);
    if (v.t == J_UNDEF) return eng_jv_gen(c, eng_j_list(c, 0, false), "generator");
    if (v.t != J_DICT) eng_j_raise(c, "Can only get item pairs from a mapping.");
    struct eng_jview w = {.m = v.m, .kind = J_ITEMS};
    return eng_jv_gen(c, eng_j_to_list(c, (struct eng_jv){.t = J_VIEW, .view = &w}), "generator");
}

static struct eng_jv f_first(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv r;
    eng_j_bind(c, a, "", NULL);
    struct eng_jit it = eng_j_iter(c, v);
    return eng_j_next(c, &it, &r) ? r : eng_jv_hint(c, "No first item, sequence was empty.");
}

static bool reversible(struct eng_jv v)
{
    return v.t == J_STR || v.t == J_LIST || v.t == J_TUPLE || v.t == J_DICT || v.t == J_VIEW ||
           v.t == J_RANGE;
}

static struct eng_jv f_last(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    eng_j_bind(c, a, "", NULL);
    if (v.t == J_UNDEF) return eng_jv_hint(c, "No last item, sequence was empty.");
    if (!reversible(v)) eng_j_raise(c, "'%s' object is not reversible", eng_j_type_name(v));
    if (v.t == J_STR && v.s->n) {
        size_t at = v.s->n - 1;
        while (at && ((unsigned char)v.s->p[at] & 0xc0) == 0x80)
            at--;
        return eng_jv_str(eng_j_sub(c, v.s, at, v.s->n - at));
    }
    struct eng_jlist *l = eng_j_to_list(c, v);
    return l->n ? l->v[l->n - 1] : eng_jv_hint(c, "No last item, sequence was empty.");
}

static struct eng_jv f_reverse(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    eng_j_bind(c, a, "", NULL);
    if (v.t == J_STR)
        return eng_j_slice(c, v, (struct eng_jv){.t = J_ABSENT}, (struct eng_jv){.t = J_ABSENT},
                           eng_jv_int(-1));
    struct eng_jlist *l = eng_j_to_list(c, v);
    for (size_t i = 0; i < l->n / 2; i++) {
        struct eng_jv t = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = t;
    }
    return reversible(v) ? eng_jv_gen(c, l, "list_reverseiterator") : eng_jv_list(l);
}

static struct eng_jv f_batch(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o[2], item;
    eng_j_bind(c, a, "linecount fill_with?", o);
    int64_t n = eng_j_want_int(c, o[0], 0);
    struct eng_jlist *out = eng_j_list(c, 0, eng_jv_client(v)), *tmp = NULL;
    struct eng_jit it = eng_j_iter(c, v);
    while (eng_j_next(c, &it, &item)) {
        if (!tmp || (int64_t)tmp->n == n) {
            tmp = eng_j_list(c, 0, out->client);
            eng_j_push(c, out, eng_jv_list(tmp));
        }
        eng_j_push(c, tmp, item);
    }
    bool fill = o[1].t != J_ABSENT && o[1].t != J_NONE;
    while (fill && tmp && (int64_t)tmp->n < n) {
        eng_j_step(c, 1);
        eng_j_push(c, tmp, o[1]);
    }
    return eng_jv_gen(c, out, "generator");
}

static struct eng_jv f_slice(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o[2];
    eng_j_bind(c, a, "slices fill_with?", o);
    int64_t slices = eng_j_want_int(c, o[0], 0);
    struct eng_jlist *l = eng_j_to_list(c, v), *out = eng_j_list(c, 0, l->client);
    if (!slices) eng_j_raise(c, "integer division or modulo by zero");
    if (slices < 0) return eng_jv_gen(c, out, "generator");
    size_t per = l->n / (size_t)slices, extra = l->n % (size_t)slices, at = 0;
    for (size_t i = 0; i < (size_t)slices; i++) {
        struct eng_jlist *tmp = eng_j_list(c, 0, l->client);
        eng_j_step(c, 1);
        for (size_t n = per + (i < extra); n > 0; n--)
            eng_j_push(c, tmp, l->v[at++]);
        if (o[1].t != J_ABSENT && o[1].t != J_NONE && i >= extra) eng_j_push(c, tmp, o[1]);
        eng_j_push(c, out, eng_jv_list(tmp));
    }
    return eng_jv_gen(c, out, "generator");
}

static struct eng_jv f_join(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o[2], item;
    eng_j_bind(c, a, "d? attribute?", o);
    const struct eng_jstr *d = o[0].t == J_ABSENT ? eng_j_lit(c, "") : eng_j_str(c, o[0]);
    struct eng_jbuf *b = eng_j_buf(c, 0);
    struct eng_jit it = eng_j_iter(c, v);
    bool attribute = o[1].t != J_ABSENT && o[1].t != J_NONE;
    for (bool first = true; eng_j_next(c, &it, &item); first = false) {
        if (attribute) item = eng_j_attr_path(c, item, o[1], (struct eng_jv){.t = J_ABSENT});
        if (!first) eng_j_put_str(c, b, d);
        eng_j_put_value(c, b, item);
    }
    return eng_jv_str(eng_j_done(c, b));
}

static struct eng_jv f_string(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    eng_j_bind(c, a, "", NULL);
    return v.t == J_STR ? v : eng_jv_str(eng_j_str(c, v));
}

/* The value with its dictionaries sorted by key, where the keys are text. */
static struct eng_jv key_sorted(struct eng_jctx *c, struct eng_jv v)
{
    if (v.t != J_LIST && v.t != J_TUPLE && v.t != J_DICT) return v;
    eng_j_enter(c);
    eng_j_step(c, 1);
    if (v.t == J_DICT) {
        struct eng_jlist *keys = eng_j_to_list(c, v);
        bool text = true;
        for (size_t i = 0; i < keys->n; i++)
            text &= keys->v[i].t == J_STR;
        if (text) {
            struct eng_jv *by = eng_j_alloc_n(c, keys->n + 1, sizeof(*by));
            if (keys->n) memcpy(by, keys->v, keys->n * sizeof(*by));
            eng_j_sort(c, keys, by, false);
        }
        struct eng_jdict *m = eng_j_dict(c, v.m->client);
        for (size_t i = 0; i < keys->n; i++)
            eng_j_dict_set(c, m, keys->v[i], key_sorted(c, *eng_j_dict_get(c, v.m, keys->v[i])));
        v.m = m;
    } else {
        struct eng_jlist *l = eng_j_list(c, v.l->n, v.l->client);
        for (size_t i = 0; i < v.l->n; i++)
            eng_j_push(c, l, key_sorted(c, v.l->v[i]));
        v.l = l;
    }
    eng_j_leave(c);
    return v;
}

static struct eng_jv f_pprint(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    eng_j_bind(c, a, "", NULL);
    const struct eng_jstr *s = eng_j_repr(c, key_sorted(c, v));
    if (eng_j_cps(s) > 80 && (v.t == J_LIST || v.t == J_TUPLE || v.t == J_DICT || v.t == J_STR))
        eng_j_raise(c, "pprint of what does not fit in a line is not supported");
    return eng_jv_str(s);
}

static struct eng_jv f_attr(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o;
    eng_j_bind(c, a, "name", &o);
    const struct eng_jstr *name = eng_j_want_str(c, o, "the name of an attribute");
    if (v.t == J_UNDEF) eng_j_undef_error(c, v);
    /* Attributes only: the items of a mapping are not looked at. */
    if (v.t == J_DICT) {
        struct eng_jv empty = eng_jv_dict(eng_j_dict(c, false));
        struct eng_jv r = eng_j_getattr(c, empty, name);
        return r.t == J_UNDEF ? r : eng_j_getattr(c, v, name);
    }
    return eng_j_getattr(c, v, name);
}

/* ---- order ----------------------------------------------------------------------------------- */

static struct eng_jv folded(struct eng_jctx *c, struct eng_jv v, bool case_sensitive)
{
    if (case_sensitive || v.t != J_STR) return v;
    struct eng_jbuf *b = eng_j_buf(c, v.s->n);
    eng_j_put_cased(c, b, v.s, 0, v.s->n, J_LOWER);
    return eng_jv_str(eng_j_done(c, b));
}

/* The value at "a.b.0" of an item; default_v replaces what is undefined on the way. */
struct eng_jv eng_j_attr_path(struct eng_jctx *c, struct eng_jv item, struct eng_jv path,
                              struct eng_jv default_v)
{
    bool has_default = default_v.t != J_ABSENT && default_v.t != J_NONE;
    if (path.t == J_ABSENT || path.t == J_NONE) return item;
    if (path.t != J_STR) {
        item = eng_j_getitem(c, item, path);
        return item.t == J_UNDEF && has_default ? default_v : item;
    }
    const char *p = path.s->p, *end = p + path.s->n;
    for (;;) {
        const char *dot = memchr(p, '.', (size_t)(end - p));
        size_t n = (size_t)((dot ? dot : end) - p);
        int64_t number = 0;
        bool digits = n > 0 && n < 18;
        for (size_t i = 0; i < n && digits; i++) {
            digits = p[i] >= '0' && p[i] <= '9';
            number = number * 10 + (p[i] - '0');
        }
        struct eng_jv key = digits ? eng_jv_int(number)
                                   : eng_jv_str(eng_j_sub(c, path.s, (size_t)(p - path.s->p), n));
        item = eng_j_getitem(c, item, key);
        if (item.t == J_UNDEF && has_default) item = default_v;
        if (!dot) return item;
        p = dot + 1;
    }
}

/* The keys of a list by "a,b.c": tuples of values, or one value where there is one path. */
static struct eng_jv *sort_keys(struct eng_jctx *c, const struct eng_jlist *l, struct eng_jv attr,
                                struct eng_jv default_v, bool case_sensitive)
{
    struct eng_jv *keys = eng_j_alloc_n(c, l->n + 1, sizeof(*keys));
    for (size_t i = 0; i < l->n; i++) {
        if (attr.t != J_STR || !memchr(attr.s->p, ',', attr.s->n)) {
            keys[i] = folded(c, eng_j_attr_path(c, l->v[i], attr, default_v), case_sensitive);
            continue;
        }
        struct eng_jlist *key = eng_j_list(c, 0, false);
        for (size_t from = 0; from <= attr.s->n;) {
            const char *q = memchr(attr.s->p + from, ',', attr.s->n - from);
            size_t to = q ? (size_t)(q - attr.s->p) : attr.s->n;
            struct eng_jv path = eng_jv_str(eng_j_sub(c, attr.s, from, to - from));
            eng_j_push(c, key,
                       folded(c, eng_j_attr_path(c, l->v[i], path, default_v), case_sensitive));
            from = to + 1;
        }
        keys[i] = eng_jv_tuple(key);
    }
    return keys;
}

static struct eng_jv f_sort(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o[3];
    eng_j_bind(c, a, "reverse? case_sensitive? attribute?", o);
    struct eng_jlist *l = eng_j_to_list(c, v);
    struct eng_jv *keys =
        sort_keys(c, l, o[2], (struct eng_jv){.t = J_ABSENT}, eng_j_truth(c, o[1]));
    eng_j_sort(c, l, keys, eng_j_truth(c, o[0]));
    return eng_jv_list(l);
}

static struct eng_jv f_dictsort(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o[3];
    eng_j_bind(c, a, "case_sensitive? by? reverse?", o);
    bool by_value = false;
    if (o[1].t != J_ABSENT) {
        const struct eng_jstr *by = eng_j_want_str(c, o[1], "the 'by' of dictsort");
        by_value = eng_j_str_is(by, "value");
        if (!by_value && !eng_j_str_is(by, "key"))
            eng_j_raise(c, "You can only sort by either \"key\" or \"value\"");
    }
    if (v.t == J_UNDEF) eng_j_undef_error(c, v);
    if (v.t != J_DICT) eng_j_raise(c, "'%s' object has no attribute 'items'", eng_j_type_name(v));
    struct eng_jview w = {.m = v.m, .kind = J_ITEMS};
    struct eng_jlist *l = eng_j_to_list(c, (struct eng_jv){.t = J_VIEW, .view = &w});
    struct eng_jv *keys =
        sort_keys(c, l, eng_jv_int(by_value), (struct eng_jv){.t = J_ABSENT}, eng_j_truth(c, o[0]));
    eng_j_sort(c, l, keys, eng_j_truth(c, o[2]));
    return eng_jv_list(l);
}

static struct eng_jv f_groupby(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o[3];
    eng_j_bind(c, a, "attribute default? case_sensitive?", o);
    bool exact = eng_j_truth(c, o[2]);
    struct eng_jlist *l = eng_j_to_list(c, v), *out = eng_j_list(c, 0, l->client);
    eng_j_sort(c, l, sort_keys(c, l, o[0], o[1], exact), false);
    struct eng_jv last = {.t = J_ABSENT};
    struct eng_jlist *items = NULL;
    for (size_t i = 0; i < l->n; i++) {
        struct eng_jv plain = eng_j_attr_path(c, l->v[i], o[0], o[1]);
        struct eng_jv key = folded(c, plain, exact);
        if (!items || !eng_j_equal(c, key, last)) {
            struct eng_jlist *group = eng_j_list(c, 2, l->client);
            items = eng_j_list(c, 0, l->client);
            group->group = true;
            eng_j_push(c, group, plain);
            eng_j_push(c, group, eng_jv_list(items));
            eng_j_push(c, out, eng_jv_tuple(group));
            last = key;
        }
        eng_j_push(c, items, l->v[i]);
    }
    return eng_jv_list(out);
}

static struct eng_jv f_unique(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o[2];
    eng_j_bind(c, a, "case_sensitive? attribute?", o);
    struct eng_jlist *l = eng_j_to_list(c, v), *out = eng_j_list(c, 0, l->client);
    struct eng_jdict *seen = eng_j_dict(c, false);
    for (size_t i = 0; i < l->n; i++) {
        struct eng_jv key = eng_j_attr_path(c, l->v[i], o[1], (struct eng_jv){.t = J_ABSENT});
        key = folded(c, key, eng_j_truth(c, o[0]));
        if (eng_j_dict_get(c, seen, key)) continue;
        eng_j_dict_set(c, seen, key, eng_jv_none());
        eng_j_push(c, out, l->v[i]);
    }
    return eng_jv_gen(c, out, "generator");
}

static struct eng_jv extreme(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a,
                             int want)
{
    struct eng_jv o[2];
    eng_j_bind(c, a, "case_sensitive? attribute?", o);
    struct eng_jlist *l = eng_j_to_list(c, v);
    if (!l->n) return eng_jv_hint(c, "No aggregated item, sequence was empty.");
    struct eng_jv *keys = eng_j_alloc_n(c, l->n, sizeof(*keys));
    size_t best = 0;
    for (size_t i = 0; i < l->n; i++) {
        keys[i] = eng_j_attr_path(c, l->v[i], o[1], (struct eng_jv){.t = J_ABSENT});
        keys[i] = folded(c, keys[i], eng_j_truth(c, o[0]));
        if (i && eng_j_compare(c, keys[i], keys[best], want < 0 ? "<" : ">") == want) best = i;
    }
    return l->v[best];
}

static struct eng_jv f_min(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return extreme(c, v, a, -1);
}

static struct eng_jv f_max(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return extreme(c, v, a, 1);
}

static struct eng_jv f_sum(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o[2], item;
    eng_j_bind(c, a, "attribute? start?", o);
    struct eng_jv r = o[1].t == J_ABSENT ? eng_jv_int(0) : o[1];
    if (r.t == J_STR) eng_j_raise(c, "sum() can't sum strings [use ''.join(seq) instead]");
    struct eng_jit it = eng_j_iter(c, v);
    while (eng_j_next(c, &it, &item))
        r = eng_j_arith(c, J_ADD, r,
                        eng_j_attr_path(c, item, o[0], (struct eng_jv){.t = J_ABSENT}));
    return r;
}

const struct eng_jnamed eng_j_filters_seq[] = {
    {"attr", f_attr},       {"batch", f_batch},       {"count", f_length},  {"d", f_default},
    {"default", f_default}, {"dictsort", f_dictsort}, {"first", f_first},   {"groupby", f_groupby},
    {"items", f_items},     {"join", f_join},         {"last", f_last},     {"length", f_length},
    {"list", f_list},       {"max", f_max},           {"min", f_min},       {"pprint", f_pprint},
    {"reverse", f_reverse}, {"slice", f_slice},       {"sort", f_sort},     {"string", f_string},
    {"sum", f_sum},         {"tojson", eng_j_tojson}, {"unique", f_unique},
};
const size_t eng_j_n_filters_seq = CN_ARRAY_LEN(eng_j_filters_seq);
