/* Writes GGUF files for tests, byte by byte as the format says, correct or deliberately not. */
#ifndef TESTS_ENGINE_GGUF_WRITE_H
#define TESTS_ENGINE_GGUF_WRITE_H

#include "engine/gguf.h"

#include <string.h>

struct gw {
    struct cn_buf b;
    uint64_t n_tensors, n_kvs;
};

static inline void gw_bytes(struct gw *w, const void *p, size_t n)
{
    cn_buf_append(&w->b, p, n);
}
static inline void gw_u32(struct gw *w, uint32_t v)
{
    gw_bytes(w, &v, 4);
}
static inline void gw_u64(struct gw *w, uint64_t v)
{
    gw_bytes(w, &v, 8);
}
static inline void gw_str(struct gw *w, const char *s, size_t n)
{
    gw_u64(w, n);
    gw_bytes(w, s, n);
}
static inline void gw_begin(struct gw *w)
{
    memset(w, 0, sizeof(*w));
    cn_buf_init(&w->b, 0);
    gw_bytes(w, "GGUF", 4);
    gw_u32(w, 3);
    gw_u64(w, 0); /* offset 8: tensors */
    gw_u64(w, 0); /* offset 16: keys */
}
static inline void gw_key(struct gw *w, const char *key, uint32_t type)
{
    gw_str(w, key, strlen(key));
    gw_u32(w, type);
    w->n_kvs++;
}
static inline void gw_kv_u32(struct gw *w, const char *key, uint32_t v)
{
    gw_key(w, key, ENG_GGUF_U32);
    gw_u32(w, v);
}
static inline void gw_kv_f32(struct gw *w, const char *key, float v)
{
    gw_key(w, key, ENG_GGUF_F32);
    gw_bytes(w, &v, 4);
}
static inline void gw_kv_str(struct gw *w, const char *key, const char *v)
{
    gw_key(w, key, ENG_GGUF_STRING);
    gw_str(w, v, strlen(v));
}
static inline void gw_kv_array(struct gw *w, const char *key, uint32_t elem, uint64_t n)
{
    gw_key(w, key, ENG_GGUF_ARRAY);
    gw_u32(w, elem);
    gw_u64(w, n);
}
static inline void gw_tensor(struct gw *w, const char *name, uint32_t n_dims, const uint64_t *ne,
                             uint32_t type, uint64_t offset)
{
    gw_str(w, name, strlen(name));
    gw_u32(w, n_dims);
    for (uint32_t d = 0; d < n_dims; d++)
        gw_u64(w, ne[d]);
    gw_u32(w, type);
    gw_u64(w, offset);
    w->n_tensors++;
}
/* Fills the counts in, pads to the alignment, adds n data bytes 0, 1, 2, ... */
static inline void gw_end(struct gw *w, size_t align, size_t n)
{
    memcpy(w->b.data + 8, &w->n_tensors, 8);
    memcpy(w->b.data + 16, &w->n_kvs, 8);
    while (w->b.len % align)
        cn_buf_putc(&w->b, 0);
    for (size_t i = 0; i < n; i++)
        cn_buf_putc(&w->b, (char)i);
}

#endif
