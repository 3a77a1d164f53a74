/* cost: least lengths of everything in a grammar, in tokens. See ir.h.
 *
 * Costs are infinite (UINT32_MAX) at first and sink until nothing changes any more: of a recursive
 * grammar the least texts are those that end the recursion soonest (Knuth, "A generalization of
 * Dijkstra's algorithm", 1977, gives the order; rounds over all do as well here). */
#include "engine/text/grammar/ir_impl.h"

#include <stdlib.h>

enum { MOST_ROUNDS = 10000 };

uint32_t eng_ir_cost(const struct eng_ir *ir, struct eng_sym s)
{
    switch (s.kind) {
    case ENG_SYM_LEXEME:
        return ir->lexemes[s.id].cost;
    case ENG_SYM_RULE:
        return ir->rule_cost[s.id];
    case ENG_SYM_OBJECT:
        return ir->object_cost[s.id];
    case ENG_SYM_ARRAY:
        return ir->array_cost[s.id];
    default:
        return UINT32_MAX;
    }
}

/* Of few texts it may be the longest; of many there are others hardly longer than the shortest. */
uint32_t eng_ir_cost_anew(const struct eng_ir *ir, struct eng_sym s)
{
    enum { LONG = 50 };
    uint32_t cost = eng_ir_cost(ir, s), longest;
    if (s.kind != ENG_SYM_LEXEME || cost == UINT32_MAX) return eng_cost_add(cost, ENG_COST_ANEW);
    longest = eng_rx_max_len(&ir->rx, ir->lexemes[s.id].rx);
    return longest <= LONG ? CN_MAX(longest, cost) : eng_cost_add(cost, 1);
}

static uint32_t cost_of_seq(const struct eng_ir *ir, struct eng_run_of q)
{
    uint32_t c = 0;
    for (uint32_t i = 0; i < q.n; i++)
        c = eng_cost_add(c, eng_ir_cost(ir, ir->syms[q.first + i]));
    return c;
}

static uint32_t cost_of_rule(struct eng_ir *ir, const struct eng_rule *r)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < r->n; i++) {
        uint32_t c = cost_of_seq(ir, ir->seqs[r->seqs[i]]);
        ir->seq_cost[r->seqs[i]] = c;
        best = CN_MIN(best, c);
    }
    return best;
}

/* ---- objects --------------------------------------------------------------------------------- */

static uint32_t cost_of_member(const struct eng_ir *ir, const struct eng_member *m)
{
    return eng_cost_add(eng_cost_add(ir->lexemes[m->name].cost, eng_ir_cost(ir, m->value)), 1);
}

static int ascending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Marks the members that must be there, through needs as well. Returns how many. */
static uint32_t mark_required(const struct eng_ir *ir, const struct eng_object *o, bool *is)
{
    uint32_t n = 0;
    bool more = true;
    for (uint32_t i = 0; i < o->members.n; i++)
        is[i] = ir->members[o->members.first + i].required;
    while (more) {
        more = false;
        for (uint32_t i = 0; i < o->needs.n; i++) {
            const struct eng_need *d = &ir->needs[o->needs.first + i];
            if (is[d->has] && !is[d->needs]) is[d->needs] = more = true;
        }
    }
    for (uint32_t i = 0; i < o->members.n; i++)
        n += is[i];
    return n;
}

/* Braces, what is required, and the cheapest members beside it up to `min`. A comma is counted for
 * each member. */
static int cost_of_object(struct eng_ir *ir, const struct eng_object *o, uint32_t *out)
{
    uint32_t n = o->members.n, c = 2, n_free = 0, other = UINT32_MAX;
    bool *is = cn_malloc_array(n, sizeof *is);
    uint32_t *spare = cn_malloc_array(n, sizeof *spare);
    if (!is || !spare) {
        free(is);
        free(spare);
        return CN_ENOMEM;
    }
    uint32_t there = mark_required(ir, o, is);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t of = cost_of_member(ir, &ir->members[o->members.first + i]);
        if (is[i])
            c = eng_cost_add(c, of);
        else
            spare[n_free++] = of;
    }
    for (uint32_t i = 0; i < o->others.n; i++) {
        const struct eng_other *t = &ir->others[o->others.first + i];
        uint32_t of = eng_cost_add(eng_rx_min_len(&ir->rx, t->name), eng_ir_cost(ir, t->value));
        other = CN_MIN(other, eng_cost_add(of, 2));
    }
    qsort(spare, n_free, sizeof *spare, ascending);
    for (uint32_t i = 0; there < o->min && c != UINT32_MAX; i++, there++) {
        uint32_t of = i < n_free ? CN_MIN(spare[i], other) : other;
        if (i >= n_free && of != UINT32_MAX) { /* all the rest are undeclared */
            uint64_t rest = (uint64_t)of * (o->min - there);
            c = rest > UINT32_MAX ? UINT32_MAX : eng_cost_add(c, (uint32_t)rest);
            break;
        }
        c = eng_cost_add(c, of);
    }
    if (there > o->max) c = UINT32_MAX;
    free(is);
    free(spare);
    *out = c;
    return 0;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

/* n items; each as cheap as it can be. Of `in` there must be some: those that cost least more. */
static int cost_of_array(struct eng_ir *ir, const struct eng_array *a, uint32_t *out)
{
    uint32_t n = CN_MAX(a->min, a->min_in), first = CN_MIN(n, a->items.n), c = 2, in = a->min_in;
    uint32_t *more = cn_malloc_array(first, sizeof *more), n_more = 0;
    uint32_t (*cost)(const struct eng_ir *, struct eng_sym) =
        a->unique && n > 1 ? eng_ir_cost_anew : eng_ir_cost;
    uint32_t rest_in = cost(ir, a->rest.in), rest_out = cost(ir, a->rest.out);
    uint64_t sum;
    if (!more) return CN_ENOMEM;
    for (uint32_t i = 0; i < first; i++) {
        const struct eng_item *t = &ir->items[a->items.first + i];
        uint32_t yes = cost(ir, t->in), no = cost(ir, t->out);
        if (no == UINT32_MAX && yes != UINT32_MAX) {
            c = eng_cost_add(c, eng_cost_add(yes, 1));
            in -= in > 0;
            continue;
        }
        c = eng_cost_add(c, eng_cost_add(no, 1));
        if (yes != UINT32_MAX) more[n_more++] = yes > no ? yes - no : 0;
    }
    qsort(more, n_more, sizeof *more, ascending);
    uint32_t left = n - first, take = 0;
    if (left && (rest_in != UINT32_MAX || rest_out == UINT32_MAX)) take = CN_MIN(in, left);
    if (rest_out == UINT32_MAX) take = left;
    sum = (uint64_t)take * (rest_in + 1ull) + (uint64_t)(left - take) * (rest_out + 1ull);
    if (left && (sum >= UINT32_MAX || (take && rest_in == UINT32_MAX))) c = UINT32_MAX;
    if (left) c = eng_cost_add(c, (uint32_t)CN_MIN(sum, (uint64_t)UINT32_MAX));
    in -= CN_MIN(in, take);
    for (uint32_t i = 0; in && c != UINT32_MAX; i++, in--)
        c = i < n_more ? eng_cost_add(c, more[i]) : UINT32_MAX;
    if (n > a->max) c = UINT32_MAX;
    free(more);
    *out = c;
    return 0;
}

/* ---- all ------------------------------------------------------------------------------------- */

enum { ASK_EVERY = 4096 }; /* things that were weighed */

/* n more things to weigh; false: rx.code is set. */
static bool goes_on(struct eng_ir *ir, uint32_t *ticks, uint32_t n)
{
    *ticks += 1 + CN_MIN(n, (uint32_t)ASK_EVERY);
    if (*ticks < ASK_EVERY) return true;
    *ticks = 0;
    return eng_ir_goes_on(ir);
}

/* Rules forwards and backwards by turns: chains of them take few rounds either way. */
static int one_round(struct eng_ir *ir, bool backwards, bool *changed, uint32_t *ticks)
{
    uint32_t c;
    *changed = false;
    for (uint32_t i = 0; i < ir->n_objects; i++) {
        int rc = cost_of_object(ir, &ir->objects[i], &c);
        if (!rc && !goes_on(ir, ticks, ir->objects[i].members.n)) rc = ir->rx.code;
        if (rc) return rc;
        *changed |= c < ir->object_cost[i];
        ir->object_cost[i] = CN_MIN(c, ir->object_cost[i]);
    }
    for (uint32_t i = 0; i < ir->n_arrays; i++) {
        int rc = cost_of_array(ir, &ir->arrays[i], &c);
        if (!rc && !goes_on(ir, ticks, ir->arrays[i].items.n)) rc = ir->rx.code;
        if (rc) return rc;
        *changed |= c < ir->array_cost[i];
        ir->array_cost[i] = CN_MIN(c, ir->array_cost[i]);
    }
    for (uint32_t k = 0; k < ir->n_rules; k++) {
        uint32_t i = backwards ? ir->n_rules - 1 - k : k;
        if (!goes_on(ir, ticks, ir->rules[i].n)) return ir->rx.code;
        c = cost_of_rule(ir, &ir->rules[i]);
        *changed |= c < ir->rule_cost[i];
        ir->rule_cost[i] = CN_MIN(c, ir->rule_cost[i]);
    }
    return 0;
}

static uint32_t *infinite(uint32_t n)
{
    uint32_t *v = cn_malloc_array(n, sizeof *v);
    if (v && n) memset(v, 0xFF, n * sizeof *v);
    return v;
}

int eng_ir_weigh(struct eng_ir *ir)
{
    bool changed = true;
    uint32_t ticks = 0;
    ir->seq_cost = infinite(ir->n_seqs);
    ir->rule_cost = infinite(ir->n_rules);
    ir->object_cost = infinite(ir->n_objects);
    ir->array_cost = infinite(ir->n_arrays);
    if (!ir->seq_cost || !ir->rule_cost || !ir->object_cost || !ir->array_cost) return CN_ENOMEM;
    for (int round = 0; changed; round++) {
        if (round == MOST_ROUNDS) return CN_ELIMIT;
        int rc = one_round(ir, round % 2 > 0, &changed, &ticks);
        if (!rc) rc = ir->rx.code;
        if (rc) return rc;
    }
    return 0;
}
