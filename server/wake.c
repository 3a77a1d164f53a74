/* Wakes the loop by an eventfd, or by a pipe where the system has no eventfd. */
#include "server/wake.h"

#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/eventfd.h>

static int open_both(struct srv_wake *w)
{
    w->from = w->to = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return w->from < 0 ? CN_EIO : 0;
}
#else
static int open_both(struct srv_wake *w)
{
    int fds[2];

    if (pipe(fds)) return CN_EIO;
    for (int i = 0; i < 2; i++) {
        fcntl(fds[i], F_SETFL, O_NONBLOCK);
        fcntl(fds[i], F_SETFD, FD_CLOEXEC);
    }
    w->from = fds[0];
    w->to = fds[1];
    return 0;
}
#endif

/* The mail is looked at before the next poll: here only what was sent is taken away. */
static void on_readable(uv_poll_t *p, int status, int events)
{
    const struct srv_wake *w = CN_CONTAINER(p, struct srv_wake, poll);
    uint64_t sent[8];

    while (read(w->from, sent, sizeof sent) < 0 && errno == EINTR) {
    }
}

int srv_wake_open(struct srv_wake *w)
{
    int rc = open_both(w);

    w->opened = rc == 0;
    return rc;
}

int srv_wake_start(struct srv_wake *w, uv_loop_t *loop)
{
    int rc = uv_poll_init(loop, &w->poll, w->from);

    return rc ? rc : uv_poll_start(&w->poll, UV_READABLE, on_readable);
}

void srv_wake_send(const struct srv_wake *w)
{
    const uint64_t one = 1;

    /* A pipe that is full wakes as well. */
    while (write(w->to, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

void srv_wake_fini(struct srv_wake *w)
{
    if (!w->opened) return;
    w->opened = false;
    close(w->from);
    if (w->to != w->from) close(w->to);
}
