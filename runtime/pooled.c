#include "runtime/pooled.h"

#include <math.h>
#include <stdlib.h>

struct rt_pooled *rt_pooled_new(enum eng_pooling how, uint64_t n_prompt, uint64_t n)
{
    struct rt_pooled *p = cn_calloc(1, sizeof *p);
    if (!p) return NULL;
    *p = (struct rt_pooled){.how = how, .n_prompt = n_prompt, .n = n};
    p->sum = cn_calloc(n, sizeof *p->sum);
    p->vector = cn_calloc(n, sizeof *p->vector);
    if (p->sum && p->vector) return p;
    rt_pooled_free(p);
    return NULL;
}

void rt_pooled_free(struct rt_pooled *p)
{
    if (!p) return;
    free(p->sum);
    free(p->vector);
    free(p);
}

static bool counts(const struct rt_pooled *p, uint64_t pos)
{
    if (p->how == ENG_POOL_CLS) return pos == 0;
    return p->how == ENG_POOL_MEAN || pos + 1 == p->n_prompt;
}

int rt_pooled_row(struct rt_pooled *p, uint64_t pos, const float *row)
{
    if (p->how == ENG_POOL_LAST && pos > p->next) p->next = pos;
    if (pos < p->next) return 0; /* computed again after a preemption */
    if (pos > p->next) return CN_EINTERNAL;
    p->next++;
    for (uint64_t i = 0; counts(p, pos) && i < p->n; i++)
        p->sum[i] += (double)row[i];
    return 0;
}

int rt_pooled_finish(struct rt_pooled *p)
{
    double square = 0;
    if (p->next != p->n_prompt) return CN_EINTERNAL;
    /* The mean's divisor goes away with the length. */
    for (uint64_t i = 0; i < p->n; i++)
        square += p->sum[i] * p->sum[i];
    double length = sqrt(square);
    if (!isfinite(length) || length == 0) return CN_ENUMERIC;
    for (uint64_t i = 0; i < p->n; i++)
        p->vector[i] = (float)(p->sum[i] / length);
    return 0;
}
