/* Errors: the table made from errors.def, and how a reason is put into a struct cn_error.
 * Any thread; owns nothing. A message is always one line of valid UTF-8 without control
 * characters, whatever text from outside was printed into it. */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct cn_err_info table[] = {
#define ERR(name, num, status, type, slug, text) {num, status, #name, type, slug, text},
#include "base/errors.def"
#undef ERR
};

const struct cn_err_info *cn_err_info(int code)
{
    const struct cn_err_info *internal = &table[0];

    for (size_t i = 0; i < CN_ARRAY_LEN(table); i++) {
        if (table[i].code == code) return &table[i];
        if (table[i].code == CN_EINTERNAL) internal = &table[i];
    }
    return internal;
}

void cn_clean_line(char *s)
{
    size_t n = strlen(s), i = 0;

    n -= cn_utf8_tail_len(s, n); /* snprintf may have cut a sequence */
    s[n] = '\0';
    while (i < n) {
        uint32_t cp;
        size_t len = cn_utf8_decode(s + i, n - i, &cp);

        if (len == 0 || cp < 0x20 || (cp >= 0x7f && cp < 0xa0)) {
            len = CN_MAX(len, (size_t)1);
            memset(s + i, '?', len);
        }
        i += len;
    }
}

static void fill(struct cn_error *err, int code, const char *param, const char *fmt, va_list ap)
{
    char text[sizeof err->message]; /* an argument may point into err itself */

    vsnprintf(text, sizeof text, fmt, ap);
    cn_clean_line(text);
    char name[sizeof err->param];
    snprintf(name, sizeof name, "%s", param ? param : "");
    cn_clean_line(name);
    err->code = code;
    memcpy(err->message, text, sizeof text);
    memcpy(err->param, name, sizeof name);
}

int cn_fail(struct cn_error *err, int code, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        fill(err, code, NULL, fmt, ap);
        va_end(ap);
    }
    return code;
}

int cn_fail_param(struct cn_error *err, int code, const char *param, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        fill(err, code, param, fmt, ap);
        va_end(ap);
    }
    return code;
}

void cn_error_wrap(struct cn_error *err, const char *fmt, ...)
{
    char context[sizeof err->message], text[2 * sizeof err->message + 2];
    va_list ap;

    if (!err) return;
    va_start(ap, fmt);
    vsnprintf(context, sizeof context, fmt, ap);
    va_end(ap);
    snprintf(text, sizeof text, "%s: %s", context, err->message);
    text[sizeof err->message - 1] = '\0';
    cn_clean_line(text);
    memcpy(err->message, text, sizeof err->message);
}

_Noreturn void cn_assert_failed(const char *expr, const char *file, int line)
{
    char text[512];
    int n = snprintf(text, sizeof text, "conifer: internal check failed: %.300s (%.100s:%d)\n",
                     expr, file, line);

    cn_log_last(text, (size_t)n);
    abort();
}
