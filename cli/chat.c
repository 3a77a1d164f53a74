/* conifer run in a terminal: a conversation. Main thread. */
#include "cli/run.h"

#include "cli/line.h"

#include <stdio.h>
#include <string.h>

void cli_chat_answer(struct cli_run *r, const char *name)
{
    const json_t *next;
    struct cn_error err = {0};
    int rc = cli_run_answer(r, &err);

    if (!rc) {
        if (!r->quiet && cli_run_open_calls(r, &next))
            fprintf(stderr, "(/result TEXT says what %s gave)\n", cli_call_name(next));
        return;
    }
    cli_error(name, &err);
    json_array_remove(r->messages, json_array_size(r->messages) - 1);
    if (rc == CN_EWINDOW || rc == CN_ENEVERFIT) fputs("A shorter text is needed.\n", stderr);
}

static void say(struct cli_run *r, const char *name, const char *text, size_t n)
{
    struct cn_error err = {0};

    n = cn_utf8_valid_len(text, n);
    if (!n) return;
    if (cli_run_add(r, "user", text, n)) {
        cn_fail(&err, CN_ENOMEM, "out of memory");
        cli_error(name, &err);
        return;
    }
    cli_chat_answer(r, name);
}

#define QUOTES "\"\"\""

/* Adds a line to a text of several; true when it was the last one. The first has its quotes
 * still. */
static bool add_line(struct cn_buf *b, const char *line, size_t n)
{
    bool first = !b->len, last;
    if (first) {
        line += strlen(QUOTES);
        n -= strlen(QUOTES);
    }
    last = n >= strlen(QUOTES) && !strcmp(line + n - strlen(QUOTES), QUOTES);
    if (last) n -= strlen(QUOTES);
    cn_buf_append(b, line, n);
    cn_buf_puts(b, "\n"); /* also for an empty one: the text has begun */
    return last || b->failed;
}

/* A line, a command or the text of several lines that ends with this one; true ends the chat.
 * Pasted: a message as it is. */
static bool take_line(struct cli_run *r, const char *name, struct cn_buf *several, const char *text,
                      size_t n, bool pasted, int *status)
{
    bool ends = false;

    if (several->len || (!pasted && !strncmp(text, QUOTES, strlen(QUOTES)))) {
        if (!add_line(several, text, n)) return false;
        say(r, name, several->data, several->len - 1);
        cn_buf_fini(several);
        cn_buf_init(several, 0);
        return false;
    }
    if (strspn(text, " \t") == n) return false;
    if (pasted || !cli_chat_command(r, name, text, &ends, status)) say(r, name, text, n);
    return ends;
}

int cli_chat(struct cli_run *r, const char *name)
{
    struct cli_line *in = cli_line_new(r->colour);
    bool warned = false; /* the last thing was a Ctrl-C */
    struct cn_buf several;
    int status = 0;

    if (!in) return 1;
    r->chatting = true;
    cn_buf_init(&several, 0);
    if (!r->quiet)
        fprintf(stderr, "%s. /help lists commands; Ctrl-C stops an answer, Ctrl-D ends.\n",
                r->stack.name);
    for (;;) {
        const char *text = NULL;
        size_t n = 0;
        bool more = several.len;
        enum cli_line_event event = cli_line_read(in, more ? "..." : ">>>", more, &text, &n);

        bool pasted = event == CLI_LINE_PASTED, typed = event == CLI_LINE_TEXT || pasted;

        if (!typed) putchar('\n');
        if (event == CLI_LINE_END || (event == CLI_LINE_INTERRUPT && warned)) break;
        if (event == CLI_LINE_INTERRUPT) fprintf(stderr, "(Ctrl-C again, or Ctrl-D, ends)\n");
        warned = !typed;
        if (typed) {
            if (take_line(r, name, &several, text, n, pasted, &status)) break;
        } else {
            cn_buf_reset(&several);
        }
    }
    cn_buf_fini(&several);
    fflush(stdout);
    cli_line_free(in);
    return status;
}
