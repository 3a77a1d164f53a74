/* Operators of chat templates with Python's meaning. Integers are 64 bits: what does not fit is an
 * error. What is computed from a client's number is the client's. */
#include "engine/text/jinja/value.h"

#include <math.h>
#include <string.h>

static const char *const symbols[] = {[J_ADD] = "+",          [J_SUB] = "-",       [J_MUL] = "*",
                                      [J_DIV] = "/",          [J_FLOORDIV] = "//", [J_MOD] = "%",
                                      [J_POW] = "** or pow()"};

static _Noreturn void unsupported(struct eng_jctx *c, enum eng_jop op, struct eng_jv a,
                                  struct eng_jv b)
{
    if (op == J_ADD && (a.t == J_STR || a.t == J_LIST || a.t == J_TUPLE))
        eng_j_raise(c, "can only concatenate %s (not \"%s\") to %s", eng_j_type_name(a),
                    eng_j_type_name(b), eng_j_type_name(a));
    eng_j_raise(c, "unsupported operand type(s) for %s: '%s' and '%s'", symbols[op],
                eng_j_type_name(a), eng_j_type_name(b));
}

static bool number(struct eng_jv v)
{
    return v.t == J_INT || v.t == J_BOOL || v.t == J_FLOAT;
}

static double as_double(struct eng_jv v)
{
    return v.t == J_FLOAT ? v.d : (double)eng_jv_i(v);
}

static _Noreturn void overflow(struct eng_jctx *c)
{
    eng_j_raise(c, "an integer does not fit in 64 bits");
}

static struct eng_jv int_pow(struct eng_jctx *c, int64_t x, int64_t y)
{
    if (y < 0) {
        if (!x) eng_j_raise(c, "0.0 cannot be raised to a negative power");
        return eng_jv_float(pow((double)x, (double)y));
    }
    int64_t r = 1;
    for (; y; y >>= 1) {
        if ((y & 1) && __builtin_mul_overflow(r, x, &r)) overflow(c);
        if (y > 1 && __builtin_mul_overflow(x, x, &x)) overflow(c);
    }
    return eng_jv_int(r);
}

static struct eng_jv int_arith(struct eng_jctx *c, enum eng_jop op, int64_t x, int64_t y)
{
    int64_t r;
    if ((op == J_DIV || op == J_FLOORDIV || op == J_MOD) && !y)
        eng_j_raise(c, op == J_DIV ? "division by zero" : "integer division or modulo by zero");
    switch (op) {
    case J_ADD:
        if (__builtin_add_overflow(x, y, &r)) overflow(c);
        return eng_jv_int(r);
    case J_SUB:
        if (__builtin_sub_overflow(x, y, &r)) overflow(c);
        return eng_jv_int(r);
    case J_MUL:
        if (__builtin_mul_overflow(x, y, &r)) overflow(c);
        return eng_jv_int(r);
    case J_DIV:
        return eng_jv_float((double)((long double)x / (long double)y));
    case J_FLOORDIV:
        if (x == INT64_MIN && y == -1) overflow(c);
        return eng_jv_int(x / y - (x % y != 0 && (x % y < 0) != (y < 0)));
    case J_MOD:
        if (y == -1) return eng_jv_int(0);
        r = x % y;
        return eng_jv_int(r && (r < 0) != (y < 0) ? r + y : r);
    default:
        return int_pow(c, x, y);
    }
}

static struct eng_jv float_arith(struct eng_jctx *c, enum eng_jop op, double x, double y)
{
    if ((op == J_DIV || op == J_FLOORDIV || op == J_MOD) && y == 0)
        eng_j_raise(c, op == J_DIV ? "float division by zero" : "float floor division by zero");
    double m;
    switch (op) {
    case J_ADD:
        return eng_jv_float(x + y);
    case J_SUB:
        return eng_jv_float(x - y);
    case J_MUL:
        return eng_jv_float(x * y);
    case J_DIV:
        return eng_jv_float(x / y);
    case J_FLOORDIV:
    case J_MOD:
        m = fmod(x, y);
        if (m != 0 && (y < 0) != (m < 0))
            m += y;
        else if (m == 0)
            m = copysign(0, y);
        if (op == J_MOD) return eng_jv_float(m);
        x = (x - m) / y;
        m = floor(x);
        return eng_jv_float(x - m > 0.5 ? m + 1 : m);
    default:
        if (x == 0 && y < 0) eng_j_raise(c, "0.0 cannot be raised to a negative power");
        m = pow(x, y);
        if (isnan(m) && !isnan(x) && !isnan(y)) eng_j_raise(c, "complex numbers are not supported");
        if (isinf(m) && !isinf(x) && !isinf(y)) eng_j_raise(c, "Numerical result out of range");
        return eng_jv_float(m);
    }
}

static struct eng_jv repeat(struct eng_jctx *c, struct eng_jv v, int64_t n)
{
    if (n < 0) n = 0;
    if (v.t == J_STR) {
        size_t total;
        if (__builtin_mul_overflow(v.s->n, (size_t)n, &total) || total > c->max_out)
            eng_j_fail(c, CN_ELIMIT, "a text is longer than %zu bytes", c->max_out);
        struct eng_jbuf *b = eng_j_buf(c, total);
        for (int64_t i = 0; i < n && v.s->n; i++)
            eng_j_put_str(c, b, v.s);
        return eng_jv_str(eng_j_as_markup(c, eng_j_done(c, b), v.s->markup));
    }
    size_t total;
    if (__builtin_mul_overflow(v.l->n, (size_t)n, &total)) total = SIZE_MAX / 2;
    eng_j_step(c, total);
    struct eng_jlist *l = eng_j_list(c, total, v.l->client);
    for (int64_t i = 0; i < n && v.l->n; i++)
        for (size_t k = 0; k < v.l->n; k++)
            eng_j_push(c, l, v.l->v[k]);
    return v.t == J_LIST ? eng_jv_list(l) : eng_jv_tuple(l);
}

static struct eng_jv joined(struct eng_jctx *c, struct eng_jv a, struct eng_jv b)
{
    eng_j_step(c, (a.l->n + b.l->n) / 16);
    struct eng_jlist *l = eng_j_list(c, a.l->n + b.l->n, a.l->client || b.l->client);
    if (a.l->n) memcpy(l->v, a.l->v, a.l->n * sizeof(*l->v));
    if (b.l->n) memcpy(l->v + a.l->n, b.l->v, b.l->n * sizeof(*l->v));
    l->n = a.l->n + b.l->n;
    return a.t == J_LIST ? eng_jv_list(l) : eng_jv_tuple(l);
}

static bool sequence(struct eng_jv v)
{
    return v.t == J_STR || v.t == J_LIST || v.t == J_TUPLE;
}

struct eng_jv eng_j_arith(struct eng_jctx *c, enum eng_jop op, struct eng_jv a, struct eng_jv b)
{
    if (a.t == J_UNDEF) eng_j_undef_error(c, a);
    if (op == J_MOD && a.t == J_STR) return eng_j_percent(c, a.s, b);
    if (b.t == J_UNDEF) eng_j_undef_error(c, b);
    if (number(a) && number(b)) {
        struct eng_jv r = a.t == J_FLOAT || b.t == J_FLOAT
                              ? float_arith(c, op, as_double(a), as_double(b))
                              : int_arith(c, op, eng_jv_i(a), eng_jv_i(b));
        return eng_jv_taint(r, a.client || b.client);
    }
    if (op == J_ADD && a.t == b.t) {
        if (a.t == J_STR) return eng_jv_str(eng_j_concat(c, a.s, b.s));
        if (a.t == J_LIST || a.t == J_TUPLE) return joined(c, a, b);
    }
    if (op == J_MUL && sequence(a) && eng_jv_is_int(b)) return repeat(c, a, eng_jv_i(b));
    if (op == J_MUL && sequence(b) && eng_jv_is_int(a)) return repeat(c, b, eng_jv_i(a));
    unsupported(c, op, a, b);
}

bool eng_j_relation(struct eng_jctx *c, enum eng_jop op, struct eng_jv a, struct eng_jv b)
{
    int d;
    switch (op) {
    case J_EQ:
        return eng_j_equal(c, a, b);
    case J_NE:
        return !eng_j_equal(c, a, b);
    case J_IN:
        return eng_j_contains(c, a, b);
    case J_NOTIN:
        return !eng_j_contains(c, a, b);
    case J_LT:
        return eng_j_compare(c, a, b, "<") == -1;
    case J_LE:
        d = eng_j_compare(c, a, b, "<=");
        return d == -1 || d == 0;
    case J_GT:
        return eng_j_compare(c, a, b, ">") == 1;
    default:
        d = eng_j_compare(c, a, b, ">=");
        return d == 1 || d == 0;
    }
}

struct eng_jv eng_j_negate(struct eng_jctx *c, struct eng_jv a, bool minus)
{
    if (a.t == J_UNDEF) eng_j_undef_error(c, a);
    if (a.t == J_FLOAT) return minus ? eng_jv_taint(eng_jv_float(-a.d), a.client) : a;
    if (!eng_jv_is_int(a))
        eng_j_raise(c, "bad operand type for unary %c: '%s'", minus ? '-' : '+',
                    eng_j_type_name(a));
    int64_t i = eng_jv_i(a);
    if (minus && i == INT64_MIN) overflow(c);
    return eng_jv_taint(eng_jv_int(minus ? -i : i), a.client);
}

/* ---- slices ---------------------------------------------------------------------------------- */

static int64_t bound(struct eng_jctx *c, struct eng_jv v, int64_t n, int64_t absent, int64_t low,
                     int64_t high)
{
    if (v.t == J_ABSENT || v.t == J_NONE) return absent;
    if (!eng_jv_is_int(v)) eng_j_raise(c, "slice indices must be integers or None");
    int64_t i = eng_jv_i(v);
    if (i < 0) i = i < -n ? low : i + n;
    return i < low ? low : i > high ? high : i;
}

static struct eng_jv slice_str(struct eng_jctx *c, const struct eng_jstr *s, int64_t start,
                               int64_t step, size_t count)
{
    if (!count) return eng_jv_str(eng_j_as_markup(c, eng_j_lit(c, ""), s->markup));
    if (step == 1) {
        size_t from = eng_j_off(s, (size_t)start), to = eng_j_off(s, (size_t)start + count);
        return eng_jv_str(eng_j_sub(c, s, from, to - from));
    }
    /* Walk once, noting where each character begins, when they are not all one byte long. */
    size_t *at = NULL, cps = eng_j_cps(s);
    eng_j_work(c, s->n);
    if (cps != s->n) {
        at = eng_j_alloc_n(c, cps + 1, sizeof(*at));
        for (size_t i = 0, k = 0; i < s->n; k++) {
            at[k] = i;
            eng_j_cp_next(s, &i);
            at[k + 1] = i;
        }
    }
    struct eng_jbuf *b = eng_j_buf(c, count);
    for (size_t k = 0; k < count; k++) {
        size_t i = (size_t)(start + (int64_t)k * step);
        if (at)
            eng_j_put_sub(c, b, s, at[i], at[i + 1] - at[i]);
        else
            eng_j_put_sub(c, b, s, i, 1);
    }
    return eng_jv_str(eng_j_as_markup(c, eng_j_done(c, b), s->markup));
}

struct eng_jv eng_j_slice(struct eng_jctx *c, struct eng_jv v, struct eng_jv start_v,
                          struct eng_jv stop_v, struct eng_jv step_v)
{
    size_t len;
    if (v.t != J_STR && v.t != J_LIST && v.t != J_TUPLE && v.t != J_RANGE)
        eng_j_raise(c, "'%s' object cannot be sliced", eng_j_type_name(v));
    eng_j_len(c, v, &len);
    int64_t n = (int64_t)len, step = 1;
    if (step_v.t != J_ABSENT && step_v.t != J_NONE) {
        if (!eng_jv_is_int(step_v)) eng_j_raise(c, "slice indices must be integers or None");
        step = eng_jv_i(step_v);
    }
    if (!step) eng_j_raise(c, "slice step cannot be zero");
    if (step < -INT64_MAX) step = -INT64_MAX;
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    int64_t start = bound(c, start_v, n, step > 0 ? 0 : n - 1, low, high);
    int64_t stop = bound(c, stop_v, n, step > 0 ? n : -1, low, high);
    size_t count = 0;
    if (step > 0 && start < stop) count = (size_t)((stop - start - 1) / step) + 1;
    if (step < 0 && start > stop) count = (size_t)((start - stop - 1) / -step) + 1;
    if (count <= 1 && step != 1) step = 1; /* no product below can overflow */
    if (v.t == J_STR) return slice_str(c, v.s, start, step, count);
    if (v.t == J_RANGE) {
        struct eng_jrange *r = eng_j_alloc(c, sizeof(*r));
        r->n = count;
        r->start = v.r->start + start * v.r->step;
        r->step = v.r->step * step;
        r->stop = r->start + (int64_t)count * r->step;
        struct eng_jv res = v;
        res.r = r;
        return res;
    }
    eng_j_step(c, count / 16);
    struct eng_jlist *l = eng_j_list(c, count, v.l->client);
    for (size_t k = 0; k < count; k++)
        l->v[k] = v.l->v[start + (int64_t)k * step];
    l->n = count;
    return v.t == J_LIST ? eng_jv_list(l) : eng_jv_tuple(l);
}
