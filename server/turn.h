/* A turn of the loop: from one poll to the next. What a turn does for clients is bounded in
 * time, so that a client with much work does not delay the others: reading, mail, streams,
 * requests and writing each stop when their part is over, and the rest continues in the next
 * turn. Loop thread only. */
#ifndef SERVER_TURN_H
#define SERVER_TURN_H

#include "base/base.h"

#define SRV_TURN_PART_NS 800000u

/* The clock is the wall's, which is cheap to read: where the thread lost its processor a part ends
 * early, at the cost of another poll. */
struct srv_turn { uint64_t since_ns; /* 0: from the next look on */ };

/* Another part begins. */
static inline void srv_turn_begin(struct srv_turn *t)
{
    t->since_ns = 0;
}

/* Whether the part's time is used up; never at the first look. NULL: never. */
static inline bool srv_turn_over(struct srv_turn *t)
{
    if (!t) return false;
    uint64_t now = cn_now_ns();
    if (!t->since_ns) t->since_ns = now;
    return now - t->since_ns > SRV_TURN_PART_NS;
}

#endif
