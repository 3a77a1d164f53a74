/* The models folder: locks, and stamps beside files that were checked. Main thread.
 * The stamp's first line is the one that tools/fetch_models.py writes, so each spares the other the
 * reading of a file again. */
#include "cli/pull.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

char *cli_suffixed(const char *a, const char *suffix)
{
    size_t n = strlen(a), m = strlen(suffix);
    char *s = cn_malloc_array(n + m + 1, 1);

    if (!s) return NULL;
    memcpy(s, a, n);
    memcpy(s + n, suffix, m + 1);
    return s;
}

char *cli_join(const char *a, const char *b)
{
    char *folder = cli_suffixed(a, "/"), *s = folder ? cli_suffixed(folder, b) : NULL;

    free(folder);
    return s;
}

int cli_make_folder(const char *dir, struct cn_error *err)
{
    char *path = strdup(dir);
    int rc = path ? 0 : cn_fail(err, CN_ENOMEM, "out of memory");

    for (char *p = path; !rc && p; p = strchr(p + 1, '/')) {
        if (p == path) continue;
        *p = '\0';
        if (mkdir(path, 0755) && errno != EEXIST && errno != EISDIR)
            rc = cn_fail(err, CN_EIO, "%s: %s", path, strerror(errno));
        *p = '/';
    }
    if (!rc && mkdir(path, 0755) && errno != EEXIST)
        rc = cn_fail(err, CN_EIO, "%s: %s", path, strerror(errno));
    free(path);
    return rc;
}

/* Whether the open file is still the one of that name: who had the lock may have removed it. */
static bool still_there(int fd, const char *path)
{
    struct stat a, b;
    return !fstat(fd, &a) && !stat(path, &b) && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

int cli_lock(struct cli_lock *l, const char *dir, const char *file, bool keep, bool wait,
             struct cn_error *err)
{
    char *hidden = cli_suffixed(keep ? ".fetch-" : ".", file), *path = NULL;
    bool told = false;

    *l = (struct cli_lock){.fd = -1, .keep = keep};
    if (hidden && (path = cli_join(dir, hidden))) l->path = cli_suffixed(path, ".lock");
    free(hidden);
    free(path);
    if (!l->path) return cn_fail(err, CN_ENOMEM, "out of memory");
    for (;;) {
        l->fd = open(l->path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        if (l->fd < 0) {
            int rc = cn_fail(err, CN_EIO, "%s: %s", l->path, strerror(errno));
            cli_unlock(l);
            return rc;
        }
        int bad = flock(l->fd, LOCK_EX | LOCK_NB);
        if (bad && errno == EWOULDBLOCK && wait) {
            if (!told) fprintf(stderr, "%s: another process is working on it; waiting\n", file);
            told = true;
            bad = flock(l->fd, LOCK_EX);
        }
        if (!bad && still_there(l->fd, l->path)) return 0;
        int reason = bad ? errno : 0;
        close(l->fd);
        l->fd = -1;
        if (!bad) continue;
        int rc = reason == EWOULDBLOCK ? CN_EBUSY : cli_pull_stopped ? CN_ECANCELLED : CN_EIO;
        if (reason == EINTR && !cli_pull_stopped) continue;
        cn_fail(err, rc,
                rc == CN_EBUSY ? "%s is in use by another process" : "%s: it was not locked", file);
        cli_unlock(l);
        return rc;
    }
}

void cli_unlock(struct cli_lock *l)
{
    if (l->fd >= 0) {
        if (!l->keep) unlink(l->path);
        close(l->fd);
    }
    free(l->path);
    *l = (struct cli_lock){.fd = -1};
}

static char *first_line(const char *path, const char *sha256)
{
    struct stat st;
    char text[160];

    if (stat(path, &st)) return NULL;
    snprintf(text, sizeof text, "%s %lld %lld", sha256, (long long)st.st_size,
             (long long)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec);
    return strdup(text);
}

bool cli_stamp_read(const char *path, char sha256[65], char **source)
{
    char *name = cli_suffixed(path, ".verified"), *want = NULL, text[2300] = "";
    FILE *f = name ? fopen(name, "re") : NULL;
    bool ok = false;

    free(name);
    if (!f) return false;
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    char *end = strchr(text, '\n'), *rest = end ? end + 1 : NULL, sha[65];
    if (end) *end = '\0';
    if (end && strspn(text, "0123456789abcdef") == 64) {
        memcpy(sha, text, 64);
        sha[64] = '\0';
        want = first_line(path, sha);
        ok = want && !strcmp(want, text);
    }
    free(want);
    if (ok && sha256) memcpy(sha256, sha, 65);
    if (ok && source) {
        rest[strcspn(rest, "\n")] = '\0';
        *source = *rest ? strdup(rest) : NULL;
    }
    return ok;
}

void cli_stamp_write(const char *path, const char *sha256, const char *source)
{
    char *name = cli_suffixed(path, ".verified"), *line = first_line(path, sha256);
    FILE *f = name && line ? fopen(name, "we") : NULL;

    if (f) {
        fprintf(f, "%s\n", line);
        if (source) fprintf(f, "%.2048s\n", source);
        if (fclose(f)) unlink(name);
    }
    free(name);
    free(line);
}
