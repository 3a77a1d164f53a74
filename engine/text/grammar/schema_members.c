/* schema: what keywords say of objects. See schema_impl.h. */
#include "engine/text/grammar/schema_impl.h"

static uint32_t atom(struct eng_sc *sc, enum eng_sc_form_kind kind, uint32_t node, uint32_t a,
                     uint32_t lit)
{
    struct eng_sc_form f = {.kind = (uint8_t)kind, .node = node, .a = a, .lit = lit};
    return eng_sc_atom(sc, &f);
}

/* A member whose name is of the class has lit. */
static uint32_t some_member(struct eng_sc *sc, enum eng_sc_class class, uint32_t node, uint32_t of,
                            uint32_t lit)
{
    struct eng_sc_form f = {
        .kind = ENG_A_SOME_MEMBER, .node = node, .a = class, .b = of, .lit = lit};
    return lit == ENG_LIT_FALSE ? ENG_F_FALSE : eng_sc_atom(sc, &f);
}

/* properties, patternProperties, additionalProperties. Not so: one of them has a value that it must
 * not have. */
static uint32_t form_members(struct eng_sc *sc, uint32_t node, bool neg, bool annots)
{
    struct eng_sc_form f = {.kind = ENG_A_MEMBERS, .node = node, .annots = annots};
    json_t *more = eng_sc_at(sc, node, ENG_W_ADDITIONAL), *v;
    uint32_t from = sc->n_tmp;
    const char *key;
    if (!neg) return eng_sc_atom(sc, &f);
    json_object_foreach(eng_sc_at(sc, node, ENG_W_PROPERTIES), key, v)
    {
        uint32_t lit = eng_sc_lit(sc, node, v) ^ 1;
        if (sc->code) return ENG_F_FALSE;
        if (lit != ENG_LIT_FALSE)
            eng_sc_push(sc, atom(sc, ENG_A_VALUE, node, eng_sc_name(sc, key), lit));
    }
    json_object_foreach(eng_sc_at(sc, node, ENG_W_PATTERNS), key, v)
    {
        uint32_t lit = eng_sc_lit(sc, node, v) ^ 1;
        if (sc->code) return ENG_F_FALSE;
        eng_sc_push(sc, some_member(sc, ENG_CLASS_PATTERN, node, eng_sc_name(sc, key), lit));
    }
    if (more)
        eng_sc_push(sc,
                    some_member(sc, ENG_CLASS_ADDITIONAL, node, 0, eng_sc_lit(sc, node, more) ^ 1));
    return eng_sc_join(sc, ENG_F_OR, from);
}

static uint32_t form_required(struct eng_sc *sc, uint32_t node, json_t *list, bool neg)
{
    struct eng_sc_form f = {.kind = ENG_A_REQUIRED, .node = node, .json = list};
    uint32_t from = sc->n_tmp;
    size_t n = json_array_size(list);
    if (!neg) return n ? eng_sc_atom(sc, &f) : ENG_F_TRUE;
    for (size_t i = 0; i < n && !sc->code; i++)
        eng_sc_push(sc, atom(sc, ENG_A_ABSENT, node,
                             eng_sc_name(sc, json_string_value(json_array_get(list, i))), 0));
    return eng_sc_join(sc, ENG_F_OR, from);
}

static uint32_t depends_on_names(struct eng_sc *sc, uint32_t node, uint32_t name, json_t *list,
                                 bool neg)
{
    struct eng_sc_form f = {.kind = ENG_A_NEEDS, .node = node, .a = name};
    uint32_t from = sc->n_tmp, there;
    for (size_t i = 0; i < json_array_size(list) && !sc->code; i++) {
        f.b = eng_sc_name(sc, json_string_value(json_array_get(list, i)));
        eng_sc_push(sc, neg ? atom(sc, ENG_A_ABSENT, node, f.b, 0) : eng_sc_atom(sc, &f));
    }
    there = eng_sc_join(sc, neg ? ENG_F_OR : ENG_F_AND, from);
    return neg ? eng_sc_join_two(sc, ENG_F_AND, atom(sc, ENG_A_PRESENT, node, name, 0), there)
               : there;
}

static uint32_t depends_on_schema(struct eng_sc *sc, uint32_t node, uint32_t name, json_t *schema,
                                  bool neg, bool annots)
{
    uint32_t lit = eng_sc_lit(sc, node, schema), there, holds;
    if (lit == ENG_LIT_TRUE || sc->code) return neg ? ENG_F_FALSE : ENG_F_TRUE;
    there = atom(sc, ENG_A_PRESENT, node, name, 0);
    holds =
        eng_sc_join_two(sc, ENG_F_AND, there, eng_sc_form(sc, lit ^ neg, ENG_SC_OBJECT, annots));
    if (neg || sc->code) return holds;
    return eng_sc_join_two(sc, ENG_F_OR, holds, atom(sc, ENG_A_ABSENT, node, name, 0));
}

static uint32_t form_dependent(struct eng_sc *sc, uint32_t node, json_t *map, bool neg, bool annots)
{
    uint32_t from = sc->n_tmp;
    const char *key;
    json_t *v;
    json_object_foreach(map, key, v)
    {
        uint32_t name = eng_sc_name(sc, key);
        eng_sc_push(sc, json_is_array(v) ? depends_on_names(sc, node, name, v, neg)
                                         : depends_on_schema(sc, node, name, v, neg, annots));
        if (sc->code) return ENG_F_FALSE;
    }
    return eng_sc_join(sc, neg ? ENG_F_OR : ENG_F_AND, from);
}

static uint32_t form_names(struct eng_sc *sc, uint32_t node, json_t *v, bool neg)
{
    uint32_t lit = eng_sc_lit(sc, node, v);
    if (neg)
        return lit == ENG_LIT_TRUE ? ENG_F_FALSE
                                   : some_member(sc, ENG_CLASS_NAMES, node, lit ^ 1, ENG_LIT_TRUE);
    return lit == ENG_LIT_TRUE ? ENG_F_TRUE : atom(sc, ENG_A_NAMES, node, 0, lit);
}

/* Whether w is the first of the keywords that ENG_A_MEMBERS stands for. */
static bool is_first(const struct eng_sc *sc, uint32_t node, enum eng_sc_word w)
{
    if (w > ENG_W_PROPERTIES && eng_sc_at(sc, node, ENG_W_PROPERTIES)) return false;
    return w <= ENG_W_PATTERNS || !eng_sc_at(sc, node, ENG_W_PATTERNS);
}

uint32_t eng_sc_form_object(struct eng_sc *sc, uint32_t node, enum eng_sc_word w, json_t *v,
                            bool neg, bool annots)
{
    switch (w) {
    case ENG_W_PROPERTIES:
    case ENG_W_PATTERNS:
    case ENG_W_ADDITIONAL:
        if (!is_first(sc, node, w)) break;
        return form_members(sc, node, neg, annots);
    case ENG_W_REQUIRED:
        return form_required(sc, node, v, neg);
    case ENG_W_MIN_PROPERTIES:
    case ENG_W_MAX_PROPERTIES:
        return eng_sc_form_size(sc, node, v, w == ENG_W_MIN_PROPERTIES, neg);
    case ENG_W_PROPERTY_NAMES:
        return form_names(sc, node, v, neg);
    case ENG_W_DEPENDENT_REQUIRED:
    case ENG_W_DEPENDENT_SCHEMAS:
    case ENG_W_DEPENDENCIES:
        return form_dependent(sc, node, v, neg, annots);
    default:
        break;
    }
    return neg ? ENG_F_FALSE : ENG_F_TRUE;
}
