#include "tests/server/fake_stream.h"

#include <stdlib.h>

static struct fake_stream *of(struct srv_stream *s)
{
    return CN_CONTAINER(s, struct fake_stream, base);
}

static void op_flush(struct srv_stream *s)
{
    cn_assert(!of(s)->closed);
}

static void op_read(struct srv_stream *s, bool on)
{
    of(s)->reading = on;
}

static void op_shutdown(struct srv_stream *s)
{
    of(s)->shut = true;
}

static void op_close(struct srv_stream *s, bool reset)
{
    cn_assert(!of(s)->closed);
    of(s)->closing = true;
    of(s)->reset |= reset;
}

static size_t op_unsent(const struct srv_stream *s)
{
    return s->out.len;
}

static const struct srv_stream_ops ops = {op_flush, op_read, op_shutdown, op_close, op_unsent};

struct fake_stream *fake_new(void)
{
    struct fake_stream *f = calloc(1, sizeof *f);
    cn_assert(f);
    f->base.ops = &ops;
    f->window = SIZE_MAX;
    cn_buf_init(&f->base.out, 0);
    cn_buf_init(&f->sent, 0);
    return f;
}

void fake_free(struct fake_stream *f)
{
    if (!f) return;
    cn_assert(f->closed || !f->base.events);
    cn_buf_fini(&f->base.out);
    cn_buf_fini(&f->sent);
    free(f);
}

void fake_feed(struct fake_stream *f, const void *p, size_t n)
{
    if (f->closing || !f->reading || !n) return;
    /* A copy of the exact size: reading past its end is seen by the sanitizers. */
    char *copy = malloc(n);
    cn_assert(copy);
    for (size_t i = 0; i < n; i++)
        copy[i] = ((const char *)p)[i];
    f->base.events->on_read(f->base.owner, copy, n);
    free(copy);
}

void fake_eof(struct fake_stream *f)
{
    if (!f->closing) f->base.events->on_eof(f->base.owner);
}

void fake_fail(struct fake_stream *f)
{
    if (!f->closing) f->base.events->on_fail(f->base.owner);
}

void fake_turn(struct fake_stream *f)
{
    struct cn_buf *out = &f->base.out;

    if (f->closed) return;
    if (!f->closing && out->len) {
        size_t n = CN_MIN(out->len, f->window);
        cn_buf_append(&f->sent, out->data, n);
        for (size_t i = n; i < out->len; i++)
            out->data[i - n] = out->data[i];
        out->len -= n;
        if (!out->len) f->base.events->on_sent(f->base.owner);
    }
    if (f->closing) {
        f->closed = true;
        f->base.events->on_closed(f->base.owner);
    }
}
