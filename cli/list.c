/* conifer list and conifer rm: the models of the folder and of the catalog. Main thread. */
#include "cli/pull.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct entry {
    char *name, *file;
    const struct cfg_model *known;
    uint64_t bytes;
    int64_t modified_s;
    unsigned parts, missing;
    char quant[24], family[64];
};

static const struct cfg_model *known_file(const char *file)
{
    size_t n;
    const struct cfg_model *m = cfg_catalog(&n);

    for (size_t i = 0; i < n; i++)
        if (!strcmp(m[i].file, file)) return &m[i];
    return NULL;
}

/* general.file_type as GGUF numbers it; the types of the tensors differ within a file. */
static const char *type_name(uint64_t type)
{
    static const char *const names[] = {
        [0] = "F32",     [1] = "F16",     [2] = "Q4_0",    [3] = "Q4_1",     [7] = "Q8_0",
        [8] = "Q5_0",    [9] = "Q5_1",    [10] = "Q2_K",   [11] = "Q3_K_S",  [12] = "Q3_K_M",
        [13] = "Q3_K_L", [14] = "Q4_K_S", [15] = "Q4_K_M", [16] = "Q5_K_S",  [17] = "Q5_K_M",
        [18] = "Q6_K",   [21] = "Q2_K_S", [22] = "IQ3_XS", [23] = "IQ3_XXS", [25] = "IQ4_NL",
        [26] = "IQ3_S",  [27] = "IQ3_M",  [30] = "IQ4_XS", [32] = "BF16",    [36] = "TQ1_0",
        [37] = "TQ2_0",  [38] = "MXFP4"};

    return type < CN_ARRAY_LEN(names) && names[type] ? names[type] : "?";
}

static void put_word(char *out, size_t size, struct eng_str s)
{
    size_t n = CN_MIN(s.n, size - 1);

    for (size_t i = 0; i < n; i++)
        out[i] = s.p[i] > 0x20 && s.p[i] < 0x7f ? s.p[i] : '?';
    out[n] = '\0';
}

/* Reads family and quantisation from the file: "?" if unknown, "damaged" if it cannot be read. */
static void read_kind(struct entry *e, const char *path)
{
    struct eng_gguf *g;
    struct eng_str s;
    uint64_t type;

    snprintf(e->quant, sizeof e->quant, "?");
    snprintf(e->family, sizeof e->family, "?");
    if (e->missing) return;
    if (eng_gguf_open(path, &g, NULL)) {
        snprintf(e->family, sizeof e->family, "damaged");
        return;
    }
    if (!eng_gguf_str(g, "general.architecture", &s, NULL))
        put_word(e->family, sizeof e->family, s);
    if (!eng_gguf_u64(g, "general.file_type", &type, NULL))
        snprintf(e->quant, sizeof e->quant, "%s", type_name(type));
    eng_gguf_close(g);
    if (e->known && *e->quant == '?') snprintf(e->quant, sizeof e->quant, "%s", e->known->quant);
}

/* Adds size and time of all parts; false if the first is not a file. */
static bool measure(struct entry *e, const char *dir)
{
    struct stat st;

    e->parts = cli_split_parts(e->file);
    for (unsigned i = 0; i < e->parts; i++) {
        char *file = cli_split_name(e->file, i, e->parts),
             *path = file ? cli_join(dir, file) : NULL;
        bool there = path && !stat(path, &st) && S_ISREG(st.st_mode);
        free(file);
        free(path);
        if (!there && i == 0) return false;
        e->missing += !there;
        if (!there) continue;
        e->bytes += (uint64_t)st.st_size;
        e->modified_s = CN_MAX(e->modified_s, (int64_t)st.st_mtime);
    }
    return true;
}

static void entry_fini(struct entry *e)
{
    free(e->name);
    free(e->file);
}

/* Makes the entry of a file of the folder; false if the file has none of its own. */
static bool make_entry(struct entry *e, const char *dir, const char *file)
{
    size_t len = strlen(file);

    memset(e, 0, sizeof *e);
    if (len < 6 || strcmp(file + len - 5, ".gguf") || !cfg_model_name_ok(file)) return false;
    char *first = cli_split_name(file, 0, cli_split_parts(file));
    bool is_first = first && !strcmp(first, file);
    free(first);
    if (!is_first) return false;
    e->known = known_file(file);
    e->name = e->known ? strdup(e->known->name) : strndup(file, len - 5);
    e->file = strdup(file);
    char *path = cli_join(dir, file);
    bool ok = e->name && e->file && path && measure(e, dir);
    if (ok) read_kind(e, path);
    free(path);
    if (!ok) entry_fini(e);
    return ok;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

static int read_folder(const char *dir, struct entry **out, size_t *count, struct cn_error *err)
{
    struct entry *list = NULL;
    size_t n = 0, cap = 0;
    DIR *d = opendir(dir);
    int rc = 0;

    if (!d && errno != ENOENT) return cn_fail(err, CN_EIO, "%s: %s", dir, strerror(errno));
    for (struct dirent *e; d && !rc && (e = readdir(d));)
        if (cn_grow(&list, &cap, n + 1, sizeof *list))
            rc = cn_fail(err, CN_ENOMEM, "out of memory");
        else if (make_entry(&list[n], dir, e->d_name))
            n++;
    if (d) closedir(d);
    if (n) qsort(list, n, sizeof *list, by_name);
    *out = list;
    *count = n;
    return rc;
}

static bool has(const struct entry *list, size_t n, const struct cfg_model *m)
{
    for (size_t i = 0; i < n; i++)
        if (list[i].known == m) return true;
    return false;
}

/* Bytes of a file's partial download; 0 if there is none. */
static uint64_t begun(const char *dir, const char *file)
{
    char *path = cli_join(dir, file), *part = path ? cli_suffixed(path, ".part") : NULL;
    struct stat st;
    uint64_t n = part && !stat(part, &st) ? (uint64_t)st.st_size : 0;

    free(path);
    free(part);
    return n;
}

/* ---- as a table ------------------------------------------------------------------------------ */

static void print_installed(const struct entry *list, size_t n)
{
    int width = 4;
    char size[32], when[32];

    for (size_t i = 0; i < n; i++)
        width = CN_MAX(width, (int)strlen(list[i].name));
    printf("%-*s  %9s  %-8s %-16s %s\n", width, "NAME", "SIZE", "QUANT", "FAMILY", "MODIFIED");
    for (size_t i = 0; i < n; i++) {
        const struct entry *e = &list[i];
        time_t t = (time_t)e->modified_s;
        struct tm tm;
        strftime(when, sizeof when, "%Y-%m-%d %H:%M", localtime_r(&t, &tm));
        printf("%-*s  %9s  %-8s %-16s %s", width, e->name, cli_bytes(e->bytes, size), e->quant,
               e->family, when);
        if (e->missing) printf("  %u of %u files are missing", e->missing, e->parts);
        putchar('\n');
    }
}

/* Prints partial downloads of files that are not in the catalog: they take room and can be
 * resumed. */
static void print_begun(const char *dir)
{
    static const char end[] = ".gguf.part";
    DIR *d = opendir(dir);
    char size[32];
    bool first = true;

    for (struct dirent *e; d && (e = readdir(d));) {
        size_t len = strlen(e->d_name), stem = len - (sizeof end - 1);
        if (len < sizeof end || strcmp(e->d_name + stem, end)) continue;
        char *file = strndup(e->d_name, len - strlen(".part"));
        if (file && cfg_model_name_ok(file) && !known_file(file)) {
            if (first)
                printf(
                    "\nIncomplete; the same conifer pull resumes, conifer rm NAME removes it:\n");
            first = false;
            printf("%.*s: %s so far\n", (int)stem, file, cli_bytes(begun(dir, file), size));
        }
        free(file);
    }
    if (d) closedir(d);
}

static void print_catalog(const char *dir, const struct entry *list, size_t n)
{
    size_t n_catalog;
    const struct cfg_model *m = cfg_catalog(&n_catalog);
    char size[32], part[32];
    bool first = true;

    for (size_t i = 0; i < n_catalog; i++) {
        if (has(list, n, &m[i])) continue;
        if (first) printf("\nNot here; conifer pull NAME fetches one:\n");
        if (first)
            printf("%-24s %9s  %-8s %-16s %s\n", "NAME", "SIZE", "QUANT", "FAMILY", "LICENCE");
        first = false;
        printf("%-24s %9s  %-8s %-16s %s", m[i].name,
               m[i].bytes ? cli_bytes(m[i].bytes, size) : "?", m[i].quant, m[i].family,
               m[i].licence);
        if (*m[i].note) printf("; %s", m[i].note);
        if (!cli_runs_family(m[i].family)) printf("; this version does not run it yet");
        uint64_t done = begun(dir, m[i].file);
        if (done) printf("; %s of it are here", cli_bytes(done, part));
        putchar('\n');
    }
}

/* ---- as JSON --------------------------------------------------------------------------------- */

static int print_json(const char *dir, const struct entry *list, size_t n, bool installed)
{
    json_t *all = json_array();
    size_t n_catalog;
    const struct cfg_model *m = cfg_catalog(&n_catalog);

    for (size_t i = 0; i < n; i++)
        json_array_append_new(
            all, json_pack("{s:s, s:s, s:b, s:I, s:s, s:s, s:I, s:b, s:b}", "name", list[i].name,
                           "file", list[i].file, "installed", 1, "bytes", (json_int_t)list[i].bytes,
                           "quantisation", list[i].quant, "family", list[i].family, "modified",
                           (json_int_t)list[i].modified_s, "complete", list[i].missing == 0,
                           "runnable", cli_runs_family(list[i].family)));
    for (size_t i = 0; i < n_catalog && !installed; i++)
        if (!has(list, n, &m[i]))
            json_array_append_new(
                all, json_pack("{s:s, s:s, s:b, s:I, s:s, s:s, s:s, s:s, s:b, s:I}", "name",
                               m[i].name, "file", m[i].file, "installed", 0, "bytes",
                               (json_int_t)m[i].bytes, "quantisation", m[i].quant, "family",
                               m[i].family, "licence", m[i].licence, "source", m[i].source,
                               "runnable", cli_runs_family(m[i].family), "fetched_bytes",
                               (json_int_t)begun(dir, m[i].file)));
    return cli_put_json(all);
}

int cli_list(int argc, char **argv)
{
    static const struct option options[] = {{"installed", no_argument, NULL, 'i'},
                                            {"json", no_argument, NULL, 'j'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    struct cn_error err = {0};
    struct entry *list = NULL;
    bool json = false, installed = false;
    size_t n = 0;
    int opt, status = 0;

    optind = 0;
    while ((opt = cli_option(argv[0], argc, argv, options)) != -1) {
        if (opt == 'j') json = true;
        if (opt == 'i') installed = true;
        if (opt == 'h')
            puts(
                "usage: conifer list [--installed] [--json]\n\n"
                "The models of the models folder, then those of the catalog that are not in it.\n\n"
                "  --installed            those of the folder alone\n"
                "  --json                 as a JSON list (docs/TERMINAL.md)");
        if (opt == 'h' || opt == '?') return opt == 'h' ? 0 : 2;
    }
    if (optind < argc) return cli_usage(argv[0], "unexpected argument %s", argv[optind]);
    char *dir = cfg_models_dir();
    int rc = dir ? read_folder(dir, &list, &n, &err) : cn_fail(&err, CN_ENOMEM, "out of memory");
    if (rc) {
        status = cli_error(argv[0], &err);
    } else if (json) {
        status = print_json(dir, list, n, installed);
    } else {
        if (n)
            print_installed(list, n);
        else
            printf("There is no model in %s yet.\n", dir);
        print_begun(dir);
        if (!installed) print_catalog(dir, list, n);
    }
    for (size_t i = 0; i < n; i++)
        entry_fini(&list[i]);
    free(list);
    free(dir);
    return status;
}

/* ---- rm -------------------------------------------------------------------------------------- */

/* Removes path + suffix and adds its size to *freed, unless NULL. False if it was not there. */
static bool drop(const char *path, const char *suffix, uint64_t *freed, struct cn_error *err)
{
    char *name = cli_suffixed(path, suffix);
    struct stat st;
    bool there = name && !lstat(name, &st) && !S_ISDIR(st.st_mode);

    if (there && unlink(name)) {
        cn_fail(err, CN_EIO, "%s: %s", name, strerror(errno));
        there = false;
    } else if (there && freed) {
        *freed += (uint64_t)st.st_size;
    }
    free(name);
    return there;
}

/* The file that a name means: the catalog's, else <name>.gguf, or the name itself if it ends so. */
static char *file_of(const char *dir, const char *name)
{
    const struct cfg_model *m = cfg_catalog_find(name);
    char *path = NULL, *file;

    if (!cfg_find_model(dir, name, &path, NULL)) {
        file = strdup(strrchr(path, '/') + 1);
        free(path);
        return file;
    }
    size_t n = strlen(name);
    if (m) return strdup(m->file);
    return n > 5 && !strcmp(name + n - 5, ".gguf") ? strdup(name) : cli_suffixed(name, ".gguf");
}

static int not_here(const char *name, const char *dir, struct cn_error *err)
{
    struct cn_buf near;

    cn_buf_init(&near, 0);
    cli_suggest(NULL, name, false, &near);
    const char *meant = near.len ? cn_buf_cstr(&near) : NULL;
    cn_fail_param(err, CN_EMODEL, "model",
                  "there is no model \"%.128s\" in %.200s%s%.100s%s conifer list --installed shows "
                  "what there is",
                  name, dir, meant ? "; did you mean " : ";", meant ? meant : "", meant ? "?" : "");
    cn_buf_fini(&near);
    return CN_EMODEL;
}

static int remove_model(const char *dir, const char *name, struct cn_error *err)
{
    /* a download, then the notes about it, alternately */
    static const char *const suffixes[] = {"", ".verified", ".part", ".part.state"};
    char *file = file_of(dir, name), size[32];
    const struct cfg_model *m = file ? known_file(file) : NULL;
    bool pypi = m && !strncmp(m->source, "pypi:", 5);
    unsigned removed = 0, parts = file ? cli_split_parts(file) : 1;
    struct cli_lock lock;
    uint64_t freed = 0;
    struct stat st;

    if (!file) return cn_fail(err, CN_ENOMEM, "out of memory");
    if (stat(dir, &st)) {
        free(file);
        return not_here(name, dir, err);
    }
    int rc = cli_lock(&lock, dir, pypi ? m->name : file, pypi, false, err);
    for (unsigned i = 0; !rc && i < parts; i++) {
        char *part = cli_split_name(file, i, parts), *path = part ? cli_join(dir, part) : NULL;
        err->code = 0;
        for (size_t k = 0; path && k < CN_ARRAY_LEN(suffixes); k++)
            removed += drop(path, suffixes[k], k % 2 ? NULL : &freed, err);
        if (!path) cn_fail(err, CN_ENOMEM, "out of memory");
        rc = err->code;
        free(part);
        free(path);
    }
    if (lock.fd >= 0) cli_unlock(&lock);
    if (!rc && !removed) rc = not_here(name, dir, err);
    if (!rc) printf("%s: %s freed\n", name, cli_bytes(freed, size));
    free(file);
    return rc;
}

int cli_rm(int argc, char **argv)
{
    static const struct option options[] = {{"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    struct cn_error err = {0};
    char *dir;
    int opt, status = 0;

    optind = 0;
    while ((opt = cli_option(argv[0], argc, argv, options)) != -1) {
        if (opt == 'h')
            puts("usage: conifer rm NAME [NAME ...]\n\n"
                 "Removes models of the models folder, and what was fetched of them so far.");
        return opt == 'h' ? 0 : 2;
    }
    if (optind == argc) return cli_usage(argv[0], "which model?");
    for (int i = optind; i < argc; i++)
        if (!cfg_model_name_ok(argv[i]))
            return cli_usage(argv[0],
                             "%s is no model's name: letters, digits, '.', '_' and '-' make one",
                             argv[i]);
    if (!(dir = cfg_models_dir())) return cli_usage(argv[0], "out of memory");
    for (int i = optind; i < argc; i++)
        if (remove_model(dir, argv[i], &err)) status = cli_error(argv[0], &err);
    free(dir);
    return status;
}
