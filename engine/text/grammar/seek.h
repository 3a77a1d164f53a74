/* seek: where a call begins in an answer that may be text (private to engine/text). */
#ifndef ENGINE_TEXT_GRAMMAR_SEEK_H
#define ENGINE_TEXT_GRAMMAR_SEEK_H

#include "engine/text/grammar/calls.h"

/* The marks that calls of a format begin with. */
struct eng_seek {
    const struct eng_reply_format *format;
    size_t marks[ENG_CALLS_OPENINGS], n;
};
/* The end of the text so far. */
enum { ENG_SEEK_MARK = 64 }; /* most bytes of a mark */
struct eng_seek_tail {
    char bytes[ENG_SEEK_MARK];
    uint32_t n;
};

void eng_seek_init(struct eng_seek *s, const struct eng_reply_format *f);
/* Whether the token is one of the marks. */
bool eng_seek_token(const struct eng_seek *s, uint32_t id);
/* Takes text up to the end of a mark that is not one token: how many bytes. *mark: its index among
 * the format's; n_marks: none has ended, and all of the text is taken. */
size_t eng_seek_text(const struct eng_seek *s, struct eng_seek_tail *tail, struct eng_str text,
                     size_t *mark);
/* The mark as grammars have it: tokens by their names. Returns the length. */
size_t eng_seek_bytes(const struct eng_seek *s, size_t mark, char out[5 * ENG_SEEK_MARK]);

#endif
