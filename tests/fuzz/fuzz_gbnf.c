/* Fuzz target of grammars in GBNF: the bytes up to the first NUL are a grammar, the rest is a
 * text. Whatever they are, compiling ends, in an error or a grammar; and from wherever the text
 * led, an end of the answer can be reached. */
#include "tests/fuzz/grammar_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return walk_grammar(ENG_GRAMMAR_GBNF, data, size);
}
