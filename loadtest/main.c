/* conifer-load: options, one run, its report. */
#include "loadtest/run.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* Walked through twice: the scenario's file is read before any option overrides it. */
struct options {
    const char *url, *key;
    bool json, quiet, check, help;
    bool overrides; /* the second time */
    bool has_file;
};

static void help_keys(enum lt_group g)
{
    size_t count;
    const struct lt_key *k = lt_keys(g, &count);

    for (size_t i = 0; i < count; i++) {
        /* a class's name can be given in a file only: --name is the run's */
        bool option = g == LT_RUN || (g == LT_CLASS && !lt_key_find(LT_RUN, k[i].name));
        char name[64];

        snprintf(name, sizeof name, option ? "--%s" : "%s", k[i].name);
        for (char *p = name; option && *p; p++)
            if (*p == '_') *p = '-';
        printf("  %-22s %s%s%s%s\n", name, k[i].help, *k[i].def ? " [" : "", k[i].def,
               *k[i].def ? "]" : "");
    }
}

static void help(void)
{
    printf("usage: conifer-load [options] http://HOST:PORT\n\n"
           "Sends a scenario's requests to an OpenAI-compatible server and reports how long they "
           "took:\n"
           "first token (TTFT), gaps between tokens (ITL), their mean in an answer (TPOT), whole "
           "answer,\n"
           "throughput, failures by kind. Latencies count from the moment a request was due. Every "
           "one is\n"
           "kept, 8 bytes for each token that comes, so that percentiles are exact.\n\n"
           "  -s, --scenario FILE    YAML; the options below override it\n"
           "  --set CLASS.KEY=VALUE  a key of one class\n"
           "  --key KEY              API key of all requests (default: $OPENAI_API_KEY)\n"
           "  --json                 one JSON object instead of the table\n"
           "  -q, --quiet            no progress on standard error\n"
           "  --check                only read the scenario\n"
           "  -h, --help\n\nThe run:\n");
    help_keys(LT_RUN);
    printf("\nEach class of requests (as options: all of them; in a file: under \"classes\").\n"
           "A length is 128, 16..256, lognormal:MEDIAN:SIGMA[:MOST] or a list 16,32,64:\n");
    help_keys(LT_CLASS);
    printf("\nTenants (in a file, under \"tenants\"):\n");
    help_keys(LT_TENANT);
}

static int usage(const char *what, const char *about)
{
    fprintf(stderr, "conifer-load: %s%s\n", what, about);
    return EXIT_USAGE;
}

/* CLASS.KEY=VALUE */
static int set_one(struct lt_scenario *s, const char *text, struct cn_error *err)
{
    const char *equals = strchr(text, '='), *dot = NULL;
    char class[128], key[64];

    for (const char *p = text; equals && p < equals; p++)
        if (*p == '.') dot = p;
    if (!dot || (size_t)(dot - text) >= sizeof class || (size_t)(equals - dot) > sizeof key)
        return cn_fail(err, CN_EINVAL, "must be CLASS.KEY=VALUE, not %s", text);
    snprintf(class, sizeof class, "%.*s", (int)(dot - text), text);
    snprintf(key, sizeof key, "%.*s", (int)(equals - dot - 1), dot + 1);
    return lt_scenario_set(s, class, key, equals + 1, err);
}

/* One option that sets a key: --some-key VALUE or --some-key=VALUE. */
static int set_key(struct lt_scenario *s, const char *name, const char *value, struct cn_error *err)
{
    char key[64];

    snprintf(key, sizeof key, "%s", name);
    key[strcspn(key, "=")] = '\0';
    for (char *p = key; *p; p++)
        if (*p == '-') *p = '_';
    if (!lt_key_find(LT_RUN, key) && !lt_key_find(LT_CLASS, key))
        return cn_fail(err, CN_ENOENT, "unknown option; --help lists them");
    return lt_scenario_set(s, NULL, key, value, err);
}

static bool has_no_value(const char *arg)
{
    static const char *const flags[] = {"--json", "-q", "--quiet", "--check", "-h", "--help"};

    for (size_t i = 0; i < CN_ARRAY_LEN(flags); i++)
        if (!strcmp(arg, flags[i])) return true;
    return *arg != '-';
}

/* Whether arg is this option: --name VALUE or --name=VALUE. */
static bool is_option(const char *arg, const char *name)
{
    size_t n = strlen(name);

    return !strncmp(arg, name, n) && (!arg[n] || arg[n] == '=');
}

static int take_file(struct lt_scenario *s, struct options *o, const char *arg, const char *value,
                     struct cn_error *err)
{
    if (!is_option(arg, "-s") && !is_option(arg, "--scenario")) return CN_OK;
    if (o->has_file) return cn_fail(err, CN_EINVAL, "one scenario at a time");
    o->has_file = true;
    return lt_scenario_load(s, value, err);
}

static int take(struct lt_scenario *s, struct options *o, const char *arg, const char *value,
                struct cn_error *err)
{
    if (!o->overrides) return take_file(s, o, arg, value, err);
    if (is_option(arg, "-s") || is_option(arg, "--scenario")) return CN_OK;
    if (!strcmp(arg, "--json"))
        o->json = true;
    else if (!strcmp(arg, "-q") || !strcmp(arg, "--quiet"))
        o->quiet = true;
    else if (!strcmp(arg, "--check"))
        o->check = true;
    else if (!strcmp(arg, "-h") || !strcmp(arg, "--help"))
        o->help = true;
    else if (is_option(arg, "--key"))
        o->key = value;
    else if (is_option(arg, "--set"))
        return set_one(s, value, err);
    else if (!strncmp(arg, "--", 2))
        return set_key(s, arg + 2, value, err);
    else if (*arg == '-')
        return cn_fail(err, CN_ENOENT, "unknown option; --help lists them");
    else if (o->url)
        return cn_fail(err, CN_EINVAL, "one server at a time");
    else
        o->url = arg;
    return CN_OK;
}

static int walk(int argc, char **argv, struct lt_scenario *s, struct options *o)
{
    struct cn_error err = {0};

    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i], *equals = strchr(arg, '='), *value = equals ? equals + 1 : NULL;

        if (!has_no_value(arg) && !value) {
            if (i + 1 == argc) return usage(arg, ": needs a value");
            value = argv[++i];
        }
        if (!take(s, o, arg, value, &err)) continue;
        fprintf(stderr, "conifer-load: %s: %s\n", arg, err.message);
        return EXIT_USAGE;
    }
    return 0;
}

static int parse(int argc, char **argv, struct lt_scenario *s, struct options *o)
{
    struct cn_error err = {0};
    int rc = walk(argc, argv, s, o);

    o->overrides = true;
    if (!rc) rc = walk(argc, argv, s, o);
    if (rc || o->help) return rc;
    if (o->key && strpbrk(o->key, "\r\n"))
        return usage("the API key (--key, $OPENAI_API_KEY) must be one line", "");
    if (!o->url && !o->check) return usage("which server? http://HOST:PORT", "");
    if (lt_scenario_check(s, &err)) return usage(err.message, "");
    return 0;
}

static int run(const struct lt_scenario *s, const struct options *o)
{
    struct cn_error err = {0};
    struct lt_result result;
    struct cn_buf out;
    uint64_t ok = 0;
    int rc = lt_run(s, o->url, o->key, !o->quiet && isatty(2), &result, &err);

    if (rc) {
        fprintf(stderr, "conifer-load: %s\n", err.message);
        lt_result_fini(&result);
        return EXIT_FAILED;
    }
    for (size_t i = 0; i < result.n_classes; i++)
        ok += result.classes[i].ok + result.classes[i].aborted + result.classes[i].cut;
    cn_buf_init(&out, 0);
    if (o->json)
        lt_report_json(s, o->url, &result, &out);
    else
        lt_report_table(s, o->url, &result, &out);
    fwrite(out.data, 1, out.len, stdout);
    rc = out.failed || fflush(stdout) || !ok ? EXIT_FAILED : EXIT_DONE;
    cn_buf_fini(&out);
    lt_result_fini(&result);
    return rc;
}

int main(int argc, char **argv)
{
    struct options o = {.key = getenv("OPENAI_API_KEY")};
    struct cn_error err = {0};
    struct lt_scenario s;
    int rc;

    signal(SIGPIPE, SIG_IGN);
    if (lt_scenario_init(&s, &err)) return usage(err.message, "");
    rc = parse(argc, argv, &s, &o);
    if (!rc && o.help)
        help();
    else if (!rc && !o.check)
        rc = run(&s, &o);
    lt_scenario_fini(&s);
    return rc;
}
