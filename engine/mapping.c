/* Mapped files that survive being truncated. Any thread may open and close; readers are free.
 *
 * A signal handler can only reach static data, so the ranges live in one static list whose nodes
 * are never freed, only reused: the handler may walk it while another thread changes it.
 * Invariant: a node's range is non-empty exactly while its pages are mapped.
 *
 * No descriptor is kept: a model may have hundreds of files, and descriptors are what connections
 * need. Whether a file changed is asked by its path, which names the same file as at the opening
 * or, when that was replaced or removed, nothing that matters: the mapping has the old one. */
#include "engine/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define AROUND_BYTES 65536u /* that Linux maps at a fault */

struct eng_mapping {
    _Atomic uintptr_t start, end; /* end is a page boundary; 0, 0 when unused */
    atomic_bool damaged;
    struct eng_mapping *next; /* set once, before the node is published */
    uint64_t bytes;
    char *path; /* absolute; NULL: the node is free */
    dev_t dev;
    ino_t ino;
    struct timespec mtime;
};

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct eng_mapping *_Atomic list_head;
static struct sigaction previous_action;
static size_t page_size;

/* Puts zero pages from the missing page to the end of its mapping. Only system calls. */
static bool repair(uintptr_t addr)
{
    for (struct eng_mapping *m = atomic_load(&list_head); m; m = m->next) {
        uintptr_t start = atomic_load(&m->start), end = atomic_load(&m->end);
        if (addr < start || addr >= end) continue;
        uintptr_t page = addr & ~(uintptr_t)(page_size - 1);
        atomic_store(&m->damaged, true);
        return mmap((void *)page, end - page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                    -1, 0) != MAP_FAILED;
    }
    return false;
}

static void on_sigbus(int sig, siginfo_t *info, void *context)
{
    int saved = errno;
    bool done = repair((uintptr_t)info->si_addr);
    errno = saved;
    if (done) return;
    if (previous_action.sa_flags & SA_SIGINFO) {
        previous_action.sa_sigaction(sig, info, context);
    } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
        previous_action.sa_handler(sig);
    } else {
        signal(SIGBUS, SIG_DFL); /* the faulting instruction runs again and ends the process */
    }
}

/* Called at every opening, because other code may have replaced the handler since. Under the
 * list's lock. */
static int install_handler(struct cn_error *err)
{
    struct sigaction now, action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    page_size = (size_t)sysconf(_SC_PAGESIZE);
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, NULL, &now) == 0 && now.sa_sigaction == on_sigbus) return CN_OK;
    previous_action = now;
    if (sigaction(SIGBUS, &action, NULL) != 0)
        return cn_fail(err, CN_EIO, "cannot install a handler for SIGBUS: %s", strerror(errno));
    return CN_OK;
}

/* A free node that is in the list; whose the path is, it becomes under the same lock. */
static struct eng_mapping *free_node(void)
{
    for (struct eng_mapping *m = atomic_load(&list_head); m; m = m->next)
        if (!m->path) return m;
    struct eng_mapping *m = cn_calloc(1, sizeof(*m));
    if (!m) return NULL;
    m->next = atomic_load(&list_head);
    atomic_store(&list_head, m);
    return m;
}

static int map_file(int fd, const char *path, struct eng_mapping **out, struct cn_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0) return cn_fail(err, CN_EIO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return cn_fail(err, CN_EIO, "%s: not a regular file", path);
    if (st.st_size == 0) return cn_fail(err, CN_EFORMAT, "%s: the file is empty", path);
    if ((uint64_t)st.st_size > SIZE_MAX / 2)
        return cn_fail(err, CN_EIO, "%s: too large for this machine's addresses", path);

    char *real = realpath(path, NULL);
    if (!real)
        real = strdup(path); /* a descriptor's name, whose file has none: it stays what it is */
    if (!real) return cn_fail(err, CN_ENOMEM, "out of memory");

    pthread_mutex_lock(&list_lock);
    int rc = install_handler(err);
    struct eng_mapping *m = rc ? NULL : free_node();
    if (!rc && !m) rc = cn_fail(err, CN_ENOMEM, "out of memory");
    if (!rc) {
        size_t bytes = (size_t)st.st_size;
        size_t span = (bytes + page_size - 1) & ~(page_size - 1); /* checked: <= SIZE_MAX / 2 */
        void *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) {
            rc = cn_fail(err, CN_EIO, "%s: cannot be mapped: %s", path, strerror(errno));
        } else {
            m->bytes = bytes;
            m->path = real;
            m->dev = st.st_dev;
            m->ino = st.st_ino;
            m->mtime = st.st_mtim;
            atomic_store(&m->damaged, false);
            atomic_store(&m->end, (uintptr_t)p + span);
            atomic_store(&m->start, (uintptr_t)p);
            *out = m;
        }
    }
    pthread_mutex_unlock(&list_lock);
    if (rc) free(real);
    return rc;
}

int eng_mapping_open(const char *path, struct eng_mapping **out, struct cn_error *err)
{
    /* O_NONBLOCK: opening a pipe by mistake must not hang. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
        struct rlimit limit = {0};
        getrlimit(RLIMIT_NOFILE, &limit);
        return cn_fail(err, CN_EIO,
                       "%s: all of the %llu descriptors are taken (ulimit -n, LimitNOFILE)", path,
                       (unsigned long long)limit.rlim_cur);
    }
    if (fd < 0)
        return cn_fail(err, errno == ENOENT ? CN_ENOENT : CN_EIO, "%s: %s", path, strerror(errno));
    int rc = map_file(fd, path, out, err);
    close(fd);
    return rc;
}

void eng_mapping_close(struct eng_mapping *m)
{
    if (!m) return;
    pthread_mutex_lock(&list_lock);
    void *p = (void *)atomic_load(&m->start);
    atomic_store(&m->start, 0);
    atomic_store(&m->end, 0);
    munmap(p, m->bytes);
    free(m->path);
    m->path = NULL;
    pthread_mutex_unlock(&list_lock);
}

const uint8_t *eng_mapping_data(const struct eng_mapping *m)
{
    return (const uint8_t *)atomic_load(&m->start);
}

uint64_t eng_mapping_bytes(const struct eng_mapping *m)
{
    return m->bytes;
}

void eng_mapping_leave(const struct eng_mapping *m, const void *p, uint64_t n)
{
    uintptr_t start = atomic_load(&m->start), end = atomic_load(&m->end), at = (uintptr_t)p;
    if (at < start || at > end || n > end - at) return;
    /* Who reads a page is given those around it too, also those left before. */
    uintptr_t lo = CN_MAX(at / AROUND_BYTES * AROUND_BYTES, start);
    uintptr_t hi = CN_MIN(((at + n - 1) / AROUND_BYTES + 1) * AROUND_BYTES, end);
    if (n) madvise((void *)lo, hi - lo, MADV_DONTNEED); /* advice: nothing to do when refused */
}

bool eng_mapping_intact(const struct eng_mapping *m)
{
    struct stat st;
    if (atomic_load(&m->damaged)) return false;
    if (stat(m->path, &st) || st.st_dev != m->dev || st.st_ino != m->ino) return true;
    return (uint64_t)st.st_size == m->bytes && st.st_mtim.tv_sec == m->mtime.tv_sec &&
           st.st_mtim.tv_nsec == m->mtime.tv_nsec;
}
