/* experts_truth: a naive interpreter in double precision of plans with mixtures of experts. It
 * knows no grouping: a routed value is [row][choice]. Tests only. */
#ifndef TESTS_KERNELS_EXPERTS_TRUTH_H
#define TESTS_KERNELS_EXPERTS_TRUTH_H

#include "kernels/plan.h"

struct truth {
    const struct kr_plan *p;
    uint32_t rows;
    const float *embd;  /* [rows][width] */
    double **v;         /* by value: [rows][width]; routed: [rows][choice][width] */
    uint32_t **experts; /* of routes: [rows][choice] */
};

/* Runs the plan (at most 64 experts) on rows of embeddings. */
void truth_new(struct truth *t, const struct kr_plan *p, const float *embd, uint32_t rows);
void truth_free(struct truth *t);

#endif
