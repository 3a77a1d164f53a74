/* What was typed into chats, kept across them: a file of one entry a line, the oldest first. It is
 * the user's alone (0600), and bounded. Main thread; other processes may add to it meanwhile. */
#ifndef CLI_HISTORY_H
#define CLI_HISTORY_H

#include "base/base.h"

enum { CLI_HISTORY_LINES = 1000 };

/* $CONIFER_HISTORY, else $XDG_STATE_HOME/conifer/history, else ~/.local/state/conifer/history; NULL
 * when the first is empty, where there is no home, or out of memory. Returned owned. */
char *cli_history_path(void);
/* Gives the entries, at most CLI_HISTORY_LINES. What cannot be read is as if it were not there. */
void cli_history_load(const char *path, void (*give)(void *arg, const char *entry), void *arg);
/* Adds one without line ends; a very long one is not kept. */
void cli_history_add(const char *path, const char *entry);

#endif
