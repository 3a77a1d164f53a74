/* calls: the grammar of answers that consist of calls of tools, in the form that the model writes
 * (private to engine/text). */
#ifndef ENGINE_TEXT_GRAMMAR_CALLS_H
#define ENGINE_TEXT_GRAMMAR_CALLS_H

#include "engine/text/grammar/schema.h"
#include "engine/text/text.h"

/* Whether there is such a grammar for the form. */
bool eng_calls_known(const struct eng_reply_format *f);
/* Whether it is a grammar of the whole reply, reasoning included. */
bool eng_calls_whole(const struct eng_reply_format *f);
/* The mark that its calls begin with; empty: there is no such grammar, or calls begin without one.
 */
struct eng_str eng_calls_opening(const struct eng_reply_format *f);
struct eng_calls_in {
    const struct eng_reply_format *format;
    const struct eng_vocab *vocab;
    json_t *tools;
    bool many;
    const struct eng_schema_opts *opts;
};
/* Calls of the tools (an array of {"type": "function", "function": {"name", "parameters"}}), each
 * with arguments that satisfy its schema: one call, or with `many` one or more where the form has
 * room for them. ir was initialised with a JSON spelling and nothing else. CN_EUNSUPP: the form is
 * not known, or a keyword of a schema; else as eng_schema_compile. */
int eng_calls_compile(struct eng_ir *ir, const struct eng_calls_in *in, struct eng_sym *root,
                      struct cn_error *err);

#endif
