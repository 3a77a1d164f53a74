/* schema: JSON Schema (2020-12) to a grammar (private to engine/text).
 *
 * Every keyword of the core, applicator, unevaluated and validation vocabularies is enforced or
 * refused by name; annotations and unknown keywords constrain nothing. `format` is asserted.
 * `definitions`, `dependencies`, lists in `items` with `additionalItems` (older drafts) and
 * `discriminator.propertyName` (OpenAPI: the branches of a oneOf then require that property) are
 * understood as well. References stay within the document.
 *
 * How it works: a value is asked for by a set of schemas and negated schemas, the goal
 * (schema_goal.c). For each JSON type the set becomes a formula of conditions on that type alone
 * (schema_form.c). Strings and numbers turn it into one expression (schema_scalar.c). Objects and
 * arrays split it into alternatives, each a plain list of conditions (schema_split.c), which give
 * names and places goals of their own. Goals are kept once, so recursive schemas give recursive
 * rules, and negations and intersections of recursive schemas are as exact as the rest. */
#ifndef ENGINE_TEXT_GRAMMAR_SCHEMA_H
#define ENGINE_TEXT_GRAMMAR_SCHEMA_H

#include "engine/text/grammar/ir.h"

#include <jansson.h>

/* How values are written: as JSON, or in what a form of calls makes of it. */
enum eng_value_style {
    ENG_STYLE_JSON,
    ENG_STYLE_PYTHON, /* True, False and None; else JSON */
    ENG_STYLE_EITHER, /* those, or JSON's */
    ENG_STYLE_BARE,   /* Gemma's: names without quotes, strings as they are between two marks, null
                       * also as None. uniqueItems is not supported then. */
};
struct eng_schema_opts {
    enum eng_value_style style;
    /* ENG_STYLE_BARE, expressions of the grammar's: the mark, and texts that no string may hold
     * (ENG_RX_NONE: any will do). */
    uint32_t quote, barred;
    bool compact;   /* no white space between tokens; else a blank, or a line end and 40 blanks */
    bool any_order; /* members of objects in any order; else as the schema declares them */
    bool plain_formats; /* `format` is an annotation */
};

/* Builds the grammar of all JSON texts that satisfy the schema (borrowed) in ir, which was
 * initialised with a JSON spelling and nothing else; sets ir->space. *root goes to eng_ir_finish.
 * err->param: the path of the schema at fault in the document, as `properties.a.items`; "" is the
 * root. CN_EUNSUPP: a keyword, named in the message, cannot be enforced here. CN_EINVAL: not a
 * schema, or one that no value satisfies. CN_ELIMIT: too large or too complex; the message names
 * the limit. CN_ENOMEM. CN_ECANCELLED: ir->rx.keep_going said so. */
int eng_schema_compile(struct eng_ir *ir, json_t *schema, const struct eng_schema_opts *opts,
                       struct eng_sym *root, struct cn_error *err);
/* Of the values that satisfy the schema the strings, as their bare text: without quotes and
 * escapes. *out: an expression of ir->rx, ENG_RX_NONE if no string does. Errors as above, but that
 * no value satisfies the schema is none. */
int eng_schema_texts(struct eng_ir *ir, json_t *schema, const struct eng_schema_opts *opts,
                     uint32_t *out, struct cn_error *err);

#endif
