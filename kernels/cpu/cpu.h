/* The CPU device and its prepared plans. Private to kernels/cpu and its tests.
 *
 * A prepared plan is a list of levels. A level is row work, then heavy work. Row work is ops that
 * need one row at a time: a thread runs all of them on its rows, one after the other. Heavy work is
 * matrix products and attention, split by output. Both run as stages of the pool or as parts of a
 * chain (chain.c). Nothing here chooses arithmetic by the number of rows. */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/pool.h"
#include "kernels/device.h"
#include "kernels/plan.h"

/* (row, query head) pairs that an attention tile aims for. */
#define KR_TILE_PAIRS 48u
#define KR_TILE_GROUP 6u /* that vector code takes at a time */
#define KR_TILE_ROWS  48u
/* Elementwise ops on rows at least this wide are heavy work, split by columns. */
#define KR_WIDE_ROW  8192u
#define KR_WIDE_PART 4096u

struct kr_cpu {
    struct kr_device base;
    struct kr_pool *pool;
    struct kr_cpu_ops ops;
    struct kr_matmul_kernels mm;
    const struct kr_draw_loops *draw;
    struct kr_cpu_probe *probe; /* NULL before the first */
    bool fuse;                  /* false: one op per level, in the plan's order (the generic ISA) */
};

/* A slot of scratch: a plan value, a quantised copy of one, or a table of angles. */
struct kr_slot {
    enum kr_domain domain;
    uint32_t row_floats;  /* memory of a row, in floats */
    uint32_t stride;      /* of values: floats from row to row */
    uint32_t first, last; /* levels in use */
    uint64_t at;          /* floats before it, per row of the domain */
};

enum kr_step_kind { KR_STEP_OP, KR_STEP_QUANTIZE, KR_STEP_ANGLES, KR_STEP_GROUP, KR_STEP_GATHER };
/* One piece of row work or of heavy work. */
struct kr_step {
    enum kr_step_kind kind;
    uint32_t level;
    enum kr_domain domain;
    uint32_t op;     /* KR_STEP_OP: index in the plan; QUANTIZE: value; ANGLES: rope;
                      * GROUP: the route; GATHER: the dispatch */
    uint32_t slot;   /* QUANTIZE, ANGLES, GATHER: the slot made; matmul: its quantised input; route:
                      * the slot it works in */
    uint32_t weight; /* matmul: index of the packed weight, the first matrix of it */
    uint32_t then;   /* matmul: the weight that is read next; after the last the first */
    uint32_t chunk;  /* matmul: pairs of row groups taken at a time */
    uint32_t parts;  /* head_matmul, expert_matmul: chunks of one matrix */
    uint32_t from;   /* GATHER: the quantised slot whose rows are copied */
    uint32_t grouping;  /* GROUP and the steps that use it: index in groupings */
    uint32_t job, next; /* expert_matmul in this step: its job, the next of its grouping */
    /* Our aligned copies of the op's vectors; NULL when absent. */
    const float *w, *bias, *extra;
};
struct kr_level {
    uint32_t row_begin, row_end;     /* in row_steps */
    uint32_t heavy_begin, heavy_end; /* in heavy_steps */
    bool has_rows[KR_N_DOMAINS];     /* row work in that domain */
    /* A chain that begins here has the row work of chain_rows levels and the heavy work of
     * chain_heavy of them (as many, or one less: the last one's). 0: no chain begins here */
    uint32_t chain_rows, chain_heavy;
};

/* A step's rows as a route orders them: slots by expert, then by row and choice. */
struct kr_grouping {
    uint32_t n_experts, value;   /* of the route */
    uint32_t first_level, place; /* groupings with the same place are never in use at once */
    uint32_t dependents;         /* in this step: first heavy step of a list, or KR_NONE */
    uint32_t n_active;
    uint32_t *active; /* [n_active] experts with at least one slot, ascending */
    uint32_t *first;  /* [n_experts + 1] first slot of an expert */
    uint32_t *source; /* by slot: row * n_used + choice */
    uint32_t *slot;   /* by row * n_used + choice */
};
#define KR_NONE UINT32_MAX

/* Bytes of weights, keys and values that a thread has read. */
struct kr_touched {
    _Alignas(64) uint64_t dense;
    uint64_t experts, kv;
};

/* A KV layer's place in its group's block. */
struct kr_kv_layer {
    uint32_t group, n_heads, k_dim, v_dim;
    uint32_t v_kept; /* V's dims in the block; 0: V is part of K */
    bool latent;
    uint64_t at, bytes;                        /* of head 0, from the block's start; of all heads */
    uint64_t step;                             /* from head to head */
    struct kr_kv_place head;                   /* where each begins within a head */
    uint64_t k_head, ks_head, v_head, vs_head; /* bytes of each */
};

/* Rows that walk key ranges together. Every row is in one tile of its own sequence (its own tile).
 * It may also be in tiles of several sequences that share blocks: those walk the first ranges and
 * leave their super-ranges' states to the rows' own tiles, which continue from there. */
struct kr_tile {
    uint32_t row, n_rows;   /* in the tiling's rows */
    uint32_t seq;           /* whose table is read */
    uint32_t pos, last_pos; /* of the first and the last row */
    uint32_t end;           /* sequence's last position in the step, plus 1 */
    uint32_t begin, stop;   /* the tile walks ranges [begin, stop) */
    uint32_t first,
        last;          /* super-ranges [first, last); an own tile's include those of shared tiles */
    uint32_t merged;   /* leading super-ranges with one common state; 1: none */
    bool joins;        /* shared tiles walked the ranges before `begin` */
    uint32_t n_states; /* states kept per pair, for super-ranges from `first` on */
    uint32_t pieces;   /* given to that many items */
    uint64_t part;     /* first float of the kept states */
};
struct kr_work { uint32_t tile, first, last; /* super-ranges */ };
/* How the batch is cut into tiles; attention ops of one group and tile height share it. */
struct kr_tiling {
    uint32_t group, tile_rows;
    bool each_alone;              /* each row has its own keys, chosen by an indexer */
    uint32_t shared_rows;         /* of a shared tile at most */
    uint32_t n_units, row_floats; /* maximum over its ops: units, floats of states per row */
    uint32_t n_tiles, n_works;
    struct kr_tile *tiles; /* [max_rows] */
    struct kr_work *works; /* [max_works] */
    uint32_t n_shared, n_shared_works, n_listed;
    struct kr_tile *shared;       /* [max_rows] */
    struct kr_work *shared_works; /* [max_works] */
    uint32_t *rows, *positions; /* [3 * max_rows]: the step's rows, then the rows of shared tiles */
    uint32_t *owner;            /* [max_rows] a row's own tile */
};
/* A sequence's rows, used to find sequences that share blocks. */
struct kr_member {
    uint32_t row, n_rows, seq;
    uint32_t first,
        whole; /* ranges: first visible one; ranges before `whole` end before the rows */
    const uint32_t *table;
    bool alone;
};
/* The query heads of a KV head go to `parts` units of up to `heads` each; select has one unit. */
struct kr_attn_step { uint32_t tiling, heads, parts; };

/* A level's stages: its row work, tiles of several sequences, its heavy work. */
enum { KR_STAGE_ROWS, KR_STAGE_SHARED, KR_STAGE_HEAVY, KR_STAGES_A_LEVEL };

/* The rows of a sequence in the step. */
struct kr_run { uint32_t row, n_rows, seq; };

/* The step in progress: written by launch, read by all threads. */
struct kr_bound {
    const struct kr_batch *batch;
    struct kr_cpu_mem *mem;
    uint32_t n_rows, n_logits, n_routed;
    const uint32_t *logit_rows; /* [n_logits] index of each one's row in the step */
    uint32_t n_levels;          /* that the step goes through */
    uint32_t chain_parts;       /* parts the rows are cut into for chains; 0: no chains */
};

struct kr_cpu_exec {
    struct kr_exec base;
    struct kr_cpu *dev;
    const struct kr_plan *plan;
    /* the prepared plan */
    struct kr_step *row_steps, *heavy_steps;
    struct kr_level *levels;
    struct kr_slot *slots; /* values, then quantised values, then angles */
    uint32_t n_row_steps, n_heavy_steps, n_levels, n_slots;
    uint32_t first_logit_level;        /* work on rows of logits begins here */
    uint32_t last_kv_level;            /* later levels are skipped if no row wants logits */
    bool last_kv_heavy;                /* its heavy work is needed too: it makes a state */
    uint64_t row_floats[KR_N_DOMAINS]; /* scratch per row of each domain */
    struct kr_attn_step *attn;         /* by op index; for attention and select */
    struct kr_tiling *tilings;
    uint32_t n_tilings, max_works;
    uint32_t max_split; /* tiles x units below which keys are split; 0 = never */
    uint32_t max_units;
    struct kr_grouping *groupings;
    uint32_t n_groupings, n_grouping_places;
    uint8_t *grouping_mem;
    struct kr_touched *touched; /* by thread */
    uint64_t steps, rows;       /* so far */
    /* weights */
    struct kr_packed *packed;
    uint32_t n_packed;
    void *weight_mem;
    uint64_t weight_mem_bytes;
    float *vectors; /* norm weights and biases */
    /* KV */
    struct kr_kv_layer *kv_layers;
    struct kr_kv_group *kv_groups;
    /* scratch: one mapping */
    uint8_t *scratch;
    uint64_t scratch_bytes;
    float *shared[KR_N_DOMAINS];
    uint8_t *attn_mem; /* attention's, per thread */
    uint64_t attn_bytes;
    uint32_t max_pairs, max_k_dim, max_v_pad; /* sizes of attention's scratch */
    uint64_t max_scores;                      /* and select's: keys of a row */
    float *parts;
    uint64_t parts_floats;
    atomic_uint *parts_done;   /* [tile][unit] */
    struct kr_member *members; /* [max_rows] */
    struct kr_run *runs;       /* [max_rows]; NULL without recurrences */
    uint32_t n_runs, longest_run;
    uint32_t first_logit;      /* first logit row whose logits are in memory */
    struct kr_result *results; /* [max_rows] by logit row */
    /* the step as the pool runs it; only the jobs' n changes */
    struct kr_stage *stages;
    struct kr_job *jobs;
    struct kr_bound now;
    struct kr_batch batch;      /* the last step's */
    int draw_rc;                /* result of the last step's draws; CN_EINVAL before */
    struct kr_profile *profile; /* NULL: off */
};

struct kr_cpu_mem {
    struct kr_kv_mem base;
    uint8_t *data;
    uint64_t bytes;
};

/* layout.c: levels, steps and slots of a plan */
int kr_cpu_schedule(struct kr_cpu_exec *x, struct cn_error *err);
/* chain.c: levels that a thread takes some rows through by itself. kr_cpu_chain_parts gives the
 * parts that this step's rows are cut into, or 0; kr_cpu_chain runs one part. */
void kr_cpu_find_chains(struct kr_cpu_exec *x);
uint32_t kr_cpu_chain_parts(const struct kr_cpu_exec *x);
void kr_cpu_chain(struct kr_cpu_exec *x, uint32_t thread, uint32_t level, uint32_t part);
/* prepare.c */
int kr_cpu_prepare(struct kr_device *d, const struct kr_plan *p, const struct kr_prepare_opts *opts,
                   struct kr_exec **out, struct cn_error *err);
void kr_cpu_exec_free(struct kr_exec *base);
/* weights.c: distinct weights packed in parallel; norm weights and biases copied */
int kr_cpu_load_weights(struct kr_cpu_exec *x, struct cn_error *err);
/* probe.c */
int kr_cpu_probe(struct kr_device *d, uint64_t most_bytes, uint64_t ns_each, struct kr_probe *out,
                 struct cn_error *err);
int kr_cpu_probe_read(struct kr_device *d, uint64_t bytes, uint64_t ns, double *bytes_s,
                      struct cn_error *err);
void kr_cpu_probe_free(struct kr_cpu_probe *p);
/* describe.c */
int kr_cpu_describe(const struct kr_exec *base, struct cn_buf *out);
/* profile.c: the step of n stages that begins or is done */
int kr_cpu_profile(struct kr_exec *base, bool on);
int kr_cpu_profile_text(const struct kr_exec *base, struct cn_buf *out);
void kr_cpu_profile_begin(struct kr_cpu_exec *x, uint32_t n_stages);
void kr_cpu_profile_end(struct kr_cpu_exec *x, uint32_t n_stages);
/* kv.c */
int kr_cpu_kv_layout(struct kr_cpu_exec *x, struct cn_error *err);
int kr_cpu_mem_new(struct kr_device *d, uint64_t slab_bytes, uint32_t n_slabs,
                   struct kr_kv_mem **out, struct cn_error *err);
void kr_cpu_mem_free(struct kr_kv_mem *base);
int kr_cpu_kv_copy(struct kr_exec *base, struct kr_kv_mem *m, uint32_t group, uint32_t dst,
                   uint32_t src, uint32_t n_tokens);
/* The start of a block; it must be inside the memory. */
static inline uint8_t *kr_cpu_block(const struct kr_cpu_exec *x, const struct kr_cpu_mem *m,
                                    uint32_t group, uint32_t block)
{
    uint64_t slab = block >> KR_BLOCK_INDEX_BITS, bytes = x->kv_groups[group].block_bytes;
    uint64_t index = block & ((1u << KR_BLOCK_INDEX_BITS) - 1);
    return m->data + slab * m->base.slab_bytes + index * bytes;
}
/* move.c */
int kr_cpu_host_new(struct kr_device *d, uint64_t bytes, void **out, struct cn_error *err);
void kr_cpu_host_free(struct kr_device *d, void *host, uint64_t bytes);
int kr_cpu_kv_move(struct kr_exec *base, struct kr_kv_mem *m, const struct kr_move *moves,
                   uint32_t n, bool out, uint64_t *ticket, struct cn_error *err);
bool kr_cpu_moved(struct kr_exec *x, uint64_t ticket, bool wait);
/* Stores one row's K and V at its place in the pool. */
void kr_cpu_kv_store(const struct kr_cpu_exec *x, uint32_t layer, uint32_t row, const float *k,
                     const float *v);
/* step.c */
int kr_cpu_launch(struct kr_exec *base, struct kr_kv_mem *m, const struct kr_batch *b,
                  uint64_t *ticket, struct cn_error *err);
int kr_cpu_collect(struct kr_exec *base, uint64_t ticket, float **logits, struct cn_error *err);
/* Computes the logits of n logit rows from `first` on; they replace those in memory. */
void kr_cpu_make_logits(struct kr_cpu_exec *x, uint32_t first, uint32_t n);
/* draw.c */
int kr_cpu_draw(struct kr_exec *base, uint64_t ticket, const struct kr_draw *draws, uint32_t n,
                struct cn_error *err);
int kr_cpu_collect_drawn(struct kr_exec *base, uint64_t ticket, const struct kr_result **out,
                         struct cn_error *err);
/* Runs an elementwise op on columns [c0, c1) of a row. */
void kr_cpu_elementwise(const struct kr_cpu_exec *x, const struct kr_plan_op *op, uint32_t row,
                        uint32_t c0, uint32_t c1);
/* rows.c: the row work of a level on rows [r0, r1) of one domain */
void kr_cpu_row_work(const struct kr_cpu_exec *x, const struct kr_level *l, enum kr_domain domain,
                     uint32_t r0, uint32_t r1);
/* experts.c: jobs of heavy steps (by step index), row work of mixtures, and their memory */
int kr_cpu_plan_experts(struct kr_cpu_exec *x, struct cn_error *err);
uint64_t kr_cpu_grouping_bytes(const struct kr_cpu_exec *x);
void kr_cpu_place_groupings(struct kr_cpu_exec *x);
void kr_cpu_add_expert_job(struct kr_cpu_exec *x, struct kr_job *j, uint32_t index);
void kr_cpu_gather(const struct kr_cpu_exec *x, const struct kr_step *s, uint32_t slot);
void kr_cpu_expert_row(const struct kr_cpu_exec *x, const struct kr_step *s, uint32_t row);
void kr_cpu_counters(const struct kr_exec *base, struct kr_counters *out);
/* route.c: chooses a row's experts and their weights. scores: scratch, one double per expert. */
void kr_cpu_route(const struct kr_router *r, uint32_t n_experts, const float *logits,
                  const float *bias, const float *expert_scale, double *scores, float *out);
/* tiles.c */
int kr_cpu_plan_tilings(struct kr_cpu_exec *x, struct cn_error *err);
void kr_cpu_cut_batch(struct kr_cpu_exec *x);
uint64_t kr_cpu_attention_bytes(const struct kr_cpu_exec *x);
/* Floats of memory that the integer form of so many pairs' queries takes. */
uint64_t kr_cpu_word_floats(uint64_t pairs, uint64_t k_dim);
/* Floats that a thread needs for a tile's softmax states. */
uint64_t kr_cpu_state_floats(const struct kr_cpu_exec *x);
/* Index of a super-range's state among the tile's kept states. */
static inline uint32_t kr_state_of(const struct kr_tile *t, uint32_t super)
{
    uint32_t i = super - t->first;
    return i < t->merged ? 0 : i - t->merged + 1;
}
/* share.c: makes tiles of several sequences' rows, over ranges whose blocks they share. Returns the
 * floats of states that the rows' own tiles keep for them. */
uint64_t kr_cpu_share(struct kr_cpu_exec *x, struct kr_tiling *t);
/* attention.c: the number of pieces of work of an attention op in this step, how many a thread
 * should take at once, and the work of one piece. The pieces on shared keys come before all
 * others. */
uint32_t kr_cpu_attention_works(const struct kr_cpu_exec *x, const struct kr_step *s, bool shared);
uint32_t kr_cpu_attention_chunk(const struct kr_cpu_exec *x, const struct kr_step *s,
                                uint32_t works);
void kr_cpu_attention(struct kr_cpu_exec *x, uint32_t thread, const struct kr_step *s,
                      uint32_t work);
void kr_cpu_attention_shared(struct kr_cpu_exec *x, uint32_t thread, const struct kr_step *s,
                             uint32_t work);
/* The range's blocks that some row of the tile sees; the others are NULL. */
void kr_cpu_range_blocks(const struct kr_cpu_exec *x, uint32_t group, const struct kr_tile *tile,
                         uint64_t base, const uint8_t *blocks[KR_RANGE_KEYS / 16]);
void kr_cpu_tile_sight(const struct kr_cpu_exec *x, uint32_t group, const struct kr_tile *tile,
                       uint64_t *from, uint64_t *to);
/* True for the last of a tile's pieces, for one unit. */
bool kr_cpu_last_piece(struct kr_cpu_exec *x, uint32_t tile, uint32_t unit, uint32_t pieces);
/* select.c: a piece of work of a select op */
void kr_cpu_select(struct kr_cpu_exec *x, uint32_t thread, const struct kr_step *s, uint32_t work);
/* follow.c. n: places of the texts. kr_cpu_follow takes a row of kr_op_follow (x: width values) and
 * updates its state, one float. kr_cpu_peaks writes a row of kr_op_peak; at place 0 it returns
 * false and writes nothing. */
void kr_cpu_follow(const float *texts, uint32_t n, const float *x, uint32_t width, float *state);
bool kr_cpu_peaks(const float *tokens, uint32_t n, float at, const float *rest, float *y,
                  uint32_t width);
/* recurrent.c: conv, scan, delta, follow (the ops with a state) */
/* The op's weight in the order in which it is read: [taps][channels], or in the state's layout. */
void kr_cpu_recurrent_weight(const struct kr_plan *p, const struct kr_plan_op *op, float *dst);
void kr_cpu_cut_runs(struct kr_cpu_exec *x);
uint32_t kr_cpu_recurrent_units(const struct kr_cpu_exec *x, const struct kr_step *s);
void kr_cpu_recurrent(const struct kr_cpu_exec *x, const struct kr_step *s, uint32_t unit);

/* Matrices of equal shape in the op's weight, one after another. */
static inline uint32_t kr_matrices(const struct kr_plan_op *op)
{
    return op->kind == KR_OP_MATMUL ? 1 : op->heads;
}
static inline uint32_t kr_domain_rows(const struct kr_cpu_exec *x, enum kr_domain domain)
{
    if (domain == KR_DOM_ROWS) return x->now.n_rows;
    return domain == KR_DOM_LOGITS ? x->now.n_logits : x->now.n_routed;
}
/* Floats from row to row of a value: an odd number of whole cache lines, so that the rows of a
 * product's outputs do not all map to the same few sets of a cache. */
static inline uint32_t kr_value_stride(uint32_t width)
{
    return ((width + 15) / 16 | 1) * 16;
}
/* A slot's memory in this step: offsets scale with the step's rows. */
static inline float *kr_slot_mem(const struct kr_cpu_exec *x, uint32_t slot)
{
    const struct kr_slot *s = &x->slots[slot];
    return x->shared[s->domain] + s->at * kr_domain_rows(x, s->domain);
}
static inline float *kr_value_row(const struct kr_cpu_exec *x, uint32_t value, uint32_t row)
{
    return kr_slot_mem(x, value) + (size_t)row * x->slots[value].stride;
}
/* The logits in memory: those of logit rows from first_logit on. */
static inline float *kr_cpu_logits(const struct kr_cpu_exec *x)
{
    return kr_slot_mem(x, (uint32_t)x->plan->output);
}
static inline struct kr_q8 kr_slot_q8(const struct kr_cpu_exec *x, uint32_t slot, uint32_t cols)
{
    struct kr_q8 q;
    kr_q8_place(&q, kr_slot_mem(x, slot), kr_domain_rows(x, x->slots[slot].domain), cols);
    return q;
}

#endif
