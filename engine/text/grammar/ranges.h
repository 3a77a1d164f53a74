/* ranges: sets of code points (private to engine/text's patterns). */
#ifndef ENGINE_TEXT_GRAMMAR_RANGES_H
#define ENGINE_TEXT_GRAMMAR_RANGES_H

#include "engine/text/grammar/spell.h"

#define ENG_CP_MOST 0x10FFFFu

/* Ascending and disjoint after eng_ranges_tidy. Functions that may need memory return CN_ENOMEM. */
struct eng_ranges {
    struct eng_cp_range *v;
    size_t n, cap;
};
void eng_ranges_fini(struct eng_ranges *r);
int eng_ranges_add(struct eng_ranges *r, uint32_t from, uint32_t to);
int eng_ranges_add_all(struct eng_ranges *r, const struct eng_cp_range *v, size_t n);
void eng_ranges_tidy(struct eng_ranges *r);
/* Of tidy ranges: all other code points, tidy. */
int eng_ranges_invert(struct eng_ranges *r);
/* Appends what two tidy lists have in common. */
int eng_ranges_common(struct eng_ranges *out, const struct eng_cp_range *a, size_t n_a,
                      const struct eng_cp_range *b, size_t n_b);
bool eng_ranges_has(const struct eng_cp_range *v, size_t n, uint32_t cp);

/* Characters that differ in case only: Unicode's simple case folding. A pair is a code point and
 * its folding; the pairs are sorted by folding, and each folding has a pair with itself. */
struct eng_fold {
    struct eng_fold_pair { uint32_t to, cp; } *pairs;
    size_t n, cap;
};
int eng_fold_init(struct eng_fold *f);
void eng_fold_fini(struct eng_fold *f);
/* Adds to tidy ranges every character that differs from one of them in case only; tidy again. */
int eng_fold_close(const struct eng_fold *f, struct eng_ranges *r);

/* The characters of a property of Unicode, as \p{name} has it: a general category, a script
 * (Script=, sc=, Script_Extensions=, scx=; a script's name alone is Script=), a binary property,
 * Any, Assigned, ASCII. Case, blanks, - and _ in names do not matter. Tidy; 3 to 20 ms. CN_EINVAL:
 * unknown; CN_EUNSUPP: not known to this PCRE2; CN_ENOMEM. */
int eng_ranges_property(struct eng_ranges *out, const char *name, size_t n, struct cn_error *err);

#endif
