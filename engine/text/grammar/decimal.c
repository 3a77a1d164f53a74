/* decimal: numbers as decimal digits, exactly. See spell.h. */
#include "engine/text/grammar/number.h"

enum { MOST_DIGITS = 400, MOST_EXPONENT = 1000000 };

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The parts of a JSON number; the first digit is not 0 unless it is the only one. */
struct parts {
    bool negative;
    const char *whole, *fraction;
    size_t n_whole, n_fraction;
    long exponent;
};

static size_t run_of_digits(const char *s, const char *end)
{
    const char *p = s;
    while (p < end && is_digit(*p))
        p++;
    return (size_t)(p - s);
}

static bool read_exponent(const char *s, const char *end, long *out)
{
    bool negative = s < end && *s == '-';
    long v = 0;
    if (s < end && (*s == '-' || *s == '+')) s++;
    if (s == end || run_of_digits(s, end) != (size_t)(end - s)) return false;
    for (; s < end; s++)
        v = CN_MIN(v * 10 + (*s - '0'), (long)MOST_EXPONENT);
    *out = negative ? -v : v;
    return true;
}

static bool read_parts(const char *s, size_t n, struct parts *p)
{
    const char *end = s + n;
    *p = (struct parts){.negative = n && *s == '-'};
    s += p->negative;
    p->whole = s;
    p->n_whole = run_of_digits(s, end);
    s += p->n_whole;
    if (!p->n_whole || (p->n_whole > 1 && *p->whole == '0')) return false;
    if (s < end && *s == '.') {
        p->fraction = ++s;
        p->n_fraction = run_of_digits(s, end);
        s += p->n_fraction;
        if (!p->n_fraction) return false;
    }
    if (s == end) return true;
    return (*s == 'e' || *s == 'E') && read_exponent(s + 1, end, &p->exponent);
}

/* The digit i of whole part and fraction together. */
static char digit_of(const struct parts *p, size_t i)
{
    return i < p->n_whole ? p->whole[i] : p->fraction[i - p->n_whole];
}

int eng_decimal_parse(const char *s, size_t n, char room[MOST_DIGITS], struct eng_decimal *out)
{
    struct parts p;
    size_t from = 0, to;
    if (!read_parts(s, n, &p)) return CN_EINVAL;
    to = p.n_whole + p.n_fraction;
    while (to && digit_of(&p, to - 1) == '0')
        to--;
    while (from < to && digit_of(&p, from) == '0')
        from++;
    if (from == to) {
        room[0] = '0';
        *out = (struct eng_decimal){.digits = room, .n = 1};
        return 0;
    }
    /* digits from..to, times 10^power */
    long power = p.exponent + (long)p.n_whole - (long)to;
    size_t zeros = power > 0 ? (size_t)power : 0, scale = power < 0 ? (size_t)-power : 0;
    if (to - from + zeros > MOST_DIGITS || scale > MOST_DIGITS) return CN_ELIMIT;
    for (size_t i = from; i < to; i++)
        room[i - from] = digit_of(&p, i);
    memset(room + (to - from), '0', zeros);
    *out = (struct eng_decimal){p.negative, room, to - from + zeros, scale};
    return 0;
}

/* The digit at 10^(place - scale of the longer fraction). */
static char at_place(const struct eng_decimal *d, size_t place, size_t scale)
{
    size_t below = scale - d->scale; /* places that it has no digit for */
    return place < below || place - below >= d->n ? '0' : d->digits[d->n - 1 - (place - below)];
}

static bool is_zero(const struct eng_decimal *d)
{
    return d->n == 1 && d->digits[0] == '0';
}

int eng_decimal_compare(const struct eng_decimal *a, const struct eng_decimal *b)
{
    bool minus_a = a->negative && !is_zero(a), minus_b = b->negative && !is_zero(b);
    size_t scale = CN_MAX(a->scale, b->scale);
    size_t places = CN_MAX(a->n + scale - a->scale, b->n + scale - b->scale);
    if (minus_a != minus_b) return minus_a ? -1 : 1;
    while (places--) {
        int c = at_place(a, places, scale) - at_place(b, places, scale);
        if (c) return minus_a ? -c : c;
    }
    return 0;
}

/* ---- bounds of ranges (number.h) ------------------------------------------------------------- */

unsigned eng_bound_digit(const struct eng_bound *b, long place)
{
    long i = (long)b->n - 1 - (place - b->power);
    return place < b->power || i < 0 ? 0 : (unsigned)(b->digits[i] - '0');
}

void eng_bound_weigh(struct eng_bound *b)
{
    while (b->power < 0 && b->n > 1 && b->digits[b->n - 1] == '0') { /* 1.50 */
        b->n--;
        b->power++;
    }
    long whole = (long)b->n + b->power;
    if (eng_bound_zero(b)) b->power = 0, whole = 1;
    b->whole = whole > 0 ? (size_t)whole : 1;
    b->scale = b->power < 0 ? (size_t)-b->power : 0;
    for (b->zeros = 0; b->zeros < b->whole && !eng_bound_digit(b, (long)b->zeros);)
        b->zeros++;
    for (b->nines = 0; eng_bound_digit(b, (long)b->nines) == 9;)
        b->nines++;
}

/* Adds one unit of the last place; true if there is a digit more in front. */
static bool increment(char *digits, size_t n)
{
    while (n-- && digits[n] == '9')
        digits[n] = '0';
    if (n == SIZE_MAX) return true;
    digits[n]++;
    return false;
}
static void decrement(char *digits, size_t n)
{
    while (digits[--n] == '0')
        digits[n] = '9';
    digits[n]--;
}

void eng_bound_round(struct eng_bound *b, size_t scale, bool up, char room[ENG_BOUND_ROOM])
{
    long most = -(long)scale;
    bool cut = b->power < most, move = up ? cut || b->open : !cut && b->open;
    char *digits = room + 1;
    size_t n = b->n;
    if ((!cut && !move) || (eng_bound_zero(b) && !up)) return;
    if (cut) /* down to the next number */
        n = (long)n > most - b->power ? n - (size_t)(most - b->power) : 0;
    memcpy(digits, b->digits, n);
    for (long p = b->power; p > most; p--)
        digits[n++] = '0';
    if (!n) digits[n++] = '0';
    if (move && up && increment(digits, n)) {
        *--digits = '1';
        n++;
    }
    if (move && !up) decrement(digits, n);
    for (; n > 1 && *digits == '0'; n--)
        digits++;
    b->digits = digits;
    b->n = n;
    b->power = most;
    b->open = false;
    eng_bound_weigh(b);
}
