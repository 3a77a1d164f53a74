/* Fetches one file over HTTP into the models folder: resumes after a break, retries, checks the
 * sha256 of the whole, and only then gives the file its name. Main thread. Invariants: one .part
 * never has bytes of two versions of a file (the state file next to it names the version, and is
 * written first); a file that fails the check never gets the name. */
#include "cli/pull.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { READ_BYTES = 1 << 20, SPARE_BYTES = 16 << 20, LOOK_BYTES = 64 << 20, FIRST_TRIES = 3 };

struct state { /* of which version the .part is */
    char url[2048], etag[256], modified[64], linked[256];
};
struct job {
    struct cli_fetch *f;
    char *part, *state_path;
    struct state state;
    EVP_MD_CTX *md;
    int fd;
    uint64_t size;        /* of the .part, all of it hashed */
    uint64_t total, best; /* total 0: not known; best: the furthest it ever came */
    uint64_t room;        /* without a total: the size up to which there is room on the disk */
    bool resumed;         /* has bytes of an earlier run */
    bool restart;         /* this attempt showed that it must begin again */
    bool answered;        /* there was a response at all */
    char want[65];        /* sha256 to compare with; "" when there is none */
    struct cli_bar bar;
};

/* ---- the state beside the part --------------------------------------------------------------- */

static void read_state(struct job *j)
{
    FILE *f = fopen(j->state_path, "re");
    char line[2200];

    memset(&j->state, 0, sizeof j->state);
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        if (!strncmp(line, "url ", 4))
            snprintf(j->state.url, sizeof j->state.url, "%.2047s", line + 4);
        else if (!strncmp(line, "etag ", 5))
            snprintf(j->state.etag, sizeof j->state.etag, "%.255s", line + 5);
        else if (!strncmp(line, "modified ", 9))
            snprintf(j->state.modified, sizeof j->state.modified, "%.63s", line + 9);
        else if (!strncmp(line, "linked ", 7))
            snprintf(j->state.linked, sizeof j->state.linked, "%.255s", line + 7);
    }
    if (f) fclose(f);
}

static int write_state(struct job *j, struct cn_error *err)
{
    char *next = cli_suffixed(j->state_path, ".new");
    FILE *f = next ? fopen(next, "we") : NULL;
    bool bad = !f;

    if (f) {
        fprintf(f, "url %s\netag %s\nmodified %s\nlinked %s\n", j->state.url, j->state.etag,
                j->state.modified, j->state.linked);
        bad = fflush(f) || fsync(fileno(f));
        bad = fclose(f) || bad || rename(next, j->state_path);
    }
    int rc = bad ? cn_fail(err, CN_EIO, "%s: %s", j->state_path, strerror(errno)) : 0;
    if (bad && next) unlink(next);
    free(next);
    return rc;
}

static int begin_again(struct job *j, struct cn_error *err)
{
    if (ftruncate(j->fd, 0) || lseek(j->fd, 0, SEEK_SET))
        return cn_fail(err, CN_EIO, "%s: %s", j->part, strerror(errno));
    if (EVP_DigestInit_ex(j->md, EVP_sha256(), NULL) != 1)
        return cn_fail(err, CN_ENOMEM, "out of memory");
    j->size = 0;
    j->resumed = false;
    return 0;
}

/* ---- sha256 ---------------------------------------------------------------------------------- */

static int hash_fd(EVP_MD_CTX *md, int fd, struct cli_bar *bar, uint64_t *size,
                   struct cn_error *err)
{
    uint8_t *buf = cn_malloc_array(READ_BYTES, 1);
    ssize_t n = -1;

    *size = 0;
    if (!buf || EVP_DigestInit_ex(md, EVP_sha256(), NULL) != 1) {
        free(buf);
        return cn_fail(err, CN_ENOMEM, "out of memory");
    }
    while (!cli_pull_stopped && (n = read(fd, buf, READ_BYTES)) > 0) {
        EVP_DigestUpdate(md, buf, (size_t)n);
        *size += (uint64_t)n;
        cli_bar_update(bar, *size);
    }
    int reason = errno;
    free(buf);
    if (cli_pull_stopped) return cn_fail(err, CN_ECANCELLED, "stopped");
    return n < 0 ? cn_fail(err, CN_EIO, "reading it: %s", strerror(reason)) : 0;
}

static void digest_hex(EVP_MD_CTX *md, char out[65])
{
    uint8_t sum[EVP_MAX_MD_SIZE];

    EVP_DigestFinal_ex(md, sum, NULL);
    cn_hex(sum, 32, out);
}

int cli_sha256_file(const char *path, const char *label, char out[65], struct cn_error *err)
{
    struct cli_bar bar;
    struct stat st;
    uint64_t size;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    int rc = 0;

    if (fd < 0 || fstat(fd, &st))
        rc = cn_fail(err, CN_EIO, "%s: %s", path, strerror(errno));
    else if (!md)
        rc = cn_fail(err, CN_ENOMEM, "out of memory");
    if (!rc) {
        cli_bar_start(&bar, label, 0, (uint64_t)st.st_size);
        rc = hash_fd(md, fd, &bar, &size, err);
        cli_bar_end(&bar);
    }
    if (!rc) digest_hex(md, out);
    EVP_MD_CTX_free(md);
    if (fd >= 0) close(fd);
    return rc;
}

/* A hub's ETag of a large file is its sha256. */
static bool sha_of_etag(const char *etag, char out[65])
{
    if (!strncmp(etag, "W/", 2)) return false;
    if (*etag == '"') etag++;
    if (strspn(etag, "0123456789abcdefABCDEF") != 64 || (etag[64] && etag[64] != '"')) return false;
    for (int i = 0; i < 64; i++)
        out[i] = etag[i] >= 'A' && etag[i] <= 'F' ? (char)(etag[i] + 32) : etag[i];
    out[64] = '\0';
    return true;
}

/* ---- an answer ------------------------------------------------------------------------------- */

int cli_room(const char *path, uint64_t need, struct cn_error *err)
{
    struct statvfs fs;
    char *dir = strdup(path), a[32], b[32];
    char *slash = dir ? strrchr(dir, '/') : NULL;
    int rc = 0;

    if (slash) *slash = '\0';
    if (slash && !statvfs(*dir ? dir : "/", &fs)) {
        uint64_t left = (uint64_t)fs.f_bavail * fs.f_frsize;
        if (left < need || left - need < CN_MIN((uint64_t)SPARE_BYTES, need))
            rc = cn_fail(err, CN_ELIMIT,
                         "%s has too little room: %s are needed (%" PRIu64 " bytes), %s are free "
                         "(%" PRIu64 " bytes)",
                         *dir ? dir : "/", cli_bytes(need, a), need, cli_bytes(left, b), left);
    }
    free(dir);
    return rc;
}

/* Whether an answer to Range is of the version that the part is of. */
static bool same_version(const struct job *j, const struct cli_head *h)
{
    if (j->state.linked[0] && h->linked_etag[0] && strcmp(j->state.linked, h->linked_etag))
        return false;
    if (j->state.linked[0] && h->linked_etag[0]) return true; /* other hosts have other ETags */
    if (j->state.etag[0] && h->etag[0]) return !strcmp(j->state.etag, h->etag);
    if (j->state.modified[0] && h->modified[0]) return !strcmp(j->state.modified, h->modified);
    return j->f->sha256 != NULL || h->status == 416;
}

/* The sizes and sums that are said must not contradict each other. */
static int check_claims(struct job *j, const struct cli_head *h, uint64_t total,
                        struct cn_error *err)
{
    const struct cli_fetch *f = j->f;
    char linked[65];
    bool has = sha_of_etag(h->linked_etag, linked);

    if (f->bytes && total && total != f->bytes)
        return cn_fail(err, CN_EFORMAT,
                       "the server's file has %" PRIu64 " bytes, expected are %" PRIu64, total,
                       f->bytes);
    if (h->linked_size >= 0 && total && total != (uint64_t)h->linked_size)
        return cn_fail(err, CN_EIO, "the server sends %" PRIu64 " bytes of a file of %lld", total,
                       (long long)h->linked_size);
    if (has && f->sha256 && strcmp(linked, f->sha256))
        return cn_fail(err, CN_EFORMAT, "the hub's file has sha256 %s, expected is %s", linked,
                       f->sha256);
    snprintf(j->want, sizeof j->want, "%s", f->sha256 ? f->sha256 : has ? linked : "");
    return 0;
}

static int on_head(void *arg, const struct cli_head *h, struct cn_error *err)
{
    struct job *j = arg;
    uint64_t total = 0;
    int rc = 0;

    j->answered = true;
    if (h->status == 206) {
        if (!j->size || h->range_from != (int64_t)j->size || !same_version(j, h)) {
            j->restart = true;
            return cn_fail(err, CN_EIO,
                           h->range_from == (int64_t)j->size
                               ? "the file has changed on the server"
                               : "the server answers with another range than asked for");
        }
        if (h->range_total > 0) total = (uint64_t)h->range_total;
        if (total && h->length >= 0 && j->size + (uint64_t)h->length != total)
            return cn_fail(err, CN_EIO, "the server's range and length do not agree");
    } else if (h->length >= 0) {
        total = (uint64_t)h->length;
    }
    if ((rc = check_claims(j, h, total, err))) return rc;
    if (h->status == 200) {
        if (j->size) cli_bar_note(&j->bar, "%s: from the beginning again", j->f->label);
        if ((rc = begin_again(j, err))) return rc;
    }
    if (!total && h->linked_size > 0) total = (uint64_t)h->linked_size;
    if (!total) total = j->f->bytes;
    j->total = total;
    j->room = j->size;
    if (total > j->size && (rc = cli_room(j->f->path, total - j->size, err))) return rc;
    snprintf(j->state.url, sizeof j->state.url, "%.2047s", j->f->url);
    snprintf(j->state.etag, sizeof j->state.etag, "%s", strncmp(h->etag, "W/", 2) ? h->etag : "");
    snprintf(j->state.modified, sizeof j->state.modified, "%s", h->modified);
    snprintf(j->state.linked, sizeof j->state.linked, "%s", h->linked_etag);
    if ((rc = write_state(j, err))) return rc;
    j->bar.total = j->total;
    return 0;
}

/* A body whose end is not known may have none: it does not fill the disk. */
static int look_for_room(struct job *j, size_t n, struct cn_error *err)
{
    if (j->total || j->size + n <= j->room) return 0;
    j->room = j->size + n + LOOK_BYTES;
    return cli_room(j->f->path, n + LOOK_BYTES, err);
}

static int on_body(void *arg, const void *p, size_t n, struct cn_error *err)
{
    struct job *j = arg;
    const uint8_t *at = p;
    int rc;

    if (j->total && n > j->total - j->size)
        return cn_fail(err, CN_EIO, "the server sends more than the %" PRIu64 " bytes it announced",
                       j->total);
    if (j->f->gguf && j->size == 0 && n >= 4 && memcmp(at, "GGUF", 4))
        return cn_fail(err, CN_EFORMAT, "what the server sends is not a GGUF file");
    if ((rc = look_for_room(j, n, err))) return rc;
    for (size_t left = n; left;) {
        ssize_t k = write(j->fd, at + (n - left), left);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) {
            int reason = errno;
            /* what was written of this piece is not hashed: it goes */
            if (left < n && ftruncate(j->fd, (off_t)j->size)) j->restart = true;
            return cn_fail(err, CN_ELIMIT,
                           "writing byte %" PRIu64 " of %" PRIu64 ": %s. What was fetched is kept: "
                           "the same command resumes it once there is space",
                           j->size, j->total, strerror(reason));
        }
        left -= (size_t)k;
    }
    EVP_DigestUpdate(j->md, p, n);
    j->size += n;
    return 0;
}

static void on_tick(void *arg)
{
    struct job *j = arg;
    cli_bar_update(&j->bar, j->size);
}

/* ---- attempts -------------------------------------------------------------------------------- */

/* 0: all bytes are there. */
static int attempt(struct job *j, struct cli_head *head, struct cn_error *err)
{
    const struct state *s = &j->state;
    struct cli_http q = {.url = j->f->url,
                         .from = j->size,
                         .if_range = s->etag[0]       ? s->etag
                                     : s->modified[0] ? s->modified
                                                      : NULL,
                         .on_head = on_head,
                         .on_body = on_body,
                         .on_tick = on_tick,
                         .arg = j};
    /* A hub sends on to hosts whose own ETags come and go: there its sha256 says it. */
    if (s->linked[0]) q.if_range = NULL;
    int rc = cli_http_get(j->f->net, &q, head, err);

    if (head->status) j->answered = true;
    if (rc) return rc;
    if (head->status == 416) {
        if (j->size && head->range_total == (int64_t)j->size && same_version(j, head))
            return check_claims(j, head, j->size, err);
        j->restart = true;
        return cn_fail(err, CN_EIO, "the server has no byte %" PRIu64 " of it (416)", j->size);
    }
    if (head->status != 200 && head->status != 206)
        return cli_http_refused(j->f->net, j->f->url, head, err);
    if (j->total && j->size < j->total)
        return cn_fail(err, CN_EIO, "cut off after %" PRIu64 " of %" PRIu64 " bytes", j->size,
                       j->total);
    return 0;
}

static int download(struct job *j, struct cn_error *err)
{
    struct cli_head head;
    unsigned failed = 0;

    for (;;) {
        int rc = attempt(j, &head, err);

        if (!rc) return 0;
        bool again =
            rc == CN_ETIMEOUT || (rc == CN_EIO && (head.status < 400 || head.status == 416));
        if (head.status >= 400 && cli_http_again(head.status)) again = true;
        if (!again) return rc;
        if (j->size > j->best) {
            j->best = j->size;
            failed = 0;
        }
        if (failed >= (j->answered ? j->f->net->retries : CN_MIN(j->f->net->retries, FIRST_TRIES)))
            return rc;
        if (head.retry_after_s > 0 && head.retry_after_s <= CLI_MAX_WAIT_S)
            cli_bar_note(&j->bar, "%s: %s; trying again in %lld s, as it asks", j->f->label,
                         err->message, (long long)head.retry_after_s);
        else if (head.retry_after_s <= CLI_MAX_WAIT_S)
            cli_bar_note(&j->bar, "%s: %s; trying again", j->f->label, err->message);
        if (j->restart && (rc = begin_again(j, err))) return rc;
        j->restart = false;
        if ((rc = cli_http_wait(&head, failed++, err))) return rc;
        j->bar.n_past = 0; /* the pause is not the rate */
    }
}

static void drop_part(struct job *j)
{
    unlink(j->part);
    unlink(j->state_path);
}

/* CN_EFORMAT when the sha256 is not what it must be: the part is gone then. */
static int verify(struct job *j, struct cn_error *err)
{
    struct cli_fetch *f = j->f;

    digest_hex(j->md, f->got);
    f->checked = j->want[0] != '\0';
    if ((!f->checked || !strcmp(f->got, j->want)) && (!f->bytes || f->bytes == j->size)) return 0;
    return cn_fail(err, CN_EFORMAT,
                   "%s has sha256 %s after %" PRIu64 " bytes, expected is %s: thrown away",
                   f->label, f->got, j->size, j->want);
}

static int finish(struct job *j, struct cn_error *err)
{
    if (fsync(j->fd) || rename(j->part, j->f->path))
        return cn_fail(err, CN_EIO, "%s: %s", j->f->path, strerror(errno));
    unlink(j->state_path);
    return 0;
}

static int open_part(struct job *j, struct cn_error *err)
{
    struct stat st;

    j->part = cli_suffixed(j->f->path, ".part");
    j->state_path = j->part ? cli_suffixed(j->part, ".state") : NULL;
    j->md = EVP_MD_CTX_new();
    if (!j->state_path || !j->md) return cn_fail(err, CN_ENOMEM, "out of memory");
    j->fd = open(j->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (j->fd < 0 || fstat(j->fd, &st) || !S_ISREG(st.st_mode))
        return cn_fail(err, CN_EIO, "%s: %s", j->part, strerror(j->fd < 0 ? errno : EINVAL));
    read_state(j);
    bool known = j->state.etag[0] || j->state.modified[0] || j->state.linked[0] || j->f->sha256;
    if (!st.st_size || !known || strncmp(j->state.url, j->f->url, sizeof j->state.url - 1)) {
        memset(&j->state, 0, sizeof j->state);
        return begin_again(j, err);
    }
    j->bar.total = (uint64_t)st.st_size;
    int rc = hash_fd(j->md, j->fd, &j->bar, &j->size, err);
    char text[32];
    if (!rc) cli_bar_note(&j->bar, "%s: going on after %s", j->f->label, cli_bytes(j->size, text));
    j->resumed = true;
    j->best = j->size;
    return rc;
}

int cli_fetch_file(struct cli_fetch *f, struct cn_error *err)
{
    struct cn_error why = {0};
    struct job j = {.f = f, .fd = -1};

    if (!err) err = &why;
    cli_bar_start(&j.bar, f->label, 0, 0);
    int rc = open_part(&j, err);
    cli_bar_start(&j.bar, f->label, j.size, 0);
    if (!rc) rc = download(&j, err);
    if (!rc && (rc = verify(&j, err)) && j.resumed) {
        /* the bytes of the earlier run may be what is wrong: once more, from the first one */
        cli_bar_note(&j.bar, "%s: the sha256 is wrong; from the beginning again", f->label);
        memset(&j.state, 0, sizeof j.state);
        rc = begin_again(&j, err);
        j.best = 0;
        if (!rc) rc = download(&j, err);
        if (!rc) rc = verify(&j, err);
    }
    cli_bar_end(&j.bar);
    if (!rc)
        rc = finish(&j, err);
    else if (rc == CN_EFORMAT || (j.fd >= 0 && j.size == 0))
        drop_part(&j);
    if (j.fd >= 0) close(j.fd);
    EVP_MD_CTX_free(j.md);
    free(j.part);
    free(j.state_path);
    return rc;
}
