/* cli: the two mains and their commands. The only folder that may include everything.
 * Exit codes: 0 done, 1 failed, 2 wrong use; the server also has 70: the engine was stuck. */
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
/* Fetches the model that cfg names, if it is missing. The daemon passes NULL, so that it does not
 * link the HTTP client: half of its libraries. */
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
int cli_reply(int argc, char **argv);
int cli_grammar(int argc, char **argv);
int cli_key(int argc, char **argv);
int cli_version(int argc, char **argv);

/* ---- term.c: messages and progress on standard error ----------------------------------------- */

/* Prints "name: message", with the field before it if err names one; returns 1. */
int cli_error(const char *name, const struct cn_error *err);
/* Appends all of standard input, which must be UTF-8; at a terminal it says that it waits for it.
 */
int cli_read_text(struct cn_buf *text, struct cn_error *err);
/* CN_EINVAL with the first byte that is not UTF-8 and its offset. */
int cli_check_utf8(const char *what, const struct cn_buf *text, struct cn_error *err);
/* Prints all config errors but the last, which it puts in err; all of them if err is not one. */
void cli_faults(const char *name, const struct cfg *cfg, struct cn_error *err);
/* Prints "name: text" and a hint at --help; returns 2. */
int cli_usage(const char *name, const char *fmt, ...) CN_PRINTF(2, 3);
/* Call first in main: opens /dev/null for each closed descriptor of 0 to 2, so that no file or
 * socket opened later takes its number. Standard input is then empty; writing to standard output
 * fails, as on a closed one. Exits with 1 if there is no /dev/null. */
void cli_open_standard(void);
/* Sets UTF-8 for the terminal whatever the locale says, for widths and editing. */
void cli_set_locale(void);
/* Prints the JSON of a command's --json and frees it. Returns the exit code. */
int cli_put_json(json_t *value);
/* The exit code of a command: its status, or 1 if writing to standard output failed. */
int cli_finish(const char *name, int status);
/* Progress of loading or of a prompt: a line on the terminal that is rewritten, from the first
 * second on. */
struct cli_progress {
    uint64_t started_ns, shown_ns;
    bool shown, tty;
};
void cli_progress_start(struct cli_progress *p);
void cli_progress_update(void *arg, uint64_t done, uint64_t total);
void cli_progress_tokens(struct cli_progress *p, uint64_t done, uint64_t total);
void cli_progress_end(struct cli_progress *p);

/* ---- options.c ------------------------------------------------------------------------------- */

/* Flag in an option's val: its letter is also a short option, "-x". */
#define CLI_SHORT 0x100
/* val of a table's last entry: the command also takes the config's options (cfg_from_args). */
#define CLI_AND_CONFIG 1
/* The next option of argv, anywhere before "--": its val without CLI_SHORT; -1 at the end; '?'
 * after an error message. -h is always an option. Set optind to 0 before the first call; at the end
 * argv[optind..] are the other words. */
int cli_option(const char *name, int argc, char **argv, const struct option *options);
/* As cli_option, for a command that ends at -h and at a bad option: then -1, and *end is its exit
 * code + 1. */
int cli_option_or_end(const char *name, int argc, char **argv, const struct option *options,
                      void (*help)(void), int *end);
/* Reads the number given to an option: 0, or 2 after a message with the option and its bounds. */
int cli_number(const char *name, const char *option, const char *text, double low, double high,
               double *out);
int cli_count(const char *name, const char *option, const char *text, uint64_t low, uint64_t high,
              uint64_t *out);
/* Help for the options that choose and load a model; static. */
const char *cli_model_help(void);

/* ---- model.c --------------------------------------------------------------------------------- */

/* Finds the model's file. If there is none, err says what to do. */
int cli_find_model(const struct cfg *cfg, char **path, char **name, struct cn_error *err);
/* For commands of one model: if the config lists several, the one named by model.name, or the
 * first, becomes the model of the group `model`. A file, or a name that is not in the list,
 * stays. */
int cli_take_served(struct cfg *cfg, struct cn_error *err);
/* A copy of the text, owned; NULL for NULL. Out of memory: NULL, and *failed is set. */
char *cli_copy(const char *text, bool *failed);
/* Whether the word is a GGUF file, a name of the catalog or the models folder, or the null
 * model. */
bool cli_names_model(const char *word);
/* The names of the models folder's files, as --model takes them, sorted; free with cli_free_names.
 * NULL with *n 0 if there are none. */
char **cli_installed(size_t *n);
void cli_free_names(char **names, size_t n);
/* Appends the names of the config's list and the models folder, as --model takes them, separated by
 * commas; "" if there are none. */
void cli_put_here(const struct cfg *cfg, struct cn_buf *out);
/* Fetches the model that cfg names (or the default), if the catalog has it and the folder does
 * not. */
int cli_pull_missing(const struct cfg *cfg, struct cn_error *err);
/* The list of `models` for the runtime; *out owned, free with cli_free_models. A name without a
 * file yet is looked for again by the runtime. */
int cli_list_models(const struct cfg *cfg, struct rt_model_opts **out, struct cn_error *err);
void cli_free_models(struct rt_model_opts *all, size_t n);
/* Does what --model WORD does. */
int cli_use_model(struct cfg *cfg, char *word, struct cn_error *err);
/* The catalog's entry for a file, by name and size, or NULL. */
const struct cfg_model *cli_catalog_of(const char *path);

/* ---- near.c ---------------------------------------------------------------------------------- */

/* Appends the model names nearest to the word, at most four, separated by commas: from the config's
 * list (cfg may be NULL), the models folder and, if asked for, the catalog. */
void cli_suggest(const struct cfg *cfg, const char *word, bool catalog, struct cn_buf *out);
/* The name nearest to the word, or NULL if none is near. */
const char *cli_nearest(const char *word, const char *const *names, size_t n);

/* ---- memory.c -------------------------------------------------------------------------------- */

/* What is free on the device, or less when the config gives less. */
struct rt_room cli_memory_room(const struct cfg *cfg, const struct kr_device *d);
/* Plans the memory of a daemon with this config and this room, for a measured model. CN_ENOMEM if
 * it cannot serve the model. */
int cli_plan_room(const struct cfg *cfg, const struct eng_model *m, const struct rt_room *room,
                  struct rt_memory_plan *plan, struct cn_error *err);
/* As cli_plan_room, and prints the arithmetic. */
int cli_put_memory(const struct cfg *cfg, const struct eng_model *m, const struct rt_room *room,
                   struct rt_memory_plan *plan, struct cn_error *err);
/* Prints the plan of a list of models (rt_weigh), or of the model `only` unless NULL. *fit: whether
 * each can be loaded and serve `users` at once. */
int cli_put_weights(const struct cfg *cfg, const struct rt_opts *o, const char *only,
                    uint64_t users, bool *fit, struct cn_error *err);
/* Users at once, each with the whole window. */
uint64_t cli_users(const struct cfg *cfg, const struct rt_memory_plan *plan);

/* ---- stack.c: a model in this process, no sockets -------------------------------------------- */

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
/* Reads the config and its options out of argv; logs only warnings and errors. */
int cli_stack_config(struct cli_stack *s, int *argc, char **argv, struct cn_error *err);
/* Finds the model's file and name, once. */
int cli_stack_find(struct cli_stack *s, struct cn_error *err);
/* Finds the model, unless done, and loads it. */
int cli_stack_open(struct cli_stack *s, struct cn_error *err);
/* Unloads the model; the config and the found file stay. */
void cli_stack_unload(struct cli_stack *s);
void cli_stack_close(struct cli_stack *s);
/* Finds the file of the model named by a command's words (from optind), --model or the config. If
 * they name none or several: prints the usage error, sets *status to the exit status and returns
 * 0. */
int cli_one_model(struct cli_stack *s, int argc, char **argv, int *status, struct cn_error *err);

/* Callbacks for a request's events; any may be NULL. */
struct cli_sink {
    void *arg;
    /* Text of a part, cut anywhere; all is content in requests that are not parted. */
    void (*on_part)(void *arg, enum eng_part part, const char *text, size_t n);
    void (*on_token)(void *arg); /* once per token, as it arrives */
    /* Called about 20 times a second and at every event; true cancels the request. */
    bool (*stopped)(void *arg);
};
struct cli_result {
    int code; /* of END: 0, CN_ECANCELLED, ... */
    char message[512];
    enum rt_finish finish; /* of the first choice */
    struct rt_usage usage;
};
/* Submits q (moved) and waits for its end. *out also has an error of the submission. */
void cli_stack_ask(struct cli_stack *s, struct rt_request *q, const struct cli_sink *sink,
                   struct cli_result *out);

#endif
