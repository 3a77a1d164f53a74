/* The reader's insides, for engine/ and its tests: files, key table, tensor table, cursor.
 * Public functions are in engine/engine.h. A file is read once by one thread and is immutable
 * afterwards. Everything points into the mapping, which outlives it. */
#ifndef ENGINE_GGUF_H
#define ENGINE_GGUF_H

#include "engine/engine.h"
#include "engine/mapping.h"

/* Bounds on what a header may make us allocate; real files have under 100 keys and 100,000
 * tensors. Key and array entries take memory as they are read, never by a declared count. */
#define ENG_GGUF_MAX_KEYS       65536
#define ENG_GGUF_MAX_TENSORS    1000000
#define ENG_GGUF_MAX_NAME_BYTES 255
#define ENG_GGUF_MAX_KEY_BYTES  65535

/* Open addressing over the entries of a table; slots hold index + 1. Grows by itself. */
struct eng_gguf_index {
    uint32_t *slots;
    size_t n_slots, n_used;
    uint8_t hash_key[16];
};
struct eng_gguf_str_of {
    struct eng_str (*get)(const void *table, size_t i);
    const void *table;
};
/* Adds entry i unless one with the same string is there: CN_OK, CN_EBUSY (there already; *found
 * says which), CN_ENOMEM. */
int eng_gguf_index_add(struct eng_gguf_index *x, const struct eng_gguf_str_of *of, size_t i,
                       size_t *found);
/* The entry with that string, or SIZE_MAX. */
size_t eng_gguf_index_find(const struct eng_gguf_index *x, const struct eng_gguf_str_of *of,
                           const char *s, size_t n);
void eng_gguf_index_fini(struct eng_gguf_index *x);

/* A place in a file; every read is checked against the end. */
struct eng_gguf_cursor {
    const char *file; /* for messages */
    const uint8_t *data;
    uint64_t pos, size;
};
int eng_gguf_read(struct eng_gguf_cursor *c, void *out, uint64_t n, const char *what,
                  struct cn_error *err);
int eng_gguf_read_str(struct eng_gguf_cursor *c, uint64_t max_bytes, struct eng_str *out,
                      const char *what, struct cn_error *err);
/* Bytes of a value of this type; 0 for strings, arrays and unknown types. */
uint64_t eng_gguf_value_bytes(uint32_t type);
const char *eng_gguf_value_name(uint32_t type);

struct eng_gguf_kv {
    struct eng_str key;
    enum eng_gguf_type type; /* ENG_GGUF_ARRAY for arrays */
    enum eng_gguf_type elem; /* of arrays */
    uint64_t n;              /* elements; 1 for scalars */
    uint64_t offset;         /* of the value (of the first element) in the file */
    const uint8_t *value;
    uint64_t bytes;
};
struct eng_gguf_kvs {
    struct eng_gguf_kv *v;
    size_t n, cap;
    struct eng_gguf_index index;
};
/* Reads n key-value pairs at the cursor. */
int eng_gguf_kvs_read(struct eng_gguf_kvs *kvs, struct eng_gguf_cursor *c, uint64_t n,
                      struct cn_error *err);
const struct eng_gguf_kv *eng_gguf_kvs_find(const struct eng_gguf_kvs *kvs, const char *key);
void eng_gguf_kvs_fini(struct eng_gguf_kvs *kvs);
/* Scalars of one key table; CN_ENOENT leaves *err alone. */
int eng_gguf_kvs_u64(const struct eng_gguf_kvs *kvs, const char *key, uint64_t *out,
                     struct cn_error *err);

struct eng_gguf_shard {
    char *path;
    struct eng_mapping *map; /* NULL for bytes in memory */
    void *owned;             /* bytes in memory that go with it; NULL: borrowed */
    const uint8_t *data;
    uint64_t size, header_bytes, data_offset;
    struct eng_gguf_kvs kvs;
};
struct eng_gguf {
    struct eng_gguf_shard *shards;
    uint32_t n_shards;
    struct kr_tensor *tensors;
    size_t n_tensors, cap_tensors;
    struct eng_gguf_index tensor_index;
    struct cn_arena names;
    uint64_t file_bytes;
};
/* A file in memory (borrowed until closed); `name` is for messages. */
int eng_gguf_open_memory(const void *data, size_t n, const char *name, struct eng_gguf **out,
                         struct cn_error *err);

/* Tensor types: every number that GGUF has given out, so that files may hold types that cannot be
 * computed with. block_elems is 0 for unknown numbers. */
struct eng_gguf_tensor_type {
    const char *name;
    uint32_t block_elems, block_bytes;
};
struct eng_gguf_tensor_type eng_gguf_tensor_type(uint32_t type);

/* As eng_gguf_str, but an absent key is no error: out->p is NULL then. */
int eng_gguf_str_or_none(const struct eng_gguf *g, const char *key, struct eng_str *out,
                         struct cn_error *err);
/* An array of strings or floats or integers as a whole; *out is malloc'd.
 * CN_ENOENT when absent, CN_EFORMAT when of another kind. */
int eng_gguf_strings(const struct eng_gguf *g, const char *key, struct eng_str **out, size_t *n,
                     struct cn_error *err);
int eng_gguf_floats(const struct eng_gguf *g, const char *key, float **out, size_t *n,
                    struct cn_error *err);
int eng_gguf_int32s(const struct eng_gguf *g, const char *key, int32_t **out, size_t *n,
                    struct cn_error *err);
/* For messages: at most 64 bytes of s, quoted, with control characters and non-ASCII escaped. */
#define ENG_GGUF_SHOWN 280
const char *eng_gguf_show(struct eng_str s, char out[ENG_GGUF_SHOWN]);

#endif
