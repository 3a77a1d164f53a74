/* calls: what its files share. calls.c has the forms and what stands around calls; calls_args.c has
 * their arguments, and calls_input.c those of a grammar. */
#ifndef ENGINE_TEXT_GRAMMAR_CALLS_IMPL_H
#define ENGINE_TEXT_GRAMMAR_CALLS_IMPL_H

#include "engine/text/grammar/calls.h"
#include "engine/text/reply/reply.h"

/* A line of calls.def. */
struct eng_calls_text {
    const char *form;
    enum eng_value_style style;
    bool elements; /* objects and lists are tags */
    const char *before, *call, *between, *after, *text_param, *other_param;
};

struct eng_calls_build {
    struct eng_ir *ir;
    const struct eng_calls_in *in;
    const struct eng_calls_text *t;
    struct eng_schema_opts opts;   /* of the line */
    struct cn_error *in_err, *err; /* of the whole, and of the line */
    json_t *tool, *parameters;     /* of the function that is written */
    struct eng_str name;           /* its */
    size_t index;                  /* and number */
    struct eng_tools *tools;       /* types as the readers of calls see them */
    struct eng_sym *arguments;     /* of each function as an object, in the style of `made` */
    enum eng_value_style made;
    struct eng_sym *syms; /* of the sequence that is written */
    size_t n, cap;
    unsigned depth; /* of tags */
};

/* Each returns 0, or an error: of the arena's, or with a message. */
int eng_calls_push(struct eng_calls_build *b, struct eng_sym s);
int eng_calls_markup(struct eng_calls_build *b, const char *s, size_t n);
/* A name as it is, or as the inside of a JSON string. */
int eng_calls_name(struct eng_calls_build *b, const char *name, size_t n, bool quoted);
/* The arguments as an object; as parameters, one by one. */
int eng_calls_arguments(struct eng_calls_build *b);
int eng_calls_parameters(struct eng_calls_build *b);
/* The grammar of the function's only parameter, a text; NULL: it has none. */
const json_t *eng_calls_input_of(const struct eng_calls_build *b);
/* {"its name": "a text of the grammar"}. */
int eng_calls_input(struct eng_calls_build *b, const json_t *grammar, struct eng_sym *out);
/* CN_EUNSUPP: not in this form. */
int eng_calls_no_input(struct eng_calls_build *b);
/* Texts that hold s. */
uint32_t eng_calls_holding(struct eng_rx *r, const char *s, size_t n);
/* What is wrong with the function at hand, or with one of its parameters. Returns rc. */
int eng_calls_refuse(struct eng_calls_build *b, int rc, const char *property, const char *what);

#endif
