/* Parser of chat templates, expressions: tokens to syntax tree by recursive descent. The recursion
 * is counted (eng_j_deeper); operators of one level make one node, so that long chains are not
 * deep. */
#include "engine/text/jinja/ast.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct eng_jnode *parse_or(struct eng_jparser *p);
static struct eng_jnode *parse_unary(struct eng_jparser *p, bool with_filter);

static struct eng_jnode *constant(struct eng_jparser *p, struct eng_jv v)
{
    struct eng_jnode *n = eng_j_node(p, N_CONST);
    n->value = v;
    return n;
}

/* ---- literals -------------------------------------------------------------------------------- */

static uint32_t hex_digits(struct eng_jparser *p, const char *s, size_t n, size_t want)
{
    uint32_t v = 0;
    if (n < want) eng_j_syntax(p, "a truncated escape in a string");
    for (size_t i = 0; i < want; i++) {
        char ch = s[i];
        uint32_t d = ch >= '0' && ch <= '9'                     ? (uint32_t)(ch - '0')
                     : (ch | 0x20) >= 'a' && (ch | 0x20) <= 'f' ? (uint32_t)((ch | 0x20) - 'a') + 10
                                                                : 16;
        if (d == 16) eng_j_syntax(p, "a malformed escape in a string");
        v = v << 4 | d;
    }
    return v;
}

/* One escape after the backslash; returns how many bytes it took. */
static size_t unescape(struct eng_jparser *p, const char *s, size_t n, struct eng_jbuf *b)
{
    static const char simple[] = "n\nt\tr\r\\\\''\"\"a\ab\bf\fv\v";
    for (size_t i = 0; i + 1 < sizeof(simple); i += 2) {
        if (s[0] != simple[i]) continue;
        eng_j_put(p->c, b, &simple[i + 1], 1, true);
        return 1;
    }
    if (s[0] == '\n') return 1;
    if (s[0] >= '0' && s[0] <= '7') {
        uint32_t v = 0;
        size_t k = 0;
        for (; k < 3 && k < n && s[k] >= '0' && s[k] <= '7'; k++)
            v = v * 8 + (uint32_t)(s[k] - '0');
        eng_j_put_cp(p->c, b, v, true);
        return k;
    }
    size_t want = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : s[0] == 'U' ? 8 : 0;
    if (want) {
        uint32_t cp = hex_digits(p, s + 1, n - 1, want);
        char utf8[4];
        if (!cn_utf8_encode(cp, utf8)) eng_j_syntax(p, "an escape that is no character");
        eng_j_put_cp(p->c, b, cp, true);
        return 1 + want;
    }
    if (s[0] == 'N') eng_j_syntax(p, "character names in strings are not supported");
    eng_j_put(p->c, b, "\\", 1, true);
    return 0;
}

static struct eng_jnode *parse_string(struct eng_jparser *p)
{
    struct eng_jbuf *b = eng_j_buf(p->c, p->tok->n);
    do {
        const char *s = p->tok->p;
        size_t n = p->tok->n;
        for (size_t i = 0; i < n;) {
            const char *q = memchr(s + i, '\\', n - i);
            size_t plain = q ? (size_t)(q - s) - i : n - i;
            eng_j_put(p->c, b, s + i, plain, true);
            i += plain;
            if (q && i + 1 < n) i += 1 + unescape(p, s + i + 1, n - i - 1, b);
        }
        p->tok++;
    } while (p->tok->type == T_STRING);
    return constant(p, eng_jv_str(eng_j_const_str(p, b->data, b->used)));
}

static struct eng_jnode *parse_number(struct eng_jparser *p)
{
    char *z = eng_j_alloc(p->c, p->tok->n + 1);
    size_t n = 0;
    for (size_t i = 0; i < p->tok->n; i++)
        if (p->tok->p[i] != '_') z[n++] = p->tok->p[i];
    struct eng_jv v;
    if (p->tok->type == T_FLOAT) {
        v = eng_jv_float(strtod(z, NULL));
    } else {
        char kind = z[0] == '0' ? (char)(z[1] | 0x20) : 0;
        int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
        errno = 0;
        v = eng_jv_int(strtoll(base == 10 ? z : z + 2, NULL, base));
        if (errno) eng_j_syntax(p, "a number is too large");
    }
    p->tok++;
    return constant(p, v);
}

static struct eng_jnode *parse_list(struct eng_jparser *p)
{
    struct eng_jnode *n = eng_j_node(p, N_LIST);
    p->tok++;
    while (p->tok->type != T_RBRACKET) {
        if (n->n_kids) eng_j_expect(p, T_COMMA);
        if (p->tok->type == T_RBRACKET) break;
        eng_j_kid(p, n, eng_j_parse_expr(p, true));
    }
    p->tok++;
    return n;
}

static struct eng_jnode *parse_dict(struct eng_jparser *p)
{
    struct eng_jnode *n = eng_j_node(p, N_DICT);
    p->tok++;
    while (p->tok->type != T_RBRACE) {
        if (n->n_kids) eng_j_expect(p, T_COMMA);
        if (p->tok->type == T_RBRACE) break;
        eng_j_kid(p, n, eng_j_parse_expr(p, true));
        eng_j_expect(p, T_COLON);
        eng_j_kid(p, n, eng_j_parse_expr(p, true));
    }
    p->tok++;
    return n;
}

static struct eng_jnode *parse_name(struct eng_jparser *p, bool with_ns)
{
    if (eng_j_skip_name(p, "true") || eng_j_skip_name(p, "True"))
        return constant(p, eng_jv_bool(true));
    if (eng_j_skip_name(p, "false") || eng_j_skip_name(p, "False"))
        return constant(p, eng_jv_bool(false));
    if (eng_j_skip_name(p, "none") || eng_j_skip_name(p, "None")) return constant(p, eng_jv_none());
    struct eng_jnode *n = eng_j_node(p, N_NAME);
    n->name = eng_j_name_id(p, p->tok->p, p->tok->n);
    if (p->macro) {
        p->macro->uses_caller |= n->name == p->id_caller;
        p->macro->uses_varargs |= n->name == p->id_varargs;
        p->macro->uses_kwargs |= n->name == p->id_kwargs;
    }
    p->tok++;
    if (with_ns && eng_j_skip(p, T_DOT)) {
        n->type = N_NSREF;
        if (p->tok->type != T_NAME) eng_j_syntax(p, "expected a name");
        n->value = eng_jv_str(eng_j_const_str(p, p->tok->p, p->tok->n));
        p->tok++;
    }
    return n;
}

static struct eng_jnode *parse_primary(struct eng_jparser *p, bool with_ns)
{
    struct eng_jnode *n;
    switch (p->tok->type) {
    case T_NAME:
        return parse_name(p, with_ns);
    case T_STRING:
        return parse_string(p);
    case T_INT:
    case T_FLOAT:
        return parse_number(p);
    case T_LPAREN:
        p->tok++;
        n = eng_j_parse_tuple(p, true, true, NULL);
        eng_j_expect(p, T_RPAREN);
        return n;
    case T_LBRACKET:
        return parse_list(p);
    case T_LBRACE:
        return parse_dict(p);
    default:
        eng_j_syntax(p, "expected an expression");
    }
}

/* ---- postfix: subscripts, calls, filters, tests ---------------------------------------------- */

static struct eng_jcallargs *parse_args(struct eng_jparser *p)
{
    struct eng_jcallargs *a = eng_j_alloc(p->c, sizeof(*a));
    bool comma = false;
    eng_j_expect(p, T_LPAREN);
    while (p->tok->type != T_RPAREN) {
        if (comma) {
            eng_j_expect(p, T_COMMA);
            if (p->tok->type == T_RPAREN) break;
        }
        comma = true;
        if (eng_j_skip(p, T_MUL)) {
            if (a->dyn || a->dyn_kw) eng_j_syntax(p, "invalid arguments of a call");
            a->dyn = eng_j_parse_expr(p, true);
        } else if (eng_j_skip(p, T_POW)) {
            if (a->dyn_kw) eng_j_syntax(p, "invalid arguments of a call");
            a->dyn_kw = eng_j_parse_expr(p, true);
        } else if (p->tok->type == T_NAME && p->tok[1].type == T_ASSIGN) {
            if (a->dyn_kw) eng_j_syntax(p, "invalid arguments of a call");
            const struct eng_jstr *name = eng_j_const_str(p, p->tok->p, p->tok->n);
            for (size_t i = 0; i < a->nkw; i++)
                if (eng_j_str_eq(a->kw_name[i], name))
                    eng_j_syntax(p, "an argument is given twice");
            p->tok += 2;
            a->kw = eng_j_room(p->c, a->kw, a->nkw, &a->cap_kw, sizeof(*a->kw));
            a->kw_name = eng_j_room(p->c, a->kw_name, a->nkw, &a->cap_kw_name, sizeof(*a->kw_name));
            a->kw_name[a->nkw] = name;
            a->kw[a->nkw++] = eng_j_parse_expr(p, true);
        } else {
            if (a->dyn || a->dyn_kw || a->nkw) eng_j_syntax(p, "invalid arguments of a call");
            a->pos = eng_j_room(p->c, a->pos, a->npos, &a->cap_pos, sizeof(*a->pos));
            a->pos[a->npos++] = eng_j_parse_expr(p, true);
        }
    }
    p->tok++;
    return a;
}

static bool slice_end(const struct eng_jparser *p)
{
    return p->tok->type == T_RBRACKET || p->tok->type == T_COMMA || p->tok->type == T_COLON;
}

static struct eng_jnode *parse_subscribed(struct eng_jparser *p)
{
    struct eng_jnode *first = NULL;
    if (p->tok->type != T_COLON) {
        first = eng_j_parse_expr(p, true);
        if (p->tok->type != T_COLON) return first;
    }
    struct eng_jnode *n = eng_j_node(p, N_SLICE);
    p->tok++;
    eng_j_kid(p, n, first);
    eng_j_kid(p, n, slice_end(p) ? NULL : eng_j_parse_expr(p, true));
    eng_j_kid(p, n, eng_j_skip(p, T_COLON) && !slice_end(p) ? eng_j_parse_expr(p, true) : NULL);
    return n;
}

static struct eng_jnode *parse_subscript(struct eng_jparser *p, struct eng_jnode *a)
{
    struct eng_jnode *n = eng_j_node(p, N_ITEM);
    n->a = a;
    if (eng_j_skip(p, T_DOT)) {
        if (p->tok->type == T_NAME) {
            n->type = N_ATTR;
            n->value = eng_jv_str(eng_j_const_str(p, p->tok->p, p->tok->n));
            p->tok++;
        } else if (p->tok->type == T_INT) {
            n->b = parse_number(p);
        } else {
            eng_j_syntax(p, "expected a name or number");
        }
        return n;
    }
    p->tok++;
    if (p->tok->type != T_RBRACKET) n->b = parse_subscribed(p);
    if (p->tok->type == T_COMMA || !n->b) {
        struct eng_jnode *t = eng_j_node(p, N_TUPLE);
        if (n->b) eng_j_kid(p, t, n->b);
        while (p->tok->type != T_RBRACKET) {
            eng_j_expect(p, T_COMMA);
            eng_j_kid(p, t, parse_subscribed(p));
        }
        for (size_t i = 0; i < t->n_kids; i++)
            if (t->kids[i]->type == N_SLICE) eng_j_syntax(p, "a slice within a tuple");
        n->b = t;
    }
    eng_j_expect(p, T_RBRACKET);
    return n;
}

static struct eng_jnode *parse_call(struct eng_jparser *p, struct eng_jnode *a)
{
    struct eng_jnode *n = eng_j_node(p, N_CALL);
    n->a = a;
    n->args = parse_args(p);
    return n;
}

/* How long one chain of postfixes may be: it is nested when it is evaluated. */
static void chain_limit(struct eng_jparser *p, uint32_t n)
{
    if (n > 4 * p->c->max_depth) eng_j_fail(p->c, CN_ELIMIT, "nested too deeply");
}

static struct eng_jnode *parse_postfix(struct eng_jparser *p, struct eng_jnode *n)
{
    for (uint32_t i = 0;; chain_limit(p, ++i)) {
        if (p->tok->type == T_DOT || p->tok->type == T_LBRACKET)
            n = parse_subscript(p, n);
        else if (p->tok->type == T_LPAREN)
            n = parse_call(p, n);
        else
            return n;
    }
}

/* Name of a filter or test, with dots; sets fn and value. */
static void parse_fn_name(struct eng_jparser *p, struct eng_jnode *n, bool test)
{
    if (p->tok->type != T_NAME)
        eng_j_syntax(p, "expected the name of a %s", test ? "test" : "filter");
    struct eng_jbuf *b = eng_j_buf(p->c, p->tok->n);
    eng_j_put(p->c, b, p->tok->p, p->tok->n, true);
    p->tok++;
    while (eng_j_skip(p, T_DOT)) {
        if (p->tok->type != T_NAME) eng_j_syntax(p, "expected a name");
        eng_j_put(p->c, b, ".", 1, true);
        eng_j_put(p->c, b, p->tok->p, p->tok->n, true);
        p->tok++;
    }
    n->value = eng_jv_str(eng_j_const_str(p, b->data, b->used));
    n->fn = (test ? eng_j_find_test : eng_j_find_filter)(b->data, b->used);
    if (n->fn) return;
    p->unknown = eng_j_room(p->c, p->unknown, p->n_unknown, &p->cap_unknown, sizeof(*p->unknown));
    p->unknown[p->n_unknown++] = n;
}

struct eng_jnode *eng_j_parse_filters(struct eng_jparser *p, struct eng_jnode *a, bool inline_first)
{
    for (uint32_t i = 0; inline_first || p->tok->type == T_PIPE; chain_limit(p, ++i)) {
        if (!inline_first) p->tok++;
        inline_first = false;
        struct eng_jnode *n = eng_j_node(p, N_FILTER);
        n->a = a;
        parse_fn_name(p, n, false);
        n->args = p->tok->type == T_LPAREN ? parse_args(p) : eng_j_alloc(p->c, sizeof(*n->args));
        a = n;
    }
    return a;
}

static struct eng_jnode *parse_test(struct eng_jparser *p, struct eng_jnode *a)
{
    struct eng_jnode *n = eng_j_node(p, N_TEST);
    p->tok++;
    bool negated = eng_j_skip_name(p, "not");
    n->a = a;
    parse_fn_name(p, n, true);
    n->args = NULL;
    switch (p->tok->type) {
    case T_LPAREN:
        n->args = parse_args(p);
        break;
    case T_NAME:
        if (eng_j_tok_is(p, "else") || eng_j_tok_is(p, "or") || eng_j_tok_is(p, "and")) break;
        if (eng_j_tok_is(p, "is")) eng_j_syntax(p, "tests cannot be chained with is");
        /* fall through */
    case T_STRING:
    case T_INT:
    case T_FLOAT:
    case T_LBRACKET:
    case T_LBRACE:
        n->args = eng_j_alloc(p->c, sizeof(*n->args));
        n->args->pos = eng_j_alloc(p->c, sizeof(*n->args->pos));
        eng_j_deeper(p);
        n->args->pos[n->args->npos++] = parse_postfix(p, parse_primary(p, false));
        p->c->depth--;
        break;
    default:
        break;
    }
    if (!n->args) n->args = eng_j_alloc(p->c, sizeof(*n->args));
    if (!negated) return n;
    struct eng_jnode *not = eng_j_node(p, N_NOT);
    not->a = n;
    return not;
}

static struct eng_jnode *parse_filter_expr(struct eng_jparser *p, struct eng_jnode *n)
{
    for (uint32_t i = 0;; chain_limit(p, ++i)) {
        if (p->tok->type == T_PIPE)
            n = eng_j_parse_filters(p, n, false);
        else if (eng_j_tok_is(p, "is"))
            n = parse_test(p, n);
        else if (p->tok->type == T_LPAREN)
            n = parse_call(p, n);
        else
            return n;
    }
}

/* ---- operators, from the strongest to the weakest -------------------------------------------- */

static struct eng_jnode *parse_unary(struct eng_jparser *p, bool with_filter)
{
    struct eng_jnode *n;
    if (p->tok->type == T_SUB || p->tok->type == T_ADD) {
        n = eng_j_node(p, p->tok->type == T_SUB ? N_NEG : N_POS);
        p->tok++;
        eng_j_deeper(p);
        n->a = parse_unary(p, false);
        p->c->depth--;
    } else {
        n = parse_primary(p, false);
    }
    n = parse_postfix(p, n);
    return with_filter ? parse_filter_expr(p, n) : n;
}

/* Levels of binary operators: 0 is + and -, 1 is ~, 2 is * / // %, 3 is **. */
static struct eng_jnode *parse_level(struct eng_jparser *p, int level)
{
    static const int8_t level_of[] = {[T_ADD] = 0, [T_SUB] = 0,      [T_TILDE] = 1, [T_MUL] = 2,
                                      [T_DIV] = 2, [T_FLOORDIV] = 2, [T_MOD] = 2,   [T_POW] = 3};
    static const uint8_t op_of[] = {
        [T_ADD] = J_ADD,           [T_SUB] = J_SUB, [T_MUL] = J_MUL, [T_DIV] = J_DIV,
        [T_FLOORDIV] = J_FLOORDIV, [T_MOD] = J_MOD, [T_POW] = J_POW, [T_TILDE] = 0};
    if (level > 3) return parse_unary(p, true);
    struct eng_jnode *first = parse_level(p, level + 1), *n = NULL;
    for (;;) {
        uint8_t t = p->tok->type;
        if (t < T_ADD || t > T_TILDE || level_of[t] != level) return n ? n : first;
        p->tok++;
        if (!n) {
            n = eng_j_node(p, level == 1 ? N_CONCAT : N_CHAIN);
            if (level == 1)
                eng_j_kid(p, n, first);
            else
                n->a = first;
        }
        struct eng_jnode *right = parse_level(p, level + 1);
        if (level == 1)
            eng_j_kid(p, n, right);
        else
            eng_j_op_kid(p, n, op_of[t], right);
    }
}

static struct eng_jnode *parse_compare(struct eng_jparser *p)
{
    struct eng_jnode *first = parse_level(p, 0), *n = NULL;
    for (;;) {
        static const uint8_t op_of[] = {[T_EQ - T_EQ] = J_EQ, [T_NE - T_EQ] = J_NE,
                                        [T_LT - T_EQ] = J_LT, [T_LE - T_EQ] = J_LE,
                                        [T_GT - T_EQ] = J_GT, [T_GE - T_EQ] = J_GE};
        uint8_t op;
        if (p->tok->type >= T_EQ && p->tok->type <= T_GE) {
            op = op_of[p->tok->type - T_EQ];
            p->tok++;
        } else if (eng_j_skip_name(p, "in")) {
            op = J_IN;
        } else if (eng_j_tok_is(p, "not") && p->tok[1].type == T_NAME && p->tok[1].n == 2 &&
                   memcmp(p->tok[1].p, "in", 2) == 0) {
            op = J_NOTIN;
            p->tok += 2;
        } else {
            return n ? n : first;
        }
        if (!n) {
            n = eng_j_node(p, N_COMPARE);
            n->a = first;
        }
        eng_j_op_kid(p, n, op, parse_level(p, 0));
    }
}

static struct eng_jnode *parse_not(struct eng_jparser *p)
{
    if (!eng_j_tok_is(p, "not")) return parse_compare(p);
    struct eng_jnode *n = eng_j_node(p, N_NOT);
    p->tok++;
    eng_j_deeper(p);
    n->a = parse_not(p);
    p->c->depth--;
    return n;
}

static struct eng_jnode *parse_and(struct eng_jparser *p)
{
    struct eng_jnode *first = parse_not(p), *n = NULL;
    while (eng_j_skip_name(p, "and")) {
        if (!n) {
            n = eng_j_node(p, N_AND);
            eng_j_kid(p, n, first);
        }
        eng_j_kid(p, n, parse_not(p));
    }
    return n ? n : first;
}

static struct eng_jnode *parse_or(struct eng_jparser *p)
{
    struct eng_jnode *first = parse_and(p), *n = NULL;
    while (eng_j_skip_name(p, "or")) {
        if (!n) {
            n = eng_j_node(p, N_OR);
            eng_j_kid(p, n, first);
        }
        eng_j_kid(p, n, parse_and(p));
    }
    return n ? n : first;
}

struct eng_jnode *eng_j_parse_expr(struct eng_jparser *p, bool with_cond)
{
    eng_j_deeper(p);
    size_t unknown = p->n_unknown;
    struct eng_jnode *n = parse_or(p);
    uint32_t i = 0;
    while (with_cond && eng_j_skip_name(p, "if")) {
        struct eng_jnode *cond = eng_j_node(p, N_COND);
        cond->a = n;
        cond->b = parse_or(p);
        if (eng_j_skip_name(p, "else")) cond->c = eng_j_parse_expr(p, true);
        /* What a condition guards may be unknown as long as it is not reached. */
        p->n_unknown = unknown;
        n = cond;
        chain_limit(p, ++i);
    }
    p->c->depth--;
    return n;
}

static bool tuple_end(const struct eng_jparser *p, const char *stop)
{
    return p->tok->type == T_VAR_END || p->tok->type == T_BLOCK_END || p->tok->type == T_RPAREN ||
           (stop && eng_j_tok_is(p, stop));
}

struct eng_jnode *eng_j_parse_tuple(struct eng_jparser *p, bool with_cond, bool in_parens,
                                    const char *stop)
{
    struct eng_jnode *t = NULL;
    if (tuple_end(p, stop)) {
        if (!in_parens) eng_j_syntax(p, "expected an expression");
        return eng_j_node(p, N_TUPLE);
    }
    for (;;) {
        struct eng_jnode *n = eng_j_parse_expr(p, with_cond);
        if (!t && p->tok->type != T_COMMA) return n;
        if (!t) t = eng_j_node(p, N_TUPLE);
        eng_j_kid(p, t, n);
        if (!eng_j_skip(p, T_COMMA) || tuple_end(p, stop)) return t;
    }
}

struct eng_jnode *eng_j_parse_target(struct eng_jparser *p, bool with_ns, const char *stop)
{
    struct eng_jnode *t = eng_j_node(p, N_TUPLE);
    bool tuple = false;
    eng_j_deeper(p);
    for (;;) {
        if (t->n_kids) eng_j_expect(p, T_COMMA);
        if (tuple_end(p, stop)) break;
        struct eng_jnode *kid;
        if (eng_j_skip(p, T_LPAREN)) {
            kid = eng_j_parse_target(p, false, NULL);
            eng_j_expect(p, T_RPAREN);
        } else {
            kid = p->tok->type == T_NAME ? parse_name(p, with_ns) : NULL;
            if (!kid || kid->type == N_CONST) eng_j_syntax(p, "cannot assign to this");
        }
        eng_j_kid(p, t, kid);
        if (p->tok->type != T_COMMA) break;
        tuple = true;
    }
    p->c->depth--;
    if (!tuple && t->n_kids) return t->kids[0];
    if (!tuple) eng_j_syntax(p, "expected a name to assign to");
    return t;
}
