/* bench_experts: times layers of a mixture of experts by rows in a step, whole and without their
 * products (what routing, grouping, copying and summing cost). Not a test.
 * bench_experts [--isa NAME] [--threads N] [--weights NAME] [--experts N] [--used N]
 *               [--width N] [--ffn N] [--layers N] [--seconds S] [--describe] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/tiny.h"

struct bench {
    uint32_t isa, threads, experts, used, width, ffn, layers, type;
    double seconds;
    bool describe;
};

static struct kr_tensor stack(struct tiny *t, const struct bench *b, uint32_t rows, uint32_t cols)
{
    struct kr_tensor w = tiny_matrix(t, "w", (enum kr_type)b->type, b->experts * rows, cols, 1);
    w.n_dims = 3;
    w.ne[1] = rows;
    w.ne[2] = b->experts;
    return w;
}

static int layer(struct tiny *t, const struct bench *b, int x, bool products)
{
    struct kr_plan *p = t->plan;
    struct kr_tensor rw = tiny_matrix(t, "router", KR_F32, b->experts, b->width, 1);
    struct kr_router r = {.n_used = b->used, .norm = true, .scale = 1};
    int h = kr_op_rms_norm(p, x, NULL, 1e-6f, 1);
    int route = kr_op_route(p, kr_op_matmul(p, h, &rw, NULL), &r);
    int in = kr_op_dispatch(p, h, route, false), y = in;
    if (products) {
        struct kr_tensor g = stack(t, b, b->ffn, b->width), u = stack(t, b, b->ffn, b->width);
        struct kr_tensor d = stack(t, b, b->width, b->ffn);
        int gate = kr_op_expert_matmul(p, in, route, &g, NULL, 0, b->ffn);
        int up = kr_op_expert_matmul(p, in, route, &u, NULL, 0, b->ffn);
        y = kr_op_expert_matmul(p, kr_op_glu(p, gate, up, KR_ACT_SILU), route, &d, NULL, 0,
                                b->width);
    }
    return kr_op_add(p, x, kr_op_combine(p, y, route, true));
}

static struct tiny *model(const struct bench *b, bool products)
{
    struct tiny *t = calloc(1, sizeof *t);
    if (!t || !(t->plan = kr_plan_new())) abort();
    t->seed = 1;
    struct kr_tensor table = tiny_matrix(t, "embd", KR_F32, 4, b->width, 1);
    int x = kr_op_embed(t->plan, &table, 1);
    for (uint32_t i = 0; i < b->layers; i++)
        x = layer(t, b, x, products);
    kr_plan_output(t->plan, kr_op_take_logits(t->plan, x));
    struct cn_error err = {0};
    if (kr_plan_finish(t->plan, &err)) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
    return t;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Median seconds of a step of n rows, other rows every time; bytes of experts read in each. */
static double time_steps(const struct bench *b, struct kr_exec *x, uint32_t n, double *bytes)
{
    enum { STEPS = 2000, POOL = 4096 };
    static double times[STEPS];
    float *embd = malloc((size_t)POOL * b->width * sizeof *embd);
    struct kr_row rows[512];
    struct kr_seq seqs[512] = {0};
    struct kr_counters was, now;
    uint64_t seed = 3;
    uint32_t k = 0;
    if (!embd || n > 512) abort();
    for (size_t i = 0; i < (size_t)POOL * b->width; i++)
        embd[i] = tiny_uniform(&seed);
    kr_exec_counters(x, &was);
    for (double end = (double)cn_now_ns() * 1e-9 + b->seconds;
         k < STEPS && (k < 5 || (double)cn_now_ns() * 1e-9 < end); k++) {
        for (uint32_t i = 0; i < n; i++)
            rows[i] = (struct kr_row){.seq = i,
                                      .src = KR_ROW_EMBED,
                                      .logits = true,
                                      .embed = embd + (size_t)(tiny_rand(&seed) % POOL) * b->width};
        struct kr_batch batch = {.n_rows = n, .n_seqs = n, .rows = rows, .seqs = seqs};
        uint64_t ticket, start = cn_now_ns();
        if (kr_launch(x, NULL, &batch, &ticket, NULL)) abort();
        times[k] = (double)(cn_now_ns() - start) * 1e-9;
    }
    kr_exec_counters(x, &now);
    *bytes = (double)(now.expert_bytes - was.expert_bytes) / k;
    qsort(times, k, sizeof *times, by_size);
    free(embd);
    return times[k / 2];
}

static struct kr_exec *prepare(const struct bench *b, struct kr_device *dev, const struct tiny *t)
{
    struct kr_prepare_opts o = {.kv_type = KR_F16,
                                .block_tokens = 16,
                                .max_rows = 512,
                                .max_logit_rows = 512,
                                .max_context = 16};
    struct kr_exec *x;
    struct cn_error err = {0};
    if (!kr_prepare(dev, t->plan, &o, &x, &err)) return x;
    fprintf(stderr, "%s\n", err.message);
    exit(1);
}

static bool parse(struct bench *b, int argc, char **argv)
{
    const struct {
        const char *key;
        uint32_t *to;
    } numbers[] = {{"--threads", &b->threads}, {"--experts", &b->experts},
                   {"--used", &b->used},       {"--width", &b->width},
                   {"--ffn", &b->ffn},         {"--layers", &b->layers}};
    for (int i = 1; i < argc; i++) {
        bool known = !strcmp(argv[i], "--describe");
        b->describe = b->describe || known;
        if (known) continue;
        if (i + 1 == argc) return false;
        const char *key = argv[i], *v = argv[++i];
        for (size_t k = 0; k < CN_ARRAY_LEN(numbers); k++) {
            if (strcmp(key, numbers[k].key)) continue;
            *numbers[k].to = (uint32_t)atoi(v);
            known = true;
        }
        if (!strcmp(key, "--isa")) {
            b->isa = kr_isa_named(v);
            known = b->isa < KR_N_ISAS;
        }
        for (uint32_t t = 0; !strcmp(key, "--weights") && t < 64; t++) {
            if (!kr_type_info(t) || strcmp(kr_type_info(t)->name, v)) continue;
            b->type = t;
            known = true;
        }
        if (!strcmp(key, "--seconds")) {
            b->seconds = atof(v);
            known = true;
        }
        if (!known) return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    struct bench b = {.isa = KR_ISA_AUTO,
                      .experts = 128,
                      .used = 8,
                      .width = 2048,
                      .ffn = 768,
                      .layers = 1,
                      .type = KR_Q4_K,
                      .seconds = 1};
    struct cn_error err = {0};
    struct kr_device *dev;
    if (!parse(&b, argc, argv)) {
        fprintf(stderr, "see the head of bench_experts.c\n");
        return 2;
    }
    struct kr_cpu_opts cpu = {.isa = (enum kr_isa)b.isa, .n_threads = b.threads};
    if (kr_cpu_new(&cpu, &dev, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return 77;
    }
    struct tiny *whole = model(&b, true), *rest = model(&b, false);
    struct kr_exec *x = prepare(&b, dev, whole), *y = prepare(&b, dev, rest);
    const struct kr_exec_info *info = kr_exec_info(x);
    printf("%s, %u threads, %s: %u of %u experts, %u x %u, %u layers, %.2f MB an expert\n",
           kr_device_path(dev), kr_device_threads(dev), kr_type_info(b.type)->name, b.used,
           b.experts, b.width, b.ffn, b.layers, (double)info->expert_bytes / b.layers * 1e-6);
    if (b.describe) {
        struct cn_buf out;
        cn_buf_init(&out, 0);
        if (!kr_exec_describe(x, &out)) fwrite(out.data, 1, out.len, stdout);
        cn_buf_fini(&out);
    }
    static const uint32_t rows[] = {1, 2, 4, 8, 16, 64, 256, 512};
    for (size_t i = 0; i < CN_ARRAY_LEN(rows); i++) {
        double bytes, none, ops = 6.0 * b.layers * rows[i] * b.used * b.width * b.ffn;
        double s = time_steps(&b, x, rows[i], &bytes), r = time_steps(&b, y, rows[i], &none);
        printf(
            "%4u rows: %8.3f ms, %6.1f GB/s, %7.1f GOP/s; without the products %.3f ms (%.1f %%)\n",
            rows[i], s * 1e3, bytes / s * 1e-9, ops / s * 1e-9, r * 1e3, r / s * 100);
    }
    kr_exec_free(x);
    kr_exec_free(y);
    tiny_free(whole);
    tiny_free(rest);
    kr_device_free(dev);
    return 0;
}
