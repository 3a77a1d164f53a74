/* The tools that a request offers: their names, and of their schemas what readers of calls need:
 * which types a value may have, by name and position.
 *
 * Made once for each request, in an arena; immutable afterwards. Each object of a schema is built
 * once, whatever refers to it, so that schemas may refer to themselves. */
#include "engine/text/reply/reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct property {
    struct eng_str name;
    const struct eng_schema *schema;
};
struct eng_schema {
    unsigned types; /* of its own; 0: it does not say */
    size_t n_properties, n_others;
    struct property *properties;
    const struct eng_schema *items, *additional;
    const struct eng_schema **others; /* anyOf, oneOf, allOf, $ref */
};
struct eng_tools {
    struct cn_arena memory;
    struct eng_tool *v;
    size_t n;
};

enum {
    MAX_DEPTH = 64,   /* schemas nested deeper allow everything */
    MAX_VISITS = 512, /* schemas looked at for one question; more: everything is allowed */
    MAX_TOOLS = 4096,
};

/* ---- building -------------------------------------------------------------------------------- */

/* The schemas built so far: an open hash table by address. */
struct built {
    struct place {
        const json_t *json;
        const struct eng_schema *schema;
    } *v;
    size_t n, cap;
};
struct building {
    struct cn_arena *arena;
    const json_t *root; /* the tool's parameters: pointers of $ref begin there */
    struct built built;
};

static struct place *place_of(const struct built *b, const json_t *json)
{
    size_t i = (size_t)(((uint64_t)(uintptr_t)json * 0x9E3779B97F4A7C15u) >> 20) & (b->cap - 1);
    while (b->v[i].json && b->v[i].json != json)
        i = (i + 1) & (b->cap - 1);
    return &b->v[i];
}

static int built_add(struct built *b, const json_t *json, const struct eng_schema *schema)
{
    if (2 * (b->n + 1) > b->cap) {
        struct built more = {.n = b->n, .cap = b->cap ? 2 * b->cap : 16};
        if (!(more.v = cn_calloc(more.cap, sizeof *more.v))) return CN_ENOMEM;
        for (size_t i = 0; i < b->cap; i++)
            if (b->v[i].json) *place_of(&more, b->v[i].json) = b->v[i];
        free(b->v);
        *b = more;
    }
    *place_of(b, json) = (struct place){json, schema};
    b->n++;
    return 0;
}

static unsigned type_named(const char *s)
{
    static const struct {
        const char *name;
        unsigned type;
    } names[] = {{"string", ENG_T_STRING},   {"integer", ENG_T_NUMBER}, {"number", ENG_T_NUMBER},
                 {"boolean", ENG_T_BOOLEAN}, {"null", ENG_T_NULL},      {"object", ENG_T_OBJECT},
                 {"array", ENG_T_ARRAY}};
    for (size_t i = 0; s && i < CN_ARRAY_LEN(names); i++)
        if (!strcmp(s, names[i].name)) return names[i].type;
    return ENG_T_ANY;
}

static unsigned type_of(const json_t *value)
{
    switch (json_typeof(value)) {
        /* clang-format off */
    case JSON_OBJECT: return ENG_T_OBJECT;
    case JSON_ARRAY: return ENG_T_ARRAY;
    case JSON_STRING: return ENG_T_STRING;
    case JSON_INTEGER:
    case JSON_REAL: return ENG_T_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE: return ENG_T_BOOLEAN;
    case JSON_NULL: return ENG_T_NULL;
        /* clang-format on */
    }
    return ENG_T_ANY;
}

/* What the schema itself says: type, else const and enum, else the keywords of one type. */
static unsigned own_types(const json_t *s)
{
    const json_t *type = json_object_get(s, "type"), *one, *values = json_object_get(s, "enum");
    unsigned types = json_is_string(type) ? type_named(json_string_value(type)) : 0;
    size_t i;

    json_array_foreach(type, i, one) types |= type_named(json_string_value(one));
    if (types && json_is_true(json_object_get(s, "nullable"))) types |= ENG_T_NULL;
    if (types) return types;
    if ((one = json_object_get(s, "const"))) return type_of(one);
    json_array_foreach(values, i, one) types |= type_of(one);
    if (types) return types;
    if (json_object_get(s, "properties") || json_object_get(s, "additionalProperties"))
        return ENG_T_OBJECT;
    return json_object_get(s, "items") || json_object_get(s, "prefixItems") ? ENG_T_ARRAY : 0;
}

/* The place that a JSON pointer into the parameters names; NULL: none. */
static const json_t *follow(const json_t *at, const char *pointer)
{
    char step[256];
    if (*pointer++ != '#') return NULL;
    while (at && *pointer == '/') {
        size_t n = 0;
        for (pointer++; *pointer && *pointer != '/' && n + 1 < sizeof step; pointer++) {
            bool escaped = *pointer == '~' && (pointer[1] == '0' || pointer[1] == '1');
            step[n++] = !escaped ? *pointer : *++pointer == '0' ? '~' : '/';
        }
        step[n] = 0;
        uint64_t i;
        if (!json_is_array(at))
            at = json_object_get(at, step);
        else
            at = cn_parse_u64(step, n, &i) ? json_array_get(at, (size_t)i) : NULL;
    }
    return *pointer ? NULL : at;
}

static int build(struct building *b, const json_t *json, unsigned depth,
                 const struct eng_schema **out);

static int build_others(struct building *b, const json_t *json, struct eng_schema *s,
                        unsigned depth)
{
    static const char *const words[] = {"anyOf", "oneOf", "allOf"};
    const json_t *ref = json_object_get(json, "$ref"), *one;
    size_t n = json_is_string(ref), i;
    int rc = 0;

    for (size_t w = 0; w < CN_ARRAY_LEN(words); w++)
        n += json_array_size(json_object_get(json, words[w]));
    if (!n) return 0;
    if (!(s->others = cn_arena_alloc(b->arena, n * sizeof *s->others))) return CN_ENOMEM;
    if (json_is_string(ref))
        rc =
            build(b, follow(b->root, json_string_value(ref)), depth + 1, &s->others[s->n_others++]);
    for (size_t w = 0; w < CN_ARRAY_LEN(words); w++)
        json_array_foreach(json_object_get(json, words[w]), i, one)
        {
            if (!rc) rc = build(b, one, depth + 1, &s->others[s->n_others++]);
        }
    return rc;
}

static int build_properties(struct building *b, json_t *all, struct eng_schema *s, unsigned depth)
{
    const char *name;
    size_t n, max = json_object_size(all);
    json_t *one;
    int rc = 0;

    if (!max) return 0;
    if (!(s->properties = cn_arena_alloc(b->arena, max * sizeof *s->properties))) return CN_ENOMEM;
    json_object_keylen_foreach(all, name, n, one)
    {
        struct property *p = &s->properties[s->n_properties];
        char *copy = rc ? NULL : cn_arena_strn(b->arena, name, n);
        if (!copy) return rc ? rc : CN_ENOMEM;
        p->name = (struct eng_str){copy, n};
        rc = build(b, one, depth + 1, &p->schema);
        s->n_properties++;
    }
    return rc;
}

static int build(struct building *b, const json_t *json, unsigned depth,
                 const struct eng_schema **out)
{
    *out = NULL;
    if (!json_is_object(json) || depth > MAX_DEPTH) return 0;
    if (b->built.n && place_of(&b->built, json)->json) {
        *out = place_of(&b->built, json)->schema;
        return 0;
    }
    struct eng_schema *s = cn_arena_alloc(b->arena, sizeof *s);
    if (!s || built_add(&b->built, json, s)) return CN_ENOMEM; /* its own parts may name it */
    s->types = own_types(json);
    int rc = build_others(b, json, s, depth);
    if (!rc) rc = build_properties(b, json_object_get(json, "properties"), s, depth);
    if (!rc) rc = build(b, json_object_get(json, "items"), depth + 1, &s->items);
    if (!rc)
        rc = build(b, json_object_get(json, "additionalProperties"), depth + 1, &s->additional);
    *out = s;
    return rc;
}

/* ---- tools ----------------------------------------------------------------------------------- */

static int add(struct eng_tools *t, const json_t *tool, size_t i, struct cn_error *err)
{
    const json_t *function = json_object_get(tool, "function");
    bool inner = json_is_object(function);
    if (!inner) function = tool;
    const json_t *name = json_object_get(function, "name");
    const char *where = inner ? ".function.name" : ".name";
    char param[64];
    snprintf(param, sizeof param, "tools[%zu]%s", i, json_is_object(tool) ? where : "");

    if (!json_is_object(tool))
        return cn_fail_param(err, CN_ETYPE, param, "%s must be an object", param);
    if (!json_is_string(name) || !json_string_length(name))
        return cn_fail_param(err, CN_ETYPE, param, "%s must be a function's name", param);
    struct eng_tool *new = &t->v[t->n];
    new->name = (struct eng_str){json_string_value(name), json_string_length(name)};
    if (eng_tool_find(t, new->name))
        return cn_fail_param(err, CN_EINVAL, param, "%s: %.64s is offered twice", param,
                             new->name.p);
    new->name.p = cn_arena_strn(&t->memory, new->name.p, new->name.n);
    struct building b = {.arena = &t->memory, .root = json_object_get(function, "parameters")};
    int rc = new->name.p ? build(&b, b.root, 0, &new->parameters) : CN_ENOMEM;
    free(b.built.v);
    t->n++;
    return rc ? cn_fail(err, CN_ENOMEM, "out of memory") : 0;
}

int eng_tools_new(const json_t *tools, struct eng_tools **out, struct cn_error *err)
{
    const json_t *one;
    size_t i;
    int rc = 0;

    if (!json_is_array(tools))
        return cn_fail_param(err, CN_ETYPE, "tools", "tools must be an array");
    if (json_array_size(tools) > MAX_TOOLS)
        return cn_fail_param(err, CN_ELIMIT, "tools", "tools must be at most %d", MAX_TOOLS);
    struct eng_tools *t = cn_calloc(1, sizeof *t);
    if (!t) return cn_fail(err, CN_ENOMEM, "out of memory");
    cn_arena_init(&t->memory, 0);
    t->v = cn_arena_alloc(&t->memory, (json_array_size(tools) + 1) * sizeof *t->v);
    if (!t->v) rc = cn_fail(err, CN_ENOMEM, "out of memory");
    json_array_foreach(tools, i, one)
    {
        if (!rc) rc = add(t, one, i, err);
    }
    if (rc)
        eng_tools_free(t);
    else
        *out = t;
    return rc;
}

void eng_tools_free(struct eng_tools *t)
{
    if (!t) return;
    cn_arena_fini(&t->memory);
    free(t);
}

size_t eng_tools_bytes(const struct eng_tools *t)
{
    return sizeof *t + t->memory.used;
}

size_t eng_tools_count(const struct eng_tools *t)
{
    return t->n;
}

const struct eng_tool *eng_tool_find(const struct eng_tools *t, struct eng_str name)
{
    for (size_t i = 0; t && i < t->n; i++)
        if (t->v[i].name.n == name.n && !memcmp(t->v[i].name.p, name.p, name.n)) return &t->v[i];
    return NULL;
}

bool eng_tool_begins(const struct eng_tools *t, struct eng_str prefix)
{
    for (size_t i = 0; t && i < t->n; i++)
        if (t->v[i].name.n >= prefix.n && !memcmp(t->v[i].name.p, prefix.p, prefix.n)) return true;
    return false;
}

/* ---- questions ------------------------------------------------------------------------------- */

static unsigned types(const struct eng_schema *s, size_t *visits)
{
    unsigned all = 0;
    if (!s || ++*visits > MAX_VISITS) return ENG_T_ANY;
    if (s->types) return s->types;
    for (size_t i = 0; i < s->n_others && all != ENG_T_ANY; i++)
        all |= types(s->others[i], visits);
    return all ? all : ENG_T_ANY;
}

unsigned eng_schema_types(const struct eng_schema *s)
{
    size_t visits = 0;
    return types(s, &visits);
}

static const struct property *property(const struct eng_schema *s, struct eng_str name,
                                       const struct eng_schema **additional, size_t *visits)
{
    if (!s || ++*visits > MAX_VISITS) return NULL;
    for (size_t i = 0; i < s->n_properties; i++) {
        const struct property *p = &s->properties[i];
        if (p->name.n == name.n && !memcmp(p->name.p, name.p, name.n)) return p;
    }
    if (s->additional && !*additional) *additional = s->additional;
    for (size_t i = 0; i < s->n_others; i++) {
        const struct property *p = property(s->others[i], name, additional, visits);
        if (p) return p;
    }
    return NULL;
}

const struct eng_schema *eng_schema_member(const struct eng_schema *s, struct eng_str name,
                                           bool *known)
{
    const struct eng_schema *additional = NULL;
    size_t visits = 0;
    const struct property *p = property(s, name, &additional, &visits);
    if (known) *known = p;
    return p ? p->schema : additional;
}

static const struct eng_schema *items(const struct eng_schema *s, size_t *visits)
{
    const struct eng_schema *found = NULL;
    if (!s || ++*visits > MAX_VISITS) return NULL;
    if (s->items) return s->items;
    for (size_t i = 0; i < s->n_others && !found; i++)
        found = items(s->others[i], visits);
    return found;
}

const struct eng_schema *eng_schema_items(const struct eng_schema *s)
{
    size_t visits = 0;
    return items(s, &visits);
}

struct eng_str eng_schema_property(const struct eng_schema *s, size_t i)
{
    for (size_t hops = 0; s && !s->n_properties && s->n_others == 1 && hops < 8; hops++)
        s = s->others[0];
    return s && i < s->n_properties ? s->properties[i].name : (struct eng_str){"", 0};
}
