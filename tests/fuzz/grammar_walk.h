/* What the fuzz targets of grammars do: compile, follow a text, and close it. */
#ifndef TESTS_FUZZ_GRAMMAR_WALK_H
#define TESTS_FUZZ_GRAMMAR_WALK_H

#include "engine/text/grammar/grammar.h"
#include "engine/text/grammar/grammar_impl.h"
#include "engine/text/grammar/match.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_TEXT = 64, MOST_REST = 64, MATCH_BYTES = 1 << 20 };

/* From wherever the text led: some byte always leads nearer to an end, until it is one. */
static inline void close_text(struct eng_match *m)
{
    struct eng_places next = {0};
    uint32_t left = eng_match_distance(m, &m->now);
    bool known = left != UINT32_MAX && left <= MOST_REST;
    while (known && !m->code && !eng_match_accepts(m, &m->now)) {
        uint32_t nearer = UINT32_MAX;
        for (unsigned b = 0; b < 256 && nearer >= left && !m->code; b++)
            if (eng_match_step(m, &m->now, (uint8_t)b, &next))
                nearer = eng_match_distance(m, &next);
        if (m->code) break;
        cn_assert(nearer < left);
        struct eng_places old = m->now;
        m->now = next;
        next = old;
        left = nearer;
    }
    free(next.v);
}

/* The bytes up to the first NUL are a grammar, the rest is a text. */
static inline int walk_grammar(enum eng_grammar_kind kind, const uint8_t *data, size_t size)
{
    const uint8_t *nul = memchr(data, 0, size);
    size_t n = nul ? (size_t)(nul - data) : size, text_n = nul ? size - n - 1 : 0;
    struct eng_grammar_in in = {
        .kind = kind, .text = (const char *)data, .n = n, .max_bytes = 4 << 20, .max_work = 20000};
    struct eng_grammar *g = NULL;
    struct eng_match m;
    struct cn_error err = {0};
    int rc = eng_grammar_compile(&in, &g, &err);
    if (rc) {
        cn_assert(!g && err.code == rc && err.message[0]);
        return 0;
    }
    cn_assert(eng_grammar_bytes(g) > 0);
    if (!eng_match_init(&m, &g->ir, MATCH_BYTES, ENG_RX_EMPTY)) {
        size_t all = CN_MIN(text_n, (size_t)MOST_TEXT);
        size_t taken = eng_match_bytes_in(&m, nul ? (const char *)nul + 1 : "", all);
        cn_assert(taken <= all);
        if (!m.code) close_text(&m);
        eng_match_fini(&m);
    }
    eng_grammar_unref(g);
    return 0;
}

#endif
