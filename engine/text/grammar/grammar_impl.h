/* What the files that use a compiled grammar share (private to engine/text). */
#ifndef ENGINE_TEXT_GRAMMAR_GRAMMAR_IMPL_H
#define ENGINE_TEXT_GRAMMAR_GRAMMAR_IMPL_H

#include "engine/text/grammar/mask.h"

#include <stdatomic.h>

struct eng_grammar {
    _Atomic uint32_t refs;
    struct eng_ir ir; /* finished */
    bool calls;       /* of calls and nothing else */
    bool whole;       /* of the whole reply, reasoning included */
    uint32_t lead;    /* rx: white space that an answer may begin with, after its reasoning */
    pthread_mutex_t lock;
    const struct eng_trie *trie; /* of the first choice that asked for masks */
    struct eng_masks *masks;
    struct cn_account *account; /* that paid; or NULL */
    uint64_t paid;              /* bytes */
};

/* The masks that are kept for all choices of this grammar with this vocabulary. NULL: there are
 * none, for want of memory or because another vocabulary came first. Any thread. */
struct eng_masks *eng_grammar_masks(struct eng_grammar *g, const struct eng_trie *trie);

#endif
