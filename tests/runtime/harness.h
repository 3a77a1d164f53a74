/* Drives a runtime in process, for tests: requests made from a seed, answers collected. */
#ifndef TESTS_RUNTIME_HARNESS_H
#define TESTS_RUNTIME_HARNESS_H

#include "engine/engine.h"
#include "runtime/runtime.h"
#include "tests/devices.h"

struct h_setup {
    const char *model;                  /* path */
    const struct rt_model_opts *models; /* or several */
    size_t n_models;
    const struct cfg_group *groups; /* copied; then memory_bytes and kv_bytes are theirs */
    size_t n_groups;
    uint64_t memory_bytes;          /* of all of them; 0 = what is free */
    double swap_wait_s, min_stay_s; /* 0 = the default */
    uint32_t threads, max_batch_rows, n_tenants;
    uint64_t kv_bytes;     /* 0 = chosen */
    uint64_t host_bytes;   /* kv.host_memory_bytes */
    int kv_type;           /* enum cfg_kv_type */
    uint64_t context;      /* 0 = the model's own */
    int isa;               /* enum cfg_isa */
    int64_t lost_after;    /* engine.async_lost_after */
    int64_t max_running;   /* 0 = the config's */
    double delay_s;        /* engine.async_delay_s */
    const char *device;    /* NULL = dev_kind() */
    bool lends_at_load;    /* engine.async_lends_at_load */
    double step_target_ms; /* 0 = the config's */
    bool speculation;      /* else there is none: steps are then the same whenever they are run */
};
struct h {
    struct cfg cfg;
    struct cn_metrics metrics;
    struct rt *rt;
    struct cn_mailbox mail;
};
/* Fails the test when it cannot. */
void h_start(struct h *h, const struct h_setup *s);
void h_stop(struct h *h);
double h_metric(struct h *h, enum cn_metric id);
/* Whether the model has layers of that kind. */
bool h_has_span(const struct h *h, enum kr_span span);
enum { H_BLOCK_TOKENS = 16 }; /* the config's default */
/* The least kv_bytes that hold a sequence of so many tokens, in steps of s->max_batch_rows. */
uint64_t h_least_memory(const struct h_setup *s, uint64_t tokens);

struct h_answer { /* of one choice */
    uint32_t *ids;
    float *logprobs;
    size_t n_ids, ids_cap, lp_cap;
    struct cn_buf text;
    enum rt_finish finish;
    bool ended;
};
struct h_result {
    struct h_answer *choices;
    uint32_t n;
    bool accepted, done;
    int code;
    struct rt_usage usage;
    float *vector; /* of an embedding request */
    size_t n_vector;
    size_t n_events;
};
void h_result_fini(struct h_result *r);

/* A request that is a function of the seed: prompt with a shared beginning, sampling, stop
 * strings. */
void h_request(struct h *h, uint32_t seed, uint32_t tenant, struct rt_request *out);

/* A run of requests 0..n-1, each made by `make` when it is its turn. Whose turn it is is decided on
 * the engine thread, between two of its iterations, so what runs beside what does not depend on the
 * machine's speed. */
struct h_drive {
    struct h *h;
    uint32_t n;
    void (*make)(struct h *h, uint32_t i, struct rt_request *out, void *arg);
    void *arg;
    /* Sees every event before the test does; sends what is to come next (h_send). No assertions
     * here. NULL: at most `at_once` are unfinished. */
    void (*turn)(struct h_drive *d, const struct rt_event *e);
    uint32_t at_once;
    struct h_result *results; /* [n] */
    /* the run's own */
    struct cn_mailbox mail;
    uint32_t sent, ended;
    struct cn_error error;
    _Atomic bool failed;
};
/* Submits the next request; nothing when all were. */
void h_send(struct h_drive *d);
/* Sends the first request, and waits for all. */
void h_drive(struct h_drive *d);
/* As that, with at most `at_once` unfinished. */
void h_run(struct h *h, uint32_t n, uint32_t at_once,
           void (*make)(struct h *h, uint32_t i, struct rt_request *out, void *arg), void *arg,
           struct h_result *results);
bool h_same(const struct h_result *a, const struct h_result *b);
/* Waits until nothing runs or waits (the gauges say so), at most 10 s. */
void h_settle(struct h *h);

/* "oracle:NAME" below the oracle's folder, "models:FILE" in the folder of fetched models
 * (CONIFER_TEST_MODELS), else a path. NULL (the test is skipped) when the file is not there; a
 * model that is missing from an oracle's folder that is there ends the test program as failed. */
const char *h_model(const char *name);

#endif
