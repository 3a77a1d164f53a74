/* Reading whole files. Any thread; holds no state. */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK_BYTES 65536u

static int read_on(int fd, const char *path, size_t max, struct cn_buf *out, struct cn_error *err)
{
    size_t before = out->len;

    while (out->len - before <= max) {
        if (cn_buf_reserve(out, CHUNK_BYTES)) return cn_fail(err, CN_ENOMEM, "out of memory");
        ssize_t got = read(fd, out->data + out->len, CHUNK_BYTES);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return cn_fail(err, CN_EIO, "%s: %s", path, strerror(errno));
        if (got == 0) return 0;
        out->len += (size_t)got;
    }
    return 0;
}

int cn_file_read(const char *path, bool pipes, size_t max, struct cn_buf *out, struct cn_error *err)
{
    int waits = pipes ? 0 : O_NONBLOCK; /* opening a pipe waits for its writer */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | waits), rc = 0;
    struct stat st;

    if (fd < 0) return cn_fail(err, CN_EIO, "%s: %s", path, strerror(errno));
    if (fstat(fd, &st))
        rc = cn_fail(err, CN_EIO, "%s: %s", path, strerror(errno));
    else if (!pipes && !S_ISREG(st.st_mode))
        rc = cn_fail(err, CN_EIO, "%s: not a regular file", path);
    if (!rc) rc = read_on(fd, path, max, out, err);
    close(fd);
    return rc;
}
