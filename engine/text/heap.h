/* engine/text: a min-heap of 64-bit keys, four children to a node (fewer cache misses than two).
 * The caller owns the array and sees to its capacity. */
#ifndef ENGINE_TEXT_HEAP_H
#define ENGINE_TEXT_HEAP_H

#include <stddef.h>
#include <stdint.h>

static inline void eng_heap_down(uint64_t *h, size_t n, size_t at)
{
    uint64_t key = h[at];
    for (;;) {
        size_t child = 4 * at + 1, best = child;
        if (child >= n) break;
        size_t end = child + 4 < n ? child + 4 : n;
        for (size_t i = child + 1; i < end; i++) {
            if (h[i] < h[best]) best = i;
        }
        if (h[best] >= key) break;
        h[at] = h[best];
        at = best;
    }
    h[at] = key;
}

static inline void eng_heap_build(uint64_t *h, size_t n)
{
    if (n < 2) return;
    for (size_t i = (n - 2) / 4 + 1; i-- > 0;)
        eng_heap_down(h, n, i);
}

static inline void eng_heap_push(uint64_t *h, size_t *n, uint64_t key)
{
    size_t at = (*n)++;
    while (at > 0) {
        size_t up = (at - 1) / 4;
        if (h[up] <= key) break;
        h[at] = h[up];
        at = up;
    }
    h[at] = key;
}

static inline uint64_t eng_heap_pop(uint64_t *h, size_t *n)
{
    uint64_t top = h[0];
    h[0] = h[--*n];
    if (*n > 1) eng_heap_down(h, *n, 0);
    return top;
}

#endif
