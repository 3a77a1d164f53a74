/* Where log lines go: standard error or a file, by a thread of its own once it was started. */
#ifndef BASE_LOG_OUT_H
#define BASE_LOG_OUT_H

#include "base/base.h"

#define CN_LOG_LINE_MAX 8192 /* bytes of a line, its end included */

/* Logs one whole line of at most CN_LOG_LINE_MAX bytes. Any thread; does not wait once the
 * writer runs. */
void cn_log_put(const char *line, size_t n);
/* log.c: composes a line of the logger's own and hands it to `put`. */
void cn_log_compose(enum cn_log_level level, const char *text,
                    void (*put)(const char *line, size_t n));

#endif
