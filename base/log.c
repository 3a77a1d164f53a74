/* Log lines: text for a person, JSON, or with the journal's priority prefix. Any thread; level and
 * format are global state, as is where lines go (log_out.c). A line holds no control character, so
 * that text from outside cannot forge one, and has at most CN_LOG_LINE_MAX bytes. */
#include "base/log_out.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TEXT_MAX 4096 /* bytes of a text, before escapes make it longer; what is over is cut */

static _Atomic int log_level = CN_LOG_INFO;
static _Atomic int log_format = CN_LOG_TEXT;

void cn_log_setup(enum cn_log_level max, enum cn_log_format format)
{
    atomic_store_explicit(&log_level, max, memory_order_relaxed);
    atomic_store_explicit(&log_format, format, memory_order_relaxed);
}

static const char *level_name(enum cn_log_level level)
{
    switch (level) {
    case CN_LOG_ERROR:
        return "error";
    case CN_LOG_WARN:
        return "warn";
    case CN_LOG_INFO:
        return "info";
    case CN_LOG_DEBUG:
        return "debug";
    }
    return "info";
}

/* Everything that a terminal could act on is written as \xNN (newline as \n); of a word, also what
 * could end it or stand for an escape. */
static void put_plain(struct cn_buf *b, const char *s, size_t n, bool word)
{
    size_t i = 0;

    while (i < n) {
        uint32_t cp = 0;
        size_t len = cn_utf8_decode(s + i, n - i, &cp);

        if (s[i] == '\n') {
            cn_buf_puts(b, "\\n");
            i++;
        } else if (len == 0 || cp < 0x20 || (cp >= 0x7f && cp <= 0x9f) ||
                   (word && (cp == ' ' || cp == '\\'))) {
            size_t bytes = len ? len : 1;
            for (size_t k = 0; k < bytes; k++)
                cn_buf_printf(b, "\\x%02x", (unsigned char)s[i + k]);
            i += bytes;
        } else {
            cn_buf_append(b, s + i, len);
            i += len;
        }
    }
}

static void put_time(struct cn_buf *b)
{
    struct timespec t;
    struct tm tm;
    char text[32];

    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &tm);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    cn_buf_printf(b, "%s.%03ldZ", text, t.tv_nsec / 1000000);
}

/* The bytes of s that a line takes: at most `most`, whole characters. */
static size_t cut(const char *s, size_t n, size_t most)
{
    return n <= most ? n : most - cn_utf8_tail_len(s, most);
}

static void put_number(struct cn_buf *b, const struct cn_log_field *f, const char *none)
{
    if (isfinite(f->number))
        cn_buf_printf(b, "%.*f", f->decimals, f->number);
    else
        cn_buf_puts(b, none);
}

static void put_members(struct cn_buf *b, const struct cn_log_field *f, size_t n, size_t most)
{
    for (size_t i = 0; i < n; i++) {
        cn_buf_putc(b, ',');
        cn_buf_json_str(b, f[i].name, strlen(f[i].name));
        cn_buf_putc(b, ':');
        if (f[i].text)
            cn_buf_json_str(b, f[i].text, cut(f[i].text, strlen(f[i].text), most));
        else
            put_number(b, &f[i], "null");
    }
}

static void put_words(struct cn_buf *b, const struct cn_log_field *f, size_t n, size_t most)
{
    for (size_t i = 0; i < n; i++) {
        cn_buf_printf(b, " %s=", f[i].name);
        if (f[i].text)
            put_plain(b, f[i].text, cut(f[i].text, strlen(f[i].text), most), true);
        else
            put_number(b, &f[i], "-");
    }
}

/* `most`: bytes of each text, the message's and the fields'. */
static void compose(struct cn_buf *b, enum cn_log_level level, const char *component,
                    const char *text, const struct cn_log_field *f, size_t n_fields, size_t most)
{
    size_t n = cut(text, strlen(text), most);

    switch ((enum cn_log_format)atomic_load_explicit(&log_format, memory_order_relaxed)) {
    case CN_LOG_JSON:
        cn_buf_puts(b, "{\"time\":\"");
        put_time(b);
        cn_buf_printf(b, "\",\"level\":\"%s\",\"component\":", level_name(level));
        cn_buf_json_str(b, component, strlen(component));
        cn_buf_puts(b, ",\"message\":");
        cn_buf_json_str(b, text, n);
        put_members(b, f, n_fields, most);
        cn_buf_puts(b, "}\n");
        return;
    case CN_LOG_JOURNAL:
        cn_buf_printf(b, "<%d>%s: ", (int)level, component);
        break;
    case CN_LOG_TEXT:
        put_time(b);
        cn_buf_printf(b, " %-5s %s: ", level_name(level), component);
        break;
    }
    put_plain(b, text, n, false);
    put_words(b, f, n_fields, most);
    cn_buf_putc(b, '\n');
}

static bool wanted(enum cn_log_level level)
{
    return (int)level <= atomic_load_explicit(&log_level, memory_order_relaxed);
}

static void put_line(enum cn_log_level level, const char *component, const char *text,
                     const struct cn_log_field *f, size_t n_fields,
                     void (*put)(const char *line, size_t n))
{
    static const char lost[] = "conifer: a log line was lost: out of memory\n";
    struct cn_buf line;

    cn_buf_init(&line, 0);
    /* Escapes and many fields may make a line too long: then its texts are cut shorter. */
    for (size_t most = TEXT_MAX; most && !line.failed; most /= 4) {
        cn_buf_reset(&line);
        compose(&line, level, component, text, f, n_fields, most);
        if (line.len <= CN_LOG_LINE_MAX) break;
    }
    if (line.len && line.len <= CN_LOG_LINE_MAX && !line.failed)
        put(line.data, line.len);
    else
        put(lost, sizeof lost - 1);
    cn_buf_fini(&line);
}

void cn_log_compose(enum cn_log_level level, const char *text,
                    void (*put)(const char *line, size_t n))
{
    if (wanted(level)) put_line(level, "log", text, NULL, 0, put);
}

void cn_log(enum cn_log_level level, const char *component, const char *fmt, ...)
{
    char text[TEXT_MAX + 1];
    va_list ap;
    int saved = errno;

    if (!wanted(level)) return;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0) text[0] = '\0';
    if (n >= (int)sizeof text) text[TEXT_MAX - cn_utf8_tail_len(text, TEXT_MAX)] = '\0';
    put_line(level, component, text, NULL, 0, cn_log_put);
    errno = saved;
}

void cn_log_fields(enum cn_log_level level, const char *component, const char *message,
                   const struct cn_log_field *fields, size_t n)
{
    int saved = errno;

    if (!wanted(level)) return;
    put_line(level, component, message, fields, n, cn_log_put);
    errno = saved;
}
