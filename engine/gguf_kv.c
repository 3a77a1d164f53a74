/* GGUF: cursor, key-value table, string index.
 * A count in the file only says when to stop: memory grows with what was really read, and every
 * position is compared with the bytes left, never added first. */
#include "engine/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF values are read in place");

const char *eng_gguf_show(struct eng_str s, char out[ENG_GGUF_SHOWN])
{
    size_t shown = CN_MIN(s.n, 64), o = 0;
    out[o++] = '"';
    for (size_t i = 0; i < shown; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\')
            out[o++] = (char)c;
        else
            o += (size_t)snprintf(out + o, 5, "\\x%02x", c);
    }
    snprintf(out + o, 6, shown < s.n ? "\"..." : "\"");
    return out;
}

/* ---- index ----------------------------------------------------------------------------------- */

static size_t index_slot(const struct eng_gguf_index *x, const struct eng_gguf_str_of *of,
                         const char *s, size_t n)
{
    size_t mask = x->n_slots - 1, h = cn_siphash13(x->hash_key, s, n) & mask;
    for (;; h = (h + 1) & mask) {
        if (!x->slots[h]) return h;
        struct eng_str have = of->get(of->table, x->slots[h] - 1);
        if (have.n == n && !memcmp(have.p, s, n)) return h;
    }
}

static int index_grow(struct eng_gguf_index *x, const struct eng_gguf_str_of *of)
{
    struct eng_gguf_index bigger = {.n_slots = x->n_slots ? x->n_slots * 2 : 64};
    bigger.slots = cn_calloc(bigger.n_slots, sizeof(*bigger.slots));
    if (!bigger.slots) return CN_ENOMEM;
    if (x->n_slots)
        memcpy(bigger.hash_key, x->hash_key, sizeof(bigger.hash_key));
    else
        cn_random(bigger.hash_key, sizeof(bigger.hash_key));
    for (size_t i = 0; i < x->n_slots; i++) {
        if (!x->slots[i]) continue;
        struct eng_str s = of->get(of->table, x->slots[i] - 1);
        bigger.slots[index_slot(&bigger, of, s.p, s.n)] = x->slots[i];
    }
    bigger.n_used = x->n_used;
    free(x->slots);
    *x = bigger;
    return CN_OK;
}

int eng_gguf_index_add(struct eng_gguf_index *x, const struct eng_gguf_str_of *of, size_t i,
                       size_t *found)
{
    if (x->n_used * 2 >= x->n_slots) {
        int rc = index_grow(x, of);
        if (rc) return rc;
    }
    struct eng_str s = of->get(of->table, i);
    size_t h = index_slot(x, of, s.p, s.n);
    if (x->slots[h]) {
        *found = x->slots[h] - 1;
        return CN_EBUSY;
    }
    x->slots[h] = (uint32_t)i + 1;
    x->n_used++;
    return CN_OK;
}

size_t eng_gguf_index_find(const struct eng_gguf_index *x, const struct eng_gguf_str_of *of,
                           const char *s, size_t n)
{
    if (!x->n_slots) return SIZE_MAX;
    size_t h = index_slot(x, of, s, n);
    return x->slots[h] ? x->slots[h] - 1 : SIZE_MAX;
}

void eng_gguf_index_fini(struct eng_gguf_index *x)
{
    free(x->slots);
    memset(x, 0, sizeof(*x));
}

/* ---- cursor ---------------------------------------------------------------------------------- */

int eng_gguf_read(struct eng_gguf_cursor *c, void *out, uint64_t n, const char *what,
                  struct cn_error *err)
{
    if (n > c->size - c->pos)
        return cn_fail(err, CN_EFORMAT,
                       "%s: cut off at offset %llu: %s needs %llu bytes, the file has %llu more",
                       c->file, (unsigned long long)c->pos, what, (unsigned long long)n,
                       (unsigned long long)(c->size - c->pos));
    if (out) memcpy(out, c->data + c->pos, n);
    c->pos += n;
    return CN_OK;
}

int eng_gguf_read_str(struct eng_gguf_cursor *c, uint64_t max_bytes, struct eng_str *out,
                      const char *what, struct cn_error *err)
{
    uint64_t n = 0, at = c->pos;
    int rc = eng_gguf_read(c, &n, sizeof(n), what, err);
    if (rc) return rc;
    if (n > max_bytes)
        return cn_fail(err, CN_EFORMAT,
                       "%s: offset %llu: %s has a length of %llu bytes, the limit "
                       "is %llu",
                       c->file, (unsigned long long)at, what, (unsigned long long)n,
                       (unsigned long long)max_bytes);
    const uint8_t *start = c->data + c->pos;
    rc = eng_gguf_read(c, NULL, n, what, err);
    if (rc) return rc;
    *out = (struct eng_str){.p = (const char *)start, .n = n};
    return CN_OK;
}

/* ---- value types ----------------------------------------------------------------------------- */

static const struct {
    const char *name;
    uint8_t bytes;
} value_types[] = {
    [ENG_GGUF_U8] = {"u8", 1},         [ENG_GGUF_I8] = {"i8", 1},
    [ENG_GGUF_U16] = {"u16", 2},       [ENG_GGUF_I16] = {"i16", 2},
    [ENG_GGUF_U32] = {"u32", 4},       [ENG_GGUF_I32] = {"i32", 4},
    [ENG_GGUF_F32] = {"f32", 4},       [ENG_GGUF_BOOL] = {"bool", 1},
    [ENG_GGUF_STRING] = {"string", 0}, [ENG_GGUF_ARRAY] = {"array", 0},
    [ENG_GGUF_U64] = {"u64", 8},       [ENG_GGUF_I64] = {"i64", 8},
    [ENG_GGUF_F64] = {"f64", 8},
};

uint64_t eng_gguf_value_bytes(uint32_t type)
{
    return type < CN_ARRAY_LEN(value_types) ? value_types[type].bytes : 0;
}

const char *eng_gguf_value_name(uint32_t type)
{
    return type < CN_ARRAY_LEN(value_types) ? value_types[type].name : "unknown";
}

/* ---- key table ------------------------------------------------------------------------------- */

static struct eng_str kv_key(const void *table, size_t i)
{
    return ((const struct eng_gguf_kvs *)table)->v[i].key;
}

/* Moves the cursor over the value's bytes, checking each string of an array of strings. */
static int skip_elements(struct eng_gguf_cursor *c, uint32_t type, uint64_t n, const char *what,
                         struct cn_error *err)
{
    if (type != ENG_GGUF_STRING) {
        uint64_t bytes;
        if (!cn_mul_u64(n, eng_gguf_value_bytes(type), &bytes))
            return cn_fail(err, CN_EFORMAT,
                           "%s: offset %llu: %s has %llu elements, more than any "
                           "file can hold",
                           c->file, (unsigned long long)c->pos, what, (unsigned long long)n);
        return eng_gguf_read(c, NULL, bytes, what, err);
    }
    for (uint64_t i = 0; i < n; i++) {
        struct eng_str s;
        int rc = eng_gguf_read_str(c, UINT64_MAX, &s, what, err);
        if (rc) return rc;
    }
    return CN_OK;
}

static int read_value(struct eng_gguf_kv *kv, struct eng_gguf_cursor *c, struct cn_error *err)
{
    char shown[ENG_GGUF_SHOWN], what[ENG_GGUF_SHOWN + 16];
    uint32_t type = 0, elem = 0;
    uint64_t at = c->pos;

    snprintf(what, sizeof(what), "key %s", eng_gguf_show(kv->key, shown));
    int rc = eng_gguf_read(c, &type, sizeof(type), what, err);
    if (rc) return rc;
    kv->n = 1;
    elem = type;
    if (type == ENG_GGUF_ARRAY) {
        at = c->pos;
        rc = eng_gguf_read(c, &elem, sizeof(elem), what, err);
        if (!rc) rc = eng_gguf_read(c, &kv->n, sizeof(kv->n), what, err);
        if (rc) return rc;
        if (elem == ENG_GGUF_ARRAY)
            return cn_fail(err, CN_EFORMAT, "%s: offset %llu: %s is an array of arrays", c->file,
                           (unsigned long long)at, what);
    }
    if (elem >= CN_ARRAY_LEN(value_types))
        return cn_fail(err, CN_EFORMAT, "%s: offset %llu: %s has the unknown value type %u",
                       c->file, (unsigned long long)at, what, elem);
    kv->type = (enum eng_gguf_type)type;
    kv->elem = (enum eng_gguf_type)elem;
    kv->offset = c->pos;
    kv->value = c->data + c->pos;
    rc = skip_elements(c, elem, kv->n, what, err);
    kv->bytes = c->pos - kv->offset;
    return rc;
}

int eng_gguf_kvs_read(struct eng_gguf_kvs *kvs, struct eng_gguf_cursor *c, uint64_t n,
                      struct cn_error *err)
{
    const struct eng_gguf_str_of of = {kv_key, kvs};
    if (n > ENG_GGUF_MAX_KEYS)
        return cn_fail(err, CN_EFORMAT, "%s: the header declares %llu keys, the limit is %d",
                       c->file, (unsigned long long)n, ENG_GGUF_MAX_KEYS);
    for (uint64_t i = 0; i < n; i++) {
        char shown[ENG_GGUF_SHOWN], what[48];
        struct eng_gguf_kv kv = {0};
        uint64_t at = c->pos;
        size_t twin;

        snprintf(what, sizeof(what), "the name of key %llu", (unsigned long long)i);
        int rc = eng_gguf_read_str(c, ENG_GGUF_MAX_KEY_BYTES, &kv.key, what, err);
        if (rc) return rc;
        if (!kv.key.n)
            return cn_fail(err, CN_EFORMAT, "%s: offset %llu: %s is empty", c->file,
                           (unsigned long long)at, what);
        rc = read_value(&kv, c, err);
        if (rc) return rc;
        rc = cn_grow(&kvs->v, &kvs->cap, kvs->n + 1, sizeof(*kvs->v));
        if (rc) return cn_fail(err, rc, "out of memory");
        kvs->v[kvs->n] = kv;
        rc = eng_gguf_index_add(&kvs->index, &of, kvs->n, &twin);
        if (rc == CN_EBUSY)
            return cn_fail(err, CN_EFORMAT, "%s: offset %llu: the key %s is there twice", c->file,
                           (unsigned long long)at, eng_gguf_show(kv.key, shown));
        if (rc) return cn_fail(err, rc, "out of memory");
        kvs->n++;
    }
    return CN_OK;
}

const struct eng_gguf_kv *eng_gguf_kvs_find(const struct eng_gguf_kvs *kvs, const char *key)
{
    const struct eng_gguf_str_of of = {kv_key, kvs};
    size_t i = eng_gguf_index_find(&kvs->index, &of, key, strlen(key));
    return i == SIZE_MAX ? NULL : &kvs->v[i];
}

void eng_gguf_kvs_fini(struct eng_gguf_kvs *kvs)
{
    free(kvs->v);
    eng_gguf_index_fini(&kvs->index);
    memset(kvs, 0, sizeof(*kvs));
}
