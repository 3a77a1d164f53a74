/* The null model's file: made in memory from a line of text. Private to engine/. */
#ifndef ENGINE_NULL_H
#define ENGINE_NULL_H

#include "base/base.h"

/* "null" and "null:..." name a null model, not a file (a file of that name is ./null). */
bool eng_null_is(const char *path);
/* The GGUF file that the text describes, returned owned in *data (free()). CN_EINVAL or CN_ERANGE
 * names the parameter; also what eng_script_read says. */
int eng_null_file(const char *text, void **data, size_t *n, struct cn_error *err);

#endif
