/* conifer bench: time to first token, prefill and decode speed of one request at a time, through
 * the same runtime that serves. Medians over rounds; every round has a prompt of its own, so that
 * nothing comes from the prefix cache. */
#include "cli/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 5, PROMPT_TOKENS = 512, NEW_TOKENS = 128, MOST = 1 << 24 };

struct round {
    uint64_t first_ns, last_ns, tokens;
};

struct bench {
    struct cli_stack stack;
    uint64_t rounds, prompt, tokens;
    bool json, probe, prompt_given, tokens_given;
};

static void on_token(void *arg)
{
    struct round *r = arg;

    r->last_ns = cn_now_ns();
    if (!r->tokens++) r->first_ns = r->last_ns;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, size_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* Ordinary tokens by chance: control tokens could change what the model does. */
static uint32_t *random_prompt(const struct eng_vocab *v, size_t n)
{
    uint32_t *ids = cn_malloc_array(n, sizeof *ids);
    size_t size = eng_vocab_size(v);

    for (size_t i = 0; ids && i < n; i++) {
        for (int tries = 0; tries < 64; tries++) {
            uint64_t x;
            cn_random(&x, sizeof x);
            ids[i] = (uint32_t)(x % size);
            if (!eng_vocab_is_control(v, ids[i])) break;
        }
    }
    return ids;
}

static int one_round(struct bench *b, double *ttft, double *prefill, double *decode,
                     struct cn_error *err)
{
    const struct eng_vocab *v = eng_model_vocab(rt_model(b->stack.rt));
    struct round r = {0};
    struct cli_sink sink = {.arg = &r, .on_token = on_token};
    struct cli_result result;
    struct rt_request q = {
        .n = 1, .n_prompt = (size_t)b->prompt, .max_tokens = b->tokens, .priority = RT_INTERACTIVE};

    eng_sampling_defaults(&q.sampling);
    q.sampling.temperature = 0;
    q.sampling.ignore_eos = true;
    q.prompt = random_prompt(v, (size_t)b->prompt);
    if (!q.prompt) return cn_fail(err, CN_ENOMEM, "out of memory");
    uint64_t start = cn_now_ns();
    cli_stack_ask(&b->stack, &q, &sink, &result);
    if (result.code) return cn_fail(err, result.code, "%s", result.message);
    if (r.tokens < 2) return cn_fail(err, CN_EINTERNAL, "the model made fewer than two tokens");
    *ttft = (double)(r.first_ns - start) / 1e9;
    *prefill = (double)b->prompt / *ttft;
    *decode = (double)(r.tokens - 1) / ((double)(r.last_ns - r.first_ns) / 1e9);
    return 0;
}

static int bench(struct bench *b, struct cn_error *err)
{
    size_t n = (size_t)b->rounds;
    double *all = cn_calloc(n * 3, sizeof *all), skip;
    int rc = all ? 0 : cn_fail(err, CN_ENOMEM, "out of memory");

    if (!rc) rc = one_round(b, &skip, &skip, &skip, err); /* warms up */
    for (size_t i = 0; !rc && i < n; i++)
        rc = one_round(b, &all[i], &all[n + i], &all[2 * n + i], err);
    if (!rc) {
        double ttft = median(all, n) * 1000, prefill = median(all + n, n),
               decode = median(all + 2 * n, n);
        struct cn_buf out;
        cn_buf_init(&out, 0);
        if (b->json) {
            cn_buf_puts(&out, "{\"model\":");
            cn_buf_json_str(&out, b->stack.name, strlen(b->stack.name));
            cn_buf_printf(&out,
                          ",\"path\":\"%s\",\"prompt_tokens\":%llu,\"new_tokens\":%llu,"
                          "\"rounds\":%llu,\"ttft_ms\":%.3f,\"prefill_tok_s\":%.2f,"
                          "\"decode_tok_s\":%.2f}\n",
                          rt_fingerprint(b->stack.rt), (unsigned long long)b->prompt,
                          (unsigned long long)b->tokens, (unsigned long long)b->rounds, ttft,
                          prefill, decode);
        } else {
            cn_buf_printf(&out,
                          "%s: %llu prompt tokens, %llu new tokens, median of %llu\n"
                          "  time to first token  %9.1f ms\n"
                          "  prefill              %9.1f tok/s\n"
                          "  decode               %9.1f tok/s\n",
                          b->stack.name, (unsigned long long)b->prompt,
                          (unsigned long long)b->tokens, (unsigned long long)b->rounds, ttft,
                          prefill, decode);
        }
        fwrite(out.data, 1, out.len, stdout);
        cn_buf_fini(&out);
    }
    free(all);
    return rc;
}

/* What was asked for must fit; the defaults are made smaller for a small window, and that is said.
 */
static int fit(struct bench *b, const char *name)
{
    uint64_t window = eng_model_info(rt_model(b->stack.rt))->context;

    if (!b->prompt_given && b->prompt > window / 2) b->prompt = CN_MAX(1, window / 2);
    if (!b->tokens_given && b->tokens > window / 4) b->tokens = CN_MAX(2, window / 4);
    if (b->prompt + b->tokens > window)
        return cli_usage(name,
                         "--prompt-tokens %llu and --new-tokens %llu are more than the window of "
                         "%llu tokens",
                         (unsigned long long)b->prompt, (unsigned long long)b->tokens,
                         (unsigned long long)window);
    if ((!b->prompt_given && b->prompt < PROMPT_TOKENS) ||
        (!b->tokens_given && b->tokens < NEW_TOKENS))
        fprintf(stderr, "%s: the window is only %llu tokens: %llu of prompt and %llu new ones\n",
                name, (unsigned long long)window, (unsigned long long)b->prompt,
                (unsigned long long)b->tokens);
    return 0;
}

static void help(void)
{
    printf("usage: conifer bench [options] [MODEL.gguf|NAME]\n\n"
           "Time to first token, prefill and decode speed of one request at a time.\n\n"
           "  --rounds N             the median of so many (%d)\n"
           "  --prompt-tokens N      (%d)\n"
           "  --new-tokens N         (%d)\n"
           "  --probe                only what the machine reaches: reads, 8-bit and float products\n"
           "  --json                 one JSON object instead of text\n%s",
           ROUNDS, PROMPT_TOKENS, NEW_TOKENS, cli_model_help());
}

/* 0, or an exit code + 1. */
static int read_options(struct bench *b, int argc, char **argv)
{
    static const struct option options[] = {{"rounds", required_argument, NULL, 'r'},
                                            {"prompt-tokens", required_argument, NULL, 'p'},
                                            {"new-tokens", required_argument, NULL, 'n'},
                                            {"probe", no_argument, NULL, 'P'},
                                            {"json", no_argument, NULL, 'j'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    int opt, bad = 0;

    optind = 0;
    while (!bad && (opt = cli_option(argv[0], argc, argv, options)) != -1) {
        if (opt == 'h') {
            help();
            return 1;
        }
        if (opt == '?') return 3;
        if (opt == 'j') b->json = true;
        if (opt == 'P') b->probe = true;
        if (opt == 'r') bad = cli_count(argv[0], "rounds", optarg, 1, 1000000, &b->rounds);
        if (opt == 'p') {
            bad = cli_count(argv[0], "prompt-tokens", optarg, 1, MOST, &b->prompt);
            b->prompt_given = true;
        }
        if (opt == 'n') {
            bad = cli_count(argv[0], "new-tokens", optarg, 2, MOST, &b->tokens);
            b->tokens_given = true;
        }
    }
    if (!bad && argc - optind + b->stack.model_given > 1)
        bad = cli_usage(argv[0], "one model is expected");
    return bad ? bad + 1 : 0;
}

int cli_bench(int argc, char **argv)
{
    struct cn_error err = {0};
    struct bench b = {.rounds = ROUNDS, .prompt = PROMPT_TOKENS, .tokens = NEW_TOKENS};
    int status = 0, rc = cli_stack_config(&b.stack, &argc, argv, &err);

    if (!rc) {
        int early = read_options(&b, argc, argv);
        if (early) {
            cli_stack_close(&b.stack);
            return early - 1;
        }
    }
    if (!rc && b.probe) {
        rc = cli_bench_probe(&b.stack.cfg, b.json, &err);
        if (rc) status = cli_error(argv[0], &err);
        cli_stack_close(&b.stack);
        return status;
    }
    if (!rc && optind < argc) rc = cli_use_model(&b.stack.cfg, argv[optind], &err);
    if (!rc) rc = cli_stack_open(&b.stack, &err);
    if (!rc) status = fit(&b, argv[0]);
    if (!rc && !status) rc = bench(&b, &err);
    if (rc) status = cli_error(argv[0], &err);
    cli_stack_close(&b.stack);
    return status;
}
