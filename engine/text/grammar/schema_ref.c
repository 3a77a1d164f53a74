/* schema: where schemas stand in a document, and what references lead to. See schema_impl.h.
 *
 * All schemas are noted before anything else, with the resource that they belong to: the base of
 * their references changes with each $id. What $dynamicRef leads to depends on the resources that
 * evaluation has come through, outermost first; only those with a $dynamicAnchor matter, and of
 * each only the first time. This list is part of a node, so that it is decided here. */
#include "engine/text/grammar/schema_impl.h"

#include <stdlib.h>

/* ---- the walk -------------------------------------------------------------------------------- */

static void add_resource(struct eng_sc *sc, uint32_t place, const char *base, const char *id)
{
    const char *uri = eng_sc_uri(sc, base, id);
    if (!uri || !eng_sc_room(sc, &sc->resources, &sc->cap_resources, sc->n_resources + (size_t)1,
                             sizeof *sc->resources))
        return;
    uint32_t *at = eng_sc_put(sc, &sc->by_uri, uri, strlen(uri));
    if (!at) return;
    if (*at == ENG_SC_NONE) *at = sc->n_resources;
    sc->resources[sc->n_resources] = (struct eng_sc_resource){.uri = uri, .place = place};
    sc->places[place].resource = sc->n_resources++;
}

struct anchor { uint32_t resource, name; };

static void add_anchor(struct eng_sc *sc, uint32_t place, const char *text, bool dynamic)
{
    struct anchor key = {sc->places[place].resource, eng_sc_name(sc, text)};
    uint32_t *at = eng_sc_put(sc, &sc->by_anchor, &key, sizeof key);
    if (at && *at == ENG_SC_NONE) *at = place;
    if (!dynamic) return;
    sc->resources[key.resource].dynamic = true;
    at = eng_sc_put(sc, &sc->by_dynamic, &key, sizeof key);
    if (at && *at == ENG_SC_NONE) *at = place;
}

/* What the place's own keywords say about references. */
static void note(struct eng_sc *sc, uint32_t place, json_t *json, const char *base)
{
    const char *id = json_string_value(json_object_get(json, "$id"));
    const char *anchor = json_string_value(json_object_get(json, "$anchor"));
    const char *dynamic = json_string_value(json_object_get(json, "$dynamicAnchor"));
    if (id && id[0] != '#')
        add_resource(sc, place, base, id);
    else if (sc->n_resources == 0)
        add_resource(sc, place, base, "");
    if (id && id[0] == '#' && id[1]) add_anchor(sc, place, id + 1, false); /* of draft 7 */
    if (anchor) add_anchor(sc, place, anchor, false);
    if (dynamic) add_anchor(sc, place, dynamic, true);
    if (json_object_get(json, "$dynamicRef")) sc->dynamic = true;
}

static void walk_list(struct eng_sc *sc, json_t *list, struct eng_sc_place at)
{
    for (size_t i = 0; i < json_array_size(list) && !sc->code; i++) {
        at.index = (uint32_t)i;
        eng_sc_walk(sc, json_array_get(list, i), &at);
    }
}

static void walk_map(struct eng_sc *sc, json_t *map, struct eng_sc_place at)
{
    json_t *v;
    json_object_foreach(map, at.name, v) eng_sc_walk(sc, v, &at);
}

static void walk_below(struct eng_sc *sc, uint32_t place, json_t *json)
{
    struct eng_sc_place at = {.parent = place, .index = ENG_SC_NONE};
    json_t *v;
    json_object_foreach(json, at.word, v)
    {
        enum eng_sc_word w = eng_sc_word(at.word);
        if (w == ENG_W_NONE) continue;
        switch (eng_sc_shape(w)) {
        case ENG_SHAPE_SCHEMA:
            eng_sc_walk(sc, v, &at);
            break;
        case ENG_SHAPE_SCHEMAS:
            walk_list(sc, v, at);
            break;
        case ENG_SHAPE_ITEMS:
            walk_list(sc, v, at);
            eng_sc_walk(sc, v, &at);
            break;
        case ENG_SHAPE_MAP:
        case ENG_SHAPE_DEPENDENCIES:
            walk_map(sc, v, at);
            break;
        default:
            break;
        }
        if (sc->code) return;
    }
}

uint32_t eng_sc_walk(struct eng_sc *sc, json_t *json, const struct eng_sc_place *at)
{
    struct eng_sc_place p = *at;
    if (!json_is_object(json) || !eng_sc_step(sc, 1)) return ENG_SC_NONE;
    uint32_t *known = eng_sc_put(sc, &sc->by_json, &json, sizeof json);
    if (!known) return ENG_SC_NONE;
    if (*known != ENG_SC_NONE) return *known;
    if (!eng_sc_room(sc, &sc->places, &sc->cap_places, sc->n_places + (size_t)1,
                     sizeof *sc->places))
        return ENG_SC_NONE;
    if (p.parent != ENG_SC_NONE) p.resource = sc->places[p.parent].resource;
    p.json = json;
    uint32_t place = *known = sc->n_places++;
    sc->places[place] = p;
    if (++sc->depth > ENG_SC_DEPTH)
        eng_sc_fail_at(sc, place, CN_ELIMIT, "schemas nest deeper than %d levels", ENG_SC_DEPTH);
    note(sc, place, json, sc->n_resources ? sc->resources[p.resource].uri : "");
    if (!sc->code) walk_below(sc, place, json);
    sc->depth--;
    return place;
}

/* ---- nodes and literals ---------------------------------------------------------------------- */

static uint32_t add_node(struct eng_sc *sc, const struct eng_sc_node *n)
{
    if (!eng_sc_room(sc, &sc->nodes, &sc->cap_nodes, sc->n_nodes + (size_t)1, sizeof *sc->nodes))
        return 0;
    sc->nodes[sc->n_nodes] = *n;
    return sc->n_nodes++;
}

/* The list of resources once evaluation enters another one. */
static uint32_t enter(struct eng_sc *sc, uint32_t scope, uint32_t resource)
{
    if (!sc->dynamic || !sc->resources[resource].dynamic) return scope;
    const uint32_t *list = &sc->scopes[scope + 1];
    uint32_t n = sc->scopes[scope];
    for (uint32_t i = 0; i < n; i++)
        if (list[i] == resource) return scope;
    if (!eng_sc_step(sc, n) || !eng_sc_room(sc, &sc->scopes, &sc->cap_scopes,
                                            sc->n_scopes + n + (size_t)2, sizeof *sc->scopes))
        return scope;
    uint32_t *made = &sc->scopes[sc->n_scopes];
    made[0] = n + 1;
    memcpy(&made[1], &sc->scopes[scope + 1], n * sizeof *made);
    made[n + 1] = resource;
    uint32_t *at = eng_sc_put(sc, &sc->by_scope, made, (n + 2) * sizeof *made);
    if (!at) return scope;
    if (*at == ENG_SC_NONE) {
        *at = sc->n_scopes;
        sc->n_scopes += n + 2;
    }
    return *at;
}

static uint32_t node_of(struct eng_sc *sc, uint32_t place, uint32_t scope)
{
    struct eng_sc_node n = {.kind = ENG_NODE_PLACE, .place = place, .scope = scope};
    uint32_t key[2] = {place, scope};
    uint32_t *at = eng_sc_put(sc, &sc->by_node, key, sizeof key);
    if (!at) return 0;
    return *at != ENG_SC_NONE ? *at : (*at = add_node(sc, &n));
}

uint32_t eng_sc_lit_of_place(struct eng_sc *sc, uint32_t place, uint32_t scope)
{
    if (sc->code || place == ENG_SC_NONE || !eng_sc_check(sc, place)) return ENG_LIT_TRUE;
    if (sc->places[place].trivial) return ENG_LIT_TRUE;
    uint32_t node = node_of(sc, place, enter(sc, scope, sc->places[place].resource));
    if (sc->places[place].only != ENG_W_REF || sc->code) return node << 1;
    if (sc->places[place].following)
        eng_sc_fail_at(sc, place, CN_EINVAL, "$ref leads back to itself");
    if (!eng_sc_deeper(sc, node)) return ENG_LIT_TRUE;
    sc->places[place].following = true;
    uint32_t lit = eng_sc_refer(sc, node, json_string_value(eng_sc_at(sc, node, ENG_W_REF)), false);
    sc->depth--;
    sc->places[place].following = false;
    return lit;
}

uint32_t eng_sc_lit(struct eng_sc *sc, uint32_t node, json_t *json)
{
    if (json_is_boolean(json)) return json_is_true(json) ? ENG_LIT_TRUE : ENG_LIT_FALSE;
    return eng_sc_lit_of_place(sc, eng_sc_get(sc, &sc->by_json, &json, sizeof json),
                               sc->nodes[node].scope);
}

uint32_t eng_sc_lit_const(struct eng_sc *sc, uint32_t node, json_t *value)
{
    struct eng_sc_node n = {.kind = ENG_NODE_CONST, .place = sc->nodes[node].place, .json = value};
    uint32_t *at = eng_sc_put(sc, &sc->by_const, &value, sizeof value);
    if (!at || !eng_sc_step(sc, 1)) return ENG_LIT_TRUE;
    if (*at == ENG_SC_NONE) *at = add_node(sc, &n);
    return *at << 1;
}

uint32_t eng_sc_lit_any(struct eng_sc *sc, uint32_t node, const uint32_t *lits, uint32_t n)
{
    struct eng_sc_node any = {.kind = ENG_NODE_ANY, .place = sc->nodes[node].place, .n = n};
    if (n == 1) return lits[0];
    uint32_t *at = eng_sc_put(sc, &sc->by_any, lits, n * sizeof *lits);
    if (!at) return ENG_LIT_TRUE;
    if (*at != ENG_SC_NONE) return *at << 1;
    if (!eng_sc_room(sc, &sc->lits, &sc->cap_lits, sc->n_lits + (size_t)n, sizeof *sc->lits))
        return ENG_LIT_TRUE;
    memcpy(&sc->lits[sc->n_lits], lits, n * sizeof *lits);
    any.first = sc->n_lits;
    sc->n_lits += n;
    return (*at = add_node(sc, &any)) << 1;
}

/* ---- references ------------------------------------------------------------------------------ */

/* A fragment without its percent signs; NULL: failed. */
static char *unescaped(struct eng_sc *sc, const char *s)
{
    size_t n = 0;
    char *out = eng_sc_alloc(sc, strlen(s) + 1);
    for (; out && *s; s++) {
        int hi = *s == '%' ? cn_hex_digit(s[1]) : -1, lo = hi >= 0 ? cn_hex_digit(s[2]) : -1;
        out[n++] = lo >= 0 ? (char)(hi << 4 | lo) : *s;
        if (lo >= 0) s += 2;
    }
    return out;
}

/* Takes one part of a JSON pointer; its ~0 and ~1 are put back in place. */
static char *next_part(char **at)
{
    char *part = *at, *to = part, *p = part;
    for (; *p && *p != '/'; p++) {
        bool escaped = *p == '~' && (p[1] == '0' || p[1] == '1');
        *to++ = escaped ? (p[1] == '0' ? '~' : '/') : *p;
        p += escaped;
    }
    *at = *p ? p + 1 : p;
    *to = '\0';
    return part;
}

static json_t *step_down(json_t *v, const char *part)
{
    uint64_t i;
    if (!json_is_array(v)) return json_object_get(v, part);
    return cn_parse_u64(part, strlen(part), &i) ? json_array_get(v, i) : NULL;
}

/* The literal that a JSON pointer (after its first slash; written to) leads to from a resource. */
static uint32_t follow_pointer(struct eng_sc *sc, uint32_t node, uint32_t resource, char *pointer)
{
    const char *whole = cn_arena_strn(&sc->arena, pointer, strlen(pointer));
    struct eng_sc_place at = {.parent = ENG_SC_NONE,
                              .resource = resource,
                              .name = whole ? whole : "",
                              .index = ENG_SC_NONE};
    json_t *v = sc->places[sc->resources[resource].place].json;
    bool more = true;
    while (more && v) {
        char *end = pointer + strcspn(pointer, "/");
        more = *end == '/';
        v = step_down(v, next_part(&pointer));
        uint32_t known =
            json_is_object(v) ? eng_sc_get(sc, &sc->by_json, &v, sizeof v) : ENG_SC_NONE;
        if (known != ENG_SC_NONE) at.resource = sc->places[known].resource;
    }
    if (json_is_boolean(v)) return json_is_true(v) ? ENG_LIT_TRUE : ENG_LIT_FALSE;
    if (!json_is_object(v)) {
        eng_sc_fail(sc, node, CN_EINVAL, "$ref: there is no schema at #/%.200s", at.name);
        return ENG_LIT_TRUE;
    }
    bool dynamic = sc->dynamic;
    uint32_t place = eng_sc_walk(sc, v, &at);
    if (!dynamic && sc->dynamic) /* too late: nodes without resources exist */
        eng_sc_fail(sc, node, CN_EUNSUPP, "$dynamicRef in #/%.200s, which only $ref leads to",
                    at.name);
    return eng_sc_lit_of_place(sc, place, sc->nodes[node].scope);
}

/* The outermost place that has the dynamic anchor. */
static uint32_t outermost(struct eng_sc *sc, uint32_t scope, uint32_t name, uint32_t place)
{
    struct anchor key = {sc->places[place].resource, name};
    if (eng_sc_get(sc, &sc->by_dynamic, &key, sizeof key) != place) return place;
    for (uint32_t i = 0; i < sc->scopes[scope]; i++) {
        key.resource = sc->scopes[scope + 1 + i];
        uint32_t found = eng_sc_get(sc, &sc->by_dynamic, &key, sizeof key);
        if (found != ENG_SC_NONE) return found;
    }
    return place;
}

uint32_t eng_sc_refer(struct eng_sc *sc, uint32_t node, const char *ref, bool dynamic)
{
    uint32_t resource = sc->places[sc->nodes[node].place].resource, place;
    const char *hash = strchr(ref, '#');
    size_t n = hash ? (size_t)(hash - ref) : strlen(ref);
    if (!eng_sc_step(sc, 1)) return ENG_LIT_TRUE;
    if (n) {
        char *part = cn_arena_strn(&sc->arena, ref, n);
        const char *uri = part ? eng_sc_uri(sc, sc->resources[resource].uri, part) : NULL;
        if (!uri) return eng_sc_nomem(sc), ENG_LIT_TRUE;
        resource = eng_sc_get(sc, &sc->by_uri, uri, strlen(uri));
        if (resource == ENG_SC_NONE) {
            eng_sc_fail(sc, node, CN_EUNSUPP, "$ref to another document (%.200s) is not supported",
                        ref);
            return ENG_LIT_TRUE;
        }
    }
    char *fragment = unescaped(sc, hash ? hash + 1 : "");
    if (!fragment) return ENG_LIT_TRUE;
    if (fragment[0] == '/') return follow_pointer(sc, node, resource, fragment + 1);
    if (fragment[0]) {
        struct anchor key = {resource, eng_sc_name(sc, fragment)};
        place = eng_sc_get(sc, &sc->by_anchor, &key, sizeof key);
        if (place == ENG_SC_NONE) {
            eng_sc_fail(sc, node, CN_EINVAL, "$ref: there is no anchor %.200s", ref);
            return ENG_LIT_TRUE;
        }
        if (dynamic) place = outermost(sc, sc->nodes[node].scope, key.name, place);
    } else {
        place = sc->resources[resource].place;
    }
    return eng_sc_lit_of_place(sc, place, sc->nodes[node].scope);
}
