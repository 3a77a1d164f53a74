/* For tests of schemas: compiles one, and asks whether a value belongs to its grammar. Values are
 * followed through the grammar's objects and arrays as values, one member after the other, which
 * has nothing in common with how the matcher goes over bytes. */
#ifndef TESTS_TEXT_SCHEMA_WALK_H
#define TESTS_TEXT_SCHEMA_WALK_H

#include "engine/text/grammar/schema.h"

/* The grammar of a schema, ready; fini it with eng_ir_fini where this returns 0. */
int walk_compile(struct eng_ir *ir, json_t *schema, const struct eng_schema_opts *opts,
                 enum eng_spelling spelling, struct cn_error *err);
/* Whether the value belongs to the grammar, its members in the order that they have. */
bool walk_has(struct eng_ir *ir, const json_t *value);
/* The value's text with a space behind each comma and colon; numbers in their shortest form. */
void walk_text(const json_t *value, struct cn_buf *out);

#endif
