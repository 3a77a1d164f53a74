/* What a guide keeps of its choices, and how it follows an answer (private to engine/text). */
#ifndef ENGINE_TEXT_GRAMMAR_GUIDE_IMPL_H
#define ENGINE_TEXT_GRAMMAR_GUIDE_IMPL_H

#include "engine/text/grammar/grammar_impl.h"
#include "engine/text/grammar/guide.h"
#include "engine/text/grammar/mask.h"
#include "engine/text/grammar/seek.h"

#include <stdatomic.h>

enum eng_held_phase {
    ENG_HELD_BEFORE, /* reasoning may begin, or the answer */
    ENG_HELD_THINKS, /* in reasoning */
    ENG_HELD_ANSWERS,
};

/* Where a choice is; with drafts, where it would be. */
struct eng_spot {
    enum eng_held_phase phase;
    struct eng_reply reply;
    uint64_t n_tokens, n_thoughts;
    bool begun, marked; /* the answer has; a mark is before it, which white space belongs to */
    char blanks[16];    /* what came before it is known what begins: white space */
    uint32_t n_blanks;
    bool called; /* with `free`: the grammar holds, as it always does for whole replies */
    struct eng_seek_tail tail; /* the end of the answer's text until then */
};

struct eng_held {
    struct eng_match m;
    struct eng_masker k;
    bool made; /* m and k are */
    struct eng_spot at;
    struct eng_places drafted[3];
    struct eng_places home; /* with `free`: where the grammar begins. Scratch for whole replies */
    uint32_t *forced;
    size_t n_forced, cap_forced;
    uint32_t pending; /* of them yet to be put */
    uint64_t charged;
    bool hurried;      /* tokens that were put had to be others, or reasoning was closed, for want
                        * of tokens */
    uint64_t narrowed; /* bit k: the mask behind k drafts leaves tokens out for that */
    int code;
    uint64_t ns, n_all_forced;
    /* CPU time that the current mask or put may take, and the thread's CPU clock when that runs out
     * (0: not read yet). */
    uint64_t most_ns, until_ns;
    atomic_bool stopped; /* it is to be given up now */
};

struct eng_guide {
    struct eng_guide_in in;
    uint64_t bytes;              /* charged until it is freed: this struct, masks of its user */
    const struct eng_trie *trie; /* the vocabulary's */
    uint32_t *closing;           /* tokens that close the reasoning */
    size_t n_closing;
    struct eng_seek seek; /* with `free` */
    struct eng_held choices[];
};

/* The grammar is one of the whole reply. */
static inline bool eng_guide_whole(const struct eng_guide *g)
{
    return g->in.grammar && g->in.grammar->whole && g->in.reply;
}

/* Keeps the first code; returns it. */
static inline int eng_held_fail(struct eng_held *c, int code)
{
    if (!c->code) c->code = code;
    return c->code;
}

/* ---- following the answer (guide_follow.c) --------------------------------------------------- */

/* Goes on by a token from places to places, in `at`; false: the grammar does not allow it. */
bool eng_held_token(struct eng_guide *g, struct eng_held *c, struct eng_spot *s, uint32_t id,
                    struct eng_places *at, struct eng_places *scratch);
/* The same by bytes. Where the first one is not allowed, `at` is as it was. */
bool eng_held_bytes(struct eng_held *c, struct eng_str bytes, struct eng_places *at,
                    struct eng_places *scratch);
/* Whether the grammar asks for the token by its id. */
bool eng_held_takes(struct eng_held *c, const struct eng_places *at, uint32_t id);
/* False: no memory, and the choice has failed. */
bool eng_held_copy(struct eng_held *c, const struct eng_places *from, struct eng_places *to);
/* Whether it counts the tokens of thoughts that a grammar of the whole reply allows. */
bool eng_guide_counts(const struct eng_guide *g);

#endif
