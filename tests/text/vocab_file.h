/* A reader of vocabulary-only GGUF files for tests: the keys, nothing else. */
#ifndef TESTS_TEXT_VOCAB_FILE_H
#define TESTS_TEXT_VOCAB_FILE_H

#include "engine/text/text.h"

struct vocab_file {
    char *data;
    size_t size;
    struct eng_vocab_spec spec; /* what it points to belongs to this object */
    char *model, *pre, *name;
};

/* False when the file cannot be read or is not of the expected form. */
bool vocab_file_read(struct vocab_file *f, const char *path);
void vocab_file_fini(struct vocab_file *f);

/* "<oracle>/vocab/ggml-vocab-NAME.gguf<suffix>" in a static buffer. */
const char *vocab_path(const char *name, const char *suffix);
/* Whether there is any reference data. */
bool vocab_here(void);
/* The vocabulary NAME of the oracle; NULL when the oracle is absent. Aborts the test on damage. */
struct eng_vocab *vocab_open(const char *name);
/* The whole file with a NUL; NULL when it cannot be read. */
char *read_file(const char *path, size_t *n);

#endif
