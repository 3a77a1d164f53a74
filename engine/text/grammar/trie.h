/* trie: the texts of a vocabulary's tokens as trees of bytes (private to engine/text). Made once
 * per model; immutable; any thread.
 *
 * Nodes stand in depth-first order, so that a walk over all tokens is a walk over an array: whoever
 * cannot go on by a node's byte goes to the node behind its subtree. Tokens whose bytes are whole
 * characters that may stand in a JSON string as they are (no quote, backslash or control character,
 * nor U+007F, which some grammars bar) and end no line (U+2028, U+2029) are plain: inside of a
 * string all of them up to some length are allowed at once, and only the others have to be walked
 * over. Such another token may begin with plain characters; what follows them is its tail. Where
 * plain characters change nothing, all tokens with equal tails may come, or none of them.
 *
 * A control token stands under the byte 0xFF, which is in no text, and the four bytes of its id,
 * the highest first: a grammar can ask for it like that. A user-defined token stands there, too,
 * and under its text. Tokens that end the answer, empty ones, and those with a byte 0xFF in their
 * text are not in the tree. */
#ifndef ENGINE_TEXT_GRAMMAR_TRIE_H
#define ENGINE_TEXT_GRAMMAR_TRIE_H

#include "engine/text/text.h"

enum {
    ENG_TRIE_PLAIN = 64, /* plain tokens are told apart by their number of characters below this */
    ENG_TRIE_LONG = 32,  /* bytes of the longest token that stands under its tail */
};

/* How the tree has a token that is asked for by its id. Returns 5. */
static inline size_t eng_trie_name(uint32_t id, char name[5])
{
    name[0] = (char)0xFF;
    for (int i = 0; i < 4; i++)
        name[1 + i] = (char)(id >> (24 - 8 * i));
    return 5;
}

struct eng_trie_node {
    uint32_t end;   /* the node behind this one's subtree */
    uint16_t depth; /* of its byte, from 1 */
    uint8_t byte;
    bool ends; /* tokens end here */
};
struct eng_tokens_tree {
    struct eng_trie_node *nodes;
    uint32_t *first; /* tokens that end at node i: ids[first[i]] up to ids[first[i + 1]] */
    uint32_t *ids;
    size_t n, cap, cap_first, n_ids, cap_ids;
    uint32_t deepest;
};
struct eng_plain { uint32_t id, chars; };
struct eng_trie {
    struct eng_tokens_tree all;
    struct eng_tokens_tree rest; /* those that are not plain */
    /* The same in two parts: those of at most ENG_TRIE_LONG bytes by their tails, and the others.
     */
    struct eng_tokens_tree tails, long_rest;
    uint32_t n_vocab, n_words; /* n_words: of a mask */
    /* Masks: plain tokens of at most so many characters; [0]: all plain tokens. */
    uint32_t *plain[ENG_TRIE_PLAIN];
    struct eng_plain *long_plain; /* plain tokens of ENG_TRIE_PLAIN characters and more */
    size_t n_long_plain, cap_long_plain;
    const uint32_t *eog; /* the vocabulary's */
    size_t n_eog;
};

/* The vocabulary's trees: made when they are first asked for, and freed with the vocabulary. NULL:
 * out of memory. Any thread. */
const struct eng_trie *eng_vocab_trie(const struct eng_vocab *v);
/* The longest token that a text begins with: how many bytes it has; 0: there is none. */
size_t eng_trie_longest(const struct eng_trie *t, const char *s, size_t n, uint32_t *id);
/* Takes the tokens whose texts begin with one of these bytes out of a mask. */
void eng_trie_clear(const struct eng_trie *t, uint32_t *mask, const char *bytes);
void eng_trie_free(struct eng_trie *t); /* takes NULL */

#endif
