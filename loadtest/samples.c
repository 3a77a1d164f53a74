/* Samples: growing arrays of every value, exact percentiles. */
#include "loadtest/loadtest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int lt_samples_add(struct lt_samples *s, uint64_t value)
{
    if (cn_grow(&s->v, &s->cap, s->n + 1, sizeof *s->v)) return CN_ENOMEM;
    s->sorted = false;
    s->v[s->n++] = value;
    return CN_OK;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

uint64_t lt_samples_at(struct lt_samples *s, double q)
{
    if (!s->n) return 0;
    if (!s->sorted) qsort(s->v, s->n, sizeof *s->v, by_value);
    s->sorted = true;
    /* 0.9 * 10 is a little above 9 in binary; the rank is 9 all the same */
    double rank = ceil(q * (double)s->n * (1 - 1e-12));

    if (rank < 1) return s->v[0];
    return s->v[CN_MIN((size_t)rank, s->n) - 1];
}

double lt_samples_mean(const struct lt_samples *s)
{
    double sum = 0;

    for (size_t i = 0; i < s->n; i++)
        sum += (double)s->v[i];
    return s->n ? sum / (double)s->n : 0;
}

int lt_samples_join(struct lt_samples *to, const struct lt_samples *from)
{
    if (!from->n) return CN_OK;
    if (cn_grow(&to->v, &to->cap, to->n + from->n, sizeof *to->v)) return CN_ENOMEM;
    memcpy(to->v + to->n, from->v, from->n * sizeof *to->v);
    to->n += from->n;
    to->sorted = false;
    return CN_OK;
}

void lt_samples_fini(struct lt_samples *s)
{
    free(s->v);
    memset(s, 0, sizeof *s);
}
