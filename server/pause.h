/* How long the whole process stood still (a machine that was put to sleep or moved, SIGSTOP), as
 * opposed to a thread of it that worked or waited for long.
 *
 * Evidence is a witness: a thread that does nothing but note that it ran. The loop notes it as
 * well. Where neither ran for PAUSE_NS, nothing of the process could; a loop that is busy, or waits
 * for a lock, has the witness against it, so a stall of our own making never counts. Processor time
 * would be no evidence: threads that all wait for a lock use none either. */
#ifndef SERVER_PAUSE_H
#define SERVER_PAUSE_H

#include "base/base.h"

#define SRV_PAUSE_NS 1500000000ull /* no thread ran for so long: the whole process was paused */

/* ---- the judgement (clocks are the caller's) ------------------------------------------------- */

struct srv_pause {
    uint64_t alive_ns;  /* when a thread last ran; 0: not yet */
    uint64_t paused_ns; /* sum of all pauses */
};
/* Notes that a thread runs now. */
void srv_pause_alive(struct srv_pause *p, uint64_t now);

/* Progress of the engine, from which pauses are taken out. */
struct srv_progress {
    uint64_t at_ns;     /* when there last was progress */
    uint64_t paused_ns; /* sum of pauses when it was seen, or at the look before */
    uint64_t looked_ns; /* sum of pauses at the last look */
};
/* since_ns: time since the last progress, 0 when nothing is pending; paused_ns: the sum of pauses.
 * Returns the part of since_ns in which the process could run. */
uint64_t srv_progress_look(struct srv_progress *g, uint64_t now, uint64_t since_ns,
                           uint64_t paused_ns);

/* ---- the witness ----------------------------------------------------------------------------- */

struct srv_witness {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t thread;
    struct srv_pause pause;
    uint64_t end_ns; /* when the process ends, however far it came; 0: not */
    int end_code;
    bool started, stop;
};
int srv_witness_start(struct srv_witness *w, struct cn_error *err);
void srv_witness_stop(struct srv_witness *w);
/* The caller runs now: the sum of pauses. Any thread. */
uint64_t srv_witness_look(struct srv_witness *w, uint64_t now);
/* Ends the process with this code at that time unless it has ended by then. */
void srv_witness_end_at(struct srv_witness *w, uint64_t at_ns, int code);

#endif
