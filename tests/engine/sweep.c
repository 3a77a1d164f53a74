/* See sweep.h. */
#include "sweep.h"

#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t note(struct fields *f, const uint8_t *data, size_t at, unsigned width, int keep)
{
    uint64_t v = 0;
    memcpy(&v, data + at, width);
    if (!keep) return v;
    if (f->n == f->cap) {
        f->cap = f->cap ? f->cap * 2 : 256;
        f->v = realloc(f->v, f->cap * sizeof(*f->v));
    }
    f->v[f->n++] = (struct field){at, (uint8_t)width};
    return v;
}

static size_t string_at(struct fields *f, const uint8_t *data, size_t at, int keep)
{
    return at + 8 + (size_t)note(f, data, at, 8, keep);
}

static size_t value_at(struct fields *f, const uint8_t *data, size_t at, uint64_t type, int keep)
{
    static const unsigned widths[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type == 8) return string_at(f, data, at, keep);
    note(f, data, at, widths[type], keep);
    return at + widths[type];
}

static size_t kv_at(struct fields *f, const uint8_t *data, size_t at)
{
    at = string_at(f, data, at, 1);
    uint64_t type = note(f, data, at, 4, 1);
    at += 4;
    if (type != 9) return value_at(f, data, at, type, 1);
    uint64_t elem = note(f, data, at, 4, 1), n = note(f, data, at + 4, 8, 1);
    at += 12;
    for (uint64_t i = 0; i < n; i++)
        at = value_at(f, data, at, elem, i < 3 || i + 3 >= n);
    return at;
}

void sweep_fields(const uint8_t *data, struct fields *f)
{
    memset(f, 0, sizeof(*f));
    note(f, data, 4, 4, 1);
    uint64_t tensors = note(f, data, 8, 8, 1), kvs = note(f, data, 16, 8, 1);
    size_t at = 24;
    for (uint64_t i = 0; i < kvs; i++)
        at = kv_at(f, data, at);
    for (uint64_t i = 0; i < tensors; i++) {
        at = string_at(f, data, at, 1);
        uint64_t dims = note(f, data, at, 4, 1);
        at += 4;
        for (uint64_t d = 0; d < dims; d++, at += 8)
            note(f, data, at, 8, 1);
        note(f, data, at, 4, 1);
        note(f, data, at + 4, 8, 1);
        at += 12;
    }
    f->header = at;
}

int sweep_value(size_t i, uint64_t value, int width, int few, uint64_t *out)
{
    static const uint8_t few_bits[] = {0, 1, 2, 3, 4, 5, 8, 15, 31, 32, 62, 63};
    const uint64_t first[] = {0, UINT64_MAX, value + 1, value - 1, value * 2, value / 2};
    if (i < CN_ARRAY_LEN(first)) {
        *out = first[i];
        return 1;
    }
    i -= CN_ARRAY_LEN(first);
    unsigned bit = (unsigned)(i / 3);
    if (few) {
        if (bit >= CN_ARRAY_LEN(few_bits)) return 0;
        bit = few_bits[bit];
    }
    if (bit >= (unsigned)width * 8) return 0;
    *out = (1ull << bit) + i % 3 - 1;
    return 1;
}

uint8_t *sweep_read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    uint8_t *data = malloc(*n);
    if (fread(data, 1, *n, f) != *n) abort();
    fclose(f);
    return data;
}

uint64_t sweep_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
