/* schema: which goals can be satisfied at all. See schema_impl.h.
 *
 * A goal can if one of its scalars is there, or an object or array whose required parts can. All
 * start as impossible, and rounds find more until one finds none: a recursion without an end stays
 * impossible. */
#include "engine/text/grammar/schema_impl.h"

#include <stdlib.h>

enum { MOST_COUNTED = 1000 };

static bool sat(const struct eng_sc *sc, uint32_t goal)
{
    return sc->goals[goal].sat;
}

/* ---- objects --------------------------------------------------------------------------------- */

/* Marks the members that must be there; false: one of them cannot be. */
static bool mark_required(struct eng_sc *sc, const struct eng_sc_alt *alt, bool *is, uint32_t *n)
{
    bool more = true;
    *n = 0;
    for (uint32_t i = 0; i < alt->n_members; i++)
        is[i] = alt->members[i].required;
    while (more && eng_sc_step(sc, alt->n_needs)) {
        more = false;
        for (uint32_t i = 0; i < alt->n_needs; i++) {
            const struct eng_need *d = &alt->needs[i];
            if (is[d->has] && !is[d->needs]) is[d->needs] = more = true;
        }
    }
    for (uint32_t i = 0; i < alt->n_members; i++) {
        *n += is[i];
        if (is[i] && !sat(sc, alt->members[i].goal)) return false;
    }
    return true;
}

/* Whether undeclared names can give as many members as are missing. */
static bool others_suffice(struct eng_sc *sc, const struct eng_sc_alt *alt, uint32_t missing)
{
    for (uint32_t i = 0; i < alt->n_others && missing; i++) {
        uint64_t n = 0, most = CN_MIN(missing, (uint32_t)MOST_COUNTED);
        if (!sat(sc, alt->others[i].goal)) continue;
        if (!eng_rx_count(&sc->ir->rx, alt->others[i].rx, most, &n)) return true;
        if (n >= missing) return true;
        missing -= (uint32_t)n;
    }
    return missing == 0;
}

static bool object_sat(struct eng_sc *sc, const struct eng_sc_alt *alt)
{
    uint32_t n = 0, possible = 0;
    bool *is = cn_calloc(alt->n_members + (size_t)1, sizeof *is), good;
    if (!is) return eng_sc_nomem(sc), false;
    good = mark_required(sc, alt, is, &n) && n <= alt->max;
    free(is);
    if (!good || !alt->min) return good;
    for (uint32_t i = 0; i < alt->n_members; i++)
        possible += sat(sc, alt->members[i].goal);
    return possible >= alt->min || others_suffice(sc, alt, alt->min - possible);
}

/* ---- arrays ---------------------------------------------------------------------------------- */

uint32_t eng_sc_values(struct eng_sc *sc, uint32_t goal, uint32_t most)
{
    const struct eng_sc_goal *g = &sc->goals[goal];
    uint32_t rx[3] = {g->words, g->number, g->text};
    uint64_t all = 0;
    for (const struct eng_sc_alt *alt = g->alts; alt; alt = alt->next)
        if (alt->sat) return ENG_RX_INF;
    for (size_t i = 0; i < CN_ARRAY_LEN(rx); i++) {
        uint64_t n = 0;
        if (!eng_rx_count(&sc->ir->rx, rx[i], most, &n)) return ENG_RX_INF;
        all += n;
    }
    return all > most ? ENG_RX_INF : (uint32_t)all;
}

uint32_t eng_sc_longest(const struct eng_sc *sc, const struct eng_sc_alt *alt)
{
    for (uint32_t i = 0; i < alt->n_items; i++)
        if (!sat(sc, alt->items[i].in) && !sat(sc, alt->items[i].out)) return CN_MIN(i, alt->max);
    if (sat(sc, alt->rest.in) || sat(sc, alt->rest.out)) return alt->max;
    return CN_MIN(alt->n_items, alt->max);
}

uint32_t eng_sc_shortest(const struct eng_sc *sc, const struct eng_sc_alt *alt)
{
    uint32_t longest = eng_sc_longest(sc, alt), must = 0, may = 0, n = 0, more;
    for (; n < alt->n_items && n < longest && (n < alt->min || may < alt->min_in); n++) {
        may += sat(sc, alt->items[n].in);
        must += !sat(sc, alt->items[n].out);
    }
    more = CN_MAX(alt->min - CN_MIN(n, alt->min), alt->min_in - CN_MIN(may, alt->min_in));
    if (more > longest - n || (may < alt->min_in && !sat(sc, alt->rest.in))) return ENG_RX_INF;
    if (!sat(sc, alt->rest.out)) must = more > ENG_RX_INF - must ? ENG_RX_INF : must + more;
    return must > alt->max_in ? ENG_RX_INF : n + more;
}

static bool array_sat(struct eng_sc *sc, const struct eng_sc_alt *alt)
{
    if (!eng_sc_step(sc, alt->n_items) || eng_sc_shortest(sc, alt) == ENG_RX_INF) return false;
    if (!alt->unique || alt->min < 2 || alt->n_items || alt->min_in) return true;
    return eng_sc_values(sc, alt->rest.out, CN_MIN(alt->min - 1, (uint32_t)MOST_COUNTED)) ==
           ENG_RX_INF;
}

/* ---- all ------------------------------------------------------------------------------------- */

static bool look_at(struct eng_sc *sc, uint32_t goal)
{
    struct eng_sc_goal *g = &sc->goals[goal];
    bool changed = false, any = g->words || g->number || g->text;
    for (struct eng_sc_alt *alt = g->alts; alt && eng_sc_step(sc, 1); alt = alt->next) {
        if (!alt->sat) {
            alt->sat = alt->object ? object_sat(sc, alt) : array_sat(sc, alt);
            changed |= alt->sat;
        }
        any |= alt->sat;
    }
    changed |= any && !g->sat;
    g->sat |= any;
    return changed;
}

void eng_sc_satisfy(struct eng_sc *sc)
{
    bool changed = true;
    while (changed && eng_sc_step(sc, sc->n_queue)) {
        changed = false;
        for (uint32_t i = sc->n_queue;
             i-- && !sc->code;) /* parts mostly come after what they are of */
            changed |= look_at(sc, sc->queue[i]);
    }
    eng_sc_rx_ok(sc, 0);
}

/* The first part of an impossible alternative that has to be there and cannot. 0: none is found. */
static uint32_t culprit(const struct eng_sc *sc, const struct eng_sc_alt *alt)
{
    for (uint32_t i = 0; i < alt->n_members; i++)
        if (alt->members[i].required && !sat(sc, alt->members[i].goal)) return alt->members[i].goal;
    for (uint32_t i = 0; i < alt->n_items && i < alt->min; i++)
        if (!sat(sc, alt->items[i].in) && !sat(sc, alt->items[i].out)) return alt->items[i].out;
    return !alt->object && alt->min > alt->n_items ? alt->rest.out : 0;
}

uint32_t eng_sc_why_not(const struct eng_sc *sc, uint32_t goal)
{
    enum { FAR_ENOUGH = 100 }; /* a recursion without an end has no last one */
    for (unsigned i = 0; i < FAR_ENOUGH; i++) {
        uint32_t next = 0;
        for (const struct eng_sc_alt *alt = sc->goals[goal].alts; alt && !next; alt = alt->next)
            next = culprit(sc, alt);
        if (!next) break;
        goal = next;
    }
    return sc->goals[goal].n ? sc->lits[sc->goals[goal].first] >> 1 : 0;
}
