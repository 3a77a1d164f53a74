/* The form that a request wants its answer in: which field asks for it, and the grammar it becomes.
 * Worker threads. */
#ifndef SERVER_FORM_H
#define SERVER_FORM_H

#include "engine/text/text.h"

struct srv_call;

/* What a request asks for. */
struct srv_form {
    const char *name; /* the field, with its path; NULL: any answer will do */
    enum eng_grammar_kind kind;
    const json_t *value; /* borrowed from the body; NULL with ENG_GRAMMAR_JSON_OBJECT */
    bool compact;        /* no white space between tokens of JSON */
    bool many;           /* ENG_GRAMMAR_CALLS: one call or more */
    bool free;           /* ENG_GRAMMAR_CALLS: or none, and text before them */
    const json_t *calls; /* tools that may be called instead; NULL: none */
};
/* Reads response_format, structured_outputs and the fields of other servers (params.def). At most
 * one of them may ask for a form. CN_EINVAL, CN_ETYPE and CN_EUNSUPP name the field. */
int srv_form_read(struct srv_form *out, const json_t *body, struct cn_error *err);
/* The grammar of c's form, compiled or found among those kept: c->grammar. Sets c->err. */
int srv_form_compile(struct srv_call *c);

#endif
