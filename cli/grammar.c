/* conifer grammar: compiles a grammar, says which texts belong to it, and measures its masks. */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT = 256 << 20, ACCEPTS = 'a', BENCH = 'b' };

struct asked {
    bool any;
    enum eng_grammar_kind kind;
    const char *word; /* a file, or the expression itself */
    const char *bench;
    char **files; /* to be accepted */
    size_t n_files, cap;
};

/* ---- reading --------------------------------------------------------------------------------- */

static int read_grammar(const struct asked *a, struct cn_buf *out, struct cn_error *err)
{
    if (a->kind == ENG_GRAMMAR_JSON_OBJECT) return 0;
    if (a->kind != ENG_GRAMMAR_REGEX) return cn_file_read(a->word, true, MAX_TEXT, out, err);
    if (cn_buf_puts(out, a->word)) return cn_fail(err, CN_ENOMEM, "out of memory");
    return 0;
}

/* A text, without the line end that editors put at the end of a file. */
static int read_text(const char *path, struct cn_buf *out, struct cn_error *err)
{
    int rc = cn_file_read(path, true, MAX_TEXT, out, err);
    if (rc) return rc;
    if (out->len > MAX_TEXT)
        return cn_fail(err, CN_ELIMIT, "%s: longer than %d MiB", path, MAX_TEXT >> 20);
    if (out->len && out->data[out->len - 1] == '\n') out->len--;
    return 0;
}

static int compile(const struct asked *a, const struct cn_buf *text, const struct eng_vocab *v,
                   bool any_spelling, struct eng_grammar **out, struct cn_error *err)
{
    const struct eng_grammar_in in = {.kind = a->kind,
                                      .text = text->data ? text->data : "",
                                      .n = text->len,
                                      .any_spelling = any_spelling,
                                      .vocab = v,
                                      .max_bytes = MAX_TEXT};
    return eng_grammar_compile(&in, out, err);
}

/* ---- what is done with it -------------------------------------------------------------------- */

static int say_accepts(const struct asked *a, const struct eng_grammar *g,
                       const struct eng_vocab *v, struct cn_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < a->n_files && !rc; i++) {
        struct cn_buf text;
        size_t taken;
        bool whole;
        cn_buf_init(&text, 0);
        rc = read_text(a->files[i], &text, err);
        if (!rc)
            rc = eng_grammar_check(g, v, text.data ? text.data : "", text.len, &taken, &whole, err);
        if (!rc && whole) puts("accept");
        if (!rc && !whole) printf("reject at byte %zu\n", taken);
        cn_buf_fini(&text);
    }
    return rc;
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static double us(uint64_t ns)
{
    return (double)ns / 1e3;
}

static void say_times(struct eng_grammar_times *t, uint64_t compiled_ns, size_t n)
{
    uint64_t sum = 0, first = t->ns[0];
    for (size_t i = 0; i < t->n; i++)
        sum += t->ns[i];
    qsort(t->ns, t->n, sizeof *t->ns, ascending);
    printf("compiled   %10.1f us\n"
           "masks      %10zu (%llu computed, %llu found)\n"
           "mean       %10.1f us\n"
           "p50        %10.1f us\n"
           "p99        %10.1f us\n"
           "max        %10.1f us\n"
           "first      %10.1f us\n",
           us(compiled_ns), t->n, (unsigned long long)t->made, (unsigned long long)t->found,
           us(sum) / (double)t->n, us(t->ns[t->n / 2]), us(t->ns[(t->n - 1) * 99 / 100]),
           us(t->ns[t->n - 1]), us(first));
    if (t->taken < n) printf("the text leaves the grammar at byte %zu of %zu\n", t->taken, n);
}

/* With the spelling that a model writes. */
static int bench(const struct asked *a, const struct cn_buf *grammar, const struct eng_vocab *v,
                 struct cn_error *err)
{
    struct eng_grammar *g = NULL;
    struct eng_grammar_times times;
    struct cn_buf text;
    uint64_t from = cn_now_ns();
    cn_buf_init(&text, 0);
    int rc = compile(a, grammar, v, false, &g, err);
    uint64_t compiled_ns = cn_now_ns() - from;
    if (!rc) rc = read_text(a->bench, &text, err);
    if (!rc) rc = cli_check_utf8(a->bench, &text, err);
    if (!rc) rc = eng_grammar_time(g, v, text.data ? text.data : "", text.len, &times, err);
    if (!rc) {
        say_times(&times, compiled_ns, text.len);
        free(times.ns);
    }
    eng_grammar_unref(g);
    cn_buf_fini(&text);
    return rc;
}

static int work(struct cli_stack *s, const struct asked *a, struct cn_error *err)
{
    struct eng_gguf *gguf = NULL;
    struct eng_vocab *v = NULL;
    struct eng_grammar *g = NULL;
    struct cn_buf grammar;
    cn_buf_init(&grammar, 0);
    int rc = s->path ? eng_gguf_open(s->path, &gguf, err) : 0;
    if (!rc && gguf) rc = eng_gguf_vocab(gguf, &v, err);
    if (!rc) rc = read_grammar(a, &grammar, err);
    uint64_t from = cn_now_ns();
    if (!rc && (a->n_files || !a->bench)) rc = compile(a, &grammar, v, true, &g, err);
    if (!rc && !a->n_files && !a->bench)
        printf("compiled in %.1f us, %s\n", us(cn_now_ns() - from),
               cn_size(eng_grammar_bytes(g)).text);
    if (!rc) rc = say_accepts(a, g, v, err);
    eng_grammar_unref(g);
    if (!rc && a->bench) rc = bench(a, &grammar, v, err);
    cn_buf_fini(&grammar);
    eng_vocab_free(v);
    eng_gguf_close(gguf);
    return rc;
}

/* ---- the command ----------------------------------------------------------------------------- */

static void help(void)
{
    puts(
        "usage: conifer grammar GRAMMAR [--model M] [--accepts FILE...] [--bench TEXTFILE]\n\n"
        "Compiles a grammar for constrained answers. GRAMMAR is one of\n\n"
        "  --json-schema FILE  JSON that satisfies a JSON Schema\n"
        "  --json-object       any JSON object\n"
        "  --regex R           texts that match a regular expression as a whole\n"
        "  --gbnf FILE         a grammar of llama.cpp\n"
        "  --lark FILE         a grammar of Lark\n"
        "  --choice FILE       one of the texts of a JSON array\n\n"
        "  --accepts FILE...   one line per file: `accept`, or `reject at byte N`: the text is\n"
        "                      not in the grammar, and its first N bytes could begin one that is.\n"
        "                      A line end at the end of a file is not part of its text\n"
        "  --bench TEXTFILE    how long the mask before each token of the text takes; needs a "
        "model\n"
        "  -m, --model FILE|NAME, --config FILE, --set KEY=VALUE\n"
        "                      whose vocabulary: for --bench, and for tokens that a grammar names\n"
        "  -h, --help          this text");
}

static int take_grammar(struct asked *a, enum eng_grammar_kind kind, const char *word,
                        const char *name)
{
    if (a->any) return cli_usage(name, "one grammar is expected, and %s is one more", word);
    a->any = true;
    a->kind = kind;
    a->word = word;
    return 0;
}

static int add_file(struct asked *a, char *path)
{
    if (cn_grow(&a->files, &a->cap, a->n_files + 1, sizeof *a->files)) return CN_ENOMEM;
    a->files[a->n_files++] = path;
    return 0;
}

/* Returns 0, or the exit code + 1 of a command that ends here. */
static int read_options(struct asked *a, int argc, char **argv)
{
    static const struct option options[] = {{"json-schema", required_argument, NULL, 's'},
                                            {"json-object", no_argument, NULL, 'o'},
                                            {"regex", required_argument, NULL, 'r'},
                                            {"gbnf", required_argument, NULL, 'g'},
                                            {"lark", required_argument, NULL, 'l'},
                                            {"choice", required_argument, NULL, 'c'},
                                            {"accepts", required_argument, NULL, ACCEPTS},
                                            {"bench", required_argument, NULL, BENCH},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, CLI_AND_CONFIG}};
    static const struct {
        char option;
        enum eng_grammar_kind kind;
    } kinds[] = {{'s', ENG_GRAMMAR_SCHEMA}, {'o', ENG_GRAMMAR_JSON_OBJECT},
                 {'r', ENG_GRAMMAR_REGEX},  {'g', ENG_GRAMMAR_GBNF},
                 {'l', ENG_GRAMMAR_LARK},   {'c', ENG_GRAMMAR_CHOICE}};
    int opt, end = 0;
    optind = 0;
    while ((opt = cli_option_or_end(argv[0], argc, argv, options, help, &end)) != -1) {
        for (size_t i = 0; i < CN_ARRAY_LEN(kinds); i++)
            if (opt == kinds[i].option &&
                take_grammar(a, kinds[i].kind, opt == 'o' ? "--json-object" : optarg, argv[0]))
                return 3;
        if (opt == BENCH) a->bench = optarg;
        if (opt == ACCEPTS && add_file(a, optarg)) return 2;
    }
    return end;
}

/* 0, or the exit code of a command whose words do not fit together. */
static int check_words(const struct asked *a, const struct cli_stack *s, int argc, char **argv)
{
    if (!a->any)
        return cli_usage(argv[0], "which grammar? Give --json-schema FILE, --json-object, "
                                  "--regex R, --gbnf FILE, --lark FILE or --choice FILE");
    if (optind < argc && !a->n_files)
        return cli_usage(argv[0], "%s is not an option; --accepts FILE... names texts",
                         argv[optind]);
    if (a->bench && !s->cfg.model.path && !s->cfg.model.name && !s->cfg.n_models)
        return cli_usage(argv[0], "--bench needs the vocabulary of a model: --model M");
    return 0;
}

int cli_grammar(int argc, char **argv)
{
    struct asked a = {0};
    struct cn_error err = {0};
    struct cli_stack s;
    int status = 0, rc = cli_stack_config(&s, &argc, argv, &err);
    int end = rc ? 0 : read_options(&a, argc, argv);

    if (!rc && !end) status = check_words(&a, &s, argc, argv);
    for (int i = optind; !rc && !end && !status && i < argc; i++)
        if (add_file(&a, argv[i])) rc = cn_fail(&err, CN_ENOMEM, "out of memory");
    bool model = s.cfg.model.path || s.cfg.model.name || s.cfg.n_models;
    if (!rc && !end && !status && model) rc = cli_stack_find(&s, &err);
    if (!rc && !end && !status) rc = work(&s, &a, &err);
    if (rc) status = cli_error(argv[0], &err);
    free(a.files);
    cli_stack_close(&s);
    return end ? end - 1 : status;
}
