/* pattern: how trees become expressions (private to spell's patterns).
 *
 * Assertions look at the characters on both sides of a place, so a part of a pattern is not a
 * language by itself: it is built together with what follows it. Given the language of the rest of
 * the text, one for each kind of preceding character, the builder returns the language of the part
 * and the rest, again for each kind of preceding character.
 * An assertion about the preceding character selects among the kinds. One about the next character
 * intersects the rest with "begins with such a character"; the intersection ends with that
 * character. A part without assertions is an expression of its own, built once.
 *
 * A part that repeats without bound would need an infinite rest. There the rest is symbolic: one
 * symbol for each pair of a preceding kind and a next kind. The part becomes a matrix of languages
 * between such places (pattern_loop.c). */
#ifndef ENGINE_TEXT_GRAMMAR_PATTERN_BUILD_H
#define ENGINE_TEXT_GRAMMAR_PATTERN_BUILD_H

#include "engine/text/grammar/pattern.h"

enum {
    ENG_SIDE_EDGE = 0, /* the text's start, or its end */
    ENG_SIDE_OTHER,    /* any other character */
    ENG_SIDE_WORD,     /* of \w: if the pattern has \b */
    ENG_SIDE_LINE,     /* a line end: if the pattern has ^ or $ of lines */
    ENG_SIDES,
    ENG_REST_MOST = ENG_SIDES * ENG_SIDES,
};

/* The rest of the text; the row is the kind of the preceding character. With one column, column 0
 * is its language. With ENG_REST_MOST columns it is symbolic: column q * ENG_SIDES + f is the
 * language that leads to the place between kinds q and f. */
struct eng_rest { uint32_t x[ENG_SIDES][ENG_REST_MOST]; };

struct eng_pat_build {
    struct eng_rx *r;
    struct eng_pattern *p;
    enum eng_spelling spelling;
    unsigned columns;    /* 1, or ENG_REST_MOST within a loop */
    bool has[ENG_SIDES]; /* kinds in use; EDGE and OTHER always */
    struct eng_ranges side[ENG_SIDES];
    uint32_t side_rx[ENG_SIDES]; /* one character of the kind */
    uint32_t any;
    uint64_t steps;
    const char *problem; /* why it is not supported; NULL */
};

/* Sets *out, which is all ENG_RX_NONE, to what node and rest match together. */
void eng_pat_build(struct eng_pat_build *b, uint32_t node, const struct eng_rest *rest,
                   struct eng_rest *out);
/* The same for any number of repetitions of the node. */
void eng_pat_loop(struct eng_pat_build *b, uint32_t node, const struct eng_rest *rest,
                  struct eng_rest *out);
/* Keeps the texts of x (of this column) whose first character is of a kind in `next` (bits). The
 * empty text stays if the column's place has a next character of such a kind. */
uint32_t eng_pat_filter(struct eng_pat_build *b, uint32_t x, unsigned column, unsigned next);

#endif
