/* conifer run: loading a model, and another one in its place. Main thread. */
#include "cli/run.h"

#include <stdlib.h>
#include <string.h>

int cli_run_sampling(struct cli_run *r, struct cn_error *err)
{
    struct rt_model_status model;

    rt_model_status(rt_model_at(r->stack.rt, 0), &model);
    r->sampling = model.sampling.v;
    rt_sampling_apply(&r->sampling, &r->asked);
    return eng_sampling_check(&r->sampling, eng_model_vocab(rt_model(r->stack.rt)), err);
}

void cli_run_say_kind(const struct cli_run *r)
{
    if (eng_model_template(rt_model(r->stack.rt))) return;
    fprintf(stderr,
            "%s has no chat template: it continues the text it is given, and neither chats nor "
            "remembers%s.\n",
            r->stack.name, cli_run_first(r) ? "; the system message is not used" : "");
}

int cli_run_open(struct cli_run *r, struct cn_error *err)
{
    struct cfg *cfg = &r->stack.cfg;
    int rc = cli_take_served(cfg, err);

    if (!rc) rc = cli_pull_missing(cfg, err);
    /* KV memory for one person, not for a daemon's users: this conversation, and the one before
     * it. */
    if (!cfg->places[CFG_KEY_scheduler_max_running].source) cfg->scheduler.max_running = 2;
    if (!rc) rc = cli_stack_open(&r->stack, err);
    return rc ? rc : cli_run_sampling(r, err);
}

/* ---- another one ----------------------------------------------------------------------------- */

/* The config's keys of the model; texts are owned. */
struct chosen {
    char *path, *name, *chat_template, *sampling, *file, *called;
    int64_t context;
    int kv_type;
    bool tools_fallback;
};

static void chosen_fini(struct chosen *c)
{
    free(c->path);
    free(c->name);
    free(c->chat_template);
    free(c->sampling);
    free(c->file);
    free(c->called);
    memset(c, 0, sizeof *c);
}

static bool chosen_copy(const struct cli_run *r, struct chosen *out)
{
    const struct cfg *c = &r->stack.cfg;
    bool failed = false;

    *out = (struct chosen){.path = cli_copy(c->model.path, &failed),
                           .name = cli_copy(c->model.name, &failed),
                           .chat_template = cli_copy(c->model.chat_template, &failed),
                           .sampling = cli_copy(c->model.sampling, &failed),
                           .file = cli_copy(r->stack.path, &failed),
                           .called = cli_copy(r->stack.name, &failed),
                           .context = c->model.context,
                           .kv_type = c->model.kv_type,
                           .tools_fallback = c->model.tools_fallback};
    if (failed) chosen_fini(out);
    return !failed;
}

/* Moves it back into the config. */
static void choose(struct cli_run *r, struct chosen *from)
{
    struct cfg *c = &r->stack.cfg;
    struct chosen old = {.path = c->model.path,
                         .name = c->model.name,
                         .chat_template = c->model.chat_template,
                         .sampling = c->model.sampling,
                         .file = r->stack.path,
                         .called = r->stack.name};

    c->model.path = from->path;
    c->model.name = from->name;
    c->model.chat_template = from->chat_template;
    c->model.sampling = from->sampling;
    c->model.context = from->context;
    c->model.kv_type = from->kv_type;
    c->model.tools_fallback = from->tools_fallback;
    r->stack.path = from->file;
    r->stack.name = from->called;
    memset(from, 0, sizeof *from);
    chosen_fini(&old);
}

/* What the config's list said of the model before is not the next one's; what options say stays. */
static void forget_served(struct cfg *c)
{
    if (!c->places[CFG_KEY_model_chat_template].source) {
        free(c->model.chat_template);
        c->model.chat_template = NULL;
    }
    if (!c->places[CFG_KEY_model_sampling].source) {
        free(c->model.sampling);
        c->model.sampling = NULL;
    }
    if (!c->places[CFG_KEY_model_context].source) c->model.context = 0;
    if (!c->places[CFG_KEY_model_kv_type].source) c->model.kv_type = CFG_KV_F16;
    if (c->places[CFG_KEY_model_tools_fallback].source) return;
    struct cfg fresh;
    if (!cfg_init(&fresh, NULL)) c->model.tools_fallback = fresh.model.tools_fallback;
    cfg_fini(&fresh);
}

/* Looks at what can be seen before the model in use is given up. */
static int prepare(struct cli_run *r, char *word, struct cn_error *err)
{
    struct cli_stack *s = &r->stack;

    forget_served(&s->cfg);
    free(s->path);
    free(s->name);
    s->path = s->name = NULL;
    int rc = cli_use_model(&s->cfg, word, err);
    if (!rc) rc = cli_take_served(&s->cfg, err);
    if (!rc) rc = cli_pull_missing(&s->cfg, err);
    if (!rc) rc = cli_stack_find(s, err);
    return rc ? rc : rt_check_model(&s->cfg, s->path, err);
}

static int load(struct cli_run *r, struct cn_error *err)
{
    struct rt_model_status model;
    int rc = cli_run_open(r, err);

    if (rc) return rc;
    rt_model_status(rt_model_at(r->stack.rt, 0), &model);
    return model.embeds
               ? cn_fail(err, CN_EUNSUPP, "%s makes vectors, and does not chat", r->stack.name)
               : 0;
}

int cli_run_switch(struct cli_run *r, const char *word, bool *lost, struct cn_error *err)
{
    struct chosen before;
    struct cn_error again = {0};
    char *name = strdup(word);

    *lost = false;
    if (!name || !chosen_copy(r, &before)) {
        free(name);
        return cn_fail(err, CN_ENOMEM, "out of memory");
    }
    int rc = prepare(r, name, err);
    free(name);
    if (rc) {
        choose(r, &before);
        return rc;
    }
    cli_form_forget(&r->form);
    cli_stack_unload(&r->stack);
    if ((rc = load(r, err))) {
        cli_stack_unload(&r->stack);
        choose(r, &before);
        *lost = cli_run_open(r, &again) != 0;
    }
    chosen_fini(&before);
    return rc;
}
