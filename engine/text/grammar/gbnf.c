/* gbnf: reads grammars of llama.cpp. See gbnf.h. */
#include "engine/text/grammar/gbnf.h"

#include <stdlib.h>

struct reader {
    struct eng_bnf *b;
    struct eng_source *s;
    const struct eng_vocab *vocab;
};

static uint32_t read_alternatives(struct reader *r, bool nested);

/* ---- blanks and names ------------------------------------------------------------------------ */

/* Blanks and comments, line ends too if `lines`. */
static void skip(struct reader *r, bool lines)
{
    struct eng_source *s = r->s;
    for (char c; eng_source_alive(s) && (c = eng_source_peek(s, 0)) != 0; s->at++) {
        if (c == '#') {
            const char *end = memchr(s->text + s->at, '\n', s->n - s->at);
            s->at = end ? (size_t)(end - s->text) : s->n;
            if (!end || !lines) return;
        } else if (c != ' ' && c != '\t' && (!lines || (c != '\n' && c != '\r'))) {
            return;
        }
    }
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

/* Bytes of the name that comes next. */
static size_t name_len(const struct eng_source *s)
{
    size_t n = 0;
    while (is_name(eng_source_peek(s, n)))
        n++;
    return n;
}

/* After the blanks: a new rule, or the end of the text, begins here. */
static bool at_rule(struct reader *r)
{
    size_t n = name_len(r->s), at = n;
    if (eng_source_done(r->s)) return true;
    while (eng_source_peek(r->s, at) == ' ' || eng_source_peek(r->s, at) == '\t')
        at++;
    return n && eng_source_peek(r->s, at) == ':' && eng_source_peek(r->s, at + 1) == ':' &&
           eng_source_peek(r->s, at + 2) == '=';
}

/* Blanks after a part of a sequence. Line ends are passed within parentheses, and where something
 * other than a rule follows. */
static void skip_after(struct reader *r, bool nested)
{
    skip(r, nested);
    if (nested) return;
    size_t before = r->s->at;
    skip(r, true);
    if (at_rule(r)) r->s->at = before;
}

/* ---- classes --------------------------------------------------------------------------------- */

static void add(struct reader *r, struct eng_ranges *set, uint32_t from, uint32_t to)
{
    if (eng_ranges_add(set, from, to)) eng_source_stop(r->s, CN_ENOMEM, "out of memory");
}

static void finish(struct reader *r, struct eng_ranges *set, bool negated)
{
    eng_ranges_tidy(set);
    if (negated && eng_ranges_invert(set)) eng_source_stop(r->s, CN_ENOMEM, "out of memory");
}

/* \d \w \s and their complements, in ASCII, as XGrammar has them; false: none of them comes. */
static bool take_kind(struct reader *r, struct eng_ranges *set)
{
    struct eng_ranges kind = {0};
    char c = eng_source_is(r->s, "\\") ? eng_source_peek(r->s, 1) : 0;
    if (!c || !strchr("dDwWsS", c)) return false;
    r->s->at += 2;
    if ((c | 32) == 'd' || (c | 32) == 'w') add(r, &kind, '0', '9');
    if ((c | 32) == 'w') {
        add(r, &kind, 'a', 'z');
        add(r, &kind, 'A', 'Z');
        add(r, &kind, '_', '_');
    } else if ((c | 32) == 's') {
        add(r, &kind, '\t', '\r');
        add(r, &kind, ' ', ' ');
    }
    finish(r, &kind, c < 'a');
    for (size_t i = 0; i < kind.n && !r->s->rc; i++)
        add(r, set, kind.v[i].from, kind.v[i].to);
    eng_ranges_fini(&kind);
    return true;
}

/* One character or range. */
static void read_range(struct reader *r, struct eng_ranges *set)
{
    size_t from = r->s->at;
    uint32_t lo, hi;
    if (take_kind(r, set) || !eng_source_char(r->s, &lo)) return;
    hi = lo;
    if (eng_source_is(r->s, "-") && !eng_source_is(r->s, "-]")) {
        r->s->at++;
        if (!eng_source_char(r->s, &hi)) return;
        if (hi < lo) eng_source_fail(r->s, from, CN_EINVAL, "a range that runs backwards");
    }
    if (!r->s->rc) add(r, set, lo, hi);
}

static uint32_t read_class(struct reader *r)
{
    struct eng_ranges set = {0};
    size_t from = r->s->at++;
    uint32_t node = ENG_BNF_NONE;
    bool negated = eng_source_take(r->s, "^");
    while (eng_source_alive(r->s) && !eng_source_is(r->s, "]")) {
        if (eng_source_done(r->s))
            eng_source_fail(r->s, from, CN_EINVAL, "a class without its closing `]`");
        else
            read_range(r, &set);
    }
    if (!set.n && !negated) eng_source_fail(r->s, from, CN_EINVAL, "a class without any character");
    eng_source_take(r->s, "]");
    finish(r, &set, negated);
    if (!r->s->rc) node = eng_bnf_class(r->b, &set);
    eng_ranges_fini(&set);
    return node;
}

/* ---- parts of a sequence --------------------------------------------------------------------- */

static uint32_t read_literal(struct reader *r)
{
    struct cn_buf text;
    size_t from = r->s->at++;
    uint32_t node = ENG_BNF_NONE;
    cn_buf_init(&text, 0);
    if (eng_source_literal(r->s, from, &text))
        node = eng_bnf_text(r->b, text.data ? text.data : "", text.len);
    cn_buf_fini(&text);
    return node;
}

static uint32_t read_group(struct reader *r)
{
    size_t from = r->s->at++;
    if (eng_source_is(r->s, "="))
        eng_source_fail(r->s, from, CN_EUNSUPP, "look-ahead, `(= )`, is not supported");
    if (!eng_bnf_enter(r->b, from)) return ENG_BNF_NONE;
    skip(r, true);
    uint32_t node = read_alternatives(r, true);
    eng_bnf_leave(r->b);
    if (!eng_source_take(r->s, ")"))
        eng_source_fail(r->s, r->s->at, CN_EINVAL,
                        "expected `)`, `|` or a part of a sequence, within parentheses");
    return node;
}

static uint32_t read_ref(struct reader *r, size_t n)
{
    size_t at = r->s->at;
    uint32_t rule = eng_bnf_rule(r->b, r->s->text + at, n, at);
    r->s->at += n;
    if (eng_source_is(r->s, "("))
        eng_source_fail(r->s, at, CN_EUNSUPP, "functions, such as %.*s(), are not supported",
                        (int)CN_MIN(n, 100u), r->s->text + at);
    if (rule == ENG_BNF_NONE || r->s->rc) return ENG_BNF_NONE;
    return eng_bnf_ref(r->b, rule, at);
}

/* Whatever a sequence is made of, without what repeats it. *is: something is there. */
static uint32_t read_part(struct reader *r, bool *is)
{
    char c = eng_source_peek(r->s, 0);
    size_t n = name_len(r->s);
    *is = true;
    if (n) return read_ref(r, n);
    if (c == '"') return read_literal(r);
    if (c == '[') return read_class(r);
    if (c == '(') return read_group(r);
    if (c == '<' || eng_source_is(r->s, "!<")) {
        r->s->at += c == '!';
        return eng_token_node(r->b, r->vocab, false, c == '!');
    }
    *is = eng_source_take(r->s, ".");
    if (!*is) return ENG_BNF_NONE;
    return eng_bnf_rx(r->b, eng_spell_any(&r->b->ir->rx, ENG_SPELL_RAW), 4, 4);
}

/* *, +, ?, {..}; several may follow each other. */
static uint32_t read_repeats(struct reader *r, uint32_t node, bool nested)
{
    for (;;) {
        size_t from = r->s->at;
        uint32_t lo = 0, hi = ENG_RX_INF;
        if (eng_source_take(r->s, "+"))
            lo = 1;
        else if (eng_source_take(r->s, "?"))
            hi = 1;
        else if (eng_source_take(r->s, "{"))
            eng_source_bounds(r->s, false, &lo, &hi);
        else if (!eng_source_take(r->s, "*"))
            return node;
        if (r->s->rc || !eng_bnf_enter(r->b, from)) return ENG_BNF_NONE;
        node = eng_bnf_repeat(r->b, node, lo, hi, from);
        skip_after(r, nested);
    }
}

static uint32_t read_sequence(struct reader *r, bool nested)
{
    struct eng_bnf_kids parts = {0};
    unsigned depth = r->b->depth;
    while (eng_source_alive(r->s)) {
        bool is;
        if (!nested && at_rule(r)) break; /* the rule ended before */
        uint32_t node = read_part(r, &is);
        if (!is) break;
        skip_after(r, nested);
        eng_bnf_push(r->b, &parts, read_repeats(r, node, nested));
        r->b->depth = depth;
    }
    return eng_bnf_close(r->b, ENG_BNF_CAT, &parts);
}

static uint32_t read_alternatives(struct reader *r, bool nested)
{
    struct eng_bnf_kids all = {0};
    do {
        if (all.n) skip(r, true);
        eng_bnf_push(r->b, &all, read_sequence(r, nested));
    } while (!r->s->rc && eng_source_take(r->s, "|"));
    return eng_bnf_close(r->b, ENG_BNF_OR, &all);
}

/* ---- rules ----------------------------------------------------------------------------------- */

static void read_rule(struct reader *r)
{
    size_t at = r->s->at, n = name_len(r->s);
    if (!n) {
        eng_source_fail(r->s, at, CN_EINVAL,
                        "expected the name of a rule, or a part of a sequence%s",
                        eng_source_is(r->s, "'") ? ": texts stand in double quotes" : "");
        return;
    }
    uint32_t rule = eng_bnf_rule(r->b, r->s->text + at, n, at);
    r->s->at += n;
    skip(r, false);
    if (!eng_source_take(r->s, "::="))
        eng_source_fail(r->s, r->s->at, CN_EINVAL, "expected `::=` after the name of a rule");
    skip(r, true);
    if (r->s->rc) return;
    uint32_t body = read_alternatives(r, false);
    eng_bnf_define(r->b, rule, body, at);
    skip(r, true);
}

int eng_gbnf_read(struct eng_bnf *b, struct eng_ir *ir, const struct eng_vocab *vocab,
                  struct eng_sym *out)
{
    struct reader r = {.b = b, .s = &b->src, .vocab = vocab};
    if (eng_bnf_init(b, ir)) return b->src.rc;
    skip(&r, true);
    while (eng_source_alive(r.s) && !eng_source_done(r.s))
        read_rule(&r);
    uint32_t root = eng_strmap_get(&b->by_name, &b->names, "root", 4);
    if (!b->src.rc && (root == ENG_NO_ID || b->rules[root].body == ENG_BNF_NONE))
        eng_source_stop(&b->src, CN_EINVAL, "there is no rule root");
    if (!b->src.rc) eng_bnf_compile(b, root, out);
    return b->src.rc;
}
