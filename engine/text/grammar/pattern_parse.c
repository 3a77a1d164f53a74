/* pattern: the syntax of regular expressions. See pattern.h and eng_spell_pattern. */
#include "engine/text/grammar/pattern_impl.h"

#include <stdio.h>
#include <stdlib.h>

static uint32_t read_alternatives(struct eng_pat_reader *d);

void eng_pat_fail(struct eng_pat_reader *d, int code, size_t at, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    if (d->code) return;
    d->code = code;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    cn_fail(d->err, code, "%s, at offset %zu", text, at);
}

void eng_pat_check(struct eng_pat_reader *d, int rc)
{
    if (rc == CN_ENOMEM && !d->code) d->code = cn_fail(d->err, rc, "out of memory");
    if (rc && !d->code) eng_pat_fail(d, rc, d->at, "the classes of characters are too large");
}

uint32_t eng_pat_char(struct eng_pat_reader *d)
{
    uint32_t cp = 0;
    if (!eng_pat_more(d)) return 0;
    size_t len = cn_utf8_decode(d->s + d->at, d->n - d->at, &cp);
    if (!len) eng_pat_fail(d, CN_EINVAL, d->at, "not valid UTF-8");
    d->at += len ? len : 1;
    return cp;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static uint32_t add_node(struct eng_pat_reader *d, struct eng_pat_node node)
{
    struct eng_pattern *p = d->p;
    if (d->code) return 0;
    if (cn_grow(&p->nodes, &p->cap_nodes, p->n_nodes + 1, sizeof *p->nodes)) {
        eng_pat_check(d, CN_ENOMEM);
        return 0;
    }
    p->nodes[p->n_nodes] = node;
    return (uint32_t)p->n_nodes++;
}

static uint32_t assertion(struct eng_pat_reader *d, enum eng_pat_kind kind)
{
    return add_node(d, (struct eng_pat_node){.kind = (uint8_t)kind});
}

static uint32_t class_node(struct eng_pat_reader *d, uint32_t set)
{
    return add_node(d, (struct eng_pat_node){.kind = ENG_PAT_CLASS, .plain = true, .a = set});
}

static void push(struct eng_pat_reader *d, uint32_t node)
{
    if (cn_grow(&d->stack, &d->cap_stack, d->n_stack + 1, sizeof *d->stack))
        eng_pat_check(d, CN_ENOMEM);
    else
        d->stack[d->n_stack++] = node;
}

/* Makes a node of the kids pushed since `from`; one kid alone is the node. */
static uint32_t gather(struct eng_pat_reader *d, enum eng_pat_kind kind, size_t from)
{
    struct eng_pattern *p = d->p;
    size_t n = d->n_stack - from;
    struct eng_pat_node node = {
        .kind = (uint8_t)kind, .plain = true, .a = (uint32_t)p->n_kids, .n = (uint32_t)n};
    if (d->code) return 0;
    if (n == 1) return d->stack[--d->n_stack];
    if (!n) return add_node(d, (struct eng_pat_node){.kind = ENG_PAT_EMPTY, .plain = true});
    if (cn_grow(&p->kids, &p->cap_kids, p->n_kids + n, sizeof *p->kids)) {
        eng_pat_check(d, CN_ENOMEM);
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        p->kids[p->n_kids++] = d->stack[from + i];
        node.plain = node.plain && p->nodes[d->stack[from + i]].plain;
    }
    d->n_stack = from;
    return add_node(d, node);
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* Reads <name> or P<name> after (?. */
static void read_name(struct eng_pat_reader *d, size_t from)
{
    size_t len = 0;
    for (d->at += eng_pat_peek(d, 0) == 'P' ? 2 : 1; eng_pat_more(d); len++) {
        char c = eng_pat_peek(d, 0);
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' ||
                      (uint8_t)c >= 0x80;
        if (!letter && !(len && c >= '0' && c <= '9')) break;
        d->at++;
    }
    if (!len || eng_pat_peek(d, 0) != '>')
        eng_pat_fail(d, CN_EINVAL, from, "a group's name that is not valid");
    d->at++;
}

/* Passes flags, up to : or ). */
static void read_flags(struct eng_pat_reader *d, size_t from)
{
    bool on = true;
    for (size_t n = 0; eng_pat_more(d); n++, d->at++) {
        char c = eng_pat_peek(d, 0);
        if ((c == ':' || c == ')') && n) return;
        if (c == 'i')
            d->fold = on;
        else if (c == 'm')
            d->lines = on;
        else if (c == 's')
            d->dot_all = on;
        else if (c == '-' && on)
            on = false;
        else if (c == 'x')
            eng_pat_fail(d, CN_EUNSUPP, from, "the flag x is not supported");
        else if (c != 'u' || !on)
            eng_pat_fail(d, CN_EINVAL, from, "an unknown kind of group");
    }
    eng_pat_fail(d, CN_EINVAL, from, "a group that is not closed");
}

/* Reads the kind of a group after (?. *ahead is set for look-ahead. *flags: it is no group, and its
 * flags count from here on. */
static void read_kind(struct eng_pat_reader *d, size_t from, enum eng_pat_kind *ahead, bool *flags)
{
    char a = eng_pat_peek(d, 0), b = eng_pat_peek(d, 1);
    if (a == ':') {
        d->at++;
    } else if (a == '=' || a == '!') {
        d->at++;
        *ahead = a == '=' ? ENG_PAT_AHEAD : ENG_PAT_NOT_AHEAD;
    } else if (a == '<' && (b == '=' || b == '!')) {
        eng_pat_fail(d, CN_EUNSUPP, from, "look-behind is not supported");
    } else if (a == '<' || (a == 'P' && b == '<')) {
        read_name(d, from);
    } else if (a == '>') {
        eng_pat_fail(d, CN_EUNSUPP, from, "atomic groups are not supported");
    } else if (a == '(') {
        eng_pat_fail(d, CN_EUNSUPP, from, "conditional groups are not supported");
    } else if (a == 'P' && b == '=') {
        eng_pat_fail(d, CN_EUNSUPP, from, "back references are not supported");
    } else {
        read_flags(d, from);
        *flags = eng_pat_peek(d, 0) == ')';
        if (!*flags) d->at++;
    }
}

/* Reads a group after its parenthesis. Flags before a colon count within the group. *counts becomes
 * false where no quantifier may follow. */
static uint32_t read_group(struct eng_pat_reader *d, bool *counts)
{
    size_t from = d->at - 1;
    bool fold = d->fold, lines = d->lines, dot_all = d->dot_all, flags = false;
    enum eng_pat_kind ahead = ENG_PAT_EMPTY;
    if (eng_pat_peek(d, 0) == '?') {
        d->at++;
        read_kind(d, from, &ahead, &flags);
    }
    if (flags) { /* (?i): up to the end of the group around it */
        d->at++;
        *counts = false;
        return add_node(d, (struct eng_pat_node){.kind = ENG_PAT_EMPTY, .plain = true});
    }
    if (++d->depth > ENG_PAT_MOST_DEPTH)
        eng_pat_fail(d, CN_ELIMIT, from, "groups are nested more than %d deep", ENG_PAT_MOST_DEPTH);
    uint32_t kid = read_alternatives(d);
    d->depth--;
    if (!d->code && eng_pat_peek(d, 0) != ')')
        eng_pat_fail(d, CN_EINVAL, from, "a group that is not closed");
    d->at++;
    d->fold = fold;
    d->lines = lines;
    d->dot_all = dot_all;
    if (ahead == ENG_PAT_EMPTY) return kid;
    *counts = false;
    return add_node(d, (struct eng_pat_node){.kind = (uint8_t)ahead, .a = kid});
}

/* ---- atoms ----------------------------------------------------------------------------------- */

static uint32_t read_word_edge(struct eng_pat_reader *d, bool edge, size_t from)
{
    struct eng_pattern *p = d->p;
    if (p->words && p->folded_words != d->fold)
        eng_pat_fail(d, CN_EUNSUPP, from, "\\b both with and without the flag i is not supported");
    p->words = true;
    p->folded_words = d->fold;
    return assertion(d, edge ? ENG_PAT_WORD : ENG_PAT_NO_WORD);
}

/* Reads an escape after its backslash. */
static uint32_t read_escape(struct eng_pat_reader *d, bool *counts)
{
    size_t from = d->at - 1;
    char c = eng_pat_peek(d, 0);
    uint32_t cp;
    d->class.n = 0;
    if (c == 'b' || c == 'B' || c == 'A' || c == 'z') {
        d->at++;
        *counts = false;
        if (c == 'b' || c == 'B') return read_word_edge(d, c == 'b', from);
        return assertion(d, c == 'A' ? ENG_PAT_TEXT_START : ENG_PAT_TEXT_END);
    }
    if (eng_pat_class_escape(d)) return class_node(d, eng_pat_class_set(d, false));
    if (eng_pat_escape(d, false, &cp)) {
        eng_pat_check(d, eng_ranges_add(&d->class, cp, cp));
        return class_node(d, eng_pat_class_set(d, false));
    }
    if ((c >= '1' && c <= '9') || c == 'k')
        eng_pat_fail(d, CN_EUNSUPP, from, "back references are not supported");
    eng_pat_fail(d, CN_EINVAL, from, "unknown escape \\%c", c);
    return 0;
}

static uint32_t read_dot(struct eng_pat_reader *d)
{
    size_t n;
    const struct eng_cp_range *ends = eng_pattern_known('n', false, &n);
    d->class.n = 0;
    if (!d->dot_all) eng_pat_check(d, eng_ranges_add_all(&d->class, ends, n));
    eng_pat_check(d, eng_ranges_invert(&d->class));
    return class_node(d, eng_pat_class_set(d, false));
}

/* Whether {m}, {m,} or {m,n} comes next; passed, with its bounds, if so. Otherwise the brace is
 * itself. */
static bool read_bounds(struct eng_pat_reader *d, uint32_t *lo, uint32_t *hi)
{
    uint64_t v[2] = {0, 0};
    size_t i = 1, digits[2] = {0, 0};
    bool comma = false;
    for (;; i++) {
        char c = eng_pat_peek(d, i);
        if (c >= '0' && c <= '9') {
            v[comma] = CN_MIN(v[comma] * 10 + (uint64_t)(c - '0'), (uint64_t)UINT32_MAX);
            digits[comma]++;
        } else if (c == ',' && !comma) {
            comma = true;
        } else if (c == '}' && digits[0]) {
            break;
        } else {
            return false;
        }
    }
    if (v[0] > ENG_PAT_MOST_REPEAT || v[1] > ENG_PAT_MOST_REPEAT)
        eng_pat_fail(d, CN_ELIMIT, d->at, "a repetition of more than %d", ENG_PAT_MOST_REPEAT);
    else if (digits[1] && v[1] < v[0])
        eng_pat_fail(d, CN_EINVAL, d->at, "a repetition whose bounds are in the wrong order");
    *lo = (uint32_t)v[0];
    *hi = !comma ? *lo : digits[1] ? (uint32_t)v[1] : ENG_RX_INF;
    d->at += i + 1;
    return true;
}

/* Whether a quantifier comes next, which is passed. */
static bool read_quantifier(struct eng_pat_reader *d, uint32_t *lo, uint32_t *hi)
{
    char c = eng_pat_peek(d, 0);
    if (c == '{') return read_bounds(d, lo, hi);
    if (!c || !strchr("*+?", c)) return false;
    *lo = c == '+';
    *hi = c == '?' ? 1 : ENG_RX_INF;
    d->at++;
    return true;
}

static uint32_t read_atom(struct eng_pat_reader *d, bool *counts)
{
    size_t from = d->at;
    uint32_t lo, hi;
    char c = eng_pat_peek(d, 0);
    if (c == '^' || c == '$') {
        d->at++;
        *counts = false;
        d->p->lines |= d->lines;
        if (c == '^') return assertion(d, d->lines ? ENG_PAT_LINE_START : ENG_PAT_TEXT_START);
        return assertion(d, d->lines ? ENG_PAT_LINE_END : ENG_PAT_TEXT_END);
    }
    if (read_quantifier(d, &lo, &hi))
        eng_pat_fail(d, CN_EINVAL, from, "a quantifier with nothing to repeat");
    if (c == '(' || c == '\\' || c == '.' || c == '[') d->at++;
    if (c == '(') return read_group(d, counts);
    if (c == '\\') return read_escape(d, counts);
    if (c == '.') return read_dot(d);
    d->class.n = 0;
    if (c == '[') {
        bool inverted = eng_pat_peek(d, 0) == '^';
        d->at += inverted;
        eng_pat_class(d);
        return class_node(d, eng_pat_class_set(d, inverted));
    }
    uint32_t cp = eng_pat_char(d);
    eng_pat_check(d, eng_ranges_add(&d->class, cp, cp));
    return class_node(d, eng_pat_class_set(d, false));
}

/* ---- sequences ------------------------------------------------------------------------------- */

static uint32_t repeated(struct eng_pat_reader *d, uint32_t kid, uint32_t lo, uint32_t hi)
{
    struct eng_pat_node node = {.kind = ENG_PAT_REPEAT, .a = kid, .lo = lo, .hi = hi};
    if (d->code) return 0;
    node.plain = d->p->nodes[kid].plain;
    if (!hi) node = (struct eng_pat_node){.kind = ENG_PAT_EMPTY, .plain = true};
    return add_node(d, node);
}

static uint32_t read_sequence(struct eng_pat_reader *d)
{
    size_t first = d->n_stack;
    while (eng_pat_more(d) && eng_pat_peek(d, 0) != '|' && eng_pat_peek(d, 0) != ')') {
        bool counts = true;
        uint32_t lo, hi, node = read_atom(d, &counts);
        size_t from = d->at;
        if (!d->code && read_quantifier(d, &lo, &hi)) {
            if (!counts) eng_pat_fail(d, CN_EINVAL, from, "a quantifier with nothing to repeat");
            node = repeated(d, node, lo, hi);
            if (eng_pat_peek(d, 0) == '?') /* lazy: the same texts */
                d->at++;
            else if (eng_pat_peek(d, 0) == '+')
                eng_pat_fail(d, CN_EUNSUPP, from, "possessive quantifiers are not supported");
        }
        push(d, node);
    }
    return gather(d, ENG_PAT_CAT, first);
}

static uint32_t read_alternatives(struct eng_pat_reader *d)
{
    size_t first = d->n_stack;
    for (;;) {
        push(d, read_sequence(d));
        if (d->code || eng_pat_peek(d, 0) != '|') break;
        d->at++;
    }
    return gather(d, ENG_PAT_ALT, first);
}

int eng_pattern_parse(struct eng_pattern *p, struct eng_rx *r, const char *s, size_t n,
                      struct cn_error *err)
{
    struct eng_pat_reader d = {.p = p, .r = r, .s = s, .n = n, .err = err};
    *p = (struct eng_pattern){0};
    if (n > ENG_PAT_MOST_BYTES)
        return cn_fail(err, CN_ELIMIT, "the pattern has more than %d bytes", ENG_PAT_MOST_BYTES);
    p->root = read_alternatives(&d);
    if (!d.code && d.at < n)
        eng_pat_fail(&d, CN_EINVAL, d.at, "a closing parenthesis without an opening one");
    free(d.stack);
    eng_ranges_fini(&d.class);
    if (d.code) eng_pattern_fini(p);
    return d.code;
}

void eng_pattern_fini(struct eng_pattern *p)
{
    free(p->nodes);
    free(p->kids);
    free(p->ranges);
    free(p->sets);
    free(p->properties);
    eng_fold_fini(&p->fold);
    *p = (struct eng_pattern){0};
}
