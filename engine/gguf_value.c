/* GGUF: typed access to values. Values are not aligned in the file, so they are copied out. */
#include "engine/gguf.h"

#include <stdlib.h>
#include <string.h>

static int wrong_kind(const struct eng_gguf_kv *kv, const char *key, const char *wanted,
                      struct cn_error *err)
{
    bool array = kv->type == ENG_GGUF_ARRAY;
    return cn_fail_param(err, CN_EFORMAT, key, "key \"%.80s\" (offset %llu) is %s%s, expected %s",
                         key, (unsigned long long)kv->offset, array ? "an array of " : "a ",
                         eng_gguf_value_name(kv->elem), wanted);
}

static int absent(const char *key, struct cn_error *err)
{
    return cn_fail_param(err, CN_ENOENT, key, "key \"%.80s\" is missing", key);
}

/* One integer or bool at p; false when the type is no such thing. *negative: the value is below
 * zero and *out is meaningless as an unsigned number. */
static bool load_int(enum eng_gguf_type type, const uint8_t *p, uint64_t *out, bool *negative)
{
    union {
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
    } v;
    int64_t s = 0;
    memcpy(&v, p, eng_gguf_value_bytes(type));
    switch (type) {
    case ENG_GGUF_U8:
        *out = *p;
        break;
    case ENG_GGUF_BOOL:
        *out = *p != 0;
        break;
    case ENG_GGUF_U16:
        *out = v.u16;
        break;
    case ENG_GGUF_U32:
        *out = v.u32;
        break;
    case ENG_GGUF_U64:
        *out = v.u64;
        break;
    case ENG_GGUF_I8:
        s = v.i8;
        *out = (uint64_t)s;
        break;
    case ENG_GGUF_I16:
        s = v.i16;
        *out = (uint64_t)s;
        break;
    case ENG_GGUF_I32:
        s = v.i32;
        *out = (uint64_t)s;
        break;
    case ENG_GGUF_I64:
        s = v.i64;
        *out = (uint64_t)s;
        break;
    default:
        return false;
    }
    *negative = s < 0;
    return true;
}

static int scalar_u64(const struct eng_gguf_kv *kv, const char *key, const uint8_t *at,
                      enum eng_gguf_type type, uint64_t *out, struct cn_error *err)
{
    uint64_t value = 0;
    bool negative = false;
    if (!load_int(type, at, &value, &negative)) return wrong_kind(kv, key, "an integer", err);
    if (negative)
        return cn_fail_param(err, CN_EFORMAT, key, "key \"%.80s\" (offset %llu) is negative: %lld",
                             key, (unsigned long long)kv->offset, (long long)value);
    *out = value;
    return CN_OK;
}

int eng_gguf_kvs_u64(const struct eng_gguf_kvs *kvs, const char *key, uint64_t *out,
                     struct cn_error *err)
{
    const struct eng_gguf_kv *kv = eng_gguf_kvs_find(kvs, key);
    if (!kv) return CN_ENOENT;
    if (kv->type == ENG_GGUF_BOOL || kv->type == ENG_GGUF_STRING || kv->type == ENG_GGUF_ARRAY)
        return wrong_kind(kv, key, "an integer", err);
    return scalar_u64(kv, key, kv->value, kv->type, out, err);
}

int eng_gguf_u64(const struct eng_gguf *g, const char *key, uint64_t *out, struct cn_error *err)
{
    int rc = eng_gguf_kvs_u64(&g->shards[0].kvs, key, out, err);
    return rc == CN_ENOENT ? absent(key, err) : rc;
}

static const struct eng_gguf_kv *find(const struct eng_gguf *g, const char *key)
{
    return eng_gguf_kvs_find(&g->shards[0].kvs, key);
}

int eng_gguf_f32(const struct eng_gguf *g, const char *key, float *out, struct cn_error *err)
{
    const struct eng_gguf_kv *kv = find(g, key);
    if (!kv) return absent(key, err);
    if (kv->type == ENG_GGUF_F32) {
        memcpy(out, kv->value, sizeof(*out));
    } else if (kv->type == ENG_GGUF_F64) {
        double d;
        memcpy(&d, kv->value, sizeof(d));
        *out = (float)d;
    } else {
        return wrong_kind(kv, key, "a number with a fraction", err);
    }
    return CN_OK;
}

int eng_gguf_bool(const struct eng_gguf *g, const char *key, bool *out, struct cn_error *err)
{
    const struct eng_gguf_kv *kv = find(g, key);
    if (!kv) return absent(key, err);
    if (kv->type != ENG_GGUF_BOOL) return wrong_kind(kv, key, "true or false", err);
    *out = *kv->value != 0;
    return CN_OK;
}

/* The string whose length field is at p; the reader has checked that it lies in the file. A file
 * that was cut short since then reads as zeros, so the length is compared with what is left. */
static struct eng_str load_str(const uint8_t *p, uint64_t left)
{
    uint64_t n;
    if (left < sizeof(n)) return (struct eng_str){.p = (const char *)p, .n = 0};
    memcpy(&n, p, sizeof(n));
    if (n > left - sizeof(n)) n = left - sizeof(n);
    return (struct eng_str){.p = (const char *)p + sizeof(n), .n = n};
}

int eng_gguf_str(const struct eng_gguf *g, const char *key, struct eng_str *out,
                 struct cn_error *err)
{
    const struct eng_gguf_kv *kv = find(g, key);
    if (!kv) return absent(key, err);
    if (kv->type != ENG_GGUF_STRING) return wrong_kind(kv, key, "a string", err);
    *out = load_str(kv->value, kv->bytes);
    return CN_OK;
}

int eng_gguf_str_or_none(const struct eng_gguf *g, const char *key, struct eng_str *out,
                         struct cn_error *err)
{
    if (find(g, key)) return eng_gguf_str(g, key, out, err);
    *out = (struct eng_str){0};
    return CN_OK;
}

static int find_array(const struct eng_gguf *g, const char *key, const struct eng_gguf_kv **out,
                      struct cn_error *err)
{
    const struct eng_gguf_kv *kv = find(g, key);
    if (!kv) return absent(key, err);
    if (kv->type != ENG_GGUF_ARRAY) return wrong_kind(kv, key, "an array", err);
    *out = kv;
    return CN_OK;
}

/* An array of integers of any width: *size bytes each. */
static int find_integers(const struct eng_gguf *g, const char *key, const struct eng_gguf_kv **out,
                         uint64_t *size, struct cn_error *err)
{
    int rc = find_array(g, key, out, err);
    if (rc) return rc;
    *size = eng_gguf_value_bytes((*out)->elem);
    if (!*size || (*out)->elem == ENG_GGUF_F32 || (*out)->elem == ENG_GGUF_F64)
        return wrong_kind(*out, key, "an array of integers", err);
    return CN_OK;
}

/* An array of elements of one kind, and room for as many values of `size` bytes (returned owned):
 * the file holds at least one byte for each element. */
static int find_elements(const struct eng_gguf *g, const char *key, enum eng_gguf_type elem,
                         const char *kind, const struct eng_gguf_kv **out, size_t size,
                         void **values, struct cn_error *err)
{
    int rc = find_array(g, key, out, err);
    if (rc) return rc;
    if ((*out)->elem != elem) return wrong_kind(*out, key, kind, err);
    *values = cn_malloc_array((size_t)(*out)->n, size);
    return *values ? CN_OK : cn_fail(err, CN_ENOMEM, "out of memory");
}

int eng_gguf_array(const struct eng_gguf *g, const char *key, enum eng_gguf_type *type, uint64_t *n,
                   struct cn_error *err)
{
    const struct eng_gguf_kv *kv = NULL;
    int rc = find_array(g, key, &kv, err);
    if (rc) return rc;
    *type = kv->elem;
    *n = kv->n;
    return CN_OK;
}

int eng_gguf_array_u64(const struct eng_gguf *g, const char *key, uint64_t i, uint64_t *out,
                       struct cn_error *err)
{
    const struct eng_gguf_kv *kv = NULL;
    uint64_t size = 0;
    int rc = find_integers(g, key, &kv, &size, err);
    if (rc) return rc;
    if (i >= kv->n)
        return cn_fail_param(err, CN_EFORMAT, key,
                             "key \"%.80s\" has %llu elements, element %llu is needed", key,
                             (unsigned long long)kv->n, (unsigned long long)i);
    return scalar_u64(kv, key, kv->value + i * size, kv->elem, out,
                      err); /* i < n, checked at load */
}

int eng_gguf_strings(const struct eng_gguf *g, const char *key, struct eng_str **out, size_t *n,
                     struct cn_error *err)
{
    const struct eng_gguf_kv *kv = NULL;
    void *values = NULL;
    int rc = find_elements(g, key, ENG_GGUF_STRING, "an array of strings", &kv,
                           sizeof(struct eng_str), &values, err);
    if (rc) return rc;
    struct eng_str *v = values;
    uint64_t pos = 0;
    for (uint64_t i = 0; i < kv->n; i++) {
        v[i] = load_str(kv->value + pos, kv->bytes - pos);
        pos = (uint64_t)((const uint8_t *)v[i].p - kv->value) + v[i].n;
        if (pos > kv->bytes) pos = kv->bytes;
    }
    *out = v;
    *n = (size_t)kv->n;
    return CN_OK;
}

int eng_gguf_floats(const struct eng_gguf *g, const char *key, float **out, size_t *n,
                    struct cn_error *err)
{
    const struct eng_gguf_kv *kv = NULL;
    void *values = NULL;
    int rc =
        find_elements(g, key, ENG_GGUF_F32, "an array of f32", &kv, sizeof(float), &values, err);
    if (rc) return rc;
    if (kv->n) memcpy(values, kv->value, kv->bytes);
    *out = values;
    *n = (size_t)kv->n;
    return CN_OK;
}

int eng_gguf_int32s(const struct eng_gguf *g, const char *key, int32_t **out, size_t *n,
                    struct cn_error *err)
{
    const struct eng_gguf_kv *kv = NULL;
    uint64_t size = 0;
    int rc = find_integers(g, key, &kv, &size, err);
    if (rc) return rc;
    /* The file holds at least one byte for each element. */
    int32_t *v = cn_malloc_array((size_t)kv->n, sizeof(*v));
    if (!v) return cn_fail(err, CN_ENOMEM, "out of memory");
    for (uint64_t i = 0; i < kv->n; i++) {
        uint64_t value = 0;
        bool negative = false;
        load_int(kv->elem, kv->value + i * size, &value, &negative);
        if (negative ? (int64_t)value < INT32_MIN : value > INT32_MAX) {
            free(v);
            return cn_fail_param(err, CN_EFORMAT, key,
                                 "element %llu of key \"%.80s\" does not fit in 32 bits",
                                 (unsigned long long)i, key);
        }
        v[i] = (int32_t)(int64_t)value;
    }
    *out = v;
    *n = (size_t)kv->n;
    return CN_OK;
}
