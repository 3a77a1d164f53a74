/* What the tests of grammars share: compiling a text, and whether a text belongs to it. */
#ifndef TESTS_TEXT_GRAMMAR_CASES_H
#define TESTS_TEXT_GRAMMAR_CASES_H

#include "engine/text/grammar/grammar.h"
#include "engine/text/grammar/grammar_impl.h"
#include "engine/text/grammar/match.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* A grammar, texts that belong to it, and texts that do not. Lists end with NULL. */
struct grammar_case {
    const char *grammar;
    const char *in[12], *out[12];
};
/* A text that is no grammar: the code, and a part of the message. */
struct bad_case {
    const char *grammar;
    int code;
    const char *message;
};

static inline struct eng_grammar *compiled(enum eng_grammar_kind kind, const char *text, size_t n,
                                           const struct eng_vocab *vocab)
{
    struct eng_grammar_in in = {.kind = kind, .text = text, .n = n, .vocab = vocab};
    struct eng_grammar *g = NULL;
    struct cn_error err = {0};
    if (eng_grammar_compile(&in, &g, &err)) {
        print_error("%.*s\n", (int)CN_MIN(n, 400u), text);
        fail_msg("%s", err.message);
    }
    return g;
}

/* How many bytes are taken; *whole: and the text may end there. */
static inline size_t taken(const struct eng_grammar *g, const char *s, size_t n, bool *whole)
{
    struct eng_match m;
    assert_int_equal(eng_match_init(&m, &g->ir, 64 << 20, ENG_RX_EMPTY), 0);
    size_t k = eng_match_bytes_in(&m, s, n);
    *whole = k == n && eng_match_accepts(&m, &m.now);
    assert_int_equal(m.code, 0);
    eng_match_fini(&m);
    return k;
}

static inline bool belongs(const struct eng_grammar *g, const char *s)
{
    bool whole;
    taken(g, s, strlen(s), &whole);
    return whole;
}

static inline void check_case(enum eng_grammar_kind kind, const struct grammar_case *c,
                              const struct eng_vocab *vocab)
{
    struct eng_grammar *g = compiled(kind, c->grammar, strlen(c->grammar), vocab);
    for (size_t i = 0; i < CN_ARRAY_LEN(c->in) && c->in[i]; i++)
        if (!belongs(g, c->in[i])) fail_msg("%s\ndoes not have the text\n%s", c->grammar, c->in[i]);
    for (size_t i = 0; i < CN_ARRAY_LEN(c->out) && c->out[i]; i++)
        if (belongs(g, c->out[i])) fail_msg("%s\nhas the text\n%s", c->grammar, c->out[i]);
    eng_grammar_unref(g);
}

static inline void check_bad(enum eng_grammar_kind kind, const char *text, size_t n, int code,
                             const char *message)
{
    struct eng_grammar_in in = {.kind = kind, .text = text, .n = n};
    struct eng_grammar *g = NULL;
    struct cn_error err = {0};
    int rc = eng_grammar_compile(&in, &g, &err);
    if (rc != code || !strstr(err.message, message))
        fail_msg("%.200s\ngives %d, %s\nwanted %d, %s", text, rc, err.message, code, message);
    assert_null(g);
    assert_int_equal(err.code, code);
}

#endif
