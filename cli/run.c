/* conifer run: the whole stack in this process. A chat in a terminal (chat.c), or one answer to an
 * argument, to standard input, or to both. Main thread; Ctrl-C stops the answer. */
#include "cli/run.h"

#include "cli/pull.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LONGEST_ANSWER = 2048, STDIN_WAIT_MS = 2000 };

volatile sig_atomic_t cli_interrupted;

static void on_interrupt(int signum)
{
    cli_interrupted = 1;
}

static void catch_interrupts(void)
{
    struct sigaction sa = {.sa_handler = on_interrupt}; /* no SA_RESTART: reading a line ends too */

    sigaction(SIGINT, &sa, NULL);
}

/* ---- one question ---------------------------------------------------------------------------- */

static int read_input(struct cn_buf *b)
{
    char part[65536];
    ssize_t n;

    while ((n = read(STDIN_FILENO, part, sizeof part)) > 0 ||
           (n < 0 && errno == EINTR && !cli_interrupted))
        if (n > 0 && cn_buf_append(b, part, (size_t)n)) return CN_ENOMEM;
    while (b->len && b->data[b->len - 1] == '\n')
        b->len--;
    return n < 0 ? CN_EIO : 0;
}

/* With an argument, a standard input that says nothing is more likely forgotten than meant. */
static void wait_input(void)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};

    if (poll(&p, 1, STDIN_WAIT_MS) == 0)
        fprintf(stderr, "(waiting for the end of standard input, which is added to the prompt; "
                        "</dev/null gives it none)\n");
}

/* The argument, an empty line, standard input: what there is of it. */
static int one_shot(struct cli_run *r, const char *prompt, struct cn_error *err)
{
    struct cn_buf text, input;
    int rc = 0;

    cn_buf_init(&text, 64u << 20);
    cn_buf_init(&input, 64u << 20);
    if (prompt) cn_buf_puts(&text, prompt);
    rc = cli_check_utf8("the prompt", &text, err);
    if (!rc && !isatty(STDIN_FILENO)) {
        if (prompt) wait_input();
        if ((rc = read_input(&input)))
            cn_fail(err, rc,
                    rc == CN_ENOMEM ? "standard input is longer than 64 MiB"
                                    : "standard input cannot be read");
        if (!rc) rc = cli_check_utf8("standard input", &input, err);
        if (text.len && input.len) cn_buf_puts(&text, "\n\n");
        if (input.len) cn_buf_append(&text, input.data, input.len);
        if (!rc && text.failed) rc = cn_fail(err, CN_EINVAL, "the prompt is longer than 64 MiB");
    }
    if (!rc && !text.len) rc = cn_fail(err, CN_EINVAL, "there is no prompt");
    if (!rc && (rc = cli_run_add(r, "user", text.data, text.len)))
        cn_fail(err, rc, "out of memory");
    if (!rc) rc = cli_run_answer(r, err);
    cn_buf_fini(&text);
    cn_buf_fini(&input);
    return rc;
}

/* ---- options --------------------------------------------------------------------------------- */

static const struct option options[] = {
    {"system", required_argument, NULL, CLI_SHORT | 's'},
    {"temperature", required_argument, NULL, CLI_SHORT | 't'},
    {"top-p", required_argument, NULL, 'p'},
    {"top-k", required_argument, NULL, 'k'},
    {"schema", required_argument, NULL, 'S'},
    {"tools", required_argument, NULL, 'T'},
    {"think", no_argument, NULL, 'y'},
    {"no-think", no_argument, NULL, 'n'},
    {"max-tokens", required_argument, NULL, 'm'},
    {"seed", required_argument, NULL, 'd'},
    {"quiet", no_argument, NULL, 'q'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, CLI_AND_CONFIG},
};

static void help(void)
{
    printf("usage: conifer run [options] [MODEL] [PROMPT]\n\n"
           "Chats in the terminal; with a PROMPT answers it and ends. Standard input that is no\n"
           "terminal is the prompt, or is added to it.\n\n"
           "  -s, --system TEXT      system message\n"
           "  -t, --temperature T    0 to 2; 0 takes the likeliest token\n"
           "  --top-p P              the likeliest tokens of this much probability\n"
           "  --top-k K              the K likeliest tokens; 0: all. Without these three: as\n"
           "                         the model's defaults are (conifer show)\n"
           "  --schema FILE          the answer is JSON that satisfies this JSON Schema. With\n"
           "                         --tools a call may come instead\n"
           "  --tools FILE           what the model may call: the JSON array `tools` of a chat\n"
           "                         request. Calls are shown, and not run: name(arguments), or\n"
           "                         where the output is no terminal, a line of JSON each:\n"
           "                         {\"name\": .., \"arguments\": {..}}\n"
           "  --think, --no-think    reasoning on or off, where the model's template has a switch\n"
           "                         (as the template does it without). Reasoning is shown in a\n"
           "                         terminal alone\n"
           "  --max-tokens N         longest answer (%d); 0: up to the window. A chat cuts it to\n"
           "                         what the window has left; a single answer is refused if an\n"
           "                         N given here does not fit\n"
           "  --seed N               the same seed gives the same answer (random)\n"
           "  --quiet                no greeting, and no line of speeds after an answer\n%s\n"
           "What is typed is kept in ~/.local/state/conifer/history, or in $CONIFER_HISTORY;\n"
           "nowhere when that is empty.\n",
           LONGEST_ANSWER, cli_model_help());
}

static void ask(struct cli_run *r, enum cfg_sampling_field f, double v)
{
    r->asked.v[f] = v;
    r->asked.given |= 1u << f;
}

/* One option with a number: 0, or an exit code. */
static int take_number(struct cli_run *r, const char *name, int opt)
{
    uint64_t n = 0;
    double x = 0;
    int bad = 0;

    switch (opt) {
    case 't':
        bad = cli_number(name, "temperature", optarg, 0, 2, &x);
        ask(r, CFG_S_TEMPERATURE, x);
        break;
    case 'p':
        bad = cli_number(name, "top-p", optarg, 0, 1, &x);
        if (!bad && x <= 0)
            bad = cli_usage(name, "--top-p %s: must be above 0 and at most 1", optarg);
        ask(r, CFG_S_TOP_P, x);
        break;
    case 'k':
        bad = cli_count(name, "top-k", optarg, 0, INT32_MAX, &n);
        ask(r, CFG_S_TOP_K, (double)n);
        break;
    case 'm':
        bad = cli_count(name, "max-tokens", optarg, 0, INT64_MAX, &r->max_tokens);
        r->max_given = r->max_tokens != 0;
        break;
    case 'd':
        bad = cli_count(name, "seed", optarg, 0, UINT64_MAX - 1, &r->seed);
        r->seeded = true;
        break;
    }
    return bad;
}

/* A file that an option names: 0, or an exit code. */
static int take_file(struct cli_run *r, const char *name, int opt)
{
    struct cn_error err = {0};
    int rc = opt == 'S' ? cli_form_schema(&r->form, optarg, &err)
                        : cli_form_tools(&r->form, optarg, &err);

    return rc ? cli_error(name, &err) : 0;
}

/* 0, or an exit code + 1. */
static int read_options(struct cli_run *r, int argc, char **argv)
{
    int opt, end, bad;

    optind = 0;
    while ((opt = cli_option_or_end(argv[0], argc, argv, options, help, &end)) != -1) {
        if (opt == 'q') {
            r->quiet = true;
        } else if (opt == 'y' || opt == 'n') {
            r->form.think = opt == 'y' ? CLI_THINK_ON : CLI_THINK_OFF;
        } else if (opt == 'S' || opt == 'T') {
            if ((bad = take_file(r, argv[0], opt))) return bad + 1;
        } else if (opt == 's') {
            size_t n = strlen(optarg);
            if (cn_utf8_valid_len(optarg, n) != n || cli_run_add(r, "system", optarg, n))
                return cli_usage(argv[0], "the system message is not valid UTF-8") + 1;
        } else if ((bad = take_number(r, argv[0], opt))) {
            return bad + 1;
        }
    }
    return end;
}

/* Whether the word is a model's name: of the config's list, or as --model takes it. */
static bool is_model(const struct cli_run *r, const char *word)
{
    const struct cfg *cfg = &r->stack.cfg;
    for (size_t i = 0; i < cfg->n_models; i++)
        if (!strcmp(cfg->models[i].name, word)) return true;
    return cli_names_model(word);
}

static bool ends_in_gguf(const char *s)
{
    size_t n = strlen(s);
    return n > 5 && !strcmp(s + n - 5, ".gguf");
}

static int no_file(const char *name, const char *word)
{
    return cli_usage(name, "there is no file %s", word) + 1;
}

/* A prompt of one word that is nearly a model's name, digit and all, is hardly meant as a prompt.
 * 0, or an exit code + 1. */
static int mistyped(const struct cli_run *r, const char *name, const char *word)
{
    struct cn_buf near;
    int status = 0;

    if (ends_in_gguf(word) && !strpbrk(word, " \t\n")) return no_file(name, word);
    cn_buf_init(&near, 0);
    if (cfg_model_name_ok(word) && strpbrk(word, "0123456789"))
        cli_suggest(&r->stack.cfg, word, true, &near);
    if (near.len)
        status =
            cli_usage(name, "\"%s\" is no model; did you mean %s? As a prompt it goes behind --",
                      word, cn_buf_cstr(&near)) +
            1;
    cn_buf_fini(&near);
    return status;
}

/* Two words, and the first is no model. */
static int no_model(const struct cli_run *r, const char *name, const char *word)
{
    struct cn_buf here, near;

    if (ends_in_gguf(word) || word[0] == '.' || word[0] == '/') return no_file(name, word);
    cn_buf_init(&here, 0);
    cn_buf_init(&near, 0);
    cli_put_here(&r->stack.cfg, &here);
    cli_suggest(&r->stack.cfg, word, true, &near);
    const char *meant = near.len ? cn_buf_cstr(&near) : NULL;
    int status =
        cli_usage(name,
                  "\"%s\" is no model that is here%s%s%s Installed: %s. conifer list shows what "
                  "can be pulled; a prompt of several words takes quotes",
                  word, meant ? "; did you mean " : ".", meant ? meant : "", meant ? "?" : "",
                  here.len ? cn_buf_cstr(&here) : "none");
    cn_buf_fini(&here);
    cn_buf_fini(&near);
    return status + 1;
}

/* [MODEL] [PROMPT]: one word is the prompt unless it names a model, and always behind "--".
 * 0, or an exit code + 1. */
static int read_words(struct cli_run *r, int argc, char **argv, char **prompt)
{
    int n = argc - optind;
    char **words = argv + optind;
    bool literal = optind > 1 && !strcmp(argv[optind - 1], "--");
    struct cn_error err = {0};

    *prompt = n ? words[n - 1] : NULL;
    if (n > 2 || (n == 2 && r->stack.model_given))
        return cli_usage(argv[0], "the prompt must be one argument: put it in quotes") + 1;
    if (n == 2 && !is_model(r, words[0])) return no_model(r, argv[0], words[0]);
    if (n == 0 || (n == 1 && (literal || r->stack.model_given))) return 0;
    if (n == 1 && !is_model(r, words[0])) return mistyped(r, argv[0], words[0]);
    if (n == 1) *prompt = NULL;
    return cli_use_model(&r->stack.cfg, words[0], &err) ? cli_error(argv[0], &err) + 1 : 0;
}

static int run(struct cli_run *r, const char *name, const char *prompt)
{
    struct cn_error err = {0};
    int rc = cli_run_open(r, &err);

    if (rc == CN_ECANCELLED) return 130;
    if (rc) return cli_error(name, &err);
    catch_interrupts();
    r->tty = isatty(STDOUT_FILENO);
    const char *term = getenv("TERM");
    r->colour = r->tty && !getenv("NO_COLOR") && term && *term && strcmp(term, "dumb") != 0;
    r->wraps = true;
    r->stats = !r->quiet;
    if (r->tty) cli_set_locale();
    cli_run_say_kind(r);
    if (cli_form_ready(r, &err)) return cli_error(name, &err);
    if (!prompt && isatty(STDIN_FILENO)) return cli_chat(r, name);
    if (one_shot(r, prompt, &err)) return cli_error(name, &err);
    return cli_interrupted ? 130 : 0;
}

int cli_run(int argc, char **argv)
{
    struct cn_error err = {0};
    struct cli_run r = {.max_tokens = LONGEST_ANSWER};
    char *prompt = NULL;
    int rc = cli_stack_config(&r.stack, &argc, argv, &err), status;

    int made = cli_message_init(&r.answer);
    r.messages = json_array();
    if ((made || !r.messages) && !rc) rc = cn_fail(&err, CN_ENOMEM, "out of memory");
    if (rc) {
        cli_error(argv[0], &err);
        status = 2;
    } else {
        int early = read_options(&r, argc, argv);
        if (!early) early = read_words(&r, argc, argv, &prompt);
        status = early ? early - 1 : run(&r, argv[0], prompt);
    }
    json_decref(r.messages);
    cli_message_fini(&r.answer);
    cli_form_fini(&r.form);
    cli_stack_close(&r.stack);
    return status;
}
