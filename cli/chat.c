/* conifer run in a terminal: a conversation, and the commands that begin with a slash. Main thread.
 */
#include "cli/run.h"

#include "cli/line.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static void forget_last(struct cli_run *r)
{
    json_array_remove(r->messages, json_array_size(r->messages) - 1);
}

static void help(void)
{
    fprintf(stderr, "  /clear   forget the conversation (also /new)\n"
                    "  /exit    end (also /bye, Ctrl-D, or Ctrl-C twice)\n"
                    "  /help    this text\n"
                    "Ctrl-C stops an answer, or clears the line. Arrow keys edit the line and go "
                    "back to earlier ones.\n"
                    "A text of several lines stands between \"\"\" and \"\"\".\n"
                    "A text that is to begin with a slash takes a space in front of it; what is "
                    "pasted is a message as it is.\n");
}

/* Whether the line is one word after a slash, and letters only: "/etc/hosts: ..." is a text. */
static size_t command_len(const char *line)
{
    size_t n = 1;

    if (line[0] != '/') return 0;
    while (isalpha((unsigned char)line[n]))
        n++;
    return line[n] && line[n] != ' ' && line[n] != '\t' ? 0 : n;
}

static bool is_one(const char *line, size_t n, const char *a, const char *b)
{
    return (strlen(a) == n && !strncmp(line, a, n)) || (strlen(b) == n && !strncmp(line, b, n));
}

/* Does what the command says; true ends the chat. */
static bool command(struct cli_run *r, const char *line, size_t n, size_t keep)
{
    if (is_one(line, n, "/exit", "/bye") || is_one(line, n, "/quit", "/quit")) return true;
    if (is_one(line, n, "/clear", "/new")) {
        while (json_array_size(r->messages) > keep)
            forget_last(r);
        fprintf(stderr, "(the conversation is forgotten)\n");
    } else if (is_one(line, n, "/help", "/?")) {
        help();
    } else {
        fprintf(stderr, "There is no command %.*s; /help lists them.\n", (int)CN_MIN(n, 64), line);
    }
    return false;
}

static int say(struct cli_run *r, const char *name, const char *text, size_t n, size_t keep)
{
    struct cn_error err = {0};

    n = cn_utf8_valid_len(text, n);
    if (!n) return 0;
    if (cli_run_add(r, "user", text, n)) {
        cn_fail(&err, CN_ENOMEM, "out of memory");
        return cli_error(name, &err);
    }
    int rc = cli_run_answer(r, &err);
    if (!rc) return 0;
    cli_error(name, &err);
    forget_last(r);
    if (rc == CN_EWINDOW || rc == CN_ENEVERFIT)
        fputs(json_array_size(r->messages) > keep && eng_model_template(rt_model(r->stack.rt))
                  ? "The conversation has grown too long; /clear forgets it.\n"
                  : "A shorter text is needed.\n",
              stderr);
    return 0;
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
                      size_t n, bool pasted, size_t keep, int *status)
{
    if (several->len || (!pasted && !strncmp(text, QUOTES, strlen(QUOTES)))) {
        if (!add_line(several, text, n)) return false;
        *status = say(r, name, several->data, several->len - 1, keep);
        cn_buf_fini(several);
        cn_buf_init(several, 0);
        return false;
    }
    if (strspn(text, " \t") == n) return false;
    size_t word = pasted ? 0 : command_len(text);
    if (word) return command(r, text, word, keep);
    *status = say(r, name, text, n, keep);
    return false;
}

int cli_chat(struct cli_run *r, const char *name)
{
    struct cli_line *in = cli_line_new(r->colour);
    size_t keep = json_array_size(r->messages);
    bool warned = false; /* the last thing was a Ctrl-C */
    struct cn_buf several;
    int status = 0;

    if (!in) return 1;
    r->chatting = true;
    cn_buf_init(&several, 0);
    fprintf(stderr, "%s. /help lists commands; Ctrl-C stops an answer, Ctrl-D ends.\n",
            r->stack.name);
    while (!status) {
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
            if (take_line(r, name, &several, text, n, pasted, keep, &status)) break;
        } else {
            cn_buf_reset(&several);
        }
    }
    cn_buf_fini(&several);
    fflush(stdout);
    cli_line_free(in);
    return status;
}
