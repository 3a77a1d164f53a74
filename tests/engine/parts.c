/* See parts.h. */
#include "parts.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char dir[64];
static struct kr_device *device;

int parts_set_up(void **state)
{
    struct cn_error err;
    cn_log_setup(CN_LOG_ERROR, CN_LOG_TEXT);
    snprintf(dir, sizeof(dir), "/tmp/conifer-model-XXXXXX");
    return mkdtemp(dir) && !dev_new(KR_ISA_AUTO, 1, &device, &err) ? 0 : -1;
}

int parts_tear_down(void **state)
{
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.') unlink(parts_temp(e->d_name));
    if (d) closedir(d);
    kr_device_free(device);
    return rmdir(dir);
}

struct kr_device *parts_device(void)
{
    return device;
}

const char *parts_temp(const char *name)
{
    static char paths[4][384];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
    return path;
}

void parts_open(struct parts *p, const char *path, const char *const *without)
{
    struct cn_error err;
    memset(p, 0, sizeof(*p));
    if (eng_gguf_open(path, &p->g, &err)) fail_msg("%s", err.message);
    gw_begin(&p->w);
    const struct eng_gguf_kvs *kvs = &p->g->shards[0].kvs;
    for (size_t i = 0; i < kvs->n; i++) {
        const struct eng_gguf_kv *kv = &kvs->v[i];
        bool drop = false;
        for (const char *const *k = without; k && *k; k++)
            drop |= kv->key.n == strlen(*k) && !memcmp(kv->key.p, *k, kv->key.n);
        if (drop) continue;
        gw_str(&p->w, kv->key.p, kv->key.n);
        gw_u32(&p->w, kv->type);
        if (kv->type == ENG_GGUF_ARRAY) {
            gw_u32(&p->w, kv->elem);
            gw_u64(&p->w, kv->n);
        }
        gw_bytes(&p->w, kv->value, kv->bytes);
        p->w.n_kvs++;
    }
    for (uint64_t i = 0; i < eng_gguf_n_tensors(p->g); i++) {
        const struct kr_tensor *t = eng_gguf_tensor(p->g, i);
        struct part *v = &p->v[p->n++];
        snprintf(v->name, sizeof(v->name), "%s", t->name);
        v->n_dims = t->n_dims;
        v->type = (uint32_t)t->type;
        memcpy(v->ne, t->ne, sizeof(v->ne));
        v->data = t->data;
        v->bytes = t->bytes;
    }
}

void take_apart(struct parts *p, const char *name, const char *const *without)
{
    parts_open(p, golden_oracle("models", name, ".gguf"), without);
}

struct part *part_of(struct parts *p, const char *name)
{
    for (size_t i = 0; i < p->n; i++)
        if (!strcmp(p->v[i].name, name)) return &p->v[i];
    fail_msg("no %s", name);
    return NULL;
}

void drop_part(struct parts *p, const char *name)
{
    struct part *v = part_of(p, name);
    *v = p->v[--p->n];
}

const char *write_parts(struct gw *w, const struct parts *p, size_t first, size_t last,
                        const char *file)
{
    uint64_t offset = 0;
    const char *path = parts_temp(file);
    for (size_t i = first; i < last; i++) {
        gw_tensor(w, p->v[i].name, p->v[i].n_dims, p->v[i].ne, p->v[i].type, offset);
        offset += (p->v[i].bytes + 31) / 32 * 32;
    }
    gw_end(w, 32, 0);
    for (size_t i = first; i < last; i++) {
        gw_bytes(w, p->v[i].data, p->v[i].bytes);
        while (w->b.len % 32)
            cn_buf_putc(&w->b, 0);
    }
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(w->b.data, 1, w->b.len, f), w->b.len);
    fclose(f);
    cn_buf_fini(&w->b);
    return path;
}

const char *put_together(struct parts *p, const char *file)
{
    const char *path = write_parts(&p->w, p, 0, p->n, file);
    eng_gguf_close(p->g);
    return path;
}

void refused(const char *path, int code, const char *has, const char *also)
{
    struct eng_model *m;
    struct cn_error err;
    int rc = golden_try(device, path, &m, &err);
    if (rc != code || !strstr(err.message, has) || !strstr(err.message, also))
        fail_msg("%s: code %d, message \"%s\"; expected %d, \"%s\", \"%s\"", path, rc, err.message,
                 code, has, also);
    assert_null(m);
}

/* Logits of a short prompt, malloc'd. */
static float *logits_of(const char *path, size_t *n)
{
    static const uint32_t ids[] = {0,  194, 232, 10,  233, 137, 150, 182, 85, 282,
                                   19, 82,  112, 166, 120, 41,  16,  4,   17, 46};
    struct golden g;
    assert_int_equal(golden_open(&g, path, KR_ISA_AUTO, 1, 256, KR_F16), 0);
    *n = g.n_vocab * CN_ARRAY_LEN(ids);
    float *out = malloc(*n * sizeof(*out));
    golden_feed(&g, ids, CN_ARRAY_LEN(ids), 20, 0, out);
    golden_close(&g);
    return out;
}

static bool are_same(const char *path, const char *other)
{
    size_t n, m;
    float *a = logits_of(path, &n), *b = logits_of(other, &m);
    assert_int_equal(n, m);
    bool same = !memcmp(a, b, n * sizeof(*a));
    free(a);
    free(b);
    return same;
}

void same_logits(const char *path, const char *other)
{
    assert_true(are_same(path, other));
}

void other_logits(const char *path, const char *other)
{
    assert_false(are_same(path, other));
}
