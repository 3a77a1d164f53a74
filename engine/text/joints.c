/* engine/text: between which characters of a text a merge can cross.
 *
 * A symbol that spans the border of two characters contains both, or one and the adjacent bytes of
 * the other, or adjacent bytes of both. Text may be cut before merging at any border that no symbol
 * spans: the two sides merge independently. So texts without spaces fall into short pieces, which
 * are fast, and mostly known. Pairs are kept as bits of their hash: a bit that is set by chance
 * leaves a piece longer and nothing else. Filled while the vocabulary is built, then read-only. */
#include "engine/text/vocab_impl.h"

#include <stdlib.h>

/* A side of a border: a character's code point, or PART and the bytes of a part of one. */
enum { NO_CHAR = 1 << 21, PART = 1 << 24, MARK = 0x2581, BITS_PER_SYMBOL = 16 };

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
    return (((uint64_t)left << 25 | right) * 0x9e3779b97f4a7c15u) >> j->shift;
}

/* The character at p and its length; NO_CHAR and 1 for a byte that is not UTF-8. */
static inline uint32_t char_at(const struct eng_joints *j, const char *p, const char *end,
                               size_t *len)
{
    uint32_t c = (uint8_t)*p;
    *len = 1;
    if (c < 128) return c;
    *len = eng_decode(p, end, &c);
    if (*len == 0) {
        *len = 1;
        return NO_CHAR;
    }
    return c == MARK && j->marks ? ' ' : c;
}

static inline bool pair_known(const struct eng_joints *j, uint32_t left, uint32_t right)
{
    size_t bit = pair_bit(j, left, right);
    return j->pair[bit / 64] >> bit % 64 & 1;
}

/* n bytes, 1 to 3, of a character that has more. */
static inline uint32_t part_of(const char *p, size_t n)
{
    uint32_t c = 0;
    for (size_t i = 0; i < n; i++)
        c = c << 8 | (uint8_t)p[i];
    return PART | c;
}

static size_t continuations(const char *p, size_t n)
{
    size_t i = 0;
    while (i < n && ((uint8_t)p[i] & 0xC0) == 0x80)
        i++;
    return i;
}

/* What ends before s[at]: a character, or the end of one where s has no more of it; NO_CHAR where
 * no text of whole characters can have it. */
static uint32_t side_before(const struct eng_joints *j, struct eng_str s, size_t at)
{
    if (at < 4 && continuations(s.p, at) == at) return part_of(s.p, at);
    size_t from = at - 1, len;
    while (from > 0 && at - from < 4 && ((uint8_t)s.p[from] & 0xC0) == 0x80)
        from--;
    uint32_t c = char_at(j, s.p + from, s.p + at, &len);
    return len == at - from ? c : NO_CHAR;
}

/* Likewise what begins at s[at], no continuation byte. */
static uint32_t side_after(const struct eng_joints *j, struct eng_str s, size_t at)
{
    size_t n = s.n - at, len;
    uint32_t c = char_at(j, s.p + at, s.p + s.n, &len);
    bool cut = c == NO_CHAR && n < 4 && 1 + continuations(s.p + at + 1, n - 1) == n;
    return cut ? part_of(s.p + at, n) : c;
}

void eng_joints_add(struct eng_joints *j, struct eng_str s)
{
    for (size_t i = 1; i < s.n; i++) {
        uint8_t a = (uint8_t)s.p[i - 1], b = (uint8_t)s.p[i];
        if ((b & 0xC0) == 0x80) continue; /* no character begins here */
        if (a < 128 && b < 128) {
            j->ascii[a][b / 8] |= (uint8_t)(1u << b % 8);
            continue;
        }
        uint32_t left = side_before(j, s, i), right = side_after(j, s, i);
        if (left == NO_CHAR || right == NO_CHAR) continue;
        if (left & PART || right & PART) j->edge[a][b / 8] |= (uint8_t)(1u << b % 8);
        if (left < 128 && right < 128) /* U+2581 is the space */
            j->ascii[left][right / 8] |= (uint8_t)(1u << right % 8);
        else
            j->pair[pair_bit(j, left, right) / 64] |= (uint64_t)1 << pair_bit(j, left, right) % 64;
    }
}

struct side {
    uint32_t cp;
    size_t len;
};

/* Whether some symbol may span the border before p with a part of one of these characters. */
static bool parts_joined(const struct eng_joints *j, struct side left, struct side right,
                         const char *p)
{
    for (size_t l = 0; l < left.len; l++) {
        uint32_t a = l ? part_of(p - l, l) : left.cp;
        for (size_t r = l == 0; r < right.len; r++) {
            if (pair_known(j, a, r ? part_of(p, r) : right.cp)) return true;
        }
    }
    return false;
}

/* Whether some symbol may span the border before p, of these characters. */
static inline bool joined(const struct eng_joints *j, struct side left, struct side right,
                          const char *p)
{
    if (left.cp < 128 && right.cp < 128) return j->ascii[left.cp][right.cp / 8] >> right.cp % 8 & 1;
    if (left.cp == NO_CHAR || right.cp == NO_CHAR) return true;
    uint8_t a = (uint8_t)p[-1], b = (uint8_t)p[0];
    return pair_known(j, left.cp, right.cp) ||
           ((j->edge[a][b / 8] >> b % 8 & 1) && parts_joined(j, left, right, p));
}

size_t eng_joints_cut(const struct eng_joints *j, const char *p, const char *end,
                      struct eng_tick *tick)
{
    struct side left, right;
    left.cp = char_at(j, p, end, &left.len);
    const char *at = p + left.len, *told = p;
    for (; at < end; at += right.len, left = right) {
        if (at - told >= ENG_TICK) {
            eng_tick(tick, (size_t)(at - told));
            told = at;
        }
        right.cp = char_at(j, at, end, &right.len);
        if (!joined(j, left, right, at)) break;
    }
    return (size_t)(at - p);
}
