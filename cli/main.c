/* conifer: the tool. Picks the command. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

/* Who types it waits for the model. */
static int serve(int argc, char **argv)
{
    return cli_serve(argc, argv, cli_pull_missing);
}

static const struct command {
    const char *name, *shown, *help;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"run", "conifer run", "chat with a model in this terminal", cli_run},
    {"serve", "conifer serve", "serve a model over HTTP (as conifer-server does)", serve},
    {"pull", "conifer pull", "fetch a model: a name of the catalog, hf:... or a URL", cli_pull},
    {"list", "conifer list", "the models here, and those of the catalog", cli_list},
    {"rm", "conifer rm", "remove a model", cli_rm},
    {"show", "conifer show", "what a model file is, and the memory it needs", cli_show},
    {"plan", "conifer plan", "how many users fit in memory", cli_plan},
    {"bench", "conifer bench", "how fast a model is here, and the machine", cli_bench},
    {"tokenize", "conifer tokenize", "token ids of standard input", cli_tokenize},
    {"key", "conifer key", "make an API key", cli_key},
    {"version", "conifer version", "the version", cli_version},
};

static void help(FILE *f)
{
    fprintf(f, "usage: conifer COMMAND [options]\n\n");
    for (size_t i = 0; i < CN_ARRAY_LEN(commands); i++)
        fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].help);
    fprintf(f, "\nconifer COMMAND --help tells more.\n");
}

int main(int argc, char **argv)
{
    char name[32];

    cli_open_standard();
    if (argc < 2) {
        help(stderr);
        return 2;
    }
    const char *want = argv[1];
    if (!strcmp(want, "--help") || !strcmp(want, "-h") || !strcmp(want, "help")) {
        help(stdout);
        return cli_finish("conifer", 0);
    }
    if (!strcmp(want, "--version")) want = "version";
    for (size_t i = 0; i < CN_ARRAY_LEN(commands); i++) {
        if (strcmp(want, commands[i].name)) continue;
        snprintf(name, sizeof name, "%s", commands[i].shown);
        argv[1] = name;
        return cli_finish(commands[i].shown, commands[i].run(argc - 1, argv + 1));
    }
    fprintf(stderr, "conifer: there is no command %s\n\n", want);
    help(stderr);
    return 2;
}
