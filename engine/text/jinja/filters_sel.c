/* Filters of chat templates that call other filters and tests (map, select, reject and theirs), and
 * the numeric ones. */
#include "engine/text/jinja/value.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct eng_jstr *fn_name(struct eng_jctx *c, struct eng_jv v)
{
    return eng_j_want_str(c, v, "the name of a filter or test");
}

static struct eng_jv map_attribute(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o[2], item;
    struct eng_jlist *out = eng_j_list(c, 0, eng_jv_client(v));
    eng_j_bind(c, a, "attribute default?", o);
    struct eng_jit it = eng_j_iter(c, v);
    while (eng_j_next(c, &it, &item))
        eng_j_push(c, out, eng_j_attr_path(c, item, o[0], o[1]));
    return eng_jv_gen(c, out, "generator");
}

static struct eng_jv f_map(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv item;
    struct eng_jlist *out = eng_j_list(c, 0, eng_jv_client(v));
    if (!eng_j_truth(c, v)) return eng_jv_gen(c, out, "generator");
    if (!eng_j_iterable(v)) return eng_jv_bad_gen(c, "the value is not iterable");
    if (!a->npos) {
        for (size_t i = 0; i < a->nkw; i++)
            if (eng_j_str_is(a->kw[i].name, "attribute")) return map_attribute(c, v, a);
        return eng_jv_bad_gen(c, "map requires a filter argument");
    }
    const struct eng_jstr *name = fn_name(c, a->pos[0]);
    eng_jfn *fn = eng_j_find_filter(name->p, name->n);
    if (!fn) eng_j_raise(c, "no filter named '%s'", eng_j_quote(c, name));
    struct eng_jargs rest = *a;
    rest.fname = eng_j_quote(c, name);
    rest.pos++;
    rest.npos--;
    struct eng_jit it = eng_j_iter(c, v);
    eng_j_enter(c);
    while (eng_j_next(c, &it, &item))
        eng_j_push(c, out, fn(c, item, &rest));
    eng_j_leave(c);
    return eng_jv_gen(c, out, "generator");
}

static struct eng_jv choose(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a,
                            bool keep, bool by_attr)
{
    struct eng_jv item, attr = {.t = J_ABSENT};
    struct eng_jlist *out = eng_j_list(c, 0, eng_jv_client(v));
    struct eng_jargs rest = *a;
    eng_jfn *fn = NULL;
    if (!eng_j_truth(c, v)) return eng_jv_gen(c, out, "generator");
    if (!eng_j_iterable(v)) return eng_jv_bad_gen(c, "the value is not iterable");
    if (by_attr) {
        if (!rest.npos) return eng_jv_bad_gen(c, "Missing parameter for attribute name");
        attr = *rest.pos++;
        rest.npos--;
    }
    if (rest.npos) {
        const struct eng_jstr *name = fn_name(c, rest.pos[0]);
        fn = eng_j_find_test(name->p, name->n);
        if (!fn) eng_j_raise(c, "no test named '%s'", eng_j_quote(c, name));
        rest.fname = eng_j_quote(c, name);
        rest.pos++;
        rest.npos--;
    }
    struct eng_jit it = eng_j_iter(c, v);
    while (eng_j_next(c, &it, &item)) {
        struct eng_jv x = eng_j_attr_path(c, item, attr, (struct eng_jv){.t = J_ABSENT});
        if (eng_j_truth(c, fn ? fn(c, x, &rest) : x) == keep) eng_j_push(c, out, item);
    }
    return eng_jv_gen(c, out, "generator");
}

static struct eng_jv f_select(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return choose(c, v, a, true, false);
}

static struct eng_jv f_reject(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return choose(c, v, a, false, false);
}

static struct eng_jv f_selectattr(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return choose(c, v, a, true, true);
}

static struct eng_jv f_rejectattr(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    return choose(c, v, a, false, true);
}

const struct eng_jnamed eng_j_filters_sel[] = {
    {"map", f_map},       {"reject", f_reject},         {"rejectattr", f_rejectattr},
    {"select", f_select}, {"selectattr", f_selectattr},
};
const size_t eng_j_n_filters_sel = CN_ARRAY_LEN(eng_j_filters_sel);

/* ---- numbers --------------------------------------------------------------------------------- */

/* Converts a string to an integer as Python's int(s, base) does; false if that would fail. */
static bool parse_int(struct eng_jctx *c, const struct eng_jstr *s, int64_t base, int64_t *out)
{
    s = eng_j_strip(c, s, NULL, true, true);
    const char *p = s->p, *end = p + s->n;
    bool minus = p < end && *p == '-', any = false, gap = true;
    if (p < end && (*p == '-' || *p == '+')) p++;
    if (end - p > 2 && p[0] == '0') {
        int64_t k = (p[1] | 0x20) == 'x'   ? 16
                    : (p[1] | 0x20) == 'o' ? 8
                    : (p[1] | 0x20) == 'b' ? 2
                                           : 0;
        if (k && (base == k || base == 0)) {
            base = k;
            p += 2;
            gap = false;
        }
    }
    if (base == 0) base = 10;
    int64_t r = 0;
    for (; p < end; p++) {
        if (*p == '_') {
            if (gap && any) return false;
            if (!any && gap) return false;
            gap = true;
            continue;
        }
        int64_t d = *p >= '0' && *p <= '9'                     ? *p - '0'
                    : (*p | 0x20) >= 'a' && (*p | 0x20) <= 'z' ? (*p | 0x20) - 'a' + 10
                                                               : 99;
        if (d >= base) return false;
        if (__builtin_mul_overflow(r, base, &r) || __builtin_sub_overflow(r, d, &r))
            eng_j_raise(c, "an integer does not fit in 64 bits");
        any = true;
        gap = false;
    }
    if (!any || gap) return false;
    if (!minus && r == INT64_MIN) eng_j_raise(c, "an integer does not fit in 64 bits");
    *out = minus ? r : -r;
    return true;
}

static bool parse_float(struct eng_jctx *c, const struct eng_jstr *s, double *out)
{
    s = eng_j_strip(c, s, NULL, true, true);
    if (!s->n || s->n > 400) return false;
    char *z = eng_j_alloc(c, s->n + 1), *end;
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        char ch = s->p[i];
        bool digits = i && i + 1 < s->n && s->p[i - 1] >= '0' && s->p[i - 1] <= '9' &&
                      s->p[i + 1] >= '0' && s->p[i + 1] <= '9';
        if (ch == '_' && digits) continue;
        if (ch == 'x' || ch == 'X' || ch == '(' || ch == '_') return false; /* strtod's own */
        z[n++] = ch;
    }
    *out = strtod(z, &end);
    return n && *end == '\0' && end == z + n;
}

static bool to_double(struct eng_jctx *c, struct eng_jv v, double *d)
{
    if (v.t == J_UNDEF) eng_j_undef_error(c, v);
    if (v.t == J_STR) return parse_float(c, v.s, d);
    if (v.t != J_FLOAT && !eng_jv_is_int(v)) return false;
    *d = v.t == J_FLOAT ? v.d : (double)eng_jv_i(v);
    return true;
}

static struct eng_jv double_to_int(struct eng_jctx *c, double d)
{
    if (!(d > -9.3e18 && d < 9.3e18) || d < -9223372036854775808.0 || d >= 9223372036854775808.0)
        eng_j_raise(c, "a number does not fit in 64 bits");
    return eng_jv_int((int64_t)d);
}

static struct eng_jv f_int(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o[2];
    int64_t i;
    double d;
    eng_j_bind(c, a, "default? base?", o);
    struct eng_jv def = o[0].t == J_ABSENT ? eng_jv_int(0) : o[0];
    if (eng_jv_is_int(v)) return eng_jv_taint(eng_jv_int(eng_jv_i(v)), v.client);
    int64_t base = eng_j_want_int(c, o[1], 10);
    bool client = eng_jv_client(v);
    if (v.t == J_STR && (base == 0 || (base >= 2 && base <= 36)) && parse_int(c, v.s, base, &i))
        return eng_jv_taint(eng_jv_int(i), client);
    if (!to_double(c, v, &d)) return def;
    if (isnan(d) || isinf(d)) {
        if (isinf(d) && v.t == J_FLOAT) eng_j_raise(c, "cannot convert float infinity to integer");
        return def;
    }
    return eng_jv_taint(double_to_int(c, d), client);
}

static struct eng_jv f_float(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o;
    double d;
    eng_j_bind(c, a, "default?", &o);
    if (to_double(c, v, &d)) return eng_jv_taint(eng_jv_float(d), eng_jv_client(v));
    return o.t == J_ABSENT ? eng_jv_float(0) : o;
}

static struct eng_jv f_abs(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    eng_j_bind(c, a, "", NULL);
    if (v.t == J_UNDEF) eng_j_undef_error(c, v);
    if (v.t == J_FLOAT) return eng_jv_taint(eng_jv_float(fabs(v.d)), v.client);
    if (!eng_jv_is_int(v)) eng_j_raise(c, "bad operand type for abs(): '%s'", eng_j_type_name(v));
    return eng_j_negate(c, v, eng_jv_i(v) < 0);
}

/* Python's round(): correctly rounded at the decimal digit, halves of exact binary values to
 * even. */
static double round_at(double d, int64_t digits)
{
    char z[400];
    if (digits > 22 || !isfinite(d)) return d;
    if (digits < -308) return copysign(0, d);
    if (digits >= 0) {
        snprintf(z, sizeof(z), "%.*f", (int)digits, d);
        return strtod(z, NULL);
    }
    double p = pow(10, (double)-digits), q = d / p, r = nearbyint(q);
    return r * p;
}

static struct eng_jv f_round(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv o[2];
    double d;
    eng_j_bind(c, a, "precision? method?", o);
    int64_t precision = eng_j_want_int(c, o[0], 0);
    const struct eng_jstr *m =
        o[1].t == J_ABSENT ? eng_j_lit(c, "common") : eng_j_want_str(c, o[1], "method");
    bool up = eng_j_str_is(m, "ceil"), down = eng_j_str_is(m, "floor");
    if (!up && !down && !eng_j_str_is(m, "common"))
        eng_j_raise(c, "method must be common, ceil or floor");
    if (v.t == J_UNDEF) eng_j_undef_error(c, v);
    if (v.t != J_FLOAT && !eng_jv_is_int(v))
        eng_j_raise(c, "type %s doesn't define __round__ method", eng_j_type_name(v));
    if (!up && !down && v.t != J_FLOAT && precision >= 0)
        return eng_jv_taint(eng_jv_int(eng_jv_i(v)), v.client);
    d = v.t == J_FLOAT ? v.d : (double)eng_jv_i(v);
    if (up || down) {
        double p = pow(10, (double)precision);
        return eng_jv_taint(eng_jv_float((up ? ceil(d * p) : floor(d * p)) / p), v.client);
    }
    d = round_at(d, precision);
    return eng_jv_taint(v.t == J_FLOAT ? eng_jv_float(d) : double_to_int(c, d), v.client);
}

static struct eng_jv f_filesizeformat(struct eng_jctx *c, struct eng_jv v,
                                      const struct eng_jargs *a)
{
    static const char *const names[2][8] = {
        {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"},
        {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"}};
    struct eng_jv o;
    double d;
    char z[400];
    eng_j_bind(c, a, "binary?", &o);
    bool binary = eng_j_truth(c, o);
    if (!to_double(c, v, &d)) eng_j_raise(c, "could not convert to float");
    double base = binary ? 1024 : 1000, unit = base;
    if (d == 1) {
        snprintf(z, sizeof(z), "1 Byte");
    } else if (d < base) {
        if (!(d > -9e18)) eng_j_raise(c, "a number does not fit in 64 bits");
        snprintf(z, sizeof(z), "%" PRId64 " Bytes", (int64_t)d);
    } else {
        size_t i = 0;
        for (unit *= base; i < 7 && d >= unit; i++)
            unit *= base;
        snprintf(z, sizeof(z), "%.1f %s", base * d / unit, names[binary][i]);
    }
    return eng_jv_str(eng_j_copy(c, z, strlen(z), !eng_jv_client(v)));
}

const struct eng_jnamed eng_j_filters_num[] = {
    {"abs", f_abs},     {"filesizeformat", f_filesizeformat}, {"float", f_float}, {"int", f_int},
    {"round", f_round},
};
const size_t eng_j_n_filters_num = CN_ARRAY_LEN(eng_j_filters_num);

eng_jfn *eng_j_find_filter(const char *p, size_t n)
{
    const struct eng_jnamed *e = eng_j_find_named(eng_j_filters_str, eng_j_n_filters_str, p, n);
    if (!e) e = eng_j_find_named(eng_j_filters_seq, eng_j_n_filters_seq, p, n);
    if (!e) e = eng_j_find_named(eng_j_filters_sel, eng_j_n_filters_sel, p, n);
    if (!e) e = eng_j_find_named(eng_j_filters_num, eng_j_n_filters_num, p, n);
    return e ? e->fn : NULL;
}
