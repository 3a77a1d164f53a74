/* What the commands' options have in common: one reader, one wording for what is wrong. Options are
 * recognised anywhere in front of "--". Main thread. */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHORTS = 64, NAMES = 64 };

static int val_of(const struct option *o)
{
    return o->val & ~CLI_SHORT;
}

static const struct option *option_of(const struct option *options, int opt)
{
    while (options->name && val_of(options) != (opt & ~CLI_SHORT))
        options++;
    return options->name ? options : NULL;
}

/* The option of that letter alone. */
static const struct option *short_of(const struct option *options, char letter)
{
    while (options->name && options->val != (CLI_SHORT | letter))
        options++;
    return options->name ? options : NULL;
}

/* What getopt takes for the options that have a letter; -h is always there. */
static void put_shorts(const struct option *options, char out[SHORTS])
{
    size_t n = (size_t)snprintf(out, SHORTS, ":h");

    for (; options->name && n + 2 < SHORTS; options++) {
        if (!(options->val & CLI_SHORT)) continue;
        out[n++] = (char)val_of(options);
        if (options->has_arg) out[n++] = ':';
    }
    out[n] = 0;
}

/* The long option, with its dashes, that was probably meant; "" when none is near. */
static void find_meant(const struct option *o, const char *word, char *out, size_t size)
{
    const char *names[NAMES];
    char bare[64];
    size_t n = 0;

    word += strspn(word, "-");
    snprintf(bare, sizeof bare, "%.*s", (int)CN_MIN(strcspn(word, "="), sizeof bare - 1), word);
    for (; o->name && n < NAMES; o++)
        names[n++] = o->name;
    for (size_t i = 0; o->val == CLI_AND_CONFIG && n < NAMES && cfg_args_flag(i); i++)
        if (!strncmp(cfg_args_flag(i), "--", 2)) names[n++] = cfg_args_flag(i) + 2;
    const char *near = cli_nearest(bare, names, n);
    snprintf(out, size, "%s%s", near ? "--" : "", near ? near : "");
}

static int say_unknown(const char *name, const char *word, const struct option *options)
{
    char meant[80];

    find_meant(options, word, meant, sizeof meant);
    if (*meant) return cli_usage(name, "unknown option %s; did you mean %s?", word, meant);
    return cli_usage(name, "unknown option %s", word);
}

/* Whether the word takes the next one as its value. */
static bool takes_next(const struct option *options, const char *word)
{
    size_t n = strlen(word);

    if (word[0] == '-' && n == 2) {
        const struct option *o = short_of(options, word[1]);
        return o && o->has_arg;
    }
    if (strncmp(word, "--", 2) || strchr(word, '=')) return false;
    for (; options->name; options++) /* getopt takes beginnings of names */
        if (options->has_arg && !strncmp(options->name, word + 2, n - 2)) return true;
    return false;
}

/* A single dash has one letter after it, so that -model is never -m with the value "odel". True
 * after saying so of a word that has more. */
static bool has_clusters(const char *name, int argc, char **argv, const struct option *options)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++) {
        const char *w = argv[i];
        char meant[80];
        if (takes_next(options, w)) i++;
        if (w[0] != '-' || w[1] == '-' || !w[1] || !w[2]) continue;
        find_meant(options, w, meant, sizeof meant);
        const struct option *o = short_of(options, w[1]);
        bool model = w[1] == 'm' && !o; /* the config's own */
        if (*meant)
            cli_usage(name, "%s: a single dash takes one letter; did you mean %s?", w, meant);
        else if (model || (o && o->has_arg))
            cli_usage(name,
                      "%s: a single dash takes one letter; its value is the next word: "
                      "-%c %s",
                      w, w[1], w + 2);
        else
            cli_usage(name, "%s: a single dash takes one letter", w);
        return true;
    }
    return false;
}

int cli_option(const char *name, int argc, char **argv, const struct option *options)
{
    int before = optind;
    char shorts[SHORTS];

    opterr = 0;
    if (!optind) {
        unsetenv("POSIXLY_CORRECT"); /* it would end the options at the first word */
        if (has_clusters(name, argc, argv, options)) return '?';
    }
    put_shorts(options, shorts);
    int opt = getopt_long(argc, argv, shorts, options, NULL);
    const char *word = argv[optind > before || optind ? optind - 1 : 0];
    if (opt == ':') {
        const struct option *o = option_of(options, optopt);
        cli_usage(name, "%s%s needs a value", o && word[1] == '-' ? "--" : "",
                  o && word[1] == '-' ? o->name : word);
        return '?';
    }
    if (opt != '?') return opt == -1 ? -1 : opt & ~CLI_SHORT;
    const struct option *o = optopt && word[1] == '-' ? option_of(options, optopt) : NULL;
    if (o)
        cli_usage(name, "--%s takes no value", o->name);
    else if (optopt)
        cli_usage(name, "unknown option -%c", optopt);
    else
        say_unknown(name, word, options);
    return '?';
}

int cli_option_or_end(const char *name, int argc, char **argv, const struct option *options,
                      void (*help)(void), int *end)
{
    int opt = cli_option(name, argc, argv, options);
    *end = opt == 'h' ? 1 : opt == '?' ? 3 : 0;
    if (opt == 'h') help();
    return *end ? -1 : opt;
}

int cli_number(const char *name, const char *option, const char *text, double low, double high,
               double *out)
{
    double x;

    if (!cn_parse_double(text, &x)) return cli_usage(name, "--%s %s: not a number", option, text);
    if (x < low || x > high)
        return cli_usage(name, "--%s %s: must be from %g to %g", option, text, low, high);
    *out = x;
    return 0;
}

int cli_count(const char *name, const char *option, const char *text, uint64_t low, uint64_t high,
              uint64_t *out)
{
    size_t digits = strspn(text, "0123456789");
    uint64_t x;

    if (!digits || text[digits]) {
        const char *what = *text == '-' && strspn(text + 1, "0123456789") == strlen(text + 1)
                               ? "must not be negative"
                               : "not a number";
        return cli_usage(name, "--%s %s: %s", option, text, what);
    }
    if (!cn_parse_u64(text, digits, &x) || x < low || x > high)
        return cli_usage(name, "--%s %s: must be from %llu to %llu", option, text,
                         (unsigned long long)low, (unsigned long long)high);
    *out = x;
    return 0;
}

const char *cli_model_help(void)
{
    return "  -m, --model FILE|NAME  GGUF file, a name of the catalog or models folder, or null:\n"
           "  --chat-template FILE   chat template in place of the model's own\n"
           "  --context TOKENS       context window (the model's own)\n"
           "  --kv-type TYPE         f16, q8_0 or q4_0: of the stored keys and values (f16)\n"
           "  --threads N            threads of the kernels (all cores)\n"
           "  --isa NAME             auto, generic, avx2, avxvnni, avx512, neon or i8mm (auto)\n"
           "  --config FILE          read settings from a YAML file (docs/CONFIG.md)\n"
           "  --set KEY=VALUE        set any key of docs/CONFIG.md\n"
           "  --log-level LEVEL      error, warn, info or debug (warn)\n"
           "  -h, --help             this text\n";
}
