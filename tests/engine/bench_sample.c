/* What one row of logits costs on one core, by size of the vocabulary and kind of sampling.
 *
 *   bench_sample [ROUNDS]       medians of ROUNDS (default 21), microseconds; "hash" tells whether
 * two builds draw the same ids with the same log-probabilities */
#include "engine/engine.h"
#include "kernels/draw_loops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    struct eng_sampling s;
} kinds[] = {
    {"greedy", {.temperature = 0, .top_p = 1, .repetition_penalty = 1, .logprobs = -1}},
    {"T=1", {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .logprobs = -1}},
    {"T=.7 k=40 p=.95",
     {.temperature = .7f, .top_k = 40, .top_p = .95f, .repetition_penalty = 1, .logprobs = -1}},
    {"T=.7 p=.9", {.temperature = .7f, .top_p = .9f, .repetition_penalty = 1, .logprobs = -1}},
    {"T=1 min_p=.05",
     {.temperature = 1, .top_p = 1, .min_p = .05f, .repetition_penalty = 1, .logprobs = -1}},
    {"greedy logprobs", {.temperature = 0, .top_p = 1, .repetition_penalty = 1, .logprobs = 0}},
    {"greedy top 20", {.temperature = 0, .top_p = 1, .repetition_penalty = 1, .logprobs = 20}},
    {"T=1 penalty", {.temperature = 1, .top_p = 1, .repetition_penalty = 1.1f, .logprobs = -1}},
};
enum { ROWS = 8, MAX_ROUNDS = 99 };

static uint64_t state = 88172645463325252u;
static double rnd(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) * 0x1p-53;
}

/* As models have them: a bell, and some that stand out. */
static void fill(float *z, size_t n)
{
    for (size_t i = 0; i < n; i++)
        z[i] = (float)((rnd() + rnd() + rnd() + rnd() - 2) * 3.5);
    for (int i = 0; i < 30; i++)
        z[(size_t)(rnd() * (double)n)] = (float)(7 + 7 * rnd());
}

static struct eng_vocab *make_vocab(size_t n)
{
    struct eng_str *tokens = calloc(n, sizeof *tokens);
    char *names = malloc(n * 12);
    struct eng_vocab *v = NULL;
    for (size_t i = 0; i < n; i++)
        tokens[i] =
            (struct eng_str){names + 12 * i, (size_t)snprintf(names + 12 * i, 12, "t%zu", i)};
    /* clang-format off */
    struct eng_vocab_spec spec = {
        .model = "gpt2", .pre = "gpt-2", .n_tokens = n, .tokens = tokens, .bos = -1, .eos = 7,
        .eot = -1, .eom = -1, .unk = -1, .sep = -1, .pad = -1, .fim_pre = -1, .fim_suf = -1,
        .fim_mid = -1, .fim_pad = -1, .fim_rep = -1, .fim_sep = -1, .add_bos = -1, .add_eos = -1,
        .add_space_prefix = -1};
    if (eng_vocab_new(&spec, &v, NULL)) exit(1);
    free(tokens);
    free(names);
    return v;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void measure(const struct eng_vocab *v, size_t k, float *const *rows, float *work,
                    int rounds)
{
    struct kr_draw_state *s;
    struct kr_drawn d;
    size_t n = eng_vocab_size(v);
    double us[MAX_ROUNDS];
    uint64_t hash = 0;
    struct kr_draw_rooms rooms;
    kr_draw_rooms_init(&rooms);
    struct eng_draw_env env = {.vocab = v, .loops = kr_draw_loops(KR_ISA_AUTO), .rooms = &rooms};
    if (eng_draw_state_new(&kinds[k].s, &env, &s, NULL)) exit(1);
    for (uint32_t i = 0; i < 500; i++)
        if (kr_draw_state_accept(s, i * 17)) exit(1);
    for (int r = -2; r < rounds; r++) {
        double sum = 0;
        for (int i = 0; i < ROWS; i++) {
            memcpy(work, rows[i], n * sizeof *work);
            uint64_t t = cn_now_ns();
            if (kr_draw_row(s, work, (uint64_t)(r + 2) * ROWS + (uint64_t)i, NULL, &d)) exit(1);
            sum += (double)(cn_now_ns() - t);
            uint32_t bits;
            memcpy(&bits, &d.logprob, sizeof bits);
            hash = (hash ^ d.id ^ (uint64_t)bits << 32) * 0x9e3779b97f4a7c15u;
            for (uint32_t j = 0; j < d.n_top; j++) {
                memcpy(&bits, &d.top[j].logprob, sizeof bits);
                hash = (hash ^ d.top[j].id ^ (uint64_t)bits << 32) * 0x9e3779b97f4a7c15u;
            }
        }
        if (r >= 0) us[r] = sum / ROWS / 1e3;
    }
    /* clang-format on */
    qsort(us, (size_t)rounds, sizeof *us, by_value);
    printf("%7zu  %-16s %8.1f us  %6.2f GB/s  hash %08x\n", n, kinds[k].name, us[rounds / 2],
           (double)n * 4e-3 / us[rounds / 2], (unsigned)(hash >> 32));
    kr_draw_state_free(s);
    kr_draw_rooms_fini(&rooms);
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {32000, 49152, 128256, 262144};
    int rounds = argc > 1 ? atoi(argv[1]) : 21;
    if (rounds < 1 || rounds > MAX_ROUNDS) return 2;
    for (size_t i = 0; i < CN_ARRAY_LEN(sizes); i++) {
        struct eng_vocab *v = make_vocab(sizes[i]);
        float *rows[ROWS], *work = malloc(sizes[i] * sizeof *work);
        for (int r = 0; r < ROWS; r++) {
            rows[r] = malloc(sizes[i] * sizeof *rows[r]);
            fill(rows[r], sizes[i]);
        }
        for (size_t k = 0; k < CN_ARRAY_LEN(kinds); k++)
            measure(v, k, rows, work, rounds);
        for (int r = 0; r < ROWS; r++)
            free(rows[r]);
        free(work);
        eng_vocab_free(v);
    }
    return 0;
}
