/* bnf: writes the rules that have no expression. See bnf.h.
 *
 * Each rule, and each part of a sequence that needs a rule, is written without the empty text; a
 * second symbol, `optional`, has that text as well. The first symbol of a sequence is never empty:
 *
 *     a? b c?  is written as  a b c? | b c?
 *
 * So left recursion is visible even where the source hides it after empty parts. Repetitions recur
 * at their right end, and one symbol follows each item. */
#include "engine/text/grammar/bnf.h"

#include <stdlib.h>

/* A part of a sequence: its texts except the empty one, all its texts, whether those differ. */
struct part {
    struct eng_sym some, all;
    bool null;
};
/* Parts of a sequence, neighbours with expressions joined. */
struct parts {
    struct item {
        uint32_t node; /* ENG_BNF_NONE: an expression */
        uint32_t rx, weight;
    } *items;
    struct eng_sym *syms;
    bool *null;
    size_t n, cap, syms_cap, null_cap;
};

static const struct eng_sym never = {ENG_SYM_NEVER, 0};

static void write_alternatives(struct eng_bnf *b, struct eng_sym to, uint32_t node);

static bool sound(struct eng_bnf *b)
{
    return eng_source_alive(&b->src) && !b->ir->rx.code;
}

/* The texts of x except the empty one. */
static uint32_t some_of(struct eng_bnf *b, uint32_t x)
{
    struct eng_rx *rx = &b->ir->rx;
    struct eng_rx_node n = *eng_rx_node(rx, x);
    if (!n.nullable) return x;
    if (x == ENG_RX_EMPTY) return ENG_RX_NONE;
    if (x >= ENG_RX_FIRST && n.kind == ENG_RX_REPEAT && !eng_rx_nullable(rx, n.a))
        return eng_rx_repeat(rx, n.a, 1, n.hi);
    return eng_rx_and(rx, x, eng_rx_not(rx, ENG_RX_EMPTY));
}

static struct part lexeme(struct eng_bnf *b, uint32_t x)
{
    struct part p = {.null = eng_rx_nullable(&b->ir->rx, x)};
    p.some = eng_ir_lexeme(b->ir, some_of(b, x), false);
    p.all = p.null ? eng_ir_lexeme(b->ir, x, false) : p.some;
    return p;
}

static struct eng_sym optional(struct eng_bnf *b, struct eng_sym some)
{
    struct eng_sym to = eng_ir_rule(b->ir);
    eng_ir_add(b->ir, to, NULL, 0);
    eng_ir_add(b->ir, to, &some, 1);
    return to;
}

/* A node that is neither a sequence nor an expression. */
static struct part part_of(struct eng_bnf *b, uint32_t at)
{
    const struct eng_bnf_node *n = &b->nodes[at];
    struct part p = {.null = n->null};
    if (n->rx != ENG_BNF_NONE) return lexeme(b, n->rx);
    if (n->kind == ENG_BNF_SYM) {
        p.some = p.all = b->syms[n->a];
    } else if (n->kind == ENG_BNF_RULE) {
        const struct eng_bnf_rule *r = &b->rules[n->a];
        if (r->rx != ENG_BNF_NONE) return lexeme(b, r->rx);
        p.some = r->sym;
        p.all = r->optional;
    } else {
        p.some = eng_ir_rule(b->ir);
        write_alternatives(b, p.some, at);
        p.all = p.null ? optional(b, p.some) : p.some;
    }
    return p;
}

/* ---- sequences ------------------------------------------------------------------------------- */

static void parts_fini(struct parts *p)
{
    free(p->items);
    free(p->syms);
    free(p->null);
}

static void add_item(struct eng_bnf *b, struct parts *p, struct item item)
{
    if (cn_grow(&p->items, &p->cap, p->n + 1, sizeof *p->items))
        eng_source_stop(&b->src, CN_ENOMEM, "out of memory");
    else
        p->items[p->n++] = item;
}

/* The expression of a node or of the rule that it refers to. */
static uint32_t rx_of(const struct eng_bnf *b, uint32_t at, uint32_t *weight)
{
    const struct eng_bnf_node *n = &b->nodes[at];
    bool by_rule = n->rx == ENG_BNF_NONE && n->kind == ENG_BNF_RULE;
    *weight = by_rule ? b->rules[n->a].weight : n->weight;
    return by_rule ? b->rules[n->a].rx : n->rx;
}

static void flatten(struct eng_bnf *b, uint32_t at, struct parts *p)
{
    struct eng_bnf_node n = b->nodes[at];
    uint32_t weight, rx = rx_of(b, at, &weight);
    if (!sound(b)) return;
    if (rx != ENG_BNF_NONE) {
        add_item(b, p, (struct item){ENG_BNF_NONE, rx, weight});
    } else if (n.kind == ENG_BNF_CAT) {
        for (uint32_t i = 0; i < n.n; i++)
            flatten(b, b->kids[n.a + i], p);
    } else {
        if (n.kind == ENG_BNF_SYM && b->ignore != ENG_RX_EMPTY)
            add_item(b, p, (struct item){ENG_BNF_NONE, b->ignore, 1});
        add_item(b, p, (struct item){.node = at});
    }
}

/* Neighbours that are the same expression become one. */
static void join_equal(struct eng_bnf *b, struct parts *p)
{
    size_t kept = 0, same;
    for (size_t i = 0; i < p->n; i += same) {
        struct item item = p->items[i];
        for (same = 1; i + same < p->n && item.node == ENG_BNF_NONE; same++)
            if (p->items[i + same].node != ENG_BNF_NONE || p->items[i + same].rx != item.rx) break;
        if (same > 1) item.rx = eng_bnf_power(b, item.rx, (uint32_t)same);
        p->items[kept++] = item;
    }
    p->n = kept;
}

/* Joins neighbours that are expressions, from the right, so that each is copied once. */
static void join(struct eng_bnf *b, struct parts *p)
{
    size_t kept = p->n;
    for (size_t i = p->n; i-- && sound(b);) {
        struct item *last = kept < p->n ? &p->items[kept] : NULL, item = p->items[i];
        if (last && last->node == ENG_BNF_NONE && item.node == ENG_BNF_NONE &&
            (uint64_t)last->weight + item.weight <= ENG_BNF_WEIGHT) {
            last->rx = eng_rx_cat(&b->ir->rx, item.rx, last->rx);
            last->weight += item.weight;
        } else {
            p->items[--kept] = item;
        }
    }
    memmove(p->items, p->items + kept, (p->n - kept) * sizeof *p->items);
    p->n -= kept;
}

/* The sequence's texts except the empty one. */
static void write_sequence(struct eng_bnf *b, struct eng_sym to, uint32_t node)
{
    struct parts p = {0};
    flatten(b, node, &p);
    if (sound(b)) join_equal(b, &p);
    if (sound(b)) join(b, &p);
    if (cn_grow(&p.syms, &p.syms_cap, 2 * p.n, sizeof *p.syms) ||
        cn_grow(&p.null, &p.null_cap, p.n, sizeof *p.null))
        eng_source_stop(&b->src, CN_ENOMEM, "out of memory");
    for (size_t i = 0; i < p.n && sound(b); i++) {
        struct item *item = &p.items[i];
        struct part part =
            item->node == ENG_BNF_NONE ? lexeme(b, item->rx) : part_of(b, item->node);
        p.null[i] = part.null;
        p.syms[i] = part.all;
        p.syms[p.n + i] = part.some;
    }
    for (size_t i = 0; i < p.n && sound(b); i++) { /* those before i are empty, i is not */
        p.syms[i] = p.syms[p.n + i];
        eng_ir_add(b->ir, to, p.syms + i, p.n - i);
        if (!p.null[i]) break;
    }
    parts_fini(&p);
}

/* ---- repetitions and alternatives ------------------------------------------------------------ */

/* n times x, then `last` if it is a symbol. */
static void write_times(struct eng_bnf *b, struct eng_sym to, struct eng_sym x, uint32_t n,
                        struct eng_sym last)
{
    size_t count = n + (size_t)!eng_sym_never(last);
    struct eng_sym *syms = cn_malloc_array(count, sizeof *syms);
    if (!syms) {
        eng_source_stop(&b->src, CN_ENOMEM, "out of memory");
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        syms[i] = x;
    if (count > n) syms[n] = last;
    eng_ir_add(b->ir, to, syms, count);
    free(syms);
}

/* At most n times x, each number with the next lower one as its tail; ENG_RX_INF: any number. */
static struct eng_sym at_most(struct eng_bnf *b, struct eng_sym x, uint32_t n)
{
    struct eng_sym to = never;
    bool inf = n == ENG_RX_INF;
    if (eng_sym_never(x)) n = 0;
    for (uint32_t i = 0; i < (inf && n ? 1 : n) && sound(b); i++) {
        struct eng_sym tail = to;
        to = eng_ir_rule(b->ir);
        eng_ir_add(b->ir, to, NULL, 0);
        write_times(b, to, x, 1, inf ? to : tail);
    }
    return to;
}

static void write_repetition(struct eng_bnf *b, struct eng_sym to, const struct eng_bnf_node *n)
{
    struct part x = part_of(b, n->a);
    uint32_t lo = x.null ? 0 : n->lo, hi = n->hi, first = CN_MAX(lo, 1u);
    if (hi == 0 || !sound(b)) return;
    if (lo > ENG_BNF_REPEATED || (hi != ENG_RX_INF && hi > ENG_BNF_REPEATED)) {
        eng_source_fail(&b->src, n->at, CN_ELIMIT,
                        "more than %d repetitions of something that is no regular expression",
                        ENG_BNF_REPEATED);
        return;
    }
    if (eng_sym_never(x.some)) return;
    write_times(b, to, x.some, first, at_most(b, x.some, hi == ENG_RX_INF ? hi : hi - first));
}

/* Those that are expressions become one lexeme. */
static void write_or(struct eng_bnf *b, struct eng_sym to, const struct eng_bnf_node *n)
{
    uint32_t *x = cn_malloc_array(n->n, sizeof *x), count = 0, weight;
    if (!x) eng_source_stop(&b->src, CN_ENOMEM, "out of memory");
    for (uint32_t i = 0; i < n->n && sound(b); i++) {
        uint32_t kid = b->kids[n->a + i], rx = rx_of(b, kid, &weight);
        if (rx != ENG_BNF_NONE)
            x[count++] = rx;
        else
            write_alternatives(b, to, kid);
    }
    if (count && sound(b)) {
        struct part p = lexeme(b, eng_rx_or_of(&b->ir->rx, x, count));
        eng_ir_add(b->ir, to, &p.some, 1);
    }
    free(x);
}

/* The node's texts except the empty one, as alternatives of a rule. */
static void write_alternatives(struct eng_bnf *b, struct eng_sym to, uint32_t at)
{
    struct eng_bnf_node n = b->nodes[at];
    uint32_t weight;
    if (!sound(b)) return;
    if (rx_of(b, at, &weight) == ENG_BNF_NONE && n.kind == ENG_BNF_OR)
        write_or(b, to, &n);
    else if (rx_of(b, at, &weight) == ENG_BNF_NONE && n.kind == ENG_BNF_REPEAT)
        write_repetition(b, to, &n);
    else
        write_sequence(b, to, at);
}

/* ---- which may be empty ---------------------------------------------------------------------- */

/* A list of nodes to look at: each gets into it once, when it is known that it may be empty. */
struct nulls {
    uint32_t *list, n;
    uint32_t *left; /* of a CAT: children that are not known to be empty */
};

static void push(struct eng_bnf *b, struct nulls *w, uint32_t at)
{
    if (b->nodes[at].null) return;
    b->nodes[at].null = true;
    w->list[w->n++] = at;
}

static void spread(struct eng_bnf *b, struct nulls *w, uint32_t at)
{
    uint32_t up = b->nodes[at].parent;
    if (up == ENG_BNF_NONE) {
        struct eng_bnf_rule *r = &b->rules[b->nodes[at].rule];
        if (r->null) return;
        r->null = true;
        for (uint32_t i = r->refs; i != ENG_BNF_NONE; i = b->nodes[i].next)
            push(b, w, i);
    } else if (b->nodes[up].rx == ENG_BNF_NONE &&
               (b->nodes[up].kind != ENG_BNF_CAT || !--w->left[up])) {
        push(b, w, up);
    }
}

static bool is_null_itself(const struct eng_bnf *b, const struct eng_bnf_node *n)
{
    if (n->rx != ENG_BNF_NONE) return eng_rx_nullable(&b->ir->rx, n->rx);
    if (n->kind == ENG_BNF_RULE && b->rules[n->a].rx != ENG_BNF_NONE)
        return eng_rx_nullable(&b->ir->rx, b->rules[n->a].rx);
    return n->kind == ENG_BNF_REPEAT && n->lo == 0;
}

/* Only for nodes without an expression; those with one are looked at as a whole. */
static void find_nulls(struct eng_bnf *b)
{
    struct nulls w = {.list = cn_malloc_array(b->n_nodes, sizeof *w.list),
                      .left = cn_malloc_array(b->n_nodes, sizeof *w.left)};
    if (!w.list || !w.left) eng_source_stop(&b->src, CN_ENOMEM, "out of memory");
    for (uint32_t i = 0; i < b->n_nodes && !b->src.rc; i++)
        w.left[i] = b->nodes[i].n;
    for (uint32_t i = 0; i < b->n_nodes && eng_source_alive(&b->src); i++) {
        uint32_t up = b->nodes[i].parent;
        if (up != ENG_BNF_NONE && b->nodes[up].rx != ENG_BNF_NONE) continue;
        if (is_null_itself(b, &b->nodes[i])) push(b, &w, i);
    }
    while (!b->src.rc && w.n)
        spread(b, &w, w.list[--w.n]);
    free(w.list);
    free(w.left);
}

int eng_bnf_emit(struct eng_bnf *b, uint32_t root, const struct eng_bnf_groups *g,
                 struct eng_sym *out)
{
    uint32_t n = g->start[g->n];
    if (b->rules[root].rx != ENG_BNF_NONE) {
        *out = eng_ir_lexeme(b->ir, b->rules[root].rx, false);
        return b->src.rc;
    }
    find_nulls(b);
    for (uint32_t i = 0; i < n && sound(b); i++) {
        struct eng_bnf_rule *r = &b->rules[g->order[i]];
        if (r->rx != ENG_BNF_NONE) continue;
        r->sym = eng_ir_rule(b->ir);
        r->optional = r->null ? optional(b, r->sym) : r->sym;
    }
    for (uint32_t i = 0; i < n && sound(b); i++) {
        const struct eng_bnf_rule *r = &b->rules[g->order[i]];
        if (r->rx == ENG_BNF_NONE) write_alternatives(b, r->sym, r->body);
    }
    *out = b->rules[root].optional;
    return b->src.rc;
}
