/* Lexer: finds marks in the symbols of a stream, each a byte of text or a token. Looks for those
 * alone that the stream wants at that point, so that a mark's text inside a value is text. */
#include "engine/text/reply/reply.h"

#include <string.h>

static bool wanted(const struct eng_reply_mark *m, const struct eng_wants *w)
{
    if (m->at_start && !w->at_start) return false;
    return (m->token ? w->token : w->text) >> m->role & 1;
}

/* The mark that the waiting symbols are, or -1; *more: they may become one. */
static int match(const struct eng_reply *r, const struct eng_wants *w, bool *more)
{
    const struct eng_reply_format *f = r->format;
    *more = false;
    for (size_t i = 0; i < f->n_marks; i++) {
        const struct eng_reply_mark *m = &f->marks[i];
        if (m->n_symbols < r->n_lex || !wanted(m, w)) continue;
        if (memcmp(f->symbols + m->symbols, r->lex, r->n_lex * sizeof *r->lex)) continue;
        if (m->n_symbols == r->n_lex) return (int)i;
        *more = true;
    }
    return -1;
}

/* Passes on a symbol that does not begin a mark, as its text. At the end (`all`) a token that
 * waited for the rest of a mark is dropped. */
static int put_symbol(struct eng_reply *r, uint16_t symbol, bool all, struct eng_parts *out)
{
    if (symbol < 256) return eng_stream_byte(r, (char)symbol, out);
    if (all) return 0;
    const struct eng_reply_format *f = r->format;
    const char *s = f->text + f->tokens[symbol - 256].text;
    int rc = 0;
    for (size_t i = 0; !rc && i < f->tokens[symbol - 256].n_text; i++)
        rc = eng_stream_byte(r, s[i], out);
    return rc;
}

/* Passes on what is decided; all of it if nothing follows. */
static int drain(struct eng_reply *r, bool all, struct eng_parts *out)
{
    int rc = 0;
    while (!rc && r->n_lex) {
        struct eng_wants w = eng_stream_wants(r);
        /* Of several symbols that wait, the first ones may be a mark: those are looked at alone,
         * because what is wanted after them may be something else. */
        size_t n = r->n_lex;
        bool more = true;
        int mark = -1;
        for (r->n_lex = 1; more && mark < 0 && r->n_lex <= n; r->n_lex++)
            mark = match(r, &w, &more);
        size_t used = r->n_lex - 1;
        r->n_lex = n;
        if (mark < 0 && more && !all) return 0;
        if (mark < 0) used = 1;
        uint16_t first = r->lex[0];
        r->n_lex -= used;
        memmove(r->lex, r->lex + used, r->n_lex * sizeof *r->lex);
        rc = mark >= 0 ? eng_stream_mark(r, (size_t)mark, out) : put_symbol(r, first, all, out);
    }
    return rc;
}

int eng_lex(struct eng_reply *r, uint16_t symbol, struct eng_parts *out)
{
    r->lex[r->n_lex++] = symbol;
    return drain(r, false, out);
}

int eng_lex_flush(struct eng_reply *r, struct eng_parts *out)
{
    return drain(r, true, out);
}

bool eng_lex_wants(const struct eng_reply *r, uint32_t id)
{
    const struct eng_reply_format *f = r->format;
    struct eng_wants w = eng_stream_wants(r);
    size_t token = 0;

    while (token < f->n_tokens && f->tokens[token].id != id)
        token++;
    if (token == f->n_tokens) return false;
    if (r->n_lex) return true; /* what waits may change what is wanted */
    for (size_t i = 0; i < f->n_marks; i++) {
        const struct eng_reply_mark *m = &f->marks[i];
        for (size_t k = 0; wanted(m, &w) && k < m->n_symbols; k++)
            if (f->symbols[m->symbols + k] == 256 + token) return true;
    }
    return false;
}
