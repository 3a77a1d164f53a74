/* Pauses of the whole process: see pause.h. */
#include "server/pause.h"

#include <time.h>
#include <unistd.h>

#define BEAT_NS 250000000ull
#define LOG_NS  1000000000ull

void srv_pause_alive(struct srv_pause *p, uint64_t now)
{
    if (p->alive_ns && now > p->alive_ns && now - p->alive_ns > SRV_PAUSE_NS)
        p->paused_ns += now - p->alive_ns;
    p->alive_ns = CN_MAX(p->alive_ns, now);
}

uint64_t srv_progress_look(struct srv_progress *g, uint64_t now, uint64_t since_ns,
                           uint64_t paused_ns)
{
    uint64_t at = now - CN_MIN(since_ns, now);

    if (!since_ns) {
        g->paused_ns = paused_ns;
        g->at_ns = now;
    } else if (at > g->at_ns) { /* since the last look: pauses after that may be after it */
        g->paused_ns = g->looked_ns;
        g->at_ns = at;
    }
    g->looked_ns = paused_ns;
    return since_ns - CN_MIN(since_ns, paused_ns - g->paused_ns);
}

static struct timespec at(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u),
                             .tv_nsec = (long)(ns % 1000000000u)};
}

static void *witness(void *arg)
{
    struct srv_witness *w = arg;

    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        uint64_t now = cn_now_ns();
        srv_pause_alive(&w->pause, now);
        if (w->end_ns && now >= w->end_ns) {
            pthread_mutex_unlock(&w->lock);
            cn_log_flush(LOG_NS);
            _exit(w->end_code);
        }
        struct timespec next = at(now + BEAT_NS);
        pthread_cond_timedwait(&w->wake, &w->lock, &next);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

int srv_witness_start(struct srv_witness *w, struct cn_error *err)
{
    pthread_condattr_t attr;

    *w = (struct srv_witness){0};
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->wake, &attr);
    pthread_condattr_destroy(&attr);
    if (pthread_create(&w->thread, NULL, witness, w)) {
        pthread_cond_destroy(&w->wake);
        pthread_mutex_destroy(&w->lock);
        return cn_fail(err, CN_ENOMEM, "the thread that witnesses pauses cannot be started");
    }
    pthread_setname_np(w->thread, "witness");
    w->started = true;
    return 0;
}

void srv_witness_stop(struct srv_witness *w)
{
    if (!w->started) return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    w->started = false;
}

uint64_t srv_witness_look(struct srv_witness *w, uint64_t now)
{
    pthread_mutex_lock(&w->lock);
    srv_pause_alive(&w->pause, now);
    uint64_t paused = w->pause.paused_ns;
    pthread_mutex_unlock(&w->lock);
    return paused;
}

void srv_witness_end_at(struct srv_witness *w, uint64_t at_ns, int code)
{
    pthread_mutex_lock(&w->lock);
    w->end_ns = at_ns;
    w->end_code = code;
    pthread_mutex_unlock(&w->lock);
}
