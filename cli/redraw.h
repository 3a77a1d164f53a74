/* Finds where the line that is being typed begins after the terminal changed its size, so that
 * it can be redrawn without remnants. Main thread. */
#ifndef CLI_REDRAW_H
#define CLI_REDRAW_H

#include "base/base.h"

#include <stdio.h>
#include <wchar.h>

/* Bytes typed while an answer of the terminal was waited for. */
struct cli_typed {
    char *v;
    size_t len, cap, at;
};

struct cli_redraw {
    struct cli_typed typed;
    unsigned columns; /* of the terminal when the line was last drawn */
    size_t drawn;     /* characters of the line that were there when it was drawn as a whole */
    bool rewraps;     /* the terminal wraps its lines anew when it is resized */
    bool mute;        /* it does not tell where its cursor is */
};

void cli_redraw_init(struct cli_redraw *r, int fd);
void cli_redraw_fini(struct cli_redraw *r);
/* A new line begins. */
void cli_redraw_begin(struct cli_redraw *r, FILE *to);
/* Moves the cursor to where the prompt began and clears from there on; the caller then draws all of
 * the line. text: what was typed, n characters, the first `cursor` of them before the cursor. */
void cli_redraw_clear(struct cli_redraw *r, FILE *to, unsigned prompt_columns, const wchar_t *text,
                      size_t n, size_t cursor);

#endif
