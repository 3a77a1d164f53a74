/* schema: goals as symbols of the grammar. See schema_impl.h. */
#include "engine/text/grammar/schema_impl.h"

#include <stdlib.h>

static const struct eng_sym never = {ENG_SYM_NEVER, 0};

static struct eng_sym lexeme(struct eng_sc *sc, uint32_t rx)
{
    uint32_t *at = eng_sc_put(sc, &sc->by_lexeme, &rx, sizeof rx);
    if (!at) return never;
    if (*at == ENG_SC_NONE) {
        struct eng_sym s = eng_ir_lexeme(sc->ir, rx, true);
        if (eng_sym_never(s)) return s;
        *at = s.id;
    }
    return (struct eng_sym){ENG_SYM_LEXEME, *at};
}

static uint32_t between(struct eng_sc *sc, uint32_t quote, uint32_t rx)
{
    struct eng_rx *r = &sc->ir->rx;
    return eng_rx_cat(r, quote, eng_rx_cat(r, rx, quote));
}

/* A text of which nothing but its length matters may have every spelling: models write \u00e9 for
 * what is no ASCII, and \u001b. Only here, where nothing is compared with it any more. */
static uint32_t any_spelling(struct eng_sc *sc, uint32_t rx)
{
    struct eng_rx *r = &sc->ir->rx;
    uint32_t any = eng_rx_node(r, sc->any_text)->a;
    const struct eng_rx_node n = *eng_rx_node(r, rx);
    if (sc->ir->spelling != ENG_SPELL_JSON || sc->unique || rx < ENG_RX_FIRST ||
        n.kind != ENG_RX_REPEAT || n.a != any)
        return rx;
    return eng_spell_length(r, ENG_SPELL_JSON_ANY, n.lo, n.hi);
}

/* A string. */
static uint32_t quoted(struct eng_sc *sc, uint32_t rx)
{
    struct eng_rx *r = &sc->ir->rx;
    if (sc->opts.style != ENG_STYLE_BARE) rx = any_spelling(sc, rx);
    if (sc->opts.style != ENG_STYLE_BARE) return between(sc, sc->quote, rx);
    if (sc->opts.barred != ENG_RX_NONE) rx = eng_rx_and(r, rx, eng_rx_not(r, sc->opts.barred));
    return between(sc, sc->opts.quote, rx);
}

/* The symbol of a goal; one that is not emitted yet gets a rule. */
static struct eng_sym sym_of(struct eng_sc *sc, uint32_t goal)
{
    struct eng_sc_goal *g = &sc->goals[goal];
    if (!g->sat || sc->code) return never;
    if (!g->emitted && !g->has_rule) {
        g->has_rule = true;
        g->sym = eng_ir_rule(sc->ir);
    }
    return g->sym;
}

/* ---- objects and arrays ---------------------------------------------------------------------- */

static struct eng_sym name_lexeme(struct eng_sc *sc, uint32_t name)
{
    struct eng_rx *r = &sc->ir->rx;
    const char *text = sc->names[name].text;
    uint32_t rx = eng_spell_text(r, sc->ir->spelling, text, strlen(text));
    if (sc->opts.style == ENG_STYLE_BARE && !eng_rx_matches(r, sc->any_name, text, strlen(text))) {
        eng_sc_fail(sc, 0, CN_EUNSUPP,
                    "the name \"%.100s\" cannot be written in the form in which this model calls",
                    text);
        return never;
    }
    return lexeme(sc, eng_rx_cat(r, sc->quote, eng_rx_cat(r, rx, sc->name_end)));
}

/* Needs between members that are left. at: where each is now; ENG_SC_NONE: it is left out. */
static uint32_t keep_needs(const struct eng_sc_alt *alt, const uint32_t *at, struct eng_need *out)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < alt->n_needs; i++) {
        uint32_t has = at[alt->needs[i].has], needs = at[alt->needs[i].needs];
        if (has != ENG_SC_NONE && needs != ENG_SC_NONE) out[n++] = (struct eng_need){has, needs};
    }
    return n;
}

/* Marks what cannot be there: impossible values, and what needs such a member. */
static void leave_out(struct eng_sc *sc, const struct eng_sc_alt *alt, uint32_t *at)
{
    bool more = true;
    uint32_t n = 0;
    for (uint32_t i = 0; i < alt->n_members; i++)
        at[i] = sc->goals[alt->members[i].goal].sat ? 0 : ENG_SC_NONE;
    while (more && eng_sc_step(sc, alt->n_needs)) {
        more = false;
        for (uint32_t i = 0; i < alt->n_needs; i++) {
            const struct eng_need *d = &alt->needs[i];
            if (at[d->has] != ENG_SC_NONE && at[d->needs] == ENG_SC_NONE) {
                at[d->has] = ENG_SC_NONE;
                more = true;
            }
        }
    }
    for (uint32_t i = 0; i < alt->n_members; i++)
        if (at[i] != ENG_SC_NONE) at[i] = n++;
}

static struct eng_sym object_sym(struct eng_sc *sc, const struct eng_sc_alt *alt)
{
    struct eng_member *members = eng_sc_alloc(sc, (alt->n_members + (size_t)1) * sizeof *members);
    struct eng_other *others = eng_sc_alloc(sc, (alt->n_others + (size_t)1) * sizeof *others);
    struct eng_need *needs = eng_sc_alloc(sc, (alt->n_needs + (size_t)1) * sizeof *needs);
    uint32_t *at = eng_sc_alloc(sc, (alt->n_members + (size_t)1) * sizeof *at);
    uint32_t n = 0, n_others = 0;
    if (sc->code) return never;
    leave_out(sc, alt, at);
    for (uint32_t i = 0; i < alt->n_members && eng_sc_step(sc, 1); i++) {
        const struct eng_sc_member *m = &alt->members[i];
        if (at[i] == ENG_SC_NONE) continue;
        members[n++] = (struct eng_member){.name = name_lexeme(sc, m->name).id,
                                           .value = sym_of(sc, m->goal),
                                           .required = m->required,
                                           .loose = m->loose};
    }
    for (uint32_t i = 0; i < alt->n_others && eng_sc_step(sc, 1); i++) {
        const struct eng_sc_other *o = &alt->others[i];
        if (sc->goals[o->goal].sat)
            others[n_others++] =
                (struct eng_other){between(sc, sc->quote, o->rx), sym_of(sc, o->goal)};
    }
    if (!eng_sc_rx_ok(sc, 0)) return never;
    const struct eng_object of = {
        .min = alt->min, .max = alt->max, .bare = sc->opts.style == ENG_STYLE_BARE};
    return eng_ir_object(sc->ir, &of, members, n, others, n_others, needs,
                         keep_needs(alt, at, needs));
}

static struct eng_sym array_sym(struct eng_sc *sc, const struct eng_sc_alt *alt)
{
    uint32_t longest = eng_sc_longest(sc, alt), n = CN_MIN(longest, alt->n_items);
    struct eng_item *items = eng_sc_alloc(sc, (n + (size_t)1) * sizeof *items);
    struct eng_array a = {.min = eng_sc_shortest(sc, alt),
                          .max = longest,
                          .min_in = alt->min_in,
                          .max_in = alt->max_in,
                          .unique = alt->unique};
    if (!items) return never;
    if (a.unique && sc->opts.style == ENG_STYLE_BARE) {
        eng_sc_fail(sc, 0, CN_EUNSUPP,
                    "uniqueItems is not supported in the form in which this model calls");
        return never;
    }
    for (uint32_t i = 0; i < n && eng_sc_step(sc, 1); i++)
        items[i] = (struct eng_item){sym_of(sc, alt->items[i].in), sym_of(sc, alt->items[i].out)};
    if (longest > alt->n_items)
        a.rest = (struct eng_item){sym_of(sc, alt->rest.in), sym_of(sc, alt->rest.out)};
    if (a.unique && !alt->n_items && !alt->min_in && !eng_sym_never(a.rest.out)) {
        /* No more items than there are values. */
        uint32_t most = CN_MIN(longest, 1000u);
        a.max = CN_MIN(a.max, eng_sc_values(sc, alt->rest.out, most));
    }
    return sc->code ? never : eng_ir_array(sc->ir, &a, items, n);
}

/* ---- all ------------------------------------------------------------------------------------- */

static void reach(struct eng_sc *sc, uint32_t goal)
{
    if (!sc->goals[goal].sat || sc->goals[goal].reached) return;
    sc->goals[goal].reached = true;
    eng_sc_push(sc, goal);
}

static void reach_all(struct eng_sc *sc, const struct eng_sc_alt *alt)
{
    for (uint32_t i = 0; i < alt->n_members; i++)
        reach(sc, alt->members[i].goal);
    for (uint32_t i = 0; i < alt->n_others; i++)
        reach(sc, alt->others[i].goal);
    for (uint32_t i = 0; i < alt->n_items; i++) {
        reach(sc, alt->items[i].in);
        reach(sc, alt->items[i].out);
    }
    reach(sc, alt->rest.in);
    reach(sc, alt->rest.out);
}

/* Adds an alternative to the goal's rule, if it has one. */
static struct eng_sym add(struct eng_sc *sc, uint32_t goal, struct eng_sym s)
{
    if (sc->goals[goal].has_rule) eng_ir_add(sc->ir, sc->goals[goal].sym, &s, 1);
    return s;
}

/* Goals of the same scalars are one symbol. False: this is the first one, or not of scalars alone.
 */
static bool emitted_before(struct eng_sc *sc, uint32_t goal, uint32_t **at)
{
    struct eng_sc_goal *g = &sc->goals[goal];
    uint32_t key[3] = {g->words, g->number, g->text};
    *at = NULL;
    if (g->alts || g->has_rule) return false;
    *at = eng_sc_put(sc, &sc->by_scalars, key, sizeof key);
    if (!*at || **at == ENG_SC_NONE) return false;
    g->sym = sc->goals[**at].sym;
    return g->emitted = true;
}

static void emit(struct eng_sc *sc, uint32_t goal)
{
    uint32_t *same;
    if (emitted_before(sc, goal, &same)) return;
    if (same) *same = goal;
    const struct eng_sc_goal g = sc->goals[goal];
    uint32_t scalars[3] = {g.words, g.number, g.text ? quoted(sc, g.text) : ENG_RX_NONE}, n = 0;
    struct eng_sym only = never;
    for (size_t i = 0; i < CN_ARRAY_LEN(scalars); i++)
        n += scalars[i] != ENG_RX_NONE;
    for (const struct eng_sc_alt *alt = g.alts; alt; alt = alt->next)
        n += alt->sat;
    if (n > 1) sym_of(sc, goal); /* a rule */
    for (size_t i = 0; i < CN_ARRAY_LEN(scalars) && !sc->code; i++)
        if (scalars[i] != ENG_RX_NONE) only = add(sc, goal, lexeme(sc, scalars[i]));
    for (const struct eng_sc_alt *alt = g.alts; alt && !sc->code; alt = alt->next) {
        if (alt->sat) only = add(sc, goal, alt->object ? object_sym(sc, alt) : array_sym(sc, alt));
    }
    if (!sc->goals[goal].has_rule) sc->goals[goal].sym = only;
    sc->goals[goal].emitted = true;
}

struct eng_sym eng_sc_emit(struct eng_sc *sc, uint32_t root)
{
    struct eng_rx *r = &sc->ir->rx;
    uint32_t from = sc->n_tmp, colon = eng_rx_literal(r, ":", 1);
    /* a model writes no white space in front of a colon */
    bool any = sc->ir->spelling == ENG_SPELL_JSON_ANY;
    if (any) colon = eng_rx_cat(r, sc->ir->space, colon);
    sc->name_end = eng_rx_cat(r, sc->quote, colon);
    reach(sc, root);
    for (uint32_t i = from; i < sc->n_tmp && eng_sc_step(sc, 1); i++)
        for (const struct eng_sc_alt *alt = sc->goals[sc->tmp[i]].alts; alt; alt = alt->next)
            if (alt->sat) reach_all(sc, alt);
    for (uint32_t i = sc->n_tmp; i-- > from && !sc->code;)
        emit(sc, sc->tmp[i]);
    sc->n_tmp = from;
    eng_sc_rx_ok(sc, 0);
    return sc->goals[root].sym;
}
