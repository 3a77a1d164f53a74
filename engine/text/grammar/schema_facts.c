/* schema: what is known of an object or array while its alternatives are found. See schema_impl.h.
 *
 * Of names is kept whether they must or must not be there. What the facts demand of a member's
 * value is a goal; where certainly nothing satisfies it, the member cannot be there. Answers err to
 * one side: a contradiction or an implication that is not seen costs alternatives, and no more. */
#include "engine/text/grammar/schema_impl.h"

enum { LOOK_AHEAD = 4 }; /* levels of formulas that are tried before they are assumed */

/* ---- names ----------------------------------------------------------------------------------- */

uint8_t eng_sc_name_state(const struct eng_sc_split *s, uint32_t name)
{
    return name < s->cap_state ? s->state[name] : 0;
}

static bool is_present(const struct eng_sc_split *s, uint32_t name)
{
    return eng_sc_name_state(s, name) & ENG_NAME_PRESENT;
}

static void set_state(struct eng_sc_split *s, uint32_t name, uint8_t bit)
{
    size_t had = s->cap_state;
    if (eng_sc_name_state(s, name) & bit) return;
    if (!eng_sc_room(s->sc, &s->state, &s->cap_state, name + (size_t)1, 1) ||
        !eng_sc_room(s->sc, &s->trail, &s->cap_trail, s->n_trail + (size_t)1, sizeof *s->trail))
        return;
    if (s->cap_state > had) memset(s->state + had, 0, s->cap_state - had);
    s->state[name] |= bit;
    s->trail[s->n_trail++] = name << 2 | bit;
}

/* Pushes what properties, patternProperties and additionalProperties of a node say of a name. */
static void push_member_lits(struct eng_sc *sc, uint32_t node, uint32_t name, bool exact)
{
    json_t *own = json_object_get(eng_sc_at(sc, node, ENG_W_PROPERTIES), sc->names[name].text);
    json_t *patterns = eng_sc_at(sc, node, ENG_W_PATTERNS), *v;
    json_t *more = eng_sc_at(sc, node, ENG_W_ADDITIONAL);
    bool matched = own || (patterns && !exact);
    const char *key;
    if (own) eng_sc_push(sc, eng_sc_lit(sc, node, own));
    if (exact) {
        json_object_foreach(patterns, key, v)
        {
            uint32_t rx = eng_sc_pattern(sc, node, eng_sc_name(sc, key));
            if (!eng_sc_name_matches(sc, name, rx)) continue;
            matched = true;
            eng_sc_push(sc, eng_sc_lit(sc, node, v));
        }
    }
    if (!matched && more) eng_sc_push(sc, eng_sc_lit(sc, node, more));
}

void eng_sc_name_lits(struct eng_sc_split *s, uint32_t name, bool exact)
{
    struct eng_sc *sc = s->sc;
    for (const struct eng_sc_fact *fact = s->facts; fact && eng_sc_step(sc, 1); fact = fact->next) {
        struct eng_sc_form f = sc->forms[fact->form];
        if (f.kind == ENG_A_MEMBERS) {
            push_member_lits(sc, f.node, name, exact);
        } else if (f.kind == ENG_A_VALUE || f.kind == ENG_A_LIMIT) {
            if (f.a == name) eng_sc_push(sc, f.lit);
        } else if (f.kind == ENG_A_THIS) {
            json_t *v = json_object_get(f.json, sc->names[name].text);
            eng_sc_push(sc, v ? eng_sc_lit_const(sc, f.node, v) : ENG_LIT_FALSE);
        } else if (exact && f.kind == ENG_A_NAMES) {
            uint32_t rx = eng_sc_text_rx(sc, eng_sc_form(sc, f.lit, ENG_SC_STRING, false));
            if (!eng_sc_name_matches(sc, name, rx)) eng_sc_push(sc, ENG_LIT_FALSE);
        } else if (exact && f.kind == ENG_F_SCOPE && !f.neg) {
            if (!eng_sc_evaluated(s, fact->scope, name)) eng_sc_push(sc, f.lit);
        }
    }
}

/* Whether certainly no value of the name satisfies the facts and lit. */
static bool no_value(struct eng_sc_split *s, uint32_t name, uint32_t lit)
{
    struct eng_sc *sc = s->sc;
    uint32_t from = sc->n_tmp, n;
    bool none;
    eng_sc_name_lits(s, name, false);
    if (lit != ENG_LIT_TRUE) eng_sc_push(sc, lit);
    n = sc->n_tmp - from;
    sc->n_tmp = from;
    if (sc->code || n == 0) return false;
    if (n == 1) return sc->tmp[from] == ENG_LIT_FALSE;
    uint32_t goal = eng_sc_goal(sc, &sc->tmp[from], n);
    none = goal == 0 || eng_sc_goal_empty(sc, goal);
    return none && !sc->code;
}

/* ---- assumptions ----------------------------------------------------------------------------- */

static bool be_present(struct eng_sc_split *s, uint32_t name)
{
    set_state(s, name, ENG_NAME_PRESENT);
    return !(eng_sc_name_state(s, name) & ENG_NAME_ABSENT) && !no_value(s, name, ENG_LIT_TRUE);
}

static bool all_present_possible(struct eng_sc_split *s)
{
    for (uint32_t i = 0; i < s->n_trail && eng_sc_step(s->sc, 1); i++)
        if (s->trail[i] & ENG_NAME_PRESENT && no_value(s, s->trail[i] >> 2, ENG_LIT_TRUE))
            return false;
    return true;
}

static bool require_all(struct eng_sc_split *s, json_t *list)
{
    for (size_t i = 0; i < json_array_size(list) && eng_sc_step(s->sc, 1); i++)
        if (!be_present(s, eng_sc_name(s->sc, json_string_value(json_array_get(list, i)))))
            return false;
    return true;
}

static bool size_between(struct eng_sc_split *s, uint32_t lo, uint32_t hi)
{
    s->min = CN_MAX(s->min, lo);
    s->max = CN_MIN(s->max, hi);
    return s->min <= s->max;
}

static bool be_this(struct eng_sc_split *s, json_t *v)
{
    const char *key;
    json_t *w;
    json_object_foreach(v, key,
                        w) if (s->sc->code || !be_present(s, eng_sc_name(s->sc, key))) return false;
    size_t n = json_is_array(v) ? json_array_size(v) : json_object_size(v);
    return all_present_possible(s) && size_between(s, (uint32_t)n, (uint32_t)n);
}

static bool assume_items(struct eng_sc_split *s, uint32_t node)
{
    json_t *rest = eng_sc_rest(s->sc, node);
    uint32_t n = (uint32_t)json_array_size(eng_sc_prefix(s->sc, node));
    if (!rest || eng_sc_lit(s->sc, node, rest) != ENG_LIT_FALSE) return true;
    return size_between(s, 0, n);
}

static bool is_seen(const struct eng_sc_split *s, uint32_t form)
{
    return form < s->cap_seen && s->seen[form];
}

static void mark_seen(struct eng_sc_split *s, uint32_t form)
{
    size_t had = s->cap_seen;
    if (!eng_sc_room(s->sc, &s->seen, &s->cap_seen, form + (size_t)1, 1) ||
        !eng_sc_room(s->sc, &s->seen_trail, &s->cap_seen_trail, s->n_seen_trail + (size_t)1,
                     sizeof *s->seen_trail))
        return;
    if (s->cap_seen > had) memset(s->seen + had, 0, s->cap_seen - had);
    s->seen[form] = true;
    s->seen_trail[s->n_seen_trail++] = form;
}

bool eng_sc_assume(struct eng_sc_split *s, const struct eng_sc_fact *fact)
{
    struct eng_sc_form f = s->sc->forms[fact->form];
    if (!eng_sc_step(s->sc, 1)) return false;
    if (!fact->scope) {
        if (is_seen(s, fact->form)) return true;
        mark_seen(s, fact->form);
    }
    struct eng_sc_fact *own = eng_sc_alloc(s->sc, sizeof *own);
    if (!own) return false;
    *own = *fact;
    own->next = s->facts;
    s->facts = own;
    switch (f.kind) {
    case ENG_A_SIZE:
        return size_between(s, f.a, f.b);
    case ENG_A_PRESENT:
    case ENG_A_VALUE:
        return be_present(s, f.a);
    case ENG_A_LIMIT:
        return !is_present(s, f.a) || !no_value(s, f.a, ENG_LIT_TRUE);
    case ENG_A_ABSENT:
        set_state(s, f.a, ENG_NAME_ABSENT);
        return !(eng_sc_name_state(s, f.a) & ENG_NAME_PRESENT);
    case ENG_A_REQUIRED:
        return require_all(s, f.json);
    case ENG_A_MEMBERS:
        return all_present_possible(s);
    case ENG_A_THIS:
        return be_this(s, f.json);
    case ENG_A_ITEMS:
        return assume_items(s, f.node);
    case ENG_A_ITEM:
    case ENG_A_SOME_ITEM:
        return size_between(s, f.a + 1, ENG_RX_INF);
    default:
        return true;
    }
}

/* ---- implications ---------------------------------------------------------------------------- */

static bool is_absent(struct eng_sc_split *s, uint32_t name)
{
    return eng_sc_name_state(s, name) & ENG_NAME_ABSENT || no_value(s, name, ENG_LIT_TRUE);
}

/* Whether name is additional for node, when patterns are ignored. */
static bool is_additional(struct eng_sc *sc, uint32_t node, uint32_t name)
{
    return !eng_sc_at(sc, node, ENG_W_PATTERNS) &&
           !json_object_get(eng_sc_at(sc, node, ENG_W_PROPERTIES), sc->names[name].text);
}

/* Some member that must be there is additional, and has lit. */
static bool some_member_implied(struct eng_sc_split *s, const struct eng_sc_form *f)
{
    for (uint32_t i = 0; i < s->n_trail && f->a == ENG_CLASS_ADDITIONAL; i++) {
        uint32_t name = s->trail[i] >> 2;
        if (!eng_sc_step(s->sc, 1)) return false;
        if (!(s->trail[i] & ENG_NAME_PRESENT) || !is_additional(s->sc, f->node, name)) continue;
        if (f->lit == ENG_LIT_TRUE || no_value(s, name, f->lit ^ 1)) return true;
    }
    return false;
}

/* The names are listed somewhere, and those that are additional for f cannot have its lit. */
static bool some_member_impossible(struct eng_sc_split *s, const struct eng_sc_form *f)
{
    struct eng_sc *sc = s->sc;
    if (f->a != ENG_CLASS_ADDITIONAL || eng_sc_at(sc, f->node, ENG_W_PATTERNS)) return false;
    for (const struct eng_sc_fact *fact = s->facts; fact && eng_sc_step(sc, 1); fact = fact->next) {
        struct eng_sc_form m = sc->forms[fact->form];
        const char *key;
        json_t *v;
        bool none = true;
        if (m.kind != ENG_A_MEMBERS || !json_is_false(eng_sc_at(sc, m.node, ENG_W_ADDITIONAL)) ||
            eng_sc_at(sc, m.node, ENG_W_PATTERNS))
            continue;
        json_object_foreach(eng_sc_at(sc, m.node, ENG_W_PROPERTIES), key, v)
        {
            uint32_t name = eng_sc_name(sc, key);
            none = !is_additional(sc, f->node, name) ||
                   eng_sc_name_state(s, name) & ENG_NAME_ABSENT || no_value(s, name, f->lit);
            if (!none || sc->code) break;
        }
        if (none) return true;
    }
    return false;
}

static bool all_required(struct eng_sc_split *s, json_t *list)
{
    for (size_t i = 0; i < json_array_size(list) && eng_sc_step(s->sc, 1); i++)
        if (!is_present(s, eng_sc_name(s->sc, json_string_value(json_array_get(list, i)))))
            return false;
    return true;
}

static bool implied(struct eng_sc_split *s, uint32_t form, const struct eng_sc_scope *scope,
                    unsigned depth)
{
    struct eng_sc_form f = s->sc->forms[form];
    bool all = f.kind == ENG_F_AND;
    if (form <= ENG_F_TRUE) return form == ENG_F_TRUE;
    if (!eng_sc_step(s->sc, 1) || depth > LOOK_AHEAD) return false;
    if (!scope && is_seen(s, form)) return true;
    switch (f.kind) {
    case ENG_F_AND:
    case ENG_F_OR:
        for (uint32_t i = 0; i < f.b; i++)
            if (implied(s, s->sc->args[f.a + i], scope, depth + 1) != all) return !all;
        return all;
    case ENG_A_PRESENT:
        return is_present(s, f.a);
    case ENG_A_ABSENT:
        return is_absent(s, f.a);
    case ENG_A_REQUIRED:
        return all_required(s, f.json);
    case ENG_A_VALUE:
        return is_present(s, f.a) && no_value(s, f.a, f.lit ^ 1);
    case ENG_A_LIMIT:
        return eng_sc_name_state(s, f.a) & ENG_NAME_ABSENT || no_value(s, f.a, f.lit ^ 1);
    case ENG_A_NEEDS:
        return is_present(s, f.b) || is_absent(s, f.a);
    case ENG_A_SIZE:
        return f.a <= s->min && f.b >= s->max;
    case ENG_A_SOME_MEMBER:
        return some_member_implied(s, &f);
    default:
        return false;
    }
}

bool eng_sc_implied(struct eng_sc_split *s, uint32_t form, const struct eng_sc_scope *scope)
{
    return implied(s, form, scope, 0);
}

static bool any_absent(struct eng_sc_split *s, json_t *list)
{
    for (size_t i = 0; i < json_array_size(list) && eng_sc_step(s->sc, 1); i++)
        if (is_absent(s, eng_sc_name(s->sc, json_string_value(json_array_get(list, i)))))
            return true;
    return false;
}

static bool cannot_be_this(struct eng_sc_split *s, uint32_t node, json_t *v)
{
    const char *key;
    json_t *w;
    for (uint32_t i = 0; i < s->n_trail && json_is_object(v) && eng_sc_step(s->sc, 1); i++)
        if (s->trail[i] & ENG_NAME_PRESENT &&
            !json_object_get(v, s->sc->names[s->trail[i] >> 2].text))
            return true;
    json_object_foreach(v, key, w)
    {
        uint32_t name = eng_sc_name(s->sc, key);
        if (eng_sc_name_state(s, name) & ENG_NAME_ABSENT ||
            no_value(s, name, eng_sc_lit_const(s->sc, node, w)))
            return true;
    }
    return false;
}

static bool contradicted(struct eng_sc_split *s, uint32_t form, unsigned depth)
{
    struct eng_sc_form f = s->sc->forms[form];
    bool all = f.kind == ENG_F_OR;
    if (form <= ENG_F_TRUE) return form == ENG_F_FALSE;
    if (!eng_sc_step(s->sc, 1) || depth > LOOK_AHEAD) return false;
    switch (f.kind) {
    case ENG_F_AND:
    case ENG_F_OR:
        for (uint32_t i = 0; i < f.b; i++)
            if (contradicted(s, s->sc->args[f.a + i], depth + 1) != all) return !all;
        return all;
    case ENG_A_PRESENT:
        return is_absent(s, f.a);
    case ENG_A_ABSENT:
        return is_present(s, f.a);
    case ENG_A_REQUIRED:
        return any_absent(s, f.json);
    case ENG_A_VALUE:
        return eng_sc_name_state(s, f.a) & ENG_NAME_ABSENT || no_value(s, f.a, f.lit);
    case ENG_A_LIMIT:
        return is_present(s, f.a) && no_value(s, f.a, f.lit);
    case ENG_A_SIZE:
        return f.a > s->max || f.b < s->min;
    case ENG_A_ITEM:
    case ENG_A_SOME_ITEM:
        return f.a >= s->max;
    case ENG_A_SOME_MEMBER:
        return some_member_impossible(s, &f);
    case ENG_A_THIS:
        return cannot_be_this(s, f.node, f.json);
    default:
        return false;
    }
}

bool eng_sc_contradicted(struct eng_sc_split *s, uint32_t form)
{
    return contradicted(s, form, 0);
}

/* ---- what unevaluated* sees ------------------------------------------------------------------ */

bool eng_sc_in_scope(const struct eng_sc_scope *s, const struct eng_sc_scope *scope)
{
    while (s && s != scope)
        s = s->up;
    return s != NULL;
}

bool eng_sc_evaluated(struct eng_sc_split *s, const struct eng_sc_scope *scope, uint32_t name)
{
    struct eng_sc *sc = s->sc;
    for (const struct eng_sc_fact *fact = s->facts; fact && eng_sc_step(sc, 1); fact = fact->next) {
        struct eng_sc_form f = sc->forms[fact->form];
        const char *key;
        json_t *v;
        if (!eng_sc_in_scope(fact->scope, scope)) continue;
        if (f.kind == ENG_F_SCOPE && fact->scope != scope && !f.neg) return true;
        if (f.kind != ENG_A_MEMBERS || !f.annots) continue;
        if (eng_sc_at(sc, f.node, ENG_W_ADDITIONAL)) return true;
        if (json_object_get(eng_sc_at(sc, f.node, ENG_W_PROPERTIES), sc->names[name].text))
            return true;
        json_object_foreach(
            eng_sc_at(sc, f.node, ENG_W_PATTERNS), key,
            v) if (eng_sc_name_matches(sc, name,
                                       eng_sc_pattern(sc, f.node,
                                                      eng_sc_name(sc, key)))) return true;
    }
    return false;
}
