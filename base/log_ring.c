/* The queue of log lines: see log_ring.h. A line is stored as its length (4 bytes) and its
 * bytes. */
#include "base/log_ring.h"

#include <stdlib.h>
#include <string.h>

#define LENGTH_BYTES 4

int cn_log_ring_init(struct cn_log_ring *r, size_t size)
{
    *r = (struct cn_log_ring){.size = size};
    r->data = malloc(size);
    return r->data ? 0 : CN_ENOMEM;
}

void cn_log_ring_fini(struct cn_log_ring *r)
{
    free(r->data);
    *r = (struct cn_log_ring){0};
}

static void copy_in(struct cn_log_ring *r, const void *p, size_t n)
{
    size_t at = r->head % r->size, first = CN_MIN(n, r->size - at);

    memcpy(r->data + at, p, first);
    memcpy(r->data, (const char *)p + first, n - first);
    r->head += n;
}

static void copy_out(const struct cn_log_ring *r, uint64_t from, void *p, size_t n)
{
    size_t at = from % r->size, first = CN_MIN(n, r->size - at);

    memcpy(p, r->data + at, first);
    memcpy((char *)p + first, r->data, n - first);
}

bool cn_log_ring_put(struct cn_log_ring *r, const char *line, size_t n)
{
    uint32_t length = (uint32_t)n;
    size_t room = r->size - (size_t)(r->head - r->tail);

    if (n > UINT32_MAX || room < LENGTH_BYTES || n > room - LENGTH_BYTES) {
        if (r->lost++ == 0) r->gap = r->head;
        r->dropped++;
        return false;
    }
    copy_in(r, &length, LENGTH_BYTES);
    copy_in(r, line, n);
    return true;
}

size_t cn_log_ring_take(struct cn_log_ring *r, char *out, size_t size, size_t most, uint64_t *lines,
                        uint64_t *lost)
{
    size_t done = 0;

    *lines = *lost = 0;
    while (r->tail != r->head) {
        uint32_t length;
        if (r->lost && r->tail == r->gap) break;
        copy_out(r, r->tail, &length, LENGTH_BYTES);
        if (done && length > most - CN_MIN(most, done)) break;
        size_t n = CN_MIN(length, size - done);
        copy_out(r, r->tail + LENGTH_BYTES, out + done, n);
        r->tail += LENGTH_BYTES + (uint64_t)length;
        done += n;
        ++*lines;
    }
    if (!done && r->lost) {
        *lost = r->lost;
        r->lost = 0;
    }
    return done;
}
