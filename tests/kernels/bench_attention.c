/* bench_attention: times decode steps of attention alone over a context. Not a test.
 * bench_attention [--isa NAME] [--threads N] [--context N] [--rows N] [--kv TYPE]
 *                 [--shape gqa|mla|dsa] [--steps N] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/attn_case.h"

struct bench {
    struct attn_shape shape;
    enum kr_type kv;
    enum kr_isa isa;
    uint32_t threads, context, rows, steps;
};

static void need(int rc, const struct cn_error *err)
{
    if (!rc) return;
    fprintf(stderr, "bench_attention: %s\n", err->message);
    exit(1);
}

static void set_shape(struct bench *b, const char *name)
{
    b->shape = (struct attn_shape){.name = "gqa", .kv_heads = 8, .heads = 16, .k_dim = 128,
                                   .v_dim = 128};
    if (strcmp(name, "gqa"))
        b->shape = (struct attn_shape){.name = "mla", .kv_heads = 1, .heads = 16, .k_dim = 576,
                                       .v_dim = 512, .latent = true};
    if (strcmp(name, "dsa")) return;
    b->shape.name = "dsa";
    b->shape.top_k = 2048;
    b->shape.sel_heads = 64;
    b->shape.sel_dim = 128;
}

static bool parse(struct bench *b, int argc, char **argv)
{
    *b = (struct bench){.kv = KR_F16, .threads = 1, .context = 8192, .rows = 1, .steps = 9};
    set_shape(b, "gqa");
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *key = argv[i], *v = argv[i + 1];
        if (!strcmp(key, "--isa"))
            b->isa = kr_isa_named(v);
        else if (!strcmp(key, "--kv"))
            b->kv = !strcmp(v, "q8_0") ? KR_Q8_0 : !strcmp(v, "q4_0") ? KR_Q4_0 : KR_F16;
        else if (!strcmp(key, "--shape"))
            set_shape(b, v);
        else if (!strcmp(key, "--threads"))
            b->threads = (uint32_t)atoi(v);
        else if (!strcmp(key, "--context"))
            b->context = (uint32_t)atoi(v);
        else if (!strcmp(key, "--rows"))
            b->rows = (uint32_t)atoi(v);
        else if (!strcmp(key, "--steps"))
            b->steps = (uint32_t)atoi(v);
        else
            return false;
    }
    return argc % 2 && b->rows && b->steps && b->context;
}

static int by_size(const void *a, const void *b)
{
    double d = *(const double *)a - *(const double *)b;
    return d < 0 ? -1 : d > 0;
}

int main(int argc, char **argv)
{
    struct bench b;
    struct attn_case c;
    struct kr_device *dev;
    struct kr_exec *exec;
    struct kr_kv_mem *mem;
    struct cn_error err = {0};
    if (!parse(&b, argc, argv)) return 2;
    b.shape.n = CN_MAX(b.rows, 512u); /* rows repeat after that many */
    attn_case_open(&c, &b.shape, b.kv, 1);
    struct kr_cpu_opts cpu = {.isa = b.isa, .n_threads = b.threads};
    need(kr_cpu_new(&cpu, &dev, &err), &err);
    struct kr_prepare_opts prep = {.kv_type = b.kv, .block_tokens = 16, .max_rows = b.rows,
                                   .max_logit_rows = b.rows, .max_context = b.context + b.rows};
    need(kr_prepare(dev, c.plan, &prep, &exec, &err), &err);
    const struct kr_exec_info *info = kr_exec_info(exec);
    uint32_t n = (b.context + b.rows) / 16 + 1;
    uint64_t slab = 64;
    for (uint32_t g = 0; g < info->n_groups; g++)
        slab = CN_MAX(slab, info->groups[g].block_bytes);
    need(kr_kv_mem_new(dev, slab, n * info->n_groups, &mem, &err), &err);
    uint32_t *table = calloc((size_t)n * info->n_groups, sizeof *table);
    const uint32_t *tables[2] = {table, table + n};
    struct kr_row *rows = calloc(b.rows, sizeof *rows);
    double *times = calloc(b.steps, sizeof *times);
    if (!table || !rows || !times) return 1;
    for (uint32_t i = 0; i < n * info->n_groups; i++)
        table[i] = i << KR_BLOCK_INDEX_BITS;
    struct kr_seq seq = {.tables = tables};
    struct kr_batch batch = {.n_rows = b.rows, .n_seqs = 1, .rows = rows, .seqs = &seq};
    for (uint32_t i = 0; i < b.context; i += b.rows) { /* what lies in the blocks */
        for (uint32_t r = 0; r < b.rows; r++)
            rows[r] = (struct kr_row){.pos = {i + r}, .src = KR_ROW_EMBED,
                                      .embed = c.rows + (size_t)((i + r) % b.shape.n) * c.width};
        uint64_t ticket; /* no logits: keys and values alone */
        need(kr_launch(exec, mem, &batch, &ticket, &err), &err);
    }
    for (uint32_t i = 0; i < b.steps; i++) {
        for (uint32_t r = 0; r < b.rows; r++)
            rows[r] = (struct kr_row){.pos = {b.context + r}, .src = KR_ROW_EMBED, .logits = true,
                                      .embed = c.rows + (size_t)r * c.width};
        uint64_t ticket, from = cn_now_ns();
        need(kr_launch(exec, mem, &batch, &ticket, &err), &err);
        times[i] = (double)(cn_now_ns() - from) * 1e-3;
    }
    qsort(times, b.steps, sizeof *times, by_size);
    double kv_bytes = 0, us = times[b.steps / 2];
    for (uint32_t g = 0; g < info->n_groups; g++)
        kv_bytes += (double)info->groups[g].block_bytes / 16 * b.context;
    double flops = 2.0 * b.context * b.shape.heads * (b.shape.k_dim + b.shape.v_dim) * b.rows;
    printf("%s %s %s: context %u, %u rows, %u threads: %.1f us a step, %.1f GFLOP/s, "
           "%.2f GB/s of KV, %.0f bytes a token\n", kr_device_path(dev), b.shape.name,
           kr_type_info((uint32_t)b.kv)->name, b.context, b.rows, b.threads, us, flops / us * 1e-3,
           kv_bytes / us * 1e-3, kv_bytes / b.context);
    free(times);
    free(rows);
    free(table);
    kr_kv_mem_free(mem);
    kr_exec_free(exec);
    kr_device_free(dev);
    attn_case_close(&c);
    return 0;
}
