/* What a decode step of one sequence costs at several lengths of context. The keys and values
 * before it are not computed but for the first block, of which all others are copies: that takes as
 * long.
 *
 *   bench_context [--profile] MODEL.gguf [THREADS [TOKENS...]]
 *
 * default: all processors; 1024 32768. --profile: and where the time of a step goes. */
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_TOKENS = 16, STEPS = 32, ROUNDS = 5, MAX_GROUPS = 16 };

struct bench {
    struct kr_device *device;
    struct eng_model *model;
    struct kr_exec *exec;
    struct kr_kv_mem *mem;
    uint32_t *tables[MAX_GROUPS];
};

static void die(const struct cn_error *err)
{
    fprintf(stderr, "bench_context: %s\n", err->message);
    exit(1);
}

static void start(struct bench *b, const char *path, uint32_t threads, uint64_t context)
{
    struct cn_error err = {0};
    struct kr_cpu_opts cpu = {.isa = KR_ISA_AUTO, .n_threads = threads};
    uint32_t n_blocks = (uint32_t)(context / BLOCK_TOKENS);
    uint64_t slab = 64;

    if (kr_cpu_new(&cpu, &b->device, &err)) die(&err);
    struct eng_model_opts o = {.device = b->device,
                               .prepare = {.kv_type = KR_F16,
                                           .block_tokens = BLOCK_TOKENS,
                                           .max_rows = 16,
                                           .max_logit_rows = 1,
                                           .max_context = context}};
    if (eng_model_open(path, &o, &b->model, &err)) die(&err);
    b->exec = eng_model_exec(b->model);
    const struct kr_exec_info *x = kr_exec_info(b->exec);
    for (uint32_t g = 0; g < x->n_groups; g++)
        slab = CN_MAX(slab, x->groups[g].block_bytes * n_blocks);
    if (x->n_groups > MAX_GROUPS || kr_kv_mem_new(b->device, slab, x->n_groups, &b->mem, &err))
        die(&err);
    for (uint32_t g = 0; g < x->n_groups; g++) {
        b->tables[g] = calloc(n_blocks, sizeof(uint32_t));
        for (uint32_t i = 0; i < n_blocks; i++)
            b->tables[g][i] = g << KR_BLOCK_INDEX_BITS | i;
    }
}

static double step_ms(struct bench *b, uint32_t pos)
{
    struct kr_row row = {.pos = pos, .src = KR_ROW_TOKEN, .logits = true, .token = pos % 100};
    struct kr_seq seq = {.tables = (const uint32_t *const *)b->tables};
    struct kr_batch batch = {.n_rows = 1, .n_seqs = 1, .rows = &row, .seqs = &seq};
    struct cn_error err = {0};
    uint64_t ticket, t = cn_now_ns();
    float *logits;

    if (kr_launch(b->exec, b->mem, &batch, &ticket, &err)) die(&err);
    if (kr_collect(b->exec, ticket, &logits, &err)) die(&err);
    return (double)(cn_now_ns() - t) * 1e-6;
}

/* Every block in memory of its own: pages that nobody wrote to would be read from one place. */
static void fill(struct bench *b, uint32_t n_blocks)
{
    const struct kr_exec_info *x = kr_exec_info(b->exec);
    for (uint32_t i = 0; i < BLOCK_TOKENS; i++)
        step_ms(b, i);
    for (uint32_t g = 0; g < x->n_groups; g++)
        for (uint32_t i = 1; i < n_blocks && x->groups[g].span != KR_SPAN_STATE; i++)
            if (kr_kv_copy(b->exec, b->mem, g, b->tables[g][i], b->tables[g][0], BLOCK_TOKENS))
                exit(1);
}

/* Per step: the best of several rounds, so that what else the machine does counts little. */
static double decode_ms(struct bench *b, uint32_t tokens)
{
    double best = 1e30;
    for (int r = 0; r < ROUNDS; r++) {
        double sum = 0;
        for (uint32_t i = 0; i < STEPS; i++)
            sum += step_ms(b, tokens - STEPS + i);
        best = CN_MIN(best, sum / STEPS);
    }
    return best;
}

/* What a sequence of so many tokens holds: read by each of its steps, but for the state, which is
 * also written. */
static void line(struct bench *b, uint32_t tokens, double ms, double first)
{
    uint64_t held = eng_sequence_bytes(kr_exec_info(b->exec), BLOCK_TOKENS, tokens);
    printf("%8u tokens %9.1f MiB %9.2f ms a token %9.1f tokens/s   %.2f of the first\n", tokens,
           (double)held / 1048576, ms, 1000 / ms, first / ms);
}

static void print_profile(struct bench *b)
{
    struct cn_buf out;
    cn_buf_init(&out, 0);
    if (!kr_exec_profile_text(b->exec, &out)) fwrite(out.data, 1, out.len, stdout);
    cn_buf_fini(&out);
}

int main(int argc, char **argv)
{
    static const char *const lengths[] = {"1024", "32768"};
    struct bench b = {0};
    uint32_t most = 0;
    double first = 0;
    const bool profile = argc > 1 && !strcmp(argv[1], "--profile");

    argv += profile;
    argc -= profile;
    if (argc < 2) {
        fprintf(stderr, "usage: bench_context [--profile] MODEL.gguf [THREADS [TOKENS...]]\n");
        return 2;
    }
    int n = argc > 3 ? argc - 3 : (int)CN_ARRAY_LEN(lengths);
    const char *const *list = argc > 3 ? (const char *const *)argv + 3 : lengths;
    for (int i = 0; i < n; i++)
        most = CN_MAX(most, (uint32_t)atoi(list[i]));
    cn_log_setup(CN_LOG_WARN, CN_LOG_TEXT);
    start(&b, argv[1], argc > 2 ? (uint32_t)atoi(argv[2]) : 0, most + BLOCK_TOKENS);
    fill(&b, most / BLOCK_TOKENS + 1);
    for (int i = 0; i < n; i++) {
        uint32_t tokens = (uint32_t)atoi(list[i]);
        if (profile && kr_exec_profile(b.exec, true)) return 1;
        double ms = decode_ms(&b, CN_MAX(tokens, (uint32_t)STEPS));
        if (!i) first = ms;
        line(&b, tokens, ms, first);
        if (profile) print_profile(&b);
    }
    for (uint32_t g = 0; g < kr_exec_info(b.exec)->n_groups; g++)
        free(b.tables[g]);
    kr_kv_mem_free(b.mem);
    eng_model_unref(b.model);
    kr_device_free(b.device);
    return 0;
}
