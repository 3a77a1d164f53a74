/* For the tests of damaged files: where the integers of a good file's header are, found by walking
 * the format independently of the reader, and the values that each is set to. */
#ifndef TESTS_ENGINE_SWEEP_H
#define TESTS_ENGINE_SWEEP_H

#include <stddef.h>
#include <stdint.h>

struct field {
    size_t at;
    uint8_t width;
};
struct fields {
    struct field *v;
    size_t n, cap;
    size_t header; /* bytes before the data section's padding */
};
/* All integers of the header: counts, lengths, types, dims, offsets, values. Of long arrays the
 * first and last few elements. data is a valid file. */
void sweep_fields(const uint8_t *data, struct fields *out);
/* The i-th value to try for a field whose value is now `value`; 0 when there are no more.
 * few: about 30 of them instead of about 200. */
int sweep_value(size_t i, uint64_t value, int width, int few, uint64_t *out);

uint8_t *sweep_read_file(const char *path, size_t *n);
/* Processor time of this thread. */
uint64_t sweep_cpu_ns(void);

#endif
