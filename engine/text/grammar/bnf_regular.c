/* bnf: which rules are regular, and their expressions. See bnf.h. */
#include "engine/text/grammar/bnf.h"

#include <stdlib.h>

/* A rule whose expression would be heavier than ENG_BNF_WEIGHT, or higher than ENG_BNF_HEIGHT,
 * stays a rule: joining expressions takes time in proportion to the weight, and rules that double
 * each other would grow beyond any bound; derivatives are taken by recursion. */
enum { MOST_SOLVED = 8 };

static uint32_t sum(uint32_t a, uint32_t b)
{
    return a > UINT32_MAX - b ? UINT32_MAX : a + b;
}

/* Notes failures of the arena. */
static bool sound(struct eng_bnf *b)
{
    int code = b->ir->rx.code;
    if (code == CN_ELIMIT)
        eng_source_stop(&b->src, code, "the grammar is too large or too complex");
    else if (code)
        eng_source_stop(&b->src, code, "%s", cn_err_info(code)->text);
    return !b->src.rc;
}

/* ---- one node, whose children are done ------------------------------------------------------- */

uint32_t eng_bnf_power(struct eng_bnf *b, uint32_t x, uint32_t n)
{
    struct eng_rx *rx = &b->ir->rx;
    struct eng_rx_node node = *eng_rx_node(rx, x);
    uint32_t lo, hi;
    bool inf = node.hi == ENG_RX_INF;
    if (n == 1) return x;
    if (x < ENG_RX_FIRST || node.kind != ENG_RX_REPEAT || __builtin_mul_overflow(node.lo, n, &lo) ||
        (!inf && (__builtin_mul_overflow(node.hi, n, &hi) || hi == ENG_RX_INF)))
        return eng_rx_repeat(rx, x, n, n);
    return eng_rx_repeat(rx, node.a, lo, inf ? ENG_RX_INF : hi);
}

/* From the right, so that each part is copied once. */
static uint32_t join_all(struct eng_bnf *b, const uint32_t *kids, uint32_t n)
{
    uint32_t x = ENG_RX_EMPTY, same = 1;
    for (; n; n -= same) {
        uint32_t last = b->nodes[kids[n - 1]].rx;
        for (same = 1; same < n && b->nodes[kids[n - 1 - same]].rx == last; same++)
            continue;
        x = eng_rx_cat(&b->ir->rx, eng_bnf_power(b, last, same), x);
    }
    return x;
}

static uint32_t list_all(struct eng_bnf *b, const struct eng_bnf_node *node)
{
    const uint32_t *kids = &b->kids[node->a];
    uint32_t *x = cn_malloc_array(node->n, sizeof *x), out = ENG_BNF_NONE;
    if (!x) {
        eng_source_stop(&b->src, CN_ENOMEM, "out of memory");
        return ENG_BNF_NONE;
    }
    for (uint32_t i = 0; i < node->n; i++)
        x[i] = b->nodes[kids[i]].rx;
    out = node->kind == ENG_BNF_OR ? eng_rx_or_of(&b->ir->rx, x, node->n)
                                   : eng_rx_and_of(&b->ir->rx, x, node->n);
    free(x);
    return out;
}

/* Every text that does not belong to x. The bytes that mean control tokens are not text. */
static uint32_t complement(struct eng_bnf *b, uint32_t x)
{
    struct eng_rx *rx = &b->ir->rx;
    return eng_rx_and(rx, eng_spell_length(rx, b->spelling, 0, ENG_RX_INF), eng_rx_not(rx, x));
}

/* Whether all its children have expressions; the weight and height that follow. */
static bool all_regular(const struct eng_bnf *b, struct eng_bnf_node *node)
{
    bool one = node->kind == ENG_BNF_NOT || node->kind == ENG_BNF_REPEAT;
    const uint32_t *kids = one ? &node->a : &b->kids[node->a];
    uint32_t n = one ? 1 : node->n, weight = 0, height = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct eng_bnf_node *kid = &b->nodes[kids[i]];
        if (kid->rx == ENG_BNF_NONE) return false;
        weight = sum(weight, kid->weight);
        height = CN_MAX(height, kid->height);
    }
    node->weight = node->kind == ENG_BNF_CAT ? weight : 1;
    node->height = sum(height, 1);
    return true;
}

/* In a rule of Lark, ignored text may precede each terminal. */
static uint32_t in_rule(struct eng_bnf *b, uint32_t rx)
{
    return rx == ENG_RX_EMPTY ? rx : eng_rx_cat(&b->ir->rx, b->ignore, rx);
}

static void settle(struct eng_bnf *b, struct eng_bnf_node *node, bool terminal)
{
    struct eng_rx *rx = &b->ir->rx;
    const struct eng_bnf_rule *to = node->kind == ENG_BNF_RULE ? &b->rules[node->a] : NULL;
    if (node->kind == ENG_BNF_SYM) return;
    if (node->kind == ENG_BNF_RX) {
        if (!terminal) node->rx = in_rule(b, node->a);
        return;
    }
    if (to) {
        node->weight = to->weight;
        node->height = to->height;
        node->rx = to->rx;
        if (node->rx != ENG_BNF_NONE && to->terminal && !terminal) node->rx = in_rule(b, node->rx);
        return;
    }
    if (!all_regular(b, node)) return;
    if (!terminal && (node->weight > ENG_BNF_WEIGHT || node->height > ENG_BNF_HEIGHT)) return;
    switch (node->kind) {
    case ENG_BNF_CAT:
        node->rx = join_all(b, &b->kids[node->a], node->n);
        break;
    case ENG_BNF_REPEAT:
        node->rx = eng_rx_repeat(rx, b->nodes[node->a].rx, node->lo, node->hi);
        break;
    case ENG_BNF_NOT:
        node->rx = complement(b, b->nodes[node->a].rx);
        break;
    default:
        node->rx = list_all(b, node);
        break;
    }
}

static void settle_rule(struct eng_bnf *b, struct eng_bnf_rule *r)
{
    for (uint32_t i = r->first; i < r->end && eng_source_alive(&b->src); i++)
        settle(b, &b->nodes[i], r->terminal);
    r->rx = b->nodes[r->body].rx;
    r->weight = b->nodes[r->body].weight;
    r->height = b->nodes[r->body].height;
}

static bool refers_to(const struct eng_bnf *b, const struct eng_bnf_rule *r, uint32_t rule)
{
    for (uint32_t i = r->first; i < r->end; i++)
        if (b->nodes[i].kind == ENG_BNF_RULE && b->nodes[i].a == rule) return true;
    return false;
}

static void settle_group(struct eng_bnf *b, const uint32_t *rules, uint32_t n)
{
    bool recursive = n > 1 || refers_to(b, &b->rules[rules[0]], rules[0]);
    for (uint32_t i = 0; i < n && !b->src.rc; i++) {
        struct eng_bnf_rule *r = &b->rules[rules[i]];
        struct eng_str name = eng_bnf_name(b, rules[i]);
        settle_rule(b, r);
        if (r->terminal && recursive && sound(b))
            eng_source_fail(&b->src, r->at, CN_EINVAL, "the terminal %.*s refers to itself",
                            (int)name.n, name.p);
    }
    if (recursive && n <= MOST_SOLVED && sound(b)) eng_bnf_solve(b, rules, n);
}

int eng_bnf_find_regular(struct eng_bnf *b, const struct eng_bnf_groups *g)
{
    for (uint32_t i = 0; i < g->n && sound(b); i++)
        settle_group(b, &g->order[g->start[i]], g->start[i + 1] - g->start[i]);
    sound(b);
    return b->src.rc;
}

/* ---- recursion at one end -------------------------------------------------------------------- */

/* A rule X of the group is a sum of terms A Y (at the right end; Y A at the left), Y a rule of the
 * group, and a rest: a row of n + 1 expressions. X = A X | B has the solution A* B (D. N. Arden,
 * "Delayed-logic and finite-state machines", 1961). */
struct system {
    struct eng_bnf *b;
    const uint32_t *rules;
    uint32_t n;
    bool right;
    uint32_t *rows; /* n of them */
    uint32_t *of;   /* rows of a rule's nodes, from its first on */
};

static uint32_t times(struct system *s, uint32_t outer, uint32_t inner)
{
    struct eng_rx *rx = &s->b->ir->rx;
    return s->right ? eng_rx_cat(rx, outer, inner) : eng_rx_cat(rx, inner, outer);
}

static bool cat_row(struct system *s, const struct eng_bnf_node *node, uint32_t first,
                    uint32_t *row)
{
    struct eng_bnf *b = s->b;
    const uint32_t *kids = &b->kids[node->a];
    uint32_t end = s->right ? node->n - 1 : 0, from = s->right ? 0 : 1;
    for (uint32_t i = from; i < from + node->n - 1; i++)
        if (b->nodes[kids[i]].rx == ENG_BNF_NONE) return false;
    uint32_t outer = join_all(b, &kids[from], node->n - 1);
    const uint32_t *inner = &s->of[(size_t)(kids[end] - first) * (s->n + 1)];
    for (uint32_t k = 0; k <= s->n; k++)
        row[k] = times(s, outer, inner[k]);
    return true;
}

/* A node's row, from those of its children; false: it has none. */
static bool find_row(struct system *s, uint32_t at, uint32_t first)
{
    struct eng_bnf *b = s->b;
    struct eng_rx *rx = &b->ir->rx;
    const struct eng_bnf_node *node = &b->nodes[at];
    uint32_t *row = &s->of[(size_t)(at - first) * (s->n + 1)];
    if (node->rx != ENG_BNF_NONE) {
        row[s->n] = node->rx;
        return true;
    }
    switch (node->kind) {
    case ENG_BNF_RULE:
        for (uint32_t k = 0; k < s->n; k++)
            if (s->rules[k] == node->a) return row[k] = ENG_RX_EMPTY, true;
        return false;
    case ENG_BNF_CAT:
        return cat_row(s, node, first, row);
    case ENG_BNF_OR:
        for (uint32_t i = 0; i < node->n; i++) {
            const uint32_t *kid = &s->of[(size_t)(b->kids[node->a + i] - first) * (s->n + 1)];
            for (uint32_t k = 0; k <= s->n; k++)
                row[k] = eng_rx_or(rx, row[k], kid[k]);
        }
        return true;
    case ENG_BNF_REPEAT:
        if (node->lo > 1 || node->hi != 1) return false;
        memcpy(row, &s->of[(size_t)(node->a - first) * (s->n + 1)], (s->n + 1) * sizeof *row);
        if (!node->lo) row[s->n] = eng_rx_or(rx, row[s->n], ENG_RX_EMPTY);
        return true;
    default:
        return false;
    }
}

static bool rule_row(struct system *s, uint32_t rule, uint32_t *row)
{
    const struct eng_bnf_rule *r = &s->b->rules[rule];
    size_t width = s->n + (size_t)1;
    bool is = true;
    s->of = cn_calloc((r->end - r->first) * width, sizeof *s->of); /* ENG_RX_NONE is 0 */
    if (!s->of) eng_source_stop(&s->b->src, CN_ENOMEM, "out of memory");
    for (uint32_t i = r->first; i < r->end && is && s->of; i++)
        is = sound(s->b) && eng_source_alive(&s->b->src) && find_row(s, i, r->first);
    is &= s->of != NULL;
    if (is) memcpy(row, &s->of[(r->body - r->first) * width], width * sizeof *row);
    free(s->of);
    return is;
}

/* Takes rule i out of the right sides of all. */
static void eliminate(struct system *s, uint32_t i)
{
    struct eng_rx *rx = &s->b->ir->rx;
    uint32_t width = s->n + 1, *row = &s->rows[i * width];
    uint32_t star = eng_rx_repeat(rx, row[i], 0, ENG_RX_INF);
    row[i] = ENG_RX_NONE;
    for (uint32_t k = 0; k < width; k++)
        row[k] = times(s, star, row[k]);
    for (uint32_t j = 0; j < s->n; j++) {
        uint32_t *other = &s->rows[j * width], with = other[i];
        if (j == i || with == ENG_RX_NONE) continue;
        other[i] = ENG_RX_NONE;
        for (uint32_t k = 0; k < width; k++)
            other[k] = eng_rx_or(rx, other[k], times(s, with, row[k]));
    }
}

static bool solve_at(struct eng_bnf *b, const uint32_t *rules, uint32_t n, bool right,
                     uint32_t *rows)
{
    struct system s = {.b = b, .rules = rules, .n = n, .right = right, .rows = rows};
    for (uint32_t i = 0; i < n; i++)
        if (!rule_row(&s, rules[i], &rows[i * (n + 1)])) return false;
    for (uint32_t i = 0; i < n && sound(b); i++)
        eliminate(&s, i);
    return !b->src.rc;
}

int eng_bnf_solve(struct eng_bnf *b, const uint32_t *rules, uint32_t n)
{
    uint32_t rows[MOST_SOLVED * (MOST_SOLVED + 1)], weight = 1, height = 1;
    for (uint32_t i = 0; i < n; i++) {
        const struct eng_bnf_rule *r = &b->rules[rules[i]];
        for (uint32_t k = r->first; k < r->end; k++) {
            weight = sum(weight, b->nodes[k].rx != ENG_BNF_NONE ? b->nodes[k].weight : 1);
            height = CN_MAX(height, b->nodes[k].height);
        }
    }
    height = sum(height, 3 * n); /* a sum, a product and a star for each rule that is solved */
    if (weight > ENG_BNF_WEIGHT / (n * n) || height > ENG_BNF_HEIGHT) return 0;
    if (!solve_at(b, rules, n, true, rows) && !b->src.rc && !solve_at(b, rules, n, false, rows))
        return b->src.rc;
    for (uint32_t i = 0; i < n && sound(b); i++) {
        struct eng_bnf_rule *r = &b->rules[rules[i]];
        r->rx = rows[i * (n + 1) + n];
        r->weight = n * n * weight;
        r->height = height;
    }
    return b->src.rc;
}
