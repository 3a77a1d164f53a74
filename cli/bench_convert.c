/* A model's file with its matrices in another type, in memory, for conifer bench --ladder: the same
 * metadata, tensors dequantised and written as F32 or Q8_0. Main thread. */
#include "cli/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { Q8_BLOCK = 32, Q8_BYTES = 34, CHUNK_ROWS = 64 };

struct writer {
    int fd;
    uint64_t at;
    bool failed;
};

static void put(struct writer *w, const void *p, uint64_t n)
{
    const char *at = p;
    w->at += n;
    while (n && !w->failed) {
        ssize_t k = write(w->fd, at, (size_t)CN_MIN(n, 1u << 30));
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) {
            w->failed = true;
            return;
        }
        at += k;
        n -= (uint64_t)k;
    }
}

static void pad_to(struct writer *w, uint64_t align)
{
    static const char zeros[4096];
    while (w->at % align)
        put(w, zeros, CN_MIN(sizeof zeros, align - w->at % align));
}

/* ---- what becomes of a tensor ---------------------------------------------------------------- */

/* Matrices of products; small tensors that are F32 stay as they are. */
static bool is_matrix(const struct kr_tensor *t)
{
    if (t->n_dims < 2 || strstr(t->name, "_inp")) return false;
    if (t->type != KR_F32) return true;
    return !strncmp(t->name, "token_embd.", 11) || !strncmp(t->name, "output.", 7) ||
           strstr(t->name, ".attn_") || strstr(t->name, ".ffn_");
}

static enum kr_type new_type(const struct kr_tensor *t, enum kr_type type)
{
    if (!is_matrix(t)) return t->type;
    return type == KR_Q8_0 && t->ne[0] % Q8_BLOCK ? KR_F32 : type;
}

static uint64_t elements(const struct kr_tensor *t)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < t->n_dims; i++)
        n *= t->ne[i];
    return n;
}

static uint64_t bytes_as(const struct kr_tensor *t, enum kr_type type)
{
    const struct kr_type_info *i = kr_type_info((uint32_t)type);
    return type == t->type ? t->bytes : elements(t) / i->block_elems * i->block_bytes;
}

uint64_t cli_bench_converted_bytes(const struct eng_gguf *g, enum kr_type type)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < eng_gguf_n_tensors(g); i++) {
        const struct kr_tensor *t = eng_gguf_tensor(g, i);
        sum += bytes_as(t, new_type(t, type));
    }
    return sum;
}

/* A block of Q8_0: a float16 scale, amax / 127, and 32 values in units of it. */
static void quantise_q8_0(const float *x, uint8_t *out, uint64_t n)
{
    for (uint64_t b = 0; b < n; b += Q8_BLOCK, out += Q8_BYTES) {
        float most = 0;
        uint16_t half;
        for (int i = 0; i < Q8_BLOCK; i++)
            most = fmaxf(most, fabsf(x[b + (uint64_t)i]));
        float scale = most / 127, inverse = scale > 0 ? 1 / scale : 0;
        kr_quantize_f16(&scale, &half, 1);
        memcpy(out, &half, sizeof half);
        for (int i = 0; i < Q8_BLOCK; i++)
            out[2 + i] = (uint8_t)(int8_t)lrintf(x[b + (uint64_t)i] * inverse);
    }
}

static void put_tensor(struct writer *w, const struct kr_tensor *t, enum kr_type type, float *row,
                       uint8_t *packed)
{
    uint64_t cols = t->ne[0], rows = elements(t) / cols, row_bytes = t->bytes / rows;

    if (type == t->type) {
        put(w, t->data, t->bytes);
        return;
    }
    for (uint64_t r = 0; r < rows && !w->failed; r += CHUNK_ROWS) {
        uint64_t n = CN_MIN(CHUNK_ROWS, rows - r) * cols;
        kr_dequantize_row(t->type, (const uint8_t *)t->data + r * row_bytes, row, n);
        if (type == KR_Q8_0) quantise_q8_0(row, packed, n);
        if (type == KR_Q8_0)
            put(w, packed, n / Q8_BLOCK * Q8_BYTES);
        else
            put(w, row, n * sizeof *row);
    }
}

/* ---- the file's head ------------------------------------------------------------------------- */

/* Bytes of a value of a GGUF type; 0 where they do not follow from the type. */
static const uint8_t sizes[] = {
    [ENG_GGUF_U8] = 1,  [ENG_GGUF_I8] = 1,  [ENG_GGUF_U16] = 2, [ENG_GGUF_I16] = 2,
    [ENG_GGUF_U32] = 4, [ENG_GGUF_I32] = 4, [ENG_GGUF_F32] = 4, [ENG_GGUF_BOOL] = 1,
    [ENG_GGUF_U64] = 8, [ENG_GGUF_I64] = 8, [ENG_GGUF_F64] = 8, [ENG_GGUF_STRING] = 0,
};

static uint64_t u64_at(const uint8_t *p)
{
    uint64_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

static uint32_t u32_at(const uint8_t *p)
{
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* Past a key and its value. The file was opened: every length was checked. */
static const uint8_t *skip_pair(const uint8_t *p)
{
    p += 8 + u64_at(p);
    uint32_t type = u32_at(p);
    uint64_t n = 1;
    p += 4;
    if (type == ENG_GGUF_ARRAY) {
        type = u32_at(p);
        n = u64_at(p + 4);
        p += 12;
    }
    if (sizes[type]) return p + n * sizes[type];
    while (n--)
        p += 8 + u64_at(p);
    return p;
}

enum { HEAD_BYTES = 24 }; /* magic, version, numbers of tensors and of keys */

static void put_head(struct writer *w, const struct eng_gguf *g, const uint8_t *file,
                     enum kr_type type, uint64_t align)
{
    const uint8_t *end = file + HEAD_BYTES;
    uint64_t at = 0;

    for (uint64_t i = 0; i < u64_at(file + 16); i++)
        end = skip_pair(end);
    put(w, file, (uint64_t)(end - file));
    for (uint64_t i = 0; i < eng_gguf_n_tensors(g); i++) {
        const struct kr_tensor *t = eng_gguf_tensor(g, i);
        uint64_t len = strlen(t->name);
        uint32_t as = new_type(t, type);
        put(w, &len, sizeof len);
        put(w, t->name, len);
        put(w, &t->n_dims, sizeof t->n_dims);
        put(w, t->ne, t->n_dims * sizeof *t->ne);
        put(w, &as, sizeof as);
        put(w, &at, sizeof at);
        at += (bytes_as(t, (enum kr_type)as) + align - 1) / align * align;
    }
    pad_to(w, align);
}

static int write_all(struct writer *w, const struct eng_gguf *g, const uint8_t *file,
                     enum kr_type type, struct cn_error *err)
{
    struct cn_error no_key = {0};
    uint64_t align = 32, most = 1;

    if (eng_gguf_u64(g, "general.alignment", &align, &no_key)) align = 32;
    for (uint64_t i = 0; i < eng_gguf_n_tensors(g); i++)
        most = CN_MAX(most, eng_gguf_tensor(g, i)->ne[0]);
    float *row = cn_malloc_array(most, CHUNK_ROWS * sizeof *row);
    uint8_t *packed = cn_malloc_array(most, CHUNK_ROWS * 2);
    int rc = row && packed ? 0 : cn_fail(err, CN_ENOMEM, "out of memory");
    if (!rc) put_head(w, g, file, type, align);
    for (uint64_t i = 0; !rc && i < eng_gguf_n_tensors(g); i++) {
        const struct kr_tensor *t = eng_gguf_tensor(g, i);
        put_tensor(w, t, new_type(t, type), row, packed);
        pad_to(w, align);
    }
    free(row);
    free(packed);
    if (!rc && w->failed) rc = cn_fail(err, CN_EIO, "the converted weights could not be written");
    return rc;
}

/* A file without a name, and a path that opens it by its descriptor. It is in memory on Linux,
 * on disk elsewhere. */
#if defined(__linux__)
#define SCRATCH_PATH "/proc/self/fd/%d"
static int scratch_file(void)
{
    return memfd_create("conifer-ladder", MFD_CLOEXEC);
}
#else
#define SCRATCH_PATH "/dev/fd/%d"
static int scratch_file(void)
{
    FILE *f = tmpfile();
    int fd = f ? fcntl(fileno(f), F_DUPFD_CLOEXEC, 0) : -1;

    if (f) fclose(f);
    return fd;
}
#endif

int cli_bench_convert(const char *path, const struct eng_gguf *g, enum kr_type type, char *out,
                      size_t out_size, int *fd, struct cn_error *err)
{
    int from = open(path, O_RDONLY | O_CLOEXEC), rc = 0;
    struct writer w = {.fd = scratch_file()};
    off_t size = from >= 0 ? lseek(from, 0, SEEK_END) : -1;
    void *file = size > 0 ? mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, from, 0) : MAP_FAILED;

    *fd = w.fd;
    if (w.fd < 0)
        rc = cn_fail(err, CN_EIO, "no room for other weights in memory: %s", strerror(errno));
    else if (file == MAP_FAILED)
        rc = cn_fail(err, CN_EIO, "%s could not be read again", path);
    if (!rc) rc = write_all(&w, g, file, type, err);
    snprintf(out, out_size, SCRATCH_PATH, w.fd);
    if (file != MAP_FAILED) munmap(file, (size_t)size);
    if (from >= 0) close(from);
    if (rc && w.fd >= 0) close(w.fd);
    if (rc) *fd = -1;
    return rc;
}
