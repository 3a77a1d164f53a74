/* pattern: regular expressions as trees (private to spell's patterns). */
#ifndef ENGINE_TEXT_GRAMMAR_PATTERN_H
#define ENGINE_TEXT_GRAMMAR_PATTERN_H

#include "engine/text/grammar/ranges.h"

enum {
    ENG_PAT_MOST_BYTES = 64 << 10,
    ENG_PAT_MOST_DEPTH = 200,
    ENG_PAT_MOST_REPEAT = 1000000,
    ENG_PAT_MOST_RANGES = 1 << 20, /* of all classes together */
    ENG_PAT_MOST_PROPERTIES = 64,  /* different ones */
};

enum eng_pat_kind {
    ENG_PAT_EMPTY,
    ENG_PAT_CLASS, /* a: set */
    ENG_PAT_CAT,   /* kids a .. a + n */
    ENG_PAT_ALT,
    ENG_PAT_REPEAT, /* a: kid; lo, hi (ENG_RX_INF: any number), hi > 0 */
    /* Assertions: they match no text and look at the characters around the place. */
    ENG_PAT_TEXT_START,
    ENG_PAT_TEXT_END,
    ENG_PAT_LINE_START,
    ENG_PAT_LINE_END,
    ENG_PAT_WORD,
    ENG_PAT_NO_WORD,
    ENG_PAT_AHEAD, /* a: kid */
    ENG_PAT_NOT_AHEAD,
};

struct eng_pat_node {
    uint8_t kind;
    bool plain; /* no assertion in it */
    uint32_t a, n, lo, hi;
    uint32_t rx; /* of a plain one; 0: not built */
};
struct eng_pat_set {
    uint32_t first, n; /* ranges */
    uint32_t rx;       /* 0: not built */
    uint32_t folded;   /* the set that ignores case; 0: not known yet */
    uint32_t next;     /* with the same hash; 0: none */
    uint64_t hash;
};
struct eng_pat_property {
    char name[64];
    uint32_t n, set;
};

struct eng_pattern {
    struct eng_pat_node *nodes;
    uint32_t *kids;
    struct eng_cp_range *ranges; /* tidy for each set */
    struct eng_pat_set *sets;    /* set 0 is no set */
    struct eng_pat_property *properties;
    size_t n_nodes, n_kids, n_ranges, n_sets, n_properties;
    size_t cap_nodes, cap_kids, cap_ranges, cap_sets, cap_properties;
    uint32_t heads[256]; /* of sets with a hash */
    struct eng_fold fold;
    uint32_t root;
    bool words, lines; /* has \b or \B; ^ or $ of lines */
    bool folded_words; /* \b ignores case: two characters more are of words */
};

/* Parses; see eng_spell_pattern. Properties of characters are charged to r's work. */
int eng_pattern_parse(struct eng_pattern *p, struct eng_rx *r, const char *s, size_t n,
                      struct cn_error *err);
void eng_pattern_fini(struct eng_pattern *p);

/* The set of these ranges (made tidy here): equal ones are one. CN_ENOMEM, CN_ELIMIT. */
int eng_pattern_set(struct eng_pattern *p, struct eng_ranges *v, uint32_t *out);

/* \d \w \s or what `.` does not match (n); the ranges of a constant. fold: case does not matter. */
const struct eng_cp_range *eng_pattern_known(char c, bool fold, size_t *n);

#endif
