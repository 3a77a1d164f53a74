/* conifer bench: time to first token, prefill and decode speed, and decoding of several streams and
 * after long contexts, through the same runtime that serves. Each is also given as a share of the
 * machine's peak rates, which are probed before and after every measurement. Every round has its
 * own prompts, so that nothing comes from the prefix cache; only the long contexts are computed
 * once. */
#include "cli/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    ROUNDS = 9,
    PROMPT_TOKENS = 512,
    NEW_TOKENS = 128,
    BATCH_PROMPT = 64,
    DEPTH_TOKENS = 64,
    MOST = 1 << 24,
    MOST_STREAMS = 1024,
    LONGEST_PREFILL_S = 30
};

/* ---- what to measure ------------------------------------------------------------------------- */

static int add_point(struct bench *b, enum bench_kind kind, uint32_t streams, uint64_t prompt,
                     uint64_t tokens)
{
    struct bench_point *p = &b->points[b->n_points++];
    uint64_t window = eng_model_info(rt_model(b->stack.rt))->context;

    *p = (struct bench_point){.kind = kind, .ask = {streams, prompt, tokens, NULL}};
    if (prompt + tokens > window)
        snprintf(p->why_not, sizeof p->why_not, "the window is %llu tokens",
                 (unsigned long long)window);
    if (kind != BENCH_DEPTH || p->why_not[0]) return 0;
    p->prompt = cli_bench_random_prompt(eng_model_vocab(rt_model(b->stack.rt)), (size_t)prompt);
    p->ask.prompt = p->prompt;
    return p->prompt ? 0 : CN_ENOMEM;
}

/* Cuts the default depths to the window. */
static void fit_depths(struct bench *b)
{
    uint64_t window = eng_model_info(rt_model(b->stack.rt))->context;
    uint64_t tokens = CN_MIN(b->tokens, DEPTH_TOKENS), room = window > tokens ? window - tokens : 0;

    for (size_t i = 0; !b->depths_given && i < b->n_depths; i++) {
        if (b->depths[i] <= room) continue;
        bool more = room > (i ? b->depths[i - 1] : b->prompt);
        if (more) b->depths[i] = room;
        b->n_depths = i + more;
    }
}

static int make_points(struct bench *b, struct cn_error *err)
{
    int rc = 0;

    fit_depths(b);
    b->points = cn_calloc(1 + b->n_batches + b->n_depths, sizeof *b->points);
    if (!b->points) return cn_fail(err, CN_ENOMEM, "out of memory");
    rc = add_point(b, BENCH_ONE, 1, b->prompt, b->tokens);
    for (size_t i = 0; !rc && i < b->n_batches; i++)
        rc = add_point(b, BENCH_BATCH, (uint32_t)b->batches[i], CN_MIN(b->prompt, BATCH_PROMPT),
                       b->tokens);
    for (size_t i = 0; !rc && i < b->n_depths; i++)
        rc = add_point(b, BENCH_DEPTH, 1, b->depths[i], CN_MIN(b->tokens, DEPTH_TOKENS));
    return rc ? cn_fail(err, rc, "out of memory") : 0;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

/* On a terminal: shows the current stage in one line that is rewritten. */
static void show_progress(const struct bench *b, const char *stage, const struct bench_point *p)
{
    char name[BENCH_NAME];

    if (!b->tty) return;
    cli_bench_name(p, name);
    fprintf(stderr, "\r%s: %s\033[K", stage, name);
    fflush(stderr);
}

static void end_progress(const struct bench *b)
{
    if (b->tty) fputs("\r\033[K", stderr);
}

/* Runs each point once, so that caches and memory are warm; points that cannot run are left out.
 * The first point's speed decides how much is measured, so that a slow model does not take
 * hours. */
static int warm_up(struct bench *b, struct cn_error *err)
{
    struct bench_times t, one = {0};

    for (size_t i = 0; i < b->n_points; i++) {
        struct bench_point *p = &b->points[i];
        struct cn_error why = {0};
        double rate = one.ttft_s > 0 ? (double)b->prompt / one.ttft_s : 0;
        if (p->why_not[0]) continue;
        if (p->kind == BENCH_DEPTH && !b->depths_given &&
            (double)p->ask.n_prompt > rate * LONGEST_PREFILL_S) {
            snprintf(p->why_not, sizeof p->why_not,
                     "its prefill would take over %d s (--depth asks for it)", LONGEST_PREFILL_S);
            continue;
        }
        show_progress(b, "first run", p);
        int rc = cli_bench_streams(&b->stack, &p->ask, &t, &why);
        if (rc && i == 0) return cn_fail(err, rc, "%s", why.message);
        if (rc) snprintf(p->why_not, sizeof p->why_not, "%s", why.message);
        if (i) continue;
        one = t;
        if (b->tokens_given) continue;
        b->tokens = (uint64_t)CN_MIN((double)b->tokens, CN_MAX(16, one.decode_tok_s * 1.5));
        for (size_t k = 0; k < b->n_points; k++)
            b->points[k].ask.tokens = CN_MIN(b->points[k].ask.tokens, b->tokens);
    }
    return 0;
}

static int keep(struct bench_point *p, const struct bench_times *t, bool steady)
{
    int rc = cli_bench_series_add(&p->decode, t->decode_tok_s, steady);
    if (!rc && p->kind == BENCH_ONE)
        rc = cli_bench_series_add(&p->ttft_ms, t->ttft_s * 1000, steady);
    if (!rc && p->kind == BENCH_ONE)
        rc = cli_bench_series_add(&p->prefill, (double)p->ask.n_prompt / t->ttft_s, steady);
    return rc;
}

static int keep_machine(struct bench *b, const struct bench_machine *m)
{
    int rc = cli_bench_series_add(&b->read, m->probe.read_bytes_s, true);
    if (!rc) rc = cli_bench_series_add(&b->int8, m->probe.int8_ops_s, true);
    if (!rc) rc = cli_bench_series_add(&b->fma, m->probe.fma_flops_s, true);
    if (!rc && m->again_bytes_s > 0) rc = cli_bench_series_add(&b->again, m->again_bytes_s, true);
    return rc;
}

/* Measures all points, forwards and backwards in turn, each between two probes. */
static int run_rounds(struct bench *b, struct cn_error *err)
{
    const struct kr_exec_info *x = eng_model_info(rt_model(b->stack.rt))->exec;
    uint64_t weights = x->row_macs ? x->weight_bytes : 0; /* the null model reads none */
    uint64_t room = cli_bench_probe_room();
    struct bench_machine before, after;
    int rc = cli_bench_probe_now(b->device, room, weights, &before, err);

    for (uint64_t r = 0; !rc && r < b->rounds; r++)
        for (size_t i = 0; !rc && i < b->n_points; i++) {
            struct bench_point *p = &b->points[r % 2 ? b->n_points - 1 - i : i];
            struct bench_times t;
            char stage[64];
            if (p->why_not[0]) continue;
            snprintf(stage, sizeof stage, "round %llu of %llu", (unsigned long long)r + 1,
                     (unsigned long long)b->rounds);
            show_progress(b, stage, p);
            rc = cli_bench_streams(&b->stack, &p->ask, &t, err);
            if (!rc && !t.together) { /* too fast: they never ran together, so there is no figure */
                p->decode.missed++;
                continue;
            }
            if (!rc) rc = cli_bench_probe_now(b->device, room, weights, &after, err);
            if (rc) break;
            rc = keep(p, &t, cli_bench_same_machine(&before, &after));
            if (!rc) rc = keep_machine(b, &after);
            if (rc) cn_fail(err, rc, "out of memory");
            before = after;
        }
    for (size_t i = 0; !rc && i < b->n_points; i++) {
        struct bench_point *p = &b->points[i];
        if (!p->decode.n && !p->why_not[0])
            snprintf(p->why_not, sizeof p->why_not, "%u streams were never all at work at once",
                     p->ask.streams);
    }
    return rc;
}

static int bench(struct bench *b, struct cn_error *err)
{
    struct cn_buf out;
    int rc = rt_device_new(&b->stack.cfg, &b->device, err);

    b->tty = isatty(STDERR_FILENO);
    if (!rc) rc = make_points(b, err);
    struct bench_busy *busy = NULL;
    if (!rc && b->busy) rc = cli_bench_busy_start((uint32_t)b->busy, &busy, err);
    if (!rc) rc = warm_up(b, err);
    if (!rc) rc = run_rounds(b, err);
    end_progress(b);
    cli_bench_busy_stop(busy);
    if (rc) return rc;
    cn_buf_init(&out, 0);
    if (b->json)
        cli_bench_put_json(b, &out);
    else
        cli_bench_put_table(b, &out);
    if (out.failed)
        rc = cn_fail(err, CN_ENOMEM, "out of memory");
    else
        fwrite(out.data, 1, out.len, stdout);
    cn_buf_fini(&out);
    return rc;
}

static void bench_fini(struct bench *b)
{
    for (size_t i = 0; i < b->n_points; i++) {
        free(b->points[i].prompt);
        cli_bench_series_fini(&b->points[i].ttft_ms);
        cli_bench_series_fini(&b->points[i].prefill);
        cli_bench_series_fini(&b->points[i].decode);
    }
    free(b->points);
    cli_bench_series_fini(&b->read);
    cli_bench_series_fini(&b->again);
    cli_bench_series_fini(&b->int8);
    cli_bench_series_fini(&b->fma);
    kr_device_free(b->device);
    cli_stack_close(&b->stack);
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Lengths given by the user must fit the window; defaults are made smaller for a small window, with
 * a message. */
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
    printf(
        "usage: conifer bench [options] [MODEL.gguf|NAME]\n\n"
        "Time to first token, prefill and decode speed; decode of several streams at once and\n"
        "after long contexts; and each as a share of the machine's limits. Speculation is off,\n"
        "because random prompts would flatter it; prompts are read without pacing\n"
        "(engine.step_stretch 0, step_target_ms at its maximum).\n\n"
        "  --rounds N             so many, of which medians and spread are shown (%d)\n"
        "  --prompt-tokens N      (%d)\n"
        "  --new-tokens N         (%d, fewer for slow models)\n"
        "  --batch LIST           streams at once; 0 for none (1,2,4,8,16)\n"
        "  --depth LIST           decode after so many tokens; 0 for none (1k,8k,32k, within the\n"
        "                         window and where prefill takes under %d s)\n"
        "  --busy N               with so many processors kept busy by others (0)\n"
        "  --probe                only what the machine reaches: reads, 8-bit and float products\n"
        "  --ladder               what each classic step brings: cache, vector registers, "
        "threads,\n"
        "                         8-bit weights, many streams\n"
        "  --json                 one JSON object instead of text\n%s",
        ROUNDS, PROMPT_TOKENS, NEW_TOKENS, LONGEST_PREFILL_S, cli_model_help());
}

/* Reads one number of a list, with an optional k after it. Returns 0, or 2 after naming the option
 * and the number. */
static int read_item(const char *name, const char *option, const char *word, uint64_t high,
                     uint64_t *out)
{
    size_t digits = strspn(word, "0123456789");
    bool kilo = digits && (word[digits] == 'k' || word[digits] == 'K') && !word[digits + 1];
    uint64_t x;

    if (!kilo && (!digits || word[digits])) return cli_count(name, option, word, 1, high, out);
    if (cn_parse_u64(word, digits, &x) && x == 0)
        return cli_usage(name,
                         "--%s %s: numbers in a list must be from 1 to %llu; 0 alone means none",
                         option, word, (unsigned long long)high);
    if (!cn_parse_u64(word, digits, &x) || x > high / (kilo ? 1024 : 1))
        return cli_usage(name, "--%s %s: must be from 1 to %llu", option, word,
                         (unsigned long long)high);
    *out = kilo ? x * 1024 : x;
    return 0;
}

/* Reads a list like "1,2,8k"; "0" alone means none. Returns 0, or 2 after naming the option. */
static int read_list(const char *name, const char *option, char *text, uint64_t high, uint64_t *out,
                     size_t max, size_t *n)
{
    char *rest = NULL;

    *n = 0;
    if (!strcmp(text, "0")) return 0;
    size_t end = strlen(text);
    if (end && (*text == ',' || text[end - 1] == ',' || strstr(text, ",,")))
        return cli_usage(name, "--%s %s: a number is missing beside a comma", option, text);
    for (char *word = strtok_r(text, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        if (*n == max) return cli_usage(name, "--%s: at most %zu numbers", option, max);
        int bad = read_item(name, option, word, high, &out[*n]);
        if (bad) return bad;
        ++*n;
    }
    return *n ? 0 : cli_usage(name, "--%s: numbers are expected", option);
}

static void defaults(struct bench *b)
{
    static const uint64_t batches[] = {1, 2, 4, 8, 16}, depths[] = {1024, 8192, 32768};

    *b = (struct bench){.rounds = ROUNDS,
                        .prompt = PROMPT_TOKENS,
                        .tokens = NEW_TOKENS,
                        .n_batches = CN_ARRAY_LEN(batches),
                        .n_depths = CN_ARRAY_LEN(depths)};
    memcpy(b->batches, batches, sizeof batches);
    memcpy(b->depths, depths, sizeof depths);
}

/* 0, or an exit code + 1. */
static int read_options(struct bench *b, int argc, char **argv)
{
    static const struct option options[] = {{"rounds", required_argument, NULL, 'r'},
                                            {"prompt-tokens", required_argument, NULL, 'p'},
                                            {"new-tokens", required_argument, NULL, 'n'},
                                            {"batch", required_argument, NULL, 'b'},
                                            {"depth", required_argument, NULL, 'd'},
                                            {"busy", required_argument, NULL, 'B'},
                                            {"probe", no_argument, NULL, 'P'},
                                            {"ladder", no_argument, NULL, 'L'},
                                            {"json", no_argument, NULL, 'j'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, CLI_AND_CONFIG}};
    int opt, end = 0, bad = 0;

    optind = 0;
    while (!bad && (opt = cli_option_or_end(argv[0], argc, argv, options, help, &end)) != -1) {
        if (opt == 'j') b->json = true;
        if (opt == 'P') b->probe = true;
        if (opt == 'L') b->ladder = true;
        if (opt == 'r') bad = cli_count(argv[0], "rounds", optarg, 1, 1000000, &b->rounds);
        if (opt == 'p') {
            bad = cli_count(argv[0], "prompt-tokens", optarg, 1, MOST, &b->prompt);
            b->prompt_given = true;
        }
        if (opt == 'n') {
            bad = cli_count(argv[0], "new-tokens", optarg, 2, MOST, &b->tokens);
            b->tokens_given = true;
        }
        if (opt == 'B') bad = cli_count(argv[0], "busy", optarg, 0, MOST_STREAMS, &b->busy);
        if (opt == 'b')
            bad = read_list(argv[0], "batch", optarg, MOST_STREAMS, b->batches,
                            CN_ARRAY_LEN(b->batches), &b->n_batches);
        if (opt == 'd') {
            bad = read_list(argv[0], "depth", optarg, MOST, b->depths, CN_ARRAY_LEN(b->depths),
                            &b->n_depths);
            b->depths_given = true;
        }
    }
    if (end) return end;
    if (!bad && argc - optind + b->stack.model_given > 1)
        bad = cli_usage(argv[0], "one model is expected, and %s is one more", argv[argc - 1]);
    if (!bad && b->probe && b->ladder)
        bad = cli_usage(argv[0], "--probe and --ladder do not go together");
    return bad ? bad + 1 : 0;
}

/* One tenant gets at most seven of eight slots: with fewer, not all streams would run at once. */
static void make_room(struct bench *b)
{
    uint64_t most = 0;

    for (size_t i = 0; i < b->n_batches; i++)
        most = CN_MAX(most, b->batches[i]);
    most += most / 7 + 1;
    if (b->stack.cfg.scheduler.max_running >= (int64_t)most) return;
    b->stack.cfg.scheduler.max_running = (int64_t)most;
    fprintf(stderr, "scheduler.max_running is %llu here, for --batch\n", (unsigned long long)most);
}

/* Streams are timed from the last one's start to the first one's end. So prompts are read in whole
 * steps: the batch then decodes together for longer. Speculation is off: answers to random prompts
 * repeat themselves, and drafts of them would flatter. */
static void decode_alone(struct cfg *cfg)
{
    cfg->scheduler.speculation = CFG_SPECULATION_OFF;
    cfg->engine.step_stretch = 0;
    cfg->engine.step_target_ms = 60000;
}

int cli_bench(int argc, char **argv)
{
    struct cn_error err = {0};
    struct bench b;
    int status = 0, early = 0, rc;

    defaults(&b);
    rc = cli_stack_config(&b.stack, &argc, argv, &err);
    decode_alone(&b.stack.cfg);
    if (!rc) early = read_options(&b, argc, argv);
    if (early) {
        bench_fini(&b);
        return early - 1;
    }
    if (!rc && b.probe) {
        rc = cli_bench_probe(&b.stack.cfg, b.json, &err);
    } else if (!rc && b.ladder) {
        rc = cli_one_model(&b.stack, argc, argv, &status, &err);
        if (!rc && !status)
            rc = cli_bench_ladder(&b.stack.cfg, b.stack.path, b.stack.name, b.json, &err);
    } else {
        const struct cfg *cfg = &b.stack.cfg;
        bool named = optind < argc || cfg->model.path || cfg->model.name || cfg->n_models;
        make_room(&b);
        if (!rc && optind < argc) rc = cli_use_model(&b.stack.cfg, argv[optind], &err);
        if (!rc) rc = cli_stack_find(&b.stack, &err);
        if (!rc && !named)
            fprintf(stderr, "%s: no model is named; measuring the default, %s\n", argv[0],
                    b.stack.name);
        if (!rc) rc = cli_stack_open(&b.stack, &err);
        if (!rc) status = fit(&b, argv[0]);
        if (!rc && !status) rc = bench(&b, &err);
    }
    if (rc) status = cli_error(argv[0], &err);
    bench_fini(&b);
    return status;
}
