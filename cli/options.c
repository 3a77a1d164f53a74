/* What the commands' options have in common: one reader, one wording for what is wrong. Options are
 * recognised anywhere in front of "--". Main thread. */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct option *option_of(const struct option *options, int opt)
{
    while (options->name && options->val != opt)
        options++;
    return options->name ? options : NULL;
}

int cli_option(const char *name, int argc, char **argv, const struct option *options)
{
    int before = optind;

    opterr = 0;
    if (!optind) unsetenv("POSIXLY_CORRECT"); /* it would end the options at the first word */
    int opt = getopt_long(argc, argv, ":h", options, NULL);
    if (opt == ':') {
        const struct option *o = option_of(options, optopt);
        cli_usage(name, "--%s needs a value", o ? o->name : "option");
        return '?';
    }
    if (opt != '?') return opt;
    const struct option *o = optopt ? option_of(options, optopt) : NULL;
    const char *word = argv[optind > before || optind ? optind - 1 : 0];
    if (o)
        cli_usage(name, "--%s takes no value", o->name);
    else if (optopt)
        cli_usage(name, "unknown option -%c", optopt);
    else
        cli_usage(name, "unknown option %s", word);
    return '?';
}

int cli_number(const char *name, const char *option, const char *text, double low, double high,
               double *out)
{
    double x;

    if (!cn_parse_double(text, &x))
        return cli_usage(name, "--%s %s: not a number", option, text);
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
    return "  --model FILE|NAME      GGUF file, a name of the catalog or models folder, or null:\n"
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
