/* Which model: names, what is installed, what to say when there is none. Main thread. */
#include "cli/cli.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool ends_in_gguf(const char *s)
{
    size_t n = strlen(s);
    return n > 5 && !strcmp(s + n - 5, ".gguf");
}

const struct cfg_model *cli_catalog_of(const char *path)
{
    return cfg_catalog_of(path);
}

bool cli_names_model(const char *word)
{
    struct stat st;
    char *dir, *path = NULL;
    bool known;

    if (cfg_model_is_null(word)) return true;
    if (strchr(word, '/') || ends_in_gguf(word))
        if (!stat(word, &st) && S_ISREG(st.st_mode)) return true;
    if (!cfg_model_name_ok(word)) return false;
    if (cfg_catalog_find(word)) return true;
    dir = cfg_models_dir();
    known = dir && !cfg_find_model(dir, word, &path, NULL);
    free(path);
    free(dir);
    return known;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

char **cli_installed(size_t *count)
{
    char *dir = cfg_models_dir(), **names = NULL;
    size_t n = 0, cap = 0, n_catalog;
    const struct cfg_model *catalog = cfg_catalog(&n_catalog);
    DIR *d = dir ? opendir(dir) : NULL;

    for (struct dirent *e; d && (e = readdir(d));) {
        size_t len = strlen(e->d_name);
        if (!ends_in_gguf(e->d_name) || !cfg_model_name_ok(e->d_name)) continue;
        if (cn_grow(&names, &cap, n + 1, sizeof *names)) break;
        const char *called = NULL;
        for (size_t i = 0; i < n_catalog; i++)
            if (!strcmp(e->d_name, catalog[i].file)) called = catalog[i].name;
        names[n] = called ? strdup(called) : strndup(e->d_name, len - 5);
        if (!names[n]) break;
        n++;
    }
    if (d) closedir(d);
    free(dir);
    if (n) qsort(names, n, sizeof *names, by_name);
    *count = n;
    return names;
}

void cli_free_names(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

static void put_installed(struct cn_buf *out)
{
    size_t n;
    char **names = cli_installed(&n);

    for (size_t i = 0; i < n; i++)
        cn_buf_printf(out, out->len ? ", %s" : "%s", names[i]);
    cli_free_names(names, n);
}

void cli_put_here(const struct cfg *cfg, struct cn_buf *out)
{
    for (size_t i = 0; i < cfg->n_models; i++) /* those without a file are the folder's */
        if (cfg->models[i].path) cn_buf_printf(out, out->len ? ", %s" : "%s", cfg->models[i].name);
    put_installed(out);
}

/* The reason in err, and what could be done about it. */
static void explain(const struct cfg *cfg, struct cn_error *err)
{
    const char *name = cfg->model.name;
    char *dir = cfg_models_dir();
    struct cn_buf have, near;

    if (!name || cfg_catalog_find(name)) {
        size_t n = strlen(err->message);
        if (!name)
            snprintf(err->message + n, sizeof err->message - n,
                     " (as ./quickstart does; --model takes a GGUF file too)");
        free(dir);
        return;
    }
    cn_buf_init(&have, 0);
    cn_buf_init(&near, 0);
    put_installed(&have);
    cli_suggest(cfg, name, true, &near);
    /* A long list may be cut; what comes after it may not. */
    const char *list = have.len ? cn_buf_cstr(&have) : NULL,
               *meant = near.len ? cn_buf_cstr(&near) : NULL;
    cn_fail_param(err, CN_EMODEL, "model",
                  "there is no model \"%.128s\" in %.100s%s%.100s%s Installed: %.100s%s. "
                  "conifer list shows what can be pulled; "
                  "--model takes a GGUF file too",
                  name, dir ? dir : "the models folder", meant ? "; did you mean " : ".",
                  meant ? meant : "", meant ? "?" : "", list ? list : "none",
                  have.len > 100 ? "..." : "");
    cn_buf_fini(&have);
    cn_buf_fini(&near);
    free(dir);
}

int cli_find_model(const struct cfg *cfg, char **path, char **name, struct cn_error *err)
{
    int rc = cfg_model_file(cfg, path, name, err);

    if (rc == CN_EMODEL && err) explain(cfg, err);
    if (rc && cfg->places[CFG_KEY_model_name].line)
        cfg_error_at(&cfg->places[CFG_KEY_model_name], err);
    return rc;
}

char *cli_copy(const char *text, bool *failed)
{
    char *s = text ? strdup(text) : NULL;
    if (text && !s) *failed = true;
    return s;
}

int cli_take_served(struct cfg *cfg, struct cn_error *err)
{
    const struct cfg_served *m = cfg->models;
    char *path = NULL;
    bool failed = false;

    if (!cfg->n_models || cfg->model.path) return 0;
    if (cfg->model.name)
        while (m < cfg->models + cfg->n_models && strcmp(m->name, cfg->model.name))
            m++;
    if (m == cfg->models + cfg->n_models) return 0;
    int rc = cfg_served_file(m, &path, err);
    if (rc) return rc;
    free(cfg->model.name);
    free(cfg->model.chat_template);
    free(cfg->model.sampling);
    cfg->model.path = path;
    cfg->model.name = cli_copy(m->name, &failed);
    cfg->model.chat_template = cli_copy(m->chat_template, &failed);
    cfg->model.sampling = cli_copy(m->sampling, &failed);
    cfg->model.context = m->context;
    cfg->model.kv_type = m->kv_type;
    cfg->model.tools_fallback = m->tools_fallback;
    return failed ? cn_fail(err, CN_ENOMEM, "out of memory") : 0;
}

void cli_free_models(struct rt_model_opts *all, size_t n)
{
    for (size_t i = 0; all && i < n; i++)
        free((char *)all[i].path);
    free(all);
}

int cli_list_models(const struct cfg *cfg, struct rt_model_opts **out, struct cn_error *err)
{
    struct rt_model_opts *all = cn_calloc(cfg->n_models, sizeof *all);
    int rc = all ? 0 : cn_fail(err, CN_ENOMEM, "out of memory");

    for (size_t i = 0; !rc && i < cfg->n_models; i++) {
        const struct cfg_served *m = &cfg->models[i];
        char *path = NULL;
        rc = cfg_served_file(m, &path, err);
        if (rc == CN_EMODEL) rc = 0;
        if (rc) cfg_error_at(&m->places[CFG_MODEL_KEY_name], err);
        all[i] = (struct rt_model_opts){.id = m->name,
                                        .path = path,
                                        .chat_template = m->chat_template,
                                        .context = (uint64_t)m->context,
                                        .kv_type = m->kv_type,
                                        .sampling = m->sampling,
                                        .tools_fallback = m->tools_fallback,
                                        .group = cfg_group_of(cfg, m),
                                        .pin = m->pin,
                                        .preload = m->preload};
    }
    if (rc) {
        cli_free_models(all, cfg->n_models);
        return rc;
    }
    *out = all;
    return 0;
}

int cli_use_model(struct cfg *cfg, char *word, struct cn_error *err)
{
    char self[] = "conifer", flag[] = "--model", *args[] = {self, flag, word, NULL};
    int n = 3;

    return cfg_from_args(cfg, &n, args, err);
}
