/* Chat templates: the public face of the interpreter. A template is compiled once, is immutable and
 * may be rendered from any thread; a rendering owns its context, arena and output. The only setjmp
 * of the interpreter is here: see jinja/value.h. */
#include "engine/text/text.h"

#include "engine/text/jinja/ast.h"

#include <stdlib.h>
#include <string.h>

enum {
    COMPILE_DEPTH = 64,
    COMPILE_MEMORY = 64 << 20,
    COMPILE_SOURCE = 4 << 20,
    DEFAULT_STEPS = 500000,
    DEFAULT_DEPTH = 64,
    DEFAULT_OUTPUT = 16 << 20,
    DEFAULT_MEMORY = 64 << 20,
    DEFAULT_NS = 250000000,
};

/* ---- compiling ------------------------------------------------------------------------------- */

static int compile(struct eng_jctx *c, const char *src, size_t n, struct eng_template *t)
{
    struct eng_jtoks toks = {0};
    if (setjmp(c->jmp)) return c->code;
    eng_j_lex(c, src, n, &toks);
    eng_j_parse(c, &toks, t);
    return 0;
}

int eng_template_new(const char *src, size_t n, struct eng_template **out, struct cn_error *err)
{
    if (n > COMPILE_SOURCE)
        return cn_fail(err, CN_ETEMPLATE, "chat template: longer than %d bytes", COMPILE_SOURCE);
    struct eng_template *t = cn_calloc(1, sizeof(*t));
    if (!t) return cn_fail(err, CN_ENOMEM, "chat template: out of memory");
    struct eng_jctx *c = cn_calloc(1, sizeof(*c));
    if (!c) {
        free(t);
        return cn_fail(err, CN_ENOMEM, "chat template: out of memory");
    }
    c->err = err;
    c->max_steps = UINT64_MAX;
    c->max_depth = COMPILE_DEPTH;
    c->max_out = COMPILE_SOURCE;
    c->max_memory = COMPILE_MEMORY;
    cn_random(c->key, sizeof(c->key));
    cn_arena_init(&c->arena, COMPILE_MEMORY);
    int rc = compile(c, src, n, t);
    t->arena = c->arena;
    free(c);
    if (!rc && n) {
        t->source = (struct eng_str){cn_arena_copy(&t->arena, src, n), n};
        if (!t->source.p) rc = cn_fail(err, CN_ENOMEM, "chat template: out of memory");
    }
    if (rc) {
        eng_template_free(t);
        /* A source over the limits is the template's fault, not a request's. */
        if (rc == CN_ELIMIT) rc = CN_ETEMPLATE;
        if (err) err->code = rc;
        return rc;
    }
    rc = eng_j_probe(t);
    if (!rc) rc = eng_j_thinking(t);
    if (rc) {
        eng_template_free(t);
        return cn_fail(err, rc, "chat template: out of memory");
    }
    *out = t;
    return 0;
}

void eng_template_free(struct eng_template *t)
{
    if (!t) return;
    cn_arena_fini(&t->arena);
    free(t);
}

struct eng_str eng_template_source(const struct eng_template *t)
{
    return t->source;
}

bool eng_template_null_content(const struct eng_template *t)
{
    return t->null_content;
}

bool eng_template_text_arguments(const struct eng_template *t)
{
    return t->text_arguments;
}

bool eng_template_takes_parts(const struct eng_template *t, enum eng_role role)
{
    return t->parts[role];
}

/* ---- rendering ------------------------------------------------------------------------------- */

static void set_global(struct eng_jctx *c, const char *name, size_t n, struct eng_jv v)
{
    for (size_t i = 0; i < c->tpl->n_names; i++) {
        const struct eng_jstr *s = c->tpl->names[i].s;
        if (s->n == n && memcmp(s->p, name, n) == 0) c->globals[i] = v;
    }
}

static void set_token(struct eng_jctx *c, const char *name, struct eng_str s)
{
    if (!s.p) return;
    if (cn_utf8_valid_len(s.p, s.n) != s.n)
        eng_j_fail(c, CN_ETEMPLATE, "%s is not valid UTF-8", name);
    set_global(c, name, strlen(name), eng_jv_str(eng_j_new(c, s.p, s.n, true)));
}

static void set_json(struct eng_jctx *c, const char *name, json_t *j)
{
    struct eng_jv v = j ? eng_j_from_json(c, j) : eng_jv_none();
    set_global(c, name, strlen(name), v);
}

static bool uses(const struct eng_template *t, const char *name)
{
    for (size_t i = 0; i < t->n_names; i++)
        if (eng_j_str_is(t->names[i].s, name)) return true;
    return false;
}

bool eng_template_takes_tools(const struct eng_template *t)
{
    return uses(t, "tools");
}

static int check_kwargs(json_t *kwargs, struct cn_error *err)
{
    static const char *const own[] = {
        "messages",  "tools",     "documents", "add_generation_prompt",
        "bos_token", "eos_token", "pad_token", "unk_token"};
    if (!kwargs) return 0;
    if (!json_is_object(kwargs))
        return cn_fail_param(err, CN_ETYPE, "chat_template_kwargs", "must be an object");
    for (size_t i = 0; i < CN_ARRAY_LEN(own); i++)
        if (json_object_get(kwargs, own[i]))
            return cn_fail_param(err, CN_EINVAL, "chat_template_kwargs", "may not contain '%s'",
                                 own[i]);
    return 0;
}

static void set_variables(struct eng_jctx *c, const struct eng_template_in *in)
{
    c->globals = eng_j_alloc_n(c, c->tpl->n_names, sizeof(*c->globals));
    /* Only what the template names is converted. */
    for (void *it = in->kwargs ? json_object_iter(in->kwargs) : NULL; it;
         it = json_object_iter_next(in->kwargs, it)) {
        size_t n = json_object_iter_key_len(it);
        const char *key = json_object_iter_key(it);
        if (strlen(key) == n && uses(c->tpl, key)) set_json(c, key, json_object_iter_value(it));
    }
    if (uses(c->tpl, "messages")) set_json(c, "messages", in->messages);
    if (uses(c->tpl, "tools")) set_json(c, "tools", in->tools);
    if (uses(c->tpl, "documents")) set_json(c, "documents", in->documents);
    set_global(c, "add_generation_prompt", 21, eng_jv_bool(in->add_generation_prompt));
    set_token(c, "bos_token", in->bos_token);
    set_token(c, "eos_token", in->eos_token);
    set_token(c, "pad_token", in->pad_token);
    set_token(c, "unk_token", in->unk_token);
}

static int run(struct eng_jctx *c, const struct eng_template_in *in, struct eng_jbuf *out)
{
    if (setjmp(c->jmp)) return c->code;
    set_variables(c, in);
    c->out = out;
    eng_j_exec(c, c->tpl->root);
    return 0;
}

static void setup(struct eng_jctx *c, const struct eng_template *t,
                  const struct eng_template_in *in, struct cn_error *err)
{
    const struct eng_template_limits *l = &in->limits;
    c->err = err;
    c->tpl = t;
    c->max_steps = l->max_steps ? l->max_steps : DEFAULT_STEPS;
    c->max_depth = l->max_depth ? l->max_depth : DEFAULT_DEPTH;
    c->max_out = l->max_output_bytes ? l->max_output_bytes : DEFAULT_OUTPUT;
    c->max_memory = l->max_memory_bytes ? l->max_memory_bytes : DEFAULT_MEMORY;
    c->max_ns = l->max_ns ? l->max_ns : DEFAULT_NS;
    c->started_ns = cn_now_ns();
    c->keep_going = l->keep_going;
    c->going_arg = l->arg;
    c->now_s = in->now_s;
    cn_random(c->key, sizeof(c->key));
    cn_arena_init(&c->arena, c->max_memory);
}

int eng_j_render(const struct eng_template *t, const struct eng_template_in *in,
                 struct eng_jbudget *budget, struct eng_rendered *out, struct cn_error *err)
{
    struct eng_jctx *c = cn_calloc(1, sizeof(*c));
    if (!c) return cn_fail(err, CN_ENOMEM, "chat template: out of memory");
    setup(c, t, in, err);
    if (budget) {
        c->max_steps = budget->steps;
        c->started_ns = budget->started_ns;
    }
    struct eng_jbuf text = {.heap = true};
    int rc = run(c, in, &text);
    if (budget) budget->steps -= c->steps;
    cn_arena_fini(&c->arena);
    free(c);
    if (rc) {
        free(text.data);
        free(text.runs);
        return rc;
    }
    cn_buf_init(&out->text, 0);
    out->text.data = text.data;
    out->text.len = text.used;
    out->text.cap = text.cap;
    out->spans = text.runs;
    out->n_spans = text.n_runs;
    return 0;
}

int eng_template_render(const struct eng_template *t, const struct eng_template_in *in,
                        struct eng_rendered *out, struct cn_error *err)
{
    int rc = check_kwargs(in->kwargs, err);
    return rc ? rc : eng_j_render(t, in, NULL, out, err);
}

void eng_rendered_fini(struct eng_rendered *r)
{
    cn_buf_fini(&r->text);
    free(r->spans);
    r->spans = NULL;
    r->n_spans = 0;
}
