/* engine/text: a min-heap of 64-bit keys, four children to a node (fewer cache misses than two),
 * and a radix sort of such keys. The caller owns the arrays and sees to their capacity. */
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

/* Sorts h[0..n), byte by byte from the lowest, through tmp of the same size; returns which of the
 * two arrays holds the result. Bytes that all keys share cost nothing, sorted input one pass. tick
 * is called every 64 Ki keys of a pass. */
static inline uint64_t *eng_radix_sort(uint64_t *h, uint64_t *tmp, size_t n,
                                       void (*tick)(void *arg), void *arg)
{
    const size_t often = 65536;
    uint64_t differ = 0, falls = 0;
    for (size_t i = 1; i < n; i++) {
        if (i % often == 0) tick(arg);
        differ |= h[i] ^ h[0];
        falls |= h[i] < h[i - 1];
    }
    for (unsigned shift = 0; falls && shift < 64; shift += 8) {
        size_t at[256] = {0}, sum = 0;
        if (!(differ >> shift & 255)) continue;
        for (size_t i = 0; i < n; i++) {
            if (i % often == often - 1) tick(arg);
            at[h[i] >> shift & 255]++;
        }
        for (unsigned b = 0; b < 256; b++) {
            size_t count = at[b];
            at[b] = sum;
            sum += count;
        }
        for (size_t i = 0; i < n; i++) {
            if (i % often == often - 1) tick(arg);
            tmp[at[h[i] >> shift & 255]++] = h[i];
        }
        uint64_t *swap = h;
        h = tmp;
        tmp = swap;
    }
    return h;
}

#endif
