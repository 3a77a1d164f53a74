/* schema: the names that members of an object may have. See schema_impl.h.
 *
 * Names that a fact mentions are members of their own. All others fall into classes, by the
 * patterns that they match: the value of a name is what the patterns of its class demand, or what
 * additionalProperties does where a schema has none that matches. */
#include "engine/text/grammar/schema_impl.h"

#include <stdlib.h>

/* ---- declared names -------------------------------------------------------------------------- */

struct in_order {
    const struct eng_sc_fact *fact;
    uint32_t age;
};

static int by_place(const void *a, const void *b)
{
    const struct in_order *x = a, *y = b;
    if (x->fact->from != y->fact->from) return x->fact->from < y->fact->from ? -1 : 1;
    return x->age > y->age ? -1 : x->age < y->age;
}

static void push_name(struct eng_sc *sc, uint32_t name, uint32_t stamp)
{
    if (sc->code || sc->names[name].stamp == stamp) return;
    sc->names[name].stamp = stamp;
    eng_sc_push(sc, name);
}

static void push_keys(struct eng_sc *sc, json_t *map, uint32_t stamp)
{
    const char *key;
    json_t *v;
    json_object_foreach(map, key, v) if (eng_sc_step(sc, 1))
        push_name(sc, eng_sc_name(sc, key), stamp);
}

static void push_mentioned(struct eng_sc *sc, const struct eng_sc_form *f, uint32_t stamp)
{
    switch (f->kind) {
    case ENG_A_REQUIRED:
        for (size_t i = 0; i < json_array_size(f->json) && eng_sc_step(sc, 1); i++)
            push_name(sc, eng_sc_name(sc, json_string_value(json_array_get(f->json, i))), stamp);
        break;
    case ENG_A_NEEDS:
        push_name(sc, f->a, stamp);
        push_name(sc, f->b, stamp);
        break;
    case ENG_A_PRESENT:
    case ENG_A_ABSENT:
    case ENG_A_VALUE:
    case ENG_A_LIMIT:
        push_name(sc, f->a, stamp);
        break;
    default:
        break;
    }
}

uint32_t eng_sc_names_of(struct eng_sc_split *s)
{
    struct eng_sc *sc = s->sc;
    uint32_t n = 0, i = 0, from = sc->n_tmp, ordered, stamp = ++sc->stamp;
    for (const struct eng_sc_fact *f = s->facts; f; f = f->next)
        n++;
    struct in_order *list = cn_malloc_array(n, sizeof *list);
    if (!list) return eng_sc_nomem(sc), 0;
    for (const struct eng_sc_fact *f = s->facts; f; f = f->next, i++)
        list[i] = (struct in_order){f, i};
    qsort(list, n, sizeof *list, by_place);
    for (i = 0; i < n && eng_sc_step(sc, 1); i++) {
        struct eng_sc_form f = sc->forms[list[i].fact->form];
        if (f.kind == ENG_A_MEMBERS) push_keys(sc, eng_sc_at(sc, f.node, ENG_W_PROPERTIES), stamp);
        if (f.kind == ENG_A_THIS) push_keys(sc, f.json, stamp);
    }
    ordered = sc->n_tmp - from;
    for (i = 0; i < n && eng_sc_step(sc, 1); i++) {
        struct eng_sc_form f = sc->forms[list[i].fact->form];
        push_mentioned(sc, &f, stamp);
    }
    free(list);
    return ordered;
}

/* ---- expressions of names -------------------------------------------------------------------- */

static uint32_t texts_of(struct eng_sc *sc, const uint32_t *names, uint32_t n)
{
    struct eng_str *list = eng_sc_alloc(sc, (n + (size_t)1) * sizeof *list);
    for (uint32_t i = 0; list && i < n; i++)
        list[i] = (struct eng_str){sc->names[names[i]].text, strlen(sc->names[names[i]].text)};
    if (!list || !eng_sc_step(sc, n)) return ENG_RX_NONE;
    return eng_spell_texts(&sc->ir->rx, sc->ir->spelling, list, n);
}

/* Pushes the complements of the names and patterns of a node. */
static void push_not_named(struct eng_sc *sc, uint32_t node)
{
    struct eng_rx *r = &sc->ir->rx;
    uint32_t from = sc->n_tmp, x;
    const char *key;
    json_t *v;
    push_keys(sc, eng_sc_at(sc, node, ENG_W_PROPERTIES), ++sc->stamp);
    x = sc->code ? ENG_RX_NONE : texts_of(sc, &sc->tmp[from], sc->n_tmp - from);
    sc->n_tmp = from;
    eng_sc_push(sc, eng_rx_not(r, x));
    json_object_foreach(eng_sc_at(sc, node, ENG_W_PATTERNS), key, v)
        eng_sc_push(sc, eng_rx_not(r, eng_sc_pattern(sc, node, eng_sc_name(sc, key))));
}

/* The names of the class of a fact (ENG_A_SOME_MEMBER, or ENG_F_SCOPE: what it leaves). */
static uint32_t class_rx(struct eng_sc_split *s, const struct eng_sc_fact *of)
{
    struct eng_sc *sc = s->sc;
    struct eng_sc_form f = sc->forms[of->form];
    uint32_t from = sc->n_tmp, x;
    if (f.kind == ENG_A_SOME_MEMBER && f.a == ENG_CLASS_PATTERN)
        return eng_sc_pattern(sc, f.node, f.b);
    if (f.kind == ENG_A_SOME_MEMBER && f.a == ENG_CLASS_NAMES)
        return eng_sc_text_rx(sc, eng_sc_form(sc, f.b, ENG_SC_STRING, false));
    eng_sc_push(sc, sc->any_name);
    if (f.kind == ENG_A_SOME_MEMBER) push_not_named(sc, f.node);
    for (const struct eng_sc_fact *fact = s->facts; fact && f.kind == ENG_F_SCOPE && !sc->code;
         fact = fact->next) {
        struct eng_sc_form m = sc->forms[fact->form];
        if (!eng_sc_in_scope(fact->scope, of->scope)) continue;
        bool all = m.kind == ENG_F_SCOPE && fact->scope != of->scope && !m.neg;
        if (m.kind == ENG_A_MEMBERS && m.annots) {
            all = eng_sc_at(sc, m.node, ENG_W_ADDITIONAL) != NULL;
            push_not_named(sc, m.node);
        }
        if (all) eng_sc_push(sc, ENG_RX_NONE);
    }
    x = sc->code ? ENG_RX_NONE : eng_rx_and_of(&sc->ir->rx, &sc->tmp[from], sc->n_tmp - from);
    sc->n_tmp = from;
    return x;
}

/* ---- undeclared names ------------------------------------------------------------------------ */

struct class {
    uint32_t rx, goal;
    uint64_t matched; /* bits of the patterns */
};
struct classes {
    uint32_t patterns[64], n_patterns;
    struct class list[ENG_SC_CLASSES];
    uint32_t n;
};

static bool collect_patterns(struct eng_sc_split *s, struct classes *c)
{
    struct eng_sc *sc = s->sc;
    for (const struct eng_sc_fact *fact = s->facts; fact && eng_sc_step(sc, 1); fact = fact->next) {
        struct eng_sc_form f = sc->forms[fact->form];
        const char *key;
        json_t *v;
        if (f.kind != ENG_A_MEMBERS) continue;
        json_object_foreach(eng_sc_at(sc, f.node, ENG_W_PATTERNS), key, v)
        {
            uint32_t pattern = eng_sc_name(sc, key), i = 0;
            while (i < c->n_patterns && c->patterns[i] != pattern)
                i++;
            if (i < c->n_patterns) continue;
            if (i == CN_ARRAY_LEN(c->patterns)) {
                eng_sc_fail(sc, f.node, CN_ELIMIT, "patternProperties: more than %zu patterns",
                            CN_ARRAY_LEN(c->patterns));
                return false;
            }
            eng_sc_pattern(sc, f.node, pattern);
            c->patterns[c->n_patterns++] = pattern;
        }
    }
    return !sc->code;
}

/* Pushes the literals of the patterns of a node that a class matches; how many match. */
static uint32_t push_matched(struct eng_sc *sc, const struct classes *c, uint64_t matched,
                             uint32_t node, bool push)
{
    uint32_t n = 0;
    const char *key;
    json_t *v;
    if (!matched) return 0;
    json_object_foreach(eng_sc_at(sc, node, ENG_W_PATTERNS), key, v)
    {
        uint32_t pattern = eng_sc_name(sc, key), i = 0;
        while (c->patterns[i] != pattern && !sc->code)
            i++;
        if (sc->code || !(matched >> i & 1)) continue;
        if (push) eng_sc_push(sc, eng_sc_lit(sc, node, v));
        n++;
    }
    return n;
}

/* Whether a fact within the scope evaluates the names of a class. */
static bool class_evaluated(struct eng_sc_split *s, const struct classes *c, uint64_t matched,
                            const struct eng_sc_scope *scope)
{
    struct eng_sc *sc = s->sc;
    for (const struct eng_sc_fact *fact = s->facts; fact && eng_sc_step(sc, 1); fact = fact->next) {
        struct eng_sc_form f = sc->forms[fact->form];
        if (!eng_sc_in_scope(fact->scope, scope)) continue;
        if (f.kind == ENG_F_SCOPE && fact->scope != scope && !f.neg) return true;
        if (f.kind == ENG_A_MEMBERS && f.annots &&
            (eng_sc_at(sc, f.node, ENG_W_ADDITIONAL) ||
             push_matched(sc, c, matched, f.node, false)))
            return true;
    }
    return false;
}

static uint32_t class_goal(struct eng_sc_split *s, const struct classes *c, uint64_t matched)
{
    struct eng_sc *sc = s->sc;
    uint32_t from = sc->n_tmp, n;
    for (const struct eng_sc_fact *fact = s->facts; fact && eng_sc_step(sc, 1); fact = fact->next) {
        struct eng_sc_form f = sc->forms[fact->form];
        if (f.kind == ENG_A_MEMBERS) {
            json_t *more = eng_sc_at(sc, f.node, ENG_W_ADDITIONAL);
            if (!push_matched(sc, c, matched, f.node, true) && more)
                eng_sc_push(sc, eng_sc_lit(sc, f.node, more));
        } else if (f.kind == ENG_A_THIS) {
            eng_sc_push(sc, ENG_LIT_FALSE);
        } else if (f.kind == ENG_F_SCOPE && !f.neg &&
                   !class_evaluated(s, c, matched, fact->scope)) {
            eng_sc_push(sc, f.lit);
        }
    }
    n = sc->n_tmp - from;
    sc->n_tmp = from;
    return sc->code ? 0 : eng_sc_goal(sc, &sc->tmp[from], n);
}

/* Names that are not declared and that propertyNames allows. */
static uint32_t undeclared(struct eng_sc_split *s, uint32_t names, uint32_t n)
{
    struct eng_sc *sc = s->sc;
    uint32_t from = sc->n_tmp, x;
    for (const struct eng_sc_fact *fact = s->facts; fact && eng_sc_step(sc, 1); fact = fact->next) {
        struct eng_sc_form f = sc->forms[fact->form];
        if (f.kind != ENG_A_NAMES) continue;
        x = eng_sc_text_rx(sc, eng_sc_form(sc, f.lit, ENG_SC_STRING, false));
        eng_sc_push(sc, x);
    }
    if (sc->n_tmp == from) eng_sc_push(sc, sc->any_name);
    if (n && !sc->code) eng_sc_push(sc, eng_rx_not(&sc->ir->rx, texts_of(sc, &sc->tmp[names], n)));
    x = sc->code ? ENG_RX_NONE : eng_rx_and_of(&sc->ir->rx, &sc->tmp[from], sc->n_tmp - from);
    sc->n_tmp = from;
    return x;
}

/* Splits each class by whether a pattern matches. */
static void split_classes(struct eng_sc_split *s, struct classes *c, uint32_t p)
{
    struct eng_rx *r = &s->sc->ir->rx;
    uint32_t rx = s->sc->names[c->patterns[p]].rx, n = c->n;
    for (uint32_t i = 0; i < n && eng_sc_step(s->sc, 16); i++) {
        uint32_t in = eng_rx_and(r, c->list[i].rx, rx);
        uint32_t out = eng_rx_and(r, c->list[i].rx, eng_rx_not(r, rx));
        if (!eng_rx_live(r, in)) continue;
        bool both = eng_rx_live(r, out);
        if (both && c->n == ENG_SC_CLASSES) {
            eng_sc_fail(s->sc, s->node, CN_ELIMIT,
                        "patternProperties: names fall into more than %d classes", ENG_SC_CLASSES);
            return;
        }
        if (both) c->list[c->n++] = (struct class){.rx = out, .matched = c->list[i].matched};
        c->list[i].rx = in;
        c->list[i].matched |= 1ull << p;
    }
}

uint32_t eng_sc_others(struct eng_sc_split *s, uint32_t names, uint32_t n,
                       struct eng_sc_other out[ENG_SC_CLASSES])
{
    struct eng_sc *sc = s->sc;
    struct eng_rx *r = &sc->ir->rx;
    struct classes c = {.n = 1};
    uint32_t kept = 0;
    if (!collect_patterns(s, &c)) return 0;
    if (c.n_patterns == 0 && class_goal(s, &c, 0) == 0) return 0;
    c.list[0].rx = undeclared(s, names, n);
    if (sc->code || !eng_rx_live(r, c.list[0].rx)) return 0;
    for (uint32_t p = 0; p < c.n_patterns && !sc->code; p++)
        split_classes(s, &c, p);
    for (uint32_t i = 0; i < c.n && !sc->code; i++) {
        uint32_t goal = class_goal(s, &c, c.list[i].matched), j = 0;
        if (goal == 0) continue;
        while (j < kept && out[j].goal != goal)
            j++;
        if (j == kept) out[kept++] = (struct eng_sc_other){ENG_RX_NONE, goal};
        out[j].rx = eng_rx_or(r, out[j].rx, c.list[i].rx);
    }
    return eng_sc_rx_ok(sc, s->node) ? kept : 0;
}

/* ---- some member ----------------------------------------------------------------------------- */

static bool in_class(struct eng_sc_split *s, const struct eng_sc_fact *of, uint32_t name,
                     uint32_t rx)
{
    if (s->sc->forms[of->form].kind == ENG_F_SCOPE) return !eng_sc_evaluated(s, of->scope, name);
    return eng_sc_name_matches(s->sc, name, rx);
}

static uint32_t refuse(struct eng_sc_split *s, const struct eng_sc_fact *of)
{
    static const char *const words[] = {[ENG_CLASS_PATTERN] = "patternProperties",
                                        [ENG_CLASS_ADDITIONAL] = "additionalProperties",
                                        [ENG_CLASS_NAMES] = "propertyNames"};
    struct eng_sc_form f = s->sc->forms[of->form];
    eng_sc_fail(
        s->sc, f.node, CN_EUNSUPP,
        "%s is not supported where it is negated (by not, oneOf, if or else) and undeclared "
        "names are allowed",
        f.kind == ENG_F_SCOPE ? "unevaluatedProperties" : words[f.a]);
    return ENG_F_FALSE;
}

/* Pushes: which of the undecided names are there, and one more member than that. names: tmp[at] on.
 * False: there are too many. */
static bool push_subsets(struct eng_sc_split *s, uint32_t at, uint32_t n)
{
    struct eng_sc *sc = s->sc;
    uint32_t undecided[4], k = 0, there = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint8_t state = eng_sc_name_state(s, sc->tmp[at + i]);
        there += state == ENG_NAME_PRESENT;
        if (state == 0 && k == CN_ARRAY_LEN(undecided)) return false;
        if (state == 0) undecided[k++] = sc->tmp[at + i];
    }
    for (uint32_t set = 0; set < 1u << k && !sc->code; set++) {
        uint32_t from = sc->n_tmp;
        struct eng_sc_form f = {.node = s->node, .b = ENG_RX_INF};
        for (uint32_t i = 0; i < k; i++) {
            f.kind = set >> i & 1 ? ENG_A_PRESENT : ENG_A_ABSENT;
            f.a = undecided[i];
            eng_sc_push(sc, eng_sc_atom(sc, &f));
        }
        f.kind = ENG_A_SIZE;
        f.a = there + (uint32_t)__builtin_popcount(set) + 1;
        eng_sc_push(sc, eng_sc_atom(sc, &f));
        eng_sc_push(sc, eng_sc_join(sc, ENG_F_AND, from));
    }
    return true;
}

/* Makes the properties of a node names of their own, so that all undeclared ones are additional. */
static void mention(struct eng_sc_split *s, uint32_t node)
{
    json_t *own = eng_sc_at(s->sc, node, ENG_W_PROPERTIES), *v;
    struct eng_sc_form f = {.kind = ENG_A_LIMIT, .node = node, .lit = ENG_LIT_TRUE};
    struct eng_sc_fact fact = {.from = UINT64_MAX};
    const char *key;
    json_object_foreach(own, key, v)
    {
        f.a = eng_sc_name(s->sc, key);
        fact.form = eng_sc_atom(s->sc, &f);
        if (s->sc->code) return;
        eng_sc_assume(s, &fact);
    }
}

uint32_t eng_sc_some_member(struct eng_sc_split *s, const struct eng_sc_fact *of)
{
    struct eng_sc *sc = s->sc;
    struct eng_rx *r = &sc->ir->rx;
    struct eng_sc_other others[ENG_SC_CLASSES];
    struct eng_sc_form f = sc->forms[of->form];
    struct eng_sc_form value = {
        .kind = ENG_A_VALUE, .node = f.node, .lit = f.kind == ENG_F_SCOPE ? f.lit ^ 1 : f.lit};
    uint32_t at = sc->n_tmp, rx = class_rx(s, of), n, n_others, from, all = ENG_RX_NONE;
    if (f.kind == ENG_A_SOME_MEMBER && f.a == ENG_CLASS_ADDITIONAL) mention(s, f.node);
    eng_sc_names_of(s);
    n = sc->n_tmp - at;
    n_others = eng_sc_others(s, at, n, others);
    from = sc->n_tmp;
    for (uint32_t i = 0; i < n && !sc->code; i++) {
        value.a = sc->tmp[at + i];
        if (eng_sc_name_state(s, value.a) & ENG_NAME_ABSENT || !in_class(s, of, value.a, rx))
            continue;
        eng_sc_push(sc, eng_sc_atom(sc, &value));
    }
    for (uint32_t i = 0; i < n_others && !sc->code; i++)
        all = eng_rx_or(r, all, others[i].rx);
    if (!sc->code && eng_rx_live(r, eng_rx_and(r, all, rx))) {
        bool whole =
            value.lit == ENG_LIT_TRUE && !eng_rx_live(r, eng_rx_and(r, all, eng_rx_not(r, rx)));
        if (!whole || !push_subsets(s, at, n)) return refuse(s, of);
    }
    if (sc->code || !eng_sc_rx_ok(sc, f.node)) return ENG_F_FALSE;
    uint32_t out = eng_sc_join(sc, ENG_F_OR, from);
    sc->n_tmp = at;
    return out;
}
