/* bench_step: times decode and prefill steps of a random model of a real one's shape. Not a test.
 * bench_step [--isa NAME] [--threads N] [--context N] [--seqs N] [--kv q8_0]
 *            [--shape smollm2|qwen3|llama1b] [--weights NAME] [--head NAME] [--describe]
 * [--profile]
 *            [--seconds S] [--stay]
 * --stay: each decode step is of the same position, so that none looks at more keys than
 * another. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/tiny.h"

struct bench {
    struct tiny_shape shape;
    struct tiny_run_opts run;
    uint32_t context, seqs;
    double seconds;
    bool describe, profile, stay;
};

static double now_s(void)
{
    return (double)cn_now_ns() * 1e-9;
}

static void set_shape(struct bench *b, const char *name)
{
    b->shape = (struct tiny_shape){.n_layers = 30,
                                   .width = 576,
                                   .heads = 9,
                                   .kv_heads = 3,
                                   .head_dim = 64,
                                   .ffn = 1536,
                                   .vocab = 49152,
                                   .weights = KR_Q4_1,
                                   .head = KR_Q8_0};
    if (!strcmp(name, "qwen3")) /* 0.6B */
        b->shape = (struct tiny_shape){.n_layers = 28,
                                       .width = 1024,
                                       .heads = 16,
                                       .kv_heads = 8,
                                       .head_dim = 128,
                                       .ffn = 3072,
                                       .vocab = 151936,
                                       .weights = KR_Q8_0,
                                       .head = KR_Q8_0,
                                       .neox = true,
                                       .qk_norm = true};
    if (!strcmp(name, "llama1b")) /* 3.2 */
        b->shape = (struct tiny_shape){.n_layers = 16,
                                       .width = 2048,
                                       .heads = 32,
                                       .kv_heads = 8,
                                       .head_dim = 64,
                                       .ffn = 8192,
                                       .vocab = 128256,
                                       .weights = KR_Q4_K,
                                       .head = KR_Q6_K};
}

static enum kr_type type_named(const char *name)
{
    for (uint32_t t = 0; t < 64; t++)
        if (kr_type_info(t) && !strcmp(kr_type_info(t)->name, name)) return (enum kr_type)t;
    fprintf(stderr, "no such type: %s\n", name);
    exit(2);
}

static bool parse(struct bench *b, int argc, char **argv)
{
    set_shape(b, "smollm2");
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--describe")) {
            b->describe = true;
            continue;
        }
        if (!strcmp(argv[i], "--profile")) {
            b->profile = true;
            continue;
        }
        if (!strcmp(argv[i], "--stay")) {
            b->stay = true;
            continue;
        }
        if (i + 1 == argc) return false;
        const char *key = argv[i], *v = argv[++i];
        if (!strcmp(key, "--isa"))
            b->run.isa = kr_isa_named(v);
        else if (!strcmp(key, "--threads"))
            b->run.threads = (uint32_t)atoi(v);
        else if (!strcmp(key, "--context"))
            b->context = (uint32_t)atoi(v);
        else if (!strcmp(key, "--seqs"))
            b->seqs = (uint32_t)atoi(v);
        else if (!strcmp(key, "--kv"))
            b->run.kv_type = !strcmp(v, "q8_0") ? KR_Q8_0 : KR_F16;
        else if (!strcmp(key, "--seconds"))
            b->seconds = atof(v);
        else if (!strcmp(key, "--shape"))
            set_shape(b, v);
        else if (!strcmp(key, "--weights"))
            b->shape.weights = type_named(v);
        else if (!strcmp(key, "--head"))
            b->shape.head = type_named(v);
        else
            return false;
    }
    return true;
}

static double median(double *a, int n)
{
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && a[j] < a[j - 1]; j--) {
            double t = a[j];
            a[j] = a[j - 1];
            a[j - 1] = t;
        }
    return a[n / 2];
}

/* Begins to note where the time goes, or says where it went. */
static void profile(const struct bench *b, struct tiny_run *r, bool on)
{
    struct cn_buf out;
    if (!b->profile) return;
    cn_buf_init(&out, 0);
    if (!on && !kr_exec_profile_text(r->exec, &out)) fwrite(out.data, 1, out.len, stdout);
    cn_buf_fini(&out);
    if (kr_exec_profile(r->exec, on)) abort();
}

static void bench(struct bench *b, struct tiny_run *r)
{
    enum { STEPS = 400 };
    uint32_t vocab = b->shape.vocab, n_tokens = b->context + STEPS;
    uint32_t *tokens = calloc(n_tokens, sizeof *tokens), *n = calloc(b->seqs, sizeof *n);
    struct tiny_seq *seqs = calloc(b->seqs, sizeof *seqs), **list = calloc(b->seqs, sizeof *list);
    static double times[STEPS];
    uint64_t seed = 1;
    if (!tokens || !n || !seqs || !list) abort();
    for (uint32_t i = 0; i < n_tokens; i++)
        tokens[i] = tiny_rand(&seed) % vocab;
    int k = 0;
    profile(b, r, true);
    for (uint32_t i = 0; i < b->seqs; i++) {
        list[i] = &seqs[i];
        tiny_seq_open(r, &seqs[i], tokens, n_tokens, vocab, false);
        while (seqs[i].done < b->context) {
            uint32_t c = CN_MIN(512u, b->context - seqs[i].done);
            double t = now_s();
            tiny_step(r, &list[i], &c, 1, vocab);
            t = now_s() - t;
            if (c == 512 && k < STEPS) times[k++] = t;
        }
    }
    if (k) {
        double m = median(times, k);
        printf("prefill 512 rows: median %.2f ms, best %.2f ms, %.0f tokens/s\n", m * 1e3,
               times[0] * 1e3, 512 / m);
        profile(b, r, false);
    }
    /* Decode with logits: the first value of each row is enough. */
    struct kr_row *rows = calloc(b->seqs, sizeof *rows);
    struct kr_seq *ks = calloc(b->seqs, sizeof *ks);
    if (!rows || !ks) abort();
    profile(b, r, true);
    double end = now_s() + b->seconds;
    for (k = 0; k < STEPS && (k < 5 || now_s() < end); k++) {
        for (uint32_t i = 0; i < b->seqs; i++) {
            uint32_t pos = b->context + (b->stay ? 0 : (uint32_t)k);
            ks[i].tables = seqs[i].table_ptrs;
            rows[i] = (struct kr_row){.seq = i, .pos = pos, .logits = true, .token = tokens[pos]};
        }
        struct kr_batch batch = {.n_rows = b->seqs, .n_seqs = b->seqs, .rows = rows, .seqs = ks};
        uint64_t ticket;
        float *logits;
        double t = now_s();
        if (kr_launch(r->exec, r->mem, &batch, &ticket, NULL) ||
            kr_collect(r->exec, ticket, &logits, NULL))
            abort();
        times[k] = now_s() - t;
    }
    double m = median(times, k);
    printf("decode %u x 1 row at %u: median %.3f ms, best %.3f ms, %.1f tokens/s\n", b->seqs,
           b->context, m * 1e3, times[0] * 1e3, b->seqs / m);
    profile(b, r, false);
}

/* Pages that are written for the first time cost more than what is measured. */
static void touch(const struct bench *b, struct tiny_run *r)
{
    for (uint32_t i = 1; i < b->run.n_blocks; i++)
        if (kr_kv_copy(r->exec, r->mem, 0,
                       i / r->slab_blocks << KR_BLOCK_INDEX_BITS | i % r->slab_blocks, 0,
                       b->run.block_tokens))
            abort();
}

int main(int argc, char **argv)
{
    struct bench b = {.context = 512,
                      .seqs = 1,
                      .seconds = 1.5,
                      .run = {.isa = KR_ISA_AUTO, .block_tokens = 16, .kv_type = KR_F16}};
    if (!parse(&b, argc, argv)) {
        fprintf(stderr, "see the head of bench_step.c\n");
        return 2;
    }
    struct tiny *t = tiny_new(&b.shape, 1);
    struct tiny_run r;
    b.run.max_rows = 512;
    b.run.max_context = b.context + 512;
    b.run.n_blocks = (b.context + 512) / 16 * b.seqs;
    b.run.slab_blocks = 16;
    double start = now_s();
    if (!tiny_run_open(&r, t, &b.run)) {
        fprintf(stderr, "this processor lacks these instructions\n");
        return 77;
    }
    const struct kr_exec_info *info = kr_exec_info(r.exec);
    printf("%s, %u threads: prepared in %.2f s, packed %.1f MB, scratch %.1f MB, KV block %llu\n",
           kr_device_path(r.dev), kr_device_threads(r.dev), now_s() - start,
           (double)info->packed_bytes * 1e-6, (double)info->scratch_bytes * 1e-6,
           (unsigned long long)info->groups[0].block_bytes);
    if (b.describe) {
        struct cn_buf out;
        cn_buf_init(&out, 0);
        if (!kr_exec_describe(r.exec, &out)) fwrite(out.data, 1, out.len, stdout);
        cn_buf_fini(&out);
    }
    touch(&b, &r);
    bench(&b, &r);
    tiny_run_close(&r);
    tiny_free(t);
    return 0;
}
