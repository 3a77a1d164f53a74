/* The parts of the stand-in for runtime/ (fake_runtime.c says what it does). */
#ifndef TESTS_SERVER_FAKE_RUNTIME_H
#define TESTS_SERVER_FAKE_RUNTIME_H

#include "engine/engine.h"
#include "runtime/runtime.h"

struct choice {
    struct eng_detok detok;
    struct cn_buf held;
    struct eng_reply reply;
    uint64_t n, n_reasoning;
    bool ended;
};

struct live {
    struct live *next;
    struct rt_request q;
    struct choice *choices;
    uint64_t next_ns, done_tokens;
    bool accepted, cancelled, paused, prompted;
};

struct wait {
    struct wait *next;
    struct cn_mailbox *reply;
    struct rt_event *event;
};

struct rt {
    const struct cfg *cfg;
    struct cn_metrics *metrics;
    struct kr_device *device;
    struct eng_model *model;
    char *id;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    struct live *live;
    struct wait *waits;
    uint64_t loaded_ns; /* 0: not asked for yet */
    atomic_ullong n_live;
    bool stop;
    atomic_bool draining;
    atomic_ullong progress_ns;
    const char *go;
    long delay_us, hold_ms, queue, fail_at, stall_ms, stuck_ms, embed, load_ms, submit_ms;
};

/* There is to be no more waiting: the test has made the file for it. */
bool fake_goes(const struct rt *r);

/* One token of every choice, when it is time; true when the request is over (and freed). */
bool fake_step(struct rt *r, struct live *l, uint64_t now);

#endif
