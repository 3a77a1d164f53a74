/* Chance: generator, distributions of lengths, times of arrival. Pure functions of the seed and of
 * what a draw is for. */
#include "loadtest/loadtest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* splitmix64's step: spreads a counter over all bits. */
static uint64_t mix(uint64_t *x)
{
    uint64_t z = *x += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void lt_rand_init(struct lt_rand *r, uint64_t seed, enum lt_stream stream, uint64_t a, uint64_t b)
{
    uint64_t x = seed;

    x = mix(&x) ^ (uint64_t)stream;
    x = mix(&x) ^ a;
    x = mix(&x) ^ b;
    for (int i = 0; i < 4; i++)
        r->s[i] = mix(&x);
}

static uint64_t rotl(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

uint64_t lt_rand_u64(struct lt_rand *r)
{
    uint64_t *s = r->s, out = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return out;
}

double lt_rand_unit(struct lt_rand *r)
{
    return (double)((lt_rand_u64(r) >> 11) + 1) * 0x1p-53;
}

uint64_t lt_rand_below(struct lt_rand *r, uint64_t n)
{
    uint64_t skip = -n % n, x; /* 2^64 mod n values would come once too often */

    do {
        x = lt_rand_u64(r);
    } while (x < skip);
    return x % n;
}

double lt_rand_exp(struct lt_rand *r, double mean)
{
    return -mean * log(lt_rand_unit(r));
}

double lt_rand_normal(struct lt_rand *r)
{
    double radius = sqrt(-2 * log(lt_rand_unit(r)));

    return radius * cos(6.283185307179586 * lt_rand_unit(r)); /* Box and Muller, 1958 */
}

/* ---- lengths --------------------------------------------------------------------------------- */

uint64_t lt_len_draw(const struct lt_len *l, struct lt_rand *r)
{
    double x;

    switch (l->kind) {
    case LT_LEN_FIXED:
        return l->low;
    case LT_LEN_UNIFORM:
        return l->low + lt_rand_below(r, l->high - l->low + 1);
    case LT_LEN_LOGNORMAL:
        x = l->median * exp(l->sigma * lt_rand_normal(r));
        if (!(x > (double)l->low)) return l->low;
        return x >= (double)l->high ? l->high : (uint64_t)(x + 0.5);
    case LT_LEN_LIST:
        break;
    }
    return l->list[lt_rand_below(r, l->n_list)];
}

void lt_len_fini(struct lt_len *l)
{
    free(l->list);
    memset(l, 0, sizeof *l);
}

/* ---- arrivals -------------------------------------------------------------------------------- */

void lt_arrival_init(struct lt_arrival *a, double rate, bool even, uint64_t seed, uint64_t index)
{
    lt_rand_init(&a->rand, seed, LT_R_ARRIVAL, index, 0);
    a->rate = rate;
    a->even = even;
    a->at_s = 0;
    a->count = 0;
}

double lt_arrival_next(struct lt_arrival *a)
{
    /* a product, not a sum: an even schedule does not drift */
    if (a->even) return (double)a->count++ / a->rate;
    a->count++;
    a->at_s += lt_rand_exp(&a->rand, 1 / a->rate);
    return a->at_s;
}
