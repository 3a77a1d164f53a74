/* Between run.c (options, one answer) and chat.c (the conversation). */
#ifndef CLI_RUN_H
#define CLI_RUN_H

#include "cli/cli.h"

#include <jansson.h>
#include <signal.h>

struct cli_run {
    struct cli_stack stack;
    struct cfg_sampling asked;    /* what the options name, */
    struct eng_sampling sampling; /* over what the model's defaults are */
    uint64_t seed;
    uint64_t max_tokens; /* 0: up to the window */
    bool max_given;      /* it was asked for: else less is fine where window or memory end */
    bool chatting;       /* less is fine then too: what is left gets less with every turn */
    bool seeded, colour;
    bool thinking; /* what was written last is reasoning */
    struct cli_progress reading; /* of the prompt, until the first token */
    bool begun;                  /* that has come */
    uint64_t n_prompt, before;   /* its tokens; those read before it, by the metrics */
    json_t *messages;
    struct cn_buf answer; /* the one being written */
};

/* Set by Ctrl-C. */
extern volatile sig_atomic_t cli_interrupted;

int cli_run_add(struct cli_run *r, const char *role, const char *text, size_t n);
/* Answers the conversation as it stands, and adds the answer to it. */
int cli_run_answer(struct cli_run *r, struct cn_error *err);
/* Talks until the end of input; the exit code. */
int cli_chat(struct cli_run *r, const char *name);

#endif
