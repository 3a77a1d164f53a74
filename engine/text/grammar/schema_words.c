/* schema: keywords, and the shapes of their values. See schema_impl.h. */
#include "engine/text/grammar/schema_impl.h"

#include <stdio.h>
#include <stdlib.h>

static const struct {
    const char *name;
    enum eng_sc_shape shape;
} words[] = {
#define WORD(id, name, shape) {name, ENG_SHAPE_##shape},
#include "engine/text/grammar/schema_words.def"
#undef WORD
};

enum eng_sc_word eng_sc_word(const char *key)
{
    for (unsigned i = 0; i < ENG_W_NONE; i++)
        if (words[i].name[0] == key[0] && strcmp(words[i].name, key) == 0)
            return (enum eng_sc_word)i;
    return ENG_W_NONE;
}

enum eng_sc_shape eng_sc_shape(enum eng_sc_word w)
{
    return words[w].shape;
}

json_t *eng_sc_at(const struct eng_sc *sc, uint32_t node, enum eng_sc_word w)
{
    return json_object_get(sc->places[sc->nodes[node].place].json, words[w].name);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static bool is_count(const json_t *v)
{
    double d = json_number_value(v);
    return json_is_number(v) && d >= 0 &&
           (json_is_integer(v) || d >= 1e15 || d == (double)(long long)d);
}

uint32_t eng_sc_count(const json_t *v)
{
    double d = json_number_value(v);
    return d >= (double)ENG_RX_INF ? ENG_RX_INF : (uint32_t)d;
}

/* The shortest text that is read as the same number. */
static void number_text(const json_t *v, char *out, size_t cap)
{
    if (json_is_integer(v)) {
        snprintf(out, cap, "%lld", (long long)json_integer_value(v));
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(out, cap, "%.*g", digits, json_real_value(v));
        if (strtod(out, NULL) == json_real_value(v)) break;
    }
    for (char *p = out; *p; p++) /* of a locale */
        if (*p == ',') *p = '.';
}

const struct eng_decimal *eng_sc_decimal(struct eng_sc *sc, uint32_t node, const json_t *v)
{
    char text[64], room[400];
    struct eng_decimal *out = eng_sc_alloc(sc, sizeof *out);
    if (!out) return NULL;
    number_text(v, text, sizeof text);
    int rc = eng_decimal_parse(text, strlen(text), room, out);
    if (rc) {
        eng_sc_fail(sc, node, rc, "the number %s has too many digits", text);
        return NULL;
    }
    out->digits = cn_arena_strn(&sc->arena, out->digits, out->n);
    if (!out->digits) eng_sc_nomem(sc);
    return out->digits ? out : NULL;
}

static bool equal_numbers(const json_t *a, const json_t *b)
{
    if (json_is_integer(a) == json_is_integer(b))
        return json_is_integer(a) ? json_integer_value(a) == json_integer_value(b)
                                  : json_real_value(a) == json_real_value(b);
    double d = json_is_real(a) ? json_real_value(a) : json_real_value(b);
    json_int_t i = json_is_integer(a) ? json_integer_value(a) : json_integer_value(b);
    return d >= -0x1p63 && d < 0x1p63 && d == (double)(long long)d && (json_int_t)d == i;
}

bool eng_sc_equal(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *v;
    if (json_is_number(a) && json_is_number(b)) return equal_numbers(a, b);
    if (json_typeof(a) != json_typeof(b)) return false;
    if (json_is_array(a)) {
        size_t n = json_array_size(a);
        if (json_array_size(b) != n) return false;
        for (size_t i = 0; i < n; i++)
            if (!eng_sc_equal(json_array_get(a, i), json_array_get(b, i))) return false;
        return true;
    }
    if (!json_is_object(a)) return json_equal(a, b);
    if (json_object_size(a) != json_object_size(b)) return false;
    json_object_foreach((json_t *)a, key, v)
    {
        const json_t *w = json_object_get(b, key);
        if (!w || !eng_sc_equal(v, w)) return false;
    }
    return true;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

static bool is_schema(const json_t *v)
{
    return json_is_object(v) || json_is_boolean(v);
}

static bool all_of_list(const json_t *v, bool (*is)(const json_t *))
{
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!is(json_array_get(v, i))) return false;
    return json_is_array(v);
}

static bool all_of_map(const json_t *v, bool (*is)(const json_t *))
{
    const char *key;
    json_t *w;
    json_object_foreach((json_t *)v, key, w) if (!is(w)) return false;
    return json_is_object(v);
}

/* Texts are kept as C strings where they are names, patterns or URIs. */
static bool is_text(const json_t *v)
{
    return json_is_string(v) && strlen(json_string_value(v)) == json_string_length(v);
}

static bool is_texts(const json_t *v)
{
    return all_of_list(v, is_text);
}

static bool is_dependency(const json_t *v)
{
    return is_schema(v) || is_texts(v);
}

static uint8_t type_bits(const json_t *v, bool *integer)
{
    static const struct {
        const char *name;
        uint8_t bits;
    } types[] = {{"null", 1 << ENG_SC_NULL},     {"boolean", 1 << ENG_SC_FALSE | 1 << ENG_SC_TRUE},
                 {"number", 1 << ENG_SC_NUMBER}, {"string", 1 << ENG_SC_STRING},
                 {"array", 1 << ENG_SC_ARRAY},   {"object", 1 << ENG_SC_OBJECT},
                 {"integer", 1 << ENG_SC_NUMBER}};
    const char *text = json_string_value(v);
    for (size_t i = 0; text && i < CN_ARRAY_LEN(types); i++) {
        if (strcmp(text, types[i].name) != 0) continue;
        *integer = i == CN_ARRAY_LEN(types) - 1;
        return types[i].bits;
    }
    return 0;
}

/* Sets what `type` lets through; false: it is not a type. */
static bool take_types(struct eng_sc_place *p, const json_t *v)
{
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    bool whole = false, any = false;
    p->types = 0;
    for (size_t i = 0; i < n; i++) {
        bool integer = false;
        uint8_t bits = type_bits(json_is_array(v) ? json_array_get(v, i) : v, &integer);
        if (!bits) return false;
        p->types |= bits;
        whole |= integer;
        any |= bits == 1 << ENG_SC_NUMBER && !integer;
    }
    p->integer = whole && !any;
    return n > 0;
}

static bool has_shape(enum eng_sc_shape shape, const json_t *v)
{
    switch (shape) {
    case ENG_SHAPE_SCHEMA:
        return is_schema(v);
    case ENG_SHAPE_SCHEMAS:
        return all_of_list(v, is_schema) && json_array_size(v);
    case ENG_SHAPE_MAP:
        return all_of_map(v, is_schema);
    case ENG_SHAPE_ITEMS:
        return is_schema(v) || all_of_list(v, is_schema);
    case ENG_SHAPE_DEPENDENCIES:
        return all_of_map(v, is_dependency);
    case ENG_SHAPE_TEXT:
        return is_text(v);
    case ENG_SHAPE_TEXTS:
        return is_texts(v);
    case ENG_SHAPE_TEXTS_MAP:
        return all_of_map(v, is_texts);
    case ENG_SHAPE_LIST:
        return json_is_array(v);
    case ENG_SHAPE_FLAG:
        return json_is_boolean(v);
    case ENG_SHAPE_COUNT:
        return is_count(v);
    case ENG_SHAPE_NUMBER:
        return json_is_number(v);
    case ENG_SHAPE_POSITIVE:
        return json_is_number(v) && json_number_value(v) > 0;
    case ENG_SHAPE_BOUND:
        return json_is_number(v) || json_is_boolean(v);
    default:
        return true;
    }
}

static const char *shape_text(enum eng_sc_shape shape)
{
    static const char *const texts[] = {
        [ENG_SHAPE_SCHEMA] = "a schema",
        [ENG_SHAPE_SCHEMAS] = "a list of schemas that is not empty",
        [ENG_SHAPE_MAP] = "an object of schemas",
        [ENG_SHAPE_ITEMS] = "a schema",
        [ENG_SHAPE_DEPENDENCIES] = "an object of schemas or lists of names",
        [ENG_SHAPE_TEXT] = "a string without U+0000",
        [ENG_SHAPE_TEXTS] = "a list of strings without U+0000",
        [ENG_SHAPE_TEXTS_MAP] = "an object of lists of strings without U+0000",
        [ENG_SHAPE_LIST] = "a list",
        [ENG_SHAPE_TYPE] =
            "null, boolean, number, integer, string, array, object or a list of them",
        [ENG_SHAPE_FLAG] = "true or false",
        [ENG_SHAPE_COUNT] = "a whole number of 0 or more",
        [ENG_SHAPE_NUMBER] = "a number",
        [ENG_SHAPE_POSITIVE] = "a number above 0",
        [ENG_SHAPE_BOUND] = "a number",
    };
    return texts[shape];
}

/* Whether the keyword says something of values by itself. */
static bool means_something(enum eng_sc_word w)
{
    return w > ENG_W_DEFINITIONS || w <= ENG_W_RECURSIVE_REF;
}

static bool known_dialect(const json_t *v)
{
    const char *text = json_string_value(v);
    if (strncmp(text, "http", 4) == 0) text += text[4] == 's' ? 5 : 4;
    return strncmp(text, "://json-schema.org/", 19) == 0 ||
           strncmp(text, "://spec.openapis.org/", 21) == 0;
}

bool eng_sc_check(struct eng_sc *sc, uint32_t place)
{
    struct eng_sc_place *p = &sc->places[place];
    const char *key;
    json_t *v;
    unsigned n = 0;
    if (p->checked) return !sc->code;
    p->checked = true;
    p->types = (1 << ENG_SC_TYPES) - 1;
    p->only = ENG_W_NONE;
    json_object_foreach(p->json, key, v)
    {
        enum eng_sc_word w = eng_sc_word(key);
        if (w == ENG_W_NONE) continue;
        if (eng_sc_shape(w) == ENG_SHAPE_REFUSED)
            eng_sc_fail_at(sc, place, CN_EUNSUPP, "%s is not supported", key);
        else if (w == ENG_W_TYPE ? !take_types(p, v) : !has_shape(eng_sc_shape(w), v))
            eng_sc_fail_at(sc, place, CN_EINVAL, "%s must be %s", key, shape_text(eng_sc_shape(w)));
        else if (w == ENG_W_DIALECT && !known_dialect(v))
            eng_sc_fail_at(sc, place, CN_EUNSUPP, "$schema: the dialect %.200s is not supported",
                           json_string_value(v));
        if (!eng_sc_step(sc, 1)) return false;
        if (means_something(w)) p->only = n++ ? ENG_W_NONE : w;
    }
    p->trivial = n == 0;
    return true;
}
