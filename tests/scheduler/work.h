/* Work in basic blocks of the scheduler and the pool (which a library of their own is compiled
 * for): what a loop too many costs is counted, whatever else the machine does and however fast it
 * is. What the C library does for them, such as memcpy, is one block. */
#ifndef TESTS_SCHEDULER_WORK_H
#define TESTS_SCHEDULER_WORK_H

#include <stdint.h>

/* Blocks that have run so far. One thread. */
uint64_t work_done(void);

#endif
