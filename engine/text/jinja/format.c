/* Formatting with % in chat templates, and the padding and number forms that str.format shares. */
#include "engine/text/jinja/value.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void eng_j_put_padded(struct eng_jctx *c, struct eng_jbuf *b, const struct eng_jstr *s, size_t sign,
                      const struct eng_jfill *f)
{
    int64_t n = (int64_t)eng_j_cps(s), pad = f->width > n ? f->width - n : 0, left = 0;
    if ((uint64_t)pad > c->max_out)
        eng_j_fail(c, CN_ELIMIT, "a text is longer than %zu bytes", c->max_out);
    switch (f->align) {
    case '>':
    case '=':
        left = pad;
        break;
    case '^':
        left = pad / 2;
        break;
    case 'c':
        left = pad / 2 + (pad & f->width & 1);
        break;
    }
    if (f->align == '=') eng_j_put_sub(c, b, s, 0, sign);
    for (int64_t i = 0; i < left; i++)
        eng_j_put_cp(c, b, f->fill, f->trusted);
    size_t from = f->align == '=' ? sign : 0;
    eng_j_put_sub(c, b, s, from, s->n - from);
    for (int64_t i = left; i < pad; i++)
        eng_j_put_cp(c, b, f->fill, f->trusted);
}

const char *eng_j_float_digits(struct eng_jctx *c, double d, char type, int64_t prec, bool alt)
{
    char fmt[8], *z;
    bool upper = isupper((unsigned char)type) != 0;
    d = fabs(d);
    if (isnan(d)) return upper ? "NAN" : "nan";
    if (isinf(d)) return upper ? "INF" : "inf";
    if (prec > 4096) eng_j_raise(c, "the precision of a format is too big");
    if (type == '%') d *= 100;
    snprintf(fmt, sizeof(fmt), alt ? "%%#.*%c" : "%%.*%c", type == '%' ? 'f' : type);
    size_t room = (size_t)prec + 330;
    z = eng_j_alloc(c, room);
    int n = snprintf(z, room, fmt, (int)prec, d);
    if (type == '%' && n >= 0 && (size_t)n + 1 < room) memcpy(z + n, "%", 2);
    return z;
}

struct spec {
    bool left, plus, space, zero, alt;
    int64_t width, prec; /* prec -1: none */
    char type;
    bool trusted; /* the specification is the template's */
};

struct percent {
    struct eng_jctx *c;
    const struct eng_jstr *fmt;
    size_t i;
    struct eng_jbuf *b;
    struct eng_jv arg, *list;
    size_t n, used; /* of list */
    bool mapping;
};

static char peek(struct percent *p)
{
    if (p->i >= p->fmt->n) eng_j_raise(p->c, "incomplete format");
    return p->fmt->p[p->i];
}

static struct eng_jv next_arg(struct percent *p)
{
    if (p->used >= p->n) eng_j_raise(p->c, "not enough arguments for format string");
    return p->list[p->used++];
}

static int64_t number_or_star(struct percent *p)
{
    int64_t n = 0;
    if (peek(p) == '*') {
        p->i++;
        return eng_j_want_int(p->c, next_arg(p), 0);
    }
    for (; peek(p) >= '0' && peek(p) <= '9'; p->i++) {
        n = n * 10 + (peek(p) - '0');
        if (n > INT32_MAX) eng_j_raise(p->c, "width or precision too big");
    }
    return n;
}

/* (key): looks it up in the mapping, which then is the only argument. */
static void mapping_key(struct percent *p)
{
    size_t from = ++p->i, depth = 1;
    if (!p->mapping) eng_j_raise(p->c, "format requires a mapping");
    for (; depth; p->i++) {
        char ch = peek(p);
        depth += ch == '(';
        depth -= ch == ')';
    }
    struct eng_jv *v = NULL;
    const struct eng_jstr *key = eng_j_sub(p->c, p->fmt, from, p->i - 1 - from);
    if (p->arg.t == J_DICT) v = eng_j_dict_str(p->c, p->arg.m, key);
    if (!v) eng_j_raise(p->c, "the format's key '%s' is missing", eng_j_quote(p->c, key));
    p->list = v;
    p->n = 1;
    p->used = 0;
}

static struct spec parse_spec(struct percent *p)
{
    struct spec s = {.prec = -1};
    if (peek(p) == '(') mapping_key(p);
    for (;; p->i++) {
        char ch = peek(p);
        if (ch == '-')
            s.left = true;
        else if (ch == '+')
            s.plus = true;
        else if (ch == ' ')
            s.space = true;
        else if (ch == '#')
            s.alt = true;
        else if (ch == '0')
            s.zero = true;
        else
            break;
    }
    s.width = number_or_star(p);
    if (s.width < 0) {
        s.left = true;
        s.width = s.width == INT64_MIN ? 0 : -s.width;
    }
    if (peek(p) == '.') {
        p->i++;
        s.prec = number_or_star(p);
        if (s.prec < 0) s.prec = 0;
    }
    while (peek(p) == 'l' || peek(p) == 'h' || peek(p) == 'L')
        p->i++;
    s.type = peek(p);
    p->i++;
    return s;
}

static const struct eng_jstr *text_form(struct eng_jctx *c, const struct spec *s, struct eng_jv v,
                                        bool markup)
{
    const struct eng_jstr *r = s->type == 's' ? eng_j_str(c, v) : eng_j_repr(c, v);
    if (markup) /* what is put into a safe text is escaped, unless it is safe itself */
        r = v.t == J_STR && v.s->markup && s->type == 's' ? r : eng_j_escape(c, r);
    if (s->prec >= 0 && (size_t)s->prec < eng_j_cps(r))
        r = eng_j_sub(c, r, 0, eng_j_off(r, (size_t)s->prec));
    return r;
}

static int64_t int_arg(struct eng_jctx *c, const struct spec *s, struct eng_jv v)
{
    if (v.t == J_UNDEF) eng_j_undef_error(c, v);
    if (eng_jv_is_int(v)) return eng_jv_i(v);
    bool decimal = s->type == 'd' || s->type == 'i' || s->type == 'u';
    if (v.t != J_FLOAT || !decimal || !(v.d > -9.2e18 && v.d < 9.2e18))
        eng_j_raise(c, "%%%c format: a number is required, not %s", s->type, eng_j_type_name(v));
    return (int64_t)v.d;
}

/* Sign, prefix and digits; *lead counts the bytes that stay in front of a padding with zeros. */
static const struct eng_jstr *int_form(struct eng_jctx *c, const struct spec *s, int64_t i, bool t,
                                       size_t *lead)
{
    char digits[32], sign = i < 0 ? '-' : s->plus ? '+' : s->space ? ' ' : 0;
    uint64_t u = i < 0 ? -(uint64_t)i : (uint64_t)i;
    snprintf(digits, sizeof(digits),
             s->type == 'o'   ? "%" PRIo64
             : s->type == 'x' ? "%" PRIx64
             : s->type == 'X' ? "%" PRIX64
                              : "%" PRIu64,
             u);
    struct eng_jbuf *b = eng_j_buf(c, 40);
    if (sign) eng_j_put(c, b, &sign, 1, t);
    if (s->alt && (s->type == 'o' || s->type == 'x' || s->type == 'X')) {
        char prefix[2] = {'0', s->type};
        eng_j_put(c, b, prefix, 2, t);
    }
    *lead = b->used;
    size_t n = strlen(digits);
    if (s->prec > (int64_t)n) eng_j_put_fill(c, b, '0', (size_t)s->prec - n, t);
    eng_j_put(c, b, digits, n, t);
    return eng_j_done(c, b);
}

static const struct eng_jstr *float_form(struct eng_jctx *c, const struct spec *s, struct eng_jv v,
                                         bool t, size_t *lead)
{
    if (v.t == J_UNDEF) eng_j_undef_error(c, v);
    if (v.t != J_FLOAT && !eng_jv_is_int(v))
        eng_j_raise(c, "must be real number, not %s", eng_j_type_name(v));
    double d = v.t == J_FLOAT ? v.d : (double)eng_jv_i(v);
    char sign = signbit(d) && !isnan(d) ? '-' : s->plus ? '+' : s->space ? ' ' : 0;
    struct eng_jbuf *b = eng_j_buf(c, 40);
    if (sign) eng_j_put(c, b, &sign, 1, t);
    *lead = b->used;
    eng_j_putz(c, b, eng_j_float_digits(c, d, s->type, s->prec < 0 ? 6 : s->prec, s->alt), t);
    return eng_j_done(c, b);
}

static const struct eng_jstr *char_form(struct eng_jctx *c, struct eng_jv v)
{
    char utf8[4];
    if (v.t == J_STR && eng_j_cps(v.s) == 1) return v.s;
    if (!eng_jv_is_int(v)) eng_j_raise(c, "%%c requires int or char");
    int64_t i = eng_jv_i(v);
    size_t n = i >= 0 && i < 0x110000 ? cn_utf8_encode((uint32_t)i, utf8) : 0;
    if (!n) eng_j_raise(c, "%%c arg not in range(0x110000)");
    return eng_j_copy(c, utf8, n, !v.client);
}

static void put_one(struct percent *p, const struct spec *s)
{
    struct eng_jctx *c = p->c;
    if (s->type == '%') {
        eng_j_put(c, p->b, "%", 1, s->trusted);
        return;
    }
    struct eng_jv v = next_arg(p);
    const struct eng_jstr *r;
    size_t lead = 0;
    bool t = !eng_jv_client(v) && s->trusted, number = true;
    switch (s->type) {
    case 's':
    case 'r':
    case 'a':
        r = text_form(c, s, v, p->fmt->markup);
        number = false;
        break;
    case 'c':
        r = char_form(c, v);
        number = false;
        break;
    case 'd':
    case 'i':
    case 'u':
    case 'o':
    case 'x':
    case 'X':
        r = int_form(c, s, int_arg(c, s, v), t, &lead);
        break;
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        r = float_form(c, s, v, t, &lead);
        break;
    default:
        eng_j_raise(c, "unsupported format character");
    }
    bool zero = s->zero && number && !s->left;
    struct eng_jfill f = {.align = s->left ? '<'
                                   : zero  ? '='
                                           : '>',
                          .fill = zero ? '0' : ' ',
                          .width = s->width,
                          .trusted = t};
    eng_j_put_padded(c, p->b, r, lead, &f);
}

struct eng_jv eng_j_percent(struct eng_jctx *c, const struct eng_jstr *fmt, struct eng_jv arg)
{
    struct percent p = {
        .c = c, .fmt = fmt, .b = eng_j_buf(c, fmt->n), .arg = arg, .list = &arg, .n = 1};
    p.mapping = arg.t == J_DICT || arg.t == J_LIST || arg.t == J_RANGE || arg.t == J_UNDEF;
    if (arg.t == J_TUPLE) {
        p.list = arg.l->v;
        p.n = arg.l->n;
    }
    while (p.i < fmt->n) {
        const char *q = memchr(fmt->p + p.i, '%', fmt->n - p.i);
        size_t at = q ? (size_t)(q - fmt->p) : fmt->n, end;
        eng_j_put_sub(c, p.b, fmt, p.i, at - p.i);
        if (!q) break;
        p.i = at + 1;
        struct spec s = parse_spec(&p);
        s.trusted = eng_j_run(fmt, at, &end) && end >= p.i;
        eng_j_work(c, 16);
        put_one(&p, &s);
    }
    if (p.used < p.n && !p.mapping)
        eng_j_raise(c, "not all arguments converted during string formatting");
    return eng_jv_str(eng_j_as_markup(c, eng_j_done(c, p.b), fmt->markup));
}
