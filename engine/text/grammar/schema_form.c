/* schema: what schemas say of the values of one type, as formulas. See schema_impl.h.
 *
 * A schema is a conjunction of its keywords; its negation is a disjunction of their negations,
 * which goes down to atoms. Keywords about other types vanish, so that most formulas are small.
 * Formulas share parts: one is made once for a literal and a type.
 *
 * unevaluatedProperties and unevaluatedItems depend on which subschemas hold, not only on whether
 * one does. Where they look on (annots), an anyOf is a choice of exactly which branches hold. */
#include "engine/text/grammar/schema_impl.h"

#define IN_PROGRESS (UINT32_MAX - 1)
enum { FEW_PARTS = 64 }; /* of a disjunction that becomes part of another one */

void eng_sc_push(struct eng_sc *sc, uint32_t x)
{
    if (eng_sc_room(sc, &sc->tmp, &sc->cap_tmp, sc->n_tmp + (size_t)1, sizeof *sc->tmp))
        sc->tmp[sc->n_tmp++] = x;
}

uint32_t eng_sc_atom(struct eng_sc *sc, const struct eng_sc_form *f)
{
    if (!eng_sc_step(sc, 1) ||
        !eng_sc_room(sc, &sc->forms, &sc->cap_forms, sc->n_forms + (size_t)1, sizeof *sc->forms))
        return ENG_F_FALSE;
    sc->forms[sc->n_forms] = *f;
    sc->forms[sc->n_forms].stamp = 0;
    sc->forms[sc->n_forms].rx = ENG_SC_NONE;
    return sc->n_forms++;
}

/* Moves a formula to the list at tmp[from], which has n, unless it is there already. A disjunction
 * within one gives its parts. True: x decides the whole. */
static bool take(struct eng_sc *sc, enum eng_sc_form_kind kind, uint32_t x, uint32_t from,
                 uint32_t *n)
{
    struct eng_sc_form *f = &sc->forms[x];
    if (x <= ENG_F_TRUE) return x == (kind == ENG_F_AND ? ENG_F_FALSE : ENG_F_TRUE);
    if (f->stamp == sc->stamp) return false;
    f->stamp = sc->stamp;
    sc->tmp[from + (*n)++] = x;
    return false;
}

/* How many parts a formula gives in a list of disjuncts. */
static uint32_t parts_of(const struct eng_sc *sc, enum eng_sc_form_kind kind, uint32_t x)
{
    const struct eng_sc_form *f = &sc->forms[x];
    return kind == ENG_F_OR && f->kind == ENG_F_OR && !f->annots && f->b <= FEW_PARTS ? f->b : 1;
}

/* "A member is absent, or it is there with a value" is one condition: its value, if it is there. */
static uint32_t join_absent(struct eng_sc *sc, uint32_t from, uint32_t n)
{
    uint32_t stamp = ++sc->stamp, kept = 0;
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        const struct eng_sc_form *f = &sc->forms[sc->tmp[from + i]];
        if (f->kind == ENG_A_ABSENT) sc->names[f->a].stamp = stamp, any = true;
    }
    for (uint32_t i = 0; i < n && any && !sc->code; i++) {
        struct eng_sc_form f = sc->forms[sc->tmp[from + i]];
        if (f.kind != ENG_A_VALUE || sc->names[f.a].stamp != stamp) continue;
        sc->names[f.a].index = stamp;
        f.kind = ENG_A_LIMIT;
        sc->tmp[from + i] = eng_sc_atom(sc, &f);
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct eng_sc_form *f = &sc->forms[sc->tmp[from + i]];
        if (any && f->kind == ENG_A_ABSENT && sc->names[f->a].index == stamp) continue;
        sc->tmp[from + kept++] = sc->tmp[from + i];
    }
    return kept;
}

uint32_t eng_sc_join(struct eng_sc *sc, enum eng_sc_form_kind kind, uint32_t from)
{
    struct eng_sc_form f = {.kind = (uint8_t)kind};
    uint32_t end = sc->n_tmp, n = 0, all = 0;
    sc->stamp++;
    for (uint32_t i = from; i < end && !sc->code; i++)
        all += parts_of(sc, kind, sc->tmp[i]);
    if (!eng_sc_step(sc, all) ||
        !eng_sc_room(sc, &sc->tmp, &sc->cap_tmp, end + (size_t)all, sizeof *sc->tmp))
        return ENG_F_FALSE;
    for (uint32_t i = from; i < end; i++) { /* the list is built behind what was pushed */
        uint32_t x = sc->tmp[i], parts = parts_of(sc, kind, x);
        const uint32_t *args = parts == 1 ? &sc->tmp[i] : &sc->args[sc->forms[x].a];
        for (uint32_t j = 0; j < parts; j++) {
            if (!take(sc, kind, args[j], end, &n)) continue;
            sc->n_tmp = from;
            return kind == ENG_F_AND ? ENG_F_FALSE : ENG_F_TRUE;
        }
    }
    sc->n_tmp = from;
    if (kind == ENG_F_OR) n = join_absent(sc, end, n);
    if (n == 0) return kind == ENG_F_AND ? ENG_F_TRUE : ENG_F_FALSE;
    if (n == 1) return sc->tmp[end];
    if (!eng_sc_room(sc, &sc->args, &sc->cap_args, sc->n_args + (size_t)n, sizeof *sc->args))
        return ENG_F_FALSE;
    for (uint32_t i = 0; i < n; i++)
        f.annots |= sc->forms[sc->tmp[end + i]].annots;
    f.node = sc->forms[sc->tmp[end]].node;
    f.a = sc->n_args;
    f.b = n;
    memcpy(&sc->args[sc->n_args], &sc->tmp[end], n * sizeof *sc->args);
    sc->n_args += n;
    return eng_sc_atom(sc, &f);
}

uint32_t eng_sc_join_two(struct eng_sc *sc, enum eng_sc_form_kind kind, uint32_t a, uint32_t b)
{
    uint32_t from = sc->n_tmp;
    eng_sc_push(sc, a);
    eng_sc_push(sc, b);
    return sc->code ? ENG_F_FALSE : eng_sc_join(sc, kind, from);
}

/* ---- keywords -------------------------------------------------------------------------------- */

static uint32_t form_enum(struct eng_sc *sc, uint32_t node, json_t *list, enum eng_sc_type t,
                          bool neg)
{
    uint32_t from = sc->n_tmp;
    if (t == ENG_SC_NUMBER || t == ENG_SC_STRING) {
        struct eng_sc_form f = {.kind = t == ENG_SC_NUMBER ? ENG_A_NUMBERS : ENG_A_TEXTS,
                                .neg = neg,
                                .node = node,
                                .a = 1,
                                .json = list};
        bool any = false;
        for (size_t i = 0; i < json_array_size(list) && !any; i++)
            any = t == ENG_SC_NUMBER ? json_is_number(json_array_get(list, i))
                                     : json_is_string(json_array_get(list, i));
        return any ? eng_sc_atom(sc, &f) : neg ? ENG_F_TRUE : ENG_F_FALSE;
    }
    for (size_t i = 0; i < json_array_size(list) && eng_sc_step(sc, 1); i++)
        eng_sc_push(sc, eng_sc_form_this(sc, node, json_array_get(list, i), t, neg));
    return eng_sc_join(sc, neg ? ENG_F_AND : ENG_F_OR, from);
}

static uint32_t form_of_word(struct eng_sc *sc, uint32_t node, enum eng_sc_word w, json_t *v,
                             enum eng_sc_type t, bool neg, bool annots)
{
    uint32_t silent = neg ? ENG_F_FALSE : ENG_F_TRUE;
    switch (w) {
    case ENG_W_REF:
    case ENG_W_DYNAMIC_REF:
        return eng_sc_form(
            sc, eng_sc_refer(sc, node, json_string_value(v), w == ENG_W_DYNAMIC_REF) ^ neg, t,
            annots);
    case ENG_W_ALL_OF:
    case ENG_W_ANY_OF:
    case ENG_W_ONE_OF:
        return eng_sc_form_union(sc, node, w, v, t, neg, annots);
    case ENG_W_NOT:
        return eng_sc_form(sc, eng_sc_lit(sc, node, v) ^ 1 ^ neg, t, false);
    case ENG_W_IF:
        return eng_sc_form_if(sc, node, t, neg, annots);
    case ENG_W_ENUM:
        return form_enum(sc, node, v, t, neg);
    case ENG_W_CONST:
        return eng_sc_form_this(sc, node, v, t, neg);
    default:
        if (t == ENG_SC_OBJECT) return eng_sc_form_object(sc, node, w, v, neg, annots);
        if (t == ENG_SC_ARRAY) return eng_sc_form_array(sc, node, w, v, neg, annots);
        if (t == ENG_SC_NUMBER || t == ENG_SC_STRING)
            return eng_sc_form_scalar(sc, node, w, v, t, neg);
        return silent;
    }
}

/* All keywords but unevaluated*. */
static uint32_t form_of_words(struct eng_sc *sc, uint32_t node, enum eng_sc_type t, bool neg,
                              bool annots)
{
    uint32_t from = sc->n_tmp;
    json_t *json = sc->places[sc->nodes[node].place].json, *v;
    const char *key;
    json_object_foreach(json, key, v)
    {
        enum eng_sc_word w = eng_sc_word(key);
        if (w == ENG_W_NONE) continue;
        eng_sc_push(sc, form_of_word(sc, node, w, v, t, neg, annots));
        if (sc->code) return ENG_F_FALSE;
    }
    return eng_sc_join(sc, neg ? ENG_F_OR : ENG_F_AND, from);
}

static uint32_t form_of_place(struct eng_sc *sc, uint32_t node, enum eng_sc_type t, bool neg,
                              bool annots)
{
    enum eng_sc_word w = t == ENG_SC_OBJECT  ? ENG_W_UNEVALUATED
                         : t == ENG_SC_ARRAY ? ENG_W_UNEVALUATED_ITEMS
                                             : ENG_W_NONE;
    json_t *rest = w == ENG_W_NONE ? NULL : eng_sc_at(sc, node, w);
    struct eng_sc_form scope = {.kind = ENG_F_SCOPE, .neg = neg, .node = node, .annots = annots};
    if (rest) scope.lit = eng_sc_lit(sc, node, rest);
    if (scope.lit == ENG_LIT_TRUE && !annots) rest = NULL;
    uint32_t f = form_of_words(sc, node, t, neg, annots || (rest && !neg));
    if (!rest || sc->code) return f;
    scope.a = neg ? form_of_words(sc, node, t, false, true) : f;
    if (scope.a == ENG_F_FALSE) return f;
    uint32_t looks = eng_sc_atom(sc, &scope);
    return neg ? eng_sc_join_two(sc, ENG_F_OR, f, looks) : looks;
}

static uint32_t form_of_any(struct eng_sc *sc, uint32_t node, enum eng_sc_type t, bool neg)
{
    uint32_t from = sc->n_tmp, n = sc->nodes[node].n;
    for (uint32_t i = 0; i < n && !sc->code; i++)
        eng_sc_push(sc, eng_sc_form(sc, sc->lits[sc->nodes[node].first + i] ^ neg, t, false));
    return eng_sc_join(sc, neg ? ENG_F_AND : ENG_F_OR, from);
}

bool eng_sc_deeper(struct eng_sc *sc, uint32_t node)
{
    if (sc->code) return false;
    if (++sc->depth <= ENG_SC_DEPTH) return true;
    eng_sc_fail(sc, node, CN_ELIMIT, "schemas and references nest deeper than %d levels",
                ENG_SC_DEPTH);
    return false;
}

uint32_t eng_sc_form(struct eng_sc *sc, uint32_t lit, enum eng_sc_type t, bool annots)
{
    uint32_t node = lit >> 1, key[2] = {lit, 0}, f;
    bool neg = lit & 1;
    if (lit <= ENG_LIT_FALSE) return lit == ENG_LIT_TRUE ? ENG_F_TRUE : ENG_F_FALSE;
    annots = annots && !neg && t >= ENG_SC_ARRAY;
    if (sc->nodes[node].kind == ENG_NODE_PLACE &&
        !(sc->places[sc->nodes[node].place].types >> t & 1))
        return neg ? ENG_F_TRUE : ENG_F_FALSE;
    key[1] = (uint32_t)t << 1 | annots;
    uint32_t *at = eng_sc_put(sc, &sc->by_form, key, sizeof key);
    if (!at) return ENG_F_FALSE;
    if (*at == IN_PROGRESS)
        eng_sc_fail(sc, node, CN_EINVAL, "the schema refers back to itself for the same value");
    else if (*at != ENG_SC_NONE)
        return *at;
    *at = IN_PROGRESS;
    if (!eng_sc_deeper(sc, node))
        f = ENG_F_FALSE;
    else if (sc->nodes[node].kind == ENG_NODE_CONST)
        f = eng_sc_form_this(sc, node, sc->nodes[node].json, t, neg);
    else if (sc->nodes[node].kind == ENG_NODE_ANY)
        f = form_of_any(sc, node, t, neg);
    else
        f = form_of_place(sc, node, t, neg, annots);
    sc->depth--;
    if (sc->code) return ENG_F_FALSE;
    at = eng_sc_put(sc, &sc->by_form, key, sizeof key);
    return at ? (*at = f) : ENG_F_FALSE;
}
