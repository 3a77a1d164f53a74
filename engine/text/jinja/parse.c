/* Parser of chat templates, statements. Works on the template's own context; the tree it leaves is
 * never changed again. */
#include "engine/text/jinja/ast.h"

#include <stdio.h>
#include <string.h>

static struct eng_jnode *parse_block(struct eng_jparser *p, const char *const *ends);

_Noreturn void eng_j_syntax(struct eng_jparser *p, const char *fmt, ...)
{
    char text[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    p->c->line = p->tok->line;
    if (p->tok->type == T_EOF) eng_j_raise(p->c, "%s, at the end of the template", text);
    const struct eng_jstr near = {.p = p->tok->p, .n = p->tok->n};
    eng_j_raise(p->c, "%s, near '%s'", text, eng_j_quote(p->c, &near));
}

struct eng_jnode *eng_j_node(struct eng_jparser *p, enum eng_jnode_type type)
{
    struct eng_jnode *n = eng_j_alloc(p->c, sizeof(*n));
    n->type = (uint8_t)type;
    n->line = p->tok->line;
    return n;
}

void eng_j_kid(struct eng_jparser *p, struct eng_jnode *n, struct eng_jnode *kid)
{
    n->kids = eng_j_room(p->c, n->kids, n->n_kids, &n->cap_kids, sizeof(*n->kids));
    n->kids[n->n_kids++] = kid;
}

void eng_j_op_kid(struct eng_jparser *p, struct eng_jnode *n, uint8_t op, struct eng_jnode *kid)
{
    n->ops = eng_j_room(p->c, n->ops, n->n_kids, &n->cap_ops, 1);
    n->ops[n->n_kids] = op;
    eng_j_kid(p, n, kid);
}

const struct eng_jstr *eng_j_const_str(struct eng_jparser *p, const char *s, size_t n)
{
    struct eng_jstr *r = (struct eng_jstr *)eng_j_new(p->c, s, n, true);
    r->buf = NULL;
    eng_j_cps(r); /* counted now: constants are shared by threads */
    return r;
}

/* Ids of variables; a hash table, since a template may name many. */
uint32_t eng_j_name_id(struct eng_jparser *p, const char *s, size_t n)
{
    if (p->n_names * 2 >= p->n_name_idx) {
        p->n_name_idx = p->n_name_idx ? p->n_name_idx * 2 : 64;
        p->name_idx = eng_j_alloc_n(p->c, p->n_name_idx, sizeof(*p->name_idx));
        for (size_t i = 0; i < p->n_names; i++) {
            const struct eng_jstr *z = p->names[i].s;
            size_t h = cn_siphash13(p->c->key, z->p, z->n) & (p->n_name_idx - 1);
            while (p->name_idx[h])
                h = (h + 1) & (p->n_name_idx - 1);
            p->name_idx[h] = (uint32_t)i + 1;
        }
    }
    size_t h = cn_siphash13(p->c->key, s, n) & (p->n_name_idx - 1);
    for (; p->name_idx[h]; h = (h + 1) & (p->n_name_idx - 1)) {
        const struct eng_jstr *z = p->names[p->name_idx[h] - 1].s;
        if (z->n == n && memcmp(z->p, s, n) == 0) return p->name_idx[h] - 1;
    }
    p->names = eng_j_room(p->c, p->names, p->n_names, &p->cap_names, sizeof(*p->names));
    p->names[p->n_names] =
        (struct eng_jname){.s = eng_j_const_str(p, s, n), .global = eng_j_find_global(s, n)};
    p->name_idx[h] = (uint32_t)++p->n_names;
    return (uint32_t)p->n_names - 1;
}

bool eng_j_tok_is(const struct eng_jparser *p, const char *name)
{
    return p->tok->type == T_NAME && p->tok->n == strlen(name) &&
           memcmp(p->tok->p, name, p->tok->n) == 0;
}

bool eng_j_skip_name(struct eng_jparser *p, const char *name)
{
    if (!eng_j_tok_is(p, name)) return false;
    p->tok++;
    return true;
}

bool eng_j_skip(struct eng_jparser *p, enum eng_jtok_type type)
{
    if (p->tok->type != type || type == T_EOF) return false;
    p->tok++;
    return true;
}

void eng_j_expect(struct eng_jparser *p, enum eng_jtok_type type)
{
    static const char *const names[] = {[T_BLOCK_END] = "the end of the tag",
                                        [T_VAR_END] = "the end of the tag",
                                        [T_LPAREN] = "'('",
                                        [T_RPAREN] = "')'",
                                        [T_RBRACKET] = "']'",
                                        [T_COMMA] = "','",
                                        [T_COLON] = "':'",
                                        [T_ASSIGN] = "'='",
                                        [T_SEMICOLON] = NULL};
    if (!eng_j_skip(p, type))
        eng_j_syntax(p, "expected %s", names[type] ? names[type] : "something else");
}

void eng_j_deeper(struct eng_jparser *p)
{
    if (++p->c->depth > p->c->max_depth) {
        p->c->line = p->tok->line;
        eng_j_fail(p->c, CN_ELIMIT, "nested too deeply at line %u", p->tok->line);
    }
}

/* ---- statements ------------------------------------------------------------------------------ */

/* A body that ends at one of the names `ends`, whose token is then the current one. */
static struct eng_jnode *parse_body(struct eng_jparser *p, const char *const *ends)
{
    eng_j_skip(p, T_COLON);
    eng_j_expect(p, T_BLOCK_END);
    struct eng_jnode *n = parse_block(p, ends);
    if (p->tok->type == T_EOF) eng_j_syntax(p, "missing %s", ends[0]);
    return n;
}

static struct eng_jnode *parse_whole_body(struct eng_jparser *p, const char *end)
{
    struct eng_jnode *n = parse_body(p, (const char *const[]){end, NULL});
    p->tok++;
    return n;
}

static struct eng_jnode *parse_if(struct eng_jparser *p)
{
    static const char *const ends[] = {"endif", "elif", "else", NULL};
    struct eng_jnode *n = eng_j_node(p, S_IF);
    p->tok++;
    size_t unknown = p->n_unknown;
    for (;;) {
        eng_j_kid(p, n, eng_j_parse_tuple(p, false, false, NULL));
        eng_j_kid(p, n, parse_body(p, ends));
        if (eng_j_skip_name(p, "elif")) continue;
        if (eng_j_skip_name(p, "else"))
            n->c = parse_whole_body(p, "endif");
        else
            p->tok++;
        /* Within an if unknown filters fail when they are reached; loops and macros inside it
         * have reported theirs already (parse_strict). */
        p->n_unknown = unknown;
        return n;
    }
}

static void report_unknown(struct eng_jparser *p, size_t from)
{
    if (p->n_unknown <= from) return;
    const struct eng_jnode *n = p->unknown[from];
    p->c->line = n->line;
    eng_j_raise(p->c, "no %s named '%s'", n->type == N_TEST ? "test" : "filter",
                eng_j_quote(p->c, n->value.s));
}

static struct eng_jnode *parse_for(struct eng_jparser *p)
{
    struct eng_jnode *n = eng_j_node(p, S_FOR);
    p->tok++;
    size_t unknown = p->n_unknown;
    n->a = eng_j_parse_target(p, false, "in");
    if (!eng_j_skip_name(p, "in")) eng_j_syntax(p, "expected 'in'");
    n->b = eng_j_parse_tuple(p, false, false, "recursive");
    if (eng_j_skip_name(p, "if")) n->c = eng_j_parse_expr(p, true);
    n->op = eng_j_skip_name(p, "recursive");
    p->loops++;
    struct eng_jnode *body = parse_body(p, (const char *const[]){"endfor", "else", NULL});
    p->loops--;
    eng_j_kid(p, n, body);
    eng_j_kid(p, n, NULL);
    if (eng_j_skip_name(p, "endfor")) {
        report_unknown(p, unknown);
        return n;
    }
    p->tok++;
    n->kids[1] = parse_whole_body(p, "endfor");
    report_unknown(p, unknown);
    return n;
}

static struct eng_jnode *parse_set(struct eng_jparser *p)
{
    struct eng_jnode *n = eng_j_node(p, S_SET);
    p->tok++;
    n->a = eng_j_parse_target(p, true, NULL);
    if (eng_j_skip(p, T_ASSIGN)) {
        n->b = eng_j_parse_tuple(p, true, false, NULL);
        return n;
    }
    n->type = S_SETBLOCK;
    n->b = eng_j_parse_filters(p, NULL, false);
    n->c = parse_whole_body(p, "endset");
    return n;
}

static void add_param(struct eng_jparser *p, struct eng_jmacro_def *m, struct eng_jnode ***defaults)
{
    if (p->tok->type != T_NAME) eng_j_syntax(p, "expected the name of a parameter");
    size_t cap = m->cap_params;
    m->params = eng_j_room(p->c, m->params, m->n_params, &cap, sizeof(*m->params));
    *defaults = eng_j_room(p->c, *defaults, m->n_params, &m->cap_params, sizeof(**defaults));
    m->param_names =
        eng_j_room(p->c, m->param_names, m->n_params, &m->cap_names, sizeof(*m->param_names));
    m->params[m->n_params] = eng_j_name_id(p, p->tok->p, p->tok->n);
    m->param_names[m->n_params] = eng_j_const_str(p, p->tok->p, p->tok->n);
    (*defaults)[m->n_params] = NULL;
    p->tok++;
    if (eng_j_skip(p, T_ASSIGN))
        (*defaults)[m->n_params] = eng_j_parse_expr(p, true);
    else if (m->n_params && (*defaults)[m->n_params - 1])
        eng_j_syntax(p, "a parameter without a default follows one with a default");
    m->n_params++;
}

static void parse_signature(struct eng_jparser *p, struct eng_jmacro_def *m)
{
    eng_j_expect(p, T_LPAREN);
    while (p->tok->type != T_RPAREN) {
        if (m->n_params) eng_j_expect(p, T_COMMA);
        add_param(p, m, &m->defaults);
    }
    p->tok++;
}

static struct eng_jmacro_def *new_macro(struct eng_jparser *p)
{
    struct eng_jmacro_def *m = eng_j_alloc(p->c, sizeof(*m));
    m->id_caller = p->id_caller;
    m->id_varargs = p->id_varargs;
    m->id_kwargs = p->id_kwargs;
    return m;
}

static void macro_body(struct eng_jparser *p, struct eng_jmacro_def *m, const char *end)
{
    uint32_t loops = p->loops;
    size_t unknown = p->n_unknown;
    struct eng_jmacro_def *outer = p->macro;
    p->loops = 0;
    p->macro = m;
    m->body = parse_whole_body(p, end);
    p->macro = outer;
    p->loops = loops;
    report_unknown(p, unknown);
}

static struct eng_jnode *parse_macro(struct eng_jparser *p)
{
    struct eng_jnode *n = eng_j_node(p, S_MACRO);
    p->tok++;
    n->macro = new_macro(p);
    if (p->tok->type != T_NAME) eng_j_syntax(p, "expected the name of the macro");
    n->macro->name = eng_j_const_str(p, p->tok->p, p->tok->n);
    n->macro->name_id = eng_j_name_id(p, p->tok->p, p->tok->n);
    p->tok++;
    parse_signature(p, n->macro);
    macro_body(p, n->macro, "endmacro");
    return n;
}

static struct eng_jnode *parse_call_block(struct eng_jparser *p)
{
    struct eng_jnode *n = eng_j_node(p, S_CALL);
    p->tok++;
    n->macro = new_macro(p);
    n->macro->name = eng_j_const_str(p, "caller", 6);
    if (p->tok->type == T_LPAREN) parse_signature(p, n->macro);
    n->a = eng_j_parse_expr(p, true);
    if (n->a->type != N_CALL) eng_j_syntax(p, "expected a call");
    macro_body(p, n->macro, "endcall");
    return n;
}

static struct eng_jnode *parse_with(struct eng_jparser *p)
{
    struct eng_jnode *n = eng_j_node(p, S_WITH);
    p->tok++;
    while (p->tok->type != T_BLOCK_END) {
        if (n->n_kids) eng_j_expect(p, T_COMMA);
        /* A target here is one name: a comma begins the next assignment. */
        if (p->tok->type != T_NAME) eng_j_syntax(p, "expected a name to assign to");
        struct eng_jnode *target = eng_j_node(p, N_NAME);
        target->name = eng_j_name_id(p, p->tok->p, p->tok->n);
        p->tok++;
        eng_j_kid(p, n, target);
        eng_j_expect(p, T_ASSIGN);
        eng_j_kid(p, n, eng_j_parse_expr(p, true));
    }
    size_t unknown = p->n_unknown;
    n->c = parse_whole_body(p, "endwith");
    report_unknown(p, unknown);
    return n;
}

static struct eng_jnode *parse_loop_control(struct eng_jparser *p)
{
    struct eng_jnode *n = eng_j_node(p, eng_j_tok_is(p, "break") ? S_BREAK : S_CONTINUE);
    if (!p->loops) eng_j_syntax(p, "outside of a loop");
    p->tok++;
    return n;
}

static struct eng_jnode *parse_print(struct eng_jparser *p)
{
    struct eng_jnode *n = eng_j_node(p, S_OUTPUT);
    p->tok++;
    while (p->tok->type != T_BLOCK_END) {
        if (n->n_kids) eng_j_expect(p, T_COMMA);
        eng_j_kid(p, n, eng_j_parse_expr(p, true));
    }
    return n;
}

static struct eng_jnode *parse_statement(struct eng_jparser *p)
{
    struct eng_jnode *n;
    size_t unknown = p->n_unknown;
    if (eng_j_tok_is(p, "if")) return parse_if(p);
    if (eng_j_tok_is(p, "for")) return parse_for(p);
    if (eng_j_tok_is(p, "set")) return parse_set(p);
    if (eng_j_tok_is(p, "macro")) return parse_macro(p);
    if (eng_j_tok_is(p, "call")) return parse_call_block(p);
    if (eng_j_tok_is(p, "with")) return parse_with(p);
    if (eng_j_tok_is(p, "print")) return parse_print(p);
    if (eng_j_tok_is(p, "break") || eng_j_tok_is(p, "continue")) return parse_loop_control(p);
    if (eng_j_tok_is(p, "filter")) {
        n = eng_j_node(p, S_FILTER);
        p->tok++;
        n->b = eng_j_parse_filters(p, NULL, true);
        n->c = parse_whole_body(p, "endfilter");
        report_unknown(p, unknown);
        return n;
    }
    if (eng_j_tok_is(p, "generation")) {
        n = eng_j_node(p, S_SCOPE);
        p->tok++;
        uint32_t loops = p->loops;
        p->loops = 0;
        n->c = parse_whole_body(p, "endgeneration");
        p->loops = loops;
        report_unknown(p, unknown);
        return n;
    }
    static const char *const refused[] = {"include", "import", "from",
                                          "extends", "block",  "autoescape"};
    for (size_t i = 0; i < CN_ARRAY_LEN(refused); i++)
        if (eng_j_tok_is(p, refused[i]))
            eng_j_syntax(p, "the tag '%s' is not supported in chat templates", refused[i]);
    eng_j_syntax(p, p->tok->type == T_NAME ? "unknown tag" : "expected the name of a tag");
}

static bool at_end(const struct eng_jparser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (eng_j_tok_is(p, *ends)) return true;
    return false;
}

static struct eng_jnode *parse_block(struct eng_jparser *p, const char *const *ends)
{
    struct eng_jnode *n = eng_j_node(p, S_BLOCK);
    eng_j_deeper(p);
    while (p->tok->type != T_EOF) {
        if (p->tok->type == T_DATA) {
            struct eng_jnode *d = eng_j_node(p, S_DATA);
            d->value = eng_jv_str(eng_j_const_str(p, p->tok->p, p->tok->n));
            p->tok++;
            eng_j_kid(p, n, d);
        } else if (p->tok->type == T_VAR_BEGIN) {
            struct eng_jnode *d = eng_j_node(p, S_OUTPUT);
            p->tok++;
            eng_j_kid(p, d, eng_j_parse_tuple(p, true, false, NULL));
            eng_j_expect(p, T_VAR_END);
            eng_j_kid(p, n, d);
        } else {
            eng_j_expect(p, T_BLOCK_BEGIN);
            if (at_end(p, ends)) break;
            eng_j_kid(p, n, parse_statement(p));
            eng_j_expect(p, T_BLOCK_END);
        }
    }
    p->c->depth--;
    return n;
}

void eng_j_parse(struct eng_jctx *c, const struct eng_jtoks *toks, struct eng_template *t)
{
    struct eng_jparser p = {.c = c, .tok = toks->v, .end = toks->v + toks->n};
    p.id_caller = eng_j_name_id(&p, "caller", 6);
    p.id_varargs = eng_j_name_id(&p, "varargs", 7);
    p.id_kwargs = eng_j_name_id(&p, "kwargs", 6);
    t->id_loop = eng_j_name_id(&p, "loop", 4);
    t->root = parse_block(&p, NULL);
    report_unknown(&p, 0);
    t->names = p.names;
    t->n_names = p.n_names;
}
