/* seek: see seek.h. */
#include "engine/text/grammar/seek.h"

#include "engine/text/grammar/trie.h"
#include "engine/text/reply/reply.h"

#include <string.h>

void eng_seek_init(struct eng_seek *s, const struct eng_reply_format *f)
{
    s->format = f;
    s->n = eng_calls_openings(f, s->marks);
}

/* The token that a mark is; UINT32_MAX: it is more than one, or text. */
static uint32_t token_of(const struct eng_reply_format *f, size_t mark)
{
    const struct eng_reply_mark *m = &f->marks[mark];
    unsigned symbol = f->symbols[m->symbols];
    return m->n_symbols == 1 && symbol >= 256 ? f->tokens[symbol - 256].id : UINT32_MAX;
}

bool eng_seek_token(const struct eng_seek *s, uint32_t id)
{
    for (size_t i = 0; i < s->n; i++)
        if (token_of(s->format, s->marks[i]) == id) return true;
    return false;
}

/* The mark that the text before ends in; n_marks: it ends in none. */
static size_t mark_at_end(const struct eng_seek *s, const struct eng_seek_tail *t)
{
    for (size_t i = 0; i < s->n; i++) {
        struct eng_str mark = eng_mark_text(s->format, s->marks[i]);
        if (token_of(s->format, s->marks[i]) == UINT32_MAX && mark.n <= t->n &&
            !memcmp(t->bytes + t->n - mark.n, mark.p, mark.n))
            return s->marks[i];
    }
    return s->format->n_marks;
}

size_t eng_seek_text(const struct eng_seek *s, struct eng_seek_tail *t, struct eng_str text,
                     size_t *mark)
{
    for (size_t i = 0; i < text.n; i++) {
        if (t->n == sizeof t->bytes) memmove(t->bytes, t->bytes + 1, --t->n);
        t->bytes[t->n++] = text.p[i];
        *mark = mark_at_end(s, t);
        if (*mark != s->format->n_marks) return i + 1;
    }
    *mark = s->format->n_marks;
    return text.n;
}

size_t eng_seek_bytes(const struct eng_seek *s, size_t mark, char out[5 * ENG_SEEK_MARK])
{
    const struct eng_reply_mark *m = &s->format->marks[mark];
    size_t n = 0;
    for (size_t i = 0; i < m->n_symbols && i < ENG_SEEK_MARK; i++) {
        unsigned symbol = s->format->symbols[m->symbols + i];
        if (symbol < 256)
            out[n++] = (char)symbol;
        else
            n += eng_trie_name(s->format->tokens[symbol - 256].id, out + n);
    }
    return n;
}
