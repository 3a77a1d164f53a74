/* schema: allOf, anyOf, oneOf, if. See schema_impl.h.
 *
 * "Exactly one of n" is said by halves for strings and numbers (exactly one of the left and none
 * of the right, or the other way round), which takes n log n parts. Objects and arrays get n
 * alternatives with n - 1 negations each: split.c drops the negations that an alternative
 * implies. Where one property has a different value in each branch, nothing is negated. */
#include "engine/text/grammar/schema_impl.h"

enum { MOST_EXCLUSIVE = 500 }; /* branches of objects or arrays that need negations */

/* Formulas of branches: none of them holds, one, at least one, at least two. */
struct part { uint32_t none, one, some, more; };

static uint32_t both(struct eng_sc *sc, uint32_t a, uint32_t b)
{
    return eng_sc_join_two(sc, ENG_F_AND, a, b);
}

static uint32_t either(struct eng_sc *sc, uint32_t a, uint32_t b)
{
    return eng_sc_join_two(sc, ENG_F_OR, a, b);
}

/* yes, no: of the branches. annots: `some` says of each branch with annotations whether it holds.
 */
static struct part count_branches(struct eng_sc *sc, const uint32_t *yes, const uint32_t *no,
                                  size_t n, bool annots)
{
    if (n == 1) return (struct part){no[0], yes[0], yes[0], ENG_F_FALSE};
    struct part l = count_branches(sc, yes, no, n / 2, annots);
    struct part r = count_branches(sc, yes + n / 2, no + n / 2, n - n / 2, annots);
    struct part p = {0};
    if (sc->code) return p;
    p.none = both(sc, l.none, r.none);
    if (annots) {
        bool left = l.some > ENG_F_TRUE && sc->forms[l.some].annots;
        bool right = r.some > ENG_F_TRUE && sc->forms[r.some].annots;
        uint32_t rest = either(sc, both(sc, l.some, r.none), both(sc, l.none, r.some));
        if (!right) /* it does not matter whether those on the right hold, too */
            p.some = either(sc, l.some, both(sc, l.none, r.some));
        else if (!left)
            p.some = either(sc, r.some, both(sc, r.none, l.some));
        else
            p.some = either(sc, both(sc, l.some, r.some), rest);
        return p;
    }
    p.one = either(sc, both(sc, l.one, r.none), both(sc, l.none, r.one));
    p.some = either(sc, l.some, r.some);
    p.more = either(sc, either(sc, l.more, r.more), both(sc, l.some, r.some));
    return p;
}

/* ---- branches that differ in one property ---------------------------------------------------- */

/* The object of a branch, behind references; NULL: it is not one. */
static json_t *branch_json(struct eng_sc *sc, uint32_t lit)
{
    if (lit & 1 || lit == ENG_LIT_TRUE || sc->nodes[lit >> 1].kind != ENG_NODE_PLACE) return NULL;
    return sc->places[sc->nodes[lit >> 1].place].json;
}

static bool requires(json_t *json, const char *name)
{
    json_t *list = json_object_get(json, "required");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *s = json_string_value(json_array_get(list, i));
        if (s && strcmp(s, name) == 0) return true;
    }
    return false;
}

/* Whether the scalar is new among the tags. Numbers count by value. */
static bool new_tag(struct eng_sc *sc, struct eng_sc_map *seen, json_t *v)
{
    char text[64];
    double d = json_number_value(v);
    if (json_is_array(v) || json_is_object(v)) return false;
    if (json_is_number(v)) memcpy(text, &d, sizeof d); /* equal ones have equal doubles */
    if (json_is_number(v) && d == 0) memset(text, 0, sizeof d);
    const char *key = json_is_string(v) ? json_string_value(v) : text;
    size_t n = json_is_string(v) ? json_string_length(v) : sizeof d;
    char *tagged = eng_sc_alloc(sc, n + 1);
    if (!tagged) return false;
    tagged[0] = json_is_number(v) ? 'n' : (char)('0' + json_typeof(v));
    if (json_is_string(v) || json_is_number(v)) memcpy(tagged + 1, key, n);
    uint32_t *at = eng_sc_put(sc, seen, tagged, json_is_string(v) || json_is_number(v) ? n + 1 : 1);
    if (!at || *at != ENG_SC_NONE) return false;
    *at = 0;
    return true;
}

/* Whether the values of the property differ in all branches that are not impossible. */
static bool tells_apart(struct eng_sc *sc, const uint32_t *lits, const uint32_t *yes, size_t n,
                        const char *name, bool required)
{
    struct eng_sc_map seen = {0};
    bool good = true;
    for (size_t i = 0; i < n && good && eng_sc_step(sc, 1); i++) {
        json_t *json = branch_json(sc, lits[i]);
        json_t *value = json_object_get(json_object_get(json, "properties"), name), *list;
        if (yes[i] == ENG_F_FALSE) continue;
        uint32_t lit = json_is_object(value) ? eng_sc_lit(sc, lits[i] >> 1, value) : ENG_LIT_TRUE;
        value = branch_json(sc, lit);
        good = value && (!required || requires(json, name));
        if (good && json_object_get(value, "const")) {
            good = new_tag(sc, &seen, json_object_get(value, "const"));
            continue;
        }
        list = good ? json_object_get(value, "enum") : NULL;
        good = json_array_size(list) > 0;
        for (size_t j = 0; j < json_array_size(list) && good && eng_sc_step(sc, 1); j++)
            good = new_tag(sc, &seen, json_array_get(list, j));
    }
    eng_sc_map_fini(&seen);
    return good && !sc->code;
}

/* The property whose value identifies the branch, or NULL. *demand: OpenAPI's discriminator
 * requires the property, the branches do not. */
static const char *tag_of(struct eng_sc *sc, uint32_t node, const uint32_t *lits,
                          const uint32_t *yes, size_t n, bool *demand)
{
    json_t *own = sc->places[sc->nodes[node].place].json, *v;
    const char *key, *given = json_string_value(
                         json_object_get(json_object_get(own, "discriminator"), "propertyName"));
    unsigned tries = 0;
    size_t i = 0;
    while (i < n && yes[i] == ENG_F_FALSE)
        i++;
    *demand = false;
    if (i == n) return NULL;
    json_object_foreach(json_object_get(branch_json(sc, lits[i]), "properties"), key, v)
    {
        if (!json_is_object(v) || ++tries > 50) continue;
        if (tells_apart(sc, lits, yes, n, key, true)) return key;
    }
    *demand = true;
    return given && tells_apart(sc, lits, yes, n, given, false) ? given : NULL;
}

/* ---- oneOf ----------------------------------------------------------------------------------- */

/* One holds and no other. */
static uint32_t exclusive(struct eng_sc *sc, const uint32_t *yes, const uint32_t *no, size_t n)
{
    uint32_t from = sc->n_tmp;
    for (size_t i = 0; i < n && !sc->code; i++) {
        uint32_t inner = sc->n_tmp;
        if (yes[i] == ENG_F_FALSE) continue;
        eng_sc_push(sc, yes[i]);
        for (size_t j = 0; j < n && !sc->code; j++)
            if (j != i) eng_sc_push(sc, no[j]);
        eng_sc_push(sc, eng_sc_join(sc, ENG_F_AND, inner));
    }
    return eng_sc_join(sc, ENG_F_OR, from);
}

/* For branches that the value of property `name` identifies: one holds, or (neg) none does.
 * demand: the branch that holds must have the property. */
static uint32_t tagged(struct eng_sc *sc, uint32_t node, const uint32_t *parts, size_t n,
                       const char *name, bool demand, bool neg)
{
    struct eng_sc_form f = {.kind = neg ? ENG_A_ABSENT : ENG_A_PRESENT, .node = node};
    uint32_t from = sc->n_tmp, there = neg ? ENG_F_FALSE : ENG_F_TRUE;
    f.a = eng_sc_name(sc, name);
    if (demand) there = eng_sc_atom(sc, &f);
    for (size_t i = 0; i < n && !sc->code; i++)
        eng_sc_push(sc, neg ? either(sc, parts[i], there) : both(sc, parts[i], there));
    return eng_sc_join(sc, neg ? ENG_F_AND : ENG_F_OR, from);
}

static uint32_t one_of(struct eng_sc *sc, uint32_t node, const uint32_t *lits, const uint32_t *yes,
                       const uint32_t *no, size_t n, enum eng_sc_type t, bool neg)
{
    size_t possible = 0;
    bool demand;
    const char *tag = NULL;
    for (size_t i = 0; i < n; i++)
        possible += yes[i] != ENG_F_FALSE;
    if (t == ENG_SC_OBJECT && possible > 1) tag = tag_of(sc, node, lits, yes, n, &demand);
    if (tag) return tagged(sc, node, neg ? no : yes, n, tag, demand, neg);
    if (neg || t < ENG_SC_ARRAY) {
        struct part p = count_branches(sc, yes, no, n, false);
        return neg ? either(sc, p.none, p.more) : p.one;
    }
    if (possible <= MOST_EXCLUSIVE) return exclusive(sc, yes, no, n);
    eng_sc_fail(sc, node, CN_ELIMIT,
                "oneOf has more than %d branches for one type that no property distinguishes",
                MOST_EXCLUSIVE);
    return ENG_F_FALSE;
}

uint32_t eng_sc_form_union(struct eng_sc *sc, uint32_t node, enum eng_sc_word w, json_t *list,
                           enum eng_sc_type t, bool neg, bool annots)
{
    size_t n = json_array_size(list);
    bool counts = w == ENG_W_ONE_OF || (w == ENG_W_ANY_OF && annots && !neg);
    enum eng_sc_form_kind kind = (w == ENG_W_ALL_OF) != neg ? ENG_F_AND : ENG_F_OR;
    uint32_t from = sc->n_tmp;
    if (!counts) {
        for (size_t i = 0; i < n && !sc->code; i++)
            eng_sc_push(sc, eng_sc_form(sc, eng_sc_lit(sc, node, json_array_get(list, i)) ^ neg, t,
                                        annots));
        return eng_sc_join(sc, kind, from);
    }
    uint32_t *lits = eng_sc_alloc(sc, n * 3 * sizeof *lits), *yes = lits + n, *no = yes + n;
    for (size_t i = 0; lits && i < n && !sc->code; i++) {
        lits[i] = eng_sc_lit(sc, node, json_array_get(list, i));
        yes[i] = eng_sc_form(sc, lits[i], t, annots && !neg);
        no[i] = eng_sc_form(sc, lits[i] ^ 1, t, false);
    }
    if (!lits || sc->code) return ENG_F_FALSE;
    if (w == ENG_W_ANY_OF) return count_branches(sc, yes, no, n, true).some;
    return one_of(sc, node, lits, yes, no, n, t, neg);
}

/* Either `if` holds, and `then`; or `if` does not, and `else` holds. */
uint32_t eng_sc_form_if(struct eng_sc *sc, uint32_t node, enum eng_sc_type t, bool neg, bool annots)
{
    json_t *then = eng_sc_at(sc, node, ENG_W_THEN), *other = eng_sc_at(sc, node, ENG_W_ELSE);
    uint32_t lit = eng_sc_lit(sc, node, eng_sc_at(sc, node, ENG_W_IF));
    uint32_t yes_lit = then ? eng_sc_lit(sc, node, then) : ENG_LIT_TRUE;
    uint32_t no_lit = other ? eng_sc_lit(sc, node, other) : ENG_LIT_TRUE;
    if (sc->code) return ENG_F_FALSE;
    if (!then && !other && !annots) return neg ? ENG_F_FALSE : ENG_F_TRUE;
    uint32_t yes = eng_sc_form(sc, lit, t, annots), no = eng_sc_form(sc, lit ^ 1, t, false);
    return either(sc, both(sc, yes, eng_sc_form(sc, yes_lit ^ neg, t, annots)),
                  both(sc, no, eng_sc_form(sc, no_lit ^ neg, t, annots)));
}
