/* For the tests that open changed models: a model of the oracle taken apart into keys and tensors,
 * and put together differently in a temporary folder; what opening it says, and its logits. */
#ifndef TESTS_ENGINE_PARTS_H
#define TESTS_ENGINE_PARTS_H

#include "gguf_write.h"
#include "golden.h"

struct part {
    char name[64];
    uint32_t n_dims, type;
    uint64_t ne[4];
    const void *data;
    uint64_t bytes;
};
struct parts {
    struct eng_gguf *g;
    struct part v[256];
    size_t n;
    struct gw w; /* keys so far */
};

/* One device and one temporary folder for a group of tests: cmocka's set-up and tear-down. */
int parts_set_up(void **state);
int parts_tear_down(void **state);
struct kr_device *parts_device(void);
/* A file in the folder. */
const char *parts_temp(const char *name);

/* A file's keys, without those named (NULL-ended list, or NULL), and its tensors. */
void parts_open(struct parts *p, const char *path, const char *const *without);
/* The same of a model of the oracle. */
void take_apart(struct parts *p, const char *name, const char *const *without);
struct part *part_of(struct parts *p, const char *name);
void drop_part(struct parts *p, const char *name);
/* Writes tensors [first, last) and their data after the keys that w holds. */
const char *write_parts(struct gw *w, const struct parts *p, size_t first, size_t last,
                        const char *file);
/* Writes everything, and closes what it came from. */
const char *put_together(struct parts *p, const char *file);

/* Opening fails with that code and a message that has both texts. */
void refused(const char *path, int code, const char *has, const char *also);
/* Both give the same bytes for a short prompt. */
void same_logits(const char *path, const char *other);
void other_logits(const char *path, const char *other); /* they do not */

#endif
