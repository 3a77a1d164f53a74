/* A model's parts, for model.c and describe.c. Private to engine/. */
#ifndef ENGINE_MODEL_H
#define ENGINE_MODEL_H

#include "engine/arch/arch.h"

struct eng_model {
    atomic_uint refs;
    struct eng_gguf *g;
    struct eng_vocab *vocab;
    struct eng_template *template;
    struct eng_reply_format reply;
    struct eng_history history;
    struct kr_plan *plan;
    struct kr_exec *exec;
    struct cn_arena arena;   /* texts, converted vectors: what the plan points to */
    struct cn_arena loading; /* weights that the file has in another form, until they are packed */
    struct eng_builder builder; /* numbers of the model */
    struct eng_model_info info;
};

/* Reads the numbers of an open file (moved, also on failure) and records the plan; no weights are
 * touched but small vectors, and those that the file has in another form unless it is to measure.
 * On failure the model is for eng_model_unref all the same. */
int eng_model_read(struct eng_model *m, struct eng_gguf *g, const char *path, uint64_t max_context,
                   bool measuring, struct cn_error *err);
struct eng_model *eng_model_alloc(void);
/* The file's template or the given one; NULL if the file has none. */
int eng_model_read_template(struct eng_model *m, const struct eng_model_opts *opts,
                            struct cn_error *err);
void eng_read_recommended(const struct eng_gguf *g,
                          struct eng_recommended *out); /* recommended.c */

#endif
