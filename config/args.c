/* Command-line options that set keys, and which of them stand for which key.
 * One thread, at start; changes only the argv it is given. */
#include "config/internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct option {
    const char *flag, *key; /* key NULL: handled by name */
} options[] = {
    {"--config", NULL},
    {"--set", NULL},
    {"--model", NULL},
    {"-m", NULL},
    {"--host", "server.host"},
    {"--port", "server.port"},
    {"--unix-socket", "server.unix_socket"},
    {"--chat-template", "model.chat_template"},
    {"--context", "model.context"},
    {"--kv-type", "model.kv_type"},
    {"--threads", "engine.threads"},
    {"--isa", "engine.isa"},
    {"--log-level", "log.level"},
    {"--log-format", "log.format"},
};

const char *cfg_args_help(void)
{
    return "  --config FILE          read settings from a YAML file (docs/CONFIG.md)\n"
           "  -m, --model FILE|NAME  GGUF file, a name of the catalog or models folder, or null:\n"
           "  --host ADDRESS         address to listen on (127.0.0.1)\n"
           "  --port PORT            port to listen on (8080)\n"
           "  --unix-socket PATH     listen on a Unix socket too\n"
           "  --chat-template FILE   chat template in place of the model's own\n"
           "  --context TOKENS       context window (the model's own)\n"
           "  --kv-type TYPE         f16, q8_0 or q4_0: of the stored keys and values (f16)\n"
           "  --threads N            threads of the kernels (all cores)\n"
           "  --isa NAME             auto, generic, avx2, avxvnni, avx512, neon or i8mm (auto)\n"
           "  --log-level LEVEL      error, warn, info or debug (info)\n"
           "  --log-format FORMAT    auto, text, json or journal (auto)\n"
           "  --set KEY=VALUE        set any key of docs/CONFIG.md\n";
}

const char *cfg_args_flag(size_t i)
{
    return i < CN_ARRAY_LEN(options) ? options[i].flag : NULL;
}

/* Matches one argument against the table. *value is set for "--x=V", NULL for a lone "--x". */
static const struct option *match(const char *arg, const char **value)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(options); i++) {
        size_t n = strlen(options[i].flag);

        if (strncmp(arg, options[i].flag, n)) continue;
        if (arg[n] && (arg[n] != '=' || n == 2)) continue;
        *value = arg[n] ? arg + n + 1 : NULL;
        return &options[i];
    }
    return NULL;
}

/* What has a slash, ends in .gguf, is a file here or the null model is a path; anything else is a
 * name. */
static int set_model(struct cfg *c, const char *flag, const char *value, struct cn_error *err)
{
    size_t n = strlen(value);
    struct stat st;
    bool path = cfg_model_is_null(value) || strchr(value, '/') ||
                (n > 5 && !strcmp(value + n - 5, ".gguf")) ||
                (stat(value, &st) == 0 && S_ISREG(st.st_mode));
    int rc = cfg_set_from(c, path ? "model.path" : "model.name", value, flag, err);

    if (rc == CN_OK) rc = cfg_set_from(c, path ? "model.name" : "model.path", "", flag, err);
    return rc;
}

static int set_pair(struct cfg *c, const char *flag, const char *value, struct cn_error *err)
{
    const char *equals = strchr(value, '=');
    char key[64];

    if (!equals || (size_t)(equals - value) >= sizeof key)
        return cn_fail(err, CN_EINVAL, "must be KEY=VALUE, such as server.port=9000");
    memcpy(key, value, (size_t)(equals - value));
    key[equals - value] = '\0';
    return cfg_set_from(c, key, equals + 1, flag, err);
}

static int apply(struct cfg *c, const struct option *o, const char *value, struct cn_error *err)
{
    int rc;

    if (!strcmp(o->flag, "--model") || !strcmp(o->flag, "-m"))
        rc = set_model(c, o->flag, value, err);
    else if (!strcmp(o->flag, "--set"))
        rc = set_pair(c, o->flag, value, err);
    else
        rc = cfg_set_from(c, o->key, value, o->flag, err);
    if (rc) cn_error_wrap(err, "%s", o->flag);
    return rc;
}

/* Takes one option, or reads its file when `files`. What is wrong with it goes to err unless that
 * has an error already; returns an error only where nothing after it can be read. */
static int take_option(struct cfg *c, const struct option *o, const char *value, bool files,
                       struct cn_error *err)
{
    bool file = !strcmp(o->flag, "--config");
    size_t before = c->faults.count;
    struct cn_error e = {0};
    int rc;

    if (file != files) return CN_OK; /* files are read first */
    rc = file ? cfg_load_file(c, value, &e) : apply(c, o, value, &e);
    if (rc && (rc == CN_ENOMEM || (file && c->faults.count == before))) {
        c->half_read = true;
        if (err) *err = e;
        return rc;
    }
    if (!rc) return CN_OK;
    if (!file) return cfg_fault(c, &e, err);
    if (err && !err->code) *err = e;
    return c->faults.count > CFG_MAX_FAULTS ? CN_ELIMIT : CN_OK;
}

/* Walks argv[1..] and takes the options, or reads the files when `files`. Keeps what it does not
 * know in place when `take` is not NULL, else leaves argv as it is. */
static int walk(struct cfg *c, int argc, char **argv, bool files, int *take, struct cn_error *err)
{
    int kept = 1, i = 1;

    for (; i < argc && strcmp(argv[i], "--"); i++) {
        const char *value;
        const struct option *o = match(argv[i], &value);
        int rc;

        if (!o) {
            if (take) argv[kept++] = argv[i];
            continue;
        }
        if (!value) {
            if (i + 1 >= argc && files) break; /* reported when the options are taken */
            if (i + 1 >= argc) {
                struct cn_error e = {0};
                c->half_read = true;
                rc = cn_fail(&e, CN_EMISSING, "%s needs a value", o->flag);
                cfg_fault(c, &e, err);
                return rc;
            }
            value = argv[++i];
        }
        rc = take_option(c, o, value, files, err);
        if (rc) return rc;
    }
    if (take) {
        while (i < argc)
            argv[kept++] = argv[i++];
        argv[kept] = NULL;
        *take = kept;
    }
    return CN_OK;
}

int cfg_from_args(struct cfg *c, int *argc, char **argv, struct cn_error *err)
{
    struct cn_error first = {0};

    if (!walk(c, *argc, argv, true, NULL, &first)) walk(c, *argc, argv, false, argc, &first);
    if (first.code && err) *err = first;
    return first.code;
}
