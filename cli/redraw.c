/* Redraws the input line after a resize: see redraw.h. */
#include "cli/redraw.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { ANSWER_MS = 1000, TAB = 8, COLUMNS = 80, LONGEST_REPORT = 16 };

static unsigned columns_of(int fd)
{
    struct winsize w;

    return ioctl(fd, TIOCGWINSZ, &w) == 0 && w.ws_col ? w.ws_col : COLUMNS;
}

void cli_redraw_init(struct cli_redraw *r, int fd)
{
    const char *term = getenv("TERM");

    memset(r, 0, sizeof *r);
    r->columns = columns_of(fd);
    /* Only where the cursor's column does not tell: most terminals of today do, these do not. */
    r->rewraps = !getenv("XTERM_VERSION") && !(term && !strcmp(term, "linux"));
}

void cli_redraw_fini(struct cli_redraw *r)
{
    free(r->typed.v);
    memset(&r->typed, 0, sizeof r->typed);
}

void cli_redraw_begin(struct cli_redraw *r, FILE *to)
{
    r->columns = columns_of(fileno(to));
    r->drawn = 0;
}

/* Where the cursor stands behind prompt and text: as it was drawn, and after the terminal has
 * wrapped each row of that anew. Rows end in a line feed (the editor does not know that terminals
 * wrap), so they are not joined; a row is as long as what was written into it, and a blank at its
 * end was written only when it was typed, not when the line was drawn as a whole. */
struct place {
    unsigned row, column;
    unsigned wrapped_row, wrapped_column;
};

static unsigned columns_taken(wchar_t c, unsigned x)
{
    int w = wcwidth(c);

    if (c == L'\t') return TAB - x % TAB;
    return w >= 0 ? (unsigned)w : 2; /* a control character is shown as ^X */
}

static void end_row(struct place *p, unsigned length, unsigned is)
{
    p->row++;
    p->column = 0;
    p->wrapped_row += length ? (length + is - 1) / is : 1;
}

static struct place find_place(const struct cli_redraw *r, unsigned is, unsigned prompt_columns,
                               const wchar_t *text, size_t n)
{
    unsigned was = r->columns, length = prompt_columns - 1; /* a blank ends it */
    struct place p = {.row = prompt_columns / was, .column = prompt_columns % was};

    for (size_t i = 0; i < n; i++) {
        unsigned width = columns_taken(text[i], p.column);
        if (p.column + width > was) { /* no half characters at the edge */
            end_row(&p, length, is);
            length = 0;
        }
        p.column += width;
        if (text[i] != L' ' || i >= r->drawn) length = p.column;
        if (p.column < was) continue;
        end_row(&p, length, is);
        length = 0;
    }
    p.wrapped_row += p.column / is;
    p.wrapped_column = p.column % is;
    return p;
}

/* ---- where the cursor is --------------------------------------------------------------------- */

/* The report "ESC [ row ; column R" at the end of what came in: its length, 0 when there is
 * none. */
static size_t report_len(const char *s, size_t n, unsigned *column)
{
    size_t at = n;
    unsigned row;
    int used = 0;
    char text[LONGEST_REPORT + 1];

    if (!n || s[n - 1] != 'R') return 0;
    while (at > 0 && n - at < LONGEST_REPORT && s[at - 1] != 0x1b)
        at--;
    if (at == 0 || s[at - 1] != 0x1b) return 0;
    memcpy(text, s + at, n - at);
    text[n - at] = 0;
    if (sscanf(text, "[%5u;%5uR%n", &row, column, &used) != 2 || (size_t)used != n - at) return 0;
    return n - at + 1;
}

/* The cursor's column, from 0. Keys typed meanwhile are kept. */
static bool ask_column(struct cli_redraw *r, FILE *to, unsigned *column)
{
    struct cli_typed *t = &r->typed;
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    uint64_t until = cn_now_ns() + (uint64_t)ANSWER_MS * 1000000u;

    if (r->mute) return false;
    fputs("\033[6n", to);
    fflush(to);
    for (uint64_t now = cn_now_ns(); now < until; now = cn_now_ns()) {
        int n = poll(&p, 1, (int)((until - now) / 1000000u) + 1);
        if (n < 0 && errno != EINTR) break;
        if (n <= 0) continue;
        if (cn_grow(&t->v, &t->cap, t->len + 1, 1)) return false;
        if (read(STDIN_FILENO, t->v + t->len, 1) != 1) break;
        t->len++;
        size_t report = report_len(t->v + t->at, t->len - t->at, column);
        if (!report) continue;
        t->len -= report;
        if (*column) --*column;
        return true;
    }
    r->mute = true;
    return false;
}

void cli_redraw_clear(struct cli_redraw *r, FILE *to, unsigned prompt_columns, const wchar_t *text,
                      size_t n, size_t cursor)
{
    unsigned is = columns_of(fileno(to)), column = 0;
    struct place p = find_place(r, is, prompt_columns, text, cursor);

    if (p.row != p.wrapped_row && ask_column(r, to, &column)) {
        is = columns_of(fileno(to)); /* as it was when it answered */
        p = find_place(r, is, prompt_columns, text, cursor);
        /* A terminal that leaves its lines as they are pushes the cursor in at most. */
        bool stayed = column == CN_MIN(p.column, is - 1), wrapped = column == p.wrapped_column;
        if (stayed != wrapped) r->rewraps = wrapped;
    }
    unsigned up = r->rewraps ? p.wrapped_row : p.row;
    if (up) fprintf(to, "\033[%uA", up);
    fputs("\r\033[J", to);
    fflush(to);
    r->columns = is;
    r->drawn = n;
}
