/* Where log lines go. Until cn_log_start, the thread that logs a line writes it with one write(2).
 * After that, threads leave lines in a ring and the writer thread writes them; no thread writes
 * while it holds the ring's lock. Only the writer touches the descriptor then, so no other thread
 * waits for a full pipe, a slow disk or the opening of a file.
 *
 * Global, as the level and the format: a process has one log. */
#include "base/log_out.h"
#include "base/log_ring.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RING_BYTES (1u << 20)
#define WRITE_MOST 4096 /* PIPE_BUF: a pipe takes so much at once, so lines stay whole */
#define LAST_NS    1000000000ull

static struct {
    pthread_mutex_t lock;
    pthread_cond_t more, done; /* for the writer; for those who flush */
    struct cn_log_ring ring;
    uint64_t written; /* bytes of the ring that were written, or could not be */
    uint64_t failed;  /* lines that could not be */
    bool waiting, reopen, stop, ended;
    const char *reason, *rest; /* for which it is reopened, and what else its line says */
    pthread_t thread;
    _Atomic bool started; /* lines go to the ring */
    int fd;               /* the file, -1 = standard error; the writer's, once it runs */
    _Atomic bool cut;     /* the last write ended within a line */
    uint64_t unsaid;      /* failed lines no report counted yet; the writer's */
    bool own_failed;      /* the logger's own last line could not be written; likewise */
    char path[4096];      /* fixed once cn_log_open was called */
} out = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

/* Writes all of it; false: it cannot be, now. */
static bool write_all(const char *p, size_t n)
{
    int fd = out.fd >= 0 ? out.fd : STDERR_FILENO;

    while (n > 0) {
        ssize_t done = write(fd, p, n);

        if (done < 0 && errno == EINTR) continue;
        if (done < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) && atomic_load(&out.started)) {
            struct pollfd room = {.fd = fd, .events = POLLOUT};
            if (poll(&room, 1, -1) >= 0 || errno == EINTR) continue;
        }
        if (done <= 0) return false;
        p += done;
        n -= (size_t)done;
        out.cut = n > 0;
    }
    return true;
}

/* Whole lines: after an error in the middle of one, the next begins a line of its own. */
static bool write_lines(const char *p, size_t n)
{
    if (out.cut && !write_all("\n", 1)) return false;
    return write_all(p, n);
}

static void write_own(const char *line, size_t n)
{
    out.own_failed = !write_lines(line, n);
}

/* ---- the file -------------------------------------------------------------------------------- */

/* Opens it without waiting: one that is a pipe without a reader is refused. -1 with errno. */
static int open_file(void)
{
    int fd =
        open(out.path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0640);

    if (fd >= 0) fcntl(fd, F_SETFL, O_APPEND);
    return fd;
}

int cn_log_open(const char *path, struct cn_error *err)
{
    if (strlen(path) >= sizeof out.path)
        return cn_fail_param(err, CN_EINVAL, "log.file", "log.file: the path is too long");
    snprintf(out.path, sizeof out.path, "%s", path);
    int fd = open_file();
    if (fd < 0) {
        int why = errno;
        out.path[0] = '\0';
        return cn_fail_param(err, CN_EIO, "log.file", "log.file: %s cannot be opened: %s", path,
                             strerror(why));
    }
    if (out.fd >= 0) close(out.fd);
    out.fd = fd;
    return 0;
}

static void reopen_file(const char *why, const char *more)
{
    char text[sizeof out.path + 320];
    int fd = open_file();

    if (fd < 0) {
        snprintf(text, sizeof text, "%s: %s cannot be opened (%s): lines go to the old file%s", why,
                 out.path, strerror(errno), more);
        cn_log_compose(CN_LOG_ERROR, text, write_own);
        return;
    }
    if (out.fd >= 0) close(out.fd);
    out.fd = fd;
    out.cut = false;
    snprintf(text, sizeof text, "%s: %s was reopened%s", why, out.path, more);
    cn_log_compose(CN_LOG_INFO, text, write_own);
}

bool cn_log_reopen(const char *why, const char *more)
{
    if (!out.path[0]) return false;
    if (!atomic_load(&out.started)) {
        reopen_file(why, more);
        return true;
    }
    pthread_mutex_lock(&out.lock);
    if (!out.reopen || *more) { /* of two at once, the one that has more to say */
        out.reason = why;
        out.rest = more;
    }
    out.reopen = true;
    pthread_cond_signal(&out.more);
    pthread_mutex_unlock(&out.lock);
    return true;
}

/* ---- the writer ------------------------------------------------------------------------------ */

/* Whether it was written. */
static bool write_report(uint64_t lines)
{
    char text[128];

    snprintf(text, sizeof text,
             "%llu log lines dropped: they could not be written, or not as fast as "
             "they came",
             (unsigned long long)lines);
    out.own_failed = false;
    cn_log_compose(CN_LOG_WARN, text, write_own);
    return !out.own_failed;
}

/* With the lock held, and again when it returns: it is let go while writing. */
static void write_some(void)
{
    char part[CN_LOG_LINE_MAX];
    uint64_t lines, lost, failed = 0;
    size_t n = cn_log_ring_take(&out.ring, part, sizeof part, WRITE_MOST, &lines, &lost);
    uint64_t upto = out.ring.tail;

    pthread_mutex_unlock(&out.lock);
    out.unsaid += lost;
    if (out.unsaid && write_report(out.unsaid)) out.unsaid = 0;
    if (n && !write_lines(part, n)) failed = lines;
    out.unsaid += failed;
    pthread_mutex_lock(&out.lock);
    out.failed += failed;
    out.written = upto;
    pthread_cond_broadcast(&out.done);
}

static void *writer(void *arg)
{
    pthread_mutex_lock(&out.lock);
    for (;;) {
        if (out.ring.head != out.ring.tail || out.ring.lost) {
            write_some();
        } else if (out.reopen) {
            const char *why = out.reason, *rest = out.rest;
            out.reopen = false;
            pthread_mutex_unlock(&out.lock);
            reopen_file(why, rest);
            pthread_mutex_lock(&out.lock);
        } else if (out.stop) {
            break;
        } else {
            out.waiting = true;
            pthread_cond_wait(&out.more, &out.lock);
            out.waiting = false;
        }
    }
    out.ended = true;
    pthread_cond_broadcast(&out.done);
    pthread_mutex_unlock(&out.lock);
    return NULL;
}

int cn_log_start(struct cn_error *err)
{
    pthread_condattr_t attr;
    sigset_t all, before;
    int rc = 0;

    if (atomic_load(&out.started)) return 0;
    if (!out.ring.data) rc = cn_log_ring_init(&out.ring, RING_BYTES);
    if (rc) return cn_fail(err, rc, "out of memory for the log");
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&out.more, NULL);
    pthread_cond_init(&out.done, &attr);
    pthread_condattr_destroy(&attr);
    out.stop = out.ended = out.reopen = false;
    out.written = 0;
    /* A pipe whose reader is gone and a file at its size limit are errors of write, no signals. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&out.thread, NULL, writer, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) return cn_fail(err, CN_ENOMEM, "the log's thread cannot be started");
    pthread_setname_np(out.thread, "log");
    atomic_store(&out.started, true);
    return 0;
}

void cn_log_put(const char *line, size_t n)
{
    if (!atomic_load(&out.started)) {
        if (write_lines(line, n)) return;
        pthread_mutex_lock(&out.lock);
        out.failed++;
        pthread_mutex_unlock(&out.lock);
        return;
    }
    pthread_mutex_lock(&out.lock);
    cn_log_ring_put(&out.ring, line, n);
    if (out.waiting) pthread_cond_signal(&out.more);
    pthread_mutex_unlock(&out.lock);
}

static struct timespec in_ns(uint64_t ns)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t nsec = (uint64_t)t.tv_nsec + ns % 1000000000u;
    t.tv_sec += (time_t)(ns / 1000000000u + nsec / 1000000000u);
    t.tv_nsec = (long)(nsec % 1000000000u);
    return t;
}

/* With the lock held. Lines that others add meanwhile are not waited for. */
static bool flush_until(const struct timespec *end)
{
    uint64_t all = out.ring.head;

    while (out.written < all || (out.ring.lost && out.ring.gap <= all))
        if (pthread_cond_timedwait(&out.done, &out.lock, end)) return false;
    return true;
}

bool cn_log_flush(uint64_t timeout_ns)
{
    struct timespec end = in_ns(timeout_ns);

    if (!atomic_load(&out.started)) return true;
    pthread_mutex_lock(&out.lock);
    bool done = flush_until(&end);
    pthread_mutex_unlock(&out.lock);
    return done;
}

void cn_log_stop(uint64_t timeout_ns)
{
    struct timespec end = in_ns(timeout_ns);

    if (!atomic_load(&out.started)) return;
    pthread_mutex_lock(&out.lock);
    out.stop = true;
    pthread_cond_signal(&out.more);
    while (!out.ended)
        if (pthread_cond_timedwait(&out.done, &out.lock, &end)) break;
    bool ended = out.ended;
    pthread_mutex_unlock(&out.lock);
    if (!ended) {
        pthread_detach(out.thread);
        return;
    }
    pthread_join(out.thread, NULL);
    atomic_store(&out.started, false);
    pthread_mutex_lock(&out.lock);
    out.failed += out.ring.dropped;
    cn_log_ring_fini(&out.ring);
    pthread_mutex_unlock(&out.lock);
    pthread_cond_destroy(&out.more);
    pthread_cond_destroy(&out.done);
}

uint64_t cn_log_dropped(void)
{
    pthread_mutex_lock(&out.lock);
    uint64_t n = out.ring.dropped + out.failed;
    pthread_mutex_unlock(&out.lock);
    return n;
}

void cn_log_last(const char *line, size_t n)
{
    cn_log_put(line, n);
    cn_log_flush(LAST_NS);
}
