/* mask: which tokens may come next (private to engine/text). */
#ifndef ENGINE_TEXT_GRAMMAR_MASK_H
#define ENGINE_TEXT_GRAMMAR_MASK_H

#include "engine/text/grammar/match.h"
#include "engine/text/grammar/trie.h"

/* What is known of a mask beside its tokens. */
struct eng_mask_facts {
    uint64_t from, to; /* tokens left with which it is the same: with fewer it may be smaller, with
                        * more larger. to is UINT64_MAX: nothing was left out */
    bool open;         /* no byte must come next: the answer may end, or go on with two or more */
};

/* Masks that were made for the choices of one grammar, with the same vocabulary. Any thread. Only
 * so many bytes of them are kept; the oldest ones go first. */
struct eng_masks;
int eng_masks_new(size_t max_bytes, struct eng_masks **out);
void eng_masks_free(struct eng_masks *k);
/* Sets the bits of the mask that was kept under this key for so many tokens left, in one that is
 * all 0; false: there is none. */
bool eng_masks_find(struct eng_masks *k, const uint64_t key[2], uint64_t left, uint32_t *mask,
                    struct eng_mask_facts *facts);
/* n_words: of the mask, the same for all that are kept. */
void eng_masks_keep(struct eng_masks *k, const uint64_t key[2], struct eng_mask_facts facts,
                    uint32_t n_words, const uint32_t *mask);
/* Whether one that was kept under this key is open. */
bool eng_masks_open(struct eng_masks *k, const uint64_t key[2]);

/* What one choice needs to make masks: scratch, kept between calls. */
struct eng_masker {
    const struct eng_trie *trie;
    struct eng_masks *masks; /* or NULL */
    struct eng_level *levels;
    uint8_t *bytes; /* that lead to the level after each */
    size_t n_levels;
    struct eng_near *near;
    uint64_t made, found; /* masks made, and found among those that were kept */
    bool narrowed;        /* a mask left out what would not have come to an end in time */
};
int eng_masker_init(struct eng_masker *k, const struct eng_trie *t, struct eng_masks *masks);
void eng_masker_fini(struct eng_masker *k);

/* Sets in `mask` (trie->n_words words, all 0) the tokens after which the answer is still the
 * beginning of a text of the grammar, and the ends of generation where it is one. left: tokens that
 * the answer may still have: those after which no end is known within left - 1 are left out
 * (UINT64_MAX: no bound). Where that leaves none, the tokens that lead nearest to an end. Errors:
 * m->code. */
int eng_mask(struct eng_masker *k, struct eng_match *m, const struct eng_places *at, uint64_t left,
             uint32_t *mask);
/* True: no byte must come next, as a mask that was kept tells. False: that is not known. */
bool eng_mask_is_open(const struct eng_masker *k, const struct eng_match *m,
                      const struct eng_places *at);

#endif
