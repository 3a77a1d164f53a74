/* engine: model files, weights, plans per family, and sampling.
 *
 * Opening a model reads its GGUF file, builds the vocabulary and the chat template, lets its family
 * record a plan, and prepares it for a device. All of that happens once, not per prompt or token.
 * The engine does not know the KV pool: it declares the size of a block of each layer group, and a
 * batch carries block numbers. Text is in engine/text/text.h. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "base/base.h"
#include "engine/text/text.h"
#include "kernels/kernels.h"

/* ---- GGUF files (gguf.c) ------------------------------------------------------------------------
 * Version 3 (2 is read too), split files, memory-mapped. Every count, offset and size is checked
 * against the file before use; errors (CN_EFORMAT) name the file offset, key or tensor. */

enum eng_gguf_type {
    ENG_GGUF_U8,
    ENG_GGUF_I8,
    ENG_GGUF_U16,
    ENG_GGUF_I16,
    ENG_GGUF_U32,
    ENG_GGUF_I32,
    ENG_GGUF_F32,
    ENG_GGUF_BOOL,
    ENG_GGUF_STRING,
    ENG_GGUF_ARRAY,
    ENG_GGUF_U64,
    ENG_GGUF_I64,
    ENG_GGUF_F64,
};

struct eng_gguf;
/* path: the file, or the first file of a split model (name-00001-of-0000N.gguf), or "null:...",
 * which describes a model without arithmetic (null.c). Vocabulary-only files (no tensors) are
 * accepted. */
int eng_gguf_open(const char *path, struct eng_gguf **out, struct cn_error *err);
void eng_gguf_close(struct eng_gguf *g);
/* False once a file was truncated, changed or unreadable since it was opened. Bytes read since then
 * may be zeros; no signal is raised. Any thread; one fstat per file. */
bool eng_gguf_intact(const struct eng_gguf *g);
/* Scalars: CN_ENOENT when the key is absent, CN_EFORMAT when it has another kind of type or does
 * not fit. Numbers convert between integer types when the value fits. */
int eng_gguf_u64(const struct eng_gguf *g, const char *key, uint64_t *out, struct cn_error *err);
int eng_gguf_f32(const struct eng_gguf *g, const char *key, float *out, struct cn_error *err);
int eng_gguf_bool(const struct eng_gguf *g, const char *key, bool *out, struct cn_error *err);
int eng_gguf_str(const struct eng_gguf *g, const char *key, struct eng_str *out,
                 struct cn_error *err);
/* Element count and element type of an array; CN_ENOENT when absent. */
int eng_gguf_array(const struct eng_gguf *g, const char *key, enum eng_gguf_type *type, uint64_t *n,
                   struct cn_error *err);
/* Element i of an array of integers or bools. */
int eng_gguf_array_u64(const struct eng_gguf *g, const char *key, uint64_t i, uint64_t *out,
                       struct cn_error *err);
uint64_t eng_gguf_n_tensors(const struct eng_gguf *g);
const struct kr_tensor *eng_gguf_tensor(const struct eng_gguf *g, uint64_t i);
/* NULL if no tensor has that name. Valid while the file is open. */
const struct kr_tensor *eng_gguf_find(const struct eng_gguf *g, const char *name);
/* The vocabulary and the template (NULL when the file has none) of a file; returned owned. */
int eng_gguf_vocab(const struct eng_gguf *g, struct eng_vocab **out, struct cn_error *err);
int eng_gguf_template(const struct eng_gguf *g, struct eng_template **out, struct cn_error *err);

/* ---- models (model.c, arch/) ----------------------------------------------------------------- */

struct eng_model_opts {
    struct kr_device *device;       /* outlives the model */
    struct kr_prepare_opts prepare; /* max_context 0 = the model's own */
    const char *template_text;      /* overrides the file's template; NULL = the file's */
    size_t template_len;
};

/* How an embedding model's rows become one vector; NONE: the model generates text. */
enum eng_pooling { ENG_POOL_NONE, ENG_POOL_MEAN, ENG_POOL_CLS, ENG_POOL_LAST };

/* Sampling values that the file recommends (its keys general.sampling.*). NAN: the key is absent or
 * its value invalid. */
struct eng_recommended { float temperature, top_k, top_p, min_p, repetition_penalty; };

struct eng_model_info {
    struct eng_recommended recommended;
    const char *arch;      /* "llama" */
    const char *name;      /* general.name, or the file's base name */
    const char *file_type; /* the type of most weight bytes: "Q4_1" */
    uint64_t n_params, file_bytes;
    uint32_t n_layers, embd_dim, n_heads, n_kv_heads;
    uint64_t n_vocab, train_context; /* n_vocab: of the vocabulary and the logits */
    enum eng_pooling pooling;        /* not NONE: the plan's output rows are the rows' vectors */
    uint64_t context;                /* what this model was prepared for, at most train_context */
    const struct kr_exec_info *exec; /* memory, KV groups */
    char fingerprint[40];            /* "fp_" + hash of file identity and numeric path */
};

struct eng_model;
/* Errors: CN_ENOENT, CN_EFORMAT, CN_EUNSUPP (family, weight type or tokenizer, with what is
 * supported), CN_ENOMEM, CN_EIO. *out returned owned; ref/unref are thread-safe. */
int eng_model_open(const char *path, const struct eng_model_opts *opts, struct eng_model **out,
                   struct cn_error *err);
struct eng_model *eng_model_ref(struct eng_model *m);
void eng_model_unref(struct eng_model *m);
/* As eng_gguf_intact. Once it is false, embeddings may be wrong, so the model's owner fails its
 * requests and unloads it; other models are not affected. Costs an fstat per file: ask about once a
 * second. */
bool eng_model_intact(const struct eng_model *m);
const struct eng_model_info *eng_model_info(const struct eng_model *m);
const struct eng_vocab *eng_model_vocab(const struct eng_model *m);
const struct eng_template *eng_model_template(
    const struct eng_model *m); /* NULL: the model has none */
/* How the model marks the parts of its replies to conversations. */
const struct eng_reply_format *eng_model_reply(const struct eng_model *m);
/* What its template wants of calls in a conversation. */
const struct eng_history *eng_model_history(const struct eng_model *m);
struct kr_exec *eng_model_exec(struct eng_model *m);
/* Opens a model without its weights: only its info, with its exec's exact sizes, and its chat
 * template can be used (NULL also if that is invalid). Reads no tensors except small vectors. opts
 * as for eng_model_open, device included. *out returned owned. */
int eng_model_measure(const char *path, const struct eng_model_opts *opts, struct eng_model **out,
                      struct cn_error *err);
/* Bytes of KV and state that a sequence of n tokens holds: in whole blocks; windows and chunks are
 * bounded. UINT64_MAX if the number does not fit. */
uint64_t eng_sequence_bytes(const struct kr_exec_info *info, uint32_t block_tokens,
                            uint64_t n_tokens);
/* Tokens of the longest sequence that holds at most `bytes`; at most 2^40. */
uint64_t eng_tokens_in(const struct kr_exec_info *info, uint32_t block_tokens, uint64_t bytes);
/* The text of `conifer show`: what the file is and the memory it takes. m was measured with
 * `prepare`. */
int eng_model_describe(const struct eng_model *m, const struct kr_prepare_opts *prepare,
                       struct cn_buf *out, struct cn_error *err);
/* Names of the supported families, comma-separated. */
const char *eng_arch_list(void);

/* ---- sampling (sample.c) --------------------------------------------------------------------- */

/* Turns what a request asks for (struct eng_sampling, engine/text/text.h) into the draw state of
 * the kernels (kernels/draw.h). */

struct eng_draw_env {
    const struct eng_vocab *vocab;     /* outlives the state and its clones */
    const struct kr_draw_loops *loops; /* the device's */
    struct kr_draw_rooms *rooms;       /* likewise */
    uint64_t n_prompt; /* tokens of the prompt: the output's positions begin there */
};
/* The draw state of choice 0. Errors: those of eng_sampling_check; CN_ENOMEM. */
int eng_draw_state_new(const struct eng_sampling *s, const struct eng_draw_env *env,
                       struct kr_draw_state **out, struct cn_error *err);

#endif
