/* Read-only mappings of files that may be cut short or fail while they are in use. Private to
 * engine/. A page that is gone (truncated file, read error) raises SIGBUS; the handler here maps
 * zeroed pages over it and marks the mapping, so that the reader continues and the owner finds
 * out. Signals for other addresses go to the handler that was there before. */
#ifndef ENGINE_MAPPING_H
#define ENGINE_MAPPING_H

#include "base/base.h"

struct eng_mapping;
/* Maps a regular file, and keeps no descriptor of it. CN_ENOENT, CN_EIO (reason in words),
 * CN_EFORMAT when it is empty. */
int eng_mapping_open(const char *path, struct eng_mapping **out, struct cn_error *err);
void eng_mapping_close(struct eng_mapping *m);
const uint8_t *eng_mapping_data(const struct eng_mapping *m);
uint64_t eng_mapping_bytes(const struct eng_mapping *m);
/* The bytes will hardly be needed again: their pages, and those mapped around them, no longer count
 * as this process's memory, and are read again, from the system's cache or the file, when they are
 * touched. Any thread; what is not of this mapping is ignored. */
void eng_mapping_leave(const struct eng_mapping *m, const void *p, uint64_t n);
/* False once a page was found missing, or when the file's size or time of change is no longer that
 * of the opening: what was read since then cannot be trusted. A file that was replaced or removed
 * is still the one that is mapped. Any thread; one stat. */
bool eng_mapping_intact(const struct eng_mapping *m);

#endif
