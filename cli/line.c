/* Reading a line from a terminal: libedit's editor with its history, or, without libedit or
 * on a terminal that cannot move its cursor, what the terminal driver gives. Main thread. Ctrl-C is
 * seen through cli_interrupted, which the signal's handler sets. */
#include "cli/line.h"

#include "cli/history.h"
#include "cli/redraw.h"
#include "cli/run.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>
#ifdef CLI_LIBEDIT
#include <histedit.h>
#endif
/* libedit keeps the names of added functions for ever. */
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#define KEPT_FOR_EVER(call) (__lsan_disable(), (void)(call), __lsan_enable())
#else
#define KEPT_FOR_EVER(call) (void)(call)
#endif

enum { POLL_MS = 200 };

struct cli_line {
    bool colour;
    char prompt[64]; /* with what makes it bold */
    char *text;      /* what the caller sees */
    size_t cap;
#ifdef CLI_LIBEDIT
    EditLine *editor; /* NULL: not on this terminal */
    History *history;
    char *kept, *newest;  /* the history's file, or NULL; its last entry */
    struct cn_buf unkept; /* the last entry, which may get more lines before it is kept */
    mbstate_t shift;
    bool was_empty, more;
    struct sigaction stop_before;
    FILE *to;
    unsigned prompt_columns;
    struct cli_redraw redraw;
#endif
};

size_t cli_line_plain(char *s, size_t n)
{
    size_t out = 0;

    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == 0x1b && i + 1 < n && (s[i + 1] == '[' || s[i + 1] == 'O')) {
            /* CSI: parameters and intermediates up to a final byte; SS3: one byte more. */
            bool csi = s[i + 1] == '[';
            for (i += 2; csi && i < n && (unsigned char)s[i] < 0x40;)
                i++;
        } else if (c == 0x1b) {
            i++;
        } else if ((c >= 0x20 && c != 0x7f) || c == '\t') {
            s[out++] = (char)c;
        }
    }
    return out;
}

#ifdef CLI_LIBEDIT

/* What is pasted is one text (the terminal puts marks around it), however many lines it has. In the
 * editor's one line these symbols stand for their ends and for tabs, and for its beginning where it
 * would be taken for something else. Being text they move with it, and are in the history. */
#define LINE_END   "\xe2\x90\xa4" /* U+2424 */
#define TAB        "\xe2\x90\x89" /* U+2409 */
#define PASTED     "\xe2\x90\x82" /* U+2402: what begins here is no command */
#define PASTES_ON  "\033[?2004h"
#define PASTES_OFF "\033[?2004l"

static volatile sig_atomic_t resized, stopping, continued;

static void on_resize(int signum)
{
    resized = 1;
}

static void on_stop(int signum)
{
    stopping = 1;
}

static void on_continue(int signum)
{
    continued = 1;
}

static char *show_prompt(EditLine *e)
{
    struct cli_line *l = NULL;

    el_get(e, EL_CLIENTDATA, &l);
    return l->prompt;
}

/* Ctrl-Z: the terminal is the shell's while this process stands still. */
static void stop(EditLine *e, struct cli_line *l)
{
    struct sigaction own;

    stopping = 0;
    fputs(PASTES_OFF, l->to);
    fflush(l->to);
    el_set(e, EL_PREP_TERM, 0);
    sigaction(SIGTSTP, &l->stop_before, &own);
    raise(SIGTSTP);
    sigaction(SIGTSTP, &own, NULL);
    continued = 1; /* also where there is no shell to stop for */
}

/* libedit reads again after an interrupted read; waiting here lets Ctrl-C end the line. */
static bool wait_input(EditLine *e, struct cli_line *l)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};

    for (;;) {
        if (cli_interrupted) {
            const LineInfo *info = el_line(e);
            l->was_empty = info->lastchar == info->buffer;
            return false;
        }
        if (resized) {
            resized = 0;
            const LineInfoW *info = el_wline(e);
            cli_redraw_clear(&l->redraw, l->to, l->prompt_columns, info->buffer,
                             (size_t)(info->lastchar - info->buffer),
                             (size_t)(info->cursor - info->buffer));
            el_resize(e);
            el_set(e, EL_REFRESH);
        }
        if (l->redraw.typed.at < l->redraw.typed.len) return true;
        if (stopping) stop(e, l);
        if (continued) { /* back from a stop: the shell left the terminal in its own mode */
            continued = 0;
            el_set(e, EL_PREP_TERM, 1);
            fputs(PASTES_ON, l->to);
            el_set(e, EL_REFRESH);
        }
        int n = poll(&p, 1, POLL_MS); /* a signal just before it is seen a moment later */
        if (n > 0) return true;
        if (n < 0 && errno != EINTR) return false;
    }
}

/* What was typed while the terminal was asked something comes first. */
static ssize_t read_byte(struct cli_line *l, char *c)
{
    struct cli_typed *t = &l->redraw.typed;

    if (t->at == t->len) return read(STDIN_FILENO, c, 1);
    *c = t->v[t->at++];
    if (t->at == t->len) t->at = t->len = 0;
    return 1;
}

static int next_char(EditLine *e, wchar_t *out)
{
    struct cli_line *l = NULL;
    char c;

    el_get(e, EL_CLIENTDATA, &l);
    for (;;) {
        if (!wait_input(e, l)) return -1;
        ssize_t n = read_byte(l, &c);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n <= 0) return (int)n;
        size_t got = mbrtowc(out, &c, 1, &l->shift);
        if (got == (size_t)-2) continue; /* more bytes of this character */
        if (got == (size_t)-1) {         /* not a character: left out */
            memset(&l->shift, 0, sizeof l->shift);
            continue;
        }
        /* A Ctrl-D typed before the terminal was ours was queued as an end of file, read as NUL. */
        if (!got) *out = 4;
        return 1;
    }
}

/* Valid UTF-8 of one line, without controls, for what was pasted. In the editor's mode the terminal
 * swaps "\r" and "\n" (ICRNL and INLCR): "\r\n", one line end, comes as "\n\r". */
static void put_pasted(struct cn_buf *out, const char *s, size_t n)
{
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        bool both = s[i] == '\n' && i + 1 < n && s[i + 1] == '\r';
        len = cn_utf8_decode(s + i, n - i, &cp);
        if (s[i] == '\n' || s[i] == '\r')
            cn_buf_puts(out, LINE_END);
        else if (s[i] == '\t')
            cn_buf_puts(out, TAB);
        else
            cn_buf_append(out, s + i, len);
        len = both ? 2 : CN_MAX(len, (size_t)1);
    }
    if (!out->failed) out->len = cli_line_plain(out->data, out->len);
}

/* Whether a line that begins with this paste would be taken for a command or its first quotes. */
static bool begins(EditLine *e, const struct cli_line *l, const struct cn_buf *text)
{
    const LineInfo *at = el_line(e);

    return !l->more && at->cursor == at->buffer && text->len &&
           (text->data[0] == '/' || text->data[0] == '"');
}

/* Takes what comes up to the mark of its end into the line. */
static unsigned char paste(EditLine *e, int key)
{
    static const char end[] = "\033[201~";
    struct cli_line *l = NULL;
    struct cn_buf raw, text;
    bool whole = false, fits = false;

    el_get(e, EL_CLIENTDATA, &l);
    cn_buf_init(&raw, 0);
    cn_buf_init(&text, 0);
    while (!whole && wait_input(e, l)) {
        char c;
        ssize_t n = read_byte(l, &c);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n <= 0) break;
        cn_buf_putc(&raw, c);
        size_t mark = sizeof end - 1;
        whole = raw.len >= mark && !memcmp(raw.data + raw.len - mark, end, mark);
    }
    if (whole && !raw.failed) {
        put_pasted(&text, raw.data, raw.len - (sizeof end - 1));
        fits = !text.failed && (!begins(e, l, &text) || !el_insertstr(e, PASTED)) &&
               (!text.len || !el_insertstr(e, cn_buf_cstr(&text)));
    }
    cn_buf_fini(&raw);
    cn_buf_fini(&text);
    return !whole ? CC_EOF : fits ? CC_REFRESH : CC_ERROR;
}

/* Symbols become what they stand for; the new length. */
static size_t unfold(char *s, size_t n)
{
    size_t out = 0;

    for (size_t i = 0; i < n;) {
        bool end = n - i >= 3 && !memcmp(s + i, LINE_END, 3);
        bool tab = n - i >= 3 && !memcmp(s + i, TAB, 3);
        bool pasted = n - i >= 3 && !memcmp(s + i, PASTED, 3);
        if (!pasted) s[out++] = end ? '\n' : tab ? '\t' : s[i];
        i += end || tab || pasted ? 3 : 1;
    }
    return out;
}

static void bind_keys(EditLine *e)
{
    static const char *const keys[][2] = {
        {"\033[H", "ed-move-to-beg"},       {"\033[F", "ed-move-to-end"},
        {"\033OH", "ed-move-to-beg"},       {"\033OF", "ed-move-to-end"},
        {"\033[1~", "ed-move-to-beg"},      {"\033[4~", "ed-move-to-end"},
        {"\033[3~", "ed-delete-next-char"}, {"\033[1;5C", "em-next-word"},
        {"\033[1;5D", "ed-prev-word"},      {"\033[A", "ed-prev-history"},
        {"\033[B", "ed-next-history"},      {"\033[C", "ed-next-char"},
        {"\033[D", "ed-prev-char"},         {"^R", "em-inc-search-prev"},
        {"^W", "ed-delete-prev-word"},
    };

    for (size_t i = 0; i < CN_ARRAY_LEN(keys); i++)
        el_set(e, EL_BIND, keys[i][0], keys[i][1], NULL);
    KEPT_FOR_EVER(el_set(e, EL_ADDFN, "paste", "take what is pasted", paste));
    el_set(e, EL_BIND, "\033[200~", "paste", NULL);
}

static void recall(void *arg, const char *entry)
{
    struct cli_line *l = arg;
    HistEvent ev;
    char *copy = strdup(entry); /* another program may have written it */

    if (!copy) return;
    copy[cli_line_plain(copy, strlen(copy))] = '\0';
    if (*copy) history(l->history, &ev, H_ENTER, copy);
    free(l->newest);
    l->newest = copy;
}

static void keep(struct cli_line *l)
{
    const char *entry = cn_buf_cstr(&l->unkept);

    if (l->kept && entry && *entry && (!l->newest || strcmp(l->newest, entry) != 0)) {
        cli_history_add(l->kept, entry);
        free(l->newest);
        l->newest = strdup(entry);
    }
    cn_buf_reset(&l->unkept);
}

static void start_editor(struct cli_line *l)
{
    const char *term = getenv("TERM");
    FILE *to = isatty(STDOUT_FILENO) ? stdout : isatty(STDERR_FILENO) ? stderr : NULL;
    struct sigaction resize = {.sa_handler = on_resize, .sa_flags = SA_RESTART};
    struct sigaction resume = {.sa_handler = on_continue, .sa_flags = SA_RESTART};
    HistEvent ev;

    if (!term || !*term || !strcmp(term, "dumb") || !to) return;
    cli_set_locale();
    l->history = history_init();
    l->editor = l->history ? el_init("conifer", stdin, to, stderr) : NULL;
    if (!l->editor) return;
    history(l->history, &ev, H_SETSIZE, CLI_HISTORY_LINES);
    history(l->history, &ev, H_SETUNIQUE, 1);
    l->kept = cli_history_path();
    if (l->kept) cli_history_load(l->kept, recall, l);
    el_set(l->editor, EL_CLIENTDATA, l);
    el_set(l->editor, EL_EDITOR, "emacs");
    el_set(l->editor, EL_SIGNAL, 0);
    el_set(l->editor, EL_HIST, history, l->history);
    el_set(l->editor, EL_PROMPT_ESC, show_prompt, '\1');
    el_set(l->editor, EL_GETCFN, next_char);
    el_set(l->editor, EL_SETTC, "am", "no", NULL); /* rows end in a line feed: see redraw.c */
    bind_keys(l->editor);
    l->to = to;
    cli_redraw_init(&l->redraw, fileno(to));
    sigaction(SIGWINCH, &resize, NULL);
    sigaction(SIGCONT, &resume, NULL);
}

/* A text of several lines is one entry, as it would be pasted. */
static void remember(struct cli_line *l, const char *line, bool more)
{
    HistEvent ev;

    if (!more) {
        if (*line) history(l->history, &ev, H_ENTER, line);
        cn_buf_puts(&l->unkept, line);
    } else if (history(l->history, &ev, H_FIRST) >= 0) { /* H_ADD adds to where the keys went */
        history(l->history, &ev, H_ADD, LINE_END);
        history(l->history, &ev, H_ADD, line);
        cn_buf_puts(&l->unkept, LINE_END);
        cn_buf_puts(&l->unkept, line);
    }
}

static enum cli_line_event edit(struct cli_line *l, bool more, const char **text, size_t *n)
{
    struct sigaction stops = {.sa_handler = on_stop};
    int count = 0;

    if (!more) keep(l);
    l->was_empty = true;
    l->more = more;
    if (resized) { /* since the last line: nothing is drawn yet */
        resized = 0;
        el_resize(l->editor);
    }
    cli_redraw_begin(&l->redraw, l->to);
    el_set(l->editor, EL_PREP_TERM, 1); /* before the prompt invites to type */
    fputs(PASTES_ON, l->to);
    fflush(l->to);
    sigaction(SIGTSTP, NULL, &l->stop_before);
    if (l->stop_before.sa_handler != SIG_IGN) sigaction(SIGTSTP, &stops, NULL);
    const char *line = el_gets(l->editor, &count);
    fputs(PASTES_OFF, l->to);
    fflush(l->to);
    sigaction(SIGTSTP, &l->stop_before, NULL);
    if (stopping) raise(SIGTSTP); /* it came with the line's end */
    stopping = 0;
    if (cli_interrupted) {
        cli_interrupted = 0;
        return l->was_empty ? CLI_LINE_INTERRUPT : CLI_LINE_CLEARED;
    }
    if (!line || count <= 0) return CLI_LINE_END;
    size_t len = strlen(line);
    char *copy = cn_realloc_array(l->text, len + 1, 1);
    if (!copy) return CLI_LINE_END;
    l->text = copy;
    memcpy(l->text, line, len + 1);
    while (len && (l->text[len - 1] == '\n' || l->text[len - 1] == '\r'))
        len--;
    len = cli_line_plain(l->text, len);
    l->text[len] = 0;
    remember(l, l->text, more);
    bool pasted = !strncmp(l->text, PASTED, strlen(PASTED));
    len = unfold(l->text, len);
    while (len && l->text[len - 1] == '\n')
        len--;
    l->text[len] = 0;
    *text = l->text;
    *n = len;
    return pasted ? CLI_LINE_PASTED : CLI_LINE_TEXT;
}

#endif

struct cli_line *cli_line_new(bool colour)
{
    struct cli_line *l = cn_calloc(1, sizeof *l);

    if (!l) return NULL;
    l->colour = colour;
#ifdef CLI_LIBEDIT
    cn_buf_init(&l->unkept, 0);
    start_editor(l);
#endif
    return l;
}

void cli_line_free(struct cli_line *l)
{
    if (!l) return;
#ifdef CLI_LIBEDIT
    keep(l);
    cn_buf_fini(&l->unkept);
    free(l->kept);
    free(l->newest);
    if (l->editor) el_end(l->editor);
    if (l->history) history_end(l->history);
    cli_redraw_fini(&l->redraw);
#endif
    free(l->text);
    free(l);
}

/* `quiet` stands around what takes no room: the editor counts columns. */
static void set_prompt(struct cli_line *l, const char *prompt, const char *quiet)
{
    if (l->colour)
        snprintf(l->prompt, sizeof l->prompt, "%s\033[1m%s%s%s\033[0m%s ", quiet, quiet, prompt,
                 quiet, quiet);
    else
        snprintf(l->prompt, sizeof l->prompt, "%s ", prompt);
}

enum cli_line_event cli_line_read(struct cli_line *l, const char *prompt, bool more,
                                  const char **text, size_t *n)
{
    cli_interrupted = 0;
#ifdef CLI_LIBEDIT
    if (l->editor) {
        l->prompt_columns = (unsigned)strlen(prompt) + 1;
        set_prompt(l, prompt, "\1");
        return edit(l, more, text, n);
    }
#endif
    set_prompt(l, prompt, "");
    fputs(l->prompt, stdout);
    fflush(stdout);
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    while (!cli_interrupted && poll(&p, 1, POLL_MS) == 0)
        ;
    ssize_t got = cli_interrupted ? -1 : getline(&l->text, &l->cap, stdin);
    if (got < 0 && cli_interrupted) { /* the terminal has dropped what was typed */
        cli_interrupted = 0;
        clearerr(stdin);
        return CLI_LINE_INTERRUPT;
    }
    if (got < 0) return CLI_LINE_END;
    size_t len = (size_t)got;
    while (len && (l->text[len - 1] == '\n' || l->text[len - 1] == '\r'))
        len--;
    len = cli_line_plain(l->text, len);
    l->text[len] = 0;
    *text = l->text;
    *n = len;
    return CLI_LINE_TEXT;
}
