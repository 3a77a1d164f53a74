/* Private to engine/: a file's vocabulary, cut to the rows that the embedding table has. */
#ifndef ENGINE_GGUF_VOCAB_H
#define ENGINE_GGUF_VOCAB_H

#include "engine/engine.h"

/* As eng_gguf_vocab, with at most max_tokens tokens (the first ones). */
int eng_gguf_vocab_upto(const struct eng_gguf *g, size_t max_tokens, struct eng_vocab **out,
                        struct cn_error *err);

#endif
