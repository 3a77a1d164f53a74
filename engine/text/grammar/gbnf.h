/* gbnf: grammars of llama.cpp (private to engine/text).
 *
 * Rules `name ::= alternatives`; `root` is the whole text. Literals "..", classes [..] and [^..],
 * `.` (any character), ( ), |, * + ? {m} {m,} {m,n}, comments from # to the line's end, tokens
 * <text> <[id]>, and any number of others: !<text>* (token.h). Of XGrammar's dialect: _ in names,
 * \d \w \s \D \W \S in classes, and a sequence may continue on the next line. */
#ifndef ENGINE_TEXT_GRAMMAR_GBNF_H
#define ENGINE_TEXT_GRAMMAR_GBNF_H

#include "engine/text/grammar/token.h"

/* Adds the grammar to ir (RAW); *out: its symbol. b->src is filled by eng_source_init; b needs
 * nothing else. vocab may be NULL. Errors: CN_EINVAL, CN_EUNSUPP and CN_ELIMIT, with line and
 * column where there is one; CN_ENOMEM, CN_ECANCELLED. */
int eng_gbnf_read(struct eng_bnf *b, struct eng_ir *ir, const struct eng_vocab *vocab,
                  struct eng_sym *out);

#endif
