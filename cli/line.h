/* One line from a terminal, edited where libedit was there to build with. */
#ifndef CLI_LINE_H
#define CLI_LINE_H

#include "cli/cli.h"

struct cli_line;

enum cli_line_event {
    CLI_LINE_TEXT,      /* *text is the line, without its end; valid until the next call */
    CLI_LINE_PASTED,    /* likewise, beginning with a paste: not looked into */
    CLI_LINE_CLEARED,   /* Ctrl-C, and there was something to clear */
    CLI_LINE_INTERRUPT, /* Ctrl-C on an empty line */
    CLI_LINE_END,       /* Ctrl-D, or the terminal is gone */
};

/* The prompt is shown in bold when `colour`. NULL when out of memory. */
struct cli_line *cli_line_new(bool colour);
void cli_line_free(struct cli_line *l);
/* Asks with `prompt`, of narrow characters. In the history the line is an entry, or, where it is
 * one `more` of a text of several, a further line of the last entry. Ctrl-C is to set
 * `cli_interrupted` (run.h) while it waits. */
enum cli_line_event cli_line_read(struct cli_line *l, const char *prompt, bool more,
                                  const char **text, size_t *n);
/* Takes terminal control sequences and control characters but tabs out of text; the new length. */
size_t cli_line_plain(char *text, size_t n);

#endif
