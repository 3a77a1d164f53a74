/* Filters of chat templates on text. */
#include "engine/text/jinja/value.h"

#include <stdio.h>
#include <string.h>

static struct eng_jv soft(struct eng_jctx *c, struct eng_jv v)
{
    return v.t == J_STR ? v : eng_jv_str(eng_j_str(c, v));
}

/* A filter that is a method of the value's text. */
#define METHOD(name, method)                                                                       \
    static struct eng_jv name(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)      \
    {                                                                                              \
        return call_method(c, v, a, method);                                                       \
    }

static struct eng_jv call_method(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a,
                                 const char *method)
{
    const char *canonical;
    v = soft(c, v);
    const struct eng_jstr name = {.p = method, .n = strlen(method)};
    return eng_j_find_method(v, &name, &canonical)(c, v, a);
}

METHOD(f_upper, "upper")
METHOD(f_lower, "lower")
METHOD(f_capitalize, "capitalize")

static struct eng_jv f_trim(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o;
    eng_j_bind(c, a, "chars?", &o);
    const struct eng_jstr *chars =
        o.t == J_ABSENT || o.t == J_NONE ? NULL : eng_j_want_str(c, o, "strip arg");
    return eng_jv_str(eng_j_strip(c, soft(c, v).s, chars, true, true));
}

static struct eng_jv f_center(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o;
    eng_j_bind(c, a, "width?", &o);
    struct eng_jv width = eng_jv_int(eng_j_want_int(c, o, 80));
    struct eng_jargs pos = {.fname = "center", .pos = &width, .npos = 1};
    return call_method(c, v, &pos, "center");
}

static struct eng_jv f_replace(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o[3];
    eng_j_bind(c, a, "old new count?", o);
    v = eng_jv_str(eng_j_str(c, v));
    o[0] = eng_jv_str(eng_j_str(c, o[0]));
    o[1] = eng_jv_str(eng_j_str(c, o[1]));
    bool count = o[2].t != J_ABSENT && o[2].t != J_NONE;
    struct eng_jargs pos = {.fname = "replace", .pos = o, .npos = count ? 3 : 2};
    return call_method(c, v, &pos, "replace");
}

static struct eng_jv f_format(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    if (a->npos && a->nkw)
        eng_j_raise(c, "can't handle positional and keyword arguments at the same time");
    struct eng_jdict *m = eng_j_dict(c, false);
    for (size_t i = 0; i < a->nkw; i++)
        eng_j_dict_set(c, m, eng_jv_str(a->kw[i].name), a->kw[i].v);
    struct eng_jlist *l = eng_j_list(c, a->npos, false);
    for (size_t i = 0; i < a->npos; i++)
        eng_j_push(c, l, a->pos[i]);
    return eng_j_percent(c, soft(c, v).s, a->nkw ? eng_jv_dict(m) : eng_jv_tuple(l));
}

/* Words are apart by space, hyphens and opening brackets; each is cased as a text of its own. */
static struct eng_jv f_title(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    eng_j_bind(c, a, "", NULL);
    const struct eng_jstr *s = soft(c, v).s;
    struct eng_jbuf *b = eng_j_buf(c, s->n);
    for (size_t from = 0, i = 0, first = 0; from < s->n; from = i) {
        bool apart = false;
        while (i < s->n && !apart) {
            size_t at = i;
            uint32_t cp = eng_j_cp_next(s, &i);
            apart = eng_j_is_space(cp) || (cp < 128 && cp && strchr("-({[<", (int)cp));
            if (at == from) first = i;
        }
        const struct eng_jstr *rest = eng_j_sub(c, s, first, i - first);
        eng_j_put_cased(c, b, s, from, first - from, J_UPPER);
        eng_j_put_cased(c, b, rest, 0, rest->n, J_LOWER);
    }
    return eng_jv_str(eng_j_done(c, b));
}

static struct eng_jv f_escape(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    eng_j_bind(c, a, "", NULL);
    return eng_jv_str(eng_j_escape(c, soft(c, v).s));
}

static struct eng_jv f_forceescape(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    eng_j_bind(c, a, "", NULL);
    return eng_jv_str(eng_j_escape(c, eng_j_str(c, v)));
}

static struct eng_jv f_safe(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    eng_j_bind(c, a, "", NULL);
    return eng_jv_str(eng_j_as_markup(c, soft(c, v).s, true));
}

static struct eng_jv f_indent(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o[3];
    eng_j_bind(c, a, "width? first? blank?", o);
    bool first = eng_j_truth(c, o[1]), blank = eng_j_truth(c, o[2]);
    if (v.t == J_UNDEF) eng_j_undef_error(c, v);
    const struct eng_jstr *s = eng_j_want_str(c, v, "the value of indent"), *in;
    if (o[0].t == J_STR) {
        in = o[0].s;
    } else {
        struct eng_jbuf *spaces = eng_j_buf(c, 0);
        int64_t width = eng_j_want_int(c, o[0], 4);
        eng_j_put_fill(c, spaces, ' ', width > 0 ? (size_t)width : 0, !o[0].client);
        in = eng_j_done(c, spaces);
    }
    if (s->markup && !in->markup) in = eng_j_as_markup(c, in, true);
    struct eng_jbuf *b = eng_j_buf(c, s->n);
    size_t n = 0, end = 0, i = 0;
    bool trusted = eng_j_trusted(s);
    if (first) eng_j_put_str(c, b, in);
    for (size_t line = 0; eng_j_line(s, i, &n, &end); line++, i += end) {
        if (line) eng_j_put(c, b, "\n", 1, trusted);
        if (line && (n || blank)) eng_j_put_str(c, b, in);
        eng_j_put_sub(c, b, s, i, n);
    }
    /* A newline was added before the lines were split: a last line that had its own end leaves an
     * empty line behind it. */
    if (i && end > n && s->p[s->n - 1] != '\r') {
        eng_j_put(c, b, "\n", 1, trusted);
        if (blank) eng_j_put_str(c, b, in);
    }
    return eng_jv_str(eng_j_as_markup(c, eng_j_done(c, b), s->markup));
}

static struct eng_jv f_truncate(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o[4];
    eng_j_bind(c, a, "length? killwords? end? leeway?", o);
    int64_t length = eng_j_want_int(c, o[0], 255);
    int64_t leeway = o[3].t == J_NONE ? 5 : eng_j_want_int(c, o[3], 5);
    const struct eng_jstr *end =
        o[2].t == J_ABSENT ? eng_j_lit(c, "...") : eng_j_want_str(c, o[2], "end");
    int64_t n_end = (int64_t)eng_j_cps(end);
    if (length < n_end || leeway < 0)
        eng_j_raise(c, "the length or leeway of truncate is too small");
    size_t len;
    if (!eng_j_len(c, v, &len))
        eng_j_raise(c, "object of type '%s' has no len()", eng_j_type_name(v));
    if ((uint64_t)len <= (uint64_t)length + (uint64_t)leeway) return v;
    const struct eng_jstr *s = eng_j_want_str(c, v, "the value of truncate");
    const struct eng_jstr *cut = eng_j_sub(c, s, 0, eng_j_off(s, (size_t)(length - n_end)));
    if (!eng_j_truth(c, o[1])) {
        const struct eng_jstr *space = eng_j_lit(c, " ");
        size_t at = eng_j_rfind(c, cut, 0, cut->n, space);
        if (at != SIZE_MAX) cut = eng_j_sub(c, cut, 0, at);
    }
    return eng_jv_str(eng_j_concat(c, cut, end));
}

static struct eng_jv f_wordcount(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    eng_j_bind(c, a, "", NULL);
    const struct eng_jstr *s = soft(c, v).s;
    int64_t n = 0;
    bool inside = false;
    for (size_t i = 0; i < s->n;) {
        bool word = eng_j_is_word(eng_j_cp_next(s, &i));
        n += word && !inside;
        inside = word;
    }
    return eng_jv_int(n);
}

/* ---- wordwrap: as Python's textwrap without expanding tabs or replacing white space ---------- */

static bool wrap_space(char ch)
{
    return ch == ' ' || (ch >= 9 && ch <= 13);
}

/* The next chunk of a line from i: white space, or a word, which ends after a hyphen between
 * letters. */
static size_t chunk_end(const struct eng_jstr *s, size_t i, size_t to, bool hyphens)
{
    bool space = wrap_space(s->p[i]);
    size_t from = i;
    while (i < to && wrap_space(s->p[i]) == space) {
        size_t prev = i;
        uint32_t cp = eng_j_cp_next(s, &i);
        if (space || !hyphens || cp != '-' || prev < from + 2 || i >= to) continue;
        size_t k = i, back = prev;
        do
            back--;
        while (back > from && ((unsigned char)s->p[back] & 0xc0) == 0x80);
        size_t at = back;
        if (eng_j_is_alpha(eng_j_cp_next(s, &at)) && eng_j_is_alpha(eng_j_cp_next(s, &k)) &&
            k < to && (eng_j_is_alpha(eng_j_cp_next(s, &k)) || s->p[k - 1] == '-'))
            return i;
    }
    return i;
}

/* Where a word that fits no line is cut: after `room` characters, or after a hyphen before that. */
static size_t break_word(const struct eng_jstr *s, size_t i, int64_t room, bool hyphens)
{
    size_t from = i, cut = 0;
    bool other = false;
    for (; room > 0; room--) {
        size_t at = i;
        uint32_t cp = eng_j_cp_next(s, &i);
        if (cp == '-' && at > from && other) cut = i;
        other |= cp != '-';
    }
    return hyphens && cut ? cut : i;
}

static void wrap_line(struct eng_jctx *c, struct eng_jbuf *b, const struct eng_jstr *s, size_t from,
                      size_t to, int64_t width, bool break_long, bool hyphens,
                      const struct eng_jstr *sep)
{
    bool first = true;
    for (size_t i = from; i < to;) {
        size_t line = i, end = i, last_space = i;
        int64_t n = 0;
        if (!first && wrap_space(s->p[i])) {
            line = end = i = chunk_end(s, i, to, hyphens);
            if (i >= to) break;
        }
        last_space = end;
        while (i < to) {
            size_t k = chunk_end(s, i, to, hyphens);
            int64_t len = (int64_t)(eng_j_index_of(s, k) - eng_j_index_of(s, i));
            eng_j_work(c, eng_j_cps(s) == s->n ? 16 : k);
            if (n + len > width) {
                if (len > width && break_long) {
                    i = break_word(s, i, width - n, hyphens);
                    end = last_space = i;
                } else if (len > width && !n) {
                    end = last_space = i = k;
                }
                break;
            }
            n += len;
            if (!wrap_space(s->p[i])) last_space = k;
            end = i = k;
        }
        if (last_space > line) {
            if (!first) eng_j_put_str(c, b, sep);
            first = false;
            eng_j_put_sub(c, b, s, line, last_space - line);
        }
    }
}

static struct eng_jv f_wordwrap(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o[4];
    eng_j_bind(c, a, "width? break_long_words? wrapstring? break_on_hyphens?", o);
    int64_t width = eng_j_want_int(c, o[0], 79);
    bool break_long = o[1].t == J_ABSENT || eng_j_truth(c, o[1]);
    bool hyphens = o[3].t == J_ABSENT || eng_j_truth(c, o[3]);
    const struct eng_jstr *sep = o[2].t == J_ABSENT || o[2].t == J_NONE
                                     ? eng_j_lit(c, "\n")
                                     : eng_j_want_str(c, o[2], "wrapstring");
    const struct eng_jstr *s = eng_j_want_str(c, v, "the value of wordwrap");
    if (width <= 0) eng_j_raise(c, "invalid width (must be > 0)");
    struct eng_jbuf *b = eng_j_buf(c, s->n);
    size_t n, end;
    for (size_t i = 0; eng_j_line(s, i, &n, &end); i += end) {
        if (i) eng_j_put_str(c, b, sep);
        wrap_line(c, b, s, i, i + n, width, break_long, hyphens, sep);
    }
    return eng_jv_str(eng_j_done(c, b));
}

/* ---- HTML and URLs --------------------------------------------------------------------------- */

static void put_quoted_url(struct eng_jctx *c, struct eng_jbuf *b, const struct eng_jstr *s,
                           bool query)
{
    for (size_t i = 0, end; i < s->n; i++) {
        unsigned char ch = (unsigned char)s->p[i];
        bool plain = (ch >= '0' && ch <= '9') || ((ch | 0x20) >= 'a' && (ch | 0x20) <= 'z') ||
                     ch == '_' || ch == '.' || ch == '-' || ch == '~' || (ch == '/' && !query);
        char esc[4];
        bool trusted = eng_j_run(s, i, &end);
        if (plain)
            eng_j_put(c, b, &s->p[i], 1, trusted);
        else if (ch == ' ' && query)
            eng_j_put(c, b, "+", 1, trusted);
        else
            eng_j_put(c, b, esc, (size_t)snprintf(esc, sizeof(esc), "%%%02X", ch), trusted);
    }
}

static struct eng_jv f_urlencode(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    eng_j_bind(c, a, "", NULL);
    struct eng_jbuf *b = eng_j_buf(c, 0);
    if (v.t == J_STR || !eng_j_iterable(v)) {
        put_quoted_url(c, b, eng_j_str(c, v), false);
        return eng_jv_str(eng_j_done(c, b));
    }
    struct eng_jview w = {.m = v.m, .kind = J_ITEMS};
    struct eng_jit it = eng_j_iter(c, v.t == J_DICT ? (struct eng_jv){.t = J_VIEW, .view = &w} : v);
    struct eng_jv item;
    for (bool first = true; eng_j_next(c, &it, &item); first = false) {
        struct eng_jlist *pair = eng_j_to_list(c, item);
        if (pair->n != 2) eng_j_raise(c, "urlencode needs pairs");
        if (!first) eng_j_put(c, b, "&", 1, true);
        put_quoted_url(c, b, eng_j_str(c, pair->v[0]), true);
        eng_j_put(c, b, "=", 1, true);
        put_quoted_url(c, b, eng_j_str(c, pair->v[1]), true);
    }
    return eng_jv_str(eng_j_done(c, b));
}

static struct eng_jv f_xmlattr(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o;
    eng_j_bind(c, a, "autospace?", &o);
    if (v.t == J_UNDEF) eng_j_undef_error(c, v);
    if (v.t != J_DICT) eng_j_raise(c, "'%s' object has no attribute 'items'", eng_j_type_name(v));
    struct eng_jbuf *b = eng_j_buf(c, 0);
    bool space = o.t == J_ABSENT || eng_j_truth(c, o);
    for (size_t i = 0; i < v.m->n; i++) {
        const struct eng_jpair *e = &v.m->e[i];
        if (e->v.t == J_NONE || e->v.t == J_UNDEF) continue;
        const struct eng_jstr *k = eng_j_want_str(c, e->k, "an attribute's name");
        for (size_t n = 0; n < k->n; n++)
            if (wrap_space(k->p[n]) || strchr("/>=", k->p[n]))
                eng_j_raise(c, "Invalid character in attribute name");
        eng_j_step(c, 1);
        bool t = eng_j_trusted(k) && !eng_jv_client(e->v);
        if (space || b->used) eng_j_put(c, b, " ", 1, t);
        eng_j_put_str(c, b, eng_j_escape(c, k));
        eng_j_put(c, b, "=\"", 2, t);
        eng_j_put_str(c, b, eng_j_escape(c, soft(c, e->v).s));
        eng_j_put(c, b, "\"", 1, t);
    }
    return eng_jv_str(eng_j_done(c, b));
}

/* One entity at i ("&...;"): its character and length, or 0. Numbers and the names of markup. */
static size_t entity(const struct eng_jstr *s, size_t i, uint32_t *cp)
{
    static const struct {
        const char *name;
        uint32_t cp;
    } names[] = {{"amp;", '&'},  {"lt;", '<'},    {"gt;", '>'},
                 {"quot;", '"'}, {"apos;", '\''}, {"nbsp;", 0xa0}};
    size_t n = s->n - i - 1;
    const char *p = s->p + i + 1;
    for (size_t k = 0; k < CN_ARRAY_LEN(names); k++) {
        size_t len = strlen(names[k].name);
        if (n < len || memcmp(p, names[k].name, len)) continue;
        *cp = names[k].cp;
        return len + 1;
    }
    if (n < 3 || p[0] != '#') return 0;
    bool hex = (p[1] | 0x20) == 'x';
    size_t k = hex ? 2 : 1, from = k;
    for (*cp = 0; k < n && k < from + 8; k++) {
        char ch = p[k];
        uint32_t d = ch >= '0' && ch <= '9' ? (uint32_t)(ch - '0')
                     : hex && (ch | 0x20) >= 'a' && (ch | 0x20) <= 'f'
                         ? (uint32_t)((ch | 0x20) - 'a') + 10
                         : 99;
        if (d == 99) break;
        *cp = *cp * (hex ? 16 : 10) + d;
    }
    char utf8[4];
    if (k == from || k >= n || p[k] != ';') return 0;
    if (!*cp || !cn_utf8_encode(*cp, utf8)) *cp = 0xfffd;
    return k + 2;
}

static const struct eng_jstr *unescape(struct eng_jctx *c, const struct eng_jstr *s)
{
    struct eng_jbuf *b = eng_j_buf(c, s->n);
    size_t from = 0;
    for (size_t i = 0, end; i < s->n; i++) {
        uint32_t cp;
        size_t n = s->p[i] == '&' ? entity(s, i, &cp) : 0;
        if (!n) continue;
        eng_j_put_sub(c, b, s, from, i - from);
        eng_j_put_cp(c, b, cp, eng_j_run(s, i, &end) && end >= i + n);
        from = i + n;
        i = from - 1;
    }
    eng_j_put_sub(c, b, s, from, s->n - from);
    return eng_j_done(c, b);
}

/* Tags and comments go, white space becomes single spaces, the common entities become
 * characters. */
static struct eng_jv f_striptags(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    eng_j_bind(c, a, "", NULL);
    const struct eng_jstr *s = eng_j_str(c, v);
    struct eng_jbuf *b = eng_j_buf(c, s->n);
    size_t pos = 0;
    for (;;) {
        const char *q = memchr(s->p + pos, '<', s->n - pos), *end = NULL;
        if (!q) break;
        size_t at = (size_t)(q - s->p);
        if (s->n - at >= 4 && memcmp(q, "<!--", 4) == 0) {
            end = memmem(q + 4, s->n - at - 4, "-->", 3);
            end = end ? end + 3 : NULL;
        } else {
            end = memchr(q, '>', s->n - at);
            end = end ? end + 1 : NULL;
        }
        if (!end) break;
        eng_j_put_sub(c, b, s, pos, at - pos);
        pos = (size_t)(end - s->p);
    }
    eng_j_put_sub(c, b, s, pos, s->n - pos);
    const struct eng_jstr *plain = eng_j_done(c, b);
    struct eng_jargs none = {.fname = "split"};
    struct eng_jv words = call_method(c, eng_jv_str(plain), &none, "split");
    struct eng_jbuf *out = eng_j_buf(c, plain->n);
    for (size_t i = 0; i < words.l->n; i++) {
        if (i) eng_j_put(c, out, " ", 1, eng_j_trusted(plain));
        eng_j_put_str(c, out, words.l->v[i].s);
    }
    return eng_jv_str(unescape(c, eng_j_done(c, out)));
}

const struct eng_jnamed eng_j_filters_str[] = {
    {"capitalize", f_capitalize},
    {"center", f_center},
    {"e", f_escape},
    {"escape", f_escape},
    {"forceescape", f_forceescape},
    {"format", f_format},
    {"indent", f_indent},
    {"lower", f_lower},
    {"replace", f_replace},
    {"safe", f_safe},
    {"striptags", f_striptags},
    {"title", f_title},
    {"trim", f_trim},
    {"truncate", f_truncate},
    {"upper", f_upper},
    {"urlencode", f_urlencode},
    {"wordcount", f_wordcount},
    {"wordwrap", f_wordwrap},
    {"xmlattr", f_xmlattr},
};
const size_t eng_j_n_filters_str = CN_ARRAY_LEN(eng_j_filters_str);
