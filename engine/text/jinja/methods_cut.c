/* Methods of strings in chat templates that cut and search: split, strip, find, replace and
 * theirs. */
#include "engine/text/jinja/value.h"

#include <string.h>

static struct eng_jv sub(struct eng_jctx *c, const struct eng_jstr *s, size_t from, size_t to)
{
    return eng_jv_str(eng_j_sub(c, s, from, to - from));
}

static const struct eng_jstr *opt_chars(struct eng_jctx *c, struct eng_jv v)
{
    return v.t == J_ABSENT || v.t == J_NONE ? NULL : eng_j_want_str(c, v, "strip arg");
}

static struct eng_jv strip(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a,
                           bool left, bool right)
{
    struct eng_jv o;
    eng_j_bind(c, a, ".chars?", &o);
    return eng_jv_str(eng_j_strip(c, v.s, opt_chars(c, o), left, right));
}

static struct eng_jv m_strip(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return strip(c, v, a, true, true);
}

static struct eng_jv m_lstrip(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return strip(c, v, a, true, false);
}

static struct eng_jv m_rstrip(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return strip(c, v, a, false, true);
}

static struct eng_jv m_removeprefix(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o;
    eng_j_bind(c, a, ".prefix", &o);
    const struct eng_jstr *p = eng_j_want_str(c, o, "removeprefix() argument");
    bool has = p->n <= v.s->n && memcmp(v.s->p, p->p, p->n) == 0;
    return has ? sub(c, v.s, p->n, v.s->n) : v;
}

static struct eng_jv m_removesuffix(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o;
    eng_j_bind(c, a, ".suffix", &o);
    const struct eng_jstr *p = eng_j_want_str(c, o, "removesuffix() argument");
    bool has = p->n <= v.s->n && memcmp(v.s->p + v.s->n - p->n, p->p, p->n) == 0;
    return has ? sub(c, v.s, 0, v.s->n - p->n) : v;
}

/* ---- searching within [start, end) given in code points -------------------------------------- */

struct range {
    size_t from, to;
    bool valid;
};

static struct range byte_range(struct eng_jctx *c, const struct eng_jstr *s, struct eng_jv start,
                               struct eng_jv end)
{
    int64_t n = (int64_t)eng_j_cps(s);
    int64_t i = start.t == J_NONE ? 0 : eng_j_want_int(c, start, 0);
    int64_t k = end.t == J_NONE ? n : eng_j_want_int(c, end, n);
    if (i < 0) i = CN_MAX(i + n, 0);
    if (k < 0) k = CN_MAX(k + n, 0);
    if (k > n) k = n;
    if (i > k) return (struct range){.valid = false};
    return (struct range){eng_j_off(s, (size_t)i), eng_j_off(s, (size_t)k), true};
}

static bool at(const struct eng_jstr *s, struct range r, const struct eng_jstr *x, bool end)
{
    if (!r.valid || x->n > r.to - r.from) return false;
    return memcmp(s->p + (end ? r.to - x->n : r.from), x->p, x->n) == 0;
}

static struct eng_jv starts_ends(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a,
                                 bool end)
{
    struct eng_jv o[3];
    eng_j_bind(c, a, ".prefix .start? .end?", o);
    struct range r = byte_range(c, v.s, o[1], o[2]);
    if (o[0].t != J_TUPLE)
        return eng_jv_bool(
            at(v.s, r, eng_j_want_str(c, o[0], "startswith or endswith argument"), end));
    for (size_t i = 0; i < o[0].l->n; i++)
        if (at(v.s, r, eng_j_want_str(c, o[0].l->v[i], "startswith or endswith argument"), end))
            return eng_jv_bool(true);
    return eng_jv_bool(false);
}

static struct eng_jv m_startswith(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return starts_ends(c, v, a, false);
}

static struct eng_jv m_endswith(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return starts_ends(c, v, a, true);
}

static struct eng_jv find(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a, bool last,
                          bool must)
{
    struct eng_jv o[3];
    eng_j_bind(c, a, ".sub .start? .end?", o);
    const struct eng_jstr *x = eng_j_want_str(c, o[0], "the text to find");
    struct range r = byte_range(c, v.s, o[1], o[2]);
    eng_j_work(c, v.s->n);
    size_t i = !r.valid ? SIZE_MAX
               : last   ? eng_j_rfind(c, v.s, r.from, r.to, x)
                        : eng_j_find(v.s, r.from, r.to, x);
    if (i == SIZE_MAX && must) eng_j_raise(c, "substring not found");
    return eng_jv_int(i == SIZE_MAX ? -1 : (int64_t)eng_j_index_of(v.s, i));
}

static struct eng_jv m_find(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return find(c, v, a, false, false);
}

static struct eng_jv m_rfind(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return find(c, v, a, true, false);
}

static struct eng_jv m_index(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return find(c, v, a, false, true);
}

static struct eng_jv m_rindex(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return find(c, v, a, true, true);
}

static struct eng_jv m_count(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o[3];
    int64_t n = 0;
    eng_j_bind(c, a, ".sub .start? .end?", o);
    const struct eng_jstr *x = eng_j_want_str(c, o[0], "the text to count");
    struct range r = byte_range(c, v.s, o[1], o[2]);
    if (!r.valid) return eng_jv_int(0);
    if (!x->n)
        return eng_jv_int((int64_t)(eng_j_index_of(v.s, r.to) - eng_j_index_of(v.s, r.from)) + 1);
    eng_j_work(c, v.s->n);
    for (size_t i = r.from; (i = eng_j_find(v.s, i, r.to, x)) != SIZE_MAX; i += x->n)
        n++;
    return eng_jv_int(n);
}

/* ---- splitting ------------------------------------------------------------------------------- */

static size_t word_end(const struct eng_jstr *s, size_t i)
{
    while (i < s->n) {
        size_t k = i;
        if (eng_j_is_space(eng_j_cp_next(s, &k))) break;
        i = k;
    }
    return i;
}

static size_t space_end(const struct eng_jstr *s, size_t i)
{
    while (i < s->n) {
        size_t k = i;
        if (!eng_j_is_space(eng_j_cp_next(s, &k))) break;
        i = k;
    }
    return i;
}

static void push(struct eng_jctx *c, struct eng_jlist *l, const struct eng_jstr *s, size_t from,
                 size_t to)
{
    eng_j_step(c, 1);
    eng_j_push(c, l, sub(c, s, from, to));
}

static void split_words(struct eng_jctx *c, struct eng_jlist *l, const struct eng_jstr *s,
                        int64_t max)
{
    for (size_t i = space_end(s, 0); i < s->n;) {
        if (max >= 0 && (int64_t)l->n >= max) {
            push(c, l, s, i, s->n); /* the space at the end stays */
            return;
        }
        size_t end = word_end(s, i);
        push(c, l, s, i, end);
        i = space_end(s, end);
    }
}

/* From the right: the words' bounds are found from the left, the first ones stay together. */
static void rsplit_words(struct eng_jctx *c, struct eng_jlist *l, const struct eng_jstr *s,
                         int64_t max)
{
    int64_t words = 0;
    for (size_t i = space_end(s, 0); i < s->n; i = space_end(s, word_end(s, i)))
        words++;
    if (max < 0 || words <= max) {
        split_words(c, l, s, -1);
        return;
    }
    size_t i = space_end(s, 0), from = 0, end = i;
    for (int64_t k = 0; k < words - max; k++) {
        end = word_end(s, i);
        i = space_end(s, end);
    }
    push(c, l, s, from, end); /* Python keeps the space before the first word here */
    while (i < s->n) {
        end = word_end(s, i);
        push(c, l, s, i, end);
        i = space_end(s, end);
    }
}

static void reverse(struct eng_jlist *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        struct eng_jv t = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = t;
    }
}

static struct eng_jv split(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a,
                           bool right)
{
    struct eng_jv o[2];
    eng_j_bind(c, a, "sep? maxsplit?", o);
    int64_t max = eng_j_want_int(c, o[1], -1);
    struct eng_jlist *l = eng_j_list(c, 0, !eng_j_trusted(v.s));
    eng_j_work(c, v.s->n);
    if (o[0].t == J_ABSENT || o[0].t == J_NONE) {
        (right ? rsplit_words : split_words)(c, l, v.s, max);
        return eng_jv_list(l);
    }
    const struct eng_jstr *sep = eng_j_want_str(c, o[0], "the separator");
    if (!sep->n) eng_j_raise(c, "empty separator");
    size_t from = 0, to = v.s->n, i;
    while (max < 0 || (int64_t)l->n < max) {
        i = right ? eng_j_rfind(c, v.s, 0, to, sep) : eng_j_find(v.s, from, v.s->n, sep);
        if (i == SIZE_MAX) break;
        push(c, l, v.s, right ? i + sep->n : from, right ? to : i);
        from = i + sep->n;
        to = i;
    }
    push(c, l, v.s, right ? 0 : from, right ? to : v.s->n);
    if (right) reverse(l);
    return eng_jv_list(l);
}

static struct eng_jv m_split(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return split(c, v, a, false);
}

static struct eng_jv m_rsplit(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return split(c, v, a, true);
}

static struct eng_jv m_splitlines(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o;
    eng_j_bind(c, a, "keepends?", &o);
    bool keep = eng_j_truth(c, o);
    struct eng_jlist *l = eng_j_list(c, 0, !eng_j_trusted(v.s));
    size_t n, with_end;
    for (size_t i = 0; eng_j_line(v.s, i, &n, &with_end); i += with_end)
        push(c, l, v.s, i, i + (keep ? with_end : n));
    return eng_jv_list(l);
}

static struct eng_jv partition(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a,
                               bool right)
{
    struct eng_jv o;
    eng_j_bind(c, a, ".sep", &o);
    const struct eng_jstr *sep = eng_j_want_str(c, o, "the separator");
    if (!sep->n) eng_j_raise(c, "empty separator");
    eng_j_work(c, v.s->n);
    size_t n = v.s->n, i = right ? eng_j_rfind(c, v.s, 0, n, sep) : eng_j_find(v.s, 0, n, sep);
    size_t from = i == SIZE_MAX ? (right ? 0 : n) : i;
    size_t to = i == SIZE_MAX ? from : i + sep->n;
    struct eng_jlist *l = eng_j_list(c, 3, !eng_j_trusted(v.s));
    push(c, l, v.s, 0, from);
    push(c, l, v.s, from, to);
    push(c, l, v.s, to, n);
    return eng_jv_tuple(l);
}

static struct eng_jv m_partition(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return partition(c, v, a, false);
}

static struct eng_jv m_rpartition(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return partition(c, v, a, true);
}

/* ---- replacing and joining ------------------------------------------------------------------- */

/* An empty `old` is found before each character and at the end. */
static void replace_empty(struct eng_jctx *c, struct eng_jbuf *b, const struct eng_jstr *s,
                          const struct eng_jstr *with, int64_t count)
{
    size_t i = 0;
    for (; i < s->n && count != 0; count--) {
        size_t from = i;
        eng_j_cp_next(s, &i);
        eng_j_put_str(c, b, with);
        eng_j_put_sub(c, b, s, from, i - from);
    }
    eng_j_put_sub(c, b, s, i, s->n - i);
    if (count) eng_j_put_str(c, b, with);
}

static struct eng_jv m_replace(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o[3];
    eng_j_bind(c, a, ".old .new .count?", o);
    const struct eng_jstr *old = eng_j_want_str(c, o[0], "replace() argument 1");
    const struct eng_jstr *with = eng_j_want_str(c, o[1], "replace() argument 2");
    int64_t count = eng_j_want_int(c, o[2], -1);
    if (v.s->markup) with = eng_j_escape(c, with);
    struct eng_jbuf *b = eng_j_buf(c, v.s->n);
    eng_j_work(c, v.s->n);
    if (!old->n) {
        replace_empty(c, b, v.s, with, count);
        return eng_jv_str(eng_j_as_markup(c, eng_j_done(c, b), v.s->markup));
    }
    size_t from = 0, i;
    for (; count != 0 && (i = eng_j_find(v.s, from, v.s->n, old)) != SIZE_MAX; count--) {
        eng_j_put_sub(c, b, v.s, from, i - from);
        eng_j_put_str(c, b, with);
        eng_j_work(c, 16);
        from = i + old->n;
    }
    if (!from) return v;
    eng_j_put_sub(c, b, v.s, from, v.s->n - from);
    return eng_jv_str(eng_j_as_markup(c, eng_j_done(c, b), v.s->markup));
}

static struct eng_jv m_join(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o, item;
    eng_j_bind(c, a, ".iterable", &o);
    struct eng_jbuf *b = eng_j_buf(c, 0);
    struct eng_jit it = eng_j_iter(c, o);
    for (bool first = true; eng_j_next(c, &it, &item); first = false) {
        if (v.s->markup && item.t != J_STR) item = eng_jv_str(eng_j_str(c, item));
        const struct eng_jstr *s = eng_j_want_str(c, item, "an item of join()");
        if (!first) eng_j_put_str(c, b, v.s);
        eng_j_put_str(c, b, v.s->markup ? eng_j_escape(c, s) : s);
    }
    return eng_jv_str(eng_j_as_markup(c, eng_j_done(c, b), v.s->markup));
}

const struct eng_jnamed eng_j_methods_cut[] = {
    {"count", m_count},
    {"endswith", m_endswith},
    {"find", m_find},
    {"index", m_index},
    {"join", m_join},
    {"lstrip", m_lstrip},
    {"partition", m_partition},
    {"removeprefix", m_removeprefix},
    {"removesuffix", m_removesuffix},
    {"replace", m_replace},
    {"rfind", m_rfind},
    {"rindex", m_rindex},
    {"rpartition", m_rpartition},
    {"rsplit", m_rsplit},
    {"rstrip", m_rstrip},
    {"split", m_split},
    {"splitlines", m_splitlines},
    {"startswith", m_startswith},
    {"strip", m_strip},
};
const size_t eng_j_n_methods_cut = CN_ARRAY_LEN(eng_j_methods_cut);
