/* bnf: the tree of a grammar that is being read, and the order of its rules. See bnf.h. */
#include "engine/text/grammar/bnf.h"

#include <stdlib.h>

int eng_bnf_init(struct eng_bnf *b, struct eng_ir *ir)
{
    b->ir = ir;
    b->ignore = ENG_RX_EMPTY;
    if (!eng_keys_init(&b->names, 64, 1024) && !eng_strmap_init(&b->by_name, 64)) return 0;
    return eng_source_stop(&b->src, CN_ENOMEM, "out of memory");
}

void eng_bnf_fini(struct eng_bnf *b)
{
    free(b->nodes);
    free(b->kids);
    free(b->syms);
    free(b->rules);
    eng_keys_fini(&b->names);
    eng_strmap_fini(&b->by_name);
}

/* ---- rules ----------------------------------------------------------------------------------- */

uint32_t eng_bnf_rule(struct eng_bnf *b, const char *name, size_t n, size_t at)
{
    uint32_t rule = eng_strmap_get(&b->by_name, &b->names, name, n);
    if (rule != ENG_NO_ID) return rule;
    if (b->n_rules == ENG_BNF_RULES)
        eng_source_fail(&b->src, at, CN_ELIMIT, "more than %d rules", ENG_BNF_RULES);
    if (b->src.rc) return ENG_BNF_NONE;
    rule = b->n_rules;
    if (cn_grow(&b->rules, &b->rules_cap, rule + (size_t)1, sizeof *b->rules) ||
        eng_keys_add(&b->names, name, n) || eng_strmap_put(&b->by_name, &b->names, rule, NULL)) {
        eng_source_stop(&b->src, CN_ENOMEM, "out of memory");
        return ENG_BNF_NONE;
    }
    b->rules[b->n_rules++] = (struct eng_bnf_rule){
        .body = ENG_BNF_NONE, .refs = ENG_BNF_NONE, .rx = ENG_BNF_NONE, .at = (uint32_t)at};
    return rule;
}

struct eng_str eng_bnf_name(const struct eng_bnf *b, uint32_t rule)
{
    struct eng_str name = eng_key(&b->names, rule);
    name.n = CN_MIN(name.n, (size_t)100); /* for messages */
    return name;
}

void eng_bnf_define(struct eng_bnf *b, uint32_t rule, uint32_t body, size_t at)
{
    if (b->src.rc) return;
    struct eng_bnf_rule *r = &b->rules[rule];
    struct eng_str name = eng_bnf_name(b, rule);
    if (r->body != ENG_BNF_NONE) {
        eng_source_fail(&b->src, at, CN_EINVAL, "the rule %.*s is defined twice", (int)name.n,
                        name.p);
        return;
    }
    r->body = body;
    r->at = (uint32_t)at;
    r->first = b->first;
    r->end = b->first = b->n_nodes;
    for (uint32_t i = r->first; i < r->end; i++) {
        b->nodes[i].rule = rule;
        if (b->nodes[i].kind == ENG_BNF_TOKENS)
            eng_source_fail(&b->src, b->nodes[i].at, CN_EUNSUPP,
                            "any one token but some is not supported, only any number of them: "
                            "repeat it by `*` or `+`");
    }
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static uint32_t add_node(struct eng_bnf *b, struct eng_bnf_node node)
{
    size_t bytes = (b->n_nodes + (size_t)1) * sizeof *b->nodes;
    if (!b->src.rc && bytes > b->ir->max_bytes) {
        b->ir->rx.full = true;
        eng_source_stop(&b->src, CN_ELIMIT, "the grammar is too large");
    }
    if (b->src.rc) return ENG_BNF_NONE;
    if (cn_grow(&b->nodes, &b->nodes_cap, b->n_nodes + (size_t)1, sizeof *b->nodes)) {
        eng_source_stop(&b->src, CN_ENOMEM, "out of memory");
        return ENG_BNF_NONE;
    }
    node.parent = node.next = ENG_BNF_NONE;
    if (node.kind != ENG_BNF_RX) node.rx = ENG_BNF_NONE;
    b->nodes[b->n_nodes] = node;
    return b->n_nodes++;
}

uint32_t eng_bnf_rx(struct eng_bnf *b, uint32_t rx, uint32_t weight, uint32_t height)
{
    return add_node(b,
                    (struct eng_bnf_node){
                        .kind = ENG_BNF_RX, .a = rx, .rx = rx, .weight = weight, .height = height});
}

uint32_t eng_bnf_sym(struct eng_bnf *b, struct eng_sym s)
{
    if (b->src.rc) return ENG_BNF_NONE;
    if (cn_grow(&b->syms, &b->syms_cap, b->n_syms + (size_t)1, sizeof *b->syms)) {
        eng_source_stop(&b->src, CN_ENOMEM, "out of memory");
        return ENG_BNF_NONE;
    }
    b->syms[b->n_syms] = s;
    return add_node(b, (struct eng_bnf_node){.kind = ENG_BNF_SYM, .a = b->n_syms++});
}

uint32_t eng_bnf_ref(struct eng_bnf *b, uint32_t rule, size_t at)
{
    struct eng_bnf_node node = {.kind = ENG_BNF_RULE, .a = rule, .at = (uint32_t)at};
    uint32_t i = add_node(b, node);
    if (i == ENG_BNF_NONE) return i;
    b->nodes[i].next = b->rules[rule].refs;
    b->rules[rule].refs = i;
    return i;
}

uint32_t eng_bnf_tokens(struct eng_bnf *b, uint32_t any_number, size_t at)
{
    return add_node(
        b, (struct eng_bnf_node){.kind = ENG_BNF_TOKENS, .a = any_number, .at = (uint32_t)at});
}

uint32_t eng_bnf_list(struct eng_bnf *b, enum eng_bnf_kind kind, const uint32_t *kids, size_t n)
{
    struct eng_bnf_node node = {.kind = (uint8_t)kind, .a = b->n_kids, .n = (uint32_t)n};
    if (b->src.rc) return ENG_BNF_NONE;
    if (n == 1) return kids[0];
    if (!n) return eng_bnf_rx(b, kind == ENG_BNF_CAT ? ENG_RX_EMPTY : ENG_RX_NONE, 1, 1);
    if (cn_grow(&b->kids, &b->kids_cap, b->n_kids + n, sizeof *b->kids)) {
        eng_source_stop(&b->src, CN_ENOMEM, "out of memory");
        return ENG_BNF_NONE;
    }
    memcpy(&b->kids[b->n_kids], kids, n * sizeof *kids);
    b->n_kids += (uint32_t)n;
    uint32_t i = add_node(b, node);
    for (size_t k = 0; k < n && i != ENG_BNF_NONE; k++)
        b->nodes[kids[k]].parent = i;
    return i;
}

void eng_bnf_push(struct eng_bnf *b, struct eng_bnf_kids *kids, uint32_t node)
{
    if (b->src.rc) return;
    if (cn_grow(&kids->v, &kids->cap, kids->n + 1, sizeof *kids->v))
        eng_source_stop(&b->src, CN_ENOMEM, "out of memory");
    else
        kids->v[kids->n++] = node;
}

uint32_t eng_bnf_close(struct eng_bnf *b, enum eng_bnf_kind kind, struct eng_bnf_kids *kids)
{
    uint32_t node = eng_bnf_list(b, kind, kids->v, kids->n);
    free(kids->v);
    *kids = (struct eng_bnf_kids){0};
    return node;
}

uint32_t eng_bnf_not(struct eng_bnf *b, uint32_t kid)
{
    uint32_t i = add_node(b, (struct eng_bnf_node){.kind = ENG_BNF_NOT, .a = kid});
    if (i != ENG_BNF_NONE) b->nodes[kid].parent = i;
    return i;
}

/* Tokens that are repeated become an expression. */
static uint32_t many_tokens(struct eng_bnf *b, struct eng_bnf_node *tokens, bool some)
{
    struct eng_rx *rx = &b->ir->rx;
    uint32_t x = tokens->a;
    if (some) x = eng_rx_and(rx, x, eng_rx_not(rx, ENG_RX_EMPTY));
    *tokens = (struct eng_bnf_node){
        .kind = ENG_BNF_RX, .parent = ENG_BNF_NONE, .a = x, .rx = x, .weight = 1, .height = 8};
    return (uint32_t)(tokens - b->nodes);
}

uint32_t eng_bnf_repeat(struct eng_bnf *b, uint32_t kid, uint32_t lo, uint32_t hi, size_t at)
{
    if (!b->src.rc && b->nodes[kid].kind == ENG_BNF_TOKENS && lo <= 1 && hi == ENG_RX_INF)
        return many_tokens(b, &b->nodes[kid], lo == 1);
    struct eng_bnf_node node = {
        .kind = ENG_BNF_REPEAT, .a = kid, .lo = lo, .hi = hi, .at = (uint32_t)at};
    uint32_t i = add_node(b, node);
    if (i != ENG_BNF_NONE) b->nodes[kid].parent = i;
    return i;
}

uint32_t eng_bnf_text(struct eng_bnf *b, const char *text, size_t n)
{
    if (b->src.rc) return ENG_BNF_NONE;
    return eng_bnf_rx(b, eng_spell_text(&b->ir->rx, b->spelling, text, n), (uint32_t)n + 1, 1);
}

uint32_t eng_bnf_class(struct eng_bnf *b, const struct eng_ranges *set)
{
    if (b->src.rc) return ENG_BNF_NONE;
    return eng_bnf_rx(b, eng_spell_class(&b->ir->rx, b->spelling, set->v, set->n), 4, 4);
}

bool eng_bnf_enter(struct eng_bnf *b, size_t at)
{
    if (++b->depth <= ENG_BNF_DEPTH) return true;
    eng_source_fail(&b->src, at, CN_ELIMIT, "more than %d parentheses in one another",
                    ENG_BNF_DEPTH);
    return false;
}

/* ---- the order of the rules ------------------------------------------------------------------ */

/* Tarjan, "Depth-first search and linear graph algorithms", 1972; without recursion. */
struct walk {
    uint32_t *index, *low, *stack, next, n_stack;
    bool *on_stack;
    struct frame { uint32_t rule, node; } *frames;
    uint32_t n_frames;
};

void eng_bnf_groups_fini(struct eng_bnf_groups *g)
{
    free(g->order);
    free(g->start);
}

static void enter_rule(const struct eng_bnf *b, struct walk *w, uint32_t rule)
{
    w->index[rule] = w->low[rule] = ++w->next;
    w->stack[w->n_stack++] = rule;
    w->on_stack[rule] = true;
    w->frames[w->n_frames++] = (struct frame){rule, b->rules[rule].first};
}

static void leave_rule(struct walk *w, struct eng_bnf_groups *out)
{
    uint32_t rule = w->frames[--w->n_frames].rule, top, n = out->start[out->n];
    if (w->n_frames) {
        uint32_t up = w->frames[w->n_frames - 1].rule;
        w->low[up] = CN_MIN(w->low[up], w->low[rule]);
    }
    if (w->low[rule] != w->index[rule]) return;
    do {
        top = w->stack[--w->n_stack];
        w->on_stack[top] = false;
        out->order[n++] = top;
    } while (top != rule);
    out->start[++out->n] = n;
}

static void walk_from(struct eng_bnf *b, struct walk *w, uint32_t root, struct eng_bnf_groups *out)
{
    enter_rule(b, w, root);
    while (w->n_frames && eng_source_alive(&b->src)) {
        struct frame *f = &w->frames[w->n_frames - 1];
        const struct eng_bnf_node *node = &b->nodes[f->node];
        if (f->node == b->rules[f->rule].end) {
            leave_rule(w, out);
            continue;
        }
        f->node++;
        if (node->kind != ENG_BNF_RULE) continue;
        if (!w->index[node->a])
            enter_rule(b, w, node->a);
        else if (w->on_stack[node->a])
            w->low[f->rule] = CN_MIN(w->low[f->rule], w->index[node->a]);
    }
}

int eng_bnf_group(struct eng_bnf *b, uint32_t root, struct eng_bnf_groups *out)
{
    struct walk w = {.index = cn_calloc(b->n_rules, sizeof *w.index),
                     .low = cn_calloc(b->n_rules, sizeof *w.low),
                     .stack = cn_calloc(b->n_rules, sizeof *w.stack),
                     .on_stack = cn_calloc(b->n_rules, sizeof *w.on_stack),
                     .frames = cn_calloc(b->n_rules, sizeof *w.frames)};
    *out = (struct eng_bnf_groups){
        .order = cn_calloc(b->n_rules, sizeof *out->order),
        .start = cn_calloc(b->n_rules + (size_t)1, sizeof *out->start),
    };
    if (w.index && w.low && w.stack && w.on_stack && w.frames && out->order && out->start)
        walk_from(b, &w, root, out);
    else
        eng_source_stop(&b->src, CN_ENOMEM, "out of memory");
    free(w.index);
    free(w.low);
    free(w.stack);
    free(w.on_stack);
    free(w.frames);
    return b->src.rc;
}

void eng_bnf_all_defined(struct eng_bnf *b)
{
    for (uint32_t i = 0; i < b->n_rules && !b->src.rc; i++) {
        struct eng_str name = eng_bnf_name(b, i);
        if (b->rules[i].body == ENG_BNF_NONE)
            eng_source_fail(&b->src, b->rules[i].at, CN_EINVAL, "%.*s is not defined", (int)name.n,
                            name.p);
    }
}

uint32_t eng_bnf_terminal(struct eng_bnf *b, uint32_t rule)
{
    struct eng_bnf_groups g = {0};
    eng_bnf_group(b, rule, &g);
    if (!b->src.rc) eng_bnf_find_regular(b, &g);
    eng_bnf_groups_fini(&g);
    return b->src.rc ? ENG_BNF_NONE : b->rules[rule].rx;
}

int eng_bnf_compile(struct eng_bnf *b, uint32_t root, struct eng_sym *out)
{
    struct eng_bnf_groups g = {0};
    eng_bnf_all_defined(b);
    if (!b->src.rc) eng_bnf_group(b, root, &g);
    if (!b->src.rc) eng_bnf_find_regular(b, &g);
    if (!b->src.rc) eng_bnf_emit(b, root, &g, out);
    eng_bnf_groups_fini(&g);
    return b->src.rc;
}
