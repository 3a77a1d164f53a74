/* A run of a scenario against a server, and what it measured. One thread, one loop. */
#ifndef LOADTEST_RUN_H
#define LOADTEST_RUN_H

#include "loadtest/client.h"
#include "loadtest/loadtest.h"

/* ---- the server (url.c) ---------------------------------------------------------------------- */

struct lt_target {
    char host[256]; /* as the Host header has it */
    char base[256]; /* before "/v1/...": "" or "/something" */
    char name[256]; /* without brackets */
    char port[8];
};
/* http://HOST[:PORT][/BASE], with or without a /v1 at the end. */
int lt_target_parse(const char *url, struct lt_target *out, struct cn_error *err);
/* All its addresses, at most LT_ADDRS, none twice. */
int lt_target_resolve(const struct lt_target *t, struct lt_addrs *out, struct cn_error *err);

/* ---- what was measured ----------------------------------------------------------------------- */

enum lt_failure {
    LT_F_CONNECT, /* no connection */
    LT_F_CLOSED,  /* closed before the answer was whole */
    LT_F_TIMEOUT,
    LT_F_STATUS,    /* an answer other than 200 */
    LT_F_ERROR,     /* an error inside a stream */
    LT_F_TRUNCATED, /* a stream without its last event */
    LT_F_BAD,       /* not HTTP, not JSON, no answer in it */
    LT_F_SHORT,     /* fewer tokens than asked for, with ignore_eos */
    LT_F_COUNT
};
extern const char *const lt_failure_names[LT_F_COUNT];

struct lt_tally { /* of one class */
    uint64_t sent, ok, aborted, cut, slow, warm;
    uint64_t failed[LT_F_COUNT], statuses[1000];
    char failure[256];                                    /* what the first one said */
    uint64_t prompt_tokens, cached_tokens, answer_tokens; /* of answers that were whole */
    uint64_t window_ok;     /* answers that became whole in the window */
    double window_tokens;   /* tokens of the answers that came inside the window */
    double window_s;        /* the class's part of the window: from its start until the last of its
                             * requests was over */
    double split_tokens[2]; /* of these: while none, while one of split_by's ran */
    double split_s[2];      /* for how long, of window_s */
    double behind_s;        /* of an open loop's schedule nothing of this last time was sent */
    struct lt_samples ttft, itl[2], total, tpot, lag; /* ns */
};
struct lt_tenant_tally {
    uint64_t sent, ok, failed, answer_tokens;
    struct lt_samples ttft, total;
};
struct lt_result {
    struct lt_tally *classes;
    struct lt_tenant_tally *tenants;
    size_t n_classes, n_tenants;
    char model[4096]; /* some servers name a model by its whole path */
    uint64_t seed;
    double window_s, wall_s; /* the window; from the clock's start to the last answer */
    double cpu_s;            /* this program's own, over wall_s */
    uint64_t opened, reused; /* connections */
    bool interrupted;
};
void lt_result_fini(struct lt_result *r);

/* Runs it. s has passed lt_scenario_check. key: a default API key or NULL. progress: lines on
 * standard error. What fails in single requests is counted; an error is a run that could not be. */
int lt_run(const struct lt_scenario *s, const char *url, const char *key, bool progress,
           struct lt_result *out, struct cn_error *err);

/* Blanks what would drive a terminal, and bytes that are no UTF-8: a server's text is shown. */
void lt_plain(char *text);

/* ---- reports (report.c) ---------------------------------------------------------------------- */

void lt_report_table(const struct lt_scenario *s, const char *url, struct lt_result *r,
                     struct cn_buf *out);
void lt_report_json(const struct lt_scenario *s, const char *url, struct lt_result *r,
                    struct cn_buf *out);

/* ---- inside a run (run.c, request.c) --------------------------------------------------------- */

struct lt_run;
struct lt_request {
    struct lt_call call;
    struct lt_run *run;
    struct lt_class_run *class;
    struct lt_user *user; /* closed loop: whose request it is */
    struct lt_shape shape;
    struct lt_sse sse;
    struct cn_buf body; /* of answers that are not streams */
    uint64_t due_ns, sent_ns, first_ns, last_ns, cut_at_ns;
    uint64_t events, window_events, split_events[2];
    uint64_t prompt_tokens, completion_tokens, cached_tokens;
    char message[160];
    bool warm, usage, error, done, bad;
    bool text;                      /* of an answer that is not a stream: it has some */
    struct lt_request *prev, *next; /* of its class */
};
struct lt_user { /* one client of a closed loop */
    uv_timer_t timer;
    struct lt_class_run *class;
    uint64_t due_ns;
};
struct lt_class_run {
    struct lt_run *run;
    const struct lt_class *c;
    struct lt_tally *tally;
    size_t index;
    struct lt_arrival arrival;
    uv_timer_t timer; /* of an open loop */
    struct lt_user *users;
    struct lt_request *first;
    uint64_t issued, warm_issued, in_flight, next_due_ns;
    uint64_t busy_since_ns, last_busy_ns; /* while one of its requests runs */
    uint64_t beside_ns;                   /* of its window, while one of split_by's ran */
};
enum lt_phase { LT_PHASE_MODEL, LT_PHASE_WARM, LT_PHASE_MEASURE, LT_PHASE_END };
struct lt_run {
    uv_loop_t loop;
    struct lt_client client;
    struct lt_target target;
    const struct lt_scenario *s;
    const char *key;
    struct lt_result *result;
    struct lt_class_run *classes;
    uv_timer_t tick, until;
    uv_signal_t interrupt, terminate;
    enum lt_phase phase;
    bool stopped, progress, oom;
    uint64_t start_ns, window_ns, stop_ns, end_ns, shown_ns; /* stop_ns: nothing is sent later */
};
/* Sends a class's next request, due at due_ns. */
void lt_request_send(struct lt_class_run *k, struct lt_user *user, uint64_t due_ns, bool warm);
/* Cuts it, as one that its client aborted or that the end of the run cut. */
void lt_request_cut(struct lt_request *q, bool aborted);
/* The part of the window until now in which the class is active: from its start, and only until
 * it has sent all its requests if other classes continue. Empty where until <= from. */
void lt_class_window(const struct lt_class_run *k, uint64_t now, uint64_t *from, uint64_t *until);
/* request.c tells run.c that one is over (and freed). */
void lt_run_request_over(struct lt_class_run *k, struct lt_user *user, bool warm, bool failed);
void lt_head(const struct lt_run *r, const char *method, const char *path, const char *key,
             size_t body, struct cn_buf *out);

#endif
