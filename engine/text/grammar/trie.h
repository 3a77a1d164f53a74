/* trie: the texts of a vocabulary's tokens as a tree of bytes (private to engine/text). Made once
 * per model; immutable; any thread.
 *
 * Nodes stand in depth-first order, so that a walk over all tokens is a walk over an array: whoever
 * cannot go on by a node's byte goes to the node behind its subtree. Tokens whose bytes are whole
 * characters that may stand in a JSON string as they are (no quote, backslash or control character)
 * are plain: inside of a string all of them up to some length are allowed at once, and only the
 * others have to be walked over.
 *
 * A control token stands under the byte 0xFF, which is in no text, and the four bytes of its id,
 * the highest first: a grammar can ask for it like that. A user-defined token stands there, too,
 * and under its text. Tokens that end the answer, empty ones, and those with a byte 0xFF in their
 * text are not in the tree. */
#ifndef ENGINE_TEXT_GRAMMAR_TRIE_H
#define ENGINE_TEXT_GRAMMAR_TRIE_H

#include "engine/text/text.h"

enum {
    ENG_TRIE_PLAIN = 64
}; /* plain tokens are told apart by their number of characters up to this */

struct eng_trie_node {
    uint32_t end;   /* the node behind this one's subtree */
    uint32_t first; /* tokens that end here: ids[first .. first + n) */
    uint16_t depth; /* of its byte, from 1 */
    uint8_t byte;
    uint8_t n;
};
struct eng_tokens_tree {
    struct eng_trie_node *nodes;
    size_t n, cap;
    uint32_t *ids;
    size_t n_ids, cap_ids;
    uint32_t deepest;
};
struct eng_trie {
    struct eng_tokens_tree all, rest;    /* rest: of all that are not plain */
    uint32_t n_vocab, n_words;           /* n_words: of a mask */
    uint32_t *plain[ENG_TRIE_PLAIN + 1]; /* masks: plain tokens of at most so many characters; the
                                          * last one: all of them */
    uint32_t longest_plain;              /* characters */
    const uint32_t *eog;                 /* the vocabulary's */
    size_t n_eog;
};

/* The vocabulary's tree: made when it is first asked for, and freed with the vocabulary. NULL: out
 * of memory. Any thread. */
const struct eng_trie *eng_vocab_trie(const struct eng_vocab *v);
/* The longest token that a text begins with: how many bytes it has; 0: there is none. */
size_t eng_trie_longest(const struct eng_trie *t, const char *s, size_t n, uint32_t *id);
/* Takes the tokens whose texts begin with one of these bytes out of a mask. */
void eng_trie_clear(const struct eng_trie *t, uint32_t *mask, const char *bytes);
void eng_trie_free(struct eng_trie *t); /* takes NULL */

#endif
