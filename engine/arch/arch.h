/* The tools of a family's file: the model's numbers, its weights by name, and ops that take both.
 * Private to engine/. Used by one thread while a model is opened.
 *
 * A builder keeps the first error; after it every call is a no-op, so that a forward pass reads
 * from top to bottom without checks. Values are ids of kr_plan_*; -1 after an error. */
#ifndef ENGINE_ARCH_ARCH_H
#define ENGINE_ARCH_ARCH_H

#include "engine/engine.h"

struct eng_builder;

enum eng_rope_scaling { ENG_ROPE_NONE, ENG_ROPE_LINEAR, ENG_ROPE_YARN, ENG_ROPE_LONG };

struct eng_layer {
    uint32_t n_heads, n_kv_heads; /* 0 in families with recurrent layers: no attention here */
    uint32_t ff_dim;
    uint32_t k_dim, v_dim, n_rot; /* of a head */
    bool windowed;                /* sees the last window_tokens only */
    int kv_layer;                 /* the plan's, -1 until there is one */
};

/* Read from the file's keys and checked (hparams.c); names follow the keys. */
struct eng_hparams {
    uint32_t n_layers, n_blocks,
        embd_dim;                    /* blocks: layers, and layers that predict further tokens */
    uint64_t n_vocab;                /* rows of the embedding table in use */
    uint64_t n_file_vocab;           /* tokenizer.ggml.tokens, 0 when absent */
    uint64_t train_context, context; /* context: what the model is prepared for */
    uint64_t window_tokens;          /* 0 = none, or not below the context */
    float eps, freq_base, freq_base_windowed;
    float attn_softcap, final_softcap; /* 0 = none */
    float logit_scale;                 /* factor of the logits; families set it */
    enum eng_rope_scaling scaling;
    float scaling_factor, attn_factor, yarn_log_mul, yarn_fast, yarn_slow;
    bool has_yarn_log_mul;
    uint64_t original_context;
    uint32_t n_experts, expert_ff_dim; /* 0: none */
    enum eng_pooling pooling;
    struct eng_layer *layers; /* n_layers, in the builder's arena */
};

/* The rotation of windowed layers: that of the others; their own base, unscaled; or the others'
 * base, unscaled. */
enum eng_window_rope { ENG_WINDOW_ROPE_SAME, ENG_WINDOW_ROPE_OWN, ENG_WINDOW_ROPE_UNSCALED };

/* What a family says of itself. */
struct eng_arch {
    const char *name;
    enum kr_rope_kind rope;
    /* Values for keys that a file may lack; 0: the key is required (eps), or the format's
     * default. */
    float default_eps, default_freq_base, default_attn_softcap, default_final_softcap;
    uint64_t default_window;
    uint32_t window_period; /* layer i has the window iff i % period < period - 1; 0 = all */
    enum eng_window_rope window_rope;
    enum kr_span window_span; /* CHUNK, or by default WINDOW */
    bool layer_norm;          /* norms subtract the mean, and may have biases */
    bool partial_rope;        /* n_rot may be less than the head's size */
    bool experts;             /* expert_count may be there */
    const char *output_norm;  /* "output_norm" when NULL */
    bool encoder;             /* every row attends to all others; gives vectors */
    bool recurrent;           /* layers may lack attention and the feed-forward part */
    bool cut_vocabulary;      /* more tokens than embeddings: use those with one, do not refuse */
    bool qkv_bias;            /* attn_{q,k,v}.bias must be there */
    /* Pairs, NULL-ended: a layer (or the model as a whole) with the first tensor must have the
     * second: this family's formula needs it, other families may lack it. */
    const char *const *needs;
    bool own_head;              /* the head is never the embedding table */
    bool window_needed;         /* a file of this family must have a window */
    const char *const *aliases; /* pairs: usual key, its name in some files; NULL-ended */
    /* Called after the keys were read, for this family's own rules. May be NULL. */
    void (*adjust)(struct eng_hparams *h, bool has_scaling);
    void (*record)(struct eng_builder *b);
};

struct eng_builder {
    const struct eng_arch *arch;
    const struct eng_gguf *g;
    struct kr_plan *plan;
    struct eng_hparams h;
    struct cn_arena *arena;        /* lives as long as the plan */
    struct cn_arena *loading;      /* memory of converted weights, until they are packed */
    bool measuring;                /* no weight is read: converted weights may have any bytes */
    struct cn_error error;         /* the first one */
    int full_group, window_group;  /* KV groups, -1 until first used */
    struct eng_optional *optional; /* tensors that a layer may lack: those asked for so far */
    uint64_t matmul_bytes;         /* of the weights used in products, in the file's types */
};

#define ARCH(name, id, text) extern const struct eng_arch eng_arch_##name;
#include "engine/arch_list.def"
#undef ARCH
extern const struct eng_arch
    eng_arch_null; /* not in the list of families: only for made-up files (engine/null.c) */

bool eng_b_failed(const struct eng_builder *b);

/* ---- keys (hparams.c) ------------------------------------------------------------------------ */

/* Reads and checks everything; max_context 0 = the model's own. */
int eng_b_hparams(struct eng_builder *b, uint64_t max_context);
/* Reads "<arch>.<suffix>", or its alias if only that is there. False if absent, or after an
 * error. */
bool eng_b_u64(struct eng_builder *b, const char *suffix, uint64_t *out);
bool eng_b_f32(struct eng_builder *b, const char *suffix, float *out);
bool eng_b_bool(struct eng_builder *b, const char *suffix, bool *out);
/* Reads a number within 1..max; fallback 0: the key is required. Returns 1 after an error. */
uint64_t eng_b_bounded(struct eng_builder *b, const char *suffix, uint64_t fallback, uint64_t max);
/* Reads a finite number that is not negative (with above_zero: not 0 either). */
float eng_b_positive(struct eng_builder *b, const char *suffix, float fallback, bool above_zero);
/* Reads one number for all layers, or an array with one for each. False if absent. */
bool eng_b_per_layer(struct eng_builder *b, const char *suffix, uint32_t layer, uint64_t *out);
/* Records the error: what is wrong with the key "<arch>.<suffix>". */
void eng_b_refuse_key(struct eng_builder *b, int code, const char *suffix, const char *what);

/* ---- weights (weights.c): tensors by name, with the dimensions they must have ---------------- */

/* Tensors are named "blk.<layer>.<name>", or "<name>" when layer is ENG_GLOBAL. */
enum { ENG_GLOBAL = -1 };
bool eng_b_has(struct eng_builder *b, int layer, const char *name);
/* As eng_b_has, for a tensor that a model has in all the layers asked about or in none: it is an
 * error if layers differ. */
bool eng_b_optional(struct eng_builder *b, int layer, const char *name);
/* Refuses a file that lacks what the family needs. */
void eng_b_check_needs(struct eng_builder *b);
/* Rows of a matrix; 0: no tensor has that name. */
uint64_t eng_b_rows(struct eng_builder *b, int layer, const char *name);
/* A matrix of any type, [rows, cols], or n of them, [n, rows, cols]. NULL after an error. */
const struct kr_tensor *eng_b_matrices(struct eng_builder *b, int layer, const char *name,
                                       uint64_t n, uint64_t rows, uint64_t cols);
/* n values as float32, converted when the file has another type. */
const struct kr_tensor *eng_b_vector(struct eng_builder *b, int layer, const char *name,
                                     uint64_t n);
/* A matrix [rows, cols] as float32; and as one vector of rows * cols values. */
const struct kr_tensor *eng_b_floats(struct eng_builder *b, int layer, const char *name,
                                     uint64_t rows, uint64_t cols);
const struct kr_tensor *eng_b_flat(struct eng_builder *b, int layer, const char *name,
                                   uint64_t rows, uint64_t cols);

/* ---- ops with weights ------------------------------------------------------------------------ */

int eng_b_embed(struct eng_builder *b, float scale);
/* Another table of tokens, "<name>.weight" [vocabulary, width]. */
int eng_b_table(struct eng_builder *b, const char *name, uint64_t width, float scale);
/* The family's kind of norm by "<name>.weight" (and "<name>.bias" where it has any), over each of
 * `heads` parts of the row (dim values each). */
int eng_b_norm(struct eng_builder *b, int x, int layer, const char *name, uint32_t heads,
               uint32_t dim);
/* "<name>.weight" [rows, cols], plus "<name>.bias" where the file has it. */
int eng_b_linear(struct eng_builder *b, int x, int layer, const char *name, uint64_t rows,
                 uint64_t cols);
/* Rows of "token_types.weight", 0 if it is absent; the vocabulary's key must give the same
 * number. */
uint64_t eng_b_token_types(struct eng_builder *b);
/* Projections to queries, keys and values: attn_q, attn_k, attn_v, or the fused attn_qkv. */
struct eng_qkv { int q, k, v; };
struct eng_qkv eng_b_qkv(struct eng_builder *b, int x, int layer);
/* Ends the plan of a model that generates: the rows whose logits are wanted, last norm, head
 * ("output", or the embedding table if the file lacks it), and the model's soft cap. */
void eng_b_head(struct eng_builder *b, int x);
/* Ends the plan of a model that gives vectors: x of the wanted rows. */
void eng_b_vectors(struct eng_builder *b, int x);

/* The first `rows` rows of "<name>.weight" from row `first` on; the tensor has `all` rows. */
int eng_b_linear_part(struct eng_builder *b, int x, int layer, const char *name, uint64_t first,
                      uint64_t rows, uint64_t all, uint64_t cols);

/* The rotation of a layer (rope.c); frequencies live in the arena. */
struct kr_rope eng_b_rope(struct eng_builder *b, int layer);

/* ---- parts of a layer (blocks.c) ------------------------------------------------------------- */

/* q, k = rms(q; attn_q_norm), rms(k; attn_k_norm), head by head. */
void eng_b_head_norms(struct eng_builder *b, struct eng_qkv *a, int layer);
/* q, k = rope(q), rope(k), by the layer's rotation. */
void eng_b_rotate(struct eng_builder *b, struct eng_qkv *a, int layer);
/* Stores k and v, attends with q: [R, n_heads * k_dim] -> [R, n_heads * v_dim]. Causal, within the
 * layer's window, with "attn_sinks" where the file has them. */
int eng_b_attend(struct eng_builder *b, const struct eng_qkv *a, int layer, float scale);
/* As eng_b_attend, over keys and values that layer `from` stored. */
int eng_b_attend_shared(struct eng_builder *b, int q, int layer, int from, float scale);
/* The KV group of a layer. */
int eng_b_kv_group(struct eng_builder *b, int layer);
/* Wo o, by "attn_output". */
int eng_b_attn_output(struct eng_builder *b, int o, int layer);
/* 1 / sqrt(head size) */
float eng_b_usual_scale(const struct eng_builder *b, int layer);
/* 1 / sqrt(embd_dim / heads) */
float eng_b_width_scale(const struct eng_builder *b, int layer);
/* The width scale in the model of a family that has so many layers, the usual scale in others. */
float eng_b_scale_of_size(const struct eng_builder *b, int layer, uint32_t n_layers);
/* down(act(gate x) * up x); gate and up may be one tensor, "ffn_up" */
int eng_b_ffn(struct eng_builder *b, int x, int layer, enum kr_act act);

/* ---- multi-head latent attention (latent.c) -------------------------------------------------- */

/* Matrices that absorb the projections of keys and values: k_b [heads, latent, nope], v_b [heads,
 * v_dim, latent]. For a legacy file they are made from attn_kv_b. NULLs after an error. */
struct eng_latent { const struct kr_tensor *k_b, *v_b; };
struct eng_latent eng_b_latent(struct eng_builder *b, int layer, bool legacy, uint32_t heads,
                               uint32_t nope, uint32_t v_dim, uint32_t latent);

/* ---- recurrent mixers (mixers.c): from the layer's normed input to what is added ------------- */

/* Mamba-1. Its small norms (ssm_dt_norm, ssm_b_norm, ssm_c_norm) are used where the file has them;
 * bare_norms: without weights. */
int eng_b_mamba1(struct eng_builder *b, int n, int layer, bool bare_norms);
int eng_b_mamba2(struct eng_builder *b, int n, int layer);
/* The gated short convolution of LFM2. */
int eng_b_short_conv(struct eng_builder *b, int n, int layer);
/* Gated delta rule of Qwen 3 Next and 3.5. */
int eng_b_delta_net(struct eng_builder *b, int n, int layer);

/* ---- mixtures of experts (experts.c) --------------------------------------------------------- */

struct eng_experts {
    struct kr_router router;
    enum kr_act act;
    bool scaled_input; /* experts see weight * x, and their outputs are added as they are */
};
/* The router of a layer as the keys describe it: experts used, groups, gating (if absent the given
 * one), norm, scale; and exp_probs_b if the file has it. */
struct eng_experts eng_b_experts_of(struct eng_builder *b, int layer, enum kr_gating gating,
                                    enum kr_act act);
/* The router's logits: "ffn_gate_inp". */
int eng_b_router(struct eng_builder *b, int x, int layer);
/* Sum of the chosen experts' down(act(gate x) * up x), by the "_exps" tensors. */
int eng_b_experts(struct eng_builder *b, int x, int logits, int layer, const struct eng_experts *e);
/* Width of the shared expert, which every row goes to; 0: none. A key that says 0 although the
 * tensors are there is an error. */
uint64_t eng_b_shared_width(struct eng_builder *b, int layer);
/* Error: the key (a count or a width) is 0, but the layer has a shared expert's tensors. */
void eng_b_no_shared_expert(struct eng_builder *b, int layer, const char *key);
/* The shared expert: the "_shexp" tensors, ff_dim wide. */
int eng_b_shared_expert(struct eng_builder *b, int x, int layer, uint64_t ff_dim, enum kr_act act);
/* The shared expert with SwiGLU, times sigmoid(ffn_gate_inp_shexp . x). */
int eng_b_gated_shared_expert(struct eng_builder *b, int x, int layer, uint64_t ff_dim);
/* Whether the layer has experts. */
bool eng_b_has_experts(struct eng_builder *b, int layer);

/* ---- branches of a layer --------------------------------------------------------------------- */

/* The two branches of the plain decoder layer; the sum with x is the caller's. */
/* Wo attention(rope(Wq n), rope(Wk n), Wv n), n = rms(x; attn_norm), with the usual scale. */
int eng_b_attn_branch(struct eng_builder *b, int x, int layer);
/* ffn(n), n = rms(x; ffn_norm) */
int eng_b_ffn_branch(struct eng_builder *b, int x, int layer, enum kr_act act);
/* experts(n), n = rms(x; ffn_norm), all by one router */
int eng_b_experts_branch(struct eng_builder *b, int x, int layer, const struct eng_experts *e);
/* A whole plain decoder: x = embd[token]; in each layer x = x + attn_branch(x), x = x + ffn(x);
 * then the head. ffn NULL: ffn_branch with SiLU. */
void eng_b_plain_decoder(struct eng_builder *b,
                         int (*ffn)(struct eng_builder *b, int x, int layer));
/* For `needs`: the norms with biases that an encoder has after its sums. */
extern const char *const eng_needs_encoder_norms[];
/* down(act(up x)), without a gate */
int eng_b_plain_ffn(struct eng_builder *b, int x, int layer, enum kr_act act);
/* x * s, or x itself when s is 1 */
int eng_b_scale(struct eng_builder *b, int x, float s);

#endif
