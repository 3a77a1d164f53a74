/* The server's own state, shared by the files of this folder. Everything here belongs to the loop
 * thread, except where a comment says otherwise. */
#ifndef SERVER_INTERNAL_H
#define SERVER_INTERNAL_H

#include "server/http.h"
#include "server/key.h"
#include "server/listen.h"
#include "server/pause.h"
#include "server/responses.h"
#include "server/server.h"
#include "server/call.h"
#include "server/text_pool.h"
#include "server/turn.h"
#include "server/wake.h"

#include <uv.h>

struct uv_conn;
struct srv_req;

/* Who may be behind an id that the runtime or a worker hands back. */
struct srv_slot {
    struct srv_req *req; /* NULL: free, and sub is the next free slot */
    uint32_t sub;        /* which of the request's parts */
    uint32_t gen;
};

/* Messages in the order of their coming, taken from a mailbox and not looked at yet. */
struct srv_mail { struct cn_msg *head, **tail; };

/* Lines that cost who asks nothing, of which so many a second are written of each kind. */
enum srv_lines { SRV_LINES_REFUSED, SRV_LINES_DENIED, SRV_LINES_PAGES, SRV_N_LINES };

/* Those in the second at hand. */
struct srv_refusals {
    uint64_t since_ns, left_out;
    unsigned lines;
};

/* Failed accepts since the last log line about them. */
struct srv_accept_log { uint64_t told_ns, failed; };

/* What is kept of a tenant, by slot. */
struct srv_seat {
    uint32_t reqs;                /* its requests here */
    bool leaving;                 /* it was removed, and something of it is left: */
    uint64_t id;                  /* who that is */
    struct srv_refusals failures; /* requests that failed */
};

/* tenants.c: one reading of the source, by a thread of libuv's. */
struct srv_reload {
    uv_work_t work;
    bool running, again; /* again: another one was requested since it began */
    int rc;
    struct cn_error err;
    struct cfg_tenants *next; /* with their keys; NULL: there is nothing new */
    struct srv_keys keys;
    char others[200];
};

struct srv {
    const struct cfg *cfg;
    struct cn_metrics *metrics;
    const char *version;
    struct rt *rt; /* while srv_run runs */
    void (*ready)(void *arg);
    void *ready_arg;
    bool quiet;

    uv_loop_t loop;
    struct srv_wake wake;  /* this and the next: all that other threads touch of the loop's */
    uv_async_t stop_async; /* srv_stop's alone, which is rare (wake.h) */
    uv_timer_t tick;
    uv_prepare_t before_poll;
    uv_check_t after_poll;
    uv_signal_t sigterm, sigint, sighup, sigusr1;
    bool at_terminal; /* it was started from one, whose end is to end it */
    char read_buf[65536];
    uv_idle_t more; /* while work is left: the loop does not sleep */
    struct srv_turn turn;
    struct cn_budget *budget;            /* one account for strangers, then one for each slot */
    struct uv_conn *dirty, **dirty_tail; /* streams with output to push */

    struct srv_listener *listeners;
    size_t n_listeners;
    struct srv_http http;
    struct cfg_tenants *tenants; /* held */
    uint64_t changes;            /* how often they have changed */
    struct srv_keys keys;        /* theirs */
    struct srv_seat *seats;      /* [n_seats], by slot */
    uint32_t n_seats, n_leaving, party;
    struct cfg_source *source; /* NULL: they do not change */
    struct srv_reload reload;
    struct srv_trust trust;
    struct srv_gate gate;
    struct srv_accept_log accept_log;

    struct cn_mailbox mail;       /* rt_event: from the engine thread */
    struct cn_mailbox jobs_done;  /* srv_job: from the text workers */
    struct srv_mail events, jobs; /* of both, what no turn had time for yet */
    struct srv_text_pool *pool;
    struct srv_grammars *grammars; /* kept for further requests */
    struct srv_text_env text;      /* what calls begin with: no model but the default one's name */

    struct srv_req *sending, **sending_tail; /* streams with something to write */

    struct srv_slot *slots;
    size_t n_slots, cap_slots;
    uint32_t free_slot;               /* UINT32_MAX = none */
    struct srv_req *reqs;             /* all of them */
    size_t n_reqs, n_jobs, n_waiting; /* n_waiting: for their model to be loaded */
    struct cn_buf frame;              /* scratch: one SSE frame */
    struct srv_responses responses;
    struct cn_process process;
    struct srv_refusals refusals[SRV_N_LINES];

    atomic_uint stops; /* calls of srv_stop not acted on yet; any thread */
    bool loop_ready, mail_ready, done_ready;
    bool draining, door_shut, rt_drained, ending, failed, stuck, stuck_out, tick_due;
    uint64_t door_until_ns, drain_until_ns, end_until_ns;
    uint64_t watchdog_ns, watchdog_next_ns;
    uint64_t turn_ns, turn_max_ns; /* this thread's CPU time when the turn began; the longest */
    struct srv_witness witness;    /* of pauses of the process; has its own lock */
    struct srv_progress progress;  /* of the engine, without pauses */
    uint64_t ticked_paused_ns;     /* sum of pauses when the tick last ran */
};

/* ---- tenants.c ------------------------------------------------------------------------------- */

/* The number of a tenant's account and lane; 0 is the strangers'. */
static inline uint32_t srv_lane_of(uint64_t tenant)
{
    return cfg_slot(tenant) + 1;
}
/* The first tenants, and all that is kept by slot. */
int srv_tenants_open(struct srv *s, const struct srv_opts *opts, struct cn_error *err);
void srv_tenants_close(struct srv *s);
/* The tenants' weights by slot, 0 for a free slot; the caller frees them. NULL: no memory. */
double *srv_tenants_weights(const struct cfg_tenants *t);
/* Connections that one tenant may have of so many. */
size_t srv_tenants_places(const struct cfg_tenants *t, size_t places);
/* The tenant's name; "-" if there is no such tenant or it has no name. */
const char *srv_tenant_name(const struct cfg_tenants *t, uint64_t id);
/* Who the connection's request is from may have changed since its head was read. */
int srv_tenants_check(const struct srv *s, const struct srv_conn *c, struct cn_error *err);
/* Starts to read the source again; its tenants take effect soon after. One log line reports the
 * result. */
void srv_tenants_reload(struct srv *s);
/* Leaves the slots of removed tenants of whom nothing is left. */
void srv_tenants_tick(struct srv *s);

/* ---- budget.c -------------------------------------------------------------------------------- */

/* Shares for cn_budget_divide, one more than slots; the caller's to free. NULL: no memory. */
struct cn_share *srv_budget_shares(const struct srv *s, const struct cfg_tenants *t);
/* Makes the accounts, and reports what they hold to the metrics. */
int srv_budget_open(struct srv *s);
void srv_budget_tell(struct srv *s);

/* stream_uv.c: gives what is due to the kernel, until the turn is over. Whether some is left. */
bool srv_streams_flush(struct srv *s);

/* The engine's health, from which pauses of the whole process are taken out (pause.h): the engine
 * was as unable to move as the loop. */
void srv_health(struct srv *s, struct rt_health *h);

/* ---- request.c: records of API requests ------------------------------------------------------ */
/* Events and finished jobs, until the turn is over (NULL: all of them). Whether some are left. */
bool srv_on_mail(struct srv *s, struct srv_turn *turn);
/* sse.c: writes what streams have to send, until the turn is over. Whether some is left. */
bool srv_sse_work(struct srv *s);
void srv_reqs_tick(struct srv *s, uint64_t now);
void srv_reqs_end(struct srv *s,
                  const struct cn_error *why); /* every open answer gets this error */
void srv_mail_clear(struct srv *s);            /* frees what is left in the mailboxes */

/* ---- request_log.c: those that have no record ------------------------------------------------ */

/* Logs a request that is about to be refused. Beyond a number per second requests are only
 * counted, and the tick logs how many. */
void srv_refused_log(struct srv *s, const struct srv_conn *c, const struct cn_error *err);
/* One about a page; probes, which come all the time, at level debug. Before the answer. */
void srv_page_log(struct srv *s, const struct srv_conn *c, int status, size_t bytes, bool probe);
void srv_refused_tick(struct srv *s, uint64_t now);

/* ---- routes.c -------------------------------------------------------------------------------- */
extern const struct srv_http_handler srv_routes;

/* ---- notify.c: systemd ----------------------------------------------------------------------- */
uint64_t srv_notify_watchdog_ns(void); /* 0 = none asked for */

#endif
