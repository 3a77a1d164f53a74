/* Wrapping an answer as it streams: see wrap.h. A word is held back until it ends, so that no
 * character that stands on the screen is ever moved, also not when the window changes its size. */
#include "cli/wrap.h"

#include <string.h>
#include <sys/ioctl.h>
#include <wchar.h>

enum { TAB = 8, ROOM = 16 }; /* ROOM: columns for the rest of a word that is shown before its end */

static unsigned columns_of(const struct cli_wrap *w)
{
    struct winsize size;

    return w->on && ioctl(fileno(w->to), TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

void cli_wrap_begin(struct cli_wrap *w, FILE *to, bool on)
{
    *w = (struct cli_wrap){.to = to, .on = on, .first = true};
}

/* What kind of line the first word begins. */
static void look_at_first(struct cli_wrap *w)
{
    bool fence = w->n >= 3 && (w->word[0] == '`' || w->word[0] == '~') &&
                 w->word[1] == w->word[0] && w->word[2] == w->word[0] && w->spaces < 4;

    w->first = false;
    if (fence && !w->fence)
        w->fence = w->word[0];
    else if (fence && w->fence == w->word[0])
        w->fence = 0;
    w->table = w->word[0] == '|';
}

static void advance(struct cli_wrap *w, unsigned width, unsigned columns)
{
    w->x += width;
    while (columns && w->x > columns) /* the terminal went on in its next row */
        w->x -= columns;
}

/* Writes the word behind its spaces, or at the beginning of the next row. */
static void place(struct cli_wrap *w)
{
    unsigned columns = columns_of(w);

    if (!w->n) return;
    if (w->first) look_at_first(w);
    bool wraps = columns && !w->fence && !w->table;
    if (wraps && w->x > columns) w->x = columns; /* it became narrower */
    if (wraps && w->x && w->x + w->spaces + w->width > columns && w->width <= columns) {
        fputc('\n', w->to);
        w->x = 0;
    } else {
        fprintf(w->to, "%*s", (int)w->spaces, "");
        advance(w, w->spaces, columns);
    }
    fwrite(w->word, 1, w->n, w->to);
    advance(w, w->width, columns);
    w->n = w->width = w->spaces = 0;
}

/* Punctuation that no line begins with, and brackets that none ends with, of scripts without
 * spaces. */
static bool closes(uint32_t cp)
{
    static const uint32_t set[] = {0x3001, 0x3002, 0xff0c, 0xff0e, 0xff01, 0xff1f, 0xff1a,
                                   0xff1b, 0xff09, 0x300d, 0x300f, 0x3011, 0x300b, 0x3009,
                                   0x30fc, 0xff5d, 0xff3d, 0x3005, 0x2026};

    for (size_t i = 0; i < CN_ARRAY_LEN(set); i++)
        if (set[i] == cp) return true;
    return false;
}

static bool opens(uint32_t cp)
{
    static const uint32_t set[] = {0xff08, 0x300c, 0x300e, 0x3010, 0x300a, 0x3008, 0xff5b, 0xff3b};

    for (size_t i = 0; i < CN_ARRAY_LEN(set); i++)
        if (set[i] == cp) return true;
    return false;
}

static void end_line(struct cli_wrap *w)
{
    place(w);
    fputc('\n', w->to);
    w->x = w->spaces = 0;
    w->first = true;
    w->table = w->joins = false;
}

static void add(struct cli_wrap *w, const char *s, size_t len, uint32_t cp)
{
    enum { ZERO_WIDTH_JOINER = 0x200d };
    int width = wcwidth((wchar_t)cp);
    bool wide = width == 2;

    if (wide && w->n && !w->joins && !closes(cp)) place(w); /* lines break around wide ones */
    if (w->n + len > sizeof w->word) place(w);
    memcpy(w->word + w->n, s, len);
    w->n += len;
    w->width += width > 0 ? (unsigned)width : 0;
    if (width) w->joins = opens(cp);
    if (cp == ZERO_WIDTH_JOINER) w->joins = true;
}

/* One character of len bytes. */
static void take(struct cli_wrap *w, const char *s, size_t len, uint32_t cp)
{
    if (cp == '\n') {
        end_line(w);
    } else if (cp == ' ') {
        place(w);
        w->spaces++;
        w->joins = false;
    } else if (cp == '\t') {
        place(w);
        fprintf(w->to, "%*s\t", (int)w->spaces, "");
        w->x = (w->x + w->spaces) / TAB * TAB + TAB;
        w->spaces = 0;
    } else if (cp >= 0x20 && (cp < 0x7f || cp >= 0xa0)) { /* no control characters, of two sets */
        add(w, s, len, cp);
    }
}

void cli_wrap_put(struct cli_wrap *w, const char *text, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = cn_utf8_decode(text + i, n - i, &cp);
        if (len)
            take(w, text + i, len, cp);
        else
            add(w, "\xef\xbf\xbd", 3, 0xfffd);
        i += CN_MAX(len, (size_t)1);
    }
    fflush(w->to);
}

void cli_wrap_idle(struct cli_wrap *w)
{
    unsigned columns = columns_of(w);

    if (!w->n || (w->first && strchr("`~|", w->word[0]))) return;
    if (columns && !w->fence && !w->table && w->x + w->spaces + w->width + ROOM > columns) return;
    place(w);
    fflush(w->to);
}

void cli_wrap_flush(struct cli_wrap *w)
{
    place(w);
    fflush(w->to);
}
