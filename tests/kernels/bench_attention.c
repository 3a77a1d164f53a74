/* bench_attention: times attention alone, over pages, as shares of what the machine can do: prefill
 * of its float32 multiply-adds, decode of its read bandwidth, both probed beside each case. Not a
 * test.
 * bench_attention [--isa NAME] [--threads N] [--kv f16|q8_0|q4_0] [--shape gqa|mla|dsa]
 *                 [--heads N] [--kv-heads N] [--dim N] [--context N] [--rows N] [--seqs N]
 *                 [--shared N] [--steps N] [--sweep prefill|decode|shared] [--json]
 * rows: of each sequence in a step; shared: tokens at the beginning that all sequences have in
 * common, in the same blocks. A step's time less that of the same step without attention. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "tests/kernels/attn_case.h"

#define PROBE_NS 50000000u  /* for each of the two */
#define SLAB_AIM (2u << 20) /* as the daemon's */

struct bench {
    struct attn_shape shape;
    enum kr_type kv;
    enum kr_isa isa;
    uint32_t threads, context, rows, seqs, shared, steps;
    bool json;
};

static void need(int rc, const struct cn_error *err)
{
    if (!rc) return;
    fprintf(stderr, "bench_attention: %s\n", err->message);
    exit(1);
}

/* ---- a case ---------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    double d = *(const double *)a - *(const double *)b;
    return d < 0 ? -1 : d > 0;
}

struct world {
    struct attn_case c;
    struct kr_device *dev;
    struct kr_exec *exec;
    struct kr_kv_mem *mem;
    uint32_t *tables; /* [seqs][groups][blocks] */
    const uint32_t **ptrs;
    struct kr_seq *seqs;
    struct kr_row *rows;
    uint32_t n_blocks, n_groups, slab_blocks;
};

static uint32_t block_number(const struct world *w, uint32_t i)
{
    return i / w->slab_blocks << KR_BLOCK_INDEX_BITS | i % w->slab_blocks;
}

static void open_tables(struct world *w, const struct bench *b)
{
    uint32_t next = 0, slots = b->seqs * w->n_groups;
    w->tables = calloc((size_t)slots * w->n_blocks, sizeof *w->tables);
    w->ptrs = calloc(slots, sizeof *w->ptrs);
    w->seqs = calloc(b->seqs, sizeof *w->seqs);
    w->rows = calloc((size_t)CN_MAX(b->rows * b->seqs, 512u), sizeof *w->rows);
    if (!w->tables || !w->ptrs || !w->seqs || !w->rows) exit(1);
    for (uint32_t s = 0; s < slots; s++) {
        w->ptrs[s] = w->tables + (size_t)s * w->n_blocks;
        for (uint32_t i = 0; i < w->n_blocks; i++) {
            bool same = s >= w->n_groups && (i + 1) * 16 <= b->shared;
            w->tables[(size_t)s * w->n_blocks + i] =
                same ? w->tables[(size_t)(s % w->n_groups) * w->n_blocks + i]
                     : block_number(w, next++);
        }
    }
    for (uint32_t s = 0; s < b->seqs; s++)
        w->seqs[s].tables = w->ptrs + (size_t)s * w->n_groups;
}

static void set_row(struct world *w, uint32_t i, uint32_t seq, uint32_t pos, bool logits)
{
    w->rows[i] = (struct kr_row){.seq = seq,
                                 .pos = pos,
                                 .src = KR_ROW_EMBED,
                                 .logits = logits,
                                 .embed = w->c.rows + (size_t)(pos % w->c.shape.n) * w->c.width};
}

static void launch(struct world *w, const struct bench *b, uint32_t n)
{
    struct kr_batch batch = {.n_rows = n, .n_seqs = b->seqs, .rows = w->rows, .seqs = w->seqs};
    struct cn_error err = {0};
    uint64_t ticket;
    need(kr_launch(w->exec, w->mem, &batch, &ticket, &err), &err);
}

/* What lies in the blocks: steps without logits store keys and values alone. */
static void fill(struct world *w, const struct bench *b)
{
    for (uint32_t s = 0; s < b->seqs; s++)
        for (uint32_t i = s ? b->shared / 16 * 16 : 0; i < b->context;) {
            uint32_t n = CN_MIN(b->context - i, CN_MAX(b->rows * b->seqs, 512u));
            for (uint32_t r = 0; r < n; r++)
                set_row(w, r, s, i + r, false);
            launch(w, b, n);
            i += n;
        }
}

static void open_world(struct world *w, const struct bench *b)
{
    struct cn_error err = {0};
    struct attn_shape shape = b->shape;
    struct kr_cpu_opts cpu = {.isa = b->isa, .n_threads = b->threads};
    uint32_t most = CN_MAX(b->rows * b->seqs, 512u);
    shape.n = 512; /* rows repeat after that many */
    attn_case_open(&w->c, &shape, b->kv, 1);
    need(kr_cpu_new(&cpu, &w->dev, &err), &err);
    struct kr_prepare_opts prep = {.kv_type = b->kv,
                                   .block_tokens = 16,
                                   .max_rows = most,
                                   .max_logit_rows = most,
                                   .max_context = b->context + b->rows};
    need(kr_prepare(w->dev, w->c.plan, &prep, &w->exec, &err), &err);
    const struct kr_exec_info *info = kr_exec_info(w->exec);
    uint64_t bytes = 64;
    w->n_groups = info->n_groups;
    w->n_blocks = (b->context + b->rows) / 16 + 1;
    for (uint32_t g = 0; g < info->n_groups; g++)
        bytes = CN_MAX(bytes, info->groups[g].block_bytes);
    w->slab_blocks = (uint32_t)CN_MIN(CN_MAX(SLAB_AIM / bytes, 1u), 1u << KR_BLOCK_INDEX_BITS);
    uint32_t slabs = (w->n_blocks * w->n_groups * b->seqs - 1) / w->slab_blocks + 1;
    need(kr_kv_mem_new(w->dev, bytes * w->slab_blocks, slabs, &w->mem, &err), &err);
    open_tables(w, b);
    fill(w, b);
}

static void close_world(struct world *w)
{
    free(w->tables);
    free(w->ptrs);
    free(w->seqs);
    free(w->rows);
    kr_kv_mem_free(w->mem);
    kr_exec_free(w->exec);
    kr_device_free(w->dev);
    attn_case_close(&w->c);
}

/* Median seconds of a step with attention and of one without. */
static void time_steps(struct world *w, const struct bench *b, double median[2])
{
    double *times = calloc(b->steps, sizeof *times);
    if (!times) exit(1);
    for (int logits = 0; logits < 2; logits++) {
        for (uint32_t s = 0, n = 0; s < b->seqs; s++)
            for (uint32_t r = 0; r < b->rows; r++)
                set_row(w, n++, s, b->context + r, logits);
        for (uint32_t i = 0; i < b->steps; i++) {
            uint64_t from = cn_now_ns();
            launch(w, b, b->seqs * b->rows);
            times[i] = (double)(cn_now_ns() - from) * 1e-9;
        }
        qsort(times, b->steps, sizeof *times, by_size);
        median[logits] = times[b->steps / 2];
    }
    free(times);
}

/* A step's seconds, operations, and bytes of keys and values: each position's once, and as read. */
static void report(const struct bench *b, const struct kr_probe *probe, double t, double ops,
                   double kv, double read)
{
    const struct attn_shape *s = &b->shape;
    const char *form =
        b->json
            ? "{\"shape\":\"%s\",\"kv\":\"%s\",\"heads\":%u,\"kv_heads\":%u,\"dim\":%u,\"threads\":"
              "%u,"
              "\"seqs\":%u,\"rows\":%u,\"context\":%u,\"shared\":%u,\"us\":%.1f,\"gflops\":%.1f,"
              "\"of_fma\":%.3f,\"fma_gflops\":%.0f,\"gbps\":%.2f,\"of_read\":%.3f,\"read_gbps\":%."
              "1f,"
              "\"times_read\":%.2f}\n"
            : "%-4s %-4s %2u/%u x %3u, %u threads, %2u seqs, %3u rows at %5u, %4u shared: %9.1f "
              "us, "
              "%6.1f GFLOP/s = %.2f of %.0f, %5.2f GB/s = %.2f of %.1f, read %.2fx\n";
    printf(form, s->name, kr_type_info((uint32_t)b->kv)->name, s->heads, s->kv_heads, s->k_dim,
           b->threads, b->seqs, b->rows, b->context, b->shared, t * 1e6, ops / t * 1e-9,
           ops / t / probe->fma_flops_s, probe->fma_flops_s * 1e-9, kv / t * 1e-9,
           kv / t / probe->read_bytes_s, probe->read_bytes_s * 1e-9, read / kv);
    fflush(stdout);
}

static void run(const struct bench *b)
{
    static struct world w;
    struct kr_probe probe;
    struct cn_error err = {0};
    double median[2], ops = 0, kv = 0, read;
    struct kr_counters was, now;
    open_world(&w, b);
    need(kr_device_probe(w.dev, UINT64_MAX, PROBE_NS, &probe, &err), &err);
    kr_exec_counters(w.exec, &was);
    time_steps(&w, b, median);
    kr_exec_counters(w.exec, &now);
    read = (double)(now.kv_bytes - was.kv_bytes) / b->steps;
    for (uint32_t r = 0; r < b->rows; r++)
        ops += 2.0 * (b->context + r + 1) * b->shape.heads * (b->shape.k_dim + b->shape.v_dim);
    const struct kr_exec_info *info = kr_exec_info(w.exec);
    for (uint32_t g = 0; g < info->n_groups; g++) /* each position's keys once */
        kv +=
            (double)info->groups[g].block_bytes / 16 *
            ((double)(b->context + b->rows - b->shared / 16 * 16) * b->seqs + b->shared / 16 * 16);
    report(b, &probe, CN_MAX(median[1] - median[0], 1e-9), ops * b->seqs, kv, read);
    close_world(&w);
}

/* ---- options --------------------------------------------------------------------------------- */

static void set_shape(struct bench *b, const char *name)
{
    b->shape =
        (struct attn_shape){.name = "gqa", .kv_heads = 8, .heads = 32, .k_dim = 64, .v_dim = 64};
    if (strcmp(name, "gqa"))
        b->shape = (struct attn_shape){
            .name = "mla", .kv_heads = 1, .heads = 16, .k_dim = 576, .v_dim = 512, .latent = true};
    if (strcmp(name, "dsa")) return;
    b->shape.name = "dsa";
    b->shape.top_k = 2048;
    b->shape.sel_heads = 64;
    b->shape.sel_dim = 128;
}

static bool set_number(struct bench *b, const char *key, uint32_t n)
{
    const struct {
        const char *name;
        uint32_t *to;
    } keys[] = {
        {"--threads", &b->threads},   {"--context", &b->context},         {"--rows", &b->rows},
        {"--seqs", &b->seqs},         {"--shared", &b->shared},           {"--steps", &b->steps},
        {"--heads", &b->shape.heads}, {"--kv-heads", &b->shape.kv_heads},
    };
    for (size_t i = 0; i < CN_ARRAY_LEN(keys); i++)
        if (!strcmp(key, keys[i].name)) {
            *keys[i].to = n;
            return true;
        }
    if (strcmp(key, "--dim")) return false;
    b->shape.k_dim = b->shape.v_dim = n;
    return true;
}

static void sweep(struct bench b, const char *what)
{
    static const uint32_t dims[] = {64, 128}, groups[] = {1, 4, 8}, rows[] = {64, 128, 512},
                          before[] = {0, 1024, 8192}, seqs[] = {1, 4, 16, 64},
                          contexts[] = {1024, 4096, 32768};
    static const enum kr_type types[] = {KR_F16, KR_Q8_0};
    bool prefill = !strcmp(what, "prefill"), shared = !strcmp(what, "shared");
    for (size_t t = 0; t < CN_ARRAY_LEN(types); t++)
        for (size_t d = 0; d < CN_ARRAY_LEN(dims); d++)
            for (size_t g = 0; g < CN_ARRAY_LEN(groups); g++)
                for (size_t i = 0; i < (prefill ? CN_ARRAY_LEN(rows) : CN_ARRAY_LEN(seqs)); i++)
                    for (size_t c = 0; c < CN_ARRAY_LEN(contexts); c++) {
                        b.kv = types[t];
                        b.shape.k_dim = b.shape.v_dim = dims[d];
                        b.shape.kv_heads = 512 / dims[d] / (groups[g] == 1 ? 1 : 2);
                        b.shape.heads = b.shape.kv_heads * groups[g];
                        b.rows = prefill ? rows[i] : 1;
                        b.seqs = prefill ? 1 : seqs[i];
                        b.context = prefill ? before[c] : contexts[c];
                        b.shared = shared ? b.context / 16 * 15 : 0;
                        if (b.seqs * (uint64_t)b.context > 1u << 20) continue;
                        run(&b);
                    }
}

int main(int argc, char **argv)
{
    struct bench b = {
        .kv = KR_F16, .threads = 1, .context = 8192, .rows = 1, .seqs = 1, .steps = 9};
    const char *what = NULL;
    bool ok = true;
    set_shape(&b, "gqa");
    for (int i = 1; ok && i < argc; i += 2) {
        const char *key = argv[i], *v = argv[i + 1]; /* NULL after the last */
        if (!strcmp(key, "--json")) {
            b.json = true;
            i--;
        } else if (!v)
            ok = false;
        else if (!strcmp(key, "--isa"))
            ok = (b.isa = kr_isa_named(v)) != KR_N_ISAS;
        else if (!strcmp(key, "--kv"))
            b.kv = !strcmp(v, "q8_0") ? KR_Q8_0 : !strcmp(v, "q4_0") ? KR_Q4_0 : KR_F16;
        else if (!strcmp(key, "--shape"))
            set_shape(&b, v);
        else if (!strcmp(key, "--sweep"))
            what = v;
        else
            ok = set_number(&b, key, (uint32_t)atoi(v));
    }
    if (!ok || !b.rows || !b.steps || !b.seqs || b.shared > b.context) return 2;
    if (what)
        sweep(b, what);
    else
        run(&b);
    return 0;
}
