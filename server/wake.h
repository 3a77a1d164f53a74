/* What wakes the loop from other threads. It is no uv_async_t: libuv's loop waits, spinning, for a
 * thread that is inside uv_async_send, and that thread is often the one whose processor the woken
 * loop has just taken. Each such meeting took a time slice of the machine's, some milliseconds. */
#ifndef SERVER_WAKE_H
#define SERVER_WAKE_H

#include <stdbool.h>
#include <uv.h>

struct srv_wake {
    uv_poll_t poll;
    int from, to; /* file descriptors: the loop reads, senders write; open while `opened` */
    bool opened;
};

/* 0, or CN_EIO where the process has no descriptor left. */
int srv_wake_open(struct srv_wake *w);
/* The loop polls from now on; what was sent before wakes it as well. 0, or libuv's error. The
 * handle is closed with the loop's others. */
int srv_wake_start(struct srv_wake *w, uv_loop_t *loop);
/* Ends the loop's wait, or keeps it from waiting. Any thread, between open and fini; never blocks.
 */
void srv_wake_send(const struct srv_wake *w);
/* When the loop has closed its handles, and no thread sends any more. Takes one never opened. */
void srv_wake_fini(struct srv_wake *w);

#endif
