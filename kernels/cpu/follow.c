/* follow: rows of kr_op_follow, and of kr_op_peak with texts. Plain C, the same for every
 * instruction set. Any thread; owns nothing. */
#include "kernels/cpu/cpu.h"

#include <string.h>

/* A number from a file or a client's embedding as an index below n; 0 if it is not valid. */
static uint32_t index_of(float f, uint32_t n)
{
    return f >= 1 && f < (float)n ? (uint32_t)f : 0;
}

/* Whether the units are at the place. A match cannot cross the end of a text: units are not
 * negative. */
static bool matches(const float *texts, uint32_t n, uint32_t place, const float *units,
                    uint32_t count)
{
    if (count > n - place) return false;
    for (uint32_t i = 0; i < count; i++)
        if (!(units[i] >= 0) || texts[2 * (size_t)(place + i)] != units[i]) return false;
    return true;
}

/* The place after the units if they are found within reach, else the place itself. */
static uint32_t search(const float *texts, uint32_t n, uint32_t place, float reach,
                       const float *units, uint32_t count)
{
    const bool marks = reach < 0;
    uint32_t steps = index_of(CN_MIN(reach, (float)KR_FOLLOW_REACH), KR_FOLLOW_REACH + 1);
    uint32_t at = place;
    bool first = texts[2 * (size_t)(place - 1)] < 0;
    if (marks) steps = reach < -1 && first ? 0 : KR_FOLLOW_MARKS;
    for (uint32_t k = 0; !matches(texts, n, at, units, count); k++) {
        bool last = at + 1 >= n || !(texts[2 * (size_t)at] >= 0);
        if (k == steps || last) return place;
        at = marks ? index_of(texts[2 * (size_t)(at + 1) + 1], n) : at + 1;
        if (!at) return place;
    }
    return at + count;
}

void kr_cpu_follow(const float *texts, uint32_t n, const float *x, uint32_t width, float *state)
{
    uint32_t begin = index_of(x[0], n), place = index_of(*state, n);
    uint32_t count = index_of(x[2], width - 2);
    if (begin)
        place = begin;
    else if (place && count)
        place = search(texts, n, place, x[1], x + 3, count);
    *state = (float)place;
}

bool kr_cpu_peaks(const float *tokens, uint32_t n, float at, const float *rest, float *y,
                  uint32_t width)
{
    uint32_t place = index_of(at, n), end = place;
    if (!place) return false;
    memcpy(y, rest, width * sizeof *y);
    while (end < n && end - place < KR_PEAK_AHEAD && tokens[end] >= 0)
        end++;
    for (uint32_t k = end - place; k-- > 0;) { /* the nearest last: it overwrites farther ones */
        float token = tokens[place + k];
        if (token < (float)width) y[(uint32_t)token] = k ? 512.0f - 12.0f * (float)k : 4096.0f;
    }
    return true;
}
