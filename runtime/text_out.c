#include "runtime/text_out.h"

#include <string.h>

int rt_text_out_init(struct rt_text_out *t, const struct eng_detok *detok,
                     const struct rt_stop_set *stops, bool include_stop,
                     const struct eng_reply_format *reply, const struct eng_tools *tools,
                     enum eng_reply_start start)
{
    t->detok = *detok;
    t->stops = stops;
    t->include_stop = include_stop;
    t->n_reasoning = 0;
    t->parted = reply && eng_reply_needed(reply, tools);
    if (t->parted) eng_reply_init(&t->reply, reply, tools, start);
    cn_buf_init(&t->held, 0);
    cn_buf_init(&t->piece, 0);
    eng_parts_init(&t->parts);
    return rt_stop_match_init(&t->match, stops);
}

void rt_text_out_fini(struct rt_text_out *t)
{
    rt_stop_match_fini(&t->match);
    if (t->parted) eng_reply_fini(&t->reply);
    cn_buf_fini(&t->held);
    cn_buf_fini(&t->piece);
    eng_parts_fini(&t->parts);
}

/* The first n held bytes are final. */
static int give(struct rt_text_out *t, size_t n, struct eng_parts *out)
{
    int rc = t->parted ? eng_parts_add(out, ENG_PART_CONTENT, t->held.data, n)
                       : cn_buf_append(&out->text, t->held.data, n);
    if (rc) return rc;
    for (size_t i = n; i < t->held.len; i++)
        t->held.data[i - n] = t->held.data[i];
    t->held.len -= n;
    return 0;
}

/* held.data[from ..] are new bytes: looks for stop strings in them and moves what is final. */
static int release(struct rt_text_out *t, size_t from, struct eng_parts *out, int *stop)
{
    size_t used = 0, final = t->held.len;
    *stop = rt_stop_feed(&t->match, t->stops, t->held.data + from, t->held.len - from, &used);
    if (*stop >= 0) {
        final = from + used;
        if (!t->include_stop) final -= t->stops->v[*stop].len;
    } else {
        final -= rt_stop_held(&t->match, t->stops);
    }
    int rc = give(t, final, out);
    if (*stop >= 0) t->held.len = 0;
    return rc;
}

/* A stop string never spans two parts. */
static int leave_answer(struct rt_text_out *t, struct eng_parts *out)
{
    if (t->held.len) rt_stop_match_reset(&t->match, t->stops);
    return give(t, t->held.len, out);
}

/* What the reply's format made of a token's text: looks for stop strings where it is the answer. */
static int pass_on(struct rt_text_out *t, bool match, struct eng_parts *out, int *stop)
{
    size_t at = 0;
    int rc = 0;
    for (size_t i = 0; !rc && *stop < 0 && i < t->parts.n_runs; i++) {
        const struct eng_run *run = &t->parts.runs[i];
        const char *s = t->parts.text.data + at;
        size_t n = run->end - at, from = t->held.len;
        at = run->end;
        if (run->part != ENG_PART_CONTENT) {
            rc = leave_answer(t, out);
            if (!rc) rc = eng_parts_add(out, run->part, s, n);
            continue;
        }
        rc = cn_buf_append(&t->held, s, n);
        if (!rc) rc = match ? release(t, from, out, stop) : give(t, t->held.len, out);
    }
    eng_parts_reset(&t->parts);
    return rc;
}

/* The piece's text goes through the reply's format. */
static int feed(struct rt_text_out *t)
{
    int rc = t->piece.len ? eng_reply_text(&t->reply, t->piece.data, t->piece.len, &t->parts) : 0;
    cn_buf_reset(&t->piece);
    return rc;
}

static int push_parted(struct rt_text_out *t, uint32_t id, bool match, struct eng_parts *out,
                       int *stop)
{
    bool before = eng_reply_reasons(&t->reply);
    int rc = 0;
    if (eng_reply_is_mark(&t->reply, id)) {
        rc = eng_detok_flush(&t->detok, &t->piece);
        if (!rc) rc = feed(t);
        if (!rc) rc = eng_reply_mark(&t->reply, id, &t->parts);
    } else {
        rc = eng_detok_push(&t->detok, id, &t->piece);
        if (!rc) rc = feed(t);
    }
    t->n_reasoning += before;
    return rc ? rc : pass_on(t, match, out, stop);
}

int rt_text_out_push(struct rt_text_out *t, uint32_t id, bool match, struct eng_parts *out,
                     int *stop)
{
    size_t from = t->held.len;
    *stop = -1;
    if (t->parted) return push_parted(t, id, match, out, stop);
    int rc = eng_detok_push(&t->detok, id, &t->held);
    if (rc || t->held.len == from) return rc;
    return match ? release(t, from, out, stop) : give(t, t->held.len, out);
}

int rt_text_out_finish(struct rt_text_out *t, bool cut, struct eng_parts *out)
{
    int stop = -1, rc;
    if (cut) eng_detok_drop(&t->detok);
    if (!t->parted) {
        rc = eng_detok_flush(&t->detok, &t->held);
        return rc ? rc : give(t, t->held.len, out);
    }
    rc = eng_detok_flush(&t->detok, &t->piece);
    if (!rc) rc = feed(t);
    if (!rc) rc = eng_reply_finish(&t->reply, cut, &t->parts);
    if (!rc) rc = pass_on(t, false, out, &stop);
    return rc ? rc : give(t, t->held.len, out);
}
