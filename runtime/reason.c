/* What a client may read of why a model could not be loaded: which model and what is wrong, and
 * never where its files lie. The log has that. Any thread; owns nothing. */
#include "runtime/rt.h"

#include <stdio.h>
#include <string.h>

#define ROOM sizeof(((struct cn_error *)0)->message)

/* Every `path` in text becomes `name`. */
static void put_name(char text[ROOM], const char *path, const char *name)
{
    char out[ROOM] = "";
    const char *s = text, *at;

    if (!path || !*path) return;
    for (; (at = strstr(s, path)); s = at + strlen(path)) {
        size_t len = strlen(out);
        snprintf(out + len, ROOM - len, "%.*s%s", (int)(at - s), s, name);
    }
    size_t len = strlen(out);
    snprintf(out + len, ROOM - len, "%s", s);
    memcpy(text, out, ROOM);
}

/* Whether it names the folder of path, or anything from the root on. */
static bool holds_path(const char *text, const char *path)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    char folder[ROOM];

    if (slash && (size_t)(slash - path) < ROOM - 1) {
        snprintf(folder, ROOM, "%.*s", (int)(slash - path) + 1, path);
        if (strstr(text, folder)) return true;
    }
    for (const char *s = text; (s = strchr(s, '/')); s++)
        if (s == text || strchr(" \"'(=:", s[-1])) return true;
    return false;
}

void rt_public_error(const struct rt_model *m, const struct cn_error *err, struct cn_error *out)
{
    char text[ROOM];

    snprintf(text, ROOM, "%s", err->message);
    put_name(text, m->path, "its file");
    put_name(text, m->chat_template, "its chat template");
    if (!m->path)
        snprintf(text, ROOM, "its file is not in the models folder");
    else if (holds_path(text, m->path) || holds_path(text, m->chat_template))
        snprintf(text, ROOM, "%s", cn_err_info(err->code)->text);
    *out = (struct cn_error){0};
    cn_fail_param(out, CN_ENOTREADY, "model", "the model %s could not be loaded: %.400s", m->id,
                  text);
}
