/* See golden.h. */
#include "golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

/* Block i of every group lies at the place i * 7 + 3 (mod n): no two neighbours are together. */
static void make_tables(struct golden *g, const struct kr_exec_info *info, uint32_t n_blocks)
{
    uint64_t slab = 64;
    for (uint32_t i = 0; i < info->n_groups; i++)
        slab = CN_MAX(slab, info->groups[i].block_bytes * n_blocks);
    struct cn_error err;
    if (kr_kv_mem_new(g->device, slab, info->n_groups, &g->mem, &err))
        fail_msg("KV memory: %s", err.message);
    g->tables = calloc(info->n_groups, sizeof(*g->tables));
    for (uint32_t i = 0; i < info->n_groups; i++) {
        g->tables[i] = calloc(n_blocks, sizeof(**g->tables));
        for (uint32_t b = 0; b < n_blocks; b++)
            g->tables[i][b] = i << KR_BLOCK_INDEX_BITS | (b * 7 + 3) % n_blocks;
    }
}

int golden_open(struct golden *g, const char *path, enum kr_isa isa, uint32_t threads,
                uint64_t context, enum kr_type kv_type)
{
    struct cn_error err = {0};
    memset(g, 0, sizeof(*g));
    int rc = dev_new(isa, threads, &g->device, &err);
    if (rc == CN_EUNSUPP) return rc;
    if (rc) fail_msg("device: %s", err.message);
    struct eng_model_opts opts = {.device = g->device,
                                  .prepare = {.kv_type = kv_type,
                                              .block_tokens = GOLDEN_BLOCK_TOKENS,
                                              .max_rows = GOLDEN_MAX_ROWS,
                                              .max_logit_rows = GOLDEN_MAX_ROWS,
                                              .max_context = context}};
    if (eng_model_open(path, &opts, &g->model, &err)) fail_msg("%s: %s", path, err.message);
    g->exec = eng_model_exec(g->model);
    const struct kr_exec_info *info = kr_exec_info(g->exec);
    g->n_vocab = info->n_vocab;
    uint32_t n_blocks = (uint32_t)(context / GOLDEN_BLOCK_TOKENS);
    while (n_blocks % 7 == 0) /* so that i * 7 + 3 meets every block once */
        n_blocks++;
    make_tables(g, info, n_blocks);
    return CN_OK;
}

int golden_try(struct kr_device *device, const char *path, struct eng_model **m,
               struct cn_error *err)
{
    struct eng_model_opts opts = {
        .device = device,
        .prepare = {.kv_type = KR_F16, .block_tokens = 16, .max_rows = 16, .max_logit_rows = 16}};
    memset(err, 0, sizeof(*err));
    *m = NULL;
    return eng_model_open(path, &opts, m, err);
}

void golden_close(struct golden *g)
{
    if (g->tables)
        for (uint32_t i = 0; i < kr_exec_info(g->exec)->n_groups; i++)
            free(g->tables[i]);
    free(g->tables);
    kr_kv_mem_free(g->mem);
    eng_model_unref(g->model);
    kr_device_free(g->device);
    memset(g, 0, sizeof(*g));
}

void golden_restart(struct golden *g)
{
    g->pos = 0;
}

static size_t step(struct golden *g, const uint32_t *ids, size_t n, uint32_t from, float *out)
{
    struct kr_row rows[GOLDEN_MAX_ROWS];
    struct kr_seq seq = {.tables = (const uint32_t *const *)g->tables};
    struct kr_batch batch = {.n_rows = (uint32_t)n, .n_seqs = 1, .rows = rows, .seqs = &seq};
    struct cn_error err;
    uint64_t ticket;
    float *logits;
    size_t wanted = 0;

    for (size_t i = 0; i < n; i++) {
        uint32_t pos = g->pos + (uint32_t)i;
        rows[i] = (struct kr_row){
            .pos = pos, .src = KR_ROW_TOKEN, .logits = pos >= from, .token = ids[i]};
        wanted += rows[i].logits;
    }
    if (kr_launch(g->exec, g->mem, &batch, &ticket, &err)) fail_msg("launch: %s", err.message);
    if (kr_collect(g->exec, ticket, &logits, &err)) fail_msg("collect: %s", err.message);
    if (wanted) memcpy(out, logits, wanted * g->n_vocab * sizeof(*out));
    g->pos += (uint32_t)n;
    return wanted;
}

void golden_feed(struct golden *g, const uint32_t *ids, size_t n, size_t chunk, uint32_t from,
                 float *out)
{
    if (chunk > GOLDEN_MAX_ROWS) chunk = GOLDEN_MAX_ROWS;
    for (size_t i = 0; i < n;) {
        size_t now = CN_MIN(chunk, n - i);
        size_t rows = step(g, ids + i, now, from, out);
        if (out) out += rows * g->n_vocab;
        i += now;
    }
}

uint32_t golden_argmax(const float *logits, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return (uint32_t)best;
}

json_t *golden_json(const char *path)
{
    json_error_t err;
    json_t *doc = json_load_file(path, 0, &err);
    if (!doc) fail_msg("%s: %s", path, err.text);
    return doc;
}

uint32_t *golden_ids(const json_t *doc, const char *key, size_t *n)
{
    const json_t *list = json_object_get(doc, key);
    *n = json_array_size(list);
    if (!*n) fail_msg("no %s", key);
    uint32_t *ids = calloc(*n, sizeof(*ids));
    for (size_t i = 0; i < *n; i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return ids;
}

float *golden_floats(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s cannot be read", path);
    fseek(f, 0, SEEK_END);
    long bytes = ftell(f);
    rewind(f);
    float *v = malloc((size_t)bytes);
    *n = (size_t)bytes / sizeof(*v);
    assert_int_equal(fread(v, sizeof(*v), *n, f), *n);
    fclose(f);
    return v;
}

struct golden_error golden_compare(const float *got, const float *want, size_t n)
{
    double mean = 0, var = 0, sum = 0, max = 0;
    for (size_t i = 0; i < n; i++)
        mean += want[i] / (double)n;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - want[i]);
        if (!isfinite(d)) d = INFINITY;
        var += (want[i] - mean) * (want[i] - mean) / (double)n;
        sum += d * d / (double)n;
        if (d > max) max = d;
    }
    return (struct golden_error){.max = max / sqrt(var), .rms = sqrt(sum / var)};
}

const char *golden_oracle(const char *folder, const char *name, const char *suffix)
{
    static char paths[4][512];
    static unsigned next;
    char *path = paths[next++ % 4];
    const char *root = getenv("CONIFER_ORACLE");
    if (!root) root = CONIFER_SOURCE_ROOT "/../shared/oracle";
    snprintf(path, sizeof(paths[0]), "%s/%s/%s%s", root, folder, name, suffix);
    if (access(root, R_OK)) {
        print_message("[ skipped: no oracle at %s ]\n", root);
        skip();
        return NULL;
    }
    return path;
}

const char *golden_real(const char *file)
{
    static char path[512];
    const char *dir = getenv("CONIFER_TEST_MODELS"), *home = getenv("HOME");
    if (dir)
        snprintf(path, sizeof(path), "%s/%s", dir, file);
    else
        snprintf(path, sizeof(path), "%s/.local/share/conifer/models/%s", home ? home : "", file);
    if (access(path, R_OK) == 0) return path;
    print_message("[ skipped: no %s; tools/fetch_models.py fetches it ]\n", path);
    skip();
    return NULL;
}
