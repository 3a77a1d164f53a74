/* tiny: a small random transformer recorded as a plan, and a way to run it in any cut. Tests
 * only. */
#ifndef TESTS_KERNELS_TINY_H
#define TESTS_KERNELS_TINY_H

#include "tests/devices.h"

struct tiny_shape {
    uint32_t n_layers, width, heads, kv_heads, head_dim, ffn, vocab;
    uint32_t window;      /* of every second layer; 0: all layers see everything */
    float softcap;        /* of attention and of the logits; 0 = none */
    enum kr_type weights; /* of matrices */
    enum kr_type head;    /* of the table, which is the head too */
    bool qk_norm, bias, neox;
};

struct tiny {
    struct tiny_shape shape;
    struct kr_plan *plan;
    void **blobs;
    uint32_t n_blobs;
    uint64_t seed;
};

/* Asserts on failure: tests have no use for half a model. */
struct tiny *tiny_new(const struct tiny_shape *shape, uint64_t seed);
void tiny_free(struct tiny *t);
uint32_t tiny_rand(uint64_t *seed);
float tiny_uniform(uint64_t *seed); /* in [-1, 1) */
/* A matrix of random bytes with sane scales; bytes owned by t. */
struct kr_tensor tiny_matrix(struct tiny *t, const char *name, enum kr_type type, uint32_t rows,
                             uint32_t cols, float size);
struct kr_tensor tiny_vector(struct tiny *t, const char *name, uint32_t n, float mid, float spread);

/* A device, the prepared plan and KV memory with a simple allocator of blocks. */
struct tiny_run {
    struct kr_device *dev;
    struct kr_exec *exec;
    struct kr_kv_mem *mem;
    uint32_t block_tokens, n_groups, n_blocks, slab_blocks;
    uint32_t order; /* changes which blocks are taken */
    uint32_t used[4];
};
struct tiny_run_opts {
    enum kr_isa isa;
    uint32_t threads, block_tokens, max_rows, max_context, n_blocks, order;
    uint32_t slab_blocks; /* 0 = 1 */
    enum kr_type kv_type;
    const char *device;      /* NULL: dev_kind() */
    uint32_t max_logit_rows; /* 0 = max_rows */
    uint32_t max_seqs;
};
/* False when the machine lacks the ISA. */
bool tiny_run_open(struct tiny_run *r, const struct tiny *t, const struct tiny_run_opts *o);
void tiny_run_close(struct tiny_run *r);

/* A sequence on a run: its tables, and how far it is. */
struct tiny_seq {
    uint32_t *tables[4];
    const uint32_t *table_ptrs[4];
    const uint32_t *tokens;
    uint32_t n_tokens, done;
    float *logits; /* [n_tokens][vocab], filled as positions are run; may be NULL */
};
void tiny_seq_open(struct tiny_run *r, struct tiny_seq *s, const uint32_t *tokens, uint32_t n,
                   uint32_t vocab, bool keep);
void tiny_seq_close(struct tiny_seq *s);
/* One step: the next n[i] tokens of each sequence (0: it sits out). */
void tiny_step(struct tiny_run *r, struct tiny_seq *const *seqs, const uint32_t *n, uint32_t n_seqs,
               uint32_t vocab);

#endif
