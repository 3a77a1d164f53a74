/* conifer-server, and `conifer serve`: config -> sockets -> model -> serve until drained. */
#include "cli/cli.h"
#include "server/server.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOG_END_NS 1000000000ull /* for the last lines, at the end: a pipe may never take them */

static void help(const char *name)
{
    printf("usage: %s [options] [MODEL]\n\n"
           "Serves a model over HTTP to OpenAI-compatible clients. MODEL is\n"
           "what --model takes.\n\n%s"
           "  --check-config         check the settings and exit\n"
           "  -h, --help             this text\n"
           "  --version              the version\n",
           name, cfg_args_help());
}

/* Reports to systemd while a model loads, so that a slow disk does not count as a failed start. */
static void on_progress(void *arg, uint64_t done, uint64_t total)
{
    struct cli_progress *p = arg;

    cli_progress_update(p, done, total);
    uint64_t now = cn_now_ns();
    if (p->tty || now - p->shown_ns < 10000000000u) return;
    p->shown_ns = now;
    srv_notify("EXTEND_TIMEOUT_USEC=30000000");
}

/* The series of each model and engine group, under its name; those of tenants are the server's to
 * make. */
static int name_models(struct cn_metrics *m, const struct cfg *cfg, const char *only,
                       struct cn_error *err)
{
    const char **names = cn_calloc(CN_MAX(cfg->n_models, (size_t)1), sizeof *names);
    int rc = names ? 0 : CN_ENOMEM;

    if (names) names[0] = only;
    for (size_t i = 0; !rc && i < cfg->n_models; i++)
        names[i] = cfg->models[i].name;
    if (!rc) rc = cn_metrics_models(m, names, CN_MAX(cfg->n_models, (size_t)1));
    free(names);
    names = cfg->n_groups ? cn_calloc(cfg->n_groups, sizeof *names) : NULL;
    for (size_t i = 0; names && i < cfg->n_groups; i++)
        names[i] = cfg->groups[i].name;
    if (!rc && cfg->n_groups) rc = names ? cn_metrics_groups(m, names, cfg->n_groups) : CN_ENOMEM;
    free(names);
    return rc ? cn_fail(err, rc, "out of memory") : 0;
}

/* source: NULL where there is no file to read tenants from. */
static int serve(const struct cfg *cfg, struct cfg_source *source, const char *name,
                 cli_fetch *fetch)
{
    struct cn_error err = {0};
    struct cn_metrics *metrics = cn_calloc(1, sizeof *metrics);
    struct cfg_tenants *tenants = NULL;
    struct cli_progress progress;
    struct srv *s = NULL;
    struct rt *rt = NULL;
    struct rt_model_opts *models = NULL;
    char *path = NULL, *model = NULL;
    cn_signals_take(false); /* until srv_run takes them */
    int rc = cfg->log.file ? cn_log_open(cfg->log.file, &err) : 0;

    if (rc) cfg_error_place(cfg, &err);
    if (!rc && !metrics) rc = cn_fail(&err, CN_ENOMEM, "out of memory");
    if (!rc) rc = cfg_tenants_of(cfg, &tenants, &err);
    if (!rc && !cfg->n_models && fetch) rc = fetch(cfg, &err);
    if (!rc && cfg->n_models)
        rc = cli_list_models(cfg, &models, &err);
    else if (!rc)
        rc = cli_find_model(cfg, &path, &model, &err);
    if (!rc) rc = name_models(metrics, cfg, model, &err);
    struct srv_opts opts = {.cfg = cfg,
                            .metrics = metrics,
                            .version = CLI_VERSION,
                            .tenants = tenants,
                            .source = source};
    if (!rc) rc = srv_new(&opts, &s, &err);
    cli_progress_start(&progress);
    progress.shown_ns = progress.started_ns;
    struct rt_opts ro = {.cfg = cfg,
                         .metrics = metrics,
                         .tenants = tenants,
                         .model_path = path,
                         .model_id = model,
                         .models = models,
                         .n_models = cfg->n_models,
                         .progress = on_progress,
                         .progress_arg = &progress};
    if (!rc && (rc = rt_new(&ro, &rt, &err))) cfg_error_place(cfg, &err);
    cli_progress_end(&progress);
    if (!rc) rc = cn_log_start(&err);
    if (rc) {
        cli_error(name, &err);
    } else {
        rc = srv_run(s, rt, &err);
        if (rc) cn_log(CN_LOG_ERROR, "server", "%s", err.message);
    }
    if (rc == CN_EBUSY) { /* the engine does not answer: its thread cannot be joined */
        cn_log_flush(LOG_END_NS);
        _exit(srv_stuck(s) ? SRV_EXIT_STUCK : 1);
    }
    rt_free(rt);
    srv_free(s);
    cfg_tenants_unref(tenants);
    cn_log_stop(LOG_END_NS);
    cli_free_models(models, cfg->n_models);
    free(path);
    free(model);
    if (metrics) cn_metrics_fini(metrics);
    free(metrics);
    return rc ? 1 : 0;
}

/* Whether a model of that name, NULL the default one, is only to be fetched yet: a program that
 * fetches is often asked about settings before models arrive. Where nothing fetches, what is not
 * here lacks. */
static bool to_come(const char *model, int rc, cli_fetch *fetch)
{
    return fetch && rc == CN_EMODEL && (!model || cfg_catalog_find(model));
}

/* Whether those of a group could be. The daemon starts with one that works, and the others'
 * requests fail; so one that is not there or damaged is worth a warning, unless nothing is left:
 * without a single model of each group the daemon does not start, whichever are to be preloaded. */
static int check_those(const struct cfg *cfg, uint32_t group, const char *name, cli_fetch *fetch)
{
    size_t n = 0, good = 0, coming = 0;
    int status = 0;

    for (size_t i = 0; i < cfg->n_models; i++) {
        const struct cfg_served *m = &cfg->models[i];
        if (cfg_group_of(cfg, m) != group) continue;
        n++;
        struct rt_model_opts o = {.context = (uint64_t)m->context};
        struct cn_error err = {0};
        char *path = NULL;
        int rc = cfg_served_file(m, &path, &err);
        bool fatal = rc && rc != CN_EMODEL; /* cli_list_models ends there, too */
        coming += to_come(m->name, rc, fetch);
        o.path = path;
        if (!rc) rc = rt_check_served(&o, &err);
        if (rc) cfg_error_at(&m->places[CFG_MODEL_KEY_name], &err);
        free(path);
        good += !rc;
        if (fatal)
            status = cli_error(name, &err);
        else if (rc)
            fprintf(stderr, "%s: warning: %s\n", name, err.message);
    }
    if (status || good || !n) return status;
    const char *of = cfg->n_groups ? " of the group " : "";
    const char *which = cfg->n_groups ? cfg_group_name(cfg, group) : "";
    if (coming)
        fprintf(stderr,
                "%s: warning: none of the models%s%s is here yet: one of them is to be "
                "fetched before the start\n",
                name, of, which);
    else
        fprintf(stderr, "%s: none of the models%s%s can be served: the daemon would not start\n",
                name, of, which);
    return !coming;
}

static int check_list(const struct cfg *cfg, const char *name, cli_fetch *fetch)
{
    int status = 0;

    for (uint32_t i = 0; i < cfg_n_groups(cfg); i++)
        status |= check_those(cfg, i, name, fetch);
    return status;
}

/* Whether the model that is asked for could be loaded. One that is to come is worth a warning. */
static int check_model(const struct cfg *cfg, const char *name, cli_fetch *fetch)
{
    struct cn_error err = {0};
    char *path = NULL, *model = NULL;
    struct stat st;
    int rc;

    if (cfg->n_models) return check_list(cfg, name, fetch);
    rc = cli_find_model(cfg, &path, &model, &err);
    bool coming = to_come(cfg->model.name, rc, fetch);
    if (!rc && !cfg_model_is_null(path) && stat(path, &st))
        rc = cn_fail_param(&err, CN_ENOENT, "model.path", "model.path: there is no %s", path);
    if (!rc) rc = rt_check_model(cfg, path, &err);
    if (rc) cfg_error_place(cfg, &err);
    free(path);
    free(model);
    if (!rc) return 0;
    if (!coming) return cli_error(name, &err);
    fprintf(stderr, "%s: warning: %s\n", name, err.message);
    return 0;
}

/* Prints every error of the config, not just the first. If the config was read to its end,
 * checks the model as well, except a name that would be fetched. Returns the exit code. */
static int refuse(struct cfg *cfg, const char *name, cli_fetch *fetch, struct cn_error *err)
{
    int status = err->code == CN_EIO || err->code == CN_ENOMEM ? 1 : 2;
    bool model = cfg->faults.count && !cfg->half_read &&
                 (cfg->n_models || cfg->model.path || (cfg->model.name && !fetch));

    cli_faults(name, cfg, err);
    cli_error(name, err);
    if (model) check_model(cfg, name, fetch);
    return status;
}

/* The model as a word of its own; 0, or an exit code after saying what is wrong. */
static int take_word(struct cfg *cfg, int argc, char **argv, bool given)
{
    struct cn_error err = {0};

    if (optind == argc) return 0;
    if (argc - optind + given > 1)
        return cli_usage(argv[0], "one model is expected, and %s is one more", argv[argc - 1]);
    if (!cli_use_model(cfg, argv[optind], &err)) return 0;
    cli_error(argv[0], &err);
    return 2;
}

/* Whether the option stands on the command line. */
static bool has_option(int argc, char **argv, const char *flag)
{
    size_t n = strlen(flag);

    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++)
        if (!strncmp(argv[i], flag, n) && (!argv[i][n] || (n > 2 && argv[i][n] == '=')))
            return true;
    return false;
}

int cli_serve(int argc, char **argv, cli_fetch *fetch)
{
    static const struct option options[] = {{"check-config", no_argument, NULL, 'c'},
                                            {"help", no_argument, NULL, 'h'},
                                            {"version", no_argument, NULL, 'v'},
                                            {NULL, 0, NULL, CLI_AND_CONFIG}};
    struct cn_error err = {0};
    struct cfg cfg;
    bool check = false, checked = false, from_file = has_option(argc, argv, "--config");
    bool model = has_option(argc, argv, "--model") || has_option(argc, argv, "-m");
    struct cfg_source *source = NULL;
    int opt, rc = cfg_init(&cfg, &err), all = argc;
    char **as_given = cn_malloc_array((size_t)argc + 1, sizeof *as_given);

    if (as_given) memcpy(as_given, argv, ((size_t)argc + 1) * sizeof *as_given);
    if (!rc) rc = cfg_from_args(&cfg, &argc, argv, &err);
    if (!rc && from_file) {
        checked = true; /* once: each call adds what it finds to the faults */
        rc = cfg_check(&cfg, &err);
        if (!rc) rc = as_given ? cfg_source_args(all, as_given, &source, &err) : CN_ENOMEM;
    }
    free(as_given);
    if (rc) {
        if (cfg.faults.count && !checked) cfg_check(&cfg, NULL);
        rc = refuse(&cfg, argv[0], fetch, &err);
        cfg_fini(&cfg);
        return rc;
    }
    optind = 0;
    while ((opt = cli_option(argv[0], argc, argv, options)) != -1) {
        if (opt == 'c') {
            check = true;
            continue;
        }
        if (opt == 'h')
            help(argv[0]);
        else if (opt == 'v')
            printf("conifer-server %s\n", CLI_VERSION);
        cfg_fini(&cfg);
        return opt == '?' ? 2 : 0;
    }
    if ((rc = take_word(&cfg, argc, argv, model))) {
        /* said */
    } else if (cfg_check(&cfg, &err)) {
        rc = refuse(&cfg, argv[0], fetch, &err);
    } else if (check) {
        rc = check_model(&cfg, argv[0], fetch);
        if (!rc)
            puts(from_file ? "the configuration is valid"
                           : "no --config was given: the defaults are valid");
    } else {
        cfg_log_setup(&cfg);
        rc = serve(&cfg, source, argv[0], fetch);
    }
    cfg_source_free(source);
    cfg_fini(&cfg);
    return rc;
}
