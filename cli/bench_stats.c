/* Medians and spread of the rounds of `conifer bench`. Pure. */
#include "cli/bench.h"

#include <stdlib.h>

int cli_bench_series_add(struct bench_series *s, double v, bool steady)
{
    int rc = cn_grow(&s->v, &s->cap, s->n + 1, sizeof *s->v);
    if (!rc) s->v[s->n++] = (struct bench_value){v, steady};
    return rc;
}

void cli_bench_series_fini(struct bench_series *s)
{
    free(s->v);
    *s = (struct bench_series){0};
}

static int by_value(const void *a, const void *b)
{
    const struct bench_value *x = a, *y = b;
    return x->v < y->v ? -1 : x->v > y->v;
}

static int steady_first(const void *a, const void *b)
{
    const struct bench_value *x = a, *y = b;
    return x->steady != y->steady ? y->steady - x->steady : by_value(a, b);
}

struct bench_summary cli_bench_summarise(struct bench_series *s)
{
    struct bench_summary sum = {0};
    size_t steady = 0;

    for (size_t i = 0; i < s->n; i++)
        steady += s->v[i].steady;
    sum.unsteady = steady * 2 < s->n;
    sum.used = sum.unsteady ? s->n : steady;
    sum.left_out = s->n - sum.used + s->missed;
    qsort(s->v, s->n, sizeof *s->v, sum.unsteady ? by_value : steady_first);
    sum.min = s->v[0].v;
    sum.max = s->v[sum.used - 1].v;
    sum.median = (s->v[(sum.used - 1) / 2].v + s->v[sum.used / 2].v) / 2;
    return sum;
}
