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
/* The format's marks that its calls begin with, as indices; how many: none if there is no such
 * grammar, if it is one of the whole reply, or if calls may begin without a mark. */
enum { ENG_CALLS_OPENINGS = 4 };
size_t eng_calls_openings(const struct eng_reply_format *f, size_t marks[ENG_CALLS_OPENINGS]);
/* Appends what such a grammar reads where generation starts in the midst of a reply: the header of
 * the thoughts or of the answer that the prompt ends in. CN_ENOMEM. */
int eng_calls_head(const struct eng_reply_format *f, const struct eng_vocab *v,
                   enum eng_reply_start start, struct cn_buf *out);
/* The text that closes thoughts there; empty: there are none, or the form has no grammar of the
 * whole reply. */
struct eng_str eng_calls_think_end(const struct eng_reply_format *f);
struct eng_calls_in {
    const struct eng_reply_format *format;
    const struct eng_vocab *vocab;
    json_t *tools;
    bool many;
    bool free; /* the answer may be text instead: where calls are a grammar of the whole reply it is
                * in it; else they may begin at any of the openings */
    const json_t *inputs; /* tools whose only parameter is a text of a grammar: an object of their
                           * names with grammars of Lark; NULL: there are none */
    const struct eng_sym *answer; /* a grammar of the whole reply: what may be answered instead of
                                   * calls; NULL: nothing, or with `free` any text */
    const struct eng_schema_opts *opts;
};
/* Calls of the tools (an array of {"type": "function", "function": {"name", "parameters"}}), each
 * with arguments that satisfy its schema: one call, or with `many` one or more where the form has
 * room for them. ir was initialised with a JSON spelling and nothing else. CN_EUNSUPP: the form is
 * not known, or a keyword of a schema; else as eng_schema_compile. */
int eng_calls_compile(struct eng_ir *ir, const struct eng_calls_in *in, struct eng_sym *root,
                      struct cn_error *err);

#endif
