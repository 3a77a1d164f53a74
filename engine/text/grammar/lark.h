/* lark: grammars of Lark, as llguidance documents its subset (private to engine/text).
 *
 * Rules (lower case; `start` is the whole text), terminals (upper case, not recursive), strings
 * with the flag i, /regular expressions/ with flags i s m u, ranges "a".."z", ( ) [ ] | * + ? ~n
 * ~n..m {m,n}, & and ~ in terminals, <tokens> (token.h), %json {schema}, %ignore, %import
 * common.NAME. Without effect on the language: aliases, ?rule !rule _rule, priorities, [capture].
 * Refused by name: templates, %declare %override %extend %regex %lark, other imports, and the
 * attributes lazy suffix stop max_tokens temperature.
 *
 * Which terminals are in a text is not decided by a lexer of its own: every way to read it counts,
 * as with Lark's dynamic lexer. Ignored text may precede each terminal, but may not end the text.
 */
#ifndef ENGINE_TEXT_GRAMMAR_LARK_H
#define ENGINE_TEXT_GRAMMAR_LARK_H

#include "engine/text/grammar/schema.h"
#include "engine/text/grammar/token.h"

struct eng_lark_opts {
    const struct eng_vocab *vocab;        /* may be NULL */
    const struct eng_schema_opts *schema; /* of %json; NULL where b->spelling refuses that */
};

/* As eng_gbnf_read; ir has a JSON spelling, which %json uses. With a spelling of JSON in b the
 * texts are the insides of strings. */
int eng_lark_read(struct eng_bnf *b, struct eng_ir *ir, const struct eng_lark_opts *opts,
                  struct eng_sym *out);

/* The parts that are expressions (lark_expr.c). */
struct eng_lark {
    struct eng_bnf *b;
    struct eng_source *s;
    const struct eng_lark_opts *opts;
    bool terminal; /* the definition that is being read is one of a terminal */
};
/* Passes blanks and comments; line ends, too, if `lines`. */
void eng_lark_skip(struct eng_lark *r, bool lines);
/* The name that comes next: its length, 0 without one. *terminal: it is in upper case. A name in
 * both cases fails. */
size_t eng_lark_name(struct eng_lark *r, bool *terminal);
/* Alternatives up to the end of the line, or of the parentheses. */
uint32_t eng_lark_alternatives(struct eng_lark *r, bool nested);
/* A regular expression as a node; at: its place. */
uint32_t eng_lark_pattern(struct eng_lark *r, const char *pattern, size_t n, size_t at);

#endif
