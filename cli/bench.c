/* conifer bench: time to first token, prefill and decode speed of one request at a time, through
 * the same runtime that serves. Medians over rounds; every round has a prompt of its own, so that
 * nothing comes from the prefix cache. */
#include "cli/cli.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct round {
    uint64_t first_ns, last_ns, tokens;
};

struct bench {
    struct cli_stack stack;
    long rounds, prompt, tokens;
    bool json;
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
    struct rt_request q = {.n = 1,
                           .n_prompt = (size_t)b->prompt,
                           .max_tokens = (uint64_t)b->tokens,
                           .priority = RT_INTERACTIVE};

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
                          ",\"path\":\"%s\",\"prompt_tokens\":%ld,\"new_tokens\":%ld,"
                          "\"rounds\":%ld,\"ttft_ms\":%.3f,\"prefill_tok_s\":%.2f,"
                          "\"decode_tok_s\":%.2f}\n",
                          rt_fingerprint(b->stack.rt), b->prompt, b->tokens, b->rounds, ttft,
                          prefill, decode);
        } else {
            cn_buf_printf(&out,
                          "%s: %ld prompt tokens, %ld new tokens, median of %ld\n"
                          "  time to first token  %9.1f ms\n"
                          "  prefill              %9.1f tok/s\n"
                          "  decode               %9.1f tok/s\n",
                          b->stack.name, b->prompt, b->tokens, b->rounds, ttft, prefill, decode);
        }
        fwrite(out.data, 1, out.len, stdout);
        cn_buf_fini(&out);
    }
    free(all);
    return rc;
}

static bool count(const char *s, long *out)
{
    char *end;
    long x = strtol(s, &end, 10);

    if (end == s || *end || x < 1 || x > 1000000) return false;
    *out = x;
    return true;
}

int cli_bench(int argc, char **argv)
{
    static const struct option options[] = {{"rounds", required_argument, NULL, 'r'},
                                            {"prompt-tokens", required_argument, NULL, 'p'},
                                            {"new-tokens", required_argument, NULL, 'n'},
                                            {"json", no_argument, NULL, 'j'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    struct cn_error err = {0};
    struct bench b = {.rounds = 5, .prompt = 512, .tokens = 128};
    int opt, status = 0, rc = cli_stack_config(&b.stack, &argc, argv, &err);

    opterr = 0;
    optind = 0;
    while (!rc && !status && (opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
        bool ok = true;
        if (opt == 'h') {
            printf("usage: conifer bench [MODEL] [--rounds N] [--prompt-tokens N] [--new-tokens N] "
                   "[--json]\n\n%s",
                   cfg_args_help());
            cli_stack_close(&b.stack);
            return 0;
        }
        if (opt == 'j')
            b.json = true;
        else if (opt == 'r')
            ok = count(optarg, &b.rounds);
        else if (opt == 'p')
            ok = count(optarg, &b.prompt);
        else if (opt == 'n')
            ok = count(optarg, &b.tokens);
        else
            ok = false;
        if (!ok) status = cli_usage(argv[0], "%s does not fit here", argv[optind - 1]);
    }
    if (!rc && !status && optind < argc) {
        char flag[] = "--model", *args[] = {argv[0], flag, argv[optind], NULL};
        int n = 3;
        if (optind + 1 < argc)
            status = cli_usage(argv[0], "one model is expected");
        else
            rc = cfg_from_args(&b.stack.cfg, &n, args, &err);
    }
    if (!status && b.tokens < 2) status = cli_usage(argv[0], "--new-tokens must be at least 2");
    if (!rc && !status) rc = cli_stack_open(&b.stack, &err);
    if (!rc && !status) {
        /* Small windows: half for the prompt, a quarter for the answer. */
        long window =
            (long)CN_MIN(eng_model_info(rt_model(b.stack.rt))->context, (uint64_t)1 << 30);
        b.prompt = CN_MAX(1, CN_MIN(b.prompt, window / 2));
        b.tokens = CN_MAX(2, CN_MIN(b.tokens, window / 4));
        rc = bench(&b, &err);
    }
    if (rc) status = cli_error(argv[0], &err);
    cli_stack_close(&b.stack);
    return status;
}
