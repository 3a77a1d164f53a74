/* schema: an alternative of an object, from the facts that hold in it. See schema_impl.h. */
#include "engine/text/grammar/schema_impl.h"

#include <stdlib.h>

/* Marks a name that must or must not be there. */
static void decide(struct eng_sc_split *s, uint32_t name, enum eng_sc_form_kind kind)
{
    struct eng_sc_form f = {.kind = (uint8_t)kind, .node = s->node, .a = name};
    struct eng_sc_fact fact = {.form = eng_sc_atom(s->sc, &f), .from = UINT64_MAX};
    eng_sc_assume(s, &fact);
}

/* The goal of a declared name's value. */
static uint32_t goal_of_name(struct eng_sc_split *s, uint32_t name)
{
    struct eng_sc *sc = s->sc;
    uint32_t from = sc->n_tmp, n;
    if (eng_sc_name_state(s, name) & ENG_NAME_ABSENT) return 0;
    eng_sc_name_lits(s, name, true);
    n = sc->n_tmp - from;
    sc->n_tmp = from;
    return sc->code ? 0 : eng_sc_goal(sc, &sc->tmp[from], n);
}

/* What dependentRequired implies, until nothing changes. */
static void close_needs(struct eng_sc_split *s)
{
    bool more = true;
    while (more && eng_sc_step(s->sc, 1)) {
        more = false;
        for (const struct eng_sc_fact *fact = s->facts; fact && eng_sc_step(s->sc, 1);
             fact = fact->next) {
            struct eng_sc_form f = s->sc->forms[fact->form];
            if (f.kind != ENG_A_NEEDS) continue;
            uint8_t has = eng_sc_name_state(s, f.a), needs = eng_sc_name_state(s, f.b);
            if (has & ENG_NAME_PRESENT && !(needs & ENG_NAME_PRESENT)) {
                decide(s, f.b, ENG_A_PRESENT);
                more = true;
            }
            if (needs & ENG_NAME_ABSENT && !(has & ENG_NAME_ABSENT)) {
                decide(s, f.a, ENG_A_ABSENT);
                more = true;
            }
        }
    }
}

/* Pairs of members of which one needs the other. index: of names among the members. */
static void add_needs(struct eng_sc_split *s, struct eng_sc_alt *alt)
{
    struct eng_sc *sc = s->sc;
    uint32_t n = 0;
    for (uint32_t i = 0; i < alt->n_members; i++)
        sc->names[alt->members[i].name].index = i;
    for (const struct eng_sc_fact *fact = s->facts; fact; fact = fact->next)
        n += sc->forms[fact->form].kind == ENG_A_NEEDS;
    alt->needs = n ? eng_sc_alloc(sc, n * sizeof *alt->needs) : NULL;
    for (const struct eng_sc_fact *fact = s->facts; fact && !sc->code && n; fact = fact->next) {
        struct eng_sc_form f = sc->forms[fact->form];
        if (f.kind != ENG_A_NEEDS || eng_sc_name_state(s, f.a) & ENG_NAME_ABSENT ||
            eng_sc_name_state(s, f.b) & ENG_NAME_PRESENT || f.a == f.b)
            continue;
        alt->needs[alt->n_needs++] = (struct eng_need){sc->names[f.a].index, sc->names[f.b].index};
    }
}

static bool add_members(struct eng_sc_split *s, struct eng_sc_alt *alt, uint32_t at, uint32_t n,
                        uint32_t ordered)
{
    struct eng_sc *sc = s->sc;
    uint32_t *goals = eng_sc_alloc(sc, (n + (size_t)1) * sizeof *goals);
    alt->members = eng_sc_alloc(sc, (n + (size_t)1) * sizeof *alt->members);
    for (uint32_t i = 0; i < n && !sc->code; i++) {
        uint32_t name = sc->tmp[at + i];
        goals[i] = goal_of_name(s, name);
        if (goals[i] == 0 && !(eng_sc_name_state(s, name) & ENG_NAME_ABSENT))
            decide(s, name, ENG_A_ABSENT);
    }
    close_needs(s);
    for (uint32_t i = 0; i < n && !sc->code; i++) {
        uint8_t state = eng_sc_name_state(s, sc->tmp[at + i]);
        if (state == (ENG_NAME_PRESENT | ENG_NAME_ABSENT)) return false;
        if (state & ENG_NAME_ABSENT) continue;
        alt->members[alt->n_members++] =
            (struct eng_sc_member){.name = sc->tmp[at + i],
                                   .goal = goals[i],
                                   .required = state & ENG_NAME_PRESENT,
                                   .loose = i >= ordered || sc->opts.any_order};
    }
    return !sc->code;
}

void eng_sc_object(struct eng_sc_split *s)
{
    struct eng_sc *sc = s->sc;
    struct eng_sc_other others[ENG_SC_CLASSES];
    struct eng_sc_alt *alt = eng_sc_alloc(sc, sizeof *alt);
    uint32_t at = sc->n_tmp, ordered = eng_sc_names_of(s), n = sc->n_tmp - at;
    if (sc->code) return;
    alt->object = true;
    bool possible = add_members(s, alt, at, n, ordered);
    if (possible) {
        add_needs(s, alt);
        alt->n_others = eng_sc_others(s, at, n, others);
        alt->others = eng_sc_alloc(sc, (alt->n_others + (size_t)1) * sizeof *alt->others);
        alt->min = s->min;
        alt->max = s->max;
    }
    sc->n_tmp = at;
    if (!possible || sc->code) return;
    for (uint32_t i = 0; i < alt->n_others; i++) {
        alt->others[i] = others[i];
        eng_sc_want(sc, others[i].goal);
    }
    for (uint32_t i = 0; i < alt->n_members; i++)
        eng_sc_want(sc, alt->members[i].goal);
    eng_sc_add_alt(sc, s->goal, alt);
}
