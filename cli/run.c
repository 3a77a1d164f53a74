/* conifer run: the whole stack in this process. Chat with history in a terminal, or one answer to
 * an argument or to standard input. Main thread; Ctrl-C stops the answer, at the prompt it ends the
 * chat. */
#include "cli/cli.h"

#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct run {
    struct cli_stack stack;
    struct eng_sampling sampling;
    uint64_t max_tokens;
    bool seeded, colour;
    json_t *messages;
    struct cn_buf answer; /* the one being written */
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signum)
{
    interrupted = 1;
}

static void catch_interrupts(void)
{
    struct sigaction sa = {.sa_handler = on_interrupt}; /* no SA_RESTART: reading a line ends too */

    sigaction(SIGINT, &sa, NULL);
}

/* ---- one answer
 * ---------------------------------------------------------------------------------- */

static void on_text(void *arg, const char *text, size_t n)
{
    struct run *r = arg;

    cn_buf_append(&r->answer, text, n);
    fwrite(text, 1, n, stdout);
    fflush(stdout);
}

static bool stopped(void *arg)
{
    return interrupted;
}

static struct eng_str token_text(const struct eng_vocab *v, int64_t id)
{
    return id >= 0 ? eng_vocab_text(v, (uint32_t)id) : (struct eng_str){"", 0};
}

/* The conversation as ids: through the template, or, for a model without one, its last text alone.
 */
static int make_prompt(struct run *r, struct eng_ids *ids, struct cn_error *err)
{
    const struct eng_model *m = rt_model(r->stack.rt);
    const struct eng_vocab *v = eng_model_vocab(m);
    const struct eng_template *t = eng_model_template(m);
    struct eng_rendered text = {0};

    if (!t) {
        const json_t *last = json_array_get(r->messages, json_array_size(r->messages) - 1);
        const json_t *content = json_object_get(last, "content");
        return eng_tokenize(v, json_string_value(content), json_string_length(content), NULL, 0,
                            ENG_TOKENIZE_SPECIAL, ids, err);
    }
    struct eng_template_in in = {.messages = r->messages,
                                 .add_generation_prompt = true,
                                 .bos_token = token_text(v, eng_vocab_bos(v)),
                                 .eos_token = token_text(v, eng_vocab_eos(v)),
                                 .now_s = cn_wall_s()};
    int rc = eng_template_render(t, &in, &text, err);
    if (rc) return rc;
    rc = eng_tokenize(v, text.text.data, text.text.len, text.spans, text.n_spans,
                      ENG_TOKENIZE_PARSE, ids, err);
    eng_rendered_fini(&text);
    return rc;
}

static int add_message(struct run *r, const char *role, const char *text, size_t n)
{
    json_t *m = json_pack("{s:s, s:o}", "role", role, "content", json_stringn(text, n));
    return m && json_array_append_new(r->messages, m) == 0 ? 0 : CN_ENOMEM;
}

/* Answers the conversation as it stands, and adds the answer to it. */
static int answer(struct run *r, struct cn_error *err)
{
    struct cli_sink sink = {.arg = r, .on_text = on_text, .stopped = stopped};
    struct cli_result result;
    struct eng_ids ids = {0};
    struct rt_request q = {
        .n = 1, .max_tokens = r->max_tokens, .sampling = r->sampling, .priority = RT_INTERACTIVE};
    int rc = make_prompt(r, &ids, err);

    if (rc) {
        eng_ids_fini(&ids);
        return rc;
    }
    q.prompt = ids.v;
    q.n_prompt = ids.n;
    if (!r->seeded) cn_random(&q.sampling.seed, sizeof q.sampling.seed);
    cn_buf_reset(&r->answer);
    interrupted = 0;
    cli_stack_ask(&r->stack, &q, &sink, &result);
    if (r->answer.len && r->answer.data[r->answer.len - 1] != '\n') putchar('\n');
    fflush(stdout);
    if (result.code == CN_ECANCELLED)
        fprintf(stderr, "(stopped)\n");
    else if (result.code)
        return cn_fail(err, result.code, "%s", result.message);
    else if (result.finish == RT_FINISH_LENGTH)
        fprintf(stderr, "(cut off: the limit is reached)\n");
    return add_message(r, "assistant", r->answer.data ? r->answer.data : "", r->answer.len);
}

/* ---- a chat
 * -------------------------------------------------------------------------------------- */

static void forget_last(struct run *r)
{
    json_array_remove(r->messages, json_array_size(r->messages) - 1);
}

static int chat(struct run *r)
{
    const char *bold = r->colour ? "\033[1m" : "", *plain = r->colour ? "\033[0m" : "";
    char *line = NULL;
    size_t cap = 0;

    fprintf(stderr, "%s. Ctrl-C stops an answer; Ctrl-D or /bye ends, /new starts afresh.\n",
            r->stack.name);
    size_t keep = json_array_size(r->messages);
    for (;;) {
        struct cn_error err = {0};
        printf("%s>>>%s ", bold, plain);
        fflush(stdout);
        interrupted = 0;
        ssize_t n = getline(&line, &cap, stdin);
        if (n < 0) break; /* the end of input, or Ctrl-C */
        while (n && (line[n - 1] == '\n' || line[n - 1] == '\r'))
            line[--n] = 0;
        if (!n) continue;
        if (!strcmp(line, "/bye") || !strcmp(line, "/exit")) break;
        if (!strcmp(line, "/new")) {
            while (json_array_size(r->messages) > keep)
                forget_last(r);
            continue;
        }
        n = (ssize_t)cn_utf8_valid_len(line, (size_t)n);
        if (add_message(r, "user", line, (size_t)n)) break;
        if (answer(r, &err)) {
            cli_error("conifer run", &err);
            forget_last(r);
        }
    }
    putchar('\n');
    free(line);
    return 0;
}

static int read_input(struct cn_buf *b)
{
    char part[65536];
    ssize_t n;

    while ((n = read(STDIN_FILENO, part, sizeof part)) > 0 ||
           (n < 0 && errno == EINTR && !interrupted))
        if (n > 0 && cn_buf_append(b, part, (size_t)n)) return CN_ENOMEM;
    while (b->len && b->data[b->len - 1] == '\n')
        b->len--;
    return n < 0 ? CN_EIO : 0;
}

static int one_shot(struct run *r, int n, char **words, struct cn_error *err)
{
    struct cn_buf text;
    int rc = 0;

    cn_buf_init(&text, 64u << 20);
    for (int i = 0; i < n; i++)
        cn_buf_printf(&text, i ? " %s" : "%s", words[i]);
    if (!n && (rc = read_input(&text))) cn_fail(err, rc, "standard input cannot be read");
    if (!rc && !text.len) rc = cn_fail(err, CN_EINVAL, "there is no prompt");
    if (!rc && cn_utf8_valid_len(text.data, text.len) != text.len)
        rc = cn_fail(err, CN_EINVAL, "the prompt is not valid UTF-8");
    if (!rc && (rc = add_message(r, "user", text.data, text.len)))
        cn_fail(err, rc, "out of memory");
    if (!rc) rc = answer(r, err);
    cn_buf_fini(&text);
    return rc;
}

/* ---- options
 * ------------------------------------------------------------------------------------- */

static const struct option options[] = {
    {"system", required_argument, NULL, 's'},
    {"temperature", required_argument, NULL, 't'},
    {"top-p", required_argument, NULL, 'p'},
    {"top-k", required_argument, NULL, 'k'},
    {"max-tokens", required_argument, NULL, 'm'},
    {"seed", required_argument, NULL, 'd'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static void help(void)
{
    printf(
        "usage: conifer run [options] [PROMPT]\n\n"
        "Chats in the terminal; with a PROMPT, or one on standard input, answers it and ends.\n\n"
        "  --system TEXT          system message\n"
        "  --temperature T        0 takes the likeliest token (0.2)\n"
        "  --top-p P  --top-k K   (1, off)\n"
        "  --max-tokens N         longest answer (up to the window)\n"
        "  --seed N               the same seed gives the same answer\n%s",
        cfg_args_help());
}

static bool number(const char *s, double *out)
{
    char *end;
    *out = strtod(s, &end);
    return end != s && !*end;
}

/* 0, or an exit code + 1. */
static int read_options(struct run *r, int argc, char **argv)
{
    int opt;
    double x;

    opterr = 0;
    optind = 0;
    while ((opt = getopt_long(argc, argv, "+", options, NULL)) != -1) {
        if (opt == 'h') {
            help();
            return 1;
        }
        if (opt == '?') return cli_usage(argv[0], "unknown option %s", argv[optind - 1]) + 1;
        if (opt == 's') {
            size_t n = strlen(optarg);
            if (cn_utf8_valid_len(optarg, n) != n || add_message(r, "system", optarg, n))
                return cli_usage(argv[0], "the system message is not valid UTF-8") + 1;
            continue;
        }
        if (!number(optarg, &x) || (opt != 't' && x < 0))
            return cli_usage(argv[0], "%s is not a number that fits here", optarg) + 1;
        if (opt == 't') r->sampling.temperature = (float)x;
        if (opt == 'p') r->sampling.top_p = (float)x;
        if (opt == 'k') r->sampling.top_k = (uint32_t)CN_MIN(x, 2147483647.0);
        if (opt == 'm') r->max_tokens = (uint64_t)CN_MIN(x, 1e12);
        if (opt == 'd') {
            r->sampling.seed = strtoull(optarg, NULL, 10);
            r->seeded = true;
        }
    }
    return 0;
}

int cli_run(int argc, char **argv)
{
    struct cn_error err = {0};
    struct run r = {0};
    int rc = cli_stack_config(&r.stack, &argc, argv, &err), status = 0;

    eng_sampling_defaults(&r.sampling);
    /* For a person at a terminal: small models ramble at 1, the API's default. */
    r.sampling.temperature = 0.2f;
    cn_buf_init(&r.answer, 0);
    r.messages = json_array();
    if (!r.messages && !rc) rc = cn_fail(&err, CN_ENOMEM, "out of memory");
    if (rc) {
        cli_error(argv[0], &err);
        status = 2;
    } else {
        int early = read_options(&r, argc, argv);
        if (early) {
            status = early - 1;
            goto out;
        }
    }
    if (!rc && (rc = cli_stack_open(&r.stack, &err))) status = cli_error(argv[0], &err);
    if (!rc && (rc = eng_sampling_check(&r.sampling, eng_model_vocab(rt_model(r.stack.rt)), &err)))
        status = cli_error(argv[0], &err) + 1;
    if (rc) goto out;
    catch_interrupts();
    r.colour = isatty(STDOUT_FILENO) && !getenv("NO_COLOR");
    bool talk = optind == argc && isatty(STDIN_FILENO);
    rc = talk ? chat(&r) : one_shot(&r, argc - optind, argv + optind, &err);
    if (rc)
        status = cli_error(argv[0], &err);
    else if (!talk && interrupted)
        status = 130;
out:
    json_decref(r.messages);
    cn_buf_fini(&r.answer);
    cli_stack_close(&r.stack);
    return status;
}
