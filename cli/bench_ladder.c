/* conifer bench --ladder: the classic steps to a fast server, one after the other on one model: no
 * KV cache, cache, vector registers, all threads, 8-bit weights, the file's own, many streams. Each
 * rung is the engine alone: steps of a plan over KV memory of its own. Main thread. */
#include "cli/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PREFIX = 32, NEW = 64, ROWS = PREFIX + NEW, STREAMS = 16, MAX_RUNGS = 8 };
#define RUNG_NS 2500000000ull

/* A model made ready, and KV memory for STREAMS sequences. */
struct rig {
    struct kr_device *device;
    struct eng_model *model;
    struct kr_exec *exec;
    struct kr_kv_mem *mem;
    uint32_t *blocks;        /* [stream][group][block] */
    const uint32_t **tables; /* [stream][group] */
    struct kr_seq seqs[STREAMS];
};
struct rung {
    const char *name, *what; /* in JSON; for people */
    double tok_s;
    char why_not[300];
};
struct ladder {
    const struct cfg *cfg;
    const char *path, *name;
    struct eng_gguf *file;
    uint32_t threads, block_tokens;
    char widest[48], own[48], streams[48];
    struct rung rungs[MAX_RUNGS];
    size_t n;
    bool tty; /* of standard error: progress is shown */
};

/* One line that is rewritten; "" at the end. */
static void show_stage(const struct ladder *l, const char *what)
{
    if (!l->tty) return;
    fprintf(stderr, "\r%s\033[K", what);
    fflush(stderr);
}

/* ---- a rig ----------------------------------------------------------------------------------- */

static void rig_close(struct rig *r)
{
    kr_kv_mem_free(r->mem);
    eng_model_unref(r->model);
    kr_device_free(r->device);
    free(r->blocks);
    free(r->tables);
    *r = (struct rig){0};
}

static int place_blocks(struct rig *r, uint32_t block_tokens, struct cn_error *err)
{
    const struct kr_exec_info *x = kr_exec_info(r->exec);
    uint32_t each = (ROWS + block_tokens - 1) / block_tokens, n_groups = CN_MAX(x->n_groups, 1u);
    uint64_t slab = 64;

    for (uint32_t g = 0; g < x->n_groups; g++)
        slab = CN_MAX(slab, x->groups[g].block_bytes * each * STREAMS);
    r->blocks = cn_calloc((size_t)STREAMS * n_groups * each, sizeof *r->blocks);
    r->tables = cn_calloc((size_t)STREAMS * n_groups, sizeof *r->tables);
    if (!r->blocks || !r->tables) return cn_fail(err, CN_ENOMEM, "out of memory");
    for (uint32_t s = 0; s < STREAMS; s++) {
        for (uint32_t g = 0; g < x->n_groups; g++) {
            uint32_t *table = r->blocks + ((size_t)s * n_groups + g) * each;
            for (uint32_t i = 0; i < each; i++)
                table[i] = g << KR_BLOCK_INDEX_BITS | (s * each + i);
            r->tables[(size_t)s * n_groups + g] = table;
        }
        r->seqs[s].tables = r->tables + (size_t)s * n_groups;
    }
    return kr_kv_mem_new(r->device, slab, n_groups, &r->mem, err);
}

static int rig_open(struct rig *r, const struct ladder *l, const char *path, enum kr_isa isa,
                    uint32_t threads, struct cn_error *err)
{
    struct kr_cpu_opts cpu = {.isa = isa, .n_threads = threads};
    struct eng_model_opts o = {.prepare = rt_prepare_opts(l->cfg)};

    *r = (struct rig){0};
    o.prepare.max_rows = ROWS;
    o.prepare.max_logit_rows = STREAMS;
    o.prepare.max_context = ROWS;
    int rc = kr_cpu_new(&cpu, &r->device, err);
    o.device = r->device;
    if (!rc) rc = eng_model_open(path, &o, &r->model, err);
    if (!rc && eng_model_info(r->model)->pooling != ENG_POOL_NONE)
        rc = cn_fail(err, CN_EUNSUPP, "this model gives embeddings; it generates no text");
    if (!rc) {
        r->exec = eng_model_exec(r->model);
        rc = place_blocks(r, l->block_tokens, err);
    }
    if (rc) rig_close(r);
    return rc;
}

/* One step: rows [from, from + n) of each of so many streams; logits of each one's last. */
static int step(struct rig *r, uint32_t streams, uint32_t from, uint32_t n, struct cn_error *err)
{
    struct kr_row rows[CN_MAX(ROWS, STREAMS)];
    struct kr_batch batch = {
        .n_rows = streams * n, .n_seqs = streams, .rows = rows, .seqs = r->seqs};
    uint64_t n_vocab = kr_exec_info(r->exec)->n_vocab, ticket;
    float *logits;

    for (uint32_t i = 0; i < streams * n; i++) {
        uint32_t pos = from + i % n;
        rows[i] = (struct kr_row){.seq = i / n,
                                  .pos = pos,
                                  .src = KR_ROW_TOKEN,
                                  .logits = i % n + 1 == n,
                                  .token = (uint32_t)((i / n * 101 + pos * 7919 + 3) % n_vocab)};
    }
    int rc = kr_launch(r->exec, r->mem, &batch, &ticket, err);
    return rc ? rc : kr_collect(r->exec, ticket, &logits, err);
}

/* ---- rungs ----------------------------------------------------------------------------------- */

static struct rung *add(struct ladder *l, const char *name, const char *what)
{
    struct rung *g = &l->rungs[l->n++];
    *g = (struct rung){.name = name, .what = what};
    return g;
}

static void leave_out(struct ladder *l, const char *name, const char *what, const char *why)
{
    struct rung *g = add(l, name, what);
    snprintf(g->why_not, sizeof g->why_not, "%s", why);
}

/* Tokens a second behind PREFIX tokens; without a cache each is computed with all before it. */
static int climb(struct ladder *l, struct rig *r, const char *name, const char *what, bool cache,
                 uint32_t streams, struct cn_error *err)
{
    struct rung *g = add(l, name, what);
    int rc = 0;

    show_stage(l, what);
    for (uint32_t s = 0; !rc && cache && s < streams; s++) { /* the prefix, stream by stream */
        struct kr_seq first = r->seqs[0];
        r->seqs[0] = r->seqs[s];
        rc = step(r, 1, 0, PREFIX, err);
        r->seqs[0] = first;
    }
    uint64_t start = cn_now_ns(), now = start;
    uint32_t n = 0;
    for (; !rc && n < NEW && (!n || now - start < RUNG_NS); n++) {
        rc = cache ? step(r, streams, PREFIX + n, 1, err) : step(r, 1, 0, PREFIX + n + 1, err);
        now = cn_now_ns();
    }
    if (!rc) g->tok_s = (double)n * streams * 1e9 / (double)CN_MAX(now - start, 1u);
    return rc;
}

/* Whether the converted file and its repacked copy go into what is free. */
static bool affordable(const struct ladder *l, enum kr_type type, char *why, size_t size)
{
    uint64_t need = 2 * cli_bench_converted_bytes(l->file, type), there = cfg_engine_memory(l->cfg);
    if (!there || need < there / 10 * 9) return true;
    snprintf(why, size, "%s weights and their repacked copy take %.1f GiB, %.1f are free",
             kr_type_info((uint32_t)type)->name, (double)need / (1ull << 30),
             (double)there / (1ull << 30));
    return false;
}

static int float_rungs(struct ladder *l, const char *path, struct cn_error *err)
{
    struct rig r;
    int rc = rig_open(&r, l, path, KR_ISA_GENERIC, 1, err);

    if (!rc) rc = climb(l, &r, "no_cache", "F32, plain C, one thread, no KV cache", false, 1, err);
    if (!rc) rc = climb(l, &r, "cache", "KV cache", true, 1, err);
    rig_close(&r);
    if (!rc) rc = rig_open(&r, l, path, KR_ISA_AUTO, 1, err);
    if (!rc) rc = climb(l, &r, "simd", l->widest, true, 1, err);
    rig_close(&r);
    if (rc || l->threads == 1) return rc;
    rc = rig_open(&r, l, path, KR_ISA_AUTO, l->threads, err);
    if (!rc) rc = climb(l, &r, "threads", "all threads", true, 1, err);
    rig_close(&r);
    return rc;
}

static int converted(struct ladder *l, enum kr_type type, struct cn_error *err)
{
    char path[64], why[300];
    struct rig r;
    int fd = -1, rc = 0;

    if (!affordable(l, type, why, sizeof why)) {
        leave_out(l, type == KR_F32 ? "no_cache" : "q8_0", type == KR_F32 ? "F32 weights" : "Q8_0",
                  why);
        return 0;
    }
    show_stage(l, type == KR_F32 ? "weights to F32" : "weights to Q8_0");
    rc = cli_bench_convert(l->path, l->file, type, path, sizeof path, &fd, err);
    if (!rc && type == KR_F32) rc = float_rungs(l, path, err);
    if (!rc && type == KR_Q8_0) {
        rc = rig_open(&r, l, path, KR_ISA_AUTO, l->threads, err);
        if (!rc) rc = climb(l, &r, "q8_0", "Q8_0 weights", true, 1, err);
        rig_close(&r);
    }
    if (fd >= 0) close(fd);
    return rc;
}

static int own_rungs(struct ladder *l, struct cn_error *err)
{
    struct rig r;
    int rc = rig_open(&r, l, l->path, KR_ISA_AUTO, l->threads, err);

    if (!rc) {
        snprintf(l->own, sizeof l->own, "the file's own weights, %s",
                 eng_model_info(r.model)->file_type);
        snprintf(l->streams, sizeof l->streams, "%d streams at once", STREAMS);
        rc = climb(l, &r, "own", l->own, true, 1, err);
    }
    if (!rc) rc = climb(l, &r, "batch", l->streams, true, STREAMS, err);
    rig_close(&r);
    return rc;
}

/* ---- the command ----------------------------------------------------------------------------- */

static void put_json(const struct ladder *l, struct cn_buf *out)
{
    double before = 0;

    cn_buf_puts(out, "{\"model\":");
    cn_buf_json_str(out, l->name, strlen(l->name));
    cn_buf_printf(out, ",\"threads\":%u,\"prefix_tokens\":%d,\"ladder\":[", l->threads, PREFIX);
    for (size_t i = 0; i < l->n; i++) {
        const struct rung *g = &l->rungs[i];
        cn_buf_printf(out, "%s{\"rung\":\"%s\",", i ? "," : "", g->name);
        if (g->why_not[0]) {
            cn_buf_puts(out, "\"why_not\":");
            cn_buf_json_str(out, g->why_not, strlen(g->why_not));
            cn_buf_puts(out, "}");
            continue;
        }
        cn_buf_printf(out, "\"tok_s\":%.3f,\"factor\":", g->tok_s);
        if (before > 0)
            cn_buf_printf(out, "%.3f}", g->tok_s / before);
        else
            cn_buf_puts(out, "null}");
        before = g->tok_s;
    }
    cn_buf_puts(out, "]}\n");
}

static void put_table(const struct ladder *l, struct cn_buf *out)
{
    double before = 0, first = 0;

    cn_buf_printf(out, "%s, threads: %u, tokens behind %d others\n\n  %-40s %10s %9s %9s\n",
                  l->name, l->threads, PREFIX, "", "tok/s", "factor", "in all");
    for (size_t i = 0; i < l->n; i++) {
        const struct rung *g = &l->rungs[i];
        cn_buf_printf(out, "  %-40s ", g->what);
        if (g->why_not[0]) {
            cn_buf_printf(out, "left out: %s\n", g->why_not);
            continue;
        }
        cn_buf_printf(out, "%10.2f ", g->tok_s);
        if (before > 0)
            cn_buf_printf(out, "%8.2fx %8.1fx\n", g->tok_s / before, g->tok_s / first);
        else
            cn_buf_printf(out, "%9s %9s\n", "-", "-");
        if (!(first > 0)) first = g->tok_s;
        before = g->tok_s;
    }
}

static int check_model(const struct ladder *l, struct cn_error *err)
{
    struct cn_error none = {0};
    uint64_t parts;

    if (cfg_model_is_null(l->path))
        return cn_fail(err, CN_EUNSUPP, "the null model has no weights to climb with");
    if (!eng_gguf_u64(l->file, "split.count", &parts, &none) && parts > 1)
        return cn_fail(err, CN_EUNSUPP, "%s is split into several files: the ladder needs one",
                       l->path);
    return 0;
}

int cli_bench_ladder(const struct cfg *cfg, const char *path, const char *name, bool json,
                     struct cn_error *err)
{
    struct ladder l = {.cfg = cfg,
                       .path = path,
                       .name = name,
                       .block_tokens = (uint32_t)cfg->kv.block_tokens,
                       .tty = isatty(STDERR_FILENO)};
    struct kr_device *d = NULL;
    struct cn_buf out;
    int rc = rt_device_new(cfg, &d, err);

    if (rc) return rc;
    l.threads = kr_device_threads(d);
    kr_device_free(d);
    d = NULL;
    if (!kr_cpu_new(&(struct kr_cpu_opts){.isa = KR_ISA_AUTO, .n_threads = 1}, &d, err))
        snprintf(l.widest, sizeof l.widest, "vector registers, %s", kr_device_path(d));
    kr_device_free(d);
    rc = eng_gguf_open(path, &l.file, err);
    if (!rc) rc = check_model(&l, err);
    if (!rc) rc = converted(&l, KR_F32, err);
    if (!rc) rc = converted(&l, KR_Q8_0, err);
    if (!rc) rc = own_rungs(&l, err);
    show_stage(&l, "");
    if (!rc) {
        cn_buf_init(&out, 0);
        if (json)
            put_json(&l, &out);
        else
            put_table(&l, &out);
        fwrite(out.data, 1, out.len, stdout);
        cn_buf_fini(&out);
    }
    eng_gguf_close(l.file);
    return rc;
}
