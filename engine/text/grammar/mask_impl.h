/* What the files of mask share. */
#ifndef ENGINE_TEXT_GRAMMAR_MASK_IMPL_H
#define ENGINE_TEXT_GRAMMAR_MASK_IMPL_H

#include "engine/text/grammar/mask.h"

/* A walk over a tree of tokens (walk.c). */
struct eng_walk {
    struct eng_masker *k;
    struct eng_match *m;
    const struct eng_places *begin;
    uint32_t *mask;
    uint64_t left;  /* tokens that lead farther from the end than this are left out */
    uint32_t worst; /* farthest from the end that a token leads */
    uint32_t least; /* nearest to it, left out or not */
    uint64_t next;  /* lower bound of the way to an end of those left out; UINT64_MAX: none was */
    bool any;       /* a token was set */
    int first;      /* byte that the tokens set begin with; -1: none was set */
    bool open;      /* struct eng_mask_facts */
    bool solid;     /* tokens of white space are left out */
    struct eng_str begun; /* what has come of the lexeme, if its text is kept */
    uint32_t fresh;       /* struct eng_match: set while it walks */
    bool used;            /* the mask depends on what came before in more than what its key says */
    uint32_t near_parser, near_lexer, near; /* the distance that was asked for last */
    uint32_t free_parser, free_lexer;       /* a place that was found free */
    size_t new_end; /* nodes before this one begin a string like none that was seen */
};

/* Sets the bits of the tree's tokens that may come. m->walking is set. */
void eng_walk(struct eng_walk *w, const struct eng_tokens_tree *t);
/* Whether nothing that was seen has a string that begins like this text. False also where that is
 * not easily seen. inner: what was seen has strings within it. */
bool eng_is_new_string(const struct eng_match *m, const char *s, size_t n, bool inner);
/* Before a mask: distances that were found for another one are forgotten. */
void eng_walk_forget(struct eng_masker *k);

/* What may come in a lexer's state without a look at each token (free.c). */
struct eng_free {
    uint32_t chars; /* all plain tokens of at most so many characters; UINT32_MAX: all */
    uint32_t of;    /* the lexeme that they belong to: index into the state's */
    uint32_t more;  /* tokens that they may lead farther from the end than the state is, at most */
    bool alike;     /* plain characters change nothing but their number */
};
struct eng_free eng_free_of(struct eng_match *m, uint32_t lexer);

#endif
