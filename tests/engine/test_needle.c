/* Keys and values in f16, q8_0 and q4_0: what a real model still finds in a long context.
 *
 * A context is made-up sentences with a pass key of five digits hidden in them, at five depths in
 * turn; then it is asked for, and the answer fed digit by digit. Counted per type: keys whose every
 * digit is the likeliest token, log-probability of a digit, and, over all tokens of questions and
 * answers, the divergence KL(f16 || type) of the whole distributions and how often the likeliest
 * token is the same. What f16 itself gives is checked against references in test_real.c.
 *
 * As a test: SmolLM2 and Gemma 3 with short contexts, with CONIFER_LONG longer ones.
 * As a measurement (tools/gen_kv.sh): test_engine_needle FILE CONTEXT CASES prints the rows of a
 * table. */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "golden.h"

enum { DEPTHS = 5, DIGITS = 5, TYPES = 3, MAX_ROWS = 48 };
static const enum kr_type types[TYPES] = {KR_F16, KR_Q8_0, KR_Q4_0};
static const char *const type_names[TYPES] = {"f16", "q8_0", "q4_0"};

/* ---- the haystack ---------------------------------------------------------------------------- */

static uint32_t draw(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*seed >> 33) % n);
}

static void put_sentence(struct cn_buf *text, uint64_t *seed)
{
    static const char *const when[] = {"In the morning",   "After the storm", "Before the market",
                                       "On the third day", "Late in autumn",  "Some years later"};
    static const char *const who[] = {"the miller", "a young clerk",     "the ferryman",
                                      "her uncle",  "the schoolteacher", "an old carpenter",
                                      "the postman"};
    static const char *const did[] = {"repaired",     "painted",    "measured",    "sold",
                                      "carried away", "looked for", "wrote about", "forgot"};
    static const char *const what[] = {
        "the wooden gate",    "two baskets of pears", "a long ladder", "the bell of the chapel",
        "a map of the coast", "the green boat",       "some blankets", "the garden wall"};
    static const char *const where[] = {
        "by the river",         "near the station", "behind the bakery", "at the end of the road",
        "under the lime trees", "in the valley",    "on the hill"};
#define ANY(list) list[draw(seed, CN_ARRAY_LEN(list))]
    const char *words[] = {ANY(when), ANY(who), ANY(did), ANY(what), ANY(where)};
#undef ANY
    cn_buf_printf(text, " %s %s %s %s %s.", words[0], words[1], words[2], words[3], words[4]);
}

static void put_needle(struct cn_buf *text, uint32_t key)
{
    cn_buf_printf(text,
                  " The pass key is %05" PRIu32 ". Remember it: %05" PRIu32 " is the pass key.",
                  key, key);
}

static struct eng_ids tokenize(const struct golden *g, const char *text, int flags)
{
    struct eng_ids ids = {0};
    struct cn_error err;
    if (eng_tokenize(eng_model_vocab(g->model), text, strlen(text), NULL, 0, flags, &ids, &err))
        fail_msg("tokens: %s", err.message);
    return ids;
}

/* Sentences until there are n tokens, the key after (2 * depth + 1) / (2 * DEPTHS) of them. The
 * sentences are the same whatever the depth. */
static struct eng_ids make_context(const struct golden *g, size_t n, uint32_t key, size_t depth,
                                   uint64_t seed)
{
    struct cn_buf text;
    cn_buf_init(&text, 0);
    cn_buf_puts(&text, "Here is a long story. A pass key is hidden in it.");
    size_t have = 12;
    bool hidden = false;
    while (have < n || !hidden) {
        size_t from = text.len;
        if (!hidden && have * 2 * DEPTHS >= (2 * depth + 1) * n) {
            put_needle(&text, key);
            hidden = true;
        } else {
            put_sentence(&text, &seed);
        }
        struct eng_ids piece = tokenize(g, cn_buf_cstr(&text) + from, 0);
        have += piece.n;
        eng_ids_fini(&piece);
    }
    struct eng_ids ids = tokenize(g, cn_buf_cstr(&text), ENG_TOKENIZE_SPECIAL);
    cn_buf_fini(&text);
    return ids;
}

/* ---- figures --------------------------------------------------------------------------------- */

struct figures {
    uint32_t found[DEPTHS], asked; /* keys found at each depth, of so many */
    double log_p, kl;              /* sums over digits; over rows */
    uint64_t digits, same, rows;
};

static double log_sum(const float *logits, size_t n)
{
    double max = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++)
        max = CN_MAX((double)logits[i], max);
    for (size_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - max);
    return max + log(sum);
}

static double divergence(const float *want, const float *got, size_t n)
{
    double all = log_sum(want, n), other = log_sum(got, n), kl = 0;
    for (size_t i = 0; i < n; i++) {
        double log_p = (double)want[i] - all;
        kl += exp(log_p) * (log_p - ((double)got[i] - other));
    }
    return kl;
}

/* Row i of logits is what follows token i. */
static void note(struct figures *f, size_t depth, const struct eng_ids *asked, size_t n_vocab,
                 const float *want, const float *got)
{
    bool all = true;
    for (size_t i = 0; i + 1 < asked->n; i++) {
        const float *row = got + i * n_vocab, *ref = want + i * n_vocab;
        uint32_t best = golden_argmax(row, n_vocab), next = asked->v[i + 1];
        f->kl += want == got ? 0 : divergence(ref, row, n_vocab);
        f->same += best == golden_argmax(ref, n_vocab);
        f->rows++;
        if (i + 1 + DIGITS < asked->n) continue;
        f->log_p += (double)row[next] - log_sum(row, n_vocab);
        f->digits++;
        all &= best == next;
    }
    f->found[depth] += all;
}

static uint32_t total(const struct figures *f)
{
    uint32_t n = 0;
    for (size_t i = 0; i < DEPTHS; i++)
        n += f->found[i];
    return n;
}

/* ---- runs ------------------------------------------------------------------------------------ */

struct bench {
    const char *file;
    struct golden g[TYPES];
    float *logits[TYPES]; /* [MAX_ROWS][n_vocab] */
};

/* False, and the test is skipped, when the model is not there. */
static bool open_bench(struct bench *b, const char *file, size_t context)
{
    const char *path = golden_real(file);
    if (!path) return false;
    b->file = file;
    for (size_t t = 0; t < TYPES; t++) {
        if (golden_open(&b->g[t], path, KR_ISA_AUTO, 2, (context + 255) / 16 * 16, types[t]))
            fail_msg("%s cannot be opened", path);
        b->logits[t] = malloc(MAX_ROWS * b->g[t].n_vocab * sizeof(float));
        assert_non_null(b->logits[t]);
    }
    return true;
}

static void close_bench(struct bench *b)
{
    for (size_t t = 0; t < TYPES; t++) {
        free(b->logits[t]);
        golden_close(&b->g[t]);
    }
}

/* Asks for the key after the context that all types hold, which stays as it was. */
static void ask(struct bench *b, uint32_t n_context, uint32_t key, size_t depth,
                struct figures f[TYPES])
{
    char text[96];
    snprintf(text, sizeof(text), " What is the pass key? The pass key is %05" PRIu32, key);
    struct eng_ids asked = tokenize(&b->g[0], text, 0);
    assert_true(asked.n > DIGITS && asked.n <= MAX_ROWS);
    for (size_t t = 0; t < TYPES; t++) {
        struct golden *g = &b->g[t];
        g->pos = n_context;
        golden_feed(g, asked.v, asked.n, asked.n, n_context, b->logits[t]);
        note(&f[t], depth, &asked, g->n_vocab, b->logits[0], b->logits[t]);
    }
    eng_ids_fini(&asked);
}

static uint32_t common(const struct eng_ids *a, const struct eng_ids *b)
{
    uint32_t n = 0;
    while (n < a->n && n < b->n && a->v[n] == b->v[n])
        n++;
    return n;
}

/* One story and one key at each depth, the deepest first: what is before the key is kept. */
static void run_case(struct bench *b, size_t context, uint64_t seed, struct figures f[TYPES])
{
    struct eng_ids held = {0};
    uint32_t key = 10000 + draw(&seed, 90000);
    for (size_t depth = DEPTHS; depth-- > 0;) {
        struct eng_ids ids = make_context(&b->g[0], context, key, depth, seed);
        uint32_t from = common(&held, &ids);
        for (size_t t = 0; t < TYPES; t++) {
            b->g[t].pos = from;
            golden_feed(&b->g[t], ids.v + from, ids.n - from, GOLDEN_MAX_ROWS, UINT32_MAX, NULL);
        }
        ask(b, (uint32_t)ids.n, key, depth, f);
        eng_ids_fini(&held);
        held = ids;
    }
    for (size_t t = 0; t < TYPES; t++)
        f[t].asked++;
    eng_ids_fini(&held);
}

static uint64_t token_bytes(const struct golden *g)
{
    const struct kr_exec_info *info = kr_exec_info(g->exec);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < info->n_groups; i++)
        bytes += info->groups[i].block_bytes / GOLDEN_BLOCK_TOKENS;
    return bytes;
}

static void print_rows(FILE *out, const struct bench *b, size_t context, const struct figures *f)
{
    for (size_t t = 0; t < TYPES; t++) {
        fprintf(out, "| %s | %zu | %s | %" PRIu64 " |", b->file, context, type_names[t],
                token_bytes(&b->g[t]));
        for (size_t i = 0; i < DEPTHS; i++)
            fprintf(out, " %" PRIu32 " |", f[t].found[i]);
        fprintf(out, " %" PRIu32 " of %" PRIu32 " | %.3f | %.5f | %.1f %% |\n", total(&f[t]),
                DEPTHS * f[t].asked, f[t].log_p / (double)f[t].digits, f[t].kl / (double)f[t].rows,
                100.0 * (double)f[t].same / (double)f[t].rows);
    }
}

/* ---- as a test ------------------------------------------------------------------------------- */

static void measure(struct bench *b, size_t context, uint32_t cases, struct figures f[TYPES])
{
    memset(f, 0, TYPES * sizeof(*f));
    for (uint32_t c = 0; c < cases; c++)
        run_case(b, context, 1 + c, f);
}

static void check(const char *file, const size_t *contexts, size_t n)
{
    struct bench b;
    struct figures f[TYPES];
    if (!open_bench(&b, file, contexts[n - 1])) return;
    for (size_t i = 0; i < n; i++) {
        measure(&b, contexts[i], 1, f);
        print_rows(stdout, &b, contexts[i], f);
        double q8 = f[1].kl / (double)f[1].rows, q4 = f[2].kl / (double)f[2].rows;
        assert_true(total(&f[0]) + 1 >= DEPTHS);
        assert_true(total(&f[1]) + 1 >= total(&f[0]));
        assert_true(total(&f[2]) * 2 >= total(&f[0]));
        assert_true(q8 > 0 && q8 < 0.01 && q8 < q4 && q4 < 0.5);
    }
    close_bench(&b);
}

static void test_smollm2(void **state)
{
    static const size_t contexts[] = {512, 1024, 4096};
    check("SmolLM2-135M-Instruct.Q4_1.gguf", contexts, getenv("CONIFER_LONG") ? 3 : 2);
}

static void test_gemma3(void **state)
{
    static const size_t contexts[] = {512, 2048};
    check("gemma-3-270m-q4_k_m.gguf", contexts, getenv("CONIFER_LONG") ? 2 : 1);
}

/* FILE CONTEXT CASES */
static int print_table(char **argv)
{
    struct bench b;
    struct figures f[TYPES];
    size_t context = strtoul(argv[2], NULL, 10);
    if (!open_bench(&b, argv[1], context)) return 77;
    measure(&b, context, (uint32_t)strtoul(argv[3], NULL, 10), f);
    print_rows(stdout, &b, context, f);
    close_bench(&b);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smollm2),
        cmocka_unit_test(test_gemma3),
    };
    if (argc == 4) return print_table(argv);
    return cmocka_run_group_tests_name("needle", tests, NULL, NULL);
}
