/* token: tokens of the vocabulary in a grammar's text (private to engine/text).
 *
 * A control token in a grammar is the byte 0xFF and the four bytes of its id, the highest first:
 * never part of a text in UTF-8. A token that is not a control token stands for its text. */
#ifndef ENGINE_TEXT_GRAMMAR_TOKEN_H
#define ENGINE_TEXT_GRAMMAR_TOKEN_H

#include "engine/text/grammar/bnf.h"

enum { ENG_TOKEN_MARK = 0xFF, ENG_TOKEN_BYTES = 5 };

/* Reads <text>, <[id]> or, with `lists`, <[id-id,id]> and <[^...]>, and makes it a node
 * (ENG_BNF_TOKENS where negated); a preceding "!" of GBNF has been passed if `negated`. By text
 * only where vocab is not NULL; without it all ids are control tokens. */
uint32_t eng_token_node(struct eng_bnf *b, const struct eng_vocab *vocab, bool lists, bool negated);

#endif
