/* What the tests of single cases share: a usual device, and how each of them ends. */
#ifndef TESTS_SCHEDULER_SIMCASE_H
#define TESTS_SCHEDULER_SIMCASE_H

#include "tests/scheduler/sim.h"

#define SIMCASE_BLOCK_TOKENS 16u
#define SIMCASE_BLOCK_BYTES  (SIMCASE_BLOCK_TOKENS * 8u)

/* 64 slabs of 8 blocks, 64 rows a step, a window of 500 tokens, steps without a time target. */
struct sim_opts simcase_opts(uint32_t depth);
/* Fails the test when the simulator or the scheduler's own check found something wrong. */
void simcase_sound(struct sim *m);
/* Runs what is left; every answer is the solo run's, and the pool is empty again. */
void simcase_finish(struct sim *m);
/* Cancels what is left; the pool is empty again. */
void simcase_cancel(struct sim *m);
/* Blocks that sequences hold. */
uint64_t simcase_in_use(struct sim *m);

#endif
