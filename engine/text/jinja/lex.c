/* Lexer of chat templates: source text to tokens, with Jinja's whitespace control as the reference
 * renderer sets it (trim_blocks and lstrip_blocks on, one newline at the end dropped). Linear, no
 * recursion. */
#include "engine/text/jinja/ast.h"

#include <string.h>

struct lexer {
    struct eng_jctx *c;
    const char *s;
    size_t n, i;
    uint32_t line;
    bool line_starting; /* the last tag ended with a newline (or there was none) */
    struct eng_jtoks *out;
    char *stack; /* closing brackets that are still due */
    size_t n_stack, cap_stack;
};

static void emit(struct lexer *x, enum eng_jtok_type type, size_t from, size_t n)
{
    x->out->v = eng_j_room(x->c, x->out->v, x->out->n, &x->out->cap, sizeof(*x->out->v));
    x->out->v[x->out->n++] =
        (struct eng_jtok){.type = type, .line = x->line, .p = x->s + from, .n = n};
}

/* Moves to `to`, counting lines. */
static void advance(struct lexer *x, size_t to)
{
    for (; x->i < to; x->i++)
        x->line += x->s[x->i] == '\n';
}

/* Length of the white space at i (Unicode's, as Python's \s). */
static size_t space_len(const struct lexer *x, size_t i)
{
    uint32_t cp;
    size_t from = i, n;
    while (i < x->n && (n = cn_utf8_decode(x->s + i, x->n - i, &cp)) && eng_j_is_space(cp))
        i += n;
    return i - from;
}

static size_t rstrip(const struct lexer *x, size_t from, size_t to)
{
    while (to > from) {
        size_t i = to - 1;
        while (i > from && ((unsigned char)x->s[i] & 0xc0) == 0x80)
            i--;
        uint32_t cp;
        if (!cn_utf8_decode(x->s + i, to - i, &cp) || !eng_j_is_space(cp)) break;
        to = i;
    }
    return to;
}

static bool at(const struct lexer *x, size_t i, const char *z)
{
    size_t n = strlen(z);
    return x->n - i >= n && memcmp(x->s + i, z, n) == 0;
}

/* If a tag ends at i ("%}", "#}" or "}}", with its sign): the offset after it, where text
 * continues; else 0. */
static size_t tag_end(const struct lexer *x, size_t i, const char *end, bool block)
{
    if (i < x->n && x->s[i] == '-' && at(x, i + 1, end)) return i + 3 + space_len(x, i + 3);
    if (block && i < x->n && x->s[i] == '+' && at(x, i + 1, end)) return i + 3;
    if (i > x->n || !at(x, i, end)) return 0;
    i += 2;
    if (block && i < x->n && x->s[i] == '\n') i++;
    return i;
}

/* Data [from, to) before a tag with the given sign. */
static void emit_data(struct lexer *x, size_t from, size_t to, char sign, bool variable)
{
    if (sign == '-') {
        to = rstrip(x, from, to);
    } else if (sign != '+' && !variable) {
        size_t l = to;
        while (l > from && x->s[l - 1] != '\n')
            l--;
        if ((l > from || x->line_starting) && space_len(x, l) >= to - l) to = l;
    }
    if (to > from) emit(x, T_DATA, from, to - from);
}

static void ended(struct lexer *x, size_t to)
{
    advance(x, to);
    x->line_starting = to > 0 && x->s[to - 1] == '\n';
}

/* {% raw %} at i: where its body begins, or 0. */
static size_t raw_begin(const struct lexer *x, size_t i)
{
    i += 2;
    if (i < x->n && (x->s[i] == '-' || x->s[i] == '+')) i++;
    i += space_len(x, i);
    if (i >= x->n || !at(x, i, "raw")) return 0;
    i += 3;
    i += space_len(x, i);
    if (i < x->n && at(x, i, "-%}")) return i + 3 + space_len(x, i + 3);
    return i < x->n && at(x, i, "%}") ? i + 2 : 0;
}

static void lex_raw(struct lexer *x, size_t body)
{
    size_t i = body;
    ended(x, body);
    if (body >= x->n) return; /* the reference says nothing of a tag that ends the source */
    for (;; i++) {
        const char *q = i < x->n ? memchr(x->s + i, '{', x->n - i) : NULL;
        if (!q) {
            x->c->line = x->line;
            eng_j_raise(x->c, "missing end of raw block");
        }
        i = (size_t)(q - x->s);
        if (!at(x, i, "{%")) continue;
        size_t k = i + 2;
        char sign = k < x->n ? x->s[k] : 0;
        if (sign == '-' || sign == '+') k++;
        k += space_len(x, k);
        if (k >= x->n || !at(x, k, "endraw")) continue;
        k += 6;
        k += space_len(x, k);
        size_t end = tag_end(x, k, "%}", true);
        if (!end) continue;
        emit_data(x, body, i, sign, false);
        ended(x, end);
        return;
    }
}

static bool name_start(const struct lexer *x, size_t i)
{
    unsigned char ch = (unsigned char)x->s[i];
    if (ch < 0x80) return ch == '_' || (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z');
    uint32_t cp;
    return cn_utf8_decode(x->s + i, x->n - i, &cp) && eng_j_is_alpha(cp);
}

static bool digit(const struct lexer *x, size_t i)
{
    return i < x->n && x->s[i] >= '0' && x->s[i] <= '9';
}

static size_t digits(const struct lexer *x, size_t i)
{
    while (digit(x, i) || (i < x->n && x->s[i] == '_' && digit(x, i + 1)))
        i++;
    return i;
}

static size_t radix_digits(const struct lexer *x, size_t i, const char *set)
{
    size_t from = i;
    while (i < x->n &&
           (strchr(set, x->s[i]) ||
            (x->s[i] == '_' && i + 1 < x->n && strchr(set, x->s[i + 1]) && x->s[i + 1])) &&
           x->s[i])
        i++;
    return i > from ? i : 0;
}

static size_t lex_number(struct lexer *x, size_t i)
{
    size_t from = i, end = digits(x, i), e = end;
    if (i == 0 || x->s[i - 1] != '.') {
        bool fraction = end < x->n && x->s[end] == '.' && digit(x, end + 1);
        if (fraction) e = digits(x, end + 1);
        size_t k = e;
        if (k < x->n && (x->s[k] == 'e' || x->s[k] == 'E')) {
            k++;
            if (k < x->n && (x->s[k] == '+' || x->s[k] == '-')) k++;
            if (digit(x, k)) {
                fraction = true;
                e = digits(x, k);
            }
        }
        if (fraction) {
            emit(x, T_FLOAT, from, e - from);
            return e;
        }
    }
    size_t r = 0;
    if (x->s[i] == '0' && i + 1 < x->n) {
        char kind = x->s[i + 1] | 0x20;
        size_t k = i + 2 + (i + 2 < x->n && x->s[i + 2] == '_');
        if (kind == 'x') r = radix_digits(x, k, "0123456789abcdefABCDEF");
        if (kind == 'o') r = radix_digits(x, k, "01234567");
        if (kind == 'b') r = radix_digits(x, k, "01");
        if (!r) /* "007" is the number 00 and the number 7, which the parser refuses */
            for (end = i; end < x->n && x->s[end] == '0';)
                end++;
    }
    if (r) end = r;
    emit(x, T_INT, from, end - from);
    return end;
}

static size_t lex_string(struct lexer *x, size_t i)
{
    char q = x->s[i];
    for (size_t k = i + 1; k < x->n; k++) {
        if (x->s[k] == '\\') {
            k++;
        } else if (x->s[k] == q) {
            emit(x, T_STRING, i + 1, k - i - 1);
            return k + 1;
        }
    }
    x->c->line = x->line;
    eng_j_raise(x->c, "a string is not closed");
}

static size_t lex_operator(struct lexer *x, size_t i)
{
    static const struct {
        char z[3];
        uint8_t type;
    } ops[] = {
        {"//", T_FLOORDIV}, {"**", T_POW},   {"==", T_EQ},      {"!=", T_NE},      {">=", T_GE},
        {"<=", T_LE},       {"+", T_ADD},    {"-", T_SUB},      {"/", T_DIV},      {"*", T_MUL},
        {"%", T_MOD},       {"~", T_TILDE},  {"[", T_LBRACKET}, {"]", T_RBRACKET}, {"(", T_LPAREN},
        {")", T_RPAREN},    {"{", T_LBRACE}, {"}", T_RBRACE},   {">", T_GT},       {"<", T_LT},
        {"=", T_ASSIGN},    {".", T_DOT},    {":", T_COLON},    {"|", T_PIPE},     {",", T_COMMA},
        {";", T_SEMICOLON},
    };
    x->c->line = x->line;
    for (size_t k = 0; k < CN_ARRAY_LEN(ops); k++) {
        if (!at(x, i, ops[k].z)) continue;
        static const char open[] = "([{", close[] = ")]}";
        const char *o = ops[k].z[1] ? NULL : strchr(open, ops[k].z[0]);
        if (o) {
            x->stack = eng_j_room(x->c, x->stack, x->n_stack, &x->cap_stack, 1);
            x->stack[x->n_stack++] = close[o - open];
        } else if (!ops[k].z[1] && strchr(close, ops[k].z[0])) {
            if (!x->n_stack || x->stack[--x->n_stack] != ops[k].z[0])
                eng_j_raise(x->c, "unexpected '%s'", ops[k].z);
        }
        emit(x, ops[k].type, i, strlen(ops[k].z));
        return i + strlen(ops[k].z);
    }
    unsigned char ch = (unsigned char)x->s[i];
    if (ch > 32 && ch < 127) eng_j_raise(x->c, "unexpected character '%c'", ch);
    eng_j_raise(x->c, "unexpected byte 0x%02x", ch);
}

/* The inside of a tag, up to and with its end. */
static void lex_code(struct lexer *x, const char *end, bool block)
{
    uint32_t opened = x->line;
    x->n_stack = 0;
    while (x->i < x->n) {
        size_t to = x->n_stack ? 0 : tag_end(x, x->i, end, block);
        if (to) {
            emit(x, block ? T_BLOCK_END : T_VAR_END, x->i, 2);
            ended(x, to);
            return;
        }
        size_t i = x->i, sp = space_len(x, i);
        if (sp) {
            to = i + sp;
        } else if (digit(x, i)) {
            to = lex_number(x, i);
        } else if (name_start(x, i)) {
            uint32_t cp;
            size_t k;
            for (to = i;
                 to < x->n && (k = cn_utf8_decode(x->s + to, x->n - to, &cp)) && eng_j_is_word(cp);)
                to += k;
            emit(x, T_NAME, i, to - i);
        } else if (x->s[i] == '"' || x->s[i] == '\'') {
            to = lex_string(x, i);
        } else {
            to = lex_operator(x, i);
        }
        advance(x, to);
    }
    x->c->line = opened;
    eng_j_raise(x->c, "a tag is not closed");
}

static void lex_comment(struct lexer *x, size_t i)
{
    for (size_t k = i; k < x->n; k++) {
        size_t end = tag_end(x, k, "#}", true);
        if (!end) continue;
        ended(x, end);
        return;
    }
    if (i >= x->n) { /* as for raw */
        ended(x, x->n);
        return;
    }
    x->c->line = x->line;
    eng_j_raise(x->c, "missing end of comment");
}

/* Newlines made \n, and the one at the end dropped. */
static char *normalise(struct eng_jctx *c, const char *src, size_t n, size_t *out_n)
{
    char *s = eng_j_alloc(c, n + 1);
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (src[i] == '\r') {
            s[k++] = '\n';
            if (i + 1 < n && src[i + 1] == '\n') i++;
        } else {
            s[k++] = src[i];
        }
    }
    if (k && s[k - 1] == '\n') k--;
    s[k] = '\0';
    *out_n = k;
    return s;
}

void eng_j_lex(struct eng_jctx *c, const char *src, size_t n, struct eng_jtoks *out)
{
    if (cn_utf8_valid_len(src, n) != n) eng_j_raise(c, "the source is not valid UTF-8");
    struct lexer x = {.c = c, .line = 1, .line_starting = true, .out = out};
    x.s = normalise(c, src, n, &x.n);
    size_t data = 0; /* where the text before the next tag begins */
    for (size_t i = 0; i + 1 < x.n;) {
        const char *q = memchr(x.s + i, '{', x.n - i - 1);
        if (!q) break;
        i = (size_t)(q - x.s);
        char kind = x.s[i + 1];
        if (kind != '{' && kind != '%' && kind != '#') {
            i++;
            continue;
        }
        char sign = i + 2 < x.n ? x.s[i + 2] : 0;
        if (sign != '-' && sign != '+') sign = 0;
        size_t raw = kind == '%' ? raw_begin(&x, i) : 0;
        emit_data(&x, data, i, sign, kind == '{');
        advance(&x, i);
        if (raw) {
            lex_raw(&x, raw);
        } else if (kind == '#') {
            lex_comment(&x, i + 2 + (sign != 0));
        } else {
            emit(&x, kind == '%' ? T_BLOCK_BEGIN : T_VAR_BEGIN, i, 2);
            advance(&x, i + 2 + (sign != 0));
            lex_code(&x, kind == '%' ? "%}" : "}}", kind == '%');
        }
        i = data = x.i;
    }
    if (data < x.n) {
        emit(&x, T_DATA, data, x.n - data);
        advance(&x, x.n);
    }
    emit(&x, T_EOF, x.n, 0);
    c->line = 0;
}
