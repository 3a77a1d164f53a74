/* magnitude: ranges of numbers without a sign as expressions. See number.h.
 *
 * A range is built digit by digit. While the digits are those of a bound, the bound still limits
 * the next one ("tight"); as soon as they differ, or as the rest of the bound cannot matter any
 * more, what follows is free. So a range of n digits takes about 20 n expressions. Multiples are
 * built in the same way: each free rest starts from the remainder of the digits in front of it
 * (struct eng_multiple). Nothing is rounded. */
#include "engine/text/grammar/number.h"

#include <limits.h>

/* ---- the parts of a number ------------------------------------------------------------------- */

struct range {
    struct eng_rx *r;
    const struct eng_magnitude *of;
    struct eng_bound lo, hi; /* hi.n 0: no bound */
    uint32_t digit;
};

static uint32_t one_digit(struct eng_rx *r, unsigned from, unsigned to)
{
    return eng_rx_byte(r, (uint8_t)('0' + from), (uint8_t)('0' + to));
}

/* Digit d, and then next[d]. */
static uint32_t branch(struct eng_rx *r, const uint32_t next[10])
{
    uint32_t part[10], n = 0;
    bool done[10] = {false};
    for (unsigned d = 0; d < 10; d++) {
        struct eng_bytes s = {{0}};
        if (done[d] || next[d] == ENG_RX_NONE) continue;
        for (unsigned e = d; e < 10; e++) {
            if (next[e] != next[d]) continue;
            eng_bytes_add(&s, (uint8_t)('0' + e), (uint8_t)('0' + e));
            done[e] = true;
        }
        part[n++] = eng_rx_cat(r, eng_rx_set(r, &s), next[d]);
    }
    return eng_rx_or_of(r, part, n);
}

static uint32_t zeros(struct eng_rx *r, uint32_t least)
{
    return eng_rx_repeat(r, one_digit(r, 0, 0), least, ENG_RX_INF);
}

static bool is_multiple_of_any(const struct eng_magnitude *m)
{
    return m->limited && m->modulus > 1;
}

static uint64_t next_rest(const struct eng_magnitude *m, uint64_t rest, unsigned digit)
{
    return (uint64_t)(((unsigned __int128)rest * 10 + digit) % m->modulus);
}

/* A multiple of modulus, once zeros stand for the digits of the fraction that are left. */
static bool is_multiple(const struct eng_magnitude *m, uint64_t rest, size_t read)
{
    for (size_t i = read; i < m->scale && rest; i++)
        rest = next_rest(m, rest, 0);
    return rest == 0;
}

/* Any digits after the point, of which `read` are there already. */
static uint32_t free_fraction(const struct range *t, uint64_t rest, size_t read)
{
    const struct eng_magnitude *m = t->of;
    uint32_t least = read == 0;
    if (!m->limited) return eng_rx_repeat(t->r, t->digit, least, ENG_RX_INF);
    if (read >= m->scale) return rest ? ENG_RX_NONE : zeros(t->r, least);
    if (is_multiple_of_any(m))
        return eng_rx_multiple(t->r, &(struct eng_multiple){.modulus = m->modulus,
                                                            .rest = rest,
                                                            .scale = (uint8_t)m->scale,
                                                            .read = (uint8_t)read,
                                                            .fraction = true});
    uint32_t most = (uint32_t)(m->scale - read);
    return eng_rx_cat(t->r, eng_rx_repeat(t->r, t->digit, least, most), zeros(t->r, 0));
}

/* lo to hi digits (hi ENG_RX_INF: any number), and then any fraction. */
static uint32_t free_rest(const struct range *t, uint64_t rest, uint32_t lo, uint32_t hi)
{
    const struct eng_magnitude *m = t->of;
    uint32_t x = ENG_RX_EMPTY;
    if (is_multiple_of_any(m))
        return eng_rx_multiple(
            t->r, &(struct eng_multiple){.modulus = m->modulus,
                                         .rest = rest,
                                         .lo = (uint16_t)lo,
                                         .hi = (uint16_t)(hi == ENG_RX_INF ? ENG_MULTIPLE_INF : hi),
                                         .scale = (uint8_t)m->scale,
                                         .point = m->point});
    if (m->point) {
        uint32_t fraction = eng_rx_cat(t->r, eng_rx_byte(t->r, '.', '.'), free_fraction(t, 0, 0));
        x = eng_rx_or(t->r, ENG_RX_EMPTY, fraction);
    }
    return eng_rx_cat(t->r, eng_rx_repeat(t->r, t->digit, lo, hi), x);
}

/* ---- digits at a bound ----------------------------------------------------------------------- */

/* Where the digits are: those of a bound so far, or not. */
struct at {
    bool low, high; /* tight */
    uint64_t rest;
};

static struct at step(const struct range *t, struct at a, long place, unsigned d)
{
    return (struct at){a.low && d == eng_bound_digit(&t->lo, place),
                       a.high && d == eng_bound_digit(&t->hi, place), next_rest(t->of, a.rest, d)};
}

static unsigned lowest(const struct range *t, struct at a, long place)
{
    return a.low ? eng_bound_digit(&t->lo, place) : 0;
}
static unsigned highest(const struct range *t, struct at a, long place)
{
    return a.high ? eng_bound_digit(&t->hi, place) : 9;
}

/* Whether the number may end after `read` digits of its fraction. */
static bool may_end(const struct range *t, struct at a, size_t read)
{
    if (a.low && (read < t->lo.scale || t->lo.open)) return false;
    if (a.high && read >= t->hi.scale && t->hi.open) return false;
    return !t->of->limited || is_multiple(t->of, a.rest, read);
}

/* All digits of the bounds are read: zeros keep the number at the bound, others leave it. */
static uint32_t beyond(const struct range *t, struct at a, size_t read)
{
    uint32_t x = may_end(t, a, read) ? zeros(t->r, read == 0) : ENG_RX_NONE;
    if (a.high || t->of->limited) return x;
    uint32_t more =
        eng_rx_cat(t->r, one_digit(t->r, 1, 9), eng_rx_repeat(t->r, t->digit, 0, ENG_RX_INF));
    return eng_rx_or(t->r, x, eng_rx_cat(t->r, zeros(t->r, 0), more));
}

/* What follows after the point and `read` digits. */
static uint32_t fraction(const struct range *t, struct at a, size_t read)
{
    const struct eng_magnitude *m = t->of;
    uint32_t next[10];
    if (a.low && !t->lo.open && read >= t->lo.scale) a.low = false;
    if (!a.low && !a.high) return free_fraction(t, a.rest, read);
    size_t end = CN_MAX(a.low ? t->lo.scale : 0, a.high ? t->hi.scale : 0);
    if (m->limited) end = CN_MAX(end, m->scale);
    if (read >= end) return beyond(t, a, read);
    long place = -(long)read - 1;
    for (unsigned d = 0; d < 10; d++) {
        bool out = d < lowest(t, a, place) || d > highest(t, a, place) ||
                   (m->limited && read >= m->scale && d > 0);
        struct at b = step(t, a, place, d);
        if (m->limited && read >= m->scale) b.rest = a.rest;
        next[d] = out || t->r->code ? ENG_RX_NONE : fraction(t, b, read + 1);
    }
    uint32_t x = branch(t->r, next);
    return read && may_end(t, a, read) ? eng_rx_or(t->r, x, ENG_RX_EMPTY) : x;
}

/* What follows when `left` digits in front of the point are still to come. */
static uint32_t whole(const struct range *t, struct at a, size_t left, bool first)
{
    const struct eng_magnitude *m = t->of;
    uint32_t next[10], x;
    if (a.low && !t->lo.open && !t->lo.scale && left <= t->lo.zeros) a.low = false;
    if (a.high && !t->hi.open && m->limited && !m->scale && left <= t->hi.nines) a.high = false;
    if (!a.low && !a.high && !first) return free_rest(t, a.rest, (uint32_t)left, (uint32_t)left);
    if (!left) {
        x = may_end(t, a, 0) ? ENG_RX_EMPTY : ENG_RX_NONE;
        if (!m->point) return x;
        return eng_rx_or(t->r, x, eng_rx_cat(t->r, eng_rx_byte(t->r, '.', '.'), fraction(t, a, 0)));
    }
    long place = (long)left - 1;
    for (unsigned d = 0; d < 10; d++) {
        bool out = d < lowest(t, a, place) || d > highest(t, a, place) || (first && d == 0);
        next[d] = out || t->r->code ? ENG_RX_NONE : whole(t, step(t, a, place, d), left - 1, false);
    }
    return branch(t->r, next);
}

/* ---- ranges ---------------------------------------------------------------------------------- */

/* Numbers that begin with 1 to 9, and have lo to hi more digits before the point. */
static uint32_t lengths(const struct range *t, long lo, long hi)
{
    uint32_t next[10] = {ENG_RX_NONE}, most = hi == LONG_MAX ? ENG_RX_INF : (uint32_t)hi;
    for (unsigned d = 1; d < 10; d++)
        next[d] = free_rest(t, d % t->of->modulus, (uint32_t)lo, most);
    return branch(t->r, next);
}

/* Numbers that are 0 before the point. */
static uint32_t below_one(const struct range *t)
{
    bool bounded = t->hi.n > 0;
    struct at a = {.low = !eng_bound_zero(&t->lo) || t->lo.open,
                   .high = bounded && t->hi.whole == 1 && eng_bound_digit(&t->hi, 0) == 0};
    return eng_rx_cat(t->r, one_digit(t->r, 0, 0), whole(t, a, 0, false));
}

/* Numbers from 1 on. `small`: the lower bound is below 1. */
static void from_one(const struct range *t, bool small, uint32_t part[3])
{
    const struct eng_bound *lo = &t->lo, *hi = &t->hi;
    const struct eng_magnitude *m = t->of;
    bool bounded = hi->n > 0, same = bounded && hi->whole == lo->whole;
    /* whether all numbers of as many digits as the bound are inside */
    bool all_low =
        small || (!lo->open && !lo->scale && lo->zeros + 1 == lo->whole && lo->digits[0] == '1');
    bool all_high = !bounded || (m->limited && !m->scale && !hi->open && hi->nines >= hi->whole);
    long from = (long)lo->whole - (all_low ? 1 : 0);
    long to = !bounded ? LONG_MAX : (long)hi->whole - (all_high ? 1 : 2);
    if (from <= to) part[0] = lengths(t, from, to);
    if (bounded && hi->whole < lo->whole) return;
    if (!all_low)
        part[1] = whole(t, (struct at){.low = true, .high = same && !all_high}, lo->whole, true);
    if (!all_high && !(same && !all_low))
        part[2] = whole(t, (struct at){.high = true}, hi->whole, true);
}

uint32_t eng_magnitude_rx(struct eng_rx *r, const struct eng_magnitude *m)
{
    struct range t = {.r = r, .of = m, .lo = *m->lo, .digit = one_digit(r, 0, 9)};
    char room[2][ENG_BOUND_ROOM];
    uint32_t part[4] = {ENG_RX_NONE};
    if (m->hi) t.hi = *m->hi;
    if (m->hi && eng_bound_zero(m->hi) && m->hi->open) return ENG_RX_NONE;
    if (m->limited) { /* to bounds with that many digits after the point */
        eng_bound_round(&t.lo, m->scale, true, room[0]);
        if (m->hi) eng_bound_round(&t.hi, m->scale, false, room[1]);
    }
    bool small = t.lo.whole == 1 && eng_bound_digit(&t.lo, 0) == 0;
    if (small) part[3] = below_one(&t);
    from_one(&t, small, part);
    return eng_rx_or_of(r, part, CN_ARRAY_LEN(part));
}
