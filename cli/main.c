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
    {"list", "conifer list", "the models here, and those of the catalog (also ls)", cli_list},
    {"rm", "conifer rm", "remove a model", cli_rm},
    {"show", "conifer show", "what a model file is, and the memory it needs", cli_show},
    {"plan", "conifer plan", "how many users fit in memory", cli_plan},
    {"bench", "conifer bench", "how fast a model is here, and the machine", cli_bench},
    {"tokenize", "conifer tokenize", "token ids of standard input", cli_tokenize},
    {"reply", "conifer reply", "take a model's text apart: content, reasoning, calls", cli_reply},
    {"grammar", "conifer grammar", "check and measure a grammar for answers", cli_grammar},
    {"key", "conifer key", "make an API key; list those of a config", cli_key},
    {"version", "conifer version", "the version", cli_version},
};

static void help(FILE *f)
{
    fprintf(f, "usage: conifer COMMAND [options]\n\n");
    for (size_t i = 0; i < CN_ARRAY_LEN(commands); i++)
        fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].help);
    fprintf(f, "\nFor more: conifer help COMMAND, or conifer COMMAND -h.\n");
}

static const struct command *find(const char *word)
{
    if (!strcmp(word, "ls")) word = "list";
    if (!strcmp(word, "--version")) word = "version";
    for (size_t i = 0; i < CN_ARRAY_LEN(commands); i++)
        if (!strcmp(word, commands[i].name)) return &commands[i];
    return NULL;
}

static int say_unknown(const char *word)
{
    const char *names[CN_ARRAY_LEN(commands)];

    for (size_t i = 0; i < CN_ARRAY_LEN(commands); i++)
        names[i] = commands[i].name;
    const char *near = cli_nearest(word, names, CN_ARRAY_LEN(names));
    if (near) return cli_usage("conifer", "there is no command %s; did you mean %s?", word, near);
    if (cli_names_model(word))
        return cli_usage("conifer", "there is no command %s; conifer run %s chats with that model",
                         word, word);
    return cli_usage("conifer", "there is no command %s", word);
}

static int run(const struct command *c, int argc, char **argv)
{
    char name[32];

    snprintf(name, sizeof name, "%s", c->shown);
    argv[0] = name;
    return cli_finish(c->shown, c->run(argc, argv));
}

int main(int argc, char **argv)
{
    char flag[] = "--help", *asked[] = {NULL, flag, NULL};

    cli_open_standard();
    if (argc < 2) {
        help(stderr);
        return 2;
    }
    bool helps = !strcmp(argv[1], "help");
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || (helps && argc == 2)) {
        help(stdout);
        return cli_finish("conifer", 0);
    }
    const char *word = argv[1 + helps];
    const struct command *c = find(word);
    if (!c) return say_unknown(word);
    return helps ? run(c, 2, asked) : run(c, argc - 1, argv + 1);
}
