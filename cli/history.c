/* The file of the history: see history.h. */
#include "cli/history.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    LONGEST_ENTRY = 64 << 10,
    MOST_BYTES = 1 << 20,
    SLACK_LINES = 200,
    TRIES = 20,
    TRY_US = 10000
};

char *cli_history_path(void)
{
    const char *own = getenv("CONIFER_HISTORY");
    if (own) return *own ? strdup(own) : NULL;

    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char *path = NULL;
    int n = state && *state == '/' ? asprintf(&path, "%s/conifer/history", state) /* the XDG rule */
            : home && *home == '/' ? asprintf(&path, "%s/.local/state/conifer/history", home)
                                   : -1;
    return n < 0 ? NULL : path;
}

/* The folders above the file, for the user alone where they are new. */
static void make_folders(const char *path)
{
    char *copy = strdup(path);

    for (char *p = copy ? strchr(copy + 1, '/') : NULL; p; p = strchr(p + 1, '/')) {
        *p = '\0';
        mkdir(copy, 0700);
        *p = '/';
    }
    free(copy);
}

/* The file, locked; -1 when it cannot be had, also when another one keeps it locked. Another
 * process may have put a shorter one in its place while this one waited. */
static int open_locked(const char *path, int flags)
{
    for (int i = 0; i < TRIES; i++) {
        struct stat a, b;
        int fd = open(path, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
        if (fd < 0) return -1;
        bool ours = !fstat(fd, &a) && S_ISREG(a.st_mode) && a.st_uid == geteuid();
        if (ours && !flock(fd, LOCK_EX | LOCK_NB) && !stat(path, &b) && a.st_ino == b.st_ino &&
            a.st_dev == b.st_dev) {
            if (a.st_mode & 077) fchmod(fd, 0600);
            return fd;
        }
        close(fd);
        if (!ours) return -1;
        usleep(TRY_US);
    }
    return -1;
}

/* The end of the file, from the beginning of a line on; false when it cannot be read. */
static bool read_end(int fd, struct cn_buf *out, bool *cut)
{
    struct stat st;
    char part[65536];
    ssize_t n;

    *cut = !fstat(fd, &st) && st.st_size > MOST_BYTES;
    if (*cut && lseek(fd, st.st_size - MOST_BYTES, SEEK_SET) < 0) return false;
    while ((n = read(fd, part, sizeof part)) > 0 || (n < 0 && errno == EINTR))
        if (n > 0 && (out->len + (size_t)n > 2 * MOST_BYTES || cn_buf_append(out, part, (size_t)n)))
            return false;
    if (n < 0 || !out->len) return false;
    char *first = *cut ? memchr(out->data, '\n', out->len) : NULL;
    if (*cut && !first) return false;
    if (first) {
        size_t gone = (size_t)(first + 1 - out->data);
        memmove(out->data, first + 1, out->len - gone);
        out->len -= gone;
    }
    return true;
}

/* Puts a file with only the text in the place of the one at path. */
static void replace(const char *path, const char *text, size_t n)
{
    char *tmp = NULL;

    if (asprintf(&tmp, "%s.%ld", path, (long)getpid()) < 0) return;
    int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && write(fd, text, n) == (ssize_t)n;
    if (fd >= 0 && close(fd)) ok = false;
    if (fd >= 0 && (!ok || rename(tmp, path))) unlink(tmp);
    free(tmp);
}

void cli_history_load(const char *path, void (*give)(void *arg, const char *entry), void *arg)
{
    int fd = open_locked(path, O_RDONLY);
    struct cn_buf text;
    size_t lines = 0, at = 0;
    bool cut = false;

    if (fd < 0) return;
    cn_buf_init(&text, 0);
    if (read_end(fd, &text, &cut)) {
        for (size_t i = 0; i < text.len; i++)
            lines += text.data[i] == '\n';
        for (size_t skip = lines > CLI_HISTORY_LINES ? lines - CLI_HISTORY_LINES : 0; skip; skip--)
            at = (size_t)((char *)memchr(text.data + at, '\n', text.len - at) + 1 - text.data);
        if (cut || lines > CLI_HISTORY_LINES + SLACK_LINES)
            replace(path, text.data + at, text.len - at);
        while (at < text.len) {
            char *end = memchr(text.data + at, '\n', text.len - at);
            if (!end) break; /* cut off on its way */
            *end = '\0';
            size_t n = (size_t)(end - text.data) - at;
            if (n && cn_utf8_valid_len(text.data + at, n) == n) give(arg, text.data + at);
            at += n + 1;
        }
    }
    cn_buf_fini(&text);
    close(fd);
}

void cli_history_add(const char *path, const char *entry)
{
    struct cn_buf line;
    size_t n = strlen(entry);

    if (!n || n > LONGEST_ENTRY || strchr(entry, '\n')) return;
    make_folders(path);
    int fd = open_locked(path, O_WRONLY | O_APPEND | O_CREAT);
    if (fd < 0) return;
    cn_buf_init(&line, 0);
    cn_buf_append(&line, entry, n);
    cn_buf_putc(&line, '\n');
    off_t before = lseek(fd, 0, SEEK_END);
    bool whole = !line.failed && write(fd, line.data, line.len) == (ssize_t)line.len;
    int undone = whole || before < 0 ? 0 : ftruncate(fd, before);
    (void)undone; /* half a line on a full disk is one bad entry */
    cn_buf_fini(&line);
    close(fd);
}
