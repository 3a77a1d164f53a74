/* Tokens and syntax tree of chat templates (private to engine/text). The tree is built once, lives
 * in the template's arena and is never written afterwards: renderings share it across threads. */
#ifndef ENGINE_TEXT_JINJA_AST_H
#define ENGINE_TEXT_JINJA_AST_H

#include "engine/text/jinja/value.h"

enum eng_jtok_type {
    T_EOF,
    T_DATA,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_VAR_BEGIN,
    T_VAR_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_ADD,
    T_SUB,
    T_MUL,
    T_DIV,
    T_FLOORDIV,
    T_MOD,
    T_POW,
    T_TILDE,
    T_LBRACKET,
    T_RBRACKET,
    T_LPAREN,
    T_RPAREN,
    T_LBRACE,
    T_RBRACE,
    T_EQ,
    T_NE,
    T_LT,
    T_LE,
    T_GT,
    T_GE,
    T_ASSIGN,
    T_DOT,
    T_COLON,
    T_PIPE,
    T_COMMA,
    T_SEMICOLON,
};

struct eng_jtok {
    uint8_t type;
    uint32_t line;
    const char *p; /* in the normalised source; strings without their quotes */
    size_t n;
};

struct eng_jtoks {
    struct eng_jtok *v;
    size_t n, cap;
};

/* Tokens of the whole source (newlines made \n, one at the end dropped, whitespace control
 * done). */
void eng_j_lex(struct eng_jctx *c, const char *src, size_t n, struct eng_jtoks *out);

enum eng_jnode_type {
    /* expressions */
    N_CONST, /* value */
    N_NAME,  /* name */
    N_LIST,
    N_TUPLE,   /* kids */
    N_DICT,    /* kids: key, value, key, value */
    N_CHAIN,   /* a, then ops[i] kids[i]: arithmetic of one level, from left to right */
    N_COMPARE, /* a, then ops[i] kids[i]: chained comparison */
    N_CONCAT,  /* kids */
    N_AND,
    N_OR, /* kids */
    N_NOT,
    N_NEG,
    N_POS,    /* a */
    N_COND,   /* a if b else c (c may be NULL) */
    N_ATTR,   /* a . value */
    N_ITEM,   /* a [ b ] */
    N_SLICE,  /* kids 3, each may be NULL: start, stop, step; only as b of N_ITEM */
    N_CALL,   /* a ( args ) */
    N_FILTER, /* a | fn(args); a NULL: the text of a block */
    N_TEST,   /* a is fn(args) */
    /* targets */
    N_NSREF, /* name . value */
    /* statements */
    S_DATA,     /* value */
    S_OUTPUT,   /* kids */
    S_IF,       /* kids: test, block, test, block, ...; c: else block */
    S_FOR,      /* a target, b iterable, c filter; kids: body, else body (or NULL); op: recursive */
    S_SET,      /* a target, b value */
    S_SETBLOCK, /* a target, b filters (or NULL), c block */
    S_MACRO,    /* macro */
    S_CALL,     /* macro (the caller), a the call */
    S_FILTER,   /* b filters, c block */
    S_WITH,     /* kids: target, value, ...; c block */
    S_SCOPE,    /* c block: generation */
    S_BREAK,
    S_CONTINUE,
    S_BLOCK, /* kids: statements */
};

struct eng_jcallargs {
    struct eng_jnode **pos;
    size_t npos, cap_pos;
    const struct eng_jstr **kw_name;
    struct eng_jnode **kw;
    size_t nkw, cap_kw, cap_kw_name;
    struct eng_jnode *dyn, *dyn_kw; /* *args, **kwargs */
};

struct eng_jmacro_def {
    const struct eng_jstr *name; /* NULL: caller */
    uint32_t name_id;
    uint32_t *params;
    const struct eng_jstr **param_names;
    size_t n_params, cap_params, cap_names;
    struct eng_jnode **defaults; /* n_params, NULL where there is none */
    struct eng_jnode *body;
    bool uses_caller, uses_varargs, uses_kwargs;
    uint32_t id_caller, id_varargs, id_kwargs;
};

struct eng_jnode {
    uint8_t type, op;
    uint32_t line, name;
    struct eng_jnode *a, *b, *c;
    struct eng_jnode **kids;
    uint8_t *ops;
    size_t n_kids, cap_kids, cap_ops;
    struct eng_jv value;
    struct eng_jcallargs *args;
    struct eng_jmacro_def *macro;
    eng_jfn *fn;
};

struct eng_jname {
    const struct eng_jstr *s;
    eng_jfn *global;
};

struct eng_template {
    struct cn_arena arena;
    struct eng_jnode *root;
    struct eng_jname *names;
    size_t n_names;
    uint32_t id_loop;
    struct eng_str source;
    /* What eng_j_probe and eng_j_thinking learnt of it. */
    bool null_content, text_arguments;
    bool calls;              /* writes the calls and results of a conversation */
    bool parts[ENG_N_ROLES]; /* by role: takes a list of text parts as content */
    bool developer;          /* gives the role developer a meaning of its own */
    bool system;             /* takes a system message before the conversation */
    bool systems;            /* takes several, anywhere */
    bool user_after_result;  /* takes a message of the user directly after a call's result */
    const struct eng_thinking
        *thinking; /* how reasoning is switched (thinking.c); NULL: it is not */
};

/* What several renderings share. */
struct eng_jbudget {
    uint64_t steps;
    uint64_t started_ns; /* when the first of them began: limits.max_ns counts from here */
};
/* As eng_template_render, but kwargs are not checked. budget may be NULL; otherwise it replaces
 * limits.max_steps, and the steps taken are subtracted from it. */
int eng_j_render(const struct eng_template *t, const struct eng_template_in *in,
                 struct eng_jbudget *budget, struct eng_rendered *out, struct cn_error *err);
/* Learns how a compiled template takes messages (probe.c). CN_ENOMEM alone is an error. */
int eng_j_probe(struct eng_template *t);
/* Learns how reasoning is switched in it (thinking.c). Likewise. */
int eng_j_thinking(struct eng_template *t);

struct eng_jparser {
    struct eng_jctx *c;
    const struct eng_jtok *tok, *end; /* the current token; the last one is T_EOF */
    struct eng_jname *names;
    size_t n_names, cap_names;
    uint32_t *name_idx; /* open addressing, id + 1 */
    size_t n_name_idx;
    struct eng_jmacro_def *macro; /* the macro at work, or NULL */
    /* Filters and tests that do not exist: an error now, or, within an if, when they are
     * reached. */
    struct eng_jnode **unknown;
    size_t n_unknown, cap_unknown;
    bool soft;
    uint32_t loops; /* loops around the statement */
    uint32_t id_caller, id_varargs, id_kwargs;
};

void eng_j_parse(struct eng_jctx *c, const struct eng_jtoks *toks, struct eng_template *t);

/* Shared by the two halves of the parser. */
_Noreturn void eng_j_syntax(struct eng_jparser *p, const char *fmt, ...) CN_PRINTF(2, 3);
struct eng_jnode *eng_j_node(struct eng_jparser *p, enum eng_jnode_type type);
void eng_j_kid(struct eng_jparser *p, struct eng_jnode *n, struct eng_jnode *kid);
void eng_j_op_kid(struct eng_jparser *p, struct eng_jnode *n, uint8_t op, struct eng_jnode *kid);
uint32_t eng_j_name_id(struct eng_jparser *p, const char *s, size_t n);
const struct eng_jstr *eng_j_const_str(struct eng_jparser *p, const char *s, size_t n);
bool eng_j_tok_is(const struct eng_jparser *p, const char *name); /* the current token: this name */
bool eng_j_skip_name(struct eng_jparser *p, const char *name);
bool eng_j_skip(struct eng_jparser *p, enum eng_jtok_type type);
void eng_j_expect(struct eng_jparser *p, enum eng_jtok_type type);
void eng_j_deeper(struct eng_jparser *p); /* raises at the limit; undo with p->c->depth-- */
struct eng_jnode *eng_j_parse_expr(struct eng_jparser *p, bool with_cond);
/* An expression, or a tuple without parentheses, up to a tag's end or the name `stop`. */
struct eng_jnode *eng_j_parse_tuple(struct eng_jparser *p, bool with_cond, bool in_parens,
                                    const char *stop);
struct eng_jnode *eng_j_parse_target(struct eng_jparser *p, bool with_ns, const char *stop);
/* "| f | g" or, with `inline_first`, "f | g". */
struct eng_jnode *eng_j_parse_filters(struct eng_jparser *p, struct eng_jnode *a,
                                      bool inline_first);

/* ---- evaluation (eval.c, exec.c, loop.c, call.c) --------------------------------------------- */

struct eng_jvar {
    uint32_t id;
    struct eng_jv v;
};
struct eng_jscope {
    struct eng_jscope *up; /* NULL: the next one is the top scope, eng_jctx.globals */
    struct eng_jvar *v;
    size_t n, cap;
    bool captured; /* a macro was defined in it (or within): it must not be used again */
};

struct eng_jmacro {
    const struct eng_jmacro_def *def;
    struct eng_jscope *scope;
};

/* The object `loop`; also drives the loop. */
struct eng_jloop {
    const struct eng_jnode *node;
    struct eng_jscope *outer, *scope, *filter_scope;
    struct eng_jv iterable;
    struct eng_jit it;
    struct eng_jv before, current, after; /* J_ABSENT when there is none */
    struct eng_jlist *changed;
    int64_t index0, length; /* length -1: not known yet */
    uint32_t depth0;
    bool filtered; /* `it` holds only what passed the filter */
};

enum eng_jflow { J_FLOW_NEXT, J_FLOW_BREAK, J_FLOW_CONTINUE };

struct eng_jv eng_j_eval(struct eng_jctx *c, const struct eng_jnode *n);
struct eng_jargs eng_j_eval_args(struct eng_jctx *c, const struct eng_jcallargs *a,
                                 const char *fname);
enum eng_jflow eng_j_exec(struct eng_jctx *c, const struct eng_jnode *n);
void eng_j_assign(struct eng_jctx *c, const struct eng_jnode *target, struct eng_jv v);
void eng_j_set_var(struct eng_jctx *c, uint32_t id, struct eng_jv v);
struct eng_jscope *eng_j_push_scope(struct eng_jctx *c); /* returns the old one */
/* Runs a block with its output captured. */
const struct eng_jstr *eng_j_capture(struct eng_jctx *c, const struct eng_jnode *block);
struct eng_jv eng_j_call_macro(struct eng_jctx *c, struct eng_jmacro *m, const struct eng_jargs *a);
void eng_j_run_for(struct eng_jctx *c, const struct eng_jnode *n, struct eng_jv iterable,
                   uint32_t depth0, struct eng_jscope *outer);
struct eng_jv eng_j_loop_attr(struct eng_jctx *c, struct eng_jloop *l, const struct eng_jstr *name);
struct eng_jv eng_j_loop_call(struct eng_jctx *c, struct eng_jloop *l, const struct eng_jargs *a);
size_t eng_j_loop_length(struct eng_jctx *c, struct eng_jloop *l);
/* Runs the filters of a block over its text. */
struct eng_jv eng_j_apply_filters(struct eng_jctx *c, const struct eng_jnode *n, struct eng_jv v);

#endif
