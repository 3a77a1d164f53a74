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
    size_t index;              /* its number */
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
    snprintf(param, sizeof param, "tools[%zu].function.parameters%s%.60s%s%s", b->index,
             property ? ".properties." : "", property ? property : "", why->param[0] ? "." : "",
             why->param);
    return cn_fail_param(b->err, rc, param, "%.120s: %s", param,
                         why->message[0] ? why->message : cn_err_info(rc)->text);
}

static int push_json(struct build *b, json_t *schema, const char *property)
{
    struct cn_error why = {0};
    struct eng_sym s;
    int rc = eng_schema_compile(b->ir, schema, b->in->opts, &s, &why);
    return rc ? say(b, rc, property, &why) : push(b, s);
}

/* Arguments must be an object, even if the schema allows other types. */
static int push_arguments(struct build *b)
{
    json_t *schema = b->parameters ? json_copy(b->parameters) : json_object();
    int rc = json_object_set_new(schema, "type", json_string("object")) ? CN_ENOMEM : 0;
    if (!rc) rc = push_json(b, schema, NULL);
    json_decref(schema);
    return rc;
}

/* A text of any kind that does not hold what ends it. */
static int push_text(struct build *b, const json_t *schema, const char *end)
{
    struct eng_rx *r = &b->ir->rx;
    const json_t *words = json_object_get(schema, "enum");
    uint32_t any = eng_rx_repeat(r, eng_spell_any(r, ENG_SPELL_RAW), 0, ENG_RX_INF), x, stop;
    size_t n = strcspn(end, "\n") ? strcspn(end, "\n") : strlen(end), i;
    json_t *word;
    if (json_is_array(words)) {
        x = ENG_RX_NONE;
        json_array_foreach(words, i, word) x =
            eng_rx_or(r, x, eng_rx_literal(r, json_string_value(word), json_string_length(word)));
        return push(b, eng_ir_lexeme(b->ir, x, false));
    }
    stop = eng_rx_literal(r, end, n);
    x = eng_rx_cat(r, any, eng_rx_cat(r, stop, any));
    return push(b, eng_ir_lexeme(b->ir, eng_rx_and(r, any, eng_rx_not(r, x)), false));
}

/* Whether a parameter's value is written as it is. */
static bool is_text(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type"), *words = json_object_get(schema, "enum");
    json_t *word;
    size_t i;
    if (json_is_string(type)) return !strcmp(json_string_value(type), "string");
    json_array_foreach(words, i, word) if (!json_is_string(word)) return false;
    return json_is_array(words);
}

/* One parameter: its text with the name and the value in their places. */
static int push_parameter(struct build *b, const char *name, json_t *schema)
{
    bool text = is_text(schema);
    const char *s = text ? b->t->text_param : b->t->other_param;
    json_t *key = json_string(name);
    int rc = key ? 0 : CN_ENOMEM;
    while (*s && !rc) {
        size_t n = strcspn(s, "%");
        rc = push_markup(b, s, n);
        s += n;
        if (rc || !*s) break;
        if (s[1] == 'K')
            rc = push_name(b, key, false);
        else
            rc = text ? push_text(b, schema, s + 2) : push_json(b, schema, name);
        s += 2;
    }
    json_decref(key);
    return rc;
}

/* All parameters in their order; those that are not required may be left out. */
static int push_parameters(struct build *b)
{
    json_t *properties = json_object_get(b->parameters, "properties"), *schema, *word;
    json_t *required = json_object_get(b->parameters, "required");
    const char *name;
    json_object_foreach(properties, name, schema)
    {
        struct eng_sym *outer = b->syms, rule = eng_ir_rule(b->ir);
        size_t n = b->n, cap = b->cap, i;
        bool must = false;
        json_array_foreach(required, i, word) must |=
            json_is_string(word) && !strcmp(json_string_value(word), name);
        b->syms = NULL;
        b->n = b->cap = 0;
        int rc = push_parameter(b, name, schema);
        if (!rc) eng_ir_add(b->ir, rule, b->syms, b->n);
        if (!must) eng_ir_add(b->ir, rule, NULL, 0);
        free(b->syms);
        b->syms = outer;
        b->n = n;
        b->cap = cap;
        if (!rc) rc = push(b, rule);
        if (rc) return rc;
    }
    return 0;
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
        b->parameters = json_is_object(p) ? p : NULL;
        b->n = 0;
        int rc = push_call(b);
        if (rc) return rc;
        eng_ir_add(b->ir, *out, b->syms, b->n);
    }
    return b->ir->rx.code;
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
    if (!rc) rc = push_markup(b, b->t->before, strlen(b->t->before));
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
    int rc = all_calls(&b, root);
    free(b.syms);
    if (rc && err && !err->code) cn_fail(err, rc, "%s", cn_err_info(rc)->text);
    return rc;
}
