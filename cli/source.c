/* Sources of models as text: hf:, http(s):, pypi:. Pure but for memory; any thread.
 * Invariant: `file` is a plain name that ends in .gguf, so nothing can be written outside the
 * models folder. */
#include "cli/pull.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

static bool ends_in_gguf(const char *s)
{
    size_t n = strlen(s);
    return n > 5 && !strcasecmp(s + n - 5, ".gguf");
}

/* Finds "-00002-of-00003.gguf"; *at is where it begins. */
static bool split_at(const char *file, size_t *at, unsigned *parts)
{
    size_t n = strlen(file);
    const char *s = n > 20 ? file + n - 20 : NULL;

    if (!s || s[0] != '-' || strspn(s + 1, "0123456789") != 5 || strncmp(s + 6, "-of-", 4) ||
        strspn(s + 10, "0123456789") != 5 || strcasecmp(s + 15, ".gguf"))
        return false;
    *at = (size_t)(s - file);
    *parts = (unsigned)strtoul(s + 10, NULL, 10);
    unsigned i = (unsigned)strtoul(s + 1, NULL, 10);
    return *parts > 0 && i > 0 && i <= *parts;
}

unsigned cli_split_parts(const char *file)
{
    unsigned parts;
    size_t at;
    return split_at(file, &at, &parts) ? parts : 1;
}

char *cli_split_name(const char *first, unsigned i, unsigned parts)
{
    unsigned n;
    size_t at;
    char *s = strdup(first);

    if (s && parts > 1 && split_at(first, &at, &n)) {
        char number[8];
        snprintf(number, sizeof number, "%05u", (i + 1) % 100000);
        memcpy(s + at + 1, number, 5);
    }
    return s;
}

void cli_source_fini(struct cli_source *s)
{
    free(s->repo);
    free(s->revision);
    free(s->path);
    free(s->url);
    free(s->text);
    free(s->file);
    memset(s, 0, sizeof *s);
}

/* The name a path gives its file; CN_EINVAL when it is no name for the models folder. */
static int take_file(const char *path, struct cli_source *out, struct cn_error *err)
{
    const char *base = strrchr(path, '/');
    unsigned parts = 1;
    size_t at;

    base = base ? base + 1 : path;
    if (!ends_in_gguf(base))
        return cn_fail_param(err, CN_EINVAL, "source", "%.200s: the file must end in .gguf", path);
    if (!cfg_model_name_ok(base))
        return cn_fail_param(err, CN_EINVAL, "source",
                             "%.200s: the file's name may hold only letters, digits, '.', '_' and "
                             "'-', at most 128 of them",
                             base);
    out->parts = split_at(base, &at, &parts) ? parts : 1;
    out->file = cli_split_name(base, 0, out->parts);
    return out->file ? 0 : cn_fail(err, CN_ENOMEM, "out of memory");
}

static bool is_plain(const char *s, size_t n)
{
    return n > 0 && s[0] != '.' && strspn(s, plain) >= n;
}

static bool path_is_clean(const char *path)
{
    for (const char *p = path, *end; *p; p = *end ? end + 1 : end) {
        end = p + strcspn(p, "/");
        if (end == p || (p[0] == '.' && (end - p == 1 || (end - p == 2 && p[1] == '.'))))
            return false;
    }
    for (const unsigned char *p = (const unsigned char *)path; *p; p++)
        if (*p < 0x20 || *p == 0x7f) return false;
    return *path != '\0';
}

static int parse_hub(const char *text, struct cli_source *out, struct cn_error *err)
{
    const char *org = text + 3, *slash = strchr(org, '/'), *repo = slash ? slash + 1 : NULL;
    const char *end = repo ? strchr(repo, '/') : NULL;

    if (!end || !is_plain(org, (size_t)(slash - org)))
        return cn_fail_param(err, CN_EINVAL, "source",
                             "%.200s: a hub's file is written hf:ORG/REPOSITORY/FILE.gguf", text);
    const char *at = memchr(repo, '@', (size_t)(end - repo)), *stop = at ? at : end;
    if (!is_plain(repo, (size_t)(stop - repo)) || (at && !is_plain(at + 1, (size_t)(end - at - 1))))
        return cn_fail_param(err, CN_EINVAL, "source",
                             "%.200s: the repository or its revision is no name", text);
    if (!path_is_clean(end + 1))
        return cn_fail_param(err, CN_EINVAL, "source", "%.200s: no path in a repository", text);
    out->kind = CLI_SRC_HUB;
    out->repo = strndup(org, (size_t)(stop - org));
    out->revision = at ? strndup(at + 1, (size_t)(end - at - 1)) : strdup("main");
    out->path = strdup(end + 1);
    if (!out->repo || !out->revision || !out->path) return cn_fail(err, CN_ENOMEM, "out of memory");
    return take_file(out->path, out, err);
}

static int parse_url(const char *text, struct cli_source *out, struct cn_error *err)
{
    CURLU *u = curl_url();
    char *path = NULL, *host = NULL;
    int rc = 0;

    if (!u) return cn_fail(err, CN_ENOMEM, "out of memory");
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        if (*p <= 0x20 || *p == 0x7f) rc = CN_EINVAL;
    if (rc || curl_url_set(u, CURLUPART_URL, text, 0) ||
        curl_url_get(u, CURLUPART_HOST, &host, 0) ||
        curl_url_get(u, CURLUPART_PATH, &path, CURLU_URLDECODE))
        rc = cn_fail_param(err, CN_EINVAL, "source", "%.200s is not a URL", text);
    out->kind = CLI_SRC_URL;
    if (!rc) rc = take_file(path, out, err);
    if (!rc && !(out->url = strdup(text))) rc = cn_fail(err, CN_ENOMEM, "out of memory");
    curl_free(path);
    curl_free(host);
    curl_url_cleanup(u);
    return rc;
}

/* A URL with part i's number in its path, before a query or fragment; returned owned. */
static char *split_url(const char *url, unsigned i, unsigned parts)
{
    size_t n = strcspn(url, "?#");
    char *path = strndup(url, n), *name = path ? cli_split_name(path, i, parts) : NULL;
    char *out = name ? cli_suffixed(name, url + n) : NULL;

    free(path);
    free(name);
    return out;
}

const char *cli_url_host(const char *url, int *n)
{
    const char *host = strstr(url, "://");

    host = host ? host + 3 : url;
    for (const char *at = host; at < host + strcspn(host, "/?#"); at++)
        if (*at == '@') host = at + 1; /* whose name and password go before it */
    *n = (int)strcspn(host, "/?#");
    return host;
}

/* The source as its first part is written, for all parts of a model come from one source; without a
 * name and password, for it is shown and kept. */
static char *first_text(const struct cli_source *s, const char *text)
{
    char *out = NULL;
    int n;

    if (s->kind == CLI_SRC_PYPI) return strdup(text);
    if (s->kind == CLI_SRC_HUB)
        return s->parts == 1 ? strdup(text) : cli_split_name(text, 0, s->parts);
    out = s->parts == 1 ? strdup(text) : split_url(text, 0, s->parts);
    if (out) {
        char *from = strstr(out, "://") + 3;
        const char *host = cli_url_host(out, &n);
        memmove(from, host, strlen(host) + 1);
    }
    return out;
}

int cli_source_parse(const char *text, struct cli_source *out, struct cn_error *err)
{
    struct cli_source s = {.parts = 1};
    int rc;

    if (!strncmp(text, "hf:", 3))
        rc = parse_hub(text, &s, err);
    else if (!strncasecmp(text, "http://", 7) || !strncasecmp(text, "https://", 8))
        rc = parse_url(text, &s, err);
    else if (!strncmp(text, "pypi:", 5)) {
        s.kind = CLI_SRC_PYPI;
        rc = 0;
    } else {
        rc = cn_fail_param(err, CN_EINVAL, "source",
                           "%.200s is no source: hf:ORG/REPOSITORY/FILE.gguf or a URL", text);
    }
    if (!rc && !(s.text = first_text(&s, text))) rc = cn_fail(err, CN_ENOMEM, "out of memory");
    if (rc)
        cli_source_fini(&s);
    else
        *out = s;
    return rc;
}

char *cli_source_part_file(const struct cli_source *s, unsigned i)
{
    return cli_split_name(s->file, i, s->parts);
}

/* Percent-encodes what a path may not hold as it is; slashes stay. */
static void put_path(struct cn_buf *b, const char *path)
{
    for (const char *p = path; *p; p++)
        if (strchr(plain, *p) || *p == '/' || *p == '~')
            cn_buf_putc(b, *p);
        else
            cn_buf_printf(b, "%%%02X", (unsigned char)*p);
}

char *cli_source_part_url(const struct cli_source *s, const char *endpoint, unsigned i)
{
    struct cn_buf b;
    char *out = NULL;

    if (s->kind != CLI_SRC_HUB) return split_url(s->url, i, s->parts);
    char *path = cli_split_name(s->path, i, s->parts);
    cn_buf_init(&b, 0);
    cn_buf_printf(&b, "%s/%s/resolve/%s/", endpoint, s->repo, s->revision);
    if (path)
        put_path(&b, path);
    else
        b.failed = true;
    free(path);
    if (cn_buf_cstr(&b)) out = strdup(b.data);
    cn_buf_fini(&b);
    return out;
}

static bool origin_of(const char *url, char out[320])
{
    CURLU *u = curl_url();
    char *scheme = NULL, *host = NULL, *port = NULL;
    bool ok = u && !curl_url_set(u, CURLUPART_URL, url, 0) &&
              !curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) &&
              !curl_url_get(u, CURLUPART_HOST, &host, 0) &&
              !curl_url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT);

    if (ok) ok = snprintf(out, 320, "%s://%s:%s", scheme, host, port) < 320;
    curl_free(scheme);
    curl_free(host);
    curl_free(port);
    curl_url_cleanup(u);
    return ok;
}

bool cli_same_origin(const char *a, const char *b)
{
    char x[320], y[320];
    return origin_of(a, x) && origin_of(b, y) && !strcasecmp(x, y);
}
