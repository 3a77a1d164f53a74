/* recursion: takes left recursion out of a grammar's rules. See ir.h.
 *
 * The matcher expands rules from the left, so a rule must not begin with itself. Rules that can
 * begin with each other are one group (a strongly connected component). In a group each rule A is
 * rewritten by left corners (Rosenkrantz and Lewis, "Deterministic left corner parsing", 1970).
 * after(A, B) is what may follow a B at the beginning of an A; for all rules A, B, D of the group:
 *
 *     A            ->  beta after(A, B)     for each alternative beta of B that begins with no rule
 *                                           of the group
 *     after(A, B)  ->  gamma after(A, D)    for each alternative D -> B gamma
 *     after(A, A)  ->  (nothing)
 */
#include "engine/text/grammar/ir_impl.h"

#include <stdlib.h>

enum { MOST_GROUP = 200 };

struct work {
    struct eng_ir *ir;
    uint32_t n;      /* rules that were there before */
    bool *empty;     /* of a rule: it may be empty */
    uint32_t *group; /* of a rule: number of its group; UINT32_MAX: it has none */
    uint32_t *index, *low, *stack, n_stack, next; /* Tarjan's algorithm */
    uint32_t ticks;
    bool *on_stack;
    struct frame { uint32_t rule, seq, sym; } *frames;
    uint32_t n_frames, n_groups;
};

/* Every so many pieces of work; false: no more of it. */
static bool goes_on(struct work *w, uint32_t every)
{
    return ++w->ticks % every ? !w->ir->rx.code : eng_ir_goes_on(w->ir);
}

static bool may_be_empty(const struct work *w, struct eng_sym s)
{
    if (s.kind == ENG_SYM_RULE) return w->empty[s.id];
    return s.kind == ENG_SYM_LEXEME && eng_rx_nullable(&w->ir->rx, w->ir->lexemes[s.id].rx);
}

static bool has_empty(struct work *w, uint32_t rule)
{
    for (uint32_t k = 0; k < w->ir->rules[rule].n && goes_on(w, 4096); k++) {
        struct eng_run_of q = w->ir->seqs[w->ir->rules[rule].seqs[k]];
        uint32_t at = 0;
        while (at < q.n && may_be_empty(w, w->ir->syms[q.first + at]))
            at++;
        if (at == q.n) return true;
    }
    return false;
}

/* Forwards and backwards by turns: chains of rules take few rounds either way. */
static void find_empty(struct work *w)
{
    bool more = true;
    for (int round = 0; more && !w->ir->rx.code; round++) {
        more = false;
        for (uint32_t k = 0; k < w->n; k++) {
            uint32_t i = round % 2 ? w->n - 1 - k : k;
            if (!w->empty[i] && has_empty(w, i)) w->empty[i] = more = true;
        }
    }
}

/* The next rule that `rule` may begin with, from a place on; false: no more. */
static bool next_corner(const struct work *w, struct frame *f, uint32_t *to)
{
    const struct eng_rule *r = &w->ir->rules[f->rule];
    for (; f->seq < r->n; f->seq++, f->sym = 0) {
        struct eng_run_of q = w->ir->seqs[r->seqs[f->seq]];
        while (f->sym < q.n) {
            struct eng_sym s = w->ir->syms[q.first + f->sym];
            bool goes_on = may_be_empty(w, s);
            f->sym = goes_on ? f->sym + 1 : q.n;
            if (s.kind == ENG_SYM_RULE) {
                *to = s.id;
                return true;
            }
        }
    }
    return false;
}

static bool begins_with_itself(const struct work *w, uint32_t rule)
{
    struct frame f = {.rule = rule};
    uint32_t to;
    while (next_corner(w, &f, &to))
        if (to == rule) return true;
    return false;
}

/* Pops a component; one rule alone is a group only if it begins with itself. */
static void pop_group(struct work *w, uint32_t root)
{
    bool several = w->stack[w->n_stack - 1] != root;
    uint32_t rule;
    bool is = several || begins_with_itself(w, root);
    do {
        rule = w->stack[--w->n_stack];
        w->on_stack[rule] = false;
        if (is) w->group[rule] = w->n_groups;
    } while (rule != root);
    w->n_groups += is;
}

static void enter(struct work *w, uint32_t rule)
{
    w->index[rule] = w->low[rule] = ++w->next;
    w->stack[w->n_stack++] = rule;
    w->on_stack[rule] = true;
    w->frames[w->n_frames++] = (struct frame){.rule = rule};
}

/* Tarjan, "Depth-first search and linear graph algorithms", 1972; without recursion. */
static void find_groups(struct work *w, uint32_t root)
{
    enter(w, root);
    while (w->n_frames && goes_on(w, 4096)) {
        struct frame *f = &w->frames[w->n_frames - 1];
        uint32_t to, rule = f->rule;
        if (next_corner(w, f, &to)) {
            if (!w->index[to])
                enter(w, to);
            else if (w->on_stack[to])
                w->low[rule] = CN_MIN(w->low[rule], w->index[to]);
            continue;
        }
        w->n_frames--;
        if (w->n_frames) {
            uint32_t up = w->frames[w->n_frames - 1].rule;
            w->low[up] = CN_MIN(w->low[up], w->low[rule]);
        }
        if (w->low[rule] == w->index[rule]) pop_group(w, rule);
    }
}

/* ---- rewriting a group ----------------------------------------------------------------------- */

struct group {
    uint32_t *rules, n;    /* of the group */
    struct eng_sym *after; /* [A * n + B] */
    struct eng_rule *old;  /* of each, taken away from it */
    struct eng_sym *syms;  /* scratch */
    size_t cap;
};

static int place_in(const struct work *w, const struct group *g, struct eng_sym s)
{
    if (s.kind != ENG_SYM_RULE || s.id >= w->n || w->group[s.id] == UINT32_MAX) return -1;
    for (uint32_t i = 0; i < g->n; i++)
        if (g->rules[i] == s.id) return (int)i;
    return -1;
}

/* Adds syms[from ..] of a sequence and then `last` as an alternative of `to`. */
static int add_with(struct work *w, struct group *g, struct eng_sym to, struct eng_run_of q,
                    uint32_t from, struct eng_sym last)
{
    uint32_t n = q.n - from;
    if (cn_grow(&g->syms, &g->cap, n + (size_t)1, sizeof *g->syms)) return CN_ENOMEM;
    if (n) memcpy(g->syms, &w->ir->syms[q.first + from], n * sizeof *g->syms);
    g->syms[n] = last;
    eng_ir_add(w->ir, to, g->syms, n + (size_t)1);
    return w->ir->rx.code;
}

/* Alternative q of the group's rule d: for each A. */
static int spread(struct work *w, struct group *g, uint32_t d, struct eng_run_of q,
                  struct cn_error *err)
{
    int b = q.n ? place_in(w, g, w->ir->syms[q.first]) : -1;
    if (!goes_on(w, 16)) return w->ir->rx.code;
    for (uint32_t i = 0; i < q.n; i++) {
        struct eng_sym s = w->ir->syms[q.first + i];
        if (i && place_in(w, g, s) >= 0)
            return cn_fail(err, CN_EUNSUPP,
                           "a rule begins with itself after something that may be empty");
        if (!may_be_empty(w, s)) break;
    }
    for (uint32_t a = 0; a < g->n; a++) {
        struct eng_sym to = {ENG_SYM_RULE, g->rules[a]};
        if (b >= 0) to = g->after[a * g->n + (uint32_t)b];
        int rc = add_with(w, g, to, q, b >= 0, g->after[a * g->n + d]);
        if (rc) return rc;
    }
    return 0;
}

static int rewrite_group(struct work *w, struct group *g, struct cn_error *err)
{
    int rc = 0;
    for (uint32_t a = 0; a < g->n; a++) {
        g->old[a] = w->ir->rules[g->rules[a]];
        w->ir->rules[g->rules[a]] = (struct eng_rule){0};
        for (uint32_t b = 0; b < g->n; b++) {
            g->after[a * g->n + b] = eng_ir_rule(w->ir);
            if (a == b) eng_ir_add(w->ir, g->after[a * g->n + b], NULL, 0);
        }
    }
    rc = w->ir->rx.code;
    for (uint32_t d = 0; d < g->n && !rc; d++)
        for (uint32_t i = 0; i < g->old[d].n && !rc; i++)
            rc = spread(w, g, d, w->ir->seqs[g->old[d].seqs[i]], err);
    for (uint32_t a = 0; a < g->n; a++)
        free(g->old[a].seqs);
    return rc;
}

static int unwind_group(struct work *w, uint32_t number, struct cn_error *err)
{
    struct group g = {0};
    int rc = goes_on(w, 1) ? 0 : w->ir->rx.code;
    for (uint32_t i = 0; i < w->n; i++)
        g.n += w->group[i] == number;
    if (g.n > MOST_GROUP)
        return cn_fail(err, CN_ELIMIT, "%u rules begin with each other (at most %d)", g.n,
                       MOST_GROUP);
    g.rules = cn_malloc_array(g.n, sizeof *g.rules);
    g.after = cn_malloc_array((size_t)g.n * g.n, sizeof *g.after);
    g.old = cn_calloc(g.n, sizeof *g.old);
    if (!g.rules || !g.after || !g.old) rc = CN_ENOMEM;
    for (uint32_t i = 0, k = 0; i < w->n && !rc; i++)
        if (w->group[i] == number) g.rules[k++] = i;
    if (!rc) rc = rewrite_group(w, &g, err);
    free(g.rules);
    free(g.after);
    free(g.old);
    free(g.syms);
    return rc;
}

static void work_fini(struct work *w)
{
    free(w->empty);
    free(w->group);
    free(w->index);
    free(w->low);
    free(w->stack);
    free(w->on_stack);
    free(w->frames);
}

int eng_ir_unwind(struct eng_ir *ir, struct cn_error *err)
{
    struct work w = {.ir = ir, .n = ir->n_rules};
    int rc = 0;
    w.empty = cn_calloc(w.n, sizeof *w.empty);
    w.group = cn_malloc_array(w.n, sizeof *w.group);
    w.index = cn_calloc(w.n, sizeof *w.index);
    w.low = cn_calloc(w.n, sizeof *w.low);
    w.stack = cn_malloc_array(w.n, sizeof *w.stack);
    w.on_stack = cn_calloc(w.n, sizeof *w.on_stack);
    w.frames = cn_malloc_array(w.n, sizeof *w.frames);
    if (!w.empty || !w.group || !w.index || !w.low || !w.stack || !w.on_stack || !w.frames)
        rc = CN_ENOMEM;
    if (!rc) {
        if (w.n) memset(w.group, 0xFF, w.n * sizeof *w.group);
        find_empty(&w);
        for (uint32_t i = 0; i < w.n && !ir->rx.code; i++)
            if (!w.index[i]) find_groups(&w, i);
        rc = ir->rx.code;
    }
    for (uint32_t i = 0; i < w.n_groups && !rc; i++)
        rc = unwind_group(&w, i, err);
    work_fini(&w);
    return rc;
}
