/* Tests of chat templates: `x is name(args)`. */
#include "engine/text/jinja/value.h"

#include <utf8proc.h>

#define NO_ARGS(name, expr)                                                                        \
    static struct eng_jv name(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)      \
    {                                                                                              \
        eng_j_bind(c, a, "", NULL);                                                                \
        return eng_jv_bool(expr);                                                                  \
    }

#define RELATION(name, op)                                                                         \
    static struct eng_jv name(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)      \
    {                                                                                              \
        struct eng_jv o;                                                                           \
        eng_j_bind(c, a, ".other", &o);                                                            \
        return eng_jv_bool(eng_j_relation(c, op, v, o));                                           \
    }

static bool sequence(struct eng_jv v)
{
    return v.t == J_STR || v.t == J_LIST || v.t == J_TUPLE || v.t == J_DICT || v.t == J_RANGE ||
           v.t == J_UNDEF;
}

static bool callable(struct eng_jv v)
{
    return v.t == J_FUNC || v.t == J_MACRO || v.t == J_LOOP || v.t == J_JOINER || v.t == J_UNDEF;
}

/* All cased characters are of the wanted case, and there is one. */
static bool all_cased(struct eng_jctx *c, struct eng_jv v, bool upper)
{
    const struct eng_jstr *s = eng_j_str(c, v);
    bool any = false;
    for (size_t i = 0; i < s->n;) {
        utf8proc_int32_t cp = (utf8proc_int32_t)eng_j_cp_next(s, &i);
        bool is_upper = utf8proc_isupper(cp) || utf8proc_category(cp) == UTF8PROC_CATEGORY_LT;
        bool is_lower = utf8proc_islower(cp);
        if (upper ? is_lower : is_upper) return false;
        if (utf8proc_category(cp) == UTF8PROC_CATEGORY_LT) return false;
        any |= upper ? is_upper : is_lower;
    }
    return any;
}

static bool remainder_is(struct eng_jctx *c, struct eng_jv v, struct eng_jv by, int64_t want)
{
    return eng_j_equal(c, eng_j_arith(c, J_MOD, v, by), eng_jv_int(want));
}

static bool same(struct eng_jv a, struct eng_jv b)
{
    if (a.t != b.t) return false;
    switch (a.t) {
    case J_NONE:
        return true;
    case J_BOOL:
        return a.b == b.b;
    case J_INT:
        return a.i == b.i;
    case J_FLOAT:
        return a.d == b.d;
    case J_STR: /* Python's answer for equal strings depends on interning */
        return eng_j_str_eq(a.s, b.s);
    default:
        return a.l == b.l;
    }
}

/* Looking something up raises for what has no hash. */
static bool hashable(struct eng_jctx *c, struct eng_jv v)
{
    eng_j_dict_get(c, eng_j_dict(c, false), v);
    return true;
}

NO_ARGS(test_odd, remainder_is(c, v, eng_jv_int(2), 1))
NO_ARGS(test_even, remainder_is(c, v, eng_jv_int(2), 0))
NO_ARGS(test_defined, v.t != J_UNDEF)
NO_ARGS(test_undefined, v.t == J_UNDEF)
NO_ARGS(test_none, v.t == J_NONE)
NO_ARGS(test_boolean, v.t == J_BOOL)
NO_ARGS(test_false, v.t == J_BOOL && !v.b)
NO_ARGS(test_true, v.t == J_BOOL && v.b)
NO_ARGS(test_integer, v.t == J_INT)
NO_ARGS(test_float, v.t == J_FLOAT)
NO_ARGS(test_number, v.t == J_INT || v.t == J_FLOAT || v.t == J_BOOL)
NO_ARGS(test_string, v.t == J_STR)
NO_ARGS(test_mapping, v.t == J_DICT)
NO_ARGS(test_sequence, sequence(v))
NO_ARGS(test_iterable, eng_j_iterable(v))
NO_ARGS(test_callable, callable(v))
NO_ARGS(test_escaped, v.t == J_STR && v.s->markup)
NO_ARGS(test_lower, all_cased(c, v, false))
NO_ARGS(test_upper, all_cased(c, v, true))
NO_ARGS(test_filter, hashable(c, v) && v.t == J_STR && eng_j_find_filter(v.s->p, v.s->n))
NO_ARGS(test_test, hashable(c, v) && v.t == J_STR && eng_j_find_test(v.s->p, v.s->n))
RELATION(test_eq, J_EQ)
RELATION(test_ne, J_NE)
RELATION(test_lt, J_LT)
RELATION(test_le, J_LE)
RELATION(test_gt, J_GT)
RELATION(test_ge, J_GE)

static struct eng_jv test_in(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv seq;
    eng_j_bind(c, a, "seq", &seq);
    return eng_jv_bool(eng_j_contains(c, v, seq));
}

static struct eng_jv test_divisibleby(struct eng_jctx *c, struct eng_jv v,
                                      const struct eng_jargs *a)
{
    struct eng_jv num;
    eng_j_bind(c, a, "num", &num);
    return eng_jv_bool(remainder_is(c, v, num, 0));
}

static struct eng_jv test_sameas(struct eng_jctx *c, struct eng_jv v, const struct eng_jargs *a)
{
    struct eng_jv other;
    eng_j_bind(c, a, "other", &other);
    return eng_jv_bool(same(v, other));
}

static const struct eng_jnamed tests[] = {
    {"!=", test_ne},
    {"<", test_lt},
    {"<=", test_le},
    {"==", test_eq},
    {">", test_gt},
    {">=", test_ge},
    {"boolean", test_boolean},
    {"callable", test_callable},
    {"defined", test_defined},
    {"divisibleby", test_divisibleby},
    {"eq", test_eq},
    {"equalto", test_eq},
    {"escaped", test_escaped},
    {"even", test_even},
    {"false", test_false},
    {"filter", test_filter},
    {"float", test_float},
    {"ge", test_ge},
    {"greaterthan", test_gt},
    {"gt", test_gt},
    {"in", test_in},
    {"integer", test_integer},
    {"iterable", test_iterable},
    {"le", test_le},
    {"lessthan", test_lt},
    {"lower", test_lower},
    {"lt", test_lt},
    {"mapping", test_mapping},
    {"ne", test_ne},
    {"none", test_none},
    {"number", test_number},
    {"odd", test_odd},
    {"sameas", test_sameas},
    {"sequence", test_sequence},
    {"string", test_string},
    {"test", test_test},
    {"true", test_true},
    {"undefined", test_undefined},
    {"upper", test_upper},
};

eng_jfn *eng_j_find_test(const char *p, size_t n)
{
    const struct eng_jnamed *e = eng_j_find_named(tests, CN_ARRAY_LEN(tests), p, n);
    return e ? e->fn : NULL;
}
