/* schema: an alternative of an array, from the facts that hold in it. See schema_impl.h.
 *
 * Each of the first places has a goal, and the rest has one. At most one condition counts items
 * (contains, or "some item"): the goals are split then into those with and without it. */
#include "engine/text/grammar/schema_impl.h"

/* The condition that counts items. */
struct counter {
    uint32_t lit, first; /* counts from item `first` on; lit ENG_LIT_TRUE: there is none */
    uint32_t lo, hi, node;
};

static struct eng_sc_form form_at(const struct eng_sc_split *s, const struct eng_sc_fact *fact)
{
    return s->sc->forms[fact->form];
}

/* ---- unevaluatedItems ------------------------------------------------------------------------ */

/* Items that the scope evaluates: the first ones, how many; ENG_RX_INF: all. Pushes the literals of
 * `contains`, which evaluate an item that has them. */
static uint32_t evaluated(struct eng_sc_split *s, const struct eng_sc_scope *scope)
{
    struct eng_sc *sc = s->sc;
    uint32_t n = 0;
    for (const struct eng_sc_fact *fact = s->facts; fact && eng_sc_step(sc, 1); fact = fact->next) {
        struct eng_sc_form f = form_at(s, fact);
        if (!eng_sc_in_scope(fact->scope, scope)) continue;
        if (f.kind == ENG_F_SCOPE && fact->scope != scope && !f.neg) return ENG_RX_INF;
        if (!f.annots) continue;
        if (f.kind == ENG_A_CONTAINS) eng_sc_push(sc, f.lit);
        if (f.kind != ENG_A_ITEMS) continue;
        if (eng_sc_rest(sc, f.node)) return ENG_RX_INF;
        n = CN_MAX(n, (uint32_t)json_array_size(eng_sc_prefix(sc, f.node)));
    }
    return n;
}

/* What an item has that the scope does not evaluate otherwise: *first is where these begin. */
static uint32_t left_lit(struct eng_sc_split *s, const struct eng_sc_fact *fact, uint32_t *first)
{
    struct eng_sc *sc = s->sc;
    uint32_t from = sc->n_tmp, lit;
    *first = evaluated(s, fact->scope);
    eng_sc_push(sc, form_at(s, fact).lit);
    lit = sc->code ? ENG_LIT_TRUE
                   : eng_sc_lit_any(sc, form_at(s, fact).node, &sc->tmp[from], sc->n_tmp - from);
    sc->n_tmp = from;
    return lit;
}

/* ---- places ---------------------------------------------------------------------------------- */

/* How many places have schemas of their own. */
static uint32_t count_places(struct eng_sc_split *s)
{
    struct eng_sc *sc = s->sc;
    uint32_t n = 0, first, from = sc->n_tmp;
    for (const struct eng_sc_fact *fact = s->facts; fact && eng_sc_step(sc, 1); fact = fact->next) {
        struct eng_sc_form f = form_at(s, fact);
        if (f.kind == ENG_A_ITEMS)
            n = CN_MAX(n, (uint32_t)json_array_size(eng_sc_prefix(sc, f.node)));
        if (f.kind == ENG_A_ITEM) n = CN_MAX(n, f.a + 1);
        if (f.kind == ENG_A_SOME_ITEM) n = CN_MAX(n, f.a);
        if (f.kind == ENG_A_THIS) n = CN_MAX(n, (uint32_t)json_array_size(f.json));
        if (f.kind != ENG_F_SCOPE) continue;
        first = evaluated(s, fact->scope);
        sc->n_tmp = from;
        if (first != ENG_RX_INF) n = CN_MAX(n, first);
    }
    if (n > ENG_SC_PLACES)
        eng_sc_fail(sc, s->node, CN_ELIMIT, "more than %d items with schemas of their own",
                    ENG_SC_PLACES);
    return n;
}

/* Pushes what the facts demand of item i; i = the number of places: of the rest. */
static void push_item_lits(struct eng_sc_split *s, uint32_t i)
{
    struct eng_sc *sc = s->sc;
    for (const struct eng_sc_fact *fact = s->facts; fact && eng_sc_step(sc, 1); fact = fact->next) {
        struct eng_sc_form f = form_at(s, fact);
        if (f.kind == ENG_A_ITEMS) {
            json_t *own = json_array_get(eng_sc_prefix(sc, f.node), i);
            json_t *rest = own ? own : eng_sc_rest(sc, f.node);
            if (rest) eng_sc_push(sc, eng_sc_lit(sc, f.node, rest));
        } else if (f.kind == ENG_A_ITEM && f.a == i) {
            eng_sc_push(sc, f.lit);
        } else if (f.kind == ENG_A_THIS) {
            json_t *v = json_array_get(f.json, i);
            eng_sc_push(sc, v ? eng_sc_lit_const(sc, f.node, v) : ENG_LIT_FALSE);
        } else if (f.kind == ENG_F_SCOPE && !f.neg) {
            uint32_t first, lit = left_lit(s, fact, &first);
            if (i >= first) eng_sc_push(sc, lit);
        }
    }
}

static uint32_t goal_with(struct eng_sc *sc, uint32_t from, uint32_t n, uint32_t lit)
{
    uint32_t at = sc->n_tmp, goal;
    for (uint32_t i = 0; i < n && !sc->code; i++)
        eng_sc_push(sc, sc->tmp[from + i]);
    eng_sc_push(sc, lit);
    goal = sc->code ? 0 : eng_sc_goal(sc, &sc->tmp[at], sc->n_tmp - at);
    sc->n_tmp = at;
    return goal;
}

static struct eng_sc_item goals_of_item(struct eng_sc_split *s, uint32_t i, const struct counter *c)
{
    struct eng_sc *sc = s->sc;
    struct eng_sc_item item = {0};
    uint32_t from = sc->n_tmp, n;
    push_item_lits(s, i);
    n = sc->n_tmp - from;
    if (c->lit == ENG_LIT_TRUE || i < c->first) {
        item.out = goal_with(sc, from, n, ENG_LIT_TRUE);
    } else {
        item.in = goal_with(sc, from, n, c->lit);
        item.out = goal_with(sc, from, n, c->lit ^ 1);
    }
    sc->n_tmp = from;
    return item;
}

/* ---- counting -------------------------------------------------------------------------------- */

/* Whether a condition holds for all items that it looks at, or for none: then it counts items. */
static bool is_plain(struct eng_sc_split *s, const struct counter *c, uint32_t n_places, bool *all)
{
    bool none = true;
    *all = true;
    for (uint32_t i = c->first; i <= n_places && (*all || none) && eng_sc_step(s->sc, 1); i++) {
        struct eng_sc_item item = goals_of_item(s, i, c);
        *all = *all && eng_sc_goal_empty(s->sc, item.out);
        none = none && eng_sc_goal_empty(s->sc, item.in);
    }
    return *all || none;
}

static bool add_counter(struct eng_sc_split *s, struct counter *c, const struct counter *more,
                        uint32_t n_places)
{
    bool all;
    if (more->lo == 0 && more->hi == ENG_RX_INF) return true;
    if (more->lit == ENG_LIT_TRUE || is_plain(s, more, n_places, &all)) {
        if (more->lit != ENG_LIT_TRUE && !all) return more->lo == 0;
        s->min = CN_MAX(s->min, more->lo ? more->first + more->lo : 0);
        if (more->hi != ENG_RX_INF) s->max = CN_MIN(s->max, more->first + more->hi);
        return s->min <= s->max;
    }
    if (c->lit != ENG_LIT_TRUE && (c->lit != more->lit || c->first != more->first)) {
        eng_sc_fail(s->sc, more->node, CN_EUNSUPP,
                    "contains, or items where they are negated (by not, oneOf, if or else), is not "
                    "supported beside another such condition on the same array");
        return false;
    }
    if (c->lit == ENG_LIT_TRUE) *c = *more;
    c->lo = CN_MAX(c->lo, more->lo);
    c->hi = CN_MIN(c->hi, more->hi);
    return c->lo <= c->hi;
}

/* False: nothing satisfies the facts, or they are refused. */
static bool find_counter(struct eng_sc_split *s, struct counter *c, uint32_t n_places)
{
    struct eng_sc *sc = s->sc;
    *c = (struct counter){.lit = ENG_LIT_TRUE, .hi = ENG_RX_INF};
    for (const struct eng_sc_fact *fact = s->facts; fact && eng_sc_step(sc, 1); fact = fact->next) {
        struct eng_sc_form f = form_at(s, fact);
        struct counter more = {.lit = f.lit, .lo = 1, .hi = ENG_RX_INF, .node = f.node};
        if (f.kind == ENG_A_CONTAINS) {
            more.lo = f.a;
            more.hi = f.b;
        } else if (f.kind == ENG_A_SOME_ITEM) {
            more.first = f.a;
        } else if (f.kind == ENG_F_SCOPE && f.neg) {
            more.lit = left_lit(s, fact, &more.first) ^ 1;
            if (more.first == ENG_RX_INF || more.lit == ENG_LIT_FALSE) return false;
        } else {
            continue;
        }
        if (!add_counter(s, c, &more, n_places)) return false;
    }
    return s->min <= s->max && !sc->code;
}

/* ---- unique items ---------------------------------------------------------------------------- */

static bool has_equal(struct eng_sc *sc, const json_t *v)
{
    for (size_t i = 0; i < json_array_size(v); i++)
        for (size_t j = 0; j < i && eng_sc_step(sc, 1); j++)
            if (eng_sc_equal(json_array_get(v, i), json_array_get(v, j))) return true;
    return false;
}

/* Whether items must differ. False in *possible: a constant array says otherwise. */
static bool must_differ(struct eng_sc_split *s, bool *possible)
{
    struct eng_sc *sc = s->sc;
    const json_t *one = NULL;
    bool yes = false, no = false;
    uint32_t node = s->node;
    for (const struct eng_sc_fact *fact = s->facts; fact; fact = fact->next) {
        struct eng_sc_form f = form_at(s, fact);
        if (f.kind == ENG_A_THIS) one = f.json;
        if (f.kind != ENG_A_UNIQUE) continue;
        *(f.neg ? &no : &yes) = true;
        if (f.neg) node = f.node;
    }
    *possible = !(yes && no);
    if (one && (yes || no)) {
        *possible &= has_equal(sc, one) == no;
    } else if (no && *possible && s->max >= 2) {
        eng_sc_fail(sc, node, CN_EUNSUPP,
                    "uniqueItems is not supported where it is negated (by not, oneOf, if or else)");
    } else if (no) {
        *possible = false;
    }
    return yes;
}

void eng_sc_array(struct eng_sc_split *s)
{
    struct eng_sc *sc = s->sc;
    struct eng_sc_alt *alt = eng_sc_alloc(sc, sizeof *alt);
    struct counter c;
    bool possible = true;
    uint32_t n = count_places(s);
    if (!alt || !find_counter(s, &c, n)) return;
    alt->unique = must_differ(s, &possible);
    if (sc->code || !possible) return;
    alt->items = eng_sc_alloc(sc, (n + (size_t)1) * sizeof *alt->items);
    for (uint32_t i = 0; i < n && !sc->code && i < s->max; i++) {
        alt->items[alt->n_items++] = goals_of_item(s, i, &c);
    }
    if (n <= s->max) alt->rest = goals_of_item(s, n, &c);
    alt->min = s->min;
    alt->max = s->max;
    alt->min_in = c.lo;
    alt->max_in = c.hi;
    for (uint32_t i = 0; i < alt->n_items && !sc->code; i++) {
        eng_sc_want(sc, alt->items[i].in);
        eng_sc_want(sc, alt->items[i].out);
    }
    eng_sc_want(sc, alt->rest.in);
    eng_sc_want(sc, alt->rest.out);
    if (!sc->code) eng_sc_add_alt(sc, s->goal, alt);
}
