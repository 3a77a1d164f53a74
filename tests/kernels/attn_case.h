/* attn_case: attention alone, as a plan whose rows bring their own queries, keys and values; a way
 * to run it in any cut, and what it should give, in double precision. Tests only. */
#ifndef TESTS_KERNELS_ATTN_CASE_H
#define TESTS_KERNELS_ATTN_CASE_H

#include "tests/devices.h"

struct attn_shape {
    const char *name;
    enum kr_span span;
    uint32_t tokens; /* the span's */
    uint32_t kv_heads, heads, k_dim, v_dim;
    bool latent, sinks;
    float softcap;
    uint32_t top_k;              /* 0: every visible key; else an indexer of */
    uint32_t sel_heads, sel_dim; /* integers, so that scores are exact and ties are many */
    uint32_t n;                  /* rows of the sequence */
};

/* A place in a row: of queries, keys, values; the indexer's queries, weights and keys; its end. */
struct attn_parts { uint32_t q, k, v, iq, iw, ik, end; };
struct attn_parts attn_parts_of(const struct attn_shape *s);

/* A plan, and the rows of one sequence: [n][width] floats. */
struct attn_case {
    struct attn_shape shape;
    enum kr_type kv_type;
    struct kr_plan *plan;
    float *rows, *sinks, *table;
    float *kept;         /* rows as the pool keeps them: made by the first attn_case_truth */
    uint32_t width, out; /* floats of a row, of a result */
};
void attn_case_open(struct attn_case *c, const struct attn_shape *shape, enum kr_type kv_type,
                    uint64_t seed);
void attn_case_close(struct attn_case *c);
/* Row r's result. */
void attn_case_truth(struct attn_case *c, uint32_t r, double *y);

struct attn_run {
    enum kr_isa isa;
    uint32_t threads, block_tokens, order, max_rows;
    /* Rows of each step, repeated; 0 ends the list. A step may hold a second sequence of the same
     * rows, `behind` rows behind the first. */
    const uint32_t *cuts;
    bool twice;
    bool copies; /* after each step the first sequence moves on in a copy of its last block */
    uint32_t behind;
};
/* All results [n][out] of the first sequence (twice: of the second in *other), malloced; NULL when
 * the machine lacks the ISA. */
float *attn_case_run(const struct attn_case *c, const struct attn_run *how, float **other);

/* Every how-manieth case a run tries: more than one where kernels are instrumented (ten to twenty
 * times slower) or emulated (CONIFER_SHORT is set; some fifty times). */
uint32_t attn_case_share(void);

#endif
