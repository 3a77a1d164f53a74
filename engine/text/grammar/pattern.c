/* spell: patterns as expressions. See spell.h and pattern_build.h. */
#include "engine/text/grammar/pattern_build.h"

#include "engine/text/grammar/rx_impl.h"

#include <stdlib.h>

enum { MOST_STEPS = 300000 };

/* ---- parts without assertions ---------------------------------------------------------------- */

static struct eng_pat_node *node_of(struct eng_pat_build *b, uint32_t node)
{
    return &b->p->nodes[node];
}

static uint32_t set_rx(struct eng_pat_build *b, uint32_t set)
{
    struct eng_pat_set *s = &b->p->sets[set];
    if (!s->rx) s->rx = eng_spell_class(b->r, b->spelling, b->p->ranges + s->first, s->n);
    return s->rx;
}

/* Appends the text that alone belongs to the node; false: others do, too. */
static bool literal(struct eng_pat_build *b, uint32_t node, struct cn_buf *out)
{
    const struct eng_pat_node *n = node_of(b, node);
    char utf8[4];
    if (n->kind == ENG_PAT_EMPTY) return true;
    if (n->kind == ENG_PAT_CAT) {
        for (uint32_t i = 0; i < n->n; i++)
            if (!literal(b, b->p->kids[n->a + i], out)) return false;
        return true;
    }
    if (n->kind != ENG_PAT_CLASS) return false;
    const struct eng_pat_set *s = &b->p->sets[n->a];
    if (s->n != 1 || b->p->ranges[s->first].from != b->p->ranges[s->first].to) return false;
    size_t len = cn_utf8_encode(b->p->ranges[s->first].from, utf8);
    return len && !cn_buf_append(out, utf8, len);
}

/* Alternatives that are all literals share their beginnings. False: they are not. */
static bool literals(struct eng_pat_build *b, const struct eng_pat_node *n, uint32_t *out)
{
    struct eng_str *list = cn_malloc_array(n->n, sizeof *list);
    struct cn_buf text;
    bool all = list != NULL;
    cn_buf_init(&text, 0);
    for (uint32_t i = 0; i < n->n && all; i++) {
        list[i].n = text.len; /* where it begins, until all are there */
        all = literal(b, b->p->kids[n->a + i], &text);
    }
    for (uint32_t i = 0; i < n->n && all; i++) {
        size_t from = list[i].n, to = i + 1 < n->n ? list[i + 1].n : text.len;
        list[i] = (struct eng_str){text.len ? text.data + from : "", to - from};
    }
    if (all) *out = eng_spell_texts(b->r, b->spelling, list, n->n);
    cn_buf_fini(&text);
    free(list);
    return all;
}

static uint32_t plain(struct eng_pat_build *b, uint32_t node)
{
    struct eng_pat_node *n = node_of(b, node);
    uint32_t x = ENG_RX_EMPTY, *list;
    if (n->rx || b->r->code) return n->rx;
    switch (n->kind) {
    case ENG_PAT_CLASS:
        x = set_rx(b, n->a);
        break;
    case ENG_PAT_CAT:
        for (uint32_t i = n->n; i--;)
            x = eng_rx_cat(b->r, plain(b, b->p->kids[n->a + i]), x);
        break;
    case ENG_PAT_REPEAT:
        x = eng_rx_repeat(b->r, plain(b, n->a), n->lo, n->hi);
        break;
    case ENG_PAT_ALT:
        if (literals(b, n, &x)) break;
        list = cn_malloc_array(n->n, sizeof *list);
        if (!list) return eng_rx_fail(b->r, CN_ENOMEM);
        for (uint32_t i = 0; i < n->n; i++)
            list[i] = plain(b, b->p->kids[n->a + i]);
        x = eng_rx_or_of(b->r, list, n->n);
        free(list);
        break;
    default: /* ENG_PAT_EMPTY */
        break;
    }
    return n->rx = x;
}

/* ---- the rest of the text -------------------------------------------------------------------- */

static void set_all(struct eng_rest *out, uint32_t x)
{
    for (unsigned p = 0; p < ENG_SIDES; p++)
        out->x[p][0] = x;
}

/* Whether the rest is the same whatever character precedes it. */
static bool is_same(const struct eng_pat_build *b, const struct eng_rest *rest)
{
    for (unsigned p = 1; p < ENG_SIDES; p++)
        for (unsigned i = 0; i < b->columns; i++)
            if (b->has[p] && rest->x[p][i] != rest->x[0][i]) return false;
    return true;
}

/* Adds x followed by row p of the rest to all rows. */
static void add_after(struct eng_pat_build *b, uint32_t x, const struct eng_rest *rest, unsigned p,
                      struct eng_rest *out)
{
    for (unsigned i = 0; i < b->columns; i++) {
        uint32_t y = eng_rx_cat(b->r, x, rest->x[p][i]);
        if (y == ENG_RX_NONE) continue;
        for (unsigned q = 0; q < ENG_SIDES; q++)
            out->x[q][i] = eng_rx_or(b->r, out->x[q][i], y);
    }
}

uint32_t eng_pat_filter(struct eng_pat_build *b, uint32_t x, unsigned column, unsigned next)
{
    unsigned end = b->columns == 1 ? ENG_SIDE_EDGE : column % ENG_SIDES;
    uint32_t first[ENG_SIDES], n = 0, begins;
    bool all = true;
    if (x == ENG_RX_NONE) return x;
    for (unsigned f = 1; f < ENG_SIDES; f++) {
        if (!b->has[f]) continue;
        if (next >> f & 1)
            first[n++] = b->side_rx[f];
        else
            all = false;
    }
    if (all && (next >> end & 1)) return x;
    begins = eng_rx_cat(b->r, eng_rx_or_of(b->r, first, n), ENG_RX_ALL);
    if (next >> end & 1) begins = eng_rx_or(b->r, begins, ENG_RX_EMPTY);
    x = eng_rx_and(b->r, x, begins);
    return eng_rx_node(b->r, x)->plain || eng_rx_live(b->r, x) ? x : ENG_RX_NONE;
}

/* ---- parts with assertions, or in front of such ---------------------------------------------- */

/* Keeps of each row what may follow there: next[p] is a set of kinds. */
static void look(struct eng_pat_build *b, const struct eng_rest *rest,
                 const unsigned next[ENG_SIDES], struct eng_rest *out)
{
    for (unsigned p = 0; p < ENG_SIDES; p++)
        for (unsigned i = 0; i < b->columns && b->has[p]; i++)
            out->x[p][i] = eng_pat_filter(b, rest->x[p][i], i, next[p]);
}

static void assert_place(struct eng_pat_build *b, enum eng_pat_kind kind,
                         const struct eng_rest *rest, struct eng_rest *out)
{
    const unsigned all = (1u << ENG_SIDES) - 1, word = 1u << ENG_SIDE_WORD;
    const unsigned edge = 1u << ENG_SIDE_EDGE, line = 1u << ENG_SIDE_LINE;
    unsigned next[ENG_SIDES];
    for (unsigned p = 0; p < ENG_SIDES; p++) {
        bool after_word = p == ENG_SIDE_WORD;
        switch (kind) {
        case ENG_PAT_TEXT_START:
            next[p] = p == ENG_SIDE_EDGE ? all : 0;
            break;
        case ENG_PAT_LINE_START:
            next[p] = p == ENG_SIDE_EDGE || p == ENG_SIDE_LINE ? all : 0;
            break;
        case ENG_PAT_TEXT_END:
            next[p] = edge;
            break;
        case ENG_PAT_LINE_END:
            next[p] = edge | line;
            break;
        case ENG_PAT_WORD:
            next[p] = after_word ? all & ~word : word;
            break;
        default: /* ENG_PAT_NO_WORD */
            next[p] = after_word ? word : all & ~word;
            break;
        }
    }
    look(b, rest, next, out);
}

/* Where kid, followed by anything, matches (or does not). */
static void look_ahead(struct eng_pat_build *b, uint32_t kid, bool wanted,
                       const struct eng_rest *rest, struct eng_rest *out)
{
    struct eng_rest anything = {{{0}}}, seen = {{{0}}};
    if (b->columns != 1) {
        b->problem = "look-ahead in a repetition without bound is not supported";
        return;
    }
    set_all(&anything, eng_rx_repeat(b->r, b->any, 0, ENG_RX_INF));
    eng_pat_build(b, kid, &anything, &seen);
    for (unsigned p = 0; p < ENG_SIDES; p++) {
        uint32_t x = wanted ? seen.x[p][0] : eng_rx_not(b->r, seen.x[p][0]);
        out->x[p][0] = eng_rx_and(b->r, rest->x[p][0], x);
    }
}

/* One character: its kind selects the row of the rest. */
static void one_character(struct eng_pat_build *b, uint32_t set, const struct eng_rest *rest,
                          struct eng_rest *out)
{
    const struct eng_pat_set *s = &b->p->sets[set];
    struct eng_ranges both = {0};
    for (unsigned q = 1; q < ENG_SIDES; q++) {
        if (!b->has[q]) continue;
        both.n = 0;
        if (eng_ranges_common(&both, b->p->ranges + s->first, s->n, b->side[q].v, b->side[q].n))
            eng_rx_fail(b->r, CN_ENOMEM);
        add_after(b, eng_spell_class(b->r, b->spelling, both.v, both.n), rest, q, out);
    }
    eng_ranges_fini(&both);
}

static void add_rest(struct eng_pat_build *b, const struct eng_rest *more, struct eng_rest *out)
{
    for (unsigned p = 0; p < ENG_SIDES; p++)
        for (unsigned i = 0; i < b->columns; i++)
            out->x[p][i] = eng_rx_or(b->r, out->x[p][i], more->x[p][i]);
}

/* A repetition of a part without assertions: its last iteration decides which character precedes
 * the rest. */
static void plain_repeat(struct eng_pat_build *b, uint32_t node, const struct eng_rest *rest,
                         struct eng_rest *out)
{
    struct eng_pat_node n = *node_of(b, node);
    uint32_t kid = plain(b, n.a), x;
    if (eng_rx_nullable(b->r, kid)) { /* the last one that is not empty decides */
        for (unsigned q = 1; q < ENG_SIDES; q++) {
            if (!b->has[q]) continue;
            x = eng_rx_cat(b->r, ENG_RX_ALL, b->side_rx[q]);
            add_after(b, eng_rx_and(b->r, plain(b, node), x), rest, q, out);
        }
        add_rest(b, rest, out);
        return;
    }
    struct eng_rest last = {{{0}}};
    eng_pat_build(b, n.a, rest, &last);
    x = eng_rx_repeat(b->r, kid, n.lo ? n.lo - 1 : 0, n.hi == ENG_RX_INF ? n.hi : n.hi - 1);
    add_after(b, x, &last, ENG_SIDE_EDGE, out); /* all rows of `last` are the same */
    if (!n.lo) add_rest(b, rest, out);
}

/* A repetition of a part with assertions: one iteration after the other. */
static void repeat(struct eng_pat_build *b, uint32_t node, const struct eng_rest *rest,
                   struct eng_rest *out)
{
    struct eng_pat_node n = *node_of(b, node);
    struct eng_rest now = *rest, next;
    if (n.hi == ENG_RX_INF) eng_pat_loop(b, n.a, rest, &now);
    for (uint32_t i = n.lo; i < n.hi && n.hi != ENG_RX_INF && !b->r->code && !b->problem; i++) {
        next = (struct eng_rest){{{0}}};
        eng_pat_build(b, n.a, &now, &next);
        add_rest(b, rest, &next);
        if (!memcmp(&next, &now, sizeof now)) break;
        now = next;
    }
    for (uint32_t i = 0; i < n.lo && !b->r->code && !b->problem; i++) {
        next = (struct eng_rest){{{0}}};
        eng_pat_build(b, n.a, &now, &next);
        if (!memcmp(&next, &now, sizeof now)) break;
        now = next;
    }
    *out = now;
}

static void sequence(struct eng_pat_build *b, const struct eng_pat_node *n,
                     const struct eng_rest *rest, struct eng_rest *out)
{
    struct eng_rest now = *rest, next;
    for (uint32_t i = n->n; i-- && !b->r->code && !b->problem;) {
        next = (struct eng_rest){{{0}}};
        eng_pat_build(b, b->p->kids[n->a + i], &now, &next);
        now = next;
    }
    *out = now;
}

static void alternatives(struct eng_pat_build *b, const struct eng_pat_node *n,
                         const struct eng_rest *rest, struct eng_rest *out)
{
    uint32_t *list = cn_malloc_array(n->n, ENG_SIDES * ENG_REST_MOST * sizeof *list);
    struct eng_rest one;
    if (!list) {
        eng_rx_fail(b->r, CN_ENOMEM);
        return;
    }
    for (uint32_t k = 0; k < n->n && !b->r->code && !b->problem; k++) {
        one = (struct eng_rest){{{0}}};
        eng_pat_build(b, b->p->kids[n->a + k], rest, &one);
        for (unsigned at = 0; at < ENG_SIDES * ENG_REST_MOST; at++)
            list[at * n->n + k] = one.x[at / ENG_REST_MOST][at % ENG_REST_MOST];
    }
    for (unsigned at = 0; at < ENG_SIDES * ENG_REST_MOST && !b->r->code && !b->problem; at++)
        if (at % ENG_REST_MOST < b->columns)
            out->x[at / ENG_REST_MOST][at % ENG_REST_MOST] =
                eng_rx_or_of(b->r, list + at * n->n, n->n);
    free(list);
}

void eng_pat_build(struct eng_pat_build *b, uint32_t node, const struct eng_rest *rest,
                   struct eng_rest *out)
{
    struct eng_pat_node n = *node_of(b, node);
    if (++b->steps > MOST_STEPS || (b->r->max_work && ++b->r->work > b->r->max_work))
        eng_rx_fail(b->r, CN_ELIMIT);
    if (b->r->code || b->problem) return;
    if (n.kind == ENG_PAT_EMPTY) {
        *out = *rest;
    } else if (n.plain && is_same(b, rest)) {
        add_after(b, plain(b, node), rest, ENG_SIDE_EDGE, out);
    } else if (n.kind == ENG_PAT_CLASS) {
        one_character(b, n.a, rest, out);
    } else if (n.kind == ENG_PAT_CAT) {
        sequence(b, &n, rest, out);
    } else if (n.kind == ENG_PAT_ALT) {
        alternatives(b, &n, rest, out);
    } else if (n.kind == ENG_PAT_REPEAT) {
        if (n.plain)
            plain_repeat(b, node, rest, out);
        else
            repeat(b, node, rest, out);
    } else if (n.kind == ENG_PAT_AHEAD || n.kind == ENG_PAT_NOT_AHEAD) {
        look_ahead(b, n.a, n.kind == ENG_PAT_AHEAD, rest, out);
    } else {
        assert_place(b, (enum eng_pat_kind)n.kind, rest, out);
    }
}

/* ---- whole patterns -------------------------------------------------------------------------- */

/* Next to any text (on the left, on the right) a repetition need not go beyond its lower bound. */
static void trim(struct eng_pattern *p, uint32_t node, bool left, bool right, unsigned depth)
{
    struct eng_pat_node *n = &p->nodes[node];
    if (depth > ENG_PAT_MOST_DEPTH || (!left && !right)) return;
    if (n->kind == ENG_PAT_REPEAT && n->plain) {
        if (!n->lo) *n = (struct eng_pat_node){.kind = ENG_PAT_EMPTY, .plain = true};
        n->hi = n->lo;
        if (n->lo == 1) trim(p, n->a, left, right, depth + 1);
    } else if (n->kind == ENG_PAT_ALT) {
        for (uint32_t i = 0; i < n->n; i++)
            trim(p, p->kids[n->a + i], left, right, depth + 1);
    } else if (n->kind == ENG_PAT_CAT) {
        uint32_t first = n->a, end = n->a + n->n;
        for (uint32_t i = first; left && i < end; i++) {
            trim(p, p->kids[i], true, false, depth + 1);
            if (p->nodes[p->kids[i]].kind != ENG_PAT_EMPTY) break;
        }
        for (uint32_t i = end; right && i-- > first;) {
            trim(p, p->kids[i], false, true, depth + 1);
            if (p->nodes[p->kids[i]].kind != ENG_PAT_EMPTY) break;
        }
    }
}

/* The kinds of characters that the pattern's assertions tell apart. */
static int init_sides(struct eng_pat_build *b)
{
    size_t n;
    const struct eng_cp_range *v;
    struct eng_ranges *other = &b->side[ENG_SIDE_OTHER];
    int rc = 0;
    b->has[ENG_SIDE_EDGE] = b->has[ENG_SIDE_OTHER] = true;
    b->has[ENG_SIDE_WORD] = b->p->words;
    b->has[ENG_SIDE_LINE] = b->p->lines;
    if (b->p->words) {
        v = eng_pattern_known('w', b->p->folded_words, &n);
        rc = eng_ranges_add_all(&b->side[ENG_SIDE_WORD], v, n);
        if (!rc) rc = eng_ranges_add_all(other, v, n);
    }
    if (b->p->lines && !rc) {
        v = eng_pattern_known('n', false, &n);
        rc = eng_ranges_add_all(&b->side[ENG_SIDE_LINE], v, n);
        if (!rc) rc = eng_ranges_add_all(other, v, n);
    }
    eng_ranges_tidy(other);
    if (!rc) rc = eng_ranges_invert(other);
    for (unsigned q = 1; q < ENG_SIDES && !rc; q++)
        b->side_rx[q] = eng_spell_class(b->r, b->spelling, b->side[q].v, b->side[q].n);
    return rc;
}

/* Any text in front, or none. */
static uint32_t anywhere(struct eng_pat_build *b, const struct eng_rest *rest)
{
    uint32_t x = eng_rx_repeat(b->r, b->any, 0, ENG_RX_INF), part[ENG_SIDES];
    if (is_same(b, rest)) return eng_rx_cat(b->r, x, rest->x[0][0]);
    part[0] = ENG_RX_NONE;
    for (unsigned q = 1; q < ENG_SIDES; q++)
        part[q] = b->has[q] ? eng_rx_cat(b->r, b->side_rx[q], rest->x[q][0]) : ENG_RX_NONE;
    x = eng_rx_cat(b->r, x, eng_rx_or_of(b->r, part, ENG_SIDES));
    return eng_rx_or(b->r, rest->x[ENG_SIDE_EDGE][0], x);
}

int eng_spell_pattern(struct eng_rx *r, enum eng_spelling s, const char *pattern, size_t n,
                      bool whole, uint32_t *out, struct cn_error *err)
{
    struct eng_pattern p;
    struct eng_pat_build b = {.r = r, .p = &p, .spelling = s, .columns = 1};
    struct eng_rest rest = {{{0}}}, all = {{{0}}};
    int rc = r->code ? r->code : eng_pattern_parse(&p, r, pattern, n, err);
    uint32_t x;
    if (rc) return rc;
    b.any = eng_spell_any(r, s);
    if (init_sides(&b)) eng_rx_fail(r, CN_ENOMEM);
    if (!whole) trim(&p, p.root, true, true, 0);
    set_all(&rest, whole ? ENG_RX_EMPTY : eng_rx_repeat(r, b.any, 0, ENG_RX_INF));
    eng_pat_build(&b, p.root, &rest, &all);
    x = whole ? all.x[ENG_SIDE_EDGE][0] : anywhere(&b, &all);
    for (unsigned q = 0; q < ENG_SIDES; q++)
        eng_ranges_fini(&b.side[q]);
    eng_pattern_fini(&p);
    if (b.problem) return cn_fail(err, CN_EUNSUPP, "%s", b.problem);
    if (r->code) return cn_fail(err, r->code, "the pattern is too complex");
    *out = x;
    return 0;
}
