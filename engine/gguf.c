/* GGUF: files, header, tensor table, split models.
 *
 * Layout (version 3; 2 is the same): "GGUF", version u32, tensors u64, keys u64, the keys, the
 * tensor infos {name, n_dims u32, dims u64 each, type u32, offset u64}, padding to
 * general.alignment, data. Every sum and product of numbers from the file goes through cn_add_u64 /
 * cn_mul_u64 / cn_align_u64, and every extent is compared with the size of the file before a
 * pointer to it exists. Files of a split model are read in order; keys come from the first. */
#include "engine/gguf.h"

#include "engine/null.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_ALIGNMENT 32
#define MIN_ALIGNMENT     8 /* the format's own rule; tensors of float32 are read in place */

struct eng_gguf_tensor_type eng_gguf_tensor_type(uint32_t type)
{
    static const struct eng_gguf_tensor_type types[] = {
        [0] = {"F32", 1, 4},         [1] = {"F16", 1, 2},         [2] = {"Q4_0", 32, 18},
        [3] = {"Q4_1", 32, 20},      [6] = {"Q5_0", 32, 22},      [7] = {"Q5_1", 32, 24},
        [8] = {"Q8_0", 32, 34},      [9] = {"Q8_1", 32, 36},      [10] = {"Q2_K", 256, 84},
        [11] = {"Q3_K", 256, 110},   [12] = {"Q4_K", 256, 144},   [13] = {"Q5_K", 256, 176},
        [14] = {"Q6_K", 256, 210},   [15] = {"Q8_K", 256, 292},   [16] = {"IQ2_XXS", 256, 66},
        [17] = {"IQ2_XS", 256, 74},  [18] = {"IQ3_XXS", 256, 98}, [19] = {"IQ1_S", 256, 50},
        [20] = {"IQ4_NL", 32, 18},   [21] = {"IQ3_S", 256, 110},  [22] = {"IQ2_S", 256, 82},
        [23] = {"IQ4_XS", 256, 136}, [24] = {"I8", 1, 1},         [25] = {"I16", 1, 2},
        [26] = {"I32", 1, 4},        [27] = {"I64", 1, 8},        [28] = {"F64", 1, 8},
        [29] = {"IQ1_M", 256, 56},   [30] = {"BF16", 1, 2},       [34] = {"TQ1_0", 256, 54},
        [35] = {"TQ2_0", 256, 66},   [39] = {"MXFP4", 32, 17},    [40] = {"NVFP4", 64, 36},
        [41] = {"Q1_0", 128, 18},    [42] = {"Q2_0", 64, 18},
    };
    if (type < CN_ARRAY_LEN(types) && types[type].name) return types[type];
    return (struct eng_gguf_tensor_type){"unknown", 0, 0};
}

static struct eng_str tensor_name(const void *table, size_t i)
{
    const char *name = ((const struct eng_gguf *)table)->tensors[i].name;
    return (struct eng_str){name, strlen(name)};
}

/* ---- header ---------------------------------------------------------------------------------- */

static int read_header(struct eng_gguf_cursor *c, uint64_t *n_tensors, uint64_t *n_kvs,
                       struct cn_error *err)
{
    char magic[4];
    uint32_t version = 0;
    int rc = eng_gguf_read(c, magic, sizeof(magic), "the magic number", err);
    if (rc) return rc;
    if (memcmp(magic, "GGUF", 4))
        return cn_fail(err, CN_EFORMAT, "%s: not a GGUF file (it does not begin with \"GGUF\")",
                       c->file);
    rc = eng_gguf_read(c, &version, sizeof(version), "the version", err);
    if (rc) return rc;
    if (version && !(version & 0xffff))
        return cn_fail(err, CN_EUNSUPP,
                       "%s: offset 4: a big-endian GGUF file, only little-endian "
                       "ones are supported",
                       c->file);
    if (version != 2 && version != 3)
        return cn_fail(err, CN_EUNSUPP, "%s: offset 4: GGUF version %u, supported are 2 and 3",
                       c->file, version);
    rc = eng_gguf_read(c, n_tensors, sizeof(*n_tensors), "the number of tensors", err);
    if (!rc) rc = eng_gguf_read(c, n_kvs, sizeof(*n_kvs), "the number of keys", err);
    if (!rc && *n_tensors > ENG_GGUF_MAX_TENSORS)
        return cn_fail(err, CN_EFORMAT,
                       "%s: offset 8: the header declares %llu tensors, the limit "
                       "is %d",
                       c->file, (unsigned long long)*n_tensors, ENG_GGUF_MAX_TENSORS);
    return rc;
}

static int read_alignment(const struct eng_gguf_shard *s, uint64_t *out, struct cn_error *err)
{
    *out = DEFAULT_ALIGNMENT;
    int rc = eng_gguf_kvs_u64(&s->kvs, "general.alignment", out, err);
    if (rc && rc != CN_ENOENT) return rc;
    if (*out < MIN_ALIGNMENT || *out > UINT32_MAX || (*out & (*out - 1)))
        return cn_fail_param(err, CN_EFORMAT, "general.alignment",
                             "%s: general.alignment is %llu, it must be a power of two and at "
                             "least %d",
                             s->path, (unsigned long long)*out, MIN_ALIGNMENT);
    return CN_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Bytes of a tensor from its dimensions; for unknown types 0. */
static int tensor_bytes(struct kr_tensor *t, uint64_t *out, struct cn_error *err)
{
    struct eng_gguf_tensor_type type = eng_gguf_tensor_type((uint32_t)t->type);
    uint64_t n = 1;
    for (int d = 0; d < 4; d++) {
        if (!t->ne[d])
            return cn_fail_param(err, CN_EFORMAT, t->name, "tensor \"%s\": dimension %d is 0",
                                 t->name, d);
        if (!cn_mul_u64(n, t->ne[d], &n) || n > INT64_MAX)
            return cn_fail_param(err, CN_EFORMAT, t->name,
                                 "tensor \"%s\": the product of its dimensions is too large",
                                 t->name);
    }
    *out = 0;
    if (!type.block_elems) return CN_OK;
    if (t->ne[0] % type.block_elems)
        return cn_fail_param(
            err, CN_EFORMAT, t->name,
            "tensor \"%s\": its rows have %llu elements, %s needs a multiple of %u", t->name,
            (unsigned long long)t->ne[0], type.name, type.block_elems);
    if (!cn_mul_u64(n / type.block_elems, type.block_bytes, out))
        return cn_fail_param(err, CN_EFORMAT, t->name, "tensor \"%s\": its size is too large",
                             t->name);
    return CN_OK;
}

/* One tensor info. *offset is within the data section, not yet compared with it. */
static int read_tensor(struct eng_gguf *g, struct eng_gguf_cursor *c, uint64_t number,
                       struct kr_tensor *t, uint64_t *offset, struct cn_error *err)
{
    char what[64], shown[ENG_GGUF_SHOWN];
    struct eng_str name;
    uint64_t at = c->pos;
    uint32_t type = 0;

    snprintf(what, sizeof(what), "the info of tensor %llu", (unsigned long long)number);
    int rc = eng_gguf_read_str(c, ENG_GGUF_MAX_NAME_BYTES, &name, what, err);
    if (rc) return rc;
    if (!name.n || memchr(name.p, 0, name.n))
        return cn_fail(err, CN_EFORMAT, "%s: offset %llu: tensor %llu has the name %s", c->file,
                       (unsigned long long)at, (unsigned long long)number,
                       eng_gguf_show(name, shown));
    t->name = cn_arena_strn(&g->names, name.p, name.n);
    if (!t->name) return cn_fail(err, CN_ENOMEM, "out of memory");

    at = c->pos;
    rc = eng_gguf_read(c, &t->n_dims, sizeof(t->n_dims), what, err);
    if (rc) return rc;
    if (t->n_dims > 4)
        return cn_fail_param(err, CN_EFORMAT, t->name,
                             "%s: offset %llu: tensor %s has %u dimensions, at most 4 are allowed",
                             c->file, (unsigned long long)at, eng_gguf_show(name, shown),
                             t->n_dims);
    for (uint32_t d = 0; d < 4; d++) {
        t->ne[d] = 1;
        if (d < t->n_dims && (rc = eng_gguf_read(c, &t->ne[d], 8, what, err))) return rc;
    }
    rc = eng_gguf_read(c, &type, sizeof(type), what, err);
    if (!rc) rc = eng_gguf_read(c, offset, sizeof(*offset), what, err);
    if (rc) return rc;
    t->type = (enum kr_type)type;
    rc = tensor_bytes(t, &t->bytes, err);
    if (rc) cn_error_wrap(err, "%s: offset %llu", c->file, (unsigned long long)at);
    return rc;
}

static int add_tensor(struct eng_gguf *g, const struct eng_gguf_cursor *c,
                      const struct kr_tensor *t, struct cn_error *err)
{
    const struct eng_gguf_str_of of = {tensor_name, g};
    size_t twin;
    int rc = cn_grow(&g->tensors, &g->cap_tensors, g->n_tensors + 1, sizeof(*g->tensors));
    if (rc) return cn_fail(err, rc, "out of memory");
    g->tensors[g->n_tensors] = *t;
    rc = eng_gguf_index_add(&g->tensor_index, &of, g->n_tensors, &twin);
    if (rc == CN_EBUSY)
        return cn_fail_param(err, CN_EFORMAT, t->name,
                             "%s: offset %llu: the tensor \"%s\" is there twice", c->file,
                             (unsigned long long)c->pos, t->name);
    if (rc) return cn_fail(err, rc, "out of memory");
    g->n_tensors++;
    return CN_OK;
}

/* Turns the offsets of this shard's tensors into pointers. Order and gaps are free; a tensor must
 * start on the alignment and end inside the file. */
static int place_tensors(struct eng_gguf *g, const struct eng_gguf_shard *s, size_t first,
                         const uint64_t *offsets, uint64_t alignment, struct cn_error *err)
{
    uint64_t section = s->size >= s->data_offset ? s->size - s->data_offset : 0;
    for (size_t i = first; i < g->n_tensors; i++) {
        struct kr_tensor *t = &g->tensors[i];
        uint64_t offset = offsets[i - first];
        if (offset % alignment)
            return cn_fail_param(err, CN_EFORMAT, t->name,
                                 "%s: tensor \"%s\": its offset %llu is not a multiple of the "
                                 "alignment %llu",
                                 s->path, t->name, (unsigned long long)offset,
                                 (unsigned long long)alignment);
        if (offset > section || t->bytes > section - offset)
            return cn_fail_param(
                err, CN_EFORMAT, t->name,
                "%s: tensor \"%s\": %llu bytes at offset %llu of the data section, "
                "which has %llu (the file is cut off or damaged)",
                s->path, t->name, (unsigned long long)t->bytes, (unsigned long long)offset,
                (unsigned long long)section);
        t->data = s->data + s->data_offset + offset; /* both sums are below s->size, just checked */
    }
    return CN_OK;
}

static int read_tensors(struct eng_gguf *g, struct eng_gguf_shard *s, struct eng_gguf_cursor *c,
                        uint64_t n, struct cn_error *err)
{
    size_t first = g->n_tensors, cap = 0;
    uint64_t *offsets = NULL, alignment;
    int rc = read_alignment(s, &alignment, err);

    for (uint64_t i = 0; i < n && !rc; i++) {
        struct kr_tensor t = {0};
        rc = cn_grow(&offsets, &cap, (size_t)i + 1, sizeof(*offsets));
        if (rc) {
            cn_fail(err, rc, "out of memory");
            break;
        }
        rc = read_tensor(g, c, i, &t, &offsets[i], err);
        if (!rc) rc = add_tensor(g, c, &t, err);
    }
    s->header_bytes = c->pos;
    if (!rc && !cn_align_u64(c->pos, alignment, &s->data_offset))
        rc = cn_fail(err, CN_EFORMAT, "%s: the data section would start past any file's end",
                     s->path);
    if (!rc) rc = place_tensors(g, s, first, offsets, alignment, err);
    free(offsets);
    return rc;
}

static int read_shard(struct eng_gguf *g, struct eng_gguf_shard *s, struct cn_error *err)
{
    struct eng_gguf_cursor c = {.file = s->path, .data = s->data, .size = s->size};
    uint64_t n_tensors = 0, n_kvs = 0;
    int rc = read_header(&c, &n_tensors, &n_kvs, err);
    if (!rc) rc = eng_gguf_kvs_read(&s->kvs, &c, n_kvs, err);
    if (!rc) rc = read_tensors(g, s, &c, n_tensors, err);
    if (!rc && !cn_add_u64(g->file_bytes, s->size, &g->file_bytes))
        rc = cn_fail(err, CN_EFORMAT, "%s: the files are too large", s->path);
    return rc;
}

/* ---- opening --------------------------------------------------------------------------------- */

static struct eng_gguf *new_gguf(uint32_t n_shards)
{
    struct eng_gguf *g = cn_calloc(1, sizeof(*g));
    if (!g) return NULL;
    cn_arena_init(&g->names, 0);
    g->shards = cn_calloc(n_shards, sizeof(*g->shards));
    if (!g->shards) {
        free(g);
        return NULL;
    }
    g->n_shards = n_shards;
    return g;
}

static int open_shard(struct eng_gguf *g, uint32_t i, const char *path, struct cn_error *err)
{
    struct eng_gguf_shard *s = &g->shards[i];
    s->path = strdup(path);
    if (!s->path) return cn_fail(err, CN_ENOMEM, "out of memory");
    int rc = eng_mapping_open(path, &s->map, err);
    if (rc) return rc;
    s->data = eng_mapping_data(s->map);
    s->size = eng_mapping_bytes(s->map);
    return read_shard(g, s, err);
}

/* split.no and split.count of a file; 0 and 1 when it is not part of a split model. */
static int split_of(const struct eng_gguf_shard *s, uint64_t *no, uint64_t *count,
                    struct cn_error *err)
{
    *no = 0;
    *count = 1;
    int rc = eng_gguf_kvs_u64(&s->kvs, "split.count", count, err);
    if (rc == CN_ENOENT) return CN_OK;
    if (rc) return rc;
    if (*count <= 1) { /* 0 is written by tools for a model that was not split */
        *count = 1;
        return CN_OK;
    }
    rc = eng_gguf_kvs_u64(&s->kvs, "split.no", no, err);
    if (rc == CN_ENOENT)
        return cn_fail_param(err, CN_EFORMAT, "split.no", "%s: has split.count but no split.no",
                             s->path);
    return rc;
}

/* "dir/name-00001-of-00003.gguf" -> "dir/name", returned owned. */
static int split_prefix(const char *path, uint64_t count, char **prefix, struct cn_error *err)
{
    char tail[64];
    int n = snprintf(tail, sizeof(tail), "-00001-of-%05llu.gguf", (unsigned long long)count);
    size_t len = strlen(path);
    if (n < 0 || len < (size_t)n || strcmp(path + len - n, tail))
        return cn_fail(err, CN_EFORMAT,
                       "%s: the first of %llu files of a split model must be "
                       "named \"...%s\"",
                       path, (unsigned long long)count, tail);
    *prefix = strndup(path, len - (size_t)n);
    return *prefix ? CN_OK : cn_fail(err, CN_ENOMEM, "out of memory");
}

static int open_others(struct eng_gguf *g, const char *prefix, uint32_t count, struct cn_error *err)
{
    size_t room = strlen(prefix) + 32;
    char *path = cn_malloc_array(room, 1);
    int rc = path ? CN_OK : cn_fail(err, CN_ENOMEM, "out of memory");
    for (uint32_t i = 1; i < count && !rc; i++) {
        uint64_t no = 0, n = 0;
        snprintf(path, room, "%s-%05u-of-%05u.gguf", prefix, i + 1, count);
        rc = open_shard(g, i, path, err);
        if (rc) cn_error_wrap(err, "part %u of %u", i + 1, count);
        if (!rc) rc = split_of(&g->shards[i], &no, &n, err);
        if (!rc && (no != i || n != count))
            rc = cn_fail_param(err, CN_EFORMAT, "split.no",
                               "%s: says it is part %llu of %llu (split.no, split.count), expected "
                               "part %u of %u",
                               path, (unsigned long long)no, (unsigned long long)n, i, count);
    }
    free(path);
    return rc;
}

static int open_split(struct eng_gguf *g, const char *path, struct cn_error *err)
{
    uint64_t no = 0, count = 1, total = 0;
    char *prefix;
    int rc = split_of(&g->shards[0], &no, &count, err);
    if (rc || count == 1) return rc;
    if (no != 0)
        return cn_fail_param(err, CN_EFORMAT, "split.no",
                             "%s: is part %llu of a split model of %llu files; name the first one",
                             path, (unsigned long long)no + 1, (unsigned long long)count);
    if (count > 99999)
        return cn_fail_param(err, CN_EFORMAT, "split.count", "%s: split.count is %llu", path,
                             (unsigned long long)count);
    rc = split_prefix(path, count, &prefix, err);
    if (rc) return rc;
    struct eng_gguf_shard *more = cn_realloc_array(g->shards, count, sizeof(*more));
    if (more) {
        memset(more + 1, 0, ((size_t)count - 1) * sizeof(*more)); /* count <= 99999 */
        g->shards = more;
        g->n_shards = (uint32_t)count;
        rc = open_others(g, prefix, (uint32_t)count, err);
    } else {
        rc = cn_fail(err, CN_ENOMEM, "out of memory");
    }
    free(prefix);
    if (rc) return rc;
    rc = eng_gguf_kvs_u64(&g->shards[0].kvs, "split.tensors.count", &total, err);
    if (rc == CN_ENOENT) return CN_OK;
    if (!rc && total != g->n_tensors)
        return cn_fail_param(err, CN_EFORMAT, "split.tensors.count",
                             "%s: split.tensors.count is %llu, the %llu files hold %zu tensors",
                             path, (unsigned long long)total, (unsigned long long)count,
                             g->n_tensors);
    return rc;
}

/* A model that is no file. */
static int open_null(const char *text, struct eng_gguf **out, struct cn_error *err)
{
    void *data;
    size_t n;
    struct eng_gguf *g;
    int rc = eng_null_file(text, &data, &n, err);
    if (rc) return rc;
    rc = eng_gguf_open_memory(data, n, text, &g, err);
    if (rc) {
        free(data);
        return rc;
    }
    g->shards[0].owned = data;
    *out = g;
    return CN_OK;
}

int eng_gguf_open(const char *path, struct eng_gguf **out, struct cn_error *err)
{
    if (eng_null_is(path)) return open_null(path, out, err);
    struct eng_gguf *g = new_gguf(1);
    if (!g) return cn_fail(err, CN_ENOMEM, "out of memory");
    int rc = open_shard(g, 0, path, err);
    if (!rc) rc = open_split(g, path, err);
    if (rc) {
        eng_gguf_close(g);
        return rc;
    }
    *out = g;
    return CN_OK;
}

int eng_gguf_open_memory(const void *data, size_t n, const char *name, struct eng_gguf **out,
                         struct cn_error *err)
{
    struct eng_gguf *g = new_gguf(1);
    if (!g) return cn_fail(err, CN_ENOMEM, "out of memory");
    struct eng_gguf_shard *s = &g->shards[0];
    s->path = strdup(name);
    s->data = data;
    s->size = n;
    int rc = s->path ? read_shard(g, s, err) : cn_fail(err, CN_ENOMEM, "out of memory");
    if (rc) {
        eng_gguf_close(g);
        return rc;
    }
    *out = g;
    return CN_OK;
}

void eng_gguf_close(struct eng_gguf *g)
{
    if (!g) return;
    for (uint32_t i = 0; i < g->n_shards; i++) {
        eng_gguf_kvs_fini(&g->shards[i].kvs);
        eng_mapping_close(g->shards[i].map);
        free(g->shards[i].owned);
        free(g->shards[i].path);
    }
    free(g->shards);
    free(g->tensors);
    eng_gguf_index_fini(&g->tensor_index);
    cn_arena_fini(&g->names);
    free(g);
}

bool eng_gguf_intact(const struct eng_gguf *g)
{
    for (uint32_t i = 0; i < g->n_shards; i++)
        if (g->shards[i].map && !eng_mapping_intact(g->shards[i].map)) return false;
    return true;
}

uint64_t eng_gguf_n_tensors(const struct eng_gguf *g)
{
    return g->n_tensors;
}

const struct kr_tensor *eng_gguf_tensor(const struct eng_gguf *g, uint64_t i)
{
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}

const struct kr_tensor *eng_gguf_find(const struct eng_gguf *g, const char *name)
{
    const struct eng_gguf_str_of of = {tensor_name, g};
    size_t i = eng_gguf_index_find(&g->tensor_index, &of, name, strlen(name));
    return i == SIZE_MAX ? NULL : &g->tensors[i];
}
