/* Mailbox: many senders, one receiver. Sending a message hands over its ownership.
 * Invariant: tail points at the last `next` field of the list, or at head when it is empty; every
 * change is under the lock; the wake callback runs outside it. */
#include "base/base.h"

#include <errno.h>
#include <time.h>

int cn_mailbox_init(struct cn_mailbox *m, void (*wake)(void *), void *arg)
{
    m->head = NULL;
    m->tail = &m->head;
    m->wake = wake;
    m->wake_arg = arg;
    if (pthread_mutex_init(&m->lock, NULL)) return CN_ENOMEM;
#ifdef __APPLE__
    int rc = pthread_cond_init(&m->cond, NULL);
#else
    pthread_condattr_t attr;
    int rc = pthread_condattr_init(&attr);
    if (rc == 0) {
        rc = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        if (rc == 0) rc = pthread_cond_init(&m->cond, &attr);
        pthread_condattr_destroy(&attr);
    }
#endif
    if (rc == 0) return CN_OK;
    pthread_mutex_destroy(&m->lock);
    return CN_ENOMEM;
}

void cn_mailbox_fini(struct cn_mailbox *m)
{
    cn_assert(!m->head);
    pthread_cond_destroy(&m->cond);
    pthread_mutex_destroy(&m->lock);
}

void cn_mailbox_post(struct cn_mailbox *m, struct cn_msg *msg)
{
    bool was_empty;

    msg->next = NULL;
    pthread_mutex_lock(&m->lock);
    was_empty = !m->head;
    *m->tail = msg;
    m->tail = &msg->next;
    if (was_empty) pthread_cond_signal(&m->cond);
    pthread_mutex_unlock(&m->lock);
    if (was_empty && m->wake) m->wake(m->wake_arg);
}

struct cn_msg *cn_mailbox_take(struct cn_mailbox *m)
{
    struct cn_msg *list;

    pthread_mutex_lock(&m->lock);
    list = m->head;
    m->head = NULL;
    m->tail = &m->head;
    pthread_mutex_unlock(&m->lock);
    return list;
}

/* Waits on the condition until the monotonic time `end`; false when that has passed. */
static bool wait_until(struct cn_mailbox *m, uint64_t end)
{
#ifdef __APPLE__
    uint64_t now = cn_now_ns();
    if (now >= end) return false;
    struct timespec left = {(time_t)((end - now) / 1000000000u), (long)((end - now) % 1000000000u)};
    return pthread_cond_timedwait_relative_np(&m->cond, &m->lock, &left) != ETIMEDOUT;
#else
    struct timespec at = {(time_t)(end / 1000000000u), (long)(end % 1000000000u)};
    return pthread_cond_timedwait(&m->cond, &m->lock, &at) != ETIMEDOUT;
#endif
}

bool cn_mailbox_wait(struct cn_mailbox *m, uint64_t timeout_ns)
{
    uint64_t end;
    bool there;

    if (!cn_add_u64(cn_now_ns(), timeout_ns, &end) || end > INT64_MAX) end = UINT64_MAX;
    pthread_mutex_lock(&m->lock);
    while (!m->head) {
        if (end == UINT64_MAX)
            pthread_cond_wait(&m->cond, &m->lock);
        else if (!wait_until(m, end))
            break;
    }
    there = m->head != NULL;
    pthread_mutex_unlock(&m->lock);
    return there;
}
