/* The commands of a chat: lines that begin with a slash. Main thread. */
#include "cli/run.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void help(void)
{
    fputs(
        "  /set [NAME VALUE]   what answers are drawn with, and how they are shown; alone: all\n"
        "  /system [TEXT]      the system message; \"\" removes it, alone: shows it\n"
        "  /schema [FILE]      answers satisfy this JSON Schema from now on; alone: they are "
        "free\n"
        "  /think [on|off]     reasoning on, off, or \"default\": as the model's template has it; "
        "alone: shows\n"
        "  /result TEXT        what the function gave that the model called (--tools)\n"
        "  /model [NAME]       continue the conversation with another model; alone: lists them\n"
        "  /save FILE          write the conversation: as JSON into a .json file, else as text\n"
        "  /clear              forget the conversation (also /new)\n"
        "  /exit               end (also /bye, Ctrl-D, or Ctrl-C twice)\n"
        "  /help               this text (also /?)\n"
        "Ctrl-C stops an answer, or clears the line. Arrow keys edit the line and go back to "
        "earlier ones,\nof earlier chats too.\n"
        "A text of several lines stands between \"\"\" and \"\"\".\n"
        "A text that is to begin with a slash takes a space in front of it; what is "
        "pasted is a message as it is.\n",
        stderr);
}

/* ---- /set ------------------------------------------------------------------------------------ */

enum { MAX_TOKENS = CFG_N_SAMPLING, SEED, STATS, WRAP, N_SETTINGS };

static const char *setting_name(size_t i)
{
    static const char *const others[] = {"max_tokens", "seed", "stats", "wrap"};
    return i < CFG_N_SAMPLING ? cfg_sampling_name((enum cfg_sampling_field)i)
                              : others[i - CFG_N_SAMPLING];
}

static double sampled(const struct eng_sampling *s, enum cfg_sampling_field f)
{
    switch (f) {
        /* clang-format off */
    case CFG_S_TEMPERATURE: return (double)s->temperature;
    case CFG_S_TOP_P: return (double)s->top_p;
    case CFG_S_TOP_K: return (double)s->top_k;
    case CFG_S_MIN_P: return (double)s->min_p;
    case CFG_S_REPETITION: return (double)s->repetition_penalty;
    case CFG_S_PRESENCE: return (double)s->presence_penalty;
    case CFG_S_FREQUENCY: return (double)s->frequency_penalty;
    case CFG_N_SAMPLING: break;
        /* clang-format on */
    }
    return 0;
}

static void show_setting(const struct cli_run *r, size_t i)
{
    fprintf(stderr, "  %-20s ", setting_name(i));
    if (i < CFG_N_SAMPLING)
        fprintf(stderr, "%.6g%s\n", sampled(&r->sampling, (enum cfg_sampling_field)i),
                r->asked.given >> i & 1 ? "" : "  (the model's default)");
    else if (i == MAX_TOKENS && !r->max_tokens)
        fputs("0  (up to the window)\n", stderr);
    else if (i == MAX_TOKENS)
        fprintf(stderr, "%llu\n", (unsigned long long)r->max_tokens);
    else if (i == SEED && !r->seeded)
        fputs("random\n", stderr);
    else if (i == SEED)
        fprintf(stderr, "%llu\n", (unsigned long long)r->seed);
    else
        fputs((i == STATS ? r->stats : r->wraps) ? "on\n" : "off\n", stderr);
}

/* One of the sampling's fields; "default" gives it back to the model. */
static int set_sampling(struct cli_run *r, size_t i, const char *value, struct cn_error *err)
{
    const char *name = setting_name(i);
    struct cfg_sampling before = r->asked, one;
    char text[96];

    if (!strcmp(value, "default")) {
        r->asked.given &= ~(1u << i);
    } else {
        snprintf(text, sizeof text, "%s=%.40s", name, value);
        int rc = cfg_sampling_read(text, &one, err);
        if (rc) return rc;
        r->asked.v[i] = one.v[i];
        r->asked.given |= 1u << i;
    }
    int rc = cli_run_sampling(r, err);
    if (!rc) return 0;
    struct cn_error again;
    r->asked = before;
    cli_run_sampling(r, &again);
    return rc;
}

static int set_number(struct cli_run *r, size_t i, const char *value, struct cn_error *err)
{
    size_t n = strlen(value);
    uint64_t x;

    if (i == SEED && (!strcmp(value, "random") || !strcmp(value, "default"))) {
        r->seeded = false;
        return 0;
    }
    if (!n || strspn(value, "0123456789") != n || !cn_parse_u64(value, n, &x) ||
        x > (i == SEED ? UINT64_MAX - 1 : (uint64_t)INT64_MAX))
        return cn_fail(err, CN_ERANGE, "%s must be a whole number%s, not %.40s", setting_name(i),
                       i == SEED ? ", or random" : "; 0: up to the window", value);
    if (i == SEED) {
        r->seed = x;
        r->seeded = true;
    } else {
        r->max_tokens = x;
        r->max_given = x != 0;
    }
    return 0;
}

static int set_flag(struct cli_run *r, size_t i, const char *value, struct cn_error *err)
{
    bool on = !strcmp(value, "on") || !strcmp(value, "true");

    if (!on && strcmp(value, "off") != 0 && strcmp(value, "false") != 0)
        return cn_fail(err, CN_EINVAL, "%s must be on or off, not %.40s", setting_name(i), value);
    *(i == STATS ? &r->stats : &r->wraps) = on;
    return 0;
}

/* "temperature 0.5", "temperature=0.5", "temperature" or nothing. */
static void set(struct cli_run *r, char *text)
{
    const char *names[N_SETTINGS];
    struct cn_error err = {0};
    size_t n = strcspn(text, " \t="), i = 0;
    char *value = text + n + strspn(text + n, " \t=");

    for (size_t k = 0; k < N_SETTINGS; k++)
        names[k] = setting_name(k);
    if (!*text) {
        for (i = 0; i < N_SETTINGS; i++)
            show_setting(r, i);
        return;
    }
    text[n] = '\0';
    for (size_t k = 0; k < n; k++)
        if (text[k] == '-') text[k] = '_';
    while (i < N_SETTINGS && strcmp(names[i], text) != 0)
        i++;
    if (i == N_SETTINGS) {
        const char *near = cli_nearest(text, names, N_SETTINGS);
        fprintf(stderr, "There is no setting %.64s%s%s. /set lists them.\n", text,
                near ? "; the nearest is " : "", near ? near : "");
        return;
    }
    int rc = !*value              ? 0
             : i < CFG_N_SAMPLING ? set_sampling(r, i, value, &err)
             : i < STATS          ? set_number(r, i, value, &err)
                                  : set_flag(r, i, value, &err);
    if (rc)
        fprintf(stderr, "%s\n", err.message);
    else
        show_setting(r, i);
}

/* ---- /system ------------------------------------------------------------------------- */

static void system_message(struct cli_run *r, const char *text)
{
    size_t first = cli_run_first(r), n = strlen(text);

    if (!*text) {
        const json_t *m = first ? json_array_get(r->messages, 0) : NULL;
        fprintf(stderr, "%s\n",
                m ? json_string_value(json_object_get(m, "content"))
                  : "(there is no system message)");
        return;
    }
    if (cn_utf8_valid_len(text, n) != n) {
        fputs("The text is not valid UTF-8.\n", stderr);
        return;
    }
    bool gone = !strcmp(text, "\"\"");
    json_t *m = gone ? NULL : json_pack("{s:s, s:s}", "role", "system", "content", text);
    if (first) json_array_remove(r->messages, 0);
    if (!gone && (!m || json_array_insert_new(r->messages, 0, m)))
        fputs("(out of memory: there is no system message now)\n", stderr);
    else
        fprintf(stderr, "(the system message is %s)\n", gone ? "removed" : "set");
}

/* ---- /schema, /think, /result ---------------------------------------------------------------- */

/* "~/" is the home folder; owned, NULL when out of memory. */
static char *path_of(const char *text)
{
    const char *home = getenv("HOME");
    char *path = NULL;

    if (strncmp(text, "~/", 2) != 0 || !home) return strdup(text);
    return asprintf(&path, "%s%s", home, text + 1) < 0 ? NULL : path;
}

static void schema(struct cli_run *r, const char *text)
{
    struct cn_error err = {0};

    if (!*text) {
        fprintf(stderr, "(%s)\n",
                r->form.schema_file ? "answers are free from now on"
                                    : "there is no schema: answers are free");
        cli_form_free_schema(&r->form);
        return;
    }
    char *path = path_of(text);
    int rc =
        path ? cli_form_schema(&r->form, path, &err) : cn_fail(&err, CN_ENOMEM, "out of memory");
    free(path);
    if (!rc && (rc = cli_form_ready(r, &err))) cli_form_free_schema(&r->form);
    if (rc)
        fprintf(stderr, "%s\n", err.message);
    else
        fprintf(stderr, "(answers satisfy %s from now on)\n", r->form.schema_file);
}

static void think(struct cli_run *r, const char *text)
{
    static const char *const names[] = {"default", "on", "off"};
    struct cn_error err = {0};
    size_t i = 0;

    if (*text) {
        while (i < CN_ARRAY_LEN(names) && strcmp(names[i], text) != 0)
            i++;
        if (i == CN_ARRAY_LEN(names)) {
            fprintf(stderr, "/think takes on, off or default, not %.40s.\n", text);
            return;
        }
        r->form.think = (enum cli_think)i;
        cli_form_forget(&r->form);
        if (cli_form_ready(r, &err)) fprintf(stderr, "%s\n", err.message);
        if (i && !r->form.thinking) return; /* it cannot be, which was said */
    }
    fprintf(stderr, "(reasoning is %s)\n",
            r->form.think ? names[r->form.think] : "as the model's template has it");
}

static void result(struct cli_run *r, const char *name, const char *text)
{
    const json_t *next = NULL;
    size_t left = cli_run_open_calls(r, &next);

    if (!left) {
        fputs("The last answer has no call that waits for a result.\n", stderr);
        return;
    }
    json_t *m =
        json_pack("{s:s, s:O, s:s, s:s}", "role", "tool", "tool_call_id",
                  json_object_get(next, "id"), "name", cli_call_name(next), "content", text);
    if (!m || json_array_append_new(r->messages, m)) {
        fputs(cn_utf8_valid_len(text, strlen(text)) == strlen(text)
                  ? "(out of memory)\n"
                  : "The text is not valid UTF-8.\n",
              stderr);
        return;
    }
    if (left == 1)
        cli_chat_answer(r, name);
    else if (cli_run_open_calls(r, &next))
        fprintf(stderr, "(next: /result TEXT of %s)\n", cli_call_name(next));
}

/* False when there is no model any more. */
static bool model(struct cli_run *r, const char *name, const char *word)
{
    struct cn_error err = {0};
    bool lost = false;

    if (!*word) {
        struct cn_buf here;
        cn_buf_init(&here, 0);
        cli_put_here(&r->stack.cfg, &here);
        fprintf(stderr, "  in use: %s\n  here:   %s\n", r->stack.name,
                here.len ? cn_buf_cstr(&here) : "none");
        cn_buf_fini(&here);
        return true;
    }
    int rc = cli_run_switch(r, word, &lost, &err);
    if (rc) {
        cli_error(name, &err);
        if (!lost) fprintf(stderr, "(%s is still in use)\n", r->stack.name);
        return !lost;
    }
    r->skip = 0; /* its window may hold more */
    bool talked = json_array_size(r->messages) > cli_run_first(r);
    bool chats = eng_model_template(rt_model(r->stack.rt)) != NULL;
    fprintf(stderr, "(%s answers from now on%s)\n", r->stack.name,
            talked && chats ? ", and the conversation goes on" : "");
    cli_run_say_kind(r);
    struct cn_error unfit = {0};
    if (cli_form_ready(r, &unfit)) cli_error(name, &unfit);
    return true;
}

/* ---- /save ----------------------------------------------------------------------------------- */

static bool ends_in_json(const char *path)
{
    size_t n = strlen(path);
    return n > 5 && !strcmp(path + n - 5, ".json");
}

/* As the body of a request has them; or each under a line with its role. */
static void put_conversation(const struct cli_run *r, bool json, struct cn_buf *out)
{
    if (json) {
        json_t *all = json_pack("{s:s, s:O}", "model", r->stack.name, "messages", r->messages);
        char *text = all ? json_dumps(all, JSON_INDENT(2)) : NULL;
        if (text) cn_buf_printf(out, "%s\n", text);
        out->failed |= !text;
        free(text);
        json_decref(all);
        return;
    }
    for (size_t i = 0; i < json_array_size(r->messages); i++) {
        const json_t *m = json_array_get(r->messages, i), *content = json_object_get(m, "content");
        cn_buf_printf(out, "%s## %s\n\n", i ? "\n" : "",
                      json_string_value(json_object_get(m, "role")));
        size_t n = json_string_length(content);
        if (n) cn_buf_append(out, json_string_value(content), n);
        if (n || !json_object_get(m, "tool_calls")) cn_buf_putc(out, '\n');
        cli_put_calls(m, true, out);
    }
}

/* 0, or why not. Closes fd. */
static int write_all(int fd, const struct cn_buf *text)
{
    size_t at = 0;
    int why = 0;

    while (!why && at < text->len) {
        ssize_t n = write(fd, text->data + at, text->len - at);
        if (n > 0) at += (size_t)n;
        if (n < 0 && errno != EINTR) why = errno;
    }
    if (close(fd) && !why) why = errno;
    return why;
}

static int write_new(const char *path, int flags, const struct cn_buf *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);
    if (fd < 0) return errno;
    int why = write_all(fd, text);
    if (why && (flags & O_EXCL)) unlink(path);
    return why;
}

/* The file that is there stays whole until the new one is. */
static int replace_file(const char *path, const struct stat *old, const struct cn_buf *text)
{
    char *real = realpath(path, NULL),
         *next = NULL; /* what a link names is replaced, not the link */
    int fd = -1, why = 0;

    if (!real || asprintf(&next, "%s.XXXXXX", real) < 0) {
        why = real ? ENOMEM : errno;
        next = NULL;
    }
    if (!why && (fd = mkostemp(next, O_CLOEXEC)) < 0) why = errno;
    if (fd >= 0) {
        fchmod(fd, old->st_mode & 07777); /* else 0600 */
        why = write_all(fd, text);
        if (!why && rename(next, real)) why = errno;
        if (why) unlink(next);
    }
    free(next);
    free(real);
    return why;
}

/* 0, or why not. */
static int write_file(const char *path, bool force, const struct cn_buf *text)
{
    struct stat st;

    if (!force) return write_new(path, O_EXCL, text);
    if (stat(path, &st) || !S_ISREG(st.st_mode)) return write_new(path, O_TRUNC, text);
    return replace_file(path, &st, text);
}

static void save(const struct cli_run *r, const char *text)
{
    bool force = !strncmp(text, "--force", 7) && (!text[7] || text[7] == ' ');
    struct cn_buf out;

    if (force) text += 7 + strspn(text + 7, " ");
    if (!*text) {
        fputs("/save takes the name of a file.\n", stderr);
        return;
    }
    char *path = path_of(text);
    cn_buf_init(&out, 0);
    bool json = path && ends_in_json(path);
    if (path) put_conversation(r, json, &out);
    int why = !path || out.failed ? ENOMEM : write_file(path, force, &out);
    if (why == EEXIST)
        fprintf(stderr, "%s is there already; /save --force %s overwrites it.\n", text, text);
    else if (why)
        fprintf(stderr, "%s: %s\n", text, strerror(why));
    else
        fprintf(stderr, "(%zu messages are in %s, as %s)\n", json_array_size(r->messages), text,
                json ? "JSON" : "text");
    cn_buf_fini(&out);
    free(path);
}

/* ---- which ----------------------------------------------------------------------------------- */

enum what { SET, SYSTEM, SCHEMA, THINK, RESULT, MODEL, SAVE, CLEAR, EXIT, HELP };
static const struct {
    const char *name;
    enum what what;
} commands[] = {{"set", SET},       {"system", SYSTEM}, {"model", MODEL},   {"save", SAVE},
                {"schema", SCHEMA}, {"think", THINK},   {"result", RESULT}, {"clear", CLEAR},
                {"new", CLEAR},     {"exit", EXIT},     {"bye", EXIT},      {"quit", EXIT},
                {"help", HELP},     {"?", HELP}};

/* Whether the line is one word after a slash, and letters only: "/etc/hosts: ..." is a text. */
static size_t command_len(const char *line)
{
    size_t n = 1;

    if (line[0] != '/') return 0;
    if (line[1] == '?')
        n = 2;
    else
        while (isalpha((unsigned char)line[n]))
            n++;
    return line[n] && line[n] != ' ' && line[n] != '\t' ? 0 : n;
}

static void say_unknown(const char *word)
{
    const char *names[CN_ARRAY_LEN(commands)];

    for (size_t i = 0; i < CN_ARRAY_LEN(commands); i++)
        names[i] = commands[i].name;
    const char *near = cli_nearest(word, names, CN_ARRAY_LEN(names));
    if (near)
        fprintf(stderr, "There is no command /%.64s; did you mean /%s? /help lists them.\n", word,
                near);
    else
        fprintf(stderr, "There is no command /%.64s; /help lists them.\n", word);
}

static void clear(struct cli_run *r)
{
    while (json_array_size(r->messages) > cli_run_first(r))
        json_array_remove(r->messages, json_array_size(r->messages) - 1);
    r->skip = 0;
    fprintf(stderr, "(the conversation is forgotten)\n");
}

bool cli_chat_command(struct cli_run *r, const char *name, const char *line, bool *ends,
                      int *status)
{
    size_t n = command_len(line), i = 0;
    char *copy = n ? strdup(line) : NULL;

    if (!copy) return n != 0;
    char *rest = copy + n + strspn(copy + n, " \t"), *word = copy + 1;
    for (size_t len = strlen(rest); len && strchr(" \t", rest[len - 1]); len--)
        rest[len - 1] = '\0';
    copy[n] = '\0';
    while (i < CN_ARRAY_LEN(commands) && strcmp(commands[i].name, word) != 0)
        i++;
    if (i == CN_ARRAY_LEN(commands)) {
        say_unknown(word);
        free(copy);
        return true;
    }
    switch (commands[i].what) {
    case SET:
        set(r, rest);
        break;
    case SYSTEM:
        system_message(r, rest);
        break;
    case MODEL:
        *ends = !model(r, name, rest);
        if (*ends) *status = 1;
        break;
        /* clang-format off */
    case SCHEMA: schema(r, rest); break;
    case THINK: think(r, rest); break;
    case RESULT: result(r, name, rest); break;
    case SAVE: save(r, rest); break;
    case CLEAR: clear(r); break;
    case EXIT: *ends = true; break;
    case HELP: help(); break;
        /* clang-format on */
    }
    free(copy);
    return true;
}
