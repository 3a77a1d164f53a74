/* Progress of a download on standard error: a bar that is rewritten on a terminal, a line every ten
 * seconds elsewhere. Main thread. */
#include "cli/pull.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { TTY_EVERY_MS = 200, PLAIN_EVERY_MS = 10000 };

const char *cli_bytes(uint64_t n, char out[32])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    double x = (double)n;
    unsigned u = 0;

    while (x >= 999.5 && u + 1 < CN_ARRAY_LEN(units)) {
        x /= 1000;
        u++;
    }
    snprintf(out, 32, u && x < 99.95 ? "%.1f %s" : "%.0f %s", x, units[u]);
    return out;
}

/* Bytes per second of the last few seconds; 0 when nothing can be said. */
static double rate(const struct cli_bar *b, uint64_t now)
{
    if (b->n_past == 0) return 0;
    unsigned first = b->n_past > CN_ARRAY_LEN(b->past) ? b->n_past % CN_ARRAY_LEN(b->past) : 0;
    double s = (double)(now - b->past[first].ns) / 1e9;
    uint64_t from = b->past[first].done;

    return s > 0.2 && b->done > from ? (double)(b->done - from) / s : 0;
}

static void remember(struct cli_bar *b, uint64_t now)
{
    unsigned last = b->n_past ? (b->n_past - 1) % CN_ARRAY_LEN(b->past) : 0;

    if (b->n_past && now - b->past[last].ns < 500000000u) return;
    b->past[b->n_past % CN_ARRAY_LEN(b->past)].ns = now;
    b->past[b->n_past % CN_ARRAY_LEN(b->past)].done = b->done;
    b->n_past++;
    if (b->n_past >= 2 * CN_ARRAY_LEN(b->past)) b->n_past -= CN_ARRAY_LEN(b->past);
}

/* "8.0 GB of 18.6 GB, 52.1 MB/s, 3:21 left" */
static void say(const struct cli_bar *b, uint64_t now, char *out, size_t size)
{
    char done[32], total[32], speed[32];
    double r = rate(b, now);
    size_t n = 0;

    n += (size_t)snprintf(out + n, size - n, "%s", cli_bytes(b->done, done));
    if (b->total) n += (size_t)snprintf(out + n, size - n, " of %s", cli_bytes(b->total, total));
    if (r <= 0) return;
    n += (size_t)snprintf(out + n, size - n, ", %s/s", cli_bytes((uint64_t)r, speed));
    if (!b->total || b->done >= b->total) return;
    double left = (double)(b->total - b->done) / r;
    if (left > 359999) return;
    unsigned s = (unsigned)left;
    if (s >= 3600)
        snprintf(out + n, size - n, ", %u:%02u:%02u left", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out + n, size - n, ", %u:%02u left", s / 60, s % 60);
}

static unsigned columns(void)
{
    struct winsize w;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col ? w.ws_col : 80;
}

static void draw(struct cli_bar *b, uint64_t now)
{
    char text[160] = "", line[512];
    unsigned percent = b->total ? (unsigned)(100.0 * (double)b->done / (double)b->total) : 0;

    say(b, now, text, sizeof text);
    if (!b->tty) {
        if (b->total)
            fprintf(stderr, "%s: %u %%, %s\n", b->label, percent, text);
        else
            fprintf(stderr, "%s: %s\n", b->label, text);
        return;
    }
    size_t width = CN_MIN(columns(), sizeof line) - 1, n = 0;
    size_t fixed = strlen(b->label) + strlen(text) + 12, bar = width > fixed ? width - fixed : 0;
    bar = CN_MIN(bar, 40u);
    n += (size_t)snprintf(line, sizeof line, "%.160s ", b->label);
    if (b->total && bar >= 8) {
        size_t full = bar * percent / 100;
        line[n++] = '[';
        for (size_t i = 0; i < bar; i++)
            line[n++] = i < full ? '#' : '.';
        line[n++] = ']';
        line[n++] = ' ';
    }
    if (b->total) n += (size_t)snprintf(line + n, sizeof line - n, "%3u %% ", percent);
    n += (size_t)snprintf(line + n, sizeof line - n, "%s", text);
    fprintf(stderr, "\r%.*s\033[K", (int)CN_MIN(n, width), line);
    fflush(stderr);
    b->shown = true;
}

void cli_bar_start(struct cli_bar *b, const char *label, uint64_t done, uint64_t total)
{
    memset(b, 0, sizeof *b);
    b->label = label;
    b->done = done;
    b->total = total;
    b->tty = isatty(STDERR_FILENO);
    b->shown_ns = cn_now_ns();
    remember(b, b->shown_ns);
}

void cli_bar_update(struct cli_bar *b, uint64_t done)
{
    uint64_t now = cn_now_ns();

    if (done < b->done) b->n_past = 0; /* from the beginning again */
    b->done = done;
    remember(b, now);
    if (now - b->shown_ns < (b->tty ? TTY_EVERY_MS : PLAIN_EVERY_MS) * 1000000ull) return;
    b->shown_ns = now;
    draw(b, now);
}

void cli_bar_note(struct cli_bar *b, const char *fmt, ...)
{
    va_list ap;

    if (b->shown) fprintf(stderr, "\r\033[K");
    b->shown = false;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

void cli_bar_end(struct cli_bar *b)
{
    if (b->shown) fprintf(stderr, "\r\033[K");
    b->shown = false;
}
