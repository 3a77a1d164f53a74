/* The kernel parity-and-bench harness: what its files share.
 *
 * A case checks one op of one ISA: against the generic C kernels, and those against an independent
 * computation in double precision. Each kind of comparison has a tolerance with its reason, here:
 *   PARITY_EQUAL    bit for bit: the sums are made of the same operations in the same order
 *   PARITY_SUM      |difference| <= (terms + 4) * 2^-24 * sum of |w x|: the bound of summing
 *                   `terms` rounded products one after another in float32 */
#ifndef TESTS_KERNELS_PARITY_H
#define TESTS_KERNELS_PARITY_H

#include "kernels/kernels.h"

struct parity_opts {
    enum kr_isa isa;
    const char *op, *type; /* only these; NULL = all */
    bool bench, json;
    uint32_t rows, cols; /* bench: one shape; 0 = the usual ones */
    uint32_t min_ms;     /* bench: time per figure (matmul: and round) */
    uint32_t threads, rounds;
    const char *batches; /* bench: numbers of input rows, as in "1,2,16-19"; NULL = the usual */
};

struct parity {
    struct parity_opts opts;
    const char *isa_name;
    uint64_t checks, failures;
};

/* Counts a check; says where it failed (the first failures of a run only). */
bool parity_check(struct parity *p, bool ok, const char *fmt, ...) CN_PRINTF(3, 4);
/* One figure of the benchmark, as text or as a line of JSON. */
void parity_figure(struct parity *p, const char *op, const char *type, uint32_t rows, uint32_t cols,
                   uint32_t batch, double seconds, double ops, double bytes);

/* Reproducible random numbers (xorshift64*). */
struct parity_rng { uint64_t s; };
uint32_t parity_u32(struct parity_rng *r);
float parity_uniform(struct parity_rng *r); /* -1 .. 1 */

/* Memory with canaries: n floats at an address that is 4 but not 8 byte aligned. */
struct parity_area {
    float *mem, *data;
    size_t n;
};
void parity_area_new(struct parity_area *a, size_t n);
bool parity_area_intact(const struct parity_area *a); /* the canaries around */
void parity_area_free(struct parity_area *a);
/* 64-byte aligned, never NULL. */
void *parity_alloc(size_t bytes);

extern const enum kr_type parity_types[];
extern const size_t parity_n_types;
bool parity_wants(const struct parity *p, const char *op, enum kr_type type);

void parity_matmul(struct parity *p);
void parity_matmul_bench(struct parity *p);
void parity_recurrent_bench(struct parity *p);
void parity_quantize(struct parity *p);

#endif
