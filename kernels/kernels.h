/* kernels: tensor types, recorded plans, devices, and the memory that KV blocks live in.
 *
 * A model family records its forward pass once as a plan (kr_plan_*, kr_op_*). A device prepares a
 * plan: it chooses kernels from shapes and types alone (never from the number of rows), repacks
 * weights, fuses ops, lays out scratch, and reports exact memory. A step only binds a batch.
 *
 * Promise 1 (same bytes whatever the load) rests here: for one prepared plan, the bytes of a row's
 * result depend on the row's sequence (its tokens and positions) alone: not on the other rows, on
 * how the sequence was cut into chunks, on thread count, or on which blocks hold its keys.
 * So: every output element is summed in one order; attention reads K and V back from the blocks in
 * the pool's type, the current chunk included, in fixed absolute key ranges merged in one order.
 *
 * Threads: a device, its execs and memories are used by one thread at a time (the engine thread);
 * the device's own worker threads are inside. A second thread (the loader) may meanwhile call
 * kr_prepare with `background`, and kr_exec_free for an exec that has no step in flight. kr_type_*
 * and kr_dequantize_row are pure. */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include "base/base.h"
#include "kernels/draw.h"

/* ---- tensor types (types.c; formulas: GGUF, reference attention section 3) ------------------- */

/* Numbers as in GGUF. */
enum kr_type {
    KR_F32 = 0,
    KR_F16 = 1,
    KR_Q4_0 = 2,
    KR_Q4_1 = 3,
    KR_Q5_0 = 6,
    KR_Q5_1 = 7,
    KR_Q8_0 = 8,
    KR_Q2_K = 10,
    KR_Q3_K = 11,
    KR_Q4_K = 12,
    KR_Q5_K = 13,
    KR_Q6_K = 14,
    KR_IQ4_NL = 20,
    KR_IQ3_S = 21,
    KR_IQ4_XS = 23,
    KR_BF16 = 30,
    KR_TQ1_0 = 34,
    KR_TQ2_0 = 35,
    KR_MXFP4 = 39,
};
struct kr_type_info {
    const char *name;     /* "Q4_K" */
    uint32_t block_elems; /* elements per block, 1 for floats */
    uint32_t block_bytes;
};
/* NULL for a type that is not supported; any number may be passed. */
const struct kr_type_info *kr_type_info(uint32_t type);
/* Comma-separated names of all supported types, for messages. */
const char *kr_type_list(void);
/* n values as float16, rounded to nearest even. */
void kr_quantize_f16(const float *src, uint16_t *dst, size_t n);
/* The stored values of n elements (a multiple of the block) as float32: bit-equal to gguf-py. */
void kr_dequantize_row(enum kr_type type, const void *src, float *dst, size_t n);

/* A tensor in a file: bytes borrowed (usually from a mapping) for the life of what uses it.
 * ne[0] is the fastest dimension: a matrix of R rows and C columns has ne = {C, R, 1, 1}. */
struct kr_tensor {
    const char *name;
    enum kr_type type;
    uint32_t n_dims;
    uint64_t ne[4];
    const void *data;
    uint64_t bytes;
};

/* ---- plans (plan.c) --------------------------------------------------------------------------
 * Recording never fails half-way: an error (shapes that do not match, out of memory) is kept and
 * later ops are no-ops; kr_plan_finish returns the first one. Ops return a value id >= 0. */

struct kr_plan;
struct kr_plan *kr_plan_new(void); /* NULL when out of memory */
void kr_plan_free(struct kr_plan *p);
/* Checks that there is an output; returns the first error of the recording. */
int kr_plan_finish(struct kr_plan *p, struct cn_error *err);

/* KV layers: a group is a set of layers that share one block table, and what a row sees of it.
 * Groups are numbered from 0 in the order of creation, layers within the plan from 0. */
enum kr_span {
    KR_SPAN_ALL,    /* every position up to the row's own */
    KR_SPAN_WINDOW, /* the last `tokens` positions, its own included */
    KR_SPAN_CHUNK,  /* from the last multiple of `tokens` up to its own */
    KR_SPAN_BOTH,   /* encoders: both ways, the whole sequence (tokens 0) or |distance| <= tokens/2.
                     * All rows of a sequence must be in one step */
    KR_SPAN_STATE,  /* recurrent state: a block is the whole state of a sequence (kr_plan_state) */
};
int kr_plan_kv_group(struct kr_plan *p, enum kr_span span, uint32_t tokens);
/* v_dim 0: keys only. */
int kr_plan_kv_layer(struct kr_plan *p, int group, uint32_t n_kv_heads, uint32_t k_dim,
                     uint32_t v_dim);
/* Only K is stored; V is the first v_dim values of K (MLA's latent). */
int kr_plan_kv_layer_latent(struct kr_plan *p, int group, uint32_t n_kv_heads, uint32_t k_dim,
                            uint32_t v_dim);
/* n_floats of float32 that a sequence carries from row to row; all states of a plan form one group
 * of span STATE. A row at position 0 starts from zeros. Returns the state's number. */
int kr_plan_state(struct kr_plan *p, uint32_t n_floats);

enum kr_rope_kind { KR_ROPE_NORM, KR_ROPE_NEOX }; /* pairs (2i, 2i+1) or (i, i + n_rot/2) */
struct kr_rope {
    enum kr_rope_kind kind;
    uint32_t head_dim, n_rot;
    /* n_rot/2 angles per position step, every scaling folded in (copied by the op):
     * angle = position * inv_freq[i]; cos and sin are multiplied by amplitude. */
    const float *inv_freq;
    float amplitude;
};
struct kr_attn {
    int kv_layer;
    uint32_t n_heads; /* query heads; a multiple of the layer's n_kv_heads */
    float scale;
    float softcap;                 /* 0 = none: s = cap * tanh(s / cap), after scale */
    const struct kr_tensor *sinks; /* [n_heads] F32: a logit without a value; NULL = none */
};
enum kr_act {
    KR_ACT_NONE,       /* g */
    KR_ACT_SILU,       /* g / (1 + e^-g) */
    KR_ACT_GELU_TANH,  /* 0.5 g (1 + tanh(sqrt(2/pi) (g + 0.044715 g^3))) */
    KR_ACT_GELU,       /* 0.5 g (1 + erf(g / sqrt 2)) */
    KR_ACT_SIGMOID,    /* 1 / (1 + e^-g) */
    KR_ACT_RELU2,      /* max(g, 0)^2 */
    KR_ACT_SWIGLU_OAI, /* gates only: g' sigmoid(1.702 g') (u' + 1); g' = min(g, 7), u' = u
                        * within +-7 */
};

/* table [V, D] -> [R, D] */
int kr_op_embed(struct kr_plan *p, const struct kr_tensor *table, float scale);
/* table [positions, D]: the line of each row's position -> [R, D]. Prepare refuses a max_context
 * beyond the table's end. */
int kr_op_embed_pos(struct kr_plan *p, const struct kr_tensor *table);
/* x [R, heads * n] -> same shape; w is F32, [n] or [heads * n], or NULL (all ones) */
int kr_op_rms_norm(struct kr_plan *p, int x, const struct kr_tensor *w, float eps, uint32_t heads);
/* y = (x - mean) / sqrt(var + eps) * w (+ b), population variance; w as rms_norm's, b likewise */
int kr_op_layer_norm(struct kr_plan *p, int x, const struct kr_tensor *w, const struct kr_tensor *b,
                     float eps, uint32_t heads);
/* x [R, C], w [O, C], bias [O] F32 or NULL -> [R, O] */
int kr_op_matmul(struct kr_plan *p, int x, const struct kr_tensor *w, const struct kr_tensor *bias);
/* x [R, H * C], w [H, O, C] -> [R, H * O]: each head has its own matrix */
int kr_op_head_matmul(struct kr_plan *p, int x, const struct kr_tensor *w);
/* x [R, heads * head_dim] -> same shape */
int kr_op_rope(struct kr_plan *p, int x, const struct kr_rope *rope);
/* k [R, n_kv_heads * k_dim], v [R, n_kv_heads * v_dim]; v -1 for latent and keys-only layers */
void kr_op_kv_write(struct kr_plan *p, int kv_layer, int k, int v);
/* q [R, n_heads * k_dim] -> [R, n_heads * v_dim]; the layer's kv_write must come before */
int kr_op_attention(struct kr_plan *p, int q, const struct kr_attn *attn);
/* The same over selected keys only (select: a value of kr_op_select). */
int kr_op_attention_selected(struct kr_plan *p, int q, const struct kr_attn *attn, int select);
/* DSA's indexer: score(s) = sum over heads of w[h] * max(0, q[h] . k(s)), the min(top_k, visible)
 * best positions s (ties: the lower position). q [R, H * k_dim], w [R, H]; kv_layer: keys only,
 * one head. -> a bit per position below max_context. */
int kr_op_select(struct kr_plan *p, int q, int w, int kv_layer, uint32_t top_k,
                 uint64_t max_context);
int kr_op_act(struct kr_plan *p, int x, enum kr_act act);
/* y = act(gate) * up. gate may be narrower, by a divisor: each of its values then serves
 * width(up) / width(gate) values of up in turn. */
int kr_op_glu(struct kr_plan *p, int gate, int up, enum kr_act act);
int kr_op_add(struct kr_plan *p, int a, int b);
int kr_op_scale(struct kr_plan *p, int x, float s);
int kr_op_softcap(struct kr_plan *p, int x, float cap);
/* y = x * (1 + beta * ln(1 + floor((position + offset) / period))) */
int kr_op_pos_scale(struct kr_plan *p, int x, float beta, uint32_t offset, uint32_t period);
/* x [R, heads * n] -> [R, heads * len]: values [from, from + len) of each head */
int kr_op_slice(struct kr_plan *p, int x, uint32_t heads, uint32_t from, uint32_t len);
/* a [R, heads * n], b [R, heads * m] -> [R, heads * (n + m)], head by head */
int kr_op_concat(struct kr_plan *p, int a, int b, uint32_t heads);

/* ---- mixtures of experts ----------------------------------------------------------------------
 * A routed value has one row per (row of the step, chosen expert), sorted by expert: an expert's
 * rows are adjacent and its weights are read once. Weights of experts that no row chose are not
 * read. All routes of a plan choose the same number of experts. */
enum kr_gating {
    KR_GATE_SOFTMAX, /* over all experts */
    KR_GATE_SIGMOID,
    KR_GATE_SOFTMAX_TOP, /* chosen by logits, softmax over the chosen */
    KR_GATE_SQRT_SOFTPLUS,
};
struct kr_router {
    uint32_t n_used;
    enum kr_gating gating;
    const struct kr_tensor *bias;     /* [E] F32, for the choice only; NULL = none */
    uint32_t n_groups, n_groups_used; /* 0, 0 = no limit; groups of equal size, by the sum of
                                       * their two best scores (one_best: by their best) */
    bool one_best;
    bool norm;                            /* weights divided by their sum (at least 2^-14) */
    float scale;                          /* then multiplied; 1 = none */
    const struct kr_tensor *expert_scale; /* [E] F32: then by the expert's; NULL = none */
};
/* logits [R, E] -> a route. Ties go to the lower expert. */
int kr_op_route(struct kr_plan *p, int logits, const struct kr_router *router);
/* x [R, C] -> routed [.., C]; scaled: multiplied by the weight (Llama 4) */
int kr_op_dispatch(struct kr_plan *p, int x, int route, bool scaled);
/* x routed [.., C], rows [first, first + n) of each expert of w [E, O, C]; bias [E, O] F32 or NULL
 * (the same rows of it) -> routed [.., n] */
int kr_op_expert_matmul(struct kr_plan *p, int x, int route, const struct kr_tensor *w,
                        const struct kr_tensor *bias, uint32_t first, uint32_t n);
/* x routed [.., D] -> [R, D]: the sum over a row's experts in the order of choice; weighted: each
 * times its weight */
int kr_op_combine(struct kr_plan *p, int x, int route, bool weighted);

/* ---- recurrences (one row after another, in prefill and decode alike) ------------------------ */

/* Causal depthwise convolution over the last k rows: y[c] = act(b[c] + sum_j w[c][j] u[c,
 * t-k+1+j]). x [R, C]; w [C, k] F32; b [C] F32 or NULL. Its state: C * (k - 1) floats. act NONE or
 * SILU. */
int kr_op_conv(struct kr_plan *p, int x, int state, const struct kr_tensor *w,
               const struct kr_tensor *b, enum kr_act act);
/* Selective state space scan. Per head of P = width(x) / n_heads values and its group's B and C of
 * N values: D = softplus(dt + dt_bias); S[p][n] = e^(D A) S[p][n] + D x[p] B[n]; y[p] = sum_n
 * S[p][n] C[n] + d x[p]. x [R, n_heads * P], dt [R, n_heads], b and c [R, n_groups * N]; a F32
 * [n_heads] (Mamba-2) or [n_heads * N] (Mamba-1: P = 1, one decay per n); d [n_heads] F32; dt_bias
 * [n_heads] F32 or NULL. Its state: width(x) * N floats. */
struct kr_scan {
    int state, x, dt, b, c;
    const struct kr_tensor *a, *d, *dt_bias;
    uint32_t n_heads, n_groups, n_state;
};
int kr_op_scan(struct kr_plan *p, const struct kr_scan *scan);
/* Gated delta rule, per value head, M [dv][dk]:  g = a_h softplus(a + dt_bias);  beta = sigmoid(b);
 * M = e^g M;  M += beta (v - M k) k^T;  o = M q.
 * q, k [R, n_k_heads * dk] (normalised and scaled by the caller), v [R, n_v_heads * dv];
 * a, b [R, n_v_heads]; decay, dt_bias [n_v_heads] F32. Value head h uses key head h / (Hv / Hk),
 * tiled: h mod Hk. Its state: n_v_heads * dv * dk floats. -> [R, n_v_heads * dv] */
struct kr_delta {
    int state, q, k, v, a, b;
    const struct kr_tensor *decay, *dt_bias;
    uint32_t n_k_heads, n_v_heads;
    bool tiled;
};
int kr_op_delta(struct kr_plan *p, const struct kr_delta *delta);

/* Tracks a sequence's place in texts that are known in advance. `texts` [n, 2] F32, n at most 2^24,
 * has a row (unit, next mark) for each place. A unit is a number of at least 0; -1 ends a text. The
 * next mark is the first place of the same text, from this one on, whose unit is a mark; 0 if there
 * is no such place. Place 0 belongs to no text.
 * The state is a place. A row of x [R, C] describes the row's token: (begin, reach, count,
 * unit...). begin > 0 sets the place to begin. Otherwise the text is searched for the token's
 * `count` units: at the place, then at the next `reach` places (at most KR_FOLLOW_REACH). A reach
 * of -1 searches the next KR_FOLLOW_MARKS marks instead; -2 does too, but not from the first place
 * of a text. If the units are found, the place moves past them; if not, it does not change. -> [R,
 * 1] the place */
#define KR_FOLLOW_REACH 64u
#define KR_FOLLOW_MARKS 64u
int kr_op_follow(struct kr_plan *p, int x, int state, const struct kr_tensor *texts);

/* A model without arithmetic: [rows of x, width] zeros with one value of 32 per row. x's values are
 * not read. The 32 stands at `at_period` where the next position is a multiple of period (0:
 * never), else at first + f, with f a fixed function of the row's token and position, below width -
 * first.
 * With `tokens` [n] F32 and `rest` [width] F32 (both NULL or neither), x [rows, 1] is a place of
 * kr_op_follow. At place 0 a row is as above. At any other place it is `rest`, with 4096 at
 * tokens[place] and 512 - 12 k at tokens[place + k], k = 1 to KR_PEAK_AHEAD - 1, up to the end of
 * the text (-1 in `tokens`). A token that occurs more than once gets the value of the nearest
 * place. The lower values are for draws whose mask forbids tokens[place]. */
#define KR_PEAK_AHEAD 32u
struct kr_peak {
    uint32_t width, first, period, at_period;
    const struct kr_tensor *tokens, *rest;
};
int kr_op_peak(struct kr_plan *p, int x, const struct kr_peak *peak);
/* x [R, D] -> [logit rows, D]: the rows whose logits are wanted (kr_row.logits) */
int kr_op_take_logits(struct kr_plan *p, int x);
/* x [logit rows, V] is the first output, which a step returns. Every plan has one. (Embedding
 * models: V is the vector's length.) */
void kr_plan_output(struct kr_plan *p, int x);
/* A further output, [logit rows, any width]: hidden rows for a draft model, for example. The name
 * is unique in the plan, and copied. When the device has fewer outputs than the plan
 * (kr_device_info.max_outputs), prepare fails with CN_EUNSUPP and the name. */
void kr_plan_output_more(struct kr_plan *p, const char *name, int x);

/* ---- devices (device.c, cpu/) ---------------------------------------------------------------- */

/* AVXVNNI = AVX2 + AVX-VNNI (byte dot products). AVX512 = F+BW+VL+DQ+VNNI. NEON includes byte dot
 * products; I8MM adds matrix products of bytes, with the same results. */
enum kr_isa {
    KR_ISA_AUTO,
    KR_ISA_GENERIC,
    KR_ISA_AVX2,
    KR_ISA_AVXVNNI,
    KR_ISA_AVX512,
    KR_ISA_NEON,
    KR_ISA_I8MM,
    KR_N_ISAS
};
/* All instruction sets with kernels, of any processor. */
#define KR_ISAS KR_ISA_GENERIC, KR_ISA_AVX2, KR_ISA_AVXVNNI, KR_ISA_AVX512, KR_ISA_NEON, KR_ISA_I8MM
/* "auto", "generic", "avx2" ... */
const char *kr_isa_name(enum kr_isa isa);
enum kr_isa kr_isa_named(const char *name); /* KR_N_ISAS: unknown name */

struct kr_device;
struct kr_cpu_opts {
    enum kr_isa isa;    /* CN_EUNSUPP when the machine lacks it */
    uint32_t n_threads; /* 0 = as many as the process may use processors */
};
int kr_cpu_new(const struct kr_cpu_opts *opts, struct kr_device **out, struct cn_error *err);
/* The arithmetic of `cpu` on a thread of its own, for tests. It behaves as a device that runs
 * beside the host: launches return at once, two steps may be in flight, draws and copies keep their
 * order, and it has its own block tables. Takes ownership of `cpu`, on failure too. */
struct kr_async_opts {
    uint64_t delay_ns;       /* added to each step */
    uint64_t lost_after;     /* steps until the device is lost; 0: never */
    uint64_t memory_bytes;   /* of its own; 0: it uses the host's */
    uint64_t upload_bytes_s; /* the highest rate of uploading weights; 0: no bound */
    bool lends_at_load;      /* as kr_device_info says it */
};
int kr_async_new(struct kr_device *cpu, const struct kr_async_opts *opts, struct kr_device **out,
                 struct cn_error *err);
/* A device by its kind: one of kr_device_kinds() (comma-separated), or "auto". CN_EINVAL: unknown
 * kind; other errors are those of the kind's own function. */
struct kr_device_opts {
    struct kr_cpu_opts cpu;
    struct kr_async_opts async;
};
int kr_device_new(const char *kind, const struct kr_device_opts *opts, struct kr_device **out,
                  struct cn_error *err);
const char *kr_device_kinds(void);
void kr_device_free(struct kr_device *d);
struct kr_device_info {
    const char *kind;      /* "cpu", "async" */
    uint32_t max_depth;    /* how many of its steps may be in flight */
    uint32_t max_outputs;  /* of a plan */
    bool keeps_draws;      /* it draws with copies of its own (kr_draw_open) */
    bool lends_at_load;    /* slabs of KV memory change hands between models and groups only while
                            * a model is loaded or unloaded (kv_pool_opts.lend_at_load) */
    uint64_t memory_bytes; /* of its own, for weights, scratch and KV blocks; 0: it uses the host's,
                            * which the caller looks up */
    uint64_t free_bytes;   /* of memory_bytes, now. What exceeds it fails with CN_ENOMEM when it is
                            * made; the message has both figures */
    uint64_t move_bytes_s; /* speed of the latest moves (kr_kv_move); 0: there was none */
    uint64_t moved_ns;     /* when the last one was done (cn_now_ns); 0: there was none */
};
/* Any thread. */
void kr_device_info(const struct kr_device *d, struct kr_device_info *out);
/* Whether the device is lost. It stays lost: launches, draws, moves and collects of steps that were
 * not done return CN_EDEVICE from then on, and other calls may. *why: static text, or text that
 * lives as long as the device. Any thread. */
bool kr_device_lost(const struct kr_device *d, const char **why);
/* Names the numeric path, for system_fingerprint: "cpu-avx512-2". Thread count is not in it. */
const char *kr_device_path(const struct kr_device *d);
/* The loops that its draw states are made with (kr_draw_opts). */
const struct kr_draw_loops *kr_device_draw_loops(const struct kr_device *d);
/* The threads of kr_device_parallel: as many as kr_device_opts.cpu asks for, on every kind. */
uint32_t kr_device_threads(const struct kr_device *d);
/* Runs fn(arg, i) for i in 0..n-1 on the device's threads (the caller included) and waits. */
void kr_device_parallel(struct kr_device *d, uint32_t n, void (*fn)(void *arg, uint32_t i),
                        void *arg);

/* The device's current peak rates, all threads together; speeds are reported as shares of these.
 * Each is the best of a few short runs of ns_each in total. The first call also fills the read
 * buffer, which is kept until the device is freed. The buffer has at most most_bytes, but at least
 * 256 KiB per thread; the caller must know how much memory is free. CN_ENOMEM if there is not
 * enough. */
struct kr_probe {
    double read_bytes_s; /* reading a buffer; larger than the last-level cache if it may be */
    double int8_ops_s;   /* products of 8-bit integers in registers, two operations each */
    double fma_flops_s;  /* fused multiply-adds of float32, two operations each */
};
int kr_device_probe(struct kr_device *d, uint64_t most_bytes, uint64_t ns_each,
                    struct kr_probe *out, struct cn_error *err);
/* The read rate of a buffer of about `bytes`, read over and over, so that caches count. */
int kr_device_probe_read(struct kr_device *d, uint64_t bytes, uint64_t ns, double *bytes_s,
                         struct cn_error *err);

struct kr_prepare_opts {
    enum kr_type kv_type;    /* KR_F16, KR_Q8_0 or KR_Q4_0 */
    uint32_t block_tokens;   /* 16 or 32 */
    uint32_t max_rows;       /* rows of a step */
    uint32_t max_logit_rows; /* whose logits are in memory at once */
    uint32_t max_seqs;       /* slots of sequences (kr_seq); 0: launches bring whole tables */
    uint64_t max_context;    /* positions are below this (RoPE tables, score scratch) */
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes); /* may be NULL */
    void *progress_arg;
    /* Bytes [p, p + n) of a weight have been copied and will rarely be read again. Called from any
     * thread, in any order of ranges; may be NULL. */
    void (*copied)(void *arg, const void *p, uint64_t n);
    void *copied_arg;
    bool measure;            /* without the weights, for exact sizes; cannot be launched */
    bool background;         /* the device may be in a step: only the calling thread packs */
    const atomic_bool *stop; /* once true, prepare soon fails with CN_ECANCELLED; may be NULL */
};

struct kr_kv_group {
    enum kr_span span;
    uint32_t window_tokens; /* the span's tokens; 0 = none */
    uint32_t n_layers;      /* states in a group of span STATE */
    uint64_t block_bytes;   /* all layers of the group, one block; a multiple of 64 */
};
struct kr_exec_info {
    uint64_t weight_bytes; /* that a decode step reads, without experts */
    uint64_t expert_bytes; /* of one expert, summed over the layers that have experts */
    uint32_t n_experts, n_experts_used;
    uint64_t row_macs;      /* multiply-adds of a row's products with weights, chosen experts
                             * included */
    uint64_t logit_macs;    /* that a row takes in addition when its logits are wanted */
    uint64_t packed_bytes;  /* memory taken by repacked weights */
    uint64_t scratch_bytes; /* exact */
    uint64_t embd_dim, n_vocab;
    bool embeds;           /* rows may be embeddings (KR_ROW_EMBED): the plan has one kr_op_embed */
    bool turns, both_ways; /* rows may have turns; both_until */
    uint32_t n_adapters;   /* rows may name 1 .. n_adapters */
    uint32_t n_outputs;    /* of the plan. No call returns more than the first one yet */
    uint32_t n_groups;
    const struct kr_kv_group *groups;
};
/* Sums over all steps so far. */
struct kr_counters {
    uint64_t steps, rows;
    uint64_t barriers;     /* how often the device's threads waited for each other */
    uint64_t weight_bytes; /* dense weights read; a step reads each once */
    uint64_t expert_bytes; /* weights of experts read */
    uint64_t kv_bytes;     /* keys and values that attention read; one read may serve many rows */
};

/* A plan prepared for a device. The plan and its tensors' bytes must outlive it. kr_prepare also
 * uploads the weights, in the form that the device wants: the CPU repacks them. */
struct kr_exec;
int kr_prepare(struct kr_device *d, const struct kr_plan *p, const struct kr_prepare_opts *opts,
               struct kr_exec **out, struct cn_error *err);
void kr_exec_free(struct kr_exec *x);
const struct kr_exec_info *kr_exec_info(const struct kr_exec *x);
void kr_exec_counters(const struct kr_exec *x, struct kr_counters *out);
/* One line per op: name, shapes, kernel variant; for `show` and docs. */
int kr_exec_describe(const struct kr_exec *x, struct cn_buf *out);

/* For benchmarks, between steps: starts (on) or stops recording the time of each stage of a step.
 * CN_ENOMEM: nothing is recorded. */
int kr_exec_profile(struct kr_exec *x, bool on);
/* Appends the recorded times: a line per kind of stage, the costliest first. CN_ENOMEM. */
int kr_exec_profile_text(const struct kr_exec *x, struct cn_buf *out);

/* KV memory: n_slabs slabs of slab_bytes (a multiple of 64), page-aligned, committed when touched.
 * A block number is slab << KR_BLOCK_INDEX_BITS | index; the block of group g lies at
 * slab * slab_bytes + index * groups[g].block_bytes. A slab serves one group at a time. */
#define KR_BLOCK_INDEX_BITS 12
struct kr_kv_mem;
int kr_kv_mem_new(struct kr_device *d, uint64_t slab_bytes, uint32_t n_slabs,
                  struct kr_kv_mem **out, struct cn_error *err);
void kr_kv_mem_free(struct kr_kv_mem *m);
/* Copies the first n_tokens of a block (copy-on-write of a partial block). In a group of span STATE
 * it copies the whole block. Copies, moves and steps run in the order of their calls. */
int kr_kv_copy(struct kr_exec *x, struct kr_kv_mem *m, uint32_t group, uint32_t dst_block,
               uint32_t src_block, uint32_t n_tokens);

/* Host memory that the device can move blocks to and from (a GPU: pinned). Page-aligned, committed
 * when touched; the caller frees it before the device. CN_ENOMEM. */
int kr_host_new(struct kr_device *d, uint64_t bytes, void **out, struct cn_error *err);
void kr_host_free(struct kr_device *d, void *host, uint64_t bytes);
/* Moves whole blocks out to host memory, or in from it; in order, as kr_kv_copy. A move out sees
 * the results of the steps launched before it, and its blocks may be reused by steps launched after
 * it. Those steps see what a move in has brought. The device owns the bytes on the host until
 * kr_moved says that the ticket is done. Tickets of moves are numbers of their own; a device that
 * moves at once may give 1 always. moves: copied. CN_ERANGE: a block is outside the memory. */
struct kr_move {
    uint32_t group, block;
    void *host; /* [block_bytes] of the group */
};
int kr_kv_move(struct kr_exec *x, struct kr_kv_mem *m, const struct kr_move *moves, uint32_t n,
               bool out, uint64_t *ticket, struct cn_error *err);
/* Whether a move is done; with `wait` it blocks until then. Moves finish in the order of their
 * tickets. */
bool kr_moved(struct kr_exec *x, uint64_t ticket, bool wait);

/* ---- steps ----------------------------------------------------------------------------------- */

enum kr_row_src { KR_ROW_TOKEN, KR_ROW_EMBED, KR_ROW_TICKET };
struct kr_row {
    uint32_t seq;          /* index into the batch's sequences */
    uint32_t pos;          /* its position in the sequence */
    uint32_t adapter;      /* at most the exec's n_adapters; 0 = none */
    uint32_t both_until;   /* 0: it sees positions up to its own, by its layers' spans. Else also
                            * those from its own to below both_until, all of which are rows of
                            * this step. Needs the exec's both_ways */
    const uint32_t *turns; /* [3] positions for RoPE, in models that use three; NULL: pos. Needs
                            * the exec's turns */
    uint8_t src;           /* enum kr_row_src */
    bool logits;
    bool prompt; /* its position is in the request's prompt; else it was generated, also when it
                  * is computed again */
    union {
        uint32_t token;
        const float *embed; /* [embd_dim], the first layer's input. Needs the exec's embeds */
        struct {
            uint64_t ticket;
            uint32_t row;
        } from; /* the id drawn for that row of that step */
    };
};
struct kr_seq {
    /* Per group: block number of each logical block (position / block_tokens), up to the last row's
     * position; entries before the window are not read. Groups of span STATE: one entry, the block
     * of the sequence's state, which the step reads and writes. A device with max_depth above 1
     * reads the tables in kr_launch only. */
    const uint32_t *const *tables;
    /* For devices that keep tables (max_depth above 1, prepared with max_seqs): the slot of this
     * sequence's tables. With a new generation the slot is empty. */
    uint32_t slot;
    uint64_t generation;
    /* Per group: the first entry that may differ from the slot's last step. NULL: all may
     * differ. */
    const uint32_t *changed;
    /* Further sequences whose keys its rows read, such as an encoder's for cross attention. No op
     * reads them yet: above 0 is CN_EUNSUPP. */
    uint32_t n_more;
    const struct kr_seq *more;
};
/* Rows of a sequence are adjacent, their positions ascending by one. */
struct kr_batch {
    uint32_t n_rows, n_seqs;
    const struct kr_row *rows;
    const struct kr_seq *seqs;
    bool drawn; /* kr_draw follows; else kr_collect, for at most max_logit_rows rows with logits */
};

/* Starts a step of at most max_rows rows. The batch's arrays are borrowed until it is collected. On
 * the CPU the step is done when this returns. The id of a KR_ROW_TICKET row was drawn in an earlier
 * step of this exec: kr_draw was called for that step, and it need not be collected yet. Such rows
 * are CN_EUNSUPP where the device's max_depth is 1. */
int kr_launch(struct kr_exec *x, struct kr_kv_mem *m, const struct kr_batch *b, uint64_t *ticket,
              struct cn_error *err);
/* Waits. *logits: [rows with logits][n_vocab], which the caller may write to. Valid until the
 * launch that is max_depth launches after this step's. */
int kr_collect(struct kr_exec *x, uint64_t ticket, float **logits, struct cn_error *err);

/* What the choices draw with. A device may keep a copy of a choice's draw state (kernels/draw.h),
 * by the slot and generation of its sequence, as it keeps block tables. It is sent the state once
 * and changes afterwards; ids that it draws it adds itself. Other devices draw with the caller's
 * state, and these calls change that one. Either way the caller does the same. In order with
 * kr_draw. */
struct kr_draw_at {
    uint32_t slot;       /* below max_seqs */
    uint64_t generation; /* 0: nothing is there */
};
/* The choice at this place draws with s from now on, and has put out these ids. Another choice that
 * had the slot is forgotten. like: the place of another choice of the same request, whose prompt is
 * then not sent again; if that choice is not there any more, s is used. CN_ENOMEM; CN_ERANGE: no
 * such slot. */
int kr_draw_open(struct kr_exec *x, struct kr_draw_at at, const struct kr_draw_state *s,
                 struct kr_draw_at like, const uint32_t *output, size_t n_output);
/* The choice's output is now its first `before` ids, which the device knows, and then these n:
 * forced ids, which were not drawn. What was drawn after `before` (at most KR_DRAW_BACK ids) is
 * taken back. Where the choice is not at this place any more, nothing is done: kr_draw_open will
 * bring all ids. CN_ENOMEM. */
int kr_draw_put(struct kr_exec *x, struct kr_draw_at at, struct kr_draw_state *s, uint64_t before,
                const uint32_t *ids, size_t n);
/* The choice has ended: after the draws that were asked for, the copy may be freed. */
void kr_draw_close(struct kr_exec *x, struct kr_draw_at at);

/* What to draw from a row's logits, and from the rows after it that hold guesses (draft tokens). */
struct kr_draw {
    uint32_t row;                /* of the step's rows with logits, from 0; ascending */
    uint32_t n_guesses;          /* rows after it, each with a guess of the id drawn before it */
    const uint32_t *guesses;     /* [n_guesses] the ids in those rows */
    struct kr_draw_state *state; /* parameters and history of the draw; drawn ids are added to it,
                                  * or to the device's copy. NULL: the row is scored */
    struct kr_draw_at at;        /* where kr_draw_open put the state; not read if it is scored */
    uint64_t position;           /* of the first id that is drawn; the next ones follow it */
    /* [1 + n_guesses] per row a bit for each id that may be drawn, or NULL: all ids. NULL instead
     * of the array: all ids in all rows */
    const uint32_t *const *masks;
    uint32_t score, n_top; /* for a scored row: the id whose log-probability is wanted, and the
                            * number of alternatives (kr_draw_score) */
};
/* status: 0; CN_ENUMERIC: the logits are not finite, or all ids were masked; CN_ECANCELLED: the row
 * was not drawn, because no draw names it or a guess before it was wrong; CN_ENOMEM. */
struct kr_result {
    int status;
    struct kr_drawn drawn;
};
/* Draws rows of the last launched step. Called exactly once for each step whose batch is `drawn`,
 * even with nothing to draw, and before the exec's next launch. Everything is copied except the
 * states, which must stay in place until the step is collected. CN_EINVAL: a device with copies has
 * none of a draw's choice. */
int kr_draw(struct kr_exec *x, uint64_t ticket, const struct kr_draw *draws, uint32_t n,
            struct cn_error *err);
/* Waits for the oldest drawn step that is not collected. *out: [rows with logits], valid as long as
 * kr_collect's result. */
int kr_collect_drawn(struct kr_exec *x, uint64_t ticket, const struct kr_result **out,
                     struct cn_error *err);

#endif
