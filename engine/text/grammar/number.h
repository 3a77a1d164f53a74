/* number: ranges of decimal numbers without a sign (private to spell's numbers). */
#ifndef ENGINE_TEXT_GRAMMAR_NUMBER_H
#define ENGINE_TEXT_GRAMMAR_NUMBER_H

#include "engine/text/grammar/spell.h"

/* A bound, digits * 10^power. */
struct eng_bound {
    const char *digits; /* no zeros in front except for 0 itself */
    size_t n;           /* 0: no bound */
    long power;
    bool open;           /* the bound itself is outside */
    size_t whole;        /* this one and those below by eng_bound_weigh: digits before the point */
    size_t scale;        /* digits after it */
    size_t zeros, nines; /* at the end of the digits before the point */
};
enum { ENG_BOUND_ROOM = 1300 };
static inline bool eng_bound_zero(const struct eng_bound *b)
{
    return b->n == 1 && b->digits[0] == '0';
}

/* The digit at 10^place. */
unsigned eng_bound_digit(const struct eng_bound *b, long place);
/* Computes the other members, and drops zeros at the end of a fraction. */
void eng_bound_weigh(struct eng_bound *b);
/* Makes it the nearest number with at most `scale` digits after the point that is inside, and
 * closed. A bound at 0 that is open stays below 0 (`up` false) open. The digits go to room. */
void eng_bound_round(struct eng_bound *b, size_t scale, bool up, char room[ENG_BOUND_ROOM]);

/* Numbers from lo to hi. */
struct eng_magnitude {
    const struct eng_bound *lo, *hi; /* hi may be NULL */
    bool point;                      /* a fraction may be written */
    bool limited;                    /* multiples of modulus / 10^scale only */
    uint64_t modulus;                /* at least 1 */
    size_t scale;
};
uint32_t eng_magnitude_rx(struct eng_rx *r, const struct eng_magnitude *m);

#endif
