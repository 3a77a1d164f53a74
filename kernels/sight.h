/* What a row sees of its sequence: the span of its layer's group. For every device. Pure. */
#ifndef KERNELS_SIGHT_H
#define KERNELS_SIGHT_H

#include "kernels/kernels.h"

struct kr_sight {
    enum kr_span span;
    uint32_t tokens; /* the span's */
    uint32_t end;    /* BOTH: the sequence ends before this position */
};
/* The keys that a row at pos sees: [*from, *to). Neither goes back from one row to the next. */
static inline void kr_sight_at(const struct kr_sight *s, uint32_t pos, uint64_t *from, uint64_t *to)
{
    uint64_t half = s->tokens / 2, end = (uint64_t)pos + 1;
    *from = 0;
    *to = end;
    if (s->span == KR_SPAN_WINDOW) {
        *from = end > s->tokens ? end - s->tokens : 0;
    } else if (s->span == KR_SPAN_CHUNK) {
        *from = pos - pos % s->tokens;
    } else if (s->span == KR_SPAN_BOTH) {
        *to = s->end;
        if (s->tokens && pos > half) *from = pos - half;
        if (s->tokens) *to = CN_MIN(s->end, end + half);
    }
}
static inline struct kr_sight kr_sight_of(const struct kr_kv_group *g, uint32_t end)
{
    return (struct kr_sight){.span = g->span, .tokens = g->window_tokens, .end = end};
}

#endif
