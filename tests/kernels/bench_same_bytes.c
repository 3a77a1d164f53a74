/* bench_same_bytes: what it costs that a row's bytes depend on its sequence alone. Side by side, in
 * alternated rounds: the shipped order of sums, and orders that the promise forbids. Not a test.
 *
 *   bench_same_bytes [--isa NAME] [--threads N] [--rounds N]
 *
 * Attention: keys go in fixed ranges that are merged in one order. The other side pays nothing for
 * merging at all (its results are wrong), which no order of any kind can beat: a bound on the
 * price. Products: a decode step's weights are shared out by output, each summed by one thread in
 * column order. The other side shares out the columns, every thread summing its part of every
 * output, and adds the parts; with one thread, in as many parts as two would take. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "tests/kernels/tiny.h"

enum { MOST_ROUNDS = 99, LAYERS = 30, WIDTH = 576, FFN = 1536, SHAPES = 4, PARTS = 2 };

static void need(bool ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "bench_same_bytes: %s\n", what);
    exit(1);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(const double *v, uint32_t n)
{
    double s[MOST_ROUNDS];
    memcpy(s, v, n * sizeof *s);
    qsort(s, n, sizeof *s, by_value);
    return (s[(n - 1) / 2] + s[n / 2]) / 2;
}

/* Rounds of both sides, the order turned every time; the price is the median of their ratios. */
static void compare(const char *what, uint32_t rounds, double (*run)(void *arg, bool freed),
                    void *arg)
{
    double ours[MOST_ROUNDS], freed[MOST_ROUNDS], ratio[MOST_ROUNDS];
    run(arg, false);
    run(arg, true);
    for (uint32_t r = 0; r < rounds; r++) {
        bool turn = r % 2;
        double first = run(arg, turn), second = run(arg, !turn);
        ours[r] = turn ? second : first;
        freed[r] = turn ? first : second;
        ratio[r] = ours[r] / freed[r];
    }
    double price = median(ratio, rounds);
    qsort(ratio, rounds, sizeof *ratio, by_value);
    printf("%-34s %9.3f ms %9.3f ms   %+5.1f %%  (%+.1f..%+.1f)\n", what, median(ours, rounds),
           median(freed, rounds), (price - 1) * 100, (ratio[0] - 1) * 100,
           (ratio[rounds - 1] - 1) * 100);
}

/* ---- attention: a whole step of a small model ------------------------------------------------ */

struct steps {
    struct tiny_run run;
    struct tiny_seq seq;
    uint32_t at, rows, vocab, times;
    void (*merge)(struct kr_attn_state dst, struct kr_attn_state src, uint32_t n, uint32_t v_dim,
                  uint32_t acc_stride);
};

static void no_merge(struct kr_attn_state dst, struct kr_attn_state src, uint32_t n, uint32_t v_dim,
                     uint32_t acc_stride)
{
}

static double run_steps(void *arg, bool freed)
{
    struct steps *s = arg;
    struct kr_cpu *c = CN_CONTAINER(s->run.dev, struct kr_cpu, base);
    struct tiny_seq *list[1] = {&s->seq};
    c->ops.attn_merge = freed ? no_merge : s->merge;
    uint64_t start = cn_now_ns();
    for (uint32_t i = 0; i < s->times; i++) {
        s->seq.done = s->at;
        tiny_step(&s->run, list, &s->rows, 1, s->vocab);
    }
    uint64_t end = cn_now_ns();
    c->ops.attn_merge = s->merge;
    return (double)(end - start) / 1e6 / s->times;
}

static void attention(enum kr_isa isa, uint32_t threads, uint32_t rounds)
{
    static const struct {
        const char *what;
        uint32_t at, rows, times;
    } cases[] = {
        {"decode behind 128 tokens", 128, 1, 40},
        {"decode behind 1024 tokens", 1024, 1, 30},
        {"decode behind 4000 tokens", 4000, 1, 20},
        {"prefill, the first 512 tokens", 0, 512, 1},
        {"prefill, 512 behind 3072 tokens", 3072, 512, 1},
    };
    const struct tiny_shape shape = {.n_layers = LAYERS,
                                     .width = WIDTH,
                                     .heads = 9,
                                     .kv_heads = 3,
                                     .head_dim = 64,
                                     .ffn = FFN,
                                     .vocab = 49152,
                                     .weights = KR_Q4_1,
                                     .head = KR_Q8_0};
    enum { TOKENS = 4096, CHUNK = 512 };
    struct tiny *t = tiny_new(&shape, 1);
    struct steps s = {.vocab = shape.vocab};
    struct tiny_run_opts o = {.isa = isa,
                              .threads = threads,
                              .block_tokens = 16,
                              .max_rows = CHUNK,
                              .max_context = TOKENS,
                              .n_blocks = 257,
                              .slab_blocks = 257,
                              .kv_type = KR_F16};
    uint32_t *tokens = malloc(TOKENS * sizeof *tokens), chunk = CHUNK;
    need(tokens && tiny_run_open(&s.run, t, &o), "no memory, or no such ISA here");
    s.merge = CN_CONTAINER(s.run.dev, struct kr_cpu, base)->ops.attn_merge;
    for (uint32_t i = 0; i < TOKENS; i++)
        tokens[i] = i * 7919 % shape.vocab;
    tiny_seq_open(&s.run, &s.seq, tokens, TOKENS, shape.vocab, false);
    struct tiny_seq *list[1] = {&s.seq};
    while (s.seq.done < TOKENS)
        tiny_step(&s.run, list, &chunk, 1, shape.vocab);
    for (size_t i = 0; i < CN_ARRAY_LEN(cases); i++) {
        s.at = cases[i].at;
        s.rows = cases[i].rows;
        s.times = cases[i].times;
        compare(cases[i].what, rounds, run_steps, &s);
    }
    tiny_seq_close(&s.seq);
    tiny_run_close(&s.run);
    tiny_free(t);
    free(tokens);
}

/* ---- products: the matrices of a decode step ------------------------------------------------- */

static const uint32_t shapes[SHAPES][2] = {
    /* rows, columns */
    {960, WIDTH},
    {WIDTH, WIDTH},
    {2 * FFN, WIDTH},
    {WIDTH, FFN},
};

struct products {
    struct kr_device *dev;
    const struct kr_matmul_kernels *mm;
    struct kr_packed whole[LAYERS][SHAPES], part[LAYERS][SHAPES][PARTS];
    struct kr_q8 q[2], q_part[2]; /* of WIDTH and of FFN columns */
    float *out, *sums;            /* [rows], [PARTS][rows] */
    uint32_t parts, layer, shape;
};

static struct kr_packed matrix(uint32_t rows, uint32_t cols)
{
    struct kr_packed w = {KR_Q4_1, rows, cols, NULL};
    uint64_t bytes = (kr_packed_bytes(w.type, rows, cols) + 63) / 64 * 64;
    w.data = aligned_alloc(64, bytes);
    need(w.data, "memory");
    memset(w.data, 0x11, bytes); /* scales and mins are small ordinary numbers */
    return w;
}

static struct kr_q8 input(const struct products *p, uint32_t cols)
{
    struct kr_q8 q;
    float *x = calloc(cols, sizeof *x);
    void *mem = aligned_alloc(64, (kr_q8_bytes(1, cols) + 63) / 64 * 64);
    need(x && mem, "memory");
    for (uint32_t i = 0; i < cols; i++)
        x[i] = (float)(i % 17) - 8;
    kr_q8_place(&q, mem, 1, cols);
    p->mm->quantize(&q, x, cols, 0, 1);
    free(x);
    return q;
}

static void by_rows(void *arg, uint32_t i)
{
    struct products *p = arg;
    const struct kr_packed *w = &p->whole[p->layer][p->shape];
    uint32_t pairs = w->rows / KR_PACK_ROWS / 2;
    kr_matmul(p->mm, w, 2 * (pairs * i / p->parts), 2 * (pairs * (i + 1) / p->parts),
              &p->q[w->cols == FFN], NULL, 0, 0, 1, NULL, p->out, w->rows);
}

static void by_columns(void *arg, uint32_t i)
{
    struct products *p = arg;
    const struct kr_packed *w = &p->part[p->layer][p->shape][i];
    kr_matmul(p->mm, w, 0, w->rows / KR_PACK_ROWS, &p->q_part[w->cols == FFN / PARTS], NULL, 0, 0,
              1, NULL, p->sums + i * 2 * FFN, w->rows);
}

static double run_products(void *arg, bool freed)
{
    struct products *p = arg;
    enum { TIMES = 20 };
    uint64_t start = cn_now_ns();
    for (uint32_t k = 0; k < TIMES; k++)
        for (p->layer = 0; p->layer < LAYERS; p->layer++)
            for (p->shape = 0; p->shape < SHAPES; p->shape++) {
                if (!freed) {
                    kr_device_parallel(p->dev, p->parts, by_rows, p);
                    continue;
                }
                kr_device_parallel(p->dev, PARTS, by_columns, p);
                for (uint32_t i = 0; i < shapes[p->shape][0]; i++)
                    p->out[i] = p->sums[i] + p->sums[2 * FFN + i];
            }
    return (double)(cn_now_ns() - start) / 1e6 / TIMES;
}

static void products(enum kr_isa isa, uint32_t threads, uint32_t rounds)
{
    static struct products p;
    struct kr_cpu_opts o = {.isa = isa, .n_threads = threads};
    struct cn_error err = {0};
    need(!kr_cpu_new(&o, &p.dev, &err), "no such ISA here");
    p.mm = &CN_CONTAINER(p.dev, struct kr_cpu, base)->mm;
    p.parts = CN_MIN(kr_device_threads(p.dev), (uint32_t)PARTS);
    for (int l = 0; l < LAYERS; l++)
        for (int s = 0; s < SHAPES; s++) {
            p.whole[l][s] = matrix(shapes[s][0], shapes[s][1]);
            for (int i = 0; i < PARTS; i++)
                p.part[l][s][i] = matrix(shapes[s][0], shapes[s][1] / PARTS);
        }
    for (int i = 0; i < 2; i++) {
        p.q[i] = input(&p, i ? FFN : WIDTH);
        p.q_part[i] = input(&p, (i ? FFN : WIDTH) / PARTS);
    }
    p.out = calloc(2 * FFN, sizeof *p.out);
    p.sums = calloc(PARTS * 2 * FFN, sizeof *p.sums);
    need(p.out && p.sums, "memory");
    compare("products of a decode step", rounds, run_products, &p);
    kr_device_free(p.dev);
}

int main(int argc, char **argv)
{
    enum kr_isa isa = KR_ISA_AUTO;
    uint32_t threads = 0, rounds = 9;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--isa"))
            isa = kr_isa_named(argv[i + 1]);
        else if (!strcmp(argv[i], "--threads"))
            threads = (uint32_t)atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--rounds"))
            rounds = (uint32_t)atoi(argv[i + 1]);
        else
            need(false, "usage: bench_same_bytes [--isa NAME] [--threads N] [--rounds N]");
    }
    need(isa < KR_N_ISAS && rounds >= 1 && rounds <= MOST_ROUNDS, "no such ISA, or rounds");
    printf("%-34s %12s %12s   price, median of %u rounds\n", "", "as shipped", "order freed",
           rounds);
    attention(isa, threads, rounds);
    products(isa, threads, rounds);
    return 0;
}
