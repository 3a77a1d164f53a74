/* schema: what keywords say of numbers, strings and arrays, and what constants do. See
 * schema_impl.h. */
#include "engine/text/grammar/schema_impl.h"

static uint32_t size_between(struct eng_sc *sc, uint32_t node, uint32_t lo, uint32_t hi)
{
    struct eng_sc_form f = {.kind = ENG_A_SIZE, .node = node, .a = lo, .b = hi};
    if (lo > hi || lo == ENG_RX_INF) return ENG_F_FALSE;
    return lo == 0 && hi == ENG_RX_INF ? ENG_F_TRUE : eng_sc_atom(sc, &f);
}

uint32_t eng_sc_form_size(struct eng_sc *sc, uint32_t node, const json_t *v, bool least, bool neg)
{
    uint32_t n = eng_sc_count(v);
    if (least != neg) /* at least n, or at least n + 1 since it is not at most n */
        return n + neg < n ? ENG_F_FALSE : size_between(sc, node, n + neg, ENG_RX_INF);
    if (!neg) return size_between(sc, node, 0, n);
    return n ? size_between(sc, node, 0, n - 1) : ENG_F_FALSE;
}

/* ---- numbers and strings --------------------------------------------------------------------- */

static uint32_t bound(struct eng_sc *sc, uint32_t node, enum eng_sc_form_kind kind, const json_t *v,
                      bool exclusive, bool neg)
{
    struct eng_sc_form f = {.kind = (uint8_t)kind, .node = node, .a = exclusive};
    if (neg) { /* the other side */
        f.kind = kind == ENG_A_MIN ? ENG_A_MAX : ENG_A_MIN;
        f.a = !exclusive;
    }
    f.number = eng_sc_decimal(sc, node, v);
    return f.number ? eng_sc_atom(sc, &f) : ENG_F_FALSE;
}

/* exclusiveMinimum and exclusiveMaximum; of draft 4, true makes minimum or maximum exclusive. */
static uint32_t form_exclusive(struct eng_sc *sc, uint32_t node, enum eng_sc_word w, json_t *v,
                               bool neg)
{
    bool above = w == ENG_W_ABOVE;
    json_t *limit = eng_sc_at(sc, node, above ? ENG_W_MINIMUM : ENG_W_MAXIMUM);
    if (json_is_boolean(v) && (json_is_false(v) || !limit)) return neg ? ENG_F_FALSE : ENG_F_TRUE;
    return bound(sc, node, above ? ENG_A_MIN : ENG_A_MAX, json_is_boolean(v) ? limit : v, true,
                 neg);
}

static uint32_t form_number(struct eng_sc *sc, uint32_t node, enum eng_sc_word w, json_t *v,
                            bool neg)
{
    struct eng_sc_form f = {.node = node, .neg = neg};
    switch (w) {
    case ENG_W_TYPE:
        f.kind = ENG_A_INTEGER;
        if (!sc->places[sc->nodes[node].place].integer) break;
        return eng_sc_atom(sc, &f);
    case ENG_W_MINIMUM:
        return bound(sc, node, ENG_A_MIN, v, false, neg);
    case ENG_W_MAXIMUM:
        return bound(sc, node, ENG_A_MAX, v, false, neg);
    case ENG_W_ABOVE:
    case ENG_W_BELOW:
        return form_exclusive(sc, node, w, v, neg);
    case ENG_W_MULTIPLE_OF:
        f.kind = ENG_A_MULTIPLE;
        f.number = eng_sc_decimal(sc, node, v);
        return f.number ? eng_sc_atom(sc, &f) : ENG_F_FALSE;
    default:
        break;
    }
    return neg ? ENG_F_FALSE : ENG_F_TRUE;
}

/* Formats of other dialects that say what a value is for, or which numbers are meant. */
static bool is_note(const char *format)
{
    static const char *const notes[] = {"password", "binary", "byte",  "int32",
                                        "int64",    "float",  "double"};
    for (size_t i = 0; i < CN_ARRAY_LEN(notes); i++)
        if (strcmp(format, notes[i]) == 0) return true;
    return false;
}

uint32_t eng_sc_form_scalar(struct eng_sc *sc, uint32_t node, enum eng_sc_word w, json_t *v,
                            enum eng_sc_type t, bool neg)
{
    struct eng_sc_form f = {.node = node, .neg = neg};
    if (t == ENG_SC_NUMBER) return form_number(sc, node, w, v, neg);
    switch (w) {
    case ENG_W_MIN_LENGTH:
    case ENG_W_MAX_LENGTH:
        f.kind = ENG_A_SIZE;
        uint32_t of = eng_sc_form_size(sc, node, v, w == ENG_W_MIN_LENGTH, neg);
        if (of > ENG_F_TRUE) sc->forms[of].kind = ENG_A_LENGTH;
        return of;
    case ENG_W_PATTERN:
        f.kind = ENG_A_PATTERN;
        f.a = eng_sc_name(sc, json_string_value(v));
        return eng_sc_atom(sc, &f);
    case ENG_W_FORMAT:
        if (sc->opts.plain_formats || is_note(json_string_value(v))) break;
        f.kind = ENG_A_FORMAT;
        f.json = v;
        return eng_sc_atom(sc, &f);
    default:
        break;
    }
    return neg ? ENG_F_FALSE : ENG_F_TRUE;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

json_t *eng_sc_prefix(const struct eng_sc *sc, uint32_t node)
{
    json_t *list = eng_sc_at(sc, node, ENG_W_PREFIX_ITEMS), *items;
    if (list) return list;
    items = eng_sc_at(sc, node, ENG_W_ITEMS);
    return json_is_array(items) ? items : NULL;
}

json_t *eng_sc_rest(const struct eng_sc *sc, uint32_t node)
{
    json_t *items = eng_sc_at(sc, node, ENG_W_ITEMS);
    return json_is_array(items) ? eng_sc_at(sc, node, ENG_W_ADDITIONAL_ITEMS) : items;
}

/* prefixItems and items. */
static uint32_t form_items(struct eng_sc *sc, uint32_t node, bool neg, bool annots)
{
    struct eng_sc_form f = {.kind = ENG_A_ITEMS, .node = node, .annots = annots};
    json_t *prefix = eng_sc_prefix(sc, node), *rest = eng_sc_rest(sc, node);
    uint32_t from = sc->n_tmp, n = (uint32_t)json_array_size(prefix), lit;
    if (!neg) return eng_sc_atom(sc, &f);
    f.annots = false;
    f.kind = ENG_A_ITEM;
    for (f.a = 0; f.a < n && !sc->code; f.a++) {
        f.lit = eng_sc_lit(sc, node, json_array_get(prefix, f.a)) ^ 1;
        if (f.lit != ENG_LIT_FALSE) eng_sc_push(sc, eng_sc_atom(sc, &f));
    }
    lit = rest ? eng_sc_lit(sc, node, rest) ^ 1 : ENG_LIT_FALSE;
    f.kind = ENG_A_SOME_ITEM;
    f.lit = lit;
    if (lit == ENG_LIT_TRUE)
        eng_sc_push(sc, size_between(sc, node, n + 1, ENG_RX_INF));
    else if (lit != ENG_LIT_FALSE)
        eng_sc_push(sc, eng_sc_atom(sc, &f));
    return eng_sc_join(sc, ENG_F_OR, from);
}

static uint32_t contains(struct eng_sc *sc, const struct eng_sc_form *of, uint32_t lo, uint32_t hi)
{
    struct eng_sc_form f = *of;
    if (lo > hi || lo == ENG_RX_INF) return ENG_F_FALSE;
    f.a = lo;
    f.b = hi;
    if (f.lit == ENG_LIT_FALSE) return lo ? ENG_F_FALSE : ENG_F_TRUE;
    if (f.lit == ENG_LIT_TRUE && !f.annots) return size_between(sc, f.node, lo, hi);
    if (lo == 0 && hi == ENG_RX_INF && !f.annots) return ENG_F_TRUE;
    return eng_sc_atom(sc, &f);
}

static uint32_t form_contains(struct eng_sc *sc, uint32_t node, json_t *v, bool neg, bool annots)
{
    struct eng_sc_form f = {.kind = ENG_A_CONTAINS, .node = node, .annots = annots};
    json_t *least = eng_sc_at(sc, node, ENG_W_MIN_CONTAINS);
    json_t *most = eng_sc_at(sc, node, ENG_W_MAX_CONTAINS);
    uint32_t lo = least ? eng_sc_count(least) : 1, hi = most ? eng_sc_count(most) : ENG_RX_INF;
    uint32_t from = sc->n_tmp;
    f.lit = eng_sc_lit(sc, node, v);
    if (!neg) return contains(sc, &f, lo, hi);
    if (lo) eng_sc_push(sc, contains(sc, &f, 0, lo - 1));
    if (hi != ENG_RX_INF) eng_sc_push(sc, contains(sc, &f, hi + 1, ENG_RX_INF));
    return eng_sc_join(sc, ENG_F_OR, from);
}

uint32_t eng_sc_form_array(struct eng_sc *sc, uint32_t node, enum eng_sc_word w, json_t *v,
                           bool neg, bool annots)
{
    struct eng_sc_form f = {.kind = ENG_A_UNIQUE, .node = node, .neg = neg};
    switch (w) {
    case ENG_W_PREFIX_ITEMS:
        return form_items(sc, node, neg, annots);
    case ENG_W_ITEMS:
        if (eng_sc_at(sc, node, ENG_W_PREFIX_ITEMS)) break; /* said there */
        return form_items(sc, node, neg, annots);
    case ENG_W_CONTAINS:
        return form_contains(sc, node, v, neg, annots);
    case ENG_W_MIN_ITEMS:
    case ENG_W_MAX_ITEMS:
        return eng_sc_form_size(sc, node, v, w == ENG_W_MIN_ITEMS, neg);
    case ENG_W_UNIQUE_ITEMS:
        if (json_is_false(v)) break;
        sc->unique = true;
        return eng_sc_atom(sc, &f);
    default:
        break;
    }
    return neg ? ENG_F_FALSE : ENG_F_TRUE;
}

/* ---- constants ------------------------------------------------------------------------------- */

/* Not this array: shorter, longer, or different somewhere. */
static uint32_t not_array(struct eng_sc *sc, uint32_t node, json_t *v)
{
    struct eng_sc_form f = {.kind = ENG_A_ITEM, .node = node};
    uint32_t n = (uint32_t)json_array_size(v), from = sc->n_tmp;
    if (n) eng_sc_push(sc, size_between(sc, node, 0, n - 1));
    eng_sc_push(sc, size_between(sc, node, n + 1, ENG_RX_INF));
    for (f.a = 0; f.a < n && !sc->code; f.a++) {
        f.lit = eng_sc_lit_const(sc, node, json_array_get(v, f.a)) ^ 1;
        eng_sc_push(sc, eng_sc_atom(sc, &f));
    }
    return eng_sc_join(sc, ENG_F_OR, from);
}

/* Not this object: a member is missing or different, or there are more than it has. */
static uint32_t not_object(struct eng_sc *sc, uint32_t node, json_t *v)
{
    struct eng_sc_form f = {.node = node};
    uint32_t n = (uint32_t)json_object_size(v), from = sc->n_tmp;
    const char *key;
    json_t *w;
    json_object_foreach(v, key, w)
    {
        f.kind = ENG_A_ABSENT;
        f.a = eng_sc_name(sc, key);
        eng_sc_push(sc, eng_sc_atom(sc, &f));
        f.kind = ENG_A_VALUE;
        f.lit = eng_sc_lit_const(sc, node, w) ^ 1;
        eng_sc_push(sc, eng_sc_atom(sc, &f));
        if (sc->code) return ENG_F_FALSE;
    }
    eng_sc_push(sc, size_between(sc, node, n + 1, ENG_RX_INF));
    return eng_sc_join(sc, ENG_F_OR, from);
}

uint32_t eng_sc_form_this(struct eng_sc *sc, uint32_t node, json_t *v, enum eng_sc_type t, bool neg)
{
    static const json_type types[] = {[ENG_SC_NULL] = JSON_NULL,     [ENG_SC_FALSE] = JSON_FALSE,
                                      [ENG_SC_TRUE] = JSON_TRUE,     [ENG_SC_STRING] = JSON_STRING,
                                      [ENG_SC_ARRAY] = JSON_ARRAY,   [ENG_SC_OBJECT] = JSON_OBJECT,
                                      [ENG_SC_NUMBER] = JSON_INTEGER};
    struct eng_sc_form f = {.node = node, .neg = neg, .json = v};
    if (t == ENG_SC_NUMBER ? !json_is_number(v) : json_typeof(v) != types[t])
        return neg ? ENG_F_TRUE : ENG_F_FALSE;
    if (t < ENG_SC_NUMBER) return neg ? ENG_F_FALSE : ENG_F_TRUE;
    if (neg && t == ENG_SC_ARRAY) return not_array(sc, node, v);
    if (neg && t == ENG_SC_OBJECT) return not_object(sc, node, v);
    f.kind = t == ENG_SC_NUMBER ? ENG_A_NUMBERS : t == ENG_SC_STRING ? ENG_A_TEXTS : ENG_A_THIS;
    return eng_sc_atom(sc, &f);
}
