/* engine/text: between which characters of a text a merge can cross.
 *
 * A merge makes a symbol of its two sides, so a symbol that spans the border of two characters has
 * both side by side in its text, or one of them and a part of the other, or parts. A border that
 * none has is a place where a text may be cut before merging: what is left and what is right of it
 * merge as if the other were not there. So texts without spaces fall into short pieces, which are
 * fast, and mostly known. Pairs are kept as bits of their hash: a bit that is set by chance leaves a
 * piece longer and nothing else.
 * Filled while the vocabulary is built, then read-only. */
#include "engine/text/vocab_impl.h"

#include <stdlib.h>

enum { NO_CHAR = 1 << 21, MARK = 0x2581, BITS_PER_SYMBOL = 16 };

int eng_joints_init(struct eng_joints *j, size_t n_symbols, bool marks)
{
    unsigned log = 12;
    while (log < 24 && (size_t)1 << log < BITS_PER_SYMBOL * n_symbols)
        log++;
    *j = (struct eng_joints){.shift = 64 - log, .marks = marks};
    j->pair = cn_calloc((size_t)1 << (log - 6), sizeof *j->pair);
    return j->pair ? 0 : CN_ENOMEM;
}

void eng_joints_fini(struct eng_joints *j)
{
    free(j->pair);
    j->pair = NULL;
}

static inline size_t pair_bit(const struct eng_joints *j, uint32_t left, uint32_t right)
{
    return (((uint64_t)left << 21 | right) * 0x9e3779b97f4a7c15u) >> j->shift;
}

/* The character at p and its length; NO_CHAR and 1 for a byte that is not UTF-8. */
static inline uint32_t char_at(const struct eng_joints *j, const char *p, const char *end,
                               size_t *len)
{
    uint32_t c = (uint8_t)*p;
    *len = 1;
    if (c < 128) return c;
    *len = cn_utf8_decode(p, (size_t)(end - p), &c);
    if (*len == 0) {
        *len = 1;
        return NO_CHAR;
    }
    return c == MARK && j->marks ? ' ' : c;
}

/* The character that ends before s[at], NO_CHAR where s has not all of it. */
static uint32_t char_before(const struct eng_joints *j, struct eng_str s, size_t at)
{
    size_t from = at - 1, len;
    while (from > 0 && at - from < 4 && ((uint8_t)s.p[from] & 0xC0) == 0x80)
        from--;
    uint32_t c = char_at(j, s.p + from, s.p + at, &len);
    return len == at - from ? c : NO_CHAR;
}

void eng_joints_add(struct eng_joints *j, struct eng_str s)
{
    for (size_t i = 1; i < s.n; i++) {
        uint8_t a = (uint8_t)s.p[i - 1], b = (uint8_t)s.p[i];
        if ((b & 0xC0) == 0x80) continue; /* no character begins here */
        uint32_t left = a, right = b;
        size_t len;
        if (a >= 128 || b >= 128) {
            left = char_before(j, s, i);
            right = char_at(j, s.p + i, s.p + s.n, &len);
        }
        if (left == NO_CHAR || right == NO_CHAR)
            j->edge[a][b / 8] |= (uint8_t)(1u << b % 8);
        else if (left < 128 && right < 128)
            j->ascii[left][right / 8] |= (uint8_t)(1u << right % 8);
        else
            j->pair[pair_bit(j, left, right) / 64] |= (uint64_t)1 << pair_bit(j, left, right) % 64;
    }
}

/* Whether some symbol may span the border before p, of these characters. */
static inline bool joined(const struct eng_joints *j, uint32_t left, uint32_t right, const char *p)
{
    if (left < 128 && right < 128) return j->ascii[left][right / 8] >> right % 8 & 1;
    if (left == NO_CHAR || right == NO_CHAR) return true;
    uint8_t a = (uint8_t)p[-1], b = (uint8_t)p[0];
    size_t bit = pair_bit(j, left, right);
    return (j->pair[bit / 64] >> bit % 64 & 1) || (j->edge[a][b / 8] >> b % 8 & 1);
}

size_t eng_joints_cut(const struct eng_joints *j, const char *p, const char *end)
{
    const char *at = p;
    size_t len;
    uint32_t left = char_at(j, at, end, &len);
    for (at += len; at < end; at += len) {
        uint32_t right = char_at(j, at, end, &len);
        if (!joined(j, left, right, at)) break;
        left = right;
    }
    return (size_t)(at - p);
}
