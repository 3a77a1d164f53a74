/* Server-sent events (the HTML standard, "Interpreting an event stream"): lines that end with LF,
 * CR or CR LF, data lines joined by LF, an empty line ends an event. Other fields and comments are
 * passed over. */
#include "loadtest/loadtest.h"

#include <string.h>

void lt_sse_init(struct lt_sse *s)
{
    memset(s, 0, sizeof *s);
    cn_buf_init(&s->line, LT_EVENT_MAX);
    cn_buf_init(&s->data, LT_EVENT_MAX);
}

void lt_sse_fini(struct lt_sse *s)
{
    cn_buf_fini(&s->line);
    cn_buf_fini(&s->data);
}

struct feed {
    bool (*on_event)(void *, const char *, size_t);
    void *arg;
    bool stopped;
};

static int take_line(struct lt_sse *s, const char *p, size_t n, struct feed *f)
{
    if (!n) {
        if (s->has_data && !f->on_event(f->arg, s->data.data ? s->data.data : "", s->data.len))
            f->stopped = true;
        s->has_data = false;
        cn_buf_reset(&s->data);
        return CN_OK;
    }
    if (n < 4 || memcmp(p, "data", 4) || (n > 4 && p[4] != ':')) return CN_OK;
    p += CN_MIN(n, 5);
    n -= CN_MIN(n, 5);
    if (n && *p == ' ') p++, n--;
    if (s->has_data) cn_buf_putc(&s->data, '\n');
    s->has_data = true;
    cn_buf_append(&s->data, p, n);
    return s->data.failed ? CN_ELIMIT : CN_OK;
}

int lt_sse_feed(struct lt_sse *s, const char *p, size_t n,
                bool (*on_event)(void *arg, const char *data, size_t n), void *arg)
{
    struct feed f = {on_event, arg, false};
    const char *end = p + n;
    int rc = CN_OK;

    while (p < end && !rc && !f.stopped) {
        const char *start = p;

        if (s->after_cr && *p == '\n') start = ++p; /* the second half of CR LF */
        s->after_cr = false;
        while (p < end && *p != '\n' && *p != '\r')
            p++;
        if (p == end) { /* unfinished */
            cn_buf_append(&s->line, start, (size_t)(p - start));
            return s->line.failed ? CN_ELIMIT : CN_OK;
        }
        s->after_cr = *p == '\r';
        if (s->line.len) {
            cn_buf_append(&s->line, start, (size_t)(p - start));
            if (s->line.failed) return CN_ELIMIT;
            rc = take_line(s, s->line.data, s->line.len, &f);
            cn_buf_reset(&s->line);
        } else {
            rc = take_line(s, start, (size_t)(p - start), &f);
        }
        p++;
    }
    return rc;
}
