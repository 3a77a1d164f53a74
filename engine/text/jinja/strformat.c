/* str.format in chat templates: replacement fields, attribute and item access through the sandbox,
 * the format mini-language. */
#include "engine/text/jinja/value.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct spec {
    uint32_t fill; /* 0: not given */
    char align, sign, group, type;
    bool alt, zero, negzero;
    int64_t width, prec; /* -1: none */
};

struct formatter {
    struct eng_jctx *c;
    const struct eng_jargs *a;
    size_t next;   /* automatic numbering */
    int numbering; /* 0 not known, 1 automatic, 2 by hand */
};

static bool is_align(char ch)
{
    return ch == '<' || ch == '>' || ch == '=' || ch == '^';
}

static int64_t digits(struct eng_jctx *c, const struct eng_jstr *s, size_t *i)
{
    int64_t n = -1;
    for (; *i < s->n && s->p[*i] >= '0' && s->p[*i] <= '9'; ++*i) {
        n = (n < 0 ? 0 : n * 10) + (s->p[*i] - '0');
        if (n > INT32_MAX) eng_j_raise(c, "Too many decimal digits in format string");
    }
    return n;
}

static struct spec parse_spec(struct eng_jctx *c, const struct eng_jstr *s)
{
    struct spec f = {.width = -1, .prec = -1};
    size_t i = 0, k = 0;
    if (s->n) {
        uint32_t cp = eng_j_cp_next(s, &k);
        if (k < s->n && is_align(s->p[k])) {
            f.fill = cp;
            f.align = s->p[k];
            i = k + 1;
        } else if (is_align(s->p[0])) {
            f.align = s->p[0];
            i = 1;
        }
    }
    if (i < s->n && strchr("+- ", s->p[i]) && s->p[i]) f.sign = s->p[i++];
    if (i < s->n && s->p[i] == 'z') {
        f.negzero = true;
        i++;
    }
    if (i < s->n && s->p[i] == '#') {
        f.alt = true;
        i++;
    }
    if (i < s->n && s->p[i] == '0') {
        f.zero = true;
        i++;
    }
    int64_t width = digits(c, s, &i);
    f.width = width;
    if (i < s->n && (s->p[i] == ',' || s->p[i] == '_')) f.group = s->p[i++];
    if (i < s->n && s->p[i] == '.') {
        i++;
        f.prec = digits(c, s, &i);
        if (f.prec < 0) eng_j_raise(c, "Format specifier missing precision");
    }
    if (i < s->n) f.type = s->p[i++];
    if (i < s->n) eng_j_raise(c, "Invalid format specifier");
    return f;
}

/* Digits with a separator each `every` from the right of the part before the point; padded with
 * zeros up to `width` when that is above 0. */
static void put_grouped(struct eng_jctx *c, struct eng_jbuf *b, const char *z, char sep,
                        size_t every, int64_t width, bool t)
{
    size_t n = 0, rest;
    while (isxdigit((unsigned char)z[n]) && z[n] != '\0')
        n++;
    if (every == 3)
        for (n = 0; z[n] >= '0' && z[n] <= '9';)
            n++;
    rest = strlen(z + n);
    size_t total = n;
    while (width > 0 && (int64_t)(total + (total ? (total - 1) / every : 0) + rest) < width) {
        total++;
        /* A separator may not stand in front: Python then goes one over the width. */
        if ((uint64_t)total > c->max_out) break;
    }
    for (size_t i = 0; i < total; i++) {
        size_t left = total - i;
        if (i && left % every == 0) eng_j_put(c, b, &sep, 1, t);
        eng_j_put(c, b, left > n ? "0" : &z[n - left], 1, t);
    }
    eng_j_putz(c, b, z + n, t);
}

static void put_number(struct eng_jctx *c, struct eng_jbuf *out, const struct spec *f, bool minus,
                       const char *prefix, const char *z, bool t)
{
    struct eng_jbuf *b = eng_j_buf(c, 48);
    char sign = minus ? '-' : f->sign == '+' ? '+' : f->sign == ' ' ? ' ' : 0;
    if (sign) eng_j_put(c, b, &sign, 1, t);
    eng_j_putz(c, b, prefix, t);
    size_t lead = b->used;
    char align = f->align ? f->align : f->zero ? '=' : '>';
    uint32_t fill = f->fill ? f->fill : f->zero ? '0' : ' ';
    bool radix = f->type == 'x' || f->type == 'X' || f->type == 'o' || f->type == 'b';
    if (f->group)
        put_grouped(c, b, z, f->group, radix ? 4 : 3,
                    align == '=' && fill == '0' ? f->width - (int64_t)lead : 0, t);
    else
        eng_j_putz(c, b, z, t);
    struct eng_jfill pad = {.align = align, .fill = fill, .width = f->width, .trusted = t};
    eng_j_put_padded(c, out, eng_j_done(c, b), lead, &pad);
}

static void format_float(struct eng_jctx *c, struct eng_jbuf *out, struct spec *f, double d, bool t)
{
    char z[64];
    bool minus = signbit(d) && !isnan(d);
    const char *text;
    if (f->type && !strchr("eEfFgGn%", f->type))
        eng_j_raise(c, "Unknown format code '%c' for object of type 'float'", f->type);
    if (!f->type && f->prec < 0) {
        eng_j_float_repr(fabs(d), z);
        text = z;
    } else if (!f->type) {
        text = eng_j_float_digits(c, d, 'g', f->prec ? f->prec : 1, f->alt);
        if (!strpbrk(text, ".enN")) {
            struct eng_jbuf *b = eng_j_buf(c, 0);
            eng_j_putz(c, b, text, true);
            eng_j_put(c, b, ".0", 3, true);
            text = b->data;
        }
    } else {
        text = eng_j_float_digits(c, d, f->type == 'n' ? 'g' : f->type, f->prec < 0 ? 6 : f->prec,
                                  f->alt);
    }
    if (f->negzero && minus && strspn(text, "0.") == strlen(text)) minus = false;
    put_number(c, out, f, minus, "", text, t);
}

static void format_int(struct eng_jctx *c, struct eng_jbuf *out, struct spec *f, int64_t i, bool t)
{
    char z[72], prefix[3] = "";
    uint64_t u = i < 0 ? -(uint64_t)i : (uint64_t)i;
    if (f->type && strchr("eEfFgG%", f->type)) {
        format_float(c, out, f, (double)i, t);
        return;
    }
    if (f->prec >= 0) eng_j_raise(c, "Precision not allowed in integer format specifier");
    switch (f->type) {
    case 0:
    case 'd':
    case 'n':
        snprintf(z, sizeof(z), "%" PRIu64, u);
        break;
    case 'x':
        snprintf(z, sizeof(z), "%" PRIx64, u);
        break;
    case 'X':
        snprintf(z, sizeof(z), "%" PRIX64, u);
        break;
    case 'o':
        snprintf(z, sizeof(z), "%" PRIo64, u);
        break;
    case 'b': {
        size_t n = u ? 64 - (size_t)__builtin_clzll(u) : 1;
        for (size_t k = 0; k < n; k++)
            z[k] = '0' + (char)(u >> (n - 1 - k) & 1);
        z[n] = '\0';
        break;
    }
    case 'c': {
        size_t n = i >= 0 && i < 0x110000 ? cn_utf8_encode((uint32_t)i, z) : 0;
        if (!n) eng_j_raise(c, "%%c arg not in range(0x110000)");
        z[n] = '\0';
        break;
    }
    default:
        eng_j_raise(c, "Unknown format code '%c' for object of type 'int'", f->type);
    }
    if (f->alt && f->type && strchr("xXob", f->type)) {
        prefix[0] = '0';
        prefix[1] = f->type;
    }
    put_number(c, out, f, i < 0, prefix, z, t);
}

static void format_str(struct eng_jctx *c, struct eng_jbuf *out, const struct spec *f,
                       const struct eng_jstr *s, bool t)
{
    if (f->type && f->type != 's')
        eng_j_raise(c, "Unknown format code '%c' for object of type 'str'", f->type);
    if (f->sign || f->align == '=' || f->group || f->alt)
        eng_j_raise(c, "a format specification does not fit a string");
    if (f->prec >= 0 && (size_t)f->prec < eng_j_cps(s))
        s = eng_j_sub(c, s, 0, eng_j_off(s, (size_t)f->prec));
    struct eng_jfill pad = {.align = f->align ? f->align : '<',
                            .width = f->width,
                            .fill = f->fill   ? f->fill
                                    : f->zero ? '0'
                                              : ' ',
                            .trusted = t && eng_j_trusted(s)};
    eng_j_put_padded(c, out, s, 0, &pad);
}

static const struct eng_jstr *format_value(struct eng_jctx *c, struct eng_jv v,
                                           const struct eng_jstr *spec)
{
    if (!spec->n) return v.t == J_STR ? v.s : eng_j_str(c, v);
    struct eng_jbuf *b = eng_j_buf(c, 0);
    struct spec f = parse_spec(c, spec);
    bool t = !eng_jv_client(v) && eng_j_trusted(spec);
    if (v.t == J_STR)
        format_str(c, b, &f, v.s, t);
    else if (v.t == J_FLOAT)
        format_float(c, b, &f, v.d, t);
    else if (eng_jv_is_int(v))
        format_int(c, b, &f, eng_jv_i(v), t);
    else
        eng_j_raise(c, "unsupported format string passed to %s.__format__", eng_j_type_name(v));
    return eng_j_done(c, b);
}

/* ---- fields ---------------------------------------------------------------------------------- */

static struct eng_jv first_part(struct formatter *f, const struct eng_jstr *name)
{
    bool number = true;
    uint64_t index = 0;
    for (size_t i = 0; i < name->n && number; i++) {
        number = name->p[i] >= '0' && name->p[i] <= '9' && i < 9;
        index = index * 10 + (uint64_t)(name->p[i] - '0');
    }
    if (number) {
        int want = name->n ? 2 : 1;
        if (f->numbering && f->numbering != want)
            eng_j_raise(f->c, "cannot mix automatic and manual field numbering");
        f->numbering = want;
        if (!name->n) index = f->next++;
        if (index >= f->a->npos)
            eng_j_raise(f->c, "Replacement index %" PRIu64 " out of range", index);
        return f->a->pos[index];
    }
    for (size_t i = 0; i < f->a->nkw; i++)
        if (eng_j_str_eq(f->a->kw[i].name, name)) return f->a->kw[i].v;
    eng_j_raise(f->c, "the format's key '%s' is missing", eng_j_quote(f->c, name));
}

static struct eng_jv field_value(struct formatter *f, const struct eng_jstr *s, size_t from,
                                 size_t to)
{
    size_t i = from;
    while (i < to && s->p[i] != '.' && s->p[i] != '[')
        i++;
    struct eng_jv v = first_part(f, eng_j_sub(f->c, s, from, i - from));
    while (i < to) {
        bool item = s->p[i] == '[';
        if (!item && s->p[i] != '.') eng_j_raise(f->c, "Only '.' or '[' may follow ']' in a field");
        from = ++i;
        while (i < to && (item ? s->p[i] != ']' : s->p[i] != '.' && s->p[i] != '['))
            i++;
        if (i == from || (item && i == to)) eng_j_raise(f->c, "Empty attribute in format string");
        const struct eng_jstr *name = eng_j_sub(f->c, s, from, i - from);
        if (!item) {
            v = eng_j_getattr(f->c, v, name);
            continue;
        }
        i++;
        int64_t index = 0;
        size_t k = 0;
        for (; k < name->n && k < 18 && name->p[k] >= '0' && name->p[k] <= '9'; k++)
            index = index * 10 + (name->p[k] - '0');
        v = eng_j_getitem(f->c, v, k == name->n ? eng_jv_int(index) : eng_jv_str(name));
    }
    return v;
}

static const struct eng_jstr *expand(struct formatter *f, const struct eng_jstr *s, int depth);

/* Formats one field, from after its '{'; returns the offset after it. */
static size_t put_field(struct formatter *f, struct eng_jbuf *b, const struct eng_jstr *s, size_t i,
                        int depth)
{
    struct eng_jctx *c = f->c;
    size_t from = i, name_end, nested = 1;
    bool bracket = false;
    while (i < s->n && (bracket || (s->p[i] != '}' && s->p[i] != ':' && s->p[i] != '!'))) {
        if (s->p[i] == '{') eng_j_raise(c, "unexpected '{' in field name");
        if (s->p[i] == '[') bracket = true;
        if (s->p[i] == ']') bracket = false;
        i++;
    }
    name_end = i;
    char conv = 0;
    if (i < s->n && s->p[i] == '!') {
        conv = i + 1 < s->n ? s->p[i + 1] : 0;
        i += 2;
        if (i < s->n && s->p[i] != '}' && s->p[i] != ':')
            eng_j_raise(c, "expected ':' after conversion specifier");
    }
    if (i >= s->n) eng_j_raise(c, "expected '}' before end of string");
    size_t spec = i + 1;
    if (s->p[i] == ':') {
        for (i++; i < s->n && nested; i++) {
            nested += s->p[i] == '{';
            nested -= s->p[i] == '}';
        }
        if (nested) eng_j_raise(c, "expected '}' before end of string");
        i--;
    } else {
        spec = i;
    }
    struct eng_jv v = field_value(f, s, from, name_end);
    if (conv == 's')
        v = eng_jv_str(eng_j_str(c, v));
    else if (conv == 'r' || conv == 'a')
        v = eng_jv_str(eng_j_repr(c, v));
    else if (conv)
        eng_j_raise(c, "Unknown conversion specifier");
    const struct eng_jstr *r =
        format_value(c, v, expand(f, eng_j_sub(c, s, spec, i - spec), depth + 1));
    eng_j_put_str(c, b, s->markup ? eng_j_escape(c, r) : r);
    return i + 1;
}

static const struct eng_jstr *expand(struct formatter *f, const struct eng_jstr *s, int depth)
{
    if (!memchr(s->p, '{', s->n) && !memchr(s->p, '}', s->n)) return s;
    if (depth > 1) eng_j_raise(f->c, "Max string recursion exceeded");
    struct eng_jbuf *b = eng_j_buf(f->c, s->n);
    for (size_t i = 0; i < s->n;) {
        size_t from = i;
        while (i < s->n && s->p[i] != '{' && s->p[i] != '}')
            i++;
        eng_j_put_sub(f->c, b, s, from, i - from);
        if (i >= s->n) break;
        bool twice = i + 1 < s->n && s->p[i + 1] == s->p[i];
        if (twice) {
            eng_j_put_sub(f->c, b, s, i, 1);
            i += 2;
        } else if (s->p[i] == '}') {
            eng_j_raise(f->c, "Single '}' encountered in format string");
        } else {
            eng_j_work(f->c, 64);
            i = put_field(f, b, s, i + 1, depth);
        }
    }
    return eng_j_done(f->c, b);
}

struct eng_jv eng_j_str_format(struct eng_jctx *c, const struct eng_jstr *fmt,
                               const struct eng_jargs *a)
{
    struct formatter f = {.c = c, .a = a};
    return eng_jv_str(eng_j_as_markup(c, expand(&f, fmt, 0), fmt->markup));
}
