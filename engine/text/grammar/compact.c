/* compact: gives back what a matcher's past left behind. See match.h.
 *
 * Frames, lists, expressions and states are never taken away one by one: a new matcher is made, and
 * what the answer's places stand on is copied to it, each thing once. */
#include "engine/text/grammar/match.h"

#include "engine/text/grammar/rx_impl.h"

#include <stdlib.h>

/* Numbers in the old matcher -> numbers in the new one; 0 not copied yet (of seen: 1 + number). */
struct move {
    struct eng_match *from, *to;
    uint32_t *frames, *cells, *seen, *extra, *rx;
};

static uint32_t move_rx(struct move *v, uint32_t x, unsigned depth);

static uint32_t move_list(struct move *v, const struct eng_rx_node *n, unsigned depth)
{
    uint32_t *args = cn_malloc_array(n->b, sizeof *args), out;
    if (!args) return eng_rx_fail(&v->to->rx, CN_ENOMEM);
    for (uint32_t i = 0; i < n->b; i++)
        args[i] = move_rx(v, eng_rx_args(&v->from->rx, n)[i], depth);
    out = n->kind == ENG_RX_OR ? eng_rx_or_of(&v->to->rx, args, n->b)
                               : eng_rx_and_of(&v->to->rx, args, n->b);
    free(args);
    return out;
}

/* A chain of parts: from its end, so that long ones need no deep recursion. */
static uint32_t move_cat(struct move *v, uint32_t x, unsigned depth)
{
    uint32_t *parts = NULL, n = 0, out;
    size_t cap = 0;
    for (;; n++) {
        const struct eng_rx_node *node = eng_rx_node(&v->from->rx, x);
        bool chain = x >= v->from->rx.first && node->kind == ENG_RX_CAT;
        if (cn_grow(&parts, &cap, n + (size_t)1, sizeof *parts)) {
            free(parts);
            return eng_rx_fail(&v->to->rx, CN_ENOMEM);
        }
        parts[n] = chain ? node->a : x;
        if (!chain) break;
        x = node->b;
    }
    out = move_rx(v, parts[n], depth);
    while (n--)
        out = eng_rx_cat(&v->to->rx, move_rx(v, parts[n], depth), out);
    free(parts);
    return out;
}

static uint32_t move_rx(struct move *v, uint32_t x, unsigned depth)
{
    struct eng_rx *to = &v->to->rx;
    const struct eng_rx *from = &v->from->rx;
    uint32_t out;
    if (x < from->first || to->code) return x; /* of the grammar's own arena */
    if (v->rx[x - from->first]) return v->rx[x - from->first];
    if (depth > 1000) return eng_rx_fail(to, CN_ELIMIT);
    struct eng_rx_node n = *eng_rx_node(from, x);
    switch (n.kind) {
    case ENG_RX_SET:
        out = eng_rx_set(to, eng_rx_set_of(from, &n));
        break;
    case ENG_RX_CAT:
        out = move_cat(v, x, depth + 1);
        break;
    case ENG_RX_REPEAT:
        out = eng_rx_repeat(to, move_rx(v, n.a, depth + 1), n.lo, n.hi);
        break;
    case ENG_RX_NOT:
        out = eng_rx_not(to, move_rx(v, n.a, depth + 1));
        break;
    case ENG_RX_MULTIPLE:
        out = eng_rx_leaf(to, n);
        break;
    default:
        out = move_list(v, &n, depth + 1);
        break;
    }
    v->rx[x - from->first] = out;
    return out;
}

static uint32_t move_lexeme(struct move *v, uint32_t lexeme)
{
    uint32_t n = v->from->ir->n_lexemes;
    if (lexeme < n) return lexeme;
    if (!v->extra[lexeme - n]) {
        const struct eng_lexeme *l = &v->from->extra[lexeme - n];
        v->extra[lexeme - n] = eng_match_extra(v->to, move_rx(v, l->rx, 0), l->spaced);
    }
    return v->extra[lexeme - n];
}

static uint32_t move_seen(struct move *v, uint32_t i)
{
    struct eng_str s = eng_seen_str(v->from, i);
    if (!v->seen[i]) v->seen[i] = 1 + eng_seen_text(v->to, s.p, s.n);
    return v->seen[i] - 1;
}

/* texts: the list's numbers are of seen texts. The oldest cell first. */
static uint32_t move_cells(struct move *v, uint32_t list, bool texts)
{
    const struct eng_cell *cells = v->from->cells;
    while (list > ENG_LIST_UNKNOWN && !v->cells[list]) {
        uint32_t at = list, rest;
        while ((rest = cells[at].rest) > ENG_LIST_UNKNOWN && !v->cells[rest])
            at = rest;
        uint32_t value = texts ? move_seen(v, cells[at].value) : cells[at].value;
        if (v->to->code) return 0;
        uint32_t on = rest > ENG_LIST_UNKNOWN ? v->cells[rest] : rest;
        v->cells[at] =
            texts ? eng_list_add_seen(v->to, on, value) : eng_list_add(v->to, on, value, value);
        if (v->to->code) return 0;
    }
    return list > ENG_LIST_UNKNOWN ? v->cells[list] : list;
}

/* The bottom of a stack first. */
static uint32_t move_frame(struct move *v, uint32_t frame)
{
    while (frame && !v->frames[frame] && !v->to->code) {
        uint32_t at = frame, up;
        while ((up = v->from->frames[at].parent) && !v->frames[up])
            at = up;
        struct eng_frame f = v->from->frames[at];
        f.parent = up ? v->frames[up] : 0;
        f.there = move_cells(v, f.there, false);
        f.seen = move_cells(v, f.seen, true);
        v->frames[at] = eng_frame(v->to, &f);
    }
    return frame ? v->frames[frame] : 0;
}

/* A parser's state is made of its items as if they had just been found. */
static uint32_t move_parser(struct move *v, uint32_t parser)
{
    const struct eng_parser_state *p = &v->from->parsers[parser];
    for (uint32_t i = 0; i < p->n && !v->to->code; i++) {
        const struct eng_item_of *t = &v->from->item_ofs[p->first + i];
        uint32_t lexeme = move_lexeme(v, t->lexeme);
        eng_expand_lexeme(v->to, lexeme, move_frame(v, t->frame));
    }
    v->to->doubt = p->doubt;
    return eng_parser_found(v->to, p->accepts, false);
}

static uint32_t move_lexer(struct move *v, uint32_t lexer)
{
    const struct eng_lexer_state *l = &v->from->lexers[lexer];
    struct eng_lexing *pairs = cn_malloc_array(l->n, sizeof *pairs);
    uint32_t out = ENG_LEXER_DEAD;
    if (!pairs) return (uint32_t)eng_match_fail(v->to, CN_ENOMEM);
    for (uint32_t i = 0; i < l->n; i++) {
        const struct eng_lexing *g = &v->from->lexings[l->first + i];
        pairs[i] = (struct eng_lexing){move_lexeme(v, g->lexeme), move_rx(v, g->rx, 0)};
    }
    out = eng_lexer_state(v->to, pairs, l->n, false);
    free(pairs);
    return out;
}

static uint32_t move_text(struct move *v, uint32_t text)
{
    uint32_t out = 0;
    struct cn_buf b;
    if (!text) return 0;
    cn_buf_init(&b, 0);
    if (eng_kept_text(v->from, text, 0, &b)) eng_match_fail(v->to, CN_ENOMEM);
    for (size_t i = 0; i < b.len && !v->to->code; i++)
        out = eng_keep_byte(v->to, out, (uint8_t)b.data[i]);
    cn_buf_fini(&b);
    return out;
}

static void move_places(struct move *v)
{
    struct eng_match *m = v->from, *to = v->to;
    to->now.n = 0;
    for (size_t i = 0; i < m->now.n && !to->code; i++) {
        struct eng_place p = m->now.v[i];
        bool begins = p.lexer == m->parsers[p.parser].lexer;
        uint32_t text = move_text(v, p.text), parser = move_parser(v, p.parser);
        uint32_t lexer = begins ? to->parsers[parser].lexer : move_lexer(v, p.lexer);
        eng_match_add(to, &to->now, (struct eng_place){parser, lexer, text, p.from});
    }
    if (to->rx.code) eng_match_fail(to, to->rx.code);
}

int eng_match_compact(struct eng_match *m)
{
    int rc;
    struct eng_match to;
    struct move v = {.from = m, .to = &to};
    if (m->code) return m->code;
    if ((rc = eng_match_init(&to, m->ir, m->max_bytes, m->lead))) return rc;
    to.trie = m->trie;
    to.rx.keep_going = m->rx.keep_going;
    to.rx.arg = m->rx.arg;
    v.frames = cn_calloc(m->n_frames, sizeof *v.frames);
    v.cells = cn_calloc(m->n_cells, sizeof *v.cells);
    v.seen = cn_calloc(m->n_seen + (size_t)1, sizeof *v.seen);
    v.extra = cn_calloc(m->n_extra + (size_t)1, sizeof *v.extra);
    v.rx = cn_calloc(m->rx.n_nodes - m->rx.first + (size_t)1, sizeof *v.rx);
    if (v.frames && v.cells && v.seen && v.extra && v.rx)
        move_places(&v);
    else
        eng_match_fail(&to, CN_ENOMEM);
    if (!to.code) { /* else the old one stays */
        struct eng_match old = *m;
        *m = to;
        m->work = &m->scratch[0];
        to = old;
    } else {
        rc = to.code;
    }
    eng_match_fini(&to);
    free(v.frames);
    free(v.cells);
    free(v.seen);
    free(v.extra);
    free(v.rx);
    return rc;
}
