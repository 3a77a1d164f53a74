/* A prompt's rows on their way to one vector: pooled in the order of positions, in float64, so that
 * the bytes do not depend on how the prompt was cut into steps. One thread at a time. */
#ifndef RUNTIME_POOLED_H
#define RUNTIME_POOLED_H

#include "engine/engine.h"

struct rt_pooled {
    enum eng_pooling how;
    uint64_t n_prompt;
    uint64_t next; /* position of the row that comes next */
    uint64_t n;    /* values of a row */
    double *sum;   /* [n] */
    float *vector; /* [n], once finished */
};

/* NULL when out of memory. */
struct rt_pooled *rt_pooled_new(enum eng_pooling how, uint64_t n_prompt, uint64_t n);
void rt_pooled_free(struct rt_pooled *p);
/* Takes the row of one position. Rows come in order; of LAST only the last has to come, and one
 * that was taken before may come again. CN_EINTERNAL when one is missing. */
int rt_pooled_row(struct rt_pooled *p, uint64_t pos, const float *row);
/* After the last row: the vector, of length 1. CN_ENUMERIC when there is none: a value that is no
 * number, or nothing but zeros. */
int rt_pooled_finish(struct rt_pooled *p);

#endif
