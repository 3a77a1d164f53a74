/* source: what the readers of grammars share: the text with its errors, and characters with
 * escapes (private to engine/text). */
#ifndef ENGINE_TEXT_GRAMMAR_SOURCE_H
#define ENGINE_TEXT_GRAMMAR_SOURCE_H

#include "engine/text/grammar/rx.h"

#define ENG_SOURCE_MAX (1u << 20) /* most bytes of a grammar */

/* A text that is being read. The first failure stays in rc and err; reading ends there. */
struct eng_source {
    const char *text;
    size_t n, at;
    struct cn_error *err;
    int rc;
    bool (*keep_going)(void *arg); /* as in struct eng_ids; may be NULL */
    void *arg;
    unsigned ticks;
};

/* CN_ELIMIT: longer than ENG_SOURCE_MAX. CN_EINVAL: not UTF-8. */
int eng_source_init(struct eng_source *s, const char *text, size_t n, struct cn_error *err);
/* Fails with "line L, column C: message" for the place `at`, unless something has failed before.
 * Columns count characters. Returns rc. */
int eng_source_fail(struct eng_source *s, size_t at, int code, const char *fmt, ...)
    CN_PRINTF(4, 5);
/* Fails with an error that has no place. */
int eng_source_stop(struct eng_source *s, int code, const char *fmt, ...) CN_PRINTF(3, 4);
/* Now and then asks keep_going; false: something has failed. */
bool eng_source_alive(struct eng_source *s);

/* The byte at a distance from the place; 0 at the end. */
static inline char eng_source_peek(const struct eng_source *s, size_t ahead)
{
    return ahead < s->n - s->at ? s->text[s->at + ahead] : 0;
}
static inline bool eng_source_done(const struct eng_source *s)
{
    return s->at >= s->n;
}
/* Whether `word` comes next. */
bool eng_source_is(const struct eng_source *s, const char *word);
/* Passes `word` if it comes next. */
bool eng_source_take(struct eng_source *s, const char *word);
/* Decimal digits; at most ENG_RX_INF - 1 (CN_ELIMIT). False: failed. */
bool eng_source_number(struct eng_source *s, uint32_t *out);
/* Bounds of a repetition after its "{": m}, m,} or m,n}, also ,n} if `open`. Blanks may
 * separate them. False: failed. */
bool eng_source_bounds(struct eng_source *s, bool open, uint32_t *lo, uint32_t *hi);
/* One character, which may be written as an escape: \n \r \t \v \f \a \b \0, \xHH \uHHHH
 * \UHHHHHHHH (code points; two halves of a surrogate pair are one), or a backslash and a
 * punctuation mark. False: failed. */
bool eng_source_char(struct eng_source *s, uint32_t *cp);
/* Appends the text of a literal up to the quote that ends it (passed); `from` is the place of the
 * opening one, for the error. */
bool eng_source_literal(struct eng_source *s, size_t from, struct cn_buf *out);

#endif
