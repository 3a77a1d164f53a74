/* A bounded queue of whole log lines: many writers, one reader. Writers never wait for room: a line
 * that does not fit is dropped and counted, and the reader learns where lines are missing.
 *
 * The caller locks. Lines come out in the order they went in. */
#ifndef BASE_LOG_RING_H
#define BASE_LOG_RING_H

#include "base/base.h"

struct cn_log_ring {
    char *data;
    size_t size;         /* bytes of data */
    uint64_t head, tail; /* bytes ever put and taken */
    uint64_t gap;     /* what head was at the first line that was dropped since the last report */
    uint64_t lost;    /* lines dropped since then */
    uint64_t dropped; /* lines dropped in all */
};

/* CN_ENOMEM without size bytes. */
int cn_log_ring_init(struct cn_log_ring *r, size_t size);
void cn_log_ring_fini(struct cn_log_ring *r);
/* Takes a copy of one line of n > 0 bytes; false: it was dropped. */
bool cn_log_ring_put(struct cn_log_ring *r, const char *line, size_t n);
/* Moves whole lines to out: as many as fit into `most` bytes, or a single longer one, which is cut
 * at size (size >= most). Returns their bytes; *lines is their number. 0 with *lost > 0: here *lost
 * lines are missing, which are then no longer reported; 0 with *lost 0: the ring is empty. */
size_t cn_log_ring_take(struct cn_log_ring *r, char *out, size_t size, size_t most, uint64_t *lines,
                        uint64_t *lost);

#endif
