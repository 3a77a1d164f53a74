/* spell: numbers as expressions: signs, bounds, multiples and exponents. See spell.h.
 *
 * A number with an exponent n is within bounds if its mantissa is within the bounds divided by
 * 10^n. So each exponent is a range of its own; MOST_EXPONENT limits how many there are. */
#include "engine/text/grammar/number.h"

#include <stdio.h>

enum { MOST_EXPONENT = 20 };

/* What a number must be, apart from its sign: multiples of modulus * 10^power, if limited. */
struct demand {
    const struct eng_number *of;
    bool json_any, limited, point;
    uint64_t modulus;
    long power;
};

static uint32_t maybe(struct eng_rx *r, uint32_t x)
{
    return eng_rx_or(r, ENG_RX_EMPTY, x);
}
static uint32_t zeros(struct eng_rx *r, uint32_t lo, uint32_t hi)
{
    return eng_rx_repeat(r, eng_rx_byte(r, '0', '0'), lo, hi);
}
/* Nothing, or a point and zeros. */
static uint32_t zero_fraction(struct eng_rx *r)
{
    return maybe(r, eng_rx_cat(r, eng_rx_byte(r, '.', '.'), zeros(r, 1, ENG_RX_INF)));
}

static struct eng_bound bound(const char *digits, size_t n, long power, bool open)
{
    struct eng_bound b = {.digits = digits, .n = n, .power = power, .open = open};
    eng_bound_weigh(&b);
    return b;
}
static struct eng_bound bound_of(const struct eng_decimal *d, bool open)
{
    return bound(d->digits, d->n, -(long)d->scale, open);
}

/* ---- one sign, one exponent ------------------------------------------------------------------ */

/* Multiples of modulus * 10^tens: those of modulus, and as many zeros. */
static uint32_t with_tens(struct eng_rx *r, struct eng_magnitude m, long tens)
{
    struct eng_bound lo = *m.lo, hi = {0};
    uint32_t end = m.point ? zero_fraction(r) : ENG_RX_EMPTY, zero = ENG_RX_NONE;
    if (!tens) return eng_magnitude_rx(r, &m);
    if (eng_bound_zero(&lo) && !lo.open) zero = eng_rx_cat(r, eng_rx_byte(r, '0', '0'), end);
    lo.open |= eng_bound_zero(&lo);
    lo.power -= tens;
    eng_bound_weigh(&lo);
    if (m.hi) {
        hi = *m.hi;
        hi.power -= tens;
        eng_bound_weigh(&hi);
        if (eng_bound_zero(&hi) && hi.open) return ENG_RX_NONE;
        m.hi = &hi;
    }
    m.lo = &lo;
    m.point = false;
    uint32_t x = eng_magnitude_rx(r, &m);
    x = eng_rx_cat(r, x, eng_rx_cat(r, zeros(r, (uint32_t)tens, (uint32_t)tens), end));
    return eng_rx_or(r, zero, x);
}

/* Mantissas from lo to hi, so that the number with this exponent is as demanded. hi may be NULL. */
static uint32_t mantissas(struct eng_rx *r, const struct demand *d, const struct eng_bound *lo,
                          const struct eng_bound *hi, long exponent)
{
    struct eng_bound low = *lo, high = {0};
    long power = d->power - exponent;
    struct eng_magnitude m = {.lo = &low,
                              .point = d->point,
                              .limited = d->limited,
                              .modulus = d->modulus,
                              .scale = power < 0 ? (size_t)-power : 0};
    low.power -= exponent;
    eng_bound_weigh(&low);
    if (hi) {
        high = *hi;
        high.power -= exponent;
        eng_bound_weigh(&high);
        m.hi = &high;
    }
    if (!d->limited) m.scale = 0;
    return with_tens(r, m, d->limited && power > 0 ? power : 0);
}

/* ---- exponents ------------------------------------------------------------------------------- */

static uint32_t exponent_mark(struct eng_rx *r)
{
    struct eng_bytes e = {{0}};
    eng_bytes_add(&e, 'e', 'e');
    eng_bytes_add(&e, 'E', 'E');
    return eng_rx_set(r, &e);
}

static uint32_t any_sign(struct eng_rx *r)
{
    struct eng_bytes s = {{0}};
    eng_bytes_add(&s, '+', '+');
    eng_bytes_add(&s, '-', '-');
    return maybe(r, eng_rx_set(r, &s));
}

/* Every spelling of the exponent; if `more` of those that are further from 0 too. */
static uint32_t exponent_text(struct eng_rx *r, long exponent, bool more)
{
    char text[8];
    int n = snprintf(text, sizeof text, "%ld", exponent < 0 ? -exponent : exponent);
    struct eng_bound lo = bound(text, (size_t)n, 0, false);
    struct eng_magnitude m = {
        .lo = &lo, .hi = more ? NULL : &lo, .limited = true, .modulus = 1, .scale = 0};
    uint32_t sign = exponent < 0   ? eng_rx_byte(r, '-', '-')
                    : exponent > 0 ? maybe(r, eng_rx_byte(r, '+', '+'))
                                   : any_sign(r);
    uint32_t digits = eng_rx_cat(r, zeros(r, 0, ENG_RX_INF), eng_magnitude_rx(r, &m));
    return eng_rx_cat(r, exponent_mark(r), eng_rx_cat(r, sign, digits));
}

/* Any exponent. A model keeps below 300, so that the number is one of double precision. */
static uint32_t any_exponent(struct eng_rx *r, bool every)
{
    uint32_t digit = eng_rx_byte(r, '0', '9');
    uint32_t two = eng_rx_repeat(r, digit, 1, 2);
    uint32_t digits =
        every ? eng_rx_repeat(r, digit, 1, ENG_RX_INF)
              : eng_rx_or(r, two,
                          eng_rx_cat(r, eng_rx_byte(r, '0', '2'), eng_rx_repeat(r, digit, 2, 2)));
    return eng_rx_cat(r, exponent_mark(r), eng_rx_cat(r, any_sign(r), digits));
}

/* Numbers from lo to hi with exponents that a checker can decide. */
static uint32_t with_exponents(struct eng_rx *r, const struct demand *d, const struct eng_bound *lo,
                               const struct eng_bound *hi)
{
    enum { BEYOND = MOST_EXPONENT + 1 };
    uint32_t part[2 * BEYOND + 2], n = 0;
    bool zero = eng_bound_zero(lo) && !lo->open;
    for (long e = -BEYOND; e <= BEYOND && !r->code; e++) {
        bool more = e == BEYOND || e == -BEYOND;
        /* further from 0 nothing may be wrong that was right here */
        if (e == BEYOND && hi) continue;
        if (e == -BEYOND && (d->limited || !eng_bound_zero(lo))) continue;
        part[n++] = eng_rx_cat(r, mantissas(r, d, lo, hi, e), exponent_text(r, e, more));
    }
    if (zero)
        part[n++] = eng_rx_cat(r, eng_rx_cat(r, eng_rx_byte(r, '0', '0'), zero_fraction(r)),
                               any_exponent(r, true));
    return eng_rx_or_of(r, part, n);
}

/* ---- both signs ------------------------------------------------------------------------------ */

static bool is_zero(const struct eng_decimal *d)
{
    return d && d->n == 1 && d->digits[0] == '0';
}
static bool is_below_zero(const struct eng_decimal *d)
{
    return d && d->negative && !is_zero(d);
}

/* Numbers from lo to hi of one sign. */
static uint32_t side(struct eng_rx *r, const struct demand *d, const struct eng_bound *lo,
                     const struct eng_bound *hi)
{
    bool bounded = d->of->min || d->of->max || d->limited;
    uint32_t x = mantissas(r, d, lo, hi, 0);
    if (!bounded) return eng_rx_cat(r, x, maybe(r, any_exponent(r, d->json_any)));
    return d->json_any ? eng_rx_or(r, x, with_exponents(r, d, lo, hi)) : x;
}

static uint32_t positive(struct eng_rx *r, const struct demand *d)
{
    const struct eng_number *n = d->of;
    struct eng_bound lo = bound("0", 1, 0, false), hi = {0};
    if (is_below_zero(n->max) || (is_zero(n->max) && n->below_max)) return ENG_RX_NONE;
    if (n->min && !is_below_zero(n->min)) lo = bound_of(n->min, n->above_min);
    if (n->max) hi = bound_of(n->max, n->below_max);
    return side(r, d, &lo, n->max ? &hi : NULL);
}

/* A model writes no -0. */
static uint32_t negative(struct eng_rx *r, const struct demand *d)
{
    const struct eng_number *n = d->of;
    struct eng_bound lo = bound("0", 1, 0, !d->json_any), hi = {0};
    if (n->min && !is_below_zero(n->min)) {
        if (!d->json_any || !is_zero(n->min) || n->above_min) return ENG_RX_NONE;
    }
    if (n->min) hi = bound_of(n->min, n->above_min);
    if (is_below_zero(n->max)) lo = bound_of(n->max, n->below_max);
    if (is_zero(n->max) && n->below_max) lo.open = true;
    uint32_t x = side(r, d, &lo, n->min ? &hi : NULL);
    return eng_rx_cat(r, eng_rx_byte(r, '-', '-'), x);
}

/* ---- multiples ------------------------------------------------------------------------------- */

static int read_multiple(const struct eng_decimal *of, bool integer, struct demand *d,
                         struct cn_error *err)
{
    size_t n = of->n;
    long power = -(long)of->scale;
    uint64_t m = 0;
    if (of->negative || is_zero(of)) return cn_fail(err, CN_EINVAL, "it must be above 0");
    for (; n > 1 && of->digits[n - 1] == '0'; n--)
        power++;
    for (size_t i = 0; i < n; i++) {
        m = m * 10 + (uint64_t)(of->digits[i] - '0');
        if (m > ENG_MULTIPLE_MOST) return cn_fail(err, CN_ELIMIT, "it has more than 14 digits");
    }
    for (; integer && power < 0; power++) { /* multiples that are integers */
        if (m % 2 == 0) m /= 2;
        if (m % 5 == 0) m /= 5;
    }
    if (m > 1 && -power > ENG_MULTIPLE_SCALE - MOST_EXPONENT - 1)
        return cn_fail(err, CN_ELIMIT, "it has more than %d digits after the point",
                       ENG_MULTIPLE_SCALE - MOST_EXPONENT - 1);
    d->limited = true;
    d->modulus = m;
    d->power = power;
    return 0;
}

int eng_spell_number(struct eng_rx *r, enum eng_spelling s, const struct eng_number *number,
                     uint32_t *out, struct cn_error *err)
{
    struct demand d = {.of = number,
                       .json_any = s == ENG_SPELL_JSON_ANY,
                       .limited = number->integer,
                       .modulus = 1};
    d.point = !number->integer || d.json_any;
    if (number->multiple_of) {
        int rc = read_multiple(number->multiple_of, number->integer, &d, err);
        if (rc) return rc;
    }
    uint32_t x = eng_rx_or(r, positive(r, &d), negative(r, &d));
    if (r->code) return cn_fail(err, r->code, "the range of numbers is too large");
    *out = x;
    return 0;
}

uint32_t eng_spell_equal(struct eng_rx *r, enum eng_spelling s, const struct eng_decimal *v)
{
    struct eng_bound b = bound_of(v, false);
    struct eng_magnitude m = {.lo = &b, .hi = &b, .point = true, .modulus = 1};
    uint32_t x = eng_magnitude_rx(r, &m), minus = eng_rx_byte(r, '-', '-');
    if (is_zero(v)) return s == ENG_SPELL_JSON_ANY ? eng_rx_cat(r, maybe(r, minus), x) : x;
    return v->negative ? eng_rx_cat(r, minus, x) : x;
}
