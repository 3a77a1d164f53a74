/* For the tests that run models: a model on a device, one sequence in a paged KV memory whose
 * blocks lie in no special order, and the figures that say how far logits are from a reference. */
#ifndef TESTS_ENGINE_GOLDEN_H
#define TESTS_ENGINE_GOLDEN_H

#include "engine/engine.h"
#include "tests/devices.h"

#include <jansson.h>

enum { GOLDEN_BLOCK_TOKENS = 16, GOLDEN_MAX_ROWS = 256 };

struct golden {
    struct kr_device *device;
    struct eng_model *model;
    struct kr_exec *exec;
    struct kr_kv_mem *mem;
    uint32_t **tables; /* per KV group */
    uint64_t n_vocab;
    uint32_t pos; /* tokens fed */
};

/* CN_EUNSUPP when the machine lacks the ISA; any other failure fails the test. */
int golden_open(struct golden *g, const char *path, enum kr_isa isa, uint32_t threads,
                uint64_t context, enum kr_type kv_type);
void golden_close(struct golden *g);
/* Opens a model that may be wrong: what eng_model_open says, *m is NULL after an error. */
int golden_try(struct kr_device *device, const char *path, struct eng_model **m,
               struct cn_error *err);
/* Forgets the sequence. */
void golden_restart(struct golden *g);
/* Feeds n tokens, at most chunk at a time; logits of those at positions >= from go to out, one row
 * after another (out may be NULL when none is wanted). */
void golden_feed(struct golden *g, const uint32_t *ids, size_t n, size_t chunk, uint32_t from,
                 float *out);
uint32_t golden_argmax(const float *logits, size_t n);

/* A JSON file and an array of integers in it (malloc'd); a raw file of floats. */
json_t *golden_json(const char *path);
uint32_t *golden_ids(const json_t *doc, const char *key, size_t *n);
float *golden_floats(const char *path, size_t *n);

struct golden_error { double max, rms; }; /* both in standard deviations of the reference */
struct golden_error golden_compare(const float *got, const float *want, size_t n);

/* Path below the oracle folder; NULL (and the test is skipped) when the folder is not there. */
const char *golden_oracle(const char *folder, const char *name, const char *suffix);
/* A model that tools/fetch_models.py fetched, in CONIFER_TEST_MODELS or by default in
 * ~/.local/share/conifer/models; NULL (and the test is skipped) when it is not there. */
const char *golden_real(const char *file);

#endif
