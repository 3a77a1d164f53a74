/* cli: the two mains and their commands. The only folder that sees everything.
 * Exit codes: 0 done, 1 failed, 2 wrong use; of the server also 70, the engine was stuck. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "base/base.h"
#include "config/config.h"
#include "engine/engine.h"
#include "runtime/runtime.h"

#include <getopt.h>
#include <jansson.h>

#define CLI_VERSION CONIFER_VERSION /* from meson.build */

/* Commands: argv[0] is the name to show in messages ("conifer run"); argv may be changed. */
/* `fetch`, unless NULL, fetches the one model that cfg names when it is not there. The daemon has
 * none, and so does not link what speaks HTTP to others: half of its libraries. */
typedef int cli_fetch(const struct cfg *cfg, struct cn_error *err);
int cli_serve(int argc, char **argv, cli_fetch *fetch);
int cli_run(int argc, char **argv);
int cli_pull(int argc, char **argv);
int cli_list(int argc, char **argv);
int cli_rm(int argc, char **argv);
int cli_show(int argc, char **argv);
int cli_plan(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_tokenize(int argc, char **argv);
int cli_key(int argc, char **argv);
int cli_version(int argc, char **argv);

/* ---- term.c: messages and progress on standard error ------------------------------------------
 */

/* "name: message", with the field in front where err names one; returns 1. */
int cli_error(const char *name, const struct cn_error *err);
/* CN_EINVAL with the first byte that is no UTF-8, and its offset. */
int cli_check_utf8(const char *what, const struct cn_buf *text, struct cn_error *err);
/* Prints all config errors but the last, which it puts in err; all of them if err is not one. */
void cli_faults(const char *name, const struct cfg *cfg, struct cn_error *err);
/* "name: text" and a hint at --help; returns 2. */
int cli_usage(const char *name, const char *fmt, ...) CN_PRINTF(2, 3);
/* First in main: opens on /dev/null whichever of the descriptors 0 to 2 are closed, so that no file
 * or socket opened later stands for them. Standard input is then empty; writing to standard output
 * fails, as it does on a closed one. Exits with 1 where there is no /dev/null. */
void cli_open_standard(void);
/* Texts are UTF-8 in the terminal, whatever the locale says: for widths and editing. */
void cli_set_locale(void);
/* Prints what a command's --json gives, and frees it; the exit code. */
int cli_put_json(json_t *value);
/* At the end of a command: its status, or 1 when what it wrote to standard output went nowhere. */
int cli_finish(const char *name, int status);
/* Progress of loading, or of reading a prompt: one line that is rewritten, on a terminal, after the
 * first second. */
struct cli_progress {
    uint64_t started_ns, shown_ns;
    bool shown, tty;
};
void cli_progress_start(struct cli_progress *p);
void cli_progress_update(void *arg, uint64_t done, uint64_t total);
void cli_progress_tokens(struct cli_progress *p, uint64_t done, uint64_t total);
void cli_progress_end(struct cli_progress *p);

/* ---- options.c ---------------------------------------------------------------------------------
 */

/* In an option's val: its letter may be given as "-x", too. */
#define CLI_SHORT 0x100
/* The val of a table's end: the command takes the config's options as well (cfg_from_args). */
#define CLI_AND_CONFIG 1
/* The next option of argv, wherever it stands in front of "--": its val without CLI_SHORT, -1 at the end, '?' after
 * saying what is wrong. -h is always there. Set optind to 0 before the first call; afterwards
 * argv[optind..] is what is no option. */
int cli_option(const char *name, int argc, char **argv, const struct option *options);
/* As that, for a command that ends at -h and at a bad option: -1 with *end, its exit code + 1. */
int cli_option_or_end(const char *name, int argc, char **argv, const struct option *options,
                      void (*help)(void), int *end);
/* The number that an option was given: 0, or 2 after naming the option and what it may be. */
int cli_number(const char *name, const char *option, const char *text, double low, double high,
               double *out);
int cli_count(const char *name, const char *option, const char *text, uint64_t low, uint64_t high,
              uint64_t *out);
/* Help for the options that choose and load a model; static. */
const char *cli_model_help(void);

/* ---- model.c -----------------------------------------------------------------------------------
 */

/* Finds the file, saying what to do when there is none. */
int cli_find_model(const struct cfg *cfg, char **path, char **name, struct cn_error *err);
/* For commands of one model: when the config lists several, the one that model.name says, or the
 * first, becomes the model of the group `model`. A file, or a name that is not in the list,
 * stays. */
int cli_take_served(struct cfg *cfg, struct cn_error *err);
/* Whether the word is a GGUF file, a name of the catalog or the models folder, or the null
 * model. */
bool cli_names_model(const char *word);
/* Names of the models folder's files, as --model takes them, sorted; for cli_free_names. NULL with 0
 * when there are none. */
char **cli_installed(size_t *n);
void cli_free_names(char **names, size_t n);
/* Names, as --model takes them, of the config's list and the models folder; separated by commas, ""
 * when there are none. */
void cli_put_here(const struct cfg *cfg, struct cn_buf *out);
/* Fetches the model that cfg names (or the default) when the catalog has it and the folder has not.
 */
int cli_pull_missing(const struct cfg *cfg, struct cn_error *err);
/* The list of `models` for the runtime; *out owned, for cli_free_models. A name of which there is no
 * file yet is the runtime's to look for again. */
int cli_list_models(const struct cfg *cfg, struct rt_model_opts **out, struct cn_error *err);
void cli_free_models(struct rt_model_opts *all, size_t n);
/* As --model WORD. */
int cli_use_model(struct cfg *cfg, char *word, struct cn_error *err);
/* The catalog's line for a file, by its name and size; NULL when it has none. */
const struct cfg_model *cli_catalog_of(const char *path);

/* ---- near.c ------------------------------------------------------------------------------------
 */

/* Adds the models' names near to the word, at most four, separated by commas: of the config's list
 * (cfg may be NULL), of the models folder, and of the catalog where that is asked for. */
void cli_suggest(const struct cfg *cfg, const char *word, bool catalog, struct cn_buf *out);
/* The name nearest to the word, or NULL when none is near. */
const char *cli_nearest(const char *word, const char *const *names, size_t n);

/* ---- memory.c -------------------------------------------------------------------------------- */

/* What is free on the device, or less when the config gives less. */
struct rt_room cli_memory_room(const struct cfg *cfg, const struct kr_device *d);
/* What a daemon with this config, and so much room, takes for a measured model. CN_ENOMEM when it
 * cannot serve it. */
int cli_plan_room(const struct cfg *cfg, const struct eng_model *m, const struct rt_room *room,
                  struct rt_memory_plan *plan, struct cn_error *err);
/* The same, and prints the arithmetic. */
int cli_put_memory(const struct cfg *cfg, const struct eng_model *m, const struct rt_room *room,
                   struct rt_memory_plan *plan, struct cn_error *err);
/* The same of several that are listed: what rt_weigh says; `only`, unless NULL, of one of them
 * alone. *fit: whether each can be loaded, and `users` at once. */
int cli_put_weights(const struct cfg *cfg, const struct rt_opts *o, const char *only,
                    uint64_t users, bool *fit, struct cn_error *err);
/* How many at once, each with the whole window. */
uint64_t cli_users(const struct cfg *cfg, const struct rt_memory_plan *plan);

/* ---- stack.c: a model in this process, no sockets ----------------------------------------------
 */

struct cli_stack {
    struct cfg cfg;
    struct cn_metrics metrics;
    char *path, *name;
    struct rt *rt;
    struct cn_mailbox mail;
    bool mail_ready, cfg_ready;
    bool model_given; /* by --model */
    uint64_t last_id;
};
/* Reads config and the options it knows out of argv; logs warnings and worse only. */
int cli_stack_config(struct cli_stack *s, int *argc, char **argv, struct cn_error *err);
/* Finds the model's file and name, once. */
int cli_stack_find(struct cli_stack *s, struct cn_error *err);
/* Finds it, if that is to be done yet, and loads it. */
int cli_stack_open(struct cli_stack *s, struct cn_error *err);
/* Gives the loaded model up; the config and what was found stay. */
void cli_stack_unload(struct cli_stack *s);
void cli_stack_close(struct cli_stack *s);
/* Finds the file of the one model that a command's words (from optind), --model or the config name.
 * Other than one: told as wrong usage, *status is the exit status, 0 is returned. */
int cli_one_model(struct cli_stack *s, int argc, char **argv, int *status, struct cn_error *err);

/* What a request does with its events; any may be NULL. */
struct cli_sink {
    void *arg;
    void (*on_text)(void *arg, const char *text, size_t n);
    void (*on_thought)(void *arg, const char *text, size_t n); /* reasoning, of parted requests */
    void (*on_token)(void *arg); /* once per token, as it arrives */
    /* Asked about 20 times a second and at every event: true cancels. */
    bool (*stopped)(void *arg);
};
struct cli_result {
    int code; /* of END: 0, CN_ECANCELLED, ... */
    char message[512];
    enum rt_finish finish; /* of the first choice */
    struct rt_usage usage;
};
/* Submits (moved) and waits for the end. An error that comes at once is in the result too. */
void cli_stack_ask(struct cli_stack *s, struct rt_request *q, const struct cli_sink *sink,
                   struct cli_result *out);

#endif
