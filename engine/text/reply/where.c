/* Where a reply begins: the prompt may end inside it. */
#include "engine/text/reply/reply.h"

#include <string.h>

/* Whether the text ends in the mark, and white space. */
static bool ends_in(const char *s, size_t n, struct eng_str mark)
{
    while (n && eng_is_space(s[n - 1]))
        n--;
    return mark.n && n >= mark.n && !memcmp(s + n - mark.n, mark.p, mark.n);
}

/* Whether the text ends in the mark that opens reasoning, and white space. */
static bool ends_opening(const struct eng_reply_format *f, const char *s, size_t n)
{
    size_t skip = strlen(f->skip);
    while (skip && eng_is_space(f->skip[skip - 1]))
        skip--;
    while (n && eng_is_space(s[n - 1]))
        n--;
    if (skip && n >= skip && !memcmp(s + n - skip, f->skip, skip)) n -= skip;
    return ends_in(s, n, eng_role_text(f, ENG_R_THINK));
}

/* The end of the last occurrence of the mark; 0: it does not occur. */
static size_t last_mark(const char *s, size_t n, struct eng_str mark)
{
    if (!mark.n) return 0;
    while (n >= mark.n && memcmp(s + n - mark.n, mark.p, mark.n))
        n--;
    return n >= mark.n ? n : 0;
}

/* Whether a client's message that is continued has marks itself, and where it ends then. */
static bool has_marks(const struct eng_reply_format *f, const char *s, size_t n,
                      enum eng_reply_start *out)
{
    size_t opened = last_mark(s, n, eng_role_text(f, ENG_R_THINK)), end = n;
    size_t closed = last_mark(s, n, eng_role_text(f, ENG_R_THINK_END));
    while (end && eng_is_space(s[end - 1]))
        end--;
    if (closed >= opened)
        *out = closed && end <= closed ? ENG_REPLY_CLOSED : ENG_REPLY_ANSWER;
    else
        *out = ends_opening(f, s, n) ? ENG_REPLY_OPENED : ENG_REPLY_THOUGHT;
    return opened || closed;
}

/* Whether the template's text ends in the mark of a call. */
static bool ends_in_call(const struct eng_reply_format *f, const char *s, size_t n)
{
    return f->form && f->form->flags & ENG_F_PROMPTED &&
           ends_in(s, n, eng_role_text(f, ENG_R_CALL));
}

enum eng_reply_start eng_reply_where(const struct eng_reply_format *f, const struct eng_rendered *r,
                                     bool continued)
{
    enum eng_reply_start there, behind = ENG_REPLY_OPENED, else_there = ENG_REPLY_ANEW;
    size_t last = r->n_spans, to = r->text.len, from;

    if (!last--) return ENG_REPLY_ANEW;
    if (continued && !r->spans[last].trusted) {
        else_there = ENG_REPLY_ANSWER;
        if (f->kind != ENG_REPLY_TAGS) return else_there;
        from = last ? r->spans[last - 1].end : 0;
        if (has_marks(f, r->text.data + from, to - from, &there) || !last) return there;
        behind = ENG_REPLY_THOUGHT;
        to = from;
        last--;
    }
    from = last ? r->spans[last - 1].end : 0;
    if (f->kind != ENG_REPLY_TAGS || !r->spans[last].trusted) return else_there;
    if (else_there == ENG_REPLY_ANEW && ends_in_call(f, r->text.data + from, to - from))
        return ENG_REPLY_CALL;
    if (ends_opening(f, r->text.data + from, to - from)) return behind;
    /* Closed by the template: the answer begins, whatever the model would rather do. */
    bool closed = ends_in(r->text.data + from, to - from, eng_role_text(f, ENG_R_THINK_END));
    return closed && else_there == ENG_REPLY_ANEW ? ENG_REPLY_CLOSED : else_there;
}
