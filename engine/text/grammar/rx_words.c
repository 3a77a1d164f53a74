/* rx: many literals as one expression, in which beginnings that they share are one. See rx.h. */
#include "engine/text/grammar/rx_impl.h"

#include <stdlib.h>

enum { MOST_SHARED = 500 }; /* nested beginnings; beyond, literals stand beside each other */

static int by_bytes(const void *a, const void *b)
{
    const struct eng_str *x = a, *y = b;
    int c = memcmp(x->p, y->p, CN_MIN(x->n, y->n));
    return c ? c : x->n < y->n ? -1 : x->n > y->n;
}

static size_t shared(const struct eng_str *a, const struct eng_str *b, size_t from)
{
    size_t n = CN_MIN(a->n, b->n);
    while (from < n && a->p[from] == b->p[from])
        from++;
    return from;
}

/* Of sorted words whose first `skip` bytes are the same. */
static uint32_t tree(struct eng_rx *r, const struct eng_str *w, size_t n, size_t skip,
                     unsigned depth)
{
    size_t to = shared(&w[0], &w[n - 1], skip), begin = 0, n_parts = 0;
    uint32_t *part, out;
    if (n == 1) return eng_rx_literal(r, w->p + skip, w->n - skip);
    part = cn_malloc_array(CN_MIN(n, (size_t)257) + (depth > MOST_SHARED ? n : 0), sizeof *part);
    if (!part) return eng_rx_fail(r, CN_ENOMEM);
    while (begin < n && !r->code) {
        size_t end = begin + 1;
        bool ends = w[begin].n == to;
        if (depth <= MOST_SHARED)
            while (end < n && !ends && w[end].n > to && w[end].p[to] == w[begin].p[to])
                end++;
        while (ends && end < n && w[end].n == to)
            end++; /* the same word again */
        part[n_parts++] = ends ? ENG_RX_EMPTY : tree(r, w + begin, end - begin, to, depth + 1);
        begin = end;
    }
    out = eng_rx_cat(r, eng_rx_literal(r, w->p + skip, to - skip), eng_rx_or_of(r, part, n_parts));
    free(part);
    return out;
}

uint32_t eng_rx_words(struct eng_rx *r, const struct eng_str *words, size_t n)
{
    struct eng_str *sorted = cn_malloc_array(n, sizeof *sorted);
    uint32_t out = ENG_RX_NONE;
    if (!sorted) return eng_rx_fail(r, CN_ENOMEM);
    if (n) {
        memcpy(sorted, words, n * sizeof *sorted);
        qsort(sorted, n, sizeof *sorted, by_bytes);
        out = tree(r, sorted, n, 0, 0);
    }
    free(sorted);
    return r->code ? ENG_RX_NONE : out;
}
