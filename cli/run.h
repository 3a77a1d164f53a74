/* Between run.c (options, one question), answer.c (an answer), chat.c (the conversation), command.c
 * (its commands), form.c (schemas and tools) and switch.c (another model). */
#ifndef CLI_RUN_H
#define CLI_RUN_H

#include "cli/cli.h"
#include "cli/message.h"
#include "cli/wrap.h"

#include <jansson.h>
#include <signal.h>

enum cli_think { CLI_THINK_DEFAULT, CLI_THINK_ON, CLI_THINK_OFF };
/* What answers are held to, and may call. */
struct cli_form {
    char *schema_file; /* NULL: no schema */
    struct cn_buf schema;
    json_t *tools; /* NULL: none */
    struct eng_tools *offered;
    enum cli_think think;
    /* For the loaded model, once `ready`: */
    bool ready;
    enum rt_tools way;           /* how the tools reach it */
    struct eng_grammar *grammar; /* of the schema; NULL: none */
    json_t *thinking;            /* variables of its template; NULL: none */
};

struct cli_run {
    struct cli_stack stack;
    struct cli_form form;
    struct cfg_sampling asked;    /* what the options and /set name, */
    struct eng_sampling sampling; /* over what the model's defaults are */
    uint64_t seed;
    uint64_t max_tokens; /* 0: up to the window */
    bool max_given;      /* it was asked for: else less is fine where window or memory end */
    bool chatting;       /* less is fine then too: what is left gets less with every turn */
    bool seeded, colour;
    bool tty;          /* a person sees the answers */
    bool wraps, stats; /* for whom they are wrapped, and followed by a line of speeds */
    bool quiet;
    bool thinking; /* what was written last is reasoning */
    struct cli_wrap wrap;
    struct cli_progress reading;         /* of the prompt, until the first token */
    uint64_t first_ns, last_ns, text_ns; /* the first token (0: to come), the last, the last text */
    uint64_t n_prompt, before;           /* its tokens; those read before it, by the metrics */
    json_t *messages;
    size_t skip; /* messages after the system message that are left out: the window was full */
    struct cli_message answer;      /* the one being written */
    struct cli_arguments arguments; /* of the call being written, where a person sees it */
    bool calling;                   /* what was written last is a call */
    bool at_start;                  /* of a line is where the answer goes on */
    bool failed;                    /* memory ran out in the middle of it */
};

/* Set by Ctrl-C. */
extern volatile sig_atomic_t cli_interrupted;

int cli_run_add(struct cli_run *r, const char *role, const char *text, size_t n);
/* The number of system messages, 0 or 1: they come first. */
size_t cli_run_first(const struct cli_run *r);
/* The number of calls of the last answer that have no result yet; *next: the first of them. */
size_t cli_run_open_calls(const struct cli_run *r, const json_t **next);
/* Answers the conversation as it stands, and adds the answer to it. Of a chat the oldest turns are
 * left out where the window has no room, which is said. */
int cli_run_answer(struct cli_run *r, struct cn_error *err);
/* Finds, fetches and loads the model that the config names. */
int cli_run_open(struct cli_run *r, struct cn_error *err);
/* What is drawn with from now on: the loaded model's defaults, and what was asked for. */
int cli_run_sampling(struct cli_run *r, struct cn_error *err);
/* Says of a base model, once, that it does not chat. */
void cli_run_say_kind(const struct cli_run *r);
/* Another model in the place of the loaded one, as --model takes it. When it cannot be had, the one
 * before stays or is loaded again; *lost: that failed, too. */
int cli_run_switch(struct cli_run *r, const char *word, bool *lost, struct cn_error *err);
/* ---- form.c ---------------------------------------------------------------------------------- */

/* Reads and checks a file; what was there stays if it fails. Errors name the file and the place in
 * it. */
int cli_form_schema(struct cli_form *f, const char *path, struct cn_error *err);
int cli_form_tools(struct cli_form *f, const char *path, struct cn_error *err);
void cli_form_free_schema(struct cli_form *f); /* answers are free */
/* Makes what depends on the loaded model, unless that is done; says so where the model has no
 * switch for reasoning. CN_EUNSUPP: the model would not see the tools, or cannot be held to the
 * schema beside them. */
int cli_form_ready(struct cli_run *r, struct cn_error *err);
/* Another model or setting: it must be made anew. */
void cli_form_forget(struct cli_form *f);
void cli_form_fini(struct cli_form *f);

/* Talks until the end of input; the exit code. */
int cli_chat(struct cli_run *r, const char *name);
/* Answers the conversation, and tells errors; the message that could not be answered is removed. */
void cli_chat_answer(struct cli_run *r, const char *name);
/* Does what a line says that begins with a command; *ends: the chat is over, and its exit code is
 * returned. False when the line is a text. */
bool cli_chat_command(struct cli_run *r, const char *name, const char *line, bool *ends,
                      int *status);

#endif
