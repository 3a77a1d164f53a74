/* conifer pull, and what `run` and `serve` pull before they begin. Main thread. */
#include "cli/pull.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TREE_LIMIT = 16 << 20 };

volatile sig_atomic_t cli_pull_stopped;

static void on_stop(int signum)
{
    cli_pull_stopped = 1;
}

/* ---- one model ------------------------------------------------------------------------------- */

struct want {
    const struct cfg_model *known; /* NULL: not of the catalog */
    struct cli_source source;
    const char *file;   /* in the models folder; the first part of a split one */
    const char *sha256; /* "" or NULL: not known beforehand */
    char *dir;
    struct cli_net *net;
};

/* 1: the file is there and right. 0: it is to be fetched. Negative: an error. */
static int is_there(const struct want *w, const char *path, const char *label, struct cn_error *err)
{
    char sha[65], *from = NULL;
    struct stat st;
    bool known = w->sha256 && *w->sha256;

    if (stat(path, &st)) return 0;
    if (!S_ISREG(st.st_mode)) return cn_fail(err, CN_EIO, "%s is no file", path);
    bool stamped = cli_stamp_read(path, sha, &from);
    bool other = stamped && from && strcmp(from, w->source.text) != 0;
    if (other && !known)
        cn_fail(err, CN_EBUSY, "%s is there already, from %.200s: conifer rm removes it", label,
                from);
    free(from);
    if (!known) return other ? CN_EBUSY : 1;
    if (stamped && !strcmp(sha, w->sha256)) return 1;
    if (!w->known || (uint64_t)st.st_size == w->known->bytes) {
        if (!stamped) {
            int rc = cli_sha256_file(path, label, sha, err);
            if (rc) return rc;
        }
        if (!strcmp(sha, w->sha256)) {
            cli_stamp_write(path, sha, w->known ? NULL : w->source.text);
            return 1;
        }
    }
    if (!w->known)
        return cn_fail(err, CN_EBUSY,
                       "%s is there already with another sha256, %s: conifer rm "
                       "removes it",
                       label, sha);
    fprintf(stderr, "%s: what is there is not what the catalog knows; fetching it again\n", label);
    return 0;
}

/* For a file that the hub does not have: takes one whose name differs only in case. CN_ENOENT,
 * with the names that the hub has, if there is none. */
static int find_on_hub(struct want *w, struct cn_error *err)
{
    struct cn_buf url, page;
    struct cli_head head;
    struct cn_error why = {0};
    json_t *root = NULL, *item;
    char names[400] = "", *found = NULL;
    size_t i, n = 0;

    cn_buf_init(&url, 0);
    cn_buf_init(&page, 0);
    cn_buf_printf(&url, "%s/api/models/%s/tree/%s?recursive=true", w->net->endpoint, w->source.repo,
                  w->source.revision);
    int rc = cn_buf_cstr(&url) ? 0 : CN_ENOMEM;
    if (!rc) rc = cli_http_text(w->net, url.data, NULL, TREE_LIMIT, &page, &head, &why);
    if (!rc) root = json_loadb(page.data, page.len, 0, NULL);
    json_array_foreach(root, i, item)
    {
        const char *path = json_string_value(json_object_get(item, "path"));
        size_t len = path ? strlen(path) : 0;
        if (len < 6 || strcasecmp(path + len - 5, ".gguf")) continue;
        if (!strcasecmp(path, w->source.path) && !found) found = strdup(path);
        bool clean = cn_utf8_valid_len(path, len) == len;
        for (size_t k = 0; k < len; k++)
            if ((unsigned char)path[k] < 0x20 || path[k] == 0x7f) clean = false;
        if (clean && n + len + 3 < sizeof names)
            n += (size_t)snprintf(names + n, sizeof names - n, n ? ", %s" : "%s", path);
    }
    json_decref(root);
    cn_buf_fini(&url);
    cn_buf_fini(&page);
    if (found && strcmp(found, w->source.path) &&
        cli_split_parts(found) == cli_split_parts(w->source.path)) {
        free(w->source.path);
        w->source.path = found;
        return 0;
    }
    free(found);
    if (*names)
        return cn_fail(err, CN_ENOENT, "%.100s has no %.100s; it has %s", w->source.repo,
                       w->source.path, names);
    return CN_ENOENT;
}

static int fetch_part(struct want *w, unsigned i, const char *path, const char *label,
                      struct cn_error *err)
{
    struct cli_fetch f = {.net = w->net, .path = path, .label = label, .gguf = true};
    bool exact = w->sha256 && *w->sha256, asked = false;
    int rc;

    f.sha256 = exact ? w->sha256 : NULL;
    f.bytes = exact && w->known ? w->known->bytes : 0;
    for (;;) {
        char *url = cli_source_part_url(&w->source, w->net->endpoint, i);
        f.url = url;
        rc = url ? cli_fetch_file(&f, err) : cn_fail(err, CN_ENOMEM, "out of memory");
        free(url);
        if (rc != CN_ENOENT || w->source.kind != CLI_SRC_HUB || asked) break;
        asked = true;
        if ((rc = find_on_hub(w, err))) break;
    }
    if (rc) return rc;
    cli_stamp_write(path, f.got, w->source.text);
    fprintf(stderr, "%s: sha256 %s%s\n", label, f.got,
            f.checked ? ", as it must be" : " (there was none to compare it with)");
    return 0;
}

/* The last part comes first: the model is there once its first file is. */
static int pull_files(struct want *w, struct cn_error *err)
{
    unsigned parts = cli_split_parts(w->file);
    int rc = 0;

    for (unsigned i = parts; !rc && i-- > 0;) {
        char *file = cli_split_name(w->file, i, parts),
             *path = file ? cli_join(w->dir, file) : NULL;

        rc = path ? is_there(w, path, file, err) : cn_fail(err, CN_ENOMEM, "out of memory");
        if (rc == 0 && w->source.kind == CLI_SRC_PYPI) {
            rc = cli_fetch_pypi(w->net, w->known, w->dir, path, err);
            if (!rc) cli_stamp_write(path, w->known->sha256, NULL);
        } else if (rc == 0) {
            rc = fetch_part(w, i, path, file, err);
        } else if (rc == 1) {
            rc = 0;
        }
        free(file);
        free(path);
    }
    return rc;
}

bool cli_runs_family(const char *family)
{
    size_t n = strlen(family);

    for (const char *s = eng_arch_list(); *s; s += strspn(s, ", ")) {
        size_t len = strcspn(s, ", ");
        if (len == n && !strncmp(s, family, n)) return true;
        s += len;
    }
    return false;
}

static void announce(const struct want *w)
{
    const struct cfg_model *m = w->known;
    char size[32];

    if (!m) {
        fprintf(stderr, "%s from %s, into %s\n", w->file, w->source.text, w->dir);
        return;
    }
    fprintf(stderr, "%s: %s%s, %s, licence: %s; from %.*s, into %s\n", m->name,
            *m->sha256 ? "" : "about ", cli_bytes(m->bytes, size), m->quant, m->licence,
            (int)strcspn(w->source.text, " "), w->source.text, w->dir);
    if (!cli_runs_family(m->family))
        fprintf(stderr, "%s: this version does not run the family %s yet\n", m->name, m->family);
}

/* Everything but the names: folder, lock, files. *path is returned owned. */
static int pull_wanted(struct want *w, bool say, char **path, struct cn_error *err)
{
    bool pypi = w->source.kind == CLI_SRC_PYPI, complete = true;
    unsigned parts = cli_split_parts(w->file);
    struct cli_lock lock;
    int rc = cli_make_folder(w->dir, err);

    if (!rc) rc = cli_lock(&lock, w->dir, pypi ? w->known->name : w->file, pypi, true, err);
    if (rc) return rc;
    for (unsigned i = 0; i < parts; i++) {
        char *file = cli_split_name(w->file, i, parts),
             *full = file ? cli_join(w->dir, file) : NULL;
        if (!full || access(full, F_OK)) complete = false;
        free(file);
        free(full);
    }
    if (!complete) announce(w);
    rc = pull_files(w, err);
    cli_unlock(&lock);
    if (rc) return rc;
    if (complete && say) fprintf(stderr, "%s is there already\n", w->file);
    *path = cli_join(w->dir, w->file);
    return *path ? 0 : cn_fail(err, CN_ENOMEM, "out of memory");
}

static int unknown(const char *word, struct cn_error *err)
{
    struct cn_buf near;

    cn_buf_init(&near, 0);
    cli_suggest(NULL, word, true, &near);
    const char *names = near.len ? cn_buf_cstr(&near) : NULL;
    int rc = cn_fail_param(
        err, CN_EMODEL, "model",
        "the catalog has no model \"%.128s\"%s%s%s conifer list shows all it has; any "
        "other is fetched as hf:ORG/REPOSITORY/FILE.gguf, or by its URL",
        word, names ? "; did you mean " : "", names ? names : "", names ? "?" : ";");
    cn_buf_fini(&near);
    return rc;
}

/* A name or a source, to the model's path (returned owned). */
static int pull_word(struct cli_net *net, const char *word, const char *sha256, bool say,
                     char **path, struct cn_error *err)
{
    const struct cfg_model *m = cfg_catalog_find(word);
    struct want w = {.known = m, .net = net};
    int rc;

    if (!m && !strchr(word, ':')) {
        char *dir = cfg_models_dir();
        rc = dir ? cfg_find_model(dir, word, path, NULL) : CN_ENOMEM;
        free(dir);
        if (rc) return unknown(word, err);
        if (say) fprintf(stderr, "%s is there already\n", word);
        return 0;
    }
    if ((rc = cli_source_parse(m ? m->source : word, &w.source, err))) {
        if (err) err->param[0] = '\0'; /* the message has the word */
        cli_source_fini(&w.source);
        return rc;
    }
    if (!rc && !m && w.source.kind == CLI_SRC_PYPI)
        rc = cn_fail_param(err, CN_EINVAL, "source",
                           "packages are sources of the catalog's own models alone");
    if (!rc && !(w.dir = cfg_models_dir())) rc = cn_fail(err, CN_ENOMEM, "out of memory");
    w.file = m ? m->file : w.source.file;
    w.sha256 = sha256 ? sha256 : m ? m->sha256 : NULL;
    if (!rc && sha256 && cli_split_parts(w.file) > 1)
        rc =
            cn_fail_param(err, CN_EINVAL, "sha256", "--sha256 is of one file; this model is split");
    if (!rc) rc = pull_wanted(&w, say, path, err);
    if (rc) cn_error_wrap(err, "%.200s", w.source.text && !m ? w.source.text : word);
    cli_source_fini(&w.source);
    free(w.dir);
    return rc;
}

/* While something is fetched Ctrl-C ends it in good order, and a full disk or a lost terminal is an
 * error that is seen. */
struct handlers { struct sigaction intr, size; };

static void handlers_set(struct handlers *h)
{
    struct sigaction stop = {.sa_handler = on_stop}, ignore = {.sa_handler = SIG_IGN};

    cli_pull_stopped = 0;
    sigaction(SIGINT, &stop, &h->intr);
    sigaction(SIGXFSZ, &ignore, &h->size);
}

static void handlers_restore(const struct handlers *h)
{
    sigaction(SIGINT, &h->intr, NULL);
    sigaction(SIGXFSZ, &h->size, NULL);
}

int cli_pull_missing(const struct cfg *cfg, struct cn_error *err)
{
    size_t n;
    const struct cfg_model *first = cfg_catalog(&n);
    const char *name = cfg->model.name ? cfg->model.name : first->name;
    const struct cfg_model *m = cfg_catalog_find(name);
    struct cli_net net = {0};
    struct handlers old;
    char *path = NULL, *found = NULL, *called = NULL;

    if (cfg->model.path || !m) return 0; /* what is wrong with it is said when it is looked for */
    if (!cfg_model_file(cfg, &found, &called, NULL)) {
        free(found);
        free(called);
        return 0;
    }
    if (!cli_runs_family(m->family))
        return cn_fail_param(err, CN_EUNSUPP, "model",
                             "%s is of the family %s, which this version does not run yet", name,
                             m->family);
    handlers_set(&old);
    int rc = cli_net_init(&net, err);
    if (!rc) rc = pull_word(&net, name, NULL, false, &path, err);
    cli_net_fini(&net);
    handlers_restore(&old);
    free(path);
    return rc;
}

static void help(void)
{
    puts(
        "usage: conifer pull [options] MODEL [MODEL ...]\n\n"
        "Fetches models into the models folder and prints the path of each. What was cut off goes\n"
        "on where it was, and nothing gets its name before its sha256 is right.\n\n"
        "MODEL is a name of the catalog (conifer list), hf:ORG/REPOSITORY[@REVISION]/FILE.gguf, "
        "or\n"
        "a URL of a GGUF file. One part of a split file stands for all of them.\n\n"
        "  --sha256 HEX           what the one file must be\n"
        "  --stall SECONDS        time without a byte after which it tries again (30)\n"
        "  --retries N            attempts in a row that may bring nothing (8)\n"
        "  -h, --help             this text\n\n"
        "HF_ENDPOINT is the hub (https://huggingface.co), HF_TOKEN its key, sent to it alone;\n"
        "https_proxy and no_proxy are honoured, as are CURL_CA_BUNDLE and PIP_INDEX_URL.");
}

/* 0, or an exit code + 1. */
static int read_options(int argc, char **argv, unsigned *stall_s, unsigned *retries,
                        char sha256[65])
{
    static const struct option options[] = {{"sha256", required_argument, NULL, 's'},
                                            {"stall", required_argument, NULL, 't'},
                                            {"retries", required_argument, NULL, 'r'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    uint64_t n;
    int opt, end = 0, bad = 0;

    optind = 0;
    while (!bad && (opt = cli_option_or_end(argv[0], argc, argv, options, help, &end)) != -1) {
        if (opt == 't' && !(bad = cli_count(argv[0], "stall", optarg, 1, 3600, &n)))
            *stall_s = (unsigned)n;
        if (opt == 'r' && !(bad = cli_count(argv[0], "retries", optarg, 0, 1000, &n)))
            *retries = (unsigned)n;
        if (opt != 's') continue;
        if (strlen(optarg) != 64 || strspn(optarg, "0123456789abcdefABCDEF") != 64)
            bad = cli_usage(argv[0], "--sha256 %s: must be 64 hexadecimal digits", optarg);
        else
            for (int i = 0; i <= 64; i++)
                sha256[i] = (char)tolower((unsigned char)optarg[i]);
    }
    if (end) return end;
    if (!bad && optind == argc) bad = cli_usage(argv[0], "which model? conifer list shows names");
    if (!bad && *sha256 && argc - optind > 1) bad = cli_usage(argv[0], "--sha256 is of one file");
    return bad ? bad + 1 : 0;
}

int cli_pull(int argc, char **argv)
{
    struct cn_error err = {0};
    struct cli_net net = {0};
    struct handlers old;
    char sha256[65] = "";
    unsigned stall_s = CLI_STALL_S, retries = CLI_RETRIES;
    int status = read_options(argc, argv, &stall_s, &retries, sha256);

    if (status) return status - 1;
    int rc = cli_net_init(&net, &err);
    if (rc) status = cli_error(argv[0], &err);
    net.stall_s = stall_s;
    net.retries = retries;
    handlers_set(&old);
    for (int i = optind; !rc && i < argc; i++) {
        char *path = NULL;
        rc = pull_word(&net, argv[i], *sha256 ? sha256 : NULL, true, &path, &err);
        if (!rc) {
            puts(path);
            fflush(stdout);
        } else if (rc == CN_ECANCELLED) {
            fprintf(stderr, "%s: stopped; the same command resumes it\n", argv[0]);
            status = 130;
        } else {
            status = cli_error(argv[0], &err);
        }
        free(path);
    }
    handlers_restore(&old);
    cli_net_fini(&net);
    return status;
}
