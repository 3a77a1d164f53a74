/* spell: expressions of characters, texts, patterns, formats and numbers (private to engine/text).
 *
 * A constraint on a string is one on its characters; the grammar is over bytes. Everything here
 * takes a spelling (ir.h): with ENG_SPELL_JSON a character is its spelling inside a JSON
 * string (without the quotes), and each has exactly one spelling: `"` and `\` with a backslash,
 * control characters as \b \f \n \r \t or \u00xx in lower case, everything else as its UTF-8. With
 * ENG_SPELL_JSON_ANY each spelling that JSON has belongs to it, \/ and \uXXXX (either case,
 * surrogate pairs) included. So the complement of an expression within eng_spell_any* is the
 * complement of its set of strings. Lone surrogates belong to nothing.
 *
 * All are built in the arena r; failures as in rx.h. */
#ifndef ENGINE_TEXT_GRAMMAR_SPELL_H
#define ENGINE_TEXT_GRAMMAR_SPELL_H

#include "engine/text/grammar/ir.h"

struct eng_cp_range { uint32_t from, to; }; /* code points, both included */

/* One character of the ranges (ascending, disjoint; surrogates in them are left out). */
uint32_t eng_spell_class(struct eng_rx *r, enum eng_spelling s, const struct eng_cp_range *ranges,
                         size_t n);
/* Any one character. */
uint32_t eng_spell_any(struct eng_rx *r, enum eng_spelling s);
/* Exactly this text (valid UTF-8; CN_EINVAL sets r->code else). */
uint32_t eng_spell_text(struct eng_rx *r, enum eng_spelling s, const char *text, size_t n);
/* Any of n texts; beginnings in common are one. */
uint32_t eng_spell_texts(struct eng_rx *r, enum eng_spelling s, const struct eng_str *texts,
                         size_t n);
/* lo to hi characters of any kind. */
uint32_t eng_spell_length(struct eng_rx *r, enum eng_spelling s, uint32_t lo, uint32_t hi);

/* A regular expression as JSON Schema has it: ECMA-262 with the flag u, and what browsers read
 * without it (\-, [\w-.], a brace that is no quantifier). Also flags as in (?i) (?m) (?s), which
 * count up to the end of the group, or in (?i:..); (?P<name>..), \A, \z, \pL, \x{..}, \UXXXXXXXX
 * and the names of scripts in \p{..} of Rust. The meaning is ECMA-262's: \d and \w are ASCII, `.`
 * is any but the four line ends, $ is the very end unless (?m) is on, case is Unicode's simple
 * folding. Lazy quantifiers mean the same as others. Assertions (^ $ \b \B, look-ahead) may stand
 * anywhere and are exact; look-ahead within a repetition without bound is CN_EUNSUPP, as are
 * look-behind, back references, atomic and conditional groups, possessive quantifiers and the flag
 * x. Syntax errors are CN_EINVAL with the offset in bytes. CN_ELIMIT: more than 64 KiB, groups
 * nested more than 200 deep, a repetition of more than 1,000,000, more than 64 properties or 2^20
 * ranges of characters, or what r allows. Finding a property takes 3 to 20 ms, which is charged to
 * r's work.
 * whole: the pattern must match the whole text (as if in \A(?:)\z); else anywhere within it, as
 * JSON Schema's `pattern`. *out: the expression of all texts that match. It holds AND or NOT only
 * where an assertion makes them necessary. */
int eng_spell_pattern(struct eng_rx *r, enum eng_spelling s, const char *pattern, size_t n,
                      bool whole, uint32_t *out, struct cn_error *err);
/* A format of JSON Schema, asserted (format.def): date-time date time duration email idn-email
 * hostname ipv4 ipv6 uuid uri uri-reference iri iri-reference uri-template json-pointer
 * relative-json-pointer regex. CN_ENOENT: unknown; CN_EUNSUPP: idn-hostname.
 * Dates exist, from the year 1 on. Leap seconds belong to ENG_SPELL_JSON_ANY only, and only with
 * offsets of whole quarters of an hour. The length of host names is limited; the Punycode after
 * xn-- is not checked. Labels of idn-email are letters, marks and digits of any script, which
 * is more than IDNA allows. regex: what ECMA-262 shares with other languages, with groups nested at
 * most eight deep (which texts are regular expressions is not regular). */
int eng_spell_format(struct eng_rx *r, enum eng_spelling s, const char *name, size_t n,
                     uint32_t *out, struct cn_error *err);

/* ---- numbers --------------------------------------------------------------------------------- */

/* A decimal number, exactly: sign, digits without a leading zero (except in 0 itself), and how many
 * of them come after the point (scale >= 0; it may exceed n). The digits are borrowed. */
struct eng_decimal {
    bool negative;
    const char *digits;
    size_t n;
    size_t scale;
};
/* Parses JSON's text of a number, exponents too; the digits are written to room[400]. No zeros are
 * at the end of its fraction, and 0 has no sign. CN_EINVAL: not such a text; CN_ELIMIT: more than
 * 400 digits, or 400 after the point. */
int eng_decimal_parse(const char *s, size_t n, char room[400], struct eng_decimal *out);
/* <0, 0, >0 */
int eng_decimal_compare(const struct eng_decimal *a, const struct eng_decimal *b);

struct eng_number {
    bool integer;                          /* whole numbers only */
    const struct eng_decimal *min, *max;   /* NULL: none */
    bool above_min, below_max;             /* exclusive */
    const struct eng_decimal *multiple_of; /* > 0, or NULL */
};
/* JSON numbers within the bounds. Every text that belongs to the result satisfies all of them
 * exactly: there is no floating point. No leading zeros, no +. The result holds no AND and no NOT.
 * ENG_SPELL_JSON: whole numbers without a fraction where `integer`; others with an optional
 * fraction, as long as multiple_of allows, and an exponent (below 300) only where
 * nothing bounds the number (no min, max, multiple_of, integer). -0 is not written.
 * ENG_SPELL_JSON_ANY: -0 is 0, and 1.0 is an integer, too. Exponents from -20 to 20 are decided
 * exactly; those beyond belong to it where nothing can be wrong with a longer one (a number without
 * an upper bound, say). So 3e25 is not known to be a multiple of 3e25.
 * CN_ELIMIT: multiple_of has more than 14 digits without zeros at its end, or more than 39 after
 * the point (except for powers of ten); CN_EINVAL: it is not above 0. */
int eng_spell_number(struct eng_rx *r, enum eng_spelling s, const struct eng_number *number,
                     uint32_t *out, struct cn_error *err);
/* Every spelling of numbers equal to v that eng_spell_number with s gives, except for those with
 * exponents: 1 and 1.0, 1.5 and 1.50. */
uint32_t eng_spell_equal(struct eng_rx *r, enum eng_spelling s, const struct eng_decimal *v);

#endif
