/* form: see form.h. */
#include "server/form.h"

#include "server/call.h"
#include "server/custom.h"
#include "server/grammars.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum form_kind { F_SCHEMA, F_REGEX, F_CHOICE, F_GRAMMAR, F_OBJECT };

/* Fields that ask for a form. */
static const struct field {
    const char *name;
    enum form_kind kind;
} fields[] = {
#define PARAM(ep, name, type, member, def, low, high, text)
#define FORM(name, kind) {name, F_##kind},
#include "server/params.def"
#undef PARAM
};

/* Members of structured_outputs; the last ones say how, not what. */
static const struct field members[] = {{"json", F_SCHEMA},
                                       {"regex", F_REGEX},
                                       {"choice", F_CHOICE},
                                       {"grammar", F_GRAMMAR},
                                       {"json_object", F_OBJECT}};
static const char *const ways[] = {"disable_any_whitespace", "disable_fallback",
                                   "disable_additional_properties", "whitespace_pattern",
                                   "structural_tag"};

/* Values that ask for nothing: other servers' clients send them for fields that are not used. For a
 * schema {} does ask, for any JSON. */
static bool asks(enum form_kind kind, const json_t *v)
{
    if (!v || json_is_null(v) || json_is_false(v)) return false;
    if (json_is_string(v)) return json_string_length(v) > 0;
    if (json_is_array(v)) return json_array_size(v) > 0;
    if (json_is_object(v)) return kind == F_SCHEMA || json_object_size(v) > 0;
    return true;
}

static int wrong(const char *name, const char *what, struct cn_error *err)
{
    return cn_fail_param(err, CN_ETYPE, name, "%s must be %s", name, what);
}

/* GBNF has "::=" after a rule's name, Lark a colon. */
static enum eng_grammar_kind grammar_kind(const json_t *v)
{
    bool gbnf = memmem(json_string_value(v), json_string_length(v), "::=", 3);
    return gbnf ? ENG_GRAMMAR_GBNF : ENG_GRAMMAR_LARK;
}

static int set(struct srv_form *f, const char *name, enum form_kind kind, const json_t *v,
               struct cn_error *err)
{
    if (f->name)
        return cn_fail_param(err, CN_EINVAL, name,
                             "%s and %s both ask for a form of the answer: give one of them",
                             f->name, name);
    f->name = name;
    f->value = v;
    switch (kind) {
    case F_SCHEMA:
        f->kind = ENG_GRAMMAR_SCHEMA;
        if (json_is_object(v) || json_is_boolean(v) || json_is_string(v)) return 0;
        return wrong(name, "a JSON schema", err);
    case F_REGEX:
        f->kind = ENG_GRAMMAR_REGEX;
        return json_is_string(v) ? 0 : wrong(name, "a regular expression in a string", err);
    case F_CHOICE:
        f->kind = ENG_GRAMMAR_CHOICE;
        return json_is_array(v) ? 0 : wrong(name, "a list of strings", err);
    case F_GRAMMAR:
        if (!json_is_string(v)) return wrong(name, "a grammar in a string", err);
        f->kind = grammar_kind(v);
        return 0;
    case F_OBJECT:
        f->kind = ENG_GRAMMAR_JSON_OBJECT;
        f->value = NULL;
        return json_is_true(v) ? 0 : wrong(name, "true or false", err);
    }
    return 0;
}

/* ---- structured_outputs ---------------------------------------------------------------------- */

static int read_way(struct srv_form *f, const char *name, const json_t *v, struct cn_error *err)
{
    if (!strcmp(name, "disable_any_whitespace")) {
        if (!json_is_boolean(v))
            return wrong("structured_outputs.disable_any_whitespace", "true or false", err);
        f->compact = json_is_true(v);
        return 0;
    }
    if (!strcmp(name, "disable_fallback") || !asks(F_OBJECT, v)) return 0;
    return cn_fail_param(err, CN_EUNSUPP, "structured_outputs",
                         "structured_outputs.%s is not supported", name);
}

/* An empty one would leave the answer free, which whoever wrote it does not expect. */
static int read_member(struct srv_form *f, const char *name, enum form_kind kind, const json_t *v,
                       struct cn_error *err)
{
    if (!v || json_is_null(v) || json_is_false(v)) return 0;
    if (!asks(kind, v)) return cn_fail_param(err, CN_EINVAL, name, "%s is empty", name);
    return set(f, name, kind, v, err);
}

static bool is_member(const char *name)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(members); i++)
        if (!strcmp(name, members[i].name)) return true;
    for (size_t i = 0; i < CN_ARRAY_LEN(ways); i++)
        if (!strcmp(name, ways[i])) return true;
    return false;
}

static int check_members(const json_t *v, struct cn_error *err)
{
    const char *name;
    json_t *member;
    json_object_foreach((json_t *)v, name, member)
    {
        if (!is_member(name))
            return cn_fail_param(err, CN_EINVAL, "structured_outputs",
                                 "structured_outputs has no member %.40s; it takes json, regex, "
                                 "choice, grammar or json_object",
                                 name);
    }
    if (json_object_size(v)) return 0;
    return cn_fail_param(err, CN_EINVAL, "structured_outputs",
                         "structured_outputs is empty: give it json, regex, choice, grammar or "
                         "json_object, or leave it out");
}

static int read_structured(struct srv_form *f, const json_t *v, struct cn_error *err)
{
    static const char *const names[] = {"structured_outputs.json", "structured_outputs.regex",
                                        "structured_outputs.choice", "structured_outputs.grammar",
                                        "structured_outputs.json_object"};
    if (!v || json_is_null(v)) return 0;
    if (!json_is_object(v)) return wrong("structured_outputs", "an object", err);
    int rc = check_members(v, err);
    for (size_t i = 0; i < CN_ARRAY_LEN(members) && !rc; i++)
        rc = read_member(f, names[i], members[i].kind, json_object_get(v, members[i].name), err);
    for (size_t i = 0; i < CN_ARRAY_LEN(ways) && !rc; i++) {
        const json_t *m = json_object_get(v, ways[i]);
        if (m && !json_is_null(m)) rc = read_way(f, ways[i], m, err);
    }
    return rc;
}

/* ---- response_format ------------------------------------------------------------------------- */

static int read_schema_format(struct srv_form *f, const json_t *v, struct cn_error *err)
{
    const json_t *spec = json_object_get(v, "json_schema"), *schema, *strict;
    if (!spec)
        return cn_fail_param(err, CN_EMISSING, "response_format.json_schema",
                             "response_format.json_schema is missing");
    if (!json_is_object(spec)) return wrong("response_format.json_schema", "an object", err);
    strict = json_object_get(spec, "strict"); /* a schema holds whatever it says */
    if (strict && !json_is_null(strict) && !json_is_boolean(strict))
        return wrong("response_format.json_schema.strict", "true or false", err);
    schema = json_object_get(spec, "schema");
    if (!schema || json_is_null(schema))
        return cn_fail_param(err, CN_EMISSING, "response_format.json_schema.schema",
                             "response_format.json_schema.schema is missing");
    return set(f, "response_format.json_schema.schema", F_SCHEMA, schema, err);
}

static int read_format(struct srv_form *f, const json_t *v, struct cn_error *err)
{
    const json_t *type = json_object_get(v, "type"), *schema;
    if (!v || json_is_null(v)) return 0;
    if (!json_is_object(v)) return wrong("response_format", "an object", err);
    if (!json_is_string(type)) return wrong("response_format.type", "a string", err);
    if (srv_json_is(type, "text")) return 0;
    if (srv_json_is(type, "json_schema")) return read_schema_format(f, v, err);
    if (srv_json_is(type, "json_object")) {
        schema = json_object_get(v, "schema"); /* llama-server's way */
        if (asks(F_SCHEMA, schema)) return set(f, "response_format.schema", F_SCHEMA, schema, err);
        return set(f, "response_format", F_OBJECT, json_true(), err);
    }
    return cn_fail_param(err, CN_EUNSUPP, "response_format.type",
                         "response_format.type must be text, json_object or json_schema");
}

int srv_form_read(struct srv_form *out, const json_t *body, struct cn_error *err)
{
    struct srv_form f = {0};
    int rc = read_format(&f, json_object_get(body, "response_format"), err);
    if (!rc) rc = read_structured(&f, json_object_get(body, "structured_outputs"), err);
    for (size_t i = 0; i < CN_ARRAY_LEN(fields) && !rc; i++) {
        const json_t *v = json_object_get(body, fields[i].name);
        if (asks(fields[i].kind, v))
            rc = set(&f, fields[i].name, fields[i].kind, v, err);
        else if (fields[i].kind == F_CHOICE && json_is_array(v))
            rc = cn_fail_param(err, CN_EINVAL, fields[i].name, "%s is empty", fields[i].name);
    }
    if (!rc) *out = f;
    return rc;
}

/* ---- compiling ------------------------------------------------------------------------------- */

/* Memory for a grammar is charged before it is taken: little at first, and more where that was too
 * little. */
enum { FIRST_BYTES = 1 << 20, MASK_BYTES = 1 << 20 };

/* Time, too, is bounded: by the CPU time of the worker's thread. */
struct going {
    struct srv_call *c;
    uint64_t until_ns;
    bool late;
};

static bool keep_going(void *arg)
{
    struct going *g = arg;
    g->late = cn_thread_ns() > g->until_ns;
    return !g->late && srv_text_keep_going(&g->c->job);
}

static int write_json(const char *s, size_t n, void *to)
{
    return cn_buf_append(to, s, n);
}

static int add_json(struct cn_buf *b, const json_t *v)
{
    int flags = JSON_COMPACT | JSON_ENCODE_ANY;
    return json_dump_callback(v, write_json, b, flags) ? cn_buf_code(b) : 0;
}

/* What a grammar is kept by: all that it depends on. CN_ENOMEM. */
static int make_key(struct srv_call *c, const char *text, size_t n, struct srv_grammar_key *out)
{
    static const uint8_t secret[16] = "forms of answers";
    struct cn_buf b;
    int rc = 0;
    cn_buf_init_for(&b, 0, c->hold.account);
    /* with its length: what is appended could be the end of another text */
    cn_buf_printf(&b, "%d %d %d %d %d %d %d %zu ", c->form.kind, c->form.compact, c->form.many,
                  c->form.free, (int)c->p.parallel_tool_calls, c->form.calls != NULL,
                  c->larks != NULL, n);
    cn_buf_append(&b, text, n);
    if (c->form.calls) rc = add_json(&b, c->form.calls);
    if (!rc && c->larks) rc = add_json(&b, c->larks);
    if (!rc) rc = cn_buf_code(&b);
    *out = (struct srv_grammar_key){.tenant = c->tenant, .model = rt_model_number(c->model)};
    if (!rc) cn_siphash24_128(secret, b.data, b.len, out->digest);
    cn_buf_fini(&b);
    return rc;
}

/* A place in a tool, as the client knows it: with its number among all that are offered, under the
 * name of the field that offers it. The client gave no schema for a custom tool. */
static int say_tool(struct srv_call *c, int rc, const struct cn_error *why, size_t i)
{
    const json_t *tools = c->form.calls ? c->form.calls : c->form.value;
    const json_t *tool = json_array_get(tools, i);
    const char *rest = strchr(why->param, ']') + 1, *what = why->message;
    char param[sizeof why->param + 64];
    size_t n = strlen(why->param), at = 0;

    while (at < json_array_size(c->p.tools) && json_array_get(c->p.tools, at) != tool)
        at++;
    if (!strncmp(what, why->param, n) && !strncmp(what + n, ": ", 2)) what += n + 2;
    if (srv_custom_tool(c, tool))
        snprintf(param, sizeof param, "tools[%zu].custom.format.grammar.definition", at);
    else if (c->legacy && !strncmp(rest, ".function", 9))
        snprintf(param, sizeof param, "functions[%zu]%s", at, rest + 9);
    else
        snprintf(param, sizeof param, "tools[%zu]%s", at, rest);
    return cn_fail_param(&c->err, rc, param, "%s: %s", param, what);
}

static int say(struct srv_call *c, int rc, const struct cn_error *why, bool late, bool full)
{
    char param[sizeof why->param + 64];
    size_t i;
    if (full)
        return cn_fail_param(&c->err, rc, c->form.name,
                             "%s takes more memory than limits.grammar_bytes (%s)", c->form.name,
                             cn_size((uint64_t)c->env->grammar_bytes).text);
    if (late)
        return cn_fail_param(&c->err, CN_ELIMIT, c->form.name,
                             "%s takes longer than limits.grammar_ms (%lld ms) to compile",
                             c->form.name, (long long)c->env->grammar_ms);
    if (sscanf(why->param, "tools[%zu]", &i) == 1 && strchr(why->param, ']'))
        return say_tool(c, rc, why, i);
    snprintf(param, sizeof param, "%s%s%s", c->form.name, why->param[0] ? "." : "", why->param);
    return cn_fail_param(&c->err, rc, param, "%s: %s", param,
                         why->message[0] ? why->message : cn_err_info(rc)->text);
}

/* Tries with more and more memory. *bytes: what was taken for it, if it is there. */
static int compile(struct srv_call *c, struct eng_grammar_in *in, uint64_t *bytes)
{
    struct cn_error why = {0};
    struct going g = {.c = c, .until_ns = cn_thread_ns() + (uint64_t)c->env->grammar_ms * 1000000u};
    bool full = true;
    int rc = CN_ELIMIT;
    in->keep_going = keep_going;
    in->arg = &g;
    in->full = &full;
    for (uint64_t n = FIRST_BYTES; full && n <= (uint64_t)c->env->grammar_bytes; n *= 2) {
        why = (struct cn_error){0};
        in->max_bytes = n / 2; /* it has two arenas of as much each */
        if ((rc = cn_account_take(c->hold.account, n + MASK_BYTES)))
            return say(c, rc, &why, false, false);
        full = false;
        *bytes = n + MASK_BYTES;
        rc = eng_grammar_compile(in, &c->grammar, &why);
        if (rc) cn_account_give(c->hold.account, *bytes);
    }
    return rc ? say(c, rc, &why, g.late, full) : 0;
}

/* Its JSON is read once more, as a tree: pays for that. Of Lark only what it may hold in %json. */
static int take_tree(struct srv_call *c, const char *text, size_t n, uint64_t *taken)
{
    size_t weight = 1;
    if (c->form.kind == ENG_GRAMMAR_REGEX || c->form.kind == ENG_GRAMMAR_GBNF) return 0;
    if (c->form.kind == ENG_GRAMMAR_LARK && !memmem(text, n, "%json", 5)) return 0;
    for (size_t i = 0; i < n; i++)
        weight += text[i] == '{' ? 8 : text[i] == '[' ? 4 : text[i] == ',' || text[i] == ':';
    if (weight > SRV_JSON_WEIGHT)
        return cn_fail_param(&c->err, CN_ELIMIT, c->form.name,
                             "%s holds too many values: " SRV_JSON_MOST, c->form.name,
                             SRV_JSON_WEIGHT);
    int rc = cn_hold_take(&c->hold, (uint64_t)weight * SRV_JSON_UNIT + n);
    if (rc) return cn_fail(&c->err, rc, "%s", cn_err_info(rc)->text);
    *taken = (uint64_t)weight * SRV_JSON_UNIT + n;
    return 0;
}

static int compile_text(struct srv_call *c, const char *text, size_t n)
{
    struct srv_grammar_key key;
    struct eng_grammar_in in = {.kind = c->form.kind,
                                .text = text,
                                .n = n,
                                .compact = c->form.compact,
                                .calls = (json_t *)c->form.calls,
                                .inputs = c->larks,
                                .reply = c->env->reply,
                                .free = c->form.free,
                                .many = c->form.many || c->p.parallel_tool_calls,
                                .vocab = c->env->vocab};
    if (c->form.kind == ENG_GRAMMAR_CALLS) in.many = c->form.many;
    uint64_t bytes = 0, tree = 0, held;
    int rc = make_key(c, text, n, &key);
    if (rc) return cn_fail(&c->err, rc, "%s", cn_err_info(rc)->text);
    c->grammar = srv_grammars_find(c->env->grammars, &key);
    if (c->grammar) return 0;
    rc = take_tree(c, text, n, &tree);
    if (!rc) rc = compile(c, &in, &bytes);
    cn_hold_give(&c->hold, tree);
    if (rc) return rc;
    held = eng_grammar_bytes(c->grammar) + MASK_BYTES;
    if (held < bytes) cn_account_give(c->hold.account, bytes - held);
    eng_grammar_paid(c->grammar, c->hold.account, CN_MIN(held, bytes));
    srv_grammars_keep(c->env->grammars, &key, c->grammar, c->hold.account);
    return 0;
}

int srv_form_compile(struct srv_call *c)
{
    const json_t *v = c->form.value;
    struct cn_buf text;
    int rc;
    if (!c->form.name) return 0;
    if (!v) return compile_text(c, "", 0);
    if (json_is_string(v)) return compile_text(c, json_string_value(v), json_string_length(v));
    cn_buf_init_for(&text, 0, c->hold.account);
    rc = add_json(&text, v);
    if (rc)
        cn_fail(&c->err, rc, "%s", cn_err_info(rc)->text);
    else
        rc = compile_text(c, text.data, text.len);
    cn_buf_fini(&text);
    return rc;
}
