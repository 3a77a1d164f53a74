/* conifer plan: how many users fit, before anything is loaded. */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* For more users than may run at once: says that the rest would wait, and plans memory for all
 * of them. */
static int put_waiting(const struct cfg *cfg, const struct eng_model *m, const struct rt_room *room,
                       uint64_t users, struct rt_memory_plan *p, struct cn_error *err)
{
    struct cfg more = *cfg;
    more.scheduler.max_running = (int64_t)users;
    printf("scheduler.max_running is %llu: the others would wait\n",
           (unsigned long long)cfg->scheduler.max_running);
    return cli_plan_room(&more, m, room, p, err);
}

/* 0 when the users fit, else 1. */
static int put_users(const struct cfg *cfg, const struct eng_model *m, const struct rt_room *room,
                     struct rt_memory_plan *p, uint64_t users)
{
    const struct eng_model_info *i = eng_model_info(m);
    uint32_t block = (uint32_t)cfg->kv.block_tokens;
    bool fit = users <= cli_users(cfg, p);
    struct cn_error err;
    uint64_t need;

    if (!users) return 0;
    printf("  %-15s %10llu  %s\n", "asked for", (unsigned long long)users,
           fit ? "fit" : "do not fit");
    if (fit) return 0;
    if (users > (uint64_t)cfg->scheduler.max_running && put_waiting(cfg, m, room, users, p, &err)) {
        printf("%s\n", err.message);
        return 1;
    }
    if (!cn_mul_u64(p->one_bytes, users, &need)) need = UINT64_MAX;
    uint64_t each = eng_tokens_in(i->exec, block, p->total_bytes / users);
    if (need <= p->total_bytes)
        printf("with more at once they fit, in %.1f MiB of KV memory\n",
               (double)p->total_bytes / (1024 * 1024));
    else if (each)
        printf("in memory they fit with %llu tokens each, or with %.1f MiB of KV memory\n",
               (unsigned long long)each, (double)need / (1024 * 1024));
    else
        printf("so many do not fit in memory with any window\n");
    return 1;
}

static int plan(struct cli_stack *s, uint64_t users, int *status, struct cn_error *err)
{
    struct eng_model_opts opts = {.prepare = rt_prepare_opts(&s->cfg)};
    struct eng_model *m = NULL;
    struct rt_memory_plan p;
    struct rt_room room;
    int rc = rt_check_model(&s->cfg, s->path, err);
    if (!rc) rc = rt_device_new(&s->cfg, &opts.device, err);
    if (!rc) rc = eng_model_measure(s->path, &opts, &m, err);
    if (!rc) {
        printf("%s, %llu tokens each, KV in %s\n", eng_model_info(m)->name,
               (unsigned long long)eng_model_info(m)->context,
               kr_type_info((uint32_t)opts.prepare.kv_type)->name);
        room = cli_memory_room(&s->cfg, opts.device);
        rc = cli_put_memory(&s->cfg, m, &room, &p, err);
    }
    if (!rc) *status = put_users(&s->cfg, m, &room, &p, users);
    eng_model_unref(m);
    kr_device_free(opts.device);
    return rc;
}

/* Whether the list is what is to be planned for; *only: of which of it alone, or NULL. */
static bool of_list(const struct cli_stack *s, int words, char **argv, const char **only)
{
    const struct cfg *c = &s->cfg;
    size_t i = 0;

    *only = words ? argv[optind] : c->model.name;
    if (!c->n_models || c->model.path || words + s->model_given > 1) return false;
    while (*only && i < c->n_models && strcmp(*only, c->models[i].name))
        i++;
    return i < c->n_models;
}

static int plan_list(struct cli_stack *s, const char *only, uint64_t users, int *status,
                     struct cn_error *err)
{
    const struct cfg *c = &s->cfg;
    struct rt_model_opts *models = NULL;
    bool fit = false;
    int rc = cli_list_models(c, &models, err);

    for (size_t i = 0; !rc && i < c->n_models; i++) { /* as asked for beside the list */
        if (c->model.context) models[i].context = (uint64_t)c->model.context;
        if (c->model.kv_type != CFG_KV_F16) models[i].kv_type = c->model.kv_type;
    }
    struct rt_opts o = {
        .cfg = c, .metrics = &s->metrics, .models = models, .n_models = c->n_models};
    if (!rc) rc = cli_put_weights(c, &o, only, users, &fit, err);
    *status = !rc && !fit;
    cli_free_models(models, c->n_models);
    return rc;
}

int cli_plan(int argc, char **argv)
{
    static const struct option options[] = {{"users", required_argument, NULL, 'u'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, CLI_AND_CONFIG}};
    struct cn_error err = {0};
    struct cli_stack s;
    uint64_t users = 0;
    const char *only;
    int opt, status = 0, rc = cli_stack_config(&s, &argc, argv, &err);

    optind = 0;
    while (!rc && !status && (opt = cli_option(argv[0], argc, argv, options)) != -1) {
        if (opt == 'u') {
            status = cli_count(argv[0], "users", optarg, 1, 1000000000, &users);
        } else {
            if (opt == 'h')
                puts(
                    "usage: conifer plan [MODEL.gguf|NAME] [--users N] [--context L]\n"
                    "                    [--kv-type TYPE] [--config FILE]\n\n"
                    "How many users fit at once, each with a window of L tokens (the model's own\n"
                    "when not said), with the settings a daemon would have. Without MODEL the one\n"
                    "of the config, or all that it lists, which share its memory. Nothing is\n"
                    "loaded. Exit status 1 when N users do not fit, or a model.");
            cli_stack_close(&s);
            return opt == 'h' ? 0 : 2;
        }
    }
    if (!rc && !status && of_list(&s, argc - optind, argv, &only)) {
        rc = plan_list(&s, only, users, &status, &err);
    } else {
        if (!rc && !status) rc = cli_one_model(&s, argc, argv, &status, &err);
        if (!rc && !status) rc = plan(&s, users, &status, &err);
    }
    if (rc) status = cli_error(argv[0], &err);
    cli_stack_close(&s);
    return status;
}
