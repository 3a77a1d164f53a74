/* What the files that parse patterns share. */
#ifndef ENGINE_TEXT_GRAMMAR_PATTERN_IMPL_H
#define ENGINE_TEXT_GRAMMAR_PATTERN_IMPL_H

#include "engine/text/grammar/pattern.h"

struct eng_pat_reader {
    struct eng_pattern *p;
    struct eng_rx *r;
    const char *s;
    size_t n, at;
    bool fold, lines, dot_all; /* flags i, m and s here */
    unsigned depth;
    uint32_t *stack; /* kids of nodes that are not complete */
    size_t n_stack, cap_stack;
    struct eng_ranges class; /* the class that is read; work space */
    int code;                /* what went wrong first */
    struct cn_error *err;
};

/* The first failure stays. */
void eng_pat_fail(struct eng_pat_reader *d, int code, size_t at, const char *fmt, ...)
    CN_PRINTF(4, 5);
void eng_pat_check(struct eng_pat_reader *d, int rc); /* CN_ENOMEM, CN_ELIMIT or 0 */

static inline bool eng_pat_more(const struct eng_pat_reader *d)
{
    return !d->code && d->at < d->n;
}
/* The next byte; 0 at the end. */
static inline char eng_pat_peek(const struct eng_pat_reader *d, size_t ahead)
{
    return d->at < d->n && d->n - d->at > ahead ? d->s[d->at + ahead] : 0;
}
/* The next character, which is passed. It is there, or something failed already. */
uint32_t eng_pat_char(struct eng_pat_reader *d);

/* After a backslash: if an escape of one character comes next, passes it and sets *cp. False:
 * another escape, or it failed. in_class: within [..]. */
bool eng_pat_escape(struct eng_pat_reader *d, bool in_class, uint32_t *cp);
/* After a backslash: \d \w \s \p{..} and their opposites are added to d->class. */
bool eng_pat_class_escape(struct eng_pat_reader *d);
/* After a [: reads the class into d->class. */
void eng_pat_class(struct eng_pat_reader *d);
/* Makes d->class a set: case is ignored where that flag is set. */
uint32_t eng_pat_class_set(struct eng_pat_reader *d, bool inverted);

#endif
