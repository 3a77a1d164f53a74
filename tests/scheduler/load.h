/* Clients as the load generator's (loadtest/scenarios) before the real scheduler and pool, on a
 * device that only takes time: as long as steps of a model were measured to take, by rows, logits
 * and keys. Nothing is computed: what requests put out is written beforehand, as text that repeats
 * itself or by chance. The clock is simulated, so figures are the same on every machine. */
#ifndef TESTS_SCHEDULER_LOAD_H
#define TESTS_SCHEDULER_LOAD_H

#include "scheduler/scheduler.h"

/* What a step takes. */
struct load_device {
    const char *name;
    double base_ns, row_ns, logit_ns; /* a step; each row; each that wants logits */
    double key_ns;                    /* each key that a row looks at; of drafts once for all */
    double token_ns;                  /* each token put out */
    double jitter;                    /* by chance longer by up to so many times as long */
};

/* With a median log-normal, up to most. */
struct load_len {
    uint32_t least, most;
    double median, sigma;
};

struct load_class {
    uint32_t clients;  /* closed loop; 0: rate */
    double rate;       /* open loop, a second */
    uint32_t requests; /* in all; 0: until the others are done, or end_s */
    double start_s, ramp_s, think_s;
    struct load_len prompt, answer;
    uint32_t prefix;    /* ids that prompts share */
    uint32_t prefixes;  /* so many different ones, in turn */
    double abort_share; /* cut after 1 to 16 tokens */
    uint32_t tenant;    /* where there is no choice by chance */
    bool background;    /* ends when the other classes have */
};

struct load_setting {
    bool speculation;
    double stretch;
};

struct load {
    const char *name;
    struct load_device device;
    struct load_class classes[2]; /* figures are those of the first */
    uint32_t n_classes;
    uint32_t tenants; /* of two, three quarters of the requests are the first's */
    double warmup_s;  /* requests due before are left out */
    double end_s;     /* none is sent later */
    bool warm;        /* a request alone before all */
    bool text;        /* answers repeat themselves */
    uint64_t seed;
};

struct load_figures {
    double ttft_p99_ms, gap_p50_ms, gap_p99_ms, gap_max_ms, tokens_s;
    double drafted, right;
};

void load_run(const struct load *l, struct load_setting s, struct load_figures *out);

#endif
