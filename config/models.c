/* The catalog, the models folder, and how a name becomes a file.
 * Any thread; owns nothing. A name never holds a slash, so it cannot leave the folder. */
#include "config/config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct cfg_model catalog[] = {
#define SAMPLING(name, text)
#define MODEL(name, file, family, quant, bytes, sha256, licence, source, note)                     \
    {name, file, family, quant, bytes, sha256, licence, source, note},
#include "config/catalog.def"
#undef MODEL
#undef SAMPLING
};

const struct cfg_model *cfg_catalog(size_t *count)
{
    *count = CN_ARRAY_LEN(catalog);
    return catalog;
}

const struct cfg_model *cfg_catalog_find(const char *name)
{
    for (size_t i = 0; i < CN_ARRAY_LEN(catalog); i++)
        if (!strcmp(catalog[i].name, name)) return &catalog[i];
    return NULL;
}

const struct cfg_model *cfg_catalog_of(const char *path)
{
    const char *base = strrchr(path, '/');
    struct stat st;

    base = base ? base + 1 : path;
    for (size_t i = 0; i < CN_ARRAY_LEN(catalog); i++)
        if (!strcmp(base, catalog[i].file) && !stat(path, &st) &&
            (!*catalog[i].sha256 || (uint64_t)st.st_size == catalog[i].bytes))
            return &catalog[i];
    return NULL;
}

bool cfg_model_name_ok(const char *name)
{
    static const char alphabet[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                   "0123456789._-";
    size_t n = strnlen(name, 129);

    return n > 0 && n <= 128 && name[0] != '.' && strspn(name, alphabet) == n;
}

/* a + b, allocated; NULL when out of memory. */
static char *join(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    char *s = cn_malloc_array(n + m + 1, 1);

    if (!s) return NULL;
    memcpy(s, a, n);
    memcpy(s + n, b, m + 1);
    return s;
}

char *cfg_models_dir(void)
{
    const char *home = getenv("CONIFER_HOME");

    if (home && *home) return join(home, "/models");
    home = getenv("XDG_DATA_HOME");
    if (home && *home == '/') return join(home, "/conifer/models"); /* the XDG rule: absolute */
    home = getenv("HOME");
    if (home && *home) return join(home, "/.local/share/conifer/models");
    return join("/var/lib/conifer", "/models");
}

static bool is_file(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static bool ends_in_gguf(const char *name)
{
    size_t n = strlen(name);

    return n > 5 && !strcmp(name + n - 5, ".gguf");
}

/* dir/file when that is a regular file; NULL with *oom false when not. */
static char *file_in(const char *dir, const char *file, bool *oom)
{
    char *folder = join(dir, "/"), *found = folder ? join(folder, file) : NULL;

    free(folder);
    *oom = !found;
    if (found && !is_file(found)) {
        free(found);
        found = NULL;
    }
    return found;
}

int cfg_find_model(const char *dir, const char *name, char **path, struct cn_error *err)
{
    const struct cfg_model *known = cfg_catalog_find(name);
    char file[160], *found = NULL;
    bool oom = false;

    if (!cfg_model_name_ok(name))
        return cn_fail_param(err, CN_EINVAL, "model",
                             "a model name may hold only letters, digits, '.', '_' and '-', at "
                             "most 128 of them");
    snprintf(file, sizeof file, "%s%s", name, ends_in_gguf(name) ? "" : ".gguf");
    if (known) found = file_in(dir, known->file, &oom);
    if (!found && !oom) found = file_in(dir, file, &oom);
    if (oom) return cn_fail(err, CN_ENOMEM, "out of memory");
    if (found) {
        *path = found;
        return CN_OK;
    }
    if (known)
        return cn_fail_param(err, CN_EMODEL, "model",
                             "model \"%s\" is not in %s yet: conifer pull %s fetches it", name, dir,
                             name);
    return cn_fail_param(err, CN_EMODEL, "model", "there is no model \"%s\" in %s", name, dir);
}

bool cfg_model_is_null(const char *path)
{
    return !strncmp(path, "null", 4) && (!path[4] || path[4] == ':');
}

/* What clients call a file: its name without folder and .gguf. */
static char *name_of(const char *path)
{
    if (cfg_model_is_null(path)) return strdup("null");
    const char *base = strrchr(path, '/');
    size_t n;

    base = base ? base + 1 : path;
    n = strlen(base);
    if (ends_in_gguf(base)) n -= 5;
    return strndup(base, n);
}

int cfg_served_file(const struct cfg_served *m, char **path, struct cn_error *err)
{
    char *dir;
    int rc;

    if (m->path) {
        *path = strdup(m->path);
        return *path ? CN_OK : cn_fail(err, CN_ENOMEM, "out of memory");
    }
    dir = cfg_models_dir();
    rc = dir ? cfg_find_model(dir, m->name, path, err) : cn_fail(err, CN_ENOMEM, "out of memory");
    free(dir);
    return rc;
}

int cfg_model_file(const struct cfg *c, char **path, char **name, struct cn_error *err)
{
    const char *wanted = c->model.name ? c->model.name : catalog[0].name;
    char *dir = NULL, *file = NULL, *called = NULL;
    int rc = CN_OK;

    if (c->model.path) {
        file = strdup(c->model.path);
        called = c->model.name ? strdup(c->model.name) : name_of(c->model.path);
    } else {
        dir = cfg_models_dir();
        if (dir) rc = cfg_find_model(dir, wanted, &file, err);
        if (dir && rc == CN_OK) called = name_of(wanted);
    }
    free(dir);
    if (rc == CN_OK && (!file || !called)) rc = cn_fail(err, CN_ENOMEM, "out of memory");
    if (rc) {
        free(file);
        free(called);
        return rc;
    }
    *path = file;
    *name = called;
    return CN_OK;
}
