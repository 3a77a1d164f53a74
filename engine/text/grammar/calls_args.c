/* calls: the arguments of a call, as an object or one by one. See calls_impl.h. */
#include "engine/text/grammar/calls_impl.h"

#include "engine/text/grammar/spell.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_REPEATED = 64, /* items that are written out */
    MOST_NESTED = 16,   /* tags within tags; deeper values are JSON */
};

/* A parameter, or within tags a member or an item. */
struct parameter {
    const char *key, *path; /* path: the place of its schema, after "properties." */
    const json_t *schema;
    const struct eng_schema *of; /* as the reader of calls sees it */
};

/* ---- what is wrong --------------------------------------------------------------------------- */

/* The place of what is wrong with a schema, in the request. */
static int say(struct eng_calls_build *b, int rc, const char *property, const struct cn_error *why)
{
    char param[sizeof why->param + 64];
    /* definitions are the tool's, whichever parameter refers to them */
    if (!strncmp(why->param, "$defs", 5) || !strncmp(why->param, "definitions", 11))
        property = NULL;
    snprintf(param, sizeof param, "tools[%zu].function.parameters%s%.60s%s%s", b->index,
             property ? ".properties." : "", property ? property : "", why->param[0] ? "." : "",
             why->param);
    return cn_fail_param(b->err, rc, param, "%.120s: %s", param,
                         why->message[0] ? why->message : cn_err_info(rc)->text);
}

int eng_calls_refuse(struct eng_calls_build *b, int rc, const char *property, const char *what)
{
    struct cn_error why = {0};
    cn_fail(&why, rc, "%s", what);
    return say(b, rc, property, &why);
}

/* ---- an object ------------------------------------------------------------------------------- */

/* A keyword about an object that its members, one by one, do not keep; NULL: there is none. */
static const char *whole_word(const json_t *schema)
{
    static const char *const words[] = {"$ref",
                                        "$dynamicRef",
                                        "allOf",
                                        "anyOf",
                                        "oneOf",
                                        "not",
                                        "if",
                                        "minProperties",
                                        "maxProperties",
                                        "propertyNames",
                                        "patternProperties",
                                        "dependentRequired",
                                        "dependentSchemas",
                                        "dependencies",
                                        "const",
                                        "enum"};
    for (size_t i = 0; i < CN_ARRAY_LEN(words); i++)
        if (json_object_get(schema, words[i])) return words[i];
    return NULL;
}

/* Whether the schema leaves it open which parameters there are, without saying so: it lists some,
 * or none, and a function has no others. */
static bool lists_all(const json_t *schema)
{
    const json_t *listed = json_object_get(schema, "properties"), *name;
    size_t i;
    if (whole_word(schema) || json_object_get(schema, "additionalProperties") ||
        json_object_get(schema, "unevaluatedProperties"))
        return false;
    json_array_foreach(json_object_get(schema, "required"), i, name)
    {
        if (!json_is_string(name) ||
            !json_object_getn(listed, json_string_value(name), json_string_length(name)))
            return false;
    }
    return true;
}

/* Arguments must be an object, even if the schema allows other types. */
static int compile_object(struct eng_calls_build *b, struct eng_sym *out)
{
    struct cn_error why = {0};
    json_t *schema = b->parameters ? json_copy(b->parameters) : json_object();
    int rc = json_object_set_new(schema, "type", json_string("object")) ? CN_ENOMEM : 0;
    if (!rc && lists_all(schema))
        rc = json_object_set_new(schema, "additionalProperties", json_false()) ? CN_ENOMEM : 0;
    if (!rc && (rc = eng_schema_compile(b->ir, schema, &b->opts, out, &why)))
        rc = say(b, rc, NULL, &why);
    json_decref(schema);
    return rc;
}

/* The lines of a form share it. */
int eng_calls_arguments(struct eng_calls_build *b)
{
    struct eng_sym *s = &b->arguments[b->index];
    const json_t *input = eng_calls_input_of(b);
    if (b->made != b->opts.style)
        memset(b->arguments, 0, json_array_size(b->in->tools) * sizeof *b->arguments);
    bool made = !eng_sym_never(*s);
    int rc = made ? 0 : input ? eng_calls_input(b, input, s) : compile_object(b, s);
    b->made = b->opts.style;
    return rc ? rc : eng_calls_push(b, *s);
}

/* ---- strings --------------------------------------------------------------------------------- */

static uint32_t any_text(struct eng_rx *r)
{
    return eng_rx_repeat(r, eng_spell_any(r, ENG_SPELL_RAW), 0, ENG_RX_INF);
}

uint32_t eng_calls_holding(struct eng_rx *r, const char *s, size_t n)
{
    return eng_rx_cat(r, any_text(r), eng_rx_cat(r, eng_rx_literal(r, s, n), any_text(r)));
}

/* Texts that a reader takes for a value of another of these types, or would not leave as they are:
 * those that begin as one, or with white space (reply/value.c). */
static uint32_t mistaken(struct eng_rx *r, unsigned types)
{
    static const struct eng_str nulls[] = {{"null", 4}, {"None", 4}},
                                bools[] = {{"true", 4}, {"false", 5}};
    uint32_t x = types & ENG_T_NULL ? eng_rx_words(r, nulls, 2) : ENG_RX_NONE, any = any_text(r);
    struct eng_bytes first = {{0}}, blanks = {{0}};
    if (!(types & ~(unsigned)(ENG_T_STRING | ENG_T_NULL))) return x;
    for (const char *p = " \t\r\n"; *p; p++)
        eng_bytes_add(&blanks, (uint8_t)*p, (uint8_t)*p);
    first = blanks;
    if (types & ENG_T_NUMBER) eng_bytes_add(&first, '+', '9'); /* + , - . / and digits */
    if (types & ENG_T_OBJECT) eng_bytes_add(&first, '{', '{');
    if (types & ENG_T_ARRAY) eng_bytes_add(&first, '[', '[');
    if (types & ENG_T_BOOLEAN) x = eng_rx_or(r, x, eng_rx_words(r, bools, 2));
    x = eng_rx_or(r, x, eng_rx_cat(r, eng_rx_set(r, &first), any));
    return eng_rx_or(r, x, eng_rx_cat(r, any, eng_rx_set(r, &blanks)));
}

/* The mark that ends a value, where it is text; else no text of a value can hold it. */
static struct eng_str end_of_value(const struct eng_calls_build *b)
{
    const struct eng_reply_format *f = b->in->format;
    enum eng_mark_role role = b->t->elements ? ENG_R_PARAM : ENG_R_VALUE_END;
    for (size_t i = 0; i < f->n_marks; i++)
        if (f->marks[i].role == role && !f->marks[i].token) return eng_mark_text(f, i);
    return (struct eng_str){"", 0};
}

/* The parameter's value as a text that does not hold what ends it; *out ENG_RX_NONE: no string is
 * allowed. */
static int text_value(struct eng_calls_build *b, json_t *schema, const struct parameter *p,
                      unsigned types, uint32_t *out)
{
    struct eng_str end = end_of_value(b);
    struct eng_rx *r = &b->ir->rx;
    uint32_t bad = end.n ? eng_calls_holding(r, end.p, end.n) : ENG_RX_NONE;
    struct cn_error why = {0};
    int rc = eng_schema_texts(b->ir, schema, b->in->opts, out, &why);
    if (rc) return say(b, rc, p->path, &why);
    if (*out == ENG_RX_NONE) return 0;
    if (strcmp(b->t->text_param, b->t->other_param) == 0)
        bad = eng_rx_or(r, bad, mistaken(r, types));
    *out = eng_rx_and(r, *out, eng_rx_and(r, any_text(r), eng_rx_not(r, bad)));
    if (!eng_rx_live(r, *out)) *out = ENG_RX_NONE;
    return r->code;
}

/* ---- one parameter --------------------------------------------------------------------------- */

/* The parameter's schema as a document of its own: with the definitions of all, and where `bare`
 * without strings. Owned; NULL: out of memory. */
static json_t *document(const struct eng_calls_build *b, const json_t *schema, bool bare)
{
    static const char *const words[] = {"$defs", "definitions"};
    static const char *const types[] = {"null", "boolean", "object", "array", "number"};
    json_t *doc = json_is_object(schema) ? json_copy((json_t *)schema) : json_object(), *list, *one;
    const json_t *type = json_object_get(schema, "type");
    size_t i;
    int rc = !doc;
    if (json_is_false(schema)) rc |= json_object_set_new(doc, "not", json_object());
    for (i = 0; i < CN_ARRAY_LEN(words); i++) {
        json_t *all = json_object_get(b->parameters, words[i]);
        if (all && !json_object_get(doc, words[i])) rc |= json_object_set(doc, words[i], all);
    }
    if (!rc && bare && !json_is_string(type)) {
        list = json_array();
        for (i = 0; i < CN_ARRAY_LEN(types) && !type; i++)
            rc |= json_array_append_new(list, json_string(types[i]));
        json_array_foreach(type, i, one) if (!json_is_string(one) ||
                                             strcmp(json_string_value(one), "string") != 0) rc |=
            json_array_append(list, one);
        rc |= json_object_set_new(doc, "type", list);
    }
    if (!rc) return doc;
    json_decref(doc);
    return NULL;
}

/* Names of the types that are not strings. */
static int push_types(struct eng_calls_build *b, unsigned types)
{
    static const struct {
        unsigned type;
        struct eng_str name;
    } all[] = {{ENG_T_NUMBER, {"number", 6}},   {ENG_T_NUMBER, {"integer", 7}},
               {ENG_T_BOOLEAN, {"boolean", 7}}, {ENG_T_NULL, {"null", 4}},
               {ENG_T_OBJECT, {"object", 6}},   {ENG_T_ARRAY, {"array", 5}}};
    struct eng_str names[CN_ARRAY_LEN(all)];
    size_t n = 0;
    for (size_t i = 0; i < CN_ARRAY_LEN(all); i++)
        if (types & all[i].type) names[n++] = all[i].name;
    return eng_calls_push(b, eng_ir_lexeme(b->ir, eng_rx_words(&b->ir->rx, names, n), false));
}

/* A sequence of its own, while that of the call is under way. */
struct outer {
    struct eng_sym *syms;
    size_t n, cap;
};

static struct outer begin_inner(struct eng_calls_build *b)
{
    struct outer o = {b->syms, b->n, b->cap};
    b->syms = NULL;
    b->n = b->cap = 0;
    return o;
}

static void end_inner(struct eng_calls_build *b, struct outer o)
{
    free(b->syms);
    b->syms = o.syms;
    b->n = o.n;
    b->cap = o.cap;
}

/* A way to write a parameter: its text with the name and the value in their places. */
static int add_way(struct eng_calls_build *b, struct eng_sym rule, const char *s,
                   const struct parameter *p, unsigned types, struct eng_sym value)
{
    struct outer o = begin_inner(b);
    int rc = 0;
    while (*s && !rc) {
        size_t n = 0;
        while (s[n] && !(s[n] == '%' && memchr("KVT", s[n + 1], 3)))
            n++;
        rc = eng_calls_markup(b, s, n);
        s += n;
        if (rc || !*s) break;
        rc = s[1] == 'K'   ? eng_calls_name(b, p->key, strlen(p->key), false)
             : s[1] == 'T' ? push_types(b, types)
                           : eng_calls_push(b, value);
        s += 2;
    }
    if (!rc) eng_ir_add(b->ir, rule, b->syms, b->n);
    end_inner(b, o);
    return rc;
}

/* The value as JSON, or as Python writes it; `more`: there are other ways, if no such value
 * satisfies the schema. White space in front of null would make it a string's text. */
static int add_json_way(struct eng_calls_build *b, struct eng_sym rule, const struct parameter *p,
                        json_t *schema, unsigned types, bool more)
{
    struct eng_schema_opts opts = b->opts;
    struct cn_error why = {0};
    struct eng_sym value;
    /* where a string may stand as well, readers take Python's words for one */
    if (opts.style == ENG_STYLE_EITHER && types & ENG_T_STRING) opts.style = ENG_STYLE_JSON;
    int rc = eng_schema_compile(b->ir, schema, &opts, &value, &why);
    if (rc == CN_EINVAL && more) return 0;
    if (rc) return say(b, rc, p->path, &why);
    if (types == (ENG_T_STRING | ENG_T_NULL) && opts.style != ENG_STYLE_PYTHON)
        value = eng_ir_lexeme(b->ir, eng_rx_literal(&b->ir->rx, "null", 4), false);
    return add_way(b, rule, b->t->other_param, p, types, value);
}

static int add_tags(struct eng_calls_build *b, struct eng_sym rule, const struct parameter *p,
                    bool *done);

/* Strings are written as they are, other values as JSON. Where a value may be of any type readers
 * take JSON; in Python strings have quotes. */
static int add_ways(struct eng_calls_build *b, struct eng_sym rule, const struct parameter *p)
{
    unsigned types = eng_schema_types(p->of);
    bool quotes = b->t->style == ENG_STYLE_PYTHON, done = false;
    bool bare = types & ENG_T_STRING && types != ENG_T_ANY && !quotes;
    int rc = b->t->elements ? add_tags(b, rule, p, &done) : 0;
    if (rc || done) return rc;
    json_t *all = document(b, p->schema, false), *others = document(b, p->schema, bare);
    uint32_t x = ENG_RX_NONE;
    rc = all && others ? 0 : CN_ENOMEM;
    if (!rc && bare) rc = text_value(b, all, p, types, &x);
    if (!rc && x != ENG_RX_NONE)
        rc = add_way(b, rule, b->t->text_param, p, types, eng_ir_lexeme(b->ir, x, false));
    if (!rc && (quotes || types != ENG_T_STRING))
        rc = add_json_way(b, rule, p, others, types, x != ENG_RX_NONE);
    else if (!rc && x == ENG_RX_NONE)
        rc = eng_calls_refuse(b, CN_EINVAL, p->path, "no value satisfies the schema");
    json_decref(all);
    json_decref(others);
    return rc;
}

/* Whether the reader takes the name as it is. */
static bool is_key(const struct eng_calls_build *b, const char *key)
{
    const struct eng_reply_format *f = b->in->format;
    struct eng_str key_end = eng_role_text(f, ENG_R_KEY_END),
                   head = eng_role_text(f, ENG_R_HEAD_END);
    size_t n = strlen(key);
    bool python = b->t->style == ENG_STYLE_PYTHON;
    if (!n || n >= ENG_NAME_BYTES) return false;
    for (size_t i = 0; i < n; i++) {
        char c = key[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c & 0x80;
        if ((unsigned char)c < ' ') return false;
        if (python && !letter && (!i || !((c >= '0' && c <= '9') || strchr(".-:", c))))
            return false;
    }
    if (b->t->elements) return !strchr(key, '>') && *key != '/' && strncmp(key, "invoke ", 7) != 0;
    if (f->form && f->form->flags & ENG_F_ENTITIES) return true;
    return !(key_end.n && memmem(key, n, key_end.p, key_end.n)) &&
           !(head.n && memmem(key, n, head.p, head.n));
}

/* A rule of the parameter; without `must` it may be left out. */
static int parameter_rule(struct eng_calls_build *b, const struct parameter *p, bool must,
                          struct eng_sym *rule)
{
    if (!is_key(b, p->key))
        return eng_calls_refuse(b, CN_EUNSUPP, p->path,
                                "a name that cannot be written in the form in which this model "
                                "calls: rename it");
    *rule = eng_ir_rule(b->ir);
    int rc = add_ways(b, *rule, p);
    if (!must) eng_ir_add(b->ir, *rule, NULL, 0);
    return rc;
}

/* ---- all parameters -------------------------------------------------------------------------- */

static bool has_word(const json_t *list, const char *word)
{
    const json_t *one;
    size_t i;
    json_array_foreach(list, i, one) if (json_is_string(one) &&
                                         strcmp(json_string_value(one), word) == 0) return true;
    return false;
}

/* Rules of parameters in their order. */
struct rules {
    struct eng_sym *v;
    bool *must;
    size_t n, cap, cap_must;
};

static int add_rule(struct eng_calls_build *b, struct rules *l, const struct parameter *p,
                    bool must)
{
    struct eng_sym rule;
    bool commas = b->t->style == ENG_STYLE_PYTHON;
    int rc = parameter_rule(b, p, must || commas, &rule);
    if (rc) return rc;
    if (cn_grow(&l->v, &l->cap, l->n + 1, sizeof *l->v) ||
        cn_grow(&l->must, &l->cap_must, l->n + 1, sizeof *l->must))
        return CN_ENOMEM;
    l->v[l->n] = rule;
    l->must[l->n++] = must;
    return 0;
}

/* The rules of an object's members; above: the path of the object. */
static int list_rules(struct eng_calls_build *b, const json_t *object, const struct eng_schema *of,
                      const char *above, struct rules *l)
{
    json_t *properties = json_object_get(object, "properties"), *schema, *word;
    json_t *required = json_object_get(object, "required");
    const char *name;
    char path[192];
    size_t i;
    int rc = 0;
    json_object_foreach(properties, name, schema)
    {
        bool must = has_word(required, name);
        const struct parameter p = {
            name, path, schema, eng_schema_member(of, (struct eng_str){name, strlen(name)}, NULL)};
        snprintf(path, sizeof path, "%s%s%.60s", above ? above : "", above ? ".properties." : "",
                 name);
        if (!rc && (must || !json_is_false(schema))) rc = add_rule(b, l, &p, must);
    }
    json_array_foreach(required, i, word)
    { /* what it is, the schema does not say */
        name = json_string_value(word);
        if (rc || !name || json_object_get(properties, name)) continue;
        const struct parameter p = {name, name, json_true(), NULL};
        rc = add_rule(b, l, &p, true);
    }
    return rc;
}

/* Pushes the members with commas between those that are there. first: none is before the i-th;
 * next: one is. */
static int push_with_commas(struct eng_calls_build *b, const struct rules *l)
{
    struct eng_sym first = eng_ir_rule(b->ir), next = first;
    struct eng_sym comma = eng_ir_lexeme(b->ir, eng_rx_literal(&b->ir->rx, ", ", 2), false);
    eng_ir_add(b->ir, first, NULL, 0);
    for (size_t i = l->n; i--;) {
        struct eng_sym here = eng_ir_rule(b->ir), later = eng_ir_rule(b->ir);
        eng_ir_add(b->ir, here, (struct eng_sym[]){l->v[i], next}, 2);
        eng_ir_add(b->ir, later, (struct eng_sym[]){comma, l->v[i], next}, 3);
        if (!l->must[i]) {
            eng_ir_add(b->ir, here, &first, 1);
            eng_ir_add(b->ir, later, &next, 1);
        }
        first = here;
        next = later;
    }
    return eng_calls_push(b, first);
}

/* All members in their order; those that are not required may be left out. */
static int push_members(struct eng_calls_build *b, const json_t *object,
                        const struct eng_schema *of, const char *above)
{
    struct rules l = {0};
    int rc = list_rules(b, object, of, above, &l);
    if (!rc && b->t->style == ENG_STYLE_PYTHON) rc = push_with_commas(b, &l);
    for (size_t i = 0; i < l.n && !rc && b->t->style != ENG_STYLE_PYTHON; i++)
        rc = eng_calls_push(b, l.v[i]);
    free(l.v);
    free(l.must);
    return rc;
}

int eng_calls_parameters(struct eng_calls_build *b)
{
    const struct eng_tool *tool = eng_tool_find(b->tools, b->name);
    const char *word = whole_word(b->parameters);
    char what[128];
    if (eng_calls_input_of(b)) return eng_calls_no_input(b);
    if (!word) return push_members(b, b->parameters, tool ? tool->parameters : NULL, NULL);
    snprintf(what, sizeof what, "%s is not supported here, in the form in which this model calls",
             word);
    return eng_calls_refuse(b, CN_EUNSUPP, NULL, what);
}

/* ---- tags within tags ------------------------------------------------------------------------ */

/* A value that was made as the symbols from `from` on of the sequence. */
static int add_inner(struct eng_calls_build *b, struct eng_sym rule, const struct parameter *p)
{
    struct eng_sym value = eng_ir_rule(b->ir);
    eng_ir_add(b->ir, value, b->syms, b->n);
    return add_way(b, rule, b->t->other_param, p, ENG_T_ANY, value);
}

static int add_object(struct eng_calls_build *b, struct eng_sym rule, const struct parameter *p)
{
    struct outer o = begin_inner(b);
    int rc = push_members(b, p->schema, p->of, p->path);
    if (!rc) rc = add_inner(b, rule, p);
    end_inner(b, o);
    return rc;
}

static int add_list(struct eng_calls_build *b, struct eng_sym rule, const struct parameter *p,
                    size_t min, size_t max)
{
    char path[192];
    const struct parameter item = {"item", path, json_object_get(p->schema, "items"),
                                   eng_schema_items(p->of)};
    struct outer o = begin_inner(b);
    struct eng_sym one, more = eng_ir_rule(b->ir);
    snprintf(path, sizeof path, "%.150s.items", p->path);
    int rc = parameter_rule(b, &item, true, &one);
    eng_ir_add(b->ir, more, NULL, 0);
    if (!rc && max == SIZE_MAX) eng_ir_add(b->ir, more, (struct eng_sym[]){one, more}, 2);
    for (size_t i = min; i < max && max != SIZE_MAX && !rc; i++) {
        struct eng_sym next = eng_ir_rule(b->ir);
        eng_ir_add(b->ir, next, NULL, 0);
        eng_ir_add(b->ir, next, (struct eng_sym[]){one, more}, 2);
        more = next;
    }
    for (size_t i = 0; i < min && !rc; i++)
        rc = eng_calls_push(b, one);
    if (!rc) rc = eng_calls_push(b, more);
    if (!rc) rc = add_inner(b, rule, p);
    end_inner(b, o);
    return rc;
}

/* The keyword's number; `none` without the keyword. False: one that is not written out. */
static bool count_of(const json_t *schema, const char *word, size_t none, size_t *out)
{
    const json_t *v = json_object_get(schema, word);
    *out = none;
    if (!v) return true;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > MOST_REPEATED)
        return false;
    *out = (size_t)json_integer_value(v);
    return true;
}

/* Whether a list has no keywords but those that add_list keeps. */
static bool is_plain_list(const json_t *schema)
{
    static const char *const known[] = {"type",  "items",       "minItems", "maxItems",
                                        "title", "description", "default",  "examples"};
    const char *word;
    json_t *v;
    json_object_foreach((json_t *)schema, word, v)
    {
        size_t i = 0;
        while (i < CN_ARRAY_LEN(known) && strcmp(known[i], word) != 0)
            i++;
        if (i == CN_ARRAY_LEN(known)) return false;
    }
    return json_is_object(json_object_get(schema, "items"));
}

/* An object with properties and a list of one kind are tags in a tag. Anything else is JSON in one,
 * which the reader takes as well. *done: it was the one or the other. */
static int add_tags(struct eng_calls_build *b, struct eng_sym rule, const struct parameter *p,
                    bool *done)
{
    unsigned types = eng_schema_types(p->of);
    size_t min, max;
    int rc = 0;
    if (b->depth == MOST_NESTED || !json_is_object(p->schema)) return 0;
    b->depth++;
    *done = true;
    if (types == ENG_T_OBJECT && json_object_size(json_object_get(p->schema, "properties")) &&
        !whole_word(p->schema))
        rc = add_object(b, rule, p);
    else if (types == ENG_T_ARRAY && is_plain_list(p->schema) &&
             count_of(p->schema, "minItems", 0, &min) &&
             count_of(p->schema, "maxItems", SIZE_MAX, &max) && min <= max)
        rc = add_list(b, rule, p, min, max);
    else
        *done = false;
    b->depth--;
    return rc;
}
