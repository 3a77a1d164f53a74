/* schema: objects and arrays as alternatives. See schema_impl.h.
 *
 * A formula is taken apart: what must hold is assumed, and of a disjunction one branch after
 * another is tried. Before that, branches that contradict the facts are dropped, and a
 * disjunction with a branch that the facts imply is: so a union whose branches differ in the
 * value of one property gives one alternative per branch, whatever else is negated. */
#include "engine/text/grammar/schema_impl.h"

#include <stdlib.h>

enum { MOST_CHOICES = 400 }; /* one inside of the other */

/* Lists of facts share their ends, so that going back costs nothing. */
static const struct eng_sc_fact *cons(struct eng_sc_split *s, const struct eng_sc_fact *next,
                                      const struct eng_sc_fact *of)
{
    struct eng_sc_fact *f = eng_sc_alloc(s->sc, sizeof *f);
    if (!f) return next;
    *f = *of;
    f->next = next;
    return f;
}

/* What is still to do. */
struct work {
    const struct eng_sc_fact *pending, *ors,
        *some; /* some: ENG_A_SOME_MEMBER, which waits until all names are known */
};

/* The arguments of a conjunction, each with a part of its place in the order. */
static void push_all(struct eng_sc_split *s, struct work *w, const struct eng_sc_fact *of)
{
    struct eng_sc_form f = s->sc->forms[of->form];
    uint64_t width = (of->to - of->from) / f.b;
    for (uint32_t i = f.b; i-- && eng_sc_step(s->sc, 1);) {
        struct eng_sc_fact part = *of;
        part.form = s->sc->args[f.a + i];
        part.from = of->from + width * i;
        part.to = part.from + width;
        w->pending = cons(s, w->pending, &part);
    }
}

static void push_scope(struct eng_sc_split *s, struct work *w, const struct eng_sc_fact *of)
{
    struct eng_sc_form f = s->sc->forms[of->form];
    struct eng_sc_scope *scope = eng_sc_alloc(s->sc, sizeof *scope);
    struct eng_sc_fact part = *of;
    if (!scope) return;
    *scope = (struct eng_sc_scope){f.annots ? of->scope : NULL, f.node, f.lit, f.neg};
    part.scope = scope;
    if (f.neg && s->type == ENG_SC_OBJECT)
        w->some = cons(s, w->some, &part);
    else
        eng_sc_assume(s, &part);
    part.form = f.a;
    w->pending = cons(s, w->pending, &part);
}

/* Assumes what must hold; disjunctions are put aside. False: it is contradictory. */
static bool drain(struct eng_sc_split *s, struct work *w)
{
    while (w->pending && eng_sc_step(s->sc, 1)) {
        const struct eng_sc_fact *of = w->pending;
        uint8_t kind = s->sc->forms[of->form].kind;
        w->pending = of->next;
        if (of->form == ENG_F_FALSE) return false;
        if (of->form == ENG_F_TRUE) continue;
        if (kind == ENG_F_AND)
            push_all(s, w, of);
        else if (kind == ENG_F_SCOPE)
            push_scope(s, w, of);
        else if (kind == ENG_F_OR)
            w->ors = cons(s, w->ors, of);
        else if (kind == ENG_A_SOME_MEMBER)
            w->some = cons(s, w->some, of);
        else if (!eng_sc_assume(s, of))
            return false;
    }
    return !s->sc->code;
}

/* The branches of a disjunction that are possible: how many, and the last one. 0 with *holds: one
 * of them is implied. */
static uint32_t branches(struct eng_sc_split *s, const struct eng_sc_fact *of, uint32_t *last,
                         bool *holds)
{
    struct eng_sc_form f = s->sc->forms[of->form];
    uint32_t n = 0;
    *holds = false;
    for (uint32_t i = 0; i < f.b && eng_sc_step(s->sc, 1); i++) {
        uint32_t arg = s->sc->args[f.a + i];
        *holds = eng_sc_implied(s, arg, of->scope);
        if (*holds) return 0;
        if (eng_sc_contradicted(s, arg)) continue;
        *last = arg;
        n++;
    }
    return n;
}

/* Drops what is decided until only choices are left; *best: the smallest. False: contradictory. */
static bool propagate(struct eng_sc_split *s, struct work *w, const struct eng_sc_fact **best)
{
    for (;;) {
        const struct eng_sc_fact *kept = NULL;
        uint32_t fewest = UINT32_MAX;
        *best = NULL;
        if (!drain(s, w)) return false;
        for (const struct eng_sc_fact *of = w->ors; of && eng_sc_step(s->sc, 1); of = of->next) {
            uint32_t last = 0;
            bool holds;
            uint32_t n = branches(s, of, &last, &holds);
            if (holds) continue;
            if (n == 0) return false;
            struct eng_sc_fact one = *of;
            one.form = last;
            if (n == 1) {
                w->pending = cons(s, w->pending, &one);
                continue;
            }
            kept = cons(s, kept, of);
            if (n >= fewest) continue;
            fewest = n;
            *best = kept;
        }
        w->ors = kept;
        if (!w->pending || s->sc->code) return !s->sc->code;
    }
}

static void undo(struct eng_sc_split *s, uint32_t n_trail, uint32_t n_seen)
{
    for (; s->n_trail > n_trail; s->n_trail--) {
        uint32_t t = s->trail[s->n_trail - 1];
        s->state[t >> 2] &= (uint8_t)~(t & 3);
    }
    for (; s->n_seen_trail > n_seen; s->n_seen_trail--)
        s->seen[s->seen_trail[s->n_seen_trail - 1]] = false;
}

static const struct eng_sc_fact *without(struct eng_sc_split *s, const struct eng_sc_fact *list,
                                         const struct eng_sc_fact *one)
{
    const struct eng_sc_fact *out = NULL;
    for (; list && eng_sc_step(s->sc, 1); list = list->next)
        if (list != one) out = cons(s, out, list);
    return out;
}

/* The negation of a branch, where that is an atom about one name: alternatives after it need not
 * overlap with it. ENG_F_TRUE: it is not. */
static uint32_t opposite(struct eng_sc *sc, uint32_t form)
{
    struct eng_sc_form f = sc->forms[form];
    bool about_value = f.kind == ENG_A_VALUE || f.kind == ENG_A_LIMIT;
    if (f.kind == ENG_A_PRESENT)
        f.kind = ENG_A_ABSENT;
    else if (f.kind == ENG_A_ABSENT)
        f.kind = ENG_A_PRESENT;
    else if (about_value && eng_sc_is_enum(sc, f.lit))
        f.kind = f.kind == ENG_A_VALUE ? ENG_A_LIMIT : ENG_A_VALUE;
    else
        return ENG_F_TRUE;
    f.lit ^= about_value;
    return eng_sc_atom(sc, &f);
}

static void finish(struct eng_sc_split *s)
{
    if (++s->n_alts > ENG_SC_ALTERNATIVES) {
        eng_sc_fail(s->sc, s->node, CN_ELIMIT,
                    "more than %d alternatives for one value (anyOf, oneOf, enum, not, if)",
                    ENG_SC_ALTERNATIVES);
    } else if (s->type == ENG_SC_OBJECT) {
        eng_sc_object(s);
    } else {
        eng_sc_array(s);
    }
}

static void solve(struct eng_sc_split *s, struct work w, unsigned depth)
{
    uint32_t n_trail = s->n_trail, n_seen = s->n_seen_trail, min = s->min, max = s->max;
    const struct eng_sc_fact *known = s->facts, *best = NULL;
    bool possible = propagate(s, &w, &best);
    while (possible && !best && w.some && !s->sc->code) { /* all names are known now */
        struct eng_sc_fact one = *w.some;
        w.some = w.some->next;
        one.form = eng_sc_some_member(s, &one);
        one.scope = NULL;
        w.pending = cons(s, w.pending, &one);
        possible = propagate(s, &w, &best);
    }
    if (possible && !best) finish(s);
    if (possible && best && depth == MOST_CHOICES)
        eng_sc_fail(s->sc, s->node, CN_ELIMIT, "more than %d choices for one value", MOST_CHOICES);
    if (possible && best && !s->sc->code) {
        struct eng_sc_form f = s->sc->forms[best->form];
        struct work inner = {.ors = without(s, w.ors, best), .some = w.some};
        const struct eng_sc_fact *others_not = NULL;
        for (uint32_t i = 0; i < f.b && eng_sc_step(s->sc, 1); i++) {
            struct eng_sc_fact one = *best;
            one.form = s->sc->args[f.a + i];
            if (eng_sc_contradicted(s, one.form)) continue;
            inner.pending = cons(s, others_not, &one);
            solve(s, inner, depth + 1);
            one.form = opposite(s->sc, one.form);
            one.scope = NULL;
            if (one.form != ENG_F_TRUE) others_not = cons(s, others_not, &one);
        }
    }
    s->facts = known;
    s->min = min;
    s->max = max;
    undo(s, n_trail, n_seen);
}

void eng_sc_split(struct eng_sc *sc, uint32_t goal, enum eng_sc_type t, uint32_t form)
{
    struct eng_sc_split s = {.sc = sc, .goal = goal, .type = t, .max = ENG_RX_INF};
    struct eng_sc_fact first = {.form = form, .to = UINT64_MAX};
    struct work w = {0};
    if (form == ENG_F_FALSE || sc->code) return;
    if (sc->goals[goal].n) s.node = sc->lits[sc->goals[goal].first] >> 1;
    w.pending = cons(&s, NULL, &first);
    solve(&s, w, 0);
    sc->bytes -= s.cap_state + s.cap_seen +
                 (s.cap_trail * sizeof *s.trail + s.cap_seen_trail * sizeof *s.seen_trail);
    free(s.state);
    free(s.trail);
    free(s.seen);
    free(s.seen_trail);
}
