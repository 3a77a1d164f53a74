#include "runtime/text_out.h"

int rt_text_out_init(struct rt_text_out *t, const struct eng_detok *detok,
                     const struct rt_stop_set *stops, bool include_stop)
{
    t->detok = *detok;
    t->stops = stops;
    t->include_stop = include_stop;
    cn_buf_init(&t->held, 0);
    return rt_stop_match_init(&t->match, stops);
}

void rt_text_out_fini(struct rt_text_out *t)
{
    rt_stop_match_fini(&t->match);
    cn_buf_fini(&t->held);
}

/* held.data[from ..] are new bytes: looks for stop strings in them and moves what is final. */
static int release(struct rt_text_out *t, size_t from, struct cn_buf *out, int *stop)
{
    size_t used = 0, final = t->held.len;
    *stop = rt_stop_feed(&t->match, t->stops, t->held.data + from, t->held.len - from, &used);
    if (*stop >= 0) {
        final = from + used;
        if (!t->include_stop) final -= t->stops->v[*stop].len;
    } else {
        final -= rt_stop_held(&t->match, t->stops);
    }
    int rc = cn_buf_append(out, t->held.data, final);
    if (rc) return rc;
    size_t rest = *stop >= 0 ? 0 : t->held.len - final;
    for (size_t i = 0; i < rest; i++)
        t->held.data[i] = t->held.data[final + i];
    t->held.len = rest;
    return 0;
}

int rt_text_out_push(struct rt_text_out *t, uint32_t id, bool match, struct cn_buf *out,
                     int *stop)
{
    size_t from = t->held.len;
    *stop = -1;
    int rc = eng_detok_push(&t->detok, id, &t->held);
    if (rc || t->held.len == from) return rc;
    if (match) return release(t, from, out, stop);
    rc = cn_buf_append(out, t->held.data, t->held.len);
    t->held.len = 0;
    return rc;
}

int rt_text_out_finish(struct rt_text_out *t, struct cn_buf *out)
{
    int rc = eng_detok_flush(&t->detok, &t->held);
    if (!rc) rc = cn_buf_append(out, t->held.data, t->held.len);
    t->held.len = 0;
    return rc;
}
