/* calls: see calls.h. The texts of calls.def become sequences of symbols; what stands between them
 * is fixed, so that most of a call's markup needs no choice of the model. */
#include "engine/text/grammar/calls.h"

#include "engine/text/grammar/spell.h"
#include "engine/text/reply/reply.h"

#include <stdlib.h>

struct text { const char *form, *before, *call, *between, *after, *text_param, *other_param; };
static const struct text texts[] = {
#define CALLS(form, before, call, between, after, text_param, other_param)                         \
    {form, before, call, between, after, text_param, other_param},
#include "engine/text/grammar/calls.def"
#undef CALLS
};

struct build {
    struct eng_ir *ir;
    const struct eng_calls_in *in;
    const struct text *t;
    struct cn_error *err;
    json_t *tool, *parameters; /* of the function that is written */
    struct eng_str name;       /* its */
    size_t index;              /* and number */
    struct eng_tools *tools;   /* types as the readers of calls see them */
    struct eng_sym *syms;      /* of the sequence that is written */
    size_t n, cap;
};

static const struct text *find(const struct eng_reply_format *f)
{
    const char *name = eng_reply_form(f);
    for (size_t i = 0; i < CN_ARRAY_LEN(texts); i++)
        if (!strcmp(texts[i].form, name)) return &texts[i];
    return NULL;
}

bool eng_calls_known(const struct eng_reply_format *f)
{
    return find(f) != NULL;
}

bool eng_calls_whole(const struct eng_reply_format *f)
{
    const struct text *t = find(f);
    return t && !strcmp(t->before, "%R");
}

struct eng_str eng_calls_opening(const struct eng_reply_format *f)
{
    const struct text *t = find(f);
    const char *s = !t ? "" : t->before[0] ? t->before : t->call;
    struct eng_str best = {"", 0};
    for (size_t i = 0; i < f->n_marks; i++) {
        struct eng_str mark = eng_mark_text(f, i);
        bool opens = f->marks[i].role == ENG_R_OPEN || f->marks[i].role == ENG_R_CALL;
        if (opens && mark.n > best.n && !strncmp(s, mark.p, mark.n)) best = mark;
    }
    return best;
}

static int push(struct build *b, struct eng_sym s)
{
    if (cn_grow(&b->syms, &b->cap, b->n + 1, sizeof *b->syms)) return CN_ENOMEM;
    b->syms[b->n++] = s;
    return b->ir->rx.code;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* The token of the format's marks that begins the text; its length, 0: none does. */
static size_t token_at(const struct eng_reply_format *f, const char *s, size_t n, uint32_t *id)
{
    size_t best = 0;
    for (size_t i = 0; i < f->n_tokens; i++) {
        size_t len = f->tokens[i].n_text;
        if (len <= best || len > n || memcmp(f->text + f->tokens[i].text, s, len)) continue;
        best = len;
        *id = f->tokens[i].id;
    }
    return best;
}

/* Markup: as it is, but tokens as the tree of tokens has them (trie.h). */
static uint32_t markup(struct build *b, const char *s, size_t n)
{
    uint32_t x = ENG_RX_EMPTY, id = 0;
    struct eng_rx *r = &b->ir->rx;
    for (size_t i = 0, len; i < n; i += len) {
        len = token_at(b->in->format, s + i, n - i, &id);
        const char token[5] = {(char)0xFF, (char)(id >> 24), (char)(id >> 16), (char)(id >> 8),
                               (char)id};
        bool named = len && eng_vocab_is_special(b->in->vocab, id);
        uint32_t part = named ? eng_rx_literal(r, token, sizeof token)
                              : eng_rx_literal(r, s + i, len ? len : 1);
        if (!len) len = 1;
        x = eng_rx_cat(r, x, part);
    }
    return x;
}

static int push_markup(struct build *b, const char *s, size_t n)
{
    return n ? push(b, eng_ir_lexeme(b->ir, markup(b, s, n), false)) : 0;
}

/* A name, as the inside of a JSON string where it stands in quotes. */
static int push_name(struct build *b, const json_t *name, bool quoted)
{
    struct cn_buf text;
    int rc;
    cn_buf_init(&text, 0);
    if (quoted)
        rc = cn_buf_json_text(&text, json_string_value(name), json_string_length(name));
    else
        rc = cn_buf_append(&text, json_string_value(name), json_string_length(name));
    if (!rc)
        rc = push(b, eng_ir_lexeme(b->ir, eng_rx_literal(&b->ir->rx, text.data, text.len), false));
    cn_buf_fini(&text);
    return rc;
}

/* An id, or a number. */
static int push_id(struct build *b, char kind)
{
    struct eng_rx *r = &b->ir->rx;
    struct eng_bytes set = {{0}};
    uint32_t n = kind == '9' ? 9 : 10;
    eng_bytes_add(&set, '0', '9');
    if (kind == 'D')
        return push(b, eng_ir_lexeme(b->ir, eng_rx_repeat(r, eng_rx_set(r, &set), 1, 3), false));
    eng_bytes_add(&set, 'a', 'z');
    if (kind == '9') eng_bytes_add(&set, 'A', 'Z');
    return push(b, eng_ir_lexeme(b->ir, eng_rx_repeat(r, eng_rx_set(r, &set), n, n), false));
}

/* ---- arguments ------------------------------------------------------------------------------- */

/* The place of what is wrong with a schema, in the request. */
static int say(struct build *b, int rc, const char *property, const struct cn_error *why)
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

static int refuse(struct build *b, int rc, const char *property, const char *what)
{
    struct cn_error why = {0};
    cn_fail(&why, rc, "%s", what);
    return say(b, rc, property, &why);
}

static int json_value(struct build *b, json_t *schema, const char *property, struct eng_sym *out)
{
    struct cn_error why = {0};
    int rc = eng_schema_compile(b->ir, schema, b->in->opts, out, &why);
    return rc ? say(b, rc, property, &why) : 0;
}

/* Arguments must be an object, even if the schema allows other types. */
static int push_arguments(struct build *b)
{
    json_t *schema = b->parameters ? json_copy(b->parameters) : json_object();
    int rc = json_object_set_new(schema, "type", json_string("object")) ? CN_ENOMEM : 0;
    struct eng_sym s;
    if (!rc) rc = json_value(b, schema, NULL, &s);
    if (!rc) rc = push(b, s);
    json_decref(schema);
    return rc;
}

/* ---- parameters ------------------------------------------------------------------------------ */

/* Texts that hold s. */
static uint32_t holding(struct eng_rx *r, uint32_t any, const char *s, size_t n)
{
    return eng_rx_cat(r, any, eng_rx_cat(r, eng_rx_literal(r, s, n), any));
}

/* Texts that a reader takes for a value of another of these types, or would not leave as they are:
 * those that begin as one, or with white space (reply/value.c). */
static uint32_t mistaken(struct eng_rx *r, unsigned types, uint32_t any)
{
    static const struct eng_str nulls[] = {{"null", 4}, {"None", 4}},
                                bools[] = {{"true", 4}, {"false", 5}};
    uint32_t x = types & ENG_T_NULL ? eng_rx_words(r, nulls, 2) : ENG_RX_NONE;
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

/* The parameter's value as a text that does not hold what ends it; *out ENG_RX_NONE: no string is
 * allowed. */
static int text_value(struct build *b, json_t *schema, const char *name, unsigned types,
                      uint32_t *out)
{
    struct eng_str end = eng_role_text(b->in->format, ENG_R_VALUE_END);
    struct eng_rx *r = &b->ir->rx;
    uint32_t any = eng_rx_repeat(r, eng_spell_any(r, ENG_SPELL_RAW), 0, ENG_RX_INF), bad;
    struct cn_error why = {0};
    int rc = eng_schema_texts(b->ir, schema, b->in->opts, out, &why);
    if (rc) return say(b, rc, name, &why);
    if (*out == ENG_RX_NONE) return 0;
    bad = holding(r, any, end.p, end.n);
    if (strcmp(b->t->text_param, b->t->other_param) == 0)
        bad = eng_rx_or(r, bad, mistaken(r, types, any));
    *out = eng_rx_and(r, *out, eng_rx_and(r, any, eng_rx_not(r, bad)));
    if (!eng_rx_live(r, *out)) *out = ENG_RX_NONE;
    return r->code;
}

/* The parameter's schema as a document of its own: with the definitions of all, and where `bare`
 * without strings. Owned; NULL: out of memory. */
static json_t *document(const struct build *b, const json_t *schema, bool bare)
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

/* A way to write a parameter: its text with the name and the value in their places. */
static int add_way(struct build *b, struct eng_sym rule, const char *s, const char *name,
                   struct eng_sym value)
{
    struct eng_sym *outer = b->syms;
    size_t n_outer = b->n, cap = b->cap;
    json_t *key = json_string(name);
    int rc = key ? 0 : CN_ENOMEM;
    b->syms = NULL;
    b->n = b->cap = 0;
    while (*s && !rc) {
        size_t n = strcspn(s, "%");
        rc = push_markup(b, s, n);
        s += n;
        if (rc || !*s) break;
        rc = s[1] == 'K' ? push_name(b, key, false) : push(b, value);
        s += 2;
    }
    if (!rc) eng_ir_add(b->ir, rule, b->syms, b->n);
    free(b->syms);
    b->syms = outer;
    b->n = n_outer;
    b->cap = cap;
    json_decref(key);
    return rc;
}

/* The value as JSON; `more`: there are other ways, if no such value satisfies the schema. White
 * space in front of null would make it a string's text. */
static int add_json_way(struct build *b, struct eng_sym rule, const char *name, json_t *schema,
                        unsigned types, bool more)
{
    struct cn_error why = {0};
    struct eng_sym value;
    int rc = eng_schema_compile(b->ir, schema, b->in->opts, &value, &why);
    if (rc == CN_EINVAL && more) return 0;
    if (rc) return say(b, rc, name, &why);
    if (types == (ENG_T_STRING | ENG_T_NULL))
        value = eng_ir_lexeme(b->ir, eng_rx_literal(&b->ir->rx, "null", 4), false);
    return add_way(b, rule, b->t->other_param, name, value);
}

/* Strings are written as they are, other values as JSON. Where a value may be of any type readers
 * take JSON. */
static int add_ways(struct build *b, struct eng_sym rule, const char *name, const json_t *schema)
{
    const struct eng_tool *tool = eng_tool_find(b->tools, b->name);
    const struct eng_schema *of = eng_schema_member(tool ? tool->parameters : NULL,
                                                    (struct eng_str){name, strlen(name)}, NULL);
    unsigned types = eng_schema_types(of);
    bool bare = types & ENG_T_STRING && types != ENG_T_ANY;
    json_t *all = document(b, schema, false), *others = document(b, schema, bare);
    uint32_t x = ENG_RX_NONE;
    int rc = all && others ? 0 : CN_ENOMEM;
    if (!rc && bare) rc = text_value(b, all, name, types, &x);
    if (!rc && x != ENG_RX_NONE)
        rc = add_way(b, rule, b->t->text_param, name, eng_ir_lexeme(b->ir, x, false));
    if (!rc && types != ENG_T_STRING)
        rc = add_json_way(b, rule, name, others, types, x != ENG_RX_NONE);
    else if (!rc && x == ENG_RX_NONE)
        rc = refuse(b, CN_EINVAL, name, "no value satisfies the schema");
    json_decref(all);
    json_decref(others);
    return rc;
}

static int push_parameter(struct build *b, const char *name, const json_t *schema, bool must)
{
    struct eng_sym rule = eng_ir_rule(b->ir);
    int rc = add_ways(b, rule, name, schema);
    if (!must) eng_ir_add(b->ir, rule, NULL, 0);
    return rc ? rc : push(b, rule);
}

static bool has_word(const json_t *list, const char *word)
{
    const json_t *one;
    size_t i;
    json_array_foreach(list, i, one) if (json_is_string(one) &&
                                         strcmp(json_string_value(one), word) == 0) return true;
    return false;
}

/* Keywords about the object of all parameters which their texts, one by one, do not keep. */
static int check_object(struct build *b)
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
    struct cn_error why = {0};
    for (size_t i = 0; i < CN_ARRAY_LEN(words); i++) {
        if (!json_object_get(b->parameters, words[i])) continue;
        cn_fail(&why, CN_EUNSUPP, "%s is not supported here, in the form in which this model calls",
                words[i]);
        return say(b, CN_EUNSUPP, NULL, &why);
    }
    return 0;
}

/* All parameters in their order; those that are not required may be left out. */
static int push_parameters(struct build *b)
{
    json_t *properties = json_object_get(b->parameters, "properties"), *schema, *word;
    json_t *required = json_object_get(b->parameters, "required");
    const char *name;
    size_t i;
    int rc = check_object(b);
    json_object_foreach(properties, name, schema)
    {
        bool must = has_word(required, name);
        if (!rc && (must || !json_is_false(schema))) rc = push_parameter(b, name, schema, must);
    }
    json_array_foreach(required, i, word) /* what it is, the schema does not say */
        if (!rc && json_is_string(word) && !json_object_get(properties, json_string_value(word)))
            rc = push_parameter(b, json_string_value(word), json_true(), true);
    return rc;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static int push_call(struct build *b)
{
    json_t *function = json_object_get(b->tool, "function");
    json_t *name = json_object_get(function, "name");
    int rc = 0;
    for (const char *s = b->t->call; *s && !rc;) {
        size_t n = strcspn(s, "%");
        rc = push_markup(b, s, n);
        if (rc || !s[n]) break;
        switch (s[n + 1]) {
        case 'N':
            rc = push_name(b, name, n && s[n - 1] == '"');
            break;
        case 'A':
            rc = push_arguments(b);
            break;
        case 'P':
            rc = push_parameters(b);
            break;
        default:
            rc = push_id(b, s[n + 1]);
            break;
        }
        s += n + 2;
    }
    return rc;
}

/* A rule that is a call of any of the tools. */
static int any_call(struct build *b, json_t *tools, struct eng_sym *out)
{
    *out = eng_ir_rule(b->ir);
    json_array_foreach(tools, b->index, b->tool)
    {
        json_t *p = json_object_get(json_object_get(b->tool, "function"), "parameters");
        json_t *name = json_object_get(json_object_get(b->tool, "function"), "name");
        b->parameters = json_is_object(p) ? p : NULL;
        b->name = (struct eng_str){json_string_value(name), json_string_length(name)};
        b->n = 0;
        int rc = push_call(b);
        if (rc) return rc;
        eng_ir_add(b->ir, *out, b->syms, b->n);
    }
    return b->ir->rx.code;
}

/* Reasoning in harmony's form, or none, as a rule. */
static int push_reasoning(struct build *b)
{
    static const char before[] = "<|channel|>analysis<|message|>";
    static const char after[] = "<|end|><|start|>assistant";
    struct eng_rx *r = &b->ir->rx;
    uint32_t any = eng_rx_repeat(r, eng_spell_any(r, ENG_SPELL_RAW), 0, ENG_RX_INF);
    struct eng_sym rule = eng_ir_rule(b->ir);
    const struct eng_sym seq[] = {eng_ir_lexeme(b->ir, markup(b, before, sizeof before - 1), false),
                                  eng_ir_lexeme(b->ir, any, false),
                                  eng_ir_lexeme(b->ir, markup(b, after, sizeof after - 1), false)};
    eng_ir_add(b->ir, rule, seq, CN_ARRAY_LEN(seq));
    eng_ir_add(b->ir, rule, NULL, 0);
    return push(b, rule);
}

static int all_calls(struct build *b, struct eng_sym *root)
{
    struct eng_sym call, more = eng_ir_rule(b->ir);
    int rc = any_call(b, b->in->tools, &call);
    const char *between = b->t->between;
    b->n = 0;
    eng_ir_add(b->ir, more, NULL, 0);
    if (!rc && b->in->many && between) { /* more: nothing, or between, a call, and more */
        rc = push_markup(b, between, strlen(between));
        if (!rc) rc = push(b, call);
        if (!rc) rc = push(b, more);
        if (!rc) eng_ir_add(b->ir, more, b->syms, b->n);
    }
    b->n = 0;
    if (!rc && eng_calls_whole(b->in->format))
        rc = push_reasoning(b);
    else if (!rc)
        rc = push_markup(b, b->t->before, strlen(b->t->before));
    if (!rc) rc = push(b, call);
    if (!rc) rc = push(b, more);
    if (!rc) rc = push_markup(b, b->t->after, strlen(b->t->after));
    *root = eng_ir_rule(b->ir);
    if (!rc) eng_ir_add(b->ir, *root, b->syms, b->n);
    return rc ? rc : b->ir->rx.code;
}

int eng_calls_compile(struct eng_ir *ir, const struct eng_calls_in *in, struct eng_sym *root,
                      struct cn_error *err)
{
    struct build b = {.ir = ir, .in = in, .t = find(in->format), .err = err};
    if (!b.t)
        return cn_fail(err, CN_EUNSUPP,
                       "calls in this model's form (%s) cannot be required: let the model choose",
                       eng_reply_form(in->format));
    int rc = eng_tools_new(in->tools, &b.tools, err);
    if (!rc) rc = all_calls(&b, root);
    eng_tools_free(b.tools);
    free(b.syms);
    if (rc && err && !err->code) cn_fail(err, rc, "%s", cn_err_info(rc)->text);
    return rc;
}
