/* Vocabularies made in a test. */
#ifndef TESTS_TEXT_SMALL_VOCAB_H
#define TESTS_TEXT_SMALL_VOCAB_H

#include "engine/text/vocab_impl.h"

#include <stdlib.h>

/* A spec without optional keys. */
static inline struct eng_vocab_spec bare_spec(const char *model, const char *pre)
{
    return (struct eng_vocab_spec){.model = model,
                                   .pre = pre,
                                   .bos = -1,
                                   .eos = -1,
                                   .eot = -1,
                                   .eom = -1,
                                   .unk = -1,
                                   .sep = -1,
                                   .pad = -1,
                                   .fim_pre = -1,
                                   .fim_suf = -1,
                                   .fim_mid = -1,
                                   .fim_pad = -1,
                                   .fim_rep = -1,
                                   .fim_sep = -1,
                                   .add_bos = -1,
                                   .add_eos = -1,
                                   .add_space_prefix = -1};
}

/* Tokens with their types, appended one by one. */
struct token_list {
    struct eng_str text[1024];
    int32_t type[1024];
    float score[1024];
    size_t n;
    char blob[32768];
    size_t used;
};

static inline void add_token(struct token_list *l, const char *p, size_t n, int32_t type)
{
    if (l->n == 1024 || l->used + n > sizeof l->blob) abort();
    char *at = l->blob + l->used;
    if (n) memcpy(at, p, n);
    l->used += n;
    l->text[l->n] = (struct eng_str){at, n};
    l->type[l->n] = type;
    l->score[l->n++] = 0;
}

/* The 256 byte tokens of byte-level BPE. */
static inline void add_bytes(struct token_list *l)
{
    for (unsigned b = 0; b < 256; b++) {
        char c[4];
        add_token(l, c, cn_utf8_encode(eng_byte_char((uint8_t)b), c), ENG_TOKEN_NORMAL);
    }
}

static inline void use_tokens(struct eng_vocab_spec *s, const struct token_list *l)
{
    s->tokens = l->text;
    s->types = l->type;
    s->scores = l->score;
    s->n_tokens = l->n;
}

#endif
