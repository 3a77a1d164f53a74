/* What the engine thread does, for tests that must know that a situation occurred: calls of
 * kr_launch, kr_draw_open and kv_pool_stats are seen on their way (link with `spy_links` of the
 * meson.build). */
#ifndef TESTS_RUNTIME_SPY_H
#define TESTS_RUNTIME_SPY_H

#include "kvpool/kvpool.h"

struct spy {
    uint64_t steps, rows;
    uint32_t most_seqs;   /* of a step */
    uint32_t most_rows;   /* of a step */
    uint64_t mixed;       /* steps with a sequence of one row and one of several */
    uint64_t tickets;     /* rows of an id that a step in flight draws (KR_ROW_TICKET) */
    uint64_t opened;      /* draw states that were sent to the device as a whole */
    uint64_t opened_late; /* of these, with ids that were put out before */
    struct kv_stats pool; /* as last looked at: after an iteration, when the engine idles */
};
void spy_reset(void);
struct spy spy_read(void);

#endif
