/* Methods of strings in chat templates that change or ask for the kind of characters: case,
 * padding, classes. */
#include "engine/text/jinja/ast.h"

#include <string.h>
#include <utf8proc.h>

static struct eng_jv done(struct eng_jctx *c, const struct eng_jbuf *b, struct eng_jv like)
{
    return eng_jv_str(eng_j_as_markup(c, eng_j_done(c, b), like.s->markup));
}

static struct eng_jv cased(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a,
                           enum eng_jcase how)
{
    eng_j_bind(c, a, "", NULL);
    struct eng_jbuf *b = eng_j_buf(c, v.s->n);
    eng_j_put_cased(c, b, v.s, 0, v.s->n, how);
    return done(c, b, v);
}

static struct eng_jv m_lower(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return cased(c, v, a, J_LOWER);
}

static struct eng_jv m_upper(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return cased(c, v, a, J_UPPER);
}

static struct eng_jv m_casefold(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return cased(c, v, a, J_FOLD);
}

static struct eng_jv m_capitalize(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    eng_j_bind(c, a, "", NULL);
    struct eng_jbuf *b = eng_j_buf(c, v.s->n);
    size_t i = 0;
    if (v.s->n) {
        eng_j_cp_next(v.s, &i);
        eng_j_put_cased(c, b, v.s, 0, i, J_TITLE);
        eng_j_put_cased(c, b, v.s, i, v.s->n - i, J_LOWER);
    }
    return done(c, b, v);
}

static bool is_upper(uint32_t cp)
{
    return utf8proc_isupper((utf8proc_int32_t)cp);
}

static bool is_lower(uint32_t cp)
{
    return utf8proc_islower((utf8proc_int32_t)cp);
}

static bool is_title(uint32_t cp)
{
    return utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_LT;
}

static bool is_cased(uint32_t cp)
{
    return is_upper(cp) || is_lower(cp) || is_title(cp);
}

static struct eng_jv m_swapcase(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    eng_j_bind(c, a, "", NULL);
    struct eng_jbuf *b = eng_j_buf(c, v.s->n);
    for (size_t i = 0; i < v.s->n;) {
        size_t from = i;
        uint32_t cp = eng_j_cp_next(v.s, &i);
        if (is_upper(cp) || is_lower(cp))
            eng_j_put_cased(c, b, v.s, from, i - from, is_upper(cp) ? J_LOWER : J_UPPER);
        else
            eng_j_put_sub(c, b, v.s, from, i - from);
    }
    return done(c, b, v);
}

static struct eng_jv m_title(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    eng_j_bind(c, a, "", NULL);
    struct eng_jbuf *b = eng_j_buf(c, v.s->n);
    bool inside = false;
    for (size_t i = 0; i < v.s->n;) {
        size_t from = i;
        uint32_t cp = eng_j_cp_next(v.s, &i);
        eng_j_put_cased(c, b, v.s, from, i - from, inside ? J_LOWER : J_TITLE);
        inside = is_cased(cp);
    }
    return done(c, b, v);
}

/* ---- padding --------------------------------------------------------------------------------- */

static struct eng_jv padded(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a,
                            char align)
{
    struct eng_jv o[2];
    eng_j_bind(c, a, ".width .fillchar?", o);
    struct eng_jfill f = {.align = align,
                          .fill = ' ',
                          .width = eng_j_want_int(c, o[0], 0),
                          .trusted = eng_j_trusted(v.s)};
    if (o[1].t != J_ABSENT) {
        const struct eng_jstr *fill = eng_j_want_str(c, o[1], "the fill character");
        size_t i = 0;
        if (eng_j_cps(fill) != 1)
            eng_j_raise(c, "The fill character must be exactly one character long");
        f.fill = eng_j_cp_next(fill, &i);
        f.trusted &= eng_j_trusted(fill);
    }
    struct eng_jbuf *b = eng_j_buf(c, 0);
    eng_j_put_padded(c, b, v.s, 0, &f);
    return done(c, b, v);
}

static struct eng_jv m_ljust(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return padded(c, v, a, '<');
}

static struct eng_jv m_rjust(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return padded(c, v, a, '>');
}

static struct eng_jv m_center(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return padded(c, v, a, 'c'); /* str.center rounds the other way than format's '^' */
}

static struct eng_jv m_zfill(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o;
    eng_j_bind(c, a, ".width", &o);
    struct eng_jfill f = {
        .align = '=', .fill = '0', .width = eng_j_want_int(c, o, 0), .trusted = eng_j_trusted(v.s)};
    struct eng_jbuf *b = eng_j_buf(c, 0);
    bool sign = v.s->n && (v.s->p[0] == '-' || v.s->p[0] == '+');
    eng_j_put_padded(c, b, v.s, sign, &f);
    return done(c, b, v);
}

static struct eng_jv m_expandtabs(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o;
    eng_j_bind(c, a, "tabsize?", &o);
    int64_t size = eng_j_want_int(c, o, 8), column = 0;
    struct eng_jbuf *b = eng_j_buf(c, v.s->n);
    for (size_t i = 0, end; i < v.s->n;) {
        size_t from = i;
        uint32_t cp = eng_j_cp_next(v.s, &i);
        if (cp == '\t') {
            int64_t n = size > 0 ? size - column % size : 0;
            eng_j_put_fill(c, b, ' ', (size_t)n, eng_j_run(v.s, from, &end));
            column += n;
        } else {
            eng_j_put_sub(c, b, v.s, from, i - from);
            column = cp == '\n' || cp == '\r' ? 0 : column + 1;
        }
    }
    return done(c, b, v);
}

/* ---- kinds of characters --------------------------------------------------------------------- */

/* All characters are of the kind, and there is one. */
static struct eng_jv all(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a,
                         bool (*kind)(uint32_t))
{
    eng_j_bind(c, a, "", NULL);
    eng_j_work(c, v.s->n);
    for (size_t i = 0; i < v.s->n;)
        if (!kind(eng_j_cp_next(v.s, &i))) return eng_jv_bool(false);
    return eng_jv_bool(v.s->n > 0);
}

static bool is_alnum(uint32_t cp)
{
    return eng_j_is_alpha(cp) || eng_j_is_numeric(cp);
}

#define KIND(name, kind)                                                                           \
    static struct eng_jv name(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)      \
    {                                                                                              \
        return all(c, v, a, kind);                                                                 \
    }
KIND(m_isalnum, is_alnum)
KIND(m_isalpha, eng_j_is_alpha)
KIND(m_isdecimal, eng_j_is_decimal)
KIND(m_isdigit, eng_j_is_digit)
KIND(m_isnumeric, eng_j_is_numeric)
KIND(m_isspace, eng_j_is_space)

static bool is_ascii(uint32_t cp)
{
    return cp < 128;
}

static struct eng_jv m_isascii(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv r = all(c, v, a, is_ascii);
    return eng_jv_bool(r.b || !v.s->n);
}

static struct eng_jv m_isprintable(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv r = all(c, v, a, eng_j_is_printable);
    return eng_jv_bool(r.b || !v.s->n);
}

static struct eng_jv m_isidentifier(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv r = all(c, v, a, eng_j_is_word);
    size_t i = 0;
    uint32_t cp = v.s->n ? eng_j_cp_next(v.s, &i) : '0';
    return eng_jv_bool(r.b && (cp == '_' || eng_j_is_alpha(cp)));
}

static struct eng_jv all_case(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a,
                              bool upper)
{
    bool any = false;
    eng_j_bind(c, a, "", NULL);
    eng_j_work(c, v.s->n);
    for (size_t i = 0; i < v.s->n;) {
        uint32_t cp = eng_j_cp_next(v.s, &i);
        if (is_title(cp) || (upper ? is_lower(cp) : is_upper(cp))) return eng_jv_bool(false);
        any |= upper ? is_upper(cp) : is_lower(cp);
    }
    return eng_jv_bool(any);
}

static struct eng_jv m_isupper(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return all_case(c, v, a, true);
}

static struct eng_jv m_islower(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return all_case(c, v, a, false);
}

static struct eng_jv m_istitle(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    bool any = false, inside = false;
    eng_j_bind(c, a, "", NULL);
    eng_j_work(c, v.s->n);
    for (size_t i = 0; i < v.s->n;) {
        uint32_t cp = eng_j_cp_next(v.s, &i);
        bool first = is_upper(cp) || is_title(cp);
        if ((first && inside) || (is_lower(cp) && !inside)) return eng_jv_bool(false);
        inside = is_cased(cp);
        any |= inside;
    }
    return eng_jv_bool(any);
}

/* ---- format ---------------------------------------------------------------------------------- */

static struct eng_jv m_format(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return eng_j_str_format(c, v.s, a);
}

static struct eng_jv m_format_map(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o;
    eng_j_bind(c, a, ".mapping", &o);
    if (o.t != J_DICT) eng_j_raise(c, "format_map() needs a mapping");
    struct eng_jargs named = {.fname = a->fname};
    named.kw = eng_j_alloc_n(c, o.m->n + 1, sizeof(*named.kw));
    for (size_t i = 0; i < o.m->n; i++)
        if (o.m->e[i].k.t == J_STR)
            named.kw[named.nkw++] = (struct eng_jkw){.name = o.m->e[i].k.s, .v = o.m->e[i].v};
    return eng_j_str_format(c, v.s, &named);
}

const struct eng_jnamed eng_j_methods_case[] = {
    {"capitalize", m_capitalize}, {"casefold", m_casefold},   {"center", m_center},
    {"expandtabs", m_expandtabs}, {"format", m_format},       {"format_map", m_format_map},
    {"isalnum", m_isalnum},       {"isalpha", m_isalpha},     {"isascii", m_isascii},
    {"isdecimal", m_isdecimal},   {"isdigit", m_isdigit},     {"isidentifier", m_isidentifier},
    {"islower", m_islower},       {"isnumeric", m_isnumeric}, {"isprintable", m_isprintable},
    {"isspace", m_isspace},       {"istitle", m_istitle},     {"isupper", m_isupper},
    {"ljust", m_ljust},           {"lower", m_lower},         {"rjust", m_rjust},
    {"swapcase", m_swapcase},     {"title", m_title},         {"upper", m_upper},
    {"zfill", m_zfill},
};
const size_t eng_j_n_methods_case = CN_ARRAY_LEN(eng_j_methods_case);
