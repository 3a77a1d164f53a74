/* Printing of values in chat templates: Python's str() and repr(), and the shortest decimal form of
 * a double. Structure that is printed from a client's container is the client's. */
#include "engine/text/jinja/ast.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t eng_j_float_repr(double d, char out[40])
{
    if (isnan(d)) return (size_t)snprintf(out, 40, "nan");
    if (isinf(d)) return (size_t)snprintf(out, 40, "%s", d < 0 ? "-inf" : "inf");
    char e[40];
    for (int prec = 0; prec < 17; prec++) {
        snprintf(e, sizeof(e), "%.*e", prec, d);
        if (strtod(e, NULL) == d) break;
    }
    /* e is [-]d[.ddd]e[+-]xx: the digits and the exponent, laid out as Python does. */
    char digits[24], *q = strchr(e, 'e');
    int exp = (int)strtol(q + 1, NULL, 10), n = 0;
    for (char *p = e; p < q; p++)
        if (*p >= '0' && *p <= '9') digits[n++] = *p;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    char *o = out, *end = out + 40;
    if (e[0] == '-') *o++ = '-';
    if (exp < -4 || exp >= 16) {
        *o++ = digits[0];
        if (n > 1) o += snprintf(o, (size_t)(end - o), ".%.*s", n - 1, digits + 1);
        o += snprintf(o, (size_t)(end - o), "e%c%02d", exp < 0 ? '-' : '+', abs(exp));
    } else if (exp < 0) {
        o += snprintf(o, (size_t)(end - o), "0.%.*s%.*s", -exp - 1, "0000", n, digits);
    } else {
        for (int i = 0; i <= exp || i < n; i++) {
            if (i == exp + 1) *o++ = '.';
            *o++ = i < n ? digits[i] : '0';
        }
        if (n <= exp + 1) o += snprintf(o, (size_t)(end - o), ".0");
    }
    *o = '\0';
    return (size_t)(o - out);
}

static void put_quoted(struct eng_jctx *c, struct eng_jbuf *b, const struct eng_jstr *s)
{
    char q = memchr(s->p, '\'', s->n) && !memchr(s->p, '"', s->n) ? '"' : '\'';
    bool all = eng_j_trusted(s);
    size_t from = 0, end;
    eng_j_put(c, b, &q, 1, all);
    for (size_t i = 0; i < s->n;) {
        size_t at = i;
        uint32_t cp = eng_j_cp_next(s, &i);
        char esc[12];
        if (cp == '\\' || cp == (uint32_t)q)
            snprintf(esc, sizeof(esc), "\\%c", (char)cp);
        else if (cp == '\n' || cp == '\r' || cp == '\t')
            snprintf(esc, sizeof(esc), "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
        else if (eng_j_is_printable(cp))
            continue;
        else if (cp < 0x100)
            snprintf(esc, sizeof(esc), "\\x%02x", cp);
        else
            snprintf(esc, sizeof(esc), cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
        eng_j_put_sub(c, b, s, from, at - from);
        eng_j_putz(c, b, esc, eng_j_run(s, at, &end));
        from = i;
    }
    eng_j_put_sub(c, b, s, from, s->n - from);
    eng_j_put(c, b, &q, 1, all);
}

static void put_repr(struct eng_jctx *c, struct eng_jbuf *b, struct eng_jv v);

static void put_list(struct eng_jctx *c, struct eng_jbuf *b, const struct eng_jlist *l,
                     const char *open, const char *close, bool tuple)
{
    bool t = !l->client;
    eng_j_putz(c, b, open, t);
    for (size_t i = 0; i < l->n; i++) {
        if (i) eng_j_putz(c, b, ", ", t);
        put_repr(c, b, l->v[i]);
    }
    if (tuple && l->n == 1) eng_j_putz(c, b, ",", t);
    eng_j_putz(c, b, close, t);
}

static void put_dict(struct eng_jctx *c, struct eng_jbuf *b, const struct eng_jdict *m)
{
    bool t = !m->client;
    eng_j_putz(c, b, "{", t);
    for (size_t i = 0; i < m->n; i++) {
        if (i) eng_j_putz(c, b, ", ", t);
        put_repr(c, b, m->e[i].k);
        eng_j_putz(c, b, ": ", t);
        put_repr(c, b, m->e[i].v);
    }
    eng_j_putz(c, b, "}", t);
}

static void put_view(struct eng_jctx *c, struct eng_jbuf *b, struct eng_jv v)
{
    eng_j_putz(c, b, eng_j_type_name(v), true);
    put_list(c, b, eng_j_to_list(c, v), "([", "])", false);
}

static void put_object(struct eng_jctx *c, struct eng_jbuf *b, struct eng_jv v)
{
    char z[80];
    switch (v.t) {
    case J_RANGE:
        snprintf(z, sizeof(z),
                 v.r->step == 1 ? "range(%" PRId64 ", %" PRId64 ")"
                                : "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")",
                 v.r->start, v.r->stop, v.r->step);
        eng_j_putz(c, b, z, !v.client);
        break;
    case J_NS:
        eng_j_putz(c, b, "<Namespace ", true);
        put_dict(c, b, v.m);
        eng_j_putz(c, b, ">", true);
        break;
    case J_MACRO:
        eng_j_putz(c, b, "<Macro '", true);
        eng_j_put_str(c, b, v.mac->def->name);
        eng_j_putz(c, b, "'>", true);
        break;
    case J_LOOP:
        snprintf(z, sizeof(z), "<LoopContext %" PRId64 "/%zu>", v.loop->index0 + 1,
                 eng_j_loop_length(c, v.loop));
        eng_j_putz(c, b, z, true);
        break;
    default: /* Python prints an address here, which no template can rely on */
        eng_j_putz(c, b, "<", true);
        eng_j_putz(c, b,
                   v.t == J_FUNC  ? v.f->name
                   : v.t == J_GEN ? v.g->name
                                  : eng_j_type_name(v),
                   true);
        eng_j_putz(c, b, ">", true);
    }
}

static void put_repr(struct eng_jctx *c, struct eng_jbuf *b, struct eng_jv v)
{
    char z[40];
    eng_j_enter(c);
    eng_j_work(c, 16);
    switch (v.t) {
    case J_ABSENT:
    case J_UNDEF:
        eng_j_putz(c, b, "Undefined", true);
        break;
    case J_NONE:
        eng_j_putz(c, b, "None", !v.client);
        break;
    case J_BOOL:
        eng_j_putz(c, b, v.b ? "True" : "False", !v.client);
        break;
    case J_INT:
        eng_j_put(c, b, z, (size_t)snprintf(z, sizeof(z), "%" PRId64, v.i), !v.client);
        break;
    case J_FLOAT:
        eng_j_put(c, b, z, eng_j_float_repr(v.d, z), !v.client);
        break;
    case J_STR:
        if (v.s->markup) eng_j_putz(c, b, "Markup(", eng_j_trusted(v.s));
        put_quoted(c, b, v.s);
        if (v.s->markup) eng_j_putz(c, b, ")", eng_j_trusted(v.s));
        break;
    case J_LIST:
        put_list(c, b, v.l, "[", "]", false);
        break;
    case J_TUPLE:
        put_list(c, b, v.l, "(", ")", true);
        break;
    case J_DICT:
        put_dict(c, b, v.m);
        break;
    case J_VIEW:
        put_view(c, b, v);
        break;
    default:
        put_object(c, b, v);
    }
    eng_j_leave(c);
}

void eng_j_put_value(struct eng_jctx *c, struct eng_jbuf *b, struct eng_jv v)
{
    if (v.t == J_STR)
        eng_j_put_str(c, b, v.s);
    else if (v.t != J_UNDEF && v.t != J_ABSENT)
        put_repr(c, b, v);
}

const struct eng_jstr *eng_j_str(struct eng_jctx *c, struct eng_jv v)
{
    if (v.t == J_STR) return eng_j_as_markup(c, v.s, false);
    struct eng_jbuf *b = eng_j_buf(c, 0);
    eng_j_put_value(c, b, v);
    return eng_j_done(c, b);
}

const struct eng_jstr *eng_j_repr(struct eng_jctx *c, struct eng_jv v)
{
    struct eng_jbuf *b = eng_j_buf(c, 0);
    put_repr(c, b, v);
    return eng_j_done(c, b);
}
