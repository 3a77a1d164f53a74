/* Text of an answer on a terminal, as it arrives: lines are broken between words at the terminal's
 * width, and nothing of it controls the terminal. Main thread. */
#ifndef CLI_WRAP_H
#define CLI_WRAP_H

#include "base/base.h"

#include <stdio.h>

enum { CLI_WRAP_WORD = 256 };

struct cli_wrap {
    FILE *to;
    bool on;         /* false: lines are left as they are */
    unsigned x;      /* the cursor's column; the terminal's width when it is behind the last */
    unsigned spaces; /* that came behind the last word, not written yet */
    char word[CLI_WRAP_WORD]; /* not written yet: more of it may come */
    size_t n;
    unsigned width; /* of the word, in columns */
    bool first;     /* the word is the first of its line */
    bool table;     /* the line is a row of a table, which is not wrapped */
    bool joins;     /* no break before the next wide character */
    char fence;     /* '`' or '~' within a block of code, which is not wrapped; else 0 */
};

void cli_wrap_begin(struct cli_wrap *w, FILE *to, bool on);
/* Whole characters. */
void cli_wrap_put(struct cli_wrap *w, const char *text, size_t n);
/* Nothing came for a while: shows the word so far, where the rest will have room behind it. */
void cli_wrap_idle(struct cli_wrap *w);
/* Writes what was held back. */
void cli_wrap_flush(struct cli_wrap *w);

#endif
