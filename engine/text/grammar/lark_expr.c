/* lark: reads the right side of a definition. See lark.h. */
#include "engine/text/grammar/lark.h"

#include <stdlib.h>

enum { HEIGHT = 50 }; /* of a regular expression, about */

/* ---- blanks and names ------------------------------------------------------------------------ */

void eng_lark_skip(struct eng_lark *r, bool lines)
{
    struct eng_source *s = r->s;
    for (char c; eng_source_alive(s) && (c = eng_source_peek(s, 0)) != 0; s->at++) {
        if (c == '#' || eng_source_is(s, "//")) {
            const char *end = memchr(s->text + s->at, '\n', s->n - s->at);
            s->at = end ? (size_t)(end - s->text) : s->n;
            if (!end || !lines) return;
        } else if (c != ' ' && c != '\t' && c != '\r' && (!lines || c != '\n')) {
            return;
        }
    }
}

static bool is_lower(char c)
{
    return c >= 'a' && c <= 'z';
}

static bool is_upper(char c)
{
    return c >= 'A' && c <= 'Z';
}

static bool is_name(char c)
{
    return is_lower(c) || is_upper(c) || (c >= '0' && c <= '9') || c == '_';
}

size_t eng_lark_name(struct eng_lark *r, bool *terminal)
{
    bool lower = false, upper = false;
    size_t n = 0;
    while (eng_source_peek(r->s, n) == '_')
        n++;
    if (!is_lower(eng_source_peek(r->s, n)) && !is_upper(eng_source_peek(r->s, n))) return 0;
    for (;; n++) {
        char c = eng_source_peek(r->s, n);
        if (c == '-' ? !is_name(eng_source_peek(r->s, n + 1)) : !is_name(c)) break;
        lower |= is_lower(c);
        upper |= is_upper(c);
    }
    if (lower && upper) {
        eng_source_fail(r->s, r->s->at, CN_EINVAL,
                        "a name in both cases: rules are lower case, terminals upper case");
        return 0;
    }
    *terminal = upper;
    return n;
}

/* ---- terminals ------------------------------------------------------------------------------- */

uint32_t eng_lark_pattern(struct eng_lark *r, const char *pattern, size_t n, size_t at)
{
    struct cn_error e = {0};
    uint32_t x = ENG_RX_NONE;
    if (r->s->rc) return ENG_BNF_NONE;
    int rc = eng_spell_pattern(&r->b->ir->rx, r->b->spelling, pattern, n, true, &x, &e);
    if (rc) eng_source_fail(r->s, at, rc, "%s", e.message);
    return eng_bnf_rx(r->b, x, (uint32_t)n + 1, HEIGHT);
}

/* A literal in which case does not matter, as a pattern. */
static uint32_t any_case(struct eng_lark *r, const struct cn_buf *text, size_t at)
{
    struct cn_buf p;
    uint32_t node = ENG_BNF_NONE;
    cn_buf_init(&p, 0);
    cn_buf_puts(&p, "(?i)");
    for (size_t i = 0; i < text->len; i++) {
        uint8_t c = (uint8_t)text->data[i];
        if (c < 0x20 || c == 0x7F)
            cn_buf_printf(&p, "\\x%02x", c);
        else if (c < 0x80 && c != ' ' && !is_name((char)c))
            cn_buf_printf(&p, "\\x%02x", c);
        else
            cn_buf_putc(&p, (char)c);
    }
    if (p.failed)
        eng_source_stop(r->s, CN_ENOMEM, "out of memory");
    else
        node = eng_lark_pattern(r, p.data, p.len, at);
    cn_buf_fini(&p);
    return node;
}

/* After "..": the text is the first bound. */
static uint32_t read_range(struct eng_lark *r, const struct cn_buf *first, size_t at)
{
    struct cn_buf last;
    struct eng_cp_range range = {0};
    struct eng_ranges set = {.v = &range, .n = 1};
    uint32_t node = ENG_BNF_NONE;
    cn_buf_init(&last, 0);
    eng_lark_skip(r, false);
    size_t from = r->s->at;
    if (!eng_source_take(r->s, "\""))
        eng_source_fail(r->s, from, CN_EINVAL, "expected a character in quotes after `..`");
    else if (eng_source_literal(r->s, from, &last)) {
        size_t a = first->len ? cn_utf8_decode(first->data, first->len, &range.from) : 0;
        size_t z = last.len ? cn_utf8_decode(last.data, last.len, &range.to) : 0;
        if (!a || !z || a != first->len || z != last.len || range.to < range.from)
            eng_source_fail(r->s, at, CN_EINVAL,
                            "a range is from one character to another that is not lower");
        node = eng_bnf_class(r->b, &set);
    }
    cn_buf_fini(&last);
    return node;
}

static uint32_t read_string(struct eng_lark *r)
{
    struct cn_buf text;
    size_t at = r->s->at++;
    uint32_t node = ENG_BNF_NONE;
    cn_buf_init(&text, 0);
    if (eng_source_literal(r->s, at, &text)) {
        bool flag = eng_source_is(r->s, "i") && !is_name(eng_source_peek(r->s, 1));
        r->s->at += flag;
        size_t after = r->s->at;
        eng_lark_skip(r, false);
        if (!flag && eng_source_take(r->s, "..")) {
            node = read_range(r, &text, at);
        } else {
            r->s->at = after;
            node = flag ? any_case(r, &text, at)
                        : eng_bnf_text(r->b, text.data ? text.data : "", text.len);
        }
    }
    cn_buf_fini(&text);
    return node;
}

/* Appends the flags after the closing slash as groups that begin a pattern. */
static void read_flags(struct eng_lark *r, struct cn_buf *p)
{
    for (char c; is_lower(c = eng_source_peek(r->s, 0)); r->s->at++) {
        if (c == 'i' || c == 's' || c == 'm')
            cn_buf_printf(p, "(?%c)", c);
        else if (c != 'u')
            eng_source_fail(r->s, r->s->at, CN_EUNSUPP,
                            "the flag %c of a regular expression is not supported (i, s, m, u are)",
                            c);
        if (r->s->rc) return;
    }
}

static uint32_t read_regex(struct eng_lark *r)
{
    struct eng_source *s = r->s;
    struct cn_buf p;
    size_t at = s->at++, from = s->at, end;
    uint32_t node = ENG_BNF_NONE;
    while (!eng_source_done(s) && !eng_source_is(s, "/") && !eng_source_is(s, "\n"))
        s->at += eng_source_is(s, "\\") && s->at + 1 < s->n ? 2 : 1;
    end = s->at;
    if (!eng_source_take(s, "/"))
        return eng_source_fail(s, at, CN_EINVAL, "a regular expression without its closing `/`"),
               ENG_BNF_NONE;
    cn_buf_init(&p, 0);
    read_flags(r, &p);
    cn_buf_append(&p, s->text + from, end - from);
    if (p.failed) eng_source_stop(s, CN_ENOMEM, "out of memory");
    if (!s->rc) node = eng_lark_pattern(r, p.data, p.len, at);
    cn_buf_fini(&p);
    return node;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static uint32_t read_json(struct eng_lark *r)
{
    struct eng_source *s = r->s;
    struct cn_error e = {0};
    json_error_t je;
    struct eng_sym sym;
    size_t at = s->at;
    s->at += strlen("%json");
    eng_lark_skip(r, true);
    if (r->terminal)
        return eng_source_fail(s, at, CN_EUNSUPP, "%%json within a terminal: only rules have it"),
               ENG_BNF_NONE;
    if (r->b->spelling != ENG_SPELL_RAW)
        return eng_source_fail(s, at, CN_EUNSUPP, "%%json within a string is not supported"),
               ENG_BNF_NONE;
    json_t *schema = json_loadb(s->text + s->at, s->n - s->at, JSON_DISABLE_EOF_CHECK, &je);
    size_t part = CN_MIN((size_t)CN_MAX(je.position, 0), s->n - s->at);
    if (!schema) {
        eng_source_fail(s, s->at + part, CN_EINVAL, "the schema of %%json is not valid JSON: %s",
                        je.text);
        return ENG_BNF_NONE;
    }
    s->at += part;
    int rc = eng_schema_compile(r->b->ir, schema, r->opts->schema, &sym, &e);
    json_decref(schema);
    if (rc)
        eng_source_fail(s, at, rc, "the schema of %%json: %s%s%s", e.param, e.param[0] ? ": " : "",
                        e.message);
    return eng_bnf_sym(r->b, sym);
}

/* ---- parts of a sequence --------------------------------------------------------------------- */

static uint32_t read_name(struct eng_lark *r, size_t n, bool terminal)
{
    struct eng_source *s = r->s;
    size_t at = s->at;
    const char *name = s->text + at;
    int shown = (int)CN_MIN(n, 100u);
    s->at += n;
    if (r->terminal && !terminal)
        eng_source_fail(s, at, CN_EINVAL, "the rule %.*s within a terminal", shown, name);
    char next = eng_source_is(s, "{") ? eng_source_peek(s, 1) : 0;
    if (next && next != ',' && (next < '0' || next > '9'))
        eng_source_fail(s, at, CN_EUNSUPP, "templates, such as %.*s{..}, are not supported", shown,
                        name);
    if (eng_source_is(s, "::"))
        eng_source_fail(s, at, CN_EUNSUPP,
                        "rules with a parameter, such as %.*s, are not supported", shown, name);
    uint32_t rule = eng_bnf_rule(r->b, name, n, at);
    if (rule == ENG_BNF_NONE || s->rc) return ENG_BNF_NONE;
    return eng_bnf_ref(r->b, rule, at);
}

static uint32_t read_group(struct eng_lark *r, const char *end)
{
    size_t at = r->s->at++;
    if (!eng_bnf_enter(r->b, at)) return ENG_BNF_NONE;
    uint32_t node = eng_lark_alternatives(r, true);
    eng_bnf_leave(r->b);
    if (!eng_source_take(r->s, end))
        eng_source_fail(r->s, r->s->at, CN_EINVAL, "expected `%s`, `|` or a part of a sequence",
                        end);
    return *end == ']' && !r->s->rc ? eng_bnf_repeat(r->b, node, 0, 1, at) : node;
}

/* Parts that other grammars of Lark may have. */
static void refuse(struct eng_lark *r)
{
    static const struct {
        const char *word, *what;
    } known[] = {{"%regex", "%regex"},
                 {"%lark", "%lark"},
                 {"%if", "%if"},
                 {"@", "references to other grammars, `@name`,"}};
    for (size_t i = 0; i < CN_ARRAY_LEN(known); i++)
        if (eng_source_is(r->s, known[i].word))
            eng_source_fail(r->s, r->s->at, CN_EUNSUPP, "%s: not supported", known[i].what);
}

static uint32_t read_atom(struct eng_lark *r, bool *is)
{
    bool terminal = false;
    char c = eng_source_peek(r->s, 0);
    size_t n = eng_lark_name(r, &terminal);
    *is = true;
    if (n) return read_name(r, n, terminal);
    if (c == '"') return read_string(r);
    if (c == '/') return read_regex(r);
    if (c == '(') return read_group(r, ")");
    if (c == '[') return read_group(r, "]");
    if (c == '<') return eng_token_node(r->b, r->opts->vocab, true, false);
    if (eng_source_is(r->s, "%json")) return read_json(r);
    refuse(r);
    *is = false;
    return ENG_BNF_NONE;
}

/* * + ? ~n ~n..m {m,n}: the bounds; false: none of them comes. */
static bool read_repeat(struct eng_lark *r, uint32_t *lo, uint32_t *hi)
{
    struct eng_source *s = r->s;
    size_t before = s->at;
    *lo = 0;
    *hi = ENG_RX_INF;
    if (eng_source_take(s, "*")) return true;
    if (eng_source_take(s, "+")) return *lo = 1, true;
    if (eng_source_take(s, "?")) return *hi = 1, true;
    if (eng_source_take(s, "{")) return eng_source_bounds(s, true, lo, hi);
    if (!eng_source_take(s, "~")) return false;
    eng_lark_skip(r, false);
    if (eng_source_peek(s, 0) < '0' || eng_source_peek(s, 0) > '9') { /* of the next part */
        s->at = before;
        return false;
    }
    if (!eng_source_number(s, lo)) return false;
    *hi = *lo;
    before = s->at;
    eng_lark_skip(r, false);
    if (!eng_source_take(s, "..")) {
        s->at = before;
        return true;
    }
    eng_lark_skip(r, false);
    if (eng_source_number(s, hi) && *hi < *lo)
        eng_source_fail(s, before, CN_EINVAL, "a repetition of at least %u and at most %u", *lo,
                        *hi);
    return !s->rc;
}

static uint32_t read_part(struct eng_lark *r, bool nested, bool *is)
{
    size_t at = r->s->at, at_repeat;
    bool negated = eng_source_take(r->s, "~");
    uint32_t lo, hi;
    if (negated && !r->terminal)
        eng_source_fail(r->s, at, CN_EUNSUPP, "`~` outside of a terminal is not supported");
    eng_lark_skip(r, nested && negated);
    uint32_t node = read_atom(r, is);
    if (negated && !*is) eng_source_fail(r->s, at, CN_EINVAL, "expected something after `~`");
    if (!*is || r->s->rc) return ENG_BNF_NONE;
    if (negated) node = eng_bnf_not(r->b, node);
    eng_lark_skip(r, nested);
    at_repeat = r->s->at;
    if (!read_repeat(r, &lo, &hi)) return r->s->rc ? ENG_BNF_NONE : node;
    return eng_bnf_repeat(r->b, node, lo, hi, at_repeat);
}

static uint32_t read_sequence(struct eng_lark *r, bool nested)
{
    struct eng_bnf_kids parts = {0};
    while (eng_source_alive(r->s)) {
        bool is;
        eng_lark_skip(r, nested);
        uint32_t node = read_part(r, nested, &is);
        if (!is) break;
        eng_bnf_push(r->b, &parts, node);
    }
    return eng_bnf_close(r->b, ENG_BNF_CAT, &parts);
}

/* Sequences with & between them, and an alias. */
static uint32_t read_alternative(struct eng_lark *r, bool nested)
{
    struct eng_bnf_kids all = {0};
    bool terminal;
    do {
        if (all.n && !r->terminal)
            eng_source_fail(r->s, r->s->at - 1, CN_EUNSUPP,
                            "`&` outside of a terminal is not supported");
        eng_bnf_push(r->b, &all, read_sequence(r, nested));
    } while (!r->s->rc && eng_source_take(r->s, "&"));
    if (!r->s->rc && eng_source_take(r->s, "->")) {
        eng_lark_skip(r, false);
        size_t n = eng_lark_name(r, &terminal);
        if (!n) eng_source_fail(r->s, r->s->at, CN_EINVAL, "expected a name after `->`");
        r->s->at += n;
        eng_lark_skip(r, nested);
    }
    return eng_bnf_close(r->b, ENG_BNF_AND, &all);
}

/* A line that begins with | continues the definition. */
static bool take_bar(struct eng_lark *r)
{
    size_t before = r->s->at;
    if (eng_source_take(r->s, "|")) return true;
    eng_lark_skip(r, true);
    if (eng_source_take(r->s, "|")) return true;
    r->s->at = before;
    return false;
}

uint32_t eng_lark_alternatives(struct eng_lark *r, bool nested)
{
    struct eng_bnf_kids all = {0};
    do
        eng_bnf_push(r->b, &all, read_alternative(r, nested));
    while (!r->s->rc && take_bar(r));
    return eng_bnf_close(r->b, ENG_BNF_OR, &all);
}
