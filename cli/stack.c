/* A model in this process: config, runtime, one request at a time. Main thread. */
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

int cli_stack_config(struct cli_stack *s, int *argc, char **argv, struct cn_error *err)
{
    memset(s, 0, sizeof *s);
    s->cfg_ready = true;
    for (int i = 1; i < *argc && strcmp(argv[i], "--"); i++)
        if (!strcmp(argv[i], "-m") || !strcmp(argv[i], "--model") ||
            !strncmp(argv[i], "--model=", 8))
            s->model_given = true;
    int rc = cfg_init(&s->cfg, err);
    if (!rc) rc = cfg_set(&s->cfg, "log.level", "warn", err);
    if (!rc) rc = cfg_from_args(&s->cfg, argc, argv, err);
    if (rc) cli_faults(argv[0], &s->cfg, err);
    if (!rc) cfg_log_setup(&s->cfg);
    return rc;
}

int cli_stack_find(struct cli_stack *s, struct cn_error *err)
{
    if (s->path) return 0;
    int rc = cli_take_served(&s->cfg, err);
    return rc ? rc : cli_find_model(&s->cfg, &s->path, &s->name, err);
}

int cli_one_model(struct cli_stack *s, int argc, char **argv, int *status, struct cn_error *err)
{
    int rc = 0, words = argc - optind;

    if (words + s->model_given > 1) {
        *status = cli_usage(argv[0], "one model is expected, and %s is one more", argv[argc - 1]);
        return 0;
    }
    if (!words && !s->cfg.model.path && !s->cfg.model.name && !s->cfg.n_models) {
        *status = cli_usage(argv[0], "which model? Give a GGUF file, a name of `conifer list`, or "
                                     "--config FILE with one");
        return 0;
    }
    if (words) rc = cli_use_model(&s->cfg, argv[optind], err);
    return rc ? rc : cli_stack_find(s, err);
}

int cli_stack_open(struct cli_stack *s, struct cn_error *err)
{
    struct cli_progress progress;
    int rc = cli_stack_find(s, err);

    if (!rc && !(rc = cn_mailbox_init(&s->mail, NULL, NULL))) s->mail_ready = true;
    if (rc) return rc;
    cli_progress_start(&progress);
    struct rt_opts opts = {.cfg = &s->cfg,
                           .metrics = &s->metrics,
                           .model_path = s->path,
                           .model_id = s->name,
                           .progress = cli_progress_update,
                           .progress_arg = &progress};
    rc = rt_new(&opts, &s->rt, err);
    cli_progress_end(&progress);
    if (rc) cfg_error_place(&s->cfg, err);
    return rc;
}

static void drop_events(struct cn_mailbox *m)
{
    for (struct cn_msg *e = cn_mailbox_take(m), *next; e; e = next) {
        next = e->next;
        rt_event_free(CN_CONTAINER(e, struct rt_event, msg));
    }
}

void cli_stack_unload(struct cli_stack *s)
{
    rt_free(s->rt);
    s->rt = NULL;
    if (!s->mail_ready) return;
    drop_events(&s->mail);
    cn_mailbox_fini(&s->mail);
    s->mail_ready = false;
}

void cli_stack_close(struct cli_stack *s)
{
    cli_stack_unload(s);
    free(s->path);
    free(s->name);
    if (s->cfg_ready) cfg_fini(&s->cfg);
    memset(s, 0, sizeof *s);
}

static void take_text(const struct rt_event *e, const struct cli_sink *sink)
{
    size_t at = 0;

    if (!sink->on_part) return;
    if (!e->n_runs && e->text_len) sink->on_part(sink->arg, ENG_PART_CONTENT, e->text, e->text_len);
    for (size_t i = 0; i < e->n_runs; i++) {
        sink->on_part(sink->arg, e->runs[i].part, e->text + at, e->runs[i].end - at);
        at = e->runs[i].end;
    }
}

/* True at the end. */
static bool take_event(const struct rt_event *e, const struct cli_sink *sink,
                       struct cli_result *out)
{
    switch (e->kind) {
    case RT_EV_TOKENS:
        for (size_t i = 0; sink->on_token && i < e->n_tokens; i++)
            sink->on_token(sink->arg);
        take_text(e, sink);
        break;
    case RT_EV_CHOICE_END:
        if (e->choice == 0) out->finish = e->finish;
        break;
    case RT_EV_END:
        out->code = e->code;
        snprintf(out->message, sizeof out->message, "%s", rt_event_reason(e).message);
        out->usage = e->usage;
        return true;
    case RT_EV_ACCEPTED:
    case RT_EV_PROMPT:
    case RT_EV_EMBEDDING:
    case RT_EV_MODEL:
        break;
    }
    return false;
}

void cli_stack_ask(struct cli_stack *s, struct rt_request *q, const struct cli_sink *sink,
                   struct cli_result *out)
{
    struct cn_error err = {0};
    uint64_t id = ++s->last_id;
    bool done = false, cancelled = false;

    memset(out, 0, sizeof *out);
    q->id = id;
    q->reply = &s->mail;
    if (rt_submit(s->rt, q, &err)) {
        out->code = err.code;
        snprintf(out->message, sizeof out->message, "%s", err.message);
        rt_request_fini(q);
        return;
    }
    while (!done) {
        cn_mailbox_wait(&s->mail, 50000000u);
        if (!cancelled && sink->stopped && sink->stopped(sink->arg)) {
            cancelled = true;
            rt_cancel(s->rt, &s->mail, id);
        }
        for (struct cn_msg *m = cn_mailbox_take(&s->mail), *next; m; m = next) {
            struct rt_event *e = CN_CONTAINER(m, struct rt_event, msg);
            next = m->next;
            if (e->id == id && take_event(e, sink, out)) done = true;
            rt_event_free(e);
        }
    }
}
