/* schema: what a value must satisfy. See schema_impl.h. */
#include "engine/text/grammar/schema_impl.h"

#include <stdlib.h>

/* ---- sets of literals ------------------------------------------------------------------------ */

static int ascending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

uint32_t eng_sc_goal(struct eng_sc *sc, uint32_t *lits, uint32_t n)
{
    uint32_t kept = 0;
    if (!eng_sc_step(sc, n + (uint64_t)1)) return 0;
    if (n > 1) qsort(lits, n, sizeof *lits, ascending);
    for (uint32_t i = 0; i < n; i++) {
        if (lits[i] == ENG_LIT_FALSE) return 0;
        if (lits[i] == ENG_LIT_TRUE || (kept && lits[kept - 1] == lits[i])) continue;
        if (kept && lits[kept - 1] == (lits[i] ^ 1)) return 0;
        lits[kept++] = lits[i];
    }
    uint32_t *at = eng_sc_put(sc, &sc->by_goal, lits, kept * sizeof *lits);
    if (!at) return 0;
    if (*at != ENG_SC_NONE) return *at;
    if (!eng_sc_room(sc, &sc->goals, &sc->cap_goals, sc->n_goals + (size_t)1, sizeof *sc->goals) ||
        !eng_sc_room(sc, &sc->lits, &sc->cap_lits, sc->n_lits + (size_t)kept, sizeof *sc->lits))
        return 0;
    if (kept) memcpy(&sc->lits[sc->n_lits], lits, kept * sizeof *lits);
    sc->goals[sc->n_goals] = (struct eng_sc_goal){.first = sc->n_lits, .n = kept};
    sc->n_lits += kept;
    return *at = sc->n_goals++;
}

uint32_t eng_sc_goal_form(struct eng_sc *sc, uint32_t goal, enum eng_sc_type t)
{
    uint32_t from = sc->n_tmp;
    if (goal == 0) return ENG_F_FALSE;
    for (uint32_t i = 0; i < sc->goals[goal].n && !sc->code; i++)
        eng_sc_push(sc, eng_sc_form(sc, sc->lits[sc->goals[goal].first + i], t, false));
    return eng_sc_join(sc, ENG_F_AND, from);
}

/* ---- emptiness ------------------------------------------------------------------------------- */

enum answer { NO, YES, UNKNOWN };

static enum answer in_list(struct eng_sc *sc, const json_t *v, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list) && eng_sc_step(sc, 1); i++)
        if (eng_sc_equal(v, json_array_get(list, i))) return YES;
    return NO;
}

static bool of_type(const struct eng_sc_place *p, const json_t *v, enum answer *sure)
{
    static const uint8_t bits[] = {
        [JSON_OBJECT] = 1 << ENG_SC_OBJECT, [JSON_ARRAY] = 1 << ENG_SC_ARRAY,
        [JSON_STRING] = 1 << ENG_SC_STRING, [JSON_INTEGER] = 1 << ENG_SC_NUMBER,
        [JSON_REAL] = 1 << ENG_SC_NUMBER,   [JSON_TRUE] = 1 << ENG_SC_TRUE,
        [JSON_FALSE] = 1 << ENG_SC_FALSE,   [JSON_NULL] = 1 << ENG_SC_NULL};
    if (p->integer && json_is_real(v)) *sure = UNKNOWN;
    return p->types & bits[json_typeof(v)];
}

/* Whether a constant satisfies a literal, where that is easily seen. */
static enum answer has(struct eng_sc *sc, uint32_t lit, const json_t *v)
{
    const struct eng_sc_node *n = &sc->nodes[lit >> 1];
    const struct eng_sc_place *p = &sc->places[n->place];
    enum answer a = YES;
    const char *key;
    json_t *w;
    if (n->kind == ENG_NODE_CONST) {
        a = eng_sc_equal(v, n->json) ? YES : NO;
    } else if (n->kind != ENG_NODE_PLACE) {
        a = UNKNOWN;
    } else if (!of_type(p, v, &a)) {
        a = NO;
    } else {
        json_object_foreach(p->json, key, w)
        {
            enum eng_sc_word word = eng_sc_word(key);
            enum answer of = YES;
            if (word == ENG_W_CONST)
                of = eng_sc_equal(v, w) ? YES : NO;
            else if (word == ENG_W_ENUM)
                of = in_list(sc, v, w);
            else if (word != ENG_W_NONE && word != ENG_W_TYPE)
                of = UNKNOWN;
            if (of == NO) a = NO;
            if (of == UNKNOWN && a == YES) a = UNKNOWN;
        }
    }
    return a == UNKNOWN || !(lit & 1) ? a : a == YES ? NO : YES;
}

/* The constants that a literal allows; NULL: it is no enumeration. *one: a single one. */
static json_t *constants(struct eng_sc *sc, uint32_t lit, json_t **one)
{
    const struct eng_sc_node *n = &sc->nodes[lit >> 1];
    *one = NULL;
    if (lit & 1) return NULL;
    if (n->kind == ENG_NODE_CONST) *one = n->json;
    if (n->kind != ENG_NODE_PLACE) return *one;
    *one = json_object_get(sc->places[n->place].json, "const");
    return *one ? *one : json_object_get(sc->places[n->place].json, "enum");
}

bool eng_sc_is_enum(struct eng_sc *sc, uint32_t lit)
{
    json_t *one;
    return lit > ENG_LIT_FALSE && constants(sc, lit & ~1u, &one);
}

/* Whether no constant of an enumeration in the goal satisfies the rest of it. */
static enum answer empty_by_constants(struct eng_sc *sc, const uint32_t *lits, uint32_t n)
{
    json_t *list = NULL, *one = NULL;
    enum answer empty = YES;
    for (uint32_t i = 0; i < n && !list; i++)
        list = constants(sc, lits[i], &one);
    if (!list) return UNKNOWN;
    for (size_t i = 0; i < (one ? 1 : json_array_size(list)) && !sc->code; i++) {
        enum answer all = YES;
        for (uint32_t j = 0; j < n && all != NO && eng_sc_step(sc, 1); j++) {
            enum answer a = has(sc, lits[j], one ? one : json_array_get(list, i));
            if (a != YES) all = a;
        }
        if (all == YES) return NO;
        if (all == UNKNOWN) empty = UNKNOWN;
    }
    return empty;
}

/* Whether some type certainly or perhaps has values. */
static bool empty_by_types(struct eng_sc *sc, uint32_t goal)
{
    static const enum eng_sc_type order[] = {ENG_SC_OBJECT, ENG_SC_ARRAY, ENG_SC_NULL,
                                             ENG_SC_FALSE,  ENG_SC_TRUE,  ENG_SC_STRING,
                                             ENG_SC_NUMBER};
    for (size_t i = 0; i < CN_ARRAY_LEN(order) && !sc->code; i++) {
        uint32_t form = eng_sc_goal_form(sc, goal, order[i]), rx;
        if (form == ENG_F_FALSE) continue;
        if (form == ENG_F_TRUE || (order[i] != ENG_SC_STRING && order[i] != ENG_SC_NUMBER))
            return false;
        rx = order[i] == ENG_SC_STRING ? eng_sc_text_rx(sc, form) : eng_sc_number_rx(sc, form);
        if (rx != ENG_RX_NONE && eng_rx_live(&sc->ir->rx, rx)) return false;
    }
    return !sc->code && eng_sc_rx_ok(sc, 0);
}

bool eng_sc_goal_empty(struct eng_sc *sc, uint32_t goal)
{
    if (goal == 0 || sc->code) return !sc->code;
    if (!sc->goals[goal].empty) {
        enum answer a = empty_by_constants(sc, &sc->lits[sc->goals[goal].first], sc->goals[goal].n);
        bool empty = a == YES || (a == UNKNOWN && empty_by_types(sc, goal));
        if (!sc->code) sc->goals[goal].empty = empty ? 1 : 2;
        return empty && !sc->code;
    }
    return sc->goals[goal].empty == 1;
}

/* ---- compiling ------------------------------------------------------------------------------- */

void eng_sc_want(struct eng_sc *sc, uint32_t goal)
{
    if (goal == 0 || sc->goals[goal].wanted || sc->code) return;
    sc->goals[goal].wanted = true;
    sc->goals[goal].words = sc->goals[goal].number = sc->goals[goal].text = ENG_RX_NONE;
    if (eng_sc_room(sc, &sc->queue, &sc->cap_queue, sc->n_queue + (size_t)1, sizeof *sc->queue))
        sc->queue[sc->n_queue++] = goal;
}

void eng_sc_add_alt(struct eng_sc *sc, uint32_t goal, struct eng_sc_alt *alt)
{
    struct eng_sc_goal *g = &sc->goals[goal];
    if (g->last)
        g->last->next = alt;
    else
        g->alts = alt;
    g->last = alt;
}

/* null, false, true; their names in each style, and second ones. */
static uint32_t words_of(struct eng_sc *sc, uint32_t goal)
{
    static const char *const words[][2][3] = {
        [ENG_STYLE_JSON] = {{"null", "false", "true"}},
        [ENG_STYLE_PYTHON] = {{"None", "False", "True"}},
        [ENG_STYLE_EITHER] = {{"null", "false", "true"}, {"None", "False", "True"}},
        [ENG_STYLE_BARE] = {{"null", "false", "true"}, {"None"}},
    };
    uint32_t x = ENG_RX_NONE;
    for (unsigned t = ENG_SC_NULL; t <= ENG_SC_TRUE; t++) {
        if (eng_sc_goal_form(sc, goal, (enum eng_sc_type)t) != ENG_F_TRUE) continue;
        for (unsigned i = 0; i < 2; i++) {
            const char *word = words[sc->opts.style][i][t];
            if (!word) continue;
            x = eng_rx_or(&sc->ir->rx, x, eng_rx_literal(&sc->ir->rx, word, strlen(word)));
        }
    }
    return x;
}

static uint32_t live_or_none(struct eng_sc *sc, uint32_t rx)
{
    return rx != ENG_RX_NONE && !sc->code && eng_rx_live(&sc->ir->rx, rx) ? rx : ENG_RX_NONE;
}

static void compile(struct eng_sc *sc, uint32_t goal)
{
    uint32_t words = words_of(sc, goal), number, text;
    number = eng_sc_number_rx(sc, eng_sc_goal_form(sc, goal, ENG_SC_NUMBER));
    text = eng_sc_text_rx(sc, eng_sc_goal_form(sc, goal, ENG_SC_STRING));
    number = live_or_none(sc, number);
    text = live_or_none(sc, text);
    if (sc->code || !eng_sc_rx_ok(sc, sc->goals[goal].n ? sc->lits[sc->goals[goal].first] >> 1 : 0))
        return;
    sc->goals[goal].words = words;
    sc->goals[goal].number = number;
    sc->goals[goal].text = text;
    for (unsigned t = ENG_SC_ARRAY; t <= ENG_SC_OBJECT && !sc->code; t++)
        eng_sc_split(sc, goal, (enum eng_sc_type)t,
                     eng_sc_goal_form(sc, goal, (enum eng_sc_type)t));
}

void eng_sc_compile_goals(struct eng_sc *sc)
{
    for (uint32_t i = 0; i < sc->n_queue && !sc->code; i++)
        compile(sc, sc->queue[i]);
}
